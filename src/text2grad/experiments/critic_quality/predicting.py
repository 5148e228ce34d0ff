"""A critic -> its critiques of annotated responses; each is on disk before anything uses it.

answers.jsonl   what the critic answered (`remembered.CachedCritic`)
critic.json     whose answers they are: an evaluation of another critic in the same directory is refused
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from text2grad.critics import CachedCritic
from text2grad.errors import ConfigError
from text2grad.feedback import Critic, CritiqueRecord, Match
from text2grad.files import to_json, write_atomically
from text2grad.types import Critique, Example

ANSWERS, IDENTITY = "answers.jsonl", "critic.json"


def check_identity(out: Path, identity: Mapping[str, Any]) -> None:
    """Make the directory of an evaluation, or refuse one that belongs to another critic.

    Args:
        out: the directory.
        identity: who the critic is, ready for JSON.

    Raises:
        ConfigError: if the directory holds answers of another critic, or cannot be written.
    """
    path = out / IDENTITY
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, to_json(identity))
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use {path}: {error}. Choose another --out") from error
    differing = [key for key in {**found, **identity} if found.get(key) != identity.get(key)]
    if differing:
        was, is_ = ({key: one.get(key) for key in differing} for one in (found, identity))
        raise ConfigError(
            f"{out} holds answers of another critic: {json.dumps(was)}, and now it is {json.dumps(is_)}. Choose "
            "another --out, or remove that directory to ask again"
        )


def fingerprint(directory: Path) -> str:
    """Return a hash of the names, sizes and times of a directory's files: another after the model was trained again."""
    files = sorted(path for path in directory.iterdir() if path.is_file())
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return sha256(to_json(stats)).hexdigest()[:16]


def predictions(
    critic: Critic, truth: Sequence[CritiqueRecord], out: Path, *, batch_size: int = 16, match: Match = "exact"
) -> Iterator[Critique]:
    """Yield a critic's critiques of the annotated responses, in order; those of an earlier run are not asked for.

    Args:
        critic: who is asked.
        truth: the annotated responses. The critic sees prompt and response, and nothing of the annotation.
        out: directory of the answers.
        batch_size: responses asked about together; a killed evaluation asks again about so many at most.
        match: how quotes are found in the response.

    Raises:
        CriticError: if the critic fails.
    """
    remembering = CachedCritic(critic, out / ANSWERS, match=match)
    for start in range(0, len(truth), batch_size):
        batch = truth[start : start + batch_size]
        yield from remembering([Example(one.prompt) for one in batch], [one.response for one in batch])
