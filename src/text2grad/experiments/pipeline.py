"""The three phases from nothing, for an embedded task: demonstrations → critiques → reward model → policies.

    sft/                 a small Llama, made on the spot and fine-tuned on noisy demonstrations
    annotations.jsonl    phase 1: what the task's critic says of its responses, in words and quotes
    reward_model/        phase 2: the generative reward model, from the fine-tuned weights
    start/               where the policies start: the reward model's weights, fine-tuned on demonstrations again
    reward_head/         on request, the baseline's reward model: one number per response, from the same annotations
    reward_model_without_words/    on request, one that writes spans alone
    phases.json          seconds of each, and what was counted

A phase that is finished is not repeated; each appears under its name when it is whole.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from text2grad.align import span_reward
from text2grad.config import Recipe, RewardModelConfig, SFTConfig
from text2grad.feedback import Annotation, annotate, read_annotations, write_annotations
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
from text2grad.reward_models import SYMBOLS, critique_target, train_reward_head
from text2grad.reward_models.training import train_reward_model
from text2grad.tasks import Task, built_in, procedural_task, tiny_llama, word_tokenizer
from text2grad.types import Example

PHASES = ("sft", "annotations", "reward_model", "start")
VOCABULARY_ITEMS = 3_000  # texts that the tokenizer is trained on
ROWS_AT_ONCE = 256
CONTEXT, WIDTH = 512, 64

Progress = Callable[[str, int, int], None]  # phase, done, of how many


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The phases before the policies learn, for one task and one seed.

    Attributes:
        recipe: with the sections [sft], [reward_model], [rollout] and [run].
        out: directory of everything.
        progress: told what is being done.
    """

    recipe: Recipe
    out: Path
    progress: Progress

    def run(self, more: Sequence[str] = ()) -> None:
        """Make what is not there yet.

        Args:
            more: "reward_head", "reward_model_without_words".
        """
        self.out.mkdir(parents=True, exist_ok=True)
        for name in (*PHASES, *more):
            path = self.out / ("annotations.jsonl" if name == "annotations" else name)
            if not path.exists():
                with self._timed(name):
                    getattr(self, f"_{name}")(path)

    def evaluate(self) -> None:
        """Let the fine-tuned policy answer held-out items, as the methods' evaluations do."""
        path, data = self.out / "sft_evaluation.json", self.recipe.data
        if not path.exists():
            task = built_in(str(data.task))
            examples = task.held_out(data.eval_examples, data.eval_seed)
            write_atomically(path, to_json(task.score(examples, self._sample(examples))))

    @property
    def task(self) -> Task:
        """The task, on its training split."""
        return procedural_task(str(self.recipe.data.task), "train")

    def _sft(self, path: Path) -> None:
        examples, answers = self._demonstrations()
        tokenizer = self._tokenizer(examples, answers)
        model = self._untrained(tokenizer)
        how = self._how(self.recipe.sft)
        self._save(path, self._fine_tune("sft", model, tokenizer, examples, answers, how), tokenizer)

    def _annotations(self, path: Path) -> None:
        """Annotate the policy's own answers and as many corrupted ones."""
        task, count, rng = self.task, self.recipe.reward_model.responses, self._rng("annotations")
        examples = task.examples(count, self.recipe.run.seed + 1)
        own = self._sample(examples[: count // 2], "annotations")
        others = [" " + task.corruption(example, rng) for example in examples[count // 2 :]]
        write_annotations(path, annotate(task.critic(), examples, own + others))

    def _reward_model(self, path: Path) -> None:
        self._train_reward_model(path, write_feedback=self.recipe.reward_model.write_feedback)

    def _reward_model_without_words(self, path: Path) -> None:
        self._train_reward_model(path, write_feedback=False)

    def _train_reward_model(self, path: Path, *, write_feedback: bool) -> None:
        settings = self.recipe.reward_model
        tokenizer = load_tokenizer(str(self.out / "sft"))
        fine_tuned = settings.start == "sft"
        model, left_out = train_reward_model(
            load_policy(str(self.out / "sft")) if fine_tuned else self._untrained(tokenizer),
            tokenizer,
            self._read_annotations(),
            self._how(settings),
            write_feedback=write_feedback,
            max_new_tokens=settings.max_new_tokens,
            constrain=self.recipe.critic.constrain is not False,
            on_step=lambda done: self.progress(path.name, done, settings.steps),
        )
        self._note("left_out", left_out)
        with published(path) as temporary:
            model.save(temporary)

    def _start(self, path: Path) -> None:
        steps, settings = self.recipe.sft.after_reward_model, self.recipe.sft
        source = self.out / ("reward_model" if steps else "sft")
        model, tokenizer = load_policy(str(source)), load_tokenizer(str(source))
        if steps:
            examples, answers = self._demonstrations()
            how = replace(self._how(settings), steps=steps, learning_rate=settings.lr / 2)
            model = self._fine_tune("start", model, tokenizer, examples, answers, how)
        self._save(path, model, tokenizer)

    def _reward_head(self, path: Path) -> None:
        settings, tokenizer = self.recipe.reward_model, load_tokenizer(str(self.out / "sft"))
        annotations = self._read_annotations()
        steps = max(1, settings.steps // 2)  # it writes nothing, and stops learning sooner
        model, left_out = train_reward_head(
            self.out / "sft",
            tokenizer,
            annotations,
            [span_reward(tokenizer, one) for one in annotations],
            replace(self._how(settings), steps=steps),
            on_step=lambda done: self.progress("reward_head", done, steps),
        )
        self._note("reward_head_left_out", left_out)
        with published(path) as temporary:
            model.save(temporary)

    def _demonstrations(self) -> tuple[list[Example], list[str]]:
        task, rng = self.task, self._rng("demonstrations")
        examples = task.examples(self.recipe.sft.steps * self.recipe.sft.batch_size, self.recipe.run.seed)
        return examples, [" " + task.demonstration(example, rng) for example in examples]

    def _untrained(self, tokenizer: Any) -> Any:
        recipe = self.recipe
        return tiny_llama(tokenizer, seed=recipe.run.seed, width=WIDTH, layers=recipe.sft.layers, context=CONTEXT)

    def _tokenizer(self, examples: Sequence[Example], answers: Sequence[str]) -> Any:
        """Return a tokenizer that knows every word of prompts, answers and written critiques.

        A verdict is one token and follows the quoted word at once, where the word and the truth can be compared.
        """
        task, rng = self.task, self._rng("tokenizer")
        shown, given = examples[:VOCABULARY_ITEMS], answers[:VOCABULARY_ITEMS]
        garbled = [" " + task.corruption(example, rng) for example in shown]
        annotated = annotate(task.critic(), [*shown, *shown], [*given, *garbled])
        written = [critique_target(one.critique, one.response) for one in annotated]
        prompts = [example.prompt_text for example in shown]
        rare = [word for word in task.vocabulary() for word in (word, f" {word}")]
        judged = [json.dumps(verdict)[1:-1] for verdict in task.verdicts()]  # as it stands within the JSON
        return word_tokenizer([*prompts, *given, *garbled, *written, *rare], [*SYMBOLS, *judged])

    def _sample(self, examples: Sequence[Example], part: str = "") -> list[str]:
        """Return the fine-tuned policy's answers at temperature 1; a part is told how many of them there are."""
        model, tokenizer = load_policy(str(self.out / "sft")).eval(), load_tokenizer(str(self.out / "sft"))
        prompts = encode_prompts(tokenizer, examples, prompt_format=self.recipe.rollout.prompt_format)
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
                self.progress(part, len(answers), len(prompts))
        return list(tokenizer.batch_decode([list(ids) for ids in answers], skip_special_tokens=True))

    def _fine_tune(
        self,
        phase: str,
        model: Any,
        tokenizer: Any,
        examples: Sequence[Example],
        answers: Sequence[str],
        how: FineTuning,
    ) -> Any:
        return fine_tune(
            model, tokenizer, examples, answers, how, on_step=lambda done: self.progress(phase, done, how.steps)
        )

    def _how(self, settings: SFTConfig | RewardModelConfig) -> FineTuning:
        return FineTuning(
            steps=settings.steps,
            batch_size=settings.batch_size,
            learning_rate=settings.lr,
            optimizer=settings.optimizer,
            max_tokens=CONTEXT,
            seed=self.recipe.run.seed,
        )

    def _save(self, path: Path, model: Any, tokenizer: Any) -> None:
        with published(path) as temporary:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)

    def _read_annotations(self) -> list[Annotation]:
        return read_annotations(self.out / "annotations.jsonl")

    def _rng(self, purpose: str) -> Random:
        return Random(f"{purpose} {self.recipe.run.seed}")

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._note(phase, round(time.perf_counter() - started, 1))

    def _note(self, name: str, value: float) -> None:
        path = self.out / "phases.json"
        notes = json.loads(path.read_bytes()) if path.exists() else {}
        write_atomically(path, to_json({**notes, name: value}))
