"""The split of items by their prompts: no prompt is on both sides."""

import hashlib
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

Item = TypeVar("Item")


def split_by_prompt(
    items: Sequence[Item], share: float, seed: int, *, key: Callable[[Item], str] = attrgetter("prompt")
) -> tuple[list[Item], list[Item]]:
    """Return the training items and the held-out items; the two parts have no prompt in common.

    A hash of seed and prompt selects whole prompts, so that neither the order nor the number of items moves a prompt
    at random from one part to the other.

    Args:
        items: annotations or examples; both parts keep their order.
        share: the share of prompts to hold out. If it is not 0, at least one prompt is held out; if there are two or
            more prompts, at least one is not.
        seed: seed of the hash.
        key: the property that the two parts must not share, by default the prompt.
    """
    prompts = sorted(set(map(key, items)), key=lambda prompt: hash_of(prompt, seed))
    count = min(max(1, round(share * len(prompts))), max(len(prompts) - 1, 0)) if share else 0
    held_out = set(prompts[:count])
    return [item for item in items if key(item) not in held_out], [item for item in items if key(item) in held_out]


def hold_out(
    items: Sequence[Item],
    held_out: float | str,
    seed: int,
    *,
    read: Callable[[str], list[Item]],
    key: Callable[[Item], str] = attrgetter("prompt"),
) -> tuple[list[Item], list[Item], int]:
    """Return the training items, the held-out items, and the number of items removed because their prompt is held out.

    `held_out` is a share of the prompts of `items`, for `split_by_prompt`, or a file of held-out items, for `read`.
    """
    if not isinstance(held_out, str):
        return (*split_by_prompt(items, held_out, seed, key=key), 0)
    test = read(held_out)
    prompts = set(map(key, test))
    train = [item for item in items if key(item) not in prompts]
    return train, test, len(items) - len(train)


def hash_of(text: str, seed: int) -> str:
    """Return the hash by which texts are ordered and divided."""
    return hashlib.sha256(f"{seed} {text}".encode(errors="surrogatepass")).hexdigest()
