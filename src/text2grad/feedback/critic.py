"""Critics: callables from (examples, responses) to critiques, such as functions, programs, models or people.

All code calls a critic through `ask`. A critic returns `Critique` objects with character offsets, or the texts of
critiques (JSON with quotes), which `ask` parses and whose quotes it locates.
"""

import importlib
import math
import sys
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, get_args, runtime_checkable

from text2grad.errors import ConfigError, CriticError, Text2GradError, is_out_of_memory
from text2grad.feedback.records import Annotation
from text2grad.feedback.spans import Match, critique_from_text
from text2grad.feedback.user_code import Responses, described
from text2grad.progress import note
from text2grad.types import Critique, Example, Span, Status

LARGEST_OUTCOME = 1e9  # squares of larger rewards are beyond float32


@runtime_checkable
class Critic(Protocol):
    """A callable that writes critiques of responses."""

    def __call__(self, examples: Sequence[Example], responses: Sequence[str], /) -> Sequence[Critique | str]:
        """Return one critique per response, in order."""
        ...


def check_examples(critic: Critic, examples: Sequence[Example]) -> None:
    """Let a critic with a method `check_examples` refuse examples that it cannot judge, before any work.

    Raises:
        DataError: if it does.
    """
    check = getattr(critic, "check_examples", None)
    if check is not None:
        check(examples)


def ask(critic: Critic, examples: Sequence[Example], responses: Sequence[str], *, match: Match) -> list[Critique]:
    """Return the critic's critiques, checked against their responses.

    A critique with a span beyond the response, or with an outcome that is not finite, is no error: it gets the status
    `unparsable`, δ is 0, and a warning names the response.

    Args:
        critic: the critic.
        examples: the task instances.
        responses: one per example.
        match: how quotes in the texts of critiques are found: "exact" or "normalized".

    Raises:
        CriticError: if the critic raises an error, or returns a wrong number or type of critiques.
    """
    name = getattr(critic, "__name__", type(critic).__name__)
    given = Responses(responses)
    try:
        with chdir(Path.cwd()):  # the critic may change it
            answers = critic(examples, given)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, and a cancelled task
        if is_out_of_memory(error):
            raise  # the trainer names the settings that help
        raise CriticError(_failure(name, error, given)) from error
    if not isinstance(answers, Sequence) or isinstance(answers, str):
        raise CriticError(f"critic {name} returned a {type(answers).__name__}; a list of critiques is needed")
    if len(answers) != len(responses):
        raise CriticError(
            f"critic {name} returned {len(answers)} critiques for {len(responses)} responses; one each is needed"
        )
    checked, odd = [], []
    for number, (answer, response) in enumerate(zip(answers, responses, strict=True), start=1):
        where = f"for response {number} of {len(responses)}"
        critique, problem = _checked(answer, response, match=match, name=f"critic {name} returned {where}")
        checked.append(critique)
        if problem:
            odd.append(f"{where}: {problem}")
    if odd:
        more = f", and {len(odd) - 1} more like it" if len(odd) > 1 else ""
        note(f"critic {name} {odd[0]}{more}; such a critique counts as unparsable, with δ = 0", warning=True)
    return checked


def _failure(name: str, error: BaseException, responses: Responses) -> str:
    """Return the message for an error that a critic raised."""
    if isinstance(error, Text2GradError):
        return f"critic {name}: {error}"
    total = len(responses)
    which = (
        f"a batch of {total} responses" if responses.in_hand is None else f"response {responses.in_hand + 1} of {total}"
    )
    return f"critic {name} failed on {which}: {described(error)}"


def _checked(answer: object, response: str, *, match: Match, name: str) -> tuple[Critique, str]:
    """Return a critique, and why it cannot be used; empty if it can."""
    if isinstance(answer, str):
        return critique_from_text(answer, response, match=match), ""
    if not isinstance(answer, Critique):
        raise CriticError(f"{name} a {type(answer).__name__}; a text2grad.Critique or a critique's text is needed")
    _refuse_types(answer, name)
    beyond = next((span for span in answer.spans if span.end > len(response)), None)
    if beyond is not None:
        problem = f"span {beyond.start}–{beyond.end} ends after the response of {len(response)} characters"
        return Critique(answer.feedback, status="unparsable"), problem
    outcome = None if answer.outcome is None else _number(answer.outcome)
    if outcome is not None and not abs(outcome) <= LARGEST_OUTCOME:
        problem = f"the outcome {outcome} is no finite number of at most {LARGEST_OUTCOME:g}"
        return Critique(answer.feedback, status="unparsable"), problem
    spans = tuple(
        Span(int(span.start), int(span.end), span.label) for span in answer.spans
    )  # numpy numbers, for example
    return replace(answer, spans=spans, outcome=outcome), ""


def _refuse_types(critique: Critique, name: str) -> None:
    """Refuse a critique whose parts have other types than `Critique` names.

    Raises:
        CriticError: with the part, its type and the type that is needed.
    """
    if not isinstance(critique.feedback, str):
        raise CriticError(f"{name} a Critique whose feedback is a {type(critique.feedback).__name__}; a str is needed")
    spans: object = critique.spans
    if not isinstance(spans, Sequence):
        raise CriticError(f"{name} a Critique whose spans are a {type(spans).__name__}; a tuple of Span is needed")
    odd = next((span for span in spans if not isinstance(span, Span)), None)
    if odd is not None:
        raise CriticError(f"{name} a Critique with a {type(odd).__name__} among its spans; text2grad.Span is needed")
    if critique.status not in get_args(Status):
        raise CriticError(f"{name} a Critique of status {critique.status!r}; choose from {', '.join(get_args(Status))}")
    if critique.outcome is not None and _number(critique.outcome) is None:
        kind = type(critique.outcome).__name__
        raise CriticError(f"{name} a Critique whose outcome is a {kind}; a number is needed, or None")


def _number(value: Any) -> float | None:
    """Return a number of Python, NumPy or PyTorch as a float, infinite if too large; None for anything else."""
    try:
        return None if isinstance(value, str) else float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError, RuntimeError):
        return None


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
        ConfigError: if it cannot be imported, created or called; the message names the user's file and line.
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
    if module_name.endswith(".py") or "/" in module_name:
        near = module_name.removesuffix(".py").strip("/").replace("/", ".")
        raise ConfigError(f'a {kind} is given as "module:name", not by its file: "{near}:{attribute}", got {path!r}')
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with chdir(Path.cwd()):  # the module may change it
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            raise ConfigError(
                f"{kind} {path!r} cannot be loaded: there is no module {error.name!r} in {Path.cwd()}, and none is "
                "installed"
            ) from error
        raise ConfigError(
            f"{kind} {path!r} cannot be loaded: importing {module_name} ends in {described(error)}"
        ) from error
    try:
        found: Any = getattr(module, attribute)
    except AttributeError as error:
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        similar = get_close_matches(attribute, names, n=1)
        raise ConfigError(
            f"{kind} {path!r} cannot be loaded: module {module_name!r} has no attribute {attribute!r}"
            + (f'. Did you mean "{similar[0]}"?' if similar else "")
        ) from error
    try:
        found = found() if isinstance(found, type) else found
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{kind} {path!r} is a class that cannot be called without arguments: {described(error)}"
        ) from error
    if not callable(found):
        raise ConfigError(f"{kind} {path!r} is a {type(found).__name__}, which cannot be called")
    return found
