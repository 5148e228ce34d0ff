"""Critiques in words in TRL's `GRPOTrainer`: spans become advantages of shape [B, T] in place of [B].

The rest is TRL's: sampling (also with vLLM), DeepSpeed, FSDP, checkpoints, the clipped loss. Two differences from the
paper's PPO: the baseline is the mean of a prompt's group of responses, not a value function, and the KL term stands in
the loss (k3), not in the reward. docs/engines.md tells when to choose which trainer.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from text2grad.errors import ConfigError
from text2grad.feedback import Critic, Match, critique_to_json
from text2grad.models import check_trl, steps_are_right, stop_ids
from text2grad.progress import note
from text2grad.rl import JudgedIds, OutsideJudge, group_advantages, whiten
from text2grad.types import HALF_PAIR, Critique, Example


class SpanGRPOTrainer(GRPOTrainer):
    """TRL's `GRPOTrainer` with a reward on each token, from the spans of a critic.

    G_t = Σ_k γ^(k−t) r_k is the return of token t, and its advantage is G_t minus the mean return of the tokens of all
    `num_generations` responses to the prompt (`rl.group_advantages`), over all processes. `args.scale_rewards` divides
    by the deviation within the group ("group", GRPO), by that of all tokens ("batch"), or by nothing ("none").
    """

    def __init__(
        self,
        model: Any,
        critic: Critic,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        *,
        reward: Mapping[str, Any] | None = None,
        gamma: float = 1.0,
        leave_one_out: bool = False,
        match: Match = "exact",
        max_failure_rate: float = 0.2,
        reward_funcs: Sequence[Any] = (),
        **more: Any,
    ) -> None:
        """Take a model and a critic.

        Args:
            model: as `GRPOTrainer` takes it.
            critic: any text2grad critic. Its examples have the dataset's columns: `prompt`, `reference`, `tests`, and
                all others as `meta`; a column "meta" is `meta` itself, as in text2grad's files.
            args: TRL's settings; `reward_weights` begin with the critic's, which only weighs its number in the log.
            train_dataset: rows with "prompt".
            reward: the section [reward] of a recipe: `{"positive": 0.3, "span_mass": "span"}`. None is the paper's δ.
            gamma: discount γ in [0, 1]; 1 compares whole responses, a small one gives credit near to the span.
            leave_one_out: the baseline of a response is the mean of the other ones (RLOO, arXiv 2402.14740).
            match: how the quotes of critiques in text form are found.
            max_failure_rate: share of unreadable critiques, of the last 100, above which the training stops.
            reward_funcs: TRL's reward functions; their weighted numbers stand on the last token.
            more: further arguments of `GRPOTrainer`.

        Raises:
            ConfigError: if a setting would make one number of the token rewards, or this version of TRL is not tested.
        """
        _refuse(args, reward_funcs, gamma)
        self.gamma, self.leave_one_out = gamma, leave_one_out
        self.judge = OutsideJudge(critic, reward=reward or {}, match=match, max_failure_rate=max_failure_rate)
        self.responses: list[str] = []
        self.critiques: list[Critique] = []
        self.token_rewards = torch.zeros(0, 0)  # rewards of this process's newest responses, [B, T]
        self.response_mask = torch.zeros(0, 0, dtype=torch.bool)
        self.whole_rewards = torch.zeros(0)  # the part of the last token's reward that judges the response, [B]

        def spans(completions: Any, log_extra: Any, log_metric: Any, **_: Any) -> list[float | None]:
            """Return the sum of each response's token rewards, for the log alone."""
            for label in ("positive", "negative"):
                count = sum(span.label == label for critique in self.critiques for span in critique.spans)
                log_metric(f"critic/{label}_spans", count / max(len(self.critiques), 1))
            log_metric("critic/failure_rate", self.judge.failures.rate)
            log_extra("critique", [HALF_PAIR.sub("\ufffd", critique.feedback) for critique in self.critiques])
            log_extra("critique_spans", list(map(_beside_feedback, self.critiques, self.responses, completions)))
            totals: list[float | None] = self.token_rewards.sum(dim=1).tolist()
            return totals

        super().__init__(model, [spans, *reward_funcs], args, train_dataset, **more)
        policy: Any = self.accelerator.unwrap_model(self.model)
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        if not sharded and not steps_are_right(policy, policy.config.get_text_config().pad_token_id):
            note(
                "SpanGRPOTrainer: TRL pads prompts on the left and samples by such steps, so these are not quite the "
                "policy's responses; `text2grad train` samples them right, or give each batch prompts of one length",
                warning=True,
            )

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        """Return TRL's sampler, which begins with the order of the state's epoch."""
        return _OrderOfEpoch(super()._get_train_sampler(dataset), lambda: int(self.state.epoch or 0))

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: Any, completions: Any, completion_ids_list: list[list[int]]
    ) -> Tensor:
        """Judge the responses of this process; return the number of each reward function, over all processes."""
        judged = self._judge(inputs, completion_ids_list)
        self.token_rewards, self.response_mask = judged.rewards, judged.response_mask
        numbers: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        others = (numbers[:, 1:] * self.reward_weights[1:].to(numbers.device)).nansum(dim=1)  # [B of all processes]
        first = self.accelerator.process_index * len(inputs)
        rows = torch.arange(len(inputs), device=numbers.device)
        own = others[first : first + len(inputs)]
        self.token_rewards[rows, self.response_mask.sum(dim=1) - 1] += own
        self.whole_rewards = judged.whole + own
        return numbers

    def _judge(self, rows: Sequence[Mapping[str, Any]], ids: Sequence[Sequence[int]]) -> JudgedIds:
        """Return the critiques of responses and the reward of each sampled token."""
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        ends = {*stop_ids(self.accelerator.unwrap_model(self.model), tokenizer), tokenizer.pad_token_id}
        cut = [own[-1] not in ends for own in ids]
        judged = self.judge(tokenizer, list(map(_example, rows)), ids, cut, device=self.accelerator.device)
        self.responses, self.critiques = judged.responses, judged.critiques
        return judged

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return TRL's batch with advantages of shape [B, T]."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        policy: Any = self.model
        rewards, mask = self._own_rewards(output)
        rewarded = ((rewards != 0) & mask).sum(dim=1, dtype=torch.float32)  # [B]
        log = self._metrics["train" if policy.training else "eval"]
        log["critic/rewarded_tokens"].append(self.accelerator.gather(rewarded).mean().item())
        if policy.training:  # evaluation needs the logged numbers alone
            output["advantages"] = self._advantages(output)
        return output

    def _own_rewards(self, output: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the rewards and the mask of the policy's own tokens, both [B, T], as wide as TRL's batch."""
        wider = (0, output["completion_mask"].shape[1] - self.response_mask.shape[1])
        rewards, mask = (torch.nn.functional.pad(values, wider) for values in (self.token_rewards, self.response_mask))
        if "tool_mask" not in output:
            return rewards, mask
        own, complete = output["tool_mask"].bool(), output["completion_mask"].bool()
        return _without_tools(rewards, self.whole_rewards, mask, own, complete)

    def _advantages(self, output: Mapping[str, Any]) -> Tensor:
        """Return the advantage of each token over its group, [B, T]; 0 where TRL's loss has no token."""
        learned = output["completion_mask"].bool() & output.get("tool_mask", output["completion_mask"]).bool()
        rewards, mask = self._own_rewards(output)
        padded = self.accelerator.pad_across_processes((rewards, mask.int()), dim=1)  # a bool would become int64
        all_rewards, all_masks = self.accelerator.gather(padded)
        of_all = group_advantages(
            all_rewards,
            all_masks.bool(),
            group_size=int(self.num_generations or 0),
            gamma=self.gamma,
            lam=1.0,
            leave_one_out=self.leave_one_out,
            scale=self.scale_rewards == "group",
        ).advantages
        first, count = self.accelerator.process_index * len(rewards), len(rewards)
        over_group = of_all[first : first + count, : rewards.shape[1]]
        if self.scale_rewards == "batch":
            over_group = whiten(over_group, mask, center=False, add_up=self.accelerator.reduce)
        advantages: Tensor = over_group * learned
        return advantages


class _OrderOfEpoch(Sampler[int]):
    """TRL's sampler, also in a training that is resumed: TRL begins again with the order of the first epoch."""

    def __init__(self, sampler: Any, epoch: Callable[[], int]) -> None:
        """Take TRL's `RepeatSampler` and the number of finished epochs."""
        self.sampler, self.epoch = sampler, epoch

    def __iter__(self) -> Iterator[int]:
        if self.sampler.shuffle:
            self.sampler.generator.manual_seed(self.sampler.seed)
            for _ in range(self.epoch()):
                torch.randperm(self.sampler.num_samples, generator=self.sampler.generator)
        yield from self.sampler

    def __len__(self) -> int:
        return len(self.sampler)


def _without_tools(
    rewards: Tensor, whole: Tensor, mask: Tensor, own: Tensor, complete: Tensor
) -> tuple[Tensor, Tensor]:
    """Return rewards and mask, both [B, T], of the policy's own tokens: what tools answered is no action.

    Where a tool or an environment wrote the last token, the numbers of the response as a whole go to the last token of
    the policy. TRL may leave truncated responses out of its loss; their returns stay in the group's mean, as without
    tools.

    Args:
        rewards: of each token, [B, T].
        whole: the part of the last token's reward that judges the whole response, [B].
        mask: True on the tokens of the response, [B, T].
        own: True on the policy's tokens, [B, T].
        complete: TRL's mask of the tokens in its loss without tools, [B, T].
    """
    kept = mask & (own | ~complete.any(dim=1, keepdim=True))
    places = torch.arange(mask.shape[1], device=mask.device)
    last, last_own = (torch.where(chosen, places, -1).amax(dim=1) for chosen in (mask, kept))
    rows = ((last_own >= 0) & (last_own < last)).nonzero()[:, 0]
    moved = rewards.clone()
    moved[rows, last_own[rows]] += whole[rows]
    return moved, kept


def _beside_feedback(critique: Critique, response: str, completion: Any) -> str:
    """Return a critique without its feedback as JSON, for TRL's table of completions; the studio reads it.

    Spans count characters of the response that the critic read. "response" has it where the table's text is another:
    TRL splits a chat model's completion into messages, and takes reasoning and white space out of them.

    Example:
        >>> _beside_feedback(Critique("So."), "Yes.", [{"role": "assistant", "content": "Yes."}])
        '{"spans": [], "outcome": null, "status": "ok", "unmatched": []}'
    """
    text = completion[0].get("content") if isinstance(completion, list) and len(completion) == 1 else completion
    fields = critique_to_json(critique)
    del fields["feedback"]
    return json.dumps(fields if text == response else {**fields, "response": response})


def _example(row: Mapping[str, Any]) -> Example:
    """Return a row of the dataset as an example; `meta` has the other columns and, as in files, those of "meta"."""
    meta = {name: value for name, value in row.items() if name not in ("prompt", "reference", "tests")}
    if isinstance(meta.get("meta", 0), Mapping | None):
        meta |= meta.pop("meta") or {}
    return Example(row.get("prompt", ""), row.get("reference"), row.get("tests"), meta)


def _refuse(args: GRPOConfig | None, reward_funcs: Sequence[Any], gamma: float) -> None:
    """Refuse what would change the token rewards in silence.

    Raises:
        ConfigError: with the setting, its value and the way out.
    """
    check_trl("SpanGRPOTrainer")
    if not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"gamma = {gamma}: the discount lies in [0, 1]")
    if callable(reward_funcs):
        raise ConfigError("reward_funcs is a list of functions; put the function into a list")
    if args is not None and args.importance_sampling_level != "token":
        raise ConfigError(
            f"importance_sampling_level = {args.importance_sampling_level!r}: one ratio per response gives each of its "
            "tokens the mean of their advantages, so the spans would have no effect; set it to 'token'"
        )
    if args is not None and args.multi_objective_aggregation != "sum_then_normalize":
        raise ConfigError(
            f"multi_objective_aggregation = {args.multi_objective_aggregation!r} normalises each "
            "reward function's numbers; set it to 'sum_then_normalize'"
        )
