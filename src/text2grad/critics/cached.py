"""Critics whose critiques are cached in a file, so that no response is judged twice."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from text2grad.feedback import Critic, Match, ask, critique_from_json, critique_to_json, digest_of_examples
from text2grad.files import append_records, appended_records
from text2grad.types import Critique, Example


class _Cache:
    """Critiques as JSON data, by the hash of example and response, in a JSONL file that need not exist.

    A line that a crash cut off is ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Any] = {record["key"]: record["critique"] for record in appended_records(path)}

    def _new(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the keys that are not in the file, each with a row that has it."""
        return {key: row for row, key in enumerate(keys) if key not in self.known}

    def _keep(self, records: Mapping[str, Any]) -> None:
        """Write records by key at the end of the file."""
        append_records(self.path, ({"key": key, "critique": record} for key, record in records.items()))
        self.known |= records

    def _critique(self, record: Any, response: str) -> Critique:
        return critique_from_json(record, response, where=str(self.path))


class CachedCritic(_Cache):
    """Calls another critic for new pairs of prompt and response only; each critique is on disk before it is returned.

    Attributes:
        known: the cached critiques as JSON data, by the hash of example and response.
    """

    def __init__(self, critic: Critic, path: Path, *, match: Match = "exact") -> None:
        """Take a critic, the file of its critiques, and how quotes are found in the response."""
        super().__init__(path)
        self.critic, self.match = critic, match

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response; the critic judges only responses that are not cached.

        Raises:
            CriticError: if the critic fails.
            DataError: if a cached critique is damaged.
        """
        keys, answers = list(map(_key, examples, responses)), dict[str, Critique]()
        if new := self._new(keys):
            rows = new.values()
            critiques = ask(self.critic, [examples[r] for r in rows], [responses[r] for r in rows], match=self.match)
            answers = dict(zip(new, critiques, strict=True))
            judged = {key: critique for key, critique in answers.items() if critique.status != "timed_out"}
            self._keep({key: critique_to_json(critique) for key, critique in judged.items()})  # others are asked again
        return [
            answers[key] if key in answers else self._critique(self.known[key], response)
            for key, response in zip(keys, responses, strict=True)
        ]


class Drawing(Protocol):
    """A critic that samples several critiques of a response, such as a reward model with votes."""

    def draw(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[Critique]]:
        """Return the sampled critiques of each response."""


class CachedDraws(_Cache):
    """Samples critiques of new pairs of prompt and response only; all are on disk before they are returned."""

    def __init__(self, critic: Drawing, path: Path) -> None:
        """Take a critic and the file of its critiques."""
        super().__init__(path)
        self.critic = critic

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[Critique]]:
        """Return the sampled critiques of each response.

        Raises:
            DataError: if a cached critique is damaged.
        """
        keys = list(map(_key, examples, responses))
        if new := self._new(keys):
            rows = new.values()
            drawn = self.critic.draw([examples[r] for r in rows], [responses[r] for r in rows])
            self._keep({key: list(map(critique_to_json, sample)) for key, sample in zip(new, drawn, strict=True)})
        pairs = zip(keys, responses, strict=True)
        return [[self._critique(record, response) for record in self.known[key]] for key, response in pairs]


def _key(example: Example, response: str) -> str:
    text = f"{example.prompt_text}\0{response}"
    if example.reference is not None or example.tests is not None or example.meta:  # a critic may judge by them
        text += f"\0{digest_of_examples([example])}"
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
