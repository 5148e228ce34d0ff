"""A program and its tests in one process: mode "shared", for tests that look into the program.

The program is loaded before its process has the tests. Pytest, unittest and the usual modules of tests are loaded, and
their parts noted, before the program; those that the tests use must be the same before and after the tests, as must the
loaders of modules. Builtins, environment and `sys.path` are restored.
The verdict "passed" needs a token, which is read from the channel after the tests. A program that is written against
this module can still forge a verdict: it shares the interpreter.
"""

import builtins
import json
import os
import sys
from os import _exit, getpid
from sys import setprofile, settrace
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from .harness import (
    PRISTINE,
    REPORT_CHARS,
    Verdict,
    flush,
    module_of,
    receive,
    receive_bytes,
    send,
    show_source,
    verdict_of,
)
from .judge import helpers, run_functions, run_pytest

globals()["__builtins__"] = PRISTINE

TOKEN_BYTES = 16
HERE = __package__.partition(".")[0]
LOADED = b"loaded\0"
FRAMEWORK = {"pytest", "_pytest", "pluggy", "unittest"}
ALWAYS = {"importlib", "_frozen_importlib", HERE}


def framework(plan: dict[str, Any]) -> set[str]:
    """Return the packages that run the tests."""
    return FRAMEWORK if plan["pytest"] else set()


def run(channel: int, program: str, size: int, site: str | None, needed: set[str]) -> None:
    """Load a program, run its tests, send the verdict, and end the process.

    Args:
        channel: the socket to the server.
        program: its source.
        size: of the tests, in bytes.
        site: the directory of pytest.
        needed: the packages that the tests use, which may not change.
    """
    job = getpid()
    try:
        verdict = _load_and_test(channel, program, size, site, needed)
    except BaseException as error:  # noqa: BLE001 - any exception of a program is an outcome
        verdict = verdict_of(error, site=site)
    flush()
    if getpid() != job:
        _exit(1)  # the program forked this process
    proof = receive_bytes(channel, TOKEN_BYTES) if verdict.reason == "passed" else b""
    report = verdict.report.encode("utf-8", "replace")[-REPORT_CHARS:]
    send(channel, verdict.reason.encode() + b"\0" + (proof or report))
    _exit(0)


def _load_and_test(channel: int, program: str, size: int, site: str | None, needed: set[str]) -> Verdict:
    module = module_of(program)
    before = _Interpreter(needed | ALWAYS)
    exec(compile(program, "solution.py", "exec", dont_inherit=True), vars(module))
    settrace(None)
    setprofile(None)
    send(channel, LOADED)
    message = receive(channel)
    if message is None:
        raise EOFError("the tests were not sent")
    plan, tests = json.loads(message), receive_bytes(channel, size).decode("utf-8", "surrogatepass")
    changed = before.restore()
    if changed:
        return Verdict("error", f"The program changed {changed}, which its tests use.\n")
    show_source("tests.py", tests)
    verdict = _run(compile(tests, "tests.py", "exec", dont_inherit=True), plan, module, site)
    changed = before.restore() if verdict.reason == "passed" else ""
    return Verdict("error", f"The program changed {changed}, which its tests use.\n") if changed else verdict


def _run(code: CodeType, plan: dict[str, Any], program: ModuleType, site: str | None) -> Verdict:
    sys.modules["solution"] = program
    if plan["pytest"]:
        module = ModuleType("tests")
        module.__file__ = "tests.py"
        sys.modules["tests"] = module
    try:
        if plan["pytest"]:
            vars(module).update(helpers(plan))
            exec(code, vars(module))
            return run_pytest(module, site)
        names = {**vars(program), "__name__": "__main__", "__file__": "tests.py", "__builtins__": dict(PRISTINE)}
        names |= helpers(plan)
        exec(code, names)
        return run_functions(names, plan["functions"])
    except BaseException as error:  # noqa: BLE001 - any exception of a test is an outcome
        return verdict_of(error, failed=True, site=site)


class _Interpreter:
    """The state of the interpreter that tests depend on."""

    def __init__(self, packages: set[str]) -> None:
        """Note the state, and the parts of the loaded modules of some packages."""
        noted = [(name, module) for name, module in sys.modules.items() if name.partition(".")[0] in packages]
        self.modules = {name: (module, _parts(module)) for name, module in noted if isinstance(module, ModuleType)}
        self.environment = dict(os.environ)
        self.path = list(sys.path)
        self.lists = [(loaders, list(loaders)) for loaders in (sys.meta_path, sys.path_hooks)]

    def restore(self) -> str:
        """Restore builtins, environment and path; return the name of a module or loader that has changed, else ""."""
        vars(builtins).clear()
        vars(builtins).update(PRISTINE)
        sys.path[:] = self.path
        os.environ.clear()
        os.environ.update(self.environment)
        sys.path_importer_cache.clear()
        for loaders, items in self.lists:
            if loaders != items:
                return "the loaders of modules"
        for name, (module, parts) in self.modules.items():
            if sys.modules.get(name) is not module or not _same(parts, _parts(module)):
                return f"the module {name}"
        return ""


Parts = dict[str, tuple[object, ...]]


def _parts(module: ModuleType) -> Parts:
    """Return the functions and classes of a module, with all that a program could replace in them."""
    parts: Parts = {}
    for name, value in vars(module).items():
        if isinstance(value, FunctionType):
            parts[name] = (value, value.__code__, value.__defaults__)
        elif isinstance(value, type):
            parts[name] = (value,)
            for key, inner in vars(value).items():
                code = getattr(inner, "__code__", None)
                if code is not None or callable(inner) or isinstance(inner, property | staticmethod | classmethod):
                    parts[f"{name}.{key}"] = (inner, code)
        elif isinstance(value, BuiltinFunctionType | ModuleType):
            parts[name] = (value,)
    return parts


def _same(before: Parts, now: Parts) -> bool:
    return all(
        name in now and len(now[name]) == len(parts) and all(a is b for a, b in zip(parts, now[name], strict=True))
        for name, parts in before.items()
    )


# In the server.


def judge(said: bytes, status: int, token: bytes) -> tuple[str, str]:
    """Return the reason and the report; "passed" requires exactly the two messages of a passing run."""
    messages = messages_of(said)
    if status == 0 and messages:
        reason, _, report = messages[-1].partition(b"\0")
        if len(messages) == 2 and messages[0] == LOADED and messages[1] == b"passed\0" + token:
            return "passed", ""
        if reason in (b"failed", b"error", b"memory") and len(report) <= REPORT_CHARS:
            return reason.decode(), report.decode("utf-8", "replace")
    return "crashed", ended_without_verdict(status)


def ended_without_verdict(status: int) -> str:
    """Return the report on a process that ended before its tests."""
    end = f"with exit status {status}" if status >= 0 else f"by signal {-status}"
    return f"The process ended {end}, without a verdict of the tests."


def messages_of(data: bytes) -> list[bytes]:
    """Split data into messages; return no message if the data are incomplete."""
    messages, rest = [], data
    while rest:
        size = int.from_bytes(rest[:4], "big")
        if len(rest) < 4 + size:
            return []
        messages.append(rest[4 : 4 + size])
        rest = rest[4 + size :]
    return messages
