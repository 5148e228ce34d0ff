"""Refiners: (examples, responses, critiques) → responses written again with the critiques.

program    the built-in task's: reads words and quotes of a critique, never the example
policy     the policy itself, with prompt, response and critique in its prompt
server     a model on the server of [annotate], with the same prompt
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from evidence.rivals.judged import Judged
from evidence.rivals.refining_tasks import program_refiner
from evidence.rivals.server_refinement import complete_answers
from evidence.rivals.settings import rival_of
from text2grad.align import Range, encode
from text2grad.config import Endpoint, Recipe
from text2grad.errors import ConfigError
from text2grad.feedback import critique_to_json
from text2grad.files import write_records
from text2grad.models import context_of, sample, step_uniforms
from text2grad.reward_models.prompts import encode_questions
from text2grad.types import Critique, Example, Rollout

if TYPE_CHECKING:
    from evidence.rivals.trainer import RivalTrainer

REFINING_SEED = 5_022_505  # keeps its random numbers apart from the numbers of rollouts and evaluations
FIELDS = ("prompt", "response", "critique")
_FIELD = re.compile(r"(\{(?:prompt|response|critique)\})")


class Refiner(Protocol):
    """Writes responses again."""

    def __call__(
        self, examples: Sequence[Example], responses: Sequence[str], critiques: Sequence[Critique], /
    ) -> list[str]:
        """Return one refined response each; a response that cannot be refined is returned as it is."""
        ...


@dataclass(frozen=True, slots=True)
class ProgramRefiner:
    """The program refiner of a built-in task."""

    task: str

    def __call__(
        self, examples: Sequence[Example], responses: Sequence[str], critiques: Sequence[Critique]
    ) -> list[str]:
        """Return the refined responses; the examples are not read."""
        return list(map(program_refiner(self.task), responses, critiques))


@dataclass(frozen=True, slots=True)
class PolicyRefiner:
    """The policy of a run as refiner, sampled as in rollouts.

    Special tokens that a response or a critique spells are text in its prompt.
    A response whose prompt with critique leaves no room for an answer in the policy's context is not refined.
    """

    run: "RivalTrainer"

    def __call__(
        self, examples: Sequence[Example], responses: Sequence[str], critiques: Sequence[Critique]
    ) -> list[str]:
        """Return the policy's answers."""
        run, rollout, refined = self.run, self.run.recipe.rollout, list(responses)
        asked = _encoded(run, examples, responses, critiques)
        if not asked:
            return refined
        seed = run.recipe.run.seed + REFINING_SEED
        uniforms = step_uniforms(seed=seed, step=run.step, rows=len(responses), tokens=rollout.max_new_tokens)
        found = sample(
            run.model.policy,
            list(asked.values()),
            uniforms[list(asked)],
            eos_ids=run.eos_ids,
            pad_id=run.pad_id,
            temperature=rollout.temperature,
            rows_at_once=run.sizes.rows_at_once,
        )
        for row, ids in zip(asked, found, strict=True):
            refined[row] = run.tokenizer.decode(list(ids), skip_special_tokens=True)
        return refined


@dataclass(frozen=True, slots=True)
class ServerRefiner:
    """A model on a server as refiner; its answers are stored in the directory of the run."""

    recipe: Recipe
    endpoint: Endpoint

    def __call__(
        self, examples: Sequence[Example], responses: Sequence[str], critiques: Sequence[Critique]
    ) -> list[str]:
        """Return the model's answers."""
        store = Path(self.recipe.run.out) / "refinements.sqlite"
        prompts = _prompts(self.recipe, examples, responses, critiques)
        answers = complete_answers(self.endpoint, store, [text for text, _ in prompts])
        return [old if new is None else new for old, new in zip(responses, answers, strict=True)]


def check_refiner(recipe: Recipe) -> None:
    """Refuse a refiner that the recipe cannot have.

    Raises:
        ConfigError: if there is no task, no server, or the prompt lacks a field.
    """
    kind = _kind(recipe) if rival_of(recipe).method != "sdpo" else "policy"
    if kind == "program" and not recipe.data.task:
        raise ConfigError(
            'rival.refiner = "program" is a program of a built-in task, and data.task is not set; choose "policy" or '
            '"server"'
        )
    if kind == "server":
        recipe.annotate.checked()
    needed = [name for name in FIELDS if name != "response" or rival_of(recipe).method != "sdpo"]
    missing = [name for name in needed if f"{{{name}}}" not in rival_of(recipe).refine_prompt]
    if missing:
        listed = ", ".join(f"{{{name}}}" for name in needed)
        raise ConfigError(
            f"rival.refine_prompt does not hold {{{missing[0]}}}; {rival_of(recipe).method} needs {listed}"
        )


