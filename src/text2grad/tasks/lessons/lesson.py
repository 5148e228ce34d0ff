"""Ready lessons: a comment in words, questions of daily work, and patterns that stand for a person's eyes."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from text2grad.errors import check_known
from text2grad.tasks.base import Split
from text2grad.types import Critique, Example, Span

REPEATED = 3  # words of a question in a row, which an answer gives back
LESSON_RECIPE = Path(__file__).with_name("recipe.toml")
"""The settings with which a lesson is given."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson.

    Attributes:
        comment: what a person says about the answers.
        topics: the questions on which it is taught and measured.
        marks: patterns of negative words, each with a reason, as `lessons.toml` describes them.
    """

    comment: str
    topics: Sequence[str]
    marks: Sequence[Mapping[str, str]]

    def critique(self, example: Example, response: str) -> Critique:
        """Return the comment and the marks on a response, as a person's annotation has them; empty without a mark."""
        spans, words = list[Span](), [self.comment]
        for rule in self.marks:
            if rule.get("of", kind := "known" if example.reference else "unknown") == kind:
                pattern = rule["pattern"].replace("QUESTION", _runs(example.prompt_text))
                for match in re.finditer(pattern, response, re.IGNORECASE):
                    place = match.span("mark" if "mark" in match.re.groupindex else 0)
                    if any(span.start < place[1] and place[0] < span.end for span in spans):
                        continue  # an earlier rule says it
                    spans.append(Span(*place, "negative"))
                    words.append(f'"{response[slice(*place)]}": {rule["reason"]}')
        return Critique("\n".join(words), tuple(spans)) if spans else Critique("")

    def questions(self, split: Split) -> list[Example]:
        """Return the questions to teach from ("train") or those that are held out, topics in turn."""
        key = {"train": "teach", "held_out": "held_out"}[split]
        by_topic = [questions(topic, key) for topic in self.topics]
        places = [((row + 0.5) / len(topic), example) for topic in by_topic for row, example in enumerate(topic)]
        return [example for _, example in sorted(places, key=lambda place: place[0])]


def ready_lesson(name: str) -> Lesson:
    """Return a ready lesson.

    Raises:
        ConfigError: if the name is unknown.
    """
    texts = _texts("lessons.toml")
    check_known("the name of a lesson", name, list(texts))
    return Lesson(**texts[name])


def questions(topic: str, split: str) -> list[Example]:
    """Return the questions of a topic and split; those about a passage know their answer, "" where it has none."""
    texts = _texts("questions.toml")
    if topic != "passages":
        return [Example(text) for text in texts[topic][split]]
    return [
        Example(f"{passage['text']}\n\n{passage[kind]}", reference=passage.get("answer", "") if kind == "known" else "")
        for passage in texts["passages"]
        if passage["split"] == split
        for kind in ("known", "unknown")
    ]


def _runs(prompt: str) -> str:
    """Return the pattern of `REPEATED` words of a prompt in a row."""
    words = re.findall(r"\w+", prompt)
    runs = (words[start : start + REPEATED] for start in range(max(len(words) - REPEATED, 0) + 1))
    return "(?:" + "|".join(r"\W+".join(run) for run in runs) + ")"


@cache
def _texts(name: str) -> Mapping[str, Any]:
    return tomllib.loads(files("text2grad.tasks.lessons").joinpath(name).read_text("utf-8"))
