"""The text of critiques: the prompts of a reward model, the targets it learns, and its labels read back.

A target z = [c; A(y)] follows [x; y] (section 3.4). The prompt begins with the task's prompt, so that its KV cache is
shared between the responses to it. Each form is JSON with the feedback first, since the spans must follow from it:

    spans           {"textual_feedback": "...", "good_spans": ["...", ...], "poor_spans": [...]}
    labelled_spans  {"textual_feedback": "...", "spans": [["...", "good"], ["...", "poor"], ...], "outcome": -4}
    tagged_words    {"textual_feedback": "...", "word_tags": "The = fair = in + Lyon + . =", "outcome": -4}

"spans" is the paper's form. "labelled_spans" quotes in the order of the response, each quote with its label behind it:
a small model finds this easier than to choose, before the first quote, which of all quotes are good. It also has the
critic's number for the whole response, without which a fault that has no words of its own (an answer that says nothing)
would never reach the reward. `feedback.critique_from_text` reads both.

"tagged_words" repeats the words, each with a label behind it, so that a small model need not choose where a quote
begins. Other packages add further forms with labels of words (`register_form`). A word is a run of letters and digits
with its accents, or one other visible character (a punctuation mark, an emoji, a character of a script without spaces).
Labels count words, not tokens, because reward model and policy may have different tokenizers (Appendix L).

A word is + (1) where a positive span overlaps it, − (−1) where a negative span does, 0 where none or both do. When
read, each run of equal labels is one span, from the start of its first word to the end of its last. So these forms
cannot express two adjacent spans of one label, a span that ends within a word, or two labels on one word.

Labels are read completely or not at all. A wrong number of labels, a word that is not in the response at this
place, an invalid label or an incomplete text give the status `unparsable`; the feedback starts with the reason.
The published code drops invalid entries and matches the rest by similarity; here nothing is guessed.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from text2grad.align import Range
from text2grad.feedback import (
    Annotation,
    CutObject,
    Reading,
    is_finite,
    is_json,
    printable,
    read_objects,
    words_of,
)
from text2grad.types import Critique, Example, Label, Span

OPENING, GOOD, POOR, CLOSING = '{"textual_feedback": "', '", "good_spans": [', '], "poor_spans": [', "]}"
OUTCOME = '], "outcome": '
"""In place of CLOSING in a form with an outcome; the number, or null, and a brace follow."""
NO_OUTCOME = "null}"
"""The end of a critique without an outcome, in these forms."""
LABELLED = '", "spans": ['
"""In place of GOOD in the form "labelled_spans", which has one list."""
WORDS: Mapping[Label, str] = {"positive": "good", "negative": "poor"}
"""The labels in this list."""
QUOTING = ("spans", "labelled_spans")
"""The forms that quote the response."""
SYMBOLS = (OPENING, GOOD, POOR, CLOSING, '", "', '\\"', ' \\"', '"', "\\\\", "\\n")
"""The JSON syntax between the words of a target; a word-level tokenizer needs one token for each."""
TAGS = {"+": 1, "-": -1, "=": 0}  # each is one token behind a blank, where a digit is often two


def critique_prompt(example: Example, response: str) -> str:
    """Return the prompt of a reward model without chat template: the task's prompt, the response, a line break."""
    return f"{example.prompt_text}{response}\n"


def critique_request(example: Example, response: str, form: str = "spans") -> str:
    """Return the user's message to a reward model with a chat template.

    The instruction and the task's prompt come first, so that their KV cache is shared between the responses to it.
    """
    request = (
        "good_spans and poor_spans what is good and what is poor about it, in words quoted exactly from the response"
    )
    if form == "labelled_spans":
        request = "spans a list of pairs: words quoted exactly from the response, in its order, and good or poor"
    elif form not in QUOTING:
        request = f"{LABEL_FORMS[form].key} {LABEL_FORMS[form].request}"
    if has_outcome(form):
        request += ", and under outcome a number for the response as a whole, or null"
    return (
        "Judge the response to the prompt below. Write JSON: under textual_feedback your critique in words, then under "
        f"{request}.\n\n### Prompt\n{example.prompt_text}\n\n### Response\n{response}"
    )


def inputs_of(annotations: Sequence[Annotation]) -> tuple[list[Example], list[str]]:
    """Return the prompts of annotations as examples, and their responses."""
    return [Example(one.prompt) for one in annotations], [one.response for one in annotations]


