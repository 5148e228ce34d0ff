"""Quotes -> the places of the response they are about: the span map A(y) of section 3.3 (arXiv 2505.22338).

In: a response and the quotes a critic calls good or poor. Out: `Span`s in characters of the original response,
and the quotes that the response does not contain. `critique_from_text` does this for a critique as written.

A quote is found as it is written (`match="exact"`), or up to how it was typed (`match="normalized"`, which
also finds everything that is found exactly, save half letters). The ends of a quote are never guessed: a
paraphrase or a quote shortened with dots is unmatched.

1. A quote listed once marks all its occurrences (`occurrences="first"`: only the first). They are taken from
   left to right and do not overlap.
2. A quote that begins or ends with a letter marks whole words where it occurs as whole words: "cat" marks
   "the cat", not "concatenate", and marks "concatenate" only if "cat" stands nowhere alone. Scripts written
   without spaces have no such ends.
3. A quote listed n times marks n occurrences, in order; good listings take theirs before poor ones, since
   the two lists do not tell their common order. Listings beyond the last occurrence are unmatched.
4. If the good listings of a quote used up every occurrence, its poor listings start again from the first.
   That is a contradiction, left visible: both labels lie on one place, for the overlap rule to settle.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, NamedTuple, get_args

from text2grad.errors import ConfigError, CriticError
from text2grad.feedback.critique_text import ParsedCritique, parse_critique
from text2grad.feedback.normalize import normalize
from text2grad.types import Critique, Label, Span

Match = Literal["exact", "normalized"]
Occurrences = Literal["all", "first"]
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LocatedSpans:
    """Where quotes stand in a response.

    Attributes:
        spans: sorted by start, end and label; character offsets of the response, half-open.
        unmatched: the quotes, as listed, that found no place; good ones first.
    """

    spans: tuple[Span, ...]
    unmatched: tuple[str, ...]


def locate_spans(
    response: str,
    positive: Sequence[str],
    negative: Sequence[str],
    *,
    match: Match = "exact",
    occurrences: Occurrences = "all",
) -> LocatedSpans:
    """Find quotes in a response. The rules are those of the module's docstring.

    Args:
        response: the text as the policy's tokenizer decodes it.
        positive: quotes called good, in the critic's order.
        negative: quotes called poor, in the critic's order.
        match: `exact` compares characters; `normalized` forgives what `text2grad.normalize` lists, and
            quotation marks around the whole quote.
        occurrences: how many places a quote listed once marks, `all` or the `first`.

    Returns:
        The spans and the quotes that are not in the response. Blank quotes are unmatched.

    Raises:
        ConfigError: if `match` or `occurrences` is none of the known values.
        CriticError: if quotes are not given as a list.

    Example:
        >>> located = locate_spans("The cat sat. The cat ran.", ["sat"], ["The cat", "dog"])
        >>> [(span.start, span.end, span.label) for span in located.spans]
        [(0, 7, 'negative'), (8, 11, 'positive'), (13, 20, 'negative')]
        >>> located.unmatched
        ('dog',)
    """
    _check_known("match", match, get_args(Match))
    _check_known("occurrences", occurrences, get_args(Occurrences))
    finder = _Finder(response) if match == "exact" else _ForgivingFinder(response)
    labelled: tuple[tuple[Label, Sequence[str]], ...] = (("positive", positive), ("negative", negative))
    groups: dict[str, _Listings] = {}
    for label, quotes in labelled:
        _check_list(label, quotes)
        for index, quote in enumerate(quotes):
            prepared = finder.prepare(quote)
            groups.setdefault(prepared.core, _Listings([], [])).of(label).append((index, prepared))
    spans: set[Span] = set()
    missed: dict[Label, list[int]] = {"positive": [], "negative": []}
    for core, listings in groups.items():
        for label, (index, listed), intervals in listings.share(finder.find(core), occurrences):
            spans.update(Span(*listed.widen(response, *interval), label) for interval in intervals)
            missed[label].extend([] if intervals else [index])
    unmatched = tuple(quotes[index] for label, quotes in labelled for index in sorted(missed[label]))
    return LocatedSpans(tuple(sorted(spans)), unmatched)


def critique_from_text(
    text: str, response: str, *, match: Match = "exact", occurrences: Occurrences = "all"
) -> Critique:
    """Read a critique as written and find its quotes in the response it is about.

    Args:
        text: what the critic wrote, of any shape (see `parse_critique`).
        response: what it wrote about.
        match: see `locate_spans`.
        occurrences: see `locate_spans`.

    Returns:
        A critique without spans, and with status `unparsable`, where the text cannot be read.

    Raises:
        ConfigError: if `match` or `occurrences` is none of the known values.

    Example:
        >>> critique_from_text('Wrong city. {"poor_spans": ["Lyon"]}', "I live in Lyon.").spans
        (Span(start=10, end=14, label='negative'),)
    """
    return locate_critique(parse_critique(text), response, match=match, occurrences=occurrences)


def locate_critique(
    parsed: ParsedCritique, response: str, *, match: Match = "exact", occurrences: Occurrences = "all"
) -> Critique:
    """Return a parsed critique with its quotes located in the response; the arguments are those of `locate_spans`."""
    located = locate_spans(response, parsed.positive, parsed.negative, match=match, occurrences=occurrences)
    return Critique(parsed.feedback, located.spans, parsed.outcome, parsed.status, located.unmatched)


def count_places(response: str, quote: str) -> int:
    """Return how often a quote can be listed before a listing is left without a place (rules 2 and 3)."""
    return len(_Finder(response).find(quote))


class _Quote(NamedTuple):
    """A quote made ready: the core that is searched, and the edges that only forgiveness takes off."""

    core: str
    before: str = ""
    after: str = ""

    def widen(self, response: str, start: int, end: int) -> Interval:
        """Add the edges of the quote to the place of its core, where the response has them too."""
        if self.before and response.endswith(self.before, 0, start):
            start -= len(self.before)
        if self.after and response.startswith(self.after, end):
            end += len(self.after)
        return start, end


class _Listings(NamedTuple):
    """Where one quote is listed: its index in the list of good quotes and in that of poor ones."""

    positive: list[tuple[int, _Quote]]
    negative: list[tuple[int, _Quote]]

    def of(self, label: Label) -> list[tuple[int, _Quote]]:
        """The listings under one label."""
        return self.positive if label == "positive" else self.negative

    def share(
        self, found: list[Interval], occurrences: Occurrences
    ) -> Iterator[tuple[Label, tuple[int, _Quote], list[Interval]]]:
        """Deal the occurrences out: yield label, listing and the intervals it gets (rules 1, 3 and 4)."""
        alone = len(self.positive) + len(self.negative) == 1
        width = len(found) if alone and occurrences == "all" else 1
        for nth, listing in enumerate(self.positive):
            yield "positive", listing, found[nth : nth + width]
        first = len(self.positive) if len(found) > len(self.positive) else 0
        for nth, listing in enumerate(self.negative, start=first):
            yield "negative", listing, found[nth : nth + width]


class _Finder:
    """Finds quotes as they are written."""

    def __init__(self, response: str) -> None:
        self.response = response

    def prepare(self, quote: str) -> _Quote:
        """Nothing is forgiven: the quote is its own core."""
        return _Quote(quote)

    def find(self, core: str) -> list[Interval]:
        """The places of a quote, left to right, without overlap."""
        return _find(self.response, core, lambda start, end: (start, end))


class _ForgivingFinder(_Finder):
    """Finds quotes up to how they were typed."""

    def __init__(self, response: str) -> None:
        super().__init__(response)
        self._normalized = normalize(response)

    def prepare(self, quote: str) -> _Quote:
        """Take off what stands around the words: space, emphasis and, if need be, quotation marks."""
        normalized = normalize(quote)
        form = normalized.form
        first, last = len(form) - len(form.lstrip(_EDGES)), len(form.rstrip(_EDGES))
        if first >= last:
            return _Quote(quote)
        core = form[first:last]
        bare = core[1:-1].strip(_EDGES)
        if bare and core[0] == core[-1] and core[0] in "\"'" and not self.find(core):
            return _Quote(bare)
        return _Quote(core, quote[: normalized.starts[first]], quote[normalized.ends[last - 1] :])

    def find(self, core: str) -> list[Interval]:
        """The places of a quote, left to right, without overlap."""
        if not core.strip(_EDGES):  # nothing but emphasis: only the very characters can be meant
            return super().find(core)
        return _find(self._normalized.form, core, self._normalized.interval)


def _find(text: str, core: str, place: Callable[[int, int], Interval | None]) -> list[Interval]:
    """Find a text in another: whole words where there are any, else everywhere (rule 2).

    `place` maps characters of the text to characters of the response, or to None where that is no place.
    """
    if not core.strip() or core not in text:
        return []
    return list(_search(text, core, place, whole=True)) or list(_search(text, core, place, whole=False))


def _search(text: str, core: str, place: Callable[[int, int], Interval | None], *, whole: bool) -> Iterator[Interval]:
    """Yield the places of a text in another, left to right, without overlap."""
    start = text.find(core)
    while start >= 0:
        end = after = start + len(core)
        interval = place(start, end)
        if whole and inside_word(text, start):  # no word begins before this one is over
            word = _WORD.match(text, start)
            after = word.end() if word else start + 1
        elif interval is None or (whole and inside_word(text, end)):
            after = start + 1
        else:
            yield interval
        start = text.find(core, after)


_EDGES = " *_`"
_SPACELESS = (  # Thai, Lao, Burmese, Khmer, Chinese, Japanese; Korean, whose particles join the noun
    r"\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ua4cf\uac00-\ud7ff\uf900-\ufaff"
    r"\uff66-\uff9f\U00020000-\U0003ffff"
)
_LETTER = re.compile(rf"[^\W{_SPACELESS}]")
_WORD = re.compile(rf"[^\W{_SPACELESS}]++")


def inside_word(text: str, position: int) -> bool:
    """True where a cut at this position would go through a word, or between a letter and its mark."""
    if not 0 < position < len(text) or not _LETTER.match(text, position - 1):
        return False
    return bool(_LETTER.match(text, position)) or unicodedata.combining(text[position]) > 0


def _check_list(label: Label, quotes: Sequence[str]) -> None:
    """Refuse one text where a list of texts belongs: its letters would pass for quotes."""
    if isinstance(quotes, str):
        raise CriticError(f"{label} is a list of quotes, got one text: {quotes[:80]!r}. Write [{quotes[:80]!r}]")


def _check_known(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a value that is not known, and name the nearest one that is."""
    if value not in known:
        near = get_close_matches(str(value), known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{name} has no value {value!r}.{hint} Known values: {', '.join(known)}")
