"""The first signal is recorded and told, the second one acts; also in a job of a script, where SIGINT is ignored."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from text2grad.config.interruption import SIGNALS, Interruption, signals_interrupt


@pytest.fixture(autouse=True)
def handlers() -> Iterator[dict[int, Any]]:
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_acts(before: Any, second: int, capfd: pytest.CaptureFixture[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, before)
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), second)
        assert interruption.received == signal.SIGINT
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == [before, before]
    assert capfd.readouterr().err == "SIGINT: ends after the step under way; a second signal ends it at once\n"


def test_a_signal_that_nohup_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interruption() as interruption:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
        assert interruption.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
    assert interruption.received == signal.SIGTERM


@pytest.fixture(params=SIGNALS)
def number(request: pytest.FixtureRequest) -> signal.Signals:
    signal.signal(request.param, signal.default_int_handler if request.param == signal.SIGINT else signal.SIG_DFL)
    return request.param  # type: ignore[no-any-return]


def test_a_signal_in_a_finalizer_acts_behind_it(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    class Left:  # as objects of the package regex
        def __del__(self) -> None:
            signal.raise_signal(number)

    with signals_interrupt():
        left = Left()
        del left
        with pytest.raises(KeyboardInterrupt):
            threading.Event().wait(60)
    assert capfd.readouterr().err == ""


def test_a_signal_that_a_library_drops_ends_the_run(number: signal.Signals) -> None:
    with signals_interrupt():
        with suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        with Interruption() as interruption:
            assert interruption.received == number
    with Interruption() as interruption:
        assert interruption.received is None
