"""The program in an answer.

An answer that continues its prompt is the prompt and the answer, cut at the first text that begins something else.

The program in an answer of a chat model is that of `critics.program_in`. The beginning of the prompt, its imports and
helpers, stands before the program: answers often leave it out, and a definition of their own replaces it; imports from
`__future__` move to the top. A program that does not define the function, but is the indented body of it, continues
the prompt.
"""

import re

from text2grad.critics import program_in

_FUTURE = re.compile(r"^from __future__ import (?:[^(\n]*|\([^)]*\)[^\n]*)$", re.MULTILINE)

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
    program = program_in(answer, {function} if function else ()).text
    if prompt and not head_of(program, function) and re.match(r"(?:[ \t]*\r?\n)*[ \t]+\S", program):
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
