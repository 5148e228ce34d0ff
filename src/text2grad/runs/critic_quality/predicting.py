"""A critic → its critiques of annotated responses; each is written to disk before it is used.

answers.jsonl   the critiques, the cache of `CachedCritic`
critic.json     the critic that wrote them; another critic is refused in the same directory
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from text2grad.critics import CachedCritic
from text2grad.feedback import Critic, CritiqueRecord, Match
from text2grad.files import claim, to_json
from text2grad.types import Critique, Example

ANSWERS, IDENTITY = "answers.jsonl", "critic.json"
BATCH_SIZE = 16  # responses per call of the critic; a killed evaluation repeats at most one batch


def check_identity(out: Path, identity: Mapping[str, Any]) -> None:
    """Create the directory of an evaluation, or check that an existing directory belongs to the same critic.

    Raises:
        ConfigError: if the directory holds critiques of another critic, or cannot be written.
    """
    path = out / IDENTITY
    way_out = f"remove {path} and the critiques beside it to run the critic again"
    claim(path, identity, holds="critiques of another critic", way_out=way_out)


def fingerprint(directory: Path) -> str:
    """Return a hash of names, sizes and times of the files in a directory; it changes when a model is trained again."""
    files = sorted(path for path in directory.iterdir() if path.is_file())
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return sha256(to_json(stats)).hexdigest()[:16]


def predictions(
    critic: Critic, truth: Sequence[CritiqueRecord], out: Path, *, match: Match = "exact"
) -> Iterator[Critique]:
    """Yield the critic's critiques of the annotated responses, in order; critiques of an earlier run are reused.

    Args:
        critic: the critic.
        truth: the annotated responses. The critic gets prompt and response, not the annotation.
        out: directory of the cached critiques.
        match: how quotes are located in the response.

    Raises:
        CriticError: if the critic fails.
    """
    cached = CachedCritic(critic, out / ANSWERS, match=match)
    for start in range(0, len(truth), BATCH_SIZE):
        batch = truth[start : start + BATCH_SIZE]
        yield from cached([Example(record.prompt) for record in batch], [record.response for record in batch])
