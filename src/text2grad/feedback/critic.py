"""Critics: callables from (examples, responses) to critiques, such as functions, programs, models or people.

All code calls a critic through `ask`, which makes a `Critique` of whatever the critic returns for a response:

    Critique            spans with character offsets
    dict                feedback and quotes, under the keys of `critique_text`
    text                the same as JSON, in any form; a text without quotes is words only, and its δ is 0
    (number, text)      the text, and an outcome for the whole response
    number              the outcome alone: one number per response, as in RLHF

Of several turns a response is a `Conversation`. Spans and quotes of it name turns that the policy wrote; any other one
is unmatched.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, get_args, runtime_checkable

from text2grad.errors import AlignmentError, CriticError, Text2GradError, is_out_of_memory
from text2grad.feedback import turns
from text2grad.feedback.critique_text import parse_critique_object
from text2grad.feedback.process_state import kept_process
from text2grad.feedback.records import Annotation
from text2grad.feedback.spans import Match, critique_from_text, locate_critique
from text2grad.feedback.user_code import described
from text2grad.progress import note
from text2grad.types import LARGEST_REWARD, Critique, Example, Span, Status

Answer = Critique | Mapping[str, Any] | str | tuple[float, str] | float

_OBJECT = re.compile(r"[{]\s*([\"'])\w[^{}:\n]*\1\s*:")  # a quoted key: JSON that was meant to be read, not prose


@runtime_checkable
class Critic(Protocol):
    """A callable that writes critiques of responses."""

    def __call__(self, examples: Sequence[Example], responses: Sequence[str], /) -> Sequence[Answer]:
        """Return one critique per response, in order."""
        ...


def check_examples(critic: Critic, examples: Sequence[Example]) -> None:
    """Let a critic with a method `check_examples` refuse examples that it cannot judge, before any work.

    Raises:
        DataError: if it does.
    """
    if check := getattr(critic, "check_examples", None):
        check(examples)


def ask(
    critic: Critic, examples: Sequence[Example], responses: Sequence[str], *, match: Match, prompt_end: str | None = ""
) -> list[Critique]:
    """Return the critic's critiques, checked against their responses.

    A critique with a span beyond the response, or with an outcome that is not finite, is no error: it gets the status
    `unparsable`, δ is 0, and a warning names the response.

    Args:
        critic: the critic.
        examples: the task instances.
        responses: one per example.
        match: how quotes in the texts of critiques are found: "exact" or "normalized".
        prompt_end: the end of what stands before each text of the policy, which may open a thought. Critics see no
            thoughts unless it is None; spans are those of the responses with them.

    Raises:
        CriticError: if the critic raises an error, or returns a wrong number or type of critiques.
    """
    name = getattr(critic, "__name__", type(critic).__name__)
    shown = [turns.without_thoughts(response, prompt_end) for response in responses]
    try:
        with kept_process(f"critic {name}"):
            answers = critic(examples, list(shown))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit, and a cancelled task
        if is_out_of_memory(error):
            raise  # the trainer names the settings that help
        own = isinstance(error, Text2GradError)
        problem = f": {error}" if own else f" failed on {len(responses)} responses: {described(error)}"
        raise CriticError(f"critic {name}{problem}") from error
    answers = answers.tolist() if hasattr(answers, "tolist") else answers  # scores in an array or a tensor
    if not isinstance(answers, Sequence) or isinstance(answers, str):
        raise CriticError(f"critic {name} returned a {type(answers).__name__}; a list of critiques is needed")
    if len(answers) != len(responses):
        raise CriticError(
            f"critic {name} returned {len(answers)} critiques for {len(responses)} responses; one each is needed"
        )
    checked, odd = [], []
    for number, (answer, response, seen) in enumerate(zip(answers, responses, shown, strict=True), start=1):
        where = f"for response {number} of {len(responses)}"
        critique = _critique(answer, seen, match=match, name=f"critic {name} returned {where}")
        if problem := _problem(critique, seen):
            odd.append(f"{where}: {problem}")
            critique = Critique(critique.feedback, status="unparsable")
        if seen is not response:
            critique = replace(critique, spans=tuple(turns.with_thoughts(critique.spans, response, prompt_end)))
        checked.append(critique)
    if odd:
        more = f", and {len(odd) - 1} more like it" if len(odd) > 1 else ""
        note(f"critic {name} {odd[0]}{more}; such a critique counts as unparsable, with δ = 0", warning=True)
    return checked


def _problem(critique: Critique, response: str) -> str:
    """Return why a critique cannot be used; empty if it can."""
    beyond = next((span for span in critique.spans if span.end > len(response)), None)
    if beyond is not None:
        return f"span {beyond.start}–{beyond.end} ends after the response of {len(response)} characters"
    if critique.outcome is not None and not abs(critique.outcome) <= LARGEST_REWARD:
        return f"the outcome {critique.outcome} is no finite number of at most {LARGEST_REWARD:g}"
    return ""


def _critique(answer: object, response: str, *, match: Match, name: str) -> Critique:
    """Return what a critic gave for a response as a critique with numbers of Python; refuse other kinds."""
    if isinstance(answer, Critique):
        _refuse_types(answer, name)
        given = (  # NumPy's numbers, for example
            replace(span, start=int(span.start), end=int(span.end), weight=_number(span.weight))
            for span in answer.spans
        )
        spans, odd = turns.in_turns(response, given)
        unmatched = (*answer.unmatched, *odd) if odd else answer.unmatched
        return replace(answer, spans=spans, outcome=_number(answer.outcome), unmatched=unmatched)
    if isinstance(answer, Mapping):
        answer = {key: part.tolist() if hasattr(part, "tolist") else part for key, part in answer.items()}
        try:
            return locate_critique(parse_critique_object(answer), response, match=match)
        except AlignmentError as error:  # of a weight
            raise CriticError(f"{name} a dict: {error}") from error
    if isinstance(answer, str):
        critique = critique_from_text(answer, response, match=match)
        words_only = critique.status == "unparsable" and answer.strip() and not _OBJECT.search(answer)
        return Critique(critique.feedback) if words_only else critique
    if isinstance(answer, tuple | list) and len(answer) == 2 and isinstance(answer[1], str):
        blank, number = not answer[1].strip(), _number(answer[0])
        critique = Critique("") if blank else _critique(answer[1], response, match=match, name=name)
    else:
        number, critique = _number(answer), Critique("")
    if number is None:
        raise CriticError(
            f"{name} a {type(answer).__name__}; a text2grad.Critique, a dict with quotes, a text, a pair of number and "
            "text, or a number is needed"
        )
    return replace(critique, outcome=number)


def _refuse_types(critique: Critique, name: str) -> None:
    """Refuse a critique whose parts have other types than `Critique` names."""
    spans: object = critique.spans
    wrong = ""
    if not isinstance(critique.feedback, str):
        wrong = f"whose feedback is a {type(critique.feedback).__name__}; a str is needed"
    elif not isinstance(spans, Sequence):
        wrong = f"whose spans are a {type(spans).__name__}; a tuple of Span is needed"
    elif others := [span for span in spans if not isinstance(span, Span)]:
        wrong = f"with a {type(others[0]).__name__} among its spans; text2grad.Span is needed"
    elif critique.status not in get_args(Status):
        wrong = f"of status {critique.status!r}; choose from {', '.join(get_args(Status))}"
    elif critique.outcome is not None and _number(critique.outcome) is None:
        wrong = f"whose outcome is a {type(critique.outcome).__name__}; a number is needed, or None"
    if wrong:
        raise CriticError(f"{name} a Critique {wrong}")


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
