r"""Words that misquote nothing: between double quotation marks, a critique holds pieces of the response alone.

The marks of the words, `\\"` in JSON, open and close in turn. What follows one that opens has to be a piece of the
response, as a quote of the lists has to be, until the next mark closes it. Without marks the words are free.

In: the words so far and some bytes of JSON. Out: the words with them, or None where they would misquote.
"""

import re
from typing import NamedTuple

from text2grad.reward_models.decoding.quotable import Quotable, Quote

MARK, BACKSLASH, END_OF_WORDS = b'\\"', b"\\", b'"'
_UNIT = re.compile(rb'[^"\\]+|"|\\u[0-9a-fA-F]{4}|\\[^u]')


class Said(NamedTuple):
    """The words so far.

    Attributes:
        quote: what is quoted and not closed yet; None outside of quotation marks.
        tail: the beginning of an escape of JSON.
        before: bytes until the words begin.
        over: they have ended, or need not be heard.
    """

    quote: Quote | None = None
    tail: bytes = b""
    before: int = 0
    over: bool = False


OVER = Said(over=True)


def hear(said: Said, data: bytes, quotable: Quotable) -> Said | None:
    """Return the words some bytes further; None if these misquote."""
    if said.before >= len(data):
        return said._replace(before=said.before - len(data))
    quote, data, at = said.quote, said.tail + data[said.before :], 0
    while at < len(data):
        unit = _UNIT.match(data, at)
        if unit is None:  # it may still become a mark; other escapes come whole or not at all
            tail = data[at:]
            return Said(quote, tail) if quote is None or tail == BACKSLASH else None
        if unit[0] == END_OF_WORDS:
            return OVER if quote is None else None
        if unit[0] == MARK:
            quote = quotable.empty if quote is None else None
        elif quote is not None:
            quote = quotable.advance(quote, unit[0])
            if quote is None:
                return None
        at = unit.end()
    return Said(quote)


def to_close(said: Said, quotable: Quotable) -> float:
    """Return the least number of tokens after which no quote is open."""
    if said.quote is None:
        return 0
    spelled = quotable.vocabulary.spelled
    if said.tail:
        return 1 if END_OF_WORDS in spelled else float("inf")
    mark = 1 if MARK in spelled else 2 if BACKSLASH in spelled and END_OF_WORDS in spelled else float("inf")
    return quotable.to_character(said.quote) + mark
