"""A critic may do to the process what it likes: the run gets it back as it was."""

import gc
import locale
import logging
import logging.config
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from text2grad.config.interruption import Interruption
from text2grad.errors import CriticError
from text2grad.feedback import ask, kept_process, load_callable
from text2grad.feedback.process_state import _environments, _function_modes, _precisions, _tell, _umask
from text2grad.progress import LOG
from text2grad.types import Example

LEFT: list[Any] = []  # modes that are entered, and not left


class Mode(torch.overrides.TorchFunctionMode):
    """Every sum is None."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, but for a sum."""
        return None if function is torch.Tensor.add else function(*args, **kwargs or {})


class Dispatched(TorchDispatchMode):
    """Every operation is as before."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function."""
        return function(*args, **kwargs or {})


def enter(mode: Any) -> None:
    LEFT.append(mode)
    mode.__enter__()


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
        (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
        (lambda: torch.set_default_device("meta"), _function_modes),
        (lambda: enter(torch.device("meta")), lambda: torch.ones(2).device),
        (lambda: enter(Mode()), lambda: type(torch.ones(2) + 1)),
        (lambda: enter(Dispatched()), _get_current_dispatch_mode_stack),
        (lambda: torch.set_num_threads(2), torch.get_num_threads),
        (lambda: torch.set_deterministic_debug_mode("error"), torch.are_deterministic_algorithms_enabled),
        (lambda: torch.set_deterministic_debug_mode("warn"), torch.get_deterministic_debug_mode),
        (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
        (lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"), _precisions),
        (lambda: setattr(torch.backends, "fp32_precision", "tf32"), _precisions),
        (lambda: setattr(torch.backends.cudnn, "allow_tf32", False), _precisions),
        (lambda: setattr(torch.backends.cudnn, "benchmark", True), lambda: torch.backends.cudnn.benchmark),
        (lambda: torch.backends.cuda.enable_math_sdp(False), torch.backends.cuda.math_sdp_enabled),
        (lambda: torch.autograd.set_detect_anomaly(True, check_nan=False), torch.is_anomaly_enabled),
        (lambda: enter(torch.inference_mode()), torch.is_inference_mode_enabled),
        (lambda: enter(torch.autocast("cpu")), lambda: torch.is_autocast_enabled("cpu")),
        (lambda: os.environ.update(TEXT2GRAD_TEST="new"), lambda: dict(os.environ)),
        (lambda: os.environ.pop("PATH"), lambda: dict(os.environ)),
        (lambda: os.umask(0o111), _umask),
        (lambda: logging.disable(logging.CRITICAL), lambda: LOG.isEnabledFor(logging.WARNING)),
        (lambda: logging.config.dictConfig({"version": 1}), lambda: LOG.isEnabledFor(logging.WARNING)),
        (lambda: np.seterr(all="raise"), np.geterr),
        (gc.disable, gc.isenabled),
        (lambda: os.chdir("/"), os.getcwd),
        (lambda: locale.setlocale(locale.LC_ALL, "C"), lambda: locale.setlocale(locale.LC_ALL)),
        (lambda: setattr(sys, "stdout", None), lambda: sys.stdout),
        (lambda: signal.signal(signal.SIGINT, lambda *_: None), lambda: signal.getsignal(signal.SIGINT)),
        (lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN), lambda: signal.getsignal(signal.SIGCHLD)),
    ],
)
@pytest.mark.parametrize("raises", [False, True])
def test_what_a_critic_changes_is_put_back_and_told_once(
    change: Callable[[], object], read: Callable[[], object], raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    _tell.cache_clear()
    _environments.clear()
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


def test_a_mode_that_was_entered_before_stays_and_so_does_what_torch_sets(caplog: pytest.LogCaptureFixture) -> None:
    with torch.device("meta"):
        with kept_process("a critic of devices"):
            enter(torch.device("cpu"))
            os.environ["TORCHINDUCTOR_TEST"] = "/tmp"
        assert torch.ones(2).device.type == "meta"
    assert torch.ones(2).device.type == "cpu"
    assert os.environ.pop("TORCHINDUCTOR_TEST") == "/tmp"
    assert len(caplog.messages) == 1


def test_precisions_that_contradict_each_other_are_put_back() -> None:
    start = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    before = _precisions()
    assert before[0] is None  # torch cannot read its own old setting
    with kept_process("a critic"):
        torch.set_float32_matmul_precision("highest")
    assert _precisions() == before
    torch.backends.cuda.matmul.fp32_precision = start
    assert _precisions()[0] == "highest"


def test_an_alarm_that_was_set_is_cancelled_and_another_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    of_pytest = signal.setitimer(signal.ITIMER_REAL, 0)
    with kept_process("a critic of haste"):
        signal.alarm(1_000)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    signal.setitimer(signal.ITIMER_REAL, 2_000)
    with kept_process("a critic of haste"):
        pass
    assert 1_000 < signal.setitimer(signal.ITIMER_REAL, *of_pytest)[0] <= 2_000
    assert [message.partition(" for the whole")[0] for message in caplog.messages] == [
        "a critic of haste changed the alarm (signal.alarm)"
    ]


def test_a_critic_finds_its_environment_again_and_what_it_sets_while_it_is_loaded_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import os
os.environ["T2G_OF_MODULE"] = "kept"
def keyed(examples, responses):
    assert os.environ["T2G_OF_MODULE"] == "kept"
    os.environ["T2G_CALLS"] = os.environ.get("T2G_CALLS", "") + "I"
    return [os.environ["T2G_CALLS"]]
"""
    (tmp_path / "critic_with_key.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("T2G_OF_MODULE", "before")
    critic = load_callable("critic_with_key:keyed", "critic")
    answers = [ask(critic, [Example("one")], ["two"], match="exact")[0].feedback for _ in range(2)]
    assert answers == ["I", "II"]
    assert os.environ["T2G_OF_MODULE"] == "kept"  # as a key that it reads from a file, for all that follows
    assert "T2G_CALLS" not in os.environ
    with kept_process("a metric"):
        assert "T2G_CALLS" not in os.environ


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


def test_sigterm_ends_a_copy_whose_process_handles_it_also_at_once() -> None:
    # a pool's workers; its end waits for theirs, for good if the handler of the run takes their signal
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    ends = []
    try:
        with kept_process("a critic"):
            for _ in range(5):
                child = os.fork()
                if child == 0:
                    signal.alarm(2)
                    while True:
                        signal.pause()
                os.kill(child, signal.SIGTERM)
                ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, before)
            assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
            signal.signal(signal.SIGTERM, own := lambda *_: os._exit(7))
            child = os.fork()
            if child == 0:
                signal.raise_signal(signal.SIGTERM)  # a user's own handler stays
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ends == [*[-signal.SIGTERM] * 5, 7]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_call_is_the_process_s_own(number: signal.Signals, caplog: pytest.LogCaptureFixture) -> None:
    background = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a script's job runs the tests
    before = [signal.getsignal(own) for own in (signal.SIGINT, signal.SIGTERM)]
    with Interruption() as interruption:
        with kept_process("a critic that takes long"):
            signal.raise_signal(number)
        assert interruption.received == number
        assert [signal.getsignal(own) for own in (signal.SIGINT, signal.SIGTERM)] == before  # the second ends at once
    signal.signal(signal.SIGINT, background)
    assert "changed the handler" not in caplog.text
