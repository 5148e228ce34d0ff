r"""What may be quoted from one response: its pieces, as JSON spells them, and each as often as it occurs.

A quote is followed token by token as the set of places in the response where it may have got to. Where it may end,
`locate_spans(match="exact")` finds it: it is not blank, and listed no more often than there are places for it.

In: a response, the limits, a vocabulary. Out: the quotes one token further, whether one may end, and how many tokens
are needed until one may. Offsets are bytes of the response as JSON spells it (`json.dumps`, without its marks).
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import NamedTuple

from text2grad.feedback import count_places, inside_word
from text2grad.reward_models.decoding.vocabulary import Vocabulary
from text2grad.types import Label

Listed = tuple[tuple[Label, str], ...]

_MARKS = ('"', "'", "`", "“”")
_MOST_MARKS = 100  # of one kind in a critique; those after them support nothing


@dataclass(frozen=True, slots=True)
class QuoteLimits:
    """What a critic may quote, beside what every quote must be: a piece of the response.

    Attributes:
        whole_words: quotes neither begin nor end within a word; scripts without spaces have no such bounds.
        max_quote_words: the most words of one quote, parted by white space; None for any number.
        max_quotes: the most quotes in each list; None for any number.
        one_list: a text that is listed as good is not listed as poor.
        quoted_in_feedback: a quote stands between quotation marks in the critique's words, too.
        verbatim: what stands between double quotation marks in the critique's words is a piece of the response, too.
    """

    whole_words: bool = False
    max_quote_words: int | None = None
    max_quotes: int | None = None
    one_list: bool = False
    quoted_in_feedback: bool = False
    verbatim: bool = False


class Quote(NamedTuple):
    """A quote so far: where in the response it may end, and its length, both in bytes."""

    ends: Sequence[int]
    length: int


class Quotable:
    """The quotes of one response."""

    def __init__(self, response: str, limits: QuoteLimits, vocabulary: Vocabulary) -> None:
        """Spell the response as JSON does, and find where its characters begin."""
        self.response, self.limits, self.vocabulary = response, limits, vocabulary
        spelled = json.dumps(response, ensure_ascii=False)[1:-1]
        self.data = spelled.encode()
        self.character: Sequence[int] = range(len(response) + 1)  # by byte; -1 within a character
        if len(self.data) != len(response):
            sizes = (len(json.dumps(c, ensure_ascii=False).encode()) - 2 for c in response)
            self.character = [-1] * (len(self.data) + 1)
            for number, at in enumerate(accumulate(sizes, initial=0)):
                self.character[at] = number
        self._anywhere = len(self.data) == len(response) and not limits.whole_words
        self.empty = Quote([at for at, number in enumerate(self.character) if number >= 0], 0)
        self._needed: dict[tuple[bytes, Label, Listed], float] = {}
        self._support: dict[str, bytes] | None = None  # None: any piece of the response

    def support(self, words: str | None) -> None:
        """Allow those quotes alone that stand between quotation marks in a critique's words; without words, any."""
        self._needed.clear()
        self._support = None
        if words is not None:
            marked = (words[a + 1 : b] for marks in _MARKS for a, b in combinations(_places(words, marks), 2))
            quoted = {text for text in marked if text and text in self.response}
            self._support = {text: json.dumps(text, ensure_ascii=False)[1:-1].encode() for text in quoted}

    def advance(self, quote: Quote | None, data: bytes) -> Quote | None:
        """Return the quote with some bytes more; None where the response, or a limit, has no such quote.

        Args:
            quote: None for the quote of which nothing is written.
            data: at least one byte.
        """
        if quote is None:
            length = len(data)
            ends = [at + length for at in self._find(data) if self._anywhere or self._begins(at)]
        else:
            length = quote.length + len(data)
            ends = [end + len(data) for end in quote.ends if self.data.startswith(data, end)]
        if not ends:
            return None
        longer = Quote(ends, length)
        if self._support is not None:  # `needed` would find out, too, after a search
            begun = self.data[ends[0] - length : ends[0]]
            if not any(whole.startswith(begun) for whole in self._support.values()):
                return None
        limit = self.limits.max_quote_words
        return longer if limit is None or len((self.text(longer) or "").split()) <= limit else None

    def text(self, quote: Quote) -> str | None:
        """Return the characters of a quote; None within one."""
        last = self.character[quote.ends[0]]
        return None if last < 0 else self.response[self.character[quote.ends[0] - quote.length] : last]

    def may_open(self, label: Label, listed: Listed) -> bool:
        """True where a list has room for another quote."""
        limit = self.limits.max_quotes
        return limit is None or sum(one == label for one, _ in listed) < limit

    def may_end(self, quote: Quote, label: Label, listed: Listed) -> bool:
        """True where a quote, ended here and listed under a label after others, is found in the response."""
        text = self.text(quote)
        if text is None or text.isspace() or (self._support is not None and text not in self._support):
            return False
        if self.limits.whole_words and all(inside_word(self.response, self.character[end]) for end in quote.ends):
            return False
        good, poor = listed.count(("positive", text)), listed.count(("negative", text))
        if not good and not poor:
            return True
        if label == "negative" and good and self.limits.one_list:
            return False
        places = count_places(self.response, text)
        if label == "positive":
            return good < places
        return poor < (places - good or places)  # rule 4 of spans.py

    def needed(self, quote: Quote | None, label: Label, listed: Listed) -> float:
        """Return the least number of tokens after which a quote may end; infinite where it never may."""
        if quote is not None and self.may_end(quote, label, listed):
            return 0
        if self.response.isspace():
            return math.inf
        key = (b"" if quote is None else self.data[quote.ends[0] - quote.length : quote.ends[0]], label, listed)
        if key not in self._needed:
            self._needed[key] = self._search(quote, lambda longer: self.may_end(longer, label, listed))
        return self._needed[key]

    def to_character(self, quote: Quote) -> float:
        """Return the least number of tokens after which a quote ends between two characters."""
        return 0 if self.text(quote) is not None else self._search(quote, lambda longer: self.text(longer) is not None)

    def tokens(self, quote: Quote | None) -> Iterator[bytes]:
        """Yield how tokens may go on in a quote, in bytes: whole tokens and their beginnings, each once."""
        known, seen = self.vocabulary.prefixes, set()
        for at in filter(self._begins, range(len(self.data))) if quote is None else quote.ends:
            for end in range(at + 1, len(self.data) + 1):
                data = self.data[at:end]
                if data not in known:
                    break
                if data not in seen:
                    seen.add(data)
                    yield data

    def _search(self, quote: Quote | None, found: Callable[[Quote], bool]) -> float:
        """Search breadth first, token by token."""
        waiting, seen = [quote], set()
        for depth in range(1, len(self.data) + 1):
            longer: list[Quote | None] = []
            for one in waiting:
                for data in self.tokens(one):
                    further = self.advance(one, data) if data in self.vocabulary.spelled else None
                    if further is None or (further.ends[0], further.length) in seen:
                        continue
                    if found(further):
                        return depth
                    seen.add((further.ends[0], further.length))
                    longer.append(further)
            waiting = longer
        return math.inf

    def _begins(self, at: int) -> bool:
        """True where a quote may begin."""
        number = self.character[at]
        return number >= 0 and not (self.limits.whole_words and inside_word(self.response, number))

    def _find(self, data: bytes) -> Iterator[int]:
        at = self.data.find(data)
        while at >= 0:
            yield at
            at = self.data.find(data, at + 1)


def _places(text: str, marks: str) -> list[int]:
    """Return where some marks stand."""
    return [at for at, character in enumerate(text) if character in marks][:_MOST_MARKS]
