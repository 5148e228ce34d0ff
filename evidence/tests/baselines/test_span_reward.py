"""The number of an annotation over a tokenizer's tokens."""

from evidence.baselines.span_reward import span_reward
from text2grad.align import encode
from text2grad.feedback.records import Annotation
from text2grad.types import Critique, Span
from tokenizers_made_here import gpt2


def test_a_special_token_that_a_response_spells_counts_as_its_text_in_the_scalar_reward() -> None:
    tokenizer = gpt2()
    marked = Annotation("", "a<end>", Critique("", (Span(0, 6, "positive"),)))
    assert span_reward(tokenizer, marked) == len(encode(tokenizer, "a<end>")) > 2
