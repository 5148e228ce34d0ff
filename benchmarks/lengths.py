"""Memory and time against length and batch, at a fixed number of tokens: 128 rows of 64 tokens to 8 rows of 1,024.

    python benchmarks/lengths.py --json evidence/results/lengths.json --figure evidence/results/lengths.png

Scoring and one epoch of the update of the Llama of benchmarks/step.py (256 × 4, vocabulary 8,192, LoRA, value head,
fp32, one thread), half of each row a prompt, micro-batches of 2,048 tokens. Each length has a process of its own.

    peak_mb        ru_maxrss at the end − ru_maxrss after loading
    us_per_token   processor time of scoring and update by token, the lesser of two
    attention_us   its part in torch's attention, from torch's profiler
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TOKENS, LENGTHS, VOCABULARY, REPEATS = 8_192, (64, 128, 256, 512, 1_024), 8_192, 2


def measure(length: int) -> dict[str, Any]:
    """Measure one length in this process."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    import step as benchmark
    from text2grad.models.batch import collate
    from text2grad.rl.piece_sizes import PieceSizes
    from text2grad.rl.scoring import score_batch
    from text2grad.rl.update import PPOBatch
    from text2grad.types import Example, Rollout

    torch.set_num_threads(1)
    policy = benchmark.build(VOCABULARY, ["q_proj", "v_proj"], positions=2 * max(LENGTHS))
    work = benchmark.Step(policy, VOCABULARY, "k1")
    sizes = work.gradient.sizes = PieceSizes(micro_batch_tokens=2_048)
    half, rows = length // 2, TOKENS // length
    ids = torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1)).tolist()
    batch = collate(
        [Rollout(Example("x"), tuple(r[:half]), tuple(r[half:]), "", truncated=True) for r in ids], pad_id=0
    )

    def once() -> None:
        scores = score_batch(work.model, work.reference, batch, sizes, temperature=1.0, kl="k1")
        advantages = torch.where(batch.response_mask, batch.response_ids % 3 - 1.0, 0.0)
        work.gradient(PPOBatch(batch, scores, advantages, scores.values), first=False)
        work.optimizers.step()

    loaded, times = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(REPEATS):
        start = time.thread_time()
        once()
        times.append(time.thread_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - loaded
    with profile(activities=[ProfilerActivity.CPU]) as found:
        once()
    events = found.key_averages()
    attention = sum(one.self_cpu_time_total for one in events if "scaled_dot_product_flash" in one.key)
    whole = sum(one.self_cpu_time_total for one in events)
    each = min(times) / TOKENS * 1e6
    return {
        "length": length,
        "rows": rows,
        "peak_mb": round(peak * 1024 / 1e6, 1),
        "us_per_token": round(each, 2),
        "attention_us": round(each * attention / whole, 2),
    }


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw memory and time against length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.8), layout="constrained")
    memory, seconds = figure.subplots(1, 2)
    lengths = [str(one["length"]) for one in results]
    memory.plot(lengths, [one["peak_mb"] for one in results], marker="o")
    memory.set(ylabel="peak beyond the model, MB", ylim=(0, 1.15 * max(one["peak_mb"] for one in results)))
    rest = [one["us_per_token"] - one["attention_us"] for one in results]
    seconds.bar(lengths, rest, label="all but attention")
    seconds.bar(lengths, [one["attention_us"] for one in results], bottom=rest, label="attention")
    seconds.set(ylabel="µs per token")
    seconds.legend(frameon=False)
    for axes in (memory, seconds):
        axes.set(xlabel=f"tokens of a row ({TOKENS:,} tokens in all)")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure every length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    if args.length:
        print(json.dumps(measure(args.length)))
        return
    results = []
    for length in LENGTHS:
        command = [sys.executable, __file__, "--length", str(length)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
        results.append(json.loads(output.splitlines()[-1]))
        print(json.dumps(results[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    if args.figure:
        draw(results, args.figure)


if __name__ == "__main__":
    main()
