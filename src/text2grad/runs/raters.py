"""Answers of raters → how far each rater can be trusted; the majority is taken to be right.

The unit is a word of an answer (`words_of`) with its δ: 1 in positive spans, −1 in negative ones, 0 in both or none.

agreement  quadratically weighted kappa of a rater against the group of all others who judged the same responses
           (Schouten 1982; Vanbelle and Albert, Statistica Neerlandica 63, 2009); with one other Cohen's weighted kappa
harm       change of a model's squared error on the others' held-out marks if it learns from this rater, too, as a
           share; below 0 the rater helps. The model predicts δ by the word and the one before it: a mean of marks that
           falls back to that of the word, and of all words, as smoothed n-grams do; never of the same response
marked     share of the words that the rater marks
seconds    median per answer
signs      of trouble, in words, with the strength of each: from 1 up it is a reason to look at the answers

The strength is 1 where the agreement's interval (bootstrap over responses) ends at half of the others' median; where
that of the harm begins at 0, or at twice their median, since one bad rater raises the harm of all; and where their
median time is thrice the rater's. A word is a sign if the rater marks it in more places than the others do, by half of
them or more: with strength 1 where Chernoff's bound allows one file of honest raters in a hundred to have such a word.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from math import isnan, log, nan
from statistics import median
from typing import Any

import numpy as np

from text2grad.errors import DataError
from text2grad.evaluation import Estimate, Ratio, estimate
from text2grad.feedback import CritiqueRecord, flat_spans, words_of

FOLDS, PRIOR = 5, 4.0  # parts that are held out in turn; marks that weigh as much as the coarser mean
LESS, MORE, HASTY = 1 / 2, 2.0, 1 / 3  # of the others' median: agreement, harm, time
CHANCE, GAP, LEAST = 0.01, 0.5, 3  # of one word: false alarms per file, difference of shares, places on both sides
DRAWS, TINY = 500, 1e-12  # resamples of a bootstrap; the least that is divided by
FIGURES = {"agreement": Ratio(("beyond chance",), ("most",)), "harm": Ratio(("more",), ("without",))}


def check_raters(answers: Iterable[CritiqueRecord]) -> list[dict[str, Any]]:
    """Return the figures of each rater, NaN where they cannot be judged, the strongest sign first.

    Of two answers of a rater to one response the later counts; blank responses, and answers of nobody, do not.

    Raises:
        DataError: if there are fewer than two raters.
    """
    own = defaultdict[str, dict[tuple[str, str], CritiqueRecord]](dict)
    for answer in answers:
        if answer.rater and answer.response.strip():
            own[answer.rater][answer.prompt, answer.response] = answer
    if len(own) < 2:
        raise DataError(
            f"raters are judged by each other, and the files name {', '.join(own) or 'none'}. Give the answers of two "
            'or more: spans or lines with a "rater", or a file for each'
        )
    words = [word for given in own.values() for answer in given.values() for word in _words(answer)]
    ids = [defaultdict[Any, int](count().__next__) for _ in range(5)]
    rows = [[*(number[key] for number, key in zip(ids, keys, strict=True)), delta] for *keys, delta in words]
    columns, rated = np.array(rows).T, list[dict[str, Any]]()
    for name, given in own.items():
        mine = columns[0] == ids[0][name]
        marks = sum(len(answer.critique.spans) for answer in given.values())
        counts = {"answers": len(given), "marks": marks, "marked": float(np.abs(columns[-1][mine]).mean())}
        seconds = median([answer.seconds for answer in given.values() if answer.seconds is not None] or [nan])
        figures = dict.fromkeys(FIGURES, Estimate(nan, nan, nan)) | _figures(columns, mine)
        odd = _odd_word(columns, mine, list(ids[3]))
        rated.append({"rater": name, **counts, **figures, "seconds": seconds, "signs": [odd]})
    for row in rated:
        signs = [*row["signs"], *_signs(row, [other for other in rated if other is not row])]
        row["signs"] = sorted((sign for sign in signs if sign[0] > 0), reverse=True)  # NaN is none
    return sorted(rated, key=lambda row: -max((strength for strength, _ in row["signs"]), default=0.0))


def _words(answer: CritiqueRecord) -> Iterator[tuple[Any, ...]]:
    """Yield rater, response, place in it, word, the pair with the word before, and δ of each word."""
    item, before, spans = (answer.prompt, answer.response), "", flat_spans(answer.response, answer.critique.spans)
    for start, end in words_of(answer.response):
        labels = {span.label for span in spans if span.start < end and start < span.end}
        word, delta = answer.response[start:end].casefold(), ("positive" in labels) - ("negative" in labels)
        yield answer.rater, item, (item, start), word, (before, word), delta
        before = word


def _signs(row: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, str]]:
    """Yield the signs of a rater beside the others; the strength is NaN where nothing can be judged."""
    kappa, harm, pace = row["agreement"], row["harm"], row["seconds"]
    theirs = [(other["agreement"].value, other["harm"].value, other["seconds"]) for other in others]
    known = ([value for value in values if not isnan(value)] for values in zip(*theirs, strict=True))
    usual, usual_harm, usual_pace = (median(values or [nan]) for values in known)
    less = f"agrees less than half as much as the others do (median {usual:.2f})"
    reason = "marks the opposite of the others" if kappa.high < 0 else less
    yield (LESS * max(usual, 0) - kappa.value) / max(kappa.high - kappa.value, TINY), reason
    reason = f"the others' marks are predicted {harm.value:.1%} worse with these (median {usual_harm:.1%})"
    yield (harm.value - MORE * max(usual_harm, 0)) / max(harm.value - harm.low, TINY), reason
    yield HASTY * usual_pace / max(pace, TINY), f"takes {pace:.0f} s per answer, the others {usual_pace:.0f} s"


def _figures(columns: np.ndarray, mine: np.ndarray) -> dict[str, Estimate]:
    """Return agreement and harm, where defined, of the rater who said the words of `mine`, [words]."""
    _, item, place, *_, delta = columns
    others = np.bincount(place[~mine], minlength=len(place))[place]  # who else judged the word, [words]
    sums = (np.bincount(place[~mine], delta[~mine] ** n, len(place))[place] for n in (1, 2))
    mean, square = (values / others.clip(1) for values in sums)
    shared = mine & (others > 0)
    usual = mean[shared].sum() / max(shared.sum(), 1)
    whole, without = (_errors(columns, known) for known in (mine | ~mine, ~mine))
    counts = {  # kappa is 1 − E(δ − δ')² / most, where most is the same for independent δ
        "beyond chance": shared * 2 * delta * (mean - usual),
        "most": shared * (delta**2 + square - 2 * delta * usual),
        **{"more": ~mine * (whole - without), "without": ~mine * without},
    }
    summed = [np.bincount(item, values).tolist() for values in counts.values()]
    return estimate([dict(zip(counts, row, strict=True)) for row in zip(*summed, strict=True)], FIGURES, draws=DRAWS)


def _errors(columns: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the squared error of the model at each word, learned from the known words of other responses."""
    _, item, _, word, pair, delta = columns
    errors, size = np.zeros(len(delta)), len(delta)
    for fold in range(FOLDS):
        held_out, mean = item % FOLDS == fold, np.zeros(size)
        learned = known & ~held_out
        for key in (np.zeros_like(word), word, pair):
            sums, counts = (np.bincount(key[learned], weights, size)[key] for weights in (delta[learned], None))
            mean = (sums + PRIOR * mean) / (counts + PRIOR)
        errors[held_out] = (delta - mean)[held_out] ** 2
    return errors


def _odd_word(columns: np.ndarray, mine: np.ndarray, vocabulary: Sequence[str]) -> tuple[float, str]:
    """Return the strength of the word whose marks are least likely by the others' share, and its counts in words."""
    raters, _, _, word, _, delta = columns
    odd = [(0.0, "")]
    for label, sign in (("negative", -1), ("positive", 1)):
        chosen = mine & (delta == sign), mine, ~mine & (delta == sign), ~mine
        own, here, theirs, there = counts = [np.bincount(word[some], None, len(vocabulary)) for some in chosen]
        share, usual = own / here.clip(1), (theirs + 1) / (there + 2)
        enough = np.minimum(here, there) >= LEAST
        unmarked = (1 - share) * np.log((1 - share).clip(TINY) / (1 - usual))
        bound = here * (share * np.log(share.clip(TINY) / usual) + unmarked) * (enough & (share - usual >= GAP))
        at, tests = int(bound.argmax()), 2 * int(enough.sum()) * (int(raters.max()) + 1)
        places = [int(each[at]) for each in counts]
        said = "marks “{}” {} in {} of {} places, the others in {} of {}".format(vocabulary[at], label, *places)
        odd.append((float(bound[at]) / log(max(tests, 1) / CHANCE), said))
    return max(odd)
