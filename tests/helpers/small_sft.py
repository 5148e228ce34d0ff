"""A model and demonstrations small enough for any test, fine-tuned by `text2grad sft` from files.

Run as a script it trains to the end, resuming where an earlier process was killed:

    python tests/helpers/small_sft.py DIRECTORY [SECTION.KEY=VALUE ...]
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from small_run import WORDS
from text2grad.config.recipe import Recipe, make_recipe
from text2grad.runs.sft_run import SFTRun
from text2grad.tasks.tiny import tiny_llama, word_tokenizer

COLOURS, ANIMALS = WORDS[:3], WORDS[6:9]
DEMONSTRATIONS = [
    {"prompt": f"{a} {b}", "reference": f" {b} {a}" + " runs sleeps eats" * (a == b)}  # answers of several lengths
    for a in [*COLOURS, *ANIMALS]
    for b in [*COLOURS, *ANIMALS]
]
CHAT = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% if m['role'] == 'assistant' %}</s>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""A template that ends an assistant's turn with the end of sequence, as most do."""


def write_jsonl(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def prepare(directory: Path, *, template: str | None = None) -> None:
    """Write demonstrations.jsonl and a model of random weights that can say them."""
    write_jsonl(directory / "demonstrations.jsonl", DEMONSTRATIONS)
    texts = [*WORDS, *(f" {word}" for word in WORDS), "\n\n"]
    tokenizer = word_tokenizer(texts, ["[user]", "[system]", "[assistant]"])
    tokenizer.chat_template = template
    tiny_llama(tokenizer, seed=1, width=32, layers=1, context=64).save_pretrained(directory / "base")
    tokenizer.save_pretrained(directory / "base")


def recipe(directory: Path, out: str = "run", **sections: dict[str, Any]) -> Recipe:
    base: dict[str, dict[str, Any]] = {
        "data": {"train": str(directory / "demonstrations.jsonl")},
        "sft": {
            "model": str(directory / "base"),
            "out": str(directory / out),
            "steps": 6,
            "batch_size": 4,
            "lr": 5e-3,
            "held_out": 0.2,
            "eval_every": 2,
        },
        "run": {"threads": 1, "tracker": "none", "seed": 3},
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
    SFTRun(settings, resume=(Path(settings.sft.out) / "run.json").exists()).run()
