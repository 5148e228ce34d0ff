"""How stories start: two worlds of names, creatures, things and places that share no word of their own.

What is held out is held out by construction. The two splits have different names, animals, things, places,
moods, pastimes and sentence patterns, so no phrase of a held-out opening that says anything was trained on.
"""

import itertools
import random
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_GIRL = {"kind": "girl", "She": "She", "she": "she", "her": "her"}
_BOY = {"kind": "boy", "She": "He", "she": "he", "her": "his"}
_HERO_FIELDS = frozenset({"name", *_GIRL})


@dataclass(frozen=True, slots=True)
class World:
    """The words and sentence patterns of one split.

    Attributes:
        girls: names of girls.
        boys: names of boys.
        slots: what may stand for each field of a pattern that is not about the hero.
        patterns: format strings; `{name}`, `{kind}`, `{She}`, `{she}` and `{her}` are the hero's.
    """

    girls: tuple[str, ...]
    boys: tuple[str, ...]
    slots: Mapping[str, tuple[str, ...]]
    patterns: tuple[str, ...]

    def heroes(self) -> list[dict[str, str]]:
        """Every hero, with the words that agree with a girl or a boy."""
        girls = [{"name": name} | _GIRL for name in self.girls]
        return girls + [{"name": name} | _BOY for name in self.boys]

    def fill(self, pattern: str) -> list[str]:
        """Every opening that one pattern can make."""
        fields = sorted({field for _, field, _, _ in string.Formatter().parse(pattern) if field})
        heroes = self.heroes() if _HERO_FIELDS.intersection(fields) else [{}]
        names = [field for field in fields if field not in _HERO_FIELDS]
        fillings = [
            dict(zip(names, values, strict=True)) for values in itertools.product(*(self.slots[name] for name in names))
        ]
        return [pattern.format_map({**hero, **filling}) for hero in heroes for filling in fillings]

    def all_openings(self) -> int:
        """How many different openings this world has."""
        return sum(len(self.fill(pattern)) for pattern in self.patterns)

    def draw(self, rng: random.Random) -> Iterator[str]:
        """Yield every opening once, taking the patterns in turn so that no rich pattern crowds out the rest."""
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
