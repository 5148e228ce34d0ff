"""Critiques that label every word instead of quoting: the ablation of Appendix I.1, and the published SLF5K format.

    dense     {"textual_feedback": "...", "word_labels": "0 0 + + 0 -"}
    scores    {"textual_feedback": "...", "word_score_list": [["The", 0], ["fair", 0], ["in", 1], ...]}

A *word* is a run of letters and digits with its accents, or one other visible character: a mark, an emoji, a character
of a script without spaces. Words, not tokens: the reward model and the policy need not share a tokenizer (Appendix L).

A word is + (1) where a positive span touches it, − (−1) where a negative one does, 0 where none or both do. Back again,
each run of equal labels is one span, from the start of its first word to the end of its last. So neither form can
say that two neighbours of one label are two spans, that a span ends within a word, or that two labels lie on one word.

A critique is read whole or not at all: a wrong number of labels, a word that is not the response's, a label that is
none or a text that was cut off make it `unparsable`, and its feedback begins with the reason. The published code drops
what it cannot use of a list and matches the rest by likeness; here nothing is padded, shifted or guessed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from text2grad.align import Range
from text2grad.feedback import CutObject, Reading, inside_word, is_finite, is_json, printable, read_objects
from text2grad.types import Critique, CritiqueForm, Span

SIGNS = {"+": 1, "-": -1, "0": 0}


class LabelForm(NamedTuple):
    """How labels of words stand in a critique's JSON.

    Attributes:
        key: under which they stand.
        asked: what a model with a chat template is told to write there.
        write: (words, a label −1, 0 or 1 for each) → the JSON value.
        read: (the value, words) → the labels; raises _UnusableError with the reason where it is none for these words.
    """

    key: str
    asked: str
    write: Callable[[Sequence[str], Sequence[int]], Any]
    read: Callable[[Any, Sequence[str]], list[int]]


def words_of(response: str) -> list[Range]:
    """Return where the words of a response stand, in characters.

    Example:
        >>> words_of("It's 5 €")
        [(0, 2), (2, 3), (3, 4), (5, 6), (7, 8)]
    """
    words: list[Range] = []
    for place, character in enumerate(response):
        if inside_word(response, place):
            words[-1] = (words[-1][0], place + 1)
        elif not character.isspace():
            words.append((place, place + 1))
    return words


def labels_of(response: str, spans: Sequence[Span]) -> list[int]:
    """Return the label of each word: 1, −1 or 0.

    Example:
        >>> labels_of("in Lyon, today", [Span(3, 7, "positive"), Span(9, 11, "negative")])
        [0, 1, 0, -1]
    """
    words = words_of(response)
    good, poor = (
        {
            number
            for span in spans
            if span.label == label
            for number, (start, end) in enumerate(words)
            if max(start, span.start) < min(end, span.end)
        }
        for label in ("positive", "negative")
    )
    return [(number in good) - (number in poor) for number in range(len(words))]


def spans_of(response: str, labels: Sequence[int]) -> tuple[Span, ...]:
    """Return the spans that labels of a response's words mean: one for each run of equal ones.

    Example:
        >>> spans_of("in Lyon, today", [0, 1, 1, -1])
        (Span(start=3, end=8, label='positive'), Span(start=9, end=14, label='negative'))
    """
    spans = []
    for label, run in groupby(zip(words_of(response), labels, strict=True), key=lambda pair: pair[1]):
        words = [word for word, _ in run]
        if label:
            spans.append(Span(words[0][0], words[-1][1], "positive" if label > 0 else "negative"))
    return tuple(spans)


def written_labels(form: LabelForm, response: str, spans: Sequence[Span]) -> dict[str, Any]:
    """Return the spans of a response as a form writes them: {key: value}."""
    words = [response[start:end] for start, end in words_of(response)]
    return {form.key: form.write(words, labels_of(response, spans))}


def critique_from_labels(text: str, response: str, form: LabelForm) -> Critique:
    """Read a critique that labels the words of a response.

    Args:
        text: what the critic wrote.
        response: what it wrote about.
        form: how it was to write.

    Returns:
        A critique without spans, and with status `unparsable`, where the text labels other words than the response's;
        its feedback is the reason and the text.

    Example:
        >>> critique_from_labels('{"word_labels": "+ 0"}', "in Lyon, today", LABEL_FORMS["dense"]).feedback
        '2 labels for 4 words: {"word_labels": "+ 0"}'
    """
    text = printable(text)
    words = [response[start:end] for start, end in words_of(response)]
    try:
        reading = _object_with(form.key, text)
        labels = form.read(reading.value[form.key], words)
    except _UnusableError as reason:
        return Critique(f"{reason}: {text.strip()}", status="unparsable")
    said = reading.value.get("textual_feedback")
    return Critique(
        said if isinstance(said, str) and said.strip() else "",
        spans_of(response, labels),
        status="ok" if is_json(text[reading.start : reading.end]) else "repaired",
    )


class _UnusableError(Exception):
    """What was written labels other words than the response's."""


def _object_with(key: str, text: str) -> Reading:
    """Return the first whole object of a text that has a key."""
    for read in (read_objects, partial(read_objects, lenient_ends=True)):
        for reading in read(text):
            if key in reading.value and not isinstance(reading.value, CutObject):
                return reading
    raise _UnusableError(f"no whole JSON object with {key}")


def _write_labels(words: Sequence[str], labels: Sequence[int]) -> str:
    signs = {label: sign for sign, label in SIGNS.items()}
    return " ".join(signs[label] for label in labels)


def _read_labels(value: Any, words: Sequence[str]) -> list[int]:
    if not isinstance(value, str):
        raise _UnusableError("the labels are no text")
    said = value.split()
    _check_number("labels", said, words)
    for number, sign in enumerate(said, start=1):
        if sign not in SIGNS:
            raise _UnusableError(f"label {number} is {sign!r}, none of + - 0")
    return [SIGNS[sign] for sign in said]


def _write_scores(words: Sequence[str], labels: Sequence[int]) -> list[tuple[str, int]]:
    return list(zip(words, labels, strict=True))


def _read_scores(value: Any, words: Sequence[str]) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise _UnusableError("the scores are no list of [word, score] pairs")
    _check_number("scores", value, words)
    for number, ((said, score), word) in enumerate(zip(value, words, strict=True), start=1):
        if said != word:
            raise _UnusableError(f"word {number} is {word!r} in the response and {said!r} in the list")
        if not is_finite(score) or score not in SIGNS.values():
            raise _UnusableError(f"the score of word {number} is {score!r}, none of 1 -1 0")
    return [int(score) for _, score in value]


def _check_number(what: str, said: Sequence[Any], words: Sequence[str]) -> None:
    if len(said) != len(words):
        raise _UnusableError(f"{len(said)} {what} for {len(words)} words")


LABEL_FORMS: Mapping[CritiqueForm, LabelForm] = {
    "dense": LabelForm(
        "word_labels",
        "one label for each word and each mark of the response, in order and with spaces between: + for a good one, - "
        "for a poor one, 0 for any other",
        _write_labels,
        _read_labels,
    ),
    "scores": LabelForm(
        "word_score_list",
        "a list of all words and marks of the response, in order, as pairs [word, score]: 1 for a good one, -1 for a "
        "poor one, 0 for any other",
        _write_scores,
        _read_scores,
    ),
}
