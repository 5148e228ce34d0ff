"""The scalar reward model: one number per response, r(x, y) (the baseline of section 5.1).

    annotations and rewards → sequence classifier with one output → critiques with an outcome and no spans

The rewards are Σ_t δ_t of the annotations that the generative reward model is trained on; `scalar_from_preferences`
trains on preferences instead.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from evidence.baselines.encoding import check_text_ids, encode_chats, encode_responses, too_long
from evidence.baselines.span_reward import span_reward
from evidence.baselines.trainers import AfterStep, plain_data_parallelism, train_with
from text2grad.errors import DataError, ModelError
from text2grad.feedback.records import Annotation
from text2grad.files import to_json, write_atomically
from text2grad.models.fine_tuning import FineTuning, OnStep, optimizers, training_arguments
from text2grad.models.measured_training import (
    Evaluation,
    checkpoint_path,
    last_saved,
    train_measured,
)
from text2grad.models.pretrained import context_of, load_model, load_tokenizer
from text2grad.models.prompts import check_ids, format_of
from text2grad.reward_models.shared_base import load_weights
from text2grad.reward_models.writing import inputs_of
from text2grad.types import Critique, Example, PromptFormat

SETTINGS_FILE = "reward_head.json"  # the name in saved models


class ScalarRewardModel:
    """A critic that scores responses: `model(examples, responses)` returns critiques with an outcome."""

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
        """Take a sequence classifier with one output: r = mean + deviation · logit.

        Args:
            model: its logit is the standardized reward.
            tokenizer: its tokenizer, with a padding token.
            mean: of the rewards that it was trained on.
            deviation: standard deviation of these rewards.
            rows_at_once: responses per forward pass; changes memory, not results.
            prompt_format: "plain" reads prompt and response as they are, "chat" with the tokenizer's chat template.

        Raises:
            ModelError: if the model does not have exactly one output.
        """
        if model.config.num_labels != 1:
            raise ModelError(
                f"a scalar reward model needs exactly one output, and this model has {model.config.num_labels}; train "
                "one with `python -m evidence reward-baseline scalar`"
            )
        self.model, self.tokenizer = model.eval(), tokenizer
        self.mean, self.deviation, self.rows_at_once = mean, deviation, rows_at_once
        self.prompt_format: PromptFormat = prompt_format

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response: an outcome, no feedback and no spans.

        A response that does not fit into the model's context with its prompt gets a failed critique.
        """
        rows = scored_ids(self.tokenizer, examples, responses, self.prompt_format)
        logits = logits_of(self.model, self.tokenizer, rows, self.rows_at_once)
        return [
            Critique("", outcome=self.mean + self.deviation * logits[row][0].item())
            if row in logits
            else too_long(ids, context_of(self.model))
            for row, ids in enumerate(rows)
        ]

    def train_further(self, annotations: Sequence[Annotation], settings: FineTuning) -> None:
        """Train on Σ δ of annotations, in place, as a refresh during RL does; see `train_scalar_further`."""
        train_scalar_further(self, annotations, [span_reward(self.tokenizer, one) for one in annotations], settings)

    def restore(self, directory: Path, *, trust_remote_code: bool = False) -> None:
        """Take the weights of a saved scalar reward model."""
        load_weights(self.model, directory, trust_remote_code=trust_remote_code)

    def save(self, directory: Path) -> None:
        """Write a Hugging Face directory, and the settings as reward_head.json."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        settings = {name: getattr(self, name) for name in ("mean", "deviation", "rows_at_once", "prompt_format")}
        write_atomically(directory / SETTINGS_FILE, to_json(settings))

    @classmethod
    def load(cls, directory: str | Path, *, trust_remote_code: bool = False) -> "ScalarRewardModel":
        """Load a saved scalar reward model, or any sequence classifier with one output.

        A model without saved settings reads prompts with its chat template, if it has one.

        Raises:
            ModelError: if there is no such model.
        """
        from transformers import AutoModelForSequenceClassification

        kind, what = AutoModelForSequenceClassification, "a scalar reward model"
        model = load_model(kind, what, directory, trust_remote_code=trust_remote_code)
        path = Path(directory) / SETTINGS_FILE
        tokenizer = load_tokenizer(str(directory), trust_remote_code=trust_remote_code)
        check_text_ids(model, tokenizer)
        ensure_padding(model, tokenizer)
        own = {"prompt_format": format_of(tokenizer)}
        try:
            return cls(model, tokenizer, **(json.loads(path.read_bytes()) if path.exists() else own))
        except (ModelError, OSError, ValueError, TypeError) as error:
            raise ModelError(f"cannot load {what} from {str(directory)!r}: {error}") from error


def scored_ids(
    tokenizer: Any, examples: Sequence[Example], responses: Sequence[str], prompt_format: PromptFormat
) -> list[list[int]]:
    """Return the ids of each prompt with its response, as a scalar reward model reads them.

    Special tokens that the response, or a message in the chat template, spells are text (`prompts`).

    Raises:
        DataError: if the chat template refuses a prompt.
    """
    pairs = list(zip(examples, responses, strict=True))
    if prompt_format == "plain":
        return [encoded.ids for encoded in encode_responses(tokenizer, examples, responses)]
    chats = [
        [
            *([{"role": "user", "content": example.prompt}] if isinstance(example.prompt, str) else example.prompt),
            {"role": "assistant", "content": response},
        ]
        for example, response in pairs
    ]
    refusal = "the chat template of the scalar reward model refuses a prompt with its response"
    way_out = "Change the messages, or take a reward model that has such roles, or was trained on plain text"
    return [encoded.ids for encoded in encode_chats(tokenizer, chats, refusal=refusal, way_out=way_out)]


def train_scalar_reward_model(
    start: str | Path,
    tokenizer: Any,
    annotations: Sequence[Annotation],
    rewards: Sequence[float],
    settings: FineTuning,
    *,
    on_step: OnStep | None = None,
) -> tuple[ScalarRewardModel, int]:
    """Train a scalar reward model with the squared error to standardized rewards, one per annotation.

    The trunk is that of the causal language model in the directory `start`; the output layer is new. `on_step` is
    called with the number of finished steps after each step.

    Returns:
        The reward model, and the number of annotations that are longer than `settings.max_tokens` or than the model's
        context. They are left out: a cut response would have the reward of the whole one.

    Raises:
        DataError: if there are no annotations, none is short enough, or all rewards are equal.
        ModelError: if there is no model to start from.
    """
    from transformers import DataCollatorWithPadding

    if not annotations or len(annotations) != len(rewards):
        raise DataError(f"got {len(annotations)} annotations and {len(rewards)} rewards; one reward each is needed")
    rows = scored_ids(tokenizer, *inputs_of(annotations), "plain")
    model = new_scalar_model(start, tokenizer, seed=settings.seed)
    limit = min(settings.max_tokens, context_of(model))
    kept = [row for row, ids in enumerate(rows) if len(ids) <= limit]
    if not kept:
        raise DataError(
            f"all {len(annotations)} annotations are longer than {limit} tokens; raise max_tokens, at most to "
            "the model's context"
        )
    mean, deviation = fmean(rewards[row] for row in kept), pstdev([rewards[row] for row in kept])
    if deviation == 0:
        raise DataError(f"all {len(kept)} rewards are {mean}; at least two different rewards are needed")
    labels = [(rewards[row] - mean) / deviation for row in kept]
    data = {"input_ids": [rows[row] for row in kept], "labels": labels}
    fit(model, data, DataCollatorWithPadding(tokenizer), settings, on_step)
    return ScalarRewardModel(model, tokenizer, mean=mean, deviation=deviation), len(annotations) - len(kept)


def train_scalar_further(
    critic: ScalarRewardModel, annotations: Sequence[Annotation], rewards: Sequence[float], settings: FineTuning
) -> None:
    """Train a scalar reward model further, in place, on one reward per annotation; its mean and deviation stay.

    Annotations that are longer than `settings.max_tokens` or than the model's context are left out.

    Raises:
        DataError: if no annotation is short enough.
    """
    from transformers import DataCollatorWithPadding

    rows = scored_ids(critic.tokenizer, *inputs_of(annotations), critic.prompt_format)
    limit = min(settings.max_tokens, context_of(critic.model))
    kept = [row for row, ids in enumerate(rows) if len(ids) <= limit]
    if not kept:
        raise DataError(f"all {len(annotations)} annotations are longer than {limit} tokens; none can be learned")
    labels = [(rewards[row] - critic.mean) / critic.deviation for row in kept]
    data = {"input_ids": [rows[row] for row in kept], "labels": labels}
    fit(critic.model, data, DataCollatorWithPadding(critic.tokenizer), settings, None)


def fit(
    model: Any,
    data: dict[str, Any],
    collate: Any,
    settings: FineTuning,
    on_step: OnStep | None,
    evaluation: Evaluation | None = None,
) -> None:
    """Train a classifier in place with its own loss, on the columns "input_ids" and "labels".

    With an evaluation, measure, save and continue from its last checkpoint.
    """
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    check_ids(model, data["input_ids"])

    def make_trainer(directory: str, **more: Any) -> Any:
        trainer = Trainer(
            model,
            training_arguments(TrainingArguments, settings, directory, **more),
            train_dataset=Dataset.from_dict(data),
            data_collator=collate,
            optimizers=optimizers(model, settings),
        )
        if model.config.num_labels == 1:  # its squared error is a mean over the micro-batch, not over the step
            trainer.model_accepts_loss_kwargs = False
        return trainer

    train_classifier(make_trainer, model, settings, on_step, evaluation)


def train_classifier(
    make_trainer: Callable[..., Any],
    model: Any,
    settings: FineTuning,
    on_step: OnStep | None,
    evaluation: Evaluation | None,
) -> None:
    """Train a classifier in place with the trainer that is made for a directory and further arguments of it.

    With an evaluation, measure, save and continue from its last checkpoint; the weights are those of the last step.
    """
    if evaluation is None:
        with plain_data_parallelism():  # in a refresh
            train_with(make_trainer, model, on_step=on_step)
        return

    def with_steps(directory: str, **more: Any) -> Any:
        trainer = make_trainer(directory, **more)
        if on_step is not None:
            trainer.add_callback(AfterStep(on_step))
        return trainer

    train_measured(with_steps, settings, evaluation)
    saved = last_saved(evaluation.directory)
    if saved is not None:  # of an earlier process, if that one made the last step
        path = checkpoint_path(evaluation.directory, saved.step)
        model.load_state_dict(load_model(type(model), "a classifier", path).state_dict())
    model.zero_grad(set_to_none=True)
    model.eval()


def new_classifier(start: str | Path, tokenizer: Any, kind: Any, *, seed: int, **config: Any) -> Any:
    """Return a classifier of a class of transformers: the trunk of a saved language model and a new output layer.

    Raises:
        ModelError: if there is no such model.
    """
    import torch

    torch.manual_seed(seed)
    purpose = "scores" if kind.__name__.endswith("SequenceClassification") else "steps"
    model = load_model(
        kind, f"the start of a reward model of {purpose}", start, new_head=True, dtype=torch.float32, **config
    )
    check_text_ids(model, tokenizer)
    ensure_padding(model, tokenizer)
    return model


def ensure_padding(model: Any, tokenizer: Any) -> None:
    """Let a tokenizer pad with its end of sequence if its padding token is missing or has no row in the embedding.

    The model's config names the same token: transformers finds the last token of a row, whose logits count, by it.

    Raises:
        ModelError: if the tokenizer has neither token.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= rows:
        if tokenizer.eos_token_id is None or tokenizer.eos_token_id >= rows:
            raise ModelError(
                f"the tokenizer's padding token is {tokenizer.pad_token!r} its end of sequence "
                f"{tokenizer.eos_token!r}; neither has a row in the embedding of {rows} tokens; name one in "
                "tokenizer_config.json"
            )
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id


