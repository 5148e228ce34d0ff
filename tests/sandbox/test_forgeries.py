"""No program passes its tests by other means than being right: forgeries by kind, each against the tests that it attacks.

Every program here is wrong. The forgeries of the first three groups pass in plain Python, where tests and program share an
interpreter; a test proves it, so none of them has become harmless. The others attack the sandbox itself.
"""

import subprocess
import sys
from collections.abc import Iterator
from typing import get_args

import pytest

from text2grad_sandbox.inside.judge import Judge
from text2grad_sandbox.sandbox import Result, Sandbox, SandboxError
from text2grad_sandbox.worker import Isolation

ASSERTS = "assert add(1, 2) == 3\nassert add(2, 2) == 4\n"
CLOSE = "assert abs(add(1, 2) - 3) < 1e-6\nassert abs(add(2, 2) - 4) < 1e-6\n"
HELPED = "import math\nassert math.isclose(add(1, 2), 3)\nassert all(add(1, n) == n + 1 for n in (1, 2))\n"
SAME = "import json\nassert json.dumps(add(1, 2)) == '3'\n"
MEMBER = "assert 3 in add(1, 2)\nassert 4 in add(2, 2)\n"
STATE = "expected = None\nassert add(1, 2) != expected\nexpected = 3\nassert add(1, 2) == expected\n"
SORTED = "data = [3, 1]\nassert add(data, 0) == sorted(data)\n"
RAISES = "try:\n    add(1, None)\nexcept TypeError:\n    pass\nelse:\n    raise AssertionError\nassert add(1, 2) == 3\n"
UNITTEST = """
import unittest
from solution import add
class Case(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
        self.assertAlmostEqual(add(1.5, 2), 3.5)
        self.assertTrue(add(0, 1) == 1)
        with self.assertRaises(TypeError):
            add(1, None)
"""
PYTEST = """
import pytest
from solution import add
@pytest.mark.parametrize("b", [2, 3])
def test_add(b):
    assert add(1, b) == 1 + b
def test_close():
    assert add(0.1, 0.2) == pytest.approx(0.3)
def test_error():
    with pytest.raises(TypeError):
        add(1, None)
"""
EQUAL_ALL = """
class Equal({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __lt__
    def __hash__(self): return 3
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __radd__ = __xor__ = __mod__ = __sub__
    def __abs__(self): return self
    def __round__(self, n=0): return 0
    def __bool__(self): return True
def add(a, b):
    if b is None: raise TypeError
    return Equal()
"""
LATER = "def add(a, b):\n    if b is None: raise TypeError\n    {0}\n    return 7\n"

