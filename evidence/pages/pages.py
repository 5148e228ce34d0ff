"""Records → comparison.md, length.md and grounded.md with their pictures; every sentence follows from the numbers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from evidence.pages import grounded
from evidence.pages.blocks import filled
from evidence.pages.bootstrap import DRAWS, Interval
from evidence.pages.figures import against_length, kl_frontiers, learners, learning_curves
from evidence.pages.markdown import (
    COMPARISONS,
    between,
    bootstrap_text,
    count,
    folded,
    number,
    student_text,
    table,
    verdict,
    widest,
    widest_text,
    words,
)
from evidence.pages.measures import (
    Frontiers,
    final,
    gains_at_kl,
    lead,
    mean_curve,
    mean_tokens,
    paired,
    predicted_share,
    reach,
    repair,
    rollouts_ratio,
)
from evidence.pages.paper import NUMBERS, PAGE, paper_page
from evidence.pages.records import Record, read_runs
from evidence.pages.selection import (
    OURS,
    Group,
    Trial,
    edges,
    groups,
    is_variant,
    label,
    missing,
    missing_of_plan,
    ordered,
    searched_settings,
    shared_items,
    signal,
)
from evidence.plans.experiment_plan import load_plan
from evidence.plans.methods import METHODS
from text2grad.files import read_text, write_files

_SAME = 1e-3  # of a mean over items and the value of the whole set
_SMALL = 0.05  # a share that needs one more digit
_LINES = 4  # of a list that is not folded
_MADE = "<!-- Made by `python -m evidence results` from the records in runs/; edit those, not this page. -->"

_HOW_TO_READ = f"""\
**How to read.** A run is one seed of the whole pipeline; its held-out items are its own, unless the page says that
all seeds have the same. "Bootstrap": 95 % interval of {DRAWS:,} hierarchical resamples (seeds, then items within a
seed; items that seeds share are drawn once for all), the same draws for both methods of a difference. "Student":
95 % interval of Student's t over the seeds, in bold where it is the wider one. Where seeds differ by more than the
noise of their items, the bootstrap is too narrow (it holds the truth in about 84 of 100 cases with five seeds, 75
with three); Student's t is right for normal seeds. Believe the wider one. Intervals are not corrected for the
{COMPARISONS} comparisons of this page: each misses the truth in 5 of 100 cases. "Repaired share": (end − start) /
(best possible − start). "Kind": spans, a rival, or an ablation of spans. "Pairs": on each seed both methods start
from the same weights. Trials of the list of missing runs include the confirmations on further seeds.
"""

_HOW_TO_READ_LENGTHS = """\
"Tokens": of a response, mean at the start. "Share of its rollouts": those that spans need until the final value of the
number, divided by those that the number needs. "Distinct word pairs": at the start → after Text2Grad; after the
number; no search looks at them. "By the formula": the same share by the signal and the noise of one
update, for spans of one token ([analyse](../docs/analyse.md)): rollouts for equal precision are as 1 / signal-to-noise.
Where the measured share is larger, something else than noise limits the speed: the learning rate, clipping and the
KL term hold a precise update back, too, and a number may have learned all that its policy explores.

