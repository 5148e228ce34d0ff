"""Marks → a reward model that knows them → a policy that it trains: phases 2 and 3 of the paper, once more.

1. The reward model of the run (or of an earlier retraining) learns from the marks and from annotations that it had: the
   file beside it, or those of the recipe by which `text2grad reward` made it. Where the run's critic is a program,
   a new reward model begins from the policy's weights, and learns from the run's own critiques beside the marks.
2. `run_recipe` trains the policy's adapter for a few steps by the run's recipe, with the new reward model as critic. A
   value function would not be learned in a few steps, so the mean of a group of responses is the baseline.

Marks are few, so each is repeated until marks are `share` of the annotations. Agreement with the rater, and with
held-out annotations, is measured before and after: F1 of the labelled tokens.
"""

import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from text2grad.config import Recipe, latest_checkpoint, make_recipe, recipe_of_run
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import Annotation, read_annotations, write_annotations
from text2grad.files import write_records
from text2grad.models import FineTuning, best_device, context_of, load_policy, load_tokenizer
from text2grad.progress import LOG, STEPS, note
from text2grad.reward_models import CritiqueFormat, GenerativeRewardModel
from text2grad.reward_models.training import HeldOutSet
from text2grad.runs import Judged, refreshed_critic, run_recipe
from text2grad.types import Critique, Example, Span
from text2grad_studio.teaching import Taught, measured

MOST_EARLIER = 2000  # annotations beside the marks
MEASURED = 24  # responses whose critiques are decoded to measure agreement
GROUP = 4  # responses to a prompt, where the run had a value function
ADAPTER_RATE = 5  # times the learning rate of a run that trained all weights
EVALUATED = 32  # held-out prompts of the run, before and after
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
COUNT = re.compile(r"(\d[\d,]*) of (\d[\d,]*)")

Forward = Callable[[str, float | None], None]  # words, and the share that is done


@dataclass(frozen=True, slots=True)
class Retraining:
    """Settings of a retraining.

    Attributes:
        reward_steps: optimizer steps of the reward model.
        steps: steps of the policy.
        share: of marks among the annotations of the reward model.
        rank: of a new LoRA adapter of the policy; its alpha is twice the rank.
        seed: of the samples and the order of the rows.
    """

    reward_steps: int = 60
    steps: int = 20
    share: float = 0.5
    rank: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: if a setting cannot be used.
        """
        wrong = next((name for name in ("reward_steps", "steps", "rank") if getattr(self, name) < 1), None)
        if wrong:
            raise ConfigError(f"{wrong} of a retraining is at least 1, got {getattr(self, wrong)}")
        if not 0 < self.share <= 1:
            raise ConfigError(f"share of a retraining is above 0 and at most 1, got {self.share}")

    @classmethod
    def from_page(cls, given: Mapping[str, Any]) -> "Retraining":
        """Return the settings that a page sends, and the defaults of others.

        Raises:
            ConfigError: if a setting is unknown or no number.
        """
        own = cls()
        for key, value in given.items():
            if key not in cls.__dataclass_fields__ or not isinstance(value, int | float):
                names = ", ".join(cls.__dataclass_fields__)
                raise ConfigError(f"a retraining has no setting {key} = {value!r}; it has {names}")
            own = replace(own, **{key: type(getattr(own, key))(value)})
        return own


class Retrained(NamedTuple):
    """The result: the directory of the reward model, the policy's change on the marks, and figures for the page."""

    reward_model: Path
    taught: Taught
    about: dict[str, Any]


