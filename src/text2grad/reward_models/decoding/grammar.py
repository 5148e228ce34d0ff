r"""The critiques of one response as a grammar for a server: Lark, as llguidance reads it in vLLM and SGLang.

The grammar accepts the language of `constrained.py`, but it cannot count: a quote may be listed more often than it
occurs, and in both lists. Only the feedback's tokens are limited; long lists of quotes may be cut off.
"""

import json
from itertools import pairwise

from text2grad.errors import ConfigError
from text2grad.feedback import inside_word
from text2grad.reward_models.decoding.automaton import DECIMALS, DIGITS
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.writing import (
    CLOSING,
    GOOD,
    LABEL_FORMS,
    LABELLED,
    NO_OUTCOME,
    OPENING,
    OUTCOME,
    POOR,
    QUOTING,
    WORDS,
    LabelForm,
    has_outcome,
)

# One character in JSON encoding: white space as defined by Python, and any other character.
_SPACE = r"(?:[ \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]|\\[tnfr]|\\u00(?:0b|1[c-f]))"
_WORD = (
    r"(?:[^\"\\\u0000-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
    r"|\\[\"\\b]|\\u00(?:0[0-8ef]|1[0-9ab]))"
)
_NUMBER = rf"NUMBER: /null|-?(0|[1-9][0-9]{{0,{DIGITS - 1}}})(\.[0-9]{{1,{DECIMALS}}})?/"
_EMPTY = len(OPENING + GOOD + POOR + CLOSING)  # bytes, an upper bound of the tokens, of an empty critique


def critique_grammar(response: str, format: CritiqueFormat | None = None, *, max_tokens: int | None = None) -> str:
    r"""Return the Lark grammar of the critiques of a response.

    Args:
        response: the response that the critique quotes.
        format: of the critique; of its limits the grammar ignores `one_list`, `quoted_in_feedback` and `verbatim`.
        max_tokens: length limit of the critique; the feedback then ends early enough for the JSON around it.

    Example:
        >>> print(critique_grammar("A cat.", CritiqueFormat(write_feedback=False)).splitlines()[0])
        start: "{\"textual_feedback\": \"" "\", \"good_spans\": [" list "], \"poor_spans\": [" list "]}"
    """
    format = format or CritiqueFormat()
    form, limits, write_feedback = format.form, format.limits, format.write_feedback
    outcomes = has_outcome(form) and format.outcomes
    if form not in QUOTING:
        return _grammar_of_labels(response, LABEL_FORMS[form], write_feedback, outcomes, max_tokens)
    opening, good, poor, closing = (json.dumps(part) for part in (OPENING, GOOD, POOR, CLOSING))
    empty = _EMPTY
    if has_outcome(form):
        empty += len(OUTCOME) + DIGITS + DECIMALS + 1
        closing = f"{json.dumps(OUTCOME)} {_outcome(outcomes)}"
    text = ["text"] if write_feedback else []
    listed = [] if not response.strip() else ["list"]
    lists = [json.dumps(LABELLED), *listed] if form == "labelled_spans" else [good, *listed, poor, *listed]
    lines = [" ".join(["start:", opening, *text, *lists, closing])]
    if outcomes:
        lines.append(_NUMBER)
    if write_feedback:
        lines += _text(max_tokens, empty)
    if listed:
        repeat = "*" if limits.max_quotes is None else f"{{0,{limits.max_quotes - 1}}}"
        entry = "pair" if form == "labelled_spans" else "quote"
        more = "" if limits.max_quotes == 1 else f' (", " {entry}){repeat}'
        fits = "" if limits.max_quote_words is None else " & WORDS"
        lines += [
            f"list: ({entry}{more})?",
            r'quote: "\"" QUOTE "\""',
            f"QUOTE: PIECE & ~BLANK{fits}",
            f"BLANK: /{_SPACE}*/",
            f"PIECE: %regex {json.dumps({'substring_chunks': _chunks(response, limits)}, ensure_ascii=False)}",
        ]
    if listed and form == "labelled_spans":
        words = " | ".join(f'"{word}"' for word in WORDS.values())
        lines.append(f'pair: "[" quote ", \\"" ({words}) "\\"]"')
    if listed and limits.max_quote_words is not None:
        later = limits.max_quote_words - 1
        lines.append(f"WORDS: /{_SPACE}*{_WORD}+(?:{_SPACE}+{_WORD}+){{0,{later}}}{_SPACE}*/")
    return "\n".join(lines) + "\n"


def _outcome(outcomes: bool) -> str:
    """Return the outcome, which is null where there are none, with the brace behind it."""
    return 'NUMBER "}"' if outcomes else json.dumps(NO_OUTCOME)


def _text(max_tokens: int | None, reserved: int) -> list[str]:
    """Return the rules of the feedback, which leaves `reserved` tokens for the JSON around it."""
    return [
        "text: TEXT" if max_tokens is None else f"text[max_tokens={max(1, max_tokens - reserved)}]: TEXT",
        r'TEXT: /([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*/',
    ]


def _grammar_of_labels(
    response: str, known: LabelForm, write_feedback: bool, outcomes: bool, max_tokens: int | None
) -> str:
    """Return the grammar of the labels of all words; bytes are an upper bound of tokens."""
    first, *later = known.around(response)
    # A literal of Lark is a JSON string, but cannot contain the control character U+007F.
    spelled = [json.dumps(one, ensure_ascii=False) for one in (OPENING, known.opening + first, *later)]
    parts = [one.replace("\x7f", r"\u007f") for one in spelled]
    start = [parts[0], *(["text"] if write_feedback else []), " LABEL ".join(parts[1:])]
    lines = [" ".join(["start:", *start, *([_outcome(outcomes)] if known.outcome else [])])]
    if later:
        lines.append("LABEL: " + " | ".join(json.dumps(sign) for sign in known.signs))
    if outcomes:
        lines.append(_NUMBER)
    if write_feedback:
        whole = "".join([OPENING, known.opening, first, *(max(known.signs, key=len) + part for part in later)])
        lines += _text(max_tokens, len(whole.encode()) + (DIGITS + DECIMALS + 3 if known.outcome else 0))
    return "\n".join(lines) + "\n"


def check_expressible(limits: QuoteLimits) -> None:
    """Refuse limits that a grammar cannot express.

    Raises:
        ConfigError: if one is set.
    """
    if limits.one_list or limits.quoted_in_feedback or limits.verbatim:
        raise ConfigError(
            "a grammar cannot express one_list, quoted_in_feedback or verbatim; remove them, in a recipe from [critic]"
        )


def _chunks(response: str, limits: QuoteLimits) -> list[str]:
    """Return the units of quotes in JSON encoding: characters, or words."""
    cuts = [at for at in range(len(response) + 1) if not (limits.whole_words and inside_word(response, at))]
    pieces = (response[start:end] for start, end in pairwise(cuts))
    return [json.dumps(piece, ensure_ascii=False)[1:-1] for piece in pieces]
