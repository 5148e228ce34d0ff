"""Words that a person wants in place of marked ones: a comment quotes them, or they are praised further on.

A small policy that reads "It should begin with `ls -l`" answers the person, or does not heed it. So an answer is made
to go on with `ls -l` in place of the marked words, and the policy says what comes behind.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from text2grad.align import encode, response_deltas
from text2grad.runs.words import places_of
from text2grad.types import Critique, Rollout, Span

QUOTED = re.compile(r"""(?<!\w)(?:"([^"\n]+)"|“([^”\n]+)”|'([^'\n]+)'(?!\w)|‘([^’\n]+)’(?!\w)|(`[^`\n]+`))""")
LEFT_OUT = re.compile(r"\.\.\.|…")  # dots in a quote that stand for other words
STOPS = (".", "!", "?")  # end a sentence


class Wished(NamedTuple):
    """What is wanted in place of the first negative mark of an answer.

    Attributes:
        critique: the answer's, whose first negative mark begins where the answer leaves the wanted words.
        starts: first ids of answers, up to the end of the wanted words; none without a wish.
    """

    critique: Critique
    starts: list[tuple[int, ...]]


class _Marked:
    """An answer, and the tokens of its first negative mark: from `first` on, before `last`."""

    def __init__(self, tokenizer: Any, rollout: Rollout, critique: Critique) -> None:
        (delta,), (self.offsets,) = response_deltas(tokenizer, [rollout], [critique])
        self.ids, self.text, self.spans = rollout.response_ids, str(rollout.response), critique.spans
        self.first = next((at for at, value in enumerate(delta) if value < 0), len(delta))
        self.last = next((at for at in range(self.first, len(delta)) if delta[at] >= 0), len(delta))
        self.begin, self.end = self.offsets[self.first][0], self.offsets[self.last - 1][1]

    def token_at(self, character: int) -> int:
        """Return the token of a character."""
        return next(at for at, (_, end) in enumerate(self.offsets) if end > character)

    def token_from(self, character: int) -> int:
        """Return the first token that begins at a character or behind it."""
        return next(at for at, (start, _) in enumerate(self.offsets) if start >= character)

    def before(self, place: int) -> str:
        """Return the text before a token, without the space at its end."""
        return self.text[: self.offsets[place][0]].rstrip()

    def words(self, label: str) -> list[tuple[int, str]]:
        """Return where each mark of a label begins, and its words."""
        return [(span.start, self.text[span.start : span.end]) for span in self.spans if span.label == label]


def wished(tokenizer: Any, rollout: Rollout, critique: Critique, comment: str, end_id: int) -> Wished:
    """Return what a person wants in place of the first negative mark.

    Wanted are the words that the comment quotes and the praised ones behind the mark, if none of them is blamed. They
    stand in place of blamed words that the comment quotes, else of the mark, or of its whole sentence if they are one.
    A sentence that is marked up to the end of the answer, behind another, was to be left out.

    Args:
        tokenizer: the policy's.
        rollout: the answer.
        critique: its marks, at least one of them negative.
        comment: the person's words.
        end_id: the id that ends an answer.
    """
    marked, starts = _Marked(tokenizer, rollout, critique), dict[int, list[tuple[int, ...]]]()
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    for place, words in _wishes(marked, comment):
        begun = marked.text[: marked.offsets[place][0]]
        gap = " " if marked.text[len(begun)].isspace() else ""
        told = (encode(tokenizer, text) for text in (gap + words, words))
        ways = ((*marked.ids[:place], *ids[cut:]) for ids in told for cut in (0, 1))  # the first may be a space put in
        start = next((ids for ids in ways if decode(ids) == begun + gap + words), ())
        pairs = enumerate(zip(start, marked.ids[: marked.last], strict=False))
        fork = next((at for at, (new, old) in pairs if new != old), marked.last)
        if fork < marked.last and start:
            starts.setdefault(fork, []).append(start)
    if marked.end >= len(marked.text.rstrip()) and marked.before(marked.first).endswith(STOPS):
        starts.setdefault(marked.first, []).append((*marked.ids[: marked.first], end_id))
    if not starts:
        return Wished(critique, [])
    fork = min(starts)
    return Wished(replace(critique, spans=_from(marked, fork)), starts[fork])


def _wishes(marked: _Marked, comment: str) -> Iterator[tuple[int, str]]:
    """Yield the token in whose place words are wanted, and these words, as they would stand there."""
    quotes = ["".join(quote) for quote in QUOTED.findall(comment)]
    quoted = [words for quote in quotes if (words := LEFT_OUT.split(quote)[0].strip())]
    blamed = [words for _, words in marked.words("negative")]
    praised = [words.strip() for start, words in marked.words("positive") if start >= marked.end]
    named = [at for words in quoted for at, _ in places_of(words, marked.text[marked.begin : marked.end])]
    begin = marked.begin + min(named, default=0)
    for words in dict.fromkeys((*quoted, *praised)):
        if any(places_of(words, other) for other in blamed):
            continue
        place = marked.token_at(begin)
        before = marked.before(place)
        if before and not before.endswith((*STOPS, ":")):  # within a sentence
            small = words[0].lower() + words[1:]
            if words[0].isupper() and re.search(rf"\b{re.escape(small.split()[0])}\b", marked.text):
                words = small
            elif words[0].isupper() and words.endswith(STOPS):
                place = marked.token_from(max(before.rfind(stop) + 1 for stop in STOPS))
            elif not named and 2 * len(words.split()) < len(marked.text[begin : marked.end].split()):
                continue  # one word for many leaves half a sentence
        yield place, _not_again(words, marked.before(place))


def _not_again(words: str, before: str) -> str:
    """Return words without those with which the text before them ends."""
    said, new = before.lower().split(), words.lower().split()
    again = max((n for n in range(len(new)) if said[len(said) - n :] == new[:n]), default=0)
    return words.split(maxsplit=again)[again] if again else words


def _from(marked: _Marked, fork: int) -> tuple[Span, ...]:
    """Return the spans of an answer with the first negative mark from a token on."""
    start = marked.offsets[fork][0]
    if fork < marked.first:
        return (Span(start, marked.begin, "negative"), *marked.spans)
    later = [span for span in marked.spans if span.label != "negative" or span.end > start]
    return tuple(replace(s, start=max(s.start, start)) if s.label == "negative" else s for s in later)
