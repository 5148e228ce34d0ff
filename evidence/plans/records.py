"""A finished run → one JSON object, which is kept when the run's directory is gone.

evidence/results/runs/STUDY.jsonl holds one record per line:

    study, task, length, faults, critic, method     the place of the run in its study
    purpose, trial     "tuning" with the number of the trial, or "evaluation" with null
    seed, eval_seed    of the run and of its held-out items
    settings           "section.key" → value, where it differs from the base recipe; no paths, seeds, length, faults
    recipe             digest of the base recipe
    steps, rollouts, tokens, seconds    finished steps, responses and tokens sampled in training, seconds of training
    start              digest of the start weights
    machine, version   where and by which version the run was made
    metric             name of the main metric
    curve              of each evaluation: step, rollouts, tokens and seconds until then, value of the main metric,
                       KL in nats per token, all metrics
    item_ids           digest of each held-out item's prompt; absent in records of earlier versions
    items, items_at_start    main metric of each held-out item at the last and the first evaluation
    diagnostics        means of metrics of the last third of the steps
    error              message of a run that stopped with an error; not in other records
    apart              `apart` of its study; not in records of a study without
    at_kl              of a trial: `tune_at_kl` of its study; not in records of a study without
"""

import json
import platform
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from text2grad.config import Recipe, make_recipe
from text2grad.config.run_directory import read_run_file
from text2grad.errors import DataError
from text2grad.files import exclusive, json_lines, to_json, write_atomically
from text2grad.runs.prompts import world_of
from text2grad.runs.reports.run_report import Run, read_run

KEY = ("study", "task", "length", "faults", "critic", "method", "purpose", "trial", "seed", "recipe", "settings")
"""The fields by which a record is found: a run has one record."""

FIELDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("study", "task", "critic", "method", "purpose", "recipe", "start", "version", "metric"), (str,)),
    **dict.fromkeys(("length", "seed", "eval_seed", "steps", "rollouts", "tokens"), (int,)),
    **dict.fromkeys(("faults", "seconds"), (int, float)),
    **dict.fromkeys(("settings", "machine", "diagnostics"), (dict,)),
    **dict.fromkeys(("curve", "items", "items_at_start"), (list,)),
    "trial": (int, type(None)),
}

DIAGNOSTICS = (
    *("value/explained_variance", "entropy/per_token", "kl/per_token", "reward/per_response"),
    *("delta/positive_share", "delta/negative_share", "critic/failure_rate", "length/mean", "length/truncated_share"),
    *("update/clip_fraction", "update/skipped", "update/ratio_max", "update/policy_grad_norm"),
    *("audit/precision/negative", "audit/recall/negative"),
)

PATHS = (
    *("model.path", "critic.model", "refresh.replay_from", "data.train"),
    *("sft.model", "sft.data", "reward_model.model", "reward_model.annotations"),
    *("sft.out", "annotate.out", "reward_model.out", "run.out"),
)
SHARES_OR_PATHS = ("data.held_out", "sft.held_out", "reward_model.held_out")
ELSEWHERE = ("data.task", "data.length", "data.faults", "data.eval_seed", "run.seed")  # have fields of their own
NO_EFFECT = (
    *("run.save_every", "run.keep_checkpoints", "run.keep_best", "run.threads", "run.tracker"),
    *("rollout.rows_at_once", "ppo.micro_batch_tokens"),
)
NAMES_IN_RECORDS = {
    "quickstart.examples": "data.examples",
    "quickstart.after_reward_model": "sft.after_reward_model",
    "quickstart.responses": "reward_model.responses",
    **{f"world.{name}": f"data.{name}" for name in ("length", "faults", "truths", "eval_seed")},
    "world.layers": "sft.layers",
    "model.prompt_format": "rollout.prompt_format",
}
"""Setting → its name in records, the name when the first records were made: digests of recipes stay comparable."""
START_DIGITS = 16  # of the digest of the start weights
DIGITS = 6  # significant digits of the numbers of a record

Record = dict[str, Any]


class Place(NamedTuple):
    """The place of a run in its study: the first fields of its record."""

    study: str
    task: str
    length: int
    faults: float
    critic: str
    method: str
    purpose: str
    trial: int | None
    seed: int


