"""Jobs that are processes of their own, run side by side as far as the cores go.

A job starts when the one that it needs is finished, the first of those that can in the order they are given. One that
is finished already is not run. What a job prints goes to its log; if one fails, the others are stopped.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from text2grad.errors import TrainingError

POLL_SECONDS = 0.5


class Job(NamedTuple):
    """What one process does.

    Attributes:
        command: returns what is run, asked when it starts.
        log: what it prints is appended there.
        finished: tells that nothing is left to do.
        needs: name of the job that must be finished before.
        threads: of its sums; None leaves it to the environment.
    """

    command: Callable[[], Sequence[str]]
    log: Path
    finished: Callable[[], bool]
    needs: str | None = None
    threads: int | None = 1


def run_jobs(jobs: Mapping[str, Job], look: Callable[[str], None], *, at_once: int) -> None:
    """Run jobs until all are finished.

    Args:
        jobs: by name.
        look: called with each name now and then, and at the end.
        at_once: how many processes.

    Raises:
        TrainingError: if one of them fails; its log is named, and the others are stopped.
    """
    done = {name for name, job in jobs.items() if job.finished()}
    waiting, running = [name for name in jobs if name not in done], dict[str, "subprocess.Popen[bytes]"]()
    try:
        while waiting or running:
            ready = [name for name in waiting if jobs[name].needs in (None, *done)]
            for name in ready[: at_once - len(running)]:
                waiting.remove(name)
                running[name] = _start(jobs[name])
            for name in jobs:
                look(name)
            time.sleep(POLL_SECONDS)
            for name, process in list(running.items()):
                if process.poll() is None:
                    continue
                if process.returncode:
                    raise TrainingError(
                        f"{name} stopped with exit code {process.returncode}; its output is in {jobs[name].log}"
                    )
                del running[name]
                done.add(name)
    finally:
        for process in running.values():
            process.terminate()
            process.wait()
    for name in jobs:
        look(name)


def _start(job: Job) -> "subprocess.Popen[bytes]":
    job.log.parent.mkdir(parents=True, exist_ok=True)
    threads = {} if job.threads is None else {"OMP_NUM_THREADS": str(job.threads)}
    with job.log.open("ab") as file:
        return subprocess.Popen(
            list(job.command()), stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **threads}
        )
