"""Ctrl-C, SIGTERM and SIGKILL in long commands: the exit code, the message, and nothing computed is lost.

Each trial starts a process, waits until a file shows that it works, and sends a signal.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trial_world import make_world
from warm_commands import Warm

SLOW_CRITIC = "import time\nimport colours\ndef critic(e, r):\n    time.sleep(0.4)\n    return colours.critic(e, r)\n"
TRAIN = "train my.toml --critic slow:critic --set run.steps=40 --set run.save_every=100"
LONG = TRAIN.replace("run.steps=40", "run.steps=4000")
REWARD = "reward judge.toml --set reward_model.steps=5000 --set reward_model.eval_every=5000"
QUICKSTART = (
    "quickstart --out runs/q --set sft.steps=20 --set reward_model.steps=20 --set quickstart.responses=200 "
    "--set quickstart.after_reward_model=10 --set run.steps=200 --set data.eval_examples=8"
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trials") / "world"
    make_world(directory)
    (directory / "slow.py").write_text(SLOW_CRITIC, "utf-8")
    return directory


@dataclass(frozen=True)
class Stopped:
    """A command that a signal ended."""

    code: int
    out: str
    err: str


def stop(warm: Warm | None, folder: Path, command: str, when: Callable[[], bool], *numbers: int) -> Stopped:
    """Start a command in a folder, wait for the moment, send signals, and wait for the end."""
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        words = ["-m", "text2grad.cli", *command.split()]
        process: Any = None
        if warm is not None:
            process = warm.start(*words, cwd=folder, out=out, err=err)
        else:  # with the imports of a new process
            before = signal.signal(
                signal.SIGINT, signal.default_int_handler
            )  # ignored where tests run in the background
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            signal.signal(signal.SIGINT, before)
        try:
            deadline = time.monotonic() + 200
            while not when():
                if process.poll() is not None or time.monotonic() > deadline:
                    said = (folder / "out").read_text() + (folder / "err").read_text()
                    raise AssertionError(f"{command} ended with {process.returncode} before the moment:\n{said}")
                time.sleep(0.02)
            *earlier, last = numbers
            for number in earlier:
                process.send_signal(number)
                while "ends after the step under way" not in (folder / "err").read_text() and process.poll() is None:
                    time.sleep(0.02)  # two signals that a busy machine delivers together are one
            time.sleep(0.3)
            process.send_signal(last)
            code = process.wait(120)
        finally:
            process.kill()
    return Stopped(code, (folder / "out").read_text(), (folder / "err").read_text())


def steps(run: Path) -> int:
    """Return the number of lines in the log of a run, one for each step."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def copy(world: Path, folder: Path) -> Path:
    """Copy the world."""
    import shutil

    return Path(shutil.copytree(world, folder))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_train_finishes_its_step_and_goes_on(number: int, code: int, warm: Warm, world: Path, tmp_path: Path) -> None:
    folder = copy(world, tmp_path / "work")
    run = folder / "runs" / "mine"
    ended = stop(warm, folder, TRAIN, lambda: steps(run) >= 2, number)
    assert ended.code == code, ended
    (line,) = ended.err.strip().splitlines()[-1:]
    found = re.match(r"stopped after step (\d+) of 40, which is saved\. Continue with: text2grad (.*)$", line)
    assert found, ended.err
    assert "Traceback" not in ended.err
    assert steps(run) == int(found[1])
    assert (run / "checkpoints" / f"step-{int(found[1]):06d}").is_dir()
    again = stop(warm, folder, found[2], lambda: steps(run) >= int(found[1]) + 1, signal.SIGKILL)
    assert again.code == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_reward_finishes_its_step_and_goes_on(number: int, code: int, warm: Warm, world: Path, tmp_path: Path) -> None:
    folder = copy(world, tmp_path / "work")
    run = folder / "runs" / "judge"
    ended = stop(warm, folder, REWARD, lambda: steps(run) >= 2, number)
    assert ended.code == code, ended
    assert "Traceback" not in ended.err
    found = re.search(r"Continue with: text2grad (reward .* --resume)$", ended.err.strip())
    assert found, ended.err
    made = steps(run)
    again = stop(warm, folder, found[1], lambda: steps(run) > made, signal.SIGINT)
    assert again.code == 130, again


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_quickstart_lets_its_runs_save_and_goes_on(
    number: int, code: int, warm: Warm, world: Path, tmp_path: Path
) -> None:
    folder = copy(world, tmp_path / "work")
    run = folder / "runs" / "q" / "summarization" / "seed-0" / "text2grad"
    runs = run, run.with_name("scalar_ppo")  # the second in a process of its own, with a log
    ended = stop(warm, folder, QUICKSTART, lambda: min(map(steps, runs)) >= 1, number)
    assert ended.code == code, ended
    assert "Continue with: text2grad quickstart" in ended.err
    for said in (ended.err, runs[1].with_suffix(".log").read_text("utf-8")):
        assert "Traceback" not in said
        assert "changed the handler" not in said
        assert re.search(r"stopped after step \d+ of 200, which is saved", said)
    before = steps(run)
    second = stop(warm, folder, QUICKSTART, lambda: steps(run) > before, signal.SIGINT)
    assert second.code == 130


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "seconds"),  # of the critic: neither command ends before the signal
    [
        ("evaluate critic annotations.jsonl --out runs/e --critic slow:critic --tokenizer policy", "600"),
        (f"{LONG} --set rollout.batch_size=12", "0.4"),
    ],
)
def test_ctrl_c_at_the_beginning_has_no_traceback(command: str, seconds: str, world: Path, tmp_path: Path) -> None:
    folder = copy(world, tmp_path / "work")
    (folder / "slow.py").write_text(f"open('imported', 'w').close()\n{SLOW_CRITIC.replace('0.4', seconds)}", "utf-8")
    ended = stop(None, folder, command, (folder / "imported").exists, signal.SIGINT)
    assert ended.code == 130, ended
    assert "Traceback" not in ended.err
    assert "Continue with: text2grad" in ended.err


