"""Texts: summaries or other answers compared with references, by the figures of `words`.

rouge1 rouge2 rougeL bleu   with references
bertscore                   with references and `--bertscore MODEL`
perplexity                  of the answers under `--perplexity MODEL`, per token
words                       length in words
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.errors import require
from text2grad.evaluation import words
from text2grad.evaluation.suite import Answer, AnsweredSuite, Measure, Question, Scores, Source, SuiteOptions, mean_of
from text2grad.feedback import bad_record
from text2grad.progress import Progress

SUMMARIES = Source(
    "summarization",
    'a JSONL file with "prompt" and "reference", such as `text2grad feedback prepare slf5k` writes, your own or SLF5K,',
)
_PROMPTS = ("prompt", "summary_prompt")
_REFERENCES = ("reference", "references", "ideal_human_summary", "summary", "highlights")
_SOURCES = ("source", "passage", "post", "document", "article")


class SummarizationSuite(AnsweredSuite):
    """Answers compared with references."""

    name = "summarization"
    max_new_tokens = 128

    def __init__(self, options: SuiteOptions) -> None:
        """Read the questions."""
        require("rouge_score", "sacrebleu", extra="eval", purpose="suite summarization")
        self.options, self.questions = options, list(_summaries(options))
        self.judges = {"BERTScore": options.bertscore, "perplexity": options.perplexity}
        self.settings = self.judges
        self.measures = dict(self._measures())

    def _measures(self) -> Iterator[tuple[str, Measure]]:
        encoder, reader = (Path(path).name for path in self.judges.values())
        about = {"bleu": "sacrebleu, all answers together, 0 to 100", "bertscore": f"F1 by {encoder}"}
        referenced = any(question.data["references"] for question in self.questions)
        for name, figure in words.OVERLAPS.items():
            if referenced and (encoder or name != "bertscore"):
                yield name, Measure(figure, about=about.get(name, "F-measure of rouge-score, stemmed"))
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
    for number, where, record in SUMMARIES.entries(options):
        record = {**(record.get("meta") or {}), **record}
        prompt = _first(record, _PROMPTS)
        source = str(_first(record, _SOURCES) or "")
        if prompt is None and source:
            prompt = f"Summarize the following text.\n\n{source}"
        if not isinstance(prompt, str | list):
            raise bad_record(where, '"prompt" must be a text or chat messages, or "source" the text to summarize')
        known = _first(record, _REFERENCES) or []
        references = [known] if isinstance(known, str) else list(known)
        name = str(record.get("id", number))
        yield Question(name, prompt, data={"references": references}, stop=("\n\n\n",))


def _first(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the first value that is not empty."""
    return next((record[key] for key in keys if record.get(key)), None)
