"""AlpacaEval 2 (arXiv 2404.04475): answers to instructions, compared with a baseline's by a judge; length-controlled.

The judge names the better of two outputs, "m" or "M", with one token. Its preference is the share of one token in the
probability of both if the server gives log-probabilities, else 0 or 1. AlpacaEval shows each pair in one order, drawn
at random; here both orders are judged and averaged, and their difference is measured.

    win_rate                     mean preference for the answer; equal outputs count 0.5
    length_controlled_win_rate   the same predicted for equal lengths (`length_control`), with df_gamed.csv
    first_place                  mean preference for the output that stands first: 0.5 without position bias
"""

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from text2grad.critics.servers import Prompt, Reply, ResponseFormat
from text2grad.errors import DataError, require
from text2grad.evaluation.intervals import Ratio
from text2grad.evaluation.judging import fill, judge_of
from text2grad.evaluation.suite import (
    Answered,
    JudgedSuite,
    Measure,
    Question,
    Scores,
    SuiteOptions,
    digest_of_questions,
)
from text2grad.evaluation.suites.length_control import GamedRows, length_controlled
from text2grad.feedback import bad_record, json_object, read_entries
from text2grad.progress import note

PROMPT, GAMED = "alpaca_eval_clf.txt", "df_gamed.csv"
DATA = ("alpaca_eval.json", "alpaca_eval_gpt4_baseline.json", "alpaca_eval.jsonl")
_IN_PACKAGE = "evaluators_configs/alpaca_eval_clf_gpt4_turbo"
_TOP = 5  # most likely tokens whose log-probabilities are requested
_FORMAT = ResponseFormat("logprobs", _TOP)
_WAY_OUT = (
    "Give --data alpaca_eval=FILE or DIR: alpaca_eval_gpt4_baseline.json of tatsu-lab/alpaca_eval on the Hugging Face "
    "hub (a list of records with instruction and the baseline's output); df_gamed.csv of the same data set beside it "
    "gives the length-controlled win rate"
)


