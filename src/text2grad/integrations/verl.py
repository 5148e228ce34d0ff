"""verl's single-turn agent loop with a critic behind it: dense `rm_scores`, one number per response id.

verl copies `rm_scores` into `token_level_scores`, subtracts its KL term, and computes GAE from its value model: the way
of section 3.5. verl imports this module in every worker, since its agent loop file names the class as `_target_`.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from text2grad.integrations.verl_scores import example_of, judge_response, refuse_scalar_settings, shared_judge
from text2grad.models import answer_end

NAME = "text2grad"


class SpanAgentLoopOutput(AgentLoopOutput):
    """The output of a loop with the reward of each response id."""

    token_scores: list[float]

    def as_dict(self) -> dict[str, Any]:
        """Return verl's dictionary with `rm_scores` [T]."""
        output: dict[str, Any] = super().as_dict()
        output["rm_scores"] = torch.tensor(output.pop("token_scores"), dtype=torch.float32)
        return output


@register(NAME)
class SpanAgentLoop(SingleTurnAgentLoop):
    """Samples one response, and asks a critic for the reward of each of its tokens."""

    def __init__(
        self,
        *args: Any,
        critic: str,
        reward: Mapping[str, Any] | None = None,
        match: str = "exact",
        max_failure_rate: float = 0.2,
        **more: Any,
    ) -> None:
        """Take the settings of the agent loop file.

        Args:
            args: verl's.
            critic: "module:name" of a Python critic that may be called from several threads at once.
            reward: the section [reward] of a recipe.
            match: how the quotes of critiques in text form are found: "exact" or "normalized".
            max_failure_rate: share of unreadable critiques of a worker above which the run stops.
            more: verl's.

        Raises:
            ConfigError: if verl's settings would make one number of the token rewards, or the critic cannot be loaded.
        """
        super().__init__(*args, **more)
        refuse_scalar_settings(self.config)
        plain = json.dumps({str(name): value for name, value in (reward or {}).items()}, sort_keys=True)
        self.judge = shared_judge(critic, plain, match, max_failure_rate)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Return the response with the reward of each id.

        Raises:
            CriticError: if the critic fails, or too many of its critiques could not be read.
        """
        output = await super().run(sampling_params, **row)
        ids = output.response_ids
        ends = (self.tokenizer.eos_token_id, self.tokenizer.pad_token_id, *answer_end(self.tokenizer)[-1:])
        ended = bool(ids) and ids[-1] in ends
        truncated = len(ids) >= self.response_length and not ended
        asked = (self.judge, self.tokenizer, example_of(row), ids)
        rewards, critique = await asyncio.to_thread(judge_response, *asked, truncated=truncated)
        scores = [reward * kept for reward, kept in zip(rewards, output.response_mask, strict=True)]
        told = {name: getattr(output, name) for name in output.model_fields_set}
        said = {"critique": critique.feedback, "critique_status": critique.status}
        told["extra_fields"] = {**output.extra_fields, **said}
        # a score makes verl skip scoring of its own; `as_dict` replaces the number on the last token
        return SpanAgentLoopOutput(**{**told, "reward_score": sum(scores), "token_scores": scores})
