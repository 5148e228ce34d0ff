"""One response of verl → the reward of each of its token ids; without verl, so that it runs and is tested anywhere."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from text2grad.errors import ConfigError
from text2grad.feedback import Match
from text2grad.rl import OutsideJudge, single_turn
from text2grad.types import Critique, Example

TOKEN_LEVEL = ("gae", "reinforce_plus_plus")
"""verl's advantage estimators that keep the reward of each token; the others add them up to one number."""


@lru_cache
def shared_judge(critic: str, reward: str, match: Match, max_failure_rate: float) -> OutsideJudge:
    """Return the judge of this process, since verl makes an agent loop for each response; `reward` is JSON.

    Raises:
        ConfigError: if the critic cannot be loaded, or a setting is wrong.
    """
    return OutsideJudge(critic, reward=json.loads(reward), match=match, max_failure_rate=max_failure_rate)


def judge_response(
    judge: OutsideJudge, tokenizer: Any, example: Example, ids: Sequence[int], *, truncated: bool
) -> tuple[list[float], Critique]:
    """Return the reward of each token id of a response, and the critique; an empty response is not judged.

    Raises:
        CriticError: if the critic fails, or too many of its critiques could not be read.
    """
    if not ids:
        return [], Critique("")
    judged = judge(tokenizer, [single_turn(tokenizer, example, ids, truncated=truncated)])
    return judged.rewards[0].tolist(), judged.critiques[0]


def example_of(row: Mapping[str, Any]) -> Example:
    """Return a row of verl's data as an example: `raw_prompt`, the ground truth of `reward_model`, `extra_info`."""
    about = row.get("reward_model")
    truth = about.get("ground_truth") if isinstance(about, Mapping) else None
    extra = row.get("extra_info")
    meta = {**(extra if isinstance(extra, Mapping) else {}), "data_source": row.get("data_source")}
    prompt = [{"role": str(message["role"]), "content": str(message["content"])} for message in row["raw_prompt"]]
    tests = meta.pop("tests", None)
    return Example(prompt, None if truth is None else str(truth), None if tests is None else str(tests), meta)


def refuse_scalar_settings(config: Any) -> None:
    """Refuse settings of verl's configuration under which the reward of each token is lost or replaced.

    Raises:
        ConfigError: with the setting, its value and the way out.
    """
    estimator = str(_value(config, "algorithm.adv_estimator", "gae"))
    if estimator not in TOKEN_LEVEL:
        raise ConfigError(
            f"algorithm.adv_estimator = {estimator}: verl adds the rewards of all tokens up to one number; set it to "
            f"{' or '.join(TOKEN_LEVEL)}"
        )
    if not _value(config, "trainer.use_v1", True):
        raise ConfigError(
            "trainer.use_v1 = False: verl's old trainer makes one number of the rewards of a response; set "
            "trainer.use_v1=True"
        )
    if _value(config, "reward.reward_model.enable", False) or _value(config, "reward_model.enable", False):
        raise ConfigError(
            "reward.reward_model.enable = True: verl would replace the token rewards by its reward model's number; "
            "set it to False, and let the critic ask the reward model"
        )


def _value(config: Any, path: str, default: Any) -> Any:
    """Return a nested setting; the default if a part of the path is absent."""
    for name in path.split("."):
        value = config.get(name) if hasattr(config, "get") else getattr(config, name, None)
        if value is None:
            return default
        config = value
    return config
