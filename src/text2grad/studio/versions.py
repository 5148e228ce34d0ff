"""Versions of the policy that lessons made, and the process that makes them.

    STORE/versions/0001/     a LoRA adapter, and version.json: parent, lesson, changes of log-probability per token

Version 0 is the policy of the run. The process (`worker`) loads models; it is started at the first lesson or question,
and ends with the server or when it is stopped. A stopped lesson leaves no version.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from text2grad.errors import ConfigError, DataError
from text2grad.files import to_json

KEPT_LINES = 40  # of the process's last words


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
        self._process: subprocess.Popen[bytes] | None = None
        self._work: dict[str, Any] = {"state": "idle"}
        self._listener: threading.Thread | None = None

    def state(self) -> dict[str, Any]:
        """Return the versions and the work under way."""
        return {
            "policy": self.policy["path"] if self.policy else None,
            "versions": self.versions(),
            "work": dict(self._work),
        }

    def versions(self) -> list[dict[str, Any]]:
        """Return the finished versions, without their changes per token."""
        found = []
        for path in sorted(self.directory.glob("[0-9]*/version.json")):
            about = json.loads(path.read_bytes())
            found.append({key: value for key, value in about.items() if key != "changes"})
        return found

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
        """Begin a lesson ("teach") or a question ("ask"); its end shows in `state`.

        Raises:
            ConfigError: if there is no policy, or other work is under way.
        """
        with self._lock:
            if self.policy is None:
                raise ConfigError(
                    "there is no policy to teach: open a run with a checkpoint, or start with --model PATH"
                )
            if self._work["state"] == "working":
                raise ConfigError("a lesson or a question is under way; wait for its end, or stop it")
            number = int(self._work.get("number", 0)) + 1
            self._work = {"state": "working", "kind": kind, "number": number, "progress": "starting"}
            process = self._started()
            assert process.stdin is not None
            message = {"kind": kind, "number": number, "policy": dict(self.policy), "versions": str(self.directory)}
            try:
                process.stdin.write(to_json({**message, **request}) + b"\n")
                process.stdin.flush()
            except OSError as error:
                self._work = {"state": "failed", "kind": kind, "number": number, "error": f"the process ended: {error}"}
            return dict(self._work)

    def stop(self) -> None:
        """End the work under way and its process; no version appears."""
        with self._lock:
            process, self._process = self._process, None
            if self._work["state"] == "working":
                self._work = {**self._work, "state": "stopped"}
            listener = self._listener
        if process is not None and listener is not None:
            process.kill()
            listener.join()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "text2grad.studio.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
            self._listener.start()
        return self._process

    def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        """Take the process's messages until it ends."""
        assert process.stdout is not None
        assert process.stdin is not None
        said: list[str] = []
        for line in process.stdout:
            try:
                message = json.loads(line)
                is_message = isinstance(message, dict) and "state" in message
            except ValueError:
                is_message = False
            if not is_message:
                said = [*said, line.decode(errors="replace").rstrip()][-KEPT_LINES:]
                continue
            with self._lock:
                if process is self._process and message.get("number") == self._work.get("number"):
                    self._work = {**self._work, **message}
        code = process.wait()
        process.stdout.close()
        with suppress(BrokenPipeError):  # a request that nobody read
            process.stdin.close()
        with self._lock:
            if process is self._process and self._work["state"] == "working":
                last = "\n".join(said[-8:])
                self._work = {**self._work, "state": "failed", "error": f"the process ended with {code}: {last}"}
