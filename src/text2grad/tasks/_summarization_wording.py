"""The critic's pen: findings become English sentences that quote each span word for word.

The choice among wordings is drawn from the given generator, which the critic seeds with the post and the
response: the same answer always gets the same critique.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from text2grad.tasks._summarization_critic import Finding, Reading
from text2grad.tasks._summarization_world import NOUNS, with_article

PRAISE_ONE = ("{quotes} is right.", "{quotes} matches the post.", "The summary has {quotes} right.")
PRAISE_MANY = ("{quotes} are right.", "{quotes} match the post.", "The summary has {quotes} right.")
PERFECT = ("Everything is right: {quotes} match the post.", "All of it is right: {quotes}.")
IN_POST = (
    "{quote} is the wrong {noun}: the post says {truth}.",
    "The {noun} is wrong: the post says {truth}, not {quote}.",
    "{quote} is in the post, but the {noun} is {truth}.",
)
NOT_IN_POST = (
    "{quote} is the wrong {noun}: the post says {truth}.",
    "The {noun} is wrong: the post says {truth}, not {quote}.",
    "The post never names {quote}: the {noun} is {truth}.",
)
FAULTS = {
    "vague": ("{quote} is vague: the post says {truth}.", "{quote} hides the {noun}: the post says {truth}."),
    "half": ("{quote} is only half a name: the post says {truth}.",),
    "duplicate": ("{quote} is one {noun} too many.", "{quote} gives the {noun} a second time."),
    "misplaced": ("{quote} is out of place.", "{quote} is in the wrong place."),
    "chatter": ("{quote} is chatter.", "{quote} adds nothing."),
    "garbled": ("{quote} makes no sense.", "{quote} is garbled."),
    "extra": ("{quote} is extra.", "{quote} comes after the end."),
}
MISSING_ONE = ("The {noun} is missing: the post says {truth}.", "Nothing names the {noun}: the post says {truth}.")
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
    if not response.strip():
        return EMPTY
    kept = quotable(reading)
    praise = [_quote(finding, response) for finding in kept if finding.kind == "right"]
    faults = [_fault(finding, response, meta, rng) for finding in kept if finding.kind != "right"]
    if len(kept) < len(reading.findings):
        faults.append(MORE)
    faults += _omissions(reading, meta["facts"], rng)
    if praise and not faults:
        return rng.choice(PERFECT).format(quotes=listing(praise))
    parts = [[_praise(praise, rng)] if praise else [], faults]
    rng.shuffle(parts)
    return " ".join(sentence for part in parts for sentence in part)


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
        choices = IN_POST if finding.value in meta["distractors"][slot] else NOT_IN_POST
        wording = rng.choice(choices[:2] if slot == "did" else choices)  # a verb "is" nothing
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
