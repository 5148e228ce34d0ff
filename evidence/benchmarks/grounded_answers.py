"""What a model learns from a critic of grounded answers that asks for an answer (evidence/recipes/qwen-grounded.toml).

    python evidence/benchmarks/grounded_answers.py --runs runs/qwen-grounded/seed-0 runs/qwen-grounded/seed-1

Compares the first with the last evaluation of each run, by the metric that shares nothing with the critic: F1 against
the gold answer, names and numbers that the passage does not have, words in copied runs, and answers that the limit cut.
Intervals: bootstrap over prompts, of the mean over runs. Then the critic's judgement of relevance beside people's: of
the sentences of HaluQuestQA's answers, each with the question's other answer as the gold one, a share is off the topic,
among those that a reader marked as irrelevant and among the others of the same answers.
Writes evidence/results/grounded_answers.json.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evidence.tasks.grounded.answering import ON_TOPIC, asked_of, share_on_topic
from evidence.tasks.grounded.sentences import sentence_ranges
from text2grad.evaluation import Ratio, Statistic, estimate
from text2grad.files import to_json, write_atomically
from text2grad.types import Example

ROOT = Path(__file__).parents[2]
PEOPLE = ROOT.parent / "shared" / "data" / "haluquestqa" / "answers.jsonl"
FIGURES: dict[str, Statistic] = {
    "f1": Ratio(("f1",), ("answers",)),
    "unsupported per answer": Ratio(("unsupported",), ("answers",)),
    "unsupported share": Ratio(("unsupported",), ("names_and_numbers",)),
    "copied share": Ratio(("copied",), ("answers",)),
    "cut": Ratio(("cut",), ("answers",), share=True),
    "words": Ratio(("words",), ("answers",)),
}
RELEVANCE: dict[str, Statistic] = {
    "marked": Ratio(("marked, off topic",), ("marked",), share=True),
    "others": Ratio(("others, off topic",), ("others",), share=True),
}
SHOWN = 10  # answers before and after, the first ones


def counts(path: Path) -> dict[str, Counter[str]]:
    """Return the counts of an evaluation by prompt."""
    return {
        str(response["prompt"]): Counter(response["metrics"]) + Counter(answers=1, cut=int(response["truncated"]))
        for response in json.loads(path.read_bytes())["responses"]
    }


def compared(runs: list[Path]) -> dict[str, Any]:
    """Return the figures before and after, differences, and answers."""
    ends = [sorted((run / "evaluations").glob("*.json")) for run in runs]
    sides = {name: [counts(files[place]) for files in ends] for name, place in (("before", 0), ("after", -1))}
    prompts = sorted(sides["before"][0])
    rows = {
        name: [dict(sum((run[prompt] for run in of_runs), Counter[str]())) for prompt in prompts]
        for name, of_runs in sides.items()
    }
    texts = [
        {r["prompt"]: r["response"] for r in json.loads(ends[0][place].read_bytes())["responses"]} for place in (0, -1)
    ]
    return {
        "steps": [int(files[-1].stem) for files in ends],
        **{name: _figures(rows[name]) for name in rows},
        "difference": {
            name: value._asdict() for name, value in estimate(rows["after"], FIGURES, minus=rows["before"]).items()
        },
        "runs": [
            {
                name: _figures([dict(of_runs[number][prompt]) for prompt in prompts], draws=0)
                for name, of_runs in sides.items()
            }
            for number in range(len(runs))
        ],
        "answers": [
            {"question": q.rpartition("\n")[2], "before": texts[0][q], "after": texts[1][q]} for q in prompts[:SHOWN]
        ],
    }


def _figures(rows: list[dict[str, float]], **options: int) -> dict[str, Any]:
    return {name: value._asdict() for name, value in estimate(rows, FIGURES, **options).items()}


def of_people(path: Path) -> Iterator[Counter[str]]:
    """Yield the counts of each answer in which a reader marked something as irrelevant."""
    for line in path.read_text("utf-8").splitlines():
        record = json.loads(line)
        for own, other in (("answer1", "answer2"), ("answer2", "answer1")):
            marks = [
                (mark["start"], mark["end"])
                for mark in record["annotations"]
                if mark["aspect"] == "irrelevance" and mark["target"] == own and mark["start"] is not None
            ]
            if marks:
                yield sentences_beside(record, own, other, marks)


def sentences_beside(record: Mapping[str, Any], own: str, other: str, marks: list[tuple[int, int]]) -> Counter[str]:
    """Return how many sentences are off the topic: those that lie in a mark for a half or more, and others."""
    meta = {"passage": record[other], "question": record["question"]}
    asked, found = asked_of(Example("", record[other], meta=meta)), Counter[str]()
    for start, end in sentence_ranges(record[own]):
        inside = sum(max(0, min(end, stop) - max(start, begin)) for begin, stop in marks)
        name = "marked" if 2 * inside >= end - start else "others"
        found[name] += 1
        found[f"{name}, off topic"] += share_on_topic(asked, record[own][start:end]) <= ON_TOPIC
    return found


def main() -> None:
    """Compare, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--json", type=Path, default=ROOT / "evidence" / "results" / "grounded_answers.json")
    options = parser.parse_args()
    rows = list(of_people(PEOPLE))
    result = {
        "relevance": {
            "answers": len(rows),
            "sentences": dict(sum(rows, Counter[str]())),
            **{name: value._asdict() for name, value in estimate([dict(row) for row in rows], RELEVANCE).items()},
        },
        **(compared(options.runs) if options.runs else {}),
    }
    print(json.dumps({name: value for name, value in result.items() if name != "answers"}, indent=1))
    write_atomically(options.json, to_json(result, indent=1) + b"\n")


if __name__ == "__main__":
    main()
