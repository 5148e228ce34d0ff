"""One number of an annotation: Σ δ_t over the tokens of a tokenizer."""

from typing import Any

from text2grad.align import pseudo_rewards
from text2grad.feedback import Annotation


def span_reward(tokenizer: Any, annotation: Annotation) -> float:
    """Return Σ δ_t of an annotated response over a tokenizer's tokens: a scalar reward of the annotation.

    Special tokens that the response spells are encoded as text.
    """
    encoded = tokenizer(
        annotation.response, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
    )
    offsets = encoded["offset_mapping"]
    return sum(pseudo_rewards(tokenizer, encoded["input_ids"], annotation.critique.spans, offsets=offsets))
