r"""Check that text between double quotes in the feedback occurs in the response.

The quotation marks of the feedback, `\\"` in JSON, open and close in turn. The text after an opening mark must be a
substring of the response until the next mark closes it. The rest of the feedback is free.
"""

import re
from typing import NamedTuple

from text2grad.reward_models.decoding.quotable import Quotable, Quote
from text2grad.reward_models.decoding.skeleton import MARK

BACKSLASH, END_OF_FEEDBACK = b"\\", b'"'
_UNIT = re.compile(rb'[^"\\]+|"|\\u[0-9a-fA-F]{4}|\\[^u]')


class QuotedWords(NamedTuple):
    """State of the parser that reads the feedback.

    Attributes:
        quote: the open quote; None outside of quotation marks.
        tail: incomplete JSON escape at the end.
        over: True after the end of the feedback, or if it is not checked.
    """

    quote: Quote | None = None
    tail: bytes = b""
    over: bool = False


UNCHECKED = QuotedWords(over=True)


def read(words: QuotedWords, data: bytes, quotable: Quotable) -> QuotedWords | None:
    """Return the state after some bytes of JSON; None if a quote does not occur in the response."""
    if words.over:
        return words
    quote, data, at = words.quote, words.tail + data, 0
    while at < len(data):
        unit = _UNIT.match(data, at)
        if unit is None:  # an incomplete escape; inside a quote it can only become a mark
            tail = data[at:]
            return QuotedWords(quote, tail) if quote is None or tail == BACKSLASH else None
        if unit[0] == END_OF_FEEDBACK:
            return UNCHECKED if quote is None else None
        if unit[0] == MARK:
            quote = quotable.empty if quote is None else None
        elif quote is not None:
            quote = quotable.advance(quote, unit[0])
            if quote is None:
                return None
        at = unit.end()
    return QuotedWords(quote)


def tokens_to_close(words: QuotedWords, quotable: Quotable) -> float:
    """Return the least number of tokens that close the open quote."""
    if words.quote is None:
        return 0
    spelled = quotable.vocabulary.spelled
    if words.tail:
        return 1 if END_OF_FEEDBACK in spelled else float("inf")
    mark = 1 if MARK in spelled else 2 if BACKSLASH in spelled and END_OF_FEEDBACK in spelled else float("inf")
    return quotable.tokens_to_character(words.quote) + mark
