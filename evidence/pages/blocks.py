"""Parts of evidence/results/*.md that hold figures: made from JSON, put between two comments.

A page has `<!-- results: NAME -->`, then lines that `python -m evidence results` replaces, then `<!-- end -->`. The
names are the keys of `BLOCKS`. Figures that no results file holds come from notes.json, each with its source and date.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from evidence.pages import grounded
from evidence.pages.markdown import number, table, widest, widest_text, words
from evidence.pages.measures import lead
from evidence.pages.records import read_runs
from evidence.pages.selection import groups, label
from text2grad.errors import DataError
from text2grad.evaluation import Estimate, mean_interval
from text2grad.files import read_text
from text2grad.runs.reports.plots import mean_curve

_BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_QUICKSTART = {"summarization": "quickstart.json", "qa": "quickstart-qa.json", "code": "quickstart-code.json"}
_METRIC = {"summarization": "fact F1", "qa": "claim F1", "code": "pass@1"}
_RIVAL = "scalar_ppo"
_WIDTH = 124
RUNS = "runs"
GENERAL, PEOPLE, LEARNED = "general_ability.json", "people_reward.json", "learned_reward.json"
ANSWERS, PLANS, PROSE = "answers.json", "paper_plans.json", "prose.json"
_OPTIONAL = (GENERAL, PEOPLE, LEARNED, ANSWERS, PLANS, PROSE)  # None until they are measured
SHOWN_PHRASES = 15
_PROSE_METRICS = {
    "distinct_2": "distinct word pairs",
    "reference_perplexity": "perplexity under the untouched model",
    "truncated_share": "cut at the longest length",
    "kl_per_token": "KL, nats per token",
}
Files = Callable[[str], Any]
"""Name of a JSON file of results → its content; `RUNS` → the records of the experiments."""


def filled(text: str, directory: Path) -> str:
    """Return a page with its blocks made again from the JSON files of a directory.

    Raises:
        DataError: if a block has an unknown name or no end, or its file is absent or damaged.
    """
    opened, closed = len(re.findall("<!-- results: ", text)), len(_BLOCK.findall(text))
    if opened != closed:
        raise DataError(
            f"{opened - closed} of {opened} blocks of the page have no `<!-- end -->`, or a name with spaces"
        )

    def made(match: re.Match[str]) -> str:
        if match[2] not in BLOCKS:
            raise DataError(f"no block of results is named {match[2]!r}; choose from: {', '.join(BLOCKS)}")
        return f"{match[1]}{_wrapped(BLOCKS[match[2]](lambda name: _read(directory / name)))}\n{match[4]}"

    return _BLOCK.sub(made, text)


def _wrapped(text: str) -> str:
    """Return Markdown whose paragraphs, tables apart, have lines of `_WIDTH`."""
    parts = [
        part if part.startswith("|") else fill(part, _WIDTH, break_on_hyphens=False) for part in text.split("\n\n")
    ]
    return "\n\n".join(parts)


def _read(path: Path) -> Any:
    if path.is_dir():
        return read_runs(path)
    if path.name in _OPTIONAL and not path.exists():
        return None
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); restore it from the repository") from error


_RENAMED = {"reward_head_ppo": "scalar_reward_model"}
"""Names of methods in the results of the quickstart, which commit 3d79ea59 and earlier ones made → today's."""


def _tasks(files: Files) -> dict[str, Mapping[str, Any]]:
    """Return the results of the quickstart's tasks, with the names of methods."""
    found: dict[str, Mapping[str, Any]] = {}
    for task, name in _QUICKSTART.items():
        result = files(name)["tasks"][task]
        methods = {_RENAMED.get(method, method): value for method, value in result["methods"].items()}
        found[task] = {**result, "methods": methods}
    return found


def _start(result: Mapping[str, Any]) -> float:
    """Return the metric of the weights that policies start from: the mean of their first evaluations."""
    return fmean(curve[0][1] for curve in result["methods"]["text2grad"]["curve"])


def _mean(result: Mapping[str, Any], method: str, key: str = "final") -> float:
    return fmean(result["methods"][method][key])


def _ahead(result: Mapping[str, Any], method: str) -> Estimate:
    """Return by how much Text2Grad ends above a method, with Student's interval over the seeds."""
    both = (result["methods"][name]["final"] for name in ("text2grad", method))
    return mean_interval([mine - other for mine, other in zip(*both, strict=True)])