def critique_target(critique: Critique, response: str, *, write_feedback: bool = True, form: str = "spans") -> str:
    r"""Return the target for a response.

    Args:
        critique: the annotation.
        response: the text of its spans; each span is quoted once.
        write_feedback: False leaves the feedback empty: the ablation without reasoning (section 5.3).
        form: "spans" quotes; "labelled_spans" labels each quote, and adds the outcome; "tagged_words" labels each word,
            and adds the outcome.

    Example:
        >>> from text2grad.types import Span
        >>> critique_target(Critique('"Lyon" is wrong.', (Span(3, 7, "negative"),)), "in Lyon")
        '{"textual_feedback": "\\"Lyon\\" is wrong.", "good_spans": [], "poor_spans": ["Lyon"]}'
    """
    feedback = critique.feedback if write_feedback else ""
    if form not in QUOTING:
        spelled = OPENING + json.dumps(feedback, ensure_ascii=False)[1:-1]
        text = spelled + LABEL_FORMS[form].write(response, labels_of(response, critique.spans))
        return f"{text}{json.dumps(_number_of(critique))}}}" if has_outcome(form) else text
    spans = sorted(critique.spans, key=lambda span: (span.start, span.end))
    quotes = [(response[span.start : span.end], WORDS[span.label]) for span in spans]
    record: dict[str, Any] = {"textual_feedback": feedback}
    if form == "labelled_spans":
        record["spans"] = quotes
    else:
        record |= {f"{word}_spans": [quote for quote, label in quotes if label == word] for word in WORDS.values()}
    if has_outcome(form):
        record["outcome"] = _number_of(critique)
    return json.dumps(record, ensure_ascii=False)


def has_outcomes(annotations: Iterable[Annotation]) -> bool:
    """Return whether a critique has a number for its whole response."""
    return any(one.critique.outcome is not None for one in annotations)


def has_outcome(form: str) -> bool:
    """Return whether a critique of a form has a number for its whole response."""
    return LABEL_FORMS[form].outcome if form not in QUOTING else form == "labelled_spans"


def opening_of(form: str) -> str:
    """Return the text of a form between the feedback and the first quote or label."""
    if form in QUOTING:
        return LABELLED if form == "labelled_spans" else GOOD
    return LABEL_FORMS[form].opening


def _number_of(critique: Critique) -> float | None:
    """Return the outcome with at most two decimals, a whole number without; None if there is none."""
    if critique.outcome is None:
        return None
    rounded = round(critique.outcome, 2)
    return int(rounded) if rounded == int(rounded) else rounded


class LabelForm(NamedTuple):
    """A form with labels of words.

    Attributes:
        key: of the labels in the JSON object.
        request: the instruction about this key, for a model with a chat template.
        signs: the labels as they are written.
        begin: the text of the JSON value before the first word.
        between: words → the texts around their labels, one more than words; the last one ends the JSON object, or leads
            to the outcome.
        read: (JSON value, words) → labels; raises UnusableLabelsError with the reason if the value does not fit.
        outcome: whether a number for the whole response follows.
    """

    key: str
    request: str
    signs: Mapping[str, int]
    begin: str
    between: Callable[[Sequence[str]], list[str]]
    read: Callable[[Any, Sequence[str]], list[int]]
    outcome: bool = False

    @property
    def opening(self) -> str:
        """The text between the feedback and the words."""
        return f'", "{self.key}": {self.begin}'

    def around(self, response: str) -> list[str]:
        """Return the texts around the labels of a response, one more than there are labels, after `opening`.

        Example:
            >>> LABEL_FORMS["tagged_words"].around("in Lyon")
            ['in ', ' Lyon ', '", "outcome": ']
        """
        return self.between([response[start:end] for start, end in words_of(response)])

    def write(self, response: str, labels: Sequence[int]) -> str:
        """Return the text after the feedback, with one label −1, 0 or 1 each, and without the outcome.

        Example:
            >>> LABEL_FORMS["tagged_words"].write("in Lyon", [0, 1])
            '", "word_tags": "in = Lyon +", "outcome": '
        """
        written = {label: sign for sign, label in self.signs.items()}
        first, *later = self.around(response)
        return self.opening + first + "".join(written[label] + part for label, part in zip(labels, later, strict=True))


def labels_within(response: str, spans: Sequence[Span], units: Sequence[Range]) -> list[list[int]]:
    """Return the labels of the words that begin in each unit of a response: 1, −1 or 0.

    Example:
        >>> labels_within("It is so. No.", [Span(0, 5, "positive")], [(0, 9), (10, 13)])
        [[1, 1, 0, 0], [0, 0]]
    """
    starts = [start for start, _ in units]
    inside: list[list[int]] = [[] for _ in units]
    for (at, _), label in zip(words_of(response), labels_of(response, spans), strict=True):
        inside[max(0, bisect_right(starts, at) - 1)].append(label)
    return inside


