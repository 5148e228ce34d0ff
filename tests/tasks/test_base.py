"""The base of embedded tasks: items with distinct prompts, as many as there are."""

from random import Random

import pytest

from text2grad.errors import DataError
from text2grad.tasks.summarization.task import SummarizationTask
from text2grad.types import Example


class Dice(SummarizationTask):
    """A world of six prompts."""

    name = "dice"

    def draw(self, rng: Random) -> Example:
        return Example(str(rng.randint(1, 6)))


def test_all_prompts_of_a_small_world_are_found() -> None:
    assert sorted(example.prompt for example in Dice("train").examples(6)) == ["1", "2", "3", "4", "5", "6"]


def test_more_prompts_than_a_world_has_are_refused_instead_of_searched_for_ever() -> None:
    with pytest.raises(DataError) as caught:
        Dice("train").examples(7)
    assert str(caught.value) == (
        "the task dice has too few prompts: 7 distinct prompts needed, 6 found. Lower the number of examples "
        "(quickstart.examples, or sft.steps × sft.batch_size)"
    )
