"""One step of Algorithm 4 as data, and the protocol by which instruments watch it.

Costs, records, errors and logs (`instruments.py`) stand around the lines of the algorithm, not between: each may act
before a step, around each phase, before and after the update, and after the step. The update reads nothing of them. β
and the refresh of a learned critic read the metrics and the responses that the instrument `Records` makes of a step.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from text2grad.models import Scores, TokenBatch
from text2grad.rl.metrics import Record
from text2grad.types import Critique, Rollout

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class Step:
    """One step of Algorithm 4. Shapes: B responses of this process, T response tokens.

    Attributes:
        number: number of the step, from 0.
        rollouts: the responses, and `batch` the same as tensors.
        scores: log π_old, log π_ref, KL, entropy and values, [B, T].
        critiques: one per response.
        deltas: δ of each response, one number per sampled token; `offsets` are the tokens' character ranges.
        span_rewards: rewards before the KL term, [B, T].
        advantages: A_t, and `returns` R_t, [B, T].
        metrics: name → value.
        records: JSON-ready records, one per response of all processes.
    """

    number: int
    rollouts: Sequence[Rollout]
    batch: TokenBatch
    scores: Scores
    critiques: Sequence[Critique]
    deltas: Sequence[Sequence[float]]
    offsets: Sequence[Sequence[tuple[int, int]]]
    span_rewards: Tensor
    advantages: Tensor
    returns: Tensor
    metrics: dict[str, float] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)


class Instrument:
    """Watches the steps of a trainer; each method may be left as it is."""

    def __init__(self, trainer: Any) -> None:
        """Take the trainer, already built."""
        self.trainer = trainer

    def before_step(self, number: int) -> None:
        """Called before a step begins."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return the context of a phase: rollout, score, critic, audit, update, refresh."""
        return nullcontext()

    def before_update(self, step: Step) -> None:
        """Called when the advantages are known and no weight has changed."""

    def after_update(self, step: Step) -> None:
        """Called when the weights have changed."""

    def after_step(self, step: Step) -> None:
        """Called when the step is finished and counted."""


def observed(train_step: Callable[[Any], Step]) -> Callable[[Any], Step]:
    """Let the instruments of a trainer see the beginning and the end of a step, which counts as finished at its end."""

    @functools.wraps(train_step)
    def in_sight(trainer: Any) -> Step:
        for instrument in trainer.instruments:
            instrument.before_step(trainer.step)
        step = train_step(trainer)
        trainer.step, trainer.optimizers.stepped = trainer.step + 1, 0
        for instrument in trainer.instruments:
            instrument.after_step(step)
        return step

    return in_sight


def phase(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a method a phase of the step: the contexts of its object's instruments surround it."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def in_phase(*args: P.args, **kwargs: P.kwargs) -> R:
            with watched(args[0], name):
                return method(*args, **kwargs)

        return in_phase

    return decorate


@contextmanager
def watched(trainer: Any, name: str) -> Iterator[None]:
    """Surround a phase with the contexts of a trainer's instruments."""
    with ExitStack() as stack:
        for instrument in trainer.instruments:
            stack.enter_context(instrument.phase(name))
        yield
