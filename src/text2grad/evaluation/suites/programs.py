"""The program in an answer.

An answer that continues its prompt is the prompt and the answer, cut at the first text that begins something else.

An answer of a chat model may hold text around its program. Reasoning before it is removed. The program is the
last fenced block that defines the function in question, else the last block: models correct themselves downwards.
Without a fence it is the part of the answer from its first line of code that Python can parse. The beginning of the
prompt, its imports and helpers, stands before the program: answers often leave it out, and a definition of their own
replaces it; imports from `__future__` move to the top. A block that does not define the function, but is the indented
body of it, continues the prompt.
"""

import ast
import re

from text2grad.critics import fenced_blocks
from text2grad.feedback import without_reasoning

_CODE = re.compile(
    r"^(?:from|import|def|class|async|@|if|for|while|with|try|[A-Za-z_][\w.\[\]]* *(?:=|\())", re.MULTILINE
)
_FUTURE = re.compile(r"^from __future__ import (?:[^(\n]*|\([^)]*\)[^\n]*)$", re.MULTILINE)
_MOST_TRIES = 200  # ends of an answer that are tried until it parses

STOPS = ("\ndef ", "\nclass ", "\nif __name__", "\nprint(", "\nassert ", "\n@", "\n#", "\n```", "\nimport ", "\nfrom ")
"""Texts that end a body of a function that continues its prompt."""


def program_of_chat(answer: str, *, function: str = "", head: str = "", prompt: str = "") -> str:
    r"""Return the program of a chat model's answer.

    Args:
        answer: the answer.
        function: name of the function in question; "" for a script.
        head: imports and helpers that the prompt holds before the function.
        prompt: beginning of a program that an indented body continues; "" for none.

    Example:
        >>> program_of_chat("Sure:\n```python\ndef f(x):\n    return x\n```\nUse it:\n```\nf(1)\n```", function="f")
        'def f(x):\n    return x\n'
    """
    answer = without_reasoning(answer)
    blocks = [block.text for _, block in fenced_blocks(answer)] or [without_prose(answer)]
    name = re.escape(function)
    definition = re.compile(rf"^(?:(?:async )?def {name}\b|class {name}\b|{name} *=)", re.MULTILINE)
    defining = [text for text in blocks if function and definition.search(text)]
    program = (defining or blocks)[-1]
    if function and not defining and prompt and re.match(r"(?:[ \t]*\r?\n)*[ \t]+\S", program):
        return prompt + program
    if not head.strip():
        return program
    future = "".join(f"{line}\n" for line in _FUTURE.findall(program))  # stays first, as Python demands
    return f"{future}{head}\n{_FUTURE.sub('', program)}"


def head_of(prompt: str, function: str) -> str:
    r"""Return a prompt up to the definition of a function: imports and helpers.

    Example:
        >>> head_of("import math\n\ndef area(r):\n    ...", "area")
        'import math\n\n'
    """
    definition = re.search(rf"^(?:async )?def {re.escape(function)}\b", prompt, re.MULTILINE)
    return prompt[: definition.start()] if definition else ""


def without_prose(answer: str) -> str:
    r"""Return the longest part of an answer, from a line of code on, that Python can parse; else the answer.

    Example:
        >>> without_prose("Here it is:\n\ndef f(x):\n    return x\n\nThat was easy.")
        'def f(x):\n    return x\n\n'
    """
    if parses(answer):
        return answer
    lines, code = answer.splitlines(keepends=True), ""
    for start in [number for number, line in enumerate(lines) if _CODE.match(line)][:10]:
        ends = range(len(lines), max(start, len(lines) - _MOST_TRIES), -1)
        texts = ("".join(lines[start:end]) for end in ends)
        code = max(code, next(filter(parses, texts), ""), key=len)
    return code if code.strip() else answer


def parses(text: str) -> bool:
    """Return whether Python can parse a program."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
