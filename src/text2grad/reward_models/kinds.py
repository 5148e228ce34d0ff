"""Kinds of learned critics that other packages add: a value of `critic.kind` → how its model is loaded.

Those of this package are generative, vllm, server and probe (`load`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from text2grad.feedback import Critic


class Kind(NamedTuple):
    """A kind of learned critic that reads responses in this process.

    Attributes:
        load: loads a saved model: `load(directory, trust_remote_code=...)`.
        settings_file: file of a saved model, whose JSON holds its `rows_at_once`.
        rows_at_once: responses per forward pass where nothing is saved.
    """

    load: Callable[..., Critic]
    settings_file: str
    rows_at_once: int


ADDED: dict[str, Kind] = {}
"""Name → the kind that another package added."""


def register_kind(name: str, load: Callable[..., Any], *, settings_file: str, rows_at_once: int = 64) -> None:
    """Add a kind of learned critic, so that a recipe can name it as `critic.kind`; arguments as of `Kind`."""
    ADDED[name] = Kind(load, settings_file, rows_at_once)
