"""A reward model small enough for any test, trained by `text2grad reward` from files, as anybody would.

Run as a script it trains to the end, resuming where an earlier process was killed:

    python tests/helpers/small_reward.py DIRECTORY [SECTION.KEY=VALUE ...]
"""

import json
import sys
from pathlib import Path
from typing import Any

from text2grad.config.recipe import Recipe, make_recipe
from text2grad.feedback.records import Annotation, write_annotations
from text2grad.reward_models.training.run import RewardRun
from text2grad.reward_models.writing import SYMBOLS, critique_prompt, critique_request, critique_target
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example, Span

ANIMALS, NUMBERS = ["cat", "dog", "bird"], ["one", "two", "three"]
WORDS = [*ANIMALS, *NUMBERS]


def annotation(prompt: str, first: str, second: str) -> Annotation:
    """Return a response of two words, in which animals are positive and numbers negative."""
    response = f" {first} {second}"
    spans, start = [], 1
    for word in (first, second):
        spans.append(Span(start, start + len(word), "positive" if word in ANIMALS else "negative"))
        start += len(word) + 1
    return Annotation(prompt, response, Critique("Animals please.", tuple(spans)))


PROMPTS = [f"{letter}:" for letter in "abcdef"]  # six responses to each, of other words
ANNOTATIONS = [annotation(PROMPTS[(i + j) % 6], a, b) for i, a in enumerate(WORDS) for j, b in enumerate(WORDS)]


def prepare(directory: Path, form: str = "spans", words: str = " ") -> None:
    """Write annotations.jsonl and a model of random weights that can say their critiques in a form, and some words."""
    write_annotations(directory / "annotations.jsonl", ANNOTATIONS)
    asked = [critique_prompt(Example(annotation.prompt), annotation.response) for annotation in ANNOTATIONS]
    written = [critique_target(annotation.critique, annotation.response, form=form) for annotation in ANNOTATIONS]
    chat = [
        f"[user]{critique_request(Example(annotation.prompt), annotation.response)}[judge]"
        for annotation in ANNOTATIONS
    ]
    tokenizer = word_tokenizer([*asked, *written, *chat, words], SYMBOLS)
    tiny_llama(tokenizer, seed=1, width=32, layers=1, context=160).save_pretrained(directory / "base")
    tokenizer.save_pretrained(directory / "base")


def recipe(directory: Path, out: str = "run", **sections: dict[str, Any]) -> Recipe:
    base: dict[str, dict[str, Any]] = {
        "model": {"path": str(directory / "base")},
        "reward_model": {
            "annotations": (str(directory / "annotations.jsonl"),),
            "steps": 6,
            "batch_size": 4,
            "lr": 5e-3,
            "max_new_tokens": 40,
            "held_out": 0.34,
            "eval_every": 2,
        },
        "run": {"out": str(directory / out), "threads": 1, "tracker": "none", "seed": 3},
    }
    return make_recipe({name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}})


if __name__ == "__main__":
    where = Path(sys.argv[1])
    overrides: dict[str, dict[str, Any]] = {}
    for item in sys.argv[2:]:
        name, value = item.split("=", 1)
        section, key = name.split(".")
        overrides.setdefault(section, {})[key] = json.loads(value)
    settings = recipe(where, **overrides)
    RewardRun(settings, resume=(Path(settings.run.out) / "run.json").exists()).run()
