"""All models of a built-in task before RL: demonstrations → annotations → reward model → start of the policies.

    sft/                 a small Llama with random weights, fine-tuned on noisy demonstrations
    annotations.jsonl    phase 1: the task critic's critiques of its responses
    reward_model/        phase 2: the generative reward model, from the fine-tuned weights
    start/               the start of the policies: the reward model's weights, fine-tuned on demonstrations again
    phases.json          seconds and counts of the phases

Where the task's program is the critic of the runs, two phases are enough: `run(phases=WITHOUT_REWARD_MODEL)`. Further
phases, such as the reward model of a baseline, are given by name (`Phase`).
A finished phase is not repeated: a file or directory gets its name when it is complete.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from text2grad.config import Recipe, RewardModelConfig, SFTConfig
from text2grad.errors import ConfigError, check_known
from text2grad.feedback import annotate, read_annotations, write_annotations
from text2grad.files import published, to_json, write_atomically
from text2grad.models import (
    FineTuning,
    encode_prompts,
    fine_tune,
    load_policy,
    load_tokenizer,
    sample,
    step_uniforms,
    stop_ids,
)
from text2grad.reward_models import SYMBOLS, critique_target
from text2grad.reward_models.training import train_reward_model
from text2grad.runs.run_examples import task_settings, world_of
from text2grad.tasks import Task, built_in, copy_weights, procedural_task, tiny_llama, word_tokenizer
from text2grad.types import Example

PHASES = ("sft", "annotations", "reward_model", "start")
WITHOUT_REWARD_MODEL = ("sft", "start")
SECONDS_BETWEEN_LINES = 2.0
VOCABULARY_ITEMS = 3_000  # parts of demonstrations whose words the tokenizer knows
ROWS_AT_ONCE = 256
CONTEXT, WIDTH = 512, 64

OnProgress = Callable[[str, int, int], None]  # phase, finished steps or responses, number of all
Phase = Callable[["Pipeline", Path], None]  # makes the file or directory of a phase


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The phases before RL, for one task and one seed.

    Attributes:
        recipe: its sections [quickstart], [data], [sft], [reward_model], [critic], [rollout] and [run] are used.
        out: directory of all files.
        on_progress: called with phase, number of finished steps or responses, and number of all.
        further: further phases by name, which `run` makes on request.
    """

    recipe: Recipe
    out: Path
    on_progress: OnProgress
    further: Mapping[str, Phase] = field(default_factory=dict)

    def run(self, more: Sequence[str] = (), phases: Sequence[str] = PHASES) -> None:
        """Run the phases that are not finished.

        Args:
            more: names of further phases.
            phases: the others, in their order; `WITHOUT_REWARD_MODEL` are enough where a program is the critic.

        Raises:
            ConfigError: if a phase is unknown or needs one that is left out.
        """
        every: dict[str, Callable[[Path], None]] = {
            "sft": self._sft,
            "annotations": self._annotations,
            "reward_model": self.reward_model,
            "start": self._start,
            **{name: partial(make, self) for name, make in self.further.items()},
        }
        asked = (*phases, *more)
        for name in asked:
            check_known("a phase", name, tuple(every))
        after = self.recipe.quickstart.after_reward_model
        if "start" in asked and after and "reward_model" not in asked and not (self.out / "reward_model").exists():
            raise ConfigError(
                f"quickstart.after_reward_model = {after}: the start needs a reward model, and the phases are "
                f"{', '.join(asked)}. Set quickstart.after_reward_model = 0, so that the start is the fine-tuned model"
            )
        self.out.mkdir(parents=True, exist_ok=True)
        for name in asked:
            path = self.out / ("annotations.jsonl" if name == "annotations" else name)
            if not path.exists():
                started = time.perf_counter()
                every[name](path)
                self.note(name, round(time.perf_counter() - started, 1))

    def evaluate(self) -> None:
        """Score the fine-tuned policy on held-out items, as the evaluations of the methods do."""
        path, data = self.out / "sft_evaluation.json", self.recipe.data
        if not path.exists():
            task = built_in(str(data.task), task_settings(self.recipe))
            examples = task.held_out(data.eval_examples, world_of(self.recipe).eval_seed)
            write_atomically(path, to_json(task.score(examples, self._sample(examples))))

    @property
    def task(self) -> Task:
        """The task, on its training split."""
        return procedural_task(str(self.recipe.data.task), "train", task_settings(self.recipe))

    @property
    def context(self) -> int:
        """Positions of the models: prompt, answer and critique fit."""
        return CONTEXT

    def _sft(self, path: Path) -> None:
        tokenizer = self._tokenizer(*self._known_demonstrations())
        examples, answers = self._demonstrations()
        training = self.training(self.recipe.sft)
        model = self._fine_tune("sft", self._untrained(tokenizer), tokenizer, examples, answers, training)
        self._save(path, model, tokenizer)

    def _annotations(self, path: Path) -> None:
        """Annotate responses of the policy and as many corrupted responses."""
        task, count, rng = self.task, self.recipe.quickstart.responses, self._rng("annotations")
        examples = task.examples(count, self.recipe.run.seed + 1)
        own = self._sample(examples[: count // 2], "annotations")
        others = [" " + task.corruption(example, rng) for example in examples[count // 2 :]]
        write_annotations(path, annotate(task.critic(), examples, own + others))

    def reward_model(
        self,
        path: Path,
        *,
        write_feedback: bool | None = None,
        annotations: str = "annotations.jsonl",
        form: str = "spans",
        symbols: Sequence[str] = (),
        words: Sequence[str] = (),
    ) -> None:
        """Train a generative reward model on annotations.

        Args:
            path: directory to write.
            write_feedback: whether it writes feedback; None takes the recipe's.
            annotations: name of their file.
            form: of its critiques.
            symbols: syntax of the form that the tokenizer needs beside the words of critiques; with them the tokenizer,
                and the model, are new.
            words: further words that this tokenizer needs.
        """
        settings = self.recipe.reward_model
        tokenizer = known = load_tokenizer(str(self.out / "sft"))
        if symbols:
            tokenizer = self._tokenizer(*self._known_demonstrations(), symbols=symbols, words=words)
        start = self._untrained(tokenizer)
        if not world_of(self.recipe).fresh_reward_model:
            copy_weights(load_policy(str(self.out / "sft")), known, start, tokenizer)
        model, left_out = train_reward_model(
            start,
            tokenizer,
            read_annotations(self.out / annotations),
            self.training(settings),
            write_feedback=settings.write_feedback if write_feedback is None else write_feedback,
            max_new_tokens=settings.max_new_tokens,
            form=form,
            constrain=self.recipe.critic.constrain is not False,
            on_step=lambda done: self.on_progress(path.name, done, settings.steps),
        )
        self.note("left_out", left_out)
        with published(path) as temporary:
            model.save(temporary)

    def _start(self, path: Path) -> None:
        steps, settings = self.recipe.quickstart.after_reward_model, self.recipe.sft
        source = self.out / ("reward_model" if steps else "sft")
        model, tokenizer = load_policy(str(source)), load_tokenizer(str(source))
        if steps:
            examples, answers = self._demonstrations()
            training = replace(self.training(settings), steps=steps, learning_rate=settings.lr / 2)
            model = self._fine_tune("start", model, tokenizer, examples, answers, training)
        self._save(path, model, tokenizer)

    def _demonstrations(self, most: int | None = None) -> tuple[list[Example], list[str]]:
        """Return as many demonstrations as [sft] has, or at most so many."""
        task, rng, settings = self.task, self._rng("demonstrations"), self.recipe.sft
        count = settings.steps * settings.batch_size
        examples = task.examples(min(count, most or count), self.recipe.run.seed)
        return examples, [" " + task.demonstration(example, rng) for example in examples]

    def _known_demonstrations(self) -> tuple[list[Example], list[str]]:
        """Return the demonstrations whose words the tokenizer knows."""
        return self._demonstrations(VOCABULARY_ITEMS)

    def _untrained(self, tokenizer: Any) -> Any:
        seed, layers = self.recipe.run.seed, world_of(self.recipe).layers
        return tiny_llama(tokenizer, seed=seed, width=WIDTH, layers=layers, context=self.context)

    def _tokenizer(
        self,
        examples: Sequence[Example],
        answers: Sequence[str],
        *,
        symbols: Sequence[str] = (),
        words: Sequence[str] = (),
    ) -> Any:
        """Return a tokenizer that knows every word of the prompts, answers and critiques, and further ones.

        A verdict is one token directly after the quoted word, so the model can compare the word with the truth there.
        """
        task, rng = self.task, self._rng("tokenizer")
        examples, answers = examples[:VOCABULARY_ITEMS], answers[:VOCABULARY_ITEMS]
        corrupted = [" " + task.corruption(example, rng) for example in examples]
        annotations = annotate(task.critic(), [*examples, *examples], [*answers, *corrupted])
        targets = [critique_target(annotation.critique, annotation.response) for annotation in annotations]
        prompts = [example.prompt_text for example in examples]
        rare = [word for word in task.vocabulary() for word in (word, f" {word}")]
        verdicts = [json.dumps(verdict)[1:-1] for verdict in task.verdicts()]  # escaped as in the targets
        return word_tokenizer(
            [*prompts, *answers, *corrupted, *targets, *rare, *words], [*SYMBOLS, *symbols, *verdicts]
        )

    def _sample(self, examples: Sequence[Example], part: str = "") -> list[str]:
        """Sample answers of the fine-tuned policy at temperature 1; `part` is the phase for `on_progress`."""
        model, tokenizer = load_policy(str(self.out / "sft")).eval(), load_tokenizer(str(self.out / "sft"))
        prompts = encode_prompts(tokenizer, examples, prompt_format=self.recipe.model.prompt_format)
        limit = self.recipe.rollout.max_new_tokens
        uniforms = step_uniforms(seed=self.recipe.run.seed, step=2**20, rows=len(prompts), tokens=limit)
        answers: list[tuple[int, ...]] = []
        for start in range(0, len(prompts), ROWS_AT_ONCE):
            answers += sample(
                model,
                prompts[start : start + ROWS_AT_ONCE],
                uniforms[start : start + ROWS_AT_ONCE],
                eos_ids=stop_ids(model, tokenizer),
                pad_id=tokenizer.pad_token_id,
                rows_at_once=ROWS_AT_ONCE,
            )
            if part:
                self.on_progress(part, len(answers), len(prompts))
        return list(tokenizer.batch_decode([list(ids) for ids in answers], skip_special_tokens=True))

    def _fine_tune(
        self,
        phase: str,
        model: Any,
        tokenizer: Any,
        examples: Sequence[Example],
        answers: Sequence[str],
        settings: FineTuning,
        *,
        before: int = 0,
        of: int = 0,
    ) -> Any:
        def on_step(done: int) -> None:
            self.on_progress(phase, before + done, of or settings.steps)

        return fine_tune(model, tokenizer, examples, answers, settings, on_step=on_step)

    def training(self, settings: SFTConfig | RewardModelConfig) -> FineTuning:
        """Return the settings of a training of this pipeline's models."""
        same = settings.model_dump(include={"steps", "batch_size", "optimizer"})
        return FineTuning(**same, learning_rate=settings.lr, max_tokens=self.context, seed=self.recipe.run.seed)

    def _save(self, path: Path, model: Any, tokenizer: Any) -> None:
        with published(path) as temporary:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)

    def _rng(self, purpose: str) -> Random:
        return Random(f"{purpose} {self.recipe.run.seed}")

    def note(self, name: str, value: float) -> None:
        """Write a count, or seconds, into phases.json."""
        path = self.out / "phases.json"
        notes = json.loads(path.read_bytes()) if path.exists() else {}
        write_atomically(path, to_json({**notes, name: value}))


def pipeline_with_progress_lines(
    recipe: Recipe, out: Path, further: Mapping[str, Phase] | None = None, kind: type[Pipeline] = Pipeline
) -> Pipeline:
    """Return the pipeline of a process of its own, which prints its progress as lines of JSON, and no bars.

    Args:
        recipe: its settings.
        out: directory of all files.
        further: further phases by name.
        kind: the class of the pipeline.
    """
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()  # type: ignore[no-untyped-call]  # bars of loading and saving small models
    set_verbosity_error()  # type: ignore[no-untyped-call]  # a new head has random weights on purpose
    printed = 0.0

    def on_progress(part: str, done: int, total: int) -> None:
        nonlocal printed
        if done == total or time.perf_counter() - printed > SECONDS_BETWEEN_LINES:
            printed = time.perf_counter()
            sys.stdout.write(json.dumps({"part": part, "done": done, "total": total}) + "\n")
            sys.stdout.flush()

    return kind(recipe, out, on_progress, further or {})