class AlpacaEvalSuite(JudgedSuite):
    """Answers compared with those of a baseline."""

    name = "alpaca_eval"
    max_new_tokens = 2048

    def __init__(self, options: SuiteOptions) -> None:
        """Read instructions, the baseline's outputs, the judge's prompt and the rows of length control.

        Raises:
            DataError: if a file is absent or cannot be used.
            ConfigError: if no judge is named.
        """
        self.options = options
        given = judge_of(self.name, options.judge)
        self.judge = given.set_to(temperature=1.0, max_tokens=1)
        file = _data_file(options.data)
        self._template = _template(file.parent)
        others = dict(_outputs(Path(options.against))) if options.against else None
        self.questions = list(_questions(file, others))[: options.limit]
        self.gamed = self._read_gamed(file.parent / GAMED)
        self.measures = self._measures()

    def _read_gamed(self, path: Path) -> GamedRows | None:
        if not path.exists():
            note(
                f"suite {self.name}: without {path} (df_gamed.csv of tatsu-lab/alpaca_eval on the Hugging Face hub) "
                "the length-controlled win rate is left out",
                warning=True,
            )
            return None
        require("sklearn", extra="eval", purpose="the length-controlled win rate of AlpacaEval")
        return read_gamed(path, len(self.questions))

    def _measures(self) -> Mapping[str, Measure]:
        own = Measure(
            Ratio(("controlled",), ("answers",), share=True), about="win rate predicted for outputs of equal length"
        )
        bias = "mean preference for the output that stands first: 0.5 without position bias"
        unread = "share of comparisons in which a verdict is neither m nor M"
        return {
            **({"length_controlled_win_rate": own} if self.gamed else {}),
            "win_rate": Measure(
                Ratio(("preference",), ("judged",), share=True), about="mean preference, both orders averaged"
            ),
            "first_place": Measure(Ratio(("first place",), ("asked",)), "", about=bias),
            "unjudged": Measure(Ratio(("unjudged",), ("answers",), share=True), "lower", about=unread),
            "characters": Measure(Ratio(("characters",), ("answers",)), "", shown=False, about="length of an answer"),
        }

    def identity(self) -> dict[str, Any]:
        """Return questions, baseline, prompt, judge and the rows of length control."""
        return {
            "suite": self.name,
            "questions": digest_of_questions(self.questions),
            "prompt": sha256(self._template.encode()).hexdigest()[:16],
            "judge": self.judge.endpoint.model,
            "length_control": None if self.gamed is None else self.gamed.digest(),
        }

    def score(self, answered: Sequence[Answered], folder: Path) -> list[Scores]:
        """Return the preference for each answer, also length-controlled."""
        phase, prompts = f"{self.name}: verdicts", self.prompts(answered)
        replies = iter(self.judge.ask(prompts, folder, phase=phase, response_format=_FORMAT))
        found: list[dict[str, Any]] = []
        for one in answered:
            alike = one.answer.text == one.question.data["baseline"]
            firsts = None if alike else [read_preference(next(replies)) for _ in range(2)]
            found.append({**preference_counts(firsts), "characters": float(len(one.answer.text))})
        if self.gamed is not None and found:
            self._control(answered, found)
        return list(found)

    def prompts(self, answered: Sequence[Answered]) -> list[Prompt]:
        """Return two requests for each answer that differs from the baseline's, one per order."""
        asked = [one for one in answered if one.answer.text != one.question.data["baseline"]]
        return [self._prompt(one, swapped=swapped) for one in asked for swapped in (False, True)]

    def _control(self, answered: Sequence[Answered], found: Sequence[dict[str, Any]]) -> None:
        """Add the length-controlled preferences, from the answers with the same sample number together."""
        assert self.gamed is not None
        samples = sorted({one.answer.sample for one in answered})
        for sample in samples:
            rows = [row for row, one in enumerate(answered) if one.answer.sample == sample]
            predicted = length_controlled(
                [found[row].get("preference") for row in rows],
                [len(answered[row].question.data["baseline"]) for row in rows],
                [len(answered[row].answer.text) for row in rows],
                [int(answered[row].question.data["index"]) for row in rows],
                self.gamed,
            )
            for row, value in zip(rows, predicted, strict=True):
                found[row]["controlled"] = value

    def _prompt(self, one: Answered, *, swapped: bool) -> Prompt:
        texts = (one.question.data["baseline"], one.answer.text)
        first, second = reversed(texts) if swapped else texts
        fields = {"instruction": one.question.data["instruction"], "output_1": first, "output_2": second}
        return messages_of(self._template, fields, f"suite {self.name}, {PROMPT}")


def preference_counts(firsts: Sequence[float | None] | None) -> dict[str, float]:
    """Return the counts of a comparison.

    Args:
        firsts: preference for the first place when the baseline stands first, and when the answer does; None for equal
            outputs.

    Example:
        >>> preference_counts([0.25, 0.75])  # (0.75 + 0.75) / 2; the first place: (0.25 + 0.75) / 2
        {'preference': 0.75, 'judged': 1.0, 'first place': 0.5, 'asked': 1.0}
    """
    if firsts is None:
        return {"preference": 0.5, "judged": 1.0}
    before, after = firsts
    if before is None or after is None:
        return {"unjudged": 1.0}
    preference, place = (1.0 - before + after) / 2, (before + after) / 2
    return {"preference": preference, "judged": 1.0, "first place": place, "asked": 1.0}


def read_preference(reply: Reply) -> float | None:
    """Return the preference for the first output in a reply; None if it names neither output.

    With log-probabilities it is P(m) / (P(m) + P(M)), as in AlpacaEval's weighted judge; a token that is not among
    the most likely ones has probability 0.
    """
    answer = reply.answer
    if answer is None or answer.finish in ("refused", "too_long"):
        return None
    try:
        top = json.loads(answer.text)["logprobs"]
        known = {token: float(top[token]) for token in ("m", "M") if token in top}
    except (ValueError, LookupError, TypeError):
        word = answer.text.strip().strip("\"'.`")
        return {"m": 1.0, "M": 0.0}.get(word)
    if not known:
        return None
    highest = max(known.values())
    weights = {token: math.exp(value - highest) for token, value in known.items()}
    return weights.get("m", 0.0) / sum(weights.values())


