"""Models small enough to be served in a test, with heads of 32 numbers, as vLLM's attention on a CPU wants them."""

import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from text2grad.models.adapters import with_lora
from tokenizers_made_here import STORIES, made

HEAD = 32


def storyteller(path: Path) -> Path:
    """Write the shared storyteller with wider heads: the very same function, with zeros in between.

    Its 8 numbers per head turn in 4 pairs (i, i + 4) by theta ** (-i / 4). Among 32 numbers that speed is the one of
    pair 4i, since theta ** (-4i / 16) is the same. The scale 1 / sqrt(32) is half of 1 / sqrt(8), so queries double.
    """
    shutil.copytree(STORIES, path, copy_function=shutil.copyfile)
    path.chmod(0o755)
    narrow = AutoModelForCausalLM.from_pretrained(STORIES)
    config = narrow.config
    wide = LlamaForCausalLM(type(config)(**{**config.to_dict(), "head_dim": HEAD}))
    places = [*range(0, HEAD // 2, 4), *range(HEAD // 2, HEAD, 4)]
    weights = dict(narrow.state_dict())
    for name, weight in weights.items():
        kind = name.split(".")[-2]
        if kind in ("q_proj", "k_proj", "v_proj"):
            heads = torch.zeros(weight.shape[0] // 8, HEAD, weight.shape[1])
            heads[:, places] = weight.view(-1, 8, weight.shape[1]) * (2 if kind == "q_proj" else 1)
            weights[name] = heads.flatten(0, 1)
        elif kind == "o_proj":
            heads = torch.zeros(weight.shape[0], weight.shape[1] // 8, HEAD)
            heads[:, :, places] = weight.view(weight.shape[0], -1, 8)
            weights[name] = heads.flatten(1)
    wide.load_state_dict(weights)
    wide.save_pretrained(path)
    return path


def untrained(path: Path, *, context: int = 2048, family: str = "llama") -> Path:
    """Write a model of random weights that spells any text; `family`: its architecture, as a config names it."""
    tokenizer = made("llama3")
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=HEAD,
        max_position_embeddings=context,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.1,
        tie_word_embeddings=False,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def adapter(path: Path, base: Path) -> Path:
    """Write a LoRA adapter that changes what its base says."""
    torch.manual_seed(1)
    model = with_lora(AutoModelForCausalLM.from_pretrained(base), r=8, alpha=8, targets="all-linear")
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(base).save_pretrained(path)
    return path
