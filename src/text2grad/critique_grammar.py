r"""The critique of one response as a grammar for a server: Lark, as llguidance reads it within vLLM and SGLang.

The same language as `constrained.py` accepts, but for what a grammar cannot count: a quote may be listed more often
than it occurs, and in both lists. Nor does it know how many tokens are left; the server's limit may cut a critique off.
"""

import json
from itertools import pairwise

from text2grad.critique_writing import CLOSING, GOOD, OPENING, POOR
from text2grad.quoting import QuoteLimits
from text2grad.spans import inside_word

# One character as JSON spells it, first white space as Python knows it, then everything else.
_SPACE = r"(?:[ \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]|\\[tnfr]|\\u00(?:0b|1[c-f]))"
_WORD = (
    r"(?:[^\"\\\u0000-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
    r"|\\[\"\\b]|\\u00(?:0[0-8ef]|1[0-9ab]))"
)


def critique_grammar(response: str, *, words: bool = True, limits: QuoteLimits | None = None) -> str:
    r"""Return the Lark grammar of the critiques that can be written about a response.

    Args:
        response: what is quoted from.
        words: False leaves the critique in words empty.
        limits: on the quotes; `one_list`, `supported` and `verbatim` are not in the grammar.

    Example:
        >>> print(critique_grammar("A cat.", words=False).splitlines()[0])
        start: "{\"textual_feedback\": \"" "\", \"good_spans\": [" list "], \"poor_spans\": [" list "]}"
    """
    limits = limits or QuoteLimits()
    opening, good, poor, closing = (json.dumps(part) for part in (OPENING, GOOD, POOR, CLOSING))
    text = ["TEXT"] if words else []
    listed = [] if not response.strip() else ["list"]
    lines = [" ".join(["start:", opening, *text, good, *listed, poor, *listed, closing])]
    if words:
        lines.append(r'TEXT: /([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*/')
    if listed:
        repeat = "*" if limits.max_quotes is None else f"{{0,{limits.max_quotes - 1}}}"
        more = "" if limits.max_quotes == 1 else f' (", " quote){repeat}'
        fits = "" if limits.max_quote_words is None else " & WORDS"
        lines += [
            f"list: (quote{more})?",
            r'quote: "\"" QUOTE "\""',
            f"QUOTE: PIECE & ~BLANK{fits}",
            f"BLANK: /{_SPACE}*/",
            f"PIECE: %regex {json.dumps({'substring_chunks': _chunks(response, limits)}, ensure_ascii=False)}",
        ]
    if listed and limits.max_quote_words is not None:
        later = limits.max_quote_words - 1
        lines.append(f"WORDS: /{_SPACE}*{_WORD}+(?:{_SPACE}+{_WORD}+){{0,{later}}}{_SPACE}*/")
    return "\n".join(lines) + "\n"


def _chunks(response: str, limits: QuoteLimits) -> list[str]:
    """Return the pieces that quotes are made of, as JSON spells them: characters, or words."""
    cuts = [at for at in range(len(response) + 1) if not (limits.whole_words and inside_word(response, at))]
    pieces = (response[start:end] for start, end in pairwise(cuts))
    return [json.dumps(piece, ensure_ascii=False)[1:-1] for piece in pieces]
