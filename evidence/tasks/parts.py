r"""Answers of several parts: one labelled line for each part of the item, each line an answer of one sentence.

    prompt  A: <prompt of the first part>       answer  A: <answer to it>
            B: <prompt of the second part>              B: <answer to it>

An item of n parts is n items of one part under labels: their prompts, references, demonstrations and facts stay as they
are. `FactTask` puts them together; the critic and the metric take them apart.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, NamedTuple

from evidence.tasks.sized import SizedTask
from text2grad.errors import DataError
from text2grad.tasks.base import WORD
from text2grad.tasks.facts import MORE, ClaimMetric, FactCritic
from text2grad.tasks.program_critic import STYLES, bare, judged
from text2grad.types import Critique, Example, Span

LABELS = tuple("ABCDEFGH")
LINE = "Line {label}."
LINE_MISSING = ("Line {label} is missing", "Line {label}: nothing names it")
MEDDLED = 1 / 4  # share of the corruptions with a line left out, twice, out of order or without its label


class Line(NamedTuple):
    """A line of an answer: its label, or "", and characters [start, end), where the label ends at `text`."""

    label: str
    start: int
    text: int
    end: int


def lines_of(response: str) -> Iterator[Line]:
    r"""Yield the lines of an answer that are not blank.

    Example:
        >>> [(line.label, line.text) for line in lines_of(" A: on Monday.\non Friday.")]
        [('A', 3), ('', 15)]
    """
    start = 0
    for text in response.split("\n"):
        words = list(WORD.finditer(text))
        labelled = len(words) > 1 and words[0][0] in LABELS and words[1][0] == ":"
        if words:
            bare = start + (words[1].end() if labelled else 0)
            yield Line(words[0][0] if labelled else "", start + words[0].start(), bare, start + len(text))
        start += len(text) + 1


def parts_of(example: Example) -> dict[str, Example]:
    """Return the parts of an item by label; none for an item of one sentence.

    Raises:
        DataError: if the parts are not those of such a task.
    """
    parts: Any = example.meta.get("parts", {})
    if not isinstance(parts, Mapping) or list(parts) != list(LABELS[: len(parts)]):
        raise DataError(f"not an item of several parts: meta['parts'] is {parts!r}; need the keys A, B, ... in order")
    return {label: Example("", meta=meta) for label, meta in parts.items()}


def joined(texts: Sequence[str]) -> str:
    """Return texts as labelled lines."""
    return "\n".join(f"{label}: {text}" for label, text in zip(LABELS, texts, strict=False))


@dataclass(frozen=True, slots=True)
class FactTask(SizedTask):
    """A task with answers of one sentence, or of a labelled line for each part: with `settings.length` above 0."""

    cue: ClassVar[str]  # the end of a prompt
    claim_metric: ClassVar[ClaimMetric]

    @property
    @abstractmethod
    def parts(self) -> int:
        """The number of parts of an item that `settings.length` makes; 0 for an item of one sentence."""

    @abstractmethod
    def facts(self, example: Example) -> Mapping[str, str]:
        """Return the true facts of an item of one sentence, by slot."""

    @abstractmethod
    def state(self, facts: Mapping[str, str]) -> str:
        """Return the perfect sentence that states the facts."""

    @abstractmethod
    def draw_part(self, rng: Random) -> Example:
        """Draw an item of one sentence; its prompt ends with the cue."""

    @abstractmethod
    def label_prompt(self, label: str, prompt: str) -> str:
        """Return the prompt of one part, without the cue, with a label in each of its sentences or rows."""

    @abstractmethod
    def demonstrate_part(self, part: Example, rng: Random) -> str:
        """Return a noisy sentence about one part."""

    @abstractmethod
    def corrupt_part(self, part: Example, rng: Random) -> str:
        """Return a sentence about one part, with faults that demonstrations seldom have."""

    def draw(self, rng: Random) -> Example:
        """Draw one item."""
        if not self.parts:
            return self.draw_part(rng)
        parts = [self.draw_part(rng) for _ in range(self.parts)]
        texts = zip(LABELS, (part.prompt_text.removesuffix(self.cue) for part in parts), strict=False)
        prompt = "\n".join(self.label_prompt(label, text) for label, text in texts) + self.cue
        meta = {label: part.meta for label, part in zip(LABELS, parts, strict=False)}
        return Example(prompt, joined([str(part.reference) for part in parts]), meta={"parts": meta})

    def demonstration(self, example: Example, rng: Random) -> str:
        """Return an answer with the faults of a hasty reader: wrong values, fillers, omissions and chatter."""
        parts = parts_of(example)
        if not parts:
            return self.demonstrate_part(example, rng)
        return joined([self.demonstrate_part(part, rng) for part in parts.values()])

    def corruption(self, example: Example, rng: Random) -> str:
        """Return an answer with faults that demonstrations seldom have.

        Two thirds replace some values by other valid ones: a reward model must compare them with the prompt to find the
        faults. One third is garbled: cut, shuffled, doubled, or spliced with another answer. In an answer of several
        parts half of the lines are of this kind, and some lines are left out, doubled, exchanged or without a label.
        """
        parts = parts_of(example)
        if not parts:
            return self.corrupt_part(example, rng)
        texts = [(self.corrupt_part if rng.random() < 0.5 else self.demonstrate_part)(p, rng) for p in parts.values()]
        lines = joined(texts).split("\n")
        return "\n".join(_meddled(lines, rng) if rng.random() < MEDDLED else lines)

    def reference(self, example: Example) -> str:
        """Return the perfect answer, from the facts."""
        parts = parts_of(example)
        if not parts:
            return self.state(self.facts(example))
        return joined([self.state(self.facts(part)) for part in parts.values()])

    def label_words(self) -> list[str]:
        """Return texts with the words of lines and their critiques; none for answers of one sentence."""
        return [*map(bare, [*LINE_MISSING, LINE]), *LABELS[: self.parts]] if self.parts else []

    def claims(self, example: Example, response: str) -> dict[str, float]:
        """Return F1, precision and recall of the claims; a claim counts for the part whose label its line has.

        Claims of a line without a label, and of a second line with the same label, are wrong.
        """
        parts = parts_of(example)
        if not parts:
            return self.claim_metric.scores([(self.facts(example), response)])
        first: dict[str, str] = {}
        rest: list[str] = []
        for line in response.split("\n"):
            label, colon, text = (piece.strip() for piece in line.partition(":"))
            if colon and label in parts and label not in first:
                first[label] = text
            else:
                rest.append(line)
        judged = [(self.facts(part), first.get(label, "")) for label, part in parts.items()]
        return self.claim_metric.scores([*judged, *(({}, line) for line in rest)])


def _meddled(lines: list[str], rng: Random) -> list[str]:
    """Leave out, double, exchange or strip the label of one line."""
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    exchanged = list(lines)
    exchanged[i], exchanged[j] = lines[j], lines[i]
    kinds = (
        lines[:i] + lines[i + 1 :],
        [*lines[: i + 1], *lines[i:]],
        exchanged,
        [*lines[:i], lines[i].partition(": ")[2], *lines[i + 1 :]],
    )
    return rng.choice(kinds)


@dataclass(frozen=True, slots=True)
class LabelledFactCritic(FactCritic):
    """Judges an answer of several parts, too, which has a line for each part, with its label.

    A line without a label, or with a label that is unknown, repeated or out of order, is out of place.
    """

    def judge(self, example: Example, response: str, rng: Random) -> Critique:
        """Judge one answer."""
        parts = parts_of(example)
        return (
            self._judge_lines(parts, response, rng.randrange(STYLES))
            if parts
            else FactCritic.judge(self, example, response, rng)
        )

    def _judge_lines(self, parts: Mapping[str, Example], response: str, style: int) -> Critique:
        """Judge each line by its label, and name the parts without a line."""
        if not response.strip():
            return Critique(self.writer.empty)
        text: list[str] = []
        spans: list[Span] = []
        ahead, seen = list(parts), set[str]()
        for line in lines_of(response):
            if line.label in ahead:
                del ahead[: ahead.index(line.label) + 1]
                seen.add(line.label)
                sentence = self.judge_sentence(parts[line.label], response, line.text, line.end, style)
                text.append(LINE.format(label=line.label))
            else:
                sentence = self._misplaced(response, line, style)
            text.append(sentence.feedback)
            spans += sentence.spans
        missing = [label for label in parts if label not in seen]
        text += [f"{LINE_MISSING[style].format(label=label)}." for label in missing]
        return Critique(" ".join(text), tuple(spans))

    def _misplaced(self, response: str, line: Line, style: int) -> Critique:
        """Judge a line without a label, or with a label that is unknown, repeated or out of order."""
        words = list(WORD.finditer(response, line.start, line.end))
        pieces = list(self.reader.cut("misplaced", words, response))
        misplaced = pieces[: self.writer.most_faults]
        text = [f"{self.writer.verdict(finding, response, style)}." for finding in misplaced]
        return judged(" ".join(text + [MORE] * (len(misplaced) < len(pieces))), misplaced)