def _with_interval(found: Estimate) -> str:
    return f"{number(found.value)} ({number(found.low)} to {number(found.high)})"


def _seeds(values: Sequence[float], digits: int = 3) -> str:
    return " ".join(number(value, digits) for value in values)


def _passed(result: Mapping[str, Any], method: str) -> str:
    """Return the first step at which a method's mean is above the best mean of the same spans, summed."""
    best = max(value for _, value in mean_curve(result["methods"][_RIVAL]["curve"]))
    curve = mean_curve(result["methods"][method]["curve"])
    return next((f"{step} of {curve[-1][0]}" for step, value in curve if value > best), "never")


def _learned_reward(files: Files) -> str:
    """Return a learned reward model in the place of the program critic, from evidence/results/make_learned.py."""
    found = files(LEARNED)
    return grounded.learned_tables(found) if found is not None else "Not measured yet."


def _general_ability(files: Files) -> str:
    """Return public benchmarks before and after training, from the evaluation.json of `text2grad evaluate policy`."""
    found = files(GENERAL)
    if found is None:
        return "Not measured yet."
    rows = []
    for suite, result in found["suites"].items():
        name = next(name for name, measure in result["measures"].items() if measure.get("shown", True))
        before, after = (_with_interval(Estimate(**result["models"][model][name])) for model in ("before", "after"))
        difference = result["differences"]["after"][name]
        kept = "no loss shown" if _is_kept(difference, result["measures"][name]["better"]) else "a loss"
        rows.append(
            [suite, name, str(result["questions"]), before, after, _with_interval(Estimate(**difference)), kept]
        )
    return table(["suite", "figure", "questions", "before", "after", "difference (95 %)", ""], rows)


def _is_kept(difference: Mapping[str, float], better: str) -> bool:
    """Whether the interval of a difference holds 0 or an improvement."""
    return difference["low"] <= 0 if better == "lower" else difference["high"] >= 0


def _people_reward(files: Files) -> str:
    """Return a reward model from people's words beside baselines; commit 3d79ea59 has the program."""
    found = files(PEOPLE)
    if found is None:
        return "Not measured yet."
    parts = []
    for name, result in found.items():
        rows = []
        ahead = {key.removesuffix(" ahead of"): leads for key, leads in result.items() if key.endswith(" ahead of")}
        for method, figures in result["figures"].items():
            shown = [figures, *(leads.get(method) for leads in ahead.values())]
            cells = [_with_interval(Estimate(**own[key])) if own else "" for own in shown for key in ("f1", "auroc")]
            rows.append([method, *cells])
        columns = ["", "F1 of marked words", "AUROC"]
        columns += [f"{ours} ahead by, {figure}" for ours in ahead for figure in ("F1", "AUROC")]
        told = f"{name}: {result['responses']} responses to {result['texts']} texts, folds {len(result['folds'])}"
        parts.append(f"{told}\n\n{table(columns, rows)}")
        if "f1 by type" in result:
            parts.append(_f1_by_type(result))
        if "feedback" in result:
            parts.append(_told(result["feedback"]))
    return "\n\n".join(parts)


def _f1_by_type(result: Mapping[str, Any]) -> str:
    """Return F1 of each type of error; a figure is empty where nothing was marked."""
    methods = result["f1 by type"]
    rows = []
    for kind, marked in result["words"].items():
        cells = [number(figures[kind]["value"]) if kind in figures else "" for figures in methods.values()]
        rows.append([kind, f"{marked:.0f}", *cells])
    return table(["F1 by type of error", "marked words", *methods], rows)


def _told(feedback: Mapping[str, Any]) -> str:
    """Return how far the words of critiques are about their marks."""
    figures = list(next(iter(feedback.values())))
    rows = [[name, *(_with_interval(Estimate(**own[key])) for key in figures)] for name, own in feedback.items()]
    return table(["words of a critique and its marks", *figures], rows)


