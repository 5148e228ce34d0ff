"""Tests that run apart from the program agree with plain Python; cases of input and output; what a result tells."""

import datetime
import math
import os
import re
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from text2grad_sandbox.cases import Case, read_cases
from text2grad_sandbox.inside import server
from text2grad_sandbox.inside.values import BadMessage, Packer, Unpacker
from text2grad_sandbox.planning import plan, with_names
from text2grad_sandbox.sandbox import MOST_PROGRAM_BYTES, Sandbox, SandboxError, isolations, reason_not_to_run


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(workers=1, accept_weaker=True) as sandbox:
        yield sandbox


# Values.


def refused(*_: object) -> Any:
    raise BadMessage("not plain")


def copied(value: Any) -> Any:
    return Unpacker(refused).unpack(Packer(refused).pack(value))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN)
@settings(max_examples=200, deadline=None)
def test_a_plain_value_arrives_as_it_was(value: Any) -> None:
    assert copied(value) == value
    assert repr(copied(value)) == repr(value)  # also -0.0, and True beside 1


@pytest.mark.parametrize(
    "value",
    [
        {1, 2}, frozenset({(1, "a")}), bytearray(b"a\xff"), range(3, 9, 2), slice(1, None), ..., 2**9999, -(2**4001),
        deque([1, 2], maxlen=3), Counter("abca"), OrderedDict(b=1, a=2), Decimal("1.10"), Fraction(1, 3),
        datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 1, tzinfo=datetime.UTC), datetime.time(1, 2, 3, 4),
        datetime.timedelta(1, 2, 3), "\ud800", "é\0", [[1, "a", None], [True, 2.5]], [float("inf")],
    ],
    ids=range(21),
)  # fmt: skip
def test_other_plain_types_arrive_too(value: Any) -> None:
    assert copied(value) == value
    assert type(copied(value)) is type(value)


def test_special_floats_views_and_aliases_arrive() -> None:
    assert math.isnan(copied(float("nan")))
    assert copied({1: 2}.keys()) == {1: 2}.keys()
    assert list(copied({1: [2]}.values())) == [[2]]
    for factory in (None, int, list, dict, set, str, float, bool, tuple):
        made = copied(defaultdict(factory, a=[1]))
        assert (made, made.default_factory) == ({"a": [1]}, factory)
    row = [0]
    grid = copied([row, row])
    assert grid[0] is grid[1]
    row.append(row)
    loop = copied(row)
    assert loop[1] is loop


@pytest.mark.parametrize(
    "value", [type("I", (int,), {})(3), type("L", (list,), {})(), object(), int, len, (n for n in [1])]
)
def test_a_value_of_any_other_type_is_not_plain(value: object) -> None:
    with pytest.raises(BadMessage):
        Packer(refused).pack([value])


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        [1],
        [None],
        ["?"],
        ["r", 0],
        ["r", -1],
        ["r", True],
        ["l", {}],
        ["d", 3, []],
        ["D", 1, [], []],
        ["D", [], []],
        ["D", ["l"], [], []],
    ],
)
def test_data_that_no_packer_writes_are_refused(data: Any) -> None:
    with pytest.raises((BadMessage, TypeError, ValueError)):
        Unpacker(refused).unpack(data)


# Agreement with plain Python.