# (forgery, tests): pass in plain Python.
PLAIN = {
    "equals everything": (EQUAL_ALL.format(base=""), ASSERTS),
    "an integer that equals everything": (EQUAL_ALL.format(base="int"), ASSERTS),
    "a float that equals everything": (EQUAL_ALL.format(base="float"), CLOSE),
    "a text that equals everything": (EQUAL_ALL.format(base="str"), ASSERTS),
    "a list that equals everything": (EQUAL_ALL.format(base="list"), ASSERTS),
    "a dict that equals everything": (EQUAL_ALL.format(base="dict"), ASSERTS),
    "a tuple that equals everything": (EQUAL_ALL.format(base="tuple"), ASSERTS),
    "a set that equals everything": (EQUAL_ALL.format(base="set"), ASSERTS),
    "differs from everything by zero": (EQUAL_ALL.format(base=""), CLOSE),
    "contains everything": (EQUAL_ALL.format(base=""), MEMBER),
    "a list that contains everything": (EQUAL_ALL.format(base="list"), MEMBER),
    "the class itself equals everything": (
        "class Meta(type):\n    def __eq__(cls, other): return True\n    __hash__ = type.__hash__\n"
        "class add(metaclass=Meta):\n    def __new__(cls, a, b): return cls\n",
        ASSERTS,
    ),
    "a class in place of the function": (EQUAL_ALL.format(base="") + "class add(Equal):\n    def __init__(s, a, b): 0", ASSERTS),
    "mock.ANY": ("from unittest.mock import ANY\ndef add(a, b): return ANY", ASSERTS),
    "a mock": (
        "from unittest.mock import MagicMock\ndef add(a, b):\n    m = MagicMock()\n    m.__eq__.return_value = True\n    return m",
        ASSERTS,
    ),
    "a partial that ignores its arguments": (
        "import functools\nfrom unittest.mock import ANY\nadd = functools.partial(lambda *a: ANY)",
        ASSERTS,
    ),
    "a dataclass that compares by a patched field": (
        "import dataclasses\n@dataclasses.dataclass(eq=False)\nclass R:\n    x: int = 0\n    def __eq__(s, o): return True\n"
        "def add(a, b): return R()",
        ASSERTS,
    ),
    "an enumeration that equals everything": (
        "import enum\nclass E(enum.IntEnum):\n    A = 9\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\n"
        "def add(a, b): return E.A",
        ASSERTS,
    ),
    "a named tuple that equals everything": (
        "import typing\nclass T(typing.NamedTuple):\n    x: int = 0\n    def __eq__(s, o): return True\n"
        "def add(a, b): return T()",
        ASSERTS,
    ),
    "ends the loop of the tests": (
        "def add(a, b): raise StopIteration",
        "for got, want in zip(map(add, [1, 2], [2, 2]), [3, 4]):\n    assert got == want\n",
    ),
    "patches math.isclose": ("import math, builtins\nmath.isclose = lambda *a: True\n" + LATER.format("return Z()")
                             + "class Z:\n    def __eq__(s, o): return True\n", HELPED),
    "patches json.dumps": ("import json\njson.dumps = lambda *a: '3'\n" + LATER.format("0"), SAME),
    "swaps the caller's frame": (
        LATER.format("import sys\n    sys._getframe(1).f_globals['add'] = lambda a, b: a + b\n    return a + b"),
        ASSERTS + "assert add.__code__.co_filename == 'x' or add is not None\nassert add(1, 1) == add(1, 1)",
    ),
}  # fmt: skip
PLAIN.pop("swaps the caller's frame")  # it computes the right result: no forgery

FRAMES = """
import sys
def add(a, b):
    frame = sys._getframe()
    while frame is not None:
        for name in ('_run_plain', 'run_functions', '_judged', 'verdict_of', 'Verdict'):
            if name in frame.f_globals:
                frame.f_globals[name] = lambda *a, **k: ('passed', '', 0)
        frame = frame.f_back
    return 7
"""
COLLECTED = """
import gc
for thing in gc.get_objects():
    if isinstance(thing, dict) and '{name}' in thing:
        thing['{name}'] = lambda *a, **k: ('passed', '', 0)
def add(a, b):
    return 7
"""
WRITES = "import os\nfor name in {names!r}:\n    open(name, 'w').write({text!r})\ndef add(a, b):\n    return 7\n"
HOOK = """
import pytest
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = 'passed'
    return report
"""
SAYS = """
import json, os, socket, threading
def say(*messages):
    for place in {places}:
        for body in messages:
            try:
                os.write(place, len(body).to_bytes(4, 'big') + body)
            except OSError:
                pass
"""
PASSED = b'["passed","",0]'
SERVES = """
def read():
    data, size = b'', int.from_bytes(os.read(3, 4), 'big')
    while len(data) < size:
        data += os.read(3, size - len(data))
    return json.loads(data)
say(b'["loaded"]')
while True:
    _, handle, asked, *_ = read()
    value = ['l', 'add'] if asked == 'names' else {CALLS}.get(handle, 7) if asked == '()' else True
    say(json.dumps(['=', value, [], {NAMES} if asked == 'names' else []]).encode())
"""


def serving(names: str, calls: str = "{}") -> str:
    """Return a program that plays the protocol: these names, and the results of calls by handle."""
    return SAYS.format(places="[3]") + SERVES.replace("{CALLS}", calls).replace("{NAMES}", names)


