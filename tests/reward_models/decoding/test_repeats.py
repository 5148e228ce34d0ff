"""In feedback no sequence of tokens stands twice; spans and labels behind it may repeat it."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from text2grad.config.reward_model import RewardModelConfig
from text2grad.errors import ConfigError
from text2grad.models import most_likely
from text2grad.reward_models import generative
from text2grad.reward_models.decoding.repeats import FeedbackWithoutRepeats
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.writing import opening_of
from text2grad.tasks.tiny import tiny_llama
from text2grad.types import CritiqueForm, Example
from tokenizers_made_here import made

A, B, C, KEY, BEGIN, END = range(6)
TEXTS = ["a", "b", "c", '", "good_spans": [', '", "good_', 'spans": [']


class Spelling:
    """Stands for a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(TEXTS[one] for one in ids)


def wish(*tokens: int) -> list[float]:
    """Return logits that prefer the first token to the second, and so on."""
    return [-float(tokens.index(token)) if token in tokens else -9.0 for token in range(len(TEXTS))]


def chosen(choice: FeedbackWithoutRepeats, wishes: Sequence[Sequence[int]], row: int = 0) -> list[int]:
    rows = torch.tensor([row])
    return [int(choice(torch.tensor([wish(*one)]), rows, step)) for step, one in enumerate(wishes)]


LOOP = [(A, C, B), (B, C, A)] * 4


def test_a_sequence_of_three_tokens_is_written_once() -> None:
    """a b a b, then "a b a" is known and c comes; c b a, then "b a b" is known and c comes."""
    choice = FeedbackWithoutRepeats(most_likely, 3, Spelling(), "spans")
    assert chosen(choice, LOOP) == [A, B, A, B, C, B, A, C]
    assert chosen(choice, LOOP, row=4) == [A, B, A, B, C, B, A, C]  # rows do not know each other


def test_of_two_tokens_each_pair_is_written_once() -> None:
    """a b a, then "a b" is known, and so on: a c; "c a", "a a"."""
    choice = FeedbackWithoutRepeats(most_likely, 2, Spelling(), "spans")
    found = chosen(choice, LOOP)
    assert found[:4] == [A, B, A, C]
    pairs = list(pairwise(found))
    assert len(pairs) == len(set(pairs)) == 7


def test_rows_in_any_order_have_their_own_feedback_and_other_logits_stay() -> None:
    choice, asked = (
        FeedbackWithoutRepeats(lambda *given: asked.append(given[0]) or most_likely(*given), 2, Spelling(), "spans"),
        [],
    )
    logits = torch.tensor([wish(A), wish(B)])
    for rows in ([0, 1], [0, 1], [1, 0]):
        found = choice(logits, torch.tensor(rows), 0)
    # Rows 0 and 1 wrote "a a" and "b b"; asked in the other order, row 1 wants a and row 0 wants b, both new.
    assert found.tolist() == [A, B]
    assert choice(torch.tensor([wish(A, C), wish(B, C)]), torch.tensor([0, 1]), 0).tolist() == [A, B]
    assert choice(torch.tensor([wish(B, C), wish(A, C)]), torch.tensor([0, 1]), 0).tolist() == [C, C]
    assert logits.tolist() == [wish(A), wish(B)]  # given logits are not changed
    assert asked[-1].isneginf().sum() == 4  # "a a" and "a b" of row 0; "b b" and "b a" of row 1


@pytest.mark.parametrize("key", [[KEY], [BEGIN, END]], ids=["one token", "two tokens"])
def test_behind_the_feedback_everything_may_be_repeated(key: list[int]) -> None:
    choice = FeedbackWithoutRepeats(most_likely, 2, Spelling(), "spans")
    assert chosen(choice, [(A,), (B,), *[(one,) for one in key], *LOOP]) == [A, B, *key, *[A, B] * 4]


def test_feedback_of_one_row_goes_on_when_that_of_another_has_ended() -> None:
    choice = FeedbackWithoutRepeats(most_likely, 2, Spelling(), "spans")
    chosen(choice, [(KEY,)])
    assert chosen(choice, [(A,), (A,), (A, C)], row=1) == [A, A, C]


def test_the_last_tokens_of_the_feedback_forbid_nothing_behind_it() -> None:
    """Behind `spans": [` stood a; it ends the feedback, and a may follow again."""
    choice = FeedbackWithoutRepeats(most_likely, 2, Spelling(), "spans")
    assert chosen(choice, [(END,), (A,), (BEGIN,), (END,), (A, C)]) == [END, A, BEGIN, END, A]


