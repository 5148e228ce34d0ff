"""Critics whose critiques are cached in a file, so that no response is judged twice."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from text2grad.feedback import Critic, Match, ask, critique_from_json, critique_to_json, digest_of_examples
from text2grad.files import append_records, appended_records
from text2grad.types import Critique, Example


class CachedCritic:
    """Calls another critic for new pairs of prompt and response only; each critique is on disk before it is returned.

    Attributes:
        known: the cached critiques as JSON data, by the hash of example and response.
    """

    def __init__(self, critic: Critic, path: Path, *, match: Match = "exact") -> None:
        """Read the cache.

        Args:
            critic: the critic to call.
            path: the JSONL file of its critiques, which need not exist; a line cut off by a crash is ignored.
            match: how quotes are found in the response.
        """
        self.critic, self.path, self.match = critic, path, match
        self.known = _read(path)

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response; the critic judges only responses that are not cached.

        Raises:
            CriticError: if the critic fails.
            DataError: if a cached critique is damaged.
        """
        keys = [_key(example, response) for example, response in zip(examples, responses, strict=True)]
        new = {key: row for row, key in enumerate(keys) if key not in self.known}
        answers: dict[str, Critique] = {}
        if new:
            rows = list(new.values())
            found = ask(self.critic, [examples[r] for r in rows], [responses[r] for r in rows], match=self.match)
            answers = dict(zip(new, found, strict=True))
            kept = {key: one for key, one in answers.items() if one.status != "timed_out"}  # the others are retried
            self.known |= _append(self.path, {key: critique_to_json(one) for key, one in kept.items()})
        return [
            answers[key] if key in answers else critique_from_json(self.known[key], response, where=str(self.path))
            for key, response in zip(keys, responses, strict=True)
        ]


class Drawing(Protocol):
    """A critic that samples several critiques of a response, such as a reward model with votes."""

    def draw(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[Critique]]:
        """Return the sampled critiques of each response."""


class CachedDraws:
    """Samples critiques of new pairs of prompt and response only; all are on disk before they are returned."""

    def __init__(self, critic: Drawing, path: Path) -> None:
        """Read the cache, a JSONL file that need not exist; a line cut off by a crash is ignored."""
        self.critic, self.path, self.known = critic, path, _read(path)

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[Critique]]:
        """Return the sampled critiques of each response.

        Raises:
            DataError: if a cached critique is damaged.
        """
        keys = [_key(example, response) for example, response in zip(examples, responses, strict=True)]
        rows = list({key: row for row, key in enumerate(keys) if key not in self.known}.values())
        if rows:
            found = self.critic.draw([examples[r] for r in rows], [responses[r] for r in rows])
            new = {keys[r]: [critique_to_json(one) for one in drawn] for r, drawn in zip(rows, found, strict=True)}
            self.known |= _append(self.path, new)
        return [
            [critique_from_json(one, response, where=str(self.path)) for one in self.known[key]]
            for key, response in zip(keys, responses, strict=True)
        ]


def _append(path: Path, records: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write records by key at the end of a cache; return them."""
    append_records(path, ({"key": key, "critique": record} for key, record in records.items()))
    return records


def _key(example: Example, response: str) -> str:
    text = f"{example.prompt_text}\0{response}"
    if example.reference is not None or example.tests is not None or example.meta:  # a critic may judge by them
        text += f"\0{digest_of_examples([example])}"
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    return {record["key"]: record["critique"] for record in appended_records(path)}
