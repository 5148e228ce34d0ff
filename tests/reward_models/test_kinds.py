"""Kinds of learned critics that other packages add can be named in a recipe."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from text2grad.config import make_recipe
from text2grad.errors import ConfigError
from text2grad.reward_models import LocalRewardModel, critic_from_recipe, load
from text2grad.types import Critique, Example


class Silent:
    """Reads nothing and says nothing."""

    def __init__(self, directory: str, **settings: Any) -> None:
        self.directory, self.settings, self.model, self.rows_at_once = directory, settings, None, 64

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        return [Critique("")] * len(responses)


@pytest.fixture(autouse=True)
def no_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "KINDS", {**load.KINDS})


def test_a_kind_that_was_added_is_loaded(tmp_path: Path) -> None:
    load.KINDS["silent"] = Silent
    named = {"critic": {"kind": "silent", "model": str(tmp_path)}, "rollout": {"rows_at_once": 4, "batch_size": 8}}
    critic = critic_from_recipe(make_recipe(named))
    assert isinstance(critic, Silent)
    assert isinstance(critic, LocalRewardModel)
    assert (critic.directory, critic.settings, critic.rows_at_once) == (str(tmp_path), {"trust_remote_code": False}, 4)


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    recipe = make_recipe({"critic": {"kind": "scaler", "model": "m"}})
    load.KINDS["scalar"] = Silent
    with pytest.raises(ConfigError) as caught:
        critic_from_recipe(recipe)
    assert str(caught.value) == (
        "critic.kind has no value 'scaler'. Did you mean \"scalar\"? Known values: generative, server, scalar"
    )
