"""The next message of a user as feedback: what each rule reads, and how often the rules are right on messages by hand.

`next_messages.tsv` has 200 messages with what was asked before, the answer (or its gist), and a label. The author
of the rules wrote and labelled them before, shuffled them, and tuned the rules on the first hundred alone (and, for
precision, on public chats of ShareGPT). The labels say what a message tells about the answer:

    repeat      the same request again, or an order to try again
    correction  what is wrong, or what should stand there; an ignored instruction named again
    complaint   displeasure without a correction: poor, useless, an error when it runs, sarcasm
    thanks      thanks or praise, also before a further question
    none        follow-up questions, new tasks and new wishes, replies to a question of the assistant, doubt ("are you
                sure?"), the user's own slip, thanks in advance, words of others, "ok" and "great" before a task
"""

import time
from pathlib import Path

import pytest

from text2grad.feedback.sources.next_message import SAME, rule_of, rules

LINES = (Path(__file__).parent / "next_messages.tsv").read_text("utf-8").splitlines()[1:]
MESSAGES = [line.replace("\\n", "\n").split("\t") for line in LINES]


def quality(rows: list[list[str]]) -> tuple[int, int, int]:
    """Return the numbers of messages read as feedback, of those with the right kind, and of all that are feedback."""
    kinds = [rule_of(message, asked, answer).partition(":")[0] for asked, answer, message, _ in rows]
    right = [kind for kind, (*_, label) in zip(kinds, rows, strict=True) if kind == label]
    return sum(map(bool, kinds)), len(right), sum(label != "none" for *_, label in rows)


def test_precision_and_recall_on_the_messages_by_hand_are_those_of_the_page() -> None:
    assert len(MESSAGES) == 200
    assert quality(MESSAGES[:100]) == (55, 54, 56)
    assert quality(MESSAGES[100:]) == (58, 58, 65)
    page = (Path(__file__).parents[3] / "docs" / "feedback.md").read_text("utf-8")
    assert "| second | 58 of 58 (1.00) | 58 of 65 (0.89) |" in page  # 58 / 65 = 0.892
    assert "| first | 54 of 55 (0.98) | 54 of 56 (0.96) |" in page  # 54 / 55 = 0.982, 54 / 56 = 0.964


EXAMPLES = {
    "none: own slip": ("Sorry, a typo: I meant 2015.", "My mistake. It should be 2015."),
    "complaint: scolds": ("Ugh.", "Stop apologizing!", "Did you even read my text?", "Why do you always lie?"),
    "complaint: not wanted": ("That isn’t what I asked for.", "I don't like your tone.", "The old version was better."),
    "complaint: does not work": (
        "it still doesn't compile",
        "I get a TypeError when I run it.",
        "It crashes at start.",
    ),
    "complaint: what you did": ("You ignored the second part.", "You were cut off.", "you didn't answer my question"),
    "complaint: poor": ("That is far too long.", "Not very helpful.", "The link is dead.", "What a terrible idea"),
    "repeat: again": (
        "Try again.",
        "do it once more",
        "My question was who won.",
        "Once more, please.",
        "Answer my question.",
    ),
    "correction: no": ("No, the other one.", "nope"),
    "correction: meant": ("I meant the band.", "but I asked for Python", "I said five points.", "I never said that."),
    "correction: wrong": ("That's wrong.", "Close, it was Ann.", "It doesn't look right.", "The sum is incorrect."),
    "correction: should be": ("It should be 42.", "well, this must return a list"),
    "correction: mistake": ("You mixed up the two.", "There is a typo in line 3.", "Please re-read my text."),
    "correction: not this": ("Canberra, not Sydney.", "Not the insect!"),
    "correction: in fact": ("Actually it was 1969.", "it isn't", "Wasn't it Edison?"),
    "thanks: thanks": ("Thanks!", "ok ty", "Many thanks. And the next?", "I can't thank you enough"),
    "thanks: praise": (
        "That's really clear.",
        "Great answer. And in pounds?",
        "Perfect!",
        "You nailed it.",
        "much better",
    ),
    "thanks: a good word": ("Nice!!", "cool"),
    "thanks: works": ("It works now!", "that fixed it"),
    "thanks: likes": (
        "I love it.",
        "Exactly what I needed",
        "Ah, that makes sense.",
        "My boss loved the mail you wrote",
    ),
    "none: goes on": ("continue", "Next one, please"),
}


