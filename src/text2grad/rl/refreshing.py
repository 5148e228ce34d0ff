"""The trainer's view of a learned critic that is audited and retrained during the run.

The trainer knows critics as callables only. `reward_models.Refresher` implements this protocol and is passed to the
trainer when [refresh] is set; `FixedCritic` implements it for a critic that never changes.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from text2grad.types import Critique, Example, Rollout


class CriticRefresher(Protocol):
    """Audits and retrains a learned critic between the steps of Algorithm 4."""

    def audit(
        self,
        tokenizer: Any,
        rollouts: Sequence[Rollout],
        deltas: Sequence[Sequence[float]],
        critiques: Sequence[Critique],
    ) -> dict[str, float]:
        """Return metrics of the critic's agreement with an annotator on some responses of this step."""

    def observe(self, examples: Sequence[Example], responses: Sequence[str]) -> None:
        """Remember the responses of a step, of all processes, in the order of the batch."""

    def refresh_if_due(self, step: int) -> dict[str, float]:
        """Retrain the critic if it is due after `step` finished steps; return metrics."""

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps, as JSON data."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state from a checkpoint."""

    def prune(self, needed: set[str]) -> None:
        """Delete stored versions of the critic that no checkpoint names."""


class FixedCritic:
    """The refresher of a critic that never changes: it measures, remembers and writes nothing."""

    def audit(self, *_: Any) -> dict[str, float]:
        """Return no metrics."""
        return {}

    def observe(self, *_: Any) -> None:
        """Remember nothing."""

    def refresh_if_due(self, *_: Any) -> dict[str, float]:
        """Change nothing."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return the state of a critic that was never retrained."""
        return {"current": ""}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore nothing."""

    def prune(self, needed: set[str]) -> None:
        """Delete nothing."""
