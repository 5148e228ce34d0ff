"""A critique of an answer → the best answer that its words allow: the stated truths and the phrases called right.

The answer is written anew, with the facts that the critique names and no others; the true facts of the item are never
read. A critique without truths leaves the right phrases, and the answer without any stays as it is.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from text2grad.tasks.facts import HALVES, FactReader, Facts, FactWriter, key
from text2grad.types import Critique, Span

_TRUTH = re.compile(r'(?:^|\. )([^".:]+): ')
_LINE_OF_CRITIQUE = re.compile(r"(?:^|(?<= ))Line ([A-H])\.(?: |$)")
_LINE_OF_ANSWER = re.compile(r"^[^\S\n]*([A-H])[^\S\n]*:", re.MULTILINE)


@dataclass(frozen=True)
class FactRefiner:
    """Rewrites answers of one sentence, or of a labelled line for each part.

    Attributes:
        reader: knows the phrases of the language.
        writer: knows how critiques state a truth.
        state: facts by slot, some of them left out → the sentence that states them.
    """

    reader: FactReader
    writer: FactWriter
    state: Callable[[Facts], str]

    def __call__(self, response: str, critique: Critique) -> str:
        """Return the refined response."""
        if critique.failed:
            return response
        before = response[: len(response) - len(response.lstrip())]
        whole, *parts = _LINE_OF_CRITIQUE.split(critique.feedback)
        if not parts:
            sentence = self._sentence(whole, response, critique.spans)
            return before + sentence if sentence else response
        places: dict[str, tuple[int, int]] = {}
        lines = list(_LINE_OF_ANSWER.finditer(response))
        for line in lines:
            end = response.find("\n", line.end())
            places.setdefault(line[1], (line.end(), len(response) if end < 0 else end))
        refined = []
        for label, words in zip(parts[::2], parts[1::2], strict=True):
            start, end = places.get(label, (0, 0))
            spans = [span for span in critique.spans if start <= span.start and span.end <= end]
            refined.append(f"{label}: {self._sentence(words, response, spans) or response[start:end].strip()}")
        return before + "\n".join(refined)

    def _sentence(self, words: str, response: str, spans: Sequence[Span]) -> str:
        """Return the sentence that states what the words of a critique tell; empty if they tell nothing."""
        known: dict[str, str] = {}
        for span in spans:
            phrase = self._phrases.get(key(response[span.start : span.end]))
            if span.label == "positive" and phrase is not None:
                known.setdefault(*phrase)
        known |= dict(self._truths[truth] for truth in _TRUTH.findall(words) if truth in self._truths)
        first, last = (known.pop(half, "") for half in HALVES)
        if first and last:
            known["who"] = f"{first} {last}"
        return self.state(known) if known else ""

    @cached_property
    def _values(self) -> Mapping[str, set[str]]:
        """The possible values of each slot, and of the halves of a name."""
        found: dict[str, set[str]] = {}
        for phrase in self.reader.phrases.values():
            if phrase.kind == "fact":
                found.setdefault(phrase.slot, set()).add(phrase.value)
        for place, half in enumerate(HALVES):
            found[half] = {name.split()[place] for name in found["who"]}
        return found

    @cached_property
    def _truths(self) -> Mapping[str, tuple[str, str]]:
        """Each wording of a true fact → slot and value."""
        return {
            wording.format(**{slot: value}): (slot, value)
            for slot, values in self._values.items()
            for wording in self.writer.truths[slot]
            for value in values
        }

    @cached_property
    def _phrases(self) -> Mapping[tuple[str, ...], tuple[str, str]]:
        """The words that a critique quotes of each fact → slot and value; a name is quoted half by half."""
        found = {
            words[phrase.quoted]: (phrase.slot, phrase.value)
            for words, phrase in self.reader.phrases.items()
            if phrase.kind == "fact" and phrase.slot != "who"
        }
        return found | {key(name): (half, name) for half in HALVES for name in self._values[half]}
