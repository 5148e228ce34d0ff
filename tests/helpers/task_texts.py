"""Texts of a task: prompts with answers and critiques."""

from text2grad.tasks.base import Task


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
