"""Memory and time of the paper's recipes on 1 and on 8 GPUs of 80 GB, as `text2grad plan` estimates them.

    python benchmarks/paper_plans.py

Nothing is loaded: of each model the sizes that its publisher states are enough. Nobody has run these recipes at full
size here, so this is an estimate and no measurement. Writes docs/results/paper_plans.json, one plan after the other; a
plan that stands there is not made again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from text2grad.config import load_recipe
from text2grad.files import to_json, write_atomically

ROOT = Path(__file__).parents[1]
PROMPT_TOKENS = 500
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
MODELS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA,
    "meta-llama/Meta-Llama-3-8B-Instruct": LLAMA,
    "mistralai/Mistral-7B-Instruct-v0.2": LLAMA
    | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32_000, "sliding_window": None},
    "Qwen/Qwen2.5-0.5B-Instruct": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
}
"""Name on the hub → the sizes in its config.json."""
PLANS = [
    *((f"paper/{name}", where) for name in ("slf5k", "kodcode", "ultrafeedback", "mistral") for where in ("1", "8")),
    *(("qwen-0.5b", where) for where in ("16GB", "1", "8")),
]
"""Recipe, and the number of GPUs of 80 GB; or the memory of one small GPU."""
ALL = [
    *((name, where, phase) for name, where in PLANS for phase in ("sft", "reward")),
    *((name, where, "train") for name, where in PLANS),
]
"""Recipe, place and command."""
OF_COMMANDS: dict[tuple[str, str], list[str]] = {
    ("paper/kodcode", "reward"): ['model.lora_targets=["q_proj","k_proj","v_proj","o_proj"]']
}
"""Recipe and command → the settings that the command at the top of the recipe has."""


def planned(name: str, where: str, phase: str) -> dict[str, Any]:
    """Return the plan of a command with a recipe."""
    path = ROOT / "recipes" / f"{name}.toml"
    recipe = load_recipe(path)
    processes = int(where) if where.isdigit() else 1
    changed = changed_settings(name, phase, processes)
    device = ["--device", "h100"] if where.isdigit() else ["--device", "h100", "--memory", where]
    trained = recipe.reward_model.model if phase == "reward" else ""
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(MODELS[trained or recipe.sft.model]))
        words = ["plan", path, "--phase", phase, *device, "--processes", processes, "--json"]
        words += ["--prompt-tokens", PROMPT_TOKENS] if phase == "train" else []
        models = [f"sft.model={model}", f"reward_model.model={model}"]
        words += [word for one in (*models, *changed) for word in ("--set", one)]
        command = [sys.executable, "-m", "text2grad.cli", *map(str, words)]
        found = subprocess.run(command, check=False, stdout=subprocess.PIPE, cwd=directory)
    if found.returncode not in (0, 1):  # 1: it does not fit
        sys.exit(found.returncode)
    plan = json.loads(found.stdout)
    kept = ["device", "memory", "processes", "fits", "peak", "peak_phase", "seconds"]
    sizes = {
        "train": {"prompt_tokens": PROMPT_TOKENS, "steps": recipe.run.steps},
        "sft": {"batch_size": recipe.sft.batch_size},
        "reward": {"batch_size": recipe.reward_model.batch_size},
    }[phase]
    kept += [] if phase == "train" else ["rows", "row_tokens"]
    return {
        "recipe": name,
        "where": where,
        "phase": phase,
        "model": trained or recipe.sft.model,
        "settings": changed,
        **sizes,
        **{key: plan[key] for key in kept},
    }


def changed_settings(name: str, phase: str, processes: int) -> list[str]:
    """Return the settings of the recipe's own command, and those that share its batch among processes."""
    recipe = load_recipe(ROOT / "recipes" / f"{name}.toml")
    own = OF_COMMANDS.get((name, phase), [])
    if phase == "train":
        rows = -(-recipe.rollout.batch_size // processes) * processes
        return own if rows == recipe.rollout.batch_size else [*own, f"rollout.batch_size={rows}"]
    section, settings = ("sft", recipe.sft) if phase == "sft" else ("reward_model", recipe.reward_model)
    parts = max(settings.accumulate // processes, 1)
    return own if parts == settings.accumulate else [*own, f"{section}.accumulate={parts}"]


def main() -> None:
    """Make every plan that is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "results" / "paper_plans.json")
    path = parser.parse_args().json
    plans = json.loads(path.read_bytes()) if path.exists() else []
    for asked in ALL:
        if asked not in {(one["recipe"], one["where"], one["phase"]) for one in plans}:
            plans.append(planned(*asked))
            print(json.dumps(plans[-1]), flush=True)
            write_atomically(path, to_json(plans, indent=1) + b"\n")


if __name__ == "__main__":
    main()
