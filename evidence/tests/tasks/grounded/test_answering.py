"""The critic that asks for an answer: praise for the gold answer's words alone, blame for what is aside or behind."""

import pytest

from evidence.tasks.grounded.answering import AnsweringCritic, asked_of, share_on_topic
from text2grad.types import Critique, Example

PASSAGE = (
    "The bridge of Avignon was built by Bénézet between 1177 and 1185. It had twenty-two arches and was 920 metres "
    "long. Ana Ruiz, a historian at the University of Lyon, wrote that floods destroyed four arches in 1668."
)
GOLD = "Bénézet built it between 1177 and 1185."
EXAMPLE = Example("...", GOLD, meta={"passage": PASSAGE, "question": "When was the bridge of Avignon built?"})


def judged(response: str) -> tuple[Critique, list[tuple[str, str]]]:
    [critique] = AnsweringCritic()([EXAMPLE], [response])
    return critique, [(response[span.start : span.end], span.label[:3]) for span in critique.spans]


@pytest.mark.parametrize(
    ("response", "spans"),
    [
        ("It was built between 1177 and 1185.", [("1177", "pos"), ("1185", "pos")]),
        # said once: the second mention is no news, and the sentence behind the answer is not needed
        ("In 1185, by Bénézet. It was in 1185.", [("1185", "pos"), ("Bénézet", "pos"), ("It was in 1185.", "neg")]),
        # true, from the passage, and not what was asked
        ("Floods destroyed four arches in 1668.", [("Floods destroyed four arches in 1668.", "neg")]),
        ("In 1185. Ana Ruiz wrote of floods.", [("1185", "pos"), ("Ana Ruiz wrote of floods.", "neg")]),
        # a number that the passage does not have, in a sentence that answers
        ("It was built by Bénézet in 1190.", [("Bénézet", "pos"), ("1190", "neg")]),
        # a word of the gold answer in a sentence about other things is no answer
        (
            "Historians, tourists, painters and poets admire Bénézet.",
            [("Historians, tourists, painters and poets admire Bénézet.", "neg")],
        ),
        ("", []),
    ],
)
def test_words_of_the_answer_are_praised_and_all_else_is_blamed(response: str, spans: list[tuple[str, str]]) -> None:
    assert judged(response)[1] == spans


def test_the_words_name_each_piece_and_say_why() -> None:
    critique, _ = judged("In 1185. Ana Ruiz wrote of floods.")
    assert critique.feedback in (
        '"1185" answers the question. "Ana Ruiz wrote of floods." is not needed: the answer is complete without it.',
        '"1185" is what was asked. Without "Ana Ruiz wrote of floods." the answer would say as much.',
    )
    assert critique.outcome == 0.0


def test_an_answer_that_does_not_answer_has_an_outcome() -> None:
    critique, _ = judged("Floods destroyed four arches in 1668.")
    assert critique.outcome == -4.0
    assert critique.feedback.endswith("The answer does not say what was asked.")
    assert judged("")[0].outcome == -4.0


def test_the_topic_is_that_of_question_gold_answer_and_its_sentence() -> None:
    asked = asked_of(EXAMPLE)
    assert asked.wanted == {"bénézet", "1177", "1185"}, "not the words of the question"
    # bridge, 1185 of bridge, 1185, poet
    assert share_on_topic(asked, "The bridge of 1185 and a poet.") == pytest.approx(2 / 3)
    assert share_on_topic(asked, "It is.") == 1.0
