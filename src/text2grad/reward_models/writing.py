"""A critique as the generative reward model reads and writes it: z = [c; A(y)] after [x; y] (section 3.4).

The prompt holds the task's own prompt first, so that its cache is shared between the responses to it. The target is
JSON, always valid and always in this order: the words first, since the spans must follow from them.

    {"textual_feedback": "...", "good_spans": ["...", ...], "poor_spans": [...]}

`critique_forms` has two forms more, which label words instead of quoting them.
"""

import json
from collections.abc import Sequence

from text2grad.reward_models.word_labels import LABEL_FORMS, written_labels
from text2grad.types import Critique, CritiqueForm, Example, PromptFormat

OPENING, GOOD, POOR, CLOSING = '{"textual_feedback": "', '", "good_spans": [', '], "poor_spans": [', "]}"
SYMBOLS = (OPENING, GOOD, POOR, CLOSING, '", "', '\\"', ' \\"', '"', "\\\\", "\\n")
"""What JSON puts between the words; a word-level tokenizer gets one token for each."""


def critique_prompt(example: Example, response: str) -> str:
    """Return what a reward model reads, where it has no chat template: the task's prompt and the response."""
    return f"{example.prompt_text}{response}\n"


def critique_request(example: Example, response: str, form: CritiqueForm = "spans") -> str:
    """Return what a reward model with a chat template is asked, as the user's message.

    The instruction and the task's prompt come first, so that their cache is shared between the responses to it.
    """
    asked = (
        "good_spans and poor_spans what is good and what is poor about it, in words quoted exactly from the response"
    )
    if form != "spans":
        asked = f"{LABEL_FORMS[form].key} {LABEL_FORMS[form].asked}"
    return (
        "Judge the response to the prompt below. Write JSON: under textual_feedback your critique in words, then under "
        f"{asked}.\n\n### Prompt\n{example.prompt_text}\n\n### Response\n{response}"
    )


def critique_questions(
    examples: Sequence[Example], responses: Sequence[str], prompt_format: PromptFormat, form: CritiqueForm = "spans"
) -> list[str]:
    """Return what a reward model is asked about each response, before a chat template is laid around it."""
    pairs = zip(examples, responses, strict=True)
    if prompt_format == "chat":
        return [critique_request(*pair, form) for pair in pairs]
    return [critique_prompt(*pair) for pair in pairs]


def critique_target(
    critique: Critique, response: str, *, write_feedback: bool = True, form: CritiqueForm = "spans"
) -> str:
    r"""Return what a reward model learns to write about a response.

    Args:
        critique: the annotation.
        response: what its spans are offsets into; each is quoted once for each time it is marked.
        write_feedback: False leaves the critique empty: the ablation without reasoning (section 5.3).
        form: "spans" quotes; "dense" and "scores" label each word (`critique_forms`).

    Example:
        >>> from text2grad.types import Span
        >>> critique_target(Critique('"Lyon" is wrong.', (Span(3, 7, "negative"),)), "in Lyon")
        '{"textual_feedback": "\\"Lyon\\" is wrong.", "good_spans": [], "poor_spans": ["Lyon"]}'
    """
    feedback = critique.feedback if write_feedback else ""
    if form != "spans":
        labels = written_labels(LABEL_FORMS[form], response, critique.spans)
        return json.dumps({"textual_feedback": feedback, **labels}, ensure_ascii=False)
    spans = sorted(critique.spans, key=lambda span: (span.start, span.end))
    quotes = {
        label: [response[span.start : span.end] for span in spans if span.label == label]
        for label in ("positive", "negative")
    }
    record = {"textual_feedback": feedback, "good_spans": quotes["positive"], "poor_spans": quotes["negative"]}
    return json.dumps(record, ensure_ascii=False)
