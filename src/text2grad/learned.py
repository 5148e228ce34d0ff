"""The learned critic that a recipe names, loaded: one that writes critiques, here or on a server, or gives a number."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from text2grad.annotating.reward_server import ServerRewardModel
from text2grad.config import Recipe
from text2grad.critics import Critic
from text2grad.quoting import QuoteLimits
from text2grad.reward_head import ScalarRewardModel
from text2grad.reward_model import GenerativeRewardModel

LOCAL = (GenerativeRewardModel, ScalarRewardModel)
"""Those whose `model` is in this process, and goes to the policy's device."""


def load_learned(recipe: Recipe) -> Critic:
    """Return the critic that `critic.model` and `critic.kind` name.

    Raises:
        ConfigError: if a server cannot be asked as the recipe says.
        ModelError: if there is no such model.
    """
    critic: Critic = _LOADERS[recipe.critic.kind](recipe, recipe.critic.model)
    return critic


def load_generative(recipe: Recipe, path: str) -> GenerativeRewardModel:
    """Load one that writes critiques; where the recipe says how it is to write, that goes before its own settings."""
    limits = _limits(recipe)
    settings: dict[str, Any] = {} if limits == QuoteLimits() else {"limits": limits}
    if recipe.critic.constrain is not None:
        settings["constrain"] = recipe.critic.constrain
    return GenerativeRewardModel.load(path, trust_remote_code=recipe.model.trust_remote_code, **settings)


def _server(recipe: Recipe, name: str) -> ServerRewardModel:
    return ServerRewardModel(
        name,
        store=Path(recipe.run.out) / "critic" / "server.sqlite",  # weights behind a name may change between runs
        constrain=recipe.critic.constrain is not False,
        limits=_limits(recipe),
        match=recipe.critic.match,
        **recipe.server.model_dump(),
    )


def _scalar(recipe: Recipe, path: str) -> ScalarRewardModel:
    return ScalarRewardModel.load(path, trust_remote_code=recipe.model.trust_remote_code)


def _limits(recipe: Recipe) -> QuoteLimits:
    return QuoteLimits(**{field.name: getattr(recipe.critic, field.name) for field in fields(QuoteLimits)})


_LOADERS: dict[str, Callable[[Recipe, str], Any]] = {
    "generative": load_generative,
    "server": _server,
    "scalar": _scalar,
}
