"""Servers and workers of the studio start in forks of a process that has the libraries loaded."""

import pytest

from studio_browser import Served
from warm_commands import Warm


@pytest.fixture(autouse=True, scope="session")
def served_warm(warm: Warm) -> None:
    Served.warm = warm


@pytest.fixture
def warm_workers(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", warm.python)
