"""Texts of a task: prompts with answers and critiques; an untrained policy whose tokenizer knows them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2grad.tasks.base import Task
from text2grad.tasks.summarization.task import SummarizationTask
from text2grad.tasks.tiny import tiny_llama, word_tokenizer


def texts_of(task: Task, n: int, seed: int = 0) -> list[str]:
    """Return n texts of prompt, answer and critique; every second answer is a corruption."""
    rng = task._random("texts", seed)
    examples = task.examples(n, seed)
    answers = [(task.corruption if i % 2 else task.demonstration)(e, rng) for i, e in enumerate(examples)]
    critiques = task.critic()(examples, answers)
    return [
        f"{example.prompt_text} {answer}\n{critique.feedback}"
        for example, answer, critique in zip(examples, answers, critiques, strict=True)
    ]


def untrained_policy(path: Path, *texts: str, symbols: Sequence[str] = ()) -> tuple[Any, Any]:
    """Write a small policy with random weights, for summaries and further texts; return it and its tokenizer."""
    tokenizer = word_tokenizer([*texts_of(SummarizationTask("train"), 200), *texts], symbols)
    policy = tiny_llama(tokenizer, seed=0, width=32, layers=1)
    policy.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return policy, tokenizer
