"""Records of the task "grounded" → the tables of grounded.md: what an answer gained, and what it did not lose."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from evidence.pages.bootstrap import Interval
from evidence.pages.markdown import between, number, table
from evidence.pages.records import Record
from evidence.pages.selection import SEEDS_OF_OTHERS, Group, label
from evidence.plans.methods import METHODS
from text2grad.evaluation import mean_interval

TASK = "grounded"
ABOUT = """\
Questions of people about passages of Wikipedia (`qa_feedback`), held out by subject: the model must answer from the
passage alone. The critic is a program that quotes names, numbers and claims; the metric is another program, which the
critic never sees ([how](../docs/grounded.md)). All seeds have the same held-out questions. Every method starts from the
same weights (quantized to 4 bits, digest d0925e1c…) and samples the same number of responses. Reproduce:
`python -m evidence experiment evidence/recipes/smollm2.toml`."""
PLANNED = ("text2grad_group", "grpo", "dpo", "sft_best", "ilf")
"""The methods of evidence/recipes/smollm2.toml."""
FIGURES: Mapping[str, tuple[str, int]] = {
    "unsupported_share": ("unsupported names and numbers", 3),
    "recall": ("recall of the gold answer", 3),
    "mean_words": ("words", 1),
    "distinct_2": ("distinct word pairs", 3),
    "reference_perplexity": ("perplexity under the untouched model", 2),
    "truncated_share": ("cut at the longest length", 2),
    "kl_per_token": ("KL, nats per token", 3),
}
"""Metrics of an evaluation → names and digits on the page."""
KEPT = 0.9
"""Recall and length must keep this share of their start."""


def figures_table(group: Group) -> str:
    """Return every figure of all methods at the end, below the start of all runs."""
    most = max(group.runs.values(), key=len)
    starts = group.runs.get(group.ours, most)
    rows = [["start", *_cells(list(starts.values()), 0)]]
    for method in by_final(group):
        runs = group.runs[method]
        few = f", {len(runs)} of {len(most)} seeds" if len(runs) < len(most) else ""
        rows.append([label(method) + few, *_cells(list(runs.values()), -1)])
    return table(["means over seeds", *(name for name, _ in FIGURES.values())], rows)


def by_final(group: Group) -> list[str]:
    """Return the methods, the best first."""
    return sorted(group.runs, key=lambda name: -group.sign * group.final(name))


def _cells(runs: Sequence[Record], point: int) -> list[str]:
    return [
        number(fmean(run.curve[point]["metrics"][name] for run in runs), digits)
        for name, (_, digits) in FIGURES.items()
    ]


def share_left(runs: Mapping[int, Record], name: str) -> Interval:
    """Return end / start of a figure: ratio of the means over seeds, with Student's interval of the seeds' ratios."""
    starts = [run.curve[0]["metrics"][name] for run in runs.values()]
    ends = [run.curve[-1]["metrics"][name] for run in runs.values()]
    of_seeds = mean_interval([end / start for start, end in zip(starts, ends, strict=True)])
    return Interval(fmean(ends) / fmean(starts), of_seeds.low, of_seeds.high, of_seeds.low, of_seeds.high, len(runs))


def learned_tables(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Return a `learned_table` for each form of critiques that a reward model wrote; a pair tells its "form"."""
    forms = sorted({one["form"] for one in pairs})
    return "\n\n".join(
        f"Form {form}:\n\n{learned_table([one for one in pairs if one['form'] == form])}" for form in forms
    )


def _shares_of_the_gain(pairs: Sequence[Mapping[str, Any]]) -> tuple[float, list[float]]:
    """Return the learned reward model's share of the program's gain in percent: of the means, and of each seed."""
    gains = {
        key: [one["start"]["unsupported_share"] - one[key]["unsupported_share"] for one in pairs]
        for key in ("program", "learned")
    }
    each = [100 * learned / program for learned, program in zip(gains["learned"], gains["program"], strict=True)]
    return 100 * fmean(gains["learned"]) / fmean(gains["program"]), each


