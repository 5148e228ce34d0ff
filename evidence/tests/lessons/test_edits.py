"""Answers as an editor leaves them, lesson by lesson."""

import pytest

from evidence.lessons.edits import EDITS, KEEPS_END, edited
from evidence.lessons.faults import FAULTS
from text2grad.tasks import ready_lesson
from text2grad.types import Example

UNDO = Example("How do I undo the last git commit?")
KNOWN, UNKNOWN = Example("Anna has a cat.\n\nWhat has Anna?", "a cat"), Example("Anna has a cat.\n\nHow old is it?", "")


def test_each_ready_lesson_has_an_edit() -> None:
    assert EDITS.keys() == FAULTS.keys() > KEEPS_END


@pytest.mark.parametrize(
    ("name", "example", "response", "edit"),
    [
        ("begin", UNDO, "To undo it, you can use the following command:\n\ngit reset", "Git reset"),
        ("begin", UNDO, "To undo it, you can use `git reset`.", "`git reset`."),
        ("begin", UNDO, "Sure! To undo it, use `git reset` and", "`git reset` and"),
        ("begin", UNDO, "You can use `git reset`, which undoes it", "`git reset`, which undoes it"),
        ("begin", UNDO, "How can I undo a commit? `git reset`, that is how", "`git reset`, that is how"),
        ("begin", UNDO, "How can I undo a git commit?", ""),
        ("begin", UNDO, "To undo it you can use a command, and then", ""),
        ("begin", UNDO, "Git reset undoes it.", "Git reset undoes it."),
        ("sentence", UNDO, "Use `git reset`. It undoes. Then go", "Use `git reset`."),
        ("sentence", UNDO, "Use this:\n```bash\ngit reset\n```", ""),
        ("sentence", UNDO, "What is a commit?", ""),
        ("sentence", UNDO, "It is `git reset`\nand more", "It is `git reset`"),
        ("sentence", UNDO, "word " * 30 + "word goes on", ""),
        ("unknown", UNKNOWN, "It is four years old.", "I don't know."),
        ("unknown", KNOWN, "I don't know what Anna has.", "a cat"),
        ("unknown", KNOWN, "A dog.", "A dog."),
        (
            "folder",
            UNDO,
            "Directory a, directories b, DIRECTORY c and mydirectory",
            "Folder a, folders b, FOLDER c and myfolder",
        ),
    ],
)
def test_an_edit_leaves_what_the_lesson_wants(name: str, example: Example, response: str, edit: str) -> None:
    lesson = ready_lesson(name)
    assert edited(name, lesson, example, response) == edit
    assert not lesson.critique(example, edit).spans or not edit
