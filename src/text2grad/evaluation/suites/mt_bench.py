"""MT-Bench (arXiv 2306.05685): 80 conversations of two turns, each turn rated from 1 to 10 by a judge.

The data is a directory with the files of FastChat: the questions, the judge's prompts and the reference answers.
Mathematics, reasoning and coding are judged with the reference. `score` is the mean over turns; also by turn and by
category.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.config import digest_of
from text2grad.critics.servers import Answer as Reply, Prompt, fill
from text2grad.errors import DataError
from text2grad.evaluation.judging import judge_of, judgements
from text2grad.evaluation.suite import Answer, AnsweredSuite, Question, Scores, Source, SuiteOptions, mean_of
from text2grad.feedback import bad_record, json_object, read_entries, without_reasoning

WITH_REFERENCE = frozenset({"math", "reasoning", "coding"})
TEMPERATURES = {  # temperature of the answers to a category, as FastChat samples them
    **dict.fromkeys(("writing", "roleplay"), 0.7),
    **dict.fromkeys(("extraction", "math", "coding", "reasoning"), 0.0),
    **dict.fromkeys(("stem", "humanities"), 0.1),
}

SOURCE = Source(
    "mt_bench",
    "the directory with question.jsonl, judge_prompts.jsonl and reference_answer/gpt-4.jsonl of FastChat "
    "(lm-sys/FastChat, fastchat/llm_judge/data)",
)
QUESTIONS = ("question.jsonl", "mt_bench_question.jsonl")
PROMPTS = ("judge_prompts.jsonl",)
REFERENCES = ("reference_answer/gpt-4.jsonl", "mt_bench_reference_answer_gpt-4.jsonl")
_RATING = (re.compile(r"\[\[(\d+\.?\d*)\]\]"), re.compile(r"\[(\d+\.?\d*)\]"))


class MTBenchSuite(AnsweredSuite):
    """Ratings of both turns."""

    name = "mt_bench"
    max_new_tokens = 1024

    def __init__(self, options: SuiteOptions) -> None:
        """Read the questions, the judge's prompts and the reference answers."""
        self.options = options
        self.judge = judge_of(self.name, options.judge, temperature=0.0, max_tokens=2048)
        questions, prompts, references = (SOURCE.file(options, names) for names in (QUESTIONS, PROMPTS, REFERENCES))
        read = _records(prompts, name=str, system_prompt=str, prompt_template=str)
        self._templates = {line["name"]: (line["system_prompt"], line["prompt_template"]) for _, line in read}
        read = _records(references, question_id=object, choices=list)
        answers = {str(line["question_id"]): reference_turns(where, line["choices"]) for where, line in read}
        self.questions = list(_questions(questions, answers))[: options.limit]
        self.settings = {"prompts": digest_of(prompts)[:16], "judge": self.judge.model}
        categories = sorted({question.data["category"] for question in self.questions})
        parts = {"turn_1": "1", "turn_2": "2"} | {name: name for name in categories}
        about = "share of judgements without a rating; they are in no mean"
        self.measures = {
            "score": mean_of("rating", over="rated", about="mean rating of both turns, 1 to 10"),
            **{
                name: mean_of(f"rating/{part}", over=f"rated/{part}", about=f"rating of {name.replace('_', ' ')}")
                for name, part in parts.items()
            },
            "unrated": mean_of("unrated", "lower", over="turns", share=True, about=about),
        }

    def score(self, answers: Sequence[Answer], folder: Path) -> list[Scores]:
        """Return ratings of both turns, and how many there are."""
        prompts = [self._prompt(answer, turn) for answer in answers for turn in range(answer.question.turns)]
        replies = iter(judgements(self.judge, prompts, folder))
        return [_scores(answer.question, [read_rating(next(replies)) for _ in answer.answers]) for answer in answers]

    def _prompt(self, answer: Answer, turn: int) -> Prompt:
        """Return the judge's prompt about a turn; that about the second one shows both."""
        data = answer.question.data
        name = "single-math-v1" if data["category"] in WITH_REFERENCE else "single-v1"
        name += "-multi-turn" if turn else ""
        if name not in self._templates:
            raise DataError(f"suite {self.name}: the judge's prompts lack {name!r}; take the whole file of FastChat")
        fields = {"question": data["turns"][0], "answer": answer.answers[0]}
        listed = {"question": data["turns"], "answer": answer.answers, "ref_answer": data["references"]}
        fields |= {f"{key}_{n}": text for key, texts in listed.items() for n, text in enumerate(texts, start=1)}
        system, template = self._templates[name]
        content = fill(template, fields, f"suite {self.name}, prompt {name}")
        return ({"role": "system", "content": system}, {"role": "user", "content": content})


def _scores(question: Question, ratings: Sequence[float | None]) -> Scores:
    category = question.data["category"]
    scores: dict[str, Any] = {"category_name": category, "turns": float(len(ratings))}
    scores["unrated"] = float(ratings.count(None))
    for turn, rating in enumerate(ratings, start=1):
        for name in ("", f"/{turn}", f"/{category}") if rating is not None else ():
            scores[f"rating{name}"] = scores.get(f"rating{name}", 0.0) + rating
            scores[f"rated{name}"] = scores.get(f"rated{name}", 0.0) + 1.0
    return scores


def read_rating(reply: Reply) -> float | None:
    """Return the rating after the reasoning of a judgement, which holds drafts; None without a rating."""
    if reply.finish in ("refused", "too_long"):
        return None
    text = without_reasoning(reply.text)
    rating = next((match for pattern in _RATING if (match := pattern.search(text))), None)
    return float(rating[1]) if rating else None


def _records(path: Path, **kinds: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the record of each line of a file of FastChat, which has values of some kinds."""
    for entry in read_entries(path):
        record = json_object(entry.record, entry.where)
        if any(not isinstance(record.get(key), kind) for key, kind in kinds.items()):
            named = ", ".join(f"{key} ({kind.__name__})" for key, kind in kinds.items())
            raise bad_record(entry.where, f"a record of {path.name} has {named}; take the file of FastChat")
        yield entry.where, record


def reference_turns(where: str, choices: Sequence[Any]) -> list[str]:
    """Return the texts of the first of the reference answers of a question."""
    try:
        return [str(text) for text in choices[0]["turns"]]
    except (LookupError, TypeError) as error:
        raise bad_record(where, '"choices" needs a first entry with "turns"') from error


def _questions(path: Path, references: Mapping[str, Sequence[str]]) -> Iterator[Question]:
    for where, record in _records(path, question_id=object, category=str, turns=list):
        name, category, turns = str(record["question_id"]), record["category"], list(record["turns"])
        if not 1 <= len(turns) <= 2:
            raise bad_record(where, "a question has one or two turns")
        known = list(references.get(name, ()))
        if category in WITH_REFERENCE and len(known) < len(turns):
            raise DataError(f"{where}: question {name} ({category}) has no reference answer; take the whole file")
        data = {"category": category, "turns": turns, "references": known}
        yield Question(name, turns[0], then=tuple(turns[1:]), temperature=TEMPERATURES.get(category, 0.7), data=data)