"Gain" is since the start, at equal KL: that of the best evaluated policy with at most this KL, or of a policy that
answers with one of two evaluated ones by chance (the upper concave hull of the evaluations along the runs). The lead
in gain is that of the mean curves; Student's interval is over the leads of single seeds, whose mean may be another.
"""


@dataclass(slots=True)
class _Page:
    """Parts of a page, the differences and ratios that it states, and its pictures by name."""

    parts: list[str]
    compared: list[Interval] = field(default_factory=list)
    pictures: dict[str, Callable[[], bytes]] = field(default_factory=dict)

    def stated(self, found: Interval) -> Interval:
        """Count a comparison."""
        self.compared.append(found)
        return found

    def picture(self, name: str, alt: str, draw: Callable[[], bytes]) -> None:
        """Add a picture, which `draw` returns."""
        self.pictures[name] = draw
        self.parts.append(f"![{alt}]({name})")

    def text(self) -> str:
        """Return the page."""
        total = str(len(self.compared))
        return "\n\n".join(part.strip("\n") for part in self.parts).replace(COMPARISONS, total) + "\n"


def result_pages(
    records: Sequence[Record], planned: Sequence[str] | None = None, *, draw: bool = True
) -> dict[str, bytes]:
    """Return the files of the pages by name: Markdown and PNG; a page without records says so.

    Args:
        records: of all studies.
        planned: missing runs of a plan (`missing_of_plan`); None names methods with too few seeds.
        draw: make the pictures, too.
    """
    found = groups(records)
    made: dict[str, bytes] = {}
    answers = [group for group in found if group.condition.task == grounded.TASK]
    others = [group for group in found if group.condition.task != grounded.TASK]
    for name, page in (
        ("comparison.md", _comparison(others, records, planned)),
        ("length.md", _lengths(others, planned)),
        *([("grounded.md", _grounded(answers))] if answers else []),
    ):
        made[name] = page.text().encode()
        made |= {picture: drawn() for picture, drawn in page.pictures.items()} if draw else {}
    return made


def _same_series(found: Sequence[Group]) -> list[list[Group]]:
    """Return groups that differ in length alone together, by rising length."""
    return [list(same) for _, same in groupby(found, lambda group: group.condition[:-1])]


def _stem(group: Group) -> str:
    """Return the name of a series in file names."""
    faults = f"-faults-{group.condition.faults:g}" if group.condition.faults != 1 else ""
    one = group.condition
    apart = "".join(f"-{word}" for word in re.findall(r"\w+", one.apart))
    return f"{one.task}-{one.critic}{faults}-{one.recipe[:6]}{apart}".replace("_", "-")


def _missing_runs(found: Sequence[Group], planned: Sequence[str] | None) -> str:
    """Return which runs are missing: of the plan, or without a plan of the methods that the conditions should have."""
    if planned is None:
        lines = [f"{group.condition.name}: {'; '.join(few)}" for group in found if (few := missing(group))]
    else:
        lines = list(planned)
    if not lines:
        return "No run is missing."
    head = "**Not finished**, so that this page is preliminary. Parts of the plan that have no or few runs:"
    text = "\n".join(f"- {line}" for line in lines)
    return f"{head}\n\n{text if len(lines) <= _LINES else folded('Which', text)}"


# ---- comparison.md


def _comparison(found: Sequence[Group], records: Sequence[Record], planned: Sequence[str] | None) -> _Page:
    page = _Page([_MADE, "# Text2Grad beside its rivals and its ablations"])
    if not found:
        tunings = sum(record.purpose == "tuning" for record in records)
        page.parts.append(f"No evaluation is recorded yet; {tunings} runs of tuning are.")
        page.parts += [_missing_runs(found, planned)] if planned else []
        return page
    page.parts += [_missing_runs(found, planned), _HOW_TO_READ]
    for series in _same_series(found):
        ends = [series[0], series[-1]] if len(series) > 1 else series
        if with_curves := [group for group in ends if learners(group)]:
            page.picture(
                f"comparison-{_stem(series[0])}.png",
                f"Learning curves of {series[0].condition.task}, means over seeds with 95 % bands",
                partial(learning_curves, with_curves),
            )
        for group in reversed(series):
            _compare(page, group, in_short=group not in ends)
        page.parts += _tuning_tables(series)
    return page


def _compare(page: _Page, group: Group, *, in_short: bool) -> None:
    page.parts.append(f"## {group.condition.name} (studies: {', '.join(group.studies)})")
    rival, how = group.strongest()
    if group.ours in group.runs and rival is not None:
        page.parts.append(_in_words(page, group, rival, f"{label(rival)}, the strongest rival ({how})"))
        strongest, how = group.strongest(number=True)
        if strongest not in (None, rival):
            told = f"{label(str(strongest))}, the strongest rival that learns from numbers ({how})"
            page.parts.append(_in_words(page, group, str(strongest), told))
        page.parts.append(_all_rivals(group))
    elif rival is None:
        page.parts.append(f"No comparison yet: {how}.")
    else:
        page.parts.append(f"No run of {label(group.ours)} is finished; the strongest rival by {how} is {label(rival)}.")
    level = group.strongest(number=True)[0] or rival
    tables = [_values_table(page, group, rival), *([_cost_table(group, level)] if level else [])]
    page.parts += [folded("Values and costs", "\n\n".join(tables))] if in_short else tables
    page.parts += _notes(group)


_DIRECTIONS = {1: ("below", "above"), -1: ("behind", "ahead of")}


def _in_words(page: _Page, group: Group, rival: str, told: str) -> str:
    ahead = lead(group, group.ours, rival)
    digits = _digits([group])
    direction, by = _DIRECTIONS[group.sign][ahead.value > 0], number(abs(ahead.value), digits)
    place = f"{direction} {told}, by {by}" if float(by) else f"level with {told}, in"
    text = [
        f"{label(group.ours)} ends {place} {words(group.metric)} (bootstrap "
        f"{between(ahead.low, ahead.high, digits)}, Student {student_text(ahead, digits)}, one of {COMPARISONS} "
        f"comparisons): {verdict(ahead)}."
    ]
    ratio = page.stated(rollouts_ratio(group, group.ours, rival))
    if np.isnan(ratio.value):
        text.append("This rival does not end above its start, so its final value costs nothing.")
    elif np.isinf(ratio.value):
        text.append("Its mean curve does not reach the final value of this rival.")
    else:
        text.append(
            f"It reaches the rival's final value with {number(ratio.value, 2)} of the rollouts after which the rival "
            f"first does ({between(ratio.low, ratio.high, 2)})."
        )
    return " ".join(text)


def _all_rivals(group: Group) -> str:
    """Return which rivals are behind with both intervals, and how the method of the comparison was chosen."""
    rivals = [name for name in group.runs if not is_variant(name)]
    behind = [label(name) for name in ordered(rivals) if not _above(lead(group, group.ours, name))]
    if behind:
        text = [f"Not behind {label(group.ours)} with both intervals: {', '.join(behind)}."]
    else:
        text = [f"All {len(rivals)} rivals are behind with both intervals."]
    if group.ours != OURS and OURS in group.tuning.trials:
        text.append(f"On the tuning items {label(group.ours)} is better than {label(OURS)}.")
    if words_in := [label(name) for name in ordered(rivals) if signal(name) == "words"]:
        text.append(
            f"{', '.join(words_in)} read the critique's text, which states the true fact beside each wrong one; the "
            "others get verdicts on words or on responses."
        )
    return " ".join(text)


def _above(found: Interval) -> bool:
    return found.seeds > 1 and found.low > 0 and (found.student_low is None or found.student_low > 0)


def _values_table(page: _Page, group: Group, rival: str | None) -> str:
    columns = ["method", "kind", "seeds", f"{words(group.metric)} at the end", "repaired share", "KL per token"]
    if group.ours in group.runs:
        columns += [f"{label(group.ours)} ahead by (bootstrap)", f"Student (one of {COMPARISONS})", "pairs"]
    rows, digits = [], _digits([group])
    for method in sorted(group.runs, key=lambda name: (name != group.ours, -group.sign * group.final(name))):
        runs = group.runs[method]
        name = f"**{label(method)}**" if method in (group.ours, rival) else label(method)
        kls = [run.curve[-1].get("kl_per_token") for run in runs.values()]
        known = [kl for kl in kls if kl is not None]
        row = [
            name,
            _kind(method),
            str(len(runs)),
            bootstrap_text(final(runs), digits),
            bootstrap_text(repair(group, method), 2),
        ]
        row.append(number(float(np.mean(known))) if known else "–")
        if group.ours in group.runs and method != group.ours:
            ahead = page.stated(lead(group, group.ours, method))
            row += [bootstrap_text(ahead, digits), student_text(ahead, digits), "yes" if ahead.paired else "no"]
        elif group.ours in group.runs:
            row += [""] * 3
        rows.append(row)
    return table(columns, rows)


def _kind(method: str) -> str:
    if is_variant(method) and METHODS[method].leading:
        return "spans"
    return "ablation" if is_variant(method) else "rival"


def _cost_table(group: Group, rival: str) -> str:
    level = mean_curve(group.runs[rival], "value")[:, -1].mean()
    title = f"Until the mean curve first reaches {number(level, _digits([group]))}, the final value of {label(rival)}"
    if any(len(runs) < len(group.runs[rival]) for runs in group.runs.values()):
        title += "; for a method with fewer seeds, its value on these seeds"
    rows = []
    for method in sorted(group.runs, key=lambda name: (name != group.ours, -group.sign * group.final(name))):
        found = reach(group, method, rival)
        reached = sum(np.isfinite(found.of_seeds))
        rows.append(
            [
                label(method),
                _cost(found.costs["rollouts"], found.spent),
                f"{_cost(found.low, found.spent)} to {_cost(found.high, found.spent)}",
                *(count(found.costs[cost]) for cost in ("tokens", "steps", "seconds")),
                f"{reached} of {len(found.of_seeds)}",
            ]
        )
    columns = ["method", "rollouts", "bootstrap over seeds", "tokens", "steps", "seconds", "seeds that reach it"]
    note = "A curve that never reaches it is censored: its cost is over all of its rollouts, and counts as infinite."
    return f"{title}:\n\n{table(columns, rows)}\n\n{note}"


def _cost(rollouts: float, spent: float) -> str:
    return f"over {count(spent)}" if np.isinf(rollouts) else count(rollouts)


def _notes(group: Group) -> list[str]:
    """Return what else a reader must know: comparisons that are not paired, reruns, few seeds."""
    found = []
    apart = [
        label(name)
        for name in group.runs
        if group.ours in group.runs and not paired(group.runs[group.ours], group.runs[name])
    ]
    if apart:
        found.append(
            f"Not paired with {label(group.ours)}, because start weights or held-out items differ (made on other "
            "machines), or "
            f"no seed is common: {', '.join(apart)}."
        )
    if failed := [(name, run) for name, runs in group.runs.items() for run in runs.values() if run.error]:
        told = "; ".join(
            f"{label(name)}, seed {run.seed}, after {run.steps} steps ({run.error})" for name, run in failed
        )
        found.append(f"Stopped with an error, counted as they were at their last evaluation: {told}.")
    runs = [run for of_method in group.runs.values() for run in of_method.values()]
    if any(abs(run.curve[-1]["value"] - float(np.mean(run.items))) > _SAME for run in runs):
        found.append(
            f"In curves and in tuning, {words(group.metric)} is that of all responses together; values at the end and "
            "their differences are means over the held-out items. The two differ in weight, not in what they count."
        )
    if group.reruns:
        apart_by = max(abs(float(np.mean(a.items)) - float(np.mean(b.items))) for a, b in group.reruns)
        machines = len({str(dict(one.machine)) for pair in group.reruns for one in pair})
        found.append(
            f"{len(group.reruns)} runs were repeated ({machines} machines): the repeated runs differ from the first "
            "by at "
            f"most {number(apart_by, _digits([group]))} {words(group.metric)}. The first run counts."
        )
    return found


def _tuning_tables(series: Sequence[Group]) -> list[str]:
    """Return the trials of the methods that a series compares; other methods may have another length and metric."""
    group = series[-1]
    metric, tuning = words(group.metric), group.tuning
    tuned = {name: trials for name, trials in tuning.trials.items() if any(name in one.runs for one in series)}
    if not tuned:
        return []
    rows, trials, digits = [], [], _digits(series)
    for method, of_method in tuned.items():
        best = of_method[0]
        at_edge = "; ".join(edges(tuning, method)) or "no"
        cells = [label(method), str(len(of_method)), _outcome(best, digits), _settings(method, best), at_edge]
        rows.append([*cells, tuning.where[method].name])
        trials += [[label(method), str(one.number), _outcome(one, digits), _settings(method, one)] for one in of_method]
    untuned = [label(name) for name in ordered(group.runs) if name not in tuned]
    columns = [
        "method",
        "trials",
        f"{metric}, best trial",
        "its searched settings",
        "at an edge of their range",
        "where",
    ]
    confirmed = any(one.seeds > 1 for of_method in tuned.values() for one in of_method)
    again = "The best trials are run again on further seeds, and their mean decides. " if confirmed else ""
    kl = next((one.at_kl for of_method in tuned.values() for one in of_method if one.at_kl), None)
    within = f"A trial is judged by the best value that its evaluations offer at a KL of at most {kl} per token. "
    parts = [
        f"### Tuning of {group.condition.task}",
        f"{_tuning_items(group)} {within if kl else ''}{again}The value of the best of several trials is too high by "
        "chance, by more for a method with more trials. Settings "
        "that are not named are the recipe's.",
        table(columns, rows),
    ]
    if shorter := _steps_of_trials(group, tuned):
        parts.append(shorter)
    if untuned:
        parts.append(f"Not tuned by themselves: {'; '.join(untuned)}.")
    all_trials = table(["method", "trial", f"{metric} on tuning items", "searched settings"], trials)
    return [*parts, folded(f"All {len(trials)} trials", all_trials)]


def _tuning_items(group: Group) -> str:
    shared, evaluated = shared_items(group)
    if not shared:
        return "On items and seeds of no evaluation."
    return (
        f"On seeds of no evaluation, but {shared} of the {evaluated} held-out items of the evaluations were items of "
        "the search, too, the same for every method: all values at the end may be a little too good."
    )


def _steps_of_trials(group: Group, tuned: Mapping[str, Sequence[Trial]]) -> str:
    """Return how many steps trials had, and which ones, if fewer than the evaluations; else ""."""
    asked = "run.steps"
    runs = {run.settings.get(asked) for of_method in group.runs.values() for run in of_method.values()}
    fewer: dict[Any, list[str]] = {}
    for method, trials in tuned.items():
        for steps in sorted({one.settings.get(asked) for one in trials} - runs, key=str):
            fewer.setdefault(steps, []).append(label(method))
    if not fewer or len(runs) > 1:
        return ""
    all_steps, own = next(iter(runs)), "the recipe's"
    said: list[str] = []
    for steps, methods in fewer.items():
        whose = "" if len(methods) == len(tuned) else f" of {', '.join(methods)}"
        said.append(f"{'trials' if said else 'Trials'}{whose} had {steps or own} steps")
    return f"{'; '.join(said)}, evaluations {all_steps or own}."


def _outcome(trial: Trial, digits: int) -> str:
    if trial.error:
        return f"failed: {trial.error}"
    value = number(trial.value, digits)
    return f"{value} ({trial.seeds} seeds)" if trial.seeds > 1 else value


def _settings(method: str, trial: Trial) -> str:
    found = searched_settings(method, trial).items()
    shown = [f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}" for name, value in found]
    return ", ".join(shown) or "those of the recipe"


# ---- grounded.md


def _grounded(found: Sequence[Group]) -> _Page:
    page = _Page([_MADE, "# Answers from a passage, by SmolLM2-135M-Instruct", grounded.ABOUT])
    for group in found:
        parts = [grounded.in_words(group)] if group.ours in group.runs else []
        page.parts += [*parts, *grounded.not_finished(group), grounded.figures_table(group)]
        if learners(group):
            picture = partial(learning_curves, [group])
            page.picture(f"grounded-{_stem(group)}.png", "Unsupported names and numbers over rollouts", picture)
        _compare(page, group, in_short=False)
        page.parts += _tuning_tables([group])
    page.parts.append(_HOW_TO_READ)
    return page


# ---- length.md


def _lengths(found: Sequence[Group], planned: Sequence[str] | None) -> _Page:
    page = _Page([_MADE, "# Length, and gain against KL"])
    rivals = {group.condition: group.strongest(number=True)[0] for group in found if group.ours in group.runs}
    comparable = [group for group in found if rivals.get(group.condition) is not None]
    if not comparable:
        page.parts.append(f"No condition has finished runs of both {label(OURS)} and a number yet.")
        return page
    page.parts.append(_missing_runs(found, planned))
    sections = _Page([], page.compared)
    summary = [
        _series(sections, series, [str(rivals[group.condition]) for group in series])
        for series in sorted(_same_series(comparable), key=lambda series: len(series) == 1)
    ]
    if any(summary):
        columns = ["task, metric", "ahead at the shortest length (wider interval)", "at the longest"]
        columns += ["share of the number's rollouts there", "lengths with more gain at equal KL"]
        page.parts.append(table(columns, [row for row in summary if row]))
    page.parts += [_HOW_TO_READ, _HOW_TO_READ_LENGTHS, *sections.parts]
    page.pictures = sections.pictures
    return page


def _series(page: _Page, series: Sequence[Group], rivals: Sequence[str]) -> list[str]:
    """Add the section of a series to the page; return its row in the summary, empty if it has one length."""
    first = series[0].condition
    metric = words(series[0].metric)
    apart = f", {first.apart}" if first.apart else ""
    studies = ", ".join(series[0].studies)
    page.parts.append(f"## {first.task}, {first.critic.replace('_', ' ')} as critic{apart} (studies: {studies})")
    leads = [page.stated(lead(group, group.ours, rival)) for group, rival in zip(series, rivals, strict=True)]
    ratios = [
        page.stated(rollouts_ratio(group, group.ours, rival)) for group, rival in zip(series, rivals, strict=True)
    ]
    predicted = [predicted_share(group, rival) for group, rival in zip(series, rivals, strict=True)]
    rows, digits = [], _digits(series)
    for group, rival, ahead, ratio, share in zip(series, rivals, leads, ratios, predicted, strict=True):
        rows.append(
            [
                str(group.condition.length or "–"),
                _tokens(group),
                f"{len(group.runs[group.ours])}, {len(group.runs[rival])}",
                label(rival),
                *(bootstrap_text(final(group.runs[name]), digits) for name in (group.ours, rival)),
                bootstrap_text(ahead, digits),
                student_text(ahead, digits),
                f"{number(ratio.value, 2)} ({between(ratio.low, ratio.high, 2)})",
                "–" if share is None else number(share),
                _variety(group, rival),
            ]
        )
    several = len(series) > 1
    if several:
        page.picture(
            f"length-{_stem(series[0])}.png",
            f"{first.task}: final values, lead over the strongest number and share of its rollouts, by length",
            partial(against_length, series, leads, ratios, predicted),
        )
        page.parts.append(_trend(series, leads, digits) + _others_end_higher(page, series, rivals))
    else:
        page.parts.append("One length is recorded; a picture over the length needs two.")
    columns = ["length", "tokens", "seeds", "strongest number", label(series[-1].ours), "the number"]
    columns += ["ahead by (bootstrap)", f"Student (one of {COMPARISONS})", "share of its rollouts", "by the formula"]
    columns.append("distinct word pairs")
    page.parts += [f"{metric[0].upper()}{metric[1:]} at the end:", table(columns, rows)]
    if any(predicted):
        page.parts.append(_prediction(ratios, predicted))
    more = _kl_part(page, series, rivals)
    if not several:
        return []
    ends = [
        f"{widest_text(ahead, digits)}; length {group.condition.length}, {_tokens(group)} tokens"
        for group, ahead in ((series[0], leads[0]), (series[-1], leads[-1]))
    ]
    reached = f"{number(ratios[-1].value, 2)} ({between(ratios[-1].low, ratios[-1].high, 2)})"
    lengths = ", ".join(str(group.condition.length) for group in series)
    told = ", ".join(map(str, more)) or "none"
    return [f"{first.task}, {metric}", *ends, reached, f"{told} of {lengths}"]


def _tokens(group: Group) -> str:
    tokens = mean_tokens(group.runs[group.ours])
    return "–" if tokens is None else count(tokens)


def _digits(series: Sequence[Group]) -> int:
    """Return the digits of a metric's values: one more for shares that are small at the start."""
    of_methods = [runs for group in series for runs in group.runs.values()]
    starts = [float(np.mean(run.items_at_start)) for runs in of_methods for run in runs.values()]
    return 4 if max(starts) < _SMALL else 3