def retrain(
    policy: Any,
    tokenizer: Any,
    base: str,
    run: str | None,
    answers: Sequence[Judged],
    settings: Retraining,
    *,
    earlier: Path | None,
    scratch: Path,
) -> Retrained:
    """Train the reward model, then the policy's adapter in place.

    Args:
        policy: a causal language model with a LoRA adapter.
        tokenizer: the policy's.
        base: directory or name of the policy without adapter.
        run: directory of its run, whose recipe and critic are taken; None takes the defaults.
        answers: the marked responses.
        settings: of the retraining.
        earlier: directory of the reward model of an earlier retraining, if there is one.
        scratch: an empty directory.

    Raises:
        ConfigError: if the run's critic is no reward model that can be trained here.
        DataError: if no mark can be placed on tokens, or annotations cannot be read.
    """
    recipe = recipe_of_run(Path(run)) if run else Recipe()
    measured(policy, tokenizer, answers)  # refuses marks between tokens before the training
    marks = [Annotation(own.rollout.example.prompt_text, own.rollout.response, own.critique) for own in answers]
    path = _reward_model_of(recipe, run, earlier)
    earlier_annotations = _earlier_annotations(recipe, path, run)
    rng = Random(f"annotations {settings.seed}")
    annotations = rng.sample(earlier_annotations, min(MOST_EARLIER, len(earlier_annotations)))
    device = best_device()
    critic = GenerativeRewardModel.load(path) if path else _fresh(base, recipe)
    critic.model.to(device)
    if path:
        STEPS.info("the reward model judges %d responses", len(marks))
        own = critic([Example(mark.prompt) for mark in marks], [mark.response for mark in marks])
    else:  # the program's, where the run has them
        known = {(annotation.prompt, annotation.response): annotation.critique for annotation in earlier_annotations}
        own = [known.get((mark.prompt, mark.response), Critique("")) for mark in marks]
    marks = [corrected(mark, critique) for mark, critique in zip(marks, own, strict=True)]
    learned, held_out = _split(marks, annotations, settings)
    agreement = {"before": _agreement(critic, marks, held_out)}
    training = _fine_tuning(recipe, critic, settings)
    note(f"the reward model learns from {len(marks)} marked responses and {len(annotations)} earlier annotations")
    critic.format = replace(critic.format, outcomes=False)  # unless an annotation has one
    left_out = critic.train_further(
        learned, training, on_step=lambda done: STEPS.info("reward model: step %d of %d", done, settings.reward_steps)
    )
    critic.model.to(device)
    agreement["after"] = _agreement(critic, marks, held_out)
    write_annotations(scratch / "annotations.jsonl", [*annotations, *marks])
    directory = scratch / "reward_model"
    critic.save(directory)
    out = scratch / "run"
    run_recipe(_recipe(recipe, base, directory, out, marks, settings), model=policy, tokenizer=tokenizer)
    about = {
        "retraining": {"earlier": len(annotations), "left_out": left_out, "from": str(path or "")},
        "steps": {"reward_model": settings.reward_steps, "policy": settings.steps},
        "agreement": agreement,
        "metric": _metric(out),
    }
    return Retrained(directory, measured(policy, tokenizer, answers), about)


def corrected(annotation: Annotation, own: Critique) -> Annotation:
    """Return the critic's critique of a response, corrected by the rater's marks.

    Where the rater says nothing, the critic's own spans and sentences stay: a person marks one word, and says nothing
    about the others. Sentences that quote a span with which a mark overlaps go. Each mark is quoted in the feedback,
    also a mark without words, since a reward model may list only quotes of its feedback (`quoted_in_feedback`).

    Args:
        annotation: the rater's.
        own: the critic's; a failed critique counts as empty.

    Example:
        >>> from text2grad.types import Critique, Span
        >>> own = Critique('"Monday" is right. "noon" is right.', (Span(3, 9, "positive"), Span(13, 17, "positive")))
        >>> marked = Annotation("When?", "On Monday at noon.", Critique("", (Span(3, 9, "negative"),)))
        >>> corrected(marked, own).critique.feedback
        '"noon" is right. "Monday" is wrong.'
    """
    marks, response = annotation.critique, annotation.response
    kept = [] if own.failed else [span for span in own.spans if not any(_overlap(span, mark) for mark in marks.spans)]
    gone = {response[span.start : span.end] for span in own.spans if span not in kept}
    gone -= {response[span.start : span.end] for span in kept}
    sentences = [] if own.failed else SENTENCE_END.split(own.feedback.strip())
    words = [line for line in sentences if line and not any(f'"{quote}"' in line for quote in gone)]
    words += [marks.feedback.strip()] if marks.feedback.strip() else []
    for span in marks.spans:
        quote = f'"{response[span.start : span.end]}"'
        if quote not in marks.feedback:
            words.append(f"{quote} is {'right' if span.label == 'positive' else 'wrong'}.")
    return annotation._replace(critique=replace(marks, feedback=" ".join(words), spans=(*kept, *marks.spans)))


