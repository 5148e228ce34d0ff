"""Run jobs as processes of their own, several at a time.

A job starts when the jobs that it needs are finished; of several ready jobs the first in the given order starts. The
output of a job is appended to its log. If a job fails, or the user presses Ctrl-C, the jobs under way get SIGTERM, and
their ends are awaited: a training run finishes its step and saves it.

A job has one thread. With more, each spins until the others have done their part, and small models take fifty times as
long as soon as another process wants a core.
"""

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from text2grad.errors import Text2GradError, TrainingError
from text2grad.progress import note

POLL_SECONDS = 0.5
STARTED = "---- started again: "
"""Begins the line of a log that names the command of a further process."""


class Job(NamedTuple):
    """The work of one process.

    Attributes:
        command: () → the command line; called when the job starts.
        log: file to which its output is appended.
        finished: () → whether nothing is left to do; asked at the beginning, and before the job starts.
        needs: name of the job that must be finished before, or names.
        on_end: called with the job's name and the exit code when the process ends; returns whether the job is finished:
            if not, the jobs that need it do not run. None raises an error unless it has done its work (`is_done`).
    """

    command: Callable[[], Sequence[str]]
    log: Path
    finished: Callable[[], bool]
    needs: str | Sequence[str] | None = None
    on_end: Callable[[str, int], bool] | None = None

    @property
    def needed(self) -> set[str]:
        """The names of the jobs that must be finished before."""
        return {self.needs} if isinstance(self.needs, str) else set(self.needs or ())


def run_jobs(jobs: Mapping[str, Job], on_poll: Callable[[str], None], *, at_once: int) -> None:
    """Run jobs until all are finished.

    Args:
        jobs: by name.
        on_poll: called with the name of each job, every `POLL_SECONDS` and at the end.
        at_once: the most processes at a time.

    Raises:
        TrainingError: if a job fails that does not handle its end; holds the error in its log.
    """
    done = {name for name, job in jobs.items() if job.finished()}
    waiting, running = [name for name in jobs if name not in done], dict[str, "subprocess.Popen[bytes]"]()
    try:
        while running or any(jobs[name].needed <= done for name in waiting):
            ready = [name for name in waiting if jobs[name].needed <= done]
            for name in ready[: at_once - len(running)]:
                waiting.remove(name)
                if jobs[name].finished():  # by the end of a job that it needs
                    done.add(name)
                else:
                    running[name] = _start(jobs[name])
            for name in jobs:
                on_poll(name)
            time.sleep(POLL_SECONDS)
            for name, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[name]
                if (jobs[name].on_end or partial(_end, jobs[name]))(name, process.returncode):
                    done.add(name)
    finally:
        _stop(running.values())
    for name in jobs:
        on_poll(name)


def is_done(name: str, code: int, *, complete: Callable[[], bool], good: Collection[int] = (0,)) -> bool:
    """Return whether a process has done its work: it says so by its exit code, or a signal ended it behind its files.

    Libraries may crash at the exit of the interpreter, when all files are written; a warning tells it.

    Args:
        name: of the job.
        code: exit code; negative for a signal.
        complete: () → whether all files of the work are there.
        good: exit codes of a process that has done its work.
    """
    if code in good:
        return True
    done = code < 0 and complete()
    if done:
        note(f"{name} stopped with exit code {code} behind its results, which are complete and count", warning=True)
    return done


def _end(job: Job, name: str, code: int) -> bool:
    """Return True if a job has done its work; else raise the error in its log."""
    if not is_done(name, code, complete=job.finished):
        raise TrainingError(
            f"{name} stopped with exit code {code}: {error_in(job.log)}\nAll its output is in {job.log}"
        )
    return True


def _stop(processes: Iterable["subprocess.Popen[bytes]"]) -> None:
    """Ask processes to end, and wait; a further Ctrl-C ends them at once."""
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()
        raise


def error_in(log: Path) -> str:
    """Return the line in which the last process of a job says why it ended.

    It is the last line that begins as an error of the command line: warnings of libraries may stand behind it. Without
    such a line it is the last that is not blank.
    """
    kinds = [Text2GradError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    beginnings = (*(f"{kind.__name__}: " for kind in kinds), "out of memory; ", "cannot read or write ")
    _, started, output = log.read_text("utf-8", "replace").rpartition(f"\n{STARTED}")
    lines = [line for line in output.splitlines()[bool(started) :] if line.strip()]  # behind the command
    errors = [line for line in lines if line.startswith(beginnings)]
    return next(reversed(errors or lines), "no output").strip()


def _start(job: Job) -> "subprocess.Popen[bytes]":
    job.log.parent.mkdir(parents=True, exist_ok=True)
    command = list(job.command())
    with job.log.open("ab") as file:
        if file.tell():  # an earlier process may have been killed within a line
            file.write(f"\n{STARTED}{shlex.join(command)}\n".encode())
            file.flush()
        return subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C on a terminal reaches this process alone; it ends the jobs
        )
