"""The built-in tasks by the name that `data.task` of a recipe gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from text2grad.errors import ConfigError
from text2grad.feedback import Critic
from text2grad.tasks.base import Split, Task, TaskSettings
from text2grad.tasks.code import CodeTask
from text2grad.tasks.grounded import GroundedCritic, grounded_metrics
from text2grad.tasks.qa import QATask
from text2grad.tasks.stories import StoryCritic, story_metrics, story_openings
from text2grad.tasks.summarization import SummarizationTask
from text2grad.types import Example

PROCEDURAL: Mapping[str, type[Task]] = {
    "summarization": SummarizationTask,
    "code": CodeTask,
    "qa": QATask,
}
USUAL = TaskSettings()


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """The parts of a task that a run uses.

    Attributes:
        train: (n, seed) → training examples.
        held_out: (n, seed) → examples of the held-out split.
        critic: () → the task's program critic.
        measure: (examples, responses) → metrics of the set, and metrics of each response.
        metric: the key of the main metric.
    """

    train: Callable[[int, int], list[Example]]
    held_out: Callable[[int, int], list[Example]]
    critic: Callable[[], Critic]
    measure: Callable[[Sequence[Example], Sequence[str]], tuple[dict[str, float], list[dict[str, float]]]]
    metric: str

    def score(self, examples: Sequence[Example], responses: Sequence[str]) -> dict[str, float]:
        """Return the metrics of a set of responses."""
        return self.measure(examples, responses)[0]


LENGTH_IS_LIMIT = "the length of an answer is rollout.max_new_tokens"
TRAINED_POLICY = "its policy is a trained model, without demonstrations"


def _refuse(task: str, settings: TaskSettings, reasons: Mapping[str, str]) -> None:
    """Refuse settings that a task does not have, each with its reason."""
    for setting, reason in reasons.items():
        value = getattr(settings, setting)
        if value != getattr(USUAL, setting):
            raise ConfigError(f"data.{setting} = {str(value).lower()}: the task {task} has no such setting; {reason}")


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
        for one in each:
            del one["distinct_2"]  # of a set of stories
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

    def none(n: int, seed: int) -> list[Example]:
        raise ConfigError(
            "the task grounded has no prompts of its own: name files in data.train and data.held_out_file; `text2grad "
            "prepare grounded` writes them"
        )

    return BuiltIn(
        train=none,
        held_out=none,
        critic=lambda: GroundedCritic(truths=settings.truths),
        measure=grounded_metrics,
        metric="unsupported_share",
    )


def _procedural(name: str, settings: TaskSettings) -> BuiltIn:
    """Return a procedural task; the metrics of a set are the means over its items."""
    train, held_out = procedural_task(name, "train", settings), procedural_task(name, "held_out", settings)

    def measure(
        examples: Sequence[Example], responses: Sequence[str]
    ) -> tuple[dict[str, float], list[dict[str, float]]]:
        scores = held_out.score_many(examples, responses)
        return {key: fmean(score[key] for score in scores) for key in scores[0]}, scores

    return BuiltIn(train.examples, held_out.examples, train.critic, measure, held_out.metric)


def procedural_task(name: str, split: Split, settings: TaskSettings = USUAL) -> Task:
    """Return a task that makes its own items, with demonstrations and a critic.

    Raises:
        ConfigError: if the name is unknown, or the task has no items of this length.
    """
    if name not in PROCEDURAL:
        raise ConfigError(f"there is no procedural task {name!r}; tasks: {', '.join(PROCEDURAL)}")
    return PROCEDURAL[name](split, settings=settings)


def built_in(name: str, settings: TaskSettings = USUAL) -> BuiltIn:
    """Return a built-in task.

    Raises:
        ConfigError: if the name is unknown, or the task cannot have these settings.
    """
    if name in OTHERS:
        return OTHERS[name](settings)
    if name in PROCEDURAL:
        return _procedural(name, settings)
    raise ConfigError(f"there is no built-in task {name!r}; tasks: {', '.join(sorted([*OTHERS, *PROCEDURAL]))}")


OTHERS: Mapping[str, Callable[[TaskSettings], BuiltIn]] = {"grounded": _grounded, "stories": _stories}
