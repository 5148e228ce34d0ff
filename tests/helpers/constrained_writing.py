"""Write critiques under the constraint, character by character, with any tokenizer."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pytest

from text2grad.reward_models.decoding.constrained import (
    ConstrainedCritique,
    State,
    skeleton_of,
)
from text2grad.reward_models.decoding.grammar import critique_grammar
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.decoding.skeleton import END, START, Skeleton
from text2grad.reward_models.format import CritiqueFormat
from text2grad.types import Conversation
from tokenizers_made_here import FAMILIES, made, of_tokens

SAID = [  # English, code, CJK, emoji: what JSON escapes, what several tokens share, what occurs twice
    'The "fair" is in\tLyon, he said: "The fair!"\nYes \\ no.',
    "def mean(values):\n\treturn values['\\n'] / len(values)  # \"mean\"\r\n",
    "我喜欢北京。 東京は美味しい。안녕하세요",
    "so glad 😀😀 👨‍👩‍👧 👍🏽 ❤️\x00\x1f\x7f\u2028",
]
LIMITS = {field.name for field in fields(QuoteLimits)}
WRITERS = [name for name in FAMILIES if not name.startswith("bert") and name != "t5"]


def skeleton(tokenizer: Any, *, write_feedback: bool = True, form: Any = "spans", turns: bool = False) -> Skeleton:
    written = CritiqueFormat(form=form, write_feedback=write_feedback)
    return skeleton_of(tokenizer, written, size=len(tokenizer), eos_ids=[end_of(tokenizer)], turns=turns)


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
    turns = isinstance(response, Conversation)
    own = skeleton(tokenizer, write_feedback=write_feedback, form=form, turns=turns)
    return ConstrainedCritique(own, response, **how)


def written(critique: ConstrainedCritique, text: str) -> bool:
    """Write a text character by character, or as far as it may be; tell whether all of it was."""
    spelled = critique.skeleton.vocabulary.spelled
    return all(critique.take(spelled[character.encode()][0]) for character in text)


def spelled_by(tokens: Sequence[str]) -> Any:
    """A tokenizer of exactly these tokens and an end."""
    tokenizer, _ = of_tokens("byte_level", [*tokens, {"special": "</s>"}])
    tokenizer.eos_token = "</s>"
    return tokenizer


def texts(generator: random.Random, count: int) -> list[str]:
    """Random responses of the four kinds, cut and joined anywhere."""
    made_up = []
    for number in range(count):
        parts = [SAID[number % 4], generator.choice(SAID), SAID[number % 4]][: generator.randint(1, 3)]
        cuts = [sorted(generator.choices(range(len(part) + 1), k=2)) for part in parts]
        made_up.append("".join(part[start:end] for part, (start, end) in zip(parts, cuts, strict=True)))
    return made_up


def babble(critique: ConstrainedCritique, generator: np.random.Generator, *, marks: float) -> int:
    """Let a model of random logits write it, which likes quotation marks by so many nats; return the tokens."""
    used, vocabulary = 0, critique.skeleton.vocabulary
    liked = [i for i, data in vocabulary.data.items() if b'"' in data]
    while critique.state is not None and critique.state.skeleton != END:
        scores = generator.normal(size=vocabulary.size).astype(np.float32)
        scores[liked] += marks
        if not critique.take(int(scores.argmax())):
            critique.take_from(scores)
        used += 1
    return used


def reachable(critique: ConstrainedCritique, room: int) -> Iterator[str]:
    """Every text that some sequence of at most `room` tokens writes, by trying every token everywhere."""
    data = critique.skeleton.vocabulary.data

    def follow(state: State, text: bytes, left: int) -> Iterator[str]:
        if state.skeleton == END:
            yield text.decode()
        for token, spelled in data.items():
            after = critique.step(state, token, left - 1) if left else None
            if after is not None:
                yield from follow(after, text + spelled, left - 1)

    return follow(State(START), b"", room)


def accepts(critique: ConstrainedCritique, text: str) -> bool:
    spelled = critique.skeleton.vocabulary.spelled
    took = all(critique.take(spelled[bytes([byte])][0]) for byte in text.encode())
    return took and critique.state is not None and critique.state.skeleton == END


def grammar_accepts(response: str, text: str, **settings: Any) -> bool:
    llguidance = pytest.importorskip("llguidance")
    tokenizer = llguidance_tokenizer()
    max_tokens = settings.pop("max_tokens", None)
    limits = settings.pop("limits", QuoteLimits(**{name: settings.pop(name) for name in LIMITS & settings.keys()}))
    grammar = critique_grammar(response, CritiqueFormat(limits=limits, **settings), max_tokens=max_tokens)
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.tokenize_bytes(text.encode())
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@cache
def llguidance_tokenizer() -> Any:
    from llguidance.hf import from_tokenizer

    return from_tokenizer(made("gpt2"))
