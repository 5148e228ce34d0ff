"""The critic's pen: findings become English sentences that quote each span word for word.

A critique goes through the answer in its order. Each remark first says what is true and then what the answer has: a
model that learns to write such critiques has the truth beside the quote when it judges. The choice among wordings is
drawn from the given generator, which the critic seeds with the prompt and the answer: the same answer always gets the
same words.
"""

import re
from itertools import groupby
from random import Random

from text2grad.tasks._qa_critic import HALVES, Finding, Reading
from text2grad.tasks._qa_world import NOUNS, Problem

STYLES = 2  # a critique keeps to one: what is left to chance is noise for whoever learns to write critiques
TRUTHS = {
    "first": ("The first name is {first}", "The name begins with {first}"),
    "last": ("The last name is {last}", "The surname is {last}"),
    "who": ("{who} teaches it", "The table says {who}"),
    "what": ("The subject is {what}", "It is {what}"),
    "where": ("The place is the {where}", "It is at the {where}"),
    "when": ("The day is {when}", "It is on {when}"),
    "price": ("The price is {price} euros", "It costs {price} euros"),
}
VERDICTS = {
    "right": ("{quote} is right", "{quote} is correct"),
    "wrong": ("{quote} is wrong", "{quote} is the wrong {noun}"),
    "vague": ("{quote} is vague", "{quote} is too vague"),
    "half": ("{quote} is half a name", "{quote} is only half a name"),
    "duplicate": ("{quote} is one {noun} too many", "{quote} is a second {noun}"),
    "misplaced": ("{quote} is out of place", "{quote} is in the wrong place"),
    "unasked": ("{quote} is not asked for", "{quote} answers no question"),
    "chatter": ("{quote} is chatter", "{quote} is no fact"),
    "garbled": ("{quote} is garbled", "{quote} is nonsense"),
    "extra": ("{quote} is extra", "{quote} is after the end"),
}
MISSING = ("it is missing", "nothing names it")
UNFINISHED = "The sentence breaks off."
EMPTY = "The answer is empty."
MORE = "There is more like this."
MOST_FAULTS = 6


def quotable(reading: Reading) -> list[Finding]:
    """Return the findings a critique has room for: all praise and the first faults."""
    praise = [finding for finding in reading.findings if finding.kind == "right"]
    faults = [finding for finding in reading.findings if finding.kind != "right"]
    return sorted(praise + faults[:MOST_FAULTS], key=lambda finding: finding.start)


def write(reading: Reading, response: str, problem: Problem, rng: Random) -> str:
    """Put a reading into words; every quotable finding is quoted as the answer has it."""
    if not response.strip():
        return EMPTY
    style, facts, kept = rng.randrange(STYLES), dict(problem.facts), quotable(reading)
    facts |= zip(HALVES, facts["who"].split(), strict=True)
    remarks = []
    for slot, findings in groupby(kept, key=lambda finding: finding.slot if finding.slot in facts else ""):
        verdicts = [_verdict(finding, response, style) for finding in findings]
        remarks += [_remark(slot, " and ".join(verdicts), facts, style)] if slot else [f"{one}." for one in verdicts]
    remarks += [MORE] if len(kept) < len(reading.findings) else []
    remarks += [] if reading.finished else [UNFINISHED]
    remarks += [_remark(slot, MISSING[style], facts, style) for slot in reading.missing]
    return " ".join(remarks)


def _verdict(finding: Finding, response: str, style: int) -> str:
    quote = f'"{response[finding.start : finding.end]}"'
    return VERDICTS[finding.kind][style].format(quote=quote, noun=NOUNS.get(finding.slot))


def _remark(slot: str, verdicts: str, facts: dict[str, str], style: int) -> str:
    return f"{TRUTHS[slot][style].format(**facts)}: {verdicts}."


def judgements() -> list[str]:
    """Return every wording of a judgement."""
    return [wording for choices in VERDICTS.values() for wording in choices]


def words() -> list[str]:
    """Return texts that hold every word of critiques, but for the values of claims and what they quote."""
    wordings = [*(wording for choices in TRUTHS.values() for wording in choices), *judgements()]
    bare = [re.sub(r"\{\w+\}", "", wording) for wording in (*wordings, *MISSING)]
    return [*bare, *NOUNS.values(), UNFINISHED, EMPTY, MORE, '" and: ']