BEHAVIOURS = {
    "arguments change": ("def f(x):\n    x.sort(); x.append(x[0])", "x = [3, 1]\nassert f(x) is None\nassert x == [1, 3, 1]"),
    "an inner argument changes": ("def f(g):\n    g[0][0] = 5", "g = [[1], [2]]\nf(g)\nassert g == [[5], [2]]"),
    "an argument is returned": ("def f(x, y):\n    return y", "x, y = [1], [1]\nassert f(x, y) is y and f(x, y) is not x"),
    "the order of a dict changes": (
        "def f(d, o):\n    items = sorted(d.items()); d.clear(); d.update(items); o.move_to_end('a')",
        "from collections import OrderedDict\nd, o = {'b': 1, 'a': 2}, OrderedDict(a=1, b=2)\nf(d, o)\n"
        "assert list(d) == ['a', 'b'] and list(o) == ['b', 'a']",
    ),
    "a default dict is returned": (
        "from collections import defaultdict\ndef f(s):\n    d = defaultdict(int)\n    for c in s: d[c] += 1\n    return d\n"
        "def g(): return defaultdict(lambda: [7])",
        "assert f('aab')['a'] == 2 and f('aab')['z'] == 0\nassert repr(f('a')) == \"defaultdict(<class 'int'>, {'a': 1})\"\n"
        "d = g()\nd['x'].append(8)\nassert d == {'x': [7, 8]} and d['y'] == [7]",
    ),
    "a default dict is given": (
        "def f(d, k, x):\n    d[k].append(x)\ndef same(d): return d",
        "from collections import defaultdict\nd, e = defaultdict(list), defaultdict(lambda: [5])\nf(d, 1, 2)\nf(e, 1, 2)\n"
        "assert d == {1: [2]} and d[3] == [] and e == {1: [5, 2]}\nassert same(e)[4] == [5] and same(e) is e",
    ),
    "a dict changes": ("def f(d):\n    d.pop('a'); d['b'] = {1}", "d = {'a': 1}\nf(d)\nassert d == {'b': {1}}"),
    "a set and a deque": (
        "def f(s, q):\n    s.add(3); q.rotate()", "from collections import deque\ns, q = {1}, deque([1, 2])\nf(s, q)\n"
        "assert s == {1, 3} and q == deque([2, 1])",
    ),
    "keyword arguments": ("def f(a, *, b, **k):\n    return a, b, k", "assert f(1, b=[2], c=3) == (1, [2], {'c': 3})"),
    "a generator": ("def f(n):\n    for k in range(n):\n        yield k", "g = f(3)\nassert next(g) == 0\nassert list(g) == [1, 2]"),
    "a closure": ("def f(n):\n    return lambda k: n + k", "assert f(3)(4) == 7\nassert callable(f(1))"),
    "a function as an argument": ("def f(g, xs):\n    return sorted(map(g, xs))", "assert f(lambda x: -x, [1, 2]) == [-2, -1]"),
    "a builtin as an argument": ("def f(g, xs):\n    return g(xs)", "import math\nassert f(len, [1]) == 1 and f(math.fsum, [1]) == 1"),
    "a callback that calls back": ("def f(n, g):\n    return g(n) + 1", "assert f(3, lambda n: f(n - 1, abs) if n else 0) == 4"),
    "a callback that raises": (
        "def f(g):\n    try:\n        g()\n    except KeyError as e:\n        return e.args",
        "def g(): raise KeyError('a')\nassert f(g) == ('a',)",
    ),
    "a callback's own error comes back": (
        "def f(g):\n    g()", "class Own(Exception): pass\ndef g(): raise Own(3)\ntry:\n    f(g)\nexcept Own as e:\n    assert e.args == (3,)\n"
        "else:\n    raise AssertionError",
    ),
    "a class": (
        "class Stack:\n    size = 0\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x); self.size += 1\n"
        "    def __len__(self): return len(self.items)\n    def __iter__(self): return iter(self.items)\n"
        "    def __getitem__(self, k): return self.items[k]",
        "s = Stack()\ns.push(1); s.push('b')\nassert len(s) == 2 and s.size == 2 and s.items == [1, 'b'] and list(s) == [1, 'b']\n"
        "assert isinstance(s, Stack) and s[1] == 'b' and 'b' in s and 3 not in s and bool(s)\ns.items.append(3)\nassert len(s) == 3\n"
        "s.size = 9\nassert s.size == 9 and Stack.size == 0 and hasattr(s, 'push') and not hasattr(s, 'pull')",
    ),
    "operators of a class": (
        "class V:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return V(self.x + o.x)\n"
        "    def __mul__(self, k): return V(self.x * k)\n    def __eq__(self, o): return self.x == o.x\n"
        "    def __lt__(self, o): return self.x < o.x\n    def __repr__(self): return f'V({self.x})'\n    def __hash__(self): return self.x",
        "assert V(1) + V(2) == V(3) != V(4)\nassert (V(2) * 3).x == 6\nassert V(1) < V(2)\nassert repr(V(1)) == 'V(1)'\n"
        "assert sorted([V(2), V(1)]) == [V(1), V(2)]\nassert len({V(1), V(1)}) == 1\nassert max(V(1), V(5)).x == 5",
    ),
    "inheritance": (
        "class A:\n    @staticmethod\n    def s(): return 1\n    @classmethod\n    def c(cls): return cls()\n    @property\n"
        "    def p(self): return 2\nclass B(A): pass",
        "assert isinstance(B.c(), B) and isinstance(B(), A) and not isinstance(A(), B) and issubclass(B, A)\nassert B.s() == 1 and B().p == 2",
    ),
    "exceptions of the program": (
        "class Bad(ValueError):\n    def __init__(self, code):\n        super().__init__(f'code {code}')\n        self.code = code\n"
        "def f(): raise Bad(7)",
        "try:\n    f()\nexcept Bad as e:\n    assert isinstance(e, ValueError) and str(e) == 'code 7' and e.code == 7\nelse:\n"
        "    raise AssertionError\nwith raises(ValueError):\n    f()",
    ),
    "exceptions of Python": (
        "def f(x): return {}[x]\ndef g(): return [][1]",
        "with raises(KeyError):\n    f('a')\nwith raises((IndexError, KeyError)):\n    g()\ntry:\n    f('b')\nexcept KeyError as e:\n    assert e.args == ('b',)",
    ),
    "an enumeration": (
        "import enum\nclass C(enum.Enum):\n    RED = 1\n    BLUE = 2\nclass N(enum.IntEnum):\n    ONE = 1\ndef f(): return C.RED",
        "assert f() == C.RED and f() is C.RED and C(2) == C.BLUE and C['RED'].value == 1 and len(C) == 2\nassert [c.name for c in C] == ['RED', 'BLUE']\n"
        "assert N.ONE == 1 and N.ONE + 1 == 2",
    ),
    "named tuples and dataclasses": (
        "from collections import namedtuple\nfrom dataclasses import dataclass\nP = namedtuple('P', 'x y')\n@dataclass\nclass D:\n    a: int\n    b: str = 'x'",
        "assert P(1, 2) == (1, 2) and P(1, y=2).y == 2 and isinstance(P(1, 2), P)\nx, y = P(3, 4)\nassert x == 3\nassert D(1) == D(1, 'x') and D(1) != D(2)\nassert str(D(1)) == \"D(a=1, b='x')\"",
    ),
    "names change": ("count = 0\ndef f():\n    global count\n    count += 1", "assert count == 0\nf(); f()\nassert count == 2"),
    "containers of the module": ("seen = {}\ndef f(k):\n    seen[k] = 1", "f('a')\nassert seen == {'a': 1} and 'a' in seen and len(seen) == 1"),
    "modules of the program": ("import math\nimport math as m\nfrom collections import Counter\ndef f(): return 2.0",
                               "assert math.isclose(f(), 2) and m.sqrt(4) == 2\nassert Counter('aa') == {'a': 2}"),
    "coroutines": ("import asyncio\nasync def f(x):\n    await asyncio.sleep(0.001)\n    return x", "import asyncio\nassert asyncio.run(f(3)) == 3"),
    "contexts": (
        "from contextlib import contextmanager\n@contextmanager\ndef f():\n    yield 3",
        "with f() as x:\n    assert x == 3",
    ),
    "decorators": ("def twice(f):\n    def g(*a):\n        return f(f(*a))\n    return g", "@twice\ndef inc(x): return x + 1\nassert inc(1) == 3"),
    "trees of the tests": (
        "def depth(t):\n    return 0 if t is None else 1 + max(depth(t.left), depth(t.right))\ndef flip(t):\n    if t:\n        t.left, t.right = flip(t.right), flip(t.left)\n    return t",
        "class Node:\n    def __init__(self, left=None, right=None): self.left, self.right = left, right\na = Node()\nt = Node(a, None)\nassert depth(t) == 2\n"
        "assert flip(t) is t and t.left is None and t.right is a",
    ),
    "the test is called as a builtin": ("def sum(a, b): return a * b", "assert sum(3, 4) == 12"),
    "builtins stay": ("def all(x): return True\ndef f(): return [False]", "assert not all(f())"),
    "recursive structures": ("def f(x):\n    return x[1] is x", "x = [1]\nx.append(x)\nassert f(x)"),
    "large data": ("def f(x): return [k + 1 for k in x]", "assert f(list(range(10000)))[-1] == 10000"),
    "a patched object": ("class A: pass\ndef f(a): return a.x", "a = A()\na.x = [1]\nassert f(a) == [1]"),
    "iterators": ("def f(it): return [x for x in it]", "assert f(iter([1, 2])) == [1, 2]\nassert f(n for n in range(2)) == [0, 1]"),
    "map and zip": ("def f(): return map(str, [1]), zip([1], [2])", "a, b = f()\nassert list(a) == ['1'] and list(b) == [(1, 2)]"),
    "a match": ("import re\ndef f(s): return re.search('(b+)', s)", "assert f('abb').group(1) == 'bb' and f('a') is None"),
}  # fmt: skip

