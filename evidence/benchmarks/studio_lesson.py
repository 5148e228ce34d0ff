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
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evidence.tasks.stories.openings import story_openings
from evidence.tasks.stories.reading import read_story
from evidence.tasks.stories.task import story_metrics
from text2grad.config import RolloutConfig
from text2grad.feedback import Annotation, read_critique_records, write_annotations
from text2grad.files import to_json
from text2grad.models import load_policy, load_tokenizer, with_lora
from text2grad.runs import sample_rollouts
from text2grad.types import Critique, Rollout, Span
from text2grad_studio.teaching import Correction, Lesson, settings_from, teach

TOKENS, STOP = 160, [1]  # the recipe's: this model ends a story with its beginning-of-sequence


def sampled(policy: Any, tokenizer: Any, split: Any, number: int, seed: int) -> list[Rollout]:
    """Return stories to the first openings of a split."""
    rollout = RolloutConfig(max_new_tokens=TOKENS, eos_token_ids=tuple(STOP))
    openings = story_openings(split, number, seed=0)
    return sample_rollouts(policy, tokenizer, openings, rollout, prompt_format="plain", seed=seed)


def simulated(stories: list[Rollout], number: int) -> list[Correction]:
    """Return corrections of the first stories with an invented word."""
    found = []
    for story in stories:
        words = read_story(story.example.prompt_text, story.response).invented
        if words and len(found) < number:
            spans = [Span(word.start, word.end, "negative") for word in words]
            found.append(Correction("", story.example.prompt_text, story.response, story.response_ids, spans))
    return found


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
    parser.add_argument("--lesson", type=json.loads, default={}, help='settings as JSON, such as {"target": 2}')
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lesson = settings_from(Lesson(), args.lesson, name="a lesson")
    base, tokenizer = load_policy(args.model).eval(), load_tokenizer(args.model)
    if args.marks:
        records = read_critique_records(args.marks)
        given = [Correction("", one.prompt, one.response, one.ids, one.critique.spans) for one in records]
        given = [one for one in given if one.spans]
    else:
        given = simulated(sampled(base, tokenizer, "train", 4 * args.simulated, seed=1 + args.seed), args.simulated)
    if args.save_marks:
        marks = [Annotation(one.prompt, one.response, Critique("", tuple(one.spans))) for one in given]
        write_annotations(args.save_marks, marks)
    before = sampled(base, tokenizer, "held_out", args.held_out, seed=7 + args.seed)
    torch.manual_seed(lesson.seed)
    policy = with_lora(base, r=lesson.rank, alpha=2 * lesson.rank, targets="all-linear")
    start = time.perf_counter()
    taught = teach(policy, tokenizer, given, lesson, prompt_format="plain")
    seconds = time.perf_counter() - start
    after = sampled(policy, tokenizer, "held_out", args.held_out, seed=7 + args.seed)
    texts = {
        "before": ([one.example.prompt_text for one in before], [one.response for one in before]),
        "after": ([one.example.prompt_text for one in after], [one.response for one in after]),
    }
    whole = {
        "by": str(args.marks) if args.marks else "simulated by the dictionary",
        "responses": len(given),
        "spans": sum(len(one.spans) for one in given),
        "lesson_s": round(seconds, 1),
        "rounds": taught.rounds,
        "nats": {"poor": taught.negative, "good": taught.positive, "others": taught.unmarked, "kl": taught.kl},
        **{name: story_metrics(*pair) for name, pair in texts.items()},
        "invented_words_fewer_by": reduction(counts(before), counts(after)),
    }
    print(json.dumps(whole, indent=2))
    if args.out:
        args.out.write_bytes(to_json(whole, indent=2))


if __name__ == "__main__":
    main()
