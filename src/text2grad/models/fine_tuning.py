"""Supervised fine-tuning of a causal language model with the trainers of transformers and TRL.

    examples and answers → rows of token ids and labels → trainer → the model, trained in place

The loss is −(1/N) Σ log p(label | ids before it) over the N labelled tokens of a step. The policy starts from such a
model; the reward models use the same rows, settings and trainers.
"""

import copy
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from text2grad.align import encode
from text2grad.errors import DataError, ModelError
from text2grad.models.adapters import base_of
from text2grad.models.decoding import check_rows
from text2grad.models.pretrained import on_cpu
from text2grad.models.prompts import encode_prompts, padding_id, plain_ids
from text2grad.types import Example, Message, Optimizer, PromptFormat

NO_LOSS = -100  # the label that transformers leaves out of a loss
WHOLE_LOGITS_BYTES = 2**28  # a batch with larger logits (in 32 bits) takes TRL's loss in chunks, to save memory

Row = dict[str, list[int]]  # "input_ids" and "labels", of one length
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
        answers: one demonstration per example.
        settings: of the training.
        on_step: called with the number of finished steps after each step.

    Raises:
        DataError: if there are no demonstrations, not one per prompt, or `max_tokens` leaves no token of any answer.
        ModelError: if the tokenizer has no end-of-sequence token.
    """
    if not examples or len(examples) != len(answers):
        raise DataError(f"got {len(examples)} prompts and {len(answers)} answers; one answer each is needed")
    limit = settings.max_tokens
    whole = [
        row_of_ids(*_encoded(tokenizer, example.joined_text, answer, settings.prompt_format))
        for example, answer in zip(examples, answers, strict=True)
    ]
    rows = [{name: ids[:limit] for name, ids in row.items()} for row in whole]
    if all(set(row["labels"]) == {NO_LOSS} for row in rows):
        raise DataError(f"max_tokens = {limit} cuts every answer off, so nothing could be learned; raise it")
    return train_on_rows(model, tokenizer, rows, settings, on_step=on_step)


def row_of_ids(prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> Row:
    """Return a row of the ids of a prompt and of an answer with its end; the labels stand on the answer."""
    return {"input_ids": [*prompt_ids, *answer_ids], "labels": [*[NO_LOSS] * len(prompt_ids), *answer_ids]}


def with_end(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Return the ids of an answer and the end of sequence.

    Raises:
        ModelError: if the tokenizer has no end-of-sequence token.
    """
    if tokenizer.eos_token_id is None:
        raise ModelError(
            "the tokenizer has no end-of-sequence token, so the model cannot learn where an answer ends; give it one"
        )
    return [*ids, tokenizer.eos_token_id]


def conversation_rows(
    tokenizer: Any, turns: Sequence[tuple[str | Sequence[Message], str]], prompt_format: PromptFormat
) -> list[Row]:
    """Return the rows of a conversation, with labels on its answers and their ends.

    Every answer follows the ids of its prompt as a rollout has them. So the conversation is one row where each prompt
    continues the ids of the prompt, the answer and the end before it; else, with a chat template that changes earlier
    turns, each answer has a row of its own.

    Args:
        tokenizer: the model's.
        turns: (everything before the answer, answer) of each answer.
        prompt_format: of the prompts.

    Raises:
        DataError: if a prompt has no token, or the chat template refuses it.
        ModelError: if the tokenizer has no end-of-sequence token, or no chat template where one is needed.
    """
    encoded = [_encoded(tokenizer, prompt, answer, prompt_format) for prompt, answer in turns]
    if not all(prompt_ids for prompt_ids, _ in encoded):
        raise DataError("the prompt has no token, so nothing predicts the first token of the answer; give it some text")
    whole: Row = {"input_ids": [], "labels": []}
    for prompt_ids, answer_ids in encoded:
        before = whole["input_ids"]
        if prompt_ids[: len(before)] != before:
            return [row_of_ids(*turn) for turn in encoded]
        labels = [*whole["labels"], *[NO_LOSS] * (len(prompt_ids) - len(before)), *answer_ids]
        whole = {"input_ids": [*prompt_ids, *answer_ids], "labels": labels}
    return [whole]


