"""Passages → chat prompts for grounded answers: passages cut at a sentence, train and held-out parts by subject."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from evidence.tasks.grounded.passages import Passage
from evidence.tasks.grounded.sentences import sentence_ranges
from text2grad.feedback import split_by_prompt
from text2grad.types import Example

QUESTION = (
    "Answer the question in one or two sentences. Use only what the passage says.\n\n"
    "Passage: {passage}\n\nQuestion: {question}"
)
SUMMARY = "Summarize the passage in one or two sentences. Use only what the passage says.\n\nPassage: {passage}"
TOO_LONG = "records whose first sentence is longer than the limit"


class GroundedExamples(NamedTuple):
    """Examples to train on and held-out examples; no subject is in both.

    Attributes:
        train: to train on.
        held_out: for evaluations.
        left_out: the number of passages that were left out, by reason.
        cut: the number of passages that were cut.
    """

    train: list[Example]
    held_out: list[Example]
    left_out: Counter[str]
    cut: int


def grounded_examples(
    passages: Iterable[Passage],
    *,
    count: Callable[[str], int],
    passage_tokens: int,
    held_out: float,
    seed: int = 0,
) -> GroundedExamples:
    """Return prompts as chat messages, with passage and question in `meta` for critic and metric.

    Args:
        passages: of `read_passages`.
        count: text → tokens.
        passage_tokens: most tokens of a passage, which is cut after the last sentence that fits; 0 for no limit.
        held_out: share of subjects that is held out.
        seed: chooses them.
    """
    made, subjects, first = list[Example](), dict[str, str](), dict[str, str]()
    left_out, cut = Counter[str](), 0
    for one in passages:
        text = cut_at_sentence(one.text, passage_tokens, count)
        if not text:
            left_out[TOO_LONG] += 1
            continue
        cut += text != one.text
        prompt = (QUESTION if one.question else SUMMARY).format(passage=text, question=one.question)
        meta = {"id": one.where, "passage": text, "question": one.question}
        made.append(Example([{"role": "user", "content": prompt}], one.answer, meta=meta))
        subject = one.subject.casefold()
        if one.subject == one.text:  # texts that the cut makes equal have one subject: that of the first
            subject = first.setdefault(text.casefold(), subject)
        subjects[prompt] = subject
    return GroundedExamples(
        *split_by_prompt(made, held_out, seed, key=lambda one: subjects[one.prompt_text]), left_out, cut
    )


def cut_at_sentence(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """Return the beginning of a text, of whole sentences and at most `tokens` tokens; empty if none fits.

    Example:
        >>> cut_at_sentence("One two. Three four. Five.", 4, lambda text: len(text.split()))
        'One two. Three four.'
    """
    if not tokens or count(text) <= tokens:
        return text
    kept = ""
    for _, end in sentence_ranges(text):
        if count(text[:end]) > tokens:
            break
        kept = text[:end]
    return kept
