"""The text of tests → how they run: plainly or by pytest, apart from the program or in one process with it.

The answer depends on the tests alone. A program cannot bring its tests into the weaker mode.
"""

import ast
import builtins
import re
import symtable
import warnings
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

# fmt: off
SHARED_IMPORTS = {
    "threading", "concurrent", "multiprocessing", "mock", "inspect", "importlib", "runpy", "subprocess", "gc",
    "weakref", "pickle", "dis", "trace", "tracemalloc", "warnings", "signal", "logging", "contextvars", "io",
    "ctypes", "builtins",
}
SHARED_ATTRIBUTES = {
    "sys": (
        "stdin", "stdout", "stderr", "modules", "setrecursionlimit", "argv", "settrace", "setprofile", "getsizeof",
        "getrefcount",
    ),
    "os": ("environ", "putenv", "chdir"),
    "unittest": ("mock",),
    "asyncio": ("wait_for",),
    "decimal": ("getcontext", "setcontext", "localcontext"),
}
# fmt: on
ASYNCIO = frozenset(["run", "sleep", "gather", "get_event_loop", "new_event_loop", "TimeoutError"])
FIXTURES = frozenset(["monkeypatch", "capsys", "capsysbinary", "capfd", "capfdbinary", "caplog", "recwarn", "mocker"])
BUILTINS = frozenset(vars(builtins))
EXCEPTIONS = {name for name, kind in vars(builtins).items() if hasattr(kind, "__cause__")}
HELPERS = frozenset(["raises", "pytest", "unittest"])
"""Names that tests may use without an import: the judge's."""
SUSPECTS = re.compile(
    r"raises|approx|warns|fixture|mark|param|parametrize|skip|fail|xfail|given|patch|Mock|TestCase|(?:is|all)close"
    r"|array_equal|math|cmath|operator|statistics|json|re|(?:deep)?copy|itertools|functools|collections|np|numpy|pd|pandas"
    r"|(?:assert|expect|should|verify|almost|throws|raises)\w*"
)
"""Names by which tests usually check something; defined by a program, they decide by its word."""
CHECKS = re.compile(r"(?i)fail|error|rais|throw|reject|refus|expect|except|check|ensure|must|equal|same")
EXPECTED = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Compare, ast.UnaryOp)
_OF_SOLUTION = re.compile(r"\bsolution\.(\w+)")


class Plan(NamedTuple):
    """How tests run.

    Attributes:
        pytest: whether only pytest can run them: they have tests and import it, or fixtures, decorators, test methods.
        functions: names of the test functions to call, in order.
        wanted: names that the program may provide.
        classes: whether they make objects of the program's classes, by a name such as `Stack`.
        imports: packages that they import.
        shared: why they must be in one process with the program; "" if they need not.
        helpers: names of `HELPERS` that they use without an import.
        suspects: names by which they check; a pass rests on the program's word if it defines one of them.
    """

    pytest: bool
    functions: list[str]
    wanted: list[str]
    classes: bool
    imports: list[str]
    shared: str
    helpers: list[str]
    suspects: list[str]


@lru_cache(maxsize=1024)
def plan(tests: str) -> Plan:
    """Return how tests run.

    Raises:
        ValueError: if no statement that runs can fail; SyntaxError or another error of the parser otherwise.
    """
    with warnings.catch_warnings(action="ignore"):  # of escapes such as \d, here and in `global_names`
        tree = ast.parse(tests)
    nodes = list(ast.walk(tree))
    if not any(map(_can_fail, nodes)):
        raise ValueError("the tests hold no assertion and no call: no program could fail them")
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    names = _Names(tests, nodes)
    pytest = _needs_pytest(nodes, functions, names.imported)
    if not pytest and not any(map(_can_fail, [*_run_at_once(tree), *chain.from_iterable(map(ast.walk, functions))])):
        raise ValueError(_never_called(tree))
    return Plan(
        pytest,
        [node.name for node in functions],
        sorted(names.wanted),
        any(isinstance(node, ast.Call) and _is_class_name(node.func, names) for node in nodes),
        sorted({name.partition(".")[0] for name in names.imported}),
        _why_shared(nodes, names),
        sorted(names.helpers),
        sorted(names.suspects),
    )


def _can_fail(node: ast.AST) -> bool:
    decorated = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and bool(node.decorator_list)
    return decorated or isinstance(node, ast.Assert | ast.Raise | ast.Call)


