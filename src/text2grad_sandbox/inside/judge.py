"""The tests of a program, in a process of their own: mode "separate".

The program is in another process, which knows neither the tests nor the verdict; `peer` describes how both speak. The
judge's names are those of the tests, Python's own builtins, and stand-ins for the names of the program that the tests
use. `solution` is a module of stand-ins, so that tests may import it, also under pytest.
"""

import builtins
import functools
import importlib
import os
import re
import sys
import types
from typing import Any

from .harness import Verdict, frames_and_last_lines, show_source, verdict_of
from .peer import SPECIALS, UNSAFE, Ended, Peer
from .values import BadMessage, Packer, Unpacker

TESTS = "__main__"  # the module of plain tests
MODULES = {"np": "numpy", "pd": "pandas", "sp": "scipy", "plt": "matplotlib.pyplot", "dt": "datetime"}
"""Usual names of modules, apart from their own."""
CALLABLE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    functools.partial,
)


class Judge(Peer):
    """The judge's end of the connection.

    Attributes:
        names: the names of the program that the tests use.
        failed: the first failure in a function that the program called.
        failure: why the connection ended, if it did; tests cannot hide it.
    """

    suspicious = True

    def __init__(self, descriptor: int) -> None:
        """Use an open socket."""
        super().__init__(descriptor)
        self.names: dict[str, Any] = {}
        self.wanted: set[str] = set()
        self.namespaces: list[dict[str, Any]] = []
        self.failure: BaseException | None = None
        self.failed: AssertionError | None = None

    def broken(self, error: BaseException) -> BaseException:
        """Remember why the connection ended."""
        self.failure = self.failure or error
        return error

    def rebind(self, name: str, data: Any, unpacker: Unpacker) -> None:
        """Give a name of the program its new value, wherever the tests have not bound it themselves."""
        if name not in self.wanted:
            raise BadMessage(f"nobody asked for {name}"[:100])
        value = self._own(name, data) or unpacker.unpack(data)
        for names in self.namespaces if name in self.names else ():
            if name in names and names[name] is self.names[name]:  # the tests have not bound it
                names[name] = value
        self.names[name] = value

    def _own(self, name: str, data: Any) -> Any:
        """Return the judge's own module or function where a program imports a well-known one under its usual name."""
        if type(data) is not list or len(data) < 3:
            return None
        if data[0] == "g" and data[2] != name:
            raise BadMessage(f"{name} is not {data[2]}"[:100])
        if data[0] != "m" or type(data[1]) is not str:
            return None
        module = data[1] if data[1] == MODULES.get(name, name) or data[1].rpartition(".")[2] == name else None
        if module is None or module.partition(".")[0] not in sys.stdlib_module_names | {"numpy", "pandas", "scipy"}:
            return None
        return importlib.import_module(module)

    def resolve(self, tag: str, data: list[Any], unpacker: Unpacker) -> Any:
        """Read a value that is not plain; a coroutine becomes one that runs in the program's process."""
        value = super().resolve(tag, data, unpacker)
        if tag != "o" or getattr(value, "__class__", None) is not types.CoroutineType:
            return value

        async def awaited() -> Any:
            return await value

        return awaited()

    def permit(self, value: Any) -> None:
        """Check that the program may call or read a value of the tests."""
        kind = type(value)
        if isinstance(value, CALLABLE) or hasattr(kind, "__next__") or _is_of_tests(kind) or kind is object:
            return
        raise TypeError(
            f"a value of type {kind.__module__}.{kind.__qualname__} cannot be given to the program, which runs in "
            'another process; mode="shared" runs both in one'
        )

    def perform(self, target: Any, operation: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Carry out an operation that the program asks for."""
        if not self._allows(target, operation, args):
            error = AttributeError if operation in (".", ".=", ".-") else TypeError
            raise error(f"the tests do not let the program use {operation} {str(args)[:50]} of {type(target).__name__}")
        try:
            return super().perform(target, operation, args, kwargs)
        except AssertionError as error:  # a failure that the program may swallow
            self.failed = self.failed or error
            raise

    def _allows(self, target: Any, operation: str, args: list[Any]) -> bool:
        public = bool(args) and type(args[0]) is str and not args[0].startswith("_")
        if isinstance(target, type):
            known = operation == "()" or (operation == "." and public and args[0] in vars(target))
            return known and _is_of_tests(target)
        if isinstance(target, BaseException):
            return operation == "." and args == ["args"]
        if _is_of_tests(type(target)):
            if operation in (".=", ".-"):
                return public and not callable(getattr(type(target), args[0], None))
            if operation == ".":
                return public
            return operation in SPECIALS or operation in ("()", "copy", "deepcopy")
        if isinstance(target, CALLABLE):
            if operation == ".":
                return args[0] in ("__name__", "__qualname__", "__doc__")
            return operation == "()" and target not in _UNSAFE
        return operation in ("__next__", "__iter__") and hasattr(type(target), "__next__")

    def module(self, value: types.ModuleType) -> list[Any]:
        """Write a module: the program imports its own."""
        return ["m", value.__name__]

    def report(self, error: BaseException) -> tuple[str, str]:
        """Return no frames: the program does not see the tests."""
        return "", frames_and_last_lines(error)[1]

    def load_error(self) -> BaseException | None:
        """Wait until the program is loaded; return the exception that it raised, if any."""
        message = self.receive()
        if message == ["loaded"]:
            return None
        try:
            self._result(message, Packer(self.reference))
        except (Ended, BadMessage):
            raise
        except BaseException as error:  # noqa: BLE001 - any exception of a program is an outcome
            return error
        raise self.broken(BadMessage("neither loaded nor an exception"))

    def solution(self, names: list[str], suspects: list[str]) -> types.ModuleType:
        """Return a module `solution` that has some names of the program, and asks it for any other.

        A suspect that the program defines itself, or a second name of Python's own, is its word.
        """
        self.wanted = {*names, *suspects}
        self.request(0, "names", tuple(sorted(self.wanted)))
        own = [name for name, value in self.names.items() if self._theirs(value) is not None]
        self.own_answers += sum(name in suspects for name in own)
        self.own_answers += sum(hasattr(builtins, name) for name in own if name not in suspects) > 1
        module = types.ModuleType("solution")
        module.__file__ = "solution.py"
        vars(module).update(self.names, __getattr__=lambda name: self.request(0, ".", (name,)))
        vars(module)["__all__"] = list(self.names)
        self.namespaces.append(vars(module))
        return module


_UNSAFE = {getattr(builtins, name, None) for name in UNSAFE} - {None}


def _is_of_tests(kind: type) -> bool:
    return bool(kind.__flags__ & 1 << 9) and kind.__module__ in (TESTS, "tests")  # a class made by a class statement


def run(channel: int, tests: str, plan: dict[str, Any], site: str | None) -> Verdict:
    """Run the tests of a program that another process has loaded, and return the verdict.

    Args:
        channel: the socket to the program.
        tests: the source of the tests.
        plan: see `planning.plan`.
        site: the directory of pytest.
    """
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # numpy: the judge starts no threads
    show_source("tests.py", tests)
    judge = Judge(channel)
    judge.trusting = plan["classes"]
    try:
        verdict = _judged(judge, tests, plan, site)
    except (Ended, BadMessage) as error:
        judge.broken(error)
        verdict = Verdict("error")
    except BaseException as error:  # noqa: BLE001 - any exception of a test is an outcome
        verdict = verdict_of(error, failed=True, site=site)
    if isinstance(judge.failure, Ended):
        return Verdict("ended")
    if judge.failure is not None:
        return Verdict("error", f"The program broke the sandbox's protocol: {judge.failure}\n")
    if judge.failed is not None and verdict.reason == "passed":
        verdict = verdict_of(judge.failed, failed=True, site=site)
    return verdict._replace(own_answers=judge.own_answers)


def _judged(judge: Judge, tests: str, plan: dict[str, Any], site: str | None) -> Verdict:
    code = compile(tests, "tests.py", "exec", dont_inherit=True)
    if (error := judge.load_error()) is not None:
        return verdict_of(error)
    solution = judge.solution(plan["wanted"], plan["suspects"])
    sys.modules["solution"] = solution
    if plan["pytest"]:
        module = types.ModuleType("tests")
        module.__file__ = "tests.py"
        sys.modules["tests"] = module
        vars(module).update(helpers(plan))
        judge.namespaces.append(vars(module))
        exec(code, vars(module))
        return run_pytest(module, site)
    names = {"__name__": TESTS, "__file__": "tests.py", "__builtins__": dict(vars(builtins)), "raises": Raises}
    names |= {**judge.names, **helpers(plan)}
    judge.namespaces.append(names)
    exec(code, names)
    return run_functions(names, plan["functions"])


def run_functions(names: dict[str, Any], functions: list[str]) -> Verdict:
    """Call test functions by name."""
    for function in functions:
        if (answer := names[function]()) is not None:
            raise TypeError(f"{function} returned a {type(answer).__name__}; what it should check was not run")
    return Verdict("passed")


def helpers(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what tests may use without an import, by name, as far as they use it."""
    return {name: Raises if name == "raises" else importlib.import_module(name) for name in plan["helpers"]}


class Raises:
    """Check that a block or call raises, and keep its `value`: `with raises(ValueError): f(-1)`."""

    def __init__(self, expected: Any, *call: Any, match: str | None = None, **kwargs: Any) -> None:
        """Take the class or classes of the expected exception, a pattern of its text, and perhaps a call to make."""
        self.expected, self.match = expected, match
        if call:
            with self:
                call[0](*call[1:], **kwargs)

    def __enter__(self) -> "Raises":
        """Return the check."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        """Accept the expected exception, and let others through."""
        if kind is None:
            raise AssertionError(f"{self.expected} was not raised")
        self.value = error  # as pytest calls it
        if self.match is not None and issubclass(kind, self.expected) and not re.search(self.match, str(error)):
            raise AssertionError(f"{self.match!r} is not in {str(error)!r}")
        return issubclass(kind, self.expected)


OPTIONS = ["-q", "--no-header", "--tb=no", "--noconftest", "--rootdir=/", "-c", "/dev/null", "-p", "no:cacheprovider"]
OPTIONS += ["-p", "no:faulthandler", "-p", "no:threadexception", "-p", "no:unraisableexception"]


def run_pytest(module: types.ModuleType, site: str | None) -> Verdict:
    """Run the tests of a loaded module by pytest, which reads no file but its own."""
    if site is None:
        return Verdict("error", "These tests need pytest, which is not installed.")
    import pytest

    counts = {"collected": 0, "passed": 0}
    reports: list[Verdict] = []

    class Tests(pytest.Module):
        def _getobj(self) -> types.ModuleType:
            return module

    class Watcher:
        @pytest.hookimpl(tryfirst=True)
        def pytest_collection(self, session: Any) -> bool:
            """Collect the module, and look at no directory."""
            session.items = list(
                session.genitems(Tests.from_parent(session, path=session.config.rootpath / "tests.py"))
            )
            counts["collected"] = session.testscollected = len(session.items)
            return True

        def pytest_runtest_logreport(self, report: Any) -> None:
            counts["passed"] += report.when == "call" and report.outcome == "passed"

        def pytest_exception_interact(self, call: Any) -> None:
            reports.append(verdict_of(call.excinfo.value, failed=True, site=site))

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    status = int(pytest.main(OPTIONS, plugins=[Watcher()]))
    if status == 0 and not reports and counts["passed"] == counts["collected"] > 0:
        return Verdict("passed")
    if reports:
        return Verdict("failed" if status == 1 else reports[0].reason, reports[0].report)
    return Verdict("error", f"{counts['passed']} of {counts['collected']} tests passed; the others were skipped.")
