"""A policy that says what a test wants: tiny models, chat templates of TRL, and tokens that are forced."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from text2grad.models import sampling
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.tasks.tiny import tiny_llama


def force(monkeypatch: pytest.MonkeyPatch, tokenizer: Any, say: Callable[[str], str]) -> list[list[tuple[int, ...]]]:
    """Let the policy sample what `say` returns for the text of a prompt; return the prompts of each batch."""
    decode, seen = sampling.decode, list[list[tuple[int, ...]]]()

    def forced(model: Any, prompts: Sequence[tuple[int, ...]], choose: Any, **how: Any) -> Any:
        seen.append([tuple(prompt) for prompt in prompts])
        texts = [say(tokenizer.decode(list(prompt))) for prompt in prompts]
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]

        def said(logits: Any, rows: Any, step: int) -> Any:
            choose(logits, rows, step)
            return torch.tensor([ids[row][min(step, len(ids[row]) - 1)] for row in rows.tolist()])

        return decode(model, prompts, said, **how)

    monkeypatch.setattr(sampling, "decode", forced)
    return seen


def trainer(out: Path, tokenizer: Any, prompts: Sequence[Any], critic: Any = None, **given: Any) -> Text2GradTrainer:
    """Return a trainer of a random model with this tokenizer."""
    settings: dict[str, Any] = {"batch_size": len(prompts), "max_new_tokens": 120, "steps": 2, "tracker": "none"}
    settings |= {"threads": 1, "out": str(out), "seed": 5, "epochs": 1}
    model = tiny_llama(tokenizer, seed=1, width=16, layers=1, context=3000)
    return Text2GradTrainer(model, critic, list(prompts), processing_class=tokenizer, **{**settings, **given})
