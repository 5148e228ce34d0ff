"""The trainer's view of a learned critic that is audited and retrained during the run.

The trainer knows critics as callables only. `reward_models.Refresher` has these methods, and is passed to the trainer
where [refresh] is set; a critic that never changes has this one.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from text2grad.types import Example, Rollout


class CriticRefresher(Protocol):
    """Audits and retrains a learned critic between the steps of Algorithm 4; a method that is left out does nothing."""

    def audit(self, tokenizer: Any, rollouts: Sequence[Rollout], deltas: Any, critiques: Any) -> dict[str, float]:
        """Return metrics of the critic's agreement with an annotator on some responses of this step."""
        return {}

    def observe(self, examples: Sequence[Example], responses: Sequence[str]) -> None:
        """Remember the responses of a step, of all processes, in the order of the batch."""
        return None

    def refresh_if_due(self, step: int) -> dict[str, float]:
        """Retrain the critic if it is due after `step` finished steps; return metrics."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps, as JSON data."""
        return {"current": ""}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state from a checkpoint."""
        return None

    def prune(self, needed: set[str]) -> None:
        """Delete stored versions of the critic that no checkpoint names."""
        return None


class FixedCritic(CriticRefresher):
    """The refresher of a critic that never changes."""
