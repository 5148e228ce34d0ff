"""Critics: callables from (examples, responses) to critiques, such as functions, programs, models or people.

All code calls a critic through `ask`. A critic returns `Critique` objects with character offsets, or the texts of
critiques (JSON with quotes), which `ask` parses and whose quotes it locates.
"""

import importlib
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from text2grad.errors import ConfigError, CriticError
from text2grad.feedback.records import Annotation
from text2grad.feedback.spans import Match, critique_from_text
from text2grad.types import Critique, Example, Span


@runtime_checkable
class Critic(Protocol):
    """A callable that writes critiques of responses."""

    def __call__(self, examples: Sequence[Example], responses: Sequence[str], /) -> Sequence[Critique | str]:
        """Return one critique per response, in order."""
        ...


def ask(critic: Critic, examples: Sequence[Example], responses: Sequence[str], *, match: Match) -> list[Critique]:
    """Return the critic's critiques, checked against their responses.

    A critique with a span beyond the response, or with an outcome that is not finite, is no error: it gets the status
    `unparsable`, and δ is 0.

    Args:
        critic: the critic.
        examples: the task instances.
        responses: one per example.
        match: how quotes in the texts of critiques are found: "exact" or "normalized".

    Raises:
        CriticError: if the critic raises an error, or returns a wrong number or type of critiques.
    """
    name = getattr(critic, "__name__", type(critic).__name__)
    try:
        answers = critic(examples, responses)
    except Exception as error:
        raise CriticError(
            f"critic {name} raised {type(error).__name__} on a batch of {len(responses)} responses: {error}. Every "
            "finished step is saved; mend the critic and go on with --resume."
        ) from error
    if not isinstance(answers, Sequence) or isinstance(answers, str):
        raise CriticError(f"critic {name} returned a {type(answers).__name__}; a list of critiques is needed")
    if len(answers) != len(responses):
        raise CriticError(
            f"critic {name} returned {len(answers)} critiques for {len(responses)} responses; one each is needed"
        )
    return [
        _checked(answer, response, match=match, name=name) for answer, response in zip(answers, responses, strict=True)
    ]


def _checked(answer: object, response: str, *, match: Match, name: str) -> Critique:
    if isinstance(answer, str):
        return critique_from_text(answer, response, match=match)
    if not isinstance(answer, Critique):
        raise CriticError(
            f"critic {name} returned a {type(answer).__name__}; a text2grad.Critique or a critique's text is needed"
        )
    if any(span.end > len(response) for span in answer.spans) or not math.isfinite(answer.outcome or 0.0):
        return Critique(answer.feedback, status="unparsable")
    spans = tuple(
        Span(int(span.start), int(span.end), span.label) for span in answer.spans
    )  # numpy numbers, for example
    return replace(answer, spans=spans, outcome=None if answer.outcome is None else float(answer.outcome))


def annotate(
    critic: Critic, examples: Sequence[Example], responses: Sequence[str], *, match: Match = "exact"
) -> list[Annotation]:
    """Return one annotation per response: its prompt, the response and the critic's critique.

    Raises:
        CriticError: if the critic fails.
    """
    critiques = ask(critic, examples, responses, match=match)
    return [
        Annotation(example.prompt_text, response, critique)
        for example, response, critique in zip(examples, responses, critiques, strict=True)
    ]


def load_critic(path: str) -> Critic:
    """Return the critic `module:name`; a class is called without arguments.

    Raises:
        ConfigError: if it cannot be imported, created or called.
    """
    return load_callable(path, "critic")  # type: ignore[no-any-return]


def load_callable(path: str, kind: str) -> Any:
    """Return the function or object `module:name`; a class is called without arguments.

    Args:
        path: "module:name"; modules in the working directory are found.
        kind: its role in words, for errors.

    Raises:
        ConfigError: if it cannot be imported, created or called.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or module_name.startswith("."):
        raise ConfigError(f'a {kind} is given as "module:name", got {path!r}')
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{kind} {path!r} cannot be loaded: {error}") from error
    try:
        found = found() if isinstance(found, type) else found
    except TypeError as error:
        raise ConfigError(f"{kind} {path!r} is a class that cannot be called without arguments: {error}") from error
    if not callable(found):
        raise ConfigError(f"{kind} {path!r} is a {type(found).__name__}, which cannot be called")
    return found
