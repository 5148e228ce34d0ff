"""The critic of a run, asked on demand: what it says about any response, a person's own included.

The critic lives in a worker process of its own, so neither the server loads a model nor does a slow critic wait for a
lesson, or the page for a critic. The process has a question at a time, and others wait in the server: so the end of a
question ends no other, which another tab has asked. Answers are kept as long as the server runs.
"""

import threading
from collections.abc import Mapping
from typing import Any

from text2grad.errors import ConfigError
from text2grad.feedback import turns_to_json
from text2grad_studio.process import WorkerProcess

NONE, STOPPING = 0, -1  # in place of the number of the question that the process answers


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
        self._asked: dict[int, tuple[tuple[int, str], dict[str, Any]]] = {}  # questions without an answer, by number
        self._last = 0
        self._sent = NONE  # number of the question that the process has
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
            request = {"kind": "suggest", "number": self._last, "critic": dict(critic)}
            asked = {"prompt": prompt, "response": response, "turns": turns_to_json(response)}
            self._asked[self._last] = key, {**request, **asked}
            waits = "" if self._sent == NONE else "waits until the critic has read another response"
            self._states[key] = {"state": "working", "progress": waits or "the critic's process starts"}
            self._send_next()
            return dict(self._states[key])

    def state(self, source: int, item: str) -> dict[str, Any]:
        """Return the state of a question: "none", "working", "done" with "critique", "failed" with "error"."""
        with self._lock:
            return dict(self._states.get((source, item), {"state": "none"}))

    def stop(self, source: int | None = None, item: str = "") -> None:
        """Drop a question that has no answer, and end the process if it has that question; others are asked anew.

        Args:
            source: number of the source whose critic was asked; None drops all questions and ends the process.
            item: digest of the response.
        """
        with self._lock:
            key = None if source is None else (source, item)
            dropped = [number for number, (asked, _) in self._asked.items() if key in (None, asked)]
            for number in dropped:
                self._states.pop(self._asked.pop(number)[0], None)
            if source is not None and self._sent not in dropped:
                return
            self._sent = STOPPING  # nothing is sent to a process that is being ended
        self._process.stop()
        with self._lock:
            self._sent = NONE
            self._send_next()

    def _send_next(self) -> None:
        """Send the question that was asked first, if the process has none; the lock is held."""
        if self._sent == NONE and self._asked:
            self._sent = next(iter(self._asked))
            self._process.send(self._asked[self._sent][1])

    def _hear(self, message: dict[str, Any]) -> None:
        with self._lock:
            number = int(message["number"])
            if number not in self._asked:
                return
            key = self._asked[number][0]
            if message["state"] == "done":
                message = {"state": "done", "critique": message["result"]}
            self._states[key] = {name: value for name, value in message.items() if name != "number"}
            if message["state"] != "working":
                del self._asked[number]
                self._sent = NONE
                self._send_next()

    def _ended(self, error: str) -> None:
        with self._lock:
            if self._sent in self._asked:
                self._states[self._asked.pop(self._sent)[0]] = {"state": "failed", "error": error}
                self._sent = NONE
            self._send_next()
