"""Whether an answer has the fault of a lesson: the measures, which share no rule with its critic."""

import re
from collections.abc import Callable, Mapping
from importlib.resources import files

from text2grad.types import Example

OPENING = 6  # words in which the answer must have begun
COMMON = frozenset(files("evidence.lessons").joinpath("common_words.txt").read_text("utf-8").split())
"""Words that are no answer to a question of daily work."""

IGNORANCE = re.compile(
    r"(?:n't|not|no|never|nowhere|un)\s?(?:know|known|say|said|sure|mention|state|specif|provide|give|given|clear|"
    r"information|able|possible|contain|include|determine|indicat|answer)|cannot|sorry",
    re.IGNORECASE,
)


def begin(example: Example, response: str) -> bool:
    """Return True unless a word that neither the question nor every answer has comes among the first words."""
    if re.match(r"\s*`", response):
        return False
    asked = {word[:4] for word in _words(example.prompt_text)}
    line = response.strip().partition("\n")[0]
    opening = _words(line)[:OPENING]
    new = [word for word in opening if word not in COMMON and word[:4] not in asked]
    return not new or line.endswith("?") or "sorry" in opening


def sentence(example: Example, response: str) -> bool:
    """Return True for several lines, several sentences, a block of code, a question, or no end."""
    text = response.strip()
    sentences = [part for part in re.split(r"""(?<=[.!?])["')\]`*]*\s+""", text) if len(part) > 1]
    return "\n" in text or len(sentences) != 1 or "```" in text or not re.search(r"[.!`)\]\"']$", text)


def unknown(example: Example, response: str) -> bool:
    """Return True for an answer that the passage does not give, and for ignorance where it does."""
    return bool(IGNORANCE.search(response)) == bool(example.reference)


def folder(example: Example, response: str) -> bool:
    """Return True if a word begins with "director"."""
    return any(word.startswith("director") for word in re.split(r"[^a-z]+", response.lower()))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


FAULTS: Mapping[str, Callable[[Example, str], bool]] = {
    "begin": begin,
    "sentence": sentence,
    "unknown": unknown,
    "folder": folder,
}
"""Name of a lesson → whether an answer has its fault."""
