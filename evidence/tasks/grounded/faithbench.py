"""Marks of people in FaithBench (arXiv 2410.13210), `python -m evidence feedback import faithbench`.

Parts of summaries that their source does not support, each with a reason. One annotation per annotator; a summary in
which nobody marked anything has one without spans.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from text2grad.feedback.sources.base import Draft, Item, Meaning, Row, Source, quoted

PROMPT = "Summarize the passage in one or two sentences. Use only what the passage says.\n\nPassage: {}"
LABELS: Mapping[str, Meaning] = {"unwanted": "negative", "benign": "ignore", "questionable": "ignore"}


def read_faithbench(row: Row) -> Iterator[Item]:
    """Yield the annotation of each annotator of one summary.

    A mark has labels, "Unwanted" (or a kind of it, "Unwanted.Intrinsic" or "Unwanted.Extrinsic"), "Questionable" or
    "Benign"; it is negative if one of them is. `options.labels` gives another meaning to a label or to a kind of it.
    """
    source, summary = row.text("source"), row.text("summary")
    prompt = PROMPT.format(source.strip())
    marks = row.listed("annotations")
    if not all(isinstance(mark, dict) and isinstance(mark.get("labels"), list) for mark in marks):
        raise row.bad('"annotations" must be a list of objects with "labels"')
    if not marks:
        yield Draft(prompt, summary).item()
    for annotator in sorted({str(mark.get("annotator")) for mark in marks}):
        draft = Draft(prompt, summary)
        for mark in (mark for mark in marks if str(mark.get("annotator")) == annotator):
            labels = [str(label) for label in mark["labels"]]
            place = row.span(mark.get("start"), mark.get("end"), "negative", summary)
            quote, note = quoted(summary[place.start : place.end]), str(mark.get("note") or "").strip()
            told = f"{', '.join(labels)}: {quote} {note}".strip()
            wider = {label.partition(".")[0] for label in labels if "." in label}
            meanings = {_meaning_of(row, label) for label in labels if label not in wider}
            if meanings <= {"ignore"}:
                draft.lose("marks that are neither positive nor negative by their labels", told)
                continue
            draft.blame(
                told,
                replace(
                    place,
                    label="negative" if "negative" in meanings else "positive",
                    category=", ".join(label for label in labels if label not in wider),
                    reason=note or None,
                    rater=annotator,
                ),
            )
        yield draft.item()


def _meaning_of(row: Row, label: str) -> Meaning:
    wider = label.partition(".")[0]
    row.options.met.update((label, wider))
    given = {name.lower(): meaning for name, meaning in row.options.labels.items()}
    for meanings in (given, LABELS):
        for name in (label.lower(), wider.lower()):
            if name in meanings:
                meaning: Meaning = meanings[name]
                return meaning
    raise row.bad(f"label {label!r} has no known meaning; give it one, such as --label {label}=negative")


SOURCE = Source("FaithBench: unsupported parts of summaries, with reasons", read_faithbench, labels=True)
