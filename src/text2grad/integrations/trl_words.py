"""Reward functions of TRL's trainers that answer in words: one mechanism for `GRPOTrainer` and `SDPOTrainer`.

For each completion a reward function returns a number, as in TRL, or what a critic returns. TRL gets numbers; the
trainer keeps the critiques, and the rewards of the sampled ids.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from inspect import iscoroutinefunction, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import Trainer
from transformers.utils.chat_template_utils import get_json_schema
from trl.trainer import grpo_trainer

from text2grad.feedback import Critic, Match, critique_to_json, turns_to_json
from text2grad.integrations.groups import one_number
from text2grad.integrations.trl_turns import is_feedback, trajectory
from text2grad.models import check_trl, steps_are_right, stop_ids
from text2grad.progress import note
from text2grad.rl import JudgedIds, OutsideJudge, Toolbox, single_turn
from text2grad.types import HALF_PAIR, Conversation, Critique, Example, Rollout, Span

_is_async: Callable[[Any], bool] = getattr(grpo_trainer, "is_async_callable", iscoroutinefunction)  # as TRL does


_Trainer: Any = Trainer  # with the attributes of TRL's


class ListeningTrainer(_Trainer):  # type: ignore[misc]
    """Stands before a trainer of TRL that calls reward functions, and listens to what they say in words.

    Attributes:
        rows: the examples of the newest batch of this process.
        ids: all ids behind its prompts, and `prompt_ids` those of the prompts, where TRL has tools or environments.
        own: 1 on ids of the policy, 0 on those of tools and environments; None where all are the policy's.
        response_mask: True on the policy's ids, bool [B, T].
        rollouts: returns its responses as critics see them, which are made at the first call.
        judged: number of a reward function → what it said in words about them.
        said: whether a function of any process said words about the newest batch.
        schemas: of the tools.
    """

    reward_funcs: Any  # TRL's, as the next ones
    reward_func_names: Any
    reward_processing_classes: Any
    reward_weights: Tensor

    def __init__(
        self, *given: Any, reward: Mapping[str, Any] | None, match: Match, max_failure_rate: float, **more: Any
    ) -> None:
        """Take the arguments of TRL's trainer, and how words become rewards.

        Raises:
            ConfigError: if a setting is wrong, or this version of TRL is not tested.
        """
        check_trl(f"text2grad.{type(self).__name__}")
        judge = partial(OutsideJudge, reward=reward or {}, match=match, max_failure_rate=max_failure_rate)
        judge(_nothing)  # refuses wrong settings before a model is loaded
        self.match: Match = match
        self.rows: Sequence[Mapping[str, Any]] = ()
        self.ids: Sequence[Sequence[int]] = ()
        self.prompt_ids: Sequence[Sequence[int]] = ()
        self.own: Sequence[Sequence[int]] | None = None
        self.response_mask = torch.zeros(0, 0, dtype=torch.bool)
        self.rollouts: Callable[[], list[Rollout]] = list
        self.judged: dict[int, JudgedIds] = {}
        self.said = self.heard = False  # heard: words were said in this process of the training
        super().__init__(*given, **more)
        self._take_feedback()
        self.critics = list(map(is_critic, self.reward_funcs))
        self.reward_funcs = [
            func if isinstance(func, nn.Module) else self._listener(number, func, judge(_nothing))
            for number, func in enumerate(self.reward_funcs)
        ]

    def _take_feedback(self) -> None:
        """Make a reward function of the environments' `get_feedback`, which TRL has taken for a tool."""
        tools = getattr(self, "tools", None) or []
        if any(map(is_feedback, tools)):
            for listed in (tools, *self._env_tools.values()):
                listed[:] = [tool for tool in listed if not is_feedback(tool)]
            self.reward_funcs = [*self.reward_funcs, self.get_feedback]
            self.reward_func_names = [*self.reward_func_names, self.get_feedback.__name__]
            self.reward_processing_classes = [*self.reward_processing_classes, None]
            self.reward_weights = torch.cat([self.reward_weights, torch.ones(1)])
        self.schemas = list(map(get_json_schema, tools))

    def get_feedback(self, examples: Sequence[Example], responses: Sequence[Any]) -> list[Critique]:
        """Return what the environments of the newest batch say of its responses, without their rewards: a critic."""
        rows = zip(self.environments, examples, responses, strict=True)
        return [Toolbox.judged(*row, self.match, with_reward=False) for row in rows]

    def _listener(self, number: int, func: Any, judge: OutsideJudge) -> Callable[..., Any]:
        """Return a reward function that gives TRL numbers, and keeps what the given function says in words."""

        def numbers_of(answers: Any, columns: Mapping[str, Any]) -> Any:
            if not any(isinstance(answer, str | Mapping | tuple | list | Critique) for answer in answers):
                return answers

            def said(examples: Sequence[Example], responses: Sequence[str]) -> list[Any]:
                each = zip(answers, columns["completions"], responses, strict=True)
                return [_anchored(*parts) for parts in each]

            said.__name__ = self.reward_func_names[number]  # the name stands in errors
            return self._judge(number, judge, said, columns["completions"])

        def told(**columns: Any) -> Any:
            if self.critics[number]:
                return self._judge(number, judge, func, columns["completions"])
            return numbers_of(func(**columns), columns)

        async def told_later(**columns: Any) -> Any:
            return numbers_of(await func(**columns), columns)

        return told_later if _is_async(func) else told

    def _judge(self, number: int, judge: OutsideJudge, critic: Critic, completions: Sequence[Any]) -> list[float]:
        """Keep the critiques and token rewards of a reward function; return the number of each response."""
        judge.critic = critic
        judge.prompt_end = "" if self.critics[number] else None  # thoughts are hidden from critics
        judged = judge(self._tokenizer, self.rollouts(), device=self.accelerator.device)
        own, rewards = self.response_mask, judged.rewards[judged.response_mask]  # given ids stand between sampled ones
        rewards = torch.zeros(own.shape, device=own.device).masked_scatter(own, rewards)
        judged = judged._replace(rewards=rewards, response_mask=own)
        suffix = f"_{self.reward_func_names[number]}" if self.judged else ""  # of a second one that says words
        self.judged[number] = judged
        for label in ("positive", "negative"):
            count = sum(span.label == label for critique in judged.critiques for span in critique.spans)
            self._log_metric(f"critic{suffix}/{label}_spans", count / max(len(judged.critiques), 1))
        self._log_metric(f"critic{suffix}/failure_rate", judge.failures.rate)
        self._log_completion_extra(f"critique{suffix}", list(map(feedback_of, judged.critiques)))
        beside = list(map(_beside_feedback, judged.critiques, judged.responses, completions))
        self._log_completion_extra(f"critique_spans{suffix}", beside)
        return one_number(judged.rewards, judged.critiques)

    def _trajectories(self, prompts: Sequence[Any], completions: Sequence[Any]) -> list[Rollout]:
        """Return the responses of this process; each is a `Conversation` where there are tools or environments."""
        tokenizer: Any = self._tokenizer
        ends = {*stop_ids(self.accelerator.unwrap_model(self.model), tokenizer), tokenizer.pad_token_id}
        examples, rollouts = list(map(_example, self.rows)), list[Rollout]()
        if self.own is None:
            rows = zip(examples, self.ids, strict=True)
            return [single_turn(tokenizer, row, ids, truncated=ids[-1] not in ends) for row, ids in rows]
        whole: Any = zip(examples, prompts, self.prompt_ids, self.ids, self.own, completions, strict=True)
        for example, prompt, *rest in whole:
            example = replace(example, prompt=prompt, meta={**example.meta, "tools": self.schemas})
            rollouts.append(trajectory(tokenizer, example, *rest, ends=ends))
        return rollouts

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        """Return TRL's sampler, which begins with the order of the state's epoch where words are learned from."""

        def epoch() -> int | None:
            return int(self.state.epoch or 0) if self._learns_words() else None

        return _OrderOfEpoch(super()._get_train_sampler(dataset), epoch)

    def _learns_words(self) -> bool:
        """Return whether this training learns from words; the same after a resume."""
        return any(self.critics) or any("critic/failure_rate" in logged for logged in self.state.log_history)

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: Any, completions: Any, completion_ids_list: list[list[int]]
    ) -> Tensor:
        """Return the number of each reward function, over all processes; keep what functions say in words."""
        self.rows, self.ids, self.judged = inputs, completion_ids_list, {}
        self.rollouts = cache(partial(self._trajectories, prompts, completions))
        device = self.accelerator.device
        own = [torch.tensor(row) for row in self.own or [[1] * len(ids) for ids in self.ids]]
        self.response_mask = nn.utils.rnn.pad_sequence(own, batch_first=True).bool().to(device)
        numbers: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self.said = bool(self.judged)
        if self.accelerator.num_processes > 1:
            self.said = bool(self.accelerator.gather(torch.tensor([self.said], device=device)).any())
        if self.said and not self.heard:
            self._check_settings()
            self.heard = True
        return numbers

    def _check_settings(self) -> None:
        """Look at the settings when words are heard first."""
        policy: Any = self.accelerator.unwrap_model(self.model)
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        if not sharded and not steps_are_right(policy, policy.config.get_text_config().pad_token_id):
            note(
                f"{type(self).__name__}: TRL pads prompts on the left and samples by such steps, so these are not "
                "quite the policy's responses; `text2grad train` samples them right, or give each batch prompts of "
                "one length",
                warning=True,
            )


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


