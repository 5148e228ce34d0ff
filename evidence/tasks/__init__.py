"""Worlds with knobs, beside the product's summaries: answers, programs, stories, and answers from a passage."""

from collections.abc import Mapping, Sequence

from evidence.tasks.code.task import CodeTask
from evidence.tasks.grounded.critic import GroundedCritic
from evidence.tasks.grounded.metric import grounded_metrics
from evidence.tasks.posts import PostsTask
from evidence.tasks.qa.task import QATask
from evidence.tasks.stories.openings import story_openings
from evidence.tasks.stories.task import StoryCritic, story_metrics
from text2grad.errors import ConfigError
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.registry import USUAL, BuiltIn, register_procedural_task, register_task
from text2grad.types import Example

LENGTH_IS_LIMIT = "the length of an answer is rollout.max_new_tokens"
TRAINED_POLICY = "its policy is a trained model, without demonstrations"


def register() -> None:
    """Add the tasks to those that `data.task` may name."""
    register_procedural_task("summarization", PostsTask)
    register_procedural_task("code", CodeTask)
    register_procedural_task("qa", QATask)
    register_task("grounded", _grounded)
    register_task("stories", _stories)


def _refuse(task: str, settings: TaskSettings, reasons: Mapping[str, str]) -> None:
    """Refuse settings that a task does not have, each with its reason."""
    for setting, reason in reasons.items():
        value = getattr(settings, setting)
        if value != getattr(USUAL, setting):
            raise ConfigError(f"world.{setting} = {str(value).lower()}: the task {task} has no such setting; {reason}")


def _stories(settings: TaskSettings) -> BuiltIn:
    reasons = {
        "length": "the length of a story is rollout.max_new_tokens",
        "faults": TRAINED_POLICY,
        "truths": "its critiques state no true fact",
    }
    _refuse("stories", settings, reasons)

    def measure(
        examples: Sequence[Example], responses: Sequence[str]
    ) -> tuple[dict[str, float], list[dict[str, float]]]:
        prompts = [example.prompt_text for example in examples]
        each = [story_metrics([prompt], [response]) for prompt, response in zip(prompts, responses, strict=True)]
        for metrics in each:
            del metrics["distinct_2"]  # of a set of stories
        return story_metrics(prompts, responses), each

    return BuiltIn(
        train=lambda n, seed: story_openings("train", n, seed),
        held_out=lambda n, seed: story_openings("held_out", n, seed),
        critic=StoryCritic,
        measure=measure,
        metric="invented_share",
    )


def _grounded(settings: TaskSettings) -> BuiltIn:
    _refuse("grounded", settings, {"length": LENGTH_IS_LIMIT, "faults": TRAINED_POLICY})

    def no_prompts(n: int, seed: int) -> list[Example]:
        raise ConfigError(
            "the task grounded has no prompts of its own: name files in data.train and data.held_out; `python -m "
            "evidence prepare-grounded` writes them"
        )

    return BuiltIn(
        train=no_prompts,
        held_out=no_prompts,
        critic=lambda: GroundedCritic(truths=settings.truths),
        measure=grounded_metrics,
        metric="unsupported_share",
        reads_files=True,
    )
