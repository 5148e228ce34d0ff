"""Quotes → spans of the response: the span map A(y) of section 3.3 (arXiv 2505.22338).

In: a response, and the positive and negative quotes of a critic. Out: `Span`s in characters of the response, and the
quotes that the response does not contain. `critique_from_text` does this for the text of a critique.

A quote is searched character by character (`match="exact"`) or in normalized form (`match="normalized"`, which also
finds every exact match, except matches that end inside a letter). The ends of a quote are never guessed: a paraphrase
or a quote shortened with dots is unmatched.

1. A quote listed once marks all its occurrences (`occurrences="first"`: only the first). They are taken from
   left to right and do not overlap.
2. A quote that begins or ends with a letter marks whole words where it occurs as whole words: "cat" marks
   "the cat", not "concatenate", and marks "concatenate" only if "cat" stands nowhere alone. Scripts written
   without spaces have no such ends.
3. A quote listed n times marks n occurrences, in the order of one list with labels. Two lists have no common order;
   then positive listings come before negative listings. Listings beyond the last occurrence are unmatched.
4. If a quote has more listings than occurrences, positive listings come first also in one list. If they use every
   occurrence, its negative listings start again from the first. The contradiction stays visible: spans of both labels
   overlap, and the overlap rule decides.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from text2grad.errors import CriticError, check_known
from text2grad.feedback.critique_text import ParsedCritique, parse_critique
from text2grad.feedback.normalize import normalize
from text2grad.types import Critique, Label, Span

Match = Literal["exact", "normalized"]
Occurrences = Literal["all", "first"]
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LocatedSpans:
    """The spans of quotes in a response.

    Attributes:
        spans: sorted by start, end and label; character offsets of the response, half-open.
        unmatched: the quotes without an occurrence, as listed; positive quotes first.
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
    order: Sequence[Label] = (),
) -> LocatedSpans:
    """Locate quotes in a response, by the rules of the module's docstring.

    Args:
        response: the text as the policy's tokenizer decodes it.
        positive: positive quotes, in the critic's order.
        negative: negative quotes, in the critic's order.
        match: `exact` compares characters; `normalized` compares the forms of `feedback/normalize.py` and ignores
            quotation marks around the whole quote.
        occurrences: whether a quote that is listed once marks `all` its occurrences or the `first`.
        order: the labels of the quotes in the order of the one list that they come from; empty for two lists.

    Returns:
        The spans, and the quotes that the response does not contain. Blank quotes are unmatched.

    Raises:
        ConfigError: if `match` or `occurrences` has an unknown value.
        CriticError: if the quotes are one text instead of a list, or `order` has other labels.

    Example:
        >>> located = locate_spans("The cat sat. The cat ran.", ["sat"], ["The cat", "dog"])
        >>> [(span.start, span.end, span.label) for span in located.spans]
        [(0, 7, 'negative'), (8, 11, 'positive'), (13, 20, 'negative')]
        >>> located.unmatched
        ('dog',)
    """
    check_known("match", match, get_args(Match))
    check_known("occurrences", occurrences, get_args(Occurrences))
    finder = _Finder(response) if match == "exact" else _NormalizedFinder(response)
    groups: dict[str, list[_Listing]] = {}
    for listing in _in_order(finder, positive, negative, order):
        groups.setdefault(listing.quote.core, []).append(listing)
    spans: set[Span] = set()
    missed: dict[Label, list[int]] = {"positive": [], "negative": []}
    for core, listings in groups.items():
        for listing, intervals in _share(listings, finder.find(core), occurrences):
            spans.update(Span(*listing.quote.widen(response, *interval), listing.label) for interval in intervals)
            missed[listing.label].extend([] if intervals else [listing.place])
    unmatched = [positive[index] for index in sorted(missed["positive"])]
    unmatched += [negative[index] for index in sorted(missed["negative"])]
    return LocatedSpans(tuple(sorted(spans)), tuple(unmatched))


