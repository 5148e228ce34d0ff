"""Tiny random causal language models of many families, and batches to run them on; nothing is downloaded."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.cohere import CohereConfig
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gpt2 import GPT2Config
from transformers.models.granite import GraniteConfig
from transformers.models.llama import LlamaConfig
from transformers.models.opt import OPTConfig
from transformers.models.phi import PhiConfig
from transformers.models.qwen2 import Qwen2Config

from text2grad.models.batch import TokenBatch, collate
from text2grad.types import Example, Rollout

# Wide enough that logits differ by several nats: a wrong scale, cap or shift then shows.
SPREAD = 0.35
VOCAB = 61

DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": SPREAD,
}
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, DECODER | {"tie_word_embeddings": False}),
    "llama-tied": (LlamaConfig, DECODER | {"tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, DECODER),
    "gpt2": (
        GPT2Config,
        {
            "vocab_size": VOCAB,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 64,
            "initializer_range": SPREAD,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gemma2": (
        Gemma2Config,
        DECODER
        | {
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 4,
            "final_logit_softcapping": 3.0,
            "attn_logit_softcapping": 5.0,
        },
    ),
    "cohere": (CohereConfig, DECODER | {"logit_scale": 0.25}),
    "granite": (
        GraniteConfig,
        DECODER | {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5},
    ),
    "phi": (PhiConfig, DECODER | {"partial_rotary_factor": 0.5}),
    "opt": (
        OPTConfig,
        {
            "vocab_size": VOCAB,
            "hidden_size": 16,
            "word_embed_proj_dim": 16,
            "ffn_dim": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 64,
            "init_std": SPREAD,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}
FAMILIES = tuple(CONFIGS)


def tiny(family: str, *, seed: int = 0, model_class: Any = None, **overrides: Any) -> Any:
    """Return a random model of the family, in eval mode, the same one for the same seed."""
    config_class, settings = CONFIGS[family]
    config = config_class(**(settings | overrides))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config) if model_class is None else model_class(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # every library starts biases at zero, which would hide one that is lost
                torch.nn.init.normal_(parameter, std=SPREAD)
    return model.eval()


def rollouts(
    lengths: Sequence[tuple[int, int]] = ((3, 4), (5, 1), (2, 0), (1, 6)),
    *,
    vocab: int = VOCAB,
    seed: int = 0,
    truncated: Sequence[bool] | None = None,
) -> list[Rollout]:
    """Return rollouts of random ids with the given (prompt, response) lengths."""
    generator = torch.Generator().manual_seed(seed)
    cut = truncated or [False] * len(lengths)
    made = []
    for (prompt, response), is_cut in zip(lengths, cut, strict=True):
        ids = torch.randint(3, vocab, (prompt + response,), generator=generator).tolist()
        made.append(Rollout(Example("x"), tuple(ids[:prompt]), tuple(ids[prompt:]), "y", is_cut))
    return made


def batch_of(*args: Any, pad_id: int = 0, **kwargs: Any) -> TokenBatch:
    """Return `rollouts(...)` collated."""
    return collate(rollouts(*args, **kwargs), pad_id=pad_id)


@torch.no_grad()
def own_logits(model: Any, rollout: Rollout, temperature: float = 1.0) -> torch.Tensor:
    """Return what transformers itself says, alone and unpadded: logits before each response token, [R, V] fp64."""
    ids = torch.tensor([rollout.prompt_ids + rollout.response_ids])
    logits = model(input_ids=ids, use_cache=False).logits[0].double() / temperature
    start = len(rollout.prompt_ids) - 1
    return logits[start : start + len(rollout.response_ids)]


def own_logp(model: Any, rollout: Rollout, temperature: float = 1.0) -> torch.Tensor:
    """Return transformers' log-probs of the response tokens, [R] fp64."""
    logp = own_logits(model, rollout, temperature).log_softmax(-1)
    return logp.gather(1, torch.tensor(rollout.response_ids, dtype=torch.int64)[:, None])[:, 0]
