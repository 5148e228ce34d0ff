"""The passage and the question of an example, as data: all that critic and metric share."""

from text2grad.errors import DataError
from text2grad.types import Example


def passage_and_question(example: Example) -> tuple[str, str]:
    """Return the passage and the question of an example; an empty question for a summary.

    Raises:
        DataError: if there is no passage.
    """
    passage, question = example.meta.get("passage"), example.meta.get("question") or ""
    if not isinstance(passage, str) or not isinstance(question, str) or not passage.strip():
        raise DataError(
            f'the example {example.prompt_text[:60]!r} has no text "passage" in its meta; `python -m evidence '
            "prepare-grounded` writes files with it"
        )
    return passage, question
