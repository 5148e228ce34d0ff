"""Right answers to the prompts of the task, and answers with faults: responses for the annotations of a reward model.

The samples of an untrained model hold little to praise, and few of the faults that a policy falls into later, such as
a sentence said again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random

from evidence.tasks.grounded.passage import passage_and_question
from evidence.tasks.grounded.reading import CONTENT_WORDS, closest_sentence, names_and_numbers, read_source, words_of
from evidence.tasks.grounded.sentences import sentence_ranges
from text2grad.types import Example


def right_answers(examples: Iterable[Example], cut: Callable[[str], str] = str) -> Iterator[Example]:
    """Yield each example with up to three responses, in `meta["response"]`; equal ones once.

    The responses are the gold answer, the sentence of the passage that shares most words with the question together
    with the sentence after it, and the passage's first sentence. `cut` shortens each to what the policy can say.

    Raises:
        DataError: if an example has no passage.

    Example:
        >>> passage = "It was built in 1185. It has 22 arches. Two of them fell."
        >>> example = Example("...", "22.", meta={"id": "7", "passage": passage, "question": "How many arches?"})
        >>> [(one.meta["id"], one.meta["response"]) for one in right_answers([example])]
        [('7 gold', '22.'), ('7 closest', 'It has 22 arches. Two of them fell.'), ('7 first', 'It was built in 1185.')]
    """
    for example in examples:
        sentences, at = _sentences(example)
        found = {"gold": example.reference or "", "closest": " ".join(sentences[at : at + 2]), "first": sentences[0]}
        yield from _with_responses(example, found, cut)


def altered_answers(
    examples: Sequence[Example], cut: Callable[[str], str] = str, *, seed: int = 0
) -> Iterator[Example]:
    """Yield each example with up to three responses that are partly wrong, in `meta["response"]`; equal ones once.

    Each is made from the passage's sentences that `right_answers` takes: half of their names and numbers, and at least
    one, replaced by those of another example's passage (`swapped`); a sentence of another passage before or after them
    (`foreign`); and the passage's shortest sentences said again and again (`repeated`). With a single example, or where
    no name or number can be replaced, only the others are made.

    Args:
        examples: prompts with passages.
        cut: shortens a response to what the policy can say.
        seed: of the choices; those of an example depend on its place and on the other examples, too.

    Raises:
        DataError: if an example has no passage.

    Example:
        >>> examples = [
        ...     Example("...", meta={"id": "7", "passage": "It was built in 1185.", "question": "When was it built?"}),
        ...     Example("...", meta={"id": "8", "passage": "The tower has 120 steps.", "question": "How many steps?"}),
        ... ]
        >>> [one.meta["response"] for one in altered_answers(examples)][:3:2]
        ['It was built in 120.', 'It was built in 1185. It was built in 1185. It was built in 1185.']
    """
    for place, example in enumerate(examples):
        rng = Random(f"{seed} {place}")
        sentences, at = _sentences(example)
        right, found = cut(" ".join(sentences[at : at + 2])), dict[str, str]()
        if len(examples) > 1:
            other = examples[(place + rng.randrange(1, len(examples))) % len(examples)]
            found["swapped"] = _swapped(right, example, other, rng)
            both = [sentences[at], rng.choice(_sentences(other)[0])]
            found["foreign"] = " ".join(rng.sample(both, 2))
        blamed = [one for one in sentences if len(words_of(one)) > CONTENT_WORDS]  # by the critic, if said again
        found["repeated"] = " ".join(sorted(blamed, key=len)[: rng.choice((1, 2))] * 3)
        yield from _with_responses(example, found, cut)


def _sentences(example: Example) -> tuple[list[str], int]:
    """Return the sentences of a passage, and the place of the one that shares most words with the question."""
    passage, question = passage_and_question(example)
    sentences = [passage[start:end] for start, end in sentence_ranges(passage)]
    closest = closest_sentence(read_source(passage, question), question, 0, len(question))
    return sentences, sentences.index(closest) if closest else 0


def _with_responses(example: Example, found: dict[str, str], cut: Callable[[str], str]) -> Iterator[Example]:
    """Yield an example with each of the named responses; empty ones are left out, and equal ones yielded once."""
    said = set[str]()
    for name, whole in found.items():
        if (text := cut(whole)) and text not in said:
            said.add(text)
            id_ = f"{example.meta.get('id', '')} {name}"
            yield replace(example, meta={**example.meta, "id": id_, "response": text})


def _swapped(text: str, example: Example, other: Example, rng: Random) -> str:
    """Return a text with half of its names and numbers from another passage; empty if none can be replaced."""
    here, there = passage_and_question(example), passage_and_question(other)
    known, source = " ".join(here).casefold(), read_source(*there)
    foreign = [there[0][start:end] for _, start, end in names_and_numbers(source, there[0])]
    foreign = [one for one in dict.fromkeys(foreign) if one.casefold() not in known]
    pieces, before = names_and_numbers(read_source(*here), text), text
    for _, start, end in sorted(rng.sample(pieces, (len(pieces) + 1) // 2), key=lambda one: one.start, reverse=True):
        alike = [one for one in foreign if _kind(one) == _kind(text[start:end])]
        alike = alike or [one for one in foreign if one[0].isdigit() == text[start].isdigit()]
        if alike:
            text = text[:start] + rng.choice(alike) + text[end:]
    return text if text != before else ""


def _kind(fact: str) -> tuple[bool, int]:
    """Return whether a fact is a number, and its number of digits or words: years replace years."""
    number = fact[0].isdigit()
    return number, len(fact) if number else len(fact.split())
