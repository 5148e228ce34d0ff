"""A suite that reads the model itself: `--suite reading_suite:reading --data reading=FILE`."""

from pathlib import Path

from text2grad.evaluation.registry import register_suite
from text2grad.evaluation.subjects import LoadedModel
from text2grad.evaluation.suite import Counts, ExaminedSuite, Measure, SuiteOptions
from text2grad.evaluation.words import PERPLEXITY, Scorer, text_nats


class ReadingSuite(ExaminedSuite):
    """Perplexity of the paragraphs of a file under the model itself."""

    name = "reading"

    def __init__(self, options: SuiteOptions) -> None:
        self.options, self.texts = options, Path(options.data).read_text("utf-8").split("\n\n")
        self.measures = {"perplexity": Measure(PERPLEXITY, "lower", "per token")}

    def examine(self, model: LoadedModel) -> list[tuple[str, Counts]]:
        reader = Scorer(model.model, model.tokenizer)
        read = [text_nats(reader, text) for text in self.texts]
        return [(str(row), dict(zip(("nats", "tokens"), counts, strict=True))) for row, counts in enumerate(read)]


register_suite("reading", ReadingSuite)