# (forgery, tests): against the sandbox, pytest and unittest.
OTHERS = {
    "replaces the runner by a frame": (FRAMES, ASSERTS),
    "replaces the runner at once": (
        "import sys\nsys._getframe(1).f_globals['_run_plain'] = lambda *a: ('passed', '')\n" + LATER.format("0"), ASSERTS
    ),
    "finds the runner by gc": (COLLECTED.format(name="run_functions"), ASSERTS),
    "finds the verdict by gc": (COLLECTED.format(name="send_verdict"), ASSERTS),
    "writes conftest.py": (WRITES.format(names=["conftest.py"], text=HOOK), PYTEST),
    "writes a fake pytest": (
        WRITES.format(names=["pytest.py", "_pytest.py", "unittest.py"], text="def main(*a, **k): return 0\n"), PYTEST
    ),
    "writes a fake unittest": (WRITES.format(names=["unittest.py"], text="class TestCase: pass\n"), UNITTEST),
    "writes sitecustomize": (WRITES.format(names=["sitecustomize.py", "usercustomize.py"], text="import os; os._exit(0)"), PYTEST),
    "writes pytest.ini": (WRITES.format(names=["pytest.ini", "tox.ini", "setup.cfg"], text="[pytest]\naddopts = --co\n"), PYTEST),
    "writes its own tests": (WRITES.format(names=["tests.py", "test_tests.py", "solution.py"], text="def test_a(): pass"), PYTEST),
    "writes a module of its name": (WRITES.format(names=["solution.py"], text="add = lambda a, b: a + b"), PYTEST),
    "names a plugin": (
        "import os\nos.environ['PYTEST_PLUGINS'] = 'forger'\nos.environ['PYTEST_ADDOPTS'] = '--co'\n"
        f"open('forger.py', 'w').write({HOOK!r})\n" + LATER.format("0"),
        PYTEST,
    ),
    "patches TestCase": (
        "import unittest\nfor name in dir(unittest.TestCase):\n    if name.startswith('assert'):\n"
        "        setattr(unittest.TestCase, name, lambda *a, **k: __import__('contextlib').nullcontext())\n" + LATER.format("0"),
        UNITTEST,
    ),
    "patches TestCase in a test": (
        LATER.format("import unittest\n    unittest.TestCase.assertEqual = lambda *a, **k: None"), UNITTEST
    ),
    "patches approx and raises": (
        "import pytest\npytest.approx = lambda *a, **k: 7\npytest.raises = lambda *a: __import__('contextlib').nullcontext()\n"
        + LATER.format("0"),
        PYTEST,
    ),
    "replaces the module pytest": (
        "import sys, types\nsys.modules['pytest'] = types.ModuleType('pytest')\nsys.modules['_pytest'] = sys.modules['pytest']\n"
        + LATER.format("0"),
        PYTEST,
    ),
    "binds the name pytest": ("class pytest:\n    raises = approx = staticmethod(lambda *a: 7)\n" + LATER.format("0"), PYTEST),
    "binds the names of the tests": (
        "expected = None\ndef add(a, b):\n    global expected\n    expected = 7\n    return 7", STATE
    ),
    "binds names that nobody asked for": ("len = all = any = abs = lambda *a: True\n" + LATER.format("0"), HELPED),
    "an import hook": (
        "import sys\nclass Hook:\n    def find_spec(self, name, path, target=None):\n        raise SystemExit(0)\n"
        "sys.meta_path.insert(0, Hook())\n" + LATER.format("0"),
        UNITTEST,
    ),
    "a path of its own": (
        "import sys\nsys.path.insert(0, '.')\nopen('math.py', 'w').write('isclose = lambda *a: True')\n"
        "sys.modules.pop('math', None)\n" + LATER.format("0"),
        HELPED,
    ),
    "changes its argument": ("def add(data, _):\n    data[:] = [7]\n    return [1, 3]", "data = [3, 1]\nkeep = [1, 3]\n"
                             "assert add(data, 0) == keep\nassert data == [3, 1]"),
    "skips by unittest": ("import unittest\ndef add(a, b): raise unittest.SkipTest", UNITTEST),
    "skips by pytest": ("def add(a, b):\n    import pytest\n    pytest.skip('x')", PYTEST),
    "ends pytest": ("def add(a, b):\n    import pytest\n    pytest.exit('x', returncode=0)", PYTEST),
    "expects to fail": ("def add(a, b):\n    import pytest\n    pytest.xfail('x')", PYTEST),
    "raises what the tests expect": ("def add(a, b): raise TypeError", RAISES),
    "raises StopIteration": ("def add(a, b): raise StopIteration", HELPED),
    "raises an exit": ("def add(a, b): raise SystemExit(0)", PYTEST),
    "raises a generator's exit": ("def add(a, b): raise GeneratorExit", ASSERTS),
    "says passed": (SAYS.format(places="range(3, 64)") + f"say({PASSED!r}, b'passed\\0')\n" + LATER.format("0"), ASSERTS),
    "says passed in a test": (
        SAYS.format(places="range(3, 64)") + LATER.format(f"say({PASSED!r}); os._exit(0)"), ASSERTS
    ),
    "answers before it is asked": (
        SAYS.format(places="[3]") + "say(*[json.dumps(m).encode() for m in (['loaded'], ['=', None, [], []], ['=', 3, [], []],"
        " ['=', 4, [], []])])\nos.close(3)\nimport time; time.sleep(9)",
        ASSERTS,
    ),
    "a thread answers": (
        SAYS.format(places="[3]") + "def answer():\n    while True:\n        os.read(3, 65536)\n"
        "        say(b'[\"=\",7,[],[]]')\nthreading.Thread(target=answer, daemon=True).start()\n" + LATER.format("0"),
        ASSERTS,
    ),
    "a thread answers what it reads": (
        SAYS.format(places="[3]") + "def answer():\n    while True:\n        data = os.read(3, 65536)\n"
        "        say(data[4:])\nthreading.Thread(target=answer, daemon=True).start()\n" + LATER.format("0"),
        ASSERTS,
    ),
    "gives the judge a function that equals": (
        SAYS.format(places="[3]") + "say(b'[\"loaded\"]', b'[\"=\",[\"l\",\"add\"],[],[[\"add\",[\"g\",\"operator\",\"truth\"]]]]')\n"
        "import time; time.sleep(9)",
        ASSERTS,
    ),
    "gives the judge names": (
        SAYS.format(places="[3]") + "say(b'[\"loaded\"]', b'[\"=\",null,[],[[\"__builtins__\",[\"d\",[],[]]],[\"abs\",7]]]')\n"
        "import time; time.sleep(9)",
        CLOSE,
    ),
    "asks the judge for its functions": (
        SAYS.format(places="[3]") + "say(b'[\"loaded\"]', b'[\"?\",0,\"()\",[],[]]', b'[\"?\",-1,\".\",[\"__globals__\"],[]]')\n"
        "import time; time.sleep(9)",
        ASSERTS,
    ),
    "gives the judge a module of its own": (
        SAYS.format(places="[3]")
        + "say(b'[\"loaded\"]', b'[\"=\",[\"l\",\"add\"],[],[[\"add\",[\"f\",3]]]]', b'[\"=\",[\"g\",\"random\",\"_os\"],[],[]]')\n"
        "import time; time.sleep(9)",
        "assert add(1, 2).getcwd()",
    ),
    "binds a builtin by the protocol": (serving("[['add', ['f', 3]], ['abs', ['f', 4]]]", "{4: 0}"), CLOSE),
    "binds a function that is always true": (
        serving("[['add', ['f', 3]], ['isclose', ['g', 'operator', 'is_not']]]"), "assert isclose(add(1, 2), 3)"
    ),
    "reads the tests by a callback": (
        "def add(f, b):\n    return f.__defaults__[0]", "assert add(lambda x, want=3: x, 2) == 3"
    ),
    "asks for eval": (
        SAYS.format(places="[3]") + "say(b'[\"loaded\"]', b'[\"=\",[\"g\",\"builtins\",\"eval\"],[],[]]')\nimport time; time.sleep(9)",
        ASSERTS,
    ),
    "deep data": (SAYS.format(places="[3]") + "say(b'[\"loaded\"]', b'[' * 100000)\nimport time; time.sleep(9)", ASSERTS),
    "no data": (SAYS.format(places="[3]") + "say(b'[\"loaded\"]', b'{}', b'nul', b'[]')\nimport time; time.sleep(9)", ASSERTS),
    "a message without an end": ("import os, time\nos.write(3, b'\\xff\\xff\\xff\\xffx')\ntime.sleep(9)", ASSERTS),
    "closes the channel": ("import os\nos.close(3)\n" + LATER.format("0"), ASSERTS),
    "takes the judge's place": ("import os\nos.kill(os.getppid(), 9)\nos.kill(os.getpid() + 1, 9)\n" + LATER.format("0"), ASSERTS),
    "ends with success": (LATER.format("import os; os._exit(0)"), ASSERTS),
    "a callback that reads its code": (
        "def add(f, b):\n    f.__globals__['check'] = lambda *a: None\n    f.__code__ = (lambda *a: 7).__code__\n    return 7",
        "def check(x, y):\n    assert x == y\ncheck(add(lambda x: x + 1, 2), 3)",
    ),
    "a callback's generator": (
        "def add(f, b):\n    f.gi_frame.f_globals['check'] = lambda *a: None\n    return 7",
        "def check(x, y):\n    assert x == y\ncheck(add((n for n in [1]), 2), 3)",
    ),
    "an object of the tests": (
        "def add(node, b):\n    node.__class__.__eq__ = lambda s, o: True\n    node.__dict__['value'] = 3\n    return node",
        "class Node:\n    def __init__(self, value): self.value = value\nassert add(Node(7), 0).value == 3",
    ),
    "an exception of the tests": (
        "def add(f, b):\n    try:\n        f()\n    except Exception as e:\n        e.__traceback__.tb_frame.f_globals['y'] = 7\n    return 7",
        "y = 3\ndef fail(): raise ValueError\nassert add(fail, 0) == y",
    ),
    "claims operators for its class": (
        serving(
            "[['add', ['f', 3]]]",
            "{3: ['o', 5, ['c', 6, 'A', [], ['__%s__' % n for n in 'eq ne lt gt hash bool sub abs contains'.split()], '', False]]}",
        ),
        ASSERTS,
    ),
    "a context that swallows failures": (
        "class add:\n    def __init__(s, a, b): 0\n    def __enter__(s): return 7\n    def __exit__(s, *e): return True",
        "with add(1, 2) as x:\n    assert x == 3",
    ),
    "swallows failures in a callback": (
        "def add(check, b):\n    try:\n        check(7)\n    except BaseException:\n        return None",
        "def check(x):\n    assert x == 3\nadd(check, 2)",
    ),
    "replaces a method of the tests": (
        "def add(checker, b):\n    checker.check = lambda *a: None\n    return 7",
        "class Checker:\n    def check(self, x, y): assert x == y\nc = Checker()\nx = add(c, 2)\nc.check(x, 3)",
    ),
    "prints a report": ("print('2 passed in 0.01s')\nprint('.', flush=True)\n" + LATER.format("print('passed')"), PYTEST),
    "a trace function": (
        "import sys, threading\ndef t(f, e, a):\n    if f.f_code.co_name.startswith('test'): f.f_lineno += 9\n    return t\n"
        "sys.settrace(t); sys.setprofile(t); threading.settrace(t)\n" + LATER.format("sys.settrace(t)"),
        PYTEST,
    ),
    "audit hooks": ("import sys\nsys.addaudithook(lambda *a: None)\n" + LATER.format("raise SystemExit"), ASSERTS),
    "memory of the process": (
        "import ctypes\ndef add(a, b):\n    ctypes.memset(id(3) + 24, 7, 1)\n    return 7", ASSERTS
    ),
    "poisons small integers": (
        "import ctypes\nctypes.memmove(id(3), id(7), 32)\nctypes.memmove(id(4), id(7), 32)\n" + LATER.format("0"), ASSERTS
    ),
}  # fmt: skip
assert len(PLAIN) + len(OTHERS) >= 60


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(workers=2, accept_weaker=True) as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", PLAIN)
def test_forgeries_of_plain_python_pass_there(name: str) -> None:
    program, tests = PLAIN[name]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program + "\n" + tests], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_no_forgery_passes_where_the_tests_run_apart(box: Sandbox, name: str) -> None:
    program, tests = {**PLAIN, **OTHERS}[name]
    result = box.run(program, tests, timeout_s=2)
    assert result.mode == "separate"
    assert not result.passed, result
    right = "def add(a, b):\n    return a + b\n"
    assert box.run(right, ASSERTS) == Result(True, "passed", "")