def test_every_rule_fits_its_examples_and_no_rule_above_does() -> None:
    assert [name for name, *_ in rules()] == list(EXAMPLES)
    for name, examples in EXAMPLES.items():
        expected = "" if name.startswith("none") else name
        assert {example: rule_of(example) for example in examples} == dict.fromkeys(examples, expected)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "   \n",
        "Thanks in advance!",
        "Shorten it, thanks.",  # behind an order
        "Could you? This is useless.",  # of whom it is said is not clear
        "No problem, go on",
        "I meant to ask who came.",
        "He said that's wrong.",
        "My boss says the sums are wrong, and I must pay.",
        "If the sum is wrong, what then?",
        "Translate this: That's wrong.",
        'And what does "that is wrong" mean',
        "> That's wrong.\nWho wrote that?",
        "`that is wrong`",
        "```\nthat is wrong",  # a fence without an end
        "«That's wrong.»",
        "Great, and in pounds?",
        "Not sure.",
        "Is it good or bad?",
        "First sentence. Second sentence. That's wrong.",  # the third
        "x" * 5_000 + " That's wrong.",
        "A tale of a king, " * 20 + "that's wrong.",  # far in a sentence
        "Danke!",
    ],
)
def test_these_messages_are_none(message: str) -> None:
    assert rule_of(message, "Who?", "Ann.") == ""


def test_no_and_yes_are_replies_to_a_question_and_corrections_without_one() -> None:
    assert rule_of("No, Lisbon.", "", "It is Porto.") == "correction: no"
    assert rule_of("No, Lisbon.", "", "Is it Porto? ") == ""
    assert rule_of("That's right.", "", "It is Porto.") == "thanks: praise"
    assert rule_of("That's right.", "", "Is it Porto?") == ""
    assert rule_of("No, I meant Lisbon.", "", "Is it Porto?") == "correction: meant"
    assert rule_of("No", "", "Porto? It is nice.") == "correction: no"


def test_a_repeat_has_at_least_three_quarters_of_the_words_before_and_no_others() -> None:
    asked = "Sort four heavy stones"  # sort four heav ston
    assert rule_of("please sort the four heavier stones", asked) == SAME
    assert rule_of("sort heavy stones", asked) == SAME  # 3 of 4
    assert rule_of("heavy stones", asked) == ""  # 2 of 4
    assert rule_of("sort four heavy green stones", asked) == ""
    assert rule_of("Sort 4 stones", "Sort 5 stones") == ""
    assert rule_of("Sort stones 12345", "Sort stones 12346") == ""  # numbers count as a whole
    assert rule_of("stones", "stones") == ""  # a single word is a command rather than a question
    assert rule_of("heavy stones", "heavy stones") == SAME
    many = " ".join(f"{letter}{other}xy" for letter in "abcdefg" for other in "abcdef")  # 42 words
    assert rule_of(many, many) == "", "a text of a page, sent again, is material"
    shorter = " ".join(many.split()[:39])
    assert rule_of(shorter, shorter) == SAME
    assert rule_of("Continue the list of stones", "Continue the list of stones") == ""


def test_corrections_stand_behind_an_order_too_and_scolding_in_a_question() -> None:
    assert rule_of("Change it back, you used the wrong word") == "correction: mistake"
    assert rule_of("this is useless, isn't it?") == "complaint: poor"  # the question is the last clause
    assert rule_of("is this useless?") == ""


def test_hostile_messages_are_read_in_a_moment() -> None:
    begun = time.process_time()
    for part in (
        "a",
        '"',
        "“",
        "ha",
        "no ",
        "i ",
        "the x ",
        ": ",
        "not ",
        "it is ",
        "very ",
        "`",
        "'",
        "> ",
        "you ",
        "1.",
    ):
        rule_of(part * 100_000, part * 100_000, part * 100_000)
    assert time.process_time() - begun < 5  # measured: 0.1