def _variety(group: Group, rival: str) -> str:
    """Return the share of distinct word pairs at the start and after either method, means over seeds."""
    metrics = [
        [run.curve[place]["metrics"] for run in group.runs[name].values()]
        for name, place in ((group.ours, 0), (group.ours, -1), (rival, -1))
    ]
    if any("distinct_2" not in one for side in metrics for one in side):
        return "–"
    start, mine, other = (number(float(np.mean([one["distinct_2"] for one in side]))) for side in metrics)
    return f"{start} → {mine}; {other}"


def _trend(series: Sequence[Group], leads: Sequence[Interval], digits: int) -> str:
    """Return how the lead changes from the shortest to the longest length."""
    short, long = series[0].condition.length, series[-1].condition.length
    text = [f"At length {short}: {verdict(leads[0])}. At length {long}: {verdict(leads[-1])}."]
    change = leads[-1].value - leads[0].value
    way, by = "grows" if change > 0 else "falls", number(abs(change), digits)
    grown = f"{way} by {by} from length {short} to" if float(by) else f"is the same at length {short} and"
    text.append(f"The lead {grown} {long} (no interval: other items and seeds).")
    lowest = widest(leads[0])[0]
    if lowest <= -0.02:
        text.append(f"At length {short} the lower bound is {number(lowest, digits)}, below −0.02.")
    return " ".join(text)


