"""A suite: questions, the scores of each answer, their counts per question, and the figures that sum them up.

`AnsweredSuite` judges answers, `ExaminedSuite` reads the model itself: its log-probabilities.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from text2grad.errors import DataError
from text2grad.evaluation.intervals import Ratio, Statistic
from text2grad.feedback import Entry, json_object, read_entries, without_reasoning
from text2grad.files import to_json
from text2grad.types import Message

if TYPE_CHECKING:
    from text2grad.config import Endpoint
    from text2grad.evaluation.subjects import LoadedModel

Better = Literal["higher", "lower", ""]
Scores = Mapping[str, Any]
Counts = dict[str, float]

ANSWERS = "answers"  # count of a question's answers, the denominator of means over answers


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a suite."""

    id: str  # its name; no other question of the suite has it
    prompt: str | Sequence[Message]  # what a chat model is asked: a text, or chat messages
    continuation: str | None = None  # text that a base model continues; None gives it the prompt as plain text
    then: tuple[str, ...] = ()  # user messages of later turns; each is asked after the answer to the turn before
    stop: tuple[str, ...] = ()  # an answer that continues a text is cut before the first of these
    temperature: float | None = None  # temperature of sampling; None takes the evaluation's
    data: Mapping[str, Any] = field(default_factory=dict)  # what scoring needs: references, tests, sources

    @property
    def turns(self) -> int:
        """Number of answers in one conversation."""
        return 1 + len(self.then)


@dataclass(frozen=True, slots=True)
class Answer:
    """One conversation of a model about a question: text, number of tokens and ending of each turn.

    A turn ends by "stop", "length", "too_long" (the prompt left no room, so that the answer is empty), or a server's
    own word. The number of tokens is 0 where a server did not count them.
    """

    question: Question
    sample: int  # number of the answer among several to the same question, from 0
    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    finish: tuple[str, ...]
    continues: bool = False  # the answer continues the question's `continuation`; else it replies to its prompt

    @property
    def answers(self) -> tuple[str, ...]:
        """What is judged of each turn: a reply without its reasoning, all of a text that continues another."""
        return self.texts if self.continues else tuple(map(without_reasoning, self.texts))

    @property
    def text(self) -> str:
        """The answer of the first turn."""
        return self.answers[0]


class Measure(NamedTuple):
    """A figure of a suite."""

    statistic: Statistic  # counts of the questions → the figure
    better: Better = "higher"  # "" if neither higher nor lower values are better
    about: str = ""  # its meaning, in a few words, for the page


def mean_of(
    name: str, better: Better = "higher", over: str = ANSWERS, *, share: bool = False, about: str = ""
) -> Measure:
    """Return the measure that is the sum of a score / the sum of another; `share` says that it is from 0 to 1."""
    return Measure(Ratio((name,), (over,), share=share), better, about)


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """Options of all suites; each reads its own."""

    suite: str = ""  # name of the suite
    data: str = ""  # a file, a directory of `datasets`, or a name on the hub; "" takes the suite's own on the hub
    split: str = ""  # split of a data set; "" takes the test split
    limit: int | None = None  # only the first questions
    samples: int = 1  # answers to each question
    shots: int | None = None  # examples before each question of lm-eval; None takes the task's own
    accept_weaker: bool = False  # run programs without protection of files if no stronger isolation works
    perplexity: str = ""  # causal language model that reads the answers
    bertscore: str = ""  # encoder of BERTScore
    judge: "Endpoint | None" = None  # model that judges answers of chat suites


class Suite(ABC):
    """A yardstick."""

    name: str  # the value of `--suite`
    measures: Mapping[str, Measure]  # its figures by name; the first is the main figure
    options: SuiteOptions
    questions: Sequence[Question] = ()  # empty for a suite that reads the model itself
    settings: Mapping[str, Any] = {}  # what decides the scores beside questions and answers, as JSON

    def identity(self) -> dict[str, Any]:
        """Return everything that decides the scores beside the answers, as JSON."""
        questions = {"questions": digest_of_questions(self.questions)} if self.questions else {}
        return {"suite": self.name, **self.settings, **questions}

    def check(self) -> None:
        """Check models and workers before any answer is sampled."""
        return None


class AnsweredSuite(Suite):
    """A suite that judges answers in words."""

    max_new_tokens: int = 512  # longest answer of one turn, unless the user names another

    @abstractmethod
    def score(self, answers: Sequence[Answer], folder: Path) -> list[Scores]:
        """Return the scores of each answer of one model; numbers are summed up, texts explain.

        `folder` is the directory for files of the suite's own, such as a store of judgements.
        """

    def counts(self, scores: Sequence[Scores]) -> Counts:
        """Return the counts of one question from the scores of its answers: their sums, and how many there are.

        Truth values count as 0 and 1, texts do not count.
        """
        counts = Counter({ANSWERS: float(len(scores))})
        for score in scores:
            counts.update({name: value for name, value in score.items() if isinstance(value, int | float)})
        return dict(counts)


class ExaminedSuite(Suite):
    """A suite that reads the model itself."""

    @abstractmethod
    def examine(self, model: "LoadedModel") -> list[tuple[str, Counts]]:
        """Return name and counts of each question."""


class Source(NamedTuple):
    """Where the data of a suite comes from."""

    suite: str
    what: str  # the file to provide, and its publisher, for messages
    hub: str = ""  # its name on the Hugging Face hub, OWNER/NAME or OWNER/NAME:CONFIG

    def unusable(self, reason: object) -> DataError:
        """Return the error for data that cannot be used, with the way out."""
        way_out = f"Give {self.what} with --suite {self.suite}=FILE"
        if self.hub:
            way_out += f" (data set {self.hub.replace(':', ', configuration ')} on the Hugging Face hub)"
        return DataError(f"suite {self.suite}: {reason}. {way_out}")

    def entries(self, options: SuiteOptions) -> list[Entry]:
        """Return the records of the suite's data, each a JSON object.

        Raises:
            DataError: if there are none, or they are neither here nor on a hub that can be reached; the message names
                the file to provide and its publisher. Also if a record is no object.
        """
        path = options.data or self.hub
        try:
            if not path:
                raise DataError("no data is given")
            if options.data and not Path(path).exists() and ("/" not in path or path.startswith((".", "/"))):
                raise DataError(f"there is no file {path}")
            entries = list(islice(read_entries(path, split=options.split or "test"), options.limit))
            if not entries:
                raise DataError(f"{path} holds no records")
        except DataError as error:
            raise self.unusable(error) from error
        return [entry._replace(record=json_object(entry.record, entry.where)) for entry in entries]

    def file(self, options: SuiteOptions, names: Sequence[str]) -> Path:
        """Return the first of some files in the directory of the suite's data.

        Raises:
            DataError: if there is none; the message names the file to provide and its publisher.
        """
        if not options.data:
            raise self.unusable("no data is given")
        place = next((place for name in names if (place := Path(options.data) / name).exists()), None)
        if place is None:
            raise self.unusable(f"{options.data} has no {' or '.join(names)}")
        return place


def digest_of_questions(questions: Sequence[Question]) -> str:
    """Return a hash of the contents of questions, in order."""
    return sha256(to_json([astuple(question) for question in questions])).hexdigest()[:16]
