"""The critic of grounded answers: it quotes names, numbers and claims, and says whether the passage has them.

It never reads the gold answer, which belongs to the metric. An answer that states nothing of the passage, or of fewer
than `FEWEST_WORDS` words, has an outcome: the way out of all blame would be to say nothing.
"""

from dataclasses import dataclass
from itertools import groupby
from random import Random

from evidence.tasks.grounded.passage import passage_and_question
from evidence.tasks.grounded.reading import Passed, Source, closest_sentence, read_answer, read_source, words_of
from text2grad.tasks.program_critic import Finding, ProgramCritic, judged
from text2grad.types import Critique, Example

FEWEST_WORDS = 8
OUTCOME_OF_NOTHING = -4.0
SHOWN_WORDS = 24  # of a sentence of the passage

VERDICTS = {
    "right": ("{} is in the passage.", "The passage supports {}."),
    "absent": ("{} is not in the passage.", "The passage does not contain {}."),
    "joined": ("{} joins names that the passage keeps apart.", "The passage has no {}, only its parts."),
    "unsaid": ("{} is not what the passage says.", "The passage does not say {}."),
    "again": ("{} was said before.", "{} is said twice."),
}
_MANY = {
    "right": ("{} are in the passage.", "The passage supports {}."),
    "absent": ("{} are not in the passage.", "The passage does not contain {}."),
    "joined": ("{} join names that the passage keeps apart.", "The passage has no {}, only their parts."),
    "unsaid": ("{} are not what the passage says.", "The passage does not say {}."),
    "again": ("{} were said before.", "{} are said twice."),
}


@dataclass(frozen=True, slots=True)
class GroundedCritic(ProgramCritic):
    """A program critic of answers from a passage: `meta["passage"]` and `meta["question"]` of an example.

    With `truths`, a sentence of the passage follows each blame: the one that shares most words with the answer's.
    Without, for reward models: each quote has a sentence of its own that ends with the verdict. A small model copies
    the quote, and sees whether the passage has the same words, before it must judge.

    Example:
        >>> passage = "The bridge of Avignon was finished in 1185. It had 22 arches."
        >>> example = Example("...", meta={"passage": passage, "question": "How many arches did it have?"})
        >>> response = "The bridge of Avignon had 24 arches, which Ana Ruiz drew."
        >>> critique = GroundedCritic(truths=False)([example], [response])[0]
        >>> [(response[span.start : span.end], span.label) for span in critique.spans]
        [('Avignon', 'positive'), ('24', 'negative'), ('Ana Ruiz', 'negative')]
        >>> GroundedCritic(truths=False)([example], ["I do not know."])[0].outcome
        -4.0
    """

    def judge(self, example: Example, response: str, rng: Random) -> Critique:
        """Judge one answer.

        Raises:
            DataError: if the example has no passage.
        """
        source = read_source(*passage_and_question(example))
        style, feedback, findings = rng.randrange(2) if self.truths else 0, list[str](), list[Finding]()
        for (start, end), pieces in read_answer(source, response):
            for run in _runs(pieces) if self.truths else ([piece] for piece in pieces):
                feedback.append(_sentence(response, run, style))
            if self.truths and any(piece.kind != "right" for piece in pieces):
                feedback += _truth(source, response, start, end)
            findings += [Finding(piece.kind, piece.start, piece.end) for piece in pieces]
        nothing = not any(finding.kind == "right" for finding in findings)
        short = len(words_of(response)) < FEWEST_WORDS
        if nothing:
            feedback.append("The answer states nothing from the passage.")
        elif short:
            feedback.append("The answer is too short.")
        return judged(" ".join(feedback), findings, OUTCOME_OF_NOTHING * (nothing or short))


def _runs(pieces: list[Passed]) -> list[list[Passed]]:
    """Return the runs of neighbouring pieces of one kind."""
    return [list(run) for _, run in groupby(pieces, key=lambda piece: piece.kind)]


def _sentence(response: str, pieces: list[Passed], style: int) -> str:
    """Return the sentence on pieces of one kind."""
    quotes = list(dict.fromkeys(quoted(response[piece.start : piece.end]) for piece in pieces))
    listed = quotes[0] if len(quotes) == 1 else f"{', '.join(quotes[:-1])} and {quotes[-1]}"
    return (VERDICTS if len(quotes) == 1 else _MANY)[pieces[0].kind][style].format(listed)


def _truth(source: Source, response: str, start: int, end: int) -> list[str]:
    words = closest_sentence(source, response, start, end).replace('"', "'").split()
    shown = " ".join(words[:SHOWN_WORDS]) + (" …" if len(words) > SHOWN_WORDS else "")
    return [f"It says: {shown}"] if words else []


def quoted(text: str) -> str:
    """Return a text between quotation marks that it does not contain."""
    return f'"{text}"' if '"' not in text else f"“{text}”"
