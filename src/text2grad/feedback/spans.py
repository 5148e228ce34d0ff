"""Quotes → spans of the response: the span map A(y) of section 3.3 (arXiv 2505.22338).

In: a response, and a critic's positive and negative quotes. Out: `Span`s in characters of the response, with what is
said of the quotes, and quotes that the response does not contain. `critique_from_text` does this for a critique's text.

A quote is searched character by character (`match="exact"`) or in normalized form (`match="normalized"`, which also
finds every exact match, except matches that end inside a letter). The ends of a quote are never guessed: a paraphrase
or a quote shortened with dots is unmatched.

In a `Conversation` a quote is sought in the turn that it names, or else in the only one of the policy's turns that
holds it; a quote of any other turn, or in several turns, is unmatched. A quote with a place (`Placed`) marks its place
alone; if it does not stand there, its only occurrence. For all others:

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
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Literal, NamedTuple, get_args

from text2grad.errors import CriticError, check_known
from text2grad.feedback import turns
from text2grad.feedback.critique_text import ParsedCritique, parse_critique
from text2grad.feedback.normalize import Normalized, normalize, unchanged
from text2grad.feedback.words import inside_word
from text2grad.types import LABELS, Critique, Label, Span

Match = Literal["exact", "normalized"]
Occurrences = Literal["all", "first"]
Interval = tuple[int, int]
_Finders = dict[int | None, "_Finder"]  # of the whole response, and of each turn that the policy wrote
_EDGES = " *_`"  # white space and emphasis in Markdown
_NAMED = re.compile(r"turn (\d{1,6}): (.+)", re.IGNORECASE | re.DOTALL)


class LocatedSpans(NamedTuple):
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
        response: the text as the policy's tokenizer decodes it, or a `Conversation`.
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
    finders: _Finders = {None: _Finder(response, match)}
    finders |= {turn: _Finder(text, match) for turn, text in turns.sampled_texts(response).items()}
    groups: dict[tuple[int | None, str], list[_Listing]] = {}
    spans: set[Span] = set()
    missed: list[_Listing] = []
    for listing in _in_order(finders, positive, negative, order):
        if listing.turn not in finders:
            missed.append(listing)
        elif (place := getattr(listing.text, "place", None)) is None:
            groups.setdefault((listing.turn, listing.quote.core), []).append(listing)
        elif interval := finders[listing.turn].place(listing.text, place, listing.quote.core):
            spans.add(listing.span(*interval))
        else:
            missed.append(listing)
    for (turn, core), listings in groups.items():
        for listing, intervals in _share(listings, finders[turn].find(core), occurrences):
            spans.update(listing.span(*listing.quote.widen(finders[turn].text, *it)) for it in intervals)
            missed += [] if intervals else [listing]
    missed.sort(key=lambda listing: (LABELS.index(listing.label), listing.place))
    told = (str(it.text) if it.turn in (None, -1) else f"turn {it.turn}: {it.text}" for it in missed)
    return LocatedSpans(tuple(sorted(turns.in_turns(response, spans)[0])), tuple(told))


def critique_from_text(
    text: str, response: str, *, match: Match = "exact", occurrences: Occurrences = "all"
) -> Critique:
    """Parse the text of a critique and locate its quotes in the response.

    Args:
        text: the critic's text, in any form that `parse_critique` reads; the status is `unparsable` if it cannot.
        response: the response that it is about.
        match: see `locate_spans`.
        occurrences: see `locate_spans`.

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
    return Critique(parsed.reason + parsed.feedback, located.spans, parsed.outcome, parsed.status, located.unmatched)


def count_places(text: str, quote: str) -> int:
    """Return how many listings of a quote find an occurrence in a response, or in a turn (rules 2 and 3)."""
    return len(_Finder(text).find(quote))


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
    """One listing of a quote: its label, its place in the list of this label, its text, its turn, and the quote."""

    label: Label
    place: int
    text: str
    turn: int | None
    quote: _Quote

    def span(self, start: int, end: int) -> Span:
        """Return its span at a place, with what the critic says about the quote."""
        return Span(start, end, self.label, self.turn, **getattr(self.text, "about", {}))


