"""A critique of a story → the story without the sentences that hold a fault: the words name no better ones."""

from evidence.tasks.stories.reading import read_story
from text2grad.types import Critique


def refine_story(response: str, critique: Critique) -> str:
    """Return the story without faulty sentences; a story of faulty sentences alone stays as it is."""
    faults = [span for span in critique.spans if span.label == "negative"]
    sentences = read_story("", response).sentences
    ends = [*(sentence.start for sentence in sentences[1:]), len(response)]
    kept = [
        response[sentence.start : end]
        for sentence, end in zip(sentences, ends, strict=True)
        if not any(span.start < sentence.end and sentence.start < span.end for span in faults)
    ]
    return response[: sentences[0].start] + "".join(kept) if kept else response