def messages_of(template: str, fields: Mapping[str, str], where: str) -> Prompt:
    """Return a prompt in ChatML (<|im_start|>role … <|im_end|>) as chat messages with its fields filled.

    Raises:
        DataError: if the template is not ChatML, or has an unknown field.
    """
    messages = []
    for part in template.split("<|im_start|>")[1:]:
        role, _, text = part.partition("\n")
        content = text.partition("<|im_end|>")[0].strip()
        messages.append({"role": role.strip(), "content": fill(content, fields, where)})
    if not messages or any(one["role"] not in ("system", "user", "assistant") for one in messages):
        raise DataError(f"{where}: the prompt is not in ChatML (<|im_start|>user …); take the file of AlpacaEval")
    return tuple(messages)


def read_gamed(path: Path, questions: int) -> GamedRows:
    """Read df_gamed.csv: judgements of two baselines with lengths that were changed on purpose.

    Raises:
        DataError: if it cannot be read, or lacks the difficulty of a question.
    """
    columns = ("index", "preference", "std_delta_len", "not_gamed_baseline", "instruction_difficulty")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        rows = [
            (
                int(float(line["index"])),
                float(line["preference"] or "nan"),
                float(line["std_delta_len"]),
                line["not_gamed_baseline"].strip().casefold() in ("true", "1", "1.0"),
                float(line["instruction_difficulty"]),
            )
            for line in lines
        ]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} is not df_gamed.csv of tatsu-lab/alpaca_eval ({error!r}); it needs {columns}"
        ) from error
    found = GamedRows.of(rows)
    missing = [number for number in range(questions) if number not in found.difficulty]
    if missing:
        raise DataError(
            f"{path} lacks the difficulty of {len(missing)} of {questions} instructions, such as number {missing[0]}; "
            "take the file of the same data set"
        )
    return found


def _data_file(data: str) -> Path:
    path = Path(data)
    if not data or not path.exists():
        said = f"there is no {data}" if data else "no data is given"
        raise DataError(f"suite alpaca_eval: {said}. {_WAY_OUT}")
    if not path.is_dir():
        return path
    found = next((path / name for name in DATA if (path / name).exists()), None)
    if found is None:
        raise DataError(f"suite alpaca_eval: {path} has no {' or '.join(DATA)}. {_WAY_OUT}")
    return found


def _template(directory: Path) -> str:
    """Return the judge's prompt: of the file beside the data, or of the installed package."""
    places = [directory / PROMPT]
    found = find_spec("alpaca_eval")
    places += (
        [Path(place) / _IN_PACKAGE / PROMPT for place in (found.submodule_search_locations or ())] if found else []
    )
    for place in places:
        if place.exists():
            return place.read_text("utf-8")
    raise DataError(
        f"suite alpaca_eval: the judge's prompt is missing: put {PROMPT} beside the data ({directory}), from "
        f"src/alpaca_eval/{_IN_PACKAGE} of tatsu-lab/alpaca_eval, or install the "
        "package alpaca_eval"
    )


def _outputs(path: Path) -> Iterator[tuple[str, str]]:
    """Yield instruction and output of a file of outputs."""
    for entry in read_entries(path):
        record = json_object(entry.record, entry.where)
        instruction, output = record.get("instruction"), record.get("output")
        if not isinstance(instruction, str) or not isinstance(output, str):
            raise bad_record(entry.where, 'needs the texts "instruction" and "output"')
        yield instruction, output


def _questions(path: Path, others: Mapping[str, str] | None) -> Iterator[Question]:
    """Yield the instructions with the outputs of the baseline: of another file, or of the same."""
    for number, entry in enumerate(read_entries(path)):
        record = json_object(entry.record, entry.where)
        instruction = record.get("instruction")
        if not isinstance(instruction, str):
            raise bad_record(entry.where, 'needs the text "instruction"')
        output = record.get("output") if others is None else others.get(instruction)
        if not isinstance(output, str):
            way_out = f"the instruction {instruction[:60]!r} has no output of the baseline"
            raise bad_record(entry.where, f"{way_out}: give outputs to all with --against alpaca_eval=FILE")
        data = {"instruction": instruction, "baseline": output, "index": number}
        yield Question(str(number), instruction, data=data)
