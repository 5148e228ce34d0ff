"""Annotations by a critic in this process, for phase 2: sampled responses of the policy, judged by a program."""

import inspect
from hashlib import sha256
from pathlib import Path
from typing import Any

from text2grad.config import Recipe
from text2grad.errors import ConfigError
from text2grad.feedback import Annotation, Critic, check_examples, load_callable, write_annotations
from text2grad.runs.annotation_items import RESPONSES, annotated_examples, sampled_responses, with_word_of_people
from text2grad.runs.critic_quality import check_identity, predictions
from text2grad.runs.prompts import recipe_task, task_settings

ANNOTATIONS = "annotations.jsonl"
CRITIQUES = "critiques.jsonl"


def annotate_by_critic(recipe: Recipe, out: Path, *, samples: int, limit: int | None = None) -> list[Annotation]:
    """Sample responses, have them judged, and write annotations.jsonl.

    What was sampled and judged before in the directory is read from it: responses are saved after each batch, critiques
    at once.

    Args:
        recipe: [data], [model] and [rollout] say what is sampled; refresh.annotator, critic.use or data.task name
            the critic.
        out: the directory of responses.jsonl, critiques.jsonl and annotations.jsonl.
        samples: responses to each prompt.
        limit: the first prompts only.

    Raises:
        ConfigError: if the recipe names no critic or no policy, or the directory holds critiques of another critic.
        DataError: if the data cannot be used, or the directory holds responses to other prompts.
        CriticError: if the critic fails.
    """
    task, named = recipe_task(recipe), recipe.refresh.annotator or recipe.critic.use
    if named:
        critic = load_callable(named, "critic")
    elif task is not None:
        critic = task.critic()
    else:
        raise ConfigError(
            "--own-critic: the recipe names no critic in Python; set critic.use or refresh.annotator, or a data.task"
        )
    prompts = annotated_examples(recipe, limit)
    check_examples(critic, prompts)
    given = [text for example in prompts if isinstance(text := example.meta.get("response"), str)]
    if given and (len(given) < len(prompts) or samples > 1):
        raise ConfigError(
            f'{recipe.data.train}: {len(given)} of {len(prompts)} examples have a "response", and {samples} for each '
            "are asked for; leave the responses and --samples out together, or give each example one response"
        )
    check_identity(out, _identity(recipe, critic))
    examples, responses = (
        (prompts, given) if given else sampled_responses(recipe, [*prompts] * samples, out / RESPONSES)
    )
    match, size = recipe.critic.match, recipe.rollout.batch_size
    critiques = predictions(critic, examples, responses, out / CRITIQUES, match=match, at_once=size)
    if given:
        critiques = [with_word_of_people(*pair) for pair in zip(examples, critiques, strict=True)]
    prompts_of = [example.prompt_text for example in examples]
    annotations = list(map(Annotation, prompts_of, responses, critiques))
    write_annotations(out / ANNOTATIONS, annotations)
    return annotations


def _identity(recipe: Recipe, critic: Critic) -> dict[str, Any]:
    """Return what decides the critic's answers: its name, its settings, and the file in which it is defined."""
    return {
        "critic": recipe.refresh.annotator or recipe.critic.use or f"data.task = {recipe.data.task}",
        "truths": task_settings(recipe).truths,
        "match": recipe.critic.match,
        "source": _source_of(critic),
    }


def _source_of(critic: Critic) -> str:
    """Return a hash of the file in which a critic is defined; empty where there is none."""
    defined = critic if inspect.isfunction(critic) or inspect.isclass(critic) else type(critic)
    try:
        return sha256(Path(inspect.getfile(defined)).read_bytes()).hexdigest()
    except (OSError, TypeError):
        return ""