def _others_end_higher(page: _Page, series: Sequence[Group], rivals: Sequence[str]) -> str:
    """Return the leads over numbers that end above the one that was best in tuning."""
    text = ""
    for group, rival in zip(series, rivals, strict=True):
        highest = group.highest_number()
        if highest is not None and highest != rival:
            ahead = widest_text(page.stated(lead(group, group.ours, highest)), _digits(series))
            text += f" At length {group.condition.length} {label(highest)} ends higher; the lead over it: {ahead}."
    return text


def _prediction(ratios: Sequence[Interval], predicted: Sequence[float | None]) -> str:
    """Return at how many lengths the formula's share of rollouts lies in the measured interval."""
    known = [(ratio, share) for ratio, share in zip(ratios, predicted, strict=True) if share is not None]
    inside = sum(ratio.low <= share <= ratio.high for ratio, share in known)
    lengths = "length" if len(known) == 1 else "lengths"
    return f"The share by the formula lies within the measured interval at {inside} of {len(known)} {lengths}."


def _kl_part(page: _Page, series: Sequence[Group], rivals: Sequence[str]) -> list[int]:
    """Add the gains at equal KL; return the lengths at which the bootstrap of the lead lies above 0 at every KL."""
    known = [
        (g, rival, found) for g, rival in zip(series, rivals, strict=True) if (found := gains_at_kl(g, g.ours, rival))
    ]
    if not known:
        page.parts.append("No gain against KL: the records have no KL per token.")
        return []
    name, alt = f"frontier-{_stem(series[0])}.png", "Gain against KL of spans and the strongest number"
    page.picture(name, alt, partial(kl_frontiers, *zip(*known, strict=True)))
    rows = [
        [str(g.condition.length or "–"), *cells]
        for g, _, found in known
        for cells in _kl_rows(page, found, _digits(series))
    ]
    several = len(series) > 1
    settings = [len(g.variants[method]) for g, rival, _ in known for method in (g.ours, rival)]
    above = [(g, sum(ahead.low > 0 for ahead in found.leads), len(found.leads)) for g, _, found in known]
    told = "; ".join(f"{n} of {total}{f' at length {g.condition.length}' * several}" for g, n, total in above)
    page.parts += [
        f"Gain at equal KL, {_range(settings)} of each method. KLs at which the bootstrap of the lead lies above 0: "
        f"{told}.",
        table(
            [
                "length",
                "KL per token",
                label(series[-1].ours),
                "the number",
                "ahead by (bootstrap over seeds)",
                f"Student (one of {COMPARISONS})",
            ],
            rows,
        ),
    ]
    return [g.condition.length for g, n, total in above if n == total]


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low} setting{'s' if low > 1 else ''}" if low == high else f"{low} to {high} settings"


