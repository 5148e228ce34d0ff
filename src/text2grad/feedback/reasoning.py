"""The answer in a model's text: what stands outside of its reasoning, by the marks that models put around reasoning.

A draft in the reasoning must not be read as the answer: a critique, a judge's verdict, a program. Some chat templates
put the opening mark into the prompt; then the text begins inside the reasoning, and has the closing mark alone.
"""

import re

_TAG = (
    r"(?:[\w-]*[:_]|inner[- ])?(?:think|thinking|thoughts?|reasoning|monologue|scratchpad|antthinking|cot)"
    r"(?:[_-](?:process|content|steps))?"
)
_LEFT, _RIGHT = "(?:<|&lt;)", "(?:>|&gt;)"  # also as HTML escapes them
_MARKS = (  # opening, closing
    (rf"{_LEFT}\s*{_TAG}(?:\s[^<>\n]{{0,80}})?(?<!/){_RIGHT}", rf"{_LEFT}\s*/\s*{_TAG}\s*{_RIGHT}"),  # most models
    (r"<\|think(?:ing)?(?:_start)?\|>", r"<\|(?:/think(?:ing)?|think(?:ing)?_end)\|>"),
    (r"\[THINK\]|◁think▷|\[unused16\]|<unused94>", r"\[/THINK\]|◁/think▷|\[unused17\]|<unused95>"),  # Mistral, Kimi, …
    (r"<\|begin_of_thought\|>|<\|START_THINKING\|>", r"<\|end_of_thought\|>|<\|END_THINKING\|>"),  # Sky-T1, Command A
    (r"<\|inner_prefix\|>|<\|channel>", r"<\|inner_suffix\|>|<channel\|>"),  # Apertus, Gemma
    (
        r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)",
        r"<\|channel\|>final\b[^\n]{0,80}?<\|message\|>",
    ),
    (r"(?:<\|start\|>assistant|\A)\s*to=self", r"(?:assistant|\A)\s*to=user(?:<\|message\|>)?"),  # Muse
    (r"(?-i:\A\s*analysis(?=[A-Z\"'`]))", r"(?-i:assistantfinal)"),  # harmony, whose special tokens were left out
    (r"\A\s*Here(?:'s| is) my thought process:", r"Here(?:'s| is) my response:"),  # Granite
    (r"<details\s[^<>\n]{0,80}reasoning[^<>\n]{0,80}>", r"</details>"),  # Open WebUI
    (r"^:::thinking[ \t]*$", r"^:::[ \t]*$"),  # LibreChat
)
_WORDS = len(_MARKS) - 4  # the marks from this one on are words: without the opening, the closing is text
_QUOTED = r""""[^"\n]*"|`[^`\n]*`|(?<!\w)(?:[bfru]{1,2})?'[^'\n]*'(?!\w)"""
_OUTSIDE = re.compile("|".join([_QUOTED, *(f"({opening})|({closing})" for opening, closing in _MARKS)]), re.I | re.M)
_NARROW = {wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)}  # as wide as Chinese characters → ASCII
_CLOSINGS = [re.compile(closing, re.I | re.M) for _, closing in _MARKS]
_OPENING = rf"\s*(?:{'|'.join(opening for opening, _ in _MARKS[:_WORDS])})"
# What may be asked for is reasoning behind words without a fence or tag, and before a text that is not only tags
_SECTION = r"<(?P<tag>analysis|plan(?:ning)?|(?:self_)?reflect(?:ions?)?|rationale|brainstorm(?:ing)?)>.*?</(?P=tag)>"
_SECTIONS = re.compile(
    rf"(?P<words>[^<`]*\n)?\s*+(?>(?:(?>{_SECTION})\s*+)+)(?=(?>(?:</?[\w-]++>\s*+)*)[^\s<])", re.I | re.S
)
_BEGUN = re.compile(rf"(?:\A|[\n:>]){_OPENING}(?:thought|<\|message\|>)?\s*\Z", re.IGNORECASE)


class Answer(str):
    """A text whose reasoning was taken out already; what is left has none, whatever its prompt began."""

    __slots__ = ()


def answer_parts(text: str, prompt: str = "") -> list[tuple[int, int]]:
    """Return the ranges of a text outside of its reasoning, in order; none if the reasoning was cut off.

    Args:
        text: the text of a model, or an `Answer`. A mark in quotation marks is text; so is an opening mark behind other
            words that is never closed.
        prompt: what stood before the text: if it ends with an opening mark, the text begins inside the reasoning.
    """
    if isinstance(text, Answer):
        return [(0, len(text))] if text.strip() else []
    text, prompt = text.translate(_NARROW), prompt[-200:].translate(_NARROW)
    parts, at, place, unclosed = list[tuple[int, int]](), 0, 0, set[int]()
    if _BEGUN.search(prompt) and not re.match(_OPENING, text, re.IGNORECASE):
        ends = [end for closing in _CLOSINGS[:_WORDS] if (end := closing.search(text))]
        at = place = min((end.end() for end in ends), default=len(text))
    while mark := _OUTSIDE.search(text, place):
        place = mark.end()
        kind, closes = divmod((mark.lastindex or 0) - 1, 2)
        if closes and 0 <= kind < _WORDS:  # before a closing mark alone, all is reasoning
            parts, at = [], place
        elif not closes and mark.lastindex:
            end = None if kind in unclosed else _CLOSINGS[kind].search(text, place)
            if end or not text[text.rfind("\n", 0, mark.start()) + 1 : mark.start()].strip():
                parts.append((at, mark.start()))
                at = place = end.end() if end else len(text)
            else:
                unclosed.add(kind)
    if sections := _SECTIONS.match(text, at):
        parts, at = [*parts, (at, max(at, sections.end("words")))], sections.end()
    return [(start, end) for start, end in [*parts, (at, len(text))] if text[start:end].strip()]


def without_reasoning(text: str, prompt: str = "") -> str:
    """Return the answer of a model without its reasoning; "" if the reasoning was cut off. See `answer_parts`.

    Example:
        >>> without_reasoning("<think>5?</think> 8"), without_reasoning("5?</think> 8"), without_reasoning("<think>5?")
        (' 8', ' 8', '')
    """
    return "".join(text[start:end] for start, end in answer_parts(text, prompt))
