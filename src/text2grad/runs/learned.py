"""The lessons that a policy has learned, and the words on which the marks of a new one contradict them.

A lesson is a dict: "name", "date", "raters"; "records", its annotations; "effect", the share of held-out answers with a
mark before and after it, None for a file of marks, which has no critic.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from text2grad.files import appended_records, readable
from text2grad.models import base_named_by
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
    while base := base_named_by(path):
        home, path = Path(*Path(path).absolute().parts[:-4]), base  # of HOME/run/checkpoints/STEP/policy
        if (file := home / "lesson.json").exists():
            with readable(file, "Put back copies of it, marks.jsonl and alternatives.jsonl"):
                about, day = json.loads(file.read_bytes()), date.fromtimestamp(file.stat().st_mtime)
                effect, records = [about["marked_before"], about["marked_after"]], records_in(home)
                raters = {span["rater"] for own in records for span in own["critique"]["spans"] if span.get("rater")}
            own = {"name": home.name, "date": str(day), "raters": sorted(raters), "records": records}
            lessons.append({**own, "effect": effect if any(effect) else None})
    return lessons[::-1]


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