def labels_of(response: str, spans: Sequence[Span]) -> list[int]:
    """Return the label of each word: 1, −1 or 0.

    Example:
        >>> labels_of("in Lyon, today", [Span(3, 7, "positive"), Span(9, 11, "negative")])
        [0, 1, 0, -1]
    """
    words = words_of(response)
    positive, negative = (
        {
            number
            for span in spans
            if span.label == label
            for number, (start, end) in enumerate(words)
            if max(start, span.start) < min(end, span.end)
        }
        for label in ("positive", "negative")
    )
    return [(number in positive) - (number in negative) for number in range(len(words))]


def spans_of(response: str, labels: Sequence[int]) -> tuple[Span, ...]:
    """Return the spans of labels of words: one for each run of equal labels.

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


def critique_from_labels(text: str, response: str, form: LabelForm) -> Critique:
    """Read a critique with labels.

    If the labels do not fit the words of the response, the critique's status is `unparsable`, it has no
    spans, and its feedback is the reason and the text.

    Example:
        >>> critique_from_labels('{"word_tags": "in +"}', "in Lyon", LABEL_FORMS["tagged_words"]).feedback
        '1 tag for 2 words: {"word_tags": "in +"}'
    """
    text = printable(text)
    words = [response[start:end] for start, end in words_of(response)]
    try:
        reading = _object_with(form.key, text)
        labels = form.read(reading.value[form.key], words)
    except UnusableLabelsError as reason:
        return Critique(f"{reason}: {text.strip()}", status="unparsable")
    feedback = reading.value.get("textual_feedback")
    outcome: Any = reading.value.get("outcome") if form.outcome else None
    return Critique(
        feedback if isinstance(feedback, str) and feedback.strip() else "",
        spans_of(response, labels),
        outcome=float(outcome) if is_finite(outcome) else None,
        status="ok" if is_json(text[reading.start : reading.end]) else "repaired",
    )


class UnusableLabelsError(Exception):
    """The labels do not fit the words of the response."""


def _object_with(key: str, text: str) -> Reading:
    """Return the first complete JSON object of a text that has a key."""
    for read in (read_objects, partial(read_objects, lenient_ends=True)):
        for reading in read(text):
            if key in reading.value and not isinstance(reading.value, CutObject):
                return reading
    raise UnusableLabelsError(f"no whole JSON object with {key}")


def _between_tags(words: Sequence[str]) -> list[str]:
    spelled = [json.dumps(word, ensure_ascii=False)[1:-1] for word in words]
    return [*(f"{' ' if number else ''}{word} " for number, word in enumerate(spelled)), f'"{OUTCOME[1:]}']


def _read_tags(value: Any, words: Sequence[str]) -> list[int]:
    if not isinstance(value, str):
        raise UnusableLabelsError("the tags are no text")
    parts = value.split()
    if len(parts) % 2:
        raise UnusableLabelsError("the last word has no tag")
    check_number("tag", parts[1::2], words)
    for number, (listed, sign, word) in enumerate(zip(parts[::2], parts[1::2], words, strict=True), start=1):
        if listed != word:
            raise UnusableLabelsError(f"word {number} is {word!r} in the response and {listed!r} among the tags")
        if sign not in TAGS:
            raise UnusableLabelsError(f"tag {number} is {sign!r}, none of + - =")
    return [TAGS[sign] for sign in parts[1::2]]


def check_number(name: str, entries: Sequence[Any], words: Sequence[str]) -> None:
    """Check that there is one entry, called a `name`, for each word.

    Raises:
        UnusableLabelsError: if not.
    """
    if len(entries) != len(words):
        counted = (
            f"{len(some)} {noun}{'' if len(some) == 1 else 's'}" for some, noun in ((entries, name), (words, "word"))
        )
        raise UnusableLabelsError(" for ".join(counted))


LABEL_FORMS: dict[str, LabelForm] = {
    "tagged_words": LabelForm(
        "word_tags",
        "all words and marks of the response, in order, each with a sign behind it: + for a good one, - for a poor "
        "one, = for any other",
        TAGS,
        '"',
        _between_tags,
        _read_tags,
        outcome=True,
    ),
}
"""Name → the form that labels words; `register_form` adds others."""


def register_form(name: str, form: LabelForm) -> None:
    """Add a form with labels of words, so that a recipe can name it as `reward_model.form`."""
    LABEL_FORMS[name] = form


def known_forms() -> tuple[str, ...]:
    """Return the names of all forms of critiques."""
    return (*QUOTING, *LABEL_FORMS)
