"""One program and its tests, in a process of their own that ends with them.

`server` forked the process and set all its limits. Its open files are 1 and 2 for printed text, and `CHANNEL` to the
server. The job sends "loaded" over the channel when the program is loaded, receives the tests (not earlier, so that the
program cannot read them while it is loaded), and sends the verdict. The last message in the channel is a token, which
is read only after all tests passed, and which the verdict "passed" must contain.

The functions that the verdict depends on after the program was loaded are written in C and bound to names here, so that
a program that patches a module of the standard library does not change them.
"""

import builtins
import io
import linecache
import os
import sys
import traceback
from marshal import dumps, loads
from os import _exit, getpid, read, write
from sys import setprofile, settrace
from types import CodeType, ModuleType
from typing import Any, NamedTuple

PRISTINE: dict[str, Any] = dict(vars(builtins))
# The functions below use this copy of the builtins; the program and the tests can change only the originals.
globals()["__builtins__"] = PRISTINE

TOKEN_BYTES = 16
REPORT_BYTES = 6_000
CHANNEL = 3


class Verdict(NamedTuple):
    """The result of a job: "passed", "failed", "error" or "memory", and a report of the error."""

    reason: str
    report: str = ""


def send(channel: int, body: bytes) -> None:
    """Write one message."""
    data = len(body).to_bytes(4, "big") + body
    while data:
        data = data[write(channel, data) :]


def receive(channel: int) -> bytes | None:
    """Read one message, or None at the end."""
    size = receive_bytes(channel, 4)
    return receive_bytes(channel, int.from_bytes(size, "big")) if len(size) == 4 else None


def receive_bytes(channel: int, number: int) -> bytes:
    """Read `number` bytes, or fewer at the end of the channel."""
    data = b""
    while len(data) < number and (piece := read(channel, number - len(data))):
        data += piece
    return data


def pack(plan: dict[str, Any]) -> bytes:
    """Return a plan (see `server.plan`) as a message for a job."""
    return dumps(plan)


def run(program: str, *, site: str | None) -> None:
    """Load the program, run the tests, send the verdict, and end the process; `site` is the directory of pytest."""
    job = getpid()
    try:
        verdict = _load_and_test(program, site)
    except BaseException as error:  # noqa: BLE001 - any exception of a program is an outcome
        verdict = _verdict_of(error)
    _flush()
    if getpid() != job:
        _exit(1)  # the program forked this process
    proof = receive_bytes(CHANNEL, TOKEN_BYTES) if verdict.reason == "passed" else b""
    send(
        CHANNEL, verdict.reason.encode() + b"\0" + (proof or verdict.report.encode("utf-8", "replace")[-REPORT_BYTES:])
    )
    _exit(0)


def _load_and_test(program: str, site: str | None) -> Verdict:
    module = _prepare(program)
    if site is not None:  # packages beside pytest, such as numpy
        sys.path.append(site)
    pristine = dict(PRISTINE)
    exec(compile(program, "solution.py", "exec", dont_inherit=True), vars(module))
    settrace(None)
    setprofile(None)
    send(CHANNEL, b"loaded\0")
    message = receive(CHANNEL)
    if message is None:
        raise EOFError("the tests were not sent")
    plan = loads(message)
    _show_source("tests.py", plan["tests"])
    if plan["pytest"]:
        vars(builtins).update(pristine)
        return _run_pytest(program, plan["tests"], site)
    code = compile(plan["tests"], "tests.py", "exec", dont_inherit=True)
    names = {**vars(module), "__name__": "__main__", "__file__": "tests.py", "__builtins__": pristine}
    return _run_plain(code, names, plan["functions"])


def _prepare(program: str) -> ModuleType:
    _forget("text2grad", __package__.partition(".")[0])
    sys.modules["text2grad"] = None  # type: ignore[assignment] # cannot be imported, even if installed beside pytest
    sys.argv = sys.orig_argv = ["solution.py"]
    sys.dont_write_bytecode = True
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), "utf-8", "backslashreplace", line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), "utf-8", "backslashreplace", line_buffering=True)
    module = ModuleType("solution")
    module.__file__ = "solution.py"
    sys.modules["solution"], sys.modules["__main__"] = module, ModuleType("__main__")
    _show_source("solution.py", program)
    return module


def _forget(*packages: str) -> None:
    """Remove packages from the loaded modules, so that the next import loads them again."""
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]


def _run_plain(code: CodeType, names: dict[str, Any], functions: list[str]) -> Verdict:
    try:
        exec(code, names)
        for function in functions:
            if (answer := names[function]()) is not None:
                raise TypeError(f"{function} returned a {type(answer).__name__}; what it should check was not run")
    except BaseException as error:  # noqa: BLE001 - any exception of a test is an outcome
        return _verdict_of(error, failed=True)
    return Verdict("passed")


def _run_pytest(program: str, tests: str, site: str | None) -> Verdict:
    if site is None:
        return Verdict("error", "These tests need pytest, which is not installed.")
    for name, text in (("solution.py", program), ("tests.py", tests)):
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    _forget("pytest", "_pytest", "pluggy", "iniconfig")  # the program may have changed them
    import pytest

    hidden: str = site
    counts = {"collected": 0, "passed": 0}
    reports = []

    class Watcher:
        def pytest_collection_finish(self, session: Any) -> None:
            counts["collected"] = len(session.items)

        def pytest_runtest_logreport(self, report: Any) -> None:
            counts["passed"] += report.when == "call" and report.outcome == "passed"

        def pytest_exception_interact(self, call: Any) -> None:
            reports.append(_verdict_of(call.excinfo.value, failed=True, hidden=hidden))

    options = ["-q", "--no-header", "--tb=no", "--import-mode=importlib", "--rootdir=.", "-c", "/dev/null"]
    options += ["-p", "no:cacheprovider", "-p", "no:faulthandler", "tests.py"]
    status = int(pytest.main(options, plugins=[Watcher()]))
    if status == 0 and not reports and counts["passed"] == counts["collected"] > 0:
        return Verdict("passed")
    if reports:
        return Verdict("failed" if status == 1 else reports[0].reason, reports[0].report)
    return Verdict("error", f"{counts['passed']} of {counts['collected']} tests passed; the others were skipped.")


def _verdict_of(error: BaseException, *, failed: bool = False, hidden: str = __file__) -> Verdict:
    """Return the verdict of an exception; an AssertionError is a failed test only if `failed` is True."""
    reason = "error"
    if isinstance(error, MemoryError):
        reason = "memory"
    elif failed and isinstance(error, AssertionError):
        reason = "failed"
    try:
        summary = traceback.TracebackException(type(error), error, error.__traceback__)
        shown = [frame for frame in summary.stack if not frame.filename.startswith((hidden, "<frozen "))]
        for frame in shown:
            if os.path.basename(frame.filename) in ("tests.py", "solution.py"):
                frame.filename = os.path.basename(frame.filename)
        summary.stack = traceback.StackSummary.from_list(shown)
        report = "".join(summary.format())
    except BaseException:  # noqa: BLE001 - a program can make exceptions that cannot be printed
        report = f"{type(error).__name__}, which could not be printed\n"
    if isinstance(error, SystemExit):
        report += "The program or a test asked to exit before the tests were over.\n"
    return Verdict(reason, report)


def _show_source(name: str, text: str) -> None:
    # Python marks a column one too far in a line without a newline, so the last line gets one.
    linecache.cache[name] = (len(text), None, f"{text}\n".splitlines(keepends=True), name)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001 - the program may have replaced the stream
            continue
