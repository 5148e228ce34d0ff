"""Peak memory of training runs on a CPU beside the figure of `text2grad train --dry-run`, for three random Llamas.

    python benchmarks/plan.py                        # all cases, JSON to stdout
    python benchmarks/plan.py --cases 15m-lora --json plan.json

Each case runs two steps of the trainer (the second has optimizer states) in a process of its own, with one thread and
MALLOC_MMAP_THRESHOLD_=1048576, so that freed tensors go back to the system:
16 prompts of 64 tokens, 64 sampled tokens each, micro-batches of 1,024 tokens.

    measured   ru_maxrss at the end − ru_maxrss after the imports
    planned    the plan's peak, from the config and the tokenizer alone
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODELS: dict[str, dict[str, Any]] = {
    "15m": {"vocab_size": 8_192, "hidden_size": 320, "intermediate_size": 864, "num_hidden_layers": 8, "heads": (5, 5)},
    "60m": {
        "vocab_size": 32_768,
        "hidden_size": 512,
        "intermediate_size": 1_376,
        "num_hidden_layers": 8,
        "heads": (8, 4),
    },
    "135m": {
        "vocab_size": 128_256,
        "hidden_size": 576,
        "intermediate_size": 1_536,
        "num_hidden_layers": 18,
        "heads": (9, 3),
        "tie_word_embeddings": True,
    },
}
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora_r": 16},
    "value-model": {"value": "model"},
    "lora-value-adapter": {"lora_r": 16, "value": "adapter"},
    "checkpointing": {"gradient_checkpointing": True},
}
CASES = (
    *("15m-full", "15m-lora", "15m-value-model", "15m-lora-value-adapter", "15m-checkpointing"),
    *("60m-full", "60m-lora", "60m-value-model", "60m-checkpointing"),
    *("135m-full", "135m-lora", "135m-lora-value-adapter"),
)
PROMPT, RESPONSE, ROWS = 64, 64, 16


def write_model(directory: Path, size: str) -> None:
    """Write a Llama with random weights, and a tokenizer of as many words as it has ids."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from text2grad.tasks.tiny import word_tokenizer

    settings = dict(MODELS[size])
    heads, groups = settings.pop("heads")
    config = LlamaConfig(
        **{"tie_word_embeddings": False, **settings},
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=2048,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(directory)
    word_tokenizer([" ".join(f"w{n}" for n in range(settings["vocab_size"] - 3))]).save_pretrained(directory)
    texts = [" ".join(f"w{(row * 7 + n) % 1000 + 1}" for n in range(PROMPT)) for row in range(64)]
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in texts)
    (directory / "prompts.jsonl").write_text(lines, "utf-8")


def recipe_of(directory: Path, case: str) -> Any:
    """Return the recipe of a case."""
    from text2grad.config import make_recipe

    settings = SETTINGS[case.partition("-")[2]]
    return make_recipe(
        {
            "data": {"train": str(directory / "prompts.jsonl")},
            "model": {"path": str(directory), **settings},
            "rollout": {"batch_size": ROWS, "max_new_tokens": RESPONSE},
            "ppo": {"epochs": 1, "micro_batch_tokens": 1_024},
            "run": {"out": str(directory / case), "steps": 2, "threads": 1, "tracker": "none"},
        }
    )


def critic(examples: Any, responses: Any) -> Any:
    """Praise the beginning and blame the rest of every response."""
    from text2grad import Critique, Span

    halves = [min(12, len(response)) for response in responses]
    return [
        Critique("", (Span(0, half, "positive"), Span(half, len(response), "negative")))
        for half, response in zip(halves, responses, strict=True)
    ]


def measure(directory: Path, case: str) -> dict[str, Any]:
    """Train two steps; return the peak beyond that of the imports, in bytes, and the seconds of the processor."""
    import accelerate
    import peft
    import torch
    import transformers.models.llama.modeling_llama

    from text2grad import Text2GradTrainer
    from text2grad.feedback import read_examples
    from text2grad.models import load_tokenizer

    assert all([accelerate, peft, transformers])
    torch.set_num_threads(1)
    torch.randn(64, 64) @ torch.randn(64, 64)  # loads the library of matrix products
    recipe = recipe_of(directory, case)
    imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    examples = read_examples(recipe.data.train)
    Text2GradTrainer(str(directory), critic, examples, recipe, processing_class=load_tokenizer(str(directory))).train()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"measured": (used.ru_maxrss - imported) * 1024, "seconds": round(used.ru_utime + used.ru_stime, 1)}


def planned(directory: Path, case: str) -> dict[str, Any]:
    """Return the plan's peak, in bytes, and its phase."""
    from text2grad.runs.dry_run.devices import device_named
    from text2grad.runs.dry_run.plan import Planner

    plan = Planner(recipe_of(directory, case), device_named(None)).plan()
    return {"planned": plan.peak, "phase": plan.peak_phase, "phases": plan.phases}


def one(what: str, directory: Path, case: str) -> dict[str, Any]:
    """Do one part of a case in a process of its own and return the JSON that it prints."""
    command = [sys.executable, __file__, "--part", what, "--directory", str(directory), "--cases", case]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "MALLOC_MMAP_THRESHOLD_": str(2**20),
    }
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
    return dict(json.loads(output.splitlines()[-1]))


def main() -> None:
    """Run the cases, each part in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--part", choices=["model", "measure", "plan"])
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.part == "model":
        write_model(args.directory, args.cases[0].partition("-")[0])
        print("{}")
    elif args.part:
        work = measure if args.part == "measure" else planned
        print(json.dumps(work(args.directory, args.cases[0])))
    else:
        results = []
        with tempfile.TemporaryDirectory() as folder:
            for case in args.cases:
                directory = Path(folder) / case.partition("-")[0]
                if not directory.exists():
                    one("model", directory, case)
                found = {"case": case, **one("measure", directory, case), **one("plan", directory, case)}
                found["ratio"] = round(found["planned"] / found["measured"], 3)
                results.append(found)
                print(json.dumps({key: found[key] for key in found if key != "phases"}), flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
