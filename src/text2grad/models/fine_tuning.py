"""Supervised fine-tuning of a policy on demonstrations, by transformers and TRL: what RL starts from."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from text2grad.errors import DataError, ModelError
from text2grad.models.prompts import encode_prompts
from text2grad.types import Example, Optimizer, PromptFormat

NO_LOSS = -100  # the label that transformers leaves out of a loss
WHOLE_LOGITS_BYTES = 2**28  # of one batch in 32 bits; beyond it TRL's loss in chunks saves memory


@dataclass(frozen=True, slots=True)
class FineTuning:
    """How a policy is fine-tuned.

    Attributes:
        steps: optimizer steps.
        batch_size: examples of a step.
        learning_rate: the optimizer's peak.
        max_tokens: longest prompt + answer; the rest is cut.
        answer_only: put the loss on the answer and its end-of-sequence alone; else on the prompt too, which teaches an
            untrained model to read.
        seed: orders the examples.
        optimizer: AdamW, or Muon for the hidden matrices, which teaches a small model to read several times as fast.
        prompt_format: "plain" shows the prompt as it stands, "chat" by the tokenizer's chat template.
    """

    steps: int
    batch_size: int = 32
    learning_rate: float = 1e-5
    max_tokens: int = 1_024
    answer_only: bool = True
    seed: int = 0
    optimizer: Optimizer = "adamw"
    prompt_format: PromptFormat = "plain"


def fine_tune(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    answers: Sequence[str],
    how: FineTuning,
    *,
    on_step: Callable[[int], None] | None = None,
) -> Any:
    """Train a model to give these answers to these prompts and return it.

    The learning rate decays to zero along a cosine after a rise over 5 % of the steps.

    Args:
        model: a Hugging Face causal language model, trained in place.
        tokenizer: its tokenizer, with an end-of-sequence token.
        examples: the task instances; their prompts are used as they stand.
        answers: one demonstration each.
        how: steps, batch size, learning rate and the rest.
        on_step: called with the number of steps made, after each.

    Raises:
        DataError: if there are no demonstrations, not one for each prompt, or all are beyond the length limit.
        ModelError: if the tokenizer has no end-of-sequence token.
    """
    from datasets import Dataset

    if not examples or len(examples) != len(answers):
        raise DataError(f"got {len(examples)} prompts and {len(answers)} answers; one answer each is needed")
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end-of-sequence token, so no answer could be shown to end; give it one")
    rows = [supervised_row(tokenizer, e.prompt_text, a, how) for e, a in zip(examples, answers, strict=True)]
    if all(set(row["labels"]) == {NO_LOSS} for row in rows):
        raise DataError(f"max_tokens = {how.max_tokens} cuts every answer off, so nothing could be learned; raise it")
    longest = max(len(row["input_ids"]) for row in rows)
    logits_bytes = 4 * how.batch_size * longest * model.config.get_text_config().vocab_size
    with tempfile.TemporaryDirectory() as scratch, as_it_was(model):
        make = _whole_logits_trainer if logits_bytes <= WHOLE_LOGITS_BYTES else _chunked_trainer
        trainer = make(model, tokenizer, Dataset.from_list(rows), how, scratch)
        train_quietly(trainer, on_step)
    model.zero_grad(set_to_none=True)
    return model.eval()


@contextmanager
def as_it_was(model: Any) -> Iterator[None]:
    """Take off what a trainer of transformers hangs on a model.

    The worst of it is a `forward` that is bound to this very model: a copy of the model would go on calling the
    original, so that a frozen reference, say, would move with its policy.
    """
    before = set(vars(model))
    try:
        yield
    finally:
        for name in set(vars(model)) - before:
            delattr(model, name)


def _whole_logits_trainer(model: Any, tokenizer: Any, data: Any, how: FineTuning, scratch: str) -> Any:
    """Return transformers' trainer with the model's own loss: of small logits, 1.6 times as fast as in chunks."""
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    if tokenizer.pad_token is None:
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.eos_token  # padding has no loss, so any token will do
    collate = DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=NO_LOSS)
    return Trainer(
        model,
        TrainingArguments(**training_arguments(how, scratch)),
        train_dataset=data,
        data_collator=collate,
        optimizers=optimizers(model, how),
    )


def _chunked_trainer(model: Any, tokenizer: Any, data: Any, how: FineTuning, scratch: str) -> Any:
    """Return TRL's trainer, which never holds the logits of a whole batch."""
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    settings = SFTConfig(
        max_length=how.max_tokens,
        dataset_kwargs={"skip_prepare_dataset": True},
        bf16=False,
        **training_arguments(how, scratch),
        **recomputing(SFTConfig, False),
    )
    return SFTTrainer(
        model, args=settings, train_dataset=data, processing_class=tokenizer, optimizers=optimizers(model, how)
    )


def optimizers(model: Any, how: FineTuning) -> tuple[Any, None]:
    """Return the optimizer and no schedule, as a trainer takes them: what is None, it makes itself."""
    if how.optimizer == "adamw":
        return None, None
    from text2grad.models.muon import MuonAdamW

    return MuonAdamW(model, how.learning_rate), None


def training_arguments(how: FineTuning, scratch: str) -> dict[str, Any]:
    """Return what every trainer is told; rows of similar length share a batch, so that little is padding."""
    import torch

    return {
        "output_dir": scratch,
        "max_steps": how.steps,
        "per_device_train_batch_size": how.batch_size,
        "learning_rate": how.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": max(1, how.steps // 20),
        "train_sampling_strategy": "group_by_length",
        "save_strategy": "no",
        "report_to": "none",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "seed": how.seed,
        "data_seed": how.seed,
    }


def recomputing(config: type, wanted: bool) -> dict[str, Any]:
    """Return whether activations are computed again in the backward pass, by the name that this release has for it.

    TRL's configs turn it on where they are not told.
    """
    name = "activation_checkpointing"
    return {name if hasattr(config, name) else "gradient_checkpointing": wanted}


def train_quietly(trainer: Any, on_step: Callable[[int], None] | None) -> None:
    """Let a trainer of transformers train; instead of printing, it tells how many steps were made."""
    from transformers import PrinterCallback, TrainerCallback

    class Progress(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if on_step:
                on_step(state.global_step)

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Progress())
    trainer.train()


def supervised_row(tokenizer: Any, prompt: str, answer: str, how: FineTuning) -> dict[str, list[int]]:
    """Return one example as ids, cut at `how.max_tokens`, and labels."""
    if how.prompt_format == "plain":
        asked = tokenizer(prompt, verbose=False)["input_ids"]
    else:
        asked = encode_prompts(tokenizer, [Example(prompt)], prompt_format=how.prompt_format)[0]
    given = [*tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"], tokenizer.eos_token_id]
    labels = [NO_LOSS] * len(asked) if how.answer_only else list(asked)
    return {"input_ids": [*asked, *given][: how.max_tokens], "labels": [*labels, *given][: how.max_tokens]}
