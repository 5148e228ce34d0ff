"""Reward functions of TRL's trainers that answer in words: one mechanism for `GRPOTrainer` and `SDPOTrainer`.

For each completion a reward function returns a number, as in TRL, or what a critic returns. TRL gets numbers; the
trainer keeps the critiques, and the rewards of the sampled ids.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction, signature
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import Trainer
from trl.trainer import grpo_trainer

from text2grad.align import policy_offsets
from text2grad.feedback import Critic, Match, ask, critique_to_json
from text2grad.integrations.groups import one_number
from text2grad.models import check_trl, steps_are_right, stop_ids
from text2grad.progress import note
from text2grad.rl import JudgedIds, OutsideJudge
from text2grad.types import HALF_PAIR, Critique, Example

_is_async: Callable[[Any], bool] = getattr(grpo_trainer, "is_async_callable", iscoroutinefunction)  # as TRL does


_Trainer: Any = Trainer  # with the attributes of TRL's


class ListeningTrainer(_Trainer):  # type: ignore[misc]
    """Stands before a trainer of TRL that calls reward functions, and listens to what they say in words.

    Attributes:
        rows: the examples of the newest batch of this process.
        ids: of its responses.
        own: 1 on ids of the policy, 0 on those of tools and environments; None where all are the policy's.
        response_mask: True on the policy's ids, bool [B, T].
        judged: number of a reward function → what it said in words about them.
        said: whether a function of any process said words about the newest batch.
    """

    reward_funcs: Any  # TRL's

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
        self.rows: Sequence[Mapping[str, Any]] = ()
        self.ids: Sequence[Sequence[int]] = ()
        self.own: Sequence[Sequence[int]] | None = None
        self.response_mask = torch.zeros(0, 0, dtype=torch.bool)
        self.judged: dict[int, JudgedIds] = {}
        self.said = self.heard = False  # heard: words were said in this process of the training
        super().__init__(*given, **more)
        self.critics = list(map(is_critic, self.reward_funcs))
        self.reward_funcs = [
            func if isinstance(func, nn.Module) else self._listener(number, func, judge(_nothing))
            for number, func in enumerate(self.reward_funcs)
        ]

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
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        ends = {*stop_ids(self.accelerator.unwrap_model(self.model), tokenizer), tokenizer.pad_token_id}
        cut = [own[-1] not in ends for own in self.ids]
        judge.critic = critic if self.own is None else self._on_own_text(critic, tokenizer, judge.match)
        judged = judge(tokenizer, list(map(_example, self.rows)), self.ids, cut, device=self.accelerator.device)
        if self.own is not None:  # what judges the whole response goes from a tool's last token to the policy's
            own, rows = self.response_mask, torch.arange(len(self.ids), device=judged.rewards.device)
            rewards = judged.rewards * own
            rewards[rows, last_places(own)] += judged.whole * ~own[rows, last_places(judged.response_mask)]
            judged = judged._replace(rewards=rewards)
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

    def _on_own_text(self, critic: Critic, tokenizer: Any, match: Match) -> Critic:
        """Return the critic without spans on what tools wrote; a span over both keeps the policy's part."""

        def judged(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
            critiques = ask(critic, examples, responses, match=match)
            rows = zip(critiques, self.ids, self.own or (), strict=True)
            return [_of_policy(critique, tokenizer, *row) for critique, *row in rows]

        judged.__name__ = getattr(critic, "__name__", type(critic).__name__)
        return judged

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


def _of_policy(critique: Critique, tokenizer: Any, ids: Sequence[int], own: Sequence[int]) -> Critique:
    """Return a critique without the parts of its spans that tools wrote; `own` is 1 on the policy's ids, else 0."""
    offsets = policy_offsets(tokenizer, ids)
    runs = [list(run) for written, run in groupby(range(len(ids)), key=own.__getitem__) if written]
    ranges = [(offsets[run[0]][0], offsets[run[-1]][1]) for run in runs]
    parts = [(span, max(span.start, first), min(span.end, end)) for span in critique.spans for first, end in ranges]
    return replace(critique, spans=tuple(replace(span, start=a, end=b) for span, a, b in parts if a < b))


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
    spans = (replace(span, start=span.start + first, end=span.end + first) for span in answer.spans)
    return replace(answer, spans=tuple(spans))


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
