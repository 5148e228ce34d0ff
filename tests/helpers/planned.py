"""A model for plans: a config without weights, its number of parameters, and a small recipe for it."""

from pathlib import Path
from typing import Any

from text2grad.config.recipe import Recipe, make_recipe
from text2grad.runs.dry_run.devices import Device

CPU = Device("a CPU", "cpu", 8 * 10**9)
CONFIG = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, "hidden_size": 64},
    **{"intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"max_position_embeddings": 512, "tie_word_embeddings": False, "dtype": "float32"},
}
# embeddings and head 2 · 1000 · 64; the layer: q, o 64², k, v 64 · 32, MLP 3 · 64 · 128, norms 2 · 64; last norm 64
PARAMETERS = 2 * 64_000 + (2 * 64**2 + 2 * 64 * 32 + 3 * 64 * 128 + 128) + 64


def recipe(folder: Path, **sections: dict[str, Any]) -> Recipe:
    base: dict[str, dict[str, Any]] = {
        "model": {"path": str(folder)},
        "rollout": {"batch_size": 8, "max_new_tokens": 24},
        "ppo": {"micro_batch_tokens": 128},
        "data": {"train": "none.jsonl"},
    }
    return make_recipe({name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}})
