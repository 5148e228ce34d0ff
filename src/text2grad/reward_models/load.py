"""The learned critic that a recipe names: it writes critiques, here or elsewhere, gives a number, or judges steps."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from text2grad.config import Recipe
from text2grad.errors import ConfigError
from text2grad.feedback import Critic
from text2grad.models import base_named_by
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.process import ProcessRewardModel
from text2grad.reward_models.scalar import ScalarRewardModel
from text2grad.reward_models.served import ServerRewardModel
from text2grad.reward_models.shared_base import add_role
from text2grad.reward_models.vllm import EngineSettings, VLLMRewardModel

LOCAL = (GenerativeRewardModel, ScalarRewardModel, ProcessRewardModel)
"""Those whose `model` is in this process, and goes to the policy's device."""


def load_learned(recipe: Recipe, *, policy: Any = None) -> Critic:
    """Return the critic that `critic.model` and `critic.kind` name.

    Args:
        recipe: the settings.
        policy: whose base a critic shares that is an adapter on it; see `shares_base`.

    Raises:
        ConfigError: if a server cannot be asked as the recipe says.
        ModelError: if there is no such model.
    """
    if policy is not None:
        return load_generative(recipe, recipe.critic.model, model=add_role(policy, recipe.critic.model))
    critic: Critic = _LOADERS[recipe.critic.kind](recipe, recipe.critic.model)
    return critic


def shares_base(recipe: Recipe) -> bool:
    """Tell whether policy and critic are to be adapters on the same base: it is loaded once for both.

    Raises:
        ModelError: if the critic is an adapter that cannot be loaded.
    """
    critic = recipe.critic
    if critic.use or not critic.model or critic.kind != "generative" or not recipe.model.lora_r:
        return False
    base = base_named_by(critic.model)
    return base is not None and (base == recipe.model.path or _same_directory(base, recipe.model.path))


def _same_directory(one: str, other: str) -> bool:
    return Path(one).is_dir() and Path(one).resolve() == Path(other).resolve()


def load_generative(recipe: Recipe, path: str, *, model: Any = None) -> GenerativeRewardModel:
    """Load one that writes critiques; where the recipe says how it is to write, that goes before its own settings."""
    code = recipe.model.trust_remote_code
    return GenerativeRewardModel.load(path, trust_remote_code=code, model=model, **_writing(recipe))


def _writing(recipe: Recipe) -> dict[str, Any]:
    """Return what [critic] says about how critiques are written."""
    limits = limits_of(recipe)
    settings: dict[str, Any] = {} if limits == QuoteLimits() else {"limits": limits}
    for name in ("constrain", "votes", "vote_threshold"):
        if (value := getattr(recipe.critic, name)) is not None:
            settings[name] = value
    return settings


def _vllm(recipe: Recipe, path: str) -> VLLMRewardModel:
    code = recipe.model.trust_remote_code
    engine = EngineSettings(**recipe.vllm.model_dump())
    return VLLMRewardModel.load(path, config=engine, trust_remote_code=code, **_writing(recipe))


def _server(recipe: Recipe, name: str) -> ServerRewardModel:
    if (recipe.critic.votes or 1) > 1:
        raise ConfigError(
            f"critic.votes = {recipe.critic.votes}: a server is asked for the likeliest critique alone; leave votes "
            'out, or take critic.kind = "generative"'
        )
    return ServerRewardModel(
        name,
        store=Path(recipe.run.out) / "critic" / "server.sqlite",  # weights behind a name may change between runs
        constrain=recipe.critic.constrain is not False,
        limits=limits_of(recipe),
        match=recipe.critic.match,
        **recipe.server.model_dump(),
    )


def _scalar(recipe: Recipe, path: str) -> ScalarRewardModel:
    return ScalarRewardModel.load(path, trust_remote_code=recipe.model.trust_remote_code)


def _process(recipe: Recipe, path: str) -> ProcessRewardModel:
    return ProcessRewardModel.load(path, trust_remote_code=recipe.model.trust_remote_code)


def limits_of(recipe: Recipe) -> QuoteLimits:
    """Return the limits of quotes that [critic] sets."""
    return QuoteLimits(**{field.name: getattr(recipe.critic, field.name) for field in fields(QuoteLimits)})


_LOADERS: dict[str, Callable[[Recipe, str], Any]] = {
    "generative": load_generative,
    "vllm": _vllm,
    "server": _server,
    "scalar": _scalar,
    "process": _process,
}
