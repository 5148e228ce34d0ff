"""The memory in which a critic that writes nothing reads responses: a classifier (scalar, process), or a probe.

A row has the longest prompt and the longest response, up to the critic's context, in the policy's tokens; a probe of
states reads the response twice. Rows at once are those that are saved with the critic, and at most those of a rollout.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

from text2grad.config import ModelConfig, Recipe
from text2grad.models import base_named_by, context_of
from text2grad.reward_models import rows_read_at_once, saved_probe
from text2grad.runs.planning.trace import Pass, TracedModel, read_config, trace_classifier, weights_type

READERS = ("scalar", "process", "probe")
"""Values of critic.kind whose critics read responses and write nothing."""
LABELS = {"scalar": 1, "process": 3}


def rows_read(recipe: Recipe, share: int) -> int:
    """Return the responses that the critic of a recipe reads at once, of `share` responses of a step."""
    critic = recipe.critic
    return min(rows_read_at_once(critic.model, critic.kind), recipe.rollout.rows_at_once, share)


def trace_reading(recipe: Recipe, policy: Any, *, prompt: int, rows: int, device: str) -> Pass | None:
    """Trace one pass of the critic of a recipe over its rows; None where the base of a probe is not here.

    Args:
        recipe: its critic.kind is one of `READERS`. A critic that is not made yet is one on the policy.
        policy: transformers' config of the policy.
        prompt: tokens of the longest prompt.
        rows: responses that it reads at once (`rows_read`).
        device: type of the device that is planned for: "cpu" or "cuda".

    Raises:
        ModelError: if the model has no config, or cannot be traced.
    """
    critic, response = recipe.critic, recipe.rollout.max_new_tokens
    made, code = Path(critic.model).exists(), recipe.model.trust_remote_code
    probe = saved_probe(critic.model) if made and critic.kind == "probe" else {}
    path = str(probe.get("base", critic.model))
    path = base_named_by(path) or path  # an adapter is merged into its base
    if made and not Path(path).exists():
        return None
    config = deepcopy(read_config(path, trust_remote_code=code) if made else policy)
    limit = context_of(config)
    if critic.kind != "probe":
        tokens = int(min(prompt + response, limit))
        if not made:  # it is trained and saved in 32 bits
            config.num_labels = LABELS[critic.kind]
        dtype = weights_type(config, "auto" if made else "float32")
        return trace_classifier(config, critic.kind, rows, tokens, dtype=dtype, device=device, trust_remote_code=code)
    name = str(weights_type(config, "auto")).removeprefix("torch.")
    settings = ModelConfig.model_validate({"value": "none", "dtype": name, "trust_remote_code": code})
    model = TracedModel(config, settings, device=device)
    return model.states(rows, int(min(prompt + 2 * response, limit)))
