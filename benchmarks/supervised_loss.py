"""Seconds and memory of a supervised step on a CPU: logits where labels are, against TRL's loss, which computes all.

    python benchmarks/supervised_loss.py --json evidence/results/supervised_loss.json

Setting: a Llama of SmolLM2-135M's shape with random weights and a LoRA adapter of rank 16 on all linear layers, in
fp32, one thread; four rows of 500 to 640 tokens, whose last tokens have labels. Seconds are processor time of forward
and backward, the smallest of the repeats, with both ways in turn. Products by oneDNN where a command would choose it.
"""

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shared_prompts import LARGE, TINY, build

LENGTHS, LABELLED = (500, 560, 600, 640), (60, 180, 500)


def loss_of(trainer: Any, batch: dict[str, Any]) -> tuple[float, float, list[Any]]:
    """Return the loss of a batch, its processor seconds with the backward pass, and the gradients."""
    trainer.model.zero_grad(set_to_none=True)
    start = time.process_time()
    loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=(batch["labels"][:, 1:] != -100).sum())
    loss.backward()
    seconds = time.process_time() - start
    return float(loss.detach()), seconds, [one.grad for one in trainer.model.parameters() if one.grad is not None]


def one_setting(model: Any, tokenizer: Any, vocab: int, labelled: int, repeats: int) -> dict[str, Any]:
    """Measure both losses with so many labelled tokens per row."""
    import torch

    from text2grad.models import fine_tuning
    from text2grad.models.adapters import base_of
    from text2grad.models.fine_tuning import FineTuning, supervised_trainer

    fine_tuning.WHOLE_LOGITS_BYTES = 0  # ours for `--tiny`, too
    generator = torch.Generator().manual_seed(labelled)
    rows = []
    for length in LENGTHS:
        ids = torch.randint(3, vocab, (length,), generator=generator).tolist()
        rows.append({"input_ids": ids, "labels": [-100] * (length - labelled) + ids[length - labelled :]})
    with TemporaryDirectory() as directory:
        settings = FineTuning(steps=1, batch_size=len(rows), max_tokens=max(LENGTHS))
        trainer = supervised_trainer(model, tokenizer, rows, settings, directory, logging_steps=1)
        ours = base_of(model).forward
        trls = ours.__wrapped__  # TRL's, in whose place `supervised_trainer` put its own
        batch = dict(trainer.data_collator(rows))
        model.train()
        seconds, found = {"ours": float("inf"), "trl": float("inf")}, {}
        for _ in range(repeats):
            for name, forward in (("ours", ours), ("trl", trls)):
                base_of(model).forward = forward
                loss, spent, gradients = loss_of(trainer, batch)
                seconds[name], found[name] = min(seconds[name], spent), (loss, gradients)
        del base_of(model).forward
    pairs = list(zip(found["ours"][1], found["trl"][1], strict=True))
    return {
        "labelled": labelled,
        "seconds": seconds,
        "ratio": seconds["trl"] / seconds["ours"],
        "difference_of_loss": abs(found["ours"][0] - found["trl"][0]),
        "largest_difference_of_a_gradient": max(float((a - b).abs().max()) for a, b in pairs),
        "largest_gradient": max(float(b.abs().max()) for _, b in pairs),
    }


def main() -> None:
    """Measure every number of labels."""
    import torch

    from text2grad.tasks.tiny import word_tokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a model of two layers, to try the script")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = TINY if args.tiny else LARGE
    model = build(shape, context=max(LENGTHS))
    tokenizer = word_tokenizer(["a"])
    results = [one_setting(model, tokenizer, shape["vocab"], labelled, args.repeats) for labelled in LABELLED]
    found = {"rows": LENGTHS, "model": shape, "settings": results}
    print(json.dumps(found, indent=1))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
