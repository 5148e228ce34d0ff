"""Check that the feedback of a critique names the text that its spans mark (Appendix M.1).

A span overlaps with the feedback if the feedback contains it, or contains at least half of its words of four or more
letters (all of its words, if it has no such word). A span without overlap is only a flag: "names the right city" is
about "in Lyon" without a common word.
"""

from text2grad.feedback.words import is_letter, whole_words
from text2grad.types import Critique

_LONG = 4


def quotes_without_overlap(critique: Critique, response: str) -> tuple[str, ...]:
    """Return the texts of spans without word overlap with the feedback, each once.

    Example:
        >>> from text2grad.types import Span
        >>> critique = Critique("The city is not Lyon.", (Span(0, 4, "negative"), Span(8, 14, "positive")))
        >>> quotes_without_overlap(critique, "Lyon in summer")
        ('summer',)
    """
    quotes = dict.fromkeys(response[span.start : span.end] for span in critique.spans)
    return tuple(quote for quote in quotes if not has_word_overlap(quote, critique.feedback))


def has_word_overlap(quote: str, feedback: str) -> bool:
    """Return True if the feedback contains the quote or enough of its words.

    Example:
        >>> has_word_overlap("on Friday", "The day, Friday, is wrong.")
        True
        >>> has_word_overlap("in Lyon", "Names the right city.")
        False
    """
    quote, feedback = quote.casefold(), feedback.casefold()
    if " ".join(quote.split()) in " ".join(feedback.split()):
        return True
    words = _words(quote)
    long = [word for word in words if len(word) >= _LONG]
    known = set(_words(feedback))
    needed = len(long) / 2 if long else len(words)
    return bool(words) and sum(word in known for word in long or words) >= needed


def _words(text: str) -> list[str]:
    return [text[start:end] for start, end in whole_words(text) if is_letter(text[start])]
