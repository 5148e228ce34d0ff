"""Settings of a recipe that have no effect on `text2grad train`, because of its other settings.

A contradiction is refused (`recipe.py`, and the sections' classes). A setting that waits for another one is not:
recipes keep it for methods that use it, and `--set` changes one setting at a time. A warning names the setting.
"""

from collections.abc import Callable
from operator import attrgetter

from text2grad.config.recipe import Recipe

OF_VALUE_FUNCTION = "optim.value_lr optim.value_warmup_steps ppo.value_clip_range ppo.vf_coef"
"""Settings without effect where there is no value function."""

_LORA = "model.lora_alpha model.lora_targets sft.lora_dropout reward_model.lora_dropout"
_OF_SPANS = "reward.weighting reward.span_mass reward.unlabelled"
_QUOTE_LIMITS = "critic.whole_words critic.one_list critic.quoted_in_feedback critic.verbatim"

# The setting that decides, when it does, and what has no effect then: settings, or all of a section.
_RULES: tuple[tuple[str, Callable[[Recipe], object], str], ...] = (
    ("model.lora_r", lambda recipe: not recipe.model.lora_r, _LORA),
    ("model.value", lambda recipe: recipe.model.value == "none", OF_VALUE_FUNCTION),
    ("rollout.engine", lambda recipe: recipe.rollout.engine == "hf", "engine"),
    ("critic.use", lambda recipe: recipe.critic.use, "critic.model critic.kind"),
    ("critic.model", lambda recipe: not recipe.critic.use and not recipe.critic.model, "critic.kind"),
    ("critic.kind", lambda recipe: recipe.critic.kind != "generative", "critic.votes"),
    ("critic.constrain", lambda recipe: recipe.critic.constrain is False, _QUOTE_LIMITS),
    ("refresh.steps", lambda recipe: not recipe.refresh.asks, "refresh"),
    ("reward.placement", lambda recipe: recipe.reward.placement == "verdict", _OF_SPANS),
    ("ppo.beta", lambda recipe: not recipe.ppo.beta, "ppo.target_kl"),
    ("ppo.credit", lambda recipe: recipe.ppo.credit == "spans", "ppo.teacher_update_rate"),
    ("ppo.credit", lambda recipe: recipe.ppo.credit == "gated", "reward.unlabelled"),
    ("data.held_out", lambda recipe: not recipe.data.holds_out, "data.eval_every run.keep_best"),
    ("data.eval_every", lambda recipe: not recipe.data.eval_every, "run.keep_best"),
)


def idle_settings(recipe: Recipe) -> dict[str, str]:
    """Return the settings that differ from their defaults and have no effect on `text2grad train`.

    Returns:
        "section.key" → the setting that takes away its effect, and its value.

    Example:
        >>> from text2grad.config import make_recipe
        >>> idle_settings(make_recipe({"model": {"value": "none"}, "optim": {"value_lr": 0.01}}))
        {'optim.value_lr': "model.value = 'none'"}
    """
    idle: dict[str, str] = {}
    for decider, decides, settings in _RULES:
        if decides(recipe):
            reason = f"{decider} = {attrgetter(decider)(recipe)!r}"
            for setting in settings.split():
                section, _, key = setting.partition(".")
                values = getattr(recipe, section)
                names = values.changed([key] if key else type(values).model_fields)
                idle |= {f"{section}.{name}": reason for name in names}
    return idle
