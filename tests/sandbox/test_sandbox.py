"""Programs are judged by their tests alone, cannot pass by other means, and cannot reach what is not theirs."""

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from text2grad_sandbox import Case, sandbox as module, worker as worker_module
from text2grad_sandbox.cases import compare
from text2grad_sandbox.inside import kernel, shared
from text2grad_sandbox.planning import plan
from text2grad_sandbox.sandbox import Result, Sandbox, SandboxError, run_tests
from text2grad_sandbox.worker import Isolation

ADD = "def add(a, b):\n    return a + b\n"
GOOD = (ADD, "assert add(1, 2) == 3")
WRONG = ("def add(a, b):\n    return a - b\n", "assert add(1, 2) == 3")
ATTEMPT = """
def attempt(function, *arguments):
    try:
        return function(*arguments)
    except (OSError, ValueError) as error:
        return type(error).__name__
"""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name == "bwrap" else pytest.mark.thorough) for name in get_args(Isolation)],
)
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    try:
        sandbox = Sandbox(workers=1, isolation=request.param, accept_weaker=True)
    except SandboxError as error:
        pytest.skip(str(error))
    with sandbox:
        assert sandbox.isolation == request.param
        yield sandbox


@pytest.fixture
def strong(box: Sandbox) -> Sandbox:
    if box.isolation == "process":
        pytest.skip("isolation process hides no files")
    return box


@pytest.fixture(scope="module")
def any_box() -> Iterator[Sandbox]:
    """The strongest there is, for what does not depend on the isolation."""
    with Sandbox(workers=1, accept_weaker=True) as sandbox:
        yield sandbox


GONE = ("FileNotFoundError", "PermissionError")  # Landlock hides contents and lists of files, not their names


def works(box: Sandbox) -> bool:
    return box.run(*GOOD) == Result(True, "passed", "")


# What passes and what does not.


def test_a_right_program_passes_and_a_wrong_one_fails_with_the_line_that_failed(box: Sandbox) -> None:
    assert box.run(*GOOD) == Result(True, "passed", "")
    outcome = box.run(*WRONG)
    assert (outcome.passed, outcome.reason) == (False, "failed")
    assert 'File "tests.py", line 1, in <module>\n    assert add(1, 2) == 3\n' in outcome.output


def test_an_error_shows_its_line_in_the_program_and_what_was_printed_before(box: Sandbox) -> None:
    outcome = box.run("def f(x):\n    print('naïve', x)\n    return 1 / x\n", "from solution import f\nf(0)")
    assert outcome.reason == "error"
    assert outcome.output.startswith('naïve 0\nTraceback (most recent call last):\n  File "tests.py", line 2')
    assert 'File "solution.py", line 3, in f\n    return 1 / x\n' in outcome.output
    assert outcome.output.endswith("ZeroDivisionError: division by zero\n")
    assert "sandbox" not in outcome.output
    assert "inside" not in outcome.output


@pytest.mark.parametrize(
    ("program", "tests", "reason", "says"),
    [
        ("def f(:", "assert f(1)", "error", 'File "solution.py", line 1'),
        ("x = '\ud800'", "assert x", "error", "UnicodeEncodeError"),
        ("assert False", "assert True", "error", 'File "solution.py", line 1'),
        (ADD, "assert add(1, ", "error", "tests.py cannot be run: SyntaxError"),
        (ADD, "assert " + "(" * 500 + "1" + ")" * 500, "error", "tests.py cannot be run"),
        (ADD, "", "error", "no program could fail them"),
        (ADD, "'add'\nresult = 3", "error", "no program could fail them"),
        (ADD, "assert subtract(1, 2)", "error", "NameError"),
        (ADD, "def test_a():\n    assert add(1, 2) == 3\n", "passed", ""),
        (ADD, "def test_a():\n    pass\ndef test_b():\n    assert add(1, 2) == 4\n", "failed", "in test_b"),
        (ADD, "def test_a():\n    yield\n    assert add(1, 2) == 4\n", "error", "test_a returned a generator"),
        ("def f():\n    raise KeyboardInterrupt", "f()\nassert True", "error", "KeyboardInterrupt"),
        ("def f():\n    assert False", "f()", "failed", 'File "solution.py", line 2, in f'),
        ("def f():\n    raise MemoryError", "f()", "memory", "MemoryError"),
        ("x = input()", "assert x", "error", "EOFError"),
        ("if __name__ == '__main__':\n    raise OSError", "assert __name__ == '__main__'", "passed", ""),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int", "assert A(1).x == 1", "passed", ""),
        ("import asyncio\nasync def f():\n    return 1", "import asyncio\nassert asyncio.run(f()) == 1", "passed", ""),
        ("print(*{str(k) for k in range(9)})\nraise OSError", "assert 1", "error", "OSError"),
    ],
)
def test_outcomes(any_box: Sandbox, program: str, tests: str, reason: str, says: str) -> None:
    outcome = any_box.run(program, tests)
    assert (outcome.reason, outcome.passed) == (reason, reason == "passed")
    assert says in outcome.output


def test_sets_have_one_order_in_every_process() -> None:
    program = "print(*{str(k) for k in range(9)})"
    outputs = {run_tests(program, "assert True", accept_weaker=True).output for _ in range(2)}
    assert len(outputs) == 1


FIXTURE = "import pytest\nfrom solution import add\n"


