"""Items are divided by prompt."""

from text2grad.feedback.splits import split_by_prompt
from text2grad.types import Example


def test_no_prompt_stands_on_both_sides() -> None:
    items = [Example(f"p{number % 10}", f"no {number}") for number in range(40)]
    learned, held_out = split_by_prompt(items, 0.2, seed=0)
    assert len({one.prompt for one in held_out}) == 2
    assert (len(learned), len(held_out)) == (32, 8)
    assert {one.prompt for one in learned}.isdisjoint(one.prompt for one in held_out)
    assert split_by_prompt(items, 0.2, seed=1) != (learned, held_out) == split_by_prompt(items, 0.2, seed=0)
    assert split_by_prompt(items, 0.0, seed=0) == (items, [])
    assert len(split_by_prompt(items, 0.001, seed=0)[1]) == 4, "at least one prompt"
