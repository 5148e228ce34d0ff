"""Answers from a passage: the share of names and numbers that the passage does not support.

`text2grad evaluate policy MODEL --suite evidence.suites.grounding:grounding=DIR --out OUT`, from a clone.

unsupported_share          unsupported names and numbers / all names and numbers, over all answers
answers_with_unsupported   share of answers with at least one
recall                     recall of the gold answer's words that the passage has; without one, of the passage's words
words                      words per answer

The extractor is that of the task `grounded`, which its critic never sees (evidence/docs/grounded.md). Data is a
directory or a source_info.jsonl of RAGTruth (arXiv 2401.00396), whose response.jsonl says which prompts belong to the
split; or what `python -m evidence prepare-grounded` writes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evidence.tasks.grounded.metric import grounded_metrics
from text2grad.errors import require
from text2grad.evaluation.registry import register_suite
from text2grad.evaluation.suite import (
    Answer,
    AnsweredSuite,
    Question,
    Scores,
    Source,
    SuiteOptions,
    mean_of,
)
from text2grad.feedback import bad_record, json_object, read_entries
from text2grad.types import Example

SOURCE = Source(
    "grounding",
    "the directory with source_info.jsonl and response.jsonl of RAGTruth (ParticleMedia), or what `python -m evidence "
    "prepare-grounded` writes of your own,",
)
_SOURCES, _RESPONSES = "source_info.jsonl", "response.jsonl"


class GroundingSuite(AnsweredSuite):
    """Answers from passages."""

    name = "grounding"
    max_new_tokens = 256

    def __init__(self, options: SuiteOptions) -> None:
        """Read the questions.

        Raises:
            DataError: if the data cannot be used.
            ConfigError: if a package is missing.
        """
        require("spellchecker", extra="train", purpose="suite grounding")
        self.options = options
        self.questions = list(_questions(options))
        about = "unsupported names and numbers / all, over all answers"
        recall = mean_of("recall", over="with_recall", about="recall of the gold answer, or of the passage")
        self.measures = {
            "unsupported_share": mean_of("unsupported", "lower", over="names_and_numbers", about=about),
            "answers_with_unsupported": mean_of(
                "any", "lower", share=True, about="answers with at least one unsupported"
            ),
            "recall": recall,
            "words": mean_of("words", "", about="words per answer"),
        }

    def score(self, answers: Sequence[Answer], folder: Path) -> list[Scores]:
        """Return the counts of each answer."""
        data = [one.question.data for one in answers]
        examples = [Example("", reference=one["reference"], meta=one["meta"]) for one in data]
        _, each = grounded_metrics(examples, [one.text for one in answers])
        return [
            {
                **{key: one[key] for key in ("unsupported", "names_and_numbers", "words")},
                "any": one["unsupported"] > 0,
                **({"recall": one["recall"], "with_recall": 1.0} if "recall" in one else {}),
            }
            for one in each
        ]


def _questions(options: SuiteOptions) -> Iterator[Question]:
    directory = Path(options.data)
    file = directory / _SOURCES if (directory / _SOURCES).exists() else directory
    if options.data and file.name == _SOURCES:
        yield from _of_ragtruth(file, options)
        return
    for entry in SOURCE.entries(options):
        record = json_object(entry.record, entry.where)
        meta = {**{key: value for key, value in record.items() if key not in _TEXTS}, **(record.get("meta") or {})}
        if not isinstance(meta.get("passage"), str) or not isinstance(record.get("prompt"), str | list):
            raise bad_record(entry.where, '"prompt" must be a text or chat messages, and "passage" the text behind it')
        yield _question(str(record.get("id", entry.number)), record["prompt"], record.get("reference"), meta)


_TEXTS = ("prompt", "reference", "tests", "meta")


def _question(name: str, prompt: Any, reference: Any, meta: Mapping[str, Any]) -> Question:
    kept = {"passage": str(meta["passage"]), "question": str(meta.get("question") or "")}
    data = {"reference": reference if isinstance(reference, str) else None, "meta": kept}
    return Question(name, prompt, data=data, stop=("\n\n\n",))


def _of_ragtruth(file: Path, options: SuiteOptions) -> Iterator[Question]:
    """Yield the prompts of RAGTruth, of one split if response.jsonl is there."""
    chosen = _sources_of_split(file.with_name(_RESPONSES), options.split or "test")
    number = 0
    for entry in SOURCE.entries(replace(options, data=str(file), limit=None)):
        record = json_object(entry.record, entry.where)
        name = str(record.get("source_id", entry.number))
        if chosen is not None and name not in chosen:
            continue
        if not isinstance(record.get("prompt"), str) or "source_info" not in record:
            raise bad_record(entry.where, '"prompt" must be a text, and "source_info" the passages behind it')
        yield _question(name, record["prompt"], None, _passage(record["source_info"]))
        number += 1
        if number == options.limit:
            return


def _sources_of_split(file: Path, split: str) -> set[str] | None:
    """Return the sources whose responses belong to a split; None without the file."""
    if not file.exists():
        return None
    records = [json_object(entry.record, entry.where) for entry in read_entries(file)]
    return {str(record.get("source_id")) for record in records if record.get("split") == split}


def _passage(source: Any) -> dict[str, str]:
    """Return passage and question: of a text, of a question with passages, or of a table as JSON."""
    if isinstance(source, str):
        return {"passage": source}
    if isinstance(source, dict) and isinstance(source.get("passages"), str):
        return {"passage": source["passages"], "question": str(source.get("question") or "")}
    return {"passage": json.dumps(source, ensure_ascii=False)}


register_suite("grounding", GroundingSuite, "unsupported names and numbers in answers from a passage")
