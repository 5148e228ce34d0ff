"""How far do corrections reach? A lesson of the studio on marked stories, and the fault on openings that nobody marked.

    python evidence/benchmarks/studio_lesson.py marks.jsonl --model ../shared/models/stories260k
    python evidence/benchmarks/studio_lesson.py --simulated 30 --save-marks FILE --model ../shared/models/stories260k

`marks.jsonl` is the download of *My marks*. `--simulated` puts the dictionary of the story critic in the place of a
person: it marks the invented words of the first stories with one as poor, and nothing else; such numbers say how
lessons work, and nothing about people. The policy before and after the lesson continues the same held-out openings
with the same random numbers. Intervals are 95 % bootstrap intervals over openings.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence.tasks.stories.openings import story_openings
from evidence.tasks.stories.reading import read_story
from evidence.tasks.stories.task import story_metrics
from text2grad.config import RolloutConfig
from text2grad.feedback import Annotation, annotation_to_json, read_annotations, write_annotations
from text2grad.files import to_json
from text2grad.models import load_policy, load_tokenizer
from text2grad.runs.evaluate_policy import sample_rollouts
from text2grad.types import Critique, Rollout, Span
from text2grad_studio.worker import Worker

TOKENS, STOP = 160, [1]  # the recipe's: this model ends a story with its beginning-of-sequence


def sampled(policy: Any, tokenizer: Any, split: Any, number: int, seed: int) -> list[Rollout]:
    """Return stories to the first openings of a split."""
    rollout = RolloutConfig(max_new_tokens=TOKENS, eos_token_ids=tuple(STOP))
    openings = story_openings(split, number, seed=0)
    return sample_rollouts(policy, tokenizer, openings, rollout, prompt_format="plain", seed=seed)


def simulated(stories: list[Rollout], number: int) -> list[Annotation]:
    """Return the first stories with an invented word, and marks on these words."""
    marked = []
    for story in stories:
        words = read_story(story.example.prompt_text, story.response).invented
        if words and len(marked) < number:
            spans = tuple(Span(word.start, word.end, "negative") for word in words)
            marked.append(Annotation(story.example.prompt_text, story.response, Critique("", spans)))
    return marked


def counts(stories: list[Rollout]) -> np.ndarray[Any, Any]:
    """Return invented words and words of each story, [N, 2]."""
    readings = [read_story(one.example.prompt_text, one.response) for one in stories]
    return np.array([[len(one.invented), len(one.words)] for one in readings], dtype=float)


def reduction(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any], *, draws: int = 2000) -> list[float]:
    """Return 1 − share after / share before, and its 95 % bootstrap interval over openings."""
    rng = np.random.default_rng(0)

    def value(rows: Any) -> float:
        old, new = before[rows].sum(0), after[rows].sum(0)
        return float(1 - (new[0] / new[1]) / (old[0] / old[1]))

    found = [value(rng.integers(0, len(before), len(before))) for _ in range(draws)]
    return [round(x, 3) for x in (value(slice(None)), *np.quantile(found, (0.025, 0.975)))]


def main() -> None:
    """Teach, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("marks", nargs="?", type=Path)
    parser.add_argument("--simulated", type=int, default=0)
    parser.add_argument("--model", default="../shared/models/stories260k")
    parser.add_argument("--held-out", type=int, default=500)
    parser.add_argument("--save-marks", type=Path, help="file for the simulated marks, as the studio exports them")
    parser.add_argument("--seed", type=int, default=0, help="of the stories, before and after")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    base, tokenizer = load_policy(args.model).eval(), load_tokenizer(args.model)
    if args.marks:
        given = [own for own in read_annotations(args.marks, to_encode=True) if own.critique.spans]
    else:
        given = simulated(sampled(base, tokenizer, "train", 4 * args.simulated, seed=1 + args.seed), args.simulated)
    if args.save_marks:
        write_annotations(args.save_marks, given)
    before = sampled(base, tokenizer, "held_out", args.held_out, seed=7 + args.seed)
    sampling = {"max_new_tokens": TOKENS, "temperature": 1.0, "eos_token_ids": STOP, "prompt_format": "plain"}
    request = {"kind": "teach", "policy": {"path": args.model, "sampling": sampling}, "parent": 0}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as versions:
        request |= {"versions": versions, "annotations": list(map(annotation_to_json, given))}
        taught = Worker().answer(request, lambda **_: None)
        seconds = time.perf_counter() - start
        policy = load_policy(f"{versions}/0001").eval()
    after = sampled(policy, tokenizer, "held_out", args.held_out, seed=7 + args.seed)
    texts = {
        "before": ([one.example.prompt_text for one in before], [one.response for one in before]),
        "after": ([one.example.prompt_text for one in after], [one.response for one in after]),
    }
    whole = {
        "by": str(args.marks) if args.marks else "simulated by the dictionary",
        "responses": len(given),
        "spans": taught["spans"],
        "lesson_s": round(seconds, 1),
        "steps": taught["steps"],
        "nats": {name: taught[name] for name in ("negative", "positive", "unmarked", "kl")},
        **{name: story_metrics(*pair) for name, pair in texts.items()},
        "invented_words_fewer_by": reduction(counts(before), counts(after)),
    }
    print(json.dumps(whole, indent=2))
    if args.out:
        args.out.write_bytes(to_json(whole, indent=2))


if __name__ == "__main__":
    main()