def refiner_of(run: "RivalTrainer") -> Refiner:
    """Return the refiner that the recipe of a run names."""
    recipe = run.recipe
    kind = _kind(recipe)
    if kind == "server":
        return ServerRefiner(recipe, recipe.annotate.checked())
    return ProgramRefiner(str(recipe.data.task)) if kind == "program" else PolicyRefiner(run)


def refine(run: "RivalTrainer", rollouts: Sequence[Rollout], critiques: Sequence[Critique]) -> list[Rollout]:
    """Return refined responses as rollouts that end; an unchanged response keeps its sampled ids."""
    examples, responses = [one.example for one in rollouts], [one.response for one in rollouts]
    return _rewritten(run, rollouts, refiner_of(run)(examples, responses, critiques))


def prompts_with_critiques(
    run: "RivalTrainer", rollouts: Sequence[Rollout], critiques: Sequence[Critique]
) -> dict[int, tuple[int, ...]]:
    """Return the ids of `rival.refine_prompt` by row, for responses that have a critique and where they fit."""
    return _encoded(run, [one.example for one in rollouts], [one.response for one in rollouts], critiques)


def log_refinements(
    run: "RivalTrainer", judged: Sequence[Judged], refined: Sequence[Rollout], rewards: Sequence[float] = ()
) -> None:
    """Write refinements/000009.jsonl at step 9: prompt, response, critique, refinement, and rewards before and after.

    Args:
        run: the run.
        judged: the responses.
        refined: one refinement each.
        rewards: of the refinements, if they were judged.
    """
    records = []
    for row, (old, new) in enumerate(zip(judged, refined, strict=True)):
        texts = {"prompt": old.rollout.example.prompt_text, "response": old.rollout.response, "refined": new.response}
        found = [old.reward, *rewards[row : row + 1]]
        records.append({**texts, "critique": critique_to_json(old.critique), "reward": found})
    path = _log_of(run, run.step)
    path.parent.mkdir(exist_ok=True)
    write_records(path, records)


def logged_refinements(run: "RivalTrainer", rollouts: Sequence[Rollout], step: int) -> list[Rollout]:
    """Return the refinements of responses that were logged at a step."""
    texts = [json.loads(line)["refined"] for line in _log_of(run, step).read_bytes().splitlines()]
    return _rewritten(run, rollouts, texts)


def _log_of(run: "RivalTrainer", step: int) -> Path:
    return run.directory / "refinements" / f"{step:06d}.jsonl"


def _rewritten(run: "RivalTrainer", rollouts: Sequence[Rollout], texts: Sequence[str]) -> list[Rollout]:
    return [old if new == old.response else _written(run, old, new) for old, new in zip(rollouts, texts, strict=True)]


def _written(run: "RivalTrainer", old: Rollout, text: str) -> Rollout:
    """Return a text in the policy's tokens, with the end of sequence, or cut at the length limit of rollouts.

    Special tokens that the refiner spells are encoded as text.
    """
    limit = run.recipe.rollout.max_new_tokens
    ids = [*encode(run.tokenizer, text), run.tokenizer.eos_token_id]
    kept = tuple(ids[:limit])
    response = run.tokenizer.decode(list(kept), skip_special_tokens=True)
    return Rollout(old.example, old.prompt_ids, kept, response, truncated=len(ids) > limit)


def _encoded(
    run: "RivalTrainer", examples: Sequence[Example], responses: Sequence[str], critiques: Sequence[Critique]
) -> dict[int, tuple[int, ...]]:
    rollout = run.recipe.rollout
    asked = _prompts(run.recipe, examples, responses, critiques)
    texts, places = [text for text, _ in asked], [ranges for _, ranges in asked]
    encoded = encode_questions(run.tokenizer, texts, places, prompt_format=run.recipe.model.prompt_format)
    room = context_of(run.model.policy) - rollout.max_new_tokens
    return {row: ids for row, ids in enumerate(encoded) if len(ids) <= room and not critiques[row].failed}


def _kind(recipe: Recipe) -> str:
    chosen = rival_of(recipe).refiner
    return chosen if chosen != "auto" else "program" if recipe.data.task else "policy"


def _prompts(
    recipe: Recipe, examples: Sequence[Example], responses: Sequence[str], critiques: Sequence[Critique]
) -> list[tuple[str, list[Range]]]:
    """Return the prompts of a model as refiner, and the characters of response and critique in each.

    Braces in the texts stay as they are.
    """
    asked = []
    for example, response, critique in zip(examples, responses, critiques, strict=True):
        texts = {"{prompt}": example.prompt_text, "{response}": response, "{critique}": critique.feedback}
        whole, ranges = "", list[Range]()
        for part in _FIELD.split(rival_of(recipe).refine_prompt):
            text = texts.get(part, part)
            if part in ("{response}", "{critique}"):
                ranges.append((len(whole), len(whole) + len(text)))
            whole += text
        asked.append((whole, ranges))
    return asked
