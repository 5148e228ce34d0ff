"""Run code that a model wrote, isolated from the machine, and return whether its tests pass.

    run_tests("twice = lambda x: 2 * x", "assert twice(2) == 4")
    Result(passed=True, reason="passed", output="", mode="separate", ...)

docs/critics.md is the manual: kinds of tests, modes, isolations, limits, and what each protects against. In short:

    tests         statements, functions `test_*`, files for pytest or unittest, or pairs of input and output
    separate      the judge runs the tests in a process of its own, and reaches the program by calls and plain values:
                  nothing that the program does to its interpreter changes the verdict
    shared        program and tests in one process, for tests that look into the program; a program that is written
                  against the sandbox can forge the verdict
    script        the program reads standard input; its output is compared outside
    bwrap, unshare, landlock, process   the isolations, strongest first; "process" hides no files, only on request
"""

import math
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, get_args

from text2grad_sandbox.cases import Case, compare, read_cases
from text2grad_sandbox.planning import Plan, plan, to_message
from text2grad_sandbox.worker import TMP_BYTES, Isolation, StartError, Worker, pytest_site

Reason = Literal["passed", "failed", "error", "timeout", "memory", "crashed"]
Mode = Literal["separate", "shared", "script"]
Tests = str | Sequence[Case]

GRACE_S = 5.0  # time for the worker to answer after the program's time limit
LEAST_MEMORY_MB = 64
OUTPUT_CHARS = 10_000
MOST_PROGRAM_BYTES, MOST_TESTS_BYTES = 2**20, 2**24
STRONG: tuple[Isolation, ...] = ("bwrap", "unshare", "landlock")


