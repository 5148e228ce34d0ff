"""From settings to critic: the one place that decides who judges the responses of a run.

critic.use        a critic in Python, "module:name"
critic.model      a reward model, by critic.kind: generative in this process, or on a server ([server]); or a kind that
                  another package added (`KINDS`)
neither           the critic of the built-in task
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from text2grad.config import Recipe
from text2grad.errors import ConfigError, check_known
from text2grad.feedback import Critic, load_callable
from text2grad.models import base_named_by, local_path
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.format import CritiqueFormat, saved_format
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.shared_base import add_role

_WRITERS = ("generative", "server")
_DECODING = ("constrain", "match", "votes", "quote_limits")


KINDS: dict[str, Callable[..., Any]] = {}
"""Value of `critic.kind` → `load(directory, trust_remote_code=...)` of another package's critic in this process."""


@runtime_checkable
class LocalRewardModel(Protocol):
    """A learned critic with a model in this process, which has to be on the policy's device.

    Attributes:
        model: its model.
        rows_at_once: responses, or critiques, per batch.
    """

    model: Any
    rows_at_once: int


def critic_from_recipe(recipe: Recipe, *, task_critic: Critic | None = None, policy: Any = None) -> Critic:
    """Return the critic that a recipe names.

    Args:
        recipe: [critic] names the critic; [server] says where it decodes.
        task_critic: the built-in task's own critic; taken where the recipe names none.
        policy: the policy whose base the critic shares (`shares_base`); it gets the critic's adapter.

    Raises:
        ConfigError: if the recipe names no critic, a Python critic cannot be imported, or there is no such kind of
            reward model.
        ModelError: if there is no such model.
    """
    settings, path, code = recipe.critic, recipe.critic.model, recipe.model.trust_remote_code
    if settings.use:
        return load_callable(settings.use, "critic")  # type: ignore[no-any-return]
    if not path:
        if task_critic is None:
            raise ConfigError("the recipe names no critic; set [critic] use or model")
        return task_critic
    if settings.kind == "server":
        return _served(recipe)
    path = local_path(path)
    if settings.kind not in _WRITERS:
        reader = reading_kind(settings.kind)(path, trust_remote_code=code)
        if isinstance(reader, LocalRewardModel):
            reader.rows_at_once = min(reader.rows_at_once, recipe.rollout.rows_at_once)  # memory only
        return reader
    decoding = decoding_of(recipe, saved_format(path))
    model = None if policy is None else add_role(policy, path)
    rows_at_once = recipe.rollout.rows_at_once  # memory only
    return GenerativeRewardModel.load(path, trust_remote_code=code, model=model, rows_at_once=rows_at_once, **decoding)


def shares_base(recipe: Recipe) -> bool:
    """Tell whether policy and critic are adapters on the same base, which is then loaded once for both.

    Raises:
        ModelError: if the critic is an adapter that cannot be loaded.
    """
    critic, policy = recipe.critic, recipe.model
    if not critic.learned or critic.kind != "generative" or not policy.lora_r:
        return False
    if (base := base_named_by(critic.model)) is None:
        return False
    return base == policy.path or (Path(base).is_dir() and Path(base).resolve() == Path(policy.path).resolve())


def reading_kind(name: str) -> Callable[..., Critic]:
    """Return what loads a kind of critic that was added to `KINDS`.

    Raises:
        ConfigError: naming the known values of critic.kind, if there is no such kind.
    """
    check_known("critic.kind", name, (*_WRITERS, *KINDS))
    return KINDS[name]


def decoding_of(recipe: Recipe, saved: CritiqueFormat) -> dict[str, Any]:
    """Return the attributes of `CritiqueFormat` that [critic] names; what it leaves at its default stays as saved."""
    changed = recipe.critic.changed(_DECODING)
    limits = changed.pop("quote_limits", None)
    return changed if limits is None else {**changed, "limits": QuoteLimits(**dict.fromkeys(limits, True))}


def _served(recipe: Recipe) -> Critic:
    from text2grad.reward_models.served import ServerRewardModel  # the extra [annotate] brings its client

    store = Path(recipe.run.out) / "critic" / "server.sqlite"  # one per run: the weights behind a name may change
    saved = saved_format(recipe.critic.model)  # the served name may be a local directory with a format
    learned = CritiqueFormat(saved.form, saved.write_feedback, saved.outcomes, prompt_format=saved.prompt_format)
    format = replace(learned, **decoding_of(recipe, learned))
    return ServerRewardModel(recipe.critic.model, store=store, format=format, **recipe.server.model_dump())
