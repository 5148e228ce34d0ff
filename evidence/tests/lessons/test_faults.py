"""What the measures of the ready lessons count."""

import pytest

from evidence.lessons.faults import FAULTS
from text2grad.errors import ConfigError
from text2grad.tasks import ready_lesson
from text2grad.types import Example

UNDO = Example("How do I undo the last git commit?")
LIST = Example("How do I list all files?")
KNOWN, UNKNOWN = Example("Anna has a cat.\n\nWhat has Anna?", "a cat"), Example("Anna has a cat.\n\nHow old is it?", "")


def test_each_ready_lesson_has_a_measure() -> None:
    with pytest.raises(ConfigError, match=", ".join(FAULTS)):
        ready_lesson("")


@pytest.mark.parametrize(
    ("name", "example", "response", "fault"),
    [
        ("begin", UNDO, "To undo the last git commit, you can use `git reset`.", True),
        ("begin", UNDO, "How can I undo a git commit?", True),
        ("begin", UNDO, "`git reset HEAD~1`", False),
        ("begin", UNDO, "Use git reset with HEAD~1.", False),
        ("begin", UNDO, "Sorry, resetting is nothing for me.", True),
        ("begin", UNDO, "", True),
        ("sentence", LIST, "Use `ls`.", False),
        ("sentence", LIST, "Use `ls`. It lists.", True),
        ("sentence", LIST, "Use `ls`:\n```", True),
        ("sentence", LIST, "What is a file?", True),
        ("sentence", LIST, "Use `ls`, which is cut in the mid", True),
        ("unknown", UNKNOWN, "The passage does not say how old it is.", False),
        ("unknown", UNKNOWN, "Two years.", True),
        ("unknown", KNOWN, "A cat.", False),
        ("unknown", KNOWN, "I don't know.", True),
        ("folder", LIST, "Subdirectory", False),
        ("folder", LIST, "the DIRECTORY_NAME", True),
        ("folder", LIST, "the folder", False),
    ],
)
def test_a_measure_counts_the_fault(name: str, example: Example, response: str, fault: bool) -> None:
    assert FAULTS[name](example, response) is fault
