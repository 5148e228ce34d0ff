"""The baseline without words: a reward model that gives a response one number (scalar PPO's, section 5.1).

It learns from the very annotations that the generative reward model learns from: the number is Σ δ_t, what the spans
of the critique add up to; or from preferences (`preference_training`). In the loop it is a critic whose critiques hold
an outcome and no spans.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from text2grad.errors import DataError, ModelError
from text2grad.feedback import Annotation
from text2grad.files import to_json, write_atomically
from text2grad.models import (
    FineTuning,
    as_it_was,
    context_of,
    load_model,
    load_tokenizer,
    optimizers,
    train_quietly,
    training_arguments,
)
from text2grad.reward_models.writing import critique_prompt
from text2grad.types import Critique, Example, PromptFormat

SETTINGS_FILE = "reward_head.json"


class ScalarRewardModel:
    """A critic that gives one number: `model(examples, responses)` returns critiques with an outcome."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        mean: float = 0.0,
        deviation: float = 1.0,
        rows_at_once: int = 64,
        prompt_format: PromptFormat = "plain",
    ) -> None:
        """Take a sequence classifier with one output.

        Args:
            model: its logit is the standardized reward.
            tokenizer: its tokenizer, with a padding token.
            mean: of the rewards it learned from.
            deviation: of the rewards it learned from.
            rows_at_once: responses scored together; changes memory, not results.
            prompt_format: "plain" reads prompt and response as they stand, "chat" by the tokenizer's chat template.

        Raises:
            ModelError: if the model has not one output.
        """
        if model.config.num_labels != 1:
            raise ModelError(f"a scalar reward model has one output, this one has {model.config.num_labels}")
        self.model, self.tokenizer = model.eval(), tokenizer
        self.mean, self.deviation, self.rows_at_once = mean, deviation, rows_at_once
        self.prompt_format: PromptFormat = prompt_format

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response: no words, no spans, an outcome.

        What is longer than the model's context is scored by nobody: its critique has failed, and says so.
        """
        import torch
        from transformers import DataCollatorWithPadding

        rows = scored_ids(self.tokenizer, examples, responses, self.prompt_format)
        context, collate = context_of(self.model), DataCollatorWithPadding(self.tokenizer)
        fits = [row for row, ids in enumerate(rows) if len(ids) <= context]
        scores: dict[int, float] = {}
        with torch.no_grad():
            for start in range(0, len(fits), self.rows_at_once):
                chosen = fits[start : start + self.rows_at_once]
                batch = collate([{"input_ids": rows[row]} for row in chosen])
                logits = self.model(**{name: values.to(self.model.device) for name, values in batch.items()}).logits
                scores |= dict(zip(chosen, logits[:, 0].tolist(), strict=True))
        return [
            Critique("", outcome=self.mean + self.deviation * scores[row]) if row in scores else beyond(ids, context)
            for row, ids in enumerate(rows)
        ]

    def save(self, directory: Path) -> None:
        """Write the model as an ordinary Hugging Face directory, with its scale beside it."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        settings = {
            "mean": self.mean,
            "deviation": self.deviation,
            "rows_at_once": self.rows_at_once,
            "prompt_format": self.prompt_format,
        }
        write_atomically(directory / SETTINGS_FILE, to_json(settings))

    @classmethod
    def load(cls, directory: str | Path, *, trust_remote_code: bool = False) -> "ScalarRewardModel":
        """Load what `save` wrote, or any sequence classifier with one output, asked by its chat template if it has one.

        Raises:
            ModelError: if there is none.
        """
        from transformers import AutoModelForSequenceClassification

        kind, what = AutoModelForSequenceClassification, "a scalar reward model"
        model = load_model(kind, what, directory, trust_remote_code=trust_remote_code)
        path = Path(directory) / SETTINGS_FILE
        tokenizer = load_tokenizer(str(directory), trust_remote_code=trust_remote_code)
        own = {"prompt_format": format_of(tokenizer)}
        return cls(model, tokenizer, **(json.loads(path.read_bytes()) if path.exists() else own))


def format_of(tokenizer: Any) -> PromptFormat:
    """Return "chat" where a tokenizer has a chat template, else "plain"."""
    return "chat" if getattr(tokenizer, "chat_template", None) else "plain"


