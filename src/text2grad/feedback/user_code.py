"""Where Python code of a user failed: the file, the line, and the response that it had in hand."""

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, SupportsIndex

OWN_AND_LIBRARIES = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


class Responses(list[str]):
    """Responses that know which of them a loop has in hand; for everyone else a list."""

    in_hand: int | None = None

    def __iter__(self) -> Iterator[str]:
        """Yield the responses; between two of them, and not after the last, one is in hand."""
        for number, response in enumerate(super().__iter__()):
            self.in_hand = number
            yield response
        self.in_hand = None

    def __getitem__(self, index: Any) -> Any:
        """Return a response, which is in hand from now on, or a list of some."""
        if isinstance(index, SupportsIndex):
            self.in_hand = range(len(self))[index]
        return super().__getitem__(index)

    def __reduce__(self) -> Any:
        """Become a plain list in other processes."""
        return list, (list(super().__iter__()),)


def place_of(error: BaseException) -> str:
    """Return "file:line" of an error: the innermost line that is not of text2grad or of a library.

    Returns:
        The place; empty if no line of a user had a part in it.
    """
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).exists():
        return f"{_short(error.filename)}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OWN_AND_LIBRARIES) and not frame.filename.startswith("<")
    ]
    return f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def described(error: BaseException) -> str:
    """Return the type and the message of an error, and its place if it has one, in one line.

    A search of settings reads the last line of a run's log, which must begin with the name of our own error.
    """
    place = place_of(error)
    text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    return f"{type(error).__name__}{f' at {place}' if place else ''}{f': {text}' if text else ''}"


def _short(filename: str) -> str:
    """Return a file relative to the working directory, where it lies below it."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