def _prose(files: Files) -> str:
    """Return what a prose linter and a house style mark before and after training (evidence/benchmarks/prose_style)."""
    found = files(PROSE)
    if found is None:
        return "Not measured yet."
    sides = ("before", "after")
    rows = []
    for name, fewer in found["fewer"].items():
        over_prompts = (*(found["figures"][side][name] for side in sides), fewer)
        over_seeds = mean_interval([one["before"][name] - one["after"][name] for one in found["seeds"]])
        rows.append([name, *(_with_interval(Estimate(**one)) for one in over_prompts), _with_interval(over_seeds)])
    rows += [
        [_PROSE_METRICS[name], *(number(found["metrics"][side][name]) for side in sides), "", ""]
        for name in found["metrics"]["before"]
    ]
    listed = [[f"`{phrase}`", str(before), str(after)] for phrase, before, after in found["phrases"][:SHOWN_PHRASES]]
    of_seeds = "; ".join(
        f"seed {one['seed']}: {' → '.join(number(one[side]['answers with a mark'], 2) for side in sides)} in "
        f"{one['minutes']:.0f} minutes"
        for one in found["seeds"]
    )
    return (
        f"{table(['', *sides, 'before − after, over prompts', 'before − after, over seeds'], rows)}\n\n"
        f"{found['answers']} answers to {found['prompts']} held-out prompts, {found['steps']} steps of "
        f"{found['responses'] // found['steps']} responses; intervals of 95 %, over prompts (bootstrap) and over seeds "
        f"(Student). Answers with a mark, and the time of the steps on one core: {of_seeds}."
        f"\n\n{table(['marked most often', *sides], listed)}"
    )


def _paper_plans(files: Files) -> str:
    """Return memory and time of the paper's recipes as planned, from evidence/plan/paper_plans.py."""
    found = files(PLANS)
    if found is None:
        return "Not planned yet."
    policy, tuned = [], []
    order = list(dict.fromkeys((one["recipe"], one["where"]) for one in found if one["phase"] == "train"))
    for one in sorted(found, key=lambda one: (order.index((one["recipe"], one["where"])), one["phase"] != "sft")):
        device = f"{one['processes']} × {one['memory'] / 1e9:.0f} GB"
        step = sum(one["seconds"].values())
        parts = ", ".join(f"{name} {100 * seconds / step:.0f} %" for name, seconds in one["seconds"].items())
        fits = "" if one["fits"] else ", does not fit"
        peak = f"{one['peak'] / 1e9:.1f} GB ({one['peak_phase']}{fits})"
        changed = ", ".join(f"`{setting}`" for setting in one["settings"])
        row = [one["recipe"], device, changed, peak, f"{step:.{0 if step > 9.5 else 1}f} s ({parts})"]
        # Without a time, or on a smaller GPU, which is planned with the rates of a larger one, memory alone is told.
        timed = one["where"].isdigit() and bool(one["seconds"])
        row[-1] = row[-1] if timed else ""
        if one["phase"] == "train":
            policy.append([*row, str(one["steps"]), f"{one['steps'] * step / 3600:.1f}" if timed else ""])
        else:
            minutes = f"{1000 / one['batch_size'] * step / 60:.1f}" if timed else ""
            tuned.append([f"{row[0]}, `{one['phase']}`", *row[1:], f"{one['rows']} × {one['row_tokens']:,}", minutes])
    columns = ["recipe", "GPUs", "changed", "peak of a process", "step"]
    return (
        f"{table([*columns, 'steps', 'hours'], policy)}\n\n"
        f"{table([*columns, 'rows × tokens at once', 'minutes per 1,000 rows'], tuned)}"
    )


_ARMS = {
    "spans, short discount": "**spans, short discount** (the recipe)",
    "one number, γ = 1": "the same spans, summed to one number",
    "spans, γ = 1": "spans, γ = 1",
}


# ---- quickstart.md


def _task_table(task: str) -> Callable[[Files], str]:
    def made(files: Files) -> str:
        result = _tasks(files)[task]
        rows = [["fine-tuned on noisy demonstrations", *_values(result, "sft"), "", "", ""]]
        for method in result["methods"]:
            if method != "sft":
                ahead = "" if method == "text2grad" else _with_interval(_ahead(result, method))
                kl = number(_mean(result, method, "kl_per_token"), 2)
                passed = "" if method == _RIVAL else _passed(result, method)
                name = f"**{label(method)}**" if method == "text2grad" else label(method)
                rows.append([name, *_values(result, method), ahead, kl, passed])
        seeds = ", ".join(map(str, result["seeds"]))
        columns = ["", f"{_METRIC[task]}, mean", f"seeds {seeds}", "Text2Grad ahead by (95 %)", "KL, nats per token"]
        columns.append(f'first step above the best mean of "{label(_RIVAL)}"')
        differences = len(result["methods"]) - 2
        many = f", each one of {differences} differences" if differences > 1 else ""
        note = f"Intervals are Student's t over {len(result['seeds'])} paired seeds{many}."
        return f"{table(columns, rows)}\n\n{note}"

    return made


