"""Openings of stories, from two worlds of names, animals, things and places that share no content word.

The split holds by construction: training and held-out openings have different names, animals, things, places, moods,
pastimes and sentence patterns.
"""

import itertools
import random
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from text2grad.errors import ConfigError
from text2grad.tasks.base import Split
from text2grad.types import Example

_GIRL = {"kind": "girl", "She": "She", "she": "she", "her": "her"}
_BOY = {"kind": "boy", "She": "He", "she": "he", "her": "his"}
_HERO_FIELDS = frozenset({"name", *_GIRL})


@dataclass(frozen=True, slots=True)
class World:
    """The words and sentence patterns of one split.

    Attributes:
        girls: names of girls.
        boys: names of boys.
        slots: the possible words of each field of a pattern that is not about the hero.
        patterns: format strings; `{name}`, `{kind}`, `{She}`, `{she}` and `{her}` belong to the hero.
    """

    girls: tuple[str, ...]
    boys: tuple[str, ...]
    slots: Mapping[str, tuple[str, ...]]
    patterns: tuple[str, ...]

    def heroes(self) -> list[dict[str, str]]:
        """Return every hero, with the pronouns of a girl or a boy."""
        girls = [{"name": name} | _GIRL for name in self.girls]
        return girls + [{"name": name} | _BOY for name in self.boys]

    def fill(self, pattern: str) -> list[str]:
        """Return every opening of one pattern."""
        fields = sorted({field for _, field, _, _ in string.Formatter().parse(pattern) if field})
        heroes = self.heroes() if _HERO_FIELDS.intersection(fields) else [{}]
        names = [field for field in fields if field not in _HERO_FIELDS]
        fillings = [
            dict(zip(names, values, strict=True)) for values in itertools.product(*(self.slots[name] for name in names))
        ]
        return [pattern.format_map({**hero, **filling}) for hero in heroes for filling in fillings]

    def all_openings(self) -> int:
        """Return the number of different openings."""
        return sum(len(self.fill(pattern)) for pattern in self.patterns)

    def draw(self, rng: random.Random) -> Iterator[str]:
        """Yield every opening once; the patterns take turns, so that a pattern with many openings does not dominate."""
        decks = [self.fill(pattern) for pattern in self.patterns]
        for deck in decks:
            rng.shuffle(deck)
        for row in itertools.zip_longest(*decks):
            yield from rng.sample([text for text in row if text], k=sum(map(bool, row)))


TRAIN = World(
    girls=("Lily", "Mia", "Sara", "Lucy", "Anna", "Emma", "Amy", "Jane", "Molly", "Sue", "Rose", "Kate"),
    boys=("Tom", "Ben", "Max", "Tim", "Jack", "Sam", "Timmy", "Bob", "John", "Billy", "Mark", "Joe"),
    slots={
        "animal": ("dog", "cat", "bird", "rabbit", "bear", "frog", "mouse", "duck"),
        "thing": ("ball", "doll", "toy car", "book", "kite", "hat", "box", "cake"),
        "place": ("park", "garden", "forest", "beach", "store", "farm"),
        "mood": ("happy", "small", "big", "kind", "brave", "funny"),
        "color": ("red", "blue", "green", "pretty", "new"),
        "pastime": ("run and jump", "play outside", "sing songs", "draw pictures", "swim", "read books"),
    },
    patterns=(
        "Once upon a time, there was a little {kind} named {name}. {She}",
        "Once upon a time, there was a {mood} {animal}. The {animal}",
        "Once upon a time, there was a {mood} {kind} named {name} who loved to {pastime}. One day, {she}",
        "One day, {name} went to the {place} with {her} mom. {She}",
        "{name} was playing in the {place} when {she} saw a {color} {thing}. {She}",
        "{name} had a {color} {thing}. {She} liked to",
        "There once was a {mood} {animal} who lived in the {place}. It",
        "One sunny day, {name} found a {color} {thing}. {She} showed it to",
    ),
)

HELD_OUT = World(
    girls=("Ella", "Daisy", "Sophie", "Grace", "Zoe", "Nina", "Clara", "Ruby", "Jenny", "Ellie"),
    boys=("Leo", "Peter", "Adam", "Fred", "Charlie", "Henry", "Luke", "Danny", "Oscar", "George"),
    slots={
        "animal": ("fox", "pig", "turtle", "lion", "squirrel", "horse", "monkey"),
        "thing": ("balloon", "drum", "spoon", "puzzle", "shell", "blanket", "flower"),
        "place": ("river", "kitchen", "school", "barn", "hill"),
        "mood": ("sleepy", "lonely", "curious", "gentle", "tiny"),
        "color": ("yellow", "shiny", "purple", "soft"),
        "pastime": ("bake cookies", "climb trees", "ride a bike", "dance", "count stars"),
    },
    patterns=(
        "Long ago, {name} and {her} dad lived near a {place}. They",
        "In a far away land lived a {mood} {animal}. Every morning the {animal}",
        "{name} wanted to {pastime} but it was raining. So {she}",
        "It was {name}'s birthday. Grandma gave {name} a {color} {thing} and",
        "A {mood} {animal} met a {color} butterfly by the {place}. They became",
        "{name} could not find {her} {color} {thing}. {She} looked",
        "At the {place}, {name} learned how to {pastime}. Then",
        '"Look, a {thing}!" said {name}. It was very {color}, so {she}',
    ),
)

_WORLDS = {"train": TRAIN, "held_out": HELD_OUT}


def story_openings(split: Split, n: int, seed: int) -> list[Example]:
    """Return n different openings of one split, in an order that the seed decides.

    The two splits share no name, no pattern and no two words in a row.

    Args:
        split: `train` or `held_out`.
        n: number of openings; there are about 9,000 in `train` and 3,000 in `held_out`.
        seed: the same seed gives the same openings, whatever n; a smaller n gives the first of them.

    Raises:
        ConfigError: if the split is unknown or has fewer than n openings.

    Example:
        >>> for example in story_openings("held_out", 2, seed=1):
        ...     example.prompt
        'Long ago, Leo and his dad lived near a barn. They'
        'A gentle pig met a yellow butterfly by the kitchen. They became'
    """
    if split not in _WORLDS:
        raise ConfigError(f"no split {split!r} of story openings; splits: {', '.join(get_args(Split))}")
    world = _WORLDS[split]
    if not 0 <= n <= world.all_openings():
        setting = "quickstart.examples" if split == "train" else "data.eval_examples"
        raise ConfigError(
            f"cannot draw {n} different {split} openings: there are {world.all_openings()}; lower {setting}"
        )
    return [Example(prompt=text) for text in itertools.islice(world.draw(random.Random(seed)), n)]
