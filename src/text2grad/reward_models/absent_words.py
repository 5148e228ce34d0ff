"""The words of a response that its prompt does not contain, by comparing texts alone.

A summary or an answer must follow from its prompt, so that words that the prompt lacks are suspect. They are features
of a probe (`support`), and evidence that a generative reward model may read in its prompt (`writing.evidence_of`), for
a small language model cannot compare two long texts.
"""

from functools import lru_cache
from itertools import pairwise

from text2grad.feedback import is_letter, words_of


def absent_words(prompt: str, response: str) -> list[tuple[float, float]]:
    """Return for each word of a response whether the prompt lacks it, and the share of its pairs that it lacks.

    Case does not count. Punctuation and other signs are never absent, and pairs go over them.

    Example:
        >>> absent_words("The old dog sleeps.", "The dog, dog barks")
        [(0.0, 1.0), (0.0, 1.0), (0.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    """
    single, pairs = _words_and_pairs(prompt)
    words = words_of(response)
    found = [(0.0, 0.0)] * len(words)
    letters = [number for number, (start, _) in enumerate(words) if is_letter(response[start])]
    texts = [response[slice(*words[number])].casefold() for number in letters]
    lacking = [float(pair not in pairs) for pair in pairwise(texts)]
    for place, (number, text) in enumerate(zip(letters, texts, strict=True)):
        own = lacking[max(0, place - 1) : place + 1]
        found[number] = (float(text not in single), sum(own) / max(len(own), 1))
    return found


@lru_cache(maxsize=64)  # responses to one prompt stand together, and the critique asks again
def _words_and_pairs(prompt: str) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    known = [prompt[start:end].casefold() for start, end in words_of(prompt) if is_letter(prompt[start])]
    return frozenset(known), frozenset(pairwise(known))


def absent_texts(prompt: str, response: str) -> dict[int, str]:
    """Return start → text of the words of a response that the prompt lacks.

    Example:
        >>> absent_texts("The old dog sleeps.", "The cat sleeps.")
        {4: 'cat'}
    """
    words = zip(words_of(response), absent_words(prompt, response), strict=True)
    return {start: response[start:end] for (start, end), (lacks, _) in words if lacks}
