"""Reads the critiques of answers of one sentence, by the rules of their wording and none of the source's code."""

import re
from collections.abc import Callable, Mapping

# Both styles: what each judgement says of a fact, and of what is about none.
ABOUT_A_FACT = {
    "right": ("is right", "is correct"),
    "wrong": ("is wrong", "is the wrong {noun}"),
    "vague": ("is vague", "is too vague"),
    "half": ("is half a name", "is only half a name"),
    "duplicate": ("is one {noun} too many", "is a second {noun}"),
    "misplaced": ("is out of place", "is in the wrong place"),
}
ABOUT_NONE = {
    "chatter": ("is chatter", "is no fact"),
    "garbled": ("is garbled", "is nonsense"),
    "extra": ("is extra", "is after the end"),
}
MISSING = ("it is missing.", "nothing names it.")
REST = ("The sentence breaks off.", "There is more like this.")
REMARK = re.compile(r'(?:(?P<truth>[^":.]+): )?(?P<verdicts>(?:"[^"]*"|[^".])+\.)(?: |$)')
VERDICT = re.compile(r'"(?P<quote>[^"]*)" (?P<said>[^"]+?)(?: and (?=")|\.$)')

Judged = list[tuple[str, str]]  # quotes, each with the kind of its judgement
Truths = Mapping[str, tuple[str, str]]  # what is true of each slot, in both styles
Kinds = Callable[[str, int], dict[str, str]]
"""(slot, style) → the kind of judgement by its words, of those that a remark on this slot, "" for none, can hold."""


def remark_of(
    truth: str, verdicts: str, facts: Mapping[str, str], style: int, truths: Truths, kinds: Kinds
) -> tuple[str, Judged | str] | None:
    """Return the slot of a remark and its judgements, or its words if it judges none; None in another style."""
    first, last = facts["who"].split()
    true = {**facts, "first": first, "last": last}
    slots = {truths[slot][style].format(value): slot for slot, value in true.items()} | {"": ""}
    matches = list(VERDICT.finditer(verdicts))
    if truth not in slots:
        return None
    slot, known = slots[truth], kinds(slots[truth], style)
    if not matches:
        return (slot, verdicts) if verdicts in ((MISSING[style],) if slot else REST) else None
    if "".join(match[0] for match in matches) != verdicts or any(match["said"] not in known for match in matches):
        return None
    return slot, [(match["quote"], known[match["said"]]) for match in matches]


def told_in(
    feedback: str, facts: Mapping[str, str], truths: Truths, kinds: Kinds
) -> tuple[int, list[tuple[str, Judged | str]]]:
    """Return the one style that a critique is in and its remarks.

    Every word of it belongs to that style, and what it says is true is what the facts are.
    """
    matches = list(REMARK.finditer(feedback))
    assert "".join(match[0] for match in matches) == feedback
    readings = [
        [remark_of(match["truth"] or "", match["verdicts"], facts, style, truths, kinds) for match in matches]
        for style in (0, 1)
    ]
    ((style, remarks),) = [(style, reading) for style, reading in enumerate(readings) if None not in reading]
    return style, [remark for remark in remarks if remark is not None]


def judged(remarks: list[tuple[str, Judged | str]]) -> list[tuple[str, str, str]]:
    """Return each quote with the kind of its judgement and the slot whose truth is told beside it."""
    return [(*verdict, slot) for slot, verdicts in remarks if not isinstance(verdicts, str) for verdict in verdicts]


def others(remarks: list[tuple[str, Judged | str]]) -> list[tuple[str, str]]:
    """Return the slot and the words of the remarks that judge no quote."""
    return [(slot, verdicts) for slot, verdicts in remarks if isinstance(verdicts, str)]
