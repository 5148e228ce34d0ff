"""How stories start: openings that differ, that the seed decides, and that are held out by construction."""

import itertools
import re

import pytest

from evidence.tasks.stories.openings import HELD_OUT, TRAIN, World, story_openings
from evidence.tasks.stories.reading import read_story
from text2grad.errors import ConfigError


def test_openings_are_different_plain_texts_that_the_seed_decides() -> None:
    for split in ("train", "held_out"):
        openings = story_openings(split, 600, seed=3)
        texts = [example.prompt for example in openings]
        assert len(set(texts)) == 600
        assert texts == [example.prompt for example in story_openings(split, 600, seed=3)]
        assert texts[:50] == [example.prompt for example in story_openings(split, 50, seed=3)]
        assert set(texts[:48]) != {example.prompt for example in story_openings(split, 48, seed=4)}
        assert all(isinstance(text, str) and re.search(r"[a-zA-Z]$", text) and "{" not in text for text in texts)


def test_every_pattern_takes_part_in_a_small_draw() -> None:
    for split, world in (("train", TRAIN), ("held_out", HELD_OUT)):
        drawn = {example.prompt for example in story_openings(split, 8, seed=0)}
        assert all(drawn & set(world.fill(pattern)) for pattern in world.patterns)


def test_a_girl_is_she_and_a_boy_is_he() -> None:
    world = World(("Eve",), ("Al",), {"thing": ("cup",)}, ("{name}, a {kind}, lost {her} {thing}. {She} said {she}",))
    assert world.fill(world.patterns[0]) == [
        "Eve, a girl, lost her cup. She said she",
        "Al, a boy, lost his cup. He said he",
    ]


def test_held_out_openings_share_no_two_words_in_a_row_with_training() -> None:
    def pairs(world: World) -> set[tuple[str, str]]:
        texts = (re.findall(r"\w+", text.lower()) for pattern in world.patterns for text in world.fill(pattern))
        return {pair for words in texts for pair in itertools.pairwise(words)}

    assert not pairs(TRAIN) & pairs(HELD_OUT)


def test_held_out_names_and_words_never_occur_in_training() -> None:
    trained = {word for pattern in TRAIN.patterns for text in TRAIN.fill(pattern) for word in re.findall(r"\w+", text)}
    own = [*HELD_OUT.girls, *HELD_OUT.boys, *(word for slot in HELD_OUT.slots.values() for word in slot)]
    assert not [word for word in own if word in trained]


def test_openings_use_only_words_that_the_critic_accepts() -> None:
    for split in ("train", "held_out"):
        texts = [str(example.prompt) for example in story_openings(split, 500, seed=0)]
        readings = [read_story("", text + ".") for text in texts]
        assert not [reading for reading in readings if reading.invented or reading.repeats]


def test_openings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^no split 'test' of story openings; splits: train, held_out$"):
        story_openings("test", 1, seed=0)  # type: ignore[arg-type]
    held_out = r"^cannot draw 4000 different held_out openings: there are 3115; lower data\.eval_examples$"
    with pytest.raises(ConfigError, match=held_out):
        story_openings("held_out", 4000, seed=0)
    with pytest.raises(
        ConfigError, match=r"^cannot draw 9049 .* openings: there are 9048; lower quickstart\.examples$"
    ):
        story_openings("train", 9049, seed=0)
    with pytest.raises(ConfigError, match=r"^cannot draw -1 different train openings"):
        story_openings("train", -1, seed=0)
    assert len(story_openings("held_out", 3115, seed=0)) == 3115
