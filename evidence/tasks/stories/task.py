"""The critic and the metrics of the stories task.

    opening → a language model trained on TinyStories → response → `StoryCritic` → critique with spans

An invented word and a repeated phrase are negative spans, exactly as long as the evidence that the critique quotes.
Finished sentences without them are positive spans. `reading.py` defines words, sentences and repetitions.
"""

import itertools
import zlib
from collections.abc import Iterable, Sequence

from evidence.tasks.stories.reading import Evidence, Reading, read_story
from evidence.tasks.stories.words import dictionary
from text2grad.types import Critique, Example, Span

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


class StoryCritic:
    """A program critic of stories: invented words and repetitions are negative, clean sentences positive.

    The same example and response always have the same critique, in every process.

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
        """Load the dictionary, so that a missing package is an error before a run starts."""
        dictionary()

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique for each response; the words of the prompt are not judged."""
        return [_critique(example.prompt_text, response) for example, response in zip(examples, responses, strict=True)]


def story_metrics(prompts: Sequence[str], responses: Sequence[str]) -> dict[str, float]:
    """Return the metrics of a set of stories.

    `distinct_2` falls as the number or the length of the stories grows, so compare only sets of one size: 500 stories
    of 160 tokens by the stories260k model have 0.53 before training.

    Args:
        prompts: the opening of each story; its words do not count.
        responses: the stories, at least one.

    Returns:
        invented_share: invented words / all words.
        stories_with_invented: stories with at least one invented word / all stories.
        mean_words: words per story.
        distinct_2: different pairs of neighbouring words / all pairs, over the whole set. Words are
            compared as spelled, without punctuation; no pair spans two stories.
        repeated_phrases: repeated phrases and sentences per story.

    Raises:
        ValueError: if there is no story, or the lengths differ.

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
    """Return the critique of one story."""
    reading = read_story(prompt, response)
    negative = [Span(start, end, "negative") for start, end in _disjoint(reading.invented + reading.repeats)]
    positive = [Span(sentence.start, sentence.end, "positive") for sentence in reading.clean]
    variant = zlib.crc32(f"{prompt}\0{response}".encode("utf-8", "surrogatepass"))
    feedback = [
        *_about_invented(reading, response, variant),
        *dict.fromkeys(_about_repeat(again, response) for again in reading.repeats),
        _summary(reading),
    ]
    return Critique(feedback=" ".join(feedback), spans=tuple(sorted(positive + negative)))


def _disjoint(evidence: Iterable[Evidence]) -> list[tuple[int, int]]:
    """Return the ranges of the evidence without those that overlap an earlier range, or a longer one with its start."""
    kept: list[tuple[int, int]] = []
    for item in sorted(evidence, key=lambda item: (item.start, -item.end)):
        if not kept or item.start >= kept[-1][1]:
            kept.append((item.start, item.end))
    return kept


def _about_invented(reading: Reading, response: str, variant: int) -> list[str]:
    """Return the sentence that names every invented word once; no sentence if there is none."""
    quotes = list(dict.fromkeys(_quoted(response[word.start : word.end]) for word in reading.invented))
    if not quotes:
        return []
    if len(quotes) == 1:
        return [_ONE_INVENTED[variant % len(_ONE_INVENTED)].format(quotes[0])]
    return [_MANY_INVENTED[variant % len(_MANY_INVENTED)].format(", ".join(quotes[:-1]), quotes[-1])]


def _about_repeat(again: Evidence, response: str) -> str:
    """Return the sentence that quotes a repetition; a phrase is quoted together with its first occurrence."""
    if again.times == 0:
        return f"The sentence {_quoted(response[again.start : again.end])} was said before."
    once = _quoted(response[again.shown_from : again.start].rstrip())
    times = "twice" if again.times == 2 else f"{again.times} times"
    return f"{once} is said {times}: {_quoted(response[again.shown_from : again.end])}."


def _summary(reading: Reading) -> str:
    """Return the sentences that count the clean sentences and tell whether the story ends."""
    if not reading.sentences:
        return "There is no story to read."
    finished, clean = sum(sentence.finished for sentence in reading.sentences), len(reading.clean)
    if not finished:
        return "No sentence is finished."
    if clean < finished:
        text = f"{clean or 'None'} of {finished} sentences {'read' if clean > 1 else 'reads'} well."
    else:
        text = f"Every {'' if finished == len(reading.sentences) else 'finished '}sentence reads well."
    return text if reading.sentences[-1].finished else f"{text} The last one is not finished."


def _quoted(text: str) -> str:
    """Return the text between quotation marks that it does not contain."""
    if "'" not in text:
        return f"'{text}'"
    return f'"{text}"' if '"' not in text else f"“{text}”"
