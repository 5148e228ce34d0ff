"""Statements of unit tests, run one at a time -> the lines of a program that only failing statements run.

This is spectrum-based fault localisation in its simplest form. Test functions are split into statements, which run one
at a time in the sandbox; a tracer records the lines of the program that each statement runs. The lines that made a
value belong to each test that reads its name. The records are printed as
`[number of the statement, exception, lines, left side]`, where the lines are those by which it differs from the
statement before; the program's own output is dropped.
"""

import ast
from dataclasses import dataclass, replace

from pydantic import ConfigDict, TypeAdapter, ValidationError

from text2grad.critics.programs.program_text import parsed

MAX_LINES = 3  # more suspect lines than this do not locate a fault

_SETUP = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.FunctionDef, ast.ClassDef, ast.Pass)
_HARNESS = """
def _run_statements(statements, mark):
    import ast, json, os, sys
    names, printer = dict(globals()), sys.stdout
    sys.stdout = open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")
    def report(*fields):
        printer.write("\\n" + mark + json.dumps(fields, separators=(",", ":")) + "\\n")
        printer.flush()
    left = []
    def keep(value):
        left[:] = [value]
        return value
    names["_" + mark] = keep
    def keep_left(tree):  # a second call could have another value, and would change objects of the next statements
        test = getattr(tree.body[0], "test", None)
        if isinstance(tree.body[0], ast.Assert) and isinstance(test, ast.Compare) and len(test.ops) == 1:
            test.left = ast.Call(ast.Name("_" + mark, ast.Load()), [test.left], [])
        return ast.fix_missing_locations(tree)
    def value():
        try:
            return repr(left[0])[:200]
        except Exception:
            return None
    lines, before = set(), set()
    def line(frame, event, arg):
        if event == "line":
            lines.add(frame.f_lineno)
        return line
    def call(frame, event, arg):
        return line if frame.f_code.co_filename == "solution.py" else None
    for number, source in enumerate(statements):
        tree, error = ast.parse(source), ""
        sys.settrace(None if isinstance(tree.body[0], (ast.Import, ast.ImportFrom)) else call)
        left.clear()
        before = set(lines)
        lines.clear()
        try:
            exec(compile(keep_left(tree), "statement", "exec"), names)
        except BaseException as raised:
            error = type(raised).__name__
        finally:
            sys.settrace(None)
        report(number, error, sorted(lines ^ before), value() if error == "AssertionError" else None)
_run_statements(%s, %r)
"""
_RECORD = TypeAdapter(tuple[int, str, list[int], str | None], config=ConfigDict(strict=True))


@dataclass(frozen=True, slots=True)
class StatementRun:
    """The run of one statement of the tests."""

    source: str
    error: str  # name of the exception that it raised, "" if it passed
    lines: frozenset[int]  # lines of the program that it ran, from 1
    left: str | None = None  # value of the left side of a failed comparison


def tracing_tests(tests: str, mark: str) -> str:
    """Return tests that run each statement of `tests` alone and print results after `mark`; "" if they need pytest."""
    statements = split_tests(tests)
    return _HARNESS % (repr([source for _, source in statements]), mark) if statements else ""


def lines_run(runs: list[StatementRun], *, failed: bool) -> frozenset[int]:
    """Return all lines that the failed statements, or the passed statements, ran."""
    return frozenset[int]().union(*(run.lines for run in runs if bool(run.error) == failed))


def suspect_lines(runs: list[StatementRun]) -> frozenset[int]:
    """Return the lines that only failing statements run, or the only line that they run; none if there are too many.

    Example:
        >>> runs = [StatementRun("assert f(1)", "", frozenset({1, 2}))]
        >>> runs += [StatementRun("assert f(0)", "KeyError", frozenset({1, 3}))]
        >>> suspect_lines(runs), suspect_lines(runs[1:])
        (frozenset({3}), frozenset())
    """
    failing, passing = lines_run(runs, failed=True), lines_run(runs, failed=False)
    if passing and failing - passing:
        return failing - passing if len(failing - passing) <= MAX_LINES else frozenset()
    return failing if len(failing) == 1 else frozenset()


def split_tests(tests: str) -> list[tuple[bool, str]]:
    """Split tests, functions included, into statements, each with True if it tests something.

    The list is empty if only pytest can run the tests: with fixtures, decorators or methods.
    """
    try:
        body = parsed(tests).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    cases = [node for name, node in functions.items() if name.startswith("test_")]
    methods = [node for top in body if isinstance(top, ast.ClassDef) for node in top.body]
    if any(isinstance(node, ast.FunctionDef) and node.name.startswith("test") for node in methods):
        return []
    if any(node.args.args or node.decorator_list for node in cases):
        return []
    calls: list[ast.stmt] = [ast.parse(f"{node.name}()").body[0] for node in cases]
    return [part for statement in body + calls for part in _split_statement(statement, functions)]


def _split_statement(statement: ast.stmt, functions: dict[str, ast.FunctionDef]) -> list[tuple[bool, str]]:
    """Replace a call of a test function by the statements of that function; leave another statement as it is."""
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
    return given + [part for node in function.body for part in _split_statement(node, others)]


def read_statement_runs(output: str, mark: str, tests: str, program: str) -> list[StatementRun]:
    """Read the printed records; a program that forges a record spoils only its own critique."""
    statements, last_line = split_tests(tests), len(program.splitlines()) + 1
    runs, ran = list[StatementRun](), frozenset[int]()
    for record in output.splitlines():
        if not record.startswith(mark):
            continue
        try:
            number, error, lines, left = _RECORD.validate_json(record.removeprefix(mark))
        except ValidationError:
            continue
        if number == len(runs) < len(statements) and all(0 < line <= last_line for line in lines):
            ran ^= set(lines)
            runs.append(StatementRun(statements[number][1], error, ran, left))
    return _with_setup([is_test for is_test, _ in statements], runs)


def _with_setup(are_tests: list[bool], runs: list[StatementRun]) -> list[StatementRun]:
    """Return the tests and the failed set-up, with the lines that assigned the values they read."""
    made_by: dict[str, frozenset[int]] = {}
    with_lines = []
    for is_test, run in zip(are_tests, runs, strict=False):
        read, made = _names(run.source)
        lines = run.lines.union(*(made_by.get(name, ()) for name in read))
        made_by |= dict.fromkeys(made, lines)
        if is_test or run.error:
            with_lines.append(replace(run, lines=lines))
    return with_lines


def _names(source: str) -> tuple[set[str], set[str]]:
    """Return the names that a statement reads, and the names that it assigns."""
    read, made = set[str](), set[str]()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Name):
            (made if isinstance(node.ctx, ast.Store) else read).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            read.add(node.target.id)
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            made |= {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
    return read, made