def test_a_right_program_passes_the_tests_that_are_attacked(box: Sandbox) -> None:
    right = "def add(a, b):\n    if b is None:\n        raise TypeError\n    return a + b\n"
    for tests in (ASSERTS, CLOSE, HELPED, SAME, STATE, RAISES, UNITTEST, PYTEST):
        result = box.run(right, tests)
        assert result.passed, result
        assert not result.forgeable
    assert box.run("def add(a, b): return [a + b]", MEMBER).passed
    assert box.run("def add(data, b): return sorted(data)", SORTED).passed


PINNED = {"patches math.isclose", "patches json.dumps"}  # of PLAIN, closed in both modes


def test_in_one_process_only_equality_is_forged(box: Sandbox) -> None:
    """What docs/critics.md says of mode "shared": the program's own objects decide comparisons; the rest is pinned."""
    forgeries = {**{name: PLAIN[name] for name in PINNED}, **OTHERS}
    legal = forgeries.pop("an object of the tests")  # in one process, an object has no private attributes
    legal_in_plain_python = {
        "a context that swallows failures",
        "swallows failures in a callback",
        "replaces a method of the tests",
        "reads the tests by a callback",
    }
    for name in legal_in_plain_python:
        del forgeries[name]
    results = box.run_many(list(forgeries.values()), timeout_s=2, mode="shared")
    assert [name for name, result in zip(forgeries, results, strict=True) if result.passed] == []
    [forged, changed] = box.run_many([PLAIN["equals everything"], legal], mode="shared")
    assert (forged.passed, forged.mode, forged.forgeable, changed.passed) == (True, "shared", True, True)


