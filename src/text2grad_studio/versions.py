"""Versions of the policy that lessons made, and the process that makes them.

    STORE/versions/0001/                a LoRA adapter on its parent, and version.json: parent, changes of log p
    STORE/versions/0001/marks.jsonl     the marks that it learned from; report.html: answers before and after
    STORE/versions/0002/reward_model/   after a retraining: the reward model by which the policy was trained

Version 0 is the policy of the run. The process (`worker`) loads models; it is started at the first lesson or question,
and ends with the server or when it is stopped. A stopped lesson leaves no version. Folders with other names, such as
`0001-copy`, are no versions. A version's number is the name of its folder, also of a copy that a person made. A version
with a damaged `version.json` is left out, and a message names it.
"""

import json
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from text2grad.errors import ConfigError, DataError, Text2GradError
from text2grad.files import appended_records, readable
from text2grad.progress import note
from text2grad.runs import comment_of, lessons_in
from text2grad_studio.process import WorkerProcess

_FOLDER = re.compile(r"[0-9]{4,}")
NAMES = {
    "teach": "a lesson",
    "retrain": "a retraining",
    "ask": "a question",
    "answer": "an answer to prompts",
    "why": "a question why",
    "withdraw": "a withdrawal of marks",
}


def folders_of(directory: Path) -> dict[int, Path]:
    """Return number → path of what has the name of a version, by number."""
    paths = (path for path in directory.glob("[0-9]*") if _FOLDER.fullmatch(path.name))
    return dict(sorted((int(path.name), path) for path in paths if path.name == f"{int(path.name):04d}"))


def _description(path: Path) -> dict[str, Any]:
    """Return what a file `version.json` says, with the number of its folder.

    Raises:
        OSError: if it cannot be opened.
        DataError: if it is damaged.
    """
    try:
        about = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(str(error)) from error
    if not isinstance(about, dict):
        raise DataError("it holds no JSON object")
    return {**about, "version": int(path.parent.name)}


def _trouble(path: Path, error: Exception) -> str:
    """Return why a version cannot be used, with the way out."""
    why, folder = (error.strerror if isinstance(error, OSError) else str(error)), path.parent.name
    return (
        f"version {int(folder)} cannot be used, since {path} cannot be read: {why}. Put a copy of the file in its "
        f"place, or move the folder {folder} away; other versions can be used"
    )


def told(lesson: dict[str, Any]) -> dict[str, Any]:
    """Return a lesson of some "records" with their comments as "words", and "raters"."""
    words, raters = dict[str, None](), set[str]()
    for record in lesson["records"]:
        spans = record["critique"]["spans"]
        quotes = (record["response"][span["start"] : span["end"]] for span in spans)
        words[comment_of(record["critique"].get("feedback", ""), quotes)] = None
        raters.update(span["rater"] for span in spans if span.get("rater"))
    return {**lesson, "words": list(filter(None, words)), "raters": sorted(raters)}


