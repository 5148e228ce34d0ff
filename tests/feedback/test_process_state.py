"""A critic may do to the process what it likes: the run gets it back as it was."""

import locale
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from text2grad.errors import CriticError
from text2grad.feedback import ask, kept_process, load_callable
from text2grad.feedback.process_state import _tell
from text2grad.types import Example

LEFT: list[Any] = []  # modes that are entered, and not left


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
        (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
        (lambda: torch.set_default_device("meta"), torch.get_default_device),
        (lambda: torch.set_num_threads(2), torch.get_num_threads),
        (
            lambda: torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled()),
            torch.are_deterministic_algorithms_enabled,
        ),
        (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
        (lambda: setattr(torch.backends.cudnn, "benchmark", True), lambda: torch.backends.cudnn.benchmark),
        (lambda: LEFT.append(torch.inference_mode()) or LEFT[-1].__enter__(), torch.is_inference_mode_enabled),
        (lambda: torch.autocast("cpu").__enter__(), lambda: torch.is_autocast_enabled("cpu")),
        (lambda: os.chdir("/"), os.getcwd),
        (lambda: locale.setlocale(locale.LC_ALL, "C"), lambda: locale.setlocale(locale.LC_ALL)),
        (lambda: setattr(sys, "stdout", None), lambda: sys.stdout),
        (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN), lambda: signal.getsignal(signal.SIGINT)),
    ],
)
@pytest.mark.parametrize("raises", [False, True])
def test_what_a_critic_changes_is_put_back_and_told_once(
    change: Callable[[], object], read: Callable[[], object], raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    _tell.cache_clear()
    before = read()

    def critic(examples: Any, responses: Any) -> list[str]:
        change()
        assert read() != before
        if raises:
            raise ValueError("no")
        return [""]

    for _ in range(2):
        with suppress(CriticError):
            ask(critic, [Example("one")], ["two"], match="exact")
        assert read() == before
    assert sum("for the whole process; it is put back" in line for line in caplog.messages) == 1


def test_a_working_directory_that_was_removed_is_left(tmp_path: Path) -> None:
    before = os.getcwd()
    with kept_process("a critic"):
        os.chdir(tmp_path)
        tmp_path.rmdir()
    assert os.getcwd() == before


def test_a_class_is_made_in_a_kept_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import torch\nclass Judge:\n    def __init__(self): torch.set_grad_enabled(False)\n    def __call__(self): ..."
    )
    (tmp_path / "made_judge.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    load_callable("made_judge:Judge", "critic")
    assert torch.is_grad_enabled()


def test_filters_of_warnings_are_put_back_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    before = list(warnings.filters)
    with kept_process("a critic"):
        warnings.simplefilter("error")
    assert list(warnings.filters) == before
    assert caplog.messages == []


def test_a_stream_that_was_closed_leads_where_it_led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "out.txt", "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        number = stream.fileno()
        with kept_process("a critic"):
            sys.stdout.write("before\n")
            sys.stdout.close()
        sys.stdout.write("after\n")
        sys.stdout.flush()
        monkeypatch.undo()
        os.close(number)
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "before\nafter\n"


def test_a_stream_whose_file_was_closed_below_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "out.txt", "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with kept_process("a critic"):
            os.close(stream.fileno())
        sys.stdout.write("after\n")
        sys.stdout.flush()
        monkeypatch.undo()
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "after\n"


def test_a_copy_of_the_process_that_comes_back_ends_there() -> None:
    child = 0
    with kept_process("a critic"):
        child = os.fork()
    if child == 0:
        os._exit(0)  # it went on
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
