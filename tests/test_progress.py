"""Bars on a terminal, log lines elsewhere: what is shown, how often, and by which logger."""

import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest

from text2grad.cli.log import configure_log
from text2grad.progress import LOG, STEPS, Progress, duration, note

WORK = """
import sys
from text2grad.cli.log import configure_log
from text2grad.progress import Progress, note
configure_log(quiet="quiet" in sys.argv, verbose="verbose" in sys.argv)
with Progress("train", 100) as outer:
    for step in range(100):
        outer.advance(reward=step / 7, cost=0.5)
        if step == 49:
            note("held-out [F1] 0.71")
            note("the critic labels nothing", warning=True)
            with Progress("evaluation", 2, unit="response") as inner:
                inner.advance(2)
"""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = LOG.handlers, LOG.propagate, LOG.level, STEPS.propagate
    yield
    LOG.handlers, LOG.propagate, LOG.level, STEPS.propagate = before


def piped(*words: str) -> tuple[list[str], list[str]]:
    """Return the lines of standard output and of standard error without date and time."""
    done = subprocess.run([sys.executable, "-c", WORK, *words], capture_output=True, text=True, check=True)
    return [line[21:] for line in done.stdout.splitlines()], [line[21:] for line in done.stderr.splitlines()]


def test_a_file_gets_a_line_for_the_first_step_and_for_every_twentieth_part() -> None:
    lines, warnings = piped()
    steps = [line.split("  ")[0] for line in lines if line.startswith("train: step ")]
    assert steps == ["train: step 1 of 100", *(f"train: step {n} of 100" for n in range(5, 101, 5))]
    assert lines[0] == "train: 100 steps"
    assert lines[-1].startswith("train: 100 steps done in ")
    assert "reward 0  cost $0.50" in lines[1]
    assert "held-out [F1] 0.71" in lines
    assert "evaluation: response 2 of 2" in lines
    assert warnings == ["the critic labels nothing"]


def test_quiet_leaves_warnings_and_verbose_shows_every_step() -> None:
    assert piped("quiet") == ([], ["the critic labels nothing"])
    lines, _ = piped("verbose")
    assert sum(line.startswith("train: step ") for line in lines) == 100


@pytest.mark.parametrize("word", ["", "quiet"])
def test_a_terminal_gets_a_bar_and_no_lines_of_steps(word: str) -> None:
    ours, theirs = pty.openpty()
    work = subprocess.Popen([sys.executable, "-c", WORK, word], stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux: the other side is closed
            break
        shown += part
        if not part:
            break
    os.close(ours)
    assert work.wait() == 0
    text = shown.decode()
    assert "step 5 of 100" not in text
    assert "the critic labels nothing" in text
    assert ("100/100" in text) == (word != "quiet")
    assert ("held-out [F1] 0.71" in text) == (word != "quiet")


def test_a_resumed_phase_counts_on(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log(quiet=False, verbose=False)
    with Progress("train", 10, done=8) as progress:
        progress.advance()
    lines = [line[21:] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "train: 10 steps, 8 done before"
    assert lines[1].startswith("train: step 9 of 10")
    assert lines[2].startswith("train: 1 step done in ")


def test_other_processes_show_nothing_and_an_error_ends_without_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log(quiet=False, verbose=True)
    with Progress("train", 10, enabled=False) as progress:
        progress.advance()
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="broken"), Progress("train", 10):
        raise ValueError("broken")
    assert "done in" not in capsys.readouterr().out


def test_a_program_without_configured_logging_sees_nothing_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    LOG.handlers, LOG.propagate = [], True
    LOG.setLevel(logging.NOTSET)
    with Progress("train", 2) as progress:
        progress.advance()
    note("done")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
