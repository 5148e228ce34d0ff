"""Right answers to the prompts of the task: responses from which a reward model learns to praise."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from text2grad.tasks.grounded.passage import passage_and_question
from text2grad.tasks.grounded.reading import closest_sentence, read_source
from text2grad.tasks.grounded.sentences import sentence_ranges
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
        passage, question = passage_and_question(example)
        sentences = [passage[start:end] for start, end in sentence_ranges(passage)]
        closest = closest_sentence(read_source(passage, question), question, 0, len(question))
        at = sentences.index(closest) if closest else 0
        found = {"gold": example.reference, "closest": " ".join(sentences[at : at + 2]), "first": sentences[0]}
        said = set[str]()
        for name, text in found.items():
            if (text := cut(text or "")) and text not in said:
                said.add(text)
                id_ = f"{example.meta.get('id', '')} {name}"
                yield replace(example, meta={**example.meta, "id": id_, "response": text})