def test_the_key_of_another_form_ends_nothing() -> None:
    choice = FeedbackWithoutRepeats(most_likely, 2, Spelling(), "dense")
    assert chosen(choice, [(A,), (B,), (KEY,), (A,), (B, C)])[-1] == C


def test_known_text_counts_too() -> None:
    def ahead(row: int) -> Iterator[int]:
        yield from ([A, B, A, B] if row == 2 else [])

    choice = FeedbackWithoutRepeats(most_likely, 3, Spelling(), "spans", ahead)
    assert list(choice.ahead(0)) == []
    assert list(choice.ahead(2)) == [A, B, A, B]
    assert chosen(choice, [(A, C)], row=2) == [C]
    assert chosen(choice, [(A, C)], row=0) == [A]
    assert list(FeedbackWithoutRepeats(most_likely, 3, Spelling(), "spans").ahead(0)) == []


def feedback_tokens(tokenizer: Any, ids: Sequence[int], form: CritiqueForm) -> list[int]:
    """Return the tokens up to the first key behind the feedback."""
    key = opening_of(form).split('"')[2]
    ends = (end for end in range(len(ids) + 1) if f'"{key}"' in tokenizer.decode(ids[:end]))
    return list(ids)[: next(ends, len(ids))]


def repeated(ids: Sequence[int], size: int) -> int:
    found = [tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)]
    return len(found) - len(set(found))


@pytest.mark.parametrize("form", ["spans", "labelled_spans", "scores", "numbered_sentences"])
@pytest.mark.parametrize(("constrain", "draws"), [(True, 0), (True, 2), (False, 0), (False, 2)])
def test_any_weights_write_feedback_without_repeats(
    form: CritiqueForm, constrain: bool, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = made("gpt2")
    model = tiny_llama(tokenizer, seed=1, width=32, layers=1, context=512)
    found: dict[int, list[int]] = {}
    for size in (0, 3):
        settings: dict[str, Any] = {"form": form, "constrain": constrain, "max_new_tokens": 200}
        critic = GenerativeRewardModel(model, tokenizer, no_repeat_ngram_size=size, **settings)
        written, write = [], critic._write
        monkeypatch.setattr(critic, "_write", lambda *given, to=written, do=write: to.extend(do(*given)) or to)
        texts = [one.text for own in critic._drawn([Example("q")], [" red cat."], draws) for one in own]
        if constrain:
            assert all(json.loads(text) for text in texts)
        found[size] = [repeated(feedback_tokens(tokenizer, ids, form), 3) for ids in written]
    assert set(found[3]) == {0}
    if not draws:
        assert sum(found[0]) > 0  # greedy decoding goes round in circles


def test_without_feedback_labels_repeat_as_they_like(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, asked = made("gpt2"), []
    monkeypatch.setattr(generative, "decode", lambda *given, **more: asked.append((given[2], more["ahead"])) or [[]])
    for write_feedback in (True, False):
        model = tiny_llama(tokenizer, seed=0, width=16, layers=1, context=256)
        how: dict[str, Any] = {"form": "tagged_words", "learned": "choices", "no_repeat_ngram_size": 2}
        GenerativeRewardModel(model, tokenizer, write_feedback=write_feedback, **how).write(
            [Example("q")], [" red cat."]
        )
    (with_feedback, ahead), (without, _) = asked
    assert isinstance(with_feedback, FeedbackWithoutRepeats)
    assert ahead.__self__ is with_feedback
    assert (with_feedback.key, with_feedback.size, with_feedback.tokenizer) == ('"word_tags"', 2, tokenizer)
    assert not isinstance(without, FeedbackWithoutRepeats)


@pytest.mark.parametrize("size", [-1, 1])
def test_a_size_that_forbids_each_token_is_refused(size: int) -> None:
    tokenizer = made("gpt2")
    with pytest.raises(ConfigError, match=f"no_repeat_ngram_size = {size}: give 2 or more"):
        GenerativeRewardModel(tiny_llama(tokenizer, seed=0), tokenizer, no_repeat_ngram_size=size)
    with pytest.raises(ValidationError, match="no_repeat_ngram_size"):
        RewardModelConfig(no_repeat_ngram_size=size)
