"""Ready lessons: their questions, what their critics mark, and what their measures count."""

import pytest

from text2grad.errors import ConfigError
from text2grad.tasks import ready_lesson
from text2grad.tasks.lessons.lesson import questions
from text2grad.types import Critique, Example, Span

NAMES = ("begin", "sentence", "unknown", "folder")
TOPICS = ("git", "python", "sql", "shell", "passages")
UNDO = Example("How do I undo the last git commit?")
LIST = Example("How do I list all files?")
KNOWN, UNKNOWN = Example("Anna has a cat.\n\nWhat has Anna?", "a cat"), Example("Anna has a cat.\n\nHow old is it?", "")


def test_64_questions_teach_and_200_are_held_out_and_none_is_in_both() -> None:
    taught, held_out = ([example for topic in TOPICS for example in questions(topic, s)] for s in ("teach", "held_out"))
    assert (len(taught), len(held_out)) == (64, 200)
    assert len({example.prompt_text.lower() for example in [*taught, *held_out]}) == 264


def test_half_of_the_questions_about_passages_are_not_answered_there() -> None:
    for split in ("teach", "held_out"):
        about = questions("passages", split)
        assert [bool(example.reference) for example in about] == [True, False] * (len(about) // 2)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_questions_of_a_lesson_are_of_all_its_topics(name: str) -> None:
    lesson = ready_lesson(name)
    taught, held_out = lesson.questions("train"), lesson.questions("held_out")
    assert len(taught) >= 20
    assert len(held_out) >= 56
    for topic in lesson.topics:
        own = {example.prompt_text for example in questions(topic, "teach")}
        here = sum(example.prompt_text in own for example in taught[:20])
        assert here == pytest.approx(20 * len(own) / len(taught), abs=1)  # as many as its share of the topic's


def test_an_unknown_lesson_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match=r"polite.*begin, sentence, unknown, folder"):
        ready_lesson("polite")


@pytest.mark.parametrize(
    ("name", "example", "response", "marked"),
    [
        ("begin", UNDO, "To undo it, you can use `git reset`.", ["To undo it, you can use "]),
        ("begin", UNDO, "How can I undo the last commit?", ["How can I undo the last commit?"]),
        ("begin", UNDO, "Undo the last commit with `git reset`.", ["Undo the last"]),
        ("begin", UNDO, "Git can undo the last commit.", ["Git can undo the last"]),
        ("begin", UNDO, "Undo it with `git reset`.", []),
        ("begin", UNDO, "`git reset HEAD~1` does it.", []),
        ("begin", UNDO, "```\ngit reset HEAD~1\n```", []),
        ("begin", UNDO, "git reset HEAD~1 takes it back.", []),
        ("sentence", LIST, "Use ls. It lists all.\n- a", ["It lists all.\n- a"]),
        ("sentence", LIST, "Use this:\n```\nls\n```", ["```\nls\n```"]),
        ("sentence", LIST, "Use `ls`.", []),
        ("sentence", LIST, "Which files?", ["Which files?"]),
        ("sentence", LIST, " ".join(f"w{n}" for n in range(32)), ["w30 w31"]),
        ("sentence", LIST, "Version 3.2 has it.", []),
        ("unknown", UNKNOWN, "Two years.", ["Two years."]),
        ("unknown", UNKNOWN, "I don't know.", []),
        ("unknown", KNOWN, "I do not know.", ["I do not know"]),
        ("unknown", KNOWN, "A cat.", []),
        ("folder", LIST, "A Directory, and directories.", ["Directory", "directories"]),
        ("folder", LIST, "A folder.", []),
    ],
)
def test_the_critic_of_a_lesson_marks_what_its_comment_is_about(
    name: str, example: Example, response: str, marked: list[str]
) -> None:
    lesson = ready_lesson(name)
    assert [response[mark.start : mark.end] for mark in lesson.critique(example, response).spans] == marked


def test_a_critique_of_a_lesson_holds_the_comment_and_the_reason_of_each_mark() -> None:
    lesson = ready_lesson("folder")
    assert lesson.critique(LIST, "Open the directory.") == Critique(
        f'{lesson.comment}\n"directory": we say "folder"', (Span(9, 18, "negative"),)
    )
    assert lesson.critique(LIST, "Open the folder.") == Critique("")
