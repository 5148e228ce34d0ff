"""The lessons that a policy has learned, their weights, and the words on which a new lesson's marks contradict them.

A lesson is a dict: "name", "date", "raters"; "records", its annotations; "effect", the share of held-out answers with a
mark before and after it, None for a file of marks, which has no critic.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from math import isfinite
from pathlib import Path
from typing import Any

from text2grad.errors import ConfigError, DataError, check_known
from text2grad.files import appended_records, published, readable, to_json
from text2grad.models import ADAPTER_CONFIG, base_named_by
from text2grad.runs.words import in_words
from text2grad.types import visible

MOST = 5  # contradictions that are told one by one


def records_in(home: Path) -> list[dict[str, Any]]:
    """Return the marked answers and the good alternatives in the directory of a lesson, as annotations."""
    marks, others = (appended_records(home / f"{name}.jsonl") for name in ("marks", "alternatives"))
    return [*marks, *(own for own in others if any(span["label"] == "positive" for span in own["critique"]["spans"]))]


def lessons_in(path: str | Path) -> list[dict[str, Any]]:
    """Return the lessons of `give_lesson` in a policy's adapter and in those that it stands on, the first one first.

    Raises:
        DataError: if a file of a lesson cannot be read.
    """
    lessons = list[dict[str, Any]]()
    for home in (_home(adapter) for adapter in _stack(path)):
        if (file := home / "lesson.json").exists():
            with readable(file, "Put back copies of it, marks.jsonl and alternatives.jsonl"):
                about, day = json.loads(file.read_bytes()), date.fromtimestamp(file.stat().st_mtime)
                effect, records = [about["marked_before"], about["marked_after"]], records_in(home)
                raters = {span["rater"] for own in records for span in own["critique"]["spans"] if span.get("rater")}
            own = {"name": home.name, "date": str(day), "raters": sorted(raters), "records": records}
            lessons.append({**own, "effect": effect if any(effect) else None})
    return lessons[::-1]


def weigh(path: str | Path, weights: Mapping[str, float], out: Path) -> Path:
    """Write the lessons of a policy once more, each at a weight, and return the adapter of the last one.

    The weights of the model are then W + Σ w_i (α_i / r_i) B_i A_i, with w_i = 1 for a lesson that is not named. One
    with a weight of 0 is left out, as if taken back; those behind it keep what they learned on top of it.

    Args:
        path: the last adapter of the stack.
        weights: weight of a lesson by its name, the name of its directory.
        out: directory of the new stack, which does not exist yet.

    Raises:
        ConfigError: if there is no lesson of such a name, a weight is negative or infinite, or none is left.
        DataError: if `out` exists.
    """
    stack = [(_home(adapter), Path(adapter).absolute()) for adapter in _stack(path)][::-1]
    if out.exists():
        raise DataError(f"{out} exists; choose another directory for the weighed lessons with --out")
    if not (names := [home.name for home, _ in stack]):
        raise ConfigError(f"{path} is no adapter and has learned no lesson; give it one with --lesson")
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(
            f"{path} stands on two lessons in directories called {twice[0]!r}; no weight can tell them apart"
        )
    for name, weight in weights.items():
        check_known("the lesson to weigh", name, names)
        if not (weight >= 0.0 and isfinite(weight)):
            raise ConfigError(f"the weight of {name} is {weight}; it is a number from 0 (taken back) on, 1 as learned")
    kept = [(home, own) for home, own in stack if weights.get(home.name, 1.0)]
    if not kept:
        raise ConfigError(f"no lesson is left of {path}: without them it is {base_named_by(stack[0][1])}")
    base = str(base_named_by(stack[0][1]))
    out.mkdir(parents=True)
    for home, own in kept:
        base = _write_weighed(own, home, out / home.name, weights.get(home.name, 1.0), base)
    return Path(base)


def _write_weighed(adapter: Path, home: Path, new_home: Path, weight: float, base: str) -> str:
    """Write an adapter and the files of its lesson at a weight, on another base; return the new adapter's directory."""
    from text2grad.models import PROBE_FILE, load_policy, save_model  # the studio reads lessons without torch

    inner = adapter.relative_to(home)
    with published(new_home) as new:
        shutil.copytree(adapter, new / inner, dirs_exist_ok=True)
        for name in ("marks.jsonl", "alternatives.jsonl", "lesson.json"):
            if (home / name).exists():
                shutil.copy2(home / name, new / name)
        if (about := new / "lesson.json").exists():
            about.write_bytes(to_json({"marked_before": 0.0, "marked_after": 0.0}))  # its effect is not measured anew
            shutil.copystat(home / about.name, about)  # nor its date
        file = new / inner / ADAPTER_CONFIG
        config = json.loads(file.read_bytes())
        config |= {"lora_alpha": config["lora_alpha"] * weight, "base_model_name_or_path": base}
        file.write_bytes(to_json(config))
        file.with_name(PROBE_FILE).unlink(missing_ok=True)  # of another base
        save_model(load_policy(str(file.parent), merge=False), file.parent)
    return str((new_home / inner).absolute())


def _stack(path: str | Path) -> Iterator[str | Path]:
    """Yield the directory of an adapter, and of each one that it stands on, the last one first."""
    while base := base_named_by(path):
        yield path
        path = base


def _home(adapter: str | Path) -> Path:
    """Return a lesson's directory: HOME of an adapter in HOME/run/checkpoints/STEP/policy, or a version's own."""
    path = Path(adapter).absolute()
    return path if (path / "marks.jsonl").exists() else Path(*path.parts[:-4])


def contradictions(records: Iterable[Mapping[str, Any]], lessons: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return sentences about words that annotations mark negative and lessons positive, or the reverse; most first.

    The words of a negative mark contradict each positive mark in which they stand, also on other prompts.
    """
    told = Counter[str]()
    for lesson in lessons:
        by = f" by {', '.join(lesson['raters'])}" if lesson["raters"] else ""
        whose = f"{lesson['name']}, the lesson of {lesson['date']}{by}"
        for here, there in (("negative", "positive"), ("positive", "negative")):
            ours, theirs = _marked(records, here), _marked(lesson["records"], there)
            blamed, praised = (ours, theirs) if here == "negative" else (theirs, ours)
            for words in {words for words, _ in blamed}:
                sides = (
                    [prompt for text, prompt in blamed if text == words],
                    [p for text, p in praised if words in text],
                )
                new, old = sides if here == "negative" else sides[::-1]
                if new and old:
                    count = f"{len(old)}×, {sum(prompt in new for prompt in old)}× on the same prompt"
                    told[f'"{visible(words[1:-1])}" is {here} here, {there} in {whose}: {count}'] = len(old)
    lines = sorted(told, key=lambda line: (-told[line], line))
    return lines[:MOST] + [f"{len(lines) - MOST} more"] * (len(lines) > MOST)


def _marked(records: Iterable[Mapping[str, Any]], label: str) -> list[tuple[str, Any]]:
    """Return words and prompt of each mark with a label, on responses of one turn."""
    spans = [(r, s) for r in records for s in r["critique"]["spans"] if s["label"] == label and s.get("turn") is None]
    return [(in_words(r["response"][s["start"] : s["end"]]), r["prompt"]) for r, s in spans]
