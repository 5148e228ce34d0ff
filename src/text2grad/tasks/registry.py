"""The built-in tasks by the name that `data.task` of a recipe gives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from text2grad.errors import ConfigError
from text2grad.feedback import Critic
from text2grad.tasks.base import Split, Task
from text2grad.tasks.code import CodeTask
from text2grad.tasks.qa import QATask
from text2grad.tasks.stories import StoryCritic, story_metrics, story_openings
from text2grad.tasks.summarization import SummarizationTask
from text2grad.types import Example

PROCEDURAL: dict[str, Callable[[Split], Task]] = {
    "summarization": SummarizationTask,
    "code": CodeTask,
    "qa": QATask,
}


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """The parts of a task that a run uses.

    Attributes:
        train: (n, seed) → training examples.
        held_out: (n, seed) → examples of the held-out split.
        critic: () → the task's program critic.
        score: (examples, responses) → metrics of the set.
        metric: the key of the main metric.
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


def _procedural(name: str) -> BuiltIn:
    """Return a procedural task; the metrics of a set are the means over its items."""
    train, held_out = procedural_task(name, "train"), procedural_task(name, "held_out")

    def score(examples: Sequence[Example], responses: Sequence[str]) -> dict[str, float]:
        scores = held_out.score_many(examples, responses)
        return {key: fmean(score[key] for score in scores) for key in scores[0]}

    return BuiltIn(train.examples, held_out.examples, train.critic, score, held_out.metric)


def procedural_task(name: str, split: Split) -> Task:
    """Return a task that makes its own items, with demonstrations and a critic.

    Raises:
        ConfigError: if the name is unknown.
    """
    if name not in PROCEDURAL:
        raise ConfigError(f"there is no procedural task {name!r}; tasks: {', '.join(PROCEDURAL)}")
    return PROCEDURAL[name](split)


def built_in(name: str) -> BuiltIn:
    """Return a built-in task.

    Raises:
        ConfigError: if the name is unknown.
    """
    if name == "stories":
        return _stories()
    if name in PROCEDURAL:
        return _procedural(name)
    raise ConfigError(f"there is no built-in task {name!r}; tasks: {', '.join(sorted(['stories', *PROCEDURAL]))}")
