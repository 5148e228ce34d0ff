"""Run code that a model wrote, isolated from the machine, and return whether its tests pass.

    run_tests("twice = lambda x: 2 * x", "assert twice(2) == 4")
    Outcome(passed=True, reason="passed", output="")

`tests` are statements that run in the namespace of the program, or functions `test_*` without arguments, called in
order; `from solution import twice` works too. If they import pytest, or have fixtures, decorators or test methods,
pytest runs them, and every test must pass: a skipped test does not count as passed. The tests see the builtins as they
were before the program was loaded. The hash seed is fixed, so that a program always has the same outcome.

Isolation, strongest first:
    bwrap     bubblewrap: own user, process, network, IPC, host and control-group namespaces; a root directory that
              contains only /usr, the libraries, Python, the packages beside pytest and the sandbox's own modules, all
              read-only; a private /tmp of 32 MiB; no capabilities
    unshare   the same by util-linux and mount calls (Linux 5.12)
    process   a separate process with limits, an empty environment and a directory of its own; only on request
If the kernel can filter system calls (required by bwrap and unshare), a program cannot start a process, open a socket,
send a signal to another process or change a limit. Its address space, processor time, wall-clock time, file sizes
(16 MiB) and open files (64) are bounded, its output is cut at 10,000 characters while it is read, and it is killed from
outside when its time is over. Its files in /tmp are removed before the next program runs.

Protected against: endless loops; exhaustion by processes, memory, output and files; access to other files, the network
and the environment; killing or tracing the sandbox; a crash that ends the worker (it is replaced, and the outcomes of
other programs do not change). The verdict "passed" requires that the tests ran to their end, and a random token that
is made after the program's process and can be read there only over its channel. So a program does not pass by
sys.exit or os._exit, by printing or writing a verdict, by closing files or by patching modules of the sandbox. The
tests are not in the process while the program is loaded. Neither `text2grad` nor the sandbox's modules can be imported.

Not protected against: program and tests share a process, so code written against this sandbox can follow the protocol
itself (read token and tests from the channel, walk frames, write memory, put the sandbox's files on `sys.path`), and
code may deceive the tests: by objects that equal everything, or by patching pytest or a module that the tests use.
Inspect passing programs when you train on these outcomes. Bugs of the kernel, timing side channels, the contents of
/usr and of the packages, and a fair share of processor and disk are not covered either. `process` does not protect
files: a program has the rights of its user, except for the limits above.
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
from typing import Literal

from text2grad.critics.closing import Closing
from text2grad.critics.sandbox.inside.server import plan
from text2grad.critics.sandbox.worker import Isolation, StartError, Worker, pytest_site
from text2grad.errors import ConfigError, Text2GradError

Reason = Literal["passed", "failed", "error", "timeout", "memory", "crashed"]

GRACE_S = 5.0  # time for the worker to answer after the program's time limit
LEAST_MEMORY_MB = 64
OUTPUT_CHARS = 10_000
STRONG: tuple[Isolation, ...] = ("bwrap", "unshare")


class SandboxError(Text2GradError):
    """Code cannot be run in isolation on this machine."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program.

    Attributes:
        passed: True if every test passed.
        reason: "passed"; "failed": an assertion of the tests failed; "error": another exception, or the program could
            not be loaded; "timeout"; "memory": it exceeded its memory limit; "crashed": its process ended before the
            tests.
        output: the printed text, then the traceback of the error, with lines of "solution.py" and "tests.py"; at most
            10,000 characters.
    """

    passed: bool
    reason: Reason
    output: str


class Sandbox(Closing):
    """Warm workers, each of which runs one program at a time. Use it in a `with` statement.

    Attributes:
        isolation: "bwrap", "unshare" or "process", see the module.
        workers: number of programs that run at the same time.
    """

    def __init__(
        self, *, workers: int | None = None, accept_weaker: bool = False, isolation: Isolation | None = None
    ) -> None:
        """Start a first worker, so that a missing requirement is reported at once.

        Args:
            workers: number of workers; None takes the number of processor cores.
            accept_weaker: use isolation "process" if neither bwrap nor unshare works.
            isolation: the isolation to use; None takes the strongest that works.

        Raises:
            ConfigError: if `workers` is less than 1, or `isolation` is "process" without `accept_weaker`.
            SandboxError: if no isolation works on this machine.
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

    def close(self) -> None:
        """End the workers. Later use starts new workers."""
        with self._lock:
            while self._idle:
                self._idle.pop().end()

    def run(self, program: str, tests: str, *, timeout_s: float = 2.0, memory_mb: int = 256) -> Outcome:
        """Return the outcome of one program; see `run_many`."""
        return self.run_many([(program, tests)], timeout_s=timeout_s, memory_mb=memory_mb)[0]

    def run_many(
        self, jobs: Sequence[tuple[str, str]], *, timeout_s: float = 2.0, memory_mb: int = 256
    ) -> list[Outcome]:
        """Return the outcomes of programs, in order.

        Args:
            jobs: pairs of a program and its tests.
            timeout_s: time limit of a program with its tests, in seconds.
            memory_mb: limit of the address space in MiB, of which Python itself needs about 30.

        Raises:
            ConfigError: if a limit is out of range.
            SandboxError: if tests need pytest, which is not installed, or a lost worker cannot be replaced.
        """
        _check_limits(timeout_s, memory_mb)
        needing = [job for job, (_, tests) in enumerate(jobs) if "pytest" in tests]
        if needing and pytest_site() is None:
            raise SandboxError(f"the tests of job {needing[0]} need pytest, which is not installed: pip install pytest")
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
                    if worker.send_job(program, tests, timeout_s=timeout_s, memory_mb=memory_mb):
                        busy[worker] = waiting.popleft()
                    else:  # it had already ended, for example with the thread that started it
                        worker.end()
                for worker in _ready(list(busy)):
                    try:
                        outcome = self._outcome(worker)
                    except EOFError:  # the program's fault only if it happens again
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
            for worker in busy:  # their outcomes are no longer needed
                worker.end()
        return [outcomes[k] for k in range(len(jobs))]

    def _outcome(self, worker: Worker) -> Outcome | None:
        """Return the outcome from a worker, or None if it is not ready. Raises EOFError if the worker ended."""
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
        """Start workers in parallel until `number` are idle."""
        try:
            self._idle += _started(self.isolation, number - len(self._idle))
        except StartError as error:
            raise SandboxError(f"a worker of isolation {self.isolation} could not be started: {error}") from error

    def _worker(self) -> Worker:
        if not self._idle:
            self._start(1)
        return self._idle.pop()


