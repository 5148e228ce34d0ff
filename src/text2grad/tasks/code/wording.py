"""The critic's pen: findings become English sentences that quote each expression as the program has it.

A critique goes through the program in its order. Each remark first says what the step needs and then what the
program has: a model that learns to write such critiques has the truth beside the quote when it judges. The choice
among wordings is drawn from the given generator, which the critic seeds with the specification and the response: the
same answer always gets the same words.
"""

from collections.abc import Sequence
from random import Random

from text2grad.tasks.base import Finding, bare, remarks, split_words
from text2grad.tasks.code.critic import Reading
from text2grad.tasks.code.world import INPUT, NAMES, Step, expression

STYLES = 2  # a critique keeps to one: what is left to chance is noise for whoever learns to write critiques
NEEDS = ("Step {step} needs {truth}", "Step {step} is {truth}")
RIGHT = ("{quote} is right", "{quote} fits")
SLIPS = {
    "above": "also keeps {k}",
    "below": "also keeps {k}",
    "at_least": "loses {k}",
    "at_most": "loses {k}",
    "double": "squares",
    "square": "only doubles",
    "subtract": "is the wrong way round",
    "first": "skips them",
    "skip": "keeps only them",
    "last": "drops them",
    "drop_last": "keeps only them",
    "rising": "sorts the wrong way",
    "falling": "sorts the wrong way",
    "reverse": "sorts them as well",
    "sum": "only counts",
    "count": "adds them up",
    "largest": "takes the wrong end",
    "smallest": "takes the wrong end",
}
FAULTS: dict[str, tuple[str, ...]] = {
    "wrong": ("{quote} is wrong", "{quote} is not it"),
    "surplus": ("{quote} is too much",),
    "foreign": ("{quote} has a wrong name",),
    "stale": ("{quote} reads an old list",),
    "undefined": ("{quote} has no value",),
    "unreadable": ("{quote} does not read",),
    "duplicate": ("{quote} does it again", "{quote} is a second line"),
    "misplaced": ("{quote} is too late", "{quote} is out of order"),
    "extra": ("{quote} is for no step", "{quote} is a line too many"),
    "late": ("{quote} is after the return", "{quote} is too late"),
    "indent": ("{quote} is out of line", "{quote} is at the wrong place"),
    "returned": ("{quote} is not the last result", "{quote} has the wrong name"),
}
MISSING = ("it is missing", "it has no line")
NO_RETURN = ("The return is missing.", "Nothing is returned.")
EMPTY = "The program is empty."
MORE = "There is more like this."
MOST_FAULTS, MOST_WORDS = 5, 34  # faults that are told, and words in all quotes together


def quotable(reading: Reading, response: str) -> list[Finding]:
    """Return the findings a critique has room for: all praise, the first fault, and the next that fit."""
    sizes = {finding: len(split_words(response[finding.start : finding.end])) for finding in reading.findings}
    faults = [finding for finding in reading.findings if finding.kind != "right"]
    kept = [finding for finding in reading.findings if finding.kind == "right"] + faults[:1]
    room = MOST_WORDS - sum(map(sizes.__getitem__, kept))
    for finding in faults[1:MOST_FAULTS]:
        room -= sizes[finding]
        if room < 0:
            break
        kept.append(finding)
    return sorted(kept, key=lambda finding: finding.start)


def write(reading: Reading, response: str, steps: Sequence[Step], rng: Random) -> str:
    """Put a reading into words; every quotable finding is quoted as the response has it."""
    if not response.strip():
        return EMPTY
    kept, style = quotable(reading, response), rng.randrange(STYLES)
    truths = [_truth(step, place, style) for place, step in enumerate(steps)]
    text = remarks(
        kept,
        lambda finding: None if finding.about is None else truths[finding.about],
        lambda finding: _verdict(finding, response, steps, style),
    )
    text += [MORE] if len(kept) < len(reading.findings) else []
    text += [f"{truths[place]}: {MISSING[style]}." for place in reading.missing]
    return " ".join(text if reading.returns else [*text, NO_RETURN[style]])


def _truth(step: Step, place: int, style: int) -> str:
    """Say what a step needs, in the names of a right program."""
    needed = expression(step, place, NAMES[place - 1] if place else INPUT)
    return NEEDS[style].format(step=NAMES[place], truth=needed)


def _verdict(finding: Finding, response: str, steps: Sequence[Step], style: int) -> str:
    """Return the judgement of one quote; in one style a known habit is called by its name."""
    choice, k = RIGHT if finding.kind == "right" else FAULTS[finding.kind if finding.kind != "slip" else "wrong"], 0
    if finding.kind == "slip":
        operation, k = steps[finding.about]
        choice = (choice[0], "{quote} " + SLIPS[operation])
    return choice[style % len(choice)].format(quote=f'"{response[finding.start : finding.end]}"', k=k)


def judgements() -> list[str]:
    """Return every wording of a judgement."""
    slips = ("{quote} " + slip for slip in SLIPS.values())
    return [*RIGHT, *slips, *(text for choices in FAULTS.values() for text in choices)]


def words() -> list[str]:
    """Return texts that hold every word of critiques, but for expressions and what they quote."""
    wordings = [*NEEDS, *RIGHT, *MISSING, *SLIPS.values(), *(text for choices in FAULTS.values() for text in choices)]
    return [*map(bare, wordings), *NO_RETURN, EMPTY, MORE, '" and: ']