def _in_order(
    finders: _Finders, positive: Sequence[str], negative: Sequence[str], order: Sequence[Label]
) -> Iterator[_Listing]:
    """Yield the listings of all quotes in the critic's order; if it is unknown, positive before negative listings."""
    for name, quotes in (("positive", positive), ("negative", negative)):
        if isinstance(quotes, str):  # a text instead of a list: each letter would be a quote
            raise CriticError(f"{name} is a list of quotes, got one text: {quotes[:80]!r}. Write [{quotes[:80]!r}]")
    known = [*repeat(LABELS[0], len(positive)), *repeat(LABELS[1], len(negative))]
    if order and sorted(order) != sorted(known):
        raise CriticError(
            f"order has {len(order)} labels, {list(order).count('negative')} of them negative, for {len(positive)} "
            f"positive and {len(negative)} negative quotes; give the label of each quote, or leave it out"
        )
    lists = {"positive": enumerate(positive), "negative": enumerate(negative)}
    for label in order or known:
        place, quote = next(lists[label])
        text, turn = _addressed(finders, quote)
        yield _Listing(label, place, text, turn, finders.get(turn, finders[None]).prepare(text))


def _addressed(finders: _Finders, quote: str) -> tuple[str, int | None]:
    """Return a quote without the turn that it names, and this turn, or else the only one that holds it, or else -1."""
    turn = getattr(quote, "turn", None)
    if len(finders) == 1 or (turn is None and getattr(quote, "bare", False)):
        return quote, None
    holding = [it for it, finder in finders.items() if it is not None and finder.find(finder.prepare(quote).core)]
    if turn is None and not holding and (named := _NAMED.fullmatch(quote)):
        return named[2], int(named[1])
    if turn is None and len(holding) > 1:
        return f"{quote} (in turns {', '.join(map(str, holding))})", -1
    return quote, next(iter(holding), -1) if turn is None else turn


def _share(
    listings: Sequence[_Listing], places: Sequence[Interval], occurrences: Occurrences
) -> Iterator[tuple[_Listing, Sequence[Interval]]]:
    """Yield each listing of a quote with its share of the places of the quote (rules 1, 3 and 4)."""
    if len(listings) == 1 and occurrences == "all":
        yield listings[0], places
        return
    ordered, rest = list(listings), list[_Listing]()
    if len(listings) > len(places):
        ordered = [listing for listing in listings if listing.label == "positive"]
        rest = [listing for listing in listings if listing.label == "negative"]
    first = len(ordered) if len(places) > len(ordered) else 0
    for nth, listing in (*enumerate(ordered), *enumerate(rest, start=first)):
        yield listing, places[nth : nth + 1]


class _Finder:
    """Finds quotes in a response, character by character or by their normalized forms."""

    def __init__(self, response: str, match: Match = "exact") -> None:
        self.text, self._exact = response, unchanged(response)
        self._text = self._exact if match == "exact" else normalize(response)

    def prepare(self, quote: str) -> _Quote:
        """Remove white space and emphasis around the words, and quotation marks that the response does not have."""
        if self._text is self._exact:
            return _Quote(quote)
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
        """Return where a core stands as whole words; if it does not, all its occurrences (rule 2)."""
        if not core.strip():
            return []
        text = self._text if core.strip(_EDGES) else self._exact  # emphasis alone has no normalized form
        return list(_search(text, core, whole=True)) or list(_search(text, core, whole=False))

    def place(self, quote: Any, place: Interval, core: str) -> Interval | None:
        """Return the range of a `Placed` quote: its place, or else where it stands once; None without one."""
        if quote.bare:
            return place if 0 <= place[0] <= place[1] <= len(self.text) else None
        elsewhere = self.find(core)
        return stands_at(self.text, quote, *place) or (elsewhere[0] if len(elsewhere) == 1 else None)


def stands_at(response: str, quote: str, start: int, end: int) -> Interval | None:
    """Return the range of a quote by the offsets of a tool, in code points or in UTF-16 units; None if they do not fit.

    White space may differ, and a line break may be a backslash and an n, as Label Studio writes it.
    """
    if 0 <= start <= end:
        for same in (str, _without_space):
            for first, last in readings(response, start, end):
                if same(response[first:last]) == same(quote) and last <= len(response):
                    return first, last
    return None


def readings(response: str, start: int, end: int) -> list[Interval]:
    """Return a range as it is in code points, and as it is if it was counted in UTF-16 units."""
    units = response.encode("utf-16-le", "surrogatepass")
    first, last = (len(units[: 2 * place].decode("utf-16-le", "surrogatepass")) for place in (start, end))
    return [(start, end), (first, last)]


def _without_space(text: str) -> str:
    return "".join(text.replace("\\n", "").split())


def _search(text: Normalized, core: str, *, whole: bool) -> Iterator[Interval]:
    """Yield the occurrences of `core`, left to right, without overlap; with `whole` only those that are whole words."""
    start = text.form.find(core)
    while start >= 0:
        end = start + len(core)
        interval = text.interval(start, end)
        if interval is None or (whole and (inside_word(text.form, start) or inside_word(text.form, end))):
            end = start + 1
        else:
            yield interval
        start = text.form.find(core, end)
