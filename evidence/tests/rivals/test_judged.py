"""The choice of the best responses, by hand."""

from small_rival import judged

from evidence.rivals.judged import best, groups


def rewards(found: list) -> list[float]:
    return [one.reward for one in found]


def test_neighbours_are_a_group_and_failed_critiques_are_left_out() -> None:
    given = [judged(1), judged(2, failed=True), judged(3), judged(4)]
    assert [rewards(group) for group in groups(given, 2)] == [[1], [3, 4]]


def test_the_best_share_of_each_group_is_kept_and_at_least_one() -> None:
    given = [judged(r, prompt=(p,)) for p, row in enumerate([(1, 5, 3, 2), (0, -1, -2, -3)]) for r in row]
    assert rewards(best(given, 0.5, 4)) == [5, 3, 0, -1]
    assert rewards(best(given, 0.25, 4)) == [5, 0]
    assert rewards(best(given, 0.01, 4)) == [5, 0]
    assert rewards(best(given, 1.0, 4)) == [5, 3, 2, 1, 0, -1, -2, -3]


def test_without_groups_the_best_share_of_the_round_is_kept() -> None:
    given = [judged(r, prompt=(r,)) for r in (1, 5, 3, 2)]
    assert rewards(best(given, 0.5, 1)) == [5, 3]
    assert best([], 0.5, 1) == []


def test_equal_responses_to_a_prompt_count_once_and_the_first_of_equal_rewards_comes_first() -> None:
    given = [judged(2, "a"), judged(2, "a"), judged(2, "b"), judged(1, "c")]
    assert [one.rollout.response for one in best(given, 0.75, 4)] == ["a", "b", "c"]
    other = [judged(2, "a", prompt=(1,)), judged(2, "a", prompt=(9,))]
    assert len(best(other, 1.0, 1)) == 2


def test_a_failed_critique_has_no_part_in_the_share() -> None:
    given = [judged(9, failed=True), judged(1), judged(2), judged(3, failed=True)]
    assert rewards(best(given, 0.5, 4)) == [2]
