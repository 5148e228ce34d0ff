"""Texts: summaries or other answers compared with references, and the perplexity of a text file.

summarization
    rouge1 rouge2 rougeL   of `words`, as the next three
    bleu
    bertscore              with `--bertscore MODEL`
    perplexity             of the answers under `--perplexity MODEL`, per token
    words                  length in words

perplexity
    perplexity             of the texts under the model itself; only models of one tokenizer compare
    bits_per_byte          nats / ln 2 / bytes in UTF-8, which compares models of any tokenizer
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.errors import DataError
from text2grad.evaluation import words
from text2grad.evaluation.subjects import LoadedModel
from text2grad.evaluation.suite import (
    Answer,
    AnsweredSuite,
    Counts,
    ExaminedSuite,
    Measure,
    Question,
    Scores,
    Source,
    SuiteOptions,
    digest_of_questions,
    entries_of,
    mean_of,
)
from text2grad.feedback import bad_record, json_object
from text2grad.files import read_text
from text2grad.progress import Progress

SUMMARIES = Source(
    'a JSONL file with "prompt" and "reference", such as `text2grad feedback prepare slf5k` writes, your own or SLF5K,'
)
TEXTS = Source('a text file, or a JSONL file with "text", your own or WikiText,')
_PROMPTS = ("prompt", "summary_prompt")
_TEXTS = ("text", "reference", "post", "article", "chosen")
_REFERENCES = ("reference", "references", "ideal_human_summary", "summary", "highlights")
_SOURCES = ("source", "passage", "post", "document", "article")


class SummarizationSuite(AnsweredSuite):
    """Answers compared with references."""

    name = "summarization"
    max_new_tokens = 128

    def __init__(self, options: SuiteOptions) -> None:
        """Read the questions."""
        words.require_ngrams("suite summarization")
        self.options, self.questions = options, list(_summaries(options))
        self.judges = {"BERTScore": options.bertscore, "perplexity": options.perplexity_model}
        self.settings = {name: getattr(options, name) for name in ("perplexity_model", "bertscore")}
        self.measures = dict(self._measures())

    def _measures(self) -> Iterator[tuple[str, Measure]]:
        encoder, reader = (Path(path).name for path in self.judges.values())
        about = dict.fromkeys(words.ROUGE, "F-measure of rouge-score, stemmed")
        about |= {"bleu": "sacrebleu, all answers together, 0 to 100"} | (
            {"bertscore": f"F1 by {encoder}"} if encoder else {}
        )
        if any(question.data["references"] for question in self.questions):
            yield from ((name, Measure(words.OVERLAPS[name], about=told)) for name, told in about.items())
        if reader:
            yield "perplexity", Measure(words.PERPLEXITY, "lower", f"of the answers under {reader}, per token")
        yield "words", mean_of("words", "", about="length of an answer")

    def check(self) -> None:
        """Check the models that judge by their configs; they are loaded when the policy has left the memory."""
        for purpose, path in self.judges.items():
            words.check_scorer(path, purpose)

    def score(self, answers: Sequence[Answer], folder: Path) -> list[Scores]:
        """Return the scores of each answer; `bleu/…` are counts of sacrebleu."""
        encoder, reader = (words.load_scorer(path, purpose) for purpose, path in self.judges.items())
        wording, rows = words.Wording(True, encoder, reader), list[Scores]()
        with Progress(f"{self.name}: scores", len(answers), unit="answer") as progress:
            for answer in answers:
                text, references = answer.text.strip(), answer.question.data["references"]
                overlap = wording.beside(text, references) if references else {}
                rows.append({"words": float(len(words.words_of(text))), **overlap, **wording.alone(text)})
                progress.advance()
        return rows


def _summaries(options: SuiteOptions) -> Iterator[Question]:
    """Yield the questions of a file of prompts; several common names of the columns are known."""
    for entry in entries_of("summarization", options, SUMMARIES):
        record = json_object(entry.record, entry.where)
        record = {**(record.get("meta") or {}), **record}
        prompt = _first(record, _PROMPTS)
        source = str(_first(record, _SOURCES) or "")
        if prompt is None and source:
            prompt = f"Summarize the following text.\n\n{source}"
        if not isinstance(prompt, str | list):
            raise bad_record(entry.where, '"prompt" must be a text or chat messages, or "source" the text to summarize')
        known = _first(record, _REFERENCES) or []
        references = [known] if isinstance(known, str) else list(known)
        name = str(record.get("id", entry.number))
        yield Question(name, prompt, data={"references": references}, stop=("\n\n\n",))


def _first(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the first value that is not empty."""
    return next((record[key] for key in keys if record.get(key)), None)


class PerplexitySuite(ExaminedSuite):
    """Perplexity of texts under the model itself."""

    name = "perplexity"

    def __init__(self, options: SuiteOptions) -> None:
        """Read the texts."""
        self.options, self.texts = options, list(_texts(options))
        self.settings = {"texts": digest_of_questions([Question(name, text) for name, text in self.texts])}
        self.measures = {
            "perplexity": Measure(words.PERPLEXITY, "lower", "per token"),
            "bits_per_byte": mean_of("bits", "lower", over="bytes", about="compares any tokenizers"),
        }

    def examine(self, model: LoadedModel) -> list[tuple[str, Counts]]:
        """Return nats, tokens and bytes of each text."""
        reader, rows = words.Scorer(model.model, model.tokenizer), list[tuple[str, Counts]]()
        with Progress(f"{self.name}: {model.subject.name}", len(self.texts), unit="text") as progress:
            for name, text in self.texts:
                nats, tokens = words.text_nats(reader, text)
                size = float(len(text.strip().encode()))
                rows.append((name, {"nats": nats, "tokens": tokens, "bits": nats / math.log(2), "bytes": size}))
                progress.advance()
        return rows


def _texts(options: SuiteOptions) -> Iterator[tuple[str, str]]:
    """Yield names and texts: of a text file its paragraphs, else the first of the known keys of each record."""
    file = Path(options.data)
    if options.data and file.is_file() and not file.name.endswith((".jsonl", ".json", ".gz", ".csv", ".parquet")):
        paragraphs = [paragraph for paragraph in read_text(file).split("\n\n") if paragraph.strip()]
        if not paragraphs:
            raise DataError(f"suite perplexity: {options.data} holds no text")
        yield from ((str(number), text) for number, text in enumerate(paragraphs[: options.limit], start=1))
        return
    for entry in entries_of("perplexity", options, TEXTS):
        record = json_object(entry.record, entry.where)
        text = _first(record, _TEXTS)
        if not isinstance(text, str) or not text.strip():
            raise bad_record(
                entry.where, f"needs a text in one of the keys {', '.join(_TEXTS)}; got {json.dumps(text)[:60]}"
            )
        yield str(record.get("id", entry.number)), text