def new_scalar_model(start: str | Path, tokenizer: Any, *, seed: int, trust_remote_code: bool = False) -> Any:
    """Return a sequence classifier with one output; see `new_classifier`."""
    from transformers import AutoModelForSequenceClassification

    config = {"num_labels": 1, "problem_type": "regression", "trust_remote_code": trust_remote_code}
    return new_classifier(start, tokenizer, AutoModelForSequenceClassification, seed=seed, **config)


def logits_of(model: Any, tokenizer: Any, rows: Sequence[Sequence[int]], rows_at_once: int) -> dict[int, Any]:
    """Return the logits of the rows that fit into the context, by row: [labels], or with padding [tokens, labels]."""
    import torch
    from transformers import DataCollatorWithPadding

    context, collate = context_of(model), DataCollatorWithPadding(tokenizer)
    fits = [row for row, ids in enumerate(rows) if len(ids) <= context]
    check_ids(model, [rows[row] for row in fits])
    found: dict[int, Any] = {}
    with torch.no_grad():
        for start in range(0, len(fits), rows_at_once):
            chosen = fits[start : start + rows_at_once]
            batch = collate([{"input_ids": rows[row]} for row in chosen])
            logits = model(**{name: values.to(model.device) for name, values in batch.items()}).logits
            found |= dict(zip(chosen, logits, strict=True))
    return found
