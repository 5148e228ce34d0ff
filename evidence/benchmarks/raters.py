"""How well `text2grad feedback check` finds one bad rater among ten with 40 answers each, and how often honest ones.

    python evidence/benchmarks/raters.py --seeds 60 --json evidence/results/raters.json

Answers are made of phrases: hedges are faults, pointers merits; a place can be wrong and a day right, which no model
of words can know. An honest rater misses 10 to 40 % of them, slips in 3 %, marks a phrase too much in up to 40 % of the
answers and takes the next phrase along in 20 % of the marks. The bad rater does the same and then

    flips        exchanges the labels
    everything   marks all, as positive or as negative
    name         marks one of ten names as negative wherever it stands, at 95 %
    hurry        marks phrases at random, as many, in a quarter of the time

The responses are the same for all raters ("shared"), 40 of 133 for each, so that three judge each ("three"), or others
for each ("apart"). auroc: of bad against honest raters by their strongest sign, over all trials of a kind; found: share
of bad raters with a reason; false_alarms: share of honest raters with one; first: share of the trials whose first row
is the bad rater. "none" has ten honest raters.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from text2grad.feedback import CritiqueRecord
from text2grad.files import to_json, write_atomically
from text2grad.runs.raters import check_raters
from text2grad.types import Critique, Span

RATERS, ANSWERS = 10, 40
KINDS, SETUPS = ("flips", "everything", "name", "hurry", "none"), ("shared", "three", "apart")
NAMES = ("Lily", "Tom", "Ben", "Mia", "Sam", "Anna", "Max", "Sue", "Paul", "Zoe")
VERBS, THINGS = ("sold", "moved", "painted", "lost", "found"), ("the lamp", "the boat", "the bike", "the map")
PLACES, DAYS = ("in Lyon", "in Nice", "at the beach", "at school"), ("on Monday", "on Friday", "on Sunday")
HEDGES, POINTERS = ("maybe", "I think", "sort of", "very very", "or so"), ("for example", "in short", "to be exact")

Phrases = list[tuple[str, int]]  # each with the δ that it deserves


def phrases(rng: random.Random) -> Phrases:
    """Return a response."""
    made: Phrases = []
    for _ in range(rng.choice((2, 3))):
        made += [(rng.choice(HEDGES), -1)] if rng.random() < 0.35 else []
        made += [(rng.choice(POINTERS), 1)] if rng.random() < 0.2 else []
        made += [(rng.choice(NAMES), 0), (rng.choice(VERBS), 0), (rng.choice(THINGS), 0)]
        made += [(rng.choice(PLACES), -int(rng.random() < 0.25)), (rng.choice(DAYS), int(rng.random() < 0.25))]
    return made


class Rater:
    """A rater with habits, who judges responses."""

    def __init__(self, rng: random.Random, kind: str = "") -> None:
        """Draw the habits; `kind` is what is bad."""
        self.rng, self.kind = rng, kind
        self.miss, self.extra, self.pace = rng.uniform(0.1, 0.4), rng.uniform(0, 0.4), 20 * rng.lognormvariate(0, 0.4)
        self.whim = rng.choice((-1, 1))

    def judge(self, response: Phrases) -> list[int]:
        """Return δ of each phrase."""
        rng, deltas = self.rng, [0] * len(response)
        for at, (_, deserved) in enumerate(response):
            if deserved and rng.random() >= self.miss:
                deltas[at] = -deserved if rng.random() < 0.03 else deserved
                if rng.random() < 0.2 and at + 1 < len(response):
                    deltas[at + 1] = deltas[at]
        if rng.random() < self.extra:
            deltas[rng.randrange(len(response))] = rng.choice((-1, 1))
        if self.kind == "flips":
            return [-delta for delta in deltas]
        if self.kind == "everything":
            return [self.whim] * len(response)
        if self.kind == "hurry":
            return rng.sample([rng.choice((-1, 1)) if delta else 0 for delta in deltas], len(deltas))
        if self.kind == "name":
            named = [text == NAMES[0] and rng.random() < 0.95 for text, _ in response]
            return [-1 if own else delta for own, delta in zip(named, deltas, strict=True)]
        return deltas

    def answer(self, name: str, prompt: str, response: Phrases) -> CritiqueRecord:
        """Return an answer with its time."""
        spans, start = list[Span](), 0
        for (text, _), delta in zip(response, self.judge(response), strict=True):
            if delta:
                spans.append(Span(start, start + len(text), "positive" if delta > 0 else "negative"))
            start += len(text) + 1
        seconds = self.pace * self.rng.lognormvariate(0, 0.5) / (4 if self.kind == "hurry" else 1)
        whole, said = " ".join(text for text, _ in response), Critique("", tuple(spans))
        return CritiqueRecord(0, "", prompt, whole, said, rater=name, seconds=seconds)


def simulated(kind: str, setup: str, seed: int) -> list[CritiqueRecord]:
    """Return the answers of all raters; the first is bad unless the kind is "none"."""
    rng = random.Random(f"{kind} {setup} {seed}")
    pool = [phrases(rng) for _ in range({"shared": ANSWERS, "three": 133, "apart": RATERS * ANSWERS}[setup])]
    answers = []
    for number in range(RATERS):
        rater = Rater(rng, kind if not number and kind != "none" else "")
        chosen = range(ANSWERS) if setup == "shared" else rng.sample(range(len(pool)), ANSWERS)
        chosen = range(number * ANSWERS, (number + 1) * ANSWERS) if setup == "apart" else chosen
        answers += [rater.answer(f"rater {number}", f"prompt {row}", pool[row]) for row in chosen]
    return answers


def trial(kind: str, setup: str, seed: int) -> list[tuple[str, float]]:
    """Return the raters with their strongest signs, in the order of the table."""
    rows = check_raters(simulated(kind, setup, seed))
    return [(row["rater"], max((strength for strength, _ in row["signs"]), default=0.0)) for row in rows]


def auroc(bad: Sequence[float], honest: Sequence[float]) -> float:
    """Return the chance that a bad rater is above an honest one; equal counts half."""
    above = np.array(bad)[:, None] - np.array(honest)[None]
    return float(((above > 0) + 0.5 * (above == 0)).mean())


def measure(kind: str, setup: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the figures of the module's docstring."""
    trials = [trial(kind, setup, seed) for seed in seeds]
    bad = [strength for rows in trials for name, strength in rows if name == "rater 0" and kind != "none"]
    honest = [strength for rows in trials for name, strength in rows if name != "rater 0" or kind == "none"]
    figures = {"false_alarms": round(sum(strength >= 1 for strength in honest) / len(honest), 4)}
    if bad:
        figures |= {"auroc": round(auroc(bad, honest), 4), "found": sum(strength >= 1 for strength in bad) / len(bad)}
        figures |= {"first": sum(rows[0][0] == "rater 0" for rows in trials) / len(trials)}
    return figures


def main() -> None:
    """Measure all kinds, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    result: dict[str, Any] = {"raters": RATERS, "answers": ANSWERS, "seeds": args.seeds}
    for setup in SETUPS:
        result[setup] = {}
        for kind in KINDS:
            result[setup][kind] = measure(kind, setup, range(args.seeds))
            sys.stdout.write(f"{setup} {kind} {json.dumps(result[setup][kind])}\n")
            sys.stdout.flush()
            write_atomically(args.json, to_json(result, indent=2) + b"\n")


if __name__ == "__main__":
    main()