def last_places(mask: Tensor) -> Tensor:
    """Return the index of the last True of each row, [B]; the mask is [B, T]."""
    return (mask * torch.arange(mask.shape[1], device=mask.device)).amax(dim=1)


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

    TRL gives the completion of a chat model as messages, and takes reasoning and white space out of them. The turn of a
    span is the number of a message, counted from the prompt's first.
    """
    if answer is None:
        return Critique("")
    if not isinstance(answer, Critique) or not answer.spans or _content(completion) == response:
        return answer
    spans = list[Span]()
    for span in answer.spans:
        shown, text = _texts(completion, response, span.turn)
        if not isinstance(shown, str) or (shown != text and text.count(shown) != 1):
            return replace(answer, spans=(), status="unparsable")  # quotes would have a place
        first = text.find(shown)
        spans.append(replace(span, start=span.start + first, end=span.end + first))
    return replace(answer, spans=tuple(spans))


def _texts(completion: Any, response: str, turn: int | None) -> tuple[Any, str]:
    """Return what TRL shows of a turn, and what stands there in the response; nothing of a turn that it has not."""
    turns = response.turns if isinstance(response, Conversation) else ()
    if turn is None or not turns:
        return _content(completion), response
    at = turn - len(turns) if isinstance(turn, int) and isinstance(completion, list) else 0
    return (completion[at].get("content"), turns[at].text) if -len(completion) <= at < 0 else ("", "")


def _content(completion: Any) -> str | None:
    """Return the text of a completion of TRL; None if it is not one text."""
    if isinstance(completion, list):
        return completion[0].get("content") if len(completion) == 1 else None
    return str(completion)


def feedback_of(critique: Critique) -> str:
    """Return the words of a critique, which any tokenizer can read."""
    return HALF_PAIR.sub("\ufffd", critique.feedback)


def _beside_feedback(critique: Critique, response: str, completion: Any) -> str:
    """Return a critique without its feedback as JSON, for TRL's table of completions; the studio reads it.

    Spans count characters of the response that the critic read. "response" has it where the table's text is another,
    with its "turns" if it has several speakers:
    TRL splits a chat model's completion into messages, and takes reasoning and white space out of them.

    Example:
        >>> _beside_feedback(Critique("So."), "Yes.", [{"role": "assistant", "content": "Yes."}])
        '{"spans": [], "outcome": null, "status": "ok", "unmatched": []}'
    """
    fields = critique_to_json(critique)
    del fields["feedback"]
    if turns := turns_to_json(response):
        fields |= {"response": response, "turns": turns}
    elif _content(completion) != response:
        fields["response"] = response
    return json.dumps(fields)


def _example(row: Mapping[str, Any]) -> Example:
    """Return a row of the dataset as an example; `meta` has the other columns and, as in files, those of "meta"."""
    meta = {name: value for name, value in row.items() if name not in ("prompt", "reference", "tests")}
    if isinstance(meta.get("meta", 0), Mapping | None):
        meta |= meta.pop("meta") or {}
    return Example(row.get("prompt", ""), row.get("reference"), row.get("tests"), meta)
