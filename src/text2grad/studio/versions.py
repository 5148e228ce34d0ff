"""Versions of the policy that lessons made, and the process that makes them.

    STORE/versions/0001/                a LoRA adapter, and version.json: parent, settings, changes of log p
    STORE/versions/0002/reward_model/   after a retraining: the reward model by which the policy was trained

Version 0 is the policy of the run. The process (`worker`) loads models; it is started at the first lesson or question,
and ends with the server or when it is stopped. A stopped lesson leaves no version.
"""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from text2grad.errors import ConfigError, DataError
from text2grad.studio.process import WorkerProcess

NAMES = {"teach": "a lesson", "retrain": "a retraining", "ask": "a question"}


class Versions:
    """The versions below a directory, and the state of the work under way."""

    def __init__(self, store: Path, policy: Mapping[str, Any] | None) -> None:
        """Take the store and the policy.

        Args:
            store: directory of the studio.
            policy: "path", and the settings of sampling; None if the session has no policy to teach.
        """
        self.directory, self.policy = store / "versions", policy
        self._lock = threading.Lock()
        self._work: dict[str, Any] = {"state": "idle"}
        self._known: dict[tuple[Path, int], dict[str, Any]] = {}  # of a file and its time; a page asks every second
        self._process = WorkerProcess(self._hear, self._ended)

    def state(self) -> dict[str, Any]:
        """Return the versions and the work under way."""
        return {
            "policy": self.policy["path"] if self.policy else None,
            "versions": self.versions(),
            "work": dict(self._work),
        }

    def versions(self) -> list[dict[str, Any]]:
        """Return the finished versions, without their changes per token."""
        known = self._known
        self._known = {}
        for path in sorted(self.directory.glob("[0-9]*/version.json")):
            key = path, path.stat().st_mtime_ns
            about = known.get(key) or json.loads(path.read_bytes())
            self._known[key] = {name: value for name, value in about.items() if name != "changes"}
        return list(self._known.values())

    def version(self, number: int) -> dict[str, Any]:
        """Return one version with its changes per token.

        Raises:
            DataError: if there is none.
        """
        path = self.directory / f"{number:04d}" / "version.json"
        if not path.exists():
            raise DataError(f"there is no version {number}")
        found: dict[str, Any] = json.loads(path.read_bytes())
        return found

    def begin(self, kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a lesson ("teach"), a retraining ("retrain") or a question ("ask"); its end shows in `state`.

        Raises:
            ConfigError: if there is no policy, or other work is under way.
        """
        with self._lock:
            if self.policy is None:
                raise ConfigError(
                    "there is no policy to teach: open a run with a checkpoint, or start with --model PATH"
                )
            if self._work["state"] == "working":
                raise ConfigError(
                    f"{NAMES[self._work['kind']]} is under way, perhaps from another tab; wait for its end, or stop it"
                )
            number = int(self._work.get("number", 0)) + 1
            self._work = {"state": "working", "kind": kind, "number": number, "progress": "starting"}
            message = {"kind": kind, "number": number, "policy": dict(self.policy), "versions": str(self.directory)}
            self._process.send({**message, **request})
            return dict(self._work)

    def stop(self) -> None:
        """End the work under way and its process; no version appears."""
        with self._lock:
            if self._work["state"] == "working":
                self._work = {**self._work, "state": "stopped"}
        self._process.stop()

    def _hear(self, message: dict[str, Any]) -> None:
        with self._lock:
            if self._work["state"] == "working" and message.get("number") == self._work.get("number"):
                self._work = {**self._work, **message}

    def _ended(self, error: str) -> None:
        with self._lock:
            if self._work["state"] == "working":
                self._work = {**self._work, "state": "failed", "error": error}
