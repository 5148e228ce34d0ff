"""Ctrl-C and SIGTERM during a run: the step under way is finished and saved, and the run ends without a traceback."""

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A context in which the first SIGINT or SIGTERM is only recorded; the second one acts as usual.

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
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers from before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self.__exit__()
