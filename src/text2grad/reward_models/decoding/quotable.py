r"""The valid quotes of a response, or of a turn: its substrings in JSON encoding, each as often as it occurs.

The state of a quote is the set of positions in the response where it may end. A quote may end only if
`locate_spans(match="exact")` finds it: it is not blank, and is listed at most as often as it occurs.

With `QuoteLimits.verbatim` the feedback is read, too. Its quotation marks, `\"` in JSON, open and close in turn. The
text after an opening mark must be a substring of the response until the next mark closes it.

Offsets are bytes of the response in JSON encoding (`json.dumps` without its marks).
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import NamedTuple

from text2grad.feedback import count_places, inside_word
from text2grad.reward_models.decoding.skeleton import MARK
from text2grad.reward_models.decoding.vocabulary import Vocabulary
from text2grad.types import LABELS, Label

Listed = tuple[tuple[Label, str, bytes], ...]  # label, text and head of the quotes so far

_MARKS = ('"', "'", "`", "“”")
_MAX_MARKS = 100  # marks of one kind that are read in a feedback; later marks quote nothing
_BACKSLASH, _END_OF_FEEDBACK = b"\\", b'"'
_UNIT = re.compile(rb'[^"\\]+|"|\\u[0-9a-fA-F]{4}|\\[^u]')


@dataclass(frozen=True, slots=True)
class QuoteLimits:
    """Limits on quotes, in addition to the rule that a quote is a substring of the response.

    Attributes:
        whole_words: quotes do not begin or end inside a word; has no effect in scripts without spaces.
        one_list: a quote in the positive list does not occur in the negative list; among labelled quotes, which are in
            one list, no text occurs twice.
        quoted_in_feedback: a quote also occurs between quotation marks in the feedback.
        verbatim: text between double quotation marks in the feedback is a substring of the response, too.
    """

    whole_words: bool = False
    one_list: bool = False
    quoted_in_feedback: bool = False
    verbatim: bool = False


class Quote(NamedTuple):
    """The state of a quote: the positions where it may end in the response, and its length, both in bytes."""

    ends: Sequence[int]
    length: int


class QuotedWords(NamedTuple):
    """The state of a feedback that is read."""

    quote: Quote | None = None  # the open quote; None outside of quotation marks
    tail: bytes = b""  # incomplete JSON escape at the end
    over: bool = False  # True after the end of the feedback, or if it is not checked


UNCHECKED = QuotedWords(over=True)


class Quotable:
    """The valid quotes of one response, or of one turn of a conversation."""

    def __init__(
        self, response: str, limits: QuoteLimits, vocabulary: Vocabulary, *, labelled: bool = False, head: bytes = b""
    ) -> None:
        """Encode the response as JSON, and find the first byte of each character.

        `labelled` quotes are in one list; `head` stands before a quote, and says in which turn.
        """
        self.response, self.limits, self.vocabulary, self.head = response, limits, vocabulary, head
        self.to_quote = [math.inf] * len(head) + [0.0]  # least number of tokens from each byte of the head to the quote
        for at in reversed(range(len(head))):
            ends = (end for end in range(at + 1, len(head) + 1) if head[at:end] in vocabulary.spelled)
            self.to_quote[at] = 1 + min(map(self.to_quote.__getitem__, ends), default=math.inf)
        self.once = labelled and limits.one_list
        self.data = _spelled(response)
        self.character: Sequence[int] = range(len(response) + 1)  # by byte; -1 inside a character
        if len(self.data) != len(response):
            self.character = [-1] * (len(self.data) + 1)
            for number, at in enumerate(accumulate((len(_spelled(c)) for c in response), initial=0)):
                self.character[at] = number
        self.empty = Quote([at for at, number in enumerate(self.character) if number >= 0], 0)
        self._tokens_to_end: dict[tuple[bytes, Label, Listed], float] = {}
        self._feedback: str | None = None
        self._quoted: dict[str, bytes] | None = None  # None: any substring of the response

    def restrict_to(self, feedback: str | None) -> None:
        """Allow only quotes between quotation marks of the feedback; None allows any quote."""
        if feedback == self._feedback:
            return
        self._tokens_to_end.clear()
        self._feedback, self._quoted = feedback, None
        if feedback is not None:
            places = ([at for at, c in enumerate(feedback) if c in marks][:_MAX_MARKS] for marks in _MARKS)
            texts = {feedback[start + 1 : end] for kind in places for start, end in combinations(kind, 2)}
            self._quoted = {text: _spelled(text) for text in texts if text and text in self.response}

    def advance(self, quote: Quote | None, data: bytes) -> Quote | None:
        """Return the quote after more bytes; None if it does not occur in the response.

        Args:
            quote: None for an empty quote.
            data: at least one byte.
        """
        if quote is None:
            length = len(data)
            ends = [at + length for at in self._find(data) if self._begins(at)]
        else:
            length = quote.length + len(data)
            ends = [end + len(data) for end in quote.ends if self.data.startswith(data, end)]
        if not ends:
            return None
        longer = Quote(ends, length)
        if self._quoted is not None:  # a shortcut: `tokens_to_end` would find this after a search
            begun = self.data[ends[0] - length : ends[0]]
            if not any(whole.startswith(begun) for whole in self._quoted.values()):
                return None
        return longer

    def text(self, quote: Quote) -> str | None:
        """Return the text of a quote; None if it ends inside a character."""
        last = self.character[quote.ends[0]]
        return None if last < 0 else self.response[self.character[quote.ends[0] - quote.length] : last]

    def may_end(self, quote: Quote, label: Label, listed: Listed) -> bool:
        """Return True if a quote may end here: `locate_spans` finds it after the quotes listed before."""
        text = self.text(quote)
        if text is None or text.isspace() or (self._quoted is not None and text not in self._quoted):
            return False
        if self.limits.whole_words and all(inside_word(self.response, self.character[end]) for end in quote.ends):
            return False
        positive, negative = (listed.count((label, text, self.head)) for label in LABELS)
        if not positive and not negative:
            return True
        if label == "negative" and positive and self.limits.one_list:
            return False
        places = count_places(self.response, text)
        if label == "positive":
            return positive < places and not (positive and self.once)
        return negative < (places - positive or places)  # rule 4 of spans.py

    def tokens_to_end(self, quote: Quote | None, label: Label, listed: Listed) -> float:
        """Return the least number of tokens until a quote may end; infinite if it never may."""
        if quote is not None and self.may_end(quote, label, listed):
            return 0
        if self.response.isspace():
            return math.inf
        key = (b"" if quote is None else self.data[quote.ends[0] - quote.length : quote.ends[0]], label, listed)
        if key not in self._tokens_to_end:
            self._tokens_to_end[key] = self._search(quote, lambda longer: self.may_end(longer, label, listed))
        return self._tokens_to_end[key]

    def read_words(self, words: QuotedWords, data: bytes) -> QuotedWords | None:
        """Return the state of the feedback after some bytes of JSON; None if a quote does not occur in the response."""
        if words.over:
            return words
        quote, data, at = words.quote, words.tail + data, 0
        while at < len(data):
            unit = _UNIT.match(data, at)
            if unit is None:  # an incomplete escape; inside a quote it can only become a mark
                tail = data[at:]
                return QuotedWords(quote, tail) if quote is None or tail == _BACKSLASH else None
            if unit[0] == _END_OF_FEEDBACK:
                return UNCHECKED if quote is None else None
            if unit[0] == MARK:
                quote = self.empty if quote is None else None
            elif quote is not None:
                quote = self.advance(quote, unit[0])
                if quote is None:
                    return None
            at = unit.end()
        return QuotedWords(quote)

    def tokens_to_close(self, quote: Quote, tail: bytes) -> float:
        """Return the least number of tokens that close an open quote of the feedback, by its state and its tail."""
        spelled = self.vocabulary.spelled
        if tail:
            return 1 if _END_OF_FEEDBACK in spelled else math.inf
        mark = 1 if MARK in spelled else 2 if _BACKSLASH in spelled and _END_OF_FEEDBACK in spelled else math.inf
        whole = self.text(quote) is not None
        return mark + (0 if whole else self._search(quote, lambda longer: self.text(longer) is not None))

    def tokens(self, quote: Quote | None, head: bytes = b"") -> Iterator[bytes]:
        """Yield the byte strings that may continue a quote: whole tokens and prefixes of tokens, each once.

        `head` is what is still missing before the quote.
        """
        known, seen = self.vocabulary.prefixes, set()
        yield from (head[:end] for end in range(1, len(head)))  # its end is a mark, which `before_quote` knows
        for at in filter(self._begins, range(len(self.data))) if quote is None else quote.ends:
            for end in range(at + 1, len(self.data) + 1):
                data = head + self.data[at:end]
                if data not in known:
                    break
                if data not in seen:
                    seen.add(data)
                    yield data

    def _search(self, quote: Quote | None, is_goal: Callable[[Quote], bool]) -> float:
        """Return the least number of tokens to a goal, by breadth-first search."""
        waiting, seen = [quote], set()
        for depth in range(1, len(self.data) + 1):
            longer: list[Quote | None] = []
            for shorter in waiting:
                for data in self.tokens(shorter):
                    further = self.advance(shorter, data) if data in self.vocabulary.spelled else None
                    if further is None or (further.ends[0], further.length) in seen:
                        continue
                    if is_goal(further):
                        return depth
                    seen.add((further.ends[0], further.length))
                    longer.append(further)
            waiting = longer
        return math.inf

    def _begins(self, at: int) -> bool:
        """Return True if a quote may begin at this byte."""
        number = self.character[at]
        return number >= 0 and not (self.limits.whole_words and inside_word(self.response, number))

    def _find(self, data: bytes) -> Iterator[int]:
        at = self.data.find(data)
        while at >= 0:
            yield at
            at = self.data.find(data, at + 1)


def _spelled(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()
