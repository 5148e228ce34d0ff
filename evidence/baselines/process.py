"""The process reward model: a label for each step of a response (arXiv 2305.20050).

    annotations → steps with labels → token classifier with three labels → critiques with one span per labelled step

The label of a step is read at its last token. Positive and negative steps become spans; neutral steps do not.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from evidence.baselines.encoding import check_text_ids, encode_responses, too_long
from evidence.baselines.process_steps import STEP_LABELS, Step, labelled_steps
from evidence.baselines.scalar import ensure_padding, fit, logits_of, new_classifier
from text2grad.errors import DataError, ModelError, check_known
from text2grad.feedback.records import Annotation
from text2grad.feedback.words import StepRule, split_steps
from text2grad.files import to_json, write_atomically
from text2grad.models.fine_tuning import NO_LOSS, FineTuning, OnStep
from text2grad.models.measured_training import Evaluation, measured_at
from text2grad.models.pretrained import context_of, load_model, load_tokenizer
from text2grad.reward_models.writing import inputs_of
from text2grad.types import Critique, Example, Span

SETTINGS_FILE = "process_reward_model.json"


class ProcessReport(NamedTuple):
    """Counts of annotations and of their steps."""

    learned_from: int  # training annotations
    steps: dict[str, int]  # training steps, by label
    without_steps: int  # annotations without a step, or whose critique could not be parsed
    too_long: int  # annotations left out: longer than the limit or than the context
    held_out: dict[str, int]  # held-out steps, by label
    right: dict[str, int]  # held-out steps with a correctly predicted label, by label
    before: float | None = None  # share of right labels before the training; None where it was not measured


class ProcessRewardModel:
    """A critic that labels steps: `model(examples, responses)` returns critiques with a span per labelled step."""

    def __init__(self, model: Any, tokenizer: Any, *, rule: StepRule = "lines", rows_at_once: int = 64) -> None:
        """Take a token classifier.

        Args:
            model: its labels are named negative, neutral and positive.
            tokenizer: its tokenizer, with character offsets ("fast").
            rule: how a response is split into steps.
            rows_at_once: responses per forward pass; changes memory, not results.

        Raises:
            ConfigError: if there is no such rule.
            ModelError: if the model has other labels, or the tokenizer has no offsets.
        """
        check_known("rule", rule, get_args(StepRule))
        self.labels = [str(model.config.id2label[number]).lower() for number in range(model.config.num_labels)]
        if sorted(self.labels) != sorted(STEP_LABELS):
            raise ModelError(
                f"a process reward model needs the labels {', '.join(STEP_LABELS)}, and this model has "
                f"{', '.join(self.labels)}; name the labels in id2label of its config.json"
            )
        if not tokenizer.is_fast:
            raise ModelError(
                f"{type(tokenizer).__name__} has no character offsets of tokens; use the fast tokenizer of this model"
            )
        self.model, self.tokenizer = model.eval(), tokenizer
        self.rule: StepRule = rule
        self.rows_at_once = rows_at_once

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response: the labels of its steps as feedback, positive and negative steps as spans.

        A response that does not fit into the model's context with its prompt gets a failed critique.
        """
        steps = [[Step(*place) for place in split_steps(response, self.rule)] for response in responses]
        return self.judge(examples, responses, steps)

    def judge(
        self, examples: Sequence[Example], responses: Sequence[str], steps: Sequence[Sequence[Step]]
    ) -> list[Critique]:
        """Return one critique per response with the labels of the given steps."""
        rows = rows_of(self.tokenizer, examples, responses, steps)
        critiques = [too_long(ids, context_of(self.model)) for ids, _ in rows]
        for row, logits in logits_of(self.model, self.tokenizer, [ids for ids, _ in rows], self.rows_at_once).items():
            ids, ends = rows[row]
            padding = len(logits) - len(ids) if self.tokenizer.padding_side == "left" else 0
            probabilities = logits.float().softmax(-1).cpu()
            critiques[row] = self._critique(steps[row], probabilities[[padding + end for end in ends]])
        return critiques

    def _critique(self, steps: Sequence[Step], probabilities: Any) -> Critique:
        """Return the critique of some steps from the probabilities of their labels, [steps, labels]."""
        best = probabilities.max(-1)
        labels = [self.labels[number] for number in best.indices.tolist()]
        lines = [
            f"step {number}: {label} ({share:.2f})"
            for number, (label, share) in enumerate(zip(labels, best.values.tolist(), strict=True), start=1)
        ]
        spans = [
            Span(step.start, step.end, "positive" if label == "positive" else "negative")
            for step, label in zip(steps, labels, strict=True)
            if label != "neutral"
        ]
        return Critique("; ".join(lines), tuple(spans))

    def save(self, directory: Path) -> None:
        """Write a Hugging Face directory, and the settings as process_reward_model.json."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        write_atomically(directory / SETTINGS_FILE, to_json({"rule": self.rule, "rows_at_once": self.rows_at_once}))

    @classmethod
    def load(cls, directory: str | Path, *, trust_remote_code: bool = False, **settings: Any) -> "ProcessRewardModel":
        """Load a saved process reward model, or any token classifier with the three labels.

        Raises:
            ModelError: if there is no such model.
        """
        from transformers import AutoModelForTokenClassification

        kind, what = AutoModelForTokenClassification, "a process reward model"
        model = load_model(kind, what, directory, trust_remote_code=trust_remote_code)
        path = Path(directory) / SETTINGS_FILE
        saved = json.loads(path.read_bytes()) if path.exists() else {}
        tokenizer = load_tokenizer(str(directory), trust_remote_code=trust_remote_code)
        check_text_ids(model, tokenizer)
        ensure_padding(model, tokenizer)
        return cls(model, tokenizer, **{**saved, **settings})


def rows_of(
    tokenizer: Any, examples: Sequence[Example], responses: Sequence[str], steps: Sequence[Sequence[Step]]
) -> list[tuple[list[int], list[int]]]:
    """Return the ids of prompt and response, and the position of the last token of each step.

    Special tokens that the response spells are text (`prompts`).
    """
    rows = []
    for example, (ids, ranges), some in zip(
        examples, encode_responses(tokenizer, examples, responses), steps, strict=True
    ):
        before = len(example.prompt_text)
        starts = [(start, position) for position, (start, end) in enumerate(ranges) if end > start]
        ends = [max(position for start, position in starts if start < before + step.end) for step in some]
        rows.append((ids, ends))
    return rows


def train_process_reward_model(
    start: str | Path,
    tokenizer: Any,
    annotations: Sequence[Annotation],
    settings: FineTuning,
    *,
    rule: StepRule = "lines",
    spans_are_steps: bool = False,
    held_out: Sequence[Annotation] = (),
    on_step: OnStep | None = None,
    evaluation: Evaluation | None = None,
) -> tuple[ProcessRewardModel, ProcessReport]:
    """Train a process reward model on annotations.

    Args:
        start: directory or hub name of the language model whose trunk is the start; the output layer is new.
        tokenizer: its tokenizer.
        annotations: training annotations.
        settings: of the training; annotations longer than `max_tokens` are left out.
        rule: how a response is split into steps, in training and later.
        spans_are_steps: train on the critiques' spans as the steps; later responses are still split by the rule.
        held_out: annotations to measure on.
        on_step: called with the number of finished optimizer steps after each.
        evaluation: where to save and continue from, and when to measure; its `measure` is replaced by the share of
            right labels.

    Raises:
        DataError: if no annotation is left, or all steps have the same label.
        ModelError: if there is no model to start from.
    """
    from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

    chosen: StepRule | Literal["spans"] = "spans" if spans_are_steps else rule
    names = dict(enumerate(STEP_LABELS))
    model = new_classifier(
        start,
        tokenizer,
        AutoModelForTokenClassification,
        seed=settings.seed,
        num_labels=len(names),
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )
    reward_model = ProcessRewardModel(model, tokenizer, rule=rule)
    given, steps = _with_steps(annotations, chosen)
    rows = rows_of(tokenizer, *inputs_of(given), steps)
    kept = [row for row, (ids, _) in enumerate(rows) if len(ids) <= min(settings.max_tokens, context_of(model))]
    counts: Counter[str] = Counter(step.label for row in kept for step in steps[row])
    if len(counts) < 2:
        raise DataError(
            f"{len(kept)} of {len(annotations)} annotations have steps to train on, with the labels {dict(counts)}; at "
            "least two different labels are needed"
        )
    data = {"input_ids": [rows[row][0] for row in kept], "labels": [_labels(*rows[row], steps[row]) for row in kept]}
    if evaluation is not None and held_out:
        evaluation = replace(
            evaluation, measure=lambda _: {"accuracy": _share(*_measure(reward_model, held_out, chosen))}
        )
    fit(model, data, DataCollatorForTokenClassification(tokenizer), settings, on_step, evaluation)
    right, total = _measure(reward_model, held_out, chosen)
    before = measured_at(evaluation.directory, 0).get("accuracy") if evaluation else None
    left_out = len(given) - len(kept)
    report = ProcessReport(len(kept), dict(counts), len(annotations) - len(given), left_out, total, right, before)
    return reward_model, report


def _share(right: dict[str, int], total: dict[str, int]) -> float:
    return sum(right.values()) / max(sum(total.values()), 1)


def _with_steps(
    annotations: Sequence[Annotation], rule: StepRule | Literal["spans"]
) -> tuple[list[Annotation], list[list[Step]]]:
    """Return the annotations that have steps, and their steps."""
    pairs = [(one, labelled_steps(one, rule)) for one in annotations if not one.critique.failed]
    return [one for one, steps in pairs if steps], [steps for _, steps in pairs if steps]


def _labels(ids: Sequence[int], ends: Sequence[int], steps: Sequence[Step]) -> list[int]:
    """Return the label of each token: the step's label on its last token, no loss on any other."""
    labels = [NO_LOSS] * len(ids)
    for end, step in zip(ends, steps, strict=True):
        labels[end] = STEP_LABELS.index(step.label)
    return labels


def _measure(
    reward_model: ProcessRewardModel, annotations: Sequence[Annotation], rule: StepRule | Literal["spans"]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return correctly labelled steps and all steps, by label; responses that do not fit the context are skipped."""
    given, steps = _with_steps(annotations, rule)
    critiques = reward_model.judge(*inputs_of(given), steps)
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for critique, some in zip(critiques, steps, strict=True):
        if critique.failed:
            continue
        found = {(span.start, span.end): str(span.label) for span in critique.spans}
        for step in some:
            total[step.label] += 1
            right[step.label] += found.get((step.start, step.end), "neutral") == step.label
    return {label: right[label] for label in total}, dict(total)
