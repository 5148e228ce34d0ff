"""Specifications: the sentences for each step.

A sentence is a lead and its object. The held-out templates combine the words of the training templates in other ways:
a held-out sentence is new, its words are not.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random

from evidence.tasks.code.world import ASKED, HEADER, NAMES, Step
from text2grad.tasks.base import Split

CHOOSE = {
    "train": ("keep the values {}", "keep only numbers {}", "take all values {}", "take only the numbers {}"),
    "held_out": ("keep the numbers {}", "take only values {}", "keep all values {}"),
}
PARITY = {
    "train": ("keep the {} values", "keep only {} numbers", "take all {} values", "take only the {} numbers"),
    "held_out": ("keep the {} numbers", "take only {} values", "keep all {} values"),
}
EACH = {
    "train": ("each value", "all numbers", "every number", "all of them"),
    "held_out": ("each number", "all values", "every value"),
}
KEEP = {
    "train": ("keep the {}", "take the {} values", "keep only the {}", "take only the {} numbers"),
    "held_out": ("keep the {} values", "take the {} numbers", "keep only the {} values"),
}
LEAVE = {
    "train": ("skip the {}", "drop the {} values", "leave out the {}", "leave out the {} numbers"),
    "held_out": ("skip the {} values", "drop the {} numbers", "leave out the {} values"),
}
SORT = {
    "train": ("sort them in {} order", "put them in {} order", "sort the list in {} order"),
    "held_out": ("put the list in {} order", "sort all of them in {} order"),
}
TURN = {
    "train": ("reverse the list", "turn the list around", "reverse all of it"),
    "held_out": ("turn all of it around", "reverse them"),
}
GIVE = {
    "train": ("return the {}", "give the {} of them", "take the {} of the list"),
    "held_out": ("give the {}", "return the {} of them", "return the {} of the list"),
}
Leads = Mapping[str, tuple[str, ...]]
_FILLED: dict[str, tuple[Leads, str]] = {
    "above": (CHOOSE, "above {k}"),
    "below": (CHOOSE, "below {k}"),
    "at_least": (CHOOSE, "of at least {k}"),
    "at_most": (CHOOSE, "of at most {k}"),
    **{parity: (PARITY, parity) for parity in ("even", "odd")},
    "first": (KEEP, "first {k}"),
    "skip": (LEAVE, "first {k}"),
    "last": (KEEP, "last {k}"),
    "drop_last": (LEAVE, "last {k}"),
    **{order: (SORT, order) for order in ("rising", "falling")},
    "reverse": (TURN, ""),
    **{result: (GIVE, result) for result in ("sum", "count", "largest", "smallest")},
}
_ON_EACH = {
    "double": "double {}",
    "square": "square {}",
    "add": "add {{k}} to {}",
    "subtract": "subtract {{k}} from {}",
    "multiply": "multiply {} by {{k}}",
}


@cache
def templates(operation: str, split: Split) -> tuple[str, ...]:
    """Return the sentences of an operation that belong to one split; `{k}` is the constant.

    Example:
        >>> templates("add", "held_out")
        ('add {k} to each number', 'add {k} to all values', 'add {k} to every value')
    """
    if operation in _ON_EACH:
        return tuple(_ON_EACH[operation].format(noun) for noun in EACH[split])
    leads, core = _FILLED[operation]
    return tuple(lead.format(core) for lead in leads[split])


def write_prompt(steps: Sequence[Step], split: Split, rng: Random) -> str:
    """Return the specification in words, the names of the wanted lines, and the head of the function.

    The first sentence of a held-out specification is a held-out one. The names of the lines are listed because a small
    model learns only slowly that there is no next step.
    """
    sentences, names = [], NAMES[: len(steps)]
    for place, (operation, k) in enumerate(steps):
        choice = templates(operation, split)
        if split == "held_out" and place:
            choice += templates(operation, "train")
        sentences.append(f"Step {names[place]}: {rng.choice(choice).format(k=k)}.")
    return f"{' '.join(sentences)}\nLines: {', '.join(names)}, return.\n{HEADER}\n"


def words(steps: int) -> list[str]:
    """Return texts that hold every word of prompts of so many steps, apart from the constants."""
    texts = [text.format(k="") for name in ASKED for split in ("train", "held_out") for text in templates(name, split)]
    return [*texts, *NAMES[:steps], HEADER, "Step Lines: , return."]
