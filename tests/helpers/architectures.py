"""Every causal language model of the installed transformers, tiny, from its configuration; no downloads."""

from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PreTrainedConfig

VOCABULARY = 64
SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "n_vocab", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "embed_dim", "embedding_size", "emb_dim", "dim", "n_embed"), 32
    ),
    **dict.fromkeys(
        ("word_embed_proj_dim", "input_embedding_size", "output_embedding_size", "attention_hidden_size"), 32
    ),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner", "ffn_hidden_size"), 48
    ),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp", "dim_ff"), 48
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "num_key_value_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_decoder_attention_heads", "rotary_dim"), 4),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim", "dim_head", "d_kv", "attention_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim",), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length", "seq_length"), 128
    ),
    **dict.fromkeys(("sliding_window", "window_size"), 16),
    **dict.fromkeys(("mamba_d_ssm",), 32),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 8),
    **dict.fromkeys(("mamba_n_groups", "n_groups"), 1),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input",), 8),
    **dict.fromkeys(("linear_num_heads", "linear_num_key_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys(("linear_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 8),
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "is_decoder": True}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
OWN: dict[str, dict[str, Any]] = {
    "llama4_text": {"num_hidden_layers": 4, "num_local_experts": 2, "layer_types": None},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 8},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4, "first_k_dense_replace": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "granitemoehybrid": {"mamba_n_heads": 8, "layer_types": ["mamba", "attention"]},
    "nemotron": {"num_key_value_heads": 4, "head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "recurrent_gemma": {"lru_width": 32, "block_types": ["recurrent", "attention"]},
    "olmo_hybrid": HYBRID,
    "mimo_v2_flash": {
        **dict.fromkeys(("swa_num_attention_heads", "swa_num_key_value_heads"), 4),
        **dict.fromkeys(("swa_head_dim", "swa_v_head_dim"), 8),
    },
}


def config_of(kind: type[PreTrainedConfig], *, part: bool = False) -> PreTrainedConfig:
    """Return a tiny configuration: known sizes are replaced, in parts of a configuration too."""
    default = kind()
    arguments = signature(kind.__init__).parameters
    known = set(arguments) | set(vars(default)) | set(kind.attribute_map)
    given = {
        name: size for name, size in SIZES.items() if name in known and (name == "head_dim" or _set(default, name))
    }
    types = getattr(default, "layer_types", None)
    if types and "layer_types" in arguments:
        given["layer_types"] = (list(dict.fromkeys(types)) * 2)[: max(2, len(set(types)))]
        given["num_hidden_layers"] = len(given["layer_types"])
    for name, value in vars(default).items():
        if isinstance(value, PreTrainedConfig):
            given[name] = config_of(type(value), part=True).to_dict()
    return kind(**{**given, **({} if part else TOKENS), **OWN.get(kind.model_type, {})})


def _set(config: Any, name: str) -> bool:
    try:
        return getattr(config, name, None) is not None
    except Exception:  # noqa: BLE001 - one value for each layer
        return True


def model_of(kind: type[PreTrainedConfig]) -> Any:
    """Return the model with weights at random, the same each time, in evaluation mode."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(kind)).float().eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim >= 2 and "norm" not in name:
                weights.normal_(0, 0.2)
    return model


def kinds() -> Iterator[type[PreTrainedConfig]]:
    """Yield the configurations, by name."""
    yield from sorted(MODEL_FOR_CAUSAL_LM_MAPPING, key=lambda kind: kind.__name__)
