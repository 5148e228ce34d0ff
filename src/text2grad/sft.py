"""Supervised fine-tuning of a policy on demonstrations, by TRL's SFTTrainer: what RL starts from."""

import tempfile
from collections.abc import Sequence
from typing import Any

from text2grad.errors import DataError
from text2grad.types import Example


def fine_tune(
    model: Any,
    tokenizer: Any,
    examples: Sequence[Example],
    answers: Sequence[str],
    *,
    steps: int,
    batch_size: int = 32,
    learning_rate: float = 1e-5,
    max_tokens: int = 1_024,
    seed: int = 0,
) -> Any:
    """Train a model to give these answers to these prompts and return it.

    The loss is on the answer and its end-of-sequence alone. The learning rate decays to zero along a cosine after a
    rise over 5 % of the steps.

    Args:
        model: a Hugging Face causal language model, trained in place.
        tokenizer: its tokenizer, with an end-of-sequence token.
        examples: the task instances; their prompts are used as they stand.
        answers: one demonstration each.
        steps: optimizer steps.
        batch_size: examples of a step.
        learning_rate: AdamW's peak.
        max_tokens: longest prompt + answer.
        seed: orders the examples.

    Raises:
        DataError: if there are no demonstrations, or not one for each prompt.
    """
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    if not examples or len(examples) != len(answers):
        raise DataError(f"got {len(examples)} prompts and {len(answers)} answers; one answer each is needed")
    rows = [{"prompt": e.prompt_text, "completion": a} for e, a in zip(examples, answers, strict=True)]
    with tempfile.TemporaryDirectory() as scratch:
        settings = SFTConfig(
            output_dir=scratch,
            max_steps=steps,
            per_device_train_batch_size=batch_size,
            learning_rate=learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=max(1, steps // 20),
            max_length=max_tokens,
            completion_only_loss=True,
            save_strategy="no",
            report_to="none",
            logging_steps=max(1, steps // 4),
            disable_tqdm=False,
            gradient_checkpointing=False,
            bf16=False,
            seed=seed,
            data_seed=seed,
        )
        trainer = SFTTrainer(model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        trainer.train()
    model.zero_grad(set_to_none=True)
    return model.eval()