def _values(result: Mapping[str, Any], method: str) -> list[str]:
    return [number(_mean(result, method)), _seeds(result["methods"][method]["final"])]


def _agreement(task: str) -> Callable[[Files], str]:
    def made(files: Files) -> str:
        result, rows = _tasks(files)[task], []
        for sign in ("positive", "negative"):
            for share in ("precision", "recall"):
                cells = [_seeds([seed[f"{share}/{sign}"] for seed in result[when]], 2) for when in _WHEN]
                rows.append([f"{share}, {sign} tokens", *cells])
        wrong = [sum(seed["failure_rate"] + seed["unmatched_rate"] for seed in result[when]) for when in _WHEN]
        rows.append(["unreadable critiques, quotes not found", *(f"{value:g}" for value in wrong)])
        return table(["", "at the first step", "at the last step"], rows)

    return made


_WHEN = ("reward_model", "reward_model_at_end")


def _summarization_settings(files: Files) -> str:
    result, rates = _tasks(files)["summarization"], files("notes.json")["learning_rates"]["summarization"]
    return (
        "All methods start from the same weights (the reward model's, fine-tuned again on the demonstrations: "
        f"{number(_start(result))}) and get the same number of rollouts. Methods with the generative reward model "
        "get the same twelve "
        "refreshes of it. Text2Grad: γ = 0.5, learning rate 1e-3. Same spans, summed: γ = 1 and the best of three "
        "learning rates "
        f"({_rates(rates)} on tuning posts of seed 0; Text2Grad {number(rates['text2grad'])})."
    )


def _rates(found: Mapping[str, Any]) -> str:
    rates = ", ".join(f"{rate:.0e}".replace("e-0", "e-") for rate in found["rates"])
    return f"{rates}: {', '.join(map(number, found[_RIVAL]))}"


def _ablations(files: Files) -> str:
    result, notes = _tasks(files)["summarization"], files("notes.json")["scalar_reward_model"]
    worth = {name: _points(_ahead(result, name)) for name in ("no_words", "gamma_1", "frozen", "linear_decay")}
    return (
        f"The ablations, in points (95 % intervals): the feedback in words is worth {worth['no_words']}; a reward "
        "model that marks "
        f"spans without writing feedback first judges worse. The short discount is worth {worth['gamma_1']}, "
        "refreshing the reward "
        f"model {worth['frozen']}: on summarization it is good enough without. Linear decay gives the end of a "
        "summary smaller "
        f"rewards than its beginning, loses the facts that stand there, and costs {worth['linear_decay']}. The "
        "numbers of the scalar "
        f"reward model have a correlation of {number(notes['correlation'], 2)} with the true sums, and PPO exploits "
        "the difference; it uses "
        f'the learning rate of "{label(_RIVAL)}" and is not refreshed.'
    )


def _points(found: Estimate) -> str:
    value, low, high = (number(100 * one, 1) for one in found)
    return f"{value} ({low} to {high})"


def _defaults(files: Files) -> str:
    """Return the settings of summarization's recipe beside those that won the tuning, with a learned reward model."""
    name = "recipe_settings"
    where = ("summarization", "reward_model")
    found = [
        one for one in groups(files(RUNS)) if (one.condition.task, one.condition.critic) == where and name in one.runs
    ]
    if not found:
        return "The comparison of tuned settings with the recipe's is not finished."
    group = found[-1]
    tuned = group.leading_spans
    leads = {method: lead(group, method, name) for method in tuned}
    rows = [[f"**{label(name)}**", number(group.final(name)), ""]]
    rows += [[f"{label(one)}, tuned", number(group.final(one)), widest_text(leads[one])] for one in tuned]
    better = [label(method) for method, ahead in leads.items() if widest(ahead)[0] > 0]
    text = "No tuned settings end above the recipe's with the whole interval: the recipe's stay the defaults."
    if better:
        text = f"Above the recipe's settings with the whole interval: {' and '.join(better)}."
    columns = [
        f"means of {len(group.runs[name])} seeds",
        words(group.metric),
        "ahead of the recipe's settings by (95 %)",
    ]
    return f"{table(columns, rows)}\n\n{text}"


