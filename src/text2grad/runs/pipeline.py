"""All models of a built-in task before RL: demonstrations → annotations → reward model → start of the policies.

    sft/                 a small Llama with random weights, fine-tuned on noisy demonstrations
    annotations.jsonl    phase 1: the task critic's critiques of its responses
    reward_model/        phase 2: the generative reward model, from the fine-tuned weights
    start/               the start of the policies: the reward model's weights, fine-tuned on demonstrations again
    phases.json          seconds and counts of the phases
    recipe.json          the settings by which all are made

A finished phase is not repeated: a file or directory gets its name when it is complete. For a task with tools there are
only sft/ and start/: the program critic judges the policies itself.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from text2grad.config import Recipe, RewardModelConfig, SFTConfig, changed_settings, make_recipe
from text2grad.errors import ConfigError
from text2grad.feedback import Annotation, annotate, read_annotations, write_annotations
from text2grad.files import published, to_json, write_atomically
from text2grad.models import (
    FineTuning,
    fine_tune,
    gathered,
    in_processes,
    load_policy,
    load_tokenizer,
    place,
    save_model,
    shared,
)
from text2grad.progress import Progress, note
from text2grad.reward_models import SYMBOLS, CritiqueFormat, GenerativeRewardModel, critique_target
from text2grad.runs.evaluate_policy import sample_rollouts
from text2grad.runs.prompts import world_of
from text2grad.tasks import Task, built_in, procedural_task, tiny_llama, word_tokenizer
from text2grad.types import Example

ANNOTATIONS = "annotations.jsonl"
VOCABULARY_ITEMS = 1_000  # parts of demonstrations whose words the tokenizer knows
ROWS_AT_ONCE = 256
SAMPLING_STEP = 2**20  # no training step uses its random numbers
WIDTH = 64

DECIDE_MODELS = ("data", "rollout", "sft", "reward_model", "critic", "quickstart", "world")
"""Sections of the recipe that decide the models; the last one is of experiments."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The phases before RL, for one task and one seed.

    Attributes:
        recipe: its sections [quickstart], [data], [sft], [reward_model], [critic], [rollout] and [run] are used.
        out: directory of all files.
    """

    recipe: Recipe
    out: Path

    def run(self, processes: int = 1) -> None:
        """Make what is missing, in so many processes, and score the fine-tuned policy."""
        missing = any(not (self.out / name).exists() for name in self.phases())
        in_processes(processes if missing else 1, self.make_all)
        self.evaluate()

    def make_all(self) -> None:
        """Make what is missing; processes that share the work go on together after each phase."""
        for name, make in self.phases().items():
            self.make(name, make)
            gathered(())

    def phases(self) -> Mapping[str, Callable[[Path], None]]:
        """Return what makes each file or directory, by its name."""
        judged = {ANNOTATIONS: self._annotations, "reward_model": self._reward_model}
        return {"sft": self._sft, **({} if self.task.tools else judged), "start": self._start}

    def make(self, name: str, phase: Callable[[Path], None]) -> None:
        """Make a file or directory of `out` that is missing, and note the seconds."""
        path = self.out / name
        if not path.exists():
            self.out.mkdir(parents=True, exist_ok=True)
            started = time.perf_counter()
            phase(path)
            self.note(path.stem, round(time.perf_counter() - started, 1))

    def evaluate(self) -> None:
        """Score the fine-tuned policy on held-out items, as evaluations of methods do; with tools a run does it."""
        path, data = self.out / "sft_evaluation.json", self.recipe.data
        if not path.exists() and not self.task.tools:
            settings, seed = world_of(self.recipe)
            task = built_in(str(data.task), settings)
            examples = task.held_out(data.eval_examples, seed)
            write_atomically(path, to_json(task.score(examples, self._sample(examples))))

    def refuse_other_settings(self, way_out: str) -> None:
        """Write the settings by which the models are made, or compare them with an earlier process's.

        Raises:
            ConfigError: if the models are made, or being made, by other settings; ends with the way out.
        """
        path, now = self.out / "recipe.json", self.recipe.model_dump(mode="json")
        now = {section: now[section] for section in DECIDE_MODELS if section in now}
        if not path.exists():
            self.out.mkdir(parents=True, exist_ok=True)
            write_atomically(path, to_json(now))
            return
        before = make_recipe(json.loads(path.read_bytes()), where=str(path), strict=False).model_dump(mode="json")
        changed = changed_settings(before, now)
        if changed:
            raise ConfigError(
                f"{self.out} holds models that were made by other settings: {'; '.join(changed)}. {way_out}"
            )

    @property
    def task(self) -> Task:
        """The task, on its training split."""
        return procedural_task(str(self.recipe.data.task), "train", world_of(self.recipe)[0])

    @property
    def context(self) -> int:
        """Positions of the models: prompt, answer and critique fit."""
        return 512

    def _sft(self, path: Path) -> None:
        tokenizer = self.tokenizer()
        self._fine_tune(path, self._untrained(tokenizer), tokenizer, self.training(self.recipe.sft))

    def _annotations(self, path: Path) -> None:
        """Annotate responses of the policy and as many corrupted responses."""
        task, count, rng = self.task, self.recipe.quickstart.responses, self._rng("annotations")
        examples = task.examples(count, self.recipe.run.seed + 1)
        note(f"annotations: critiques of {count:,} answers in words and quotes")
        corrupted = [" " + task.corruption(example, rng) for example in examples[count // 2 :]]
        own, others = (shared(half, may_be_none=True) for half in (examples[: count // 2], examples[count // 2 :]))
        answers = [*self._sample(own), *shared(corrupted, may_be_none=True)]
        annotations = gathered(annotate(task.critic(), [*own, *others], answers))
        if place()[0] == 0:
            write_annotations(path, annotations)

    def _reward_model(self, path: Path) -> None:
        self.train_reward_model(path, read_annotations(self.out / ANNOTATIONS))

    def train_reward_model(
        self, path: Path, annotations: Sequence[Annotation], tokenizer: Any = None, **changes: Any
    ) -> None:
        """Train a generative reward model on annotations, from the fine-tuned weights.

        Args:
            path: directory to write.
            annotations: to learn from.
            tokenizer: of the model; None takes the fine-tuned one's.
            changes: attributes of its `CritiqueFormat` beside those that the recipe sets.
        """
        settings, tokenizer = self.recipe.reward_model, tokenizer or load_tokenizer(str(self.out / "sft"))
        usual = {**settings.model_dump(include={"write_feedback", "max_new_tokens"}), "outcomes": False}
        usual["constrain"] = self.recipe.critic.constrain is not False
        form = CritiqueFormat(**{**usual, **changes})
        reward_model = GenerativeRewardModel(self._fine_tuned(tokenizer), tokenizer, form)
        with Progress(path.name.replace("_", " "), settings.steps) as progress:
            left_out = reward_model.train_further(
                annotations, self.training(settings), on_step=lambda _: progress.advance()
            )
        self.note("left_out", left_out)
        self._publish(path, reward_model.save)

    def _fine_tuned(self, _: Any) -> Any:
        """Return the fine-tuned model, whose tokenizer the reward model has here."""
        return load_policy(str(self.out / "sft"))

    def _start(self, path: Path) -> None:
        steps, settings = self.recipe.quickstart.after_reward_model, self.recipe.sft
        source = str(self.out / ("reward_model" if steps and not self.task.tools else "sft"))
        model, tokenizer = load_policy(source), load_tokenizer(source)
        if steps:
            training = replace(self.training(settings), steps=steps, learning_rate=settings.lr / 2)
            self._fine_tune(path, model, tokenizer, training)
        else:
            self._save(path, model, tokenizer)

    def _fine_tune(self, path: Path, model: Any, tokenizer: Any, training: FineTuning) -> None:
        """Fine-tune a model on the demonstrations, and save it."""
        examples, answers = self._demonstrations(training.steps * training.batch_size)
        with Progress(f"{path.name}: demonstrations", training.steps) as progress:
            fine_tune(model, tokenizer, examples, answers, training, on_step=lambda _: progress.advance())
        self._save(path, model, tokenizer)

    def _demonstrations(self, most: int | None = None) -> tuple[list[Example], list[str]]:
        """Return as many demonstrations as [sft] has, or at most so many."""
        task, rng, settings = self.task, self._rng("demonstrations"), self.recipe.sft
        count = settings.steps * settings.batch_size
        if task.chat_template:  # each takes milliseconds of templates, so they are repeated
            count = min(count, self.recipe.quickstart.examples)
        examples = task.examples(min(count, most or count), self.recipe.run.seed)
        return examples, task.demonstrations(examples, rng)

    def _untrained(self, tokenizer: Any) -> Any:
        return tiny_llama(tokenizer, seed=self.recipe.run.seed, width=WIDTH, context=self.context)

    def tokenizer(self, *, symbols: Sequence[str] = (), words: Sequence[str] = ()) -> Any:
        """Return a tokenizer that knows every word of the prompts, answers and critiques.

        A verdict is one token directly after the quoted word, so the model can compare the word with the truth there.

        Args:
            symbols: further texts that become one token each.
            words: further words.
        """
        task, rng = self.task, self._rng("tokenizer")
        rare = [form for word in task.vocabulary() for form in (word, f" {word}")]
        if task.chat_template:  # of the policy alone
            tokenizer = word_tokenizer(rare, task.symbols)
            tokenizer.chat_template = task.chat_template
            return tokenizer
        examples, answers = self._demonstrations(VOCABULARY_ITEMS)
        corrupted = [" " + task.corruption(example, rng) for example in examples]
        annotations = annotate(task.critic(), [*examples, *examples], [*answers, *corrupted])
        targets = [critique_target(annotation.critique, annotation.response) for annotation in annotations]
        prompts = [example.prompt_text for example in examples]
        said = [json.dumps(text)[1:-1] for text in (*task.verdicts(), *task.symbols)]  # escaped as in the targets
        return word_tokenizer([*prompts, *answers, *corrupted, *targets, *rare, *words], [*SYMBOLS, *symbols, *said])

    def _sample(self, examples: Sequence[Example]) -> list[str]:
        """Sample answers of the fine-tuned policy at temperature 1."""
        recipe, path = self.recipe, str(self.out / "sft")
        rollout = recipe.rollout.model_copy(
            update={"temperature": 1.0, "eos_token_ids": (), "rows_at_once": ROWS_AT_ONCE}
        )
        how: dict[str, Any] = {"prompt_format": recipe.model.prompt_format, "seed": recipe.run.seed}
        policy, tokenizer = load_policy(path).eval(), load_tokenizer(path)
        rollouts = sample_rollouts(policy, tokenizer, examples, rollout, **how, step=SAMPLING_STEP + place()[0])
        return [rollout.response for rollout in rollouts]

    def training(self, settings: SFTConfig | RewardModelConfig) -> FineTuning:
        """Return the settings of a training of this pipeline's models."""
        same = settings.model_dump(include={"steps", "batch_size", "optimizer"})
        same["prompt_format"] = "chat" if self.task.chat_template else "plain"
        return FineTuning(**same, learning_rate=settings.lr, max_tokens=self.context, seed=self.recipe.run.seed)

    def _save(self, path: Path, model: Any, tokenizer: Any) -> None:
        self._publish(path, partial(save_model, model), tokenizer.save_pretrained)

    def _publish(self, path: Path, *saves: Callable[[Path], Any]) -> None:
        """Write a directory, in the first of several processes."""
        if place()[0] == 0:
            with published(path) as temporary:
                for save in saves:
                    save(temporary)

    def _rng(self, purpose: str) -> Random:
        return Random(f"{purpose} {self.recipe.run.seed}")

    def note(self, name: str, value: float) -> None:
        """Write a count, or seconds, into phases.json."""
        if place()[0]:
            return
        path = self.out / "phases.json"
        notes = json.loads(path.read_bytes()) if path.exists() else {}
        write_atomically(path, to_json({**notes, name: value}))
