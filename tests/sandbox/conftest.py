"""A program that ends has all the time that a busy machine takes; what never ends is given short limits by its test."""

from collections.abc import Callable, Iterator

import pytest

from text2grad_sandbox import sandbox, worker
from text2grad_sandbox.sandbox import Sandbox, run_tests

SECONDS = 240.0


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for function in (Sandbox.run, Sandbox.run_many, run_tests):
            patch.setitem(function.__kwdefaults__, "timeout_s", SECONDS)
        patch.setattr(sandbox, "GRACE_S", SECONDS)
        patch.setattr(worker, "START_S", SECONDS)
        yield


@pytest.fixture
def with_more_time() -> Callable[[Callable[[float], bool]], None]:
    """Try with more and more seconds what a program does before it hangs; a busy machine needs more of them."""

    def tried(works: Callable[[float], bool]) -> None:
        assert any(works(seconds) for seconds in (0.3, 1.0, 5.0, 25.0, 100.0))

    return tried
