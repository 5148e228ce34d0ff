"""How fast are responses sampled on a CPU, beside transformers' `generate`, which TRL calls?

    python benchmarks/sampling.py --json evidence/results/sampling.json

Both sample from random Llamas at temperature 1, 16 rows on one thread, in turn: 64 tokens of prompt, or two groups of
8 rows with a prompt of `--long` tokens each; `generate` has its own cache and `do_sample`. "all of one length" never
ends a row; in "of many lengths" a token ends one with a probability of about 1/64. The figure is processor time, the
least of `--repeats`: other programs may use the machine.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from text2grad.files import to_json
from text2grad.models.sampling import sample

ROWS, PROMPT, GROUP, VOCABULARY, PAD = 16, 64, 8, 8192, 0
MODELS = {"256 x 4": (256, 4), "512 x 8": (512, 8)}


def llama(width: int, layers: int) -> Any:
    """Return a random model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=width * 43 // 16,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def processor_seconds(work: Callable[[], Any]) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(model: Any, prompt: int, group: int, tokens: int, ends: list[int], repeats: int) -> dict[str, Any]:
    """Sample with both, in turn."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1 + VOCABULARY // 32, VOCABULARY, (ROWS // group, prompt), generator=generator)
    ids = ids.repeat_interleave(group, 0)
    made: dict[str, list[int]] = {"ours": [], "generate": []}

    def ours() -> None:
        uniforms = torch.rand(ROWS, tokens, generator=generator)
        found = sample(model, ids.tolist(), uniforms, eos_ids=ends, pad_id=PAD)
        made["ours"].append(sum(map(len, found)))

    def generate() -> None:
        options: dict[str, Any] = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0}
        options |= {"max_new_tokens": tokens, "pad_token_id": PAD, "eos_token_id": ends or None}
        with torch.no_grad():
            found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        made["generate"].append(int((found[:, prompt:] != PAD).sum()))

    seconds: dict[str, list[float]] = {"ours": [], "generate": []}
    for _ in range(repeats):
        for name, work in (("ours", ours), ("generate", generate)):
            seconds[name].append(processor_seconds(work))
    rates = {name: max(n / s for n, s in zip(made[name], seconds[name], strict=True)) for name in made}
    return {
        "tokens_per_processor_s": {name: round(rate) for name, rate in rates.items()},
        "times_as_fast": round(rates["ours"] / rates["generate"], 2),
    }


def main() -> None:
    """Measure every size, length and kind of end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--long", type=int, nargs="*", default=[256, 512])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for name, size in MODELS.items():
        model = llama(*size)
        for tokens in args.tokens:
            ends = {"all of one length": [], "of many lengths": list(range(1, 1 + VOCABULARY // 64))}
            prompts = [(PROMPT, 1), *((length, GROUP) for length in args.long)]
            for (kind, ids), (prompt, group) in product(ends.items(), prompts):
                found = {
                    "model": name,
                    "prompt": prompt,
                    "group": group,
                    "tokens": tokens,
                    "responses": kind,
                    **measure(model, prompt, group, tokens, ids, args.repeats),
                }
                results.append(found)
                print(json.dumps(found), flush=True)
    if args.json:
        args.json.write_bytes(to_json({"torch": torch.__version__, "results": results}, indent=2))


if __name__ == "__main__":
    main()
