"""A process of the studio's worker (`worker`): requests go in, messages come back, both as lines of JSON.

It is started at the first request, also after it ended or was stopped. Its last words are kept for the message of a
process that ends by itself.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from text2grad.files import to_json

KEPT_LINES = 40
SHOWN_LINES = 8


class WorkerProcess:
    """A worker, and the thread that listens to it."""

    def __init__(self, on_message: Callable[[dict[str, Any]], None], on_end: Callable[[str], None]) -> None:
        """Take what is called by the thread that listens, and never after `stop`.

        Args:
            on_message: with each message.
            on_end: with the exit status and the last words of a process that ended by itself.
        """
        self.on_message, self.on_end = on_message, on_end
        self._sending = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: threading.Thread | None = None

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request; this may wait for a worker that is busy. `on_end` follows if nobody reads it."""
        with self._sending, suppress(OSError):  # a process that has just ended is told by its listener
            process = self._started()
            assert process.stdin is not None
            process.stdin.write(to_json(request) + b"\n")
            process.stdin.flush()

    def stop(self) -> None:
        """End the process at once."""
        process, self._process = self._process, None
        if process is not None and self._listener is not None:
            process.kill()
            self._listener.join()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "text2grad_studio.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
            self._listener.start()
        return self._process

    def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        said: list[str] = []
        for line in process.stdout:
            message = _message(line)
            if message is None:
                said = [*said, line.decode(errors="replace").rstrip()][-KEPT_LINES:]
            elif process is self._process:
                self.on_message(message)
        code = process.wait()
        process.stdout.close()
        with suppress(OSError):  # a request that nobody read
            process.stdin.close()
        if process is self._process:
            last = "\n".join(said[-SHOWN_LINES:])
            self.on_end(f"the process ended with {code}: {last}")


def _message(line: bytes) -> dict[str, Any] | None:
    """Return a message of the worker; None for words of a library."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "state" in message else None
