"""A critic that is never asked twice: what it answered is on disk before it is used."""

import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from text2grad.feedback import Critic, Match, ask, critique_record
from text2grad.files import to_json
from text2grad.types import Critique, Example, Span


class CachedCritic:
    """Passes on what another critic says, and answers from a file what that one was asked before."""

    def __init__(self, critic: Critic, path: Path, *, match: Match = "exact") -> None:
        """Take the critic and the JSONL file of its answers, which need not exist yet.

        Args:
            critic: who is asked.
            path: the file; a last line that was cut off by a crash is passed over.
            match: how quotes are found in the response.
        """
        self.critic, self.path, self.match = critic, path, match
        self.known = _read(path)

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response, asking only for those that are not known.

        Raises:
            CriticError: if the critic fails.
        """
        keys = [_key(example, response) for example, response in zip(examples, responses, strict=True)]
        new = {key: row for row, key in enumerate(keys) if key not in self.known}
        if new:
            rows = list(new.values())
            found = ask(self.critic, [examples[r] for r in rows], [responses[r] for r in rows], match=self.match)
            answers = dict(zip(new, found, strict=True))
            answered = {key: critique for key, critique in answers.items() if critique.status != "timed_out"}
            self._write(answered)  # who did not answer in time is asked again
            self.known |= answered
            return [answers[key] if key in answers else self.known[key] for key in keys]
        return [self.known[key] for key in keys]

    def _write(self, answers: dict[str, Critique]) -> None:
        lines = [to_json({"key": key, "critique": critique_record(critique)}) for key, critique in answers.items()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(b"".join(b"\n" + line for line in lines))  # a line that was cut off ends here
            file.flush()
            os.fsync(file.fileno())


def _key(example: Example, response: str) -> str:
    return sha256(f"{example.prompt_text}\0{response}".encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path) -> dict[str, Critique]:
    known: dict[str, Critique] = {}
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:  # no JSON, or no text: a crash of the machine can leave NULs
            continue  # it is asked again
        critique = record["critique"]
        spans = tuple(Span(*span) for span in critique.pop("spans"))
        known[record["key"]] = Critique(spans=spans, unmatched=tuple(critique.pop("unmatched")), **critique)
    return known