def learned_table(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Return the program critic beside the reward model that learned from it, and the share of the gain.

    Args:
        pairs: of evidence/results/make_learned.py: one per seed, with the metrics of "start", "program" and "learned",
            and the audits of the learned reward model at each step of its run.
    """
    names = {"start": "start", "program": "the program's critiques", "learned": "the learned reward model's critiques"}
    rows = [
        [shown, *(number(fmean(one[key][name] for one in pairs), digits) for name, (_, digits) in FIGURES.items())]
        for key, shown in names.items()
    ]
    share, each = _shares_of_the_gain(pairs)
    of_seeds = [f"{of_seed:.0f} % on seed {one['seed']}" for of_seed, one in zip(each, pairs, strict=True)]
    told = f" ({', '.join(of_seeds)})" if len(pairs) > 1 else ""
    annotations = sorted({one["annotations"] for one in pairs})
    seeds = f"{len(pairs)} seed{'s' if len(pairs) > 1 else ''}"
    audits = [audit for one in pairs for audit in one["audits"]]
    recalls = " and ".join(
        f"{100 * fmean(audit[f'recall/{label}'] for audit in audits if f'recall/{label}' in audit):.0f} % of the "
        f"{label} tokens"
        for label in ("positive", "negative")
    )
    refreshed = ", ".join(map(str, pairs[0]["refreshes"]))
    return (
        f"{table([seeds, *(name for name, _ in FIGURES.values())], rows)}\n\n"
        f"The learned reward model gives {share:.0f} % of the program's gain in unsupported names and numbers{told}. "
        f"It learned from {' to '.join(map(str, annotations[:1] + annotations[1:][-1:]))} annotated answers, and from "
        f"answers of the policy after steps {refreshed}. During the run it found {recalls} of the program."
    )


def in_words(group: Group) -> str:
    """Return whether the leading method halves unsupported names and numbers, and keeps recall and length."""
    runs = group.runs[group.ours]
    left = share_left(runs, "unsupported_share")
    kept = {name: share_left(runs, name).value for name in ("recall", "mean_words")}
    halved = "at least halves" if left.value <= 1 / 2 else "does not halve"
    lost = [FIGURES[name][0] for name, value in kept.items() if value < KEPT]
    guard = (
        f"{' and '.join(lost)} fall by more than a tenth"
        if lost
        else "in the mean neither recall nor length falls by more than a tenth"
    )
    of_seeds = [
        f"{FIGURES[name][0]} × {number(share, 2)} on seed {seed}"
        for seed, run in runs.items()
        for name in kept
        if not lost and (share := share_left({seed: run}, name).value) < KEPT
    ]
    apart = f" ({', '.join(of_seeds)})" if of_seeds else ""
    spread = f"Student over {left.seeds} seeds {between(left.student_low, left.student_high, 2)}"
    spread = spread if left.seeds > 1 else "one seed so far"
    return (
        f"{label(group.ours)} {halved} the share of names and numbers that the passage does not support: "
        f"{number(left.value, 2)} of the start is left ({spread}); {guard}: "
        f"recall × {number(kept['recall'], 2)}, words × {number(kept['mean_words'], 2)}{apart}."
    )


def not_finished(group: Group) -> list[str]:
    """Return a sentence that names the planned methods with no run, or with too few; none if all are finished."""
    lacking = [label(name) for name in PLANNED if name not in group.runs]
    most = max(map(len, group.runs.values()))
    needed = {name: most if METHODS[name].leading else min(most, SEEDS_OF_OTHERS) for name in group.runs}
    few = [
        f"{len(runs)} of {needed[name]} seeds of {label(name)}"
        for name, runs in group.runs.items()
        if len(runs) < needed[name]
    ]
    told = [*([f"no run of {', '.join(lacking)} yet"] if lacking else []), *few]
    return [f"**Not finished**: {'; '.join(told)}."] if told else []
