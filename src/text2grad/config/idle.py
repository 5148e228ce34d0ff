"""Settings of a recipe that have no effect on `text2grad train`, because of its other settings.

A contradiction is refused (`recipe.py`, and the sections' classes). A setting that waits for another one is not:
recipes keep it for methods that use it, and `--set` changes one setting at a time. A warning names the setting.
"""

from collections.abc import Callable
from typing import NamedTuple

from text2grad.config.recipe import Recipe


class _Rule(NamedTuple):
    """A condition, the settings that have no effect where it holds ("section" stands for all of a section), and why."""

    holds: Callable[[Recipe], bool]
    settings: tuple[str, ...]
    reason: str


OF_VALUE_FUNCTION = ("optim.value_lr", "optim.value_warmup_steps", "ppo.value_clip_range", "ppo.vf_coef")
"""Settings without effect where there is no value function."""

_RULES = (
    _Rule(
        lambda recipe: not recipe.model.lora_r,
        ("model.lora_alpha", "model.lora_targets", "sft.lora_dropout", "reward_model.lora_dropout"),
        "model.lora_r = 0 trains all weights, without an adapter",
    ),
    _Rule(
        lambda recipe: recipe.model.value == "none",
        OF_VALUE_FUNCTION,
        'model.value = "none": there is no value function',
    ),
    _Rule(lambda recipe: recipe.rollout.engine != "vllm", ("engine",), 'rollout.engine = "hf" samples without vLLM'),
    _Rule(
        lambda recipe: bool(recipe.critic.use), ("critic.model", "critic.kind"), "critic.use names a critic in Python"
    ),
    _Rule(
        lambda recipe: not recipe.critic.use and not recipe.critic.model,
        ("critic.kind",),
        "critic.model is not set: no reward model is loaded",
    ),
    _Rule(
        lambda recipe: not recipe.refresh.asks,
        ("refresh",),
        "neither refresh.steps nor refresh.audit is set",
    ),
    _Rule(
        lambda recipe: recipe.reward.placement == "verdict",
        ("reward.weighting", "reward.span_mass", "reward.unlabelled"),
        'reward.placement = "verdict" knows only whether there is a negative or a positive span',
    ),
    _Rule(
        lambda recipe: not recipe.data.holds_out,
        ("data.eval_every", "run.keep_best"),
        "no prompt is held out (data.held_out)",
    ),
    _Rule(
        lambda recipe: not recipe.data.eval_every,
        ("run.keep_best",),
        "data.eval_every = 0 evaluates no step between the first and the last",
    ),
)


def idle_settings(recipe: Recipe) -> dict[str, str]:
    """Return the settings that differ from their defaults and have no effect on `text2grad train`.

    Returns:
        "section.key" → the reason.

    Example:
        >>> from text2grad.config import make_recipe
        >>> idle_settings(make_recipe({"model": {"value": "none"}, "optim": {"value_lr": 0.01}}))
        {'optim.value_lr': 'model.value = "none": there is no value function'}
    """
    idle: dict[str, str] = {}
    for rule in _RULES:
        if not rule.holds(recipe):
            continue
        for setting in rule.settings:
            section, _, key = setting.partition(".")
            settings = getattr(recipe, section)
            names = [key] if key else type(settings).model_fields
            idle |= {f"{section}.{name}": rule.reason for name in settings.changed(names)}
    return idle