def _discounts(files: Files) -> str:
    result, notes = _tasks(files)["summarization"], files("notes.json")["discounts"]["rows"]
    zero, broken = notes
    rows = [["0", number(zero["lam"], 2), number(fmean(zero["final"])), _seeds(zero["final"])]]
    for gamma, method in (("0.5 (the recipe)", "text2grad"), ("1", "gamma_1")):
        rows.append([gamma, "0.95", *_values(result, method)])
    known = _seeds([value for value in broken["final"] if value is not None])
    low, high = broken["kl"]
    told = f"{known}, and {broken['fell_to']} after {broken['at_step']} steps (KL {low} to {high})"
    rows.append(["1", str(broken["lam"]), "diverges", told])
    return table(["γ", "λ", "fact F1, mean", "seeds 0, 1, 2"], rows)


def _time(files: Files) -> str:
    notes, later = files("notes.json")["time"], files("notes.json")["later_machine"]
    phases = ", ".join(f"{name} {seconds} s" for name, seconds in notes["seconds"].items() if name != "methods")
    summaries, code = (f"{part} of {whole} s on {task}" for task, (part, whole) in notes["refreshes"].items())
    return (
        "`text2grad quickstart --task all` on two cores without other load, from a fresh clone: "
        f"**{notes['all_minutes']} minutes** for all "
        "three tasks with Text2Grad, same spans, summed, and the learned scalar reward model. Peak memory: "
        f"{notes['peak_gib']} GiB over all "
        f"processes (pages that they share are counted for each), {notes['peak_gib_of_one']} GiB in the largest. The "
        "run gave the numbers of "
        "seed 0 on this page to the last digit. A later machine gave slightly different numbers from the fine-tuning "
        "on (summarization: "
        f"{number(later['sft'])}, Text2Grad {number(later['text2grad'])}, same spans, summed, "
        f"{number(later[_RIVAL])}); the rounding of another "
        "processor is the likely reason, but this is not proven. Summarization "
        f"alone (`make quickstart`) takes {notes['summarization_minutes']} minutes: {phases}, the methods "
        f"{notes['seconds']['methods']} s, "
        "two at a time.\n\n"
        f"More than half of the time of a policy goes into the refreshes of the reward model: {summaries}, {code}. "
        "Several tasks or seeds "
        "run at the same time with one thread each. One after another, with two threads each, they took "
        f"{notes['all_minutes_one_after_another']} minutes (for a model of this size a second thread is a speedup of "
        "only "
        f"{notes['speedup_of_second_thread']})."
    )


def _qa_words(files: Files) -> str:
    result, notes = _tasks(files)["qa"], files("notes.json")
    rates, faster = notes["learning_rates"]["qa"], notes["qa_at_1e-3"]
    return (
        f"Text2Grad is ahead by {_leads(result)} on the three seeds. Both methods start from the fine-tuned weights "
        "(first evaluation: "
        f"{number(_start(result))}) and have a learning rate of 5e-4, the best of three for the same spans, summed, "
        "on tuning questions of seed "
        f"0 ({_rates(rates)}; Text2Grad at 5e-4: {number(rates['text2grad'])}). At 1e-3 the same three seeds gave "
        f"{number(faster['text2grad'])} and {number(faster[_RIVAL])}: ahead by "
        f"{_with_interval(mean_interval(faster['leads']))}."
    )


def _leads(result: Mapping[str, Any]) -> str:
    mine, other = (result["methods"][name]["final"] for name in ("text2grad", _RIVAL))
    *first, last = [number(a - b) for a, b in zip(mine, other, strict=True)]
    return f"{', '.join(first)} and {last}"


def _code_words(files: Files) -> str:
    result, slower = _tasks(files)["code"], files("notes.json")["code_at_5e-4"][_RIVAL]
    ahead = _ahead(result, _RIVAL)
    zero = "contains 0: three seeds do not prove the lead" if ahead.low <= 0 < ahead.high else "does not contain 0"
    return (
        "Both methods start from the reward model's weights, fine-tuned again on the demonstrations "
        f"({number(_start(result))}), and get the "
        "same number of rollouts, the same reward model and the same twelve refreshes. Text2Grad: γ = 0.5, learning "
        "rate 1e-3. Same spans, "
        f"summed: γ = 1 and the better of two learning rates on these same seeds (1e-3; 5e-4 gives {_seeds(slower)}, "
        f"{number(fmean(slower))} "
        f"in the mean). Text2Grad is ahead by {_leads(result)}; the interval {zero}."
    )


