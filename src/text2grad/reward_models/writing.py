"""The text of critiques: the prompts of a reward model, the targets it learns, and its labels read back.

A target z = [c; A(y)] follows [x; y] (section 3.4). The prompt begins with the task's prompt, so that its KV cache is
shared between the responses to it. Each form is JSON with the feedback first, since the spans must follow from it:

    spans               {"textual_feedback": "...", "good_spans": ["...", ...], "poor_spans": [...]}
    spans_and_outcome   {"textual_feedback": "...", "good_spans": ["...", ...], "poor_spans": [...], "outcome": -4}
    labelled_spans      {"textual_feedback": "...", "spans": [["...", "good"], ["...", "poor"], ...], "outcome": -4}
    dense               {"textual_feedback": "...", "word_labels": "0 0 + + 0 -"}
    scores              {"textual_feedback": "...", "word_score_list": [["The", 0], ["fair", 0], ["in", 1], ...]}
    tagged_words        {"textual_feedback": "...", "word_tags": "The = fair = in + Lyon + . =", "outcome": -4}
    tagged_sentences    {"textual_feedback": "...", "sentence_tags": "The fair is in Lyon. + So am I. =", "outcome": -4}
    numbered_sentences  {"textual_feedback": "...", "sentence_signs": "1 + 2 =", "outcome": -4}

"spans" is the paper's form; "spans_and_outcome" adds the critic's number for the whole response, without which a fault
that has no words of its own (an answer that says nothing) would never reach the reward. "labelled_spans" quotes in the
order of the response, each quote with its label behind it: a small model finds this easier than to choose, before the
first quote, which of all quotes are good (docs/log.md). `feedback.critique_from_text` reads all three.

"dense" is the ablation of Appendix I.1, "scores" the published SLF5K format: a label for each word. "tagged_words"
repeats the words, too, so that a small model need not count them, in half of the tokens of "scores", and has an
outcome. A word is a run of letters and digits with its accents, or one other visible character (a punctuation mark, an
emoji, a character of a script without spaces). Labels count words, not tokens, because reward model and policy may have
different tokenizers (Appendix L).

A word is + (1) where a positive span overlaps it, − (−1) where a negative span does, 0 where none or both do. When
read, each run of equal labels is one span, from the start of its first word to the end of its last. So these forms
cannot express two adjacent spans of one label, a span that ends within a word, or two labels on one word.

"tagged_sentences" does the same with sentences, as PRM-PPO splits them: for marks that concern whole sentences, such as
"irrelevant". The sign stands behind the sentence, so that the model has read all of it. A sentence is − if at least
half of its words are −, else + if at least half of them are +. "numbered_sentences" has the numbers of the
sentences in their place, for a model that reads the marks of a probe (`marks`) and only has to copy the signs.

Labels are read completely or not at all. A wrong number of labels, a word that is not in the response at this
place, an invalid label or an incomplete text give the status `unparsable`; the feedback starts with the reason.
The published code drops invalid entries and matches the rest by similarity; here nothing is guessed.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, get_args

from text2grad.align import Range
from text2grad.errors import ConfigError, check_known
from text2grad.feedback import (
    Annotation,
    CutObject,
    Reading,
    is_finite,
    is_json,
    is_letter,
    printable,
    read_objects,
    split_steps,
    words_of,
)
from text2grad.reward_models.absent_words import absent_texts
from text2grad.types import Critique, CritiqueForm, Evidence, Example, Label, Span

OPENING, GOOD, POOR, CLOSING = '{"textual_feedback": "', '", "good_spans": [', '], "poor_spans": [', "]}"
OUTCOME = '], "outcome": '
"""In place of CLOSING in the forms with an outcome; the number, or null, and a brace follow."""
NO_OUTCOME = "null}"
"""The end of a critique without an outcome, in these forms."""
LABELLED = '", "spans": ['
"""In place of GOOD in the form "labelled_spans", which has one list."""
WORDS: Mapping[Label, str] = {"positive": "good", "negative": "poor"}
"""The labels in this list."""
QUOTING: tuple[CritiqueForm, ...] = ("spans", "spans_and_outcome", "labelled_spans")
"""The forms that quote the response."""
SYMBOLS = (OPENING, GOOD, POOR, CLOSING, '", "', '\\"', ' \\"', '"', "\\\\", "\\n")
"""The JSON syntax between the words of a target; a word-level tokenizer needs one token for each."""
SIGNS = {"+": 1, "-": -1, "0": 0}
MOST_WORDS = 8  # of one sentence that `evidence_of` lists
FIRST_WORDS = 3  # of a sentence, which name it
TAGS = {"+": 1, "-": -1, "=": 0}  # each is one token behind a blank, where a digit is often two


def evidence_of(prompt: str, response: str) -> str:
    """Return a line for each sentence of a response: its first words, and the words that the prompt lacks.

    The share is that of the sentence's words; signs do not count.

    Example:
        >>> print(evidence_of("The old dog sleeps.", "The dog sleeps. A black cat, though, barks."))
        "The dog sleeps.": 0%
        "A black cat,": 100% (A, black, cat, though, barks)
    """
    absent, sentences = absent_texts(prompt, response), sentences_of(response)
    starts = [start for start, _ in words_of(response)]
    lines = []
    for (start, end), inside in zip(sentences, words_within(response, sentences), strict=True):
        places = [starts[number] for number in inside if is_letter(response[starts[number]])]
        lacking = [absent[place] for place in places if place in absent]
        listed = ", ".join(lacking[:MOST_WORDS]) + ", …" * (len(lacking) > MOST_WORDS)
        name = " ".join(response[start:end].split()[:FIRST_WORDS])
        lines.append(f'"{name}": {100 * len(lacking) / max(len(places), 1):.0f}%{f" ({listed})" if listed else ""}')
    return "\n".join(lines)


class Shown(NamedTuple):
    """The texts that a reward model judges by.

    Attributes:
        prompt: the task's prompt, of a longer one the first words and a line break.
        evidence: `evidence_of` the whole prompt and the response; empty without evidence.
        marks: of a probe (`marks`); empty without a probe.
    """

    prompt: str
    evidence: str = ""
    marks: str = ""


def check_shown(evidence: str, prompt_words: int | None) -> None:
    """Check the settings of `shown`.

    Raises:
        ConfigError: if there is no such evidence, or less than one word.
    """
    check_known("evidence", evidence, get_args(Evidence))
    if prompt_words is not None and prompt_words < 1:
        raise ConfigError(f"prompt_words = {prompt_words}: give 1 or more, or leave it out to show the whole prompt")


def shown(
    example: Example, response: str, evidence: Evidence = "none", prompt_words: int | None = None, marks: str = ""
) -> Shown:
    r"""Return the texts about a response that a reward model reads.

    Example:
        >>> shown(Example("The old dog sleeps."), "A cat.", "absent_words", prompt_words=2)
        Shown(prompt='The old …\n', evidence='"A cat.": 100% (A, cat)', marks='')
    """
    prompt = example.prompt_text
    found = "" if evidence == "none" else evidence_of(prompt, response)
    words = [] if prompt_words is None else list(re.finditer(r"\S+", prompt))
    if prompt_words is not None and len(words) > prompt_words:
        prompt = f"{prompt[: words[prompt_words - 1].end()]} …\n"
    return Shown(prompt, found, marks)


def critique_prompt(
    example: Example, response: str, evidence: Evidence = "none", prompt_words: int | None = None, marks: str = ""
) -> str:
    """Return the prompt of a reward model without chat template: the task's prompt, the response, a line break.

    Evidence and marks follow, each with a line break, if there are any.
    """
    read = shown(example, response, evidence, prompt_words, marks)
    return f"{read.prompt}{response}\n" + "".join(f"{one}\n" for one in (read.evidence, read.marks) if one)


def critique_request(
    example: Example,
    response: str,
    form: CritiqueForm = "spans",
    evidence: Evidence = "none",
    prompt_words: int | None = None,
    marks: str = "",
) -> str:
    """Return the user's message to a reward model with a chat template.

    The instruction and the task's prompt come first, so that their KV cache is shared between the responses to it.
    """
    read = shown(example, response, evidence, prompt_words, marks)
    lacking = f"\n\n### Words of the response that the prompt lacks\n{read.evidence}" if read.evidence else ""
    marked = f"\n\n### Good (+) and poor (-) parts of the response\n{read.marks}" if read.marks else ""
    request = (
        "good_spans and poor_spans what is good and what is poor about it, in words quoted exactly from the response"
    )
    if form == "labelled_spans":
        request = "spans a list of pairs: words quoted exactly from the response, in its order, and good or poor"
    elif form not in QUOTING:
        request = f"{LABEL_FORMS[form].key} {LABEL_FORMS[form].request}"
    if form in WITH_OUTCOME:
        request += ", and under outcome a number for the response as a whole, or null"
    return (
        "Judge the response to the prompt below. Write JSON: under textual_feedback your critique in words, then under "
        f"{request}.\n\n### Prompt\n{read.prompt}\n\n### Response\n{response}"
        f"{lacking}{marked}"
    )


def inputs_of(annotations: Sequence[Annotation]) -> tuple[list[Example], list[str]]:
    """Return the prompts of annotations as examples, and their responses."""
    return [Example(one.prompt) for one in annotations], [one.response for one in annotations]


def critique_target(
    critique: Critique, response: str, *, write_feedback: bool = True, form: CritiqueForm = "spans"
) -> str:
    r"""Return the target for a response.

    Args:
        critique: the annotation.
        response: the text of its spans; each span is quoted once.
        write_feedback: False leaves the feedback empty: the ablation without reasoning (section 5.3).
        form: "spans" quotes; "spans_and_outcome" adds the outcome; "labelled_spans" adds it, and labels each quote;
            "dense", "scores" and "tagged_words" label each word, the last with an outcome; "tagged_sentences" and
            "numbered_sentences" label each sentence, with an outcome.

    Example:
        >>> from text2grad.types import Span
        >>> critique_target(Critique('"Lyon" is wrong.', (Span(3, 7, "negative"),)), "in Lyon")
        '{"textual_feedback": "\\"Lyon\\" is wrong.", "good_spans": [], "poor_spans": ["Lyon"]}'
    """
    feedback = critique.feedback if write_feedback else ""
    if form not in QUOTING:
        spelled = OPENING + json.dumps(feedback, ensure_ascii=False)[1:-1]
        text = spelled + LABEL_FORMS[form].write(response, LABEL_FORMS[form].labels(response, critique.spans))
        return f"{text}{json.dumps(_number_of(critique))}}}" if form in WITH_OUTCOME else text
    spans = sorted(critique.spans, key=lambda span: (span.start, span.end))
    quotes = [(response[span.start : span.end], WORDS[span.label]) for span in spans]
    record: dict[str, Any] = {"textual_feedback": feedback}
    if form == "labelled_spans":
        record["spans"] = quotes
    else:
        record |= {f"{word}_spans": [quote for quote, label in quotes if label == word] for word in WORDS.values()}
    if form in WITH_OUTCOME:
        record["outcome"] = _number_of(critique)
    return json.dumps(record, ensure_ascii=False)


def has_outcomes(annotations: Iterable[Annotation]) -> bool:
    """Return whether a critique has a number for its whole response."""
    return any(one.critique.outcome is not None for one in annotations)


def spelled_spans(response: str, spans: Sequence[Span], form: CritiqueForm) -> str:
    """Return the text of spans in a target: what stands behind `opening_of`, up to the outcome or to the end.

    Example:
        >>> spelled_spans("in Lyon", [Span(3, 7, "positive")], "labelled_spans")
        '["Lyon", "good"]], "outcome": '
    """
    target = critique_target(Critique("", tuple(spans)), response, form=form).removeprefix(OPENING + opening_of(form))
    return target.removesuffix(NO_OUTCOME) if form in WITH_OUTCOME else target


def opening_of(form: CritiqueForm) -> str:
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


def sentences_of(response: str) -> list[Range]:
    """Return the character range of each sentence of a response, as `split_steps` finds them."""
    return split_steps(response, "sentences")


class LabelForm(NamedTuple):
    """A form with labels of words, or of sentences.

    Attributes:
        key: of the labels in the JSON object.
        request: the instruction about this key, for a model with a chat template.
        signs: the labels as they are written.
        begin: the text of the JSON value before the first word.
        between: words → the texts around their labels, one more than words; the last one ends the JSON object, or leads
            to the outcome.
        read: (JSON value, words) → labels; raises _UnusableError with the reason if the value does not fit the words.
        outcome: whether a number for the whole response follows.
        split: response → the ranges of the words, or sentences, that are labelled.
    """

    key: str
    request: str
    signs: Mapping[str, int]
    begin: str
    between: Callable[[Sequence[str]], list[str]]
    read: Callable[[Any, Sequence[str]], list[int]]
    outcome: bool = False
    split: Callable[[str], list[Range]] = words_of

    @property
    def opening(self) -> str:
        """The text between the feedback and the words."""
        return f'", "{self.key}": {self.begin}'

    def around(self, response: str) -> list[str]:
        """Return the texts around the labels of a response, one more than there are labels, after `opening`.

        Example:
            >>> LABEL_FORMS["scores"].around("in Lyon")
            ['["in", ', '], ["Lyon", ', ']]}']
        """
        return self.between([response[start:end] for start, end in self.split(response)])

    def labels(self, response: str, spans: Sequence[Span]) -> list[int]:
        """Return the label of each word, or sentence: 1, −1 or 0.

        Example:
            >>> LABEL_FORMS["tagged_sentences"].labels("It is so. I am not.", [Span(0, 5, "positive")])
            [1, 0]
        """
        inside = labels_within(response, spans, self.split(response))
        return [next((sign for sign in (-1, 1) if 2 * one.count(sign) >= len(one)), 0) for one in inside]

    def value(self, response: str, labels: Sequence[int]) -> str:
        """Return the labels with the words between them, as in the JSON value.

        Example:
            >>> LABEL_FORMS["tagged_words"].value("in Lyon", [0, 1])
            'in = Lyon +'
        """
        *_, closing = self.around(response)
        return self.write(response, labels).removeprefix(self.opening).removesuffix(closing)

    def write(self, response: str, labels: Sequence[int]) -> str:
        """Return the text after the feedback, with one label −1, 0 or 1 each, and without the outcome.

        Example:
            >>> LABEL_FORMS["dense"].write("in Lyon", [0, 1])
            '", "word_labels": "0 +"}'
        """
        written = {label: sign for sign, label in self.signs.items()}
        first, *later = self.around(response)
        return self.opening + first + "".join(written[one] + part for one, part in zip(labels, later, strict=True))


def labels_within(response: str, spans: Sequence[Span], units: Sequence[Range]) -> list[list[int]]:
    """Return the labels of the words that begin in each unit of a response: 1, −1 or 0.

    Example:
        >>> labels_within("It is so. No.", [Span(0, 5, "positive")], [(0, 9), (10, 13)])
        [[1, 1, 0, 0], [0, 0]]
    """
    labels = labels_of(response, spans)
    return [[labels[word] for word in inside] for inside in words_within(response, units)]


def words_within(response: str, units: Sequence[Range]) -> list[list[int]]:
    """Return the numbers of the words that begin in each unit of a response.

    Example:
        >>> words_within("It is so. No.", [(0, 9), (10, 13)])
        [[0, 1, 2, 3], [4, 5]]
    """
    starts = [start for start, _ in units]
    inside: list[list[int]] = [[] for _ in units]
    for number, (at, _) in enumerate(words_of(response)):
        inside[max(0, bisect_right(starts, at) - 1)].append(number)
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


def spans_of(response: str, labels: Sequence[int], split: Callable[[str], list[Range]] = words_of) -> tuple[Span, ...]:
    """Return the spans of labels of words, or of the pieces that `split` returns: one for each run of equal labels.

    Example:
        >>> spans_of("in Lyon, today", [0, 1, 1, -1])
        (Span(start=3, end=8, label='positive'), Span(start=9, end=14, label='negative'))
    """
    spans = []
    for label, run in groupby(zip(split(response), labels, strict=True), key=lambda pair: pair[1]):
        words = [word for word, _ in run]
        if label:
            spans.append(Span(words[0][0], words[-1][1], "positive" if label > 0 else "negative"))
    return tuple(spans)


def critique_from_labels(text: str, response: str, form: LabelForm) -> Critique:
    """Read a critique with labels.

    If the labels do not fit the words, or sentences, of the response, the critique's status is `unparsable`, it has no
    spans, and its feedback is the reason and the text.

    Example:
        >>> critique_from_labels('{"word_labels": "+ 0"}', "in Lyon, today", LABEL_FORMS["dense"]).feedback
        '2 labels for 4 words: {"word_labels": "+ 0"}'
    """
    text = printable(text)
    words = [response[start:end] for start, end in form.split(response)]
    try:
        reading = _object_with(form.key, text)
        labels = form.read(reading.value[form.key], words)
    except _UnusableError as reason:
        return Critique(f"{reason}: {text.strip()}", status="unparsable")
    feedback = reading.value.get("textual_feedback")
    outcome: Any = reading.value.get("outcome") if form.outcome else None
    return Critique(
        feedback if isinstance(feedback, str) and feedback.strip() else "",
        spans_of(response, labels, form.split),
        outcome=float(outcome) if is_finite(outcome) else None,
        status="ok" if is_json(text[reading.start : reading.end]) else "repaired",
    )


class _UnusableError(Exception):
    """The labels do not fit the words of the response."""


def _object_with(key: str, text: str) -> Reading:
    """Return the first complete JSON object of a text that has a key."""
    for read in (read_objects, partial(read_objects, lenient_ends=True)):
        for reading in read(text):
            if key in reading.value and not isinstance(reading.value, CutObject):
                return reading
    raise _UnusableError(f"no whole JSON object with {key}")


def _between_labels(words: Sequence[str]) -> list[str]:
    return ["", *[" "] * (len(words) - 1), '"}'] if words else ['"}']


def _read_labels(value: Any, words: Sequence[str]) -> list[int]:
    if not isinstance(value, str):
        raise _UnusableError("the labels are no text")
    signs = value.split()
    _check_number("label", signs, words)
    for number, sign in enumerate(signs, start=1):
        if sign not in SIGNS:
            raise _UnusableError(f"label {number} is {sign!r}, none of + - 0")
    return [SIGNS[sign] for sign in signs]


def _between_scores(words: Sequence[str]) -> list[str]:
    begun = [f"{'], ' if number else ''}[{json.dumps(word, ensure_ascii=False)}, " for number, word in enumerate(words)]
    return [*begun, "]]}" if words else "]}"]


def _read_scores(value: Any, words: Sequence[str]) -> list[int]:
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise _UnusableError("the scores are no list of [word, score] pairs")
    _check_number("score", value, words)
    for number, ((listed, score), word) in enumerate(zip(value, words, strict=True), start=1):
        if listed != word:
            raise _UnusableError(f"word {number} is {word!r} in the response and {listed!r} in the list")
        if not is_finite(score) or score not in SIGNS.values():
            raise _UnusableError(f"the score of word {number} is {score!r}, none of 1 -1 0")
    return [int(score) for _, score in value]


def _between_tags(words: Sequence[str]) -> list[str]:
    spelled = [json.dumps(word, ensure_ascii=False)[1:-1] for word in words]
    return [*(f"{' ' if number else ''}{word} " for number, word in enumerate(spelled)), f'"{OUTCOME[1:]}']


def _between_numbered(sentences: Sequence[str]) -> list[str]:
    return _between_tags(_numbers(sentences))


def _read_numbered(value: Any, sentences: Sequence[str]) -> list[int]:
    return _read_tags(value, _numbers(sentences), "number")


def _numbers(sentences: Sequence[str]) -> list[str]:
    return [str(number) for number, _ in enumerate(sentences, start=1)]


def _read_tags(value: Any, words: Sequence[str], unit: str = "word") -> list[int]:
    if not isinstance(value, str):
        raise _UnusableError("the tags are no text")
    parts = value.split()
    if len(parts) % 2:
        raise _UnusableError(f"the last {unit} has no tag")
    _check_number("tag", parts[1::2], words, "word" if unit == "word" else "sentence")
    for number, (listed, sign, word) in enumerate(zip(parts[::2], parts[1::2], words, strict=True), start=1):
        if listed != word:
            where = " in the response" if unit == "word" else ""
            raise _UnusableError(f"{unit} {number} is {word!r}{where} and {listed!r} among the tags")
        if sign not in TAGS:
            raise _UnusableError(f"tag {number} is {sign!r}, none of + - =")
    return [TAGS[sign] for sign in parts[1::2]]


def _read_sentences(value: Any, sentences: Sequence[str]) -> list[int]:
    if not isinstance(value, str):
        raise _UnusableError("the tags are no text")
    signs, rest = list[str](), value
    for number, sentence in enumerate(sentences, start=1):
        blank = " " if signs else ""
        if not rest.startswith(f"{blank}{sentence} "):
            raise _UnusableError(f"the tags do not go on with sentence {number}, {sentence!r}")
        rest = rest[len(blank) + len(sentence) + 1 :]
        signs.append(rest[:1])
        rest = rest[1:]
        if signs[-1] not in TAGS:
            raise _UnusableError(f"tag {number} is {signs[-1]!r}, none of + - =")
    if rest:
        raise _UnusableError(f"{rest!r} follows the last tag")
    return [TAGS[sign] for sign in signs]


def _check_number(name: str, entries: Sequence[Any], words: Sequence[str], unit: str = "word") -> None:
    """Check that there is one entry, a `name`, for each word, or sentence: a `unit`."""
    if len(entries) != len(words):
        counted = (
            f"{len(some)} {one}{'' if len(some) == 1 else 's'}" for some, one in ((entries, name), (words, unit))
        )
        raise _UnusableError(" for ".join(counted))


LABEL_FORMS: Mapping[CritiqueForm, LabelForm] = {
    "dense": LabelForm(
        "word_labels",
        "one label for each word and each mark of the response, in order and with spaces between: + for a good one, - "
        "for a poor one, 0 for any other",
        SIGNS,
        '"',
        _between_labels,
        _read_labels,
    ),
    "scores": LabelForm(
        "word_score_list",
        "a list of all words and marks of the response, in order, as pairs [word, score]: 1 for a good one, -1 for a "
        "poor one, 0 for any other",
        {str(label): label for label in SIGNS.values()},
        "[",
        _between_scores,
        _read_scores,
    ),
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
    "tagged_sentences": LabelForm(
        "sentence_tags",
        "all sentences of the response, in order, each with a sign behind it: + for a good one, - for a poor one, = "
        "for any other",
        TAGS,
        '"',
        _between_tags,
        _read_sentences,
        outcome=True,
        split=sentences_of,
    ),
    "numbered_sentences": LabelForm(
        "sentence_signs",
        "the numbers of all sentences of the response, each with a sign behind it: + for a good one, - for a poor one, "
        "= for any other",
        TAGS,
        '"',
        _between_numbered,
        _read_numbered,
        outcome=True,
        split=sentences_of,
    ),
}
WITH_OUTCOME: tuple[CritiqueForm, ...] = (
    *("spans_and_outcome", "labelled_spans"),
    *(form for form, known in LABEL_FORMS.items() if known.outcome),
)