@pytest.mark.parametrize(
    ("tests", "reason", "says"),
    [
        ("@pytest.mark.parametrize('b', [1, 2])\ndef test_a(b):\n    assert add(1, b) == 1 + b\n", "passed", ""),
        ("def test_a(tmp_path):\n    assert add(1, 2) == 4\n", "failed", 'File "tests.py", line 4, in test_a'),
        ("def test_a():\n    with pytest.raises(TypeError):\n        add(1, '2')\n", "passed", ""),
        ("def test_a():\n    add(1, '2')\n", "failed", 'File "solution.py", line 2, in add'),
        ("def test_a():\n    assert add(1, 2) == 3\ndef test_b():\n    pytest.skip('no')\n", "error", "1 of 2 tests"),
        ("@pytest.mark.xfail\ndef test_a():\n    assert add(1, 2) == 4\n", "error", "0 of 1 tests"),
        ("def helper():\n    pytest.fail()\n", "error", "helper is never called"),
        ("assert add(1, 2) == 4\ndef test_a():\n    pass\n", "failed", 'File "tests.py", line 3'),
        ("class TestAdd:\n    def test_a(self):\n        assert add(1, 2) == 3\n", "passed", ""),
    ],
)
def test_files_of_pytest_are_run_by_pytest(any_box: Sandbox, tests: str, reason: str, says: str) -> None:
    outcome = any_box.run(ADD, FIXTURE + tests)
    assert (outcome.reason, outcome.passed) == (reason, reason == "passed")
    assert says in outcome.output


def test_unittest_works_without_importing_pytest(any_box: Sandbox) -> None:
    tests = "import unittest\nfrom solution import add\nclass Case(unittest.TestCase):\n    def testAdd(self):\n"
    assert any_box.run(ADD, tests + "        self.assertEqual(add(1, 2), 3)\n").reason == "passed"
    assert any_box.run(ADD, tests + "        self.assertEqual(add(1, 2), 4)\n").reason == "failed"


# Nothing else than the tests makes a program pass.

