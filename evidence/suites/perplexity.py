"""Perplexity of texts under the model itself.

`text2grad evaluate policy MODEL --suite evidence.suites.perplexity:perplexity=FILE --out OUT`, from a clone.

perplexity      e^(nats / tokens); only models of one tokenizer compare
bits_per_byte   nats / ln 2 / bytes in UTF-8, which compares models of any tokenizer

Data is a text file, whose paragraphs are the texts, or a JSONL file with "text". `lm-eval:wikitext` measures the same
on WikiText.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from text2grad.errors import DataError
from text2grad.evaluation.registry import register_suite
from text2grad.evaluation.subjects import LoadedModel
from text2grad.evaluation.suite import (
    Counts,
    ExaminedSuite,
    Measure,
    Question,
    Source,
    SuiteOptions,
    digest_of_questions,
    mean_of,
)
from text2grad.evaluation.words import PERPLEXITY, Scorer, text_nats
from text2grad.feedback import bad_record, json_object
from text2grad.files import read_text
from text2grad.progress import Progress

TEXTS = Source("perplexity", 'a text file, or a JSONL file with "text", your own or WikiText,')
_TEXTS = ("text", "reference", "post", "article", "chosen")


class PerplexitySuite(ExaminedSuite):
    """Perplexity of texts under the model itself."""

    name = "perplexity"

    def __init__(self, options: SuiteOptions) -> None:
        """Read the texts."""
        self.options, self.texts = options, list(_texts(options))
        self.settings = {"texts": digest_of_questions([Question(name, text) for name, text in self.texts])}
        self.measures = {
            "perplexity": Measure(PERPLEXITY, "lower", "per token"),
            "bits_per_byte": mean_of("bits", "lower", over="bytes", about="compares any tokenizers"),
        }

    def examine(self, model: LoadedModel) -> list[tuple[str, Counts]]:
        """Return nats, tokens and bytes of each text."""
        reader, rows = Scorer(model.model, model.tokenizer), list[tuple[str, Counts]]()
        with Progress(f"{self.name}: {model.subject.name}", len(self.texts), unit="text") as progress:
            for name, text in self.texts:
                nats, tokens = text_nats(reader, text)
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
    for entry in TEXTS.entries(options):
        record = json_object(entry.record, entry.where)
        text = next((record[key] for key in _TEXTS if record.get(key)), None)
        if not isinstance(text, str) or not text.strip():
            raise bad_record(
                entry.where, f"needs a text in one of the keys {', '.join(_TEXTS)}; got {json.dumps(text)[:60]}"
            )
        yield str(record.get("id", entry.number)), text


register_suite("perplexity", PerplexitySuite, "perplexity of texts under the model itself")