def critique_from_text(
    text: str, response: str, *, match: Match = "exact", occurrences: Occurrences = "all"
) -> Critique:
    """Parse the text of a critique and locate its quotes in the response.

    Args:
        text: the critic's text, in any form that `parse_critique` reads.
        response: the response that it is about.
        match: see `locate_spans`.
        occurrences: see `locate_spans`.

    Returns:
        The critique; without spans and with status `unparsable` if the text cannot be parsed.

    Raises:
        ConfigError: if `match` or `occurrences` has an unknown value.

    Example:
        >>> critique_from_text('Wrong city. {"poor_spans": ["Lyon"]}', "I live in Lyon.").spans
        (Span(start=10, end=14, label='negative'),)
    """
    return locate_critique(parse_critique(text), response, match=match, occurrences=occurrences)


def locate_critique(
    parsed: ParsedCritique, response: str, *, match: Match = "exact", occurrences: Occurrences = "all"
) -> Critique:
    """Return a parsed critique with its quotes located in the response; the arguments are those of `locate_spans`."""
    located = locate_spans(
        response, parsed.positive, parsed.negative, match=match, occurrences=occurrences, order=parsed.order
    )
    return Critique(parsed.feedback, located.spans, parsed.outcome, parsed.status, located.unmatched)


def count_places(response: str, quote: str) -> int:
    """Return how many listings of a quote find an occurrence (rules 2 and 3)."""
    return len(_Finder(response).find(quote))


class _Quote(NamedTuple):
    """A quote prepared for the search: its core, and the edges that normalized matching removes."""

    core: str
    before: str = ""
    after: str = ""

    def widen(self, response: str, start: int, end: int) -> Interval:
        """Extend the interval of the core by the edges of the quote, if the response has them too."""
        if self.before and response.endswith(self.before, 0, start):
            start -= len(self.before)
        if self.after and response.startswith(self.after, end):
            end += len(self.after)
        return start, end


class _Listing(NamedTuple):
    """One listing of a quote: its label, its place in the list of this label, and the quote."""

    label: Label
    place: int
    quote: _Quote


def _in_order(
    finder: "_Finder", positive: Sequence[str], negative: Sequence[str], order: Sequence[Label]
) -> Iterator[_Listing]:
    """Yield the listings of all quotes in their order; without one, positive before negative listings."""
    _check_list("positive", positive)
    _check_list("negative", negative)
    known: list[Label] = ["positive" for _ in positive]
    known += ["negative" for _ in negative]
    if order and sorted(order) != sorted(known):
        raise CriticError(
            f"order has {len(order)} labels, {list(order).count('negative')} of them negative, for {len(positive)} "
            f"positive and {len(negative)} negative quotes; give the label of each quote, or leave it out"
        )
    lists = {"positive": enumerate(positive), "negative": enumerate(negative)}
    for label in order or known:
        index, quote = next(lists[label])
        yield _Listing(label, index, finder.prepare(quote))


def _share(
    listings: Sequence[_Listing], found: Sequence[Interval], occurrences: Occurrences
) -> Iterator[tuple[_Listing, Sequence[Interval]]]:
    """Yield each listing of one quote with its intervals (rules 1, 3 and 4)."""
    if len(listings) == 1 and occurrences == "all":
        yield listings[0], found
        return
    ordered, negative = list(listings), list[_Listing]()
    if len(listings) > len(found):
        ordered, negative = ([one for one in listings if one.label == label] for label in ("positive", "negative"))
    first = len(ordered) if len(found) > len(ordered) else 0
    for nth, listing in (*enumerate(ordered), *enumerate(negative, start=first)):
        yield listing, found[nth : nth + 1]


class _Finder:
    """Finds exact matches of quotes."""

    def __init__(self, response: str) -> None:
        self.response = response

    def prepare(self, quote: str) -> _Quote:
        """Return the quote as its own core."""
        return _Quote(quote)

    def find(self, core: str) -> list[Interval]:
        """Return the occurrences of a core, left to right, without overlap."""
        return _find(self.response, core, lambda start, end: (start, end))


