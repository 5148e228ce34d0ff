"""What the tests of evidence share: the parts that evidence registers, and the fixtures of the product's tests."""

import evidence
from tests.conftest import (
    drawn_pictures,
    empty_pictures,
    libraries_are_no_garbage,
    no_hub,
    no_wait_for_the_disk,
    one_thread,
    server,
    short_waits,
    warm,
)

__all__ = [
    "drawn_pictures",
    "empty_pictures",
    "libraries_are_no_garbage",
    "no_hub",
    "no_wait_for_the_disk",
    "one_thread",
    "server",
    "short_waits",
    "warm",
]

evidence.register()
