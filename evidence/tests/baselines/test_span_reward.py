"""The number of an annotation over a tokenizer's tokens."""

import pytest
from tokenizers import processors

from evidence.baselines.span_reward import span_reward
from text2grad.align import encode, text_delta
from text2grad.feedback.records import Annotation
from text2grad.types import Critique, Span
from tokenizers_made_here import gpt2, made


def test_a_special_token_that_a_response_spells_counts_as_its_text_in_the_scalar_reward() -> None:
    tokenizer = gpt2()
    marked = Annotation("", "a<end>", Critique("", (Span(0, 6, "positive"),)))
    assert span_reward(tokenizer, marked) == len(encode(tokenizer, "a<end>")) > 2


@pytest.mark.parametrize("trim", [True, False])
def test_white_space_in_a_span_counts_as_in_training(trim: bool) -> None:
    tokenizer = gpt2()  # Llama 3 and SmolLM2 trim offsets
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    marked = Annotation("", "def f(x):\n    return x\n", Critique("", (Span(10, 13, "negative"),)))
    delta = text_delta(tokenizer, marked.response, marked.critique)
    assert delta is not None
    assert span_reward(tokenizer, marked) == sum(delta) < 0


def test_a_tokenizer_of_small_letters_places_its_tokens_itself() -> None:
    tokenizer = made("bert")
    marked = Annotation("", "Quebec people", Critique("", (Span(7, 13, "positive"),)))  # it has no Q
    assert text_delta(tokenizer, marked.response, marked.critique) is None
    assert span_reward(tokenizer, marked) == len(encode(tokenizer, "people"))
