"""The story task: openings for a model that tells children's stories, a critic that reads them, and metrics.

openings -> a language model trained on TinyStories -> responses -> `StoryCritic` -> critiques with spans

`StoryCritic` writes plain sentences and quotes its evidence. A word that does not exist and a phrase said twice
are negative spans, exactly as long as the evidence; finished sentences free of both are positive spans. What
counts as a word, a sentence or a repetition is decided in `_story_reading`.
"""

import itertools
import random
import zlib
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from text2grad.errors import ConfigError
from text2grad.tasks.stories.openings import HELD_OUT, TRAIN
from text2grad.tasks.stories.reading import Evidence, Reading, read_story
from text2grad.tasks.stories.words import dictionary
from text2grad.types import Critique, Example, Span

Split = Literal["train", "held_out"]
_WORLDS = {"train": TRAIN, "held_out": HELD_OUT}

_ONE_INVENTED = (
    "{0} is not an English word.",
    "The word {0} is invented.",
    "{0} does not exist in English.",
)
_MANY_INVENTED = (
    "{0} and {1} are not English words.",
    "The words {0} and {1} are invented.",
    "{0} and {1} do not exist in English.",
)


def story_openings(split: Split, n: int, seed: int) -> list[Example]:
    """Return n different openings of one split, in an order that the seed decides.

    The two splits share no name, no pattern and no two words in a row.

    Args:
        split: `train` or `held_out`.
        n: how many; there are about 9,000 in `train` and 3,000 in `held_out`.
        seed: the same seed gives the same openings, whatever n: a smaller n gives the first of them.

    Raises:
        ConfigError: if there is no such split, or it has fewer than n openings.

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
        raise ConfigError(f"cannot draw {n} different {split} openings: there are {world.all_openings()}")
    return [Example(prompt=text) for text in itertools.islice(world.draw(random.Random(seed)), n)]


class StoryCritic:
    """A critic of stories that needs no model: invented words and repetitions are poor, clean sentences good.

    The same example and response always get the same critique, in every process.

    Raises:
        ConfigError: on construction, if pyspellchecker is not installed.

    Example:
        >>> critic = StoryCritic()
        >>> story = " saw a nearck. It was very big."
        >>> critique = critic([Example(prompt="One day, Lily")], [story])[0]
        >>> critique.feedback
        "'nearck' is not an English word. 1 of 2 sentences reads well."
        >>> [(story[span.start : span.end], span.label) for span in critique.spans]
        [('nearck', 'negative'), ('It was very big.', 'positive')]
    """

    def __init__(self) -> None:
        """Load the dictionary now, so that what is missing is missed before a run starts."""
        dictionary()

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response; the prompt's own words are not judged."""
        return [_critique(example.prompt_text, response) for example, response in zip(examples, responses, strict=True)]


def story_metrics(prompts: Sequence[str], responses: Sequence[str]) -> dict[str, float]:
    """Return how well a set of stories is told.

    `distinct_2` falls as the set or its stories grow, so compare only sets of one size: 500 stories of
    160 tokens by the untouched stories260k model have 0.53.

    Args:
        prompts: what each story continues; its own words do not count.
        responses: the stories, at least one.

    Returns:
        invented_share: words that do not exist / all words.
        stories_with_invented: share of the stories with at least one of those.
        mean_words: words per story.
        distinct_2: different pairs of neighbouring words / all such pairs, over the whole set. Words are
            taken as they are spelled, without punctuation; no pair spans two stories.
        repeated_phrases: phrases and sentences said again, per story.

    Raises:
        ValueError: if there is no story, or not one prompt for each.

    Example:
        >>> story_metrics(["One day, Tom"], [" saw a blorp. He saw a big big dog."])["invented_share"]
        0.1111111111111111
    """
    readings = [read_story(prompt, text) for prompt, text in zip(prompts, responses, strict=True)]
    if not readings:
        raise ValueError("story_metrics needs at least one story")
    words = sum(len(reading.words) for reading in readings)
    pairs = [pair for reading in readings for pair in itertools.pairwise(reading.words)]
    return {
        "invented_share": sum(len(reading.invented) for reading in readings) / max(words, 1),
        "stories_with_invented": sum(bool(reading.invented) for reading in readings) / len(readings),
        "mean_words": words / len(readings),
        "distinct_2": len(set(pairs)) / max(len(pairs), 1),
        "repeated_phrases": sum(len(reading.repeats) for reading in readings) / len(readings),
    }


def _critique(prompt: str, response: str) -> Critique:
    """Read one story and say what was found."""
    reading = read_story(prompt, response)
    poor = [Span(start, end, "negative") for start, end in _disjoint(reading.invented + reading.repeats)]
    good = [Span(sentence.start, sentence.end, "positive") for sentence in reading.clean]
    variant = zlib.crc32(f"{prompt}\0{response}".encode("utf-8", "surrogatepass"))
    remarks = [
        *_about_invented(reading, response, variant),
        *dict.fromkeys(_about_repeat(again, response) for again in reading.repeats),
        _summary(reading),
    ]
    return Critique(feedback=" ".join(remarks), spans=tuple(sorted(good + poor)))


def _disjoint(evidence: Iterable[Evidence]) -> list[tuple[int, int]]:
    """Return the ranges of the evidence, without those that overlap a longer or an earlier one."""
    kept: list[tuple[int, int]] = []
    for item in sorted(evidence, key=lambda item: (item.start, -item.end)):
        if not kept or item.start >= kept[-1][1]:
            kept.append((item.start, item.end))
    return kept


def _about_invented(reading: Reading, response: str, variant: int) -> list[str]:
    """Name every invented word once."""
    quotes = list(dict.fromkeys(_quoted(response[word.start : word.end]) for word in reading.invented))
    if not quotes:
        return []
    if len(quotes) == 1:
        return [_ONE_INVENTED[variant % len(_ONE_INVENTED)].format(quotes[0])]
    return [_MANY_INVENTED[variant % len(_MANY_INVENTED)].format(", ".join(quotes[:-1]), quotes[-1])]


def _about_repeat(again: Evidence, response: str) -> str:
    """Quote what is said again; a phrase together with the first time it is said."""
    if again.times == 0:
        return f"The sentence {_quoted(response[again.start : again.end])} was said before."
    once = _quoted(response[again.shown_from : again.start].rstrip())
    times = "twice" if again.times == 2 else f"{again.times} times"
    return f"{once} is said {times}: {_quoted(response[again.shown_from : again.end])}."


def _summary(reading: Reading) -> str:
    """Say how much of the story is good, and whether it ends."""
    if not reading.sentences:
        return "There is no story to read."
    finished, clean = sum(sentence.finished for sentence in reading.sentences), len(reading.clean)
    if not finished:
        return "No sentence is finished."
    if clean < finished:
        said = f"{clean or 'None'} of {finished} sentences {'read' if clean > 1 else 'reads'} well."
    else:
        said = f"Every {'' if finished == len(reading.sentences) else 'finished '}sentence reads well."
    return said if reading.sentences[-1].finished else f"{said} The last one is not finished."


def _quoted(text: str) -> str:
    """Put quotation marks around text that it does not hold itself."""
    if "'" not in text:
        return f"'{text}'"
    return f'"{text}"' if '"' not in text else f"“{text}”"
