"""Ctrl-C, SIGTERM and SIGHUP: the step under way is finished and saved, and the run ends without a traceback."""

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """A context in which the first SIGINT, SIGTERM or SIGHUP is only recorded; the second one acts as usual.

    SIGHUP stays ignored where it is (nohup).

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
        self.__exit__()
