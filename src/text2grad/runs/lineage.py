"""What was learned from whom: lineage.json of a run, the card of its policy, and marks that a rater takes back.

marks        {"positive": spans, "negative": spans} in all critiques of its steps
raters       spans by rater, where spans name one; likewise `categories`
withdrawn    marks by rater that it learned from, too, and that are gone
feedback     SHA-256 of the files and models that the recipe names
parent, without, same_responses, first      of a run that `text2grad without` made
"""

import json
import time
from collections import Counter
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from text2grad.config import best_checkpoint, latest_checkpoint, recipe_of_run
from text2grad.errors import DataError
from text2grad.feedback import TOMBSTONES, mark_of, read_tombstones, take_marks
from text2grad.files import append_records, appended_records, lock_directory, readable, to_json, write_atomically
from text2grad.rl import RunLog

LINEAGE = "lineage.json"
CARD = "---\ntags: [text2grad]\n---\n# A policy that learned from critiques\n\n```json\n{}\n```\n"


def read_lineage(directory: Path) -> dict[str, Any]:
    """Return what is known of a run's lineage; nothing of a run that is under way.

    Raises:
        DataError: if the file is damaged.
    """
    if not (path := directory / LINEAGE).exists():
        return {}
    with readable(path, "Remove it, and the end of the run writes it again"):
        return dict(json.loads(path.read_bytes()))


def write_lineage(directory: Path) -> dict[str, Any]:
    """Count the marks of a run by label, rater and category; write them and the policy's card, return the lineage."""
    counts = {name: Counter[str]() for name in ("label", "rater", "category", "withdrawn")}
    for record in (record for _, records in RunLog(directory).rollouts(since=0) for record in records):
        for span in (*record["critique"]["spans"], *({"withdrawn": r} for r in record.get("withdrawn", {}).values())):
            for name, counter in counts.items():
                counter.update([span[name]] if span.get(name) else [])
    names = {"label": "marks", "rater": "raters", "category": "categories"}
    known: dict[str, Any] = {"feedback": json.loads((directory / "run.json").read_bytes()).get("inputs", {})}
    known |= {names.get(name, name): dict(sorted(counter.items())) for name, counter in counts.items()}
    lineage = {**read_lineage(directory), **known}
    write_atomically(directory / LINEAGE, to_json(lineage))
    checkpoints, card = directory / "checkpoints", CARD.format(to_json(known, indent=2).decode())
    for checkpoint in filter(None, {best_checkpoint(checkpoints), latest_checkpoint(checkpoints)}):
        write_atomically(checkpoint / "policy" / "README.md", card.encode())
    return lineage


