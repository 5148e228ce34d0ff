"""Ctrl-C, SIGTERM and SIGHUP: the step under way is finished and saved, and the run ends without a traceback."""

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

STDERR = 2  # its file descriptor
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """A context that records and prints the first SIGINT, SIGTERM or SIGHUP; a second signal has its usual effect.

    SIGHUP stays ignored where it is (nohup). SIGINT does not: a shell's script starts jobs in the background with
    SIGINT ignored. The second signal then acts as Ctrl-C does.

    Attributes:
        received: the number of the signal; None until it arrives. Outside the main thread no signal is recorded.
    """

    def __init__(self) -> None:
        """Record nothing yet."""
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS if number not in ignored}
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers from before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for other, before in self._before.items():
            signal.signal(other, signal.default_int_handler if before == signal.SIG_IGN else before)
        if os.environ.get("LOCAL_RANK", "0") == "0":
            line = f"{signal.Signals(number).name}: ends after the step under way; a second signal ends it at once\n"
            with suppress(OSError):  # nobody reads the log
                os.write(STDERR, line.encode())
