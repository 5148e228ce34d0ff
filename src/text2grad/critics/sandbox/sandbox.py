"""Runs code that a model wrote, apart from everything else, and says whether its tests pass.

    run_tests("twice = lambda x: 2 * x", "assert twice(2) == 4")
    Outcome(passed=True, reason="passed", output="")

`tests` are statements that run among the names of the program, or functions `test_*` without arguments, called in
order; `from solution import twice` works too. Where they import pytest, have fixtures, decorators or test methods,
pytest runs them, and each must pass: a skipped test is not a passed one. The tests see the builtins as they were
before the program was loaded. Sets of strings have one order always, so that a program is judged alike each time.

Isolation, strongest first:
    bwrap     bubblewrap: own user, process, network, IPC, host and control-group namespaces; a root directory that
              shows only /usr, the libraries, Python and the packages beside pytest, read-only; a private /tmp of
              32 MiB; no capabilities
    unshare   the same by util-linux and mount calls (Linux 5.12)
    process   a separate process with limits, an empty environment and a directory of its own; only on request
In all three, where the kernel can filter system calls (always in the first two), a program starts no other process,
opens no socket, sends no signal to another and changes no limit. Its address space, processor time, wall-clock time,
file sizes (16 MiB) and open files (64) are bounded, its output is cut at 10,000 characters while it is read, and it is
killed at the end of its time from outside. What it left in /tmp is removed before the next program comes.

Covered: endless loops, bombs of processes, memory, output and files; reading other files, changing any, the network,
the environment; killing or tracing the sandbox; a death that takes the worker along (it is replaced, and no other
program's outcome is touched). A verdict of "passed" needs the tests to have run to their end and a token that is
random, made after the program's process, and readable there only over its channel: to exit early by sys.exit or
os._exit, to print or write a verdict anywhere, to close files or to patch what the sandbox uses is never a pass. The
tests are not in the process while the program is loaded.

Not covered: program and tests share a process, so code written against this very sandbox can play the protocol itself
(read token and tests from the channel, walk frames, write memory), and code may fool the tests: with objects that equal
everything, by patching a module that the tests use, or pytest where that runs them. Who learns from such outcomes
should look at what passes. Bugs of the kernel, timing side channels, the content of /usr and of the packages, and a
fair share of processor and disk are not covered either. `process` hides no file and protects none: a program can do
there what its user can, other than what is above.
"""

import math
import os
import re
import selectors
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from text2grad.critics.sandbox.inside.server import plan
from text2grad.critics.sandbox.worker import Isolation, StartError, Worker, pytest_site
from text2grad.errors import ConfigError, Text2GradError

Reason = Literal["passed", "failed", "error", "timeout", "memory", "crashed"]

GRACE_S = 5.0  # beyond a program's own time, for its worker to answer
LEAST_MEMORY_MB = 64
OUTPUT_CHARS = 10_000
STRONG: tuple[Isolation, ...] = ("bwrap", "unshare")


class SandboxError(Text2GradError):
    """Code cannot be run apart from everything else on this machine."""


@dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Attributes:
        passed: True if every test passed.
        reason: "passed"; "failed", an assertion of the tests did not hold; "error", the program could not be loaded
            or something else was raised; "timeout"; "memory", it asked for more than it may have; "crashed", its
            process ended before the tests did.
        output: what was printed, then the traceback of what went wrong, with lines of "solution.py" and "tests.py";
            at most 10,000 characters.
    """

    passed: bool
    reason: Reason
    output: str


class Sandbox:
    """Warm workers, each of which runs one program at a time. Use it in a `with` statement.

    Attributes:
        isolation: "bwrap", "unshare" or "process", see the module.
        workers: how many programs run at the same time.
    """

    def __init__(
        self, *, workers: int | None = None, accept_weaker: bool = False, isolation: Isolation | None = None
    ) -> None:
        """Start a first worker, so that what is missing is told at once.

        Args:
            workers: how many; the processor's cores unless told.
            accept_weaker: take isolation "process" where neither bwrap nor unshare works.
            isolation: the one to use; the strongest that works unless told.

        Raises:
            ConfigError: if there are no workers, or "process" is asked for without `accept_weaker`.
            SandboxError: if no isolation works here.
        """
        if workers is not None and workers < 1:
            raise ConfigError(f"a sandbox needs at least 1 worker, got {workers}")
        if isolation == "process" and not accept_weaker:
            raise ConfigError(
                'isolation "process" shows programs every file that you can read. Give accept_weaker=True if they may '
                "see them, or leave isolation out."
            )
        self.workers = workers or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        choice: tuple[Isolation, ...] = (*STRONG, "process") if accept_weaker else STRONG
        first = _first_worker(choice if isolation is None else (isolation,))
        self.isolation: Isolation = first.isolation
        self._idle = [first]

    def __enter__(self) -> Self:
        """Return the sandbox."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers."""
        self.close()

    def close(self) -> None:
        """End the workers. A sandbox that is used again starts new ones."""
        with self._lock:
            while self._idle:
                self._idle.pop().end()

    def run(self, program: str, tests: str, *, timeout_s: float = 2.0, memory_mb: int = 256) -> Outcome:
        """Return what became of one program; see `run_many`."""
        return self.run_many([(program, tests)], timeout_s=timeout_s, memory_mb=memory_mb)[0]

    def run_many(
        self, jobs: Sequence[tuple[str, str]], *, timeout_s: float = 2.0, memory_mb: int = 256
    ) -> list[Outcome]:
        """Return what became of programs, in their order.

        Args:
            jobs: pairs of a program and its tests.
            timeout_s: seconds that each may take, tests included.
            memory_mb: MiB of address space that each may have, about 30 of which Python takes.

        Raises:
            ConfigError: if a limit makes no sense.
            SandboxError: if tests need pytest, which is not installed, or a lost worker cannot be replaced.
        """
        _check_limits(timeout_s, memory_mb)
        if (
            pytest_site() is None
            and (wanting := next((k for k, job in enumerate(jobs) if "pytest" in job[1]), -1)) >= 0
        ):
            raise SandboxError(f"the tests of job {wanting} need pytest, which is not installed: pip install pytest")
        with self._lock:
            return self._run(jobs, timeout_s, memory_mb)

    def _run(self, jobs: Sequence[tuple[str, str]], timeout_s: float, memory_mb: int) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting = deque(range(len(jobs)))
        busy: dict[Worker, int] = {}
        lost: set[int] = set()
        try:
            self._start(min(self.workers, len(jobs)))
            while waiting or busy:
                while waiting and len(busy) < self.workers:
                    worker = self._worker()
                    program, tests = jobs[waiting[0]]
                    worker.deadline = time.monotonic() + timeout_s + GRACE_S
                    if worker.ask(program, tests, timeout_s=timeout_s, memory_mb=memory_mb):
                        busy[worker] = waiting.popleft()
                    else:  # it had ended before, with the thread that started it, say
                        worker.end()
                for worker in _ready(list(busy)):
                    try:
                        outcome = self._outcome(worker)
                    except EOFError:  # the program's doing, or not: that is seen when it happens again
                        job = busy.pop(worker)
                        worker.end()
                        if job in lost:
                            outcomes[job] = Outcome(False, "crashed", "The sandbox ended with the program, twice.")
                        else:
                            lost.add(job)
                            waiting.appendleft(job)
                        continue
                    if outcome is not None:
                        outcomes[busy.pop(worker)] = outcome
        finally:
            for worker in busy:  # nobody waits for what they are at
                worker.end()
        return [outcomes[k] for k in range(len(jobs))]

    def _outcome(self, worker: Worker) -> Outcome | None:
        """Return what a worker has to say, or None if it is not done. EOFError if it was lost."""
        if time.monotonic() > worker.deadline:
            worker.end()
            return Outcome(False, "timeout", "The time was up, and the sandbox did not answer.")
        message = worker.read()
        if message is None:
            return None
        if message["clean"]:
            self._idle.append(worker)
        else:
            worker.end()
        return Outcome(message["reason"] == "passed", message["reason"], message["output"][:OUTPUT_CHARS])

    def _start(self, number: int) -> None:
        """Have so many workers idle, started side by side."""
        new: list[Worker] = []
        try:
            while len(self._idle) + len(new) < number:
                new.append(Worker(self.isolation))
            for worker in new:
                worker.wait()
        except BaseException as error:
            for worker in new:
                worker.end()
            if isinstance(error, StartError):
                raise SandboxError(f"a worker of isolation {self.isolation} could not be started: {error}") from error
            raise
        self._idle += new

    def _worker(self) -> Worker:
        if not self._idle:
            self._start(1)
        return self._idle.pop()


def run_tests(
    program: str, tests: str, *, timeout_s: float = 2.0, memory_mb: int = 256, accept_weaker: bool = False
) -> Outcome:
    """Return what became of one program, in a sandbox of its own. For many, a `Sandbox` is much faster.

    Args:
        program: its source, importable by the tests as `solution`.
        tests: statements with assertions, or a file of tests.
        timeout_s: seconds that both may take together.
        memory_mb: MiB of address space.
        accept_weaker: run without isolation from files where nothing better works; see the module.

    Raises:
        ConfigError: if a limit makes no sense.
        SandboxError: if no isolation works here, or pytest is needed and not installed.
    """
    _check_limits(timeout_s, memory_mb)
    with Sandbox(workers=1, accept_weaker=accept_weaker) as sandbox:
        return sandbox.run(program, tests, timeout_s=timeout_s, memory_mb=memory_mb)


def _check_limits(timeout_s: float, memory_mb: int) -> None:
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ConfigError(f"timeout_s must be a positive number of seconds, got {timeout_s}")
    if memory_mb < LEAST_MEMORY_MB:
        raise ConfigError(f"memory_mb must be at least {LEAST_MEMORY_MB}, which Python needs, got {memory_mb}")


def _ready(workers: Sequence[Worker]) -> list[Worker]:
    """Return the workers that have something to say or are over their time, once there are any."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker, selectors.EVENT_READ, worker)
        left = min(worker.deadline for worker in workers) - time.monotonic()
        said = [key.data for key, _ in selector.select(max(left, 0))]
    return said or [worker for worker in workers if time.monotonic() > worker.deadline]


def _first_worker(choice: Sequence[Isolation]) -> Worker:
    reasons = []
    for isolation in choice:
        try:
            worker = Worker(isolation)
        except StartError as error:
            reasons.append(f"{isolation}: {error}")
            continue
        try:
            worker.wait()
        except BaseException as error:
            worker.end()
            if not isinstance(error, StartError):
                raise
            reasons.append(f"{isolation}: {error}")
        else:
            return worker
    raise SandboxError(
        "code cannot be run apart from everything else here. Tried "
        + "; ".join(reasons)
        + ". Install bubblewrap (apt-get install bubblewrap) and let users make namespaces, or give "
        "accept_weaker=True if programs may see every file that you can read."
    )


def with_names(tests: str) -> str:
    r"""Return tests that see the names of the program also where pytest runs them, as a module of their own.

    Example:
        >>> with_names("import pytest\ndef test_a(): assert f() == pytest.approx(0.5)").splitlines()[0]
        'from solution import *'
    """
    try:
        wanting = plan(tests)["pytest"] and not re.search(r"^\s*(from|import) solution\b", tests, re.MULTILINE)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return tests
    return f"from solution import *\n{tests}" if wanting else tests