def run_tests(
    program: str, tests: str, *, timeout_s: float = 2.0, memory_mb: int = 256, accept_weaker: bool = False
) -> Outcome:
    """Return the outcome of one program, in a sandbox of its own. For many programs, a `Sandbox` is much faster.

    The limits are those of `Sandbox.run_many`. `accept_weaker` runs the program without protection of files if no
    stronger isolation works; see the module.

    Raises:
        ConfigError: if a limit is out of range.
        SandboxError: if no isolation works on this machine, or pytest is needed and not installed.
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
    """Wait, then return the workers that have sent data or that exceeded their time limit."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker, selectors.EVENT_READ, worker)
        left = min(worker.deadline for worker in workers) - time.monotonic()
        readable = [key.data for key, _ in selector.select(max(left, 0))]
    return readable or [worker for worker in workers if time.monotonic() > worker.deadline]


def _started(isolation: Isolation, number: int) -> list[Worker]:
    """Start workers in parallel, and return them when all are ready; after an error none stays."""
    workers: list[Worker] = []
    try:
        for _ in range(number):
            workers.append(Worker(isolation))
        for worker in workers:
            worker.wait()
    except BaseException:
        for worker in workers:
            worker.end()
        raise
    return workers


def _first_worker(choice: Sequence[Isolation]) -> Worker:
    reasons = []
    for isolation in choice:
        try:
            return _started(isolation, 1)[0]
        except StartError as error:
            reasons.append(f"{isolation}: {error}")
    raise SandboxError(
        "code cannot be run in isolation on this machine. Tried "
        + "; ".join(reasons)
        + ". Install bubblewrap (apt-get install bubblewrap) and let users make namespaces, or give "
        "accept_weaker=True if programs may see every file that you can read."
    )


def with_names(tests: str) -> str:
    r"""Add an import of the program's names to tests that pytest will run, as a module of their own.

    Example:
        >>> with_names("import pytest\ndef test_a(): assert f() == pytest.approx(0.5)").splitlines()[0]
        'from solution import *'
    """
    try:
        needs_import = plan(tests)["pytest"] and not re.search(r"^\s*(from|import) solution\b", tests, re.MULTILINE)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return tests
    return f"from solution import *\n{tests}" if needs_import else tests