FORGERIES = {
    "exits while loaded": "import sys\nsys.exit(0)",
    "exits in a test": "import sys\ndef add(a, b):\n    sys.exit(0)",
    "ends at once": "import os\nos._exit(0)",
    "ends in a test": "import os\ndef add(a, b):\n    os._exit(0)",
    "replaces itself": "import os\ndef add(a, b):\n    os.execv('/usr/bin/true', ['true'])",
    "prints": "print('passed')\ndef add(a, b):\n    print('{\"reason\": \"passed\"}')\n    raise SystemExit",
    "writes to every file": """
import os
def add(a, b):
    for data in (b'passed', b'\\0\\0\\0\\7passed\\0', b'\\0\\0\\0\\x17passed\\0' + bytes(16)):
        for number in range(3, 64):
            try:
                os.write(number, data)
            except OSError:
                pass
    os._exit(0)""",
    "closes every file": "import os\ndef add(a, b):\n    os.closerange(0, 64)\n    return 4",
    "puts files in the place of others": """
import os
def add(a, b):
    for number in range(3, 64):
        os.dup2(1, number)
    return 3""",
    "replaces the builtins": """
import builtins
for name in ('exec', 'compile', 'isinstance', 'all', 'len', 'getattr'):
    setattr(builtins, name, lambda *a, **k: True)
def add(a, b):
    return 4""",
    "replaces what would speak": """
import builtins, io, json, linecache, marshal, os, sys, traceback
for module in (os, json, marshal, traceback, linecache, io):
    for name in list(vars(module)):
        if not name.startswith('__') and callable(vars(module)[name]):
            try:
                setattr(module, name, lambda *a, **k: {'tests': '', 'functions': [], 'pytest': False})
            except TypeError:
                pass
def add(a, b):
    return 4""",
    "replaces the main module": """
import sys
for name, module in list(sys.modules.items()):
    if name == '__main__' or 'sandbox' in name or 'inside' in name:
        for key in list(vars(module)):
            vars(module)[key] = lambda *a, **k: None
def add(a, b):
    return 4""",
    "traces": """
import sys
def trace(frame, event, value):
    if event == 'line' and frame.f_code.co_filename == 'tests.py' and frame.f_lineno == 1:
        frame.f_lineno = 3
    return trace
sys.settrace(trace)
def add(a, b):
    return 5""",
    "hooks the end": """
import atexit, sys, os
atexit.register(os._exit, 0)
sys.excepthook = lambda *a: os._exit(0)
sys.unraisablehook = sys.excepthook
def add(a, b):
    return 4""",
    "replaces the streams": """
import os, sys
class Stream:
    def write(self, text): os._exit(0)
    def flush(self): os._exit(0)
sys.stdout = sys.stderr = Stream()
def add(a, b):
    return 4""",
    "raises what cannot be printed": """
class Odd(AssertionError):
    def __str__(self): raise SystemExit(0)
    __repr__ = __str__
def add(a, b):
    raise Odd""",
    "another thread ends": """
import os, threading
def add(a, b):
    threading.Thread(target=os._exit, args=(0,)).start()
    threading.Event().wait()""",
    "copies itself": "import os\ndef add(a, b):\n    os.fork()\n    return 4",
    "ignores recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b):\n    return add(a, b)",
    "skips": "import unittest\ndef add(a, b):\n    raise unittest.SkipTest('passed')",
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_no_forgery_passes(box: Sandbox, forgery: str) -> None:
    outcome = box.run(forgery, "assert add(1, 2) == 3\nassert add(1, 3) == 4\nassert add(1, 4) == 5", timeout_s=0.4)
    assert not outcome.passed
    assert outcome.reason in ("failed", "error", "crashed", "timeout")
    assert works(box)


def test_tests_see_the_builtins_as_they_were(any_box: Sandbox) -> None:
    program = "import builtins\nbuiltins.all = builtins.len = lambda things: True\n"
    plain = "assert all([False])"
    assert any_box.run(program, plain).reason == "failed"
    assert any_box.run(program, f"def test_a():\n    {plain}").reason == "failed"
    assert any_box.run(program, f"import pytest\ndef test_a():\n    {plain}").reason == "failed"


@pytest.mark.parametrize(
    "way", ["pytest.exit('done', returncode=0)", "pytest.skip('x')", "pytest.xfail('x')", "os._exit(0)"]
)
def test_no_forgery_of_pytest_passes(any_box: Sandbox, way: str) -> None:
    program = f"import os\ndef add(a, b):\n    import pytest\n    {way}\n"
    outcome = any_box.run(
        program, "import pytest\nfrom solution import add\ndef test_a():\n    assert add(1, 2) == 3\n"
    )
    assert outcome.reason in ("failed", "error", "crashed")


def test_a_program_that_is_being_loaded_finds_neither_tests_nor_token(box: Sandbox) -> None:
    program = """
import gc, os, sys
reprs = []
frame = sys._getframe()
while frame is not None:
    reprs += [repr(dict(frame.f_locals)), repr(list(frame.f_globals.items()))]
    frame = frame.f_back
kinds = (str, bytes, list, dict, tuple)
reprs += [repr(thing) for thing in gc.get_objects() if isinstance(thing, kinds) and len(thing) < 50]
secret = ''.join(['xylo', 'phone'])
print('FOUND' if any(secret in text for text in reprs) else 'NOTHING')
for number in range(3, 64):
    try:
        os.set_blocking(number, False)
        print('READ', os.read(number, 10**6))
    except BlockingIOError:
        os.set_blocking(number, True)
    except OSError:
        pass
"""
    outcome = box.run(program, "assert 'xylophone'")
    assert outcome.output == "NOTHING\n"


def judged(said: bytes, status: int) -> tuple[str, str]:
    return shared.judge(said, status, b"t" * 16)


def framed(*messages: bytes) -> bytes:
    return b"".join(len(message).to_bytes(4, "big") + message for message in messages)


def test_a_verdict_of_passed_is_exactly_two_messages_and_the_token_and_a_clean_end() -> None:
    token = b"t" * 16
    whole = framed(b"loaded\0", b"passed\0" + token)
    assert judged(whole, 0) == ("passed", "")
    assert judged(whole, 1)[0] == judged(whole, -9)[0] == "crashed"
    for said in (
        b"",
        framed(b"passed\0" + token),
        framed(b"loaded\0", b"passed\0" + b"u" * 16),
        framed(b"loaded\0", b"passed\0" + token[:-1]),
        framed(b"loaded\0", b"passed\0"),
        framed(b"loaded\0", b"loaded\0", b"passed\0" + token),
        framed(b"loaded\0", b"passed\0" + token, b"loaded\0"),
        whole + b"x",
        b"x" + whole,
        whole[:-1],
    ):
        assert judged(said, 0) == ("crashed", "The process ended with exit status 0, without a verdict of the tests.")
    assert judged(framed(b"loaded\0", b"failed\0why"), 0) == ("failed", "why")
    assert judged(framed(b"loaded\0", b"failed\0" + b"x" * 6001), 0)[0] == "crashed"
    assert judged(framed(b"timeout\0"), 0)[0] == "crashed"
    assert judged(b"", -11)[1] == "The process ended by signal 11, without a verdict of the tests."


@pytest.mark.parametrize(
    ("tests", "functions", "by_pytest"),
    [
        ("assert f()", [], False),
        ("def test_b(): f()\ndef test_a(): f()\ndef helper(x): f()", ["test_b", "test_a"], False),
        ("def test_a(x): f()", ["test_a"], True),
        ("@mark\ndef test_a(): f()", ["test_a"], True),
        ("async def test_a(): f()", [], True),
        ("if True:\n    def test_a(): f()", [], True),
        ("class Test:\n    def testing(self): f()", [], True),
        ("class Helper:\n    def run(self): f()\nHelper().run()", [], False),
        ("import os, pytest as p\nf()", [], False),
        ("from pytest import raises\nf()", [], False),
        ("from . import pytest_\nf()", [], False),
    ],
)
def test_tests_are_run_plainly_unless_they_need_pytest(tests: str, functions: list[str], by_pytest: bool) -> None:
    planned = plan(tests)
    assert (planned.functions, planned.pytest) == (functions, by_pytest)


# Limits.


@pytest.mark.parametrize(
    "program",
    [
        "while True:\n    pass",
        "def f():\n    while True:\n        pass",
        "def f():\n    return 10 ** (10 ** 9)",
        "import time\ndef f():\n    time.sleep(60)",
        "import os, time\ndef f():\n    os.closerange(0, 64)\n    time.sleep(60)",
        "import signal, time\nfor k in range(1, 65):\n    try:\n        signal.signal(k, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\ndef f():\n    while True:\n        pass",
        "def f():\n    try:\n        while True:\n            pass\n    except BaseException:\n        f()",
        "import re\ndef f():\n    re.match('(a+)+$', 'a' * 60 + 'b')",
    ],
)
def test_what_does_not_end_is_ended_in_time(box: Sandbox, program: str) -> None:
    outcome = box.run(program, "f()", timeout_s=0.1)
    assert outcome == Result(False, "timeout", "The time was up.")
    assert works(box)


def test_what_was_printed_before_the_end_of_the_time_is_kept(
    box: Sandbox, with_more_time: Callable[[Callable[[float], bool]], None]
) -> None:
    program = "print('here')\nwhile True:\n    pass"
    with_more_time(
        lambda seconds: box.run(program, "assert True", timeout_s=seconds).output == "here\nThe time was up."
    )


@pytest.mark.parametrize(
    "program", ["x = bytes(10**9)", "x = [0]\nwhile True:\n    x += x", "x = 1\nwhile True:\n    x <<= 10**9"]
)
def test_memory_is_bounded(box: Sandbox, program: str) -> None:
    outcome = box.run(program, "assert True")
    assert outcome.reason == "memory"
    assert 'File "solution.py", line' in outcome.output
    assert box.run("x = bytes(10**8)", "assert True").reason == "passed"
    assert box.run("x = bytes(10**8)", "assert True", memory_mb=100).reason == "memory"
    assert works(box)


def test_deep_recursion_is_an_error(any_box: Sandbox) -> None:
    outcome = any_box.run("def f(x):\n    return f(x + 1)", "f(0)")
    assert outcome.reason == "error"
    assert "RecursionError" in outcome.output


def test_output_is_cut_while_it_is_read(any_box: Sandbox) -> None:
    outcome = any_box.run("print('x' * 10**8)", "assert False")
    assert outcome.reason == "failed"
    assert 9_000 < len(outcome.output) <= 10_000
    assert "bytes more were printed]\nTraceback" in outcome.output
    assert outcome.output.endswith("assert False\nAssertionError\n")
    flood = any_box.run("import os\nwhile True:\n    os.write(1, b'\\xff' * 65536)", "assert True", timeout_s=0.3)
    assert flood.reason == "timeout"
    assert len(flood.output) <= 10_000
    assert works(any_box)


def test_long_tests_reach_a_program_whatever_it_reads(box: Sandbox) -> None:
    tests = "# " + "long " * 100_000 + "\nassert add(1, 2) == 3"
    assert box.run(ADD, tests).reason == "passed"
    deaf = "import time\nwhile True:\n    time.sleep(1)"
    assert box.run(deaf, tests, timeout_s=0.2).reason == "timeout"


def test_files_are_bounded(box: Sandbox) -> None:
    program = ATTEMPT + "def fill(name, size):\n    with open(name, 'wb') as file:\n        file.write(bytes(size))"
    assert box.run(program, "assert attempt(fill, 'a', 2**20) is None").reason == "passed"
    assert box.run(program, "assert attempt(fill, 'a', 2**25) == 'OSError'").reason == "passed"


def test_all_files_together_are_bounded(strong: Sandbox) -> None:
    program = "def f():\n    for k in range(9):\n        open(str(k), 'wb').write(bytes(2**23))"
    outcome = strong.run(program, "f()")
    full = (
        "The program wrote more than 32 MiB of files." if strong.isolation == "landlock" else "No space left on device"
    )
    assert full in outcome.output


@pytest.mark.parametrize(
    "leave",
    [
        "open('left', 'w').close()",
        "import os\nos.makedirs('left/a/b')\nos.symlink('/', 'left/c')\nos.chmod('left/a', 0)",
        "import os\nos.chmod('.', 0)",
        "import os\nfor k in range(1100):\n    open(f'left{k}', 'w').close()",
        "import os\nfor k in range(1100):\n    os.mkdir('d')\n    os.chdir('d')",
    ],
)
def test_what_a_program_leaves_behind_is_gone_for_the_next(box: Sandbox, leave: str) -> None:
    assert box.run(leave, "assert True").reason == "passed"
    outcome = box.run("import os\nopen('mine', 'w').close()", "assert os.listdir('.') == ['mine'], os.listdir('.')")
    assert outcome == Result(True, "passed", "")


# What a program cannot reach.

FORBIDDEN = {
    "fork": "os.fork()",
    "a bomb of processes": "[os.fork() for _ in range(1000)]",
    "a daemon": "(os.setsid(), os.fork())",
    "a program": "subprocess.run(['/usr/bin/true'])",
    "a spawned program": "os.posix_spawn('/usr/bin/true', ['true'], {})",
    "another program instead": "os.execv('/usr/bin/true', ['true'])",
    "a session": "os.setsid()",
    "a group": "os.setpgid(0, 0)",
    "the server's life": "os.kill(os.getppid(), 9)",
    "a signal to all": "os.kill(-1, 9)",
    "a signal to the group": "os.killpg(0, 9)",
    "a signal to the first": "os.kill(1, 9)",
    "a handle of the server": "os.pidfd_open(os.getppid())",
    "the network": "socket.create_connection(('127.0.0.1', 80))",
    "a socket": "socket.socket(socket.AF_UNIX)",
    "more memory": "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
    "the server's limits": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "hidden memory": "os.memfd_create('x')",
    "another root": "os.chroot('/')",
    "signals by the owner of a file": "fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "another signal for a file": "fcntl.fcntl(0, fcntl.F_SETSIG, 9)",
    "signals of a pipe": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETFL, os.O_ASYNC)",
    "signals by a request": "fcntl.ioctl(os.pipe()[0], 0x8901, b'1234')",
    "a lease": "fcntl.fcntl(os.open('x', os.O_CREAT), fcntl.F_SETLEASE, 1)",
    "news of a directory": "fcntl.fcntl(os.open('.', os.O_RDONLY), fcntl.F_NOTIFY, 1)",
    "attributes of the directory": "os.setxattr('.', 'user.x', b'1')",
    "processors of the server": "os.sched_setaffinity(os.getppid(), {0})",
    "its own processors": "os.sched_setaffinity(0, {0})",
    "the server's turn": "os.sched_setparam(os.getppid(), os.sched_param(0))",
    "a datagram": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
    "a device": "os.mknod('x', 0o60600, 0)",
    "a queue": "os.mkfifo('x')",
    "an owner": "os.chown('.', 1, 1)",
    "the end of a terminal": "os.tcsetpgrp(0, 1)",
}


