"""lineage.json of a run: what its policy learned from.

marks        {"positive": spans, "negative": spans} in all critiques of its steps
raters       spans by rater, where spans name one; likewise `categories`
feedback     SHA-256 of the files and models that the recipe names
parent, without, same_responses, first      of a run that `text2grad without` made
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from text2grad.files import readable, to_json, write_atomically
from text2grad.rl import RunLog

LINEAGE = "lineage.json"


def read_lineage(directory: Path) -> dict[str, Any]:
    """Return what is known of a run's lineage; nothing of a run that is under way.

    Raises:
        DataError: if the file is damaged.
    """
    if not (path := directory / LINEAGE).exists():
        return {}
    with readable(path, "Remove it, and the end of the run writes it again"):
        lineage: dict[str, Any] = dict(json.loads(path.read_bytes()))
    return lineage


def write_lineage(directory: Path) -> dict[str, Any]:
    """Count the marks of a run by label, rater and category, write them, and return the lineage."""
    counts = {name: Counter[str]() for name in ("label", "rater", "category")}
    for _, records in RunLog(directory).rollouts(since=0):
        for span in (span for record in records for span in record["critique"]["spans"]):
            for name, counter in counts.items():
                counter.update([span[name]] if span.get(name) else [])
    feedback = json.loads((directory / "run.json").read_bytes()).get("inputs", {})
    names = {"label": "marks", "rater": "raters", "category": "categories"}
    counted = {names[name]: dict(sorted(counter.items())) for name, counter in counts.items()}
    lineage = {**read_lineage(directory), **counted, "feedback": feedback}
    write_atomically(directory / LINEAGE, to_json(lineage))
    return lineage
