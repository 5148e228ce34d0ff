"""token_importance: weight 1 for tokens of nouns and verbs, 0.2 for other tokens (arXiv 2505.22338, appendix I.1).

The paper found it worse than uniform weights; it exists to repeat this measurement.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import accumulate, pairwise

from text2grad.align.weighting import Weigh
from text2grad.errors import ConfigError
from text2grad.feedback.words import is_letter, whole_words

Tagger = Callable[[list[str]], Sequence[str]]

_CONTENT = ("NN", "VB", "NOUN", "PROPN", "VERB")  # prefixes of tags of Penn Treebank and Universal Dependencies
_REST = 0.2


def token_importance(tagger: Tagger | None = None) -> Weigh:
    """Return a weighting with weight 1 for tokens of nouns and verbs, and 0.2 for other tokens.

    The text of the span's tokens is split into words and punctuation marks; the tagger gets them in order, without the
    rest of the sentence. A token weighs 1 if it contains a part of a noun or a verb.

    Args:
        tagger: a function from n words to n part-of-speech tags of Penn Treebank (NN, VBD, ...) or Universal
            Dependencies (NOUN, VERB, ...). None uses nltk's English tagger.

    Raises:
        ConfigError: if no tagger is given and nltk or its data is not installed; the weighting raises it if the tagger
            does not return one tag per word.

    Example:
        >>> weigh = token_importance(lambda words: ["DT", "NN"])
        >>> weigh(["the", " ci", "ty"])
        [0.2, 1.0, 1.0]
    """
    tag = tagger or _nltk_tagger()

    def weigh(texts: list[str]) -> list[float]:
        text = "".join(texts)
        words = _words(text)
        tags = tag([text[start:end] for start, end in words])
        if len(tags) != len(words):
            raise ConfigError(f"the tagger gave {len(tags)} tags for {len(words)} words; give one tag per word")
        content = [word for word, name in zip(words, tags, strict=True) if name.startswith(_CONTENT)]
        edges = pairwise(accumulate(map(len, texts), initial=0))
        # A token without text shares the character before it.
        return [1.0 if _meets(min(start, end - 1), end, content) else _REST for start, end in edges]

    return weigh


def _words(text: str) -> list[tuple[int, int]]:
    """Return the ranges of words, with apostrophes between their letters ("don't"), and of punctuation marks."""
    words: list[tuple[int, int]] = []
    for start, end in whole_words(text):
        if (
            len(words) > 1
            and words[-2][1] == words[-1][0] == start - 1
            and text[start - 1] in "'’"
            and is_letter(text[words[-2][0]])
            and is_letter(text[start])
        ):
            words[-2:] = [(words[-2][0], end)]
        else:
            words.append((start, end))
    return words


def _meets(start: int, end: int, ranges: list[tuple[int, int]]) -> bool:
    """Return True if [start, end) overlaps with one of the ranges."""
    return any(low < end and start < high for low, high in ranges)


def _nltk_tagger() -> Tagger:
    """Return nltk's English tagger after a trial run."""
    try:
        tag = import_module("nltk").pos_tag
        tag(["word"])
    except (ImportError, LookupError) as error:
        raise ConfigError(
            'weighting "token_importance" needs nltk and its English tagger: `pip install nltk` and '
            "`python -m nltk.downloader averaged_perceptron_tagger_eng`, or a tagger of your own: "
            "weighting=token_importance(tagger)"
        ) from error
    return lambda words: [name for _, name in tag(words)]
