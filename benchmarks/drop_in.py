"""What does `from text2grad import GRPOTrainer` cost beside TRL's own class, on the same script?

    python benchmarks/drop_in.py --json evidence/results/drop_in.json

Steps of a Llama with random weights and a LoRA adapter on one thread: 16 completions of 64 tokens in groups of 4, to
prompts of 64 tokens. "numbers": the reward function returns floats, with TRL's class ("trl") and with ours; "words": it
returns critiques with two quotes, with ours alone. Each runs in a process of its own, in turn, `--rounds` times; the
figure is the least processor time of a step after the first, without that of the function itself, since other programs
may use the machine. `part` is relative to TRL.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from step import SIZES, build

PROMPT, RESPONSE, BATCH, GROUP, VOCABULARY = 64, 64, 16, 4, 8192
WHO = ("trl", "numbers", "words")


def seconds(who: str, size: str, steps: int) -> float:
    """Return the least processor time of a step, in seconds."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer as TRLTrainer

    from text2grad import Critique, GRPOTrainer, Span
    from text2grad.tasks.tiny import word_tokenizer

    torch.set_num_threads(1)
    ends, of_function = list[float](), list[float]()

    class Clock(TrainerCallback):  # type: ignore[misc]
        """The processor time at the end of each step, without that of the reward function."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """Remember it."""
            ends.append(time.process_time() - sum(of_function))

    def reward(completions: list[str], **_: Any) -> list[Any]:
        began = time.process_time()
        answers = [_words(text) if who == "words" else float(len(text) % 7) for text in completions]
        of_function.append(time.process_time() - began)
        return answers

    def _words(text: str) -> Critique:
        half = len(text) // 2
        return Critique(
            "The first half, not the second.", (Span(0, half, "positive"), Span(half, len(text), "negative"))
        )

    words, generator = [f"w{n}" for n in range(VOCABULARY - 3)], random.Random(1)
    prompts = [" ".join(generator.choices(words, k=PROMPT)) for _ in range(BATCH * steps)]
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            num_generations=GROUP,
            max_completion_length=RESPONSE,
            beta=0.05,
            bf16=False,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            gradient_checkpointing=False,
        )
        trainer = (TRLTrainer if who == "trl" else GRPOTrainer)(
            build(VOCABULARY, ["q_proj", "v_proj"], size),
            reward,
            settings,
            Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
            processing_class=word_tokenizer([" ".join(words)]),
            callbacks=[Clock()],
        )
        trainer.train()
    return min(after - before for before, after in pairwise(ends))


def main() -> None:
    """Measure all in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["256x4", "512x8"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--who", choices=WHO, help="measure this alone, in this process")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.who:
        print(seconds(args.who, args.sizes[0], args.steps))
        return
    rows = []
    for size in args.sizes:
        least = dict.fromkeys(WHO, float("inf"))
        for who in WHO * args.rounds:
            command = [sys.executable, __file__, "--sizes", size, "--steps", str(args.steps), "--who", who]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            least[who] = min(least[who], float(done.stdout.splitlines()[-1]))
        part = {who: round(least[who] / least["trl"], 3) for who in WHO[1:]}
        rows.append({"size": size, "processor_s": least, "part": part})
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