def _run_at_once(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run with the module: no bodies of functions."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for name, value in ast.iter_fields(node):
            inner = value if isinstance(value, list) else [value]
            waiting += [] if later and name == "body" else [child for child in inner if isinstance(child, ast.AST)]


def _never_called(tree: ast.Module) -> str:
    """Return what is wrong with tests whose assertions all stand in functions that do not run."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    unused = [node for node in functions if any(map(_can_fail, ast.walk(node)))]
    if not unused:
        return "the assertions of the tests stand in code that is never called: no program could fail them"
    names = ", ".join("NAME" for _ in (*unused[-1].args.posonlyargs, *unused[-1].args.args))
    return f"{unused[-1].name} is never called: no program could fail the tests. Add {unused[-1].name}({names})" + (
        ", where NAME is the program's function" if names else ""
    )


def _is_class_name(called: ast.expr, names: "_Names") -> bool:
    """Return whether a called name belongs to the program and looks like the name of a class."""
    if isinstance(called, ast.Attribute):
        owner, name = getattr(called.value, "id", None), called.attr
        return owner in names.solution and name[:1].isupper()
    return isinstance(called, ast.Name) and called.id in names.wanted and called.id[:1].isupper()


def _needs_pytest(nodes: list[ast.AST], functions: list[ast.FunctionDef], imported: set[str]) -> bool:
    every = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = [
        method
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.name.startswith("test")
    ]
    nested = [node for node in every if node.name.startswith("test_") and node not in functions]
    fixtures = [node for node in functions if node.args.args or node.args.posonlyargs or node.decorator_list]
    collected = any(node.name.startswith("test") for node in every) and any(re.match(r"pytest\b", n) for n in imported)
    return collected or bool(methods or nested or fixtures)


class _Names:
    """The names in tests: imported, from the program, free."""

    def __init__(self, tests: str, nodes: list[ast.AST]) -> None:
        self.imported: set[str] = set()
        self.from_solution: set[str] = set()
        self.solution: set[str] = set()  # names of the module
        self.helpers: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.Import):
                self.imported |= {alias.name for alias in node.names}
                self.solution |= {alias.asname or alias.name for alias in node.names if alias.name == "solution"}
            elif isinstance(node, ast.ImportFrom) and node.module == "solution":
                self.from_solution |= {alias.name for alias in node.names} - {"*"}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                self.imported |= {f"{node.module}.{alias.name}" for alias in node.names}
        used, bound, _ = global_names(tests)
        self.wanted = (used - bound) | self.from_solution
        self.free = used - bound - BUILTINS
        checks, subjects = set(_checking(nodes)), self.free | self.from_solution | self.solution
        if subjects - HELPERS or self.from_solution:
            self.wanted -= BUILTINS - self.from_solution
            self.helpers = (self.free & HELPERS) - self.from_solution - ({"raises"} - checks)
        self.wanted -= self.helpers | EXCEPTIONS - self.from_solution
        self.imported |= self.helpers - {"raises"}
        usual = {name for name in self.wanted if SUSPECTS.fullmatch(name) and len(subjects) > 1}
        self.suspects = usual | (checks & {*self.wanted, *_OF_SOLUTION.findall(tests)})


def _checking(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield names by which tests check, other than by `assert`: that expect an exception, get an answer or decorate."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name.lower().startswith("test") or ast.Assert in map(type, ast.walk(node)):
                yield from map(_owner, node.decorator_list)
        elif isinstance(node, ast.With | ast.Expr):
            calls = [item.context_expr for item in node.items] if isinstance(node, ast.With) else [node.value]
            for call in (call for call in calls if isinstance(call, ast.Call)):
                given, owner = list(chain.from_iterable(map(ast.walk, call.args))), _owner(call)
                names = {getattr(inner, "id", "") for inner in given}
                kinds = any(name in EXCEPTIONS or name.endswith("Error") for name in names)
                block = isinstance(node, ast.With)
                checks = CHECKS.search(owner) or (not block and any(isinstance(arg, EXPECTED) for arg in call.args))
                if kinds or (given and owner in HELPERS) or (checks and (block or any(map(_is_answer, given)))):
                    yield owner


def _is_answer(node: ast.AST) -> bool:
    """Return whether a node calls a function: its value, given to a call whose own value nobody reads, is checked."""
    function = node.func if isinstance(node, ast.Call) else None
    own = isinstance(function, ast.Name) or getattr(getattr(function, "value", None), "id", "") == "solution"
    return own and _owner(node)[:1].islower() and _owner(node) not in BUILTINS


def _owner(node: ast.AST) -> str:
    """Return the first name of an expression such as `pytest.mark.skip(1)`; of the module `solution`, the second."""
    attribute = ""
    while not isinstance(node, ast.Name):
        attribute = getattr(node, "attr", attribute)
        node = getattr(node, "func", None) or getattr(node, "value", None) or ast.Name("")
    return attribute if node.id == "solution" else node.id


def global_names(code: str) -> tuple[set[str], set[str], set[str]]:
    """Return the names of a module that its code reads, binds, and binds other than by import; raises as the parser."""
    with warnings.catch_warnings(action="ignore"):
        top = symtable.symtable(code, "module.py", "exec")
    used = {name for name in _globals_used(top) if not name.startswith("__")}
    return used, _globals_bound(top), {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned()}


def names_of_tests(tests: str) -> set[str]:
    """Return the names that tests use and that a program may define; empty for cases and for what is no Python."""
    try:
        return {*_OF_SOLUTION.findall(tests), *plan(tests).wanted}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()


def _globals_bound(table: symtable.SymbolTable) -> set[str]:
    """Return the names that a block of code and its inner blocks bind in the module; no program may bind them again."""
    top = table.get_type() == "module"
    bound = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if (top or symbol.is_declared_global())
        and (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace())
    }
    return bound.union(*map(_globals_bound, table.get_children()))


def _globals_used(table: symtable.SymbolTable) -> set[str]:
    """Return the names that a block of code and its inner blocks read from the module."""
    top = table.get_type() == "module"
    read = (symbol for symbol in table.get_symbols() if symbol.is_referenced())
    used = {symbol.get_name() for symbol in read if top or symbol.is_global()}
    return used.union(*map(_globals_used, table.get_children()))


def _why_shared(nodes: list[ast.AST], names: _Names) -> str:
    """Return why tests must be in one process with the program."""
    for name in sorted(names.imported):
        if name.partition(".")[0] in SHARED_IMPORTS or name.startswith("unittest.mock"):
            return f"they import {name}"
        module, _, attribute = name.rpartition(".")
        if attribute in SHARED_ATTRIBUTES.get(module, ()) or attribute in ("redirect_stdout", "redirect_stderr"):
            return f"they import {name}"
    for node in nodes:
        if why := _why_node(node, names):
            return why
    return ""


def _why_node(node: ast.AST, names: _Names) -> str:
    """Return why one part of the tests needs the program in the same process."""
    if isinstance(node, ast.AsyncFor | ast.AsyncWith) or (isinstance(node, ast.comprehension) and node.is_async):
        return f"they use async {'with' if isinstance(node, ast.AsyncWith) else 'for'}"
    if isinstance(node, ast.arg) and node.arg in FIXTURES:
        return f"they use the fixture {node.arg}"
    if isinstance(node, ast.ClassDef):
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in names.free | names.from_solution:
                return f"they derive a class from {base.id}"
    if not isinstance(node, ast.Attribute):
        return ""
    owner = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
    shared = (
        node.attr in SHARED_ATTRIBUTES.get(owner, ())
        or node.attr in ("redirect_stdout", "redirect_stderr")
        or (owner == "random" and node.attr in ("seed", "setstate"))
        or (owner == "asyncio" and node.attr not in ASYNCIO)
        or (owner in names.solution and not isinstance(node.ctx, ast.Load))
    )
    return f"they use {owner}.{node.attr}" if shared else ""


def with_names(tests: str) -> str:
    r"""Add an import of the program's names to tests that pytest will run, as a module of their own.

    Example:
        >>> with_names("import pytest\ndef test_a(): assert f() == pytest.approx(0.5)").splitlines()[0]
        'from solution import *'
    """
    try:
        needs_import = plan(tests).pytest and not re.search(r"^\s*(from|import) solution\b", tests, re.MULTILINE)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return tests
    return f"from solution import *\n{tests}" if needs_import else tests


def to_message(planned: Plan) -> dict[str, Any]:
    """Return a plan as JSON for the judge's process."""
    return planned._asdict()
