"""Trainings with the trainers of transformers, without logs or checkpoints: rivals and baselines bring their own."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from text2grad.models import FineTuning, OnStep, Row, asks_for_fsdp
from text2grad.models.adapters import base_of
from text2grad.models.decoding import check_rows
from text2grad.models.fine_tuning import (
    NO_LOSS,
    optimizers,
    supervised_trainer,
    training_arguments,
    with_padding,
)
from text2grad.models.launch import USE_FSDP

WHOLE_LOGITS_BYTES = 2**28  # a batch with larger logits (in 32 bits) takes TRL's loss in chunks, to save memory


def train_with(make_trainer: Callable[[str], Any], model: Any, *, on_step: OnStep | None = None) -> Any:
    """Train a model with the trainer that is made for a temporary directory; return the model in evaluation mode.

    The attributes that a trainer sets on a model, or on the base below its adapters, are removed. One of them is a
    `forward` that is bound to this model: a deep copy, such as a frozen reference, would call the original and change
    with it.
    """
    before = [(part, set(vars(part))) for part in dict.fromkeys((model, base_of(model)))]
    try:
        with tempfile.TemporaryDirectory() as directory:
            trainer = make_trainer(directory)
            trainer.remove_callback(PrinterCallback)
            if on_step is not None:
                trainer.add_callback(AfterStep(on_step))
            trainer.train()
    finally:
        for part, own in before:
            for name in set(vars(part)) - own:
                delattr(part, name)
    model.zero_grad(set_to_none=True)
    return model.eval()


class AfterStep(TrainerCallback):
    """Tells the number of finished steps after each step."""

    def __init__(self, on_step: OnStep) -> None:
        """Take what is told."""
        self.on_step = on_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell it."""
        self.on_step(state.global_step)


def rows_trainer(model: Any, tokenizer: Any, rows: Sequence[Row], settings: FineTuning, directory: str) -> Any:
    """Return a trainer for rows, with the model's own loss where the logits of a batch are small.

    Raises:
        ModelError: if rows of a batch change one another (`check_rows`).
    """
    from datasets import Dataset
    from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

    longest = max(len(row["input_ids"]) for row in rows)
    if 4 * settings.batch_size * longest * model.config.get_text_config().vocab_size > WHOLE_LOGITS_BYTES:
        return supervised_trainer(model, tokenizer, rows, settings, directory)
    check_rows(model)
    return Trainer(
        model,
        training_arguments(TrainingArguments, settings, directory),
        data_collator=DataCollatorForSeq2Seq(with_padding(tokenizer, model), label_pad_token_id=NO_LOSS),
        train_dataset=Dataset.from_list(list(rows)),
        optimizers=optimizers(model, settings),
    )


@contextmanager
def plain_data_parallelism() -> Iterator[None]:
    """Let a trainer of transformers hold whole weights in each process, also where the launcher asked for FSDP.

    In the block no variable of the launcher asks for FSDP or for mixed precision. The trainer makes the state of
    accelerate anew; after the block the old state is back.
    """
    if not asks_for_fsdp():
        yield
        return
    from accelerate.state import AcceleratorState
    from accelerate.utils import patch_environment

    state = dict(AcceleratorState._shared_state)
    AcceleratorState._reset_state()
    try:
        with patch_environment(**{USE_FSDP: "false", "ACCELERATE_MIXED_PRECISION": "no"}):
            yield
    finally:
        AcceleratorState._reset_state()
        AcceleratorState._shared_state.update(state)
