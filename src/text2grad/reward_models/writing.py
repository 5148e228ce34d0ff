"""The text of critiques: the prompts of a reward model, the targets it learns, and its labels read back.

A target z = [c; A(y)] follows [x; y] (section 3.4). The prompt begins with the task's prompt, so that its KV cache is
shared between the responses to it. Each form is JSON with the feedback first, since the spans must follow from it:

    spans           {"textual_feedback": "...", "good_spans": ["...", ...], "poor_spans": [...]}
    labelled_spans  {"textual_feedback": "...", "spans": [["...", "good"], ["...", "poor"], ...], "outcome": -4}
    tagged_words    {"textual_feedback": "...", "word_tags": "The = fair = in + Lyon + . =", "outcome": -4}

"spans" is the paper's form. "labelled_spans" has the label behind each quote, which a small model finds easier, and
the critic's number for the whole response: a fault without words of its own (an answer that says nothing) needs it.
"tagged_words" repeats the words, each with a label behind it. Other packages add forms with labels of words
(`register_form`). A word is a run of letters and digits with its accents, or one other visible character. Labels count
words, not tokens, because reward model and policy may have different tokenizers (Appendix L).

A word is + (1) where a positive span overlaps it, − (−1) where a negative span does, 0 where none or both do. Read
back, each run of equal labels is one span. Labels are read completely or not at all: a wrong number of labels, another
word than in the response or an invalid label give the status `unparsable`, with the reason in the feedback.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

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
    examples = [Example(annotation.prompt) for annotation in annotations]
    return examples, [annotation.response for annotation in annotations]


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
    return any(annotation.critique.outcome is not None for annotation in annotations)


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
    """A form with labels of words, in a JSON string.

    Attributes:
        key: of the string in the JSON object.
        request: the instruction about this key, for a model with a chat template.
        signs: the labels as they are written.
        says_words: whether each word stands before its label.
        outcome: whether a number for the whole response follows.
    """

    key: str
    request: str
    signs: Mapping[str, int]
    says_words: bool = False
    outcome: bool = False

    @property
    def opening(self) -> str:
        """The text between the feedback and the words."""
        return f'", "{self.key}": "'

    def around(self, response: str) -> list[str]:
        """Return the texts around the labels of a response, one more than there are labels, after `opening`.

        The last one ends the JSON object, or leads to the outcome.

        Example:
            >>> LABEL_FORMS["tagged_words"].around("in Lyon")
            ['in ', ' Lyon ', '", "outcome": ']
        """
        words = [json.dumps(word, ensure_ascii=False)[1:-1] for word in _words(response)]
        parts = [f"{' ' if number else ''}{f'{word} ' if self.says_words else ''}" for number, word in enumerate(words)]
        return [*parts, f'"{OUTCOME[1:]}' if self.outcome else '"}']

    def write(self, response: str, labels: Sequence[int]) -> str:
        """Return the text after the feedback, with one label −1, 0 or 1 each, and without the outcome.

        Example:
            >>> LABEL_FORMS["tagged_words"].write("in Lyon", [0, 1])
            '", "word_tags": "in = Lyon +", "outcome": '
        """
        written = {label: sign for sign, label in self.signs.items()}
        first, *later = self.around(response)
        return self.opening + first + "".join(written[label] + part for label, part in zip(labels, later, strict=True))

    def read(self, value: Any, response: str) -> list[int]:
        """Return the labels that a JSON value gives to the words of a response.

        Raises:
            UnusableLabelsError: with the reason, if they do not fit.
        """
        words = _words(response)
        if not isinstance(value, str):
            raise UnusableLabelsError("the labels are no text")
        parts = value.split()
        if self.says_words and len(parts) % 2:
            raise UnusableLabelsError("the last word has no label")
        said, signs = (parts[::2], parts[1::2]) if self.says_words else (words, parts)
        if len(signs) != len(words):
            raise UnusableLabelsError(f"number of labels: {len(signs)}, of words in the response: {len(words)}")
        for number, (listed, sign, word) in enumerate(zip(said, signs, words, strict=True), start=1):
            if listed != word:
                raise UnusableLabelsError(f"word {number} is {word!r} in the response and {listed!r} among the labels")
            if sign not in self.signs:
                raise UnusableLabelsError(f"label {number} is {sign!r}, none of {' '.join(self.signs)}")
        return [self.signs[sign] for sign in signs]


def _words(response: str) -> list[str]:
    return [response[start:end] for start, end in words_of(response)]


def labels_of(response: str, spans: Sequence[Span]) -> list[int]:
    """Return the label of each word: 1, −1 or 0.

    Example:
        >>> labels_of("in Lyon, today", [Span(3, 7, "positive"), Span(9, 11, "negative")])
        [0, 1, 0, -1]
    """

    def has(label: Label, start: int, end: int) -> bool:
        return any(span.label == label and max(start, span.start) < min(end, span.end) for span in spans)

    return [has("positive", *word) - has("negative", *word) for word in words_of(response)]


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
        'number of labels: 1, of words in the response: 2: {"word_tags": "in +"}'
    """
    text = printable(text)
    try:
        reading = _object_with(form.key, text)
        labels = form.read(reading.value[form.key], response)
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


LABEL_FORMS: dict[str, LabelForm] = {
    "tagged_words": LabelForm(
        "word_tags",
        "all words and marks of the response, in order, each with a sign behind it: + for a good one, - for a poor "
        "one, = for any other",
        {"+": 1, "-": -1, "=": 0},  # each is one token behind a blank, where a digit is often two
        says_words=True,
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
