"""Write critiques under the constraint, character by character, with any tokenizer."""

from typing import Any

from text2grad.reward_models.decoding.constrained import ConstrainedCritique, skeleton_of
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.decoding.skeleton import Skeleton


def skeleton(tokenizer: Any, *, write_feedback: bool = True, form: Any = "spans") -> Skeleton:
    written = {"write_feedback": write_feedback, "form": form}
    return skeleton_of(tokenizer, size=len(tokenizer), eos_ids=[end_of(tokenizer)], **written)


def end_of(tokenizer: Any) -> int:
    return int(tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.unk_token_id)


def begin(
    tokenizer: Any,
    response: str,
    *,
    room: int = 10**6,
    write_feedback: bool = True,
    form: Any = "spans",
    **limits: Any,
) -> ConstrainedCritique:
    how: dict[str, Any] = {"eos_ids": [end_of(tokenizer)], "room": room, "limits": QuoteLimits(**limits)}
    return ConstrainedCritique(skeleton(tokenizer, write_feedback=write_feedback, form=form), response, **how)


def written(critique: ConstrainedCritique, text: str) -> bool:
    """Write a text character by character, or as far as it may be; tell whether all of it was."""
    spelled = critique.skeleton.vocabulary.spelled
    return all(critique.take(spelled[character.encode()][0]) for character in text)
