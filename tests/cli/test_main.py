"""The command line itself: names, signals, and threads."""

import argparse
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from text2grad.cli.__main__ import EXIT_OUT_OF_MEMORY, main
from text2grad.config.interruption import Interruption
from text2grad.errors import Interrupted


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            Interrupted(15, "stopped after step 2 of 4, which is saved"),
            143,
            "stopped after step 2 of 4, which is saved. Continue with: text2grad train 'my recipe.toml' --resume",
        ),
        (KeyboardInterrupt(), 130, "interrupted. Continue with: text2grad train 'my recipe.toml' --resume"),
        (
            KeyboardInterrupt(signal.SIGTERM),
            143,
            "interrupted. Continue with: text2grad train 'my recipe.toml' --resume",
        ),
    ],
)
def test_a_signal_ends_a_command_with_the_command_that_continues(
    error: BaseException,
    code: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(args: argparse.Namespace) -> int:
        args.directory = tmp_path
        raise error

    monkeypatch.setattr("text2grad.cli.train.run", run)
    (tmp_path / "run.json").touch()
    assert main(["train", "my recipe.toml"]) == code
    assert main(["train", "my recipe.toml", "--resume"]) == code
    assert capsys.readouterr().err.splitlines() == [line, line]


def test_a_run_that_saved_nothing_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: argparse.Namespace) -> int:
        args.directory = tmp_path
        raise KeyboardInterrupt

    monkeypatch.setattr("text2grad.cli.train.run", run)
    assert main(["train", "my.toml"]) == 130
    assert capsys.readouterr().err == "interrupted. Continue with: text2grad train my.toml\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_sigterm_and_sighup_end_a_command_as_ctrl_c_does(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: object) -> int:
        signal.raise_signal(number)
        return 0

    monkeypatch.setattr("text2grad.cli.quickstart.run", run)
    before = signal.signal(number, signal.SIG_DFL)  # under nohup SIGHUP is ignored, and stays so
    try:
        assert main(["quickstart"]) == code
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == "interrupted. Continue with: text2grad quickstart\n"


@pytest.mark.parametrize(("rank", "said"), [(None, 1), ("0", 1), ("1", 0)])
def test_the_first_signal_is_told_at_once_by_one_process(
    rank: str | None, said: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    line = "SIGINT: ends after the step under way; a second signal ends it at once\n"
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        assert capfd.readouterr().err == line * said
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert interruption.received == signal.SIGINT


def test_a_signal_is_recorded_where_nobody_reads_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr("text2grad.config.interruption.STDERR", write)
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGTERM)
    os.close(write)
    assert interruption.received == signal.SIGTERM


def test_nohup_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(args: object) -> int:
        signal.raise_signal(signal.SIGHUP)
        with Interruption() as interruption:
            signal.raise_signal(signal.SIGHUP)
        assert interruption.received is None
        return 0

    monkeypatch.setattr("text2grad.cli.quickstart.run", run)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["quickstart"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_without_resume_continues_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("text2grad.cli.quickstart.run", run)
    assert main(["quickstart", "--seeds", "2"]) == 130
    assert capsys.readouterr().err == "interrupted. Continue with: text2grad quickstart --seeds 2\n"


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_spin_shortly_unless_the_user_chose(given: dict[str, str], spins: str | None) -> None:
    """A process that has not imported torch yet, as libgomp reads the variable once, when torch is imported."""
    code = "import os, sys, text2grad.cli; early = 'torch' in sys.modules; text2grad.cli.main(['recipe', 'ppo']); "
    code += "print(early, os.environ.get('GOMP_SPINCOUNT'))"
    mine = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env=mine | given, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"False {spins}"


def test_the_help_names_the_exit_status_of_a_lack_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert re.search(rf"^  {EXIT_OUT_OF_MEMORY} .*out of memory", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian my.toml", "there is no command `trian`; did you mean `train`?"),
        ("xyz my.toml", "there is no command `xyz`; the commands are quickstart, feedback, "),
        ("-q feedback improt", "there is no command `improt`; did you mean `import`?"),
        ("evaluate models/a", "there is no command `models/a`; the commands are policy, critic, pairs"),
    ],
)
def test_an_unknown_command_is_told_with_the_nearest_or_with_all(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", ["-q recipe ppo", "recipe --quiet ppo", "recipe ppo -q"])
def test_quiet_stands_before_and_after_a_command(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[bool, bool]] = []
    monkeypatch.setattr("text2grad.cli.__main__.configure_log", lambda *, quiet, verbose: told.append((quiet, verbose)))
    assert main(words.split()) == 0
    assert told == [(True, False)]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_were_closed_before_the_start_are_no_traceback_and_no_file_takes_their_place(
    closed: str, tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "Where?"}\n')
    command = f"{sys.executable} -m text2grad.cli feedback import table p.jsonl --out q.jsonl {closed}"
    ended = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "q.jsonl").read_text() == '{"prompt": "Where?", "reference": null, "tests": null, "meta": {}}\n'


def test_a_limit_of_the_size_of_files_is_told_as_a_full_disk_is(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("".join(f'{{"prompt": "Where is number {n}?"}}\n' for n in range(100)))
    command = f"ulimit -f 1; exec {sys.executable} -m text2grad.cli feedback import table p.jsonl --out q.jsonl"
    ended = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "File too large" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "q.jsonl").exists()
