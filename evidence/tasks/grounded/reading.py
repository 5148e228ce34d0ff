"""The critic's reading of an answer beside its passage: names, numbers and clauses, each supported or not.

A name is a run of capitalized words ("Bank of England"). Its words must stand in passage or question, and neighbours
must stand close together there. A number is written in digits or as a word from "three" on;
the numbers of a list are none. A clause is a claim if it has
at least three content words; it is supported if nearly all of their stems are in the passage, and unsupported if
hardly any is.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from evidence.tasks.grounded.sentences import sentence_ranges

Kind = Literal["right", "absent", "joined", "unsaid", "again"]

CLOSE = 4  # words between two words of a name, at most
CONTENT_WORDS = 3  # of a clause that is judged as a claim
SUPPORTED, UNSUPPORTED = 0.8, 0.34  # share of a clause's content words in the passage

_TOKEN = re.compile(r"\d+(?:[.,:/]\d+)*(?:st|nd|rd|th|s|%)?|[^\W\d_]+(?:['’-][^\W\d_]+)*")
_CLAUSE = re.compile(r"[,;:()–—](?=\s|\Z)|\s(?=(?:and|but|which|who|while|because|where|when|although)\s)")
_GAP = re.compile(r"(?:\.?\s|-|\s(?:of|the|of the|de|van|von|la|le|for|in the|and the|&)\s)\Z")
_POSSESSIVE = re.compile(r"['’]s?\Z")
_PEOPLE = re.compile(r"(?:ese|ians?|ish|ans?|i)\Z")  # Chinese, Italians, Spanish, Americans, Iraqi
_ENDINGS = ("ations", "ation", "ingly", "edly", "ing", "ies", "ed", "es", "ly", "er", "or", "s", "e", "y")
_FROM_THREE = """
three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty
"""
_NUMBERS = {word: str(value) for value, word in enumerate(_FROM_THREE.split(), start=3)}
_NUMBERS |= {"thirty": "30", "forty": "40", "fifty": "50", "hundred": "100", "thousand": "1000", "million": "1000000"}

# Words that carry no claim: function words, and words about the passage itself.
_WITHOUT_CONTENT = """
a about above according across additional additionally after again against all almost along also although always am
among an and another answer any anyone anything are around article as at author away based be became because become
been before being below between both but by called came can come concise context could describe describes details did
do does doing done down during each either else ever every few find following for found from further gave get give
given go goes going gone got had has have having he her here hers herself him himself his how however i if in include
included includes including indeed information instead into is it its itself just key kind known later less like made
main make makes many may me mean means mention mentioned mentions might more most much must my near neither never next
no nor not nothing now of off often on once one only onto or other others our out over own part passage passages per
perhaps provide provided provides question quite rather said same say says see seem seems several she should show
shows since so some something sometimes stated states still such summary take taken text texts than that the their
them themselves then there therefore these they thing things this those though through thus to together too took
toward towards under until up upon us use used using very via was we well went were what whatever when where whether
which while who whom whose why will with within without would yes yet you your
"""
_EMPTY = frozenset(_WITHOUT_CONTENT.split())


class Word(NamedTuple):
    """A word of a text: its characters, and its key for comparison."""

    start: int
    end: int
    key: str


class Passed(NamedTuple):
    """A judged piece of an answer, characters [start, end)."""

    kind: Kind
    start: int
    end: int


@dataclass(frozen=True)
class Source:
    """The words of passage and question.

    Attributes:
        text: the passage.
        places: key → positions among the words.
        stems: of all words.
        numbers: values of all numbers.
        capitals: keys of words that are capitalized inside a sentence or begin a name, and are nowhere written small.
    """

    text: str
    places: dict[str, list[int]]
    stems: frozenset[str]
    numbers: frozenset[str]
    capitals: frozenset[str]


def words_of(text: str, start: int = 0, end: int | None = None) -> list[Word]:
    """Return the words and numbers of a part of a text."""
    found = _TOKEN.finditer(text, start, len(text) if end is None else end)
    return [Word(match.start(), match.end(), _key(match.group())) for match in found]


def content_of(words: Sequence[Word]) -> list[Word]:
    """Return the words that carry a claim: neither function words nor words about the passage itself."""
    return [word for word in words if word.key not in _EMPTY]


def read_source(passage: str, question: str) -> Source:
    """Return the words of a passage and its question."""
    text = f"{passage}\n{question}"
    words, places = words_of(text), dict[str, list[int]]()
    for number, word in enumerate(words):
        for key in {word.key, *word.key.split("-")}:
            places.setdefault(key, []).append(number)
    first = {next(iter(words_of(text, start, end)), Word(-1, -1, "")).start for start, end in sentence_ranges(text)}
    capital = [text[word.start].isupper() for word in words]
    before = [*(_GAP.fullmatch(text, left.end, right.start) for left, right in pairwise(words)), None]
    large = {
        word.key
        for n, word in enumerate(words)
        if capital[n] and (word.start not in first or (before[n] and capital[n + 1]))
    }
    small = {word.key for word in words if text[word.start].islower()}
    numbers = {value for word in words for value in [_value(text[word.start : word.end])] if value}
    stems = frozenset(stem(part) for word in words for part in (word.key, *word.key.split("-")))
    return Source(passage, places, stems, frozenset(numbers), frozenset(large - small))


def read_answer(source: Source, response: str) -> Iterator[tuple[tuple[int, int], list[Passed]]]:
    """Yield each sentence of a response with its judged pieces, in order; a fact is praised at its first mention."""
    said, praised = set[str](), set[str]()
    for start, end in sentence_ranges(response):
        key = " ".join(word.key for word in words_of(response, start, end))
        if key in said and key.count(" ") >= CONTENT_WORDS:
            yield (start, end), [Passed("again", start, end)]
            continue
        said.add(key)
        facts = list(_facts(source, response, start, end))
        found: list[Passed] = []
        for clause in _clauses(response, start, end):
            inside = [fact for fact in facts if clause[0] <= fact.start < clause[1]]
            found += _clause(source, response, clause, inside)
        kept: list[Passed] = []
        for one in sorted(found, key=lambda one: one.start):
            fact = response[one.start : one.end].casefold()
            if one.kind != "right" or fact not in praised:
                kept.append(one)
            if one.kind == "right":
                praised.add(fact)
        yield (start, end), kept


def names_and_numbers(source: Source, text: str) -> list[Passed]:
    """Return the names and numbers of a text, each judged by the source, in order."""
    found = (fact for start, end in sentence_ranges(text) for fact in _facts(source, text, start, end))
    return sorted(found, key=lambda one: one.start)


def stem(key: str) -> str:
    """Return a word without its ending, so that "released" and "releases" are equal."""
    for ending in _ENDINGS:
        if key.endswith(ending) and len(key) - len(ending) >= 3:
            return key[: -len(ending)]
    return key


def closest_sentence(source: Source, response: str, start: int, end: int) -> str:
    """Return the sentence of the passage that shares most stems with a part of the response; empty if none does."""
    wanted = {stem(word.key) for word in content_of(words_of(response, start, end))}
    best, most = "", 0
    for first, last in sentence_ranges(source.text):
        shared = len(wanted & {stem(word.key) for word in words_of(source.text, first, last)})
        if shared > most:
            best, most = source.text[first:last], shared
    return best


def _facts(source: Source, response: str, start: int, end: int) -> Iterator[Passed]:
    """Yield the numbers and names of a sentence."""
    words = words_of(response, start, end)
    run: list[Word] = []
    for number, word in enumerate(words):
        value = "" if _counts_lines(response, word) else _value(response[word.start : word.end])
        if value:
            yield Passed("right" if value in source.numbers else "absent", word.start, word.end)
        if not (_begins_name(source, response, words) if number == 0 else _may_be_name(response, word)):
            continue
        if run and not _GAP.fullmatch(response, run[-1].end, word.start):
            yield _name(source, run)
            run = []
        run.append(word)
    if run:
        yield _name(source, run)


def _counts_lines(response: str, word: Word) -> bool:
    """Whether a number is the number of a line in a list, such as "2." at its beginning."""
    before = response[: word.start].rpartition("\n")[2].strip()
    return before in ("", "-", "*") and response[word.end : word.end + 2] in (". ", ") ")


def _may_be_name(response: str, word: Word) -> bool:
    return response[word.start].isupper() and word.key not in _EMPTY and word.key not in _NUMBERS


def _begins_name(source: Source, response: str, words: list[Word]) -> bool:
    """Whether the first word of a sentence, which has a capital letter anyway, is part of a name."""
    first, following = words[0], words[1:2]
    if not _may_be_name(response, first):
        return False
    goes_on = any(
        _GAP.fullmatch(response, first.end, word.start) and _may_be_name(response, word) for word in following
    )
    return first.key in source.capitals or (goes_on and stem(first.key) not in source.stems)


def _name(source: Source, run: list[Word]) -> Passed:
    absent = [word for word in run if not _is_known(source, word.key)]
    if absent:
        return Passed("absent", absent[0].start, absent[-1].end)
    apart = any(not _close(source, left.key, right.key) for left, right in pairwise(run))
    return Passed("joined" if apart else "right", run[0].start, run[-1].end)


def _is_known(source: Source, key: str) -> bool:
    """Whether a word of a name is in the source: itself, all its parts, or a country where it names the people."""
    parts = key.split("-")
    if all(part in source.places for part in parts):
        return True
    country = _PEOPLE.sub("", key)
    return country != key and len(country) >= 4 and any(place.startswith(country) for place in source.places)


def _close(source: Source, left: str, right: str) -> bool:
    """Whether two words stand close together in the source, in any order ("May 2" and "2 May")."""
    lefts, rights = (source.places.get(key.split("-")[0]) for key in (left, right))
    if lefts is None or rights is None:
        return True  # a people of a country that is named
    return any(abs(one - other) <= CLOSE for one in lefts for other in rights)


def _clauses(response: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    begin = start
    for stop in _CLAUSE.finditer(response, start, end):
        yield begin, stop.start()
        begin = stop.end()
    yield begin, end


def _clause(source: Source, response: str, clause: tuple[int, int], facts: list[Passed]) -> list[Passed]:
    """Return the findings of a clause: the clause itself where it is supported or unsupported as a whole, or facts."""
    words = words_of(response, *clause)
    content = content_of(words)
    if len(content) < CONTENT_WORDS:
        return facts
    known = [stem(word.key) in source.stems or word.key in source.places for word in content]
    share, whole = sum(known) / len(content), (words[0].start, words[-1].end)
    if share >= SUPPORTED and all(fact.kind == "right" for fact in facts):
        return [Passed("right", *whole)]
    plain = [word for word in content if not any(fact.start <= word.start < fact.end for fact in facts)]
    if share <= UNSUPPORTED and len(plain) >= CONTENT_WORDS:
        return [Passed("unsaid", *whole)]
    return facts


def _key(text: str) -> str:
    return _POSSESSIVE.sub("", text.casefold().replace("’", "'"))


def _value(text: str) -> str:
    """Return the value of a number, or "": "1,234" and "1234" are equal, as are "4th" and "four"."""
    if not text[0].isdigit():
        return _NUMBERS.get(text.casefold(), "")
    return re.sub(r"(?:st|nd|rd|th|%)\Z", "", text).replace(",", "")
