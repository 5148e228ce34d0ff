"""Items are divided by prompt."""

from text2grad.feedback.splits import hold_out, split_by_prompt
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


def test_items_whose_prompt_is_in_the_file_of_held_out_ones_are_removed_and_counted() -> None:
    items = [Example("a", "1"), Example("b", "2"), Example("a", "3"), Example("c", "4")]
    held_out = [Example("a", "5"), Example("d", "6")]
    assert hold_out(items, "held_out.jsonl", 0, read=lambda path: held_out) == ([items[1], items[3]], held_out, 2)
    assert hold_out(items, 0.0, 0, read=lambda path: []) == (items, [], 0)
