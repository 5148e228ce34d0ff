"""A critic of grounded answers that asks for an answer: it praises the gold answer's words alone, and blames the rest.

Support by the passage alone is a poor teacher: where every supported word is praised, a policy learns to quote. Here a
sentence of a response is one of

    answers   it says words of the gold answer that were not said before: these words are praised
    aside     the passage supports it, and it does not answer: blamed as a whole, as people blame "irrelevant"
    after     the answer was complete before it: blamed as a whole

and in all of them names, numbers and claims that the passage does not have are blamed, as by `GroundedCritic`. The
words of the blame are those with which readers of HaluQuestQA say that a piece is irrelevant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from evidence.tasks.grounded.critic import OUTCOME_OF_NOTHING, VERDICTS, quoted
from evidence.tasks.grounded.passage import passage_and_question
from evidence.tasks.grounded.reading import closest_sentence, content_of, read_answer, read_source, stem, words_of
from text2grad.tasks.program_critic import Finding, ProgramCritic, judged
from text2grad.types import Critique, Example

Role = Literal["answers", "aside", "after"]

ON_TOPIC = 0.34  # share of a sentence's content words that question, gold answer or its sentence must have

_VERDICTS = VERDICTS | {
    "right": ("{} answers the question.", "{} is what was asked."),
    "aside": ("{} does not address the question.", "{} has no relevance to what was asked."),
    "after": ("{} is not needed: the answer is complete without it.", "Without {} the answer would say as much."),
}


class Asked(NamedTuple):
    """What a question wants to hear, as stems of content words.

    Attributes:
        wanted: of the gold answer, without those of the question: none of them answers anything.
        topic: of question, gold answer, and the sentence of the passage that shares most with the gold answer.
    """

    wanted: frozenset[str]
    topic: frozenset[str]


@dataclass(frozen=True, slots=True)
class AnsweringCritic(ProgramCritic):
    """Judges whether an answer replies to its question: `passage` and `question` in `meta`, and a reference.

    Example:
        >>> passage = "The bridge of Avignon was finished in 1185. It had 22 arches. A saint lived on it."
        >>> example = Example("...", "22 arches.", meta={"passage": passage, "question": "How many arches had it?"})
        >>> response = "The bridge had 22 arches. A saint lived on it."
        >>> critique = AnsweringCritic()([example], [response])[0]
        >>> [(response[span.start : span.end], span.label) for span in critique.spans]
        [('22', 'positive'), ('A saint lived on it.', 'negative')]
    """

    def judge(self, example: Example, response: str, rng: Random) -> Critique:
        """Judge one answer.

        Raises:
            DataError: if the example has no passage.
        """
        source, asked = read_source(*passage_and_question(example)), asked_of(example)
        findings, said = list[Finding](), set[str]()
        for (start, end), pieces in read_answer(source, response):
            faults = [Finding(piece.kind, piece.start, piece.end) for piece in pieces if piece.kind != "right"]
            answers = _new_words(asked, response, (start, end), faults, said)
            role = _role(asked, response, (start, end), answers=bool(answers), complete=bool(said))
            if role == "answers":
                findings += sorted([*faults, *answers], key=lambda finding: finding.start)
                said.update(stem(word.key) for word in words_of(response, start, end))
            else:
                findings.append(Finding("again" if "again" in {fault.kind for fault in faults} else role, start, end))
        style = rng.randrange(2)
        words = [_VERDICTS[each.kind][style].format(quoted(response[each.start : each.end])) for each in findings]
        if not said:
            words.append("The answer does not say what was asked.")
        return judged(" ".join(words), findings, OUTCOME_OF_NOTHING * (not said))


critic = AnsweringCritic()
"""For `critic.use` of a recipe."""


def asked_of(example: Example) -> Asked:
    """Return what the question of an example wants to hear."""
    passage, question = passage_and_question(example)
    gold, of_question = example.reference or "", _stems(question)
    nearest = closest_sentence(read_source(passage, question), gold, 0, len(gold))
    return Asked(_stems(gold) - of_question, of_question | _stems(gold) | _stems(nearest))


def share_on_topic(asked: Asked, sentence: str) -> float:
    """Return the share of a sentence's content words that belong to what was asked; 1 for one without such words."""
    stems = [stem(word.key) for word in content_of(words_of(sentence))]
    return sum(key in asked.topic for key in stems) / len(stems) if stems else 1.0


def _stems(text: str) -> frozenset[str]:
    return frozenset(stem(word.key) for word in content_of(words_of(text)))


def _new_words(
    asked: Asked, response: str, sentence: tuple[int, int], faults: Sequence[Finding], said: set[str]
) -> list[Finding]:
    """Return the pieces of a sentence that say words of the gold answer for the first time, neighbours as one piece."""
    pieces, new = list[Finding](), set[str]()
    for word in content_of(words_of(response, *sentence)):
        key = stem(word.key)
        inside = any(fault.start <= word.start < fault.end for fault in faults)
        if key not in asked.wanted or key in said | new or inside:
            continue
        new.add(key)
        if pieces and not response[pieces[-1].end : word.start].strip():
            pieces[-1] = Finding("right", pieces[-1].start, word.end)
        else:
            pieces.append(Finding("right", word.start, word.end))
    return pieces


def _role(asked: Asked, response: str, sentence: tuple[int, int], *, answers: bool, complete: bool) -> Role:
    """Return what a sentence does for the answer."""
    if answers and share_on_topic(asked, response[slice(*sentence)]) > ON_TOPIC:
        return "answers"
    return "after" if complete else "aside"
