"""The paper's data sets → the files of its phases (section 4.1, Appendix N).

    demonstrations   prompts with references, for `text2grad sft`
    responses        responses that a language model annotates, for `text2grad annotate`
    prompts          prompts of the policy's rollouts, for `text2grad train`
    held_out         prompts that no phase learns from
    preferences      chosen and rejected responses, for DPO and for a scalar reward model

slf5k and kodcode use every prompt in every phase. ultrafeedback divides the prompts by a hash: 30 % for fine-tuning,
50 % for the reward model, 20 % for reinforcement learning. Prompts with equal tests ask for the same program in other
words, as KodCode does, and stay on one side of a split (`split_unit`).
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from text2grad.errors import DataError, check_known
from text2grad.feedback.preferences import Preference
from text2grad.feedback.record_files import Object, json_object, read_entries, refuse_half_pairs
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import Item, Options, Row
from text2grad.feedback.sources.registry import SOURCES
from text2grad.types import Example

SHARES: Mapping[str, Mapping[str, float]] = {
    "slf5k": {},
    "kodcode": {},
    "ultrafeedback": {"demonstrations": 0.3, "responses": 0.5, "prompts": 0.2},
}
"""Data set → the share of the prompts that each phase gets; without shares each phase gets all."""

NO_PROMPT = "records without a prompt"
BLANK = "blank responses and references"
EQUAL = "preferences between equal responses"
KNOWN = "records whose prompt is held out or used elsewhere"
SOLUTIONS = ("4o_solution", "r1_solution")
"""Columns of KodCode with the program of another model."""


class Problem(NamedTuple):
    """A prompt with all that a data set knows of it.

    Attributes:
        example: the prompt, its reference and its tests.
        responses: responses to it, each with the feedback of people; "" for none.
        pairs: a chosen and a rejected response each.
    """

    example: Example
    responses: tuple[tuple[str, str], ...]
    pairs: tuple[tuple[str, str], ...] = ()


class Problems(NamedTuple):
    """The problems of a data set, and the number of texts and records that were left out, by reason."""

    kept: list[Problem]
    left_out: Counter[str]


class Phases(NamedTuple):
    """The problems of each phase; a problem may be in several."""

    demonstrations: list[Problem]
    responses: list[Problem]
    prompts: list[Problem]
    held_out: list[Problem]


def read_problems(
    path: str | Path, name: str, *, splits: Sequence[str] = ("train",), without: Collection[str] = ()
) -> Problems:
    """Return the problems of a data set, those of one prompt joined.

    Args:
        path: a file, a directory of `datasets`, or the name of a data set on the Hugging Face hub.
        name: a key of `SHARES`.
        splits: the splits of a data set, read in order; a file has none.
        without: prompts to leave out, or units of a split (`split_unit`).

    Raises:
        ConfigError: if the name is unknown.
        DataError: if the source cannot be read, has no records, or a record cannot be used.
    """
    check_known("data set", name, tuple(SHARES))
    found, left_out, records = dict[str, Problem](), Counter[str](), 0
    for split in splits[:1] if Path(path).is_file() else splits:
        for _, where, entry in read_entries(path, split=split):
            records += 1
            row = Row(where, json_object(entry, where), Options())
            for item in SOURCES[name].read(row):
                problem = _usable(_problem(item, row, name), where, left_out)
                if problem is None:
                    continue
                key = str(problem.example.prompt)
                if key in without or split_unit(problem.example) in without:
                    left_out[KNOWN] += 1
                else:
                    found[key] = _joined(found[key], problem) if key in found else problem
    if not records:
        raise DataError(f"{path} has no records")
    return Problems(list(found.values()), +left_out)


def split_unit(example: Example) -> str:
    """Return a text that is equal for prompts that must stay on one side of a split: the tests, or else the prompt."""
    return example.tests or str(example.prompt)


def divide(problems: list[Problem], name: str, *, held_out: float, seed: int, most: int | None = None) -> Phases:
    """Return the problems of each phase; a hash of seed and `split_unit` decides, so that their order does not matter.

    Args:
        problems: of `read_problems`.
        name: a key of `SHARES`.
        held_out: share of the prompts that is held out, at least one if it is above 0; the last with all of its unit.
        seed: of the hash.
        most: most problems, chosen by the same hash, before any is held out; None for all.
    """
    ranked = sorted(problems, key=lambda one: (_hash(split_unit(one.example), seed), _rank(one, seed)))[:most]
    count = min(max(1, round(held_out * len(ranked))), len(ranked)) if held_out else 0
    units = [split_unit(one.example) for one in ranked]
    while 0 < count < len(units) and units[count] == units[count - 1]:
        count += 1
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
    """Return the preferences that the data set holds."""
    return [Preference(one.example.prompt_text, *pair) for one in problems for pair in one.pairs]


def _problem(item: Item, row: Row, name: str) -> Problem:
    """Return an item of a record, with the other responses and the preferences of the record."""
    made, pairs = item.made, _comparison(row) if name == "slf5k" else ()
    if isinstance(made, Annotation):
        reference = row.words("ideal_human_summary") if name == "slf5k" else ""
        return Problem(Example(made.prompt, reference or None), ((made.response, made.critique.feedback),), pairs)
    rejected, response = made.meta.get("rejected"), made.meta.get("response")
    responses = [] if response is None else [str(response)]
    responses += [] if name == "slf5k" or made.reference is None else [made.reference]
    responses += _programs(row) if name == "kodcode" else []
    if rejected is not None:
        responses.append(str(rejected))
        pairs = ((str(made.reference), str(rejected)),)
    told = tuple((one, "") for one in dict.fromkeys(responses))
    return Problem(Example(made.prompt, made.reference, made.tests), told, pairs)


def _usable(problem: Problem, where: str, left_out: Counter[str]) -> Problem | None:
    """Return a problem without the texts that later phases would refuse, which are counted; None without a prompt."""
    prompt, reference, tests = str(problem.example.prompt), problem.example.reference, problem.example.tests
    spoken = [text for one in (*problem.responses, *problem.pairs) for text in one]
    refuse_half_pairs(where, prompt=prompt, reference=reference or "", tests=str(tests or ""), text="\n".join(spoken))
    if not prompt.strip():
        left_out[NO_PROMPT] += 1
        return None
    responses = tuple(one for one in problem.responses if one[0].strip())
    pairs = tuple(one for one in problem.pairs if all(text.strip() for text in one) and one[0] != one[1])
    blank = reference is not None and not reference.strip()
    left_out[EQUAL] += sum(chosen == rejected for chosen, rejected in problem.pairs)
    left_out[BLANK] += max(len(problem.responses) - len(responses), int(blank))
    return Problem(Example(prompt, None if blank else reference, tests), responses, pairs)


def _comparison(row: Row) -> tuple[tuple[str, str], ...]:
    """Return the preferred and the other summary of a record of SLF5K, if people compared two."""
    preference = row.words("comparison_preference")
    if not preference:
        return ()
    names = re.findall(r"\b[AB]\b", preference)
    if len(names) != 1:
        raise row.bad(f'"comparison_preference" must name summary A or summary B, got {preference!r}')
    first, second = row.text("generated_summary_for_comparison_A"), row.text("generated_summary_for_comparison_B")
    return ((first, second),) if names == ["A"] else ((second, first),)


def _programs(row: Row) -> list[str]:
    """Return the programs of other models in a record of KodCode."""
    trials = row.get("trials")
    if trials is not None and not isinstance(trials, dict):
        raise row.bad('"trials" must be an object of programs by name')
    programs = [one.get("solution_code") for one in (trials or {}).values() if isinstance(one, dict)]
    programs += [row.words(column) for column in SOLUTIONS]
    return [program for program in programs if isinstance(program, str) and program.strip()]


def _joined(first: Problem, second: Problem) -> Problem:
    responses = dict(second.responses) | dict(first.responses)
    reference = first.example.reference or second.example.reference
    example = Example(first.example.prompt, reference, first.example.tests or second.example.tests)
    return Problem(example, tuple(responses.items()), tuple(dict.fromkeys(first.pairs + second.pairs)))


def _rank(problem: Problem, seed: int) -> str:
    return _hash(str(problem.example.prompt), seed)


def _hash(text: str, seed: int) -> str:
    return hashlib.sha256(f"{seed} {text}".encode(errors="surrogatepass")).hexdigest()
