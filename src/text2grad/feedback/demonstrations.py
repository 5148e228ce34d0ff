"""JSONL files → demonstrations, which supervised fine-tuning learns.

{"prompt": ..., "reference": ...}      an example as `train` reads it, with its answer
{"messages": [{"role", "content"}]}    a chat: each assistant message is an answer to the messages before it
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from text2grad.errors import DataError
from text2grad.feedback.examples import Turn, chat_turns, read_example
from text2grad.feedback.record_files import read_lines, refuse_half_pairs
from text2grad.types import Example


class Demonstration(NamedTuple):
    """Answers to learn in one text or chat.

    Attributes:
        where: file and line, for messages.
        turns: the answers, each with everything before it.
    """

    where: str
    turns: tuple[Turn, ...]

    @property
    def prompt(self) -> str:
        """The prompt as `train` reads it: everything before the last answer, as text."""
        return Example(self.turns[-1].prompt).prompt_text


def read_demonstrations(paths: Sequence[str | Path]) -> list[Demonstration]:
    """Return the demonstrations of JSONL files, in order; blank lines are skipped.

    Raises:
        DataError: if a file cannot be read or has no demonstrations, or a line is none: it has no answer, or an empty
            answer.
    """
    demonstrations = []
    for path in paths:
        entries = list(read_lines(Path(path)))
        if not entries:
            raise DataError(
                f'{path} holds no demonstrations; each line is one, such as {{"prompt": "...", "reference": "..."}} '
                'or {"messages": [...]}'
            )
        demonstrations += [Demonstration(where, _turns(line, where)) for _, where, line in entries]
    return demonstrations


def _turns(line: bytes, where: str) -> tuple[Turn, ...]:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error})") from error
    example = read_example(text, where)
    record = json.loads(text)
    if "prompt" not in record:
        turns = tuple(chat_turns(record["messages"], where))
    elif example.reference is None or not example.reference.strip():
        state = "no" if example.reference is None else "an empty"
        raise DataError(f'{where}: {state} "reference", so there is no answer to learn; add one, or remove the line')
    else:
        turns = (Turn(example.prompt, example.reference),)
    for turn in turns:
        refuse_half_pairs(where, prompt=Example(turn.prompt).prompt_text, answer=turn.answer)
    return turns