def settings_between(base: Recipe, recipe: Recipe) -> dict[str, Any]:
    """Return "section.key" → value of the settings of a recipe that decide a result and differ from the base's."""
    before, now = _named(base.model_dump(mode="json")), _named(recipe.model_dump(mode="json"))
    values = {name: (before.get(name, False), now.get(name, False)) for name in {**before, **now}}  # a limit: True
    return {name: own for name, (old, own) in values.items() if old != own and name not in ELSEWHERE}


def recipe_digest(base: Recipe) -> str:
    """Return a digest of the settings that a recipe sets, which settings of later versions do not change."""
    kept = _named(base.model_dump(mode="json", exclude_unset=True))
    return sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def _named(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that may decide a result by their names in records, without paths."""
    named = {
        NAMES_IN_RECORDS.get(name, name): value
        for section, values in settings.items()
        for key, value in values.items()
        if (name := f"{section}.{key}") not in {*PATHS, *NO_EFFECT}
        if not (name in SHARES_OR_PATHS and isinstance(value, str))
    }
    named |= {f"critic.{limit}": True for limit in named.pop("critic.quote_limits", None) or ()}
    if "world.fresh_reward_model" in named:
        named["reward_model.start"] = "fresh" if named.pop("world.fresh_reward_model") else "sft"
    return named


def record_of(
    directory: Path, place: Place, base: Recipe, *, asked: Recipe | None = None, metric: str = "", error: str = ""
) -> Record:
    """Return the record of a run.

    Args:
        directory: of the run, also of a quickstart's.
        place: of the run in its study.
        base: the recipe of the study, without settings of methods and trials.
        asked: the recipe by which the run was started, to which its command may have added settings; None takes the
            recipe in its directory.
        metric: name of the metric by which methods are compared; "" for the run's main metric.
        error: message of a run that stopped with an error, perhaps in its first step; "" for a finished run.

    Raises:
        CheckpointError: if the directory's run.json cannot be read.
        DataError: if the run has no evaluation, or no finished step and no error, or its files are damaged.
    """
    about = read_run_file(directory)
    recipe = make_recipe(about["recipe"], where=str(directory / "run.json"), strict=False)
    run = read_run(directory, without_steps=bool(error))
    if not run.evaluations or not run.evaluations[-1].get("responses"):
        raise DataError(
            f"{directory} has no evaluation on held-out items; a record needs data.eval_examples above 0, and "
            "data.held_out for data of your own"
        )
    spent = [_spent(line, recipe.rollout.batch_size) for line in run.metrics]
    after = list(accumulate(spent, _Spent.plus, initial=_Spent(0, 0, 0.0)))
    metric = metric or str(run.evaluations[-1]["metric"])
    commit = about.get("commit")
    found = {
        **place._asdict(),
        "eval_seed": world_of(recipe)[1],
        "settings": settings_between(base, asked or recipe),
        "recipe": recipe_digest(base),
        "steps": len(run.metrics),
        **after[-1]._asdict(),
        "start": about.get("inputs", {}).get("model.path", "")[:START_DIGITS],
        "machine": {"cpu": _cpu(), "threads": about.get("threads"), "torch": about.get("torch")},
        "version": about["text2grad"] + (f" {commit[:10]}" if commit else ""),
        "metric": metric,
        "curve": [
            {
                "step": one["step"],
                **after[min(one["step"], len(run.metrics))]._asdict(),
                **point,
                "metrics": one["metrics"],
            }
            for one, point in zip(run.evaluations, curve_of(run.evaluations, metric), strict=True)
        ],
        "items": _items(run.evaluations[-1], metric, directory),
        "items_at_start": _items(run.evaluations[0], metric, directory),
        "item_ids": [item_id(one["prompt"]) for one in run.evaluations[-1]["responses"]],
        "diagnostics": diagnostics(run),
        **({"error": error} if error else {}),
    }
    return _rounded(found)  # type: ignore[no-any-return]


def curve_of(evaluations: Sequence[Mapping[str, Any]], metric: str) -> list[dict[str, Any]]:
    """Return the metric and the KL per token of each evaluation of a run, as its record has them."""
    return [
        {"value": rounded(one["metrics"][metric]), "kl_per_token": _rounded(one["metrics"].get("kl_per_token"))}
        for one in evaluations
    ]


def item_id(prompt: str) -> str:
    """Return a digest of the text of a held-out item's prompt."""
    return sha256(prompt.encode()).hexdigest()[:8]


def diagnostics(run: Run) -> dict[str, float]:
    """Return the means of metrics over the last third of a run's steps; none without steps."""
    if not run.metrics:
        return {}
    last = run.metrics[-max(1, len(run.metrics) // 3) :]
    return {name: fmean(line[name] for line in last) for name in DIAGNOSTICS if all(name in line for line in last)}


def key_of(record: Mapping[str, Any]) -> str:
    """Return the fields by which a record is found, as text."""
    return json.dumps([record[name] for name in KEY], sort_keys=True)


def read_records(path: Path) -> list[Record]:
    """Return the records of a file, or of all files of a directory in the order of their names.

    Raises:
        DataError: if a file cannot be read, a line is no record, or two records are of the same run; names file and
            line.
    """
    if path.is_dir():
        return [record for file in sorted(path.glob("*.jsonl")) for record in read_records(file)]
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; `python -m evidence experiment` writes such files"
        ) from error
    found: dict[str, tuple[int, Record]] = {}
    for number, line in enumerate(lines, start=1):
        record = _checked(line, f"{path}:{number}")
        earlier = found.setdefault(key_of(record), (number, record))
        if earlier[0] != number:
            raise DataError(f"{path}:{number}: the run has a record in line {earlier[0]}, too; remove one of the lines")
    return [record for _, record in found.values()]


def append_record(directory: Path, record: Record) -> bool:
    """Append a record to the file of its study, if the run has no record there.

    Args:
        directory: of the files of records.
        record: of `record_of`.

    Returns:
        False if the run has a record.

    Raises:
        DataError: if the file is damaged.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{record['study']}.jsonl"
    with exclusive(directory):
        known = read_records(path) if path.exists() else []
        if key_of(record) in map(key_of, known):
            return False
        write_atomically(path, json_lines([*known, record]))
    return True


class _Spent(NamedTuple):
    """Responses and tokens sampled in training, and seconds without evaluations."""

    rollouts: int
    tokens: int
    seconds: float

    def plus(self, other: "_Spent") -> "_Spent":
        """Return the sum."""
        return _Spent(self.rollouts + other.rollouts, self.tokens + other.tokens, self.seconds + other.seconds)


def _spent(line: Mapping[str, float], batch_size: int) -> _Spent:
    """Return the responses and tokens that a step sampled, and its seconds."""
    tokens = round(line["length/mean"] * batch_size)
    rollouts = batch_size if tokens else 0  # `rival reflection` samples nothing in training
    return _Spent(rollouts, tokens, sum(value for name, value in line.items() if name.startswith("seconds/")))


def _items(evaluation: Mapping[str, Any], metric: str, directory: Path) -> list[float]:
    """Return the main metric of each held-out item; the reward where a run has no other metric."""
    try:
        return [row["reward"] if metric == "reward" else row["metrics"][metric] for row in evaluation["responses"]]
    except KeyError as error:
        raise DataError(
            f"{directory}: the evaluation at step {evaluation['step']} lacks {error} of a response"
        ) from error


def _cpu() -> str:
    """Return the name of this machine's processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def rounded(value: float) -> float:
    """Return a number with the digits that records keep."""
    return float(f"{value:.{DIGITS}g}")


def _rounded(value: Any) -> Any:
    """Return a value of JSON whose numbers have `DIGITS` significant digits; numbers of settings keep all."""
    if isinstance(value, float):
        return rounded(value)
    if isinstance(value, Mapping):
        return {name: one if name == "settings" else _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _checked(line: bytes, where: str) -> Record:
    """Return the record of a line.

    Raises:
        DataError: if it is none.
    """
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}); restore the line from version control, or remove it") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: a record is an object, got {type(record).__name__}")
    for name, kinds in FIELDS.items():
        if name not in record:
            raise DataError(f"{where}: the record has no {name!r}")
        if not isinstance(record[name], kinds) or isinstance(record[name], bool):
            raise DataError(f"{where}: {name!r} is {to_json(record[name]).decode()[:60]}, not {kinds[0].__name__}")
    return record
