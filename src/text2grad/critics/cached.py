"""Critics whose critiques are cached in a file, so that no response is judged twice."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

from text2grad.feedback import Critic, Match, ask, content_of, critique_from_json, critique_to_json, digest_of_examples
from text2grad.files import append_records, appended_records
from text2grad.progress import Progress
from text2grad.types import Critique, Example


class CachedCritic:
    """Calls another critic for new pairs of prompt and response only; each critique is on disk before it is returned.

    A line of the file that a crash cut off is ignored.

    Attributes:
        known: the cached critiques as JSON data, by the hash of example and response.
    """

    def __init__(self, critic: Critic, path: Path, *, match: Match = "exact", prompt_end: str | None = None) -> None:
        """Take a critic, the file of its critiques, which need not exist, and how `ask` asks it; it sees thoughts."""
        self.critic, self.path = critic, path
        self.how: dict[str, Any] = {"match": match, "prompt_end": prompt_end}
        self.known: dict[str, Any] = {record["key"]: record["critique"] for record in appended_records(path)}

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response; the critic judges only responses that are not cached.

        Raises:
            CriticError: if the critic fails.
            DataError: if a cached critique is damaged.
        """
        keys, answers = list(map(self.key, examples, responses)), dict[str, Critique]()
        if new := {key: row for row, key in enumerate(keys) if key not in self.known}:
            rows = new.values()
            critiques = ask(self.critic, [examples[r] for r in rows], [responses[r] for r in rows], **self.how)
            answers = dict(zip(new, critiques, strict=True))
            judged = {key: critique for key, critique in answers.items() if critique.status != "timed_out"}
            records = {key: critique_to_json(critique) for key, critique in judged.items()}  # others are asked again
            append_records(self.path, ({"key": key, "critique": record} for key, record in records.items()))
            self.known |= records
        return [
            answers[key] if key in answers else critique_from_json(self.known[key], response, where=str(self.path))
            for key, response in zip(keys, responses, strict=True)
        ]

    def key(self, example: Example, response: str) -> str:
        """Return the hash under which a critique is kept."""
        text = f"{example.prompt_text}\0{content_of(response, self.how['prompt_end'])}"
        if example.reference is not None or example.tests is not None or example.meta:  # a critic may judge by them
            text += f"\0{digest_of_examples([example])}"
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def in_batches(
        self,
        examples: Sequence[Example],
        responses: Sequence[str],
        size: int = 16,
        *,
        phase: str = "run the critic",
        shown: bool = True,
        around: Callable[[int], AbstractContextManager[Any]] = nullcontext,
    ) -> list[Critique]:
        """Return one critique per response; a killed command repeats at most one call, on `size` of them.

        The phase is shown with its progress. `around` gives the context of a call, by the row of its first response.
        """
        critiques: list[Critique] = []
        with Progress(phase, len(responses), unit="response", enabled=shown) as progress:
            for start in range(0, len(responses), size):
                part = slice(start, start + size)
                with around(start):
                    critiques += self(examples[part], responses[part])
                progress.advance(len(critiques) - start)
        return critiques
