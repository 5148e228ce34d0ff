"""Files of preferences, on which scalar reward models train.

A record is {"prompt": ..., "chosen": ..., "rejected": ...}, where a response is a text or a chat that ends with it; or
an example with the chosen response in "reference" and the other in "meta", as `text2grad feedback import table --column
reference=chosen` writes it.
"""

from pathlib import Path
from typing import NamedTuple

from text2grad.errors import DataError
from text2grad.feedback.record_files import json_object, read_entries, refuse_half_pairs
from text2grad.feedback.sources.base import Options, Row
from text2grad.feedback.sources.published import read_pair


class Preference(NamedTuple):
    """A prompt, the chosen response and the rejected response."""

    prompt: str
    chosen: str
    rejected: str


def read_preferences(path: str | Path, *, split: str = "train") -> list[Preference]:
    """Return the preferences of a file, a directory or a data set.

    Raises:
        DataError: if it cannot be read, is empty, or has a record that is not a preference.
    """
    found = []
    for _, where, entry in read_entries(path, split=split):
        record = json_object(entry, where)
        meta = record.get("meta")
        if record.get("chosen") is None and isinstance(meta, dict):
            record = {**record, "chosen": record.get("reference"), "rejected": meta.get("rejected")}
        found.append(Preference(*read_pair(Row(where, record, Options()))))
        refuse_half_pairs(where, **found[-1]._asdict())
    if not found:
        raise DataError(f"{path} has no records")
    return found
