"""The text of critiques: the prompts of a reward model, the targets it learns, and its labels read back.

A target z = [c; A(y)] follows [x; y] (section 3.4). The prompt begins with the task's prompt, so that its KV cache is
shared between the responses to it. Each form is JSON with the feedback first, since the spans must follow from it:

    spans           {"textual_feedback": "...", "good_spans": ["...", ...], "poor_spans": [...]}
    labelled_spans  {"textual_feedback": "...", "spans": [["...", "good"], ["...", "poor"], ...], "outcome": -4}
    tagged_words    {"textual_feedback": "...", "word_tags": "The = fair = in + Lyon + . =", "outcome": -4}

"spans" is the paper's form. "labelled_spans" has the label behind each quote, which a small model finds easier, and
the critic's number for the whole response: a fault without words of its own (an answer that says nothing) needs it.
"tagged_words" repeats the words, each with a label behind it. Other packages add forms with labels of words
(`FORMS`). A word is a run of letters and digits with its accents, or one other visible character. Labels count
words, not tokens, because reward model and policy may have different tokenizers (Appendix L).

A word is + (1) where a positive span overlaps it, − (−1) where a negative span does, 0 where none or both do. Read
back, each run of equal labels is one span. Labels are read completely or not at all: a wrong number of labels, another
word than in the response or an invalid label give the status `unparsable`, with the reason in the feedback.

In a conversation a quote is {"turn": 1, "quote": "..."}; in "labelled_spans" its "label" stands behind it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

from text2grad.feedback import (
    Annotation,
    CutObject,
    flat_spans,
    in_turns,
    is_finite,
    is_json,
    numbered,
    printable,
    read_objects,
    words_of,
)
from text2grad.types import Conversation, Critique, Example, Label, Span

OPENING, GOOD, POOR, CLOSING = '{"textual_feedback": "', '", "good_spans": [', '], "poor_spans": [', "]}"
OUTCOME, NO_OUTCOME = '], "outcome": ', "null}"
"""In place of CLOSING in a form with an outcome: the number and a brace follow, or there is none."""
TURN, QUOTE = '{"turn": ', ', "quote": "'
"""Of a quote in a conversation: its turn's number stands between these, and a quotation mark and a brace end it."""
WORDS: Mapping[Label, str] = {"positive": "good", "negative": "poor"}  # the labels in a list of labelled quotes
SYMBOLS = (OPENING, GOOD, POOR, CLOSING, '", "', '\\"', ' \\"', '"', "\\\\", "\\n")
"""The JSON syntax between the words of a target; a word-level tokenizer needs one token for each."""


def critique_prompt(example: Example, response: str) -> str:
    """Return the prompt of a reward model without chat template: prompt and response, or turns, and a line break."""
    turns, shown = numbered(response)
    return f"{shown if turns else example.prompt_text + response}\n"