def _code_reward_model(files: Files) -> str:
    result, scalar = _tasks(files)["code"], files("notes.json")["scalar_reward_model"]
    final, precision = (
        result["methods"]["text2grad"]["final"],
        [one["precision/positive"] for one in result["reward_model"]],
    )
    best = max(range(len(final)), key=final.__getitem__)
    same = "the best" if best == max(range(len(final)), key=precision.__getitem__) else "not the best"
    return (
        f"The best policy, of seed {result['seeds'][best]} ({number(final[best])}), had {same} reward model at the "
        "first step "
        f"(precision of positive tokens: {_seeds(precision, 2)}). PPO with the learned scalar reward model, seed 0, "
        "not tuned: "
        f"{number(scalar['code'])} (question answering: {number(scalar['qa'])})."
    )


# ---- stories.md

_STORY_COLUMNS = ("invented_share", "stories_with_invented", "distinct_2", "kl_per_token", "mean_words", "mean_tokens")


def _stories(files: Files) -> str:
    runs, rows = files("stories.json"), []
    for arm in ("before", *_ARMS):
        chosen = [run["before"] if arm == "before" else run["after"] for run in runs if arm in ("before", run["arm"])]
        columns = [[one[name] for one in chosen] for name in _STORY_COLUMNS]
        rows.append([arm, *(f"{fmean(v):.4g} ({min(v):.3g} – {max(v):.3g})" for v in columns)])
    spans, number_arm = list(_ARMS)[:2]
    shares = [[run["after"]["invented_share"] for run in runs if run["arm"] == arm] for arm in (number_arm, spans)]
    fewer = mean_interval([100 * (other - mine) for other, mine in zip(*shares, strict=True)])
    lam, tokens = 0.95, fmean(run["after"]["mean_tokens"] for run in runs if run["arm"] == number_arm)
    weight = (1 - lam**tokens) / (tokens * (1 - lam))
    words = (
        f"Spans with the short discount leave {number(fewer.value, 2)} percentage points fewer invented words than one "
        f"number (95 % interval of Student's t over {len(shares[0])} paired seeds: {number(fewer.low, 2)} to "
        f"{number(fewer.high, 2)}). One number is handicapped here: without a value function and with λ = {lam}, a "
        f"number on the last of {tokens:.0f} tokens reaches a token with a mean weight of {number(weight)}."
    )
    return f"{table(['', *(name.replace('_', ' ') for name in _STORY_COLUMNS)], rows)}\n\n{words}"


_MOVED_WRONG = {
    "p > 0.9 before": ("certain",),
    "momentum of earlier updates": ("momentum",),
    "KL, neighbours, the same token elsewhere, all tokens": ("kl", "neighbours", "shared", "drift"),
    "unexplained": ("unexplained",),
}


_OF_MOVES = {
    "spans": "spans",
    "uncertain": "spans, uncertain tokens",
    "epochs": "spans, 4 epochs, β₁ = 0.5",
    "both": "spans, both",
    "number": "number",
    "number_epochs": "number, 4 epochs, β₁ = 0.5",
}
"""Run of a task in evidence/benchmarks/moves.py → its heading."""


def _moves(files: Files) -> str:
    """Return which way the tokens of updates moved, and why, a table for each task; evidence/benchmarks/moves.py."""
    return _for_each_task(files, _moves_of)


def _for_each_task(files: Files, rows: Callable[[Mapping[str, Any]], list[list[str]]]) -> str:
    """Return a table for each task of evidence/benchmarks/moves.py, under its name; `rows` takes run → figures."""
    of_tasks: dict[str, dict[str, Any]] = {}
    for name, one in files("moves.json").items():
        task, _, signal = name.partition("-")
        of_tasks.setdefault(task, {})[_OF_MOVES[signal]] = one
    return "\n\n".join(f"**{task.capitalize()}**\n\n{table(['', *of], rows(of))}" for task, of in of_tasks.items())


