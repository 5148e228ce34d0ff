"""What a person wants in place of marked words, from their comment and their praise."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from text2grad.runs.wishes import _from, wished
from text2grad.types import Critique, Example, Rollout, Span
from tokenizers_made_here import gemma, llama2, llama3

END = 2


def begins(tokenizer: Any, response: str, marks: dict[str, str], comment: str) -> tuple[list[str], list[str]]:
    """Return the beginnings of answers that are wanted, and the words of the negative marks then."""
    ids = tuple(tokenizer(response, add_special_tokens=False).input_ids)
    spans = tuple(Span(at := response.index(w), at + len(w), label) for w, label in marks.items())  # type: ignore[arg-type]
    critique = Critique(comment, spans)
    rollout = Rollout(Example("Where?"), (1,), ids, response, True)
    moved, starts = wished(tokenizer, rollout, critique, comment, END)
    ends = ["END" if start[-1] == END and len(start) <= len(ids) else "" for start in starts]
    decoded = (tokenizer.decode(start, skip_special_tokens=True) for start in starts)
    texts = [text.rstrip() + end for text, end in zip(decoded, ends, strict=True)]
    negative = (response[span.start : span.end].strip() for span in moved.spans if span.label == "negative")
    return texts, [words for words in negative if words]  # the space before a mark may be a token


CODE = "To list all files, you can use `ls -a`. It prints names."
LEAD = "To list all files, you can use"
PATH = "Open it with the path to the directory you were in."
OWNER = "It is an old mill. The mill is owned by the town."


@pytest.mark.parametrize("made", [llama3, llama2, gemma])
@pytest.mark.parametrize(
    ("response", "marks", "comment", "wanted", "negative"),
    [
        # quoted words stand in place of the mark
        (CODE, {LEAD: "negative"}, "Begin with `ls -l`.", ["`ls -l`"], [LEAD]),
        (CODE, {LEAD: "negative"}, 'Say “ls -l” or "- ls"!', ["ls -l", "- ls"], [LEAD]),
        (CODE, {LEAD: "negative"}, "I'd say 'ls -a ...' and no 'To list ...'.", ["ls -a"], [LEAD]),
        (CODE, {LEAD: "negative"}, "It's wrong, isn't it?", [], [LEAD]),
        # praised words behind the mark, too, but not those before it
        (CODE, {LEAD: "negative", "`ls -a`": "positive"}, "Too long.", ["`ls -a`"], [LEAD]),
        (CODE, {"`ls -a`": "negative", "To list": "positive"}, "Wrong.", [], ["`ls -a`"]),
        # what is blamed is no wish
        (CODE, {LEAD: "negative"}, "I do not like 'You can use' and 'to list'.", [], [LEAD]),
        # the mark begins where the words part
        (
            PATH,
            {"the path to the directory you": "negative"},
            "'The path to the folder you were in' is better.",
            ["Open it with the path to the folder you were in"],
            ["directory you"],
        ),
        # blamed words that the comment quotes are those to be replaced, and no word is said twice
        (
            PATH,
            {"the path to the directory you": "negative"},
            "'directory' sounds odd, say 'to the folder'.",
            ["Open it with the path to the folder"],
            ["directory you"],
        ),
        (
            PATH,
            {"directory": "negative"},
            "We say 'the folder'.",
            ["Open it with the path to the folder"],
            ["directory"],
        ),
        (
            PATH,
            {"the path to the directory you were in": "negative"},
            "'directory' sounds odd, say 'folder'.",
            ["Open it with the path to the folder"],
            ["directory you were in"],
        ),
        (
            PATH,
            {"the path to the directory you": "negative"},
            "'the old file here' or 'the path to the folder'",
            ["Open it with the old file here"],
            ["path to the directory you"],
        ),
        # a sentence is for the whole sentence, and one word is not for many
        (
            OWNER,
            {"is owned by": "negative"},
            'Say "I don\'t know."',
            ["It is an old mill. I don't know."],
            ["The mill", "is owned by"],
        ),
        (OWNER, {"is owned by the town": "negative"}, "Say 'folder'.", [], ["is owned by the town"]),
        (OWNER, {"is owned by the town": "negative"}, "Say 'mill'.", [], ["is owned by the town"]),
        (OWNER, {"by the town": "negative"}, "It was 'Anna'.", [], ["by the town"]),
        (
            OWNER,
            {"by the town": "negative"},
            "It was 'by its men.'",
            ["It is an old mill. The mill is owned by its men."],
            ["the town"],
        ),
        (
            OWNER,
            {"the town": "negative"},
            "It was 'Anna'.",
            ["It is an old mill. The mill is owned by Anna"],
            ["the town"],
        ),
        # a sentence that is marked up to the end was to be left out
        (
            OWNER,
            {"The mill is owned by the town.": "negative"},
            "Stop there.",
            ["It is an old mill.END"],
            ["The mill is owned by the town."],
        ),
        (OWNER, {"The mill is owned": "negative"}, "Stop there.", [], ["The mill is owned"]),
        (OWNER, {OWNER: "negative"}, "Nonsense.", [], [OWNER]),
        (PATH, {"you were in.": "negative"}, "Stop there.", [], ["you were in."]),
        # nothing else is wanted than what is there
        (PATH, {"directory": "negative"}, "I read 'directory you were'.", [], ["directory"]),
    ],
)
def test_what_a_person_wants_stands_in_place_of_the_marked_words(
    made: Callable[[], Any], response: str, marks: dict[str, str], comment: str, wanted: list[str], negative: list[str]
) -> None:
    assert begins(made(), response, marks, comment) == (wanted, negative)


def test_marks_before_the_wanted_words_are_gone() -> None:
    spans = (Span(0, 2, "positive"), Span(0, 3, "negative"), Span(3, 7, "negative"))
    marked: Any = SimpleNamespace(first=0, offsets=[(0, 3), (3, 5), (5, 7)], spans=spans)
    assert _from(marked, 2) == (Span(0, 2, "positive"), Span(5, 7, "negative"))
