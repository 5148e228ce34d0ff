"""Whether a critique's words speak of what it quotes, as far as words tell (Appendix M.1).

A span is supported where the critique has it, or holds at least half of its words of four letters and more (all its
words, where none is so long). It is a flag and no verdict: "names the right city" supports "in Lyon" without a word in
common.
"""

import re

from text2grad.types import Critique

_WORD = re.compile(r"\w+")
_LONG = 4


def unsupported(critique: Critique, response: str) -> tuple[str, ...]:
    """Return the quotes that a critique's words do not support, each once.

    Example:
        >>> from text2grad.types import Span
        >>> critique = Critique("The city is not Lyon.", (Span(0, 4, "negative"), Span(8, 14, "positive")))
        >>> unsupported(critique, "Lyon in summer")
        ('summer',)
    """
    quotes = dict.fromkeys(response[span.start : span.end] for span in critique.spans)
    return tuple(quote for quote in quotes if not is_supported(quote, critique.feedback))


def is_supported(span: str, feedback: str) -> bool:
    """Tell whether a critique's words speak of a span.

    Example:
        >>> is_supported("on Friday", "The day, Friday, is wrong."), is_supported("in Lyon", "Names the right city.")
        (True, False)
    """
    here, said = span.casefold(), feedback.casefold()
    if " ".join(here.split()) in " ".join(said.split()):
        return True
    every = _WORD.findall(here)
    words = [word for word in every if len(word) >= _LONG]
    known = set(_WORD.findall(said))
    needed = len(words) / 2 if words else len(every)
    return bool(every) and sum(word in known for word in words or every) >= needed
