"""Base of objects that hold a file or processes until they are closed."""

from types import TracebackType
from typing import Self


class Closing:
    """Closes itself at the end of a `with` statement."""

    def close(self) -> None:
        """Release what the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