def critique_request(example: Example, response: str, form: str = "spans") -> str:
    """Return the user's message to a reward model with a chat template.

    The instruction and the task's prompt come first, so that their KV cache is shared between the responses to it.
    """
    known = FORMS[form]
    outcome = ", and under outcome a number for the response as a whole, or null" if known.outcome else ""
    (turns, shown), judged, quoted = numbered(response), "response to the prompt below", ""
    if turns:
        judged = f"response, the turns {turns} of the conversation below, whose other turns are data"
        label = ', "label": "good"' if form == "labelled_spans" else ""
        quoted = f', each as {TURN}1{QUOTE}..."{label}}}' if known.quotes else ""
    whole = f"### Conversation\n{shown}" if turns else f"### Prompt\n{example.prompt_text}\n\n### Response\n{response}"
    return (
        f"Judge the {judged}. Write JSON: under textual_feedback your critique in words, then under "
        f"{known.key} {known.request}{quoted}{outcome}.\n\n{whole}"
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
        form: a name in `FORMS`.

    Example:
        >>> from text2grad.types import Span
        >>> critique_target(Critique('"Lyon" is wrong.', (Span(3, 7, "negative"),)), "in Lyon")
        '{"textual_feedback": "\\"Lyon\\" is wrong.", "good_spans": [], "poor_spans": ["Lyon"]}'
    """
    known, marks = FORMS[form], dict[str, Any]()
    flat = sorted(flat_spans(response, critique.spans), key=lambda span: (span.start, span.end))
    spans, _ = in_turns(response, flat)
    if not known.quotes:
        marks[known.key] = known.write(response, labels_of(response, flat))
    elif form == "labelled_spans":
        marks[known.key] = [_entry(response, span, WORDS[span.label]) for span in spans]
    else:
        for label, word in WORDS.items():
            marks[f"{word}_spans"] = [_entry(response, span) for span in spans if span.label == label]
    if known.outcome:
        marks["outcome"] = _number_of(critique)
    feedback = critique.feedback if write_feedback else ""
    return json.dumps({"textual_feedback": feedback, **marks}, ensure_ascii=False)


def _entry(response: str, span: Span, word: str = "") -> Any:
    """Return the quote of a span, in a conversation with its turn, and with the word of its label if there is one."""
    if not isinstance(response, Conversation) or span.turn is None:
        quote = response[span.start : span.end]
        return (quote, word) if word else quote
    quote = response.turns[span.turn].text[span.start : span.end]
    return {"turn": span.turn, "quote": quote, **({"label": word} if word else {})}


def has_outcomes(annotations: Iterable[Annotation]) -> bool:
    """Return whether a critique has a number for its whole response."""
    return any(annotation.critique.outcome is not None for annotation in annotations)


def _number_of(critique: Critique) -> float | None:
    """Return the outcome with at most two decimals, a whole number without; None if there is none."""
    if critique.outcome is None:
        return None
    rounded = round(critique.outcome, 2)
    return int(rounded) if rounded == int(rounded) else rounded


class Form(NamedTuple):
    """A form of critiques, which quotes the response, or has labels of its words in a JSON string.

    Attributes:
        key: of the first quotes, or of the labels, in the JSON object.
        request: the instruction about this key, for a model with a chat template.
        outcome: whether a number for the whole response follows.
        signs: the labels of words as they are written; empty for a form that quotes.
        says_words: whether each word stands before its label.
    """

    key: str
    request: str
    outcome: bool = False
    signs: Mapping[str, int] = {}
    says_words: bool = False

    @property
    def quotes(self) -> bool:
        """Whether the critique quotes the response."""
        return not self.signs

    @property
    def opening(self) -> str:
        """The text between the feedback and the first quote or word."""
        return f'", "{self.key}": ' + ("[" if self.quotes else '"')

    def around(self, response: str) -> list[str]:
        """Return the texts around the labels of a response, one more than there are labels, after `opening`.

        The last one ends the JSON object, or leads to the outcome.

        Example:
            >>> FORMS["tagged_words"].around("in Lyon")
            ['in ', ' Lyon ', '", "outcome": ']
        """
        words = [json.dumps(word, ensure_ascii=False)[1:-1] for word in _words(response)]
        parts = [f"{' ' if number else ''}{f'{word} ' if self.says_words else ''}" for number, word in enumerate(words)]
        return [*parts, f'"{OUTCOME[1:]}' if self.outcome else '"}']

    def write(self, response: str, labels: Sequence[int]) -> str:
        """Return the string for one label −1, 0 or 1 of each word.

        Example:
            >>> FORMS["tagged_words"].write("in Lyon", [0, 1])
            'in = Lyon +'
        """
        written = {label: sign for sign, label in self.signs.items()}
        signs = [written[label] for label in labels]
        return " ".join(map(" ".join, zip(_words(response), signs, strict=True)) if self.says_words else signs)

    def read(self, value: Any, response: str) -> list[int] | None:
        """Return the labels that a JSON value gives to the words of a response; None if they do not fit."""
        words, size = _words(response), 2 if self.says_words else 1
        parts = value.split() if isinstance(value, str) else []
        signs = parts[size - 1 :: size]
        fits = len(parts) == size * len(words) and (not self.says_words or parts[::2] == words)
        return [self.signs[sign] for sign in signs] if fits and set(signs) <= self.signs.keys() else None


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


def critique_from_labels(text: str, response: str, form: Form) -> Critique:
    """Read a critique with labels.

    If the labels do not fit the words of the response, the critique's status is `unparsable`, it has no
    spans, and its feedback is the reason and the text.

    Example:
        >>> critique_from_labels('{"word_tags": "in +"}', "in Lyon", FORMS["tagged_words"]).feedback
        'word_tags does not fit the words of the response: {"word_tags": "in +"}'
    """
    text = printable(text)
    readings = chain(read_objects(text), read_objects(text, lenient_ends=True))
    whole = (each for each in readings if form.key in each.value and not isinstance(each.value, CutObject))
    reading = next(whole, None)
    labels = form.read(reading.value[form.key], response) if reading else None
    if reading is None or labels is None:
        reason = f"{form.key} does not fit the words of the response" if reading else f"no whole object with {form.key}"
        return Critique(f"{reason}: {text.strip()}", status="unparsable")
    feedback = reading.value.get("textual_feedback")
    outcome: Any = reading.value.get("outcome") if form.outcome else None
    return Critique(
        feedback if isinstance(feedback, str) and feedback.strip() else "",
        in_turns(response, spans_of(response, labels))[0],
        outcome=float(outcome) if is_finite(outcome) else None,
        status="ok" if is_json(text[reading.start : reading.end]) else "repaired",
    )


FORMS = {  # the value of `reward_model.form` → form; another package may add one with labels of words
    "spans": Form(
        "good_spans", "and poor_spans what is good and what is poor about it, in words quoted exactly from the response"
    ),
    "labelled_spans": Form(
        "spans", "a list of pairs: words quoted exactly from the response, in its order, and good or poor", outcome=True
    ),
    "tagged_words": Form(
        "word_tags",
        "all words and marks of the response, in order, each with a sign behind it: + for a good one, - for a poor "
        "one, = for any other",
        outcome=True,
        signs={"+": 1, "-": -1, "=": 0},  # each is one token behind a blank, where a digit is often two
        says_words=True,
    ),
}
