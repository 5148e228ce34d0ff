"""TRL's `GRPOTrainer`, whose reward functions may answer in words: spans become advantages of shape [B, T].

A script changes its import, and gets TRL's digits as long as its functions return numbers. What a function says in
words, in quotes or as a `Critique` becomes rewards of the tokens. The rest is TRL's: sampling (also with vLLM),
DeepSpeed, FSDP, checkpoints, the clipped loss. Two differences from the paper's PPO: the baseline is the mean of a
prompt's group of responses, not a value function, and the KL term stands in the loss (k3), not in the reward.
docs/engines.md tells when to choose which trainer.
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from trl.trainer import grpo_trainer

from text2grad.errors import ConfigError, is_installed
from text2grad.feedback import Match
from text2grad.integrations.groups import group_shares
from text2grad.integrations.trl_turns import is_feedback
from text2grad.integrations.trl_words import ListeningTrainer, last_places
from text2grad.models import can_share_prompts, collate, response_logprobs
from text2grad.rl import group_advantages, whiten
from text2grad.types import Example, Rollout

WITH_SPANS = "frac_zero_std_with_spans"


class GRPOTrainer(ListeningTrainer, grpo_trainer.GRPOTrainer):
    """TRL's `GRPOTrainer`; its reward functions may also return words.

    For each completion a reward function returns a number, as in TRL, or what a critic returns: a text (words, or JSON
    with quotes), a dict with quotes, a `Critique`, or a pair (number, text). A critic of text2grad, which takes
    (examples, responses), is a reward function, too. The rewards of tokens are weighed by the function's
    `reward_weights`; numbers, and outcomes of the critiques, stand on the last token.

    With tools or environments a response is a `Conversation`, as in `Text2GradTrainer`: what they and the chat template
    write has no reward and is no step of γ. What an environment says by `get_feedback` comes from one more function, of
    weight 1.

    G_t = Σ_k γ^(k−t) r_k is the return of token t, and its advantage is G_t minus the mean return of the tokens of all
    `num_generations` responses to the prompt (`rl.group_advantages`), over all processes. `args.scale_rewards` divides
    by the deviation within the group ("group", GRPO), by that of all tokens ("batch"), or by nothing ("none"). A batch
    without words has TRL's advantages.

    The log has `frac_reward_zero_std`, the share of groups whose responses have one and the same number: it teaches
    nothing there. `frac_zero_std_with_spans` is the share of groups of this kind in which tokens have advantages. The
    number of a function that gives none is the sum of its token rewards.
    """

    def __init__(
        self,
        *given: Any,
        reward: Mapping[str, Any] | None = None,
        gamma: float = 1.0,
        leave_one_out: bool = False,
        match: Match = "exact",
        max_failure_rate: float = 0.2,
        **more: Any,
    ) -> None:
        """Take what TRL's `GRPOTrainer` takes, and how words become rewards.

        Args:
            given: arguments of TRL's `GRPOTrainer`: model, reward_funcs, args, train_dataset, ...
            reward: the section [reward] of a recipe: `{"positive": 0.3, "span_mass": "span"}`. None is the paper's δ.
            gamma: discount γ in [0, 1]; 1 compares whole responses, a small one gives credit near to the span.
            leave_one_out: the baseline of a response is the mean of the other ones (RLOO, arXiv 2402.14740).
            match: how the quotes of critiques in text form are found.
            max_failure_rate: share of unreadable critiques, of the last 100, above which the training stops.
            more: further arguments of TRL's `GRPOTrainer`.

        Raises:
            ConfigError: if a setting is wrong, or this version of TRL is not tested, or cannot run here.
        """
        if not 0.0 <= gamma <= 1.0:
            raise ConfigError(f"gamma = {gamma}: the discount lies in [0, 1]")
        if version("trl").startswith("1.15.") and not (is_installed("triton") and torch.accelerator.is_available()):
            raise ConfigError(
                f"TRL {version('trl')} computes log-probabilities by Triton, on an accelerator, which is missing here: "
                'pip install "trl>=1.16,<1.17"'
            )
        self.gamma, self.leave_one_out = gamma, leave_one_out
        self.numbers = torch.zeros(0, 0)  # of each reward function, over all processes, [B of all, F]
        self.token_rewards: Tensor | None = None  # [B, T]; None: no function of any process said words
        super().__init__(*given, reward=reward, match=match, max_failure_rate=max_failure_rate, **more)

    def _generate(self, prompts: list[Any]) -> Any:
        """Return TRL's completions; keep the ids of their prompts, and which of their own ids the policy wrote."""
        for callable_tools in (*self._sync_tool_dicts, *self._async_tool_dicts) if self.tools else ():
            if is_feedback(callable_tools.get("get_feedback")):
                del callable_tools["get_feedback"]
        generated = super()._generate(prompts)
        self.prompt_ids, ids, self.own = generated[:3]  # own: TRL's mask of tools
        if self.own is None and self.environments is not None:  # without tools
            self.own = [[1] * len(row) for row in ids]
        return generated

    def _calculate_rewards(self, *given: Any) -> Tensor:
        """Return the number of each reward function, over all processes; keep the rewards of this process's tokens."""
        self.token_rewards = None
        numbers: Tensor = super()._calculate_rewards(*given)
        if not self.said:
            return numbers
        device, count = numbers.device, len(self.rows)
        weights, first = self.reward_weights.to(device), self.accelerator.process_index * count
        others = [number for number in range(len(weights)) if number not in self.judged]
        rewards = torch.zeros(self.response_mask.shape, device=device)
        of_whole = (numbers[first : first + count, others] * weights[others]).nansum(dim=1)  # [B]
        rewards[torch.arange(count, device=device), last_places(self.response_mask)] = of_whole
        for number, judged in self.judged.items():
            rewards = rewards + weights[number] * judged.rewards
        self.numbers, self.token_rewards = numbers, rewards
        return numbers

    def _check_settings(self) -> None:
        """Refuse settings that would make one number of the token rewards, when words are heard.

        Raises:
            ConfigError: with the setting, its value and the way out.
        """
        args: Any = self.args
        if args.importance_sampling_level != "token":
            raise ConfigError(
                f"importance_sampling_level = {args.importance_sampling_level!r}: one ratio per response gives "
                "each of its tokens the mean of their advantages, so the spans would have no effect; set it to 'token'"
            )
        if args.multi_objective_aggregation != "sum_then_normalize":
            raise ConfigError(
                f"multi_objective_aggregation = {args.multi_objective_aggregation!r} normalises each "
                "reward function's numbers; set it to 'sum_then_normalize'"
            )
        super()._check_settings()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return TRL's batch, with advantages of shape [B, T] where words were said."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        policy: Any = self.model
        if self.token_rewards is None:
            return output
        rewarded = (self.token_rewards != 0).sum(dim=1, dtype=torch.float32)  # [B]
        log = self._metrics["train" if policy.training else "eval"]
        log["critic/rewarded_tokens"].append(self.accelerator.gather(rewarded).mean().item())
        if policy.training:  # evaluation needs the logged numbers alone
            output["advantages"], with_spans = self._advantages(self.token_rewards, output)
            log[WITH_SPANS].append(with_spans)
        return output

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **more: Any
    ) -> Any:
        """Return TRL's log-probs and entropies, [B, T], and loss of experts; a prompt is read once where that pays.

        The numbers are TRL's but for rounding. A training that learns from numbers alone has TRL's, to the digit.
        """
        given = input_ids, attention_mask, logits_to_keep
        policy: Any = self.accelerator.unwrap_model(model)
        known = {"batch_size", "compute_entropy"}
        others = (value for name, value in more.items() if name not in known)  # images, and the loss of experts
        if (
            args
            or any(value is not None and value is not False for value in others)
            or not self._reads_prompts_once(policy)
        ):
            return super()._get_per_token_logps_and_entropies(model, *given, *args, **more)
        start, rollouts = input_ids.shape[1] - logits_to_keep, []
        for ids, own in zip(input_ids, attention_mask.bool(), strict=True):
            prompt, response = (tuple(ids[part][own[part]].tolist()) for part in (slice(start), slice(start, None)))
            rollouts.append(Rollout(Example(""), prompt, response, "", truncated=False))
        batch = collate(rollouts, pad_id=0, device=input_ids.device, share_prompts=True)
        if not batch.cost().shares_prompts:
            return super()._get_per_token_logps_and_entropies(model, *given, *args, **more)
        size, entropy = more.get("batch_size") or len(rollouts), bool(more.get("compute_entropy"))
        parts = []
        for rows in torch.split(torch.arange(len(rollouts), device=input_ids.device), size):
            stats = response_logprobs(policy, batch.rows(rows), temperature=self.temperature, with_entropy=entropy)
            parts.append([nn.functional.pad(each, (0, logits_to_keep - each.shape[1])) for each in stats[:2]])
        logps, entropies = map(torch.cat, zip(*parts, strict=True))
        return logps, entropies if entropy else None, None

    def _reads_prompts_once(self, policy: Any) -> bool:
        """Return whether a prompt's pass may be shared: on one device, without autocast, checkpoints and dropout."""
        config = policy.config.get_text_config()
        drops = any(isinstance(part, nn.Dropout) and part.p > 0 for part in policy.modules())
        drops = policy.training and (drops or getattr(config, "attention_dropout", 0.0) > 0)
        alone = self.accelerator.num_processes == 1 and not (self.is_deepspeed_enabled or self.is_fsdp_enabled)
        whole = alone and self.accelerator.mixed_precision == "no" and not drops
        return whole and self._learns_words() and can_share_prompts(policy)

    def _advantages(self, rewards: Tensor, output: Mapping[str, Any]) -> tuple[Tensor, float]:
        """Return the advantage of each token over its group, as wide as TRL's batch, [B, T]; and a share of groups.

        The advantage is 0 where TRL's loss has no token, though a truncated response that it leaves out stays in the
        mean of its group. The share is of groups in which all numbers are one and the same, and tokens have advantages.
        """
        learned = output["completion_mask"].bool() & output.get("tool_mask", output["completion_mask"]).bool()
        wider = (0, learned.shape[1] - rewards.shape[1])
        rewards, mask = (nn.functional.pad(values, wider) for values in (rewards, self.response_mask))
        padded = self.accelerator.pad_across_processes((rewards, mask.int(), learned.int()), dim=1)
        all_rewards, *masks = self.accelerator.gather(padded)  # a bool would become int64
        all_masks, all_learned = (values.bool() for values in masks)
        gamma = torch.ones_like(all_rewards).masked_fill(all_masks, self.gamma)  # what tools write is no step
        group: dict[str, Any] = {"group_size": int(self.num_generations or 0), "gamma": gamma, "lam": 1.0}
        of_all = group_advantages(
            all_rewards, all_masks, **group, leave_one_out=self.leave_one_out, scale=self.scale_rewards == "group"
        ).advantages
        first, count = self.accelerator.process_index * len(rewards), len(rewards)
        over_group = of_all[first : first + count, : rewards.shape[1]]
        if self.scale_rewards == "batch":
            over_group = whiten(over_group, mask, center=False, add_up=self.accelerator.reduce)
        numbers = (self.numbers * self.reward_weights.to(self.numbers.device)).nansum(dim=1)
        _, with_spans = group_shares(numbers, all_rewards, all_masks, **group, learned=all_learned)
        return over_group * learned, with_spans
