"""The baseline without words: a reward model that gives a response one number (scalar PPO's, section 5.1).

It learns from the very annotations that the generative reward model learns from: the number is Σ δ_t, what the spans
of the critique add up to. In the loop it is a critic whose critiques hold an outcome and no spans.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from text2grad.annotations import Annotation
from text2grad.critique_writing import critique_prompt
from text2grad.errors import DataError, ModelError
from text2grad.models import load_tokenizer
from text2grad.runlog import to_json, write_atomically
from text2grad.sft import FineTuning, as_it_was, optimizers, progress_callback, training_arguments
from text2grad.types import Critique, Example

SETTINGS_FILE = "reward_head.json"


class ScalarRewardModel:
    """A critic that gives one number: `model(examples, responses)` returns critiques with an outcome."""

    def __init__(
        self, model: Any, tokenizer: Any, *, mean: float = 0.0, deviation: float = 1.0, rows_at_once: int = 64
    ) -> None:
        """Take a sequence classifier with one output.

        Args:
            model: its logit is the standardized reward.
            tokenizer: its tokenizer, with a padding token.
            mean: of the rewards it learned from.
            deviation: of the rewards it learned from.
            rows_at_once: responses scored together; changes memory, not results.

        Raises:
            ModelError: if the model has not one output.
        """
        if model.config.num_labels != 1:
            raise ModelError(f"a scalar reward model has one output, this one has {model.config.num_labels}")
        self.model, self.tokenizer = model.eval(), tokenizer
        self.mean, self.deviation, self.rows_at_once = mean, deviation, rows_at_once

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response: no words, no spans, an outcome."""
        import torch

        texts = [critique_prompt(example, response) for example, response in zip(examples, responses, strict=True)]
        scores: list[float] = []
        with torch.no_grad():
            for start in range(0, len(texts), self.rows_at_once):
                batch = self.tokenizer(texts[start : start + self.rows_at_once], padding=True, return_tensors="pt")
                batch = {k: batch[k].to(self.model.device) for k in ("input_ids", "attention_mask")}
                scores += self.model(**batch).logits[:, 0].tolist()
        return [Critique("", outcome=self.mean + self.deviation * score) for score in scores]

    def save(self, directory: Path) -> None:
        """Write the model as an ordinary Hugging Face directory, with its scale beside it."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        settings = {"mean": self.mean, "deviation": self.deviation, "rows_at_once": self.rows_at_once}
        write_atomically(directory / SETTINGS_FILE, to_json(settings))

    @classmethod
    def load(cls, directory: str | Path, *, trust_remote_code: bool = False) -> "ScalarRewardModel":
        """Load what `save` wrote, or any sequence classifier with one output.

        Raises:
            ModelError: if there is none.
        """
        from transformers import AutoModelForSequenceClassification

        try:
            model = AutoModelForSequenceClassification.from_pretrained(
                str(directory), use_safetensors=True, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot load a scalar reward model from {str(directory)!r}: {error}") from error
        path = Path(directory) / SETTINGS_FILE
        tokenizer = load_tokenizer(str(directory), trust_remote_code=trust_remote_code)
        return cls(model, tokenizer, **(json.loads(path.read_bytes()) if path.exists() else {}))


def train_reward_head(
    start: str | Path,
    tokenizer: Any,
    annotations: Sequence[Annotation],
    rewards: Sequence[float],
    how: FineTuning,
    *,
    on_step: Callable[[int], None] | None = None,
) -> ScalarRewardModel:
    """Train a scalar reward model by squared error.

    Args:
        start: directory of the causal language model whose trunk it starts from; the head is new.
        tokenizer: its tokenizer.
        annotations: prompts and responses.
        rewards: the number of each.
        how: steps, batch size, learning rate.
        on_step: called with the number of steps made.

    Raises:
        DataError: if there is nothing to learn: no annotations, or all rewards are the same.
    """
    import torch
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        DataCollatorWithPadding,
        PrinterCallback,
        Trainer,
        TrainingArguments,
    )

    if not annotations or len(annotations) != len(rewards):
        raise DataError(f"got {len(annotations)} annotations and {len(rewards)} rewards; one reward each is needed")
    mean, deviation = fmean(rewards), pstdev(rewards)
    if deviation == 0:
        raise DataError(f"all {len(rewards)} rewards are {mean}; there is nothing to tell apart")
    torch.manual_seed(how.seed)
    model = AutoModelForSequenceClassification.from_pretrained(
        str(start), num_labels=1, problem_type="regression", use_safetensors=True, dtype=torch.float32
    )
    model.config.pad_token_id = tokenizer.pad_token_id
    texts = [critique_prompt(Example(one.prompt), one.response) for one in annotations]
    rows = tokenizer(texts, truncation=True, max_length=how.max_tokens)
    data = {"input_ids": rows["input_ids"], "labels": [(reward - mean) / deviation for reward in rewards]}
    with tempfile.TemporaryDirectory() as scratch, as_it_was(model):
        settings = TrainingArguments(**training_arguments(how, scratch))
        collate = DataCollatorWithPadding(tokenizer)
        trainer = Trainer(
            model,
            settings,
            train_dataset=Dataset.from_dict(data),
            data_collator=collate,
            optimizers=optimizers(model, how),
        )
        trainer.remove_callback(PrinterCallback)
        if on_step:
            trainer.add_callback(progress_callback(on_step))
        trainer.train()
    return ScalarRewardModel(model, tokenizer, mean=mean, deviation=deviation)