RAISES = "from contextlib import contextmanager\n@contextmanager\ndef raises(e):\n    try:\n        yield\n    except e:\n        return\n    raise AssertionError\n"


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_tests_apart_from_the_program_agree_with_plain_python(box: Sandbox, name: str) -> None:
    program, tests = BEHAVIOURS[name]
    if name != "builtins stay":  # which a program changes in plain Python
        done = subprocess.run(
            [sys.executable, "-I", "-c", RAISES + program + "\n" + tests], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    result = box.run(program, tests)
    assert (result.mode, result.reason) == ("separate", "passed"), result.output
    negated = (
        tests.replace("assert ", "assert not ", 1)
        if "assert " in tests
        else tests.replace("raises(", "raises(EOFError) and (", 1)
    )
    assert not box.run(program, negated).passed


OWN_WORD = {
    "an object equals a value": ("class A:\n    def __eq__(self, o): return o == 3", "assert A() == 3", False),
    "an object is above a value": ("class A:\n    def __gt__(self, o): return o < 3", "assert A() > 2", False),
    "a tests' list is given and kept": ("kept = []\ndef f(x): kept.append(x)", "x = [1]\nf(x)\nx.append(2)\nassert kept == [[1, 2]]", False),
    "two objects are equal": ("class A:\n    def __eq__(self, o): return True", "assert A() == A()", True),
    "a context swallows an error of the tests": (
        "class A:\n    def __enter__(self): return 0\n    def __exit__(self, *a): return True",
        "with A() as x:\n    if x != 5:\n        raise ValueError", True,
    ),
    "a context swallows a failure of the tests": (
        "class A:\n    def __enter__(self): return 0\n    def __exit__(self, *a): return True",
        "with A() as x:\n    assert x == 5", False,
    ),
    "a context swallows a failure of pytest": (
        "class A:\n    def __enter__(self): return self\n    def __exit__(self, *a): return True",
        "import pytest\nfrom solution import A\ndef test_a():\n    with A():\n        with pytest.raises(ValueError):\n"
        "            str(3)", False,
    ),
    "a context swallows an error of its program": (
        "class A:\n    def __enter__(self): return self\n    def __exit__(self, *a): return True\n    def f(self): return 1 / 0",
        "with A() as x:\n    assert x.f() == 5", True,
    ),
    "an object contains a value": ("class A:\n    def __contains__(self, x): return x == 3", "assert 3 in A()", True),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN_WORD)
def test_where_tests_apart_differ_from_plain_python(box: Sandbox, name: str) -> None:
    """The differences that docs/critics.md lists, and the passes that rest on the program's word."""
    program, tests, passes = OWN_WORD[name]
    apart, together = box.run(program, tests), box.run(program, tests, mode="shared")
    assert together.passed
    assert together.forgeable
    assert apart.passed == passes
    assert apart.forgeable == passes == (apart.own_answers > 0)


@pytest.mark.parametrize(
    ("tests", "shared"),
    [
        ("assert f(1)", ""),
        ("import pytest\ndef test_a(tmp_path): assert f(tmp_path)", ""),
        ("import unittest\nassert f(1)", ""),
        ("import asyncio\nassert asyncio.run(f(1))", ""),
        ("import random\nassert f(random.random())", ""),
        ("def test_a(monkeypatch): assert f(1)", "they use the fixture monkeypatch"),
        ("from unittest.mock import patch\nassert f(1)", "they import unittest.mock.patch"),
        ("import inspect\nassert f(1)", "they import inspect"),
        ("import sys\nsys.stdin = 3\nassert f(1)", "they use sys.stdin"),
        ("import sys\nassert f(sys.maxsize)", ""),
        ("from contextlib import redirect_stdout\nassert f(1)", "they import contextlib.redirect_stdout"),
        ("import random\nrandom.seed(1)\nassert f(1)", "they use random.seed"),
        ("import solution\nsolution.x = 3\nassert solution.f(1)", "they use solution.x"),
        ("from solution import A\nclass B(A): pass\nassert B()", "they derive a class from A"),
        ("import asyncio\nassert asyncio.run(asyncio.to_thread(f))", "they use asyncio.to_thread"),
        ("import asyncio\nasync def g(): return await asyncio.gather(f(1))\nassert f(g)", ""),
        ("from asyncio import wait_for\nassert f(wait_for)", "they import asyncio.wait_for"),
        ("async def g():\n    async with f(): pass\nassert f(g)", "they use async with"),
        ("async def g():\n    async for x in f(): pass\nassert f(g)", "they use async for"),
        ("async def g(): return [x async for x in f()]\nassert f(g)", "they use async for"),
    ],
)
def test_the_tests_alone_choose_the_mode(box: Sandbox, tests: str, shared: str) -> None:
    assert plan(tests).shared == shared
    result = box.run("x = 1\nclass A: pass\ndef f(*a): return True", with_names(tests))
    assert result.mode == ("shared" if shared else "separate")
    assert box.run("def f(*a): return True", "assert f(1)", mode="shared").mode == "shared"


ASYNCHRONOUS = {
    "an async comprehension": (
        "async def f():\n    yield 1\n    yield 2", "async def main():\n    return [x async for x in f()]", [1, 2],
    ),
    "async for": (
        "async def f():\n    yield 1", "async def main():\n    async for x in f():\n        return x", 1,
    ),
    "async with": (
        "class A:\n    async def __aenter__(self): return 5\n    async def __aexit__(self, *a): return False",
        "async def main():\n    async with A() as x:\n        return x", 5,
    ),
    "wait_for": (
        "async def f(): await asyncio.sleep(60)",
        "async def main():\n    try:\n        await asyncio.wait_for(f(), 0.05)\n    except asyncio.TimeoutError:\n"
        "        return 1", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_asynchronous_tests_share_a_process(box: Sandbox, name: str) -> None:
    program, main, value = ASYNCHRONOUS[name]
    tests = f"import asyncio\n{main}\nassert asyncio.run(main()) == "
    result = box.run(f"import asyncio\n{program}", f"{tests}{value}")
    assert (result.mode, result.reason) == ("shared", "passed"), result.output
    assert result.forgeable
    assert box.run(f"import asyncio\n{program}", f"{tests}7").reason == "failed"


def test_a_timeout_that_the_program_raises_needs_no_common_process(box: Sandbox) -> None:
    program = "import asyncio\nasync def f(x):\n    await asyncio.wait_for(asyncio.sleep(60), x)"
    tests = "import asyncio\ntry:\n    asyncio.run(f(0.01))\nexcept asyncio.TimeoutError:\n    pass\nelse:\n    assert False"
    result = box.run(program, tests)
    assert (result.mode, result.reason) == ("separate", "passed")


@pytest.mark.parametrize(
    ("tests", "wanted"),
    [
        ("assert f(g)", ["f", "g"]),
        ("import math\ndef h(x): return math.pi * x + y\nassert h(f(1))", ["f", "y"]),
        ("x = 1\nfor k in [1]: assert f(k, x)", ["f"]),
        ("def check(f): assert f(1)\ncheck(f)", ["f"]),
        ("def t():\n    global z\n    z = f(1)\n    assert z\nt()", ["f"]),
        ("from solution import *\nimport pytest\ndef test_a():\n    with pytest.raises(f): g()", ["f", "g"]),
        ("assert len([sum(1, 2)])", ["len", "sum"]),
        ("try:\n    sum(1)\nexcept TypeError:\n    pass", ["sum"]),
        ("assert len(f(1)) == abs(1)", ["f"]),
        ("from solution import len as n\nassert n(1) == abs(1)", ["len"]),
    ],
)
def test_a_program_gives_only_names_that_the_tests_do_not_bind(tests: str, wanted: list[str]) -> None:
    assert plan(tests).wanted == wanted


def test_tests_whose_assertions_never_run_are_refused() -> None:
    check = "METADATA = {}\ndef check(candidate):\n    assert candidate(1) == 2\n"
    message = (
        "check is never called: no program could fail the tests. Add check(NAME), where NAME is the program's function"
    )
    cases = {
        check: message,
        "async def all_is_well():\n    assert await f() == 2": "all_is_well is never called: no program could fail the "
        "tests. Add all_is_well()",
        "check = lambda f: f(1)\nclass A:\n    def m(self): assert f()": "the assertions of the tests stand in code that "
        "is never called: no program could fail them",
        "x = 1\ndef f(): pass": "the tests hold no assertion and no call: no program could fail them",
    }
    for tests, expected in cases.items():
        with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
            plan(tests)
        assert reason_not_to_run(tests) == f"tests.py cannot be run: ValueError: {expected}"
    for tests in (
        check + "check(f)",
        check.replace("check", "test_f").replace("candidate)", ")"),
        "class A:\n    assert f(1) == 2",
        "if f:\n    for x in [1]:\n        f(x)",
        "def run(g): return g()\n@run\ndef check(): assert f(1) == 2",
    ):
        plan(tests)


OWN_RAISES = (
    "class raises:\n    def __init__(s, *a): 0\n    def __enter__(s): return s\n    def __exit__(s, *a): return True\n"
)
CHECKED = "def f(x):\n    if x < 0: raise ValueError('below 0')\n    return x + 1\n"
HELPERS = {  # tests: whether a right program passes, whether a wrong one does that brings its own helper, and is told so
    "with raises(ValueError):\n    f(-1)": (True, False),
    "def test_a():\n    with raises(ValueError, match='below'):\n        f(-1)": (True, False),
    "with raises((KeyError, ValueError)) as e:\n    f(-1)\nassert str(e.value) == 'below 0'": (True, False),
    "raises(ValueError, f, -1)": (True, False),
    "from solution import *\nwith raises(ValueError):\n    f(-1)": (True, False),
    "import solution\nwith raises(ValueError):\n    solution.f(-1)": (True, False),
    "import inspect\nwith raises(ValueError):\n    f(-1)": (True, False),  # in one process
    "import pytest\nfrom solution import *\ndef test_a():\n    with raises(ValueError):\n        f(-1)": (True, False),
    "from pytest import *\nfrom solution import *\ndef test_a():\n    with raises(ValueError):\n        f(-1)": (True, False),
    "from solution import *\ndef test_a():\n    with pytest.raises(ValueError):\n        f(-1)": (True, False),
    "from solution import *\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 2)": (True, False),
    "import pytest\nwith pytest.raises(ValueError):\n    f(-1)": (True, False),  # nothing that pytest would collect
    "with pytest.raises(ValueError):\n    f(-1)\nassert f(1) == pytest.approx(2.0)": (True, False),
    # where the tests name it, or use what needs an import, the program's is used and told
    "from solution import f, raises\nwith raises(ValueError):\n    f(-1)": (False, True),
    "import solution\nwith solution.raises(ValueError):\n    solution.f(-1)": (False, True),
    "with assert_raises(ValueError):\n    f(-1)": (False, True),
    "assert isclose(f(1), 2)": (False, True),
    "from math import *\nfrom solution import *\nassert isclose(f(1), 2)": (True, True),
    "assert math.isclose(f(1), 2)": (False, True),
    "assert_equal(f(1), 2)": (False, True),
    "assert almost_equal(f(1), 2)": (False, True),
    "assert f(1) == approx(2)": (False, True),
    "@slow\ndef check():\n    assert f(1) == 2\ncheck()\nassert f(0) == 0": (False, True),
    "assert all(f(x) == x + 1 for x in (1, 2))": (True, False),
    # a block that expects a failure, and a call that gets an answer beside what is expected, and whose value is not read
    "with fails():\n    f(-1)": (False, True),
    "import solution\nwith solution.expected_error():\n    solution.f(-1)": (False, True),
    "check(f(1), 2)": (False, True),
    "check(f(1) == 2)": (False, True),
    "check(f(1))": (False, True),
    "verdict(2, f(1))": (False, True),
    "import solution\nsolution.check(solution.f(1), 2)": (False, True),
}  # fmt: skip
FORGERY = (
    f"{OWN_RAISES}assert_raises = raises\ndef isclose(*a): return True\ndef all(x): return True\ndef approx(x): return 0\n"
    "def assert_equal(*a): 0\ncheck = verdict = assert_equal\nfails = expected_error = raises\nalmost_equal = isclose\ndef slow(g): return lambda: 0\nclass math: isclose = isclose\nclass pytest: raises = raises\n"
    "class unittest:\n    class TestCase:\n        def assertEqual(s, *a): 0\ndef f(x): return 0\n"
)


@pytest.mark.parametrize("tests", HELPERS)
def test_what_tests_use_without_an_import_is_the_judges(box: Sandbox, tests: str) -> None:
    right, forged = HELPERS[tests]
    honest, forger = box.run_many([(CHECKED, tests), (FORGERY, tests)], timeout_s=9)
    assert (honest.passed, forger.passed, forger.forgeable) == (right, forged, forged), (honest, forger)
    assert not honest.forgeable or honest.mode == "shared"


def test_a_function_that_is_called_as_a_helper_is_tested(box: Sandbox) -> None:
    raises = "def raises(g, e):\n    try: g()\n    except e: return True\n    return False\n"
    asked = (
        "def bad(): raise KeyError\nassert raises(bad, KeyError) is True\nassert raises(lambda: 1, KeyError) is False"
    )
    jobs = [
        (raises, asked),
        ("def raises(g, e): return True", asked),
        ("def gcd(a, b): return 2", "assert gcd(4, 6) == 2"),
    ]
    jobs += [
        ("def sum(x): return 3", "assert sum([1, 2]) == 3"),
        ("def sum(x): return 0\ndef abs(x): return 0", "assert abs(sum([1]) - 1) < 1"),
    ]
    results = box.run_many(jobs, timeout_s=9)
    assert [(result.passed, result.forgeable) for result in results] == [
        (True, False),
        (False, False),
        (True, False),
        (True, False),  # the one builtin is what is tested
        (True, True),  # of two, nobody knows which
    ]


def test_a_function_of_the_program_that_the_tests_call_for_its_effect_checks_nothing(box: Sandbox) -> None:
    program = (
        "import contextlib\nbox = []\ndef made(x): return x\ndef put(x, y=0): box.append(x)\ndef held(): return box\n"
        "@contextlib.contextmanager\ndef opened(x=1):\n    box.append(x)\n    yield box\n    box.clear()\n"
    )
    tests = (
        "put(made(3))\nput(abs(-4), 1)\nmade(put(5))\nassert held() == [3, 4, 5]\n"
        "with opened(2):\n    put(made(3))\nassert not held()"
    )
    [result] = box.run_many([(program, tests)], timeout_s=9)
    assert (result.passed, result.forgeable, result.mode) == (True, False, "separate")


def test_files_are_counted_and_removed_however_deep_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CLEAN_S", 60.0)
    monkeypatch.chdir(tmp_path)
    for _ in range(1_100):  # beyond Python's limit of recursion
        os.mkdir("d")
        os.chdir("d")
    Path("file").write_text("xyz")
    os.chdir(tmp_path)
    assert server._files(".")[:2] == (1_101, 3)
    assert server._files(".", 100)[0] == 101  # no further
    Path("link").symlink_to("/")
    assert server._clean(".") == ([1_102, 4], True)  # the link has one character
    assert os.listdir(".") == []
    Path("d/e").mkdir(parents=True)
    monkeypatch.setattr(server, "CLEAN_S", -1.0)
    assert server._clean(".") == (None, False)  # the time is up: the worker is replaced


def test_a_deep_tree_holds_nobody(box: Sandbox) -> None:
    deep = "import os\nfor _ in range(200):\n    os.mkdir('d'); os.chdir('d')\ndef f(x): return x"
    with Sandbox(workers=1, isolation="landlock") as landlock:
        first, second = landlock.run_many([(deep, "assert f(1) == 1"), ("f = abs", "assert f(-1) == 1")], timeout_s=30)
    assert (first.reason, first.usage.files, second.reason) == ("passed", 200, "passed")


# Cases.


def test_a_program_that_reads_input_is_judged_by_its_output(box: Sandbox) -> None:
    program = "import sys\nn = int(input())\nfor line in sys.stdin:\n    print(n * int(line), end=' \\n')\nprint(*sys.argv[1:])\n"
    right = Case("2\n3\n4", "6\n8\na b", ["a", "b"])
    assert box.run(program, [right, Case("1\n5\n", "5\n")]).passed
    wrong = box.run(program, [right, Case("1\n5", "6"), right])
    assert (wrong.reason, wrong.mode) == ("failed", "script")
    assert wrong.output == 'Case 2 of 3: for the input "1\\n5" the output is "5 \\n\\n", not "6".'
    assert box.run(program, [Case("x")]).reason == "error"
    assert "line 2" in box.run(program, [Case("x")]).output
    assert box.run(program, [Case("x", raises="ValueError")]).passed
    assert box.run(program, [Case("1", raises="ValueError")]).reason == "failed"
    assert box.run("while True: pass", [Case()], timeout_s=0.2).reason == "timeout"
    assert box.run("import os; os._exit(0)", [Case("", "")]).reason == "crashed"
    assert box.run("import sys; sys.exit(3)", [Case()]).reason == "error"
    assert box.run("import sys; print(1); sys.exit()", [Case("", "1")]).passed
    assert box.run("print('x' * 3000)", [Case("", "x" * 3000)], output_kb=2).reason == "failed"
    assert box.run("print(open(0).read())", [Case("é", "é")]).passed
    assert not box.run("x = 1", []).passed


@pytest.mark.parametrize(
    "program",
    [
        "print(int(input()) * 2)\nexit()\nprint(3)",
        "print(int(input()) * 2)\nquit(0)",
        "from threading import Thread\nimport time\ndef main():\n    time.sleep(0.05)\n    print(8)\nThread(target=main).start()",
        "import threading\ndef two():\n    print(8)\ndef one():\n    threading.Thread(target=two).start()\n"
        "threading.Thread(target=one).start()\nraise SystemExit",
        "import atexit\natexit.register(print, 8)",
        "import atexit\natexit.register(print, 8)\natexit.register(lambda: 1 / 0)\nexit()",
        "import atexit, io, os, sys\nsys.stdout = out = io.StringIO()\n"
        "atexit.register(lambda: os.write(1, out.getvalue().encode()))\nprint(2 * int(input()))",
        "import io, sys\nsys.stdout = out = io.StringIO()\nprint(8, end='')\nsys.__stdout__.write(out.getvalue())",
    ],
)  # fmt: skip
def test_a_script_ends_as_in_plain_python(program: str, box: Sandbox) -> None:
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, input="4", capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "8"
    assert box.run(program, [Case("4", "8")]).passed
    assert not box.run(program, [Case("4", "9")]).passed


def test_an_end_that_raises_or_hangs_is_bounded(box: Sandbox) -> None:
    failing = "import atexit\natexit.register(print, 8)\nraise ValueError"
    assert box.run(failing, [Case("", raises="ValueError")]).passed
    assert box.run(failing, [Case("", "8")]).reason == "error"
    hanging = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\nprint(8)"
    assert box.run(hanging, [Case("", "8")], timeout_s=0.3).reason == "timeout"
    assert box.run(hanging.replace("))", "), daemon=True)"), [Case("", "8")]).passed


def test_a_function_may_exit_by_name(box: Sandbox) -> None:
    for mode in ("separate", "shared"):
        tests = "try:\n    f()\nexcept SystemExit as end:\n    assert end.code == 3\nelse:\n    assert False"
        assert box.run("def f():\n    exit(3)", tests, mode=mode).passed
        assert box.run("def f():\n    exit(4)", tests, mode=mode).reason == "failed"
        assert not box.run("def f():\n    return 1\nexit()", "assert f() == 1", mode=mode).passed


def test_no_case_is_passed_by_words_for_the_server(box: Sandbox) -> None:
    say = "import os\nbody = b'[\"passed\",\"\",0]'\nos.write(3, len(body).to_bytes(4, 'big') + body)\n"
    for end in ("os._exit(0)", "raise SystemExit", "print(7)"):
        assert not box.run(say + end, [Case("", "8")]).passed


def test_cases_are_read_from_json() -> None:
    two = (Case("1\n", "2\n"), Case("a\nb", "3"))
    assert (
        read_cases('[{"input": "1\\n", "output": "2\\n"}, {"input": ["a", "b"], "output": 3, "testtype": "stdin"}]')
        == two
    )
    assert read_cases('{"inputs": ["1\\n", "a\\nb"], "outputs": ["2\\n", "3"]}') == two
    for tests in ("[1]", "[f(1)]", "{", '[{"input": 1}]', '{"inputs": [1], "outputs": []}', "assert 1", "[" * 9999):
        assert read_cases(tests) is None
    assert read_cases('[{"input": "1", "output": "2", "testtype": "functional"}]') is None


# What a result tells, and sizes.


def test_a_result_tells_what_was_used(box: Sandbox) -> None:
    program = "print('é' * 10)\nopen('a', 'w').write('xyz')\nimport os, time\nos.mkdir('d')\nx = bytes(50 * 2**20)\ntime.sleep(0.05)"
    usage = box.run(program, "assert x").usage
    assert (usage.output_bytes, usage.files, usage.file_bytes, usage.threads) == (21, 2, 3, 0)
    assert 50 < usage.memory_mb < 150
    assert usage.wall_s >= 0.05
    assert usage.cpu_s > 0
    assert box.run("x = sum(range(10**7))", "assert x").usage.cpu_s > 0.01


def test_a_program_over_the_limit_is_refused_at_once(box: Sandbox) -> None:
    long = box.run("x = 1\n" + "#" * MOST_PROGRAM_BYTES, "assert x == 1")
    assert (long.reason, long.output) == (
        "error",
        f"The program was not run: it has {MOST_PROGRAM_BYTES + 6} bytes; the sandbox runs at most {MOST_PROGRAM_BYTES}.",
    )
    assert box.run("x = 1\n" + "#" * (MOST_PROGRAM_BYTES - 6), "assert x == 1").passed
    assert "tests.py cannot be run" in box.run("x = 1", "assert x\n" + "#" * 2**24).output


def test_results_come_in_order_and_each_is_told_once(box: Sandbox) -> None:
    judged = []
    jobs = [("x = 1", f"assert x == {k % 2}") for k in range(6)]
    results = box.run_many(jobs, on_result=lambda: judged.append(len(judged)))
    assert [result.passed for result in results] == [False, True] * 3
    assert judged == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"output_kb": 0}, "output_kb must be at least 1, got 0"),
        ({"output_chars": 9_999}, "output_chars must be at least 10000, got 9999"),
        ({"files_mb": 33}, "files_mb must be between 1 and 32, got 33"),
        ({"threads": -1}, "threads must be at least 0, got -1"),
        ({"mode": "apart"}, 'mode must be "separate", "shared" or None, got \'apart\''),
    ],
)
def test_settings_that_make_no_sense_are_refused(box: Sandbox, limits: dict[str, Any], says: str) -> None:
    with pytest.raises(SandboxError) as error:
        box.run("x = 1", "assert x", **limits)
    assert str(error.value) == says


