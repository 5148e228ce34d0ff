"""Rollouts as right-padded tensors: who predicts whom, and that masks come from lengths."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from text2grad.errors import AlignmentError, DataError
from text2grad.models.batch import TokenBatch, collate
from text2grad.types import Example, Given, Rollout

PAD = 9
derandomized = settings(derandomize=True, deadline=None, max_examples=60)


def rollout(
    prompt: list[int], response: list[int], truncated: bool = False, given: dict[int, list[int]] | None = None
) -> Rollout:
    between = tuple(Given(place, tuple(ids)) for place, ids in (given or {}).items())
    return Rollout(Example("x"), tuple(prompt), tuple(response), "y", truncated, given=between)


def same(a: TokenBatch, b: TokenBatch) -> bool:
    return (
        all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a[:7], b[:7], strict=True))
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
    assert batch.positions.tolist() == [[3, 4, 5], [1, 2, 3], [2, 2, 2]]
    assert batch.lengths.tolist() == [5, 4, 2]
    assert not batch.turn_ends().any()
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
    assert {x.device.type for x in batch[:7]} == {"meta"}


# Two turns with two given ids between them; three turns, of which the second is empty; and given ids at the end.
TURNS = [
    rollout([1, 2], [4, 5, 6], given={2: [8, 8]}),
    rollout([3], [7, 1], True, given={1: [2, 2, 2]}),
    rollout([5, 5, 5], [6, 6], True, given={1: [1], 2: [4, 3]}),
    rollout([2, 4], [], True, given={0: [7]}),
]


def test_given_ids_stand_between_the_sampled_ones_and_are_no_response() -> None:
    batch = collate(TURNS, pad_id=PAD)
    assert batch.ids.tolist() == [
        [1, 2, 4, 5, 8, 8, 6, 9],
        [3, 7, 2, 2, 2, 1, 9, 9],
        [5, 5, 5, 6, 1, 6, 4, 3],
        [2, 4, 7, 9, 9, 9, 9, 9],
    ]
    assert batch.response_ids.tolist() == [[4, 5, 6], [7, 1, 9], [6, 6, 9], [9, 9, 9]]
    assert batch.response_lengths.tolist() == [3, 2, 2, 0]
    assert batch.positions.tolist() == [[2, 3, 6], [1, 5, 6], [3, 5, 8], [3, 3, 3]]
    assert batch.last_positions().tolist() == [6, 5, 7, 2]
    f, t = False, True
    assert batch.turn_ends().tolist() == [[f, t, f], [t, f, f], [t, t, f], [f, f, f]]
    # before each y_t: positions 1, 2 and 5; 0 and 4; 2 and 4
    assert batch.at_predictors(batch.ids[:, :, None])[:, 0].tolist() == [2, 4, 8, 3, 2, 5, 1]
    assert batch.cost() == (4 * 8, False)


@derandomized
@given(lengths, st.randoms(use_true_random=False))
def test_trajectories_keep_the_order_of_their_ids_in_any_rows(shape: list[tuple[int, int]], random: object) -> None:
    draw = random.randint  # type: ignore[attr-defined]
    made = []
    for p, r in shape:
        places = sorted({draw(0, r) for _ in range(draw(0, 3))})
        made.append(rollout([1] * p, list(range(10, 10 + r)), given={at: [2] * draw(1, 3) for at in places}))
    chosen = [draw(0, len(made) - 1) for _ in range(3)]
    batch = collate(made, pad_id=PAD).rows(torch.tensor(chosen))
    assert same(batch, collate([made[row] for row in chosen], pad_id=PAD))
    for row, own in enumerate(made[row] for row in chosen):
        behind = batch.ids[row, batch.prompt_lengths[row] : batch.lengths[row]].tolist()
        assert [token for token in behind if token != 2] == list(own.response_ids)
        assert batch.ids[row, batch.positions[row, : len(own.response_ids)]].tolist() == list(own.response_ids)
        ends = {at.place - 1 for at in own.given} - {-1}
        assert set(batch.turn_ends()[row].nonzero()[:, 0].tolist()) == ends


def test_groups_of_trajectories_count_what_they_were_given() -> None:
    # Rows of 8, 6, 8 and 3 tokens: 3 and 6 make 12 padded tokens, with one of 8 they would make 24.
    batch = collate(TURNS, pad_id=PAD)
    assert [group.tolist() for group in batch.groups(16)] == [[3, 1], [0, 2]]
    assert [batch.rows(group).cost().tokens for group in batch.groups(16)] == [12, 16]
    shared = collate([rollout([1] * 9, [2], given={1: [3] * n}) for n in (4, 2)], pad_id=PAD, share_prompts=True)
    assert shared.cost() == (9 + 2 * 5, True)  # of 28


@pytest.mark.parametrize(
    ("places", "shown"),
    [({2: [1], 1: [1]}, "1 at 2, 1 at 1"), ({4: [1, 1]}, "2 at 4"), ({1: []}, "0 at 1"), ({-1: [1]}, "1 at -1")],
)
def test_given_ids_without_a_place_in_order_are_refused(places: dict[int, list[int]], shown: str) -> None:
    with pytest.raises(AlignmentError) as error:
        rollout([1], [2, 3, 4], given=places)
    assert str(error.value) == (
        f"given ids need places in order among the 3 sampled ids, and at least one id each, got {shown}. Leave out "
        "what gives no id, and let `place` count the sampled ids before"
    )
