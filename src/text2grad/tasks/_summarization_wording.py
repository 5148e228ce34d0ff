"""The critic's pen: findings become English sentences that quote each span word for word.

A critique first says what happened and then goes through the response in its order: a model that learns to
write such critiques has the truth before it when it judges. The choice among wordings is drawn from the given
generator, which the critic seeds with the post and the response: the same answer always gets the same words.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from random import Random
from typing import Any

from text2grad.tasks._summarization_critic import Finding, Reading
from text2grad.tasks._summarization_world import NOUNS, summary_of, with_article

RECAPS = ("The post says that {gold}", "In short, {gold}", "What happened: {gold}")
PRAISE_ONE = ("{quotes} is right.", "{quotes} matches the post.")
PRAISE_MANY = ("{quotes} are right.", "{quotes} match the post.")
PERFECT = ("Everything is right: {quotes} match the post.", "All of it is right: {quotes}.")
IN_POST = (
    "{quote} is the wrong {noun}.",
    "The {noun} is {truth}, not {quote}.",
    "{quote} is in the post, but not as the {noun}.",
)
NOT_IN_POST = (
    "{quote} is the wrong {noun}.",
    "The {noun} is {truth}, not {quote}.",
    "The post never names {quote}.",
)
FAULTS = {
    "vague": ("{quote} is vague.", "{quote} hides the {noun}.", "{quote} is vague: the post says {truth}."),
    "half": ("{quote} is only half a name.", "{quote} is only half a name: the post says {truth}."),
    "duplicate": ("{quote} is one {noun} too many.", "{quote} gives the {noun} a second time."),
    "misplaced": ("{quote} is out of place.", "{quote} is in the wrong place."),
    "chatter": ("{quote} is chatter.", "{quote} adds nothing."),
    "garbled": ("{quote} makes no sense.", "{quote} is garbled."),
    "extra": ("{quote} is extra.", "{quote} comes after the end."),
}
MISSING_ONE = ("The {noun} is missing.", "Nothing names the {noun}: the post says {truth}.")
MISSING_MANY = ("{nouns} are missing.", "Nothing names {nouns}.")
UNFINISHED = "The sentence breaks off."
EMPTY = "The summary is empty."
MORE = "There is more like this."
MOST_FAULTS = 6


def quotable(reading: Reading) -> list[Finding]:
    """Return the findings a critique has room for: all praise and the first faults."""
    praise = [finding for finding in reading.findings if finding.kind == "right"]
    faults = [finding for finding in reading.findings if finding.kind != "right"]
    return sorted(praise + faults[:MOST_FAULTS], key=lambda finding: finding.start)


def write(reading: Reading, response: str, meta: Mapping[str, Any], rng: Random) -> str:
    """Put a reading into words; every quotable finding is quoted as the response has it."""
    recap = rng.choice(RECAPS).format(gold=summary_of(meta["facts"]))
    if not response.strip():
        return f"{recap} {EMPTY}"
    kept = quotable(reading)
    remarks = _walk(kept, response, meta, rng)
    remarks += [MORE] if len(kept) < len(reading.findings) else []
    remarks += _omissions(reading, meta["facts"], rng)
    if all(finding.kind == "right" for finding in kept) and len(remarks) == 1:
        quotes = listing([_quote(finding, response) for finding in kept])
        remarks = [rng.choice(PERFECT).format(quotes=quotes)]
    return " ".join([recap, *remarks])


def _walk(kept: Sequence[Finding], response: str, meta: Mapping[str, Any], rng: Random) -> list[str]:
    """Return the remarks in the order of the response; neighbours that are right share a sentence."""
    remarks = []
    for right, group in groupby(kept, key=lambda finding: finding.kind == "right"):
        if right:
            remarks.append(_praise([_quote(finding, response) for finding in group], rng))
        else:
            remarks += [_fault(finding, response, meta, rng) for finding in group]
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


def _fault(finding: Finding, response: str, meta: Mapping[str, Any], rng: Random) -> str:
    """Return the sentence on one fault."""
    slot = finding.slot
    if finding.kind == "wrong":
        in_post = finding.value in meta["distractors"][slot]  # a verb perhaps in another form
        wording = rng.choice((IN_POST if in_post else NOT_IN_POST)[: 2 if in_post and slot == "did" else 3])
    else:
        wording = rng.choice(FAULTS[finding.kind])
    truth = with_article(slot, meta["facts"][slot]) if slot else ""
    return wording.format(quote=_quote(finding, response), noun=NOUNS.get(slot), truth=truth)


def _omissions(reading: Reading, facts: Mapping[str, str], rng: Random) -> list[str]:
    """Return the sentences on what the summary leaves out; an omission has nothing to quote."""
    sentences = [] if reading.finished else [UNFINISHED]
    if len(reading.missing) == 1:
        slot = reading.missing[0]
        wording = rng.choice(MISSING_ONE)
        sentences.append(wording.format(noun=NOUNS[slot], truth=with_article(slot, facts[slot])))
    elif reading.missing:
        nouns = listing([f"the {NOUNS[slot]}" for slot in reading.missing])
        sentences.append(_capital(rng.choice(MISSING_MANY).format(nouns=nouns)))
    return sentences


def _capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def words() -> list[str]:
    """Return texts that hold every word of critiques, but for what they quote."""
    wordings = [*RECAPS, *PRAISE_ONE, *PRAISE_MANY, *PERFECT, *IN_POST, *NOT_IN_POST, *MISSING_ONE, *MISSING_MANY]
    wordings += [wording for choices in FAULTS.values() for wording in choices]
    bare = [re.sub(r"\{\w+\}", "", wording) for wording in wordings]
    return [*bare, *NOUNS.values(), UNFINISHED, EMPTY, MORE, '", and The Nothing']
