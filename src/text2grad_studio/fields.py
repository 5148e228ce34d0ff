"""Fields of requests, checked: of an address, where numbers are text, and of a JSON body.

Each message names the field, its form and its value.
"""

import json
import math
from collections.abc import Collection
from typing import Any

from text2grad.errors import DataError
from text2grad.types import HALF_PAIR

MOST = 2**63 - 1  # largest whole number, in SQLite and in seeds
SHOWN_CHARS = 80  # most characters of a wrong value in messages


def integer(value: Any, name: str, *, least: int = 0) -> int:
    """Return a whole number.

    Raises:
        DataError: if the value is no whole number, is below `least`, or needs more than 64 bits.
    """
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if type(number) is not int or not least <= number <= MOST:
        raise DataError(f"{name} is a whole number from {least} to 2^63 - 1, got {shown(value)}")
    return number


def text(value: Any, name: str, default: str = "") -> str:
    """Return a text; null, or a missing value, gives the default.

    Raises:
        DataError: if the value is no text.
    """
    if value is None:
        return default
    if not isinstance(value, str):
        raise DataError(f"{name} is a text, got {shown(value)}")
    return value


def to_encode(value: Any, name: str) -> str:
    """Return a text for a tokenizer; null, or a missing value, gives "".

    Raises:
        DataError: if the value is no text, or has half of a surrogate pair, which no tokenizer reads.
    """
    words = text(value, name)
    if HALF_PAIR.search(words):
        raise DataError(f"{name} has half of a surrogate pair, which is no character: {shown(words)}")
    return words


def choice(value: str, name: str, known: Collection[str]) -> str:
    """Return the value: a known word, or "".

    Raises:
        DataError: if the word is not known.
    """
    if value and value not in known:
        raise DataError(f"{name} is one of {', '.join(known)}, or empty; got {shown(value)}")
    return value


def integers(value: Any, name: str) -> list[int]:
    """Return a list of whole numbers.

    Raises:
        DataError: if the value is no such list.
    """
    if not isinstance(value, list):
        raise DataError(f"{name} is a list of whole numbers, got {shown(value)}")
    return [integer(element, f"{name}[{n}]") for n, element in enumerate(value)]


def texts(value: Any, name: str) -> list[str] | None:
    """Return a list of texts; None for null, or a missing value.

    Raises:
        DataError: if the value is no such list.
    """
    if value is not None and not (isinstance(value, list) and all(isinstance(element, str) for element in value)):
        raise DataError(f"{name} is a list of texts, or null; got {shown(value)}")
    return value


def numbers(value: Any, name: str) -> dict[str, float]:
    """Return an object of numbers, as settings are.

    Raises:
        DataError: if the value is no such object, or a number is not finite or needs more than 64 bits.
    """
    if not isinstance(value, dict):
        raise DataError(f"{name} is an object of numbers, got {shown(value)}")
    for key, number in value.items():
        if type(number) not in (int, float) or not math.isfinite(number) or abs(number) > MOST:
            raise DataError(f"{name}.{key} is a number from -2^63 + 1 to 2^63 - 1, got {shown(number)}")
    return value


def shown(value: Any) -> str:
    """Return a value as JSON, cut where it is long."""
    try:
        written = json.dumps(value, ensure_ascii=True)
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
    return written if len(written) <= SHOWN_CHARS else f"{written[:SHOWN_CHARS]}… ({len(written):,} characters)"