class _NormalizedFinder(_Finder):
    """Finds quotes by their normalized forms."""

    def __init__(self, response: str) -> None:
        super().__init__(response)
        self._normalized = normalize(response)

    def prepare(self, quote: str) -> _Quote:
        """Remove white space and emphasis around the words, and quotation marks that the response does not have."""
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
        """Return the occurrences of a core, left to right, without overlap."""
        if not core.strip(_EDGES):  # only emphasis characters: match them exactly
            return super().find(core)
        return _find(self._normalized.form, core, self._normalized.interval)


def _find(text: str, core: str, place: Callable[[int, int], Interval | None]) -> list[Interval]:
    """Return the occurrences of `core` as whole words; if there are none, all occurrences (rule 2).

    `place` maps a range of `text` to characters of the response, or to None if it has no such range.
    """
    if not core.strip() or core not in text:
        return []
    return list(_search(text, core, place, whole=True)) or list(_search(text, core, place, whole=False))


def _search(text: str, core: str, place: Callable[[int, int], Interval | None], *, whole: bool) -> Iterator[Interval]:
    """Yield the occurrences of `core` in `text`, left to right, without overlap."""
    start = text.find(core)
    while start >= 0:
        end = after = start + len(core)
        interval = place(start, end)
        if whole and inside_word(text, start):  # the next word begins after this word
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
_RUN = re.compile(r"\w++|[^\w\s]")


_MOST_MARKS = 64  # of one letter: bounds the search for the letter before a run of marks


def inside_word(text: str, position: int) -> bool:
    """Return True if this position is inside a word; combining marks and joiners belong to the letter before them."""
    if not 0 < position < len(text) or not (_LETTER.match(text, position) or _continues(text[position])):
        return False
    before = position - 1
    while before > max(0, position - _MOST_MARKS) and _continues(text[before]):
        before -= 1
    return bool(_LETTER.match(text, before))


def words_of(response: str) -> list[tuple[int, int]]:
    """Return the character range of each word of a response.

    A word is a run of letters and digits, or one other visible character: a letter of a script without spaces, a
    punctuation mark, an emoji. Accents, vowel signs and joiners belong to the character before them.

    Example:
        >>> words_of("It's 5 €")
        [(0, 2), (2, 3), (3, 4), (5, 6), (7, 8)]
    """
    words: list[tuple[int, int]] = []
    for place, character in enumerate(response):
        follows = bool(words) and words[-1][1] == place
        if inside_word(response, place) or (follows and _continues(character)):
            words[-1] = (words[-1][0], place + 1)
        elif not character.isspace():
            words.append((place, place + 1))
    return words


def whole_words(text: str) -> list[tuple[int, int]]:
    """Return the character range of each word of a text; unlike `words_of`, also in scripts without spaces.

    Example:
        >>> whole_words("日本 5 €")
        [(0, 2), (3, 4), (5, 6)]
    """
    words: list[tuple[int, int]] = []
    for found in _RUN.finditer(text):
        start, end = found.span()
        follows = bool(words) and words[-1][1] == start
        in_word = follows and is_letter(text[start]) and is_letter(text[words[-1][0]])
        if in_word or (follows and _continues(text[start])):
            words[-1] = (words[-1][0], end)
        else:
            words.append((start, end))
    return words


def is_letter(character: str) -> bool:
    """Return True for a letter, a digit or "_"."""
    return character.isalnum() or character == "_"


def _continues(character: str) -> bool:
    """Return True for an accent, a vowel sign or a joiner, which never begin a word."""
    return character > "\u02ff" and (character in "\u200c\u200d" or unicodedata.category(character).startswith("M"))


def _check_list(label: Label, quotes: Sequence[str]) -> None:
    """Raise an error for one text instead of a list: each of its letters would be a quote."""
    if isinstance(quotes, str):
        raise CriticError(f"{label} is a list of quotes, got one text: {quotes[:80]!r}. Write [{quotes[:80]!r}]")
