r"""The critiques of one response as a grammar for a server: Lark, as llguidance reads it in vLLM and SGLang.

The grammar accepts the language of `constrained.py`, but it cannot count: a quote may be listed more often than it
occurs, and in both lists. Only the feedback's tokens are limited; long lists of quotes may be cut off.
"""

import json
from itertools import pairwise

from text2grad.feedback import inside_word, sampled_texts
from text2grad.reward_models.decoding.labels import DECIMALS, DIGITS
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.writing import CLOSING, FORMS, GOOD, NO_OUTCOME, OPENING, OUTCOME, POOR, QUOTE, TURN, WORDS
from text2grad.types import Conversation

# White space as Python defines it, in JSON encoding.
_SPACE = r"(?:[ \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]|\\[tnfr]|\\u00(?:0b|1[c-f]))"
_NUMBER = rf"NUMBER: /null|-?(0|[1-9][0-9]{{0,{DIGITS - 1}}})(\.[0-9]{{1,{DECIMALS}}})?/"


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
    form = FORMS[format.form]
    body, rules, size = (_quotes if form.quotes else _labels)(response, format)
    if form.outcome:
        body.append('NUMBER "}"' if format.outcomes else _literal(NO_OUTCOME))
        rules.append(_NUMBER)
        size += DIGITS + DECIMALS + 3
    if format.write_feedback:
        body.insert(0, "text")
        limit = "" if max_tokens is None else f"[max_tokens={max(1, max_tokens - size)}]"
        rules += [f"text{limit}: TEXT", r'TEXT: /([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*/']
    return "\n".join([" ".join(["start:", _literal(OPENING), *body]), *rules]) + "\n"


def _literal(text: str) -> str:
    """Return a literal of Lark: a JSON string, but for the control character U+007F."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


def _quotes(response: str, format: CritiqueFormat) -> tuple[list[str], list[str], int]:
    """Return what follows the feedback, the rules of the quotes, and the bytes of an empty critique's JSON."""
    labelled, in_turns = format.form == "labelled_spans", isinstance(response, Conversation)
    texts = {str(turn): text for turn, text in sampled_texts(response).items()} if in_turns else {"": response}
    texts = {turn: text for turn, text in texts.items() if text.strip()}  # a turn's number names its rules
    listed = ["list"] if texts else []
    closing = OUTCOME if labelled else CLOSING
    parts = [_literal(FORMS["labelled_spans"].opening)] if labelled else [_literal(GOOD), *listed, _literal(POOR)]
    size = len(OPENING + GOOD + POOR + closing)
    entry, words = "pair" if labelled or in_turns else "quote", " | ".join(f'"{word}"' for word in WORDS.values())
    pair = f'"[" quote ", \\"" ({words}) "\\"]"'
    if in_turns:
        pair = f'quote ", \\"label\\": \\"" ({words}) "\\"}}"' if labelled else 'quote "}"'
    heads = {turn: _literal(f"{TURN}{turn}{QUOTE}" if turn else '"') for turn in texts}
    rules = [
        f'list: ({entry} (", " {entry})*)?',
        f"pair: {pair}",
        "quote: " + " | ".join(rf'{head} QUOTE{turn} "\""' for turn, head in heads.items()),
        *(f"QUOTE{turn}: PIECE{turn} & ~BLANK" for turn in texts),
        f"BLANK: /{_SPACE}*/",
        *(f"PIECE{turn}: %regex {_substrings(text, format)}" for turn, text in texts.items()),
    ]
    return [*parts, *listed, _literal(closing)], rules if listed else [], size


def _substrings(text: str, format: CritiqueFormat) -> str:
    """Return the expression for the substrings of a text, in JSON encoding."""
    cuts = [at for at in range(len(text) + 1) if not (format.limits.whole_words and inside_word(text, at))]
    units = [json.dumps(text[start:end], ensure_ascii=False)[1:-1] for start, end in pairwise(cuts)]
    return json.dumps({"substring_chunks": units}, ensure_ascii=False)


def _labels(response: str, format: CritiqueFormat) -> tuple[list[str], list[str], int]:
    """Return what follows the feedback, the rule of the labels, and the bytes of the JSON with the longest labels."""
    form = FORMS[format.form]
    first, *later = form.around(response)
    body = " LABEL ".join(map(_literal, (form.opening + first, *later)))
    rules = ["LABEL: " + " | ".join(json.dumps(sign) for sign in form.signs)] if later else []
    whole = "".join([OPENING, form.opening, first, *(max(form.signs, key=len) + part for part in later)])
    return [body], rules, len(whole.encode())
