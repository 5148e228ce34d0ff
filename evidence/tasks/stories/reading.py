"""Reading a story: response → words, sentences, invented words and repetitions, in character offsets.

A story that reaches the length limit may end within a word, and a tokenizer may drop the first space. Therefore:

1. A last word with nothing after it may be cut, so it is not judged, and its sentence does not count as finished.
2. A first word may be the rest of the prompt's last word ("cat" + "s"), so it passes if it is a word alone or joined to
   the prompt's last word.
3. Any capitalised word passes: it may be a name.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from evidence.tasks.stories.words import is_english

# Letters and digits; a combining accent, or the mark of an undecodable byte, belongs to the word around it.
_LETTER = "(?:[^\\W_]|[\u0300-\u036f\ufffd])"
_WORD = re.compile(f"{_LETTER}+(?:['’]{_LETTER}+)*")
_LAST_WORD = re.compile(f"{_LETTER}+(?:['’]{_LETTER}+)*$")
_BREAK = re.compile("\n|[.!?…]+[\"'”’)]*(?=\\s|$)")
_CLOSING_QUOTE = tuple("\"'”’)")
_TITLES = ("Mr.", "Mrs.", "Ms.", "Dr.", "St.")
_NOT_IN_A_PHRASE = re.compile(r"[^\w\s'’]|\n")

LONGEST_PHRASE = 8
SHORTEST_SENTENCE = 4
"""Words from which a repeated sentence is a fault: "Yes, Mom." may occur twice."""

_REPEATED_ON_PURPOSE = """
very so really much many far long too no yes had that bye ha he hee ho knock choo beep tick quack woof meow
"""


class Evidence(NamedTuple):
    """A fault in characters [start, end) of the response.

    Attributes:
        start: first character of the fault.
        end: end of the fault, exclusive.
        shown_from: first character of the quote in the critique: before `start` for a repeated phrase.
        times: occurrences in a row of a repeated phrase; 1 for an invented word, 0 for a repeated sentence.
    """

    start: int
    end: int
    shown_from: int
    times: int


class Sentence(NamedTuple):
    """Characters [start, end) of the response; `finished` if they end in a full stop or a similar mark."""

    start: int
    end: int
    finished: bool


class Reading(NamedTuple):
    """The words, faults and sentences of one response.

    Attributes:
        words: every word, as spelled.
        invented: words that do not exist, in order.
        repeats: repeated phrases and sentences, in order.
        clean: the finished sentences without faults.
        sentences: all sentences, clean or not.
    """

    words: tuple[str, ...]
    invented: tuple[Evidence, ...]
    repeats: tuple[Evidence, ...]
    clean: tuple[Sentence, ...]
    sentences: tuple[Sentence, ...]


def read_story(prompt: str, response: str) -> Reading:
    """Read one response; the prompt is not judged."""
    words = list(_WORD.finditer(response))
    judged = words[:-1] if words and _may_be_cut(response, words[-1].end()) else words
    sentences = tuple(split_sentences(response))
    invented = tuple(_invented(prompt, response, judged))
    in_prompt = {_spoken(prompt[s.start : s.end]) for s in split_sentences(prompt) if s.finished}
    again = [*_phrases_again(response, judged), *_sentences_again(response, sentences, in_prompt)]
    faults = sorted((*invented, *again))
    clean = (s for s in sentences if s.finished and not any(e.start < s.end and s.start < e.end for e in faults))
    return Reading(tuple(w.group() for w in words), invented, tuple(sorted(again)), tuple(clean), sentences)


def split_sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences that contain a word, without the space around them.

    A closing quotation mark belongs to the sentence before it, unless a small letter follows ('"Run!" said Tom.').
    """
    start = 0
    for stop in _BREAK.finditer(text):
        if _goes_on(text, stop):
            continue
        finished = stop.group() != "\n"
        yield from _trimmed(text, start, stop.end() if finished else stop.start(), finished)
        start = stop.end()
    yield from _trimmed(text, start, len(text), False)


def _goes_on(text: str, stop: re.Match[str]) -> bool:
    """Whether the sentence continues after a mark that looks like its end."""
    if stop.group() == ".":
        return text.endswith(_TITLES, 0, stop.end())
    following = text[stop.end() : stop.end() + 2].lstrip(" ")
    return stop.group().endswith(_CLOSING_QUOTE) and following[:1].islower()


def _trimmed(text: str, start: int, end: int, finished: bool) -> Iterator[Sentence]:
    piece = text[start:end]
    if _WORD.search(piece):
        stripped = piece.strip()
        start += piece.index(stripped)
        yield Sentence(start, start + len(stripped), finished)


def _may_be_cut(response: str, end: int) -> bool:
    """Whether no character after `end` ends the word."""
    return not response[end:].strip("'’-")


def _invented(prompt: str, response: str, words: list[re.Match[str]]) -> Iterator[Evidence]:
    for word in words:
        if word.group()[0].isupper() or is_english(word.group()) or _ends_prompt_word(prompt, response, word):
            continue
        yield Evidence(word.start(), word.end(), word.start(), 1)


def _ends_prompt_word(prompt: str, response: str, word: re.Match[str]) -> bool:
    """Whether the response starts with `word`, and `word` completes the last word of the prompt."""
    joint, begun = response[: word.start()], _LAST_WORD.search(prompt)
    return joint in ("", "'", "’") and begun is not None and is_english(begun.group() + joint + word.group())


def _phrases_again(response: str, words: list[re.Match[str]]) -> Iterator[Evidence]:
    """Yield the phrases of up to LONGEST_PHRASE words that are repeated with only space between."""
    keys = [word.group().lower() for word in words]
    i = 0
    while i < len(keys):
        size, times = _repeated_unit(keys, i)
        run = words[i : i + size * times]
        if run and not _NOT_IN_A_PHRASE.search(response, run[0].start(), run[-1].end()):
            yield Evidence(run[size].start(), run[-1].end(), run[0].start(), times)
            i += size * (times - 1)
        i += 1


def _repeated_unit(keys: list[str], i: int) -> tuple[int, int]:
    """Return (words, occurrences) of the shortest phrase from word `i` on that is repeated at once; (0, 0) for none."""
    for size in range(1, min(LONGEST_PHRASE, (len(keys) - i) // 2) + 1):
        unit = keys[i : i + size]
        if unit[0] != keys[i + size] or unit != keys[i + size : i + 2 * size]:
            continue
        if _on_purpose(unit):
            break
        times = 2
        while keys[i + times * size : i + (times + 1) * size] == unit:
            times += 1
        return size, times
    return 0, 0


def _on_purpose(unit: list[str]) -> bool:
    """Whether the repetition is normal English: "very very", "round and round and"."""
    return unit[0] in _REPEATED_ON_PURPOSE.split() if len(unit) == 1 else len(unit) == 2 and "and" in unit


def _sentences_again(response: str, sentences: tuple[Sentence, ...], seen: set[str]) -> Iterator[Evidence]:
    """Yield the finished sentences with the same words as an earlier sentence; `seen` holds those of the prompt."""
    for sentence in sentences:
        key = _spoken(response[sentence.start : sentence.end])
        if sentence.finished and key in seen and key.count(" ") + 1 >= SHORTEST_SENTENCE:
            yield Evidence(sentence.start, sentence.end, sentence.start, 0)
        seen.add(key)


def _spoken(text: str) -> str:
    return " ".join(word.group().lower() for word in _WORD.finditer(text))
