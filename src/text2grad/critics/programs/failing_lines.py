"""Tests run one by one -> the lines of a program that only failing tests run.

This is how unit tests tell a place: spectrum-based fault localisation in its plainest form. Assertions run alone, in
the sandbox, with their functions cut into statements; a tracer notes the lines of the program that each runs.
"""

import ast
import json
from dataclasses import dataclass
from typing import Any

MOST_LINES = 3
"""More lines than this are no isolated place."""

_SETUP = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.FunctionDef, ast.ClassDef, ast.Pass)
_HARNESS = """
def _run_units(units, mark):
    import ast, json, sys
    names = dict(globals())
    def say(*what):
        print(mark + json.dumps(what), flush=True)
    def value(tree):
        test = getattr(tree.body[0], "test", None)
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return None
        try:
            return repr(eval(compile(ast.Expression(test.left), "left", "eval"), names))[:200]
        except Exception:
            return None
    lines = set()
    def line(frame, event, arg):
        if event == "line":
            lines.add(frame.f_lineno)
        return line
    def call(frame, event, arg):
        return line if frame.f_code.co_filename == "solution.py" else None
    for is_test, source in units:
        tree, error = ast.parse(source), ""
        sys.settrace(None if isinstance(tree.body[0], (ast.Import, ast.ImportFrom)) else call)
        try:
            exec(compile(tree, "unit", "exec"), names)
        except BaseException as raised:
            error = type(raised).__name__
        finally:
            sys.settrace(None)
        if is_test or error:
            say(source, error, sorted(lines), value(tree) if error == "AssertionError" else None)
            lines.clear()
_run_units(%s, %r)
"""


@dataclass(frozen=True, slots=True)
class Unit:
    """One statement of tests, as it ran alone.

    Attributes:
        source: its code.
        error: the name of what it raised, "" where it passed.
        lines: the lines of the program that ran, from 1.
        left: where a comparison failed, the value of its left side.
    """

    source: str
    error: str
    lines: frozenset[int]
    left: str | None = None


def one_by_one(tests: str, mark: str) -> str:
    """Return tests that run each statement of `tests` by itself and print how it ended; "" where only pytest can.

    Args:
        tests: statements, or functions `test_*`.
        mark: what each printed line begins with.
    """
    parts = _parts(tests)
    return _HARNESS % (repr(parts), mark) if parts else ""


def suspects(units: list[Unit]) -> frozenset[int]:
    """Return the lines that only failing tests run, or the one line that they run; none where there are too many.

    Example:
        >>> ran = [Unit("assert f(1)", "", frozenset({1, 2})), Unit("assert f(0)", "KeyError", frozenset({1, 3}))]
        >>> suspects(ran), suspects(ran[1:])
        (frozenset({3}), frozenset())
    """
    failing = frozenset[int]().union(*(unit.lines for unit in units if unit.error))
    passing = frozenset[int]().union(*(unit.lines for unit in units if not unit.error))
    if passing and failing - passing:
        return failing - passing if len(failing - passing) <= MOST_LINES else frozenset()
    return failing if len(failing) == 1 else frozenset()


def _parts(tests: str) -> list[tuple[bool, str]]:
    """Return tests cut into statements, each with True where it tests something; functions are cut, too.

    Nothing where only pytest can run them: with fixtures, decorators or methods.
    """
    try:
        body = ast.parse(tests).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    cases = [node for name, node in functions.items() if name.startswith("test_")]
    if any(node.args.args or node.decorator_list for node in cases) or _has_methods(body):
        return []
    calls: list[ast.stmt] = [ast.parse(f"{node.name}()").body[0] for node in cases]
    return [part for statement in body + calls for part in _cut(statement, functions)]


def _cut(statement: ast.stmt, functions: dict[str, ast.FunctionDef]) -> list[tuple[bool, str]]:
    """Return a call of a function of tests as the statements of that function, anything else as it is."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return []
    if isinstance(statement, ast.Assert):
        return [(True, f"assert {ast.unparse(statement.test)}")]
    whole = [(not isinstance(statement, _SETUP), ast.unparse(statement))]
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in functions):
        return whole
    function = functions[call.func.id]
    names = [argument.arg for argument in function.args.args]
    leaves = any(isinstance(node, ast.Return | ast.Yield | ast.Await | ast.Nonlocal) for node in ast.walk(function))
    if leaves or call.keywords or len(names) != len(call.args):
        return whole
    given = [(False, f"{name} = {ast.unparse(value)}") for name, value in zip(names, call.args, strict=True)]
    others = {name: other for name, other in functions.items() if name != function.name}
    return given + [part for node in function.body for part in _cut(node, others)]


def _has_methods(body: list[ast.stmt]) -> bool:
    return any(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test")
        for top in body
        if isinstance(top, ast.ClassDef)
        for node in top.body
    )


def read_units(output: str, mark: str) -> list[Unit]:
    """Read what the harness said; a program can print lines like it, at the price of its own critique."""
    units: list[Unit] = []
    for line in output.splitlines():
        if line.startswith(mark):
            try:
                said: Any = json.loads(line[len(mark) :])
                units.append(Unit(said[0], said[1], frozenset(said[2]), said[3]))
            except (ValueError, TypeError, LookupError):
                continue
    return units