class SandboxError(Exception):
    """Code cannot be run in isolation on this machine."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a program used, its tests included; of the worst of several cases.

    Attributes:
        wall_s: time of the clock, in seconds.
        cpu_s: time of the processor, in seconds.
        memory_mb: the most memory that the program's process had in use, Python included, in MiB.
        output_bytes: printed bytes, also those beyond the limit.
        files: files and directories that it left; they are removed.
        file_bytes: their size.
        threads: threads that it and its tests started. Processes cannot be started.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    output_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    threads: int = 0


@dataclass(frozen=True)
class Result:
    """The result of a program. Results are equal if verdict and output are equal.

    Attributes:
        passed: True if every test passed.
        reason: "passed"; "failed": an assertion of the tests failed, or the output is wrong; "error": another
            exception, or the program could not be loaded; "timeout"; "memory": it exceeded its memory limit;
            "crashed": its process ended before the tests.
        output: the printed text, then the traceback of the error, with lines of "solution.py" and "tests.py"; at most
            10,000 characters, unless `run_many` was given more.
        mode: "separate", "shared" or "script", see the module.
        own_answers: in mode "separate", the number of comparisons between two objects of the program, which only the
            program's classes can decide. A pass with 0 depends on no word of the program.
        usage: see `Usage`.
    """

    passed: bool
    reason: Reason
    output: str
    mode: Mode = field(default="separate", compare=False)
    own_answers: int = field(default=0, compare=False)
    usage: Usage = field(default=Usage(), compare=False)

    @property
    def forgeable(self) -> bool:
        """True for a pass that a program written against the sandbox could have forged."""
        return self.passed and (self.mode == "shared" or self.own_answers > 0)


@dataclass(frozen=True, slots=True)
class _Job:
    """A program with its tests, ready to run: one request, or one for each case."""

    program: bytes
    plan: Plan | None = None
    tests: bytes = b""
    cases: tuple[Case, ...] = ()
    mode: Mode = "separate"

    def request(self, number: int, limits: dict[str, float]) -> tuple[dict[str, Any], bytes]:
        """Return the request for the case of this number, and what goes with it: tests, or standard input."""
        if self.plan is not None:
            return {"mode": self.mode, "limits": limits, "plan": to_message(self.plan)}, self.tests
        case = self.cases[number]
        request = {"mode": "script", "limits": limits, "arguments": list(case.arguments)}
        return request, case.stdin.encode("utf-8", "surrogatepass")


class Sandbox:
    """Warm workers, each of which runs one program at a time. Use it in a `with` statement.

    Attributes:
        isolation: "bwrap", "unshare", "landlock" or "process", see the module.
        workers: number of programs that run at the same time.
    """

    def __init__(
        self, *, workers: int | None = None, accept_weaker: bool = False, isolation: Isolation | None = None
    ) -> None:
        """Start a first worker, so that a missing requirement is reported at once.

        Args:
            workers: number of workers; None takes the number of processor cores.
            accept_weaker: use isolation "process" if no stronger one works.
            isolation: the isolation to use; None takes the strongest that works.

        Raises:
            SandboxError: if `workers` is less than 1, `isolation` is "process" without `accept_weaker`, or no isolation
                works on this machine.
        """
        if workers is not None and workers < 1:
            raise SandboxError(f"a sandbox needs at least 1 worker, got {workers}")
        if isolation == "process" and not accept_weaker:
            raise SandboxError(
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
        """Return the sandbox itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers."""
        self.close()

    def close(self) -> None:
        """End the workers. Later use starts new workers."""
        with self._lock:
            self._end_idle()

    def run(self, program: str, tests: Tests, *, timeout_s: float = 2.0, memory_mb: int = 256, **more: Any) -> Result:
        """Return the result of one program; see `run_many`."""
        return self.run_many([(program, tests)], timeout_s=timeout_s, memory_mb=memory_mb, **more)[0]

    def run_many(
        self,
        jobs: Sequence[tuple[str, Tests]],
        *,
        timeout_s: float = 2.0,
        memory_mb: int = 256,
        output_kb: int = 1024,
        output_chars: int = OUTPUT_CHARS,
        files_mb: int = 32,
        threads: int = 128,
        mode: Literal["separate", "shared"] | None = None,
        on_result: Callable[[], None] = lambda: None,
    ) -> list[Result]:
        """Return the results of programs, in order.

        Args:
            jobs: pairs of a program and its tests: source, cases, or cases as JSON text (`read_cases`).
            timeout_s: time limit of a program with its tests, or with one case, in seconds.
            memory_mb: limit of the address space in MiB, of which Python itself needs about 30.
            output_kb: limit of the printed text of a case in KiB; of other programs, longer text is only cut.
            output_chars: most characters of `Result.output` where there are no cases, at least 10,000.
            files_mb: limit of all files in MiB, at most 32; half of it for one file.
            threads: limit of the threads that are started.
            mode: None runs tests in mode "shared" only if they need it (`docs/critics.md`).
            on_result: called once for each program that is judged, for a progress bar.

        Raises:
            SandboxError: if a limit is out of range, tests need pytest, which is not installed, or a lost worker cannot
                be replaced.
        """
        if output_chars < OUTPUT_CHARS:
            raise SandboxError(f"output_chars must be at least {OUTPUT_CHARS}, got {output_chars}")
        _check_limits(timeout_s, memory_mb, output_kb=output_kb, files_mb=files_mb, threads=threads, mode=mode)
        prepared = [_prepared(program, tests, mode) for program, tests in jobs]
        needing = [k for k, job in enumerate(prepared) if isinstance(job, _Job) and job.plan and job.plan.pytest]
        if needing and pytest_site() is None:
            raise SandboxError(f"the tests of job {needing[0]} need pytest, which is not installed: pip install pytest")
        limits = {"timeout_s": timeout_s, "memory_mb": memory_mb, "output_kb": output_kb, "files_mb": files_mb}
        with self._lock:
            return self._run(prepared, {**limits, "threads": threads, "output_chars": output_chars}, on_result)

    def _run(
        self, jobs: Sequence["_Job | Result"], limits: dict[str, float], on_result: Callable[[], None]
    ) -> list[Result]:
        results: dict[int, Result] = {k: job for k, job in enumerate(jobs) if isinstance(job, Result)}
        waiting = deque((k, 0) for k in range(len(jobs)) if k not in results)
        busy: dict[Worker, tuple[int, int]] = {}
        lost: set[int] = set()
        for _ in results:
            on_result()
        try:
            self._start(min(self.workers, len(waiting)))
            while waiting or busy:
                while waiting and len(busy) < self.workers:
                    worker = self._worker()
                    if self._send(worker, jobs[waiting[0][0]], waiting[0][1], limits):
                        busy[worker] = waiting.popleft()
                    else:  # it had already ended, for example with the thread that started it
                        worker.end()
                for worker in _ready(list(busy)):
                    message = self._message(worker)
                    if message is None:
                        continue
                    number, case = busy.pop(worker)
                    if message.get("lost") and number not in lost:  # the program's fault only if it happens again
                        lost.add(number)
                        self._end_idle()  # the same cause may have ended them: the second try has a new worker
                        waiting.appendleft((number, case))
                        continue
                    results[number], more = _judged(jobs[number], case, message, limits, results.get(number))
                    if more:
                        waiting.appendleft((number, case + 1))
                    else:
                        on_result()
        finally:
            for worker in busy:  # their results are no longer needed
                worker.end()
        return [results[k] for k in range(len(jobs))]

    def _send(self, worker: Worker, job: "_Job | Result", case: int, limits: dict[str, float]) -> bool:
        assert isinstance(job, _Job)
        worker.deadline = time.monotonic() + limits["timeout_s"] + GRACE_S
        request, tests = job.request(case, limits)
        return worker.send_job(request, job.program, tests)

    def _message(self, worker: Worker) -> dict[str, Any] | None:
        """Return the message from a worker, or None if it is not ready."""
        if time.monotonic() > worker.deadline:
            worker.end()
            return {"reason": "timeout", "report": "The time was up, and the sandbox did not answer."}
        try:
            message = worker.read()
        except EOFError:
            worker.end()
            return {"reason": "crashed", "report": "The sandbox ended with the program, twice.", "lost": True}
        if message is None:
            return None
        if message["clean"]:
            self._idle.append(worker)
        else:
            worker.end()
        return message

    def _start(self, number: int) -> None:
        """Start workers in parallel until `number` are idle."""
        try:
            self._idle += _started(self.isolation, number - len(self._idle))
        except StartError as error:
            raise SandboxError(f"a worker of isolation {self.isolation} could not be started: {error}") from error

    def _end_idle(self) -> None:
        while self._idle:
            self._idle.pop().end()

    def _worker(self) -> Worker:
        if not self._idle:
            self._start(1)
        return self._idle.pop()


def run_tests(
    program: str, tests: Tests, *, timeout_s: float = 2.0, memory_mb: int = 256, accept_weaker: bool = False
) -> Result:
    """Return the result of one program, in a sandbox of its own. For many programs, a `Sandbox` is much faster.

    The limits are those of `Sandbox.run_many`. `accept_weaker` runs the program without protection of files if no
    stronger isolation works; see the module.

    Raises:
        SandboxError: if a limit is out of range, no isolation works on this machine, or pytest is needed and not
            installed.
    """
    _check_limits(timeout_s, memory_mb)
    with Sandbox(workers=1, accept_weaker=accept_weaker) as sandbox:
        return sandbox.run(program, tests, timeout_s=timeout_s, memory_mb=memory_mb)


def isolations() -> dict[str, str]:
    """Return the isolations, strongest first, each with "" if it works on this machine, or why it does not."""
    trouble = {}
    for isolation in get_args(Isolation):
        try:
            _started(isolation, 1)[0].end()
            trouble[isolation] = ""
        except StartError as error:
            trouble[isolation] = " ".join(str(error).split())
    return trouble


def reason_not_to_run(tests: Tests) -> str:
    """Return why tests cannot be run, whatever the program; empty if they can."""
    job = _prepared("", tests, None)
    return job.output if isinstance(job, Result) else ""


def _prepared(program: str, tests: Tests, mode: Literal["separate", "shared"] | None) -> _Job | Result:
    """Return a job, or the result of a job that cannot run."""
    code = program.encode("utf-8", "surrogatepass")
    if len(code) > MOST_PROGRAM_BYTES:
        text = f"The program was not run: it has {len(code)} bytes; the sandbox runs at most {MOST_PROGRAM_BYTES}."
        return Result(False, "error", text)
    cases = read_cases(tests) if isinstance(tests, str) else tuple(tests)
    if cases is not None:
        return _Job(code, cases=cases, mode="script") if cases else Result(False, "error", "There are no cases.")
    assert isinstance(tests, str)
    source = tests.encode("utf-8", "surrogatepass")
    if len(source) > MOST_TESTS_BYTES:
        text = f"tests.py cannot be run: it has {len(source)} bytes; the sandbox runs at most {MOST_TESTS_BYTES}."
        return Result(False, "error", text)
    try:
        planned = plan(tests)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return Result(False, "error", f"tests.py cannot be run: {type(error).__name__}: {error}"[:1000])
    return _Job(code, planned, source, mode=mode or ("shared" if planned.shared else "separate"))


def _judged(
    job: _Job | Result, number: int, message: dict[str, Any], limits: dict[str, float], before: Result | None
) -> tuple[Result, bool]:
    """Return the result of a job after one message, and whether more of its cases are to run."""
    assert isinstance(job, _Job)
    usage = _usage(message, before)
    reason, report, printed = message["reason"], message["report"], message.get("printed", "")
    if job.plan is None:
        if reason in ("ended", "error"):
            too_long = usage.output_bytes > 1024 * limits["output_kb"]
            reason, report = compare(job.cases[number], reason, printed, report, too_long=too_long)
        if reason != "passed":
            report = f"Case {number + 1} of {len(job.cases)}: {report}"
        return Result(reason == "passed", reason, report[:OUTPUT_CHARS], "script", 0, usage), (
            reason == "passed" and number + 1 < len(job.cases)
        )
    most = int(limits["output_chars"])
    shown = printed[: most - len(report) - 100]
    left_out = usage.output_bytes - len(shown.encode("utf-8", "replace"))
    if (left_out > 0 and len(shown) < len(printed)) or usage.output_bytes > 1024 * limits["output_kb"]:
        shown += f"\n[{left_out} bytes more were printed]"
    gap = "\n" if shown and not shown.endswith("\n") else ""
    output = (shown + gap + report)[:most]
    return Result(reason == "passed", reason, output, job.mode, message.get("own_answers", 0), usage), False


def _usage(message: dict[str, Any], before: Result | None) -> Usage:
    """Return the usage of a case, or the most of it and the cases before it."""
    used = message.get("usage", {})
    files, file_bytes = message.get("files") or (0, 0)
    now = Usage(
        round(used.get("wall_s", 0.0), 4),
        round(used.get("cpu_s", 0.0), 4),
        round(used.get("memory_mb", 0.0), 1),
        used.get("output_bytes", 0),
        files,
        file_bytes,
        used.get("threads", 0),
    )
    if before is None:
        return now
    return Usage(*(max(getattr(now, name), getattr(before.usage, name)) for name in Usage.__dataclass_fields__))


def _check_limits(
    timeout_s: float,
    memory_mb: int,
    *,
    output_kb: int = 1,
    files_mb: int = 1,
    threads: int = 0,
    mode: str | None = None,
) -> None:
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise SandboxError(f"timeout_s must be a positive number of seconds, got {timeout_s}")
    if memory_mb < LEAST_MEMORY_MB:
        raise SandboxError(f"memory_mb must be at least {LEAST_MEMORY_MB}, which Python needs, got {memory_mb}")
    if output_kb < 1:
        raise SandboxError(f"output_kb must be at least 1, got {output_kb}")
    if not 1 <= files_mb <= TMP_BYTES // 2**20:
        raise SandboxError(f"files_mb must be between 1 and {TMP_BYTES // 2**20}, got {files_mb}")
    if threads < 0:
        raise SandboxError(f"threads must be at least 0, got {threads}")
    if mode not in (None, "separate", "shared"):
        raise SandboxError(f'mode must be "separate", "shared" or None, got {mode!r}')


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
        + ". Install bubblewrap (apt-get install bubblewrap) and let users make namespaces, or use Linux 6.2 "
        "with Landlock, or give "
        "accept_weaker=True if programs may see every file that you can read."
    )
