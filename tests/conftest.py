"""What all tests share: one thread, so that sums have one order and two workers do not fight over two cores; no waits
for garbage of imported libraries, or for a disk that nobody unplugs; laws that no clock decides.
"""

import gc
import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from fault_server import SECRET, Running, running
from text2grad.critics.servers import cached_client
from text2grad.runs.reports import plots
from warm_commands import EMPTY_PNG, Warm, serving

DRAW = plots.to_png
MANY = 100_000  # objects, of which transformers and its friends alone are more

# A busy machine made laws fail after 200 ms; what no change of the code has broken is not drawn by chance.
settings.register_profile("no clock", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def libraries_are_no_garbage() -> None:
    """accelerate collects garbage at each start of a trainer: half a second once torch and transformers are there.

    They are there after some module or other, and a plan unfreezes them.
    """
    if len(gc.get_objects()) > MANY:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def no_wait_for_the_disk() -> Iterator[None]:
    """Files survive the death of a process without `fsync`; tests of its calls replace it themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def empty_pictures() -> Iterator[None]:
    """A figure is composed but not drawn, which takes matplotlib two seconds for the pictures of a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "to_png", lambda figure: EMPTY_PNG)
        yield


@pytest.fixture
def drawn_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn."""
    monkeypatch.setattr(plots, "to_png", DRAW)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A process with the libraries loaded, which forks one for each command."""
    with serving(tmp_path_factory.mktemp("warm") / "socket") as found:
        yield found


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is not on this machine is refused at once: a hub that cannot be reached is asked for 20 seconds."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that fails is asked again at once, with a key that nobody may see."""
    monkeypatch.setattr(cached_client, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(cached_client, "RETRIES", 1)
    monkeypatch.setenv("SOME_KEY", SECRET)