def _overlap(a: Span, b: Span) -> bool:
    return a.start < b.end and b.start < a.end


def _reward_model_of(recipe: Recipe, run: str | None, earlier: Path | None) -> Path | None:
    """Return the reward model to train further; None where the critic is a program.

    Raises:
        ConfigError: if the critic is learned, but cannot be trained here.
    """
    if earlier is not None and earlier.exists():
        return earlier
    if run is None or recipe.critic.use or not recipe.critic.model:
        return None
    if recipe.critic.kind != "generative":
        raise ConfigError(
            f"the critic of {run} has critic.kind = {recipe.critic.kind!r}; only a generative reward model with its "
            "weights here is retrained on marks. Download the annotations (My marks) for `text2grad reward`"
        )
    return refreshed_critic(Path(run), latest_checkpoint(Path(run) / "checkpoints")) or Path(recipe.critic.model)


def _earlier_annotations(recipe: Recipe, path: Path | None, run: str | None) -> list[Annotation]:
    """Return the annotations that the reward model had; the run's critiques where its critic is a program.

    Raises:
        DataError: if a file cannot be read.
    """
    files: list[Path] = []
    if path is not None:
        by_refresh = run is not None and path.parent == Path(run) / "critic"  # beside it is a cache without prompts
        files = [Path(recipe.refresh.replay_from)] if by_refresh and recipe.refresh.replay_from else _files_of(path)
    if not files and run is not None:
        files = sorted((Path(run) / "rollouts").glob("*.jsonl"))
    annotations = (annotation for file in files for annotation in read_annotations(file, to_encode=True))
    return [annotation for annotation in annotations if not annotation.critique.failed]


def _files_of(path: Path) -> list[Path]:
    """Return the files of annotations of a reward model: beside it, or named by the recipe that made it."""
    beside = [path.parent / "annotations.jsonl"]  # where the quickstart and a retraining keep annotations
    if (path.parent / "run.json").exists():  # made by `text2grad reward`
        beside += [Path(name) for name in recipe_of_run(path.parent).reward_model.annotations]
    return [file for file in beside if file.exists() and path.parent.name != "critic"]


