"""The critic's pen: findings become English sentences that quote each span word for word.

A critique first says what is true and then goes through the answer in its order: a model that learns to write such
critiques has the truth before it when it judges. The choice among wordings is drawn from the given generator, which
the critic seeds with the prompt and the answer: the same answer always gets the same words.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from random import Random

from text2grad.tasks._qa_critic import Finding, Reading
from text2grad.tasks._qa_world import NOUNS, Problem, answer_of, said

RECAPS = ("The table says that {gold}", "In short, {gold}", "The truth: {gold}")
PRAISE_ONE = ("{quotes} is right.", "{quotes} matches the table.")
PRAISE_MANY = ("{quotes} are right.", "{quotes} match the table.")
PERFECT = ("Everything is right: {quotes} match the table.", "All of it is right: {quotes}.")
WRONG = ("{quote} is the wrong {noun}.", "The {noun} is {truth}, not {quote}.")
ELSEWHERE = "{quote} is in a row that is {status}."
OWNED = "{quote} belongs to {owner}."
NOWHERE = "The table never names {quote}."
FAULTS = {
    "vague": ("{quote} is vague.", "{quote} hides the {noun}.", "{quote} is vague: the table says {truth}."),
    "half": ("{quote} is only half a name.", "{quote} is only half a name: the table says {truth}."),
    "duplicate": ("{quote} is one {noun} too many.", "{quote} gives the {noun} a second time."),
    "misplaced": ("{quote} is out of place.", "{quote} is in the wrong place."),
    "unasked": ("Nobody asked for {quote}.", "{quote} answers no question."),
    "chatter": ("{quote} is chatter.", "{quote} adds nothing."),
    "garbled": ("{quote} makes no sense.", "{quote} is garbled."),
    "extra": ("{quote} is extra.", "{quote} comes after the end."),
}
MISSING_ONE = ("The {noun} is missing.", "Nothing names the {noun}: the table says {truth}.")
MISSING_MANY = ("{nouns} are missing.", "Nothing names {nouns}.")
UNFINISHED = "The sentence breaks off."
EMPTY = "The answer is empty."
MORE = "There is more like this."
MOST_FAULTS = 5


def quotable(reading: Reading) -> list[Finding]:
    """Return the findings a critique has room for: all praise and the first faults."""
    praise = [finding for finding in reading.findings if finding.kind == "right"]
    faults = [finding for finding in reading.findings if finding.kind != "right"]
    return sorted(praise + faults[:MOST_FAULTS], key=lambda finding: finding.start)


def write(reading: Reading, response: str, problem: Problem, rng: Random) -> str:
    """Put a reading into words; every quotable finding is quoted as the answer has it."""
    recap = rng.choice(RECAPS).format(gold=answer_of(problem.facts))
    if not response.strip():
        return f"{recap} {EMPTY}"
    kept = quotable(reading)
    remarks = _walk(kept, response, problem, rng)
    remarks += [MORE] if len(kept) < len(reading.findings) else []
    remarks += _omissions(reading, problem.facts, rng)
    if all(finding.kind == "right" for finding in kept) and len(remarks) == 1:
        quotes = listing([_quote(finding, response) for finding in kept])
        remarks = [rng.choice(PERFECT).format(quotes=quotes)]
    return " ".join([recap, *remarks])


def _walk(kept: Sequence[Finding], response: str, problem: Problem, rng: Random) -> list[str]:
    """Return the remarks in the order of the answer; neighbours that are right share a sentence."""
    remarks = []
    for right, group in groupby(kept, key=lambda finding: finding.kind == "right"):
        if right:
            remarks.append(_praise([_quote(finding, response) for finding in group], rng))
        else:
            remarks += [_fault(finding, response, problem, rng) for finding in group]
    return remarks


def listing(items: Sequence[str]) -> str:
    """Join items as English does.

    Example:
        >>> listing(["a", "b", "c"])
        'a, b and c'
    """
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _quote(finding: Finding, response: str) -> str:
    return f'"{response[finding.start : finding.end]}"'


def _praise(quotes: Sequence[str], rng: Random) -> str:
    return rng.choice(PRAISE_MANY if len(quotes) > 1 else PRAISE_ONE).format(quotes=listing(quotes))


def _fault(finding: Finding, response: str, problem: Problem, rng: Random) -> str:
    """Return the sentence on one fault."""
    slot = finding.slot
    row = problem.row_with(slot, finding.value) if finding.kind == "wrong" else None
    if finding.kind != "wrong":
        wordings = FAULTS[finding.kind]
    elif row is None:
        wordings = (*WRONG, NOWHERE)
    else:
        wordings = (*WRONG, ELSEWHERE) if slot == "who" else (*WRONG, ELSEWHERE, OWNED)
    return rng.choice(wordings).format(
        quote=_quote(finding, response),
        noun=NOUNS.get(slot),
        truth=said(slot, problem.facts[slot]) if slot in problem.facts else "",
        status=row["status"] if row else "",
        owner=row["who"] if row else "",
    )


def _omissions(reading: Reading, facts: dict[str, str], rng: Random) -> list[str]:
    """Return the sentences on what the answer leaves out; an omission has nothing to quote."""
    sentences = [] if reading.finished else [UNFINISHED]
    if len(reading.missing) == 1:
        slot = reading.missing[0]
        wording = rng.choice(MISSING_ONE)
        sentences.append(wording.format(noun=NOUNS[slot], truth=said(slot, facts[slot])))
    elif reading.missing:
        nouns = listing([f"the {NOUNS[slot]}" for slot in reading.missing])
        sentences.append(_capital(rng.choice(MISSING_MANY).format(nouns=nouns)))
    return sentences


def _capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def words() -> list[str]:
    """Return texts that hold every word of critiques, but for what they quote."""
    wordings = [*RECAPS, *PRAISE_ONE, *PRAISE_MANY, *PERFECT, *WRONG, ELSEWHERE, OWNED, NOWHERE]
    wordings += [*MISSING_ONE, *MISSING_MANY, *(wording for choices in FAULTS.values() for wording in choices)]
    bare = [re.sub(r"\{\w+\}", "", wording) for wording in wordings]
    return [*bare, *NOUNS.values(), UNFINISHED, EMPTY, MORE, '", and The Nothing']