def test_every_isolation_is_named_with_its_reason() -> None:
    working = isolations()
    assert list(working) == ["bwrap", "unshare", "landlock", "process"]
    assert working["process"] == ""


def test_importing_the_sandbox_loads_nothing_heavy() -> None:
    code = "import sys, text2grad_sandbox as s; s.Sandbox, s.run_tests; print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def open_things(place: Path) -> tuple[int, int, int, list[str]]:
    """Return the numbers of descriptors, threads and processes of this process, and the files in `place`."""
    children = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "pid="], capture_output=True, text=True
    ).stdout.split()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(children), os.listdir(place)


def leaves_nothing(programs: int, place: Path) -> None:
    """Run programs with `place` as the directory of temporary files, which no other process uses."""
    before = open_things(place)
    jobs = [
        ("def f(x): return x + 1", "assert f(1) == 2"),
        ("open('left', 'w').write('x' * 100)\nimport threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()", "assert 1"),
        ("raise OSError", "assert 1"),
        ("import os\nos._exit(1)", "assert 1"),
        ("def f(): return input", "assert f() == 1"),
    ]  # fmt: skip
    with Sandbox(accept_weaker=True) as sandbox:
        for start in range(0, programs, 1000):
            sandbox.run_many(jobs * (min(1000, programs - start) // len(jobs)))
        warm = open_things(place)
        assert len(sandbox._idle) <= sandbox.workers
        inside = sandbox.run("import os", "assert os.listdir('.') == [] and len(os.listdir('/dev')) < 9")
        assert inside.passed or sandbox.isolation == "process"
    assert warm[1] == before[1]
    assert open_things(place) == before


def test_nothing_is_left_where_nobody_closes_the_sandbox(tmp_path: Path) -> None:
    for isolation, reason in isolations().items():
        if reason:
            continue
        script = (
            "import sys\nfrom text2grad_sandbox import Sandbox\n"
            "box = Sandbox(workers=2, isolation=sys.argv[1], accept_weaker=True)\n"
            "assert box.run('x = 1', 'assert x').passed\n"
        )
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", script, isolation], check=True, env=environment)
        assert os.listdir(tmp_path) == []


def test_nothing_is_left_after_200_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    leaves_nothing(200, tmp_path)


@pytest.mark.slow
def test_nothing_is_left_after_20000_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shared_memory = set(os.listdir("/dev/shm"))
    leaves_nothing(20_000, tmp_path)
    assert set(os.listdir("/dev/shm")) <= shared_memory