class Retraction:
    """The marks that a rater takes back, with the words of their critiques.

    They go from all records (.json, .jsonl) of a source and below the folder of runs; lines keep their length, since
    checkpoints know it. Pages that name the rater, and the studio's indexes, are removed. "withdrawn" of a response,
    its marks with the rater, tells `without` where to begin. An interrupted command can be given again.

    Attributes:
        files: each file that holds marks → their names.
        versions: the directory of each run, reward model or adapter that learned from them → the settings that name
            models which did; none where the marks are in its own files, or its annotations.
    """

    def __init__(self, source: Path, runs: Path, rater: str, mark: str = "") -> None:
        """Look in annotations or the studio for a rater's marks whose names begin with `mark`; none is an error."""
        self.source, self.runs = source.resolve(strict=True), runs.resolve(strict=True)
        self.rater, self.mark, self.kept = rater, mark, self.source / "marks" if source.is_dir() else self.source
        self.log, self.beside = self.kept / rater, self.kept.parent
        events = [event for path in self.log.glob("*.jsonl") for event in appended_records(path)]
        self.ids = {event.get("id") for event in events if self._name(event).startswith(mark)}
        self.files = {path: held[1] for path in self._below("*.json*") if (held := self._rest(path))}
        if not self.files:
            raise DataError(f"no mark {mark or 'at all'} of {rater} in {source} or below {runs}; spans name raters")
        recipes = {path.parent: recipe_of_run(path.parent) for path in self._below("run.json")}
        homes = [*recipes, *(path.parent for path in self._below("version.json"))]
        self.versions = {home: list[str]() for home in homes if any(home in path.parents for path in self.files)}
        for home, recipe in [*recipes.items()] * len(recipes):  # a chain has no more links
            bad = {*self.files, *self.versions, self.kept} - {home}
            named = [("model.path", recipe.model.path), ("refresh.replay_from", recipe.refresh.replay_from)]
            named += [("critic.model", "" if recipe.critic.use else recipe.critic.model)]
            named += [("", file) for file in recipe.reward_model.annotations if not (home / "rollouts").exists()]
            paths = [(name, Path(value).resolve()) for name, value in named if value]
            if reached := [name for name, path in paths if bad & {path, *path.parents}]:
                self.versions[home] = [name for name in reached if name]

    def write(self, reason: str, *, held: Path | None = None) -> None:
        """Take the marks back, for a reason; refuse where another process writes to one of the directories.

        Args:
            reason: told in the tombstones.
            held: a studio's directory whose own server asks for it: it is locked, and its indexes follow the files.
        """
        for path in self._below(".lock"):
            if path.parent != held:
                lock_directory(path.parent)
        new = set[str]().union(*self.files.values()) - read_tombstones(self.beside).keys()
        stone = {"rater": self.rater, "at": time.time_ns(), "reason": reason}
        append_records(self.beside / TOMBSTONES, [{"mark": mark, **stone} for mark in sorted(new)])
        for path in self.files:
            if left := self._rest(path):
                write_atomically(path, left[0])
        for path in self._below("*"):
            name, text = escape(self.rater), path.read_text("utf-8", "replace") if path.suffix == ".html" else ""
            index = path.parent.name == "index" and ".sqlite" in path.name and held is None
            if f": {name}" in text or f"· {name}" in text or index:
                path.unlink()

    def _below(self, pattern: str) -> list[Path]:
        """Return the files whose names fit a pattern."""
        paths = (path for root in (self.runs, self.source) for path in (root, *root.rglob("*")))
        return sorted({path for path in paths if path.match(pattern) and path.is_file()})

    def _goes(self, name: str, span: dict[str, Any]) -> bool:
        """Return whether a mark is one of those that the rater takes back."""
        return bool(span.get("rater") == self.rater) and name.startswith(self.mark)

    def _name(self, event: dict[str, Any]) -> str:
        return mark_of(event.get("item", ""), {**event, "rater": self.rater})

    def _rest(self, path: Path) -> tuple[bytes, set[str]] | None:
        """Return what is left of a file, and the names of its marks; None if it has none."""
        lines, names, log = path.read_bytes().split(b"\n"), set[str](), path.parent == self.log
        for number, line in enumerate(lines):
            if log or self.rater.encode() in line or to_json(self.rater)[1:-1] in line:
                with suppress(ValueError, RecursionError):  # of a line that a crash cut off, or that is no record
                    value = json.loads(line)
                    own = {self._name(value)} if log and (not self.mark or value.get("id") in self.ids) else set()
                    if taken := own if log else self._taken(value):
                        lines[number] = b"" if log else json.dumps(value).encode().ljust(len(line))
                        names |= taken
        return (b"\n".join(lines), names) if names else None

    def _taken(self, value: Any) -> set[str]:
        """Take the marks out of JSON data, in place; return their names, also of those that are gone already."""
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        names = set[str]().union(*(self._taken(part) for part in parts if isinstance(part, dict | list)))
        critique = value.get("critique") if isinstance(value, dict) else None
        spans = critique.get("spans") if isinstance(critique, dict) else None
        if isinstance(spans, list) and all(isinstance(span, dict) for span in spans):
            before = value.get("withdrawn", {})
            own = take_marks(value, self._goes) | {m for m, who in before.items() if self._goes(m, {"rater": who})}
            names |= own
            if own and "step" in value:
                value["withdrawn"] = before | dict.fromkeys(own, self.rater)
        return names
