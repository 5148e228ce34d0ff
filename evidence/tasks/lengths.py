"""The models of experiments before RL, and what depends on the length of a task's answers, as limits of responses."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from text2grad.config import Recipe
from text2grad.errors import ConfigError, check_known
from text2grad.feedback import annotate
from text2grad.models import fine_tune, load_policy, load_tokenizer
from text2grad.progress import Progress
from text2grad.reward_models import critique_target
from text2grad.runs.pipeline import WIDTH, Pipeline
from text2grad.runs.prompts import world_of
from text2grad.tasks import Task, TaskSettings, procedural_task, tiny_llama
from text2grad.tasks.tiny import TOKEN
from text2grad.types import Example

PHASES = ("sft", "annotations", "reward_model", "start")
WITHOUT_REWARD_MODEL = ("sft", "start")
"""The phases that are enough where a task's program is the critic of the runs."""

CONTEXT = 512  # positions of the models of usual items
STAGES = 3  # of fine-tuning, on items of growing length
MEASURED, RESERVE = 100, 1.2  # items whose texts are measured; the factor on the longest, for a model's context


def count_tokens(text: str) -> int:
    r"""Return the tokens of a text for a word-level tokenizer without symbols.

    Example:
        >>> count_tokens(" A: red cat.\nB")
        7
    """
    return len(re.findall(TOKEN, text))


@cache
def answer_tokens(task: Task, n: int = MEASURED) -> tuple[int, int]:
    """Return the tokens of the shortest reference and of the longest demonstration or reference of n items.

    Tokens of a word-level tokenizer, with the space before the answer and the token that ends it.
    """
    rng, examples = task._random("answer tokens", 0), task.examples(n)
    right = [1 + count_tokens(f" {example.reference}") for example in examples]
    said = [1 + count_tokens(f" {task.demonstration(example, rng)}") for example in examples]
    return min(right), max(right + said)


def check_response_limit(recipe: Recipe, settings: TaskSettings) -> None:
    """Refuse a limit of responses below the shortest reference of a task whose length is set.

    Raises:
        ConfigError: if `rollout.max_new_tokens` is too low, with the number that the longest answer needs.
    """
    if not settings.length:
        return
    limit, task = recipe.rollout.max_new_tokens, procedural_task(str(recipe.data.task), "train", settings)
    shortest, longest = answer_tokens(task)
    if limit < shortest:
        raise ConfigError(
            f"rollout.max_new_tokens = {limit}: at length {task.settings.length} the shortest answers of {task.name} "
            f"have {shortest} words and marks, and the longest demonstrations {longest}; set "
            f"rollout.max_new_tokens = {longest} or more"
        )


def training_lengths(task: Task) -> list[int]:
    """Return the lengths of the demonstrations in the order of training: each at most half of the next, up to three.

    On the longest items alone, a small model does not learn in the same time to find the right part (evidence/log.md).
    """
    possible: Sequence[int] = getattr(task, "lengths", ())
    lengths = [task.settings.length]
    while len(lengths) < STAGES and (shorter := [length for length in possible if 2 * length <= lengths[0]]):
        lengths.insert(0, max(shorter))
    return lengths


@cache
def longest_text(task: Task, limit: int) -> int:
    """Return the tokens of the longest prompt, answer and critique of a task whose length is set, with a reserve; or 0.

    Args:
        task: a task.
        limit: tokens that an answer may have.
    """
    if not task.settings.length:
        return 0
    rng, examples = Random("longest text"), task.examples(MEASURED)
    answers = [" " + task.corruption(example, rng) for example in examples]
    targets = [
        critique_target(annotation.critique, annotation.response)
        for annotation in annotate(task.critic(), examples, answers)
    ]
    prompts = (example.prompt_text for example in examples)
    longest = max(map(count_tokens, prompts)) + max(limit, *map(count_tokens, answers))
    return int(RESERVE * (longest + max(map(count_tokens, targets))))


Phase = Callable[[Pipeline, Path], None]  # makes the file or directory of a phase


