"""Instruments measure a training without changing it: they stand around each update of the policy.

Packages outside text2grad register makers of instruments; a trainer asks each maker once, when it is built.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from text2grad.models import TokenBatch
from text2grad.rl.metrics import Record


class Instrument(Protocol):
    """Measures updates. Shapes: B responses of this process, T response tokens."""

    def before(
        self, step: int, batch: TokenBatch, advantages: Tensor, deltas: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Return metrics of the step before its update; `advantages` are [B, T], `deltas` δ of each response."""
        ...

    def after(self, step: int, batch: TokenBatch, logp: Tensor, records: Sequence[Record]) -> None:
        """Add to the records of the responses after the update; `logp` is log π_old, [B, T]."""
        ...


_MAKERS: list[Callable[[Any], Instrument | None]] = []


def register_instrument(make: Callable[[Any], Instrument | None]) -> None:
    """Let each trainer that is built from now on ask `make`, with itself as argument, for an instrument or None."""
    if make not in _MAKERS:
        _MAKERS.append(make)


def instruments_of(trainer: Any) -> list[Instrument]:
    """Return the instruments of a trainer that is built."""
    return [instrument for make in _MAKERS if (instrument := make(trainer)) is not None]
