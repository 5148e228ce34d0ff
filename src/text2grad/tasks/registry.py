"""The built-in tasks by name, as a recipe's `data.task` gives it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from text2grad.errors import ConfigError
from text2grad.feedback import Critic
from text2grad.tasks.base import Split, Task
from text2grad.tasks.code.task import CodeTask
from text2grad.tasks.qa.task import QATask
from text2grad.tasks.stories.task import StoryCritic, story_metrics, story_openings
from text2grad.tasks.summarization.task import SummarizationTask
from text2grad.types import Example

PROCEDURAL: dict[str, Callable[[Split], Task]] = {
    "summarization": SummarizationTask,
    "code": CodeTask,
    "qa": QATask,
}


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """What a run needs of a task.

    Attributes:
        train: (n, seed) → training examples.
        held_out: (n, seed) → examples that share nothing with training.
        critic: () → the task's programmatic critic.
        score: (examples, responses) → metrics of the set.
        metric: the main one of them.
    """

    train: Callable[[int, int], list[Example]]
    held_out: Callable[[int, int], list[Example]]
    critic: Callable[[], Critic]
    score: Callable[[Sequence[Example], Sequence[str]], dict[str, float]]
    metric: str


def _stories() -> BuiltIn:
    return BuiltIn(
        train=lambda n, seed: story_openings("train", n, seed),
        held_out=lambda n, seed: story_openings("held_out", n, seed),
        critic=StoryCritic,
        score=lambda examples, responses: story_metrics([e.prompt_text for e in examples], responses),
        metric="invented_share",
    )


def _made(name: str) -> BuiltIn:
    """Return a procedural task; the metrics of the set are the means over its items."""
    train, held_out = procedural_task(name, "train"), procedural_task(name, "held_out")

    def score(examples: Sequence[Example], responses: Sequence[str]) -> dict[str, float]:
        each = held_out.score_many(examples, responses)
        return {key: fmean(one[key] for one in each) for key in each[0]}

    return BuiltIn(train.examples, held_out.examples, train.critic, score, held_out.metric)


def procedural_task(name: str, split: Split) -> Task:
    """Return a task that makes its own items, with demonstrations and a critic.

    Raises:
        ConfigError: if there is none of that name.
    """
    if name not in PROCEDURAL:
        raise ConfigError(f"there is no procedural task {name!r}; tasks: {', '.join(PROCEDURAL)}")
    return PROCEDURAL[name](split)


def built_in(name: str) -> BuiltIn:
    """Return a built-in task.

    Raises:
        ConfigError: if there is none of that name.
    """
    if name == "stories":
        return _stories()
    if name in PROCEDURAL:
        return _made(name)
    raise ConfigError(f"there is no built-in task {name!r}; tasks: {', '.join(sorted(['stories', *PROCEDURAL]))}")
