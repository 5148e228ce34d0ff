"""Run jobs as processes of their own, several at a time.

A job starts when the job that it needs is finished; of several ready jobs the first in the given order starts. Finished
jobs are not run. The output of a job is appended to its log. If a job fails, or the user presses Ctrl-C, the jobs under
way get SIGTERM, and their ends are awaited: a training run finishes its step and saves it.

A job has one thread. With more, each spins until the others have done their part, and small models take fifty times as
long as soon as another process wants a core.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from text2grad.errors import TrainingError

POLL_SECONDS = 0.5


class Job(NamedTuple):
    """The work of one process.

    Attributes:
        command: () → the command line; called when the job starts.
        log: file to which its output is appended.
        finished: () → whether nothing is left to do; asked at the beginning, and before the job starts.
        needs: name of the job that must be finished before, or names.
        on_end: called with the job's name and the exit code when the process ends; returns whether the job is finished:
            if not, the jobs that need it do not run. None raises an error unless the code is 0.
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
        TrainingError: if a job fails that does not handle its end; holds the last line of its log.
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
                on_end = jobs[name].on_end or partial(refuse_failure, log=jobs[name].log)
                if on_end(name, process.returncode):
                    done.add(name)
    finally:
        _stop(running.values())
    for name in jobs:
        on_poll(name)


def refuse_failure(name: str, code: int, *, log: Path) -> bool:
    """Return True if the exit code of a job is 0.

    Raises:
        TrainingError: with the last line of the job's log.
    """
    if code:
        raise TrainingError(f"{name} stopped with exit code {code}: {last_line(log)}\nAll its output is in {log}")
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


def last_line(log: Path) -> str:
    """Return the last line of a job's log that is not blank."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def _start(job: Job) -> "subprocess.Popen[bytes]":
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as file:
        return subprocess.Popen(
            list(job.command()),
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C on a terminal reaches this process alone, which passes it on
        )