def test_a_second_run_in_the_directory_is_refused(warm: Warm, world: Path, tmp_path: Path) -> None:
    folder = copy(world, tmp_path / "work")
    run = folder / "runs" / "mine"
    said: list[str] = []

    def second() -> bool:
        if steps(run) < 1:
            return False
        for more in ([], ["--resume"]):
            with (tmp_path / "said").open("w") as file:
                code = warm.start("-m", "text2grad.cli", *LONG.split(), *more, cwd=folder, err=file).wait(120)
            said.append(f"{code} {(tmp_path / 'said').read_text().strip()}")
        return True

    ended = stop(warm, folder, LONG, second, signal.SIGKILL)
    assert ended.code == -signal.SIGKILL
    assert all(line.startswith("2 ConfigError: ") for line in said), said
    assert "another run is writing to" in said[1]
    lines = (run / "metrics.jsonl").read_bytes().count(b"\n")
    # the lock of the dead is free
    again = stop(warm, folder, f"{LONG} --resume", lambda: steps(run) > lines, signal.SIGTERM)
    assert again.code == 143, again


def test_a_run_goes_on_when_nobody_reads_its_log(warm: Warm, world: Path, tmp_path: Path) -> None:
    folder = copy(world, tmp_path / "work")
    words = TRAIN.replace("run.steps=40", "run.steps=6").split()
    reading, writing = os.pipe()
    with open(reading) as log, (tmp_path / "err").open("w+") as err:
        with open(writing, "w") as out:
            process = warm.start("-m", "text2grad.cli", *words, "--verbose", cwd=folder, out=out, err=err)
        while "step 1 of 6" not in (line := log.readline()):
            assert line, (tmp_path / "err").read_text()
        log.close()  # as `| head` does, or a terminal that is gone
        code = process.wait(120)
    said = (tmp_path / "err").read_text()
    assert code == 0, said
    assert "Traceback" not in said
    assert steps(folder / "runs" / "mine") == 6


def test_head_reads_what_it_wants(tmp_path: Path) -> None:
    path = os.pathsep.join(p for p in sys.path if p)
    command = f"set -o pipefail; {sys.executable} -m text2grad.cli recipe | head -1"
    done = subprocess.run(
        ["bash", "-c", command], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0: the pipe took all before head ended


def test_two_signals_end_a_run_at_once(warm: Warm, world: Path, tmp_path: Path) -> None:
    folder = copy(world, tmp_path / "work")
    run = folder / "runs" / "mine"
    (folder / "slow.py").write_text(
        SLOW_CRITIC.replace("0.4", "30 if e[0].prompt_text and later() else 0.1")
        + "calls = []\ndef later():\n    calls.append(1)\n    if len(calls) > 2:\n        open('asleep', 'w').close()\n"
        + "    return len(calls) > 2\n",
        "utf-8",
    )
    ended = stop(warm, folder, TRAIN, (folder / "asleep").exists, signal.SIGINT, signal.SIGINT)
    assert ended.code in (130, -signal.SIGINT), ended  # the second may meet the interpreter's end: 130 to a shell, too
    assert "Traceback" not in ended.err
    assert steps(run) == 2