class Versions:
    """The versions below a directory, and the state of the work under way."""

    def __init__(self, store: Path, policy: Mapping[str, Any] | None) -> None:
        """Take the store and the policy.

        Args:
            store: directory of the studio.
            policy: "path", and the settings of sampling; None if the session has no policy to teach.
        """
        self.directory, self.policy = store / "versions", policy
        self.lessons: list[dict[str, Any]] = []
        try:
            self.lessons += map(told, lessons_in(policy["path"]) if policy else [])
        except Text2GradError as error:  # responses can be read and marked all the same
            note(str(error), warning=True)
        self._lock = threading.Lock()
        self._changing = threading.Lock()  # held while work begins or is stopped; messages of the process need no more
        self._work: dict[str, Any] = {"state": "idle"}
        self._began = time.time_ns() // 1000  # a page that goes on after a restart knows no later number of work
        self._last = self._began  # number of work
        self._known = dict[tuple[Path, int], dict[str, Any]]()  # (file, time) → version: a page asks every second
        self._process = WorkerProcess(self._hear, self._ended)

    def state(self) -> dict[str, Any]:
        """Return the versions, messages about versions that cannot be read, and the work under way."""
        versions = self._read()
        return {
            "policy": self.policy["path"] if self.policy else None,
            "lessons": [{k: value for k, value in lesson.items() if k != "records"} for lesson in self.lessons],
            "versions": [about for about in versions if not isinstance(about, str)],
            "troubles": [trouble for trouble in versions if isinstance(trouble, str)],
            "work": dict(self._work),
            "began": self._began,  # work with a lower number was that of a server before
        }

    def version(self, number: int) -> dict[str, Any]:
        """Return one version with its changes per token.

        Raises:
            DataError: if the version does not exist or cannot be read.
        """
        path = self.directory / f"{number:04d}" / "version.json"
        try:
            return _description(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError(f"there is no version {number}") from error
        except (OSError, DataError) as error:
            raise DataError(_trouble(path, error)) from error

    def answers(self, number: int) -> bytes:
        """Return the page of a lesson's answers before and after.

        Raises:
            DataError: if the version does not exist, or has no such page.
        """
        path = self.directory / f"{number:04d}" / "report.html"
        with readable(path, f"Version {number} has no answers before and after, as only lessons have; ask both"):
            return path.read_bytes()

    def learned(self, number: int) -> list[dict[str, Any]]:
        """Return the lessons of a version and of those before it, as `lessons_in`; errors of `version`."""
        if not number or not (self.directory / f"{number:04d}").exists():
            return self.lessons
        about = self.version(number)
        lesson = {"name": f"version {number}", "date": str(about.get("made"))[:10], **self._taught(about)}
        return [*self._before(about), lesson]

    def _before(self, about: Mapping[str, Any]) -> list[dict[str, Any]]:
        return self.learned(min(about.get("parent") or 0, about["version"] - 1))

    def _taught(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the "records" of a version that those before it lack, or all of its own, with "words" and "raters"."""
        path = self.directory / f"{about['version']:04d}" / "marks.jsonl"
        with readable(path, "Put back a copy of it"):
            own = list(appended_records(path))
            before = [record for lesson in self._before(about) for record in lesson["records"]]
            return told({"records": [record for record in own if record not in before] or own})

    def _read(self) -> list[dict[str, Any] | str]:
        """Return each finished version without its changes per token, or why it cannot be read."""
        known, by_file, all_ = self._known, dict[tuple[Path, int], dict[str, Any]](), list[dict[str, Any] | str]()
        for folder in folders_of(self.directory).values():
            path = folder / "version.json"
            try:
                key = path, path.stat().st_mtime_ns
                about = known.get(key) or (own := _description(path)) | self._taught(own)
                about = {name: value for name, value in about.items() if name not in ("changes", "records")}
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, DataError) as error:  # read again at each look: its mode may be mended, not its time
                all_.append(_trouble(path, error))
                continue
            by_file[key] = about
            all_.append(about)
        self._known = by_file  # whole: pages ask at the same time
        return all_

    def begin(self, kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Begin work of a kind of `NAMES`; its process takes the request (`worker`).

        Its end shows in `state`.

        Raises:
            ConfigError: if there is no policy to teach or ask, or other work is under way.
        """
        with self._changing:
            with self._lock:
                if self.policy is None and kind not in ("why", "withdraw"):
                    raise ConfigError(
                        "there is no policy to teach: open a run with a checkpoint, or start with --model PATH"
                    )
                if self._work["state"] == "working":
                    name = NAMES[self._work["kind"]]
                    raise ConfigError(f"{name} is under way, perhaps from another tab; wait for its end, or stop it")
                self._last += 1
                self._work = {"state": "working", "kind": kind, "number": self._last, "progress": "starting"}
                work = dict(self._work)
            message = {"kind": kind, "number": work["number"], "policy": dict(self.policy or {})}
            self._process.send({**message, "versions": str(self.directory), **request})
            return work

    def stop(self, number: int | None = None) -> None:
        """End the work under way and its process; no version appears.

        Args:
            number: of the work that is meant, as `begin` returned it; None stops any.

        Raises:
            ConfigError: if that work has ended, and other work is under way.
        """
        with self._changing:  # what begins after this has a process of its own
            with self._lock:
                if self._work["state"] == "working":
                    if number not in (None, self._work["number"]):
                        raise ConfigError(
                            f"this work has ended; {NAMES[self._work['kind']]} has begun since, perhaps from another "
                            "tab, and is not stopped"
                        )
                    self._work = {**self._work, "state": "stopped"}
                elif number is not None:
                    return
            self._process.stop()

    def _hear(self, message: dict[str, Any]) -> None:
        with self._lock:
            if self._work["state"] == "working" and message.get("number") == self._work.get("number"):
                self._work = {**self._work, **message}

    def _ended(self, error: str) -> None:
        with self._lock:
            if self._work["state"] == "working":
                self._work = {**self._work, "state": "failed", "error": error}
