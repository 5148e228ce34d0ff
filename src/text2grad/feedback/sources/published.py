"""The data sets of the paper (section 4.1): SLF5K, UltraFeedback and KodCode, in all published forms.

slf5k           {id: {"generated_summary", "Post"}} of the paper's code; rows of the hub with human "feedback" on
                "generated_summary_for_feedback"; posts with an "ideal_human_summary". `text2grad feedback prepare` also
                reads the "comparison_preference" between two summaries.
ultrafeedback   records of the paper's code with "response", "is_chosen" and "critique"; binarized pairs of the hub,
                "chosen" and "rejected" as texts or chats; the original with a critique of each completion.
kodcode         "question", "solution" and tests; `text2grad feedback prepare` also reads the programs of other models.

Feedback in words becomes an annotation without spans. A response without feedback becomes an example with the response
in `meta["response"]`, for an annotator.
"""

from collections.abc import Iterator
from typing import Any

from text2grad.feedback.record_files import Object, shown
from text2grad.feedback.records import Annotation
from text2grad.feedback.sources.base import WORDS_ONLY, Item, Loss, Row, unjudged
from text2grad.types import Critique, Example

SUMMARY_PROMPT = "Write an excellent summary of the given text.\n\nTitle: {title}\n\nText: {post}\n\nTL;DR:"


def read_slf5k(row: Row) -> Iterator[Item]:
    """Yield one post with the feedback on a summary of it."""
    if row.get("summary_prompt") is not None:
        prompt = row.text("summary_prompt")
    else:
        post = SUMMARY_PROMPT.format(title=row.words("title"), post=row.first("post", "Post"))
        prompt = post if row.get("title") is not None else post.replace("Title: \n\n", "")
    reference = row.words("ideal_human_summary") or row.words("tldr_human_reference_summary") or None
    feedback = row.words("feedback")
    if feedback:
        summary = row.text("generated_summary_for_feedback")
        yield Item(Annotation(prompt, summary, Critique(feedback)), (Loss(WORDS_ONLY),))
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
            inner = Row(row.where, completion, row.options)
            yield _feedback_item(prompt, inner.text("response"), inner.words("critique"), completion)
    elif row.get("response") is not None:
        yield _feedback_item(row.text("prompt"), _answer(row, "response"), row.words("critique"), row.record)
    else:
        prompt, chosen, rejected = read_pair(row)
        meta = {"rejected": rejected, **_some(row.record, ("prompt_id", "score_chosen", "score_rejected", "metadata"))}
        yield Item(Example(prompt, chosen, meta=meta))


def read_pair(row: Row) -> tuple[str, str, str]:
    """Return prompt, chosen and rejected response of a preference."""
    return row.text("prompt"), _answer(row, "chosen"), _answer(row, "rejected")


def read_kodcode(row: Row) -> Iterator[Item]:
    """Yield one problem with its solution and its tests."""
    tests = row.options.prepare_tests(row.first("test", "test_code"))
    names = ("question_id", "subset", "style", "gpt_difficulty", "gpt_pass_percentage")
    yield Item(Example(row.text("question"), row.text("solution"), tests, meta=_some(row.record, names)))


def _feedback_item(prompt: str, response: str, feedback: str, record: Object) -> Item:
    """Return a response with its feedback as an annotation; as an example without feedback."""
    if feedback:
        return Item(Annotation(prompt, response, Critique(feedback)), (Loss(WORDS_ONLY),))
    names = ("prompt_id", "model", "is_chosen", "score", "overall_score", "score_chosen", "score_rejected")
    return _unjudged(prompt, response, None, record, names)


def _unjudged(prompt: str, response: Any, reference: str | None, record: Object, names: tuple[str, ...]) -> Item:
    """Return a response without feedback, or a prompt without a response, as an example."""
    if response is None:
        return Item(Example(prompt, reference, meta=_some(record, names)))
    return unjudged(prompt, response, reference=reference, meta=_some(record, names))


def _answer(row: Row, column: str) -> str:
    """Return a response, given as a text or as the last message of a chat."""
    value = row.get(column)
    last = value[-1] if isinstance(value, list) and value else None
    if isinstance(last, dict) and last.get("role") == "assistant" and isinstance(last.get("content"), str):
        return str(last["content"])
    if isinstance(value, list):
        raise row.bad(f'"{row.name(column)}" must be a chat that ends with the assistant, got {shown(value)}')
    return row.text(column)


def _some(record: Object, names: tuple[str, ...]) -> Object:
    """Return the named fields that the record has."""
    return {name: record[name] for name in names if record.get(name) is not None}
