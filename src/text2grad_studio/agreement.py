"""How far raters agree who marked the same responses blindly.

The unit is a word of the response, as `words_of` finds it: positive, negative, both or unmarked. Only responses that
both raters finished count, with the marks of the moment when each finished: others' marks become visible then.

both         responses that both raters finished
words        words of these responses
same         share of words with the same label
alpha        Krippendorff's alpha for categories over the words, by the package `krippendorff`; None if chance agreement
             cannot be estimated, since all labels are equal
f1           2 · words marked alike / (words that the first marked + words that the second marked); None without marks
"""

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from text2grad.errors import is_installed
from text2grad.feedback import words_of
from text2grad_studio.marks import Marked

LABEL_OF = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}


def finished(events: Iterable[Mapping[str, Any]]) -> dict[str, Marked]:
    """Return the marks of a rater at the moment when each response was first finished; others are left out."""
    under_way: dict[str, Marked] = {}
    completed: dict[str, Marked] = {}
    for event in events:
        item = event["item"]
        if item in completed:
            continue
        marked = under_way.setdefault(item, Marked(item))
        marked.take(event)
        if marked.state == "done" and marked.opened:  # a person may have removed the line with the text
            completed[item] = marked
    return completed


def word_labels(marked: Marked) -> list[int]:
    """Return the label of each word of a response: 0 unmarked, 1 positive, 2 negative, 3 both."""
    labels = []
    for start, end in words_of(marked.opened["response"]):
        inside = [span["label"] for span in marked.spans.values() if span["start"] < end and start < span["end"]]
        labels.append(LABEL_OF["positive" in inside, "negative" in inside])
    return labels


def agreement(by_rater: Mapping[str, Mapping[str, Marked]]) -> list[dict[str, Any]]:
    """Return the numbers of the module's docstring for each pair of raters with a response in common.

    Args:
        by_rater: the finished marks of each rater, by response.
    """
    pairs = []
    for (rater, mine), (other_rater, theirs) in combinations(sorted(by_rater.items()), 2):
        common = sorted(mine.keys() & theirs.keys())
        if not common:
            continue
        left = [label for item in common for label in word_labels(mine[item])]
        right = [label for item in common for label in word_labels(theirs[item])]
        alike = sum(a == b != 0 for a, b in zip(left, right, strict=True))
        marked = sum(label != 0 for label in (*left, *right))
        pairs.append(
            {
                "raters": [rater, other_rater],
                "both": len(common),
                "words": len(left),
                "same": sum(a == b for a, b in zip(left, right, strict=True)) / max(len(left), 1),
                "alpha": _alpha(left, right),
                "f1": 2 * alike / marked if marked else None,
            }
        )
    return pairs


def _alpha(left: list[int], right: list[int]) -> float | None:
    if len({*left, *right}) < 2 or not is_installed("krippendorff"):
        return None
    import krippendorff

    return float(krippendorff.alpha([left, right], level_of_measurement="nominal"))
