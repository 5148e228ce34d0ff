"""One number of an annotation: Σ δ_t over the tokens of a tokenizer."""

from typing import Any

from text2grad.align import pseudo_rewards, text_delta, text_offsets
from text2grad.errors import ModelError
from text2grad.feedback import Annotation


def span_reward(tokenizer: Any, annotation: Annotation) -> float:
    """Return Σ δ_t of an annotated response over a tokenizer's tokens, as in training: a scalar of the annotation.

    Special tokens that the response spells are encoded as text. A tokenizer that changes letters, which no policy can
    have, places its tokens itself.

    Raises:
        ModelError: if such a tokenizer has no character offsets.
    """
    response, critique = annotation.response, annotation.critique
    delta = text_delta(tokenizer, response, critique)
    if delta is None:
        ids, offsets = text_offsets(tokenizer, response)
        if offsets is None:
            raise ModelError(
                f"{type(tokenizer).__name__} has no character offsets of tokens; use the fast tokenizer of this model"
            )
        delta = pseudo_rewards(tokenizer, ids, critique.spans, offsets=offsets)
    return sum(delta)
