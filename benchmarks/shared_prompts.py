"""Seconds of rollout, scoring and update where responses share their prompt, against whole rows; one thread.

    python benchmarks/shared_prompts.py --json evidence/results/shared_prompts.json

Setting: a Llama of SmolLM2-135M's shape with random weights and a LoRA adapter of rank 16 on all linear layers,
responses of 48 tokens to prompts of 200 tokens, in one micro-batch. Scoring runs policy and reference, the update is
one forward and backward pass. "whole" computes the prompt of every response. Seconds are CPU time of this process,
the smallest of the repeats, with both ways in turn: another process on the machine changes them little.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT, RESPONSE, GROUP_SIZES = 200, 48, (1, 4, 8)
LARGE = {"layers": 30, "hidden": 576, "inner": 1536, "heads": 9, "kv_heads": 3, "vocab": 49_152}
TINY = {"layers": 2, "hidden": 32, "inner": 64, "heads": 2, "kv_heads": 1, "vocab": 512}


def build(shape: dict[str, int], *, context: int = 512) -> Any:
    """Return a Llama with a LoRA adapter, in evaluation mode."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from text2grad.models.adapters import with_lora

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape["vocab"],
        hidden_size=shape["hidden"],
        intermediate_size=shape["inner"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        max_position_embeddings=context,
        tie_word_embeddings=True,
    )
    return with_lora(LlamaForCausalLM(config), r=16, alpha=32, targets="all-linear").eval()


def measured(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the least CPU seconds of each way; the ways take turns."""
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, work in ways.items():
            start = time.process_time()
            work()
            found[name] = min(found[name], time.process_time() - start)
    return found


def one_size(model: Any, group_size: int, rows: int, vocab: int, repeats: int) -> dict[str, Any]:
    """Measure one group size."""
    import torch

    from text2grad.models.batch import collate
    from text2grad.models.policy import Reference
    from text2grad.models.randomness import step_uniforms
    from text2grad.models.sampling import sample
    from text2grad.types import Example, Rollout

    generator = torch.Generator().manual_seed(group_size)
    prompts = torch.randint(3, vocab, (rows // group_size, PROMPT), generator=generator).tolist()
    responses = torch.randint(3, vocab, (rows, RESPONSE), generator=generator).tolist()
    rollouts = [
        Rollout(Example("x"), tuple(prompts[row // group_size]), tuple(response), "", truncated=True)
        for row, response in enumerate(responses)
    ]
    batches = {name: collate(rollouts, pad_id=0, share_prompts=name == "shared") for name in ("whole", "shared")}
    reference = Reference(model.policy)
    uniforms = step_uniforms(seed=0, step=0, rows=rows, tokens=RESPONSE)
    asked = [rollout.prompt_ids for rollout in rollouts]

    def rollout_of(rows_at_once: int, distinct: int) -> Callable[[], object]:
        own = [(*ids[:-1], 3 + n % distinct) for n, ids in enumerate(asked)]  # other last tokens: nothing is shared
        chosen = asked if distinct == 1 else own
        kwargs: dict[str, Any] = {"eos_ids": [vocab], "pad_id": 0, "rows_at_once": rows_at_once}
        return lambda: sample(model.policy, chosen, uniforms, **kwargs)

    def update(name: str) -> None:
        model.zero_grad(set_to_none=True)
        model(batches[name]).logp.sum().backward()

    with torch.no_grad():
        logp = [model(batches[name]).logp for name in ("whole", "shared")]
    return {
        "group_size": group_size,
        "rows": rows,
        "tokens": {name: batch.cost().tokens for name, batch in batches.items()},
        "largest_difference_of_logp": float((logp[0] - logp[1]).abs().max()),
        "rollout_seconds": measured({"whole": rollout_of(rows, rows), "shared": rollout_of(rows, 1)}, repeats),
        "score_seconds": measured(
            {
                name: lambda batch=batch: model.score(batch, reference, temperature=1.0, kl="k1")  # type: ignore[misc]
                for name, batch in batches.items()
            },
            repeats,
        ),
        "update_seconds": measured({name: lambda name=name: update(name) for name in batches}, repeats),  # type: ignore[misc]
    }


def main() -> None:
    """Measure every group size."""
    import torch

    from text2grad.models.policy import PolicyWithValue

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, to try the script")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = TINY if args.tiny else LARGE
    model = PolicyWithValue(build(shape), value="trunk")
    results = []
    for group_size in GROUP_SIZES:
        results.append(one_size(model, group_size, args.rows, shape["vocab"], args.repeats))
        print(json.dumps(results[-1], indent=1), flush=True)
    if args.json:
        args.json.write_text(
            json.dumps({"prompt": PROMPT, "response": RESPONSE, "model": shape, "sizes": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
