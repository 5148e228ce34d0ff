"""Rollouts as right-padded tensors: who predicts whom, and that masks come from lengths."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from text2grad.errors import DataError
from text2grad.models.batch import TokenBatch, collate
from text2grad.types import Example, Rollout

PAD = 9
derandomized = settings(derandomize=True, deadline=None, max_examples=60)


def rollout(prompt: list[int], response: list[int], truncated: bool = False) -> Rollout:
    return Rollout(Example("x"), tuple(prompt), tuple(response), "y", truncated)


def same(a: TokenBatch, b: TokenBatch) -> bool:
    return (
        all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a[:5], b[:5], strict=True))
        and a.prompts == b.prompts
    )


THREE = [rollout([1, 2, 3], [4, 5], True), rollout([6], [7, 8, 7], False), rollout([5, 4], [], True)]


def test_a_batch_by_hand() -> None:
    batch = collate(THREE, pad_id=PAD)
    assert batch.ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 7, 9], [5, 4, 9, 9, 9]]
    assert batch.prompt_lengths.tolist() == [3, 1, 2]
    assert batch.response_ids.tolist() == [[4, 5, 9], [7, 8, 7], [9, 9, 9]]
    assert batch.response_mask.tolist() == [[True, True, False], [True, True, True], [False, False, False]]
    assert batch.truncated.tolist() == [True, False, True]
    assert batch.response_lengths.tolist() == [2, 3, 0]
    assert batch.ids.dtype == batch.response_ids.dtype == batch.prompt_lengths.dtype == torch.int64
    assert batch.response_mask.dtype == batch.truncated.dtype == torch.bool


def test_every_response_token_is_predicted_one_position_before_its_own() -> None:
    batch = collate(THREE, pad_id=PAD)
    rows, positions = torch.meshgrid(torch.arange(3), torch.arange(batch.ids.shape[1]), indexing="ij")
    # y_t stands at P + t, so its predictor at P + t − 1: 3 − 1 + {0, 1}; 1 − 1 + {0, 1, 2}
    predictors = batch.at_predictors(torch.stack([rows, positions], 2))
    assert predictors.tolist() == [[0, 2], [0, 3], [1, 0], [1, 1], [1, 2]]
    # the token after each predictor is the response token itself
    after = batch.ids[predictors[:, 0], predictors[:, 1] + 1]
    assert torch.equal(after, batch.response_ids[batch.response_mask])


def test_a_response_is_left_at_its_last_token_and_an_empty_one_at_its_prompts() -> None:
    batch = collate(THREE, pad_id=PAD)
    assert batch.last_positions().tolist() == [4, 3, 1]
    assert batch.ids[torch.arange(3), batch.last_positions()].tolist() == [5, 7, 4]


@pytest.mark.parametrize("pad", [0, 5, 7])
def test_padding_that_was_also_sampled_changes_no_mask(pad: int) -> None:
    # 5 and 7 occur inside responses and at their ends, as an end-of-sequence that doubles as padding does
    batch, usual = collate(THREE, pad_id=pad), collate(THREE, pad_id=PAD)
    for field in ("prompt_lengths", "response_mask", "truncated"):
        assert torch.equal(getattr(batch, field), getattr(usual, field))
    assert torch.equal(batch.response_ids[batch.response_mask], usual.response_ids[usual.response_mask])
    states = torch.rand(*batch.ids.shape, 1)
    assert torch.equal(batch.at_predictors(states), usual.at_predictors(states))
    assert torch.equal(batch.last_positions(), usual.last_positions())


def test_responses_that_are_all_empty_make_a_batch_without_columns() -> None:
    batch = collate([rollout([1, 2], []), rollout([3], [])], pad_id=PAD)
    assert list(batch.response_ids.shape) == list(batch.response_mask.shape) == [2, 0]
    assert batch.ids.tolist() == [[1, 2], [3, 9]]
    assert batch.last_positions().tolist() == [1, 0]
    assert batch.at_predictors(torch.rand(2, 2, 5)).shape == (0, 5)


def test_rows_are_trimmed_to_the_longest_of_them() -> None:
    batch = collate(THREE, pad_id=PAD)
    assert same(batch.rows(torch.tensor([2, 0])), collate([THREE[2], THREE[0]], pad_id=PAD))
    assert same(batch.rows(torch.tensor([2])), collate([THREE[2]], pad_id=PAD))
    assert same(batch.rows(torch.tensor([0, 1, 2])), batch)


lengths = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=6)


@derandomized
@given(lengths, st.randoms(use_true_random=False))
def test_rows_of_a_batch_are_the_batch_of_those_rows(shape: list[tuple[int, int]], random: object) -> None:
    made = [
        rollout(list(range(10 * i, 10 * i + p)), list(range(10 * i + p, 10 * i + p + r)), bool(r % 2))
        for i, (p, r) in enumerate(shape)
    ]
    chosen = random.sample(range(len(made)), random.randint(1, len(made)))  # type: ignore[attr-defined]
    assert same(collate(made, pad_id=PAD).rows(torch.tensor(chosen)), collate([made[i] for i in chosen], pad_id=PAD))


@derandomized
@given(lengths, st.integers(1, 30))
def test_groups_hold_every_row_once_and_no_more_tokens_than_allowed(shape: list[tuple[int, int]], tokens: int) -> None:
    batch = collate([rollout([1] * p, [2] * r) for p, r in shape], pad_id=PAD)
    groups = [group.tolist() for group in batch.groups(tokens)]
    rows = [row for group in groups for row in group]
    assert sorted(rows) == list(range(len(shape)))
    for group in groups:
        padded = batch.rows(torch.tensor(group)).ids.numel()
        assert group
        assert len(group) == 1 or padded <= tokens
    # rows of similar length: from group to group lengths never fall
    ordered = [sum(shape[i]) for i in rows]
    assert ordered == sorted(ordered)


def test_groups_by_hand() -> None:
    batch = collate([rollout([1], [2] * n) for n in (4, 1, 2, 9)], pad_id=PAD)
    # lengths 5, 2, 3, 10; in order 2, 3, 5, 10: two rows of width 3 fit in 6, three of width 5 do not; 10 stands alone
    assert [group.tolist() for group in batch.groups(6)] == [[1, 2], [0], [3]]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(DataError) as error:
        collate([THREE[0], rollout([], [1])], pad_id=PAD)
    assert str(error.value) == (
        "rollout 1 has an empty prompt: its first token has no predictor. "
        "Give the prompt a beginning-of-sequence token or some text."
    )


def test_no_rollouts_are_refused() -> None:
    with pytest.raises(DataError) as error:
        collate([], pad_id=PAD)
    assert str(error.value) == "cannot make a batch of no rollouts"


def test_every_tensor_goes_to_the_device_that_was_asked_for() -> None:
    batch = collate(THREE, pad_id=PAD, device="meta")
    assert {x.device.type for x in batch[:5]} == {"meta"}
