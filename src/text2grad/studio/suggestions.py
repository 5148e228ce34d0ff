"""The critic of a run, asked on demand: what it says about any response, a person's own included.

The critic lives in a worker process of its own, so neither the server loads a model nor does a slow critic wait for a
lesson, or the page for a critic. Answers are kept as long as the server runs.
"""

import threading
from collections.abc import Mapping
from typing import Any

from text2grad.errors import ConfigError
from text2grad.studio.process import WorkerProcess


class Suggestions:
    """Questions to critics, and their answers, by source and response."""

    def __init__(self, critics: Mapping[int, Mapping[str, Any]]) -> None:
        """Take the critics.

        Args:
            critics: number of a source → what the worker loads ("run" or "critic", and "store").
        """
        self.critics = critics
        self._lock = threading.Lock()
        self._states: dict[tuple[int, str], dict[str, Any]] = {}
        self._asked: dict[int, tuple[int, str]] = {}  # questions without an answer, by their number
        self._last = 0
        self._process = WorkerProcess(self._hear, self._ended)

    def ask(self, source: int, item: str, prompt: str, response: str) -> dict[str, Any]:
        """Ask the critic of a source about a response, unless it is asked already; return the state.

        Raises:
            ConfigError: if the source has no critic.
        """
        critic = self.critics.get(source)
        if critic is None:
            raise ConfigError(
                "there is no critic to ask: open the directory of a run (text2grad studio RUN), or start with --critic "
                "MODULE:NAME or --critic DIRECTORY"
            )
        with self._lock:
            key = (source, item)
            known = self._states.get(key, {})
            if known.get("state") in ("working", "done"):
                return dict(known)
            self._last += 1
            number, self._asked[self._last] = self._last, key
            self._states[key] = {"state": "working", "progress": "the critic's process starts"}
        request = {"kind": "suggest", "number": number, "critic": dict(critic)}
        self._process.send({**request, "prompt": prompt, "response": response})
        return self.state(source, item)

    def state(self, source: int, item: str) -> dict[str, Any]:
        """Return the state of a question: "none", "working", "done" with "critique", "failed" with "error"."""
        with self._lock:
            return dict(self._states.get((source, item), {"state": "none"}))

    def stop(self) -> None:
        """End the critic's process; questions without an answer are dropped."""
        self._process.stop()
        with self._lock:
            for key in self._asked.values():
                self._states.pop(key, None)
            self._asked.clear()

    def _hear(self, message: dict[str, Any]) -> None:
        with self._lock:
            key = self._asked.get(int(message["number"]))
            if key is None:
                return
            if message["state"] == "done":
                message = {"state": "done", "critique": message["result"]}
            self._states[key] = {name: value for name, value in message.items() if name != "number"}
            if message["state"] != "working":
                self._asked = {number: one for number, one in self._asked.items() if one != key}

    def _ended(self, error: str) -> None:
        with self._lock:
            for key in self._asked.values():
                self._states[key] = {"state": "failed", "error": error}
            self._asked.clear()
