"""The program critic of grounded answers beside what people marked, for evidence/docs/grounded.md.

    python evidence/benchmarks/grounded_critic.py

The critic reads each passage of qa_feedback and FaithBench as an answer from itself: every blame is wrong. Then it
reads the summaries of FaithBench beside their texts: of the names and numbers that it calls absent, and of the pieces
that it praises, a share overlaps a mark "Unwanted" of at least one person. Intervals: bootstrap over texts.
Writes evidence/results/grounded_critic.json.
"""

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path

from evidence.tasks.grounded.passages import read_passages
from evidence.tasks.grounded.reading import read_answer, read_source
from text2grad.evaluation.intervals import Ratio, Statistic, estimate
from text2grad.files import to_json, write_atomically

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
FILES = {"qa_feedback": DATA / "qa_feedback" / "feedback.json", "faithbench": DATA / "faithbench" / "samples.jsonl"}
KINDS = {"absent": "called absent", "right": "praised"}
FIGURES: dict[str, Statistic] = {name: Ratio((f"{kind}, marked",), (kind,)) for kind, name in KINDS.items()}


def blamed_in_itself() -> dict[str, int]:
    """Return the numbers of passages, and of those in which a sentence of the passage is blamed."""
    found = Counter[str]()
    for name, path in FILES.items():
        for one in read_passages(path, format=name).kept:
            source = read_source(one.text, one.question)
            kinds = {piece.kind for _, pieces in read_answer(source, one.text) for piece in pieces}
            found += Counter(passages=1, blamed=int(bool(kinds - {"right", "again"})))
    return {"passages": found["passages"], "blamed": found["blamed"]}


def beside_people() -> dict[str, Counter[str]]:
    """Return by text the pieces of its summaries, by verdict of the critic and whether a person marked them."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for line in FILES["faithbench"].read_text("utf-8").splitlines():
        record = json.loads(line)
        marks = [
            (mark["start"], mark["end"])
            for mark in record["annotations"]
            if any(str(label).startswith("Unwanted") for label in mark["labels"])
        ]
        counts = found[record["source"]]
        counts["summaries"] += 1
        for _, pieces in read_answer(read_source(record["source"], ""), record["summary"]):
            for piece in pieces:
                if piece.kind in KINDS:
                    counts[piece.kind] += 1
                    counts[f"{piece.kind}, marked"] += any(a < piece.end and piece.start < b for a, b in marks)
    return found


def main() -> None:
    """Count, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "evidence" / "results" / "grounded_critic.json")
    options = parser.parse_args()
    of_texts = beside_people()
    total: Counter[str] = sum(of_texts.values(), Counter())
    result = {
        "of themselves": blamed_in_itself(),
        "texts": len(of_texts),
        "summaries": total["summaries"],
        "pieces": {name: total[kind] for kind, name in KINDS.items()},
        "marked": {name: one._asdict() for name, one in estimate(list(of_texts.values()), FIGURES).items()},
    }
    print(json.dumps(result, indent=1))
    write_atomically(options.json, to_json(result, indent=1) + b"\n")


if __name__ == "__main__":
    main()
