"""The data sets of the paper (section 4.1, Appendix N), in all published forms: a record → a problem → files of phases.

slf5k           rows of the hub with human "feedback" on "generated_summary_for_feedback", or with the
                "comparison_preference" between two summaries; posts with an "ideal_human_summary"; {id:
                {"generated_summary", "Post"}} of the paper's code.
ultrafeedback   records of the paper's code with "response" and "critique"; binarized pairs of the hub, "chosen" and
                "rejected" as texts or chats; the original with a critique of each completion.
kodcode         "question", "solution", tests, and the programs of other models.

    sft              prompts with references, for `text2grad sft`
    annotate         responses that a language model annotates, for `text2grad annotate`
    preferences      the data set's own preferences between them, for DPO
    train            prompts of the policy's rollouts, for `text2grad train`
    held_out         prompts that no phase learns from

slf5k and kodcode use every prompt in every phase. ultrafeedback divides the prompts by a hash: 30 % for fine-tuning,
50 % for the reward model, 20 % for reinforcement learning. Prompts with equal tests ask for the same program in other
words, as KodCode does, and stay on one side of a split (`split_unit`).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from text2grad.errors import check_known
from text2grad.feedback.record_files import Entry, Object, read_each, read_entries, refuse_half_pairs, shown
from text2grad.feedback.sources.base import Options, Row
from text2grad.feedback.splits import hash_of
from text2grad.types import Example

SUMMARY_PROMPT = "Write an excellent summary of the given text.\n\nTitle: {title}\n\nText: {post}\n\nTL;DR:"
SOLUTIONS = ("4o_solution", "r1_solution")  # columns of KodCode with the program of another model

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
    if not (preference := row.words("comparison_preference")):
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


READERS: Mapping[str, Callable[[Row], Problem]] = {  # the readers of a record by the name of the data set
    "slf5k": _slf5k,
    "kodcode": _kodcode,
    "ultrafeedback": _ultrafeedback,
}

PARTS: Mapping[str, Mapping[str, tuple[float, float]]] = {  # range of the shuffled prompts of each phase; else all
    "ultrafeedback": {"sft": (0.0, 0.3), "annotate": (0.3, 0.8), "train": (0.8, 1.0)}
}

NO_PROMPT = "records without a prompt"
BLANK = "blank responses and references"
EQUAL = "preferences between equal responses"
KNOWN = "records whose prompt is held out or used elsewhere"


class Problems(NamedTuple):
    """The problems of a data set, and the number of texts and records that were left out, by reason."""

    kept: list[Problem]
    left_out: Counter[str]


def read_problems(
    path: str | Path, name: str, *, splits: Sequence[str] = ("train",), without: Iterable[Example] = ()
) -> Problems:
    """Return the problems of a data set; problems with the same prompt are joined.

    Args:
        path: a file, a directory of `datasets`, or the name of a data set on the Hugging Face hub.
        name: a key of `READERS`.
        splits: the splits of a data set, read in order; a file has none.
        without: examples whose prompts, and whose units of a split (`split_unit`), are left out.

    Raises:
        ConfigError: if the name is unknown.
        DataError: if the source cannot be read, has no records, or a record cannot be used.
    """
    check_known("data set", name, tuple(READERS))
    problems, left_out = dict[str, Problem](), Counter[str]()
    known = {text for example in without for text in (str(example.prompt), split_unit(example))}

    def read(entry: Entry, record: Object) -> Problem | None:
        return _usable(READERS[name](Row(entry.where, record, Options())), entry.where, left_out)

    parts = splits[:1] if Path(path).is_file() else splits
    entries = chain.from_iterable(read_entries(path, split=split) for split in parts)
    for problem in filter(None, read_each(path, entries, read)):
        key = str(problem.example.prompt)
        if not known.isdisjoint((key, split_unit(problem.example))):
            left_out[KNOWN] += 1
        else:
            problems[key] = _joined(problems[key], problem) if key in problems else problem
    return Problems(list(problems.values()), +left_out)


def split_unit(example: Example) -> str:
    """Return a text that is equal for prompts that must stay on one side of a split: the tests, or else the prompt."""
    return example.tests or str(example.prompt)


def divide(
    problems: list[Problem], name: str, *, held_out: float, seed: int, most: int | None = None
) -> dict[str, list[Problem]]:
    """Return the problems of each phase; a hash of seed and `split_unit` decides, so that their order does not matter.

    A problem may be in several phases. The preferences are those of the problems to annotate.

    Args:
        problems: of `read_problems`.
        name: the data set, a key of `READERS`.
        held_out: share of the prompts that is held out, at least one if it is above 0; the last with all of its unit.
        seed: of the hash.
        most: most problems, chosen by the same hash, before any is held out; None for all.
    """

    def rank(problem: Problem) -> tuple[str, str]:
        return hash_of(split_unit(problem.example), seed), hash_of(str(problem.example.prompt), seed)

    ranked = sorted(problems, key=rank)[:most]
    count = min(max(1, round(held_out * len(ranked))), len(ranked)) if held_out else 0
    units = [split_unit(problem.example) for problem in ranked]
    while 0 < count < len(units) and units[count] == units[count - 1]:
        count += 1
    rest = ranked[count:]

    def part(phase: str) -> list[Problem]:
        first, last = (round(bound * len(rest)) for bound in PARTS.get(name, {}).get(phase, (0.0, 1.0)))
        return in_order(rest[first:last])

    def in_order(chosen: list[Problem]) -> list[Problem]:
        ids = set(map(id, chosen))
        return [problem for problem in problems if id(problem) in ids]

    return {
        "sft": [problem for problem in part("sft") if problem.example.reference],
        "annotate": [problem for problem in part("annotate") if problem.responses],
        "train": part("train"),
        "held_out": in_order(ranked[:count]),
    }


def phase_lines(phases: Mapping[str, Sequence[Problem]]) -> dict[str, list[Object]]:
    """Return the lines of the file of each phase, and of the preferences that the data set holds."""
    return {name: list(map(_prompt_line, problems)) for name, problems in phases.items()} | {
        "annotate": [line for problem in phases["annotate"] for line in _response_lines(problem)],
        "preferences": [
            {"prompt": problem.example.prompt_text, "chosen": chosen, "rejected": rejected}
            for problem in phases["annotate"]
            for chosen, rejected in problem.pairs
        ],
    }


def _prompt_line(problem: Problem) -> Object:
    example = problem.example
    return {"prompt": example.prompt, "reference": example.reference, "tests": example.tests}


def _response_lines(problem: Problem) -> list[Object]:
    """Return a line for each response, with the feedback of people, if any."""
    line, name = _prompt_line(problem), hash_of(str(problem.example.prompt), 0)[:16]
    lines = [
        {**line, "response": response, "id": f"{name}-{number}", "feedback": feedback}
        for number, (response, feedback) in enumerate(problem.responses)
    ]
    return [{key: text for key, text in line.items() if text} for line in lines]


def _usable(problem: Problem, where: str, left_out: Counter[str]) -> Problem | None:
    """Return a problem without the texts that later phases would refuse, which are counted; None without a prompt."""
    prompt, reference, tests = str(problem.example.prompt), problem.example.reference, problem.example.tests
    texts = [text for pair in (*problem.responses, *problem.pairs) for text in pair]
    refuse_half_pairs(where, prompt=prompt, reference=reference or "", tests=str(tests or ""), text="\n".join(texts))
    if not prompt.strip():
        left_out[NO_PROMPT] += 1
        return None
    responses = tuple(judged for judged in problem.responses if judged[0].strip())
    pairs = tuple(pair for pair in problem.pairs if all(map(str.strip, pair)) and pair[0] != pair[1])
    blank = reference is not None and not reference.strip()
    left_out[EQUAL] += sum(chosen == rejected for chosen, rejected in problem.pairs)
    left_out[BLANK] += max(len(problem.responses) - len(responses), int(blank))
    return Problem(Example(prompt, None if blank else reference, tests), responses, pairs)


def _joined(first: Problem, second: Problem) -> Problem:
    responses = dict(second.responses) | dict(first.responses)
    reference = first.example.reference or second.example.reference
    example = Example(first.example.prompt, reference, first.example.tests or second.example.tests)
    return Problem(example, tuple(responses.items()), tuple(dict.fromkeys(first.pairs + second.pairs)))