def _moves_of(found: Mapping[str, Any]) -> list[list[str]]:
    def row(name: str, value: Callable[[Mapping[str, Any]], float | None]) -> list[str]:
        return [name, *(_percent(value(one)) for one in found.values())]

    def wrong(causes: Sequence[str]) -> Callable[[Mapping[str, Any]], float]:
        return lambda one: sum(one["explanation"]["far_wrong"]["causes"][cause] for cause in causes)

    def accounted(one: Mapping[str, Any]) -> float:
        return 1 - (1 - float(one["all"]["far_right"])) * wrong(["unexplained"])(one)

    return [
        ["tokens with |A| > σ/2", *(f"{one['all']['far']:,}" for one in found.values())],
        row("moved right", lambda one: one["all"]["far_right"]),
        row("the same, p ≤ 0.9 before", lambda one: one["all"]["open_right"]),
        row("distance to the right", lambda one: one["all"]["far_distance"]),
        row("without the momentum of earlier updates: moved right", lambda one: one["all"]["fresh_right"]),
        row("the same, p ≤ 0.9 before", lambda one: one["all"]["fresh_open_right"]),
        *(row(f"of those that moved wrong: {name}", wrong(causes)) for name, causes in _MOVED_WRONG.items()),
        row("moved right or explained", accounted),
        row("share of the gradient from labelled tokens", lambda one: one["gradient"]["labelled_share"]),
    ]


def _moves_by_part(files: Files) -> str:
    """Return the shares that moved right by label, length and step: in the update, and without earlier momentum."""
    return _for_each_task(files, _parts_of)


def _parts_of(found: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    parts = {(kind, name) for one in found.values() for kind in _PARTS for name in one[kind]}
    for kind, name in sorted(parts, key=lambda part: (list(_PARTS).index(part[0]), *_first_number(part[1]))):
        shown = [one[kind].get(name, {}) for one in found.values()]
        shares = [[_percent(one.get(key)) for key in ("open_right", "fresh_open_right")] for one in shown]
        rows.append([_PARTS[kind].format(name), *("; ".join(one) for one in shares)])
    return rows


_FINAL_VALUES = {"summaries": ("fact_f1", 1), "stories": ("invented_share", -1)}
"""Task → metric, and 1 if more of it is better."""

_OTHER_WAYS = {"uncertain": "spans", "epochs": "spans", "both": "spans", "number_epochs": "number"}
"""Run in `_OF_MOVES` → the run at the recipe's settings that it is compared with."""


def _final_values(files: Files) -> str:
    """Return what ways of updating change at the end of runs, from evidence/benchmarks/final_values.py."""
    runs, rows = files("final_values.json"), []
    for task, (shown, of_recipe) in product(_FINAL_VALUES, _OTHER_WAYS.items()):
        metric, better = _FINAL_VALUES[task]
        own = [one for one in runs if one["task"] == task]
        sides = [{one["seed"]: one["after"] for one in own if one["shown"] == name} for name in (of_recipe, shown)]
        seeds = sorted(sides[0].keys() & sides[1].keys())
        if not seeds:
            continue
        values = [[side[seed][metric] for seed in seeds] for side in sides]
        lead = mean_interval([better * (after - before) for before, after in zip(*values, strict=True)])
        kl = [fmean(side[seed]["kl_per_token"] for seed in seeds) for side in sides]
        told = f"{number(lead.value, 4)} ({number(lead.low, 4)} to {number(lead.high, 4)})"
        means = [number(fmean(of_side), 4) for of_side in values]
        name = f"{task}, {_OF_MOVES[shown]}"
        rows.append([name, metric.replace("_", " "), *means, told, *map(number, kl), str(len(seeds))])
    head = ["", "metric", "recipe", "in this way", "better by (95 %)", "KL, recipe", "KL, in this way", "seeds"]
    return table(head, rows)


_PARTS = {"labels": "{} tokens", "lengths": "responses of {} tokens", "steps": "step {}"}


def _first_number(name: str) -> tuple[int, str]:
    digits = re.match(r"\d+", name)
    return (int(digits[0]) if digits else 0), name


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


BLOCKS: Mapping[str, Callable[[Files], str]] = {
    "learned-reward": _learned_reward,
    "general-ability": _general_ability,
    "people-reward": _people_reward,
    "prose": _prose,
    "paper-plans": _paper_plans,
    **{f"{task}-table": _task_table(task) for task in _QUICKSTART},
    **{f"{task}-agreement": _agreement(task) for task in _QUICKSTART},
    "summarization-settings": _summarization_settings,
    "ablations": _ablations,
    "defaults": _defaults,
    "discounts": _discounts,
    "time": _time,
    "qa-words": _qa_words,
    "code-words": _code_words,
    "code-reward-model": _code_reward_model,
    "stories": _stories,
    "moves": _moves,
    "moves-by-part": _moves_by_part,
    "final-values": _final_values,
}
"""Name of a block → its lines."""
