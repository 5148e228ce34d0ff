"""Tasks whose answers have a length that a recipe may set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from text2grad.errors import ConfigError
from text2grad.tasks.base import Task


@dataclass(frozen=True, slots=True)
class SizedTask(Task):
    """A task with items of several lengths."""

    unit: ClassVar[str] = "parts"  # what `TaskSettings.length` counts
    lengths: ClassVar[Sequence[int]] = ()  # the possible lengths beside 0

    def __post_init__(self) -> None:
        """Refuse unknown settings."""
        Task.__post_init__(self)
        length = self.settings.length
        if length and length not in self.lengths:
            raise ConfigError(
                f"world.length = {length}: the task {self.name} has no items of {length} {self.unit}; possible: "
                f"{', '.join(map(str, self.lengths))}, and 0 for its usual items"
            )
