"""The share of critiques that could not be read; a run stops above a limit."""

from collections import deque
from collections.abc import Iterable
from pathlib import Path

from text2grad.errors import CriticError
from text2grad.types import FAILED_STATUSES

FAILURE_WINDOW = 100  # critiques over which critic.max_failure_rate is judged, at least


class FailureRate:
    """The share of a critic's last 100 critiques (or last batch, if that is more) that could not be read."""

    def __init__(self, limit: float, batch_size: int) -> None:
        """Take the share of failures above which a run stops, and the number of critiques per step."""
        self.limit = limit
        self.statuses: deque[str] = deque(maxlen=max(FAILURE_WINDOW, batch_size))

    def count(self, statuses: Iterable[str]) -> None:
        """Add the statuses of some critiques."""
        self.statuses.extend(statuses)

    @property
    def rate(self) -> float:
        """The share of failures, 0 before the first critique."""
        return sum(status in FAILED_STATUSES for status in self.statuses) / max(len(self.statuses), 1)

    @property
    def too_many(self) -> bool:
        """True when enough critiques were seen, and more than the limit failed."""
        return len(self.statuses) >= FAILURE_WINDOW and self.rate > self.limit

    def error(self, rollouts: Path) -> CriticError:
        """Return the error that stops the run; `rollouts` is the directory that holds the critiques."""
        return CriticError(
            f"{self.rate:.0%} of the last {len(self.statuses)} critiques could not be read (critic.max_failure_rate is "
            f"{self.limit:.0%}); their responses were kept with δ = 0. Look at critique.status in {rollouts}, mend the "
            "critic, and go on with --resume."
        )
