"""Supervised fine-tuning of a causal language model.

    examples and answers → rows of token ids and labels → the model, trained in place

The loss is −(1/N) Σ log p(label | ids before it) over the N labelled tokens of a step. The policy starts from such a
model; the reward models use the same rows and settings. A training that is logged and saved has TRL's trainer
(`supervised_trainer`); others need none (`train_on_rows`).
"""

import copy
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from random import Random
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from transformers import get_cosine_schedule_with_warmup

from text2grad.align import encode
from text2grad.errors import DataError, ModelError
from text2grad.models.adapters import enable_checkpointing, retired_name, trunk_of
from text2grad.models.batch import right_padded
from text2grad.models.chat_template import SAID, LostToolsError, TurnEnd, answer_text, any_of, turn_end, unrendered
from text2grad.models.decoding import check_rows
from text2grad.models.launch import place, shared
from text2grad.models.logprobs import token_logprobs
from text2grad.models.policy import head_of
from text2grad.models.pretrained import best_device, on_cpu
from text2grad.models.prompts import answer_end, padding_id, plain_ids
from text2grad.models.randomness import draws_apart
from text2grad.types import Conversation, Example, Message, Optimizer, PromptFormat

NO_LOSS = -100  # the label that transformers leaves out of a loss
PADDING = {"input_ids": 0, "labels": NO_LOSS}  # behind a row, where no state that is used sees it
SORTED_BATCHES = 50  # so many batches are sorted by length together, and at most a quarter of the rows
MAX_GRAD_NORM = 1.0

Row = dict[str, list[int]]  # "input_ids" and "labels", of one length
Turn = tuple[Any, ...]  # (everything before an answer, the answer), and where there is more, its message and its record
OnStep = Callable[[int], None]  # called with the number of finished steps after each step


@dataclass(frozen=True, slots=True)
class FineTuning:
    """Settings of a supervised training."""

    steps: int  # optimizer steps
    batch_size: int = 32  # rows per step, over all processes and micro-batches
    learning_rate: float = 1e-5  # peak of the schedule
    max_tokens: int = 1_024  # longest prompt with its answer; `fine_tune` cuts the rest
    seed: int = 0  # seed of the order of the rows
    optimizer: Optimizer = "adamw"  # or Muon for the hidden matrices: a small model learns several times as fast
    prompt_format: PromptFormat = "plain"  # the prompt as it is; "chat": with the tokenizer's chat template
    epochs: float | None = None  # passes over the rows; replaces `steps`
    accumulate: int = 1  # micro-batches per step
    bf16: bool = False  # compute in bfloat16, keep the weights in 32 bits
    gradient_checkpointing: bool = False  # recompute activations in the backward pass, to save memory


def fine_tune(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    answers: Sequence[str],
    settings: FineTuning,
    *,
    on_step: OnStep | None = None,
) -> Any:
    """Train a causal language model in place to give these answers to these prompts, and return it.

    Args:
        model: a Hugging Face causal language model.
        tokenizer: its tokenizer, with an end-of-sequence token.
        examples: the task instances.
        answers: one demonstration per example; of a `Conversation` each turn that the policy wrote is learned.
        settings: of the training.
        on_step: called with the number of finished steps after each step.

    Raises:
        DataError: if there are no demonstrations, not one per prompt, or `max_tokens` leaves no token of any answer.
        ModelError: if the tokenizer has no end-of-sequence token.
    """
    if not examples or len(examples) != len(answers):
        raise DataError(f"got {len(examples)} prompts and {len(answers)} answers; one answer each is needed")
    limit = settings.max_tokens
    turns = shared([demonstrated(example, answer) for example, answer in zip(examples, answers, strict=True)])
    whole = [row for turn in turns for row in conversation_rows(tokenizer, turn, settings.prompt_format)]
    rows = [{name: ids[:limit] for name, ids in row.items()} for row in whole]
    if all(set(row["labels"]) == {NO_LOSS} for row in rows):
        raise DataError(f"max_tokens = {limit} cuts every answer off, so nothing could be learned; raise it")
    return train_on_rows(model, rows, settings, on_step=on_step, total=len(examples))


