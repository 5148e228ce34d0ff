"""Base of the critics that are programs: (prompt, response) → findings → a critique in sentences, with spans.

A critique goes through the response in order. Each sentence first states the truth and then judges the quotes from the
response: a model that learns to write the critiques has the truth beside the quote when it judges. With `truths` off
the sentences judge only; the spans are the same.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from random import Random
from typing import Any

from text2grad.types import Critique, Example, Span

STYLES = 2  # wordings of each judgement; a critique keeps to one: random wording is noise for the reward model


@dataclass(frozen=True, slots=True)
class Finding:
    """One judged piece of an answer, characters [start, end)."""

    kind: str  # the judgement; "right" becomes a positive span, every other kind a negative one
    start: int
    end: int
    about: Any = None  # the fact or the step that the piece is about


@dataclass(frozen=True, slots=True)
class ProgramCritic(ABC):
    """Judges answers in words: `critic(examples, responses)` returns one critique for each response."""

    truths: bool = True  # the words state the truth beside the quotes

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique for each response.

        Raises:
            DataError: if an example is not of this task.
        """
        return [
            self.judge(example, response, seeded_random(example.prompt_text, response))
            for example, response in zip(examples, responses, strict=True)
        ]

    @abstractmethod
    def judge(self, example: Example, response: str, rng: Random) -> Critique:
        """Judge one response; `rng` chooses the wording, so it is seeded with prompt and response."""


def judged(feedback: str, findings: Iterable[Finding], outcome: float | None = None) -> Critique:
    """Return a critique in words with the findings that it quotes."""
    spans = (Span(quote.start, quote.end, "positive" if quote.kind == "right" else "negative") for quote in findings)
    return Critique(feedback, tuple(spans), outcome)


def seeded_random(*parts: object) -> Random:
    """Return a generator that is seeded by the parts alone: the same on every machine and in every process."""
    return Random(sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest())


def sentences(
    findings: Iterable[Finding], truth: Callable[[Finding], str | None], verdict: Callable[[Finding], str]
) -> list[str]:
    """Return one sentence for each run of findings with the same truth: the truth, then the verdict on each quote.

    Without a truth (None) each verdict, which is the quote and the judgement on it, is a sentence of its own.
    """
    sentences = []
    for fact, run in groupby(findings, key=truth):
        judged = [verdict(finding) for finding in run]
        sentences += [f"{text}." for text in judged] if fact is None else [f"{fact}: {' and '.join(judged)}."]
    return sentences


def bare(wording: str) -> str:
    """Return a wording without its fields.

    Example:
        >>> bare("{quote} is the wrong {noun}")
        ' is the wrong '
    """
    return re.sub(r"\{\w+\}", "", wording)