@dataclass(frozen=True, slots=True)
class LengthPipeline(Pipeline):
    """The phases before RL of an experiment, as the section [world] of its recipe says: a task may have a length.

    Attributes:
        further: further phases by name, such as the reward model of a baseline.
    """

    further: Mapping[str, Phase] = field(default_factory=dict)

    def run_phases(self, names: Sequence[str] = PHASES) -> None:
        """Run the phases that are not finished, in this order; a limit that is too short is refused before them.

        Raises:
            ConfigError: if a phase is unknown, needs one that is left out, or `rollout.max_new_tokens` is too low.
        """
        world_of(self.recipe)
        every = {Path(name).stem: name for name in self.phases()}
        for name in names:
            check_known("a phase", name, tuple(every))
        after = self.recipe.quickstart.after_reward_model
        if "start" in names and after and "reward_model" not in names and not (self.out / "reward_model").exists():
            raise ConfigError(
                f"quickstart.after_reward_model = {after}: the start needs a reward model, and the phases are "
                f"{', '.join(names)}. Set quickstart.after_reward_model = 0, so that the start is the fine-tuned model"
            )
        for name in names:
            self.make(every[name], self.phases()[every[name]])

    def phases(self) -> Mapping[str, Callable[[Path], None]]:
        """Return what makes each file or directory, the further ones as well."""
        return {**Pipeline.phases(self), **{name: partial(make, self) for name, make in self.further.items()}}

    @property
    def context(self) -> int:
        """Positions of the models: prompt, answer and critique fit."""
        return max(CONTEXT, longest_text(self.task, self.recipe.rollout.max_new_tokens))

    def _untrained(self, tokenizer: Any) -> Any:
        seed, layers = self.recipe.run.seed, self._world.layers
        return tiny_llama(tokenizer, seed=seed, width=WIDTH, layers=layers, context=self.context)

    def _fine_tuned(self, tokenizer: Any) -> Any:
        """Return a model with the fine-tuned weights, or with fresh ones, for a tokenizer."""
        model = self._untrained(tokenizer)
        if not self._world.fresh_reward_model:
            copy_weights(load_policy(str(self.out / "sft")), load_tokenizer(str(self.out / "sft")), model, tokenizer)
        return model

    @property
    def _world(self) -> Any:
        recipe: Any = self.recipe
        return recipe.world  # a registered section

    def _sft(self, path: Path) -> None:
        """Fine-tune on demonstrations: first on short items, where a small model finds the right part sooner."""
        settings, done, stages = self.recipe.sft, 0, training_lengths(self.task)
        tokenizer = self.tokenizer()
        model = self._untrained(tokenizer)
        with Progress("sft: demonstrations", settings.steps) as progress:
            for stage, length in enumerate(stages):
                steps = settings.steps * (stage + 1) // len(stages) - done
                batch = settings.batch_size * max(stages[-1], 1) // max(length, 1)  # about as many tokens in each step
                examples, answers = self._demonstrations_of(length, steps * batch)
                training = replace(self.training(settings), steps=steps, batch_size=batch)  # with a schedule of its own
                fine_tune(model, tokenizer, examples, answers, training, on_step=lambda _: progress.advance())
                done += steps
        self._save(path, model, tokenizer)

    def _demonstrations(self, most: int | None = None) -> tuple[list[Example], list[str]]:
        """Return demonstrations; where there is a limit, fewer of longer ones."""
        if most is None:
            return Pipeline._demonstrations(self)
        settings, length = self.recipe.sft, self.task.settings.length
        count = min(most, settings.steps * settings.batch_size) // max(length, 1)
        return self._demonstrations_of(length, max(count, 1))

    def _demonstrations_of(self, length: int, count: int) -> tuple[list[Example], list[str]]:
        """Return so many demonstrations of a length; as many as [sft] has for a stage without a step."""
        task, rng = replace(self.task, settings=replace(self.task.settings, length=length)), self._rng("demonstrations")
        examples = task.examples(count or self.recipe.sft.steps * self.recipe.sft.batch_size, self.recipe.run.seed)
        return examples, task.demonstrations(examples, rng)


def copy_weights(source: Any, known: Any, target: Any, tokenizer: Any) -> None:
    """Copy the weights of a tiny Llama, `source`, whose tokenizer is `known`, into another of the same shape, in place.

    The vocabulary may differ: a token with the same text gets its rows, other tokens keep those of `target`.
    """
    import torch

    old, new = known.get_vocab(), tokenizer.get_vocab()
    shared = [(number, old[token]) for token, number in new.items() if token in old]
    to, of = (list(side) for side in zip(*shared, strict=True))
    theirs = source.state_dict()
    with torch.no_grad():
        for name, weight in target.state_dict().items():
            if name in ("model.embed_tokens.weight", "lm_head.weight"):
                weight[to] = theirs[name][of]
            else:
                weight.copy_(theirs[name])
