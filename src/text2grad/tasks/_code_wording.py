"""The critic's pen: findings become English sentences that quote each expression as the program has it.

A critique first says what every step needs and then goes through the program line by line: a model that learns to
write such critiques has the truth before it when it judges. The choice among wordings is drawn from the given
generator, which the critic seeds with the specification and the response: the same answer always gets the same words.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from random import Random

from text2grad.tasks._code_critic import Finding, Reading
from text2grad.tasks._code_world import INPUT, NAMES, ORDINALS, Step, expression
from text2grad.tasks.base import split_words

NEEDS = ("needs", "is", "should be")
PRAISE_ONE = ("{quotes} is right.", "Step {step} is right with {quotes}.")
PRAISE_MANY = ("{quotes} are right.", "{quotes} fit.")
PERFECT = ("Every step is right: {quotes}.", "All of it is right: {quotes}.")
SLIPS = {
    "above": "keeps {k} as well",
    "below": "keeps {k} as well",
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
    "wrong": ("{quote} is wrong in step {step}.", "Step {step} is wrong with {quote}."),
    "surplus": ("{quote} is too much for step {step}.", "{quote} is not in step {step}."),
    "foreign": ("{quote} has a wrong name in step {step}.", "Step {step} has a wrong name in {quote}."),
    "stale": ("{quote} reads an old list in step {step}.", "Step {step} reads an old list with {quote}."),
    "undefined": ("{quote} has no value in step {step}.", "Step {step} reads what is not there with {quote}."),
    "unreadable": ("{quote} does not read as step {step}.", "Step {step} does not read with {quote}."),
    "duplicate": ("{quote} does step {step} again.", "{quote} is a second line for step {step}."),
    "misplaced": ("{quote} is too late for step {step}.", "{quote} is out of order."),
    "extra": ("{quote} is for no step.", "{quote} is a line too many."),
    "late": ("{quote} is after the return.", "{quote} is too late."),
    "indent": ("{quote} is out of line.", "{quote} is at the wrong place."),
    "returned": ("{quote} is not the last result.", "{quote} has the wrong name."),
}
MISSING_ONE = ("Step {steps} is missing.", "Step {steps} has no line.")
MISSING_MANY = ("Steps {steps} are missing.", "Steps {steps} have no line.")
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
    recap = _recap(steps, rng)
    if not response.strip():
        return f"{recap} {EMPTY}"
    kept = quotable(reading, response)
    quotes = [_quote(finding, response) for finding in kept]
    if _perfect(reading):
        return f"{recap} {rng.choice(PERFECT).format(quotes=listing(quotes))}"
    remarks = []
    for right, group in groupby(zip(kept, quotes, strict=True), key=lambda pair: pair[0].kind == "right"):
        pairs = list(group)
        remarks += [_praise(pairs, rng)] if right else [_fault(*pair, steps, rng) for pair in pairs]
    remarks += [MORE] if len(kept) < len(reading.findings) else []
    return " ".join([recap, *remarks, *_omissions(reading, rng)])


def listing(items: Sequence[str]) -> str:
    """Join items as English does.

    Example:
        >>> listing(["a", "b", "c"])
        'a, b and c'
    """
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _perfect(reading: Reading) -> bool:
    return reading.returns and not reading.missing and all(finding.kind == "right" for finding in reading.findings)


def _recap(steps: Sequence[Step], rng: Random) -> str:
    """Say what every step needs, in the names of a right program."""
    needs = [
        f"step {ORDINALS[place]} {expression(step, place, NAMES[place - 1] if place else INPUT)}"
        for place, step in enumerate(steps)
    ]
    first = needs[0].replace("step one", f"Step one {rng.choice(NEEDS)}", 1)
    return listing([first, *needs[1:]]) + "."


def _quote(finding: Finding, response: str) -> str:
    return f'"{response[finding.start : finding.end]}"'


def _praise(pairs: Sequence[tuple[Finding, str]], rng: Random) -> str:
    quotes = listing([quote for _, quote in pairs])
    number = _number(pairs[0][0].step)
    return rng.choice(PRAISE_MANY if len(pairs) > 1 else PRAISE_ONE).format(quotes=quotes, step=number)


def _number(place: int | None) -> str:
    return "" if place is None else ORDINALS[place]


def _fault(finding: Finding, quote: str, steps: Sequence[Step], rng: Random) -> str:
    """Return the sentence on one fault; a known habit is sometimes called by its name."""
    choice, k = FAULTS[finding.kind if finding.kind != "slip" else "wrong"], 0
    if finding.kind == "slip" and finding.step is not None:
        operation, k = steps[finding.step]
        choice = (*choice, "{quote} in step {step} " + SLIPS[operation] + ".")
    return rng.choice(choice).format(quote=quote, step=_number(finding.step), k=k)


def _omissions(reading: Reading, rng: Random) -> list[str]:
    """Return the sentences on what the program leaves out; an omission has nothing to quote."""
    sentences = []
    if reading.missing:
        numbers = listing([ORDINALS[place] for place in reading.missing])
        sentences.append(rng.choice(MISSING_MANY if len(reading.missing) > 1 else MISSING_ONE).format(steps=numbers))
    return sentences if reading.returns else [*sentences, rng.choice(NO_RETURN)]


def words() -> list[str]:
    """Return texts that hold every word of critiques, but for what they quote."""
    wordings = [*PRAISE_ONE, *PRAISE_MANY, *PERFECT, *MISSING_ONE, *MISSING_MANY, *SLIPS.values()]
    wordings += [wording for choices in FAULTS.values() for wording in choices]
    bare = [re.sub(r"\{\w+\}", "", wording) for wording in wordings]
    return [*bare, *NEEDS, *NO_RETURN, EMPTY, MORE, '", and in step Step']
