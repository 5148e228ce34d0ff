"""English words: the dictionary of pyspellchecker, and spellings of children's stories that it lacks."""

import re
from functools import cache, lru_cache

from text2grad.errors import require

_DIGIT = re.compile(r"\d")
_DRAWN_OUT = re.compile(r"(.)\1{2,}")
_ENDINGS = ("'s", "'ll", "'d", "'ve", "'re")

# Real words that the dictionary lacks: British spellings, sounds and compounds.
_ALSO_ENGLISH = """
aeroplane aeroplanes apologise apologised centre cheque colour colourful colouring colours dreamt
favourite favourites jewellery mesmerised neighbour neighbourhood neighbours organise organised pyjamas
realise realised recognise recognised
aargh ahh argh atchoo aw aww boing choo choochoo ew eww grr mm ohh oopsie ouchie owie ribbit
tippy tock tsk vroom yay
abc bandaids delish dvd fishies goin grandkids grandmom horsie jumprope legos nana playdate playdates
popsicles rainboots rollerblades scaredy snuggly stepdad stepmom swingset teddybear treehouse treehouses tv
tvs yoyo
"""


@cache
def dictionary() -> frozenset[str]:
    """Return the words of the dictionary in small letters; loaded once, in about 0.2 s.

    Raises:
        ConfigError: if pyspellchecker is not installed.
    """
    require("spellchecker", extra="train", purpose="the story critic")
    from spellchecker import SpellChecker

    return frozenset(SpellChecker(language="en")) | frozenset(_ALSO_ENGLISH.split())


@lru_cache(maxsize=1 << 16)
def is_english(word: str) -> bool:
    """Whether a word exists; case does not count.

    Possessives and contractions are looked up without their ending; three or more of one letter in a row ("sooooo") are
    looked up as one and as two. A word with a digit passes.

    Example:
        >>> [is_english(word) for word in ("zebra", "zebra’s", "sooooo", "3rd", "nearck", "nearck's")]
        [True, True, True, True, False, False]
    """
    known = dictionary()
    word = word.lower().replace("’", "'")
    if word in known or _DIGIT.search(word):
        return True
    stem = next((word.removesuffix(ending) for ending in _ENDINGS if word.endswith(ending)), word)
    shorter = (_DRAWN_OUT.sub(letters, stem) for letters in (r"\1", r"\1\1"))
    return any(variant in known for variant in shorter)
