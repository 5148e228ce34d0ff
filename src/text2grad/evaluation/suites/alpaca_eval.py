"""AlpacaEval 2 (arXiv 2404.04475): answers to instructions, compared with a baseline's by a judge; length-controlled.

The judge names the better of two outputs, "m" or "M", with one token. Its preference is the share of one token in the
probability of both if the server gives log-probabilities, else 0 or 1. AlpacaEval shows each pair in one order, drawn
at random; here both orders are judged and averaged, and their difference is measured.

    win_rate                     mean preference for the answer; equal outputs count 0.5
    length_controlled_win_rate   the same predicted for equal lengths (`length_control`), with df_gamed.csv
    first_place                  mean preference for the output that stands first: 0.5 without position bias
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from text2grad.config import digest_of
from text2grad.critics.servers import Answer as Reply, Prompt, ResponseFormat, fill
from text2grad.errors import DataError
from text2grad.evaluation.judging import judge_of, judgements
from text2grad.evaluation.suite import Answer, AnsweredSuite, Counts, Question, Scores, Source, SuiteOptions, mean_of
from text2grad.evaluation.suites.length_control import length_controlled, read_gamed
from text2grad.feedback import bad_record
from text2grad.progress import note

PROMPT, GAMED = "alpaca_eval_clf.txt", "df_gamed.csv"
DATA = ("alpaca_eval.json", "alpaca_eval_gpt4_baseline.json", "alpaca_eval.jsonl")
SOURCE = Source(
    "alpaca_eval",
    "alpaca_eval_gpt4_baseline.json of tatsu-lab/alpaca_eval on the Hugging Face hub (df_gamed.csv of the same data "
    "set beside it gives the length-controlled win rate), or other records with instruction and a baseline's output,",
)
_MESSAGE = re.compile(  # of ChatML; the last one needs no end
    r"<\|im_start\|>[ \t]*(system|user|assistant)[ \t]*\n(.*?)(?:<\|im_end\|>|(?=<\|im_start\|>)|\Z)", re.DOTALL
)
_FORMAT = ResponseFormat("logprobs", 5)  # log-probabilities of the five most likely tokens


class AlpacaEvalSuite(AnsweredSuite):
    """Answers compared with the answers of a baseline."""

    name = "alpaca_eval"
    max_new_tokens = 2048

    def __init__(self, options: SuiteOptions) -> None:
        """Read instructions, the baseline's outputs, the judge's prompt and the rows of length control."""
        self.options = options
        self.judge = judge_of(self.name, options.judge, temperature=1.0, max_tokens=1)
        if Path(options.data).is_dir() or not options.data:
            options = replace(options, data=str(SOURCE.file(options, DATA)))
        directory = Path(options.data).parent
        self.questions = list(_questions(options))
        self._template = _template(directory)
        gamed = directory / GAMED
        self.gamed = read_gamed(gamed, len(self.questions)) if gamed.exists() else None
        if self.gamed is None:
            told = "of tatsu-lab/alpaca_eval on the Hugging Face hub) the length-controlled win rate is left out"
            note(f"suite {self.name}: without {gamed} ({GAMED} {told}", warning=True)
        self.settings = {
            "prompt": sha256(self._template.encode()).hexdigest()[:16],
            "judge": self.judge.model,
            "length_control": self.gamed and digest_of(gamed),
        }
        about = "win rate predicted for outputs of equal length"
        own = {"length_controlled_win_rate": mean_of("controlled", share=True, about=about)} if self.gamed else {}
        bias = "mean preference for the output that stands first: 0.5 without position bias"
        unread = "share of comparisons in which a verdict is neither m nor M"
        unweighed = "share of comparisons judged without log-probabilities: a preference is 0 or 1"
        self.measures = {
            **own,
            "win_rate": mean_of("preference", over="judged", share=True, about="mean preference, both orders averaged"),
            "first_place": mean_of("first place", "", over="asked", about=bias),
            "unjudged": mean_of("unjudged", "lower", share=True, about=unread),
            "unweighed": mean_of("unweighed", "lower", over="asked", share=True, about=unweighed),
        }

    def score(self, answers: Sequence[Answer], folder: Path) -> list[Scores]:
        """Return the preference for each answer, also length-controlled."""
        asked = [answer for answer in answers if answer.text != answer.question.data["baseline"]]
        prompts = [self._prompt(answer, swapped=swapped) for answer in asked for swapped in (False, True)]
        replies = iter(judgements(self.judge, prompts, folder, _FORMAT))
        counts: list[Counts] = []
        for answer in answers:
            if answer.text == answer.question.data["baseline"]:
                counts.append({"preference": 0.5, "judged": 1.0})
            else:
                pair = next(replies), next(replies)
                own = preference_counts(*map(read_preference, pair))
                unweighed = not all(reply.text.startswith("{") for reply in pair)  # not JSON with log-probabilities
                counts.append(own | {"unweighed": own.get("asked", 0.0) * unweighed})
        if self.gamed is None:
            return list(counts)
        for number in {answer.sample for answer in answers}:  # each set of answers by itself
            rows = [(answer, own) for answer, own in zip(answers, counts, strict=True) if answer.sample == number]
            controlled = length_controlled(
                [own.get("preference") for _, own in rows],
                [len(answer.question.data["baseline"]) for answer, _ in rows],
                [len(answer.text) for answer, _ in rows],
                [int(answer.question.id) for answer, _ in rows],
                self.gamed,
            )
            for (_, own), value in zip(rows, controlled, strict=True):
                own["controlled"] = value
        return list(counts)

    def _prompt(self, answer: Answer, *, swapped: bool) -> Prompt:
        texts = (answer.question.data["baseline"], answer.text)[:: -1 if swapped else 1]
        fields = {"instruction": str(answer.question.prompt), "output_1": texts[0], "output_2": texts[1]}
        return messages_of(self._template, fields, f"suite {self.name}, {PROMPT}")


def preference_counts(before: float | None, after: float | None) -> Counts:
    """Return the counts of a comparison.

    `before` is the preference for the first place when the baseline stands there, `after` when the answer does.

    Example:
        >>> preference_counts(0.25, 0.75)  # (0.75 + 0.75) / 2; the first place: (0.25 + 0.75) / 2
        {'preference': 0.75, 'judged': 1.0, 'first place': 0.5, 'asked': 1.0}
    """
    if before is None or after is None:
        return {"unjudged": 1.0}
    preference, place = (1.0 - before + after) / 2, (before + after) / 2
    return {"preference": preference, "judged": 1.0, "first place": place, "asked": 1.0}


def read_preference(reply: Reply) -> float | None:
    """Return the preference for the first output in a reply; None if it names neither output.

    With log-probabilities it is P(m) / (P(m) + P(M)), as in AlpacaEval's weighted judge; a token that is not among
    the most likely ones has probability 0.
    """
    if reply.finish in ("refused", "too_long"):
        return None
    try:
        top = json.loads(reply.text)["logprobs"]
        known = {token: float(top[token]) for token in ("m", "M") if token in top}
    except (ValueError, LookupError, TypeError):
        return {"m": 1.0, "M": 0.0}.get(reply.text.strip().strip("\"'.`"))
    if not known:
        return None
    weights = {token: math.exp(value - max(known.values())) for token, value in known.items()}
    return weights.get("m", 0.0) / sum(weights.values())


def messages_of(template: str, fields: Mapping[str, str], where: str) -> Prompt:
    """Return a prompt in ChatML (<|im_start|>role … <|im_end|>) as chat messages with its fields filled."""
    messages = _MESSAGE.findall(template)
    if not messages or len(messages) != template.count("<|im_start|>"):
        raise DataError(f"{where}: the prompt is not in ChatML (<|im_start|>user …); take the file of AlpacaEval")
    return tuple({"role": role, "content": fill(text.strip(), fields, where)} for role, text in messages)


def _template(directory: Path) -> str:
    """Return the judge's prompt, a file beside the data."""
    if not (directory / PROMPT).exists():
        raise DataError(
            f"suite alpaca_eval: the judge's prompt is missing: put {PROMPT} beside the data ({directory}), from "
            "src/alpaca_eval/evaluators_configs/alpaca_eval_clf_gpt4_turbo of tatsu-lab/alpaca_eval"
        )
    return (directory / PROMPT).read_text("utf-8")


def _questions(options: SuiteOptions) -> Iterator[Question]:
    """Yield the instructions with the outputs of the baseline."""
    for number, (_, where, record) in enumerate(SOURCE.entries(options)):
        instruction, output = record.get("instruction"), record.get("output")
        if not isinstance(instruction, str) or not isinstance(output, str):
            raise bad_record(where, 'needs the texts "instruction" and "output", the baseline\'s')
        yield Question(str(number), instruction, data={"baseline": output})