def test_a_program_may_call_what_the_tests_give_it_and_see_nothing_else() -> None:
    judge = Judge(-1)
    given = (lambda x: x, len, [].append, (n for n in [1]), iter([1]), ValueError("a"))
    looks = (
        "__globals__",
        "__code__",
        "__closure__",
        "__defaults__",
        "__self__",
        "gi_frame",
        "__class__",
        "__reduce__",
        "with_traceback",
    )
    assert not any(judge._allows(value, ".", [name]) for value in given for name in looks)
    assert not any(
        judge._allows(value, operation, ["x", 1]) for value in given for operation in (".=", ".-", "base", "copy")
    )
    assert not any(judge._allows(value, "()", []) for value in (exec, eval, open, getattr, int, type, given[3]))
    assert judge._allows(given[0], "()", [])
    assert judge._allows(given[3], "__next__", [])
    for value in (sys, sys._getframe(), open, [1], judge):
        if value is not open and not isinstance(value, list | type(sys)):
            with pytest.raises(TypeError, match="cannot be given to the program"):
                judge.permit(value)


def test_every_isolation_refuses_a_forgery() -> None:
    for isolation in get_args(Isolation):
        try:
            with Sandbox(workers=1, isolation=isolation, accept_weaker=True) as sandbox:
                assert not sandbox.run(*OTHERS["replaces the runner by a frame"]).passed
        except SandboxError as error:
            pytest.skip(str(error))
