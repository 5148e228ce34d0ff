"""A critic → its critiques of responses; each is written to disk before it is used.

critic.json   the critic that wrote the critiques of a directory; another critic is refused there
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.critics import CachedCritic
from text2grad.feedback import Critic, Match
from text2grad.files import claim
from text2grad.progress import Progress
from text2grad.types import Critique, Example


def check_identity(out: Path, identity: Mapping[str, Any]) -> None:
    """Create a directory of critiques, or check that an existing directory belongs to the same critic.

    Raises:
        ConfigError: if the directory holds critiques of another critic, or cannot be written.
    """
    way_out = f"remove {out / 'critic.json'} and the critiques beside it to run the critic again"
    claim(out / "critic.json", identity, holds="critiques of another critic", way_out=way_out)


def predictions(
    critic: Critic,
    examples: Sequence[Example],
    responses: Sequence[str],
    path: Path,
    *,
    match: Match = "exact",
    at_once: int = 16,
) -> list[Critique]:
    """Return the critic's critiques of responses, in order; critiques of an earlier run are reused.

    Args:
        critic: the critic.
        examples: the task instance of each response.
        responses: the responses.
        path: the file of the critiques, the cache of `CachedCritic`.
        match: how quotes are located in the response.
        at_once: responses per call of the critic; a killed command repeats at most one call.

    Raises:
        CriticError: if the critic fails.
    """
    cached, critiques = CachedCritic(critic, path, match=match), list[Critique]()
    with Progress("run the critic", len(responses), unit="response") as progress:
        for start in range(0, len(responses), at_once):
            part = slice(start, start + at_once)
            critiques += cached(examples[part], responses[part])
            progress.advance(len(critiques) - start)
    return critiques