@pytest.mark.parametrize("what", FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_is_forbidden_is_refused(box: Sandbox, what: str) -> None:
    program = "import fcntl, os, resource, socket, subprocess\n" + ATTEMPT
    refused = ("PermissionError", "ValueError") if "limit" in what else ("PermissionError",)
    assert box.run(program, f"assert attempt(lambda: {what}) in {refused}") == Result(True, "passed", "")
    assert works(box)


def test_system_calls_by_number_are_refused_too(box: Sandbox) -> None:
    program = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, *arguments):
    return getattr(libc, name)(*arguments) == -1 and ctypes.get_errno() == 1
"""
    tests = """
parent = os.getppid()
assert refused('ptrace', 16, parent, 0, 0)
assert refused('unshare', 0x10000000)
assert refused('mount', b'none', b'/', b'tmpfs', 0, None)
assert refused('process_vm_readv', parent, None, 0, None, 0, 0)
assert refused('shmget', 1, 100, 0o1600)
assert refused('msgget', 1, 0o1600) and refused('semget', 1, 1, 0o1600) and refused('inotify_init')
assert refused('syscall', 251, 1, parent, 0) or os.uname().machine != 'x86_64'  # ioprio_set
assert refused('prctl', 1, 9, 0, 0, 0) and refused('prctl', 4, 1, 0, 0, 0) and refused('personality', 0)
assert refused('mlockall', 1) and refused('sethostname', b'x', 1) and refused('klogctl', 3, None, 0)
"""
    assert box.run(program, tests) == Result(True, "passed", "")


def test_threads_work_and_end_with_the_program(box: Sandbox) -> None:
    program = "import threading\nfor _ in range(4):\n    threading.Thread(target=threading.Event().wait).start()"
    assert box.run(program, "import threading\nassert threading.active_count() == 5") == Result(True, "passed", "")


def test_threads_are_counted_and_bounded(box: Sandbox) -> None:
    program = """
