"""The data sets of the paper (section 4.1): SLF5K, UltraFeedback, KodCode, each in every form it is published in.

slf5k           the reference's {id: {"generated_summary", "Post"}}; the hub's rows, where people wrote "feedback" on
                "generated_summary_for_feedback"; posts with an "ideal_human_summary".
ultrafeedback   the reference's records with "response", "is_chosen" and "critique"; the hub's binarized pairs,
                "chosen" and "rejected" as texts or chats; the original, with a critique of each completion.
kodcode         "question", "solution" and tests.

Feedback in words alone becomes an annotation without spans. A response without feedback becomes an example that has
it in `meta["response"]`, for an annotator.
"""

from collections.abc import Iterator
from typing import Any

from text2grad.critics.sandbox import with_names
from text2grad.feedback.record_files import Object, shown
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import WORDS_ONLY, Item, Loss, Row, unjudged
from text2grad.types import Critique, Example

SUMMARY_PROMPT = "Write an excellent summary of the given text.\n\nTitle: {title}\n\nText: {post}\n\nTL;DR:"


def read_slf5k(row: Row) -> Iterator[Item]:
    """Yield one post with what was said of a summary of it."""
    if row.get("summary_prompt") is not None:
        prompt = row.text("summary_prompt")
    else:
        post = SUMMARY_PROMPT.format(title=row.words("title"), post=row.first("post", "Post"))
        prompt = post if row.get("title") is not None else post.replace("Title: \n\n", "")
    reference = row.words("ideal_human_summary") or row.words("tldr_human_reference_summary") or None
    said = row.words("feedback")
    if said:
        summary = row.text("generated_summary_for_feedback")
        yield Item(Annotation(prompt, summary, Critique(said)), (Loss(WORDS_ONLY),))
    else:
        yield _unjudged(prompt, row.get("generated_summary"), reference, row.record, ("id", "subreddit"))


def read_ultrafeedback(row: Row) -> Iterator[Item]:
    """Yield the responses to one prompt."""
    if row.get("completions") is not None:
        prompt = row.text("instruction")
        if not row.listed("completions"):
            raise row.bad("there are no completions to read")
        for completion in row.listed("completions"):
            if not isinstance(completion, dict):
                raise row.bad(f"a completion is an object, got {shown(completion)}")
            inner = Row(row.number, row.where, completion, row.options)
            yield _said(prompt, inner.text("response"), inner.words("critique"), completion)
        return
    if row.get("response") is not None:
        said, answer = row.words("critique"), _answer(row, "response")
        yield _said(row.text("prompt"), answer, said, row.record)
        return
    chosen, rejected = _answer(row, "chosen"), _answer(row, "rejected")
    meta = {"rejected": rejected, **_some(row.record, ("prompt_id", "score_chosen", "score_rejected", "metadata"))}
    yield Item(Example(row.text("prompt"), chosen, meta=meta))


def read_kodcode(row: Row) -> Iterator[Item]:
    """Yield one problem with its solution and its tests."""
    tests = with_names(row.first("test", "test_code"))
    names = ("question_id", "subset", "style", "gpt_difficulty", "gpt_pass_percentage")
    yield Item(Example(row.text("question"), row.text("solution"), tests, meta=_some(row.record, names)))


def _said(prompt: str, response: str, said: str, record: Object) -> Item:
    """Return a response with the words on it, or as an example where there are none."""
    if said:
        return Item(Annotation(prompt, response, Critique(said)), (Loss(WORDS_ONLY),))
    names = ("prompt_id", "model", "is_chosen", "score", "overall_score", "score_chosen", "score_rejected")
    return _unjudged(prompt, response, None, record, names)


def _unjudged(prompt: str, response: Any, reference: str | None, record: Object, names: tuple[str, ...]) -> Item:
    """Return a response that nobody judged, or a task without a response, as an example."""
    if response is None:
        return Item(Example(prompt, reference, meta=_some(record, names)))
    return unjudged(prompt, response, reference=reference, meta=_some(record, names))


def _answer(row: Row, column: str) -> str:
    """Return a response, given as a text or as the chat that it ends."""
    value = row.get(column)
    last = value[-1] if isinstance(value, list) and value else None
    if isinstance(last, dict) and last.get("role") == "assistant" and isinstance(last.get("content"), str):
        return str(last["content"])
    if isinstance(value, list):
        raise row.bad(f'"{row.name(column)}" must be a chat that ends with the assistant, got {shown(value)}')
    return row.text(column)


def _some(record: Object, names: tuple[str, ...]) -> Object:
    """Return those of some fields that a record has."""
    return {name: record[name] for name in names if record.get(name) is not None}
