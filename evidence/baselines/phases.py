"""Further phases of the quickstart's pipeline: the reward models of baselines and ablations, by directory.

reward_head/         the scalar reward model of the baseline, trained on the same annotations
reward_model_without_words/    a generative reward model that writes spans only
verdicts.jsonl, reward_model_of_verdicts/    the same responses with critiques that state no truth, and a generative
reward model that learned from them
reward_model_dense/  a generative reward model that labels each word (Appendix I.1)
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from evidence.baselines.scalar import train_scalar_reward_model
from evidence.baselines.span_reward import span_reward
from evidence.forms.dense import DENSE
from evidence.tasks.lengths import Phase
from text2grad.feedback.critic import annotate
from text2grad.feedback.records import read_annotations, write_annotations
from text2grad.files import published
from text2grad.models.pretrained import load_tokenizer
from text2grad.progress import Progress
from text2grad.runs.pipeline import ANNOTATIONS, Pipeline

DENSE_SYMBOLS = ('", "word_labels": "', '"}')
LABELS = [f"{space}{sign}" for space in ("", " ") for sign in DENSE.signs]
VERDICTS = "verdicts.jsonl"


def scalar_reward_model(pipeline: Pipeline, path: Path) -> None:
    """Train the scalar reward model on Σ δ of the annotations."""
    settings, tokenizer = pipeline.recipe.reward_model, load_tokenizer(str(pipeline.out / "sft"))
    annotations = read_annotations(pipeline.out / ANNOTATIONS)
    steps = max(1, settings.steps // 2)  # one number is learned in fewer steps than critiques
    with Progress("scalar reward model", steps) as progress:
        model, left_out = train_scalar_reward_model(
            pipeline.out / "sft",
            tokenizer,
            annotations,
            [span_reward(tokenizer, one) for one in annotations],
            replace(pipeline.training(settings), steps=steps),
            on_step=lambda _: progress.advance(),
        )
    pipeline.note("reward_head_left_out", left_out)
    with published(path) as temporary:
        model.save(temporary)


def reward_model_of_verdicts(pipeline: Pipeline, path: Path) -> None:
    """Annotate the responses of the annotations again, without the true facts, and train on these critiques."""
    verdicts = pipeline.out / VERDICTS
    if not verdicts.exists():
        task, known = pipeline.task, read_annotations(pipeline.out / ANNOTATIONS)
        examples = task.examples(len(known), pipeline.recipe.run.seed + 1)  # of the annotations
        critic = replace(task, settings=replace(task.settings, truths=False)).critic()
        write_annotations(verdicts, annotate(critic, examples, [one.response for one in known]))
    pipeline.train_reward_model(path, read_annotations(verdicts))


def reward_model_without_words(pipeline: Pipeline, path: Path) -> None:
    """Train a generative reward model that writes spans only."""
    pipeline.train_reward_model(path, read_annotations(pipeline.out / ANNOTATIONS), write_feedback=False)


def dense_reward_model(pipeline: Pipeline, path: Path) -> None:
    """Train a generative reward model that labels each word, with a tokenizer of its own."""
    tokenizer = pipeline.tokenizer(symbols=DENSE_SYMBOLS, words=LABELS)
    pipeline.train_reward_model(path, read_annotations(pipeline.out / ANNOTATIONS), tokenizer, form="dense")


PHASES: Mapping[str, Phase] = {
    "reward_head": scalar_reward_model,
    "reward_model_without_words": reward_model_without_words,
    "reward_model_dense": dense_reward_model,
    "reward_model_of_verdicts": reward_model_of_verdicts,
}
"""Name of a phase, as `Method.needs` gives it → what makes it; for `LengthPipeline`."""
