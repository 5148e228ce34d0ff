"""The paper's data sets → the files of its phases (section 4.1, Appendix N).

    demonstrations   prompts with references, for `text2grad sft`
    responses        responses that a language model annotates, for `text2grad annotate`
    prompts          prompts of the policy's rollouts, for `text2grad train`
    held_out         prompts that no phase learns from
    preferences      chosen and rejected responses, for DPO and for a scalar reward model

slf5k and kodcode use every prompt in every phase. ultrafeedback divides the prompts by a hash: 30 % for fine-tuning,
50 % for the reward model, 20 % for reinforcement learning.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from text2grad.errors import DataError, check_known
from text2grad.feedback.preferences import Preference
from text2grad.feedback.record_files import Object, json_object, read_entries
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import Options, Row
from text2grad.feedback.sources.registry import SOURCES
from text2grad.types import Example

SHARES: Mapping[str, Mapping[str, float]] = {
    "slf5k": {},
    "kodcode": {},
    "ultrafeedback": {"demonstrations": 0.3, "responses": 0.5, "prompts": 0.2},
}
"""Data set → the share of the prompts that each phase gets; without shares each phase gets all."""


class Problem(NamedTuple):
    """A prompt with all that a data set knows of it.

    Attributes:
        example: the prompt, its reference and its tests.
        responses: responses to it, each with the feedback of people; "" for none.
        rejected: a response that is worse than the reference; "" for none.
    """

    example: Example
    responses: tuple[tuple[str, str], ...]
    rejected: str


class Phases(NamedTuple):
    """The problems of each phase; a problem may be in several."""

    demonstrations: list[Problem]
    responses: list[Problem]
    prompts: list[Problem]
    held_out: list[Problem]


def read_problems(path: str | Path, name: str, *, split: str = "train") -> list[Problem]:
    """Return the problems of a data set, those of one prompt joined.

    Args:
        path: a file, a directory of `datasets`, or the name of a data set on the Hugging Face hub.
        name: a key of `SHARES`.
        split: the split of a data set.

    Raises:
        ConfigError: if the name is unknown.
        DataError: if the source cannot be read, has no records, or a record cannot be used.
    """
    check_known("data set", name, tuple(SHARES))
    found: dict[str, Problem] = {}
    for number, where, entry in read_entries(path, split=split):
        record = json_object(entry, where)
        for problem in _problems(Row(number, where, record, Options()), name):
            key = str(problem.example.prompt)
            found[key] = _joined(found[key], problem) if key in found else problem
    if not found:
        raise DataError(f"{path} has no records")
    return list(found.values())


def divide(problems: list[Problem], name: str, *, held_out: float, seed: int, most: int | None = None) -> Phases:
    """Return the problems of each phase; a hash of seed and prompt decides, so that their order does not matter.

    Args:
        problems: of `read_problems`.
        name: a key of `SHARES`.
        held_out: share of the prompts that is held out, at least one if it is above 0.
        seed: of the hash.
        most: most problems, chosen by the same hash, before any is held out; None for all.
    """
    ranked = sorted(problems, key=lambda one: _rank(one, seed))[:most]
    count = min(max(1, round(held_out * len(ranked))), len(ranked)) if held_out else 0
    rest = ranked[count:]
    parts, before = dict[str, list[Problem]](), 0.0
    for phase in ("demonstrations", "responses", "prompts"):
        share = SHARES[name].get(phase)
        first, last = (before, before + share) if share else (0.0, 1.0)
        parts[phase] = rest[round(first * len(rest)) : round(last * len(rest))]
        before += share or 0.0
    kept = {id(one) for one in ranked[:count]}
    order = {id(one): number for number, one in enumerate(problems)}

    def in_order(part: list[Problem]) -> list[Problem]:
        return sorted(part, key=lambda one: order[id(one)])

    demonstrations = [one for one in parts["demonstrations"] if one.example.reference]
    return Phases(
        in_order(demonstrations),
        in_order([one for one in parts["responses"] if one.responses]),
        in_order(parts["prompts"]),
        [one for one in problems if id(one) in kept],
    )


def responses_to_annotate(problems: list[Problem]) -> Iterator[Object]:
    """Yield the lines of a file for `text2grad annotate`: a response each, with the feedback of people, if any."""
    for problem in problems:
        for number, (response, feedback) in enumerate(problem.responses):
            example = problem.example
            line: Object = {"prompt": example.prompt, "response": response, "id": f"{_rank(problem, 0)[:16]}-{number}"}
            line |= {"reference": example.reference} if example.reference else {}
            line |= {"tests": example.tests} if example.tests else {}
            yield line | ({"feedback": feedback} if feedback else {})


def known_preferences(problems: list[Problem]) -> list[Preference]:
    """Return the preferences that the data set holds: its reference before its rejected response."""
    return [
        Preference(one.example.prompt_text, str(one.example.reference), one.rejected)
        for one in problems
        if one.rejected and one.example.reference
    ]


def _problems(row: Row, name: str) -> Iterator[Problem]:
    for item in SOURCES[name].read(row):
        made = item.made
        if isinstance(made, Annotation):
            reference = row.words("ideal_human_summary") if name == "slf5k" else ""
            example = Example(made.prompt, reference or None)
            yield Problem(example, ((made.response, made.critique.feedback),), "")
            continue
        meta, responses = dict(made.meta), []
        rejected, response = meta.pop("rejected", ""), meta.pop("response", None)
        if response is not None:
            responses.append(str(response))
        if name != "slf5k" and made.reference:
            responses.append(made.reference)
        responses += [str(rejected)] if rejected else []
        responses += _trials(row) if name == "kodcode" else []
        told = tuple((one, "") for one in dict.fromkeys(responses))
        yield Problem(Example(made.prompt, made.reference, made.tests), told, str(rejected))


def _trials(row: Row) -> list[str]:
    """Return the programs of other models in a record of KodCode."""
    trials = row.get("trials")
    if trials is None:
        return []
    if not isinstance(trials, dict):
        raise row.bad('"trials" must be an object of programs by name')
    programs = [one.get("solution_code") for one in trials.values() if isinstance(one, dict)]
    return [program for program in programs if isinstance(program, str) and program.strip()]


def _joined(first: Problem, second: Problem) -> Problem:
    responses = dict(second.responses) | dict(first.responses)
    reference = first.example.reference or second.example.reference
    example = Example(first.example.prompt, reference, first.example.tests or second.example.tests)
    return Problem(example, tuple(responses.items()), first.rejected or second.rejected)


def _rank(problem: Problem, seed: int) -> str:
    return hashlib.sha256(f"{seed} {problem.example.prompt}".encode(errors="surrogatepass")).hexdigest()