def _encoded(
    tokenizer: Any, prompt: str | Sequence[Message], answer: str, prompt_format: PromptFormat
) -> tuple[list[int], list[int]]:
    """Return the ids of a prompt, and of an answer with the end of sequence.

    An answer is text: a special token that it spells would end it in its middle.
    """
    if prompt_format == "plain":
        (prompt_ids,) = plain_ids(tokenizer, [Example(prompt).joined_text])
    else:
        prompt_ids = list(encode_prompts(tokenizer, [Example(prompt)], prompt_format=prompt_format)[0])
    return prompt_ids, with_end(tokenizer, encode(tokenizer, answer))


def train_on_rows(
    model: Any, tokenizer: Any, rows: Sequence[Row], settings: FineTuning, *, on_step: OnStep | None = None
) -> Any:
    """Train a causal language model in place, without logs or checkpoints, and return it in evaluation mode."""
    return train_with(
        lambda directory: supervised_trainer(model, tokenizer, rows, settings, directory), model, on_step=on_step
    )


def train_with(make_trainer: Callable[[str], Any], model: Any, *, on_step: OnStep | None = None) -> Any:
    """Train a model with the trainer that is made for a temporary directory; return the model in evaluation mode.

    The attributes that a trainer sets on a model, or on the base below its adapters, are removed. One of them is a
    `forward` that is bound to this model: a deep copy, such as a frozen reference, would call the original and change
    with it.
    """
    before = [(part, set(vars(part))) for part in dict.fromkeys((model, base_of(model)))]
    try:
        with tempfile.TemporaryDirectory() as directory:
            run_trainer(make_trainer(directory), on_step)
    finally:
        for part, own in before:
            for name in set(vars(part)) - own:
                delattr(part, name)
    model.zero_grad(set_to_none=True)
    return model.eval()


def supervised_trainer(
    model: Any, tokenizer: Any, rows: Sequence[Row], settings: FineTuning, directory: str, **logged: Any
) -> Any:
    """Return a trainer for rows; `logged` are further arguments of a training that is logged and saved.

    transformers' Trainer with the model's own loss is 1.6 times as fast where the logits of a batch are small. TRL's
    SFTTrainer computes the loss in chunks and logs the token accuracy, so `logged` selects it too.

    Raises:
        ModelError: if rows of a batch change one another (`check_rows`).
    """
    from datasets import Dataset
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    check_rows(model)
    tokenizer = with_padding(tokenizer, model)
    longest = max(len(row["input_ids"]) for row in rows)
    logits_bytes = 4 * settings.batch_size * longest * model.config.get_text_config().vocab_size
    common = {"train_dataset": Dataset.from_list(list(rows)), "optimizers": optimizers(model, settings)}
    if logits_bytes <= WHOLE_LOGITS_BYTES and not logged:
        arguments = training_arguments(TrainingArguments, settings, directory)
        collate = DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=NO_LOSS)
        return Trainer(model, arguments, data_collator=collate, **common)
    logged |= {"max_length": settings.max_tokens, "dataset_kwargs": {"skip_prepare_dataset": True}}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        arguments = training_arguments(SFTConfig, settings, directory, **logged)
        return SFTTrainer(model, args=arguments, processing_class=tokenizer, **common)


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


def run_trainer(trainer: Any, on_step: OnStep | None = None, *, resume_from: str | None = None) -> None:
    """Run a trainer of transformers, from a checkpoint if one is given, without its output on the terminal."""
    trainer.remove_callback(PrinterCallback)
    if on_step is not None:
        trainer.add_callback(_OnStep(on_step))
    trainer.train(resume_from_checkpoint=resume_from)


class _OnStep(TrainerCallback):
    def __init__(self, on_step: OnStep) -> None:
        self.on_step = on_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.on_step(state.global_step)