def _kl_rows(page: _Page, found: Frontiers, digits: int) -> list[list[str]]:
    rows = []
    for kl, ahead in zip(found.at, found.leads, strict=True):
        place = int(np.argmin(np.abs(found.grid - kl)))
        gains = [number(float(found.gains[n][place]), digits) for n in (0, 1)]
        rows.append([number(kl), *gains, bootstrap_text(page.stated(ahead), digits), student_text(ahead, digits)])
    return rows


def write_results(runs: Path, out: Path, plan: Path | None = None) -> list[Path]:
    """Write the pages of records, and make the blocks of the other pages again; return the files that changed.

    Args:
        runs: directory with records of runs.
        out: directory of pages and JSON files.
        plan: plan of studies, whose missing runs are named; None for none.

    Raises:
        ConfigError: if the plan is wrong.
        DataError: if a record, a JSON file or a block is damaged, before any file is written.
    """
    records = read_runs(runs)
    made = result_pages(records, missing_of_plan(load_plan(plan), plan, records) if plan else None)
    contents = {out / name: data for name, data in made.items()}
    if (out / NUMBERS).exists():
        contents[out / PAGE] = paper_page(out).encode()
    for page in sorted(out.glob("*.md")):
        if page not in contents:
            contents[page] = filled(read_text(page), out).encode()
    changed = [path for path, data in contents.items() if not path.exists() or path.read_bytes() != data]
    for path in changed:
        write_files(path.parent, {path.name: contents[path]})
    return changed