def _fresh(base: str, recipe: Recipe) -> GenerativeRewardModel:
    """Return a reward model that begins from the policy's weights."""
    model, tokenizer = load_policy(base, dtype="float32"), load_tokenizer(base)
    limit = int(min(recipe.reward_model.max_new_tokens, context_of(model) // 3))
    return GenerativeRewardModel(model, tokenizer, CritiqueFormat(max_new_tokens=limit))


def _split(
    marks: Sequence[Annotation], annotations: Sequence[Annotation], settings: Retraining
) -> tuple[list[Annotation], list[Annotation]]:
    """Return the annotations to learn from, marks repeated, and earlier ones that are held out."""
    held_out = list(annotations[: min(MEASURED, len(annotations) // 5)])
    prompts = {annotation.prompt for annotation in held_out}
    others = [annotation for annotation in annotations if annotation.prompt not in prompts]
    if settings.share == 1:
        others = []
    repeats = max(1, round(settings.share / (1 - settings.share) * len(others) / len(marks))) if others else 1
    return [*others, *(list(marks) * repeats)], held_out


def _agreement(critic: GenerativeRewardModel, marks: Sequence[Annotation], held_out: Any) -> dict[str, float | None]:
    """Return F1 of the critic's labelled tokens against the marks and earlier annotations; None without any."""
    f1: dict[str, float | None] = {}
    for name, part in (("marks", marks[:MEASURED]), ("held_out", held_out)):
        try:
            known = HeldOutSet(critic.tokenizer, part)
        except DataError:  # nothing that the tokenizer can place
            f1[name] = None
            continue
        STEPS.info("the reward model judges %d responses", len(known.annotations))
        f1[name] = known.measure(critic).metrics()["f1"]
    return f1


def _fine_tuning(recipe: Recipe, critic: GenerativeRewardModel, settings: Retraining) -> FineTuning:
    """Return the settings of the reward model's training: of [refresh] where the run has it, else of [reward_model]."""
    own = recipe.refresh if recipe.refresh.active else recipe.reward_model
    return FineTuning(
        steps=settings.reward_steps,
        batch_size=own.batch_size,
        learning_rate=own.lr,
        optimizer=own.optimizer,
        max_tokens=recipe.reward_model.max_tokens,
        prompt_format=critic.format.prompt_format,
        seed=settings.seed,
    )


def _recipe(
    recipe: Recipe, base: str, reward_model: Path, out: Path, marks: Sequence[Annotation], settings: Retraining
) -> Recipe:
    """Return the recipe of the policy's phase: the run's, with a new critic, fewer steps and a LoRA adapter."""
    sections = recipe.model_dump(mode="json")
    data, model, rollout, optim = (sections[name] for name in ("data", "model", "rollout", "optim"))
    if not recipe.data.task and not recipe.data.train:
        prompts = out.with_name("prompts.jsonl")
        write_records(prompts, ({"prompt": mark.prompt} for mark in marks))
        data |= {"train": str(prompts), "held_out": 0.0}
    data |= {"eval_examples": min(recipe.data.eval_examples, EVALUATED), "eval_every": settings.steps}
    model |= {"path": base, "lora_r": settings.rank, "lora_alpha": 2 * settings.rank}
    if recipe.ppo.baseline == "value":
        sections["ppo"]["baseline"], rollout["group_size"] = "group", GROUP
        multiple = math.lcm(GROUP, recipe.ppo.minibatches)
        rollout["batch_size"] = math.ceil(recipe.rollout.batch_size / multiple) * multiple
    model["value"] = "none"
    sections["critic"] |= {"use": "", "model": str(reward_model), "kind": "generative"}
    sections["refresh"] = {}
    optim |= {"warmup_steps": min(recipe.optim.warmup_steps, settings.steps // 5), "value_warmup_steps": 0}
    if not recipe.model.lora_r:
        optim["lr"] *= ADAPTER_RATE
    sections["run"] |= {
        "out": str(out),
        "steps": settings.steps,
        "save_every": settings.steps,
        "keep_checkpoints": 1,
        "tracker": "none",
        "seed": settings.seed,
    }
    return make_recipe(sections, where="the run's recipe", strict=False)


def _metric(out: Path) -> dict[str, Any] | None:
    """Return the run's metric on held-out prompts before and after; None if it has none."""
    evaluations = [json.loads(path.read_bytes()) for path in sorted((out / "evaluations").glob("*.json"))]
    if len(evaluations) < 2:
        return None
    name = evaluations[-1]["metric"]
    return {"name": name, "before": evaluations[0]["metrics"].get(name), "after": evaluations[-1]["metrics"].get(name)}


class _Forwarder(logging.Handler):
    """Forwards the lines of progress that the phases log."""

    def __init__(self, forward: Forward) -> None:
        super().__init__(logging.DEBUG)
        self.forward = forward

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage()
        counted = COUNT.search(words)
        done, total = (int(digits.replace(",", "")) for digits in counted.groups()) if counted else (0, 0)
        self.forward(words, min(done / total, 1.0) if total else None)


@contextmanager
def forwarded_progress(forward: Forward) -> Iterator[None]:
    """Forward every line of progress of the phases in this context."""
    handler, levels = _Forwarder(forward), (LOG.level, STEPS.level)
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    STEPS.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(levels[0])
        STEPS.setLevel(levels[1])
