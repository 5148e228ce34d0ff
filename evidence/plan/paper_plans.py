"""Memory of the paper's recipes on 1 and on 8 GPUs of 80 GB, and on a small one, for each of their three trainings.

    python -m evidence.plan.paper_plans

Nothing is loaded: of each model the sizes that its publisher states are enough. Nobody has run these recipes at full
size here, so this is an estimate and no measurement. Writes evidence/results/paper_plans.json, one plan after another;
a plan that stands there is not made again. The records that stand there have the time of a step, too, as commit
3d79ea59 estimated it from traced operations; this program plans memory alone.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from evidence.plan.fine_tuning import FineTuningPlanner
from text2grad.config import load_recipe
from text2grad.files import to_json, write_atomically
from text2grad.runs.dry_run.devices import device_named
from text2grad.runs.dry_run.plan import Planner

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "evidence" / "results" / "paper_plans.json"
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
    device = device_named("h100" if where.isdigit() else where)
    trained = recipe.reward_model.model if phase == "reward" else ""
    named = trained or recipe.sft.model
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(MODELS[named]))
        models = [f"{setting}={directory}" for setting in ("model.path", "sft.model", "reward_model.model")]
        asked = load_recipe(path, [*models, *changed])
        if phase == "train":
            plan = Planner(asked, device, processes=processes, prompt_tokens=PROMPT_TOKENS).plan()
            sizes = {"prompt_tokens": PROMPT_TOKENS, "steps": recipe.run.steps}
        else:
            planner = FineTuningPlanner(asked, phase, device, processes=processes)  # type: ignore[arg-type]
            plan = planner.plan()
            settings = recipe.sft if phase == "sft" else recipe.reward_model
            sizes = {"batch_size": settings.batch_size, "rows": planner.rows(asked), "row_tokens": planner.row_tokens}
    return {
        **{"recipe": name, "where": where, "phase": phase, "model": named, "settings": changed, **sizes},
        **{"device": device.name, "memory": device.memory, "processes": processes},
        **{"fits": plan.peak <= device.memory, "peak": plan.peak, "peak_phase": plan.peak_phase, "seconds": {}},
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
    parser.add_argument("--json", type=Path, default=RESULTS)
    path = parser.parse_args().json
    plans = json.loads(path.read_bytes()) if path.exists() else []
    for asked in ALL:
        if asked not in {(plan["recipe"], plan["where"], plan["phase"]) for plan in plans}:
            plans.append(planned(*asked))
            print(json.dumps(plans[-1]), flush=True)  # noqa: T201
            write_atomically(path, to_json(plans, indent=1) + b"\n")


if __name__ == "__main__":
    main()
