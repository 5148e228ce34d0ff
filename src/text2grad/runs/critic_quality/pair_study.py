"""Pairs of texts → a rating sheet with hidden sides; filled sheets → verdicts of people.

A rater sees "text 1" and "text 2" in an order that a random number decides for each pair, and writes 1, 2 or tie. The
id of an item is a hash of the pair and its order: the sheet alone does not tell the order, both input files do.
"""

import random
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from text2grad.critics.servers import Comparison, Failure, Preference, Side
from text2grad.errors import DataError
from text2grad.runs.critic_quality.study import cell, csv_of, sheet_rows
from text2grad.runs.reports.html import rollouts_page

QUESTION = "Which text is better: 1, 2 or tie?"
BETTER = "better"
_WORDS: dict[str, Side] = {"1": "first", "2": "second", "tie": "tie", "=": "tie", "0": "tie"}
_UNRATED = Failure("unrated", "the sheet has no verdict for this pair")


class ShownPair(NamedTuple):
    """A pair as raters see it.

    Attributes:
        id: of the item, unique in the sheet.
        pair: the texts.
        swapped: True if the second text is "text 1".
    """

    id: str
    pair: Comparison
    swapped: bool

    @property
    def texts(self) -> tuple[str, str]:
        """Text 1 and text 2."""
        return (self.pair.second, self.pair.first) if self.swapped else (self.pair.first, self.pair.second)


def draw_pairs(pairs: Sequence[Comparison], number: int, *, seed: int) -> list[ShownPair]:
    """Return at most `number` pairs of different texts at random, in random order and with random sides."""
    rng = random.Random(seed)
    able = [pair for pair in pairs if pair.first != pair.second]
    drawn = rng.sample(able, min(number, len(able)))
    sides = [rng.random() < 0.5 for _ in drawn]
    return [
        ShownPair(f"{n}-{_hash(pair, swapped=swapped)}", pair, swapped)
        for n, (pair, swapped) in enumerate(zip(drawn, sides, strict=True), start=1)
    ]


def _hash(pair: Comparison, *, swapped: bool) -> str:
    parts = (pair.prompt, pair.response or "", pair.first, pair.second, "swapped" if swapped else "")
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:10]


def pairs_csv(items: Sequence[ShownPair]) -> bytes:
    """Return the sheet as CSV."""
    rows = [(item.id, *map(cell, (item.pair.prompt, item.pair.response or "", *item.texts))) for item in items]
    return csv_of(("item", "prompt", "response", "text_1", "text_2", BETTER, "notes"), rows)


def pairs_html(items: Sequence[ShownPair]) -> str:
    """Return the HTML page with the items of the sheet."""
    records = []
    for item in items:
        prompt = f"{item.pair.prompt}\n\n{item.pair.response}" if item.pair.response else item.pair.prompt
        first, second = item.texts
        shown = {"item": item.id, "prompt": prompt, "response": first, "by": "Text 1"}
        records.append({**shown, "beside": [{"response": second, "by": "Text 2"}]})
    intro = f"{len(items):,} pairs. Read each pair here, and answer in sheet.csv.\n\n{BETTER}: {QUESTION}"
    return rollouts_page("Rating sheet of pairs", records, intro=intro)


def read_pair_sheet(path: Path, pairs: Iterable[Comparison]) -> list[Preference]:
    """Return a rater's preference for each pair; a pair without a verdict in the sheet has a failure "unrated".

    Raises:
        DataError: if the file is no sheet of these pairs, or a verdict is not 1, 2 or tie.
    """
    pairs = list(pairs)
    known = {
        _hash(pair, swapped=swapped): (row, swapped) for row, pair in enumerate(pairs) for swapped in (False, True)
    }
    verdicts: dict[int, Preference] = {}
    for number, item, row in sheet_rows(path, (BETTER,)):
        key = item.rpartition("-")[2]
        if key not in known:
            raise DataError(
                f"{path}: row {number}, item {item} is no pair of the two files. Give the files, in their order, from "
                "which `evaluate study --against` made the sheet"
            )
        word = (row[BETTER] or "").strip().casefold()
        if word and word not in _WORDS:
            raise DataError(
                f"{path}: row {number}, {BETTER}: expected 1, 2, tie or an empty cell, got {word[:40]!r}. "
                "Correct the cell"
            )
        if word:
            at, swapped = known[key]
            verdicts[at] = _preference(_WORDS[word], swapped=swapped)
    if not verdicts:
        raise DataError(f"there is no verdict in {path}. Fill in 1, 2 or tie first")
    return [verdicts.get(row, Preference(None, failure=_UNRATED)) for row in range(len(pairs))]


def _preference(place: Side, *, swapped: bool) -> Preference:
    exchanged: dict[Side, Side] = {"first": "second", "second": "first", "tie": "tie"}
    side = exchanged[place] if swapped else place
    return Preference(side, (side,), swapped_first=swapped)