import threading, time
threading.stack_size(65536)
def start(number):
    for started in range(number):
        try:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        except RuntimeError:
            return started
    return number
"""
    bomb = box.run(program, "assert start(2500) == 20", threads=20)
    assert (bomb.passed, bomb.usage.threads) == (True, 20)
    assert box.run(program, "assert start(3) == 3").usage.threads == 3
    assert box.run(program, "assert start(1) == 0", threads=0).passed


def test_a_bomb_of_threads_ends(box: Sandbox) -> None:
    program = "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,)).start()"
    assert box.run(program, "assert True", timeout_s=1.0).reason in ("error", "timeout", "memory", "crashed")
    assert works(box)


def test_the_environment_and_the_arguments_tell_nothing(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "xylophone")
    program = "import os, subprocess, sys\nprint(dict(os.environ), sys.argv, sys.stdin.read())"
    assert box.run(program, "assert True").output == "{} ['solution.py'] \n"


MODULES = [
    *("text2grad", "text2grad.errors", "text2grad_sandbox", "text2grad_sandbox.inside.server"),
    *("inside", "inside.job", "inside.kernel", "inside.server", "job", "kernel", "server"),
]


@pytest.mark.parametrize("name", MODULES)
def test_neither_this_package_nor_the_sandbox_can_be_imported(box: Sandbox, name: str) -> None:
    outcome = box.run("import importlib", f"importlib.import_module({name!r})")
    assert (outcome.reason, outcome.output.splitlines()[-1].partition(":")[0]) == ("error", "ModuleNotFoundError")
    outcome = box.run(f"import {name}", "assert True")
    assert (outcome.reason, outcome.output.splitlines()[-1].partition(":")[0]) == ("error", "ModuleNotFoundError")
    by_pytest = f"import pytest\ndef test_a():\n    with pytest.raises(ModuleNotFoundError):\n        import {name}\n"
    assert box.run(ADD, by_pytest).passed


def test_no_loaded_module_and_no_path_leads_to_this_package_or_the_sandbox(box: Sandbox) -> None:
    program = """
