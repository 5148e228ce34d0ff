"""Ctrl-C, SIGTERM and SIGHUP: the step under way is finished and saved, and the run ends without a traceback."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from traceback import walk_stack
from types import FrameType
from typing import Any

STDERR = 2  # its file descriptor
AGAIN_S = 0.01  # until a signal that came in a finalizer
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_raised: list[int] = []  # signals that became a KeyboardInterrupt in `signals_interrupt`


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP act as Ctrl-C does, unless they are ignored (nohup) or handled.

    A finalizer would lose the KeyboardInterrupt, and print it: the signal comes again behind it. What a library's bare
    `except` loses, an `Interruption` in the block knows.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if any(own.f_code.co_name == "__del__" for own, _ in walk_stack(frame)):
            threading.Timer(AGAIN_S, os.kill, (os.getpid(), number)).start()
            return
        _raised.append(number)
        raise KeyboardInterrupt(number)

    usual = (signal.SIG_DFL, signal.default_int_handler)
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS if in_main_thread}
    mine = {number: handler for number, handler in before.items() if handler in usual}
    for number in mine:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in mine.items():
            signal.signal(number, handler)
        _raised.clear()


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
            if _raised:
                self._receive(_raised[0], None)
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
