"""The built-in tasks by the name that `data.task` of a recipe gives; other packages register theirs here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from text2grad.errors import check_known
from text2grad.feedback import Critic
from text2grad.tasks.base import Split, Task, TaskSettings
from text2grad.tasks.summarization.task import SummarizationTask
from text2grad.tasks.tools import ToolsTask
from text2grad.types import Example

USUAL = TaskSettings()
Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """The parts of a task that a run uses.

    Attributes:
        train: (n, seed) → training examples.
        held_out: (n, seed) → examples of the held-out split.
        critic: () → the task's program critic.
        measure: (examples, responses) → metrics of the set, and metrics of each response.
        metric: the key of the main metric.
        tools: functions that the policy may call.
        reads_files: whether the prompts come from `data.train`; other tasks make their own.
    """

    train: Callable[[int, int], list[Example]]
    held_out: Callable[[int, int], list[Example]]
    critic: Callable[[], Critic]
    measure: Callable[[Sequence[Example], Sequence[str]], tuple[Metrics, list[Metrics]]]
    metric: str
    tools: Sequence[Callable[..., Any]] = ()
    reads_files: bool = False

    def score(self, examples: Sequence[Example], responses: Sequence[str]) -> Metrics:
        """Return the metrics of a set of responses."""
        return self.measure(examples, responses)[0]


PROCEDURAL: dict[str, type[Task]] = {}  # name → the class of a task that makes its own items, with demonstrations

_BUILT_IN: dict[str, Callable[[TaskSettings], BuiltIn]] = {}


def register_task(name: str, make: Callable[[TaskSettings], BuiltIn]) -> None:
    """Add a task under the name that `data.task` gives; `make` refuses settings that the task does not have."""
    _BUILT_IN[name] = make


def register_procedural_task(name: str, kind: type[Task]) -> None:
    """Add a task that makes its own items, with demonstrations and a critic."""
    PROCEDURAL[name] = kind
    register_task(name, partial(_procedural, name))


def _procedural(name: str, settings: TaskSettings) -> BuiltIn:
    """Return a procedural task; the metrics of a set are the means over its items."""
    train, held_out = procedural_task(name, "train", settings), procedural_task(name, "held_out", settings)

    def measure(examples: Sequence[Example], responses: Sequence[str]) -> tuple[Metrics, list[Metrics]]:
        scores = held_out.score_many(examples, responses)
        return {key: fmean(score[key] for score in scores) for key in scores[0]}, scores

    return BuiltIn(train.examples, held_out.examples, train.critic, measure, held_out.metric, held_out.tools)


def procedural_task(name: str, split: Split, settings: TaskSettings = USUAL) -> Task:
    """Return a task that makes its own items, with demonstrations and a critic.

    Raises:
        ConfigError: if the name is unknown, or the task has no items of this length.
    """
    check_known("data.task", name, list(PROCEDURAL))
    return PROCEDURAL[name](split, settings=settings)


def built_in(name: str, settings: TaskSettings = USUAL) -> BuiltIn:
    """Return a built-in task.

    Raises:
        ConfigError: if the name is unknown, or the task cannot have these settings.
    """
    check_known("data.task", name, sorted(_BUILT_IN))
    return _BUILT_IN[name](settings)


register_procedural_task("summarization", SummarizationTask)
register_procedural_task("tools", ToolsTask)
