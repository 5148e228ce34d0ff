"""Preferences: two responses to a prompt, of which people or a judge chose one. What a scalar reward model learns from.

A record is {"prompt": ..., "chosen": ..., "rejected": ...}, a response being a text or the chat that it ends; or an
example as `text2grad import` writes it, with the chosen response as its "reference" and the other one in "meta".
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from text2grad.errors import DataError
from text2grad.feedback.record_files import json_object, read_entries
from text2grad.feedback.sources.base import Options, Row
from text2grad.feedback.sources.published import read_pair


class Preference(NamedTuple):
    """A prompt, the response that was chosen, and the one that was not."""

    prompt: str
    chosen: str
    rejected: str


class _Asked(Protocol):
    @property
    def prompt(self) -> str: ...


One = TypeVar("One", bound=_Asked)


def read_preferences(path: str | Path, *, split: str = "train") -> list[Preference]:
    """Return the preferences of a file, a directory or a data set.

    Raises:
        DataError: if it cannot be read, is empty, or a record is no preference.
    """
    found = []
    for number, where, entry in read_entries(path, split=split):
        record = json_object(entry, where)
        meta = record.get("meta")
        if record.get("chosen") is None and isinstance(meta, dict):
            record = {**record, "chosen": record.get("reference"), "rejected": meta.get("rejected")}
        found.append(Preference(*read_pair(Row(number, where, record, Options()))))
    if not found:
        raise DataError(f"{path} has no records")
    return found


def split_by_prompt(
    items: Sequence[One], share: float, seed: int, *, key: Callable[[One], str] = lambda one: one.prompt
) -> tuple[list[One], list[One]]:
    """Return what is learned from and what is held out; the two have no prompt in common.

    Held out are whole prompts, chosen by a hash of seed and prompt: neither the order of the items nor what else they
    are moves a prompt from one side to the other by chance.

    Args:
        items: preferences or annotations in any order, which both parts keep.
        share: of the prompts that are held out. Unless it is 0, at least one is, and one is not where there are two.
        seed: another one holds out others.
        key: what the two have not in common, where that is another thing than the prompt.
    """
    prompts = sorted(set(map(key, items)), key=lambda prompt: _rank(prompt, seed))
    count = min(max(1, round(share * len(prompts))), max(len(prompts) - 1, 0)) if share else 0
    held_out = set(prompts[:count])
    return [one for one in items if key(one) not in held_out], [one for one in items if key(one) in held_out]


def _rank(prompt: str, seed: int) -> str:
    return hashlib.sha256(f"{seed} {prompt}".encode(errors="surrogatepass")).hexdigest()