def scored_ids(
    tokenizer: Any, examples: Sequence[Example], responses: Sequence[str], prompt_format: PromptFormat
) -> list[list[int]]:
    """Return the ids of what a scalar reward model reads: each prompt and its response."""
    pairs = list(zip(examples, responses, strict=True))
    if not pairs:
        return []
    if prompt_format == "plain":
        return list(tokenizer([critique_prompt(*pair) for pair in pairs], verbose=False)["input_ids"])
    asked = [[{"role": "user", "content": e.prompt}] if isinstance(e.prompt, str) else list(e.prompt) for e in examples]
    chats = [
        [*chat, {"role": "assistant", "content": response}] for chat, response in zip(asked, responses, strict=True)
    ]
    texts = tokenizer.apply_chat_template(chats, tokenize=False)
    return list(tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])


def beyond(ids: Sequence[int], context: float) -> Critique:
    """Return the critique of what nobody can read to its end."""
    return Critique(
        f"prompt and response have {len(ids)} tokens, more than the reward model's context of {context}",
        status="unparsable",
    )


def train_reward_head(
    start: str | Path,
    tokenizer: Any,
    annotations: Sequence[Annotation],
    rewards: Sequence[float],
    how: FineTuning,
    *,
    on_step: Callable[[int], None] | None = None,
) -> tuple[ScalarRewardModel, int]:
    """Train a scalar reward model by squared error.

    Args:
        start: directory of the causal language model whose trunk it starts from; the head is new.
        tokenizer: its tokenizer.
        annotations: prompts and responses.
        rewards: the number of each.
        how: steps, batch size, learning rate.
        on_step: called with the number of steps made.

    Returns:
        The reward model, and how many annotations were left out because prompt and response together are longer than
        `how.max_tokens`, or than the model's context: cut, they would be judged by what they do not say.

    Raises:
        DataError: if there is nothing to learn: no annotations, or all rewards are the same.
        ModelError: if there is no model to start from.
    """
    from transformers import DataCollatorWithPadding

    if not annotations or len(annotations) != len(rewards):
        raise DataError(f"got {len(annotations)} annotations and {len(rewards)} rewards; one reward each is needed")
    asked = [Example(one.prompt) for one in annotations]
    rows = scored_ids(tokenizer, asked, [one.response for one in annotations], "plain")
    model = scalar_head_on(start, tokenizer, seed=how.seed)
    limit = min(how.max_tokens, context_of(model))
    kept = [row for row, ids in enumerate(rows) if len(ids) <= limit]
    if not kept:
        raise DataError(
            f"all {len(annotations)} annotations are longer than {limit} tokens; raise max_tokens, as far as the "
            "model's context goes"
        )
    mean, deviation = fmean(rewards[row] for row in kept), pstdev([rewards[row] for row in kept])
    if deviation == 0:
        raise DataError(f"all {len(kept)} rewards are {mean}; there is nothing to tell apart")
    data = {
        "input_ids": [rows[row] for row in kept],
        "labels": [(rewards[row] - mean) / deviation for row in kept],
    }
    fit(model, data, DataCollatorWithPadding(tokenizer), how, on_step)
    return ScalarRewardModel(model, tokenizer, mean=mean, deviation=deviation), len(annotations) - len(kept)


def fit(model: Any, data: dict[str, Any], collate: Any, how: FineTuning, on_step: Callable[[int], None] | None) -> None:
    """Train a model with a head by its own loss, by transformers' trainer.

    Args:
        model: trained in place.
        data: columns, "input_ids" and "labels".
        collate: makes a batch of rows.
        how: steps, batch size, learning rate.
        on_step: called with the number of steps made.
    """
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as scratch, as_it_was(model):
        trainer = Trainer(
            model,
            TrainingArguments(**training_arguments(how, scratch)),
            train_dataset=Dataset.from_dict(data),
            data_collator=collate,
            optimizers=optimizers(model, how),
        )
        train_quietly(trainer, on_step)


def scalar_head_on(start: str | Path, tokenizer: Any, *, seed: int, trust_remote_code: bool = False) -> Any:
    """Return a sequence classifier with one output: the trunk of a saved language model, and a new head.

    Raises:
        ModelError: if there is no such model.
    """
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(seed)
    model = load_model(
        AutoModelForSequenceClassification,
        "a model to put a reward head on",
        start,
        num_labels=1,
        problem_type="regression",
        dtype=torch.float32,
        trust_remote_code=trust_remote_code,
    )
    model.config.pad_token_id = tokenizer.pad_token_id
    return model
