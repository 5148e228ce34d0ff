"""TRL's `GRPOTrainer`, whose reward functions may answer in words: spans become advantages of shape [B, T].

A script changes its import, and gets TRL's digits as long as its functions return numbers. What a function says in
words, in quotes or as a `Critique` becomes rewards of the tokens. The rest is TRL's: sampling (also with vLLM),
DeepSpeed, FSDP, checkpoints, the clipped loss. Two differences from the paper's PPO: the baseline is the mean of a
prompt's group of responses, not a value function, and the KL term stands in the loss (k3), not in the reward.
docs/engines.md tells when to choose which trainer.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from trl.trainer import grpo_trainer

from text2grad.errors import ConfigError
from text2grad.feedback import Match, critique_to_json
from text2grad.integrations.groups import group_shares, one_number
from text2grad.models import check_trl, steps_are_right, stop_ids
from text2grad.progress import note
from text2grad.rl import JudgedIds, OutsideJudge, group_advantages, whiten
from text2grad.types import HALF_PAIR, Critique, Example, Span

_is_async: Callable[[Any], bool] = getattr(grpo_trainer, "is_async_callable", iscoroutinefunction)  # as TRL does
WITH_SPANS = "frac_zero_std_with_spans"


class GRPOTrainer(grpo_trainer.GRPOTrainer):
    """TRL's `GRPOTrainer`; its reward functions may also return words.

    For each completion a reward function returns a number, as in TRL, or what a critic returns: a text (words, or JSON
    with quotes), a dict with quotes, a `Critique`, or a pair (number, text). A critic of text2grad, which takes
    (examples, responses), is a reward function, too. The rewards of tokens are weighed by the function's
    `reward_weights`; numbers, and outcomes of the critiques, stand on the last token.

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
            ConfigError: if a setting is wrong, or this version of TRL is not tested.
        """
        check_trl("text2grad.GRPOTrainer")
        if not 0.0 <= gamma <= 1.0:
            raise ConfigError(f"gamma = {gamma}: the discount lies in [0, 1]")
        judge = partial(OutsideJudge, reward=reward or {}, match=match, max_failure_rate=max_failure_rate)
        judge(_nothing)  # refuses wrong settings before a model is loaded
        self.gamma, self.leave_one_out = gamma, leave_one_out
        self.rows: Sequence[Mapping[str, Any]] = ()  # of the newest batch of this process
        self.ids: Sequence[Sequence[int]] = ()  # of its responses
        self.judged: dict[int, JudgedIds] = {}  # number of a reward function → what it said in words about them
        self.heard = False  # whether a function said words in this process of the training
        self.numbers = torch.zeros(0, 0)  # of each reward function, over all processes, [B of all, F]
        self.token_rewards: Tensor | None = None  # [B, T]; None: no function of any process said words
        self.response_mask = torch.zeros(0, 0, dtype=torch.bool)
        self.whole_rewards = torch.zeros(0)  # the part of the last token's reward that judges the response, [B]
        super().__init__(*given, **more)
        functions: list[Any] = self.reward_funcs
        self.critics = list(map(is_critic, functions))
        self.reward_funcs = [
            func if isinstance(func, nn.Module) else self._listener(number, func, judge(func if own else _nothing))
            for number, (func, own) in enumerate(zip(functions, self.critics, strict=True))
        ]

    def _listener(self, number: int, func: Any, judge: OutsideJudge) -> Callable[..., Any]:
        """Return a reward function that gives TRL numbers, and keeps what the given function says in words."""

        def numbers_of(answers: Any, columns: Mapping[str, Any]) -> Any:
            if not any(isinstance(answer, str | Mapping | tuple | list | Critique) for answer in answers):
                return answers

            def said(examples: Sequence[Example], responses: Sequence[str]) -> list[Any]:
                each = zip(answers, columns["completions"], responses, strict=True)
                return [_anchored(*parts) for parts in each]

            said.__name__, judge.critic = self.reward_func_names[number], said  # the name stands in errors
            return self._judge(number, judge, columns)

        def told(**columns: Any) -> Any:
            if self.critics[number]:
                return self._judge(number, judge, columns)
            return numbers_of(func(**columns), columns)

        async def told_later(**columns: Any) -> Any:
            return numbers_of(await func(**columns), columns)

        return told_later if _is_async(func) else told

    def _judge(self, number: int, judge: OutsideJudge, columns: Mapping[str, Any]) -> list[float]:
        """Keep the critiques and token rewards of a reward function; return the number of each response."""
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        ends = {*stop_ids(self.accelerator.unwrap_model(self.model), tokenizer), tokenizer.pad_token_id}
        cut = [own[-1] not in ends for own in self.ids]
        judged = judge(tokenizer, list(map(_example, self.rows)), self.ids, cut, device=self.accelerator.device)
        suffix = f"_{self.reward_func_names[number]}" if self.judged else ""  # of a second one that says words
        self.judged[number] = judged
        for label in ("positive", "negative"):
            count = sum(span.label == label for critique in judged.critiques for span in critique.spans)
            columns["log_metric"](f"critic{suffix}/{label}_spans", count / max(len(judged.critiques), 1))
        columns["log_metric"](f"critic{suffix}/failure_rate", judge.failures.rate)
        feedback = [HALF_PAIR.sub("\ufffd", critique.feedback) for critique in judged.critiques]
        columns["log_extra"](f"critique{suffix}", feedback)
        beside = list(map(_beside_feedback, judged.critiques, judged.responses, columns["completions"]))
        columns["log_extra"](f"critique_spans{suffix}", beside)
        return one_number(judged.rewards, judged.critiques)

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        """Return TRL's sampler, which begins with the order of the state's epoch where words are learned from."""

        def epoch() -> int | None:
            said = any(self.critics) or any(WITH_SPANS in logged for logged in self.state.log_history)
            return int(self.state.epoch or 0) if said else None

        return _OrderOfEpoch(super()._get_train_sampler(dataset), epoch)

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: Any, completions: Any, completion_ids_list: list[list[int]]
    ) -> Tensor:
        """Return the number of each reward function, over all processes; keep the rewards of this process's tokens."""
        self.rows, self.ids, self.judged, self.token_rewards = inputs, completion_ids_list, {}, None
        numbers: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        device, said = numbers.device, bool(self.judged)
        if self.accelerator.num_processes > 1:
            said = bool(self.accelerator.gather(torch.tensor([said], device=device)).any())
        if not said:
            return numbers
        if not self.heard:
            self._refuse_one_number()
            self.heard = True
        weights, first = self.reward_weights.to(device), self.accelerator.process_index * len(inputs)
        others = [number for number in range(len(weights)) if number not in self.judged]
        own = numbers[first : first + len(inputs), others]
        whole = (own * weights[others]).nansum(dim=1)  # [B]
        lengths = torch.tensor(list(map(len, self.ids)), device=device)
        self.response_mask = torch.arange(int(lengths.max()), device=device) < lengths[:, None]
        rewards = torch.zeros(self.response_mask.shape, device=device)
        rewards[torch.arange(len(inputs), device=device), lengths - 1] = whole
        for number, judged in self.judged.items():
            rewards, whole = rewards + weights[number] * judged.rewards, whole + weights[number] * judged.whole
        self.numbers, self.token_rewards, self.whole_rewards = numbers, rewards, whole
        return numbers

    def _refuse_one_number(self) -> None:
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
        policy: Any = self.accelerator.unwrap_model(self.model)
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        if not sharded and not steps_are_right(policy, policy.config.get_text_config().pad_token_id):
            note(
                "GRPOTrainer: TRL pads prompts on the left and samples by such steps, so these are not quite the "
                "policy's responses; `text2grad train` samples them right, or give each batch prompts of one length",
                warning=True,
            )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return TRL's batch, with advantages of shape [B, T] where words were said."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        policy: Any = self.model
        if self.token_rewards is None:
            return output
        rewards, mask = self._own_rewards(output)
        rewarded = ((rewards != 0) & mask).sum(dim=1, dtype=torch.float32)  # [B]
        log = self._metrics["train" if policy.training else "eval"]
        log["critic/rewarded_tokens"].append(self.accelerator.gather(rewarded).mean().item())
        if policy.training:  # evaluation needs the logged numbers alone
            output["advantages"], with_spans = self._advantages(output)
            log[WITH_SPANS].append(with_spans)
        return output

    def _own_rewards(self, output: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the rewards and the mask of the policy's own tokens, both [B, T], as wide as TRL's batch."""
        wider = (0, output["completion_mask"].shape[1] - self.response_mask.shape[1])
        told = self.token_rewards, self.response_mask
        rewards, mask = (nn.functional.pad(values, wider) for values in told if values is not None)
        if "tool_mask" not in output:
            return rewards, mask
        own, complete = output["tool_mask"].bool(), output["completion_mask"].bool()
        return _without_tools(rewards, self.whole_rewards, mask, own, complete)

    def _advantages(self, output: Mapping[str, Any]) -> tuple[Tensor, float]:
        """Return the advantage of each token over its group, [B, T], 0 where TRL's loss has no token; and a share.

        It is the share of groups in which all numbers are one and the same, and tokens have advantages.
        """
        learned = output["completion_mask"].bool() & output.get("tool_mask", output["completion_mask"]).bool()
        rewards, mask = self._own_rewards(output)
        padded = self.accelerator.pad_across_processes((rewards, mask.int(), learned.int()), dim=1)
        all_rewards, *masks = self.accelerator.gather(padded)  # a bool would become int64
        all_masks, all_learned = (values.bool() for values in masks)
        group: dict[str, Any] = {"group_size": int(self.num_generations or 0), "gamma": self.gamma, "lam": 1.0}
        of_all = group_advantages(
            all_rewards, all_masks, **group, leave_one_out=self.leave_one_out, scale=self.scale_rewards == "group"
        ).advantages
        first, count = self.accelerator.process_index * len(rewards), len(rewards)
        over_group = of_all[first : first + count, : rewards.shape[1]]
        if self.scale_rewards == "batch":
            over_group = whiten(over_group, mask, center=False, add_up=self.accelerator.reduce)
        numbers = (self.numbers * self.reward_weights.to(self.numbers.device)).nansum(dim=1)
        shares = group_shares(numbers, all_rewards, all_masks, **group, learned=all_learned)
        return over_group * learned, shares.with_spans


class _OrderOfEpoch(Sampler[int]):
    """TRL's sampler, also in a training that is resumed: TRL begins again with the order of the first epoch."""

    def __init__(self, sampler: Any, epoch: Callable[[], int | None]) -> None:
        """Take TRL's `RepeatSampler` and the number of finished epochs; None leaves the order to TRL."""
        self.sampler, self.epoch = sampler, epoch

    def __iter__(self) -> Iterator[int]:
        epoch = self.epoch()
        if self.sampler.shuffle and epoch is not None:
            self.sampler.generator.manual_seed(self.sampler.seed)
            for _ in range(epoch):
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


def is_critic(func: Any) -> bool:
    """Return whether a function is a critic of text2grad: its first two arguments are examples and responses."""
    try:
        return list(signature(func).parameters)[:2] == ["examples", "responses"]
    except (TypeError, ValueError):  # no signature
        return False


def _nothing(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
    """Stand for a reward function until it says words."""
    return [Critique("")] * len(responses)


def _anchored(answer: Any, completion: Any, response: str) -> Any:
    """Return what a reward function said; spans that count characters of TRL's completion count those of the response.

    TRL gives the completion of a chat model as messages, and takes reasoning and white space out of them.
    """
    text = _content(completion)
    if answer is None:
        return Critique("")
    if not isinstance(answer, Critique) or not answer.spans or text == response:
        return answer
    if text is None or response.count(text) != 1:
        return replace(answer, spans=(), status="unparsable")  # quotes would have a place
    first = response.find(text)
    spans = (Span(span.start + first, span.end + first, span.label) for span in answer.spans)
    return replace(answer, spans=tuple(spans))


def _content(completion: Any) -> str | None:
    """Return the text of a completion of TRL; None if it is not one text."""
    if isinstance(completion, list):
        return completion[0].get("content") if len(completion) == 1 else None
    return str(completion)


def _beside_feedback(critique: Critique, response: str, completion: Any) -> str:
    """Return a critique without its feedback as JSON, for TRL's table of completions; the studio reads it.

    Spans count characters of the response that the critic read. "response" has it where the table's text is another:
    TRL splits a chat model's completion into messages, and takes reasoning and white space out of them.

    Example:
        >>> _beside_feedback(Critique("So."), "Yes.", [{"role": "assistant", "content": "Yes."}])
        '{"spans": [], "outcome": null, "status": "ok", "unmatched": []}'
    """
    fields = critique_to_json(critique)
    del fields["feedback"]
    return json.dumps(fields if _content(completion) == response else {**fields, "response": response})


def _example(row: Mapping[str, Any]) -> Example:
    """Return a row of the dataset as an example; `meta` has the other columns and, as in files, those of "meta"."""
    meta = {name: value for name, value in row.items() if name not in ("prompt", "reference", "tests")}
    if isinstance(meta.get("meta", 0), Mapping | None):
        meta |= meta.pop("meta") or {}
    return Example(row.get("prompt", ""), row.get("reference"), row.get("tests"), meta)
