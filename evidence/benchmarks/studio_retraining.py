"""Does a retraining in the studio generalise? A rater's rule, a few marks, and held-out prompts that nobody marked.

    python evidence/benchmarks/studio_retraining.py runs/quickstart/summarization/seed-0/text2grad --out retraining.json

The rater does not want a phrase: it is marked as poor, without words and with nothing else, in the first `--marks`
responses of the run's last steps that contain it. A fact of the post may be such a phrase, so the rule can contradict
the annotations that the reward model had. Measured on held-out prompts: how often the retrained reward model marks the
phrase as poor; F1 of its other labelled characters, beside the reward model before; how often the policy writes it.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from text2grad.config import Recipe, RolloutConfig, latest_checkpoint, recipe_of_run
from text2grad.feedback import Annotation, annotation_to_json
from text2grad.files import to_json, write_records
from text2grad.models import load_policy, load_tokenizer, with_lora
from text2grad.reward_models import GenerativeRewardModel
from text2grad.runs import read_judged, refreshed_critic, run_examples
from text2grad.runs.evaluate_policy import sample_rollouts
from text2grad.types import Critique, Rollout, Span
from text2grad_studio.retraining import Retraining, retrain

PHRASES = ("because of", "on Friday", "Sunday")


class Judged(NamedTuple):
    """How a reward model judges: the share of phrases that it marks as poor, and the label of each character."""

    poor: float
    labels: list[dict[int, str]]


def places(response: str, phrase: str) -> range:
    """Return the characters of a phrase in a response; empty without it."""
    at = response.find(phrase)
    return range(at, at + len(phrase)) if at >= 0 else range(0)


def marks_of(run: Path, phrase: str, number: int) -> list[dict[str, Any]]:
    """Return the marked responses, the last first."""
    files = sorted((run / "rollouts").glob("*.jsonl"))
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    found = [one for one in reversed(records) if phrase in one["response"]][:number]
    spans = [Span(at.start, at.stop, "negative") for at in (places(one["response"], phrase) for one in found)]
    return [
        annotation_to_json(Annotation(own["prompt"], own["response"], Critique("", (span,)))) | {"ids": own["ids"]}
        for own, span in zip(found, spans, strict=True)
    ]


def judged(critic: GenerativeRewardModel, rollouts: Sequence[Rollout], phrase: str) -> Judged:
    """Let a reward model judge responses."""
    critiques = critic([one.example for one in rollouts], [one.response for one in rollouts])
    labels = [{at: span.label for span in one.spans for at in range(span.start, span.end)} for one in critiques]
    spots = [places(one.response, phrase) for one in rollouts]
    poor = [
        all(found.get(at) == "negative" for at in spot if not one.response[at].isspace())
        for found, spot, one in zip(labels, spots, rollouts, strict=True)
        if spot
    ]
    return Judged(sum(poor) / max(len(poor), 1), labels)


def agreement(before: Judged, after: Judged, rollouts: Sequence[Rollout], phrase: str) -> float:
    """Return F1 of labelled characters outside the phrase, the reward model after against the one before."""
    same = labelled = 0
    for old, new, one in zip(before.labels, after.labels, rollouts, strict=True):
        others = set(range(len(one.response))) - set(places(one.response, phrase))
        same += sum(old.get(at) is not None and old.get(at) == new.get(at) for at in others)
        labelled += sum((at in old) + (at in new) for at in others)
    return 2 * same / max(labelled, 1)


def measure(run: Path, recipe: Recipe, phrase: str, number: int, held_out: int, settings: Retraining) -> dict[str, Any]:
    """Retrain on the marks of a phrase and measure."""
    checkpoint = latest_checkpoint(run / "checkpoints")
    base = str(checkpoint / "policy")
    tokenizer, policy = load_tokenizer(base), load_policy(base, dtype="float32").eval()
    torch.manual_seed(settings.seed)
    policy = with_lora(policy, r=settings.rank, alpha=2 * settings.rank, targets="all-linear")
    rollout = RolloutConfig(max_new_tokens=recipe.rollout.max_new_tokens)
    examples = run_examples(recipe).held_out[:held_out]

    def answers() -> list[Rollout]:
        prompt_format = recipe.model.prompt_format
        return sample_rollouts(policy, tokenizer, examples, rollout, prompt_format=prompt_format, seed=settings.seed)

    written = answers()
    critic = GenerativeRewardModel.load(refreshed_critic(run, checkpoint) or recipe.critic.model)
    old = judged(critic, written, phrase)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        write_records(Path(scratch) / "marks.jsonl", marks := marks_of(run, phrase, number))
        answers_marked = read_judged(Path(scratch) / "marks.jsonl", policy, tokenizer, recipe)
        found = retrain(
            policy, tokenizer, base, str(run), answers_marked, settings, earlier=None, scratch=Path(scratch)
        )
        seconds = time.perf_counter() - start
        new = judged(GenerativeRewardModel.load(found.reward_model), written, phrase)
    shares = [sum(phrase in one.response for one in part) / len(part) for part in (written, answers())]
    return {
        "phrase": phrase,
        "seed": settings.seed,
        "marks": len(marks),
        "seconds": round(seconds, 1),
        "marked_as_poor": [round(old.poor, 3), round(new.poor, 3)],
        "other_labels_f1": round(agreement(old, new, written, phrase), 3),
        "responses_with_it": [round(one, 3) for one in shares],
        "held_out_f1": [round(found.about["agreement"][name]["held_out"] or 0.0, 3) for name in ("before", "after")],
        "metric": found.about["metric"],
        "kl": round(found.taught.kl, 3),
    }


def main() -> None:
    """Measure each phrase and seed, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run with a generative reward model, such as the quickstart's")
    parser.add_argument("--phrase", action="append", help="may be repeated; default: three of the quickstart's")
    parser.add_argument("--marks", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--settings", type=json.loads, default={}, help='of the retraining, such as {"steps": 10}')
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    recipe = recipe_of_run(args.run)
    results = []
    for phrase in args.phrase or PHRASES:
        for seed in range(args.seeds):
            settings = Retraining.from_page({**args.settings, "seed": seed})
            results.append(measure(args.run, recipe, phrase, args.marks, args.held_out, settings))
            print(json.dumps(results[-1]), flush=True)
    if args.out:
        args.out.write_bytes(to_json(results, indent=2))


if __name__ == "__main__":
    main()
