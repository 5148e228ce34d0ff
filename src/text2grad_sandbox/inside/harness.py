"""What the processes of a job share: messages to the server, a program's module, and reports of exceptions.

The functions that a verdict depends on after a program was loaded are bound to names here, and use a copy of the
builtins, so that a program that patches a module of the standard library does not change them.
"""

import builtins
import io
import json
import linecache
import os
import sys
import traceback
from _sitebuiltins import Quitter
from os import read, write
from types import ModuleType
from typing import Any, NamedTuple

for _name in ("exit", "quit"):  # defined by the module site, which a worker does not load
    vars(builtins).setdefault(_name, Quitter(_name, "Ctrl-D"))
PRISTINE: dict[str, Any] = dict(vars(builtins))
globals()["__builtins__"] = PRISTINE

REPORT_CHARS = 6_000
HERE = os.path.dirname(__file__)


class Verdict(NamedTuple):
    """The result of a job.

    Attributes:
        reason: "passed", "failed", "error", "memory", "ended" (the process of the program has).
        report: of the error.
        own_answers: number of comparisons that the program's own classes decided.
    """

    reason: str
    report: str = ""
    own_answers: int = 0


def send(channel: int, body: bytes) -> None:
    """Write one message."""
    data = memoryview(len(body).to_bytes(4, "big") + body)
    while data:
        data = data[write(channel, data) :]


def receive(channel: int) -> bytes | None:
    """Read one message, or None at the end."""
    size = receive_bytes(channel, 4)
    return receive_bytes(channel, int.from_bytes(size, "big")) if len(size) == 4 else None


def receive_bytes(channel: int, number: int) -> bytes:
    """Read `number` bytes, or fewer at the end of the channel."""
    pieces, left = [], number
    while left and (piece := read(channel, min(left, 65536))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def send_verdict(channel: int, verdict: Verdict) -> None:
    """Write a verdict; its report is cut from the front."""
    send(channel, json.dumps([verdict.reason, verdict.report[-REPORT_CHARS:], verdict.own_answers]).encode("ascii"))


def hide_the_sandbox(site: str | None) -> None:
    """Leave nothing of the sandbox in the interpreter that later processes inherit, and open their streams.

    Args:
        site: the directory of pytest and the packages beside it.
    """
    rooms = ("text2grad", __package__.partition(".")[0])
    for loaded in [name for name in sys.modules if name.partition(".")[0] in rooms]:
        del sys.modules[loaded]
    for package in ("text2grad", "text2grad_sandbox", "text2grad_studio"):  # even if installed beside pytest
        sys.modules[package] = None  # type: ignore[assignment] # makes an import fail
    sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = sys.orig_argv = ["solution.py"]
    sys.dont_write_bytecode = True
    sys.stdout = sys.__stdout__ = _printer(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _printer(2)  # type: ignore[misc]
    if site is not None:  # packages beside pytest, such as numpy
        sys.path.append(site)


def _printer(descriptor: int) -> io.TextIOWrapper:
    """Return a stream to an open file, which stays open when a program replaces the stream."""
    raw = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)


def module_of(program: str, name: str = "solution") -> ModuleType:
    """Return the empty module of a program, whose lines tracebacks show."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = "solution.py"
    show_source("solution.py", program)
    return module


def show_source(name: str, text: str) -> None:
    """Let tracebacks show the lines of a file that does not exist."""
    # Python marks a column one too far in a line without a newline, so the last line gets one.
    linecache.cache[name] = (len(text), None, f"{text}\n".splitlines(keepends=True), name)


def flush() -> None:
    """Write the printed text that is left."""
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        try:
            getattr(sys, name).flush()
        except BaseException:  # noqa: BLE001 - the program may have replaced the stream
            continue


class Frames(traceback.StackSummary):
    """Frames that show the last frame of a recursion; Python hides it if another part of its line raises."""

    def format(self, **how: Any) -> list[str]:
        """Return the text of each frame."""
        parts = (traceback.StackSummary(self[:-1]), traceback.StackSummary(self[-1:]))
        return [text for part in parts for text in part.format(**how)]


def own_frames(summary: traceback.TracebackException, site: str | None) -> str:
    """Return the lines of a traceback's frames, without those of the sandbox and of packages."""
    hidden = (HERE, "<frozen ", *([site] if site else []))
    shown = [frame for frame in summary.stack if not frame.filename.startswith(hidden)]
    for frame in shown:
        if os.path.basename(frame.filename) in ("tests.py", "solution.py"):
            frame.filename = os.path.basename(frame.filename)
    summary.stack = Frames(shown)
    return "".join(summary.stack.format())


def frames_and_last_lines(error: BaseException, site: str | None = None) -> tuple[str, str]:
    """Return the frames of an exception's traceback, and the lines that name the exception."""
    try:
        summary = traceback.TracebackException(type(error), error, error.__traceback__)
        frames, last = own_frames(summary, site), "".join(summary.format_exception_only())
    except BaseException:  # noqa: BLE001 - a program can make exceptions that cannot be printed
        frames, last = "", f"{type(error).__name__}, which could not be printed\n"
    return frames[-REPORT_CHARS // 2 :], last[-REPORT_CHARS // 3 :]


def verdict_of(error: BaseException, *, failed: bool = False, site: str | None = None) -> Verdict:
    """Return the verdict of an exception; an AssertionError is a failed test only if `failed` is True."""
    reason = "failed" if failed and isinstance(error, AssertionError) else "error"
    reason = "memory" if isinstance(error, MemoryError) else reason
    try:
        summary = traceback.TracebackException(type(error), error, error.__traceback__)
        frames = own_frames(summary, site)
        theirs = vars(error)
        if "_frames" in theirs:  # of the program's process
            report = f"Traceback (most recent call last):\n{frames}{theirs['_frames']}{theirs['_last']}"
        else:
            report = "".join(summary.format())
    except BaseException:  # noqa: BLE001 - a program can make exceptions that cannot be printed
        report = f"{type(error).__name__}, which could not be printed\n"
    if isinstance(error, SystemExit):
        report += "The program or a test asked to exit before the tests were over.\n"
    return Verdict(reason, report)