def demonstrated(example: Example, answer: str) -> list[Turn]:
    """Return what a demonstration teaches: its answer, or each turn of the policy, behind those before it."""
    if not isinstance(answer, Conversation):
        return [(example.prompt, answer)]
    chat = [{"role": turn.role, "content": turn.text} for turn in answer.turns]
    return [(chat[:number], turn.text) for number, turn in enumerate(answer.turns) if turn.sampled]


def row_of_ids(prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Row:
    """Return a row of the ids of a prompt and of an answer with its end; the labels stand on the answer."""
    return {"input_ids": [*prompt_ids, *answer_ids], "labels": [*[NO_LOSS] * len(prompt_ids), *answer_ids]}


def with_end(tokenizer: Any, ids: Sequence[int], prompt_format: str = "plain") -> list[int]:
    """Return the ids of an answer and those of its end.

    Raises:
        ModelError: if the tokenizer has no end-of-sequence token, and no chat template ends a turn.
    """
    if not (end := answer_end(tokenizer, prompt_format)):
        raise ModelError(
            "the tokenizer has no end-of-sequence token, so the model cannot learn where an answer ends; give it one"
        )
    return [*ids, *end]


def conversation_rows(
    tokenizer: Any, turns: Sequence[Turn], prompt_format: PromptFormat, *, lost: set[str] | None = None
) -> list[Row]:
    """Return the rows of a conversation, with labels on its answers and their ends.

    In a chat template an answer is all that the template makes of its message, calls of tools and thoughts too, up to
    the end of the turn. The conversation is one row where each prompt continues the text before it; else, with a
    template that changes earlier turns, or in plain text, each answer has a row of its own.

    Args:
        tokenizer: the model's.
        turns: the answers.
        prompt_format: of the prompts.
        lost: fields of messages, and "tools", that the format does not show in full are added; without calls, no row.

    Raises:
        DataError: if a prompt has no token, the chat template refuses it, or nothing is left of an answer.
        LostToolsError: if the format leaves out calls of tools, or results, and `lost` is not given.
        ModelError: if an answer has no end, or there is no chat template where one is needed.
    """
    is_chat, fields = prompt_format == "chat", set[str]() if lost is None else lost
    end, texts, answers = TurnEnd(), list[tuple[str, str]](), list[list[int]]()
    for prompt, answer, *more in turns:
        said, meta = more or ({}, dict[str, Any]())
        message, example = said or {"role": "assistant", "content": answer}, Example(prompt, meta=meta)
        end = turn_end(tokenizer, meta) if is_chat else end
        try:
            before, text = answer_text(tokenizer, example, message, end) if is_chat else (example.joined_text, answer)
        except LostToolsError:
            if lost is None:
                raise
            lost.add("tool_calls")
            return []
        if more and not text.removesuffix(end.text).strip():
            raise DataError(
                f"nothing is left of an assistant message in prompts of format {prompt_format!r}, which would teach to "
                "say nothing; take a model whose chat template renders it, or remove it"
            )
        fields.update(unrendered({**message, "tools": meta.get("tools", meta.get("functions"))}, text, before))
        texts.append((before, text))
        answers.append(_answer_ids(tokenizer, before if is_chat else "", text, message, end))
    is_one = bool(end.text) and all(then[0].startswith(now[0] + now[1]) for now, then in pairwise(texts))
    rows, known = list[Row](), ""
    for (before, text), ids in zip(texts, answers, strict=True):
        between = _ids_behind(tokenizer, known, before[len(known) :]) if is_chat else plain_ids(tokenizer, [before])[0]
        row = row_of_ids(between, ids)
        rows = [{name: rows[0][name] + part for name, part in row.items()}] if known else [*rows, row]
        known = before + text if is_one else ""
    if any(row["labels"][0] != NO_LOSS for row in rows):
        raise DataError("the prompt has no token, so nothing predicts the first token of the answer; give it some text")
    return rows


def _ids_behind(tokenizer: Any, before: str, text: str) -> list[int]:
    """Return the ids of a text behind another, as in the two together where no token holds parts of both."""
    first, both, alone = tokenizer([before, before + text, text], add_special_tokens=False, verbose=False)["input_ids"]
    return list(both[len(first) :] if both[: len(first)] == first else alone)


def _answer_ids(tokenizer: Any, before: str, text: str, message: Message, end: TurnEnd) -> list[int]:
    """Return the ids of an answer with its end; a special token that its message spells is text in it."""
    special = any_of(tokenizer, special=True)
    if before and not re.search(special, str(message)):
        ids = _ids_behind(tokenizer, before, text)
    else:
        body, texts = text.removesuffix(end.text), (str(message.get(name) or "").strip() for name in SAID)
        said = sorted((each for each in texts if re.search(special, each)), key=len)[::-1]
        spelled = {*said, *re.findall(special, str([each for each in said if each not in body]))}  # not by the template
        parts = re.split(f"({'|'.join([*map(re.escape, said), special])})", body) if before else [body]
        as_text = [(part, not before or part in spelled) for part in parts] + [(text[len(body) :], False)]
        ids = [token for part, is_text in as_text for token in encode(tokenizer, part, split_special_tokens=is_text)]
    return ids if end.text else with_end(tokenizer, ids)


def train_on_rows(
    model: Any, rows: Sequence[Row], settings: FineTuning, *, on_step: OnStep | None = None, total: int | None = None
) -> Any:
    """Train a causal language model in place, without logs or checkpoints, and return it in evaluation mode.

    Rows of similar length share a batch, so that few tokens are padding, and only the states that predict a label
    reach the output layer. Several processes share each batch: each has rows of its own, and their gradients are added.
    The learning rate rises over the first 5 % of the steps and falls to zero along a cosine.

    Args:
        model: the model; it goes to the accelerator, if there is one.
        rows: this process's part (`shared`): at least one, each with a label behind its first token.
        settings: of the training; its `max_tokens` and `prompt_format` decide nothing here.
        on_step: called with the number of finished steps after each step.
        total: number of the rows of all processes; None: `rows` are all.

    Raises:
        ModelError: if rows of a batch change one another (`check_rows`), or there is no linear output layer.
    """
    check_rows(model)
    model.to(best_device()).train()
    if settings.gradient_checkpointing:
        enable_checkpointing(model)
    steps = settings.steps
    if settings.epochs:
        steps = math.ceil(settings.epochs * math.ceil((total or len(rows)) / settings.batch_size))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizers(model, settings)[0] or AdamW(trained, settings.learning_rate, weight_decay=0.0)
    warmup = math.ceil(0.05 * steps) if settings.epochs else max(1, steps // 20)
    schedule = get_cosine_schedule_with_warmup(optimizer, warmup, steps)
    with draws_apart(settings.seed):  # dropout
        for step, batch in enumerate(islice(_batches(rows, settings), steps)):
            labels = sum(
                _add_gradient(model, batch[part :: settings.accumulate], settings)
                for part in range(settings.accumulate)
            )
            _average([parameter.grad for parameter in trained if parameter.grad is not None], labels)
            clip_grad_norm_(trained, MAX_GRAD_NORM)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if on_step is not None:
                on_step(step + 1)
    return model.eval()


def _batches(rows: Sequence[Row], settings: FineTuning) -> Iterator[list[Row]]:
    """Yield this process's part of the batches, of its rows, without end; each pass has an order of its own.

    The parts of one batch are of similar length in all processes: they draw from their rows alike.
    """
    rng, size = Random(settings.seed), max(1, settings.batch_size // place()[1])
    together = size * max(1, min(SORTED_BATCHES, len(rows) // (4 * size)))
    while True:
        order = rng.sample(rows, len(rows))
        for start in range(0, len(order), together):
            part = sorted(order[start : start + together], key=lambda row: len(row["input_ids"]))
            alike = [part[first : first + size] for first in range(0, len(part), size)]
            yield from rng.sample(alike, len(alike))


def _add_gradient(model: Any, rows: Sequence[Row], settings: FineTuning) -> int:
    """Add the gradient of −Σ log p(label) over the labels of some rows, and return how many there are."""
    if not rows:
        return 0
    device = model.device
    ids, labels = (right_padded([row[name] for row in rows], pad).to(device) for name, pad in PADDING.items())
    predicts = labels[:, 1:] != NO_LOSS  # [B, S − 1]
    with torch.autocast(device.type, torch.bfloat16, enabled=settings.bf16):
        hidden = trunk_of(model)(input_ids=ids, use_cache=False).last_hidden_state  # [B, S, H]
    logp = token_logprobs(hidden[:, :-1][predicts], head_of(model), labels[:, 1:][predicts]).logp
    (-logp.sum()).backward()  # type: ignore[no-untyped-call]
    return len(logp)


def _average(gradients: Sequence[torch.Tensor], labels: int) -> None:
    """Divide the sum of all processes' gradients by the number of their labels, in place."""
    if place()[1] == 1:  # without a second copy of all gradients
        for gradient in gradients:
            gradient.div_(max(labels, 1))
        return
    count = torch.tensor([float(labels)], device=gradients[0].device)  # in 32 bits, which the sums then have, too
    whole = torch.cat([count, *map(torch.flatten, gradients)])
    torch.distributed.all_reduce(whole)
    parts = torch.split(whole[1:].div_(whole[0].clamp(min=1)), [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def supervised_trainer(
    model: Any, tokenizer: Any, rows: Sequence[Row], settings: FineTuning, directory: str, **logged: Any
) -> Any:
    """Return TRL's trainer for rows, in batches of any lengths; `logged` are arguments of what it logs and saves.

    It computes the loss in chunks of the logits, and logs the token accuracy.

    Raises:
        ModelError: if rows of a batch change one another (`check_rows`).
    """
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    check_rows(model)
    logged |= {"max_length": settings.max_tokens, "dataset_kwargs": {"skip_prepare_dataset": True}}
    with retired_name():
        arguments = training_arguments(SFTConfig, settings, directory, **logged)
        return SFTTrainer(
            model,
            args=arguments,
            processing_class=with_padding(tokenizer, model),
            train_dataset=Dataset.from_list(list(rows)),
            optimizers=optimizers(model, settings),
        )


def with_padding(tokenizer: Any, model: Any) -> Any:
    """Return the tokenizer, or a copy that pads with its end of sequence where the model does not know its own padding.

    Padding has no loss, so any token with an embedding serves.
    """
    known = padding_id(model, tokenizer, [tokenizer.eos_token_id])
    if known != tokenizer.pad_token_id:
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token_id = known
    return tokenizer


def training_arguments(config: type, settings: FineTuning, directory: str, **more: Any) -> Any:
    """Return the arguments of a trainer of transformers or TRL, without logs or checkpoints; `more` replaces some.

    The learning rate rises over the first 5 % of the steps and falls to zero along a cosine. Rows of similar length
    share a batch, so that few tokens are padding. Several processes share each batch.
    """
    checkpointing = "activation_checkpointing"  # the newer name; TRL's default is True under either
    arguments = {
        "output_dir": directory,
        "max_steps": -1 if settings.epochs else settings.steps,
        "num_train_epochs": settings.epochs or 1,
        "per_device_train_batch_size": settings.batch_size // settings.accumulate,
        "gradient_accumulation_steps": settings.accumulate,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.05 if settings.epochs else max(1, settings.steps // 20),
        "train_sampling_strategy": "group_by_length",
        "ddp_find_unused_parameters": False,
        "bf16": settings.bf16,
        checkpointing if hasattr(config, checkpointing) else "gradient_checkpointing": settings.gradient_checkpointing,
        "save_strategy": "no",
        "report_to": "none",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": not on_cpu(),
        "use_cpu": on_cpu(),
        "seed": settings.seed,
        "data_seed": settings.seed,
    }
    made = config(**{**arguments, **more})
    # Without a launcher, transformers would split each batch over all GPUs and multiply its size by their number.
    made._n_gpu = min(made.n_gpu, 1)
    if "per_device_train_batch_size" not in more:
        made.per_device_train_batch_size //= made.world_size
    return made


def optimizers(model: Any, settings: FineTuning) -> tuple[Any, None]:
    """Return optimizer and schedule as a trainer takes them; None leaves the choice to its arguments."""
    if settings.optimizer == "adamw":
        return None, None
    from text2grad.models.muon import MuonAdamW

    return MuonAdamW(model, settings.learning_rate), None