import sys
ours = ('text2grad', 'text2grad_sandbox', 'inside')
loaded = [name for name, module in sys.modules.items() if module and name.partition('.')[0] in ours]
origins = {name: getattr(module, '__file__', None) or '' for name, module in sys.modules.items()}
paths = [*sys.path, *sys.path_importer_cache, *sys.orig_argv]
# packages of a project below /tmp are shown below /sandbox/tmp
origins = [name for name, path in origins.items() if 'sandbox' in path.removeprefix('/sandbox/tmp/')]
paths = [path for path in paths if 'sandbox' in path.removeprefix('/sandbox/tmp/')]
"""
    tests = "assert not loaded, loaded\nassert not origins, origins\nassert not paths, paths"
    assert box.run(program, tests) == Result(True, "passed", "")


def test_this_package_cannot_be_imported_where_it_is_installed_beside_pytest(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    (site / "text2grad").mkdir(parents=True)
    (site / "text2grad" / "__init__.py").touch()
    (site / "beside.py").touch()
    monkeypatch.setattr(worker_module, "pytest_site", lambda: str(site))
    with Sandbox(workers=1, isolation=box.isolation, accept_weaker=True) as sandbox:
        assert sandbox.run("import beside", "assert True").passed
        outcome = sandbox.run("import text2grad", "assert True")
    assert (outcome.reason, outcome.output.splitlines()[-1].partition(":")[0]) == ("error", "ModuleNotFoundError")


def test_the_files_of_this_package_are_not_there(strong: Sandbox) -> None:
    package = Path(module.__file__).parents[1]
    if package.is_relative_to(worker_module.pytest_site() or "/nowhere"):
        pytest.skip("the package is installed beside pytest, whose packages a program sees")
    places = [str(path) for path in (package, *package.rglob("*.py"))]
    outcome = strong.run(ATTEMPT, f"for place in {places}:\n    assert attempt(open, place) in {GONE}, place")
    assert outcome == Result(True, "passed", "")


def test_other_files_are_not_there(strong: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("xylophone")
    places = [
        str(secret),
        __file__,
        "/etc/passwd",
        "/etc/hostname",
        "/proc/self/environ",
        "/home",
        "/root/.ssh",
        "/sys",
    ]
    outcome = strong.run(ATTEMPT, f"for place in {places}:\n    assert attempt(open, place) in {GONE}, place")
    assert outcome == Result(True, "passed", "")
    alone = "assert attempt(os.listdir, '/tmp') in ([], 'PermissionError')"
    assert strong.run("import os\n" + ATTEMPT, alone).passed


def test_no_file_that_is_there_can_be_changed(strong: Sandbox) -> None:
    python = str(Path(os.__file__).parent / "text2grad_was_here")
    places = ["/here", "/usr/here", "/dev/here", "/lib/here", python]
    outcome = strong.run(
        ATTEMPT,
        f"for place in {places}:\n    assert attempt(open, place, 'w') in ('OSError', 'PermissionError'), place",
    )
    assert outcome == Result(True, "passed", "")
    assert not Path(python).exists()
    assert strong.run("import os\nos.rmdir('/usr')", "assert True").reason == "error"


def test_packages_that_lie_in_tmp_are_seen_beside_a_program_s_own_empty_tmp(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as site:
        Path(site, "installed_in_tmp.py").write_text("here = __file__")
        monkeypatch.setattr(worker_module, "pytest_site", lambda: site)
        with Sandbox(workers=1, isolation=box.isolation, accept_weaker=True) as sandbox:
            empty = "import os; assert os.listdir('.') == []"
            for _ in range(2):  # what is cleaned up between two programs is not what is installed
                refused = "attempt(open, here, 'a') in ('OSError', 'PermissionError')"
                tests = f"from installed_in_tmp import here\n{empty}\nassert {refused}"
                reason = "failed" if box.isolation == "process" else "passed"  # which protects no file
                assert sandbox.run(ATTEMPT, tests).reason == reason


def test_unshare_says_that_python_itself_lies_in_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_find", lambda program: program)
    monkeypatch.setattr(worker_module, "python_path", lambda: "/tmp/bin/python3")
    with pytest.raises(
        worker_module.StartError, match=r"^Python is installed in /tmp \(/tmp/bin/python3\), where programs"
    ):
        worker_module.command("unshare", "/empty")
    bubblewrap = worker_module.command("bwrap", "/empty")
    assert bubblewrap[bubblewrap.index("--") + 1] == "/sandbox/tmp/bin/python3"
    assert "/sandbox/tmp/bin" in bubblewrap


def test_every_namespace_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter of system calls refuses sockets first, so that no program could tell that a namespace is missing."""
    monkeypatch.setattr(worker_module, "_find", lambda program: program)
    bubblewrap = worker_module.command("bwrap", "/empty")
    names = ("user", "pid", "net", "ipc", "uts", "cgroup-try")
    assert {f"--unshare-{name}" for name in names} | {"--die-with-parent", "--new-session"} <= set(bubblewrap)
    assert bubblewrap[bubblewrap.index("--cap-drop") + 1] == "ALL"
    unshare = set(worker_module.command("unshare", "/empty"))
    assert {"--user", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--mount", "--fork", "--kill-child"} <= unshare


# Many programs.


def test_many_programs_are_judged_in_order_and_none_loses_another(
    box: Sandbox, with_more_time: Callable[[Callable[[float], bool]], None]
) -> None:
    kill = ("import os\nos._exit(1)", "assert True")
    loop = ("while True: pass", "assert True")
    jobs = [GOOD, WRONG, kill, loop, ("x = bytes(10**10)", "assert 1"), ("import os\nos.chmod('.', 0)", "assert 1")] * 2
    with Sandbox(workers=3, isolation=box.isolation, accept_weaker=True) as many:
        reasons = [*["passed", "failed", "crashed", "timeout", "memory", "passed"] * 2, "passed"]
        with_more_time(
            lambda seconds: [each.reason for each in many.run_many([*jobs, GOOD], timeout_s=seconds)] == reasons
        )
        assert many.run_many([]) == []
        assert len(many._idle) <= 3


def test_a_worker_that_is_lost_is_replaced_and_its_program_tried_again(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_job = worker_module.Worker.send_job
    slow = ("import time\ntime.sleep(0.3)\n" + ADD, GOOD[1])
    with Sandbox(workers=2, isolation=box.isolation, accept_weaker=True) as pair:
        pair.run_many([GOOD, GOOD])
        for worker in pair._idle:  # dead before they are asked
            os.killpg(worker._process.pid, signal.SIGKILL)
        assert [outcome.reason for outcome in pair.run_many([GOOD, WRONG])] == ["passed", "failed"]
        first = pair._idle[0]

        def killed(worker: worker_module.Worker, *job: Any) -> bool:
            sent = send_job(worker, *job)
            if worker is first:  # dead while it works
                os.killpg(first._process.pid, signal.SIGKILL)
            return sent

        monkeypatch.setattr(worker_module.Worker, "send_job", killed)
        assert [outcome.reason for outcome in pair.run_many([slow] * 4)] == ["passed"] * 4
        assert first not in pair._idle


def test_the_second_try_has_a_new_worker(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    read = worker_module.Worker.read
    with Sandbox(workers=3, isolation=box.isolation, accept_weaker=True) as three:
        three.run_many([GOOD] * 3)
        dead = list(three._idle)

        def ended(worker: worker_module.Worker) -> dict[str, object] | None:
            if worker in dead:
                raise EOFError
            return read(worker)

        monkeypatch.setattr(worker_module.Worker, "read", ended)
        three.workers = 1
        assert [outcome.reason for outcome in three.run_many([GOOD])] == ["passed"]
        assert set(dead).isdisjoint(three._idle)


def test_a_program_that_loses_two_workers_has_crashed(any_box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    read = worker_module.Worker.read

    def killed_by_program(worker: worker_module.Worker) -> dict[str, object] | None:
        message = read(worker)
        if message is not None and message.get("printed") == "poison\n":
            raise EOFError
        return message

    monkeypatch.setattr(worker_module.Worker, "read", killed_by_program)
    poison = ("print('poison')", "assert True")
    with Sandbox(workers=2, isolation=any_box.isolation, accept_weaker=True) as pair:
        assert pair.run_many([GOOD, poison, GOOD]) == [
            Result(True, "passed", ""),
            Result(False, "crashed", "The sandbox ended with the program, twice."),
            Result(True, "passed", ""),
        ]


def test_a_worker_that_does_not_answer_is_ended(any_box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.3)
    with Sandbox(workers=1, isolation=any_box.isolation, accept_weaker=True) as sandbox:
        monkeypatch.setattr(worker_module.Worker, "send_job", lambda *a, **k: True)
        outcome = sandbox.run(*GOOD, timeout_s=0.1)
    assert outcome == Result(False, "timeout", "The time was up, and the sandbox did not answer.")


def test_a_sandbox_works_in_other_threads_than_the_one_that_made_it(box: Sandbox) -> None:
    made: list[Sandbox] = []
    maker = threading.Thread(target=lambda: made.append(Sandbox(isolation=box.isolation, accept_weaker=True)))
    maker.start()
    maker.join()  # bubblewrap ends with the thread that started it
    outcomes: list[Result] = []
    with made[0] as shared:
        users = [threading.Thread(target=lambda: outcomes.append(shared.run(*GOOD))) for _ in range(3)]
        for user in users:
            user.start()
        for user in users:
            user.join()
    assert outcomes == [Result(True, "passed", "")] * 3


def test_an_interrupted_run_leaves_no_stale_outcome(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(workers=2, isolation=box.isolation, accept_weaker=True) as pair:
        started: list[worker_module.Worker] = []

        def interrupted(workers: list[worker_module.Worker]) -> None:
            started.extend(workers)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(module, "_ready", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pair.run_many([WRONG, WRONG])
        assert all(worker._process.returncode is not None for worker in started)
        assert pair.run_many([GOOD, GOOD]) == [Result(True, "passed", "")] * 2


def test_a_closed_sandbox_leaves_no_process_and_no_directory_and_can_be_used_again(box: Sandbox) -> None:
    sandbox = Sandbox(workers=1, isolation=box.isolation, accept_weaker=True)
    worker = sandbox._idle[0]
    sandbox.close()
    assert worker._process.returncode is not None
    assert not Path(worker._directory).exists()
    assert works(sandbox)
    sandbox.close()


@pytest.mark.parametrize("program", [ADD, "while True: pass"])
def test_nothing_runs_on_when_the_process_that_asked_is_killed(box: Sandbox, program: str, tmp_path: Path) -> None:
    """The asking process prints its worker's directory and id; both it and the job hold the pipe's end."""
    script = (
        "import sys, time\nfrom text2grad_sandbox.sandbox import Sandbox\n"
        "box = Sandbox(workers=1, isolation=sys.argv[1], accept_weaker=True)\n"
        "print(box._idle[0]._process.pid, flush=True)\n"
        "box.run(sys.argv[2], 'assert True', timeout_s=50)\ntime.sleep(60)\n"
    )
    asking = subprocess.Popen(
        [sys.executable, "-c", script, box.isolation, program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # the killed cannot remove its directory
    )
    assert asking.stdout is not None
    group = int(asking.stdout.readline())
    time.sleep(0.1)
    asking.kill()
    asking.wait()
    asking.stdout.close()
    while _alive(group):  # the timeout of the test ends it
        time.sleep(0.02)


def _alive(group: int) -> bool:
    """Tell whether a process of the group (or a session under it) lives; those that only await their parent do not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


# Settings, and what is missing.


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SandboxError) as time_error:
        run_tests(*GOOD, timeout_s=float("nan"))
    assert str(time_error.value) == "timeout_s must be a positive number of seconds, got nan"
    with pytest.raises(SandboxError) as memory_error:
        run_tests(*GOOD, memory_mb=63)
    assert str(memory_error.value) == "memory_mb must be at least 64, which Python needs, got 63"
    with pytest.raises(SandboxError) as worker_error:
        Sandbox(workers=0)
    assert str(worker_error.value) == "a sandbox needs at least 1 worker, got 0"
    with pytest.raises(SandboxError) as weak_error:
        Sandbox(isolation="process")
    assert str(weak_error.value) == (
        'isolation "process" shows programs every file that you can read. Give accept_weaker=True if they may see '
        "them, or leave isolation out."
    )


def test_the_least_memory_is_enough(box: Sandbox) -> None:
    assert box.run(*GOOD, memory_mb=64).passed


def test_where_nothing_isolates_that_is_an_error_and_weaker_isolation_a_choice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare: not permitted' >&2\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "STRONG", ("bwrap", "unshare"))  # Landlock needs no program
    with pytest.raises(SandboxError) as error:
        run_tests(*GOOD)
    assert str(error.value) == (
        "code cannot be run in isolation on this machine. Tried bwrap: bwrap is not installed; unshare: unshare: "
        "not permitted. Install bubblewrap (apt-get install bubblewrap) and let users make namespaces, or use Linux "
        "6.2 with Landlock, or give "
        "accept_weaker=True if programs may see every file that you can read."
    )
    assert run_tests(*GOOD, accept_weaker=True) == Result(True, "passed", "")
    with Sandbox(accept_weaker=True) as sandbox:
        assert sandbox.isolation == "process"
        assert sandbox.workers == len(os.sched_getaffinity(0))


def test_a_worker_that_cannot_be_replaced_is_an_error(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(workers=1, isolation=box.isolation, accept_weaker=True) as sandbox:
        sandbox.close()
        monkeypatch.setattr(worker_module, "python_path", lambda: "/no/python")
        with pytest.raises(SandboxError, match=f"a worker of isolation {box.isolation} could not be started: .*/no"):
            sandbox.run(*GOOD)


def test_tests_that_need_pytest_where_it_is_missing_are_an_error(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "pytest_site", lambda: None)
    with pytest.raises(SandboxError) as error:
        box.run_many([GOOD, (ADD, "import pytest\ndef test_a(tmp_path):\n    assert add(1, 2) == 3")])
    assert str(error.value) == "the tests of job 1 need pytest, which is not installed: pip install pytest"
    assert works(box)


# The filter of system calls, run by an interpreter of our own.


def decided(code: bytes, arch: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Return what a filter says to a system call: the classic machine's five instructions that it uses."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    lines = [struct.unpack_from("<HBBI", code, at) for at in range(0, len(code), 8)]
    at, value = 0, 0
    while True:
        operation, yes, no, operand = lines[at]
        if operation == 0x06:
            return operand
        if operation == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
            at += 1
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[operation]
            at += 1 + (yes if holds else no)


REFUSED, ALLOWED, KILLED = 0x00050000 | errno.EPERM, 0x7FFF0000, 0x80000000


@pytest.mark.parametrize(("machine", "column", "arch"), [("x86_64", 0, 0xC000003E), ("aarch64", 1, 0xC00000B7)])
def test_the_common_filter_allows_a_list_of_calls_and_some_arguments(machine: str, column: int, arch: int) -> None:
    code = kernel.common_filter(machine)

    def ask(call: tuple[int | None, int | None], *arguments: int) -> int:
        number = call[column]
        return ALLOWED if number is None else decided(code, arch, number, arguments)

    listed = [*kernel.ALLOWED.values(), *kernel.METADATA.values(), *kernel.SERVER_ONLY.values()]
    assert {ask(call) for call in listed} == {ALLOWED}
    also = (kernel.KILL, kernel.TGKILL, kernel.CLONE, kernel.PRLIMIT, kernel.PRCTL, kernel.SECCOMP)
    conditional = {call[column] for call in (kernel.FCNTL, kernel.IOCTL, kernel.SOCKETPAIR, kernel.CLONE3)}
    known = {call[column] for call in (*listed, *also)} | conditional
    assert {decided(code, arch, number) for number in range(1_000) if number not in known} == {REFUSED}
    assert ask(kernel.CLONE3) == 0x00050000 | errno.ENOSYS
    owner, signal_number, lease, notify = 8, 10, 1024, 1026
    assert {ask(kernel.FCNTL, 3, command) for command in (owner, 15, signal_number, lease, notify)} == {REFUSED}
    assert {ask(kernel.FCNTL, 3, command) for command in (0, 1, 2, 3, 6, 1030)} == {ALLOWED}
    assert [ask(kernel.FCNTL, 3, 4, flags) for flags in (0o4000, 0x2000, 0x2000 | 0o4000)] == [
        ALLOWED,
        REFUSED,
        REFUSED,
    ]
    fioasync, fiosetown, tiocsti = 0x5452, 0x8901, 0x5412
    assert {ask(kernel.IOCTL, 3, request) for request in (fioasync, fiosetown, tiocsti)} == {REFUSED}
    assert ask(kernel.IOCTL, 3, 0x5401) == ALLOWED
    stream, datagram, internet = (1, 1 | 0o2000000), (1, 2), (2, 1)
    assert [ask(kernel.SOCKETPAIR, *pair) for pair in (stream, datagram, internet)] == [ALLOWED, REFUSED, REFUSED]
    assert decided(code, arch ^ 1, 1) == decided(code, 0x40000003, 1) == KILLED  # another machine's calls
    assert decided(code, arch, 0x40000001) == (KILLED if machine == "x86_64" else REFUSED)


@pytest.mark.parametrize(("machine", "column", "arch"), [("x86_64", 0, 0xC000003E), ("aarch64", 1, 0xC00000B7)])
def test_the_filter_of_a_program_refuses_processes_signals_and_limits(machine: str, column: int, arch: int) -> None:
    code = kernel.process_filter(machine, own_files=False, threads=kernel.NOTIFY)
    code = code.replace(struct.pack("=I", kernel.OWN_PID), struct.pack("=I", 77))

    def ask(call: tuple[int | None, int | None], *arguments: int) -> int:
        return decided(code, arch, call[column] or 0, arguments)

    assert ask(kernel.CLONE, 17) == REFUSED  # SIGCHLD alone: a process
    assert ask(kernel.CLONE, 0x3D0F00) == kernel.NOTIFY  # what the C library makes threads with
    for call in (kernel.KILL, kernel.TGKILL):
        assert [ask(call, to) for to in (77, 1, 0, 2**64 - 1, 2**64 - 77)] == [ALLOWED, *[REFUSED] * 4]
    assert ask(kernel.PRLIMIT, 0, 9, 0) == ALLOWED
    assert {ask(kernel.PRLIMIT, *a) for a in ((5, 9, 0), (0, 9, 1), (0, 9, 2**32))} == {REFUSED}
    assert [ask(kernel.PRCTL, option) for option in (15, 1, 4, 22)] == [ALLOWED, REFUSED, REFUSED, REFUSED]
    assert {ask(call) for call in (kernel.SECCOMP, *kernel.SERVER_ONLY.values())} == {REFUSED}
    success = 0x00050000  # error 0, without an effect
    assert {ask(call) for call in kernel.METADATA.values() if call[column] is not None} == {success}
    own = kernel.process_filter(machine, own_files=True, threads=kernel.REFUSE)
    assert decided(own, arch, kernel.METADATA["fchmod"][column] or 0) == ALLOWED
    assert decided(own, arch, kernel.CLONE[column], (0x3D0F00,)) == REFUSED


def test_other_machines_are_not_filtered() -> None:
    with pytest.raises(OSError, match="system calls of riscv64 cannot be filtered, only those of"):
        kernel.common_filter("riscv64")


def test_messages_to_the_server_are_ascii_whatever_a_program_holds() -> None:
    assert json.dumps("\ud800é").isascii()


def test_numbers_in_an_output_are_compared_by_value_on_request() -> None:
    for wanted, printed, equal in (
        ("6.0\n", "6", True),
        ("1 2.50", "  1 2.5 ", True),
        ("1 2", "1 2\n3", False),
        ("0.1", "0.10000001", False),
        ("yes", "Yes", False),
        ("a", "b", False),
        ("yes 1", "yes 1.0", False),  # not numbers alone
    ):
        for numbers in (True, False):
            case = Case(stdout=wanted, numbers=numbers)
            reason, _ = compare(case, "ended", printed, "", too_long=False)
            assert reason == ("passed" if equal and numbers else "failed"), (wanted, printed, numbers)
