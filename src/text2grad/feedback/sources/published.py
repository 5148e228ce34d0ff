"""The data sets of the paper (section 4.1), in all published forms: a record → a problem.

slf5k           rows of the hub with human "feedback" on "generated_summary_for_feedback", or with the
                "comparison_preference" between two summaries; posts with an "ideal_human_summary"; {id:
                {"generated_summary", "Post"}} of the paper's code.
ultrafeedback   records of the paper's code with "response" and "critique"; binarized pairs of the hub, "chosen" and
                "rejected" as texts or chats; the original with a critique of each completion.
kodcode         "question", "solution", tests, and the programs of other models.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from text2grad.feedback.record_files import shown
from text2grad.feedback.sources.base import Row
from text2grad.types import Example

SUMMARY_PROMPT = "Write an excellent summary of the given text.\n\nTitle: {title}\n\nText: {post}\n\nTL;DR:"
SOLUTIONS = ("4o_solution", "r1_solution")
"""Columns of KodCode with the program of another model."""

Texts = tuple[str, str]


class Problem(NamedTuple):
    """A prompt with all that a data set knows of it.

    Attributes:
        example: the prompt, its reference and its tests.
        responses: responses to it, each with the feedback of people; "" for none.
        pairs: a chosen and a rejected response each.
    """

    example: Example
    responses: tuple[Texts, ...]
    pairs: tuple[Texts, ...] = ()


def _slf5k(row: Row) -> Problem:
    """Return one post with a summary, the feedback on it, and people's choice between two others."""
    if row.get("summary_prompt") is not None:
        prompt = row.text("summary_prompt")
    else:
        post = SUMMARY_PROMPT.format(title=row.words("title"), post=row.first("post", "Post"))
        prompt = post if row.get("title") is not None else post.replace("Title: \n\n", "")
    feedback, reference = row.words("feedback"), row.words("ideal_human_summary")
    if feedback:
        responses = [row.text("generated_summary_for_feedback")]
    else:
        reference = reference or row.words("tldr_human_reference_summary")
        responses = [] if row.get("generated_summary") is None else [row.text("generated_summary")]
    return Problem(Example(prompt, reference or None), tuple((text, feedback) for text in responses), _comparison(row))


def _comparison(row: Row) -> tuple[Texts, ...]:
    """Return the preferred and the other summary of a record of SLF5K, if people compared two."""
    preference = row.words("comparison_preference")
    if not preference:
        return ()
    names = re.findall(r"\b[AB]\b", preference)
    if len(names) != 1:
        raise row.bad(f'"comparison_preference" must name summary A or summary B, got {preference!r}')
    first, second = row.text("generated_summary_for_comparison_A"), row.text("generated_summary_for_comparison_B")
    return ((first, second),) if names == ["A"] else ((second, first),)


def _ultrafeedback(row: Row) -> Problem:
    """Return the responses to one prompt."""
    if row.get("completions") is not None:
        judged: dict[str, str] = {}
        for completion in row.listed("completions"):  # of equal responses the first that has words
            inner = row.inner(completion, "a completion")
            judged[inner.text("response")] = judged.get(inner.text("response")) or inner.words("critique")
        if not judged:
            raise row.bad("there are no completions to read")
        return Problem(Example(row.text("instruction")), tuple(judged.items()))
    if row.get("response") is not None:
        return Problem(Example(row.text("prompt")), ((_answer(row, "response"), row.words("critique")),))
    prompt, chosen, rejected = read_pair(row)
    return Problem(Example(prompt, chosen), _unjudged(chosen, rejected), ((chosen, rejected),))


def read_pair(row: Row) -> tuple[str, str, str]:
    """Return prompt, chosen and rejected response of a preference."""
    return row.text("prompt"), _answer(row, "chosen"), _answer(row, "rejected")


def _answer(row: Row, column: str) -> str:
    """Return a response, given as a text or as the last message of a chat."""
    value = row.get(column)
    if not isinstance(value, list):
        return row.text(column)
    match value[-1:]:
        case [{"role": "assistant", "content": str(text)}]:
            return text
    raise row.bad(f'"{row.name(column)}" must be a chat that ends with the assistant, got {shown(value)}')


def _kodcode(row: Row) -> Problem:
    """Return one problem with its solution, the programs of other models, and its tests."""
    tests, trials = row.first("test", "test_code"), row.get("trials") or {}
    if not isinstance(trials, dict):
        raise row.bad('"trials" must be an object of programs by name')
    example = Example(row.text("question"), row.text("solution"), tests)
    programs = [trial.get("solution_code") for trial in trials.values() if isinstance(trial, dict)]
    programs += [row.words(column) for column in SOLUTIONS]
    others = [program for program in programs if isinstance(program, str) and program.strip()]
    return Problem(example, _unjudged(str(example.reference), *others))


def _unjudged(*responses: str) -> tuple[Texts, ...]:
    """Return responses without feedback, each once."""
    return tuple((text, "") for text in dict.fromkeys(responses))


READERS: Mapping[str, Callable[[Row], Problem]] = {
    "slf5k": _slf5k,
    "kodcode": _kodcode,
    "ultrafeedback": _ultrafeedback,
}
"""The readers of a record by the name of the data set."""
