"""Processes side by side: what waits for what, what is not run again, and what a failure does to the others."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evidence.plans.jobs import STARTED, Job, error_in, run_jobs
from text2grad.errors import TrainingError

JOURNAL = "import os, sys, time; log = open(sys.argv[1], 'a'); print(sys.argv[2], 'begins', file=log, flush=True); "
JOURNAL += "time.sleep(float(sys.argv[3])); print(sys.argv[2], 'ends', os.environ.get('OMP_NUM_THREADS'), file=log)"


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    def make(
        name: str, *, seconds: float = 0.0, code: str = JOURNAL, finished: bool = False, **settings: object
    ) -> Job:
        command = [sys.executable, "-c", code, str(tmp_path / "journal"), name, str(seconds)]
        return Job(lambda: command, tmp_path / "logs" / f"{name}.log", lambda: finished, **settings)  # type: ignore[arg-type]

    return make


def journal(path: Path) -> list[str]:
    return (path / "journal").read_text().splitlines()


def test_a_job_waits_for_the_one_it_needs_and_a_finished_one_is_not_run(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # a job has one thread in any case
    looked: list[str] = []
    jobs = {
        "method": job("method", needs="models"),
        "models": job("models", seconds=0.3),
        "other": job("other", needs="there"),
        "there": job("there", finished=True),
    }
    run_jobs(jobs, looked.append, at_once=3)
    lines = journal(tmp_path)
    assert lines.index("models ends 1") < lines.index("method begins")
    assert set(lines) == {f"{n} {e}" for n in ("models", "method", "other") for e in ("begins", "ends 1")}
    assert looked[-4:] == list(jobs)


def test_no_more_run_at_once_than_may(job: Callable[..., Job], tmp_path: Path) -> None:
    run_jobs({name: job(name, seconds=0.05) for name in "abc"}, lambda _: None, at_once=1)
    assert journal(tmp_path) == [f"{name} {event}" for name in "abc" for event in ("begins", "ends 1")]


def test_a_failure_names_the_log_and_stops_the_others(job: Callable[..., Job], tmp_path: Path) -> None:
    jobs = {
        "long": job("long", seconds=600),  # longer than the test may take
        "bad": job("bad", code="import sys; print('why'); sys.exit(3)"),
        "later": job("later", needs="bad"),
    }
    with pytest.raises(TrainingError) as caught:
        run_jobs(jobs, lambda _: None, at_once=2)
    log = tmp_path / "logs" / "bad.log"
    assert str(caught.value) == f"bad stopped with exit code 3: why\nAll its output is in {log}"
    assert (tmp_path / "logs" / "bad.log").read_text() == "why\n"
    assert "later begins" not in (journal(tmp_path) if (tmp_path / "journal").exists() else [])


SAVES = """
import pathlib, signal, sys, time
saved = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), saved.write_text("saved"), sys.exit(143)))
saved.with_suffix(".begun").touch()
time.sleep(600)
"""


def test_ctrl_c_lets_jobs_save_and_does_not_reach_them_itself(job: Callable[..., Job], tmp_path: Path) -> None:
    begun = tmp_path / "journal.begun"

    def interrupt(_: str) -> None:
        if begun.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs({"train": job("train", code=SAVES)}, interrupt, at_once=1)
    assert (tmp_path / "journal").read_text() == "saved"


def test_a_job_that_crashes_when_its_work_is_complete_is_finished(
    job: Callable[..., Job], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = tmp_path / "results.json"
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    whole = job("whole", code=f"import pathlib; pathlib.Path({str(made)!r}).touch(); {crash}")
    run_jobs(
        {"whole": whole._replace(finished=made.exists), "next": job("next", needs="whole")}, lambda _: None, at_once=1
    )
    assert journal(tmp_path) == ["next begins", "next ends 1"]
    assert caplog.messages == ["whole stopped with exit code -9 behind its results, which are complete and count"]
    with pytest.raises(TrainingError, match=r"^part stopped with exit code -9: no output\n"):
        run_jobs({"part": job("part", code=crash)}, lambda _: None, at_once=1)


def test_a_job_has_a_session_of_its_own(job: Callable[..., Job], tmp_path: Path) -> None:
    code = "import os; print(os.getsid(0) == os.getpid())"
    run_jobs({"one": job("one", code=code)}, lambda _: None, at_once=1)
    assert (tmp_path / "logs" / "one.log").read_text() == "True\n"


@pytest.mark.parametrize(
    ("log", "error"),
    [
        pytest.param(
            "step 1\nTrainingError: no\n\nUserWarning: leaked semaphores\n  warn(\n",
            "TrainingError: no",
            id="a warning of a library",
        ),
        pytest.param(
            "OutOfMemory: no\nException ignored in: <x>\nTraceback:\nOSError: gone\n",
            "OutOfMemory: no",
            id="an error at the exit",
        ),
        pytest.param("out of memory; see plan\nwarning", "out of memory; see plan", id="out of memory"),
        pytest.param("a\n  \nKilled \n", "Killed", id="no error of the command line"),
        pytest.param("", "no output", id="nothing"),
        pytest.param(f"CriticError: no\n\n{STARTED}train\nConfigError: b\nbye\n", "ConfigError: b", id="two processes"),
        pytest.param(f"CriticError: no\n\n{STARTED}train\nstep 2\n", "step 2", id="an error of an earlier process"),
        pytest.param(f"CriticError: no\n\n{STARTED}train\n", "no output", id="nothing after an error"),
    ],
)
def test_the_error_of_a_log_is_that_of_its_last_process_whatever_stands_behind_it(
    tmp_path: Path, log: str, error: str
) -> None:
    (tmp_path / "log").write_text(log)
    assert error_in(tmp_path / "log") == error


def test_a_further_process_begins_a_line_of_its_own_in_the_log(job: Callable[..., Job], tmp_path: Path) -> None:
    cut = job("one", code="import sys; sys.stdout.write('step 1')")
    for _ in range(2):
        run_jobs({"one": cut}, lambda _: None, at_once=1)
    first, started, second = (tmp_path / "logs" / "one.log").read_text().split("\n")
    assert (first, second) == ("step 1", "step 1")
    assert started.startswith(f"{STARTED}{sys.executable} -c ")
