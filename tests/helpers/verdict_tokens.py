"""Verdicts of a task's critiques as tokens of the tokenizer made for it."""

import json
import re

from task_texts import texts_of
from text2grad.tasks.base import Task
from text2grad.tasks.tiny import word_tokenizer


def check_verdicts(task: Task, *, escaped: bool) -> None:
    """Assert that each verdict is one token after its quote; `escaped` takes critiques as they stand within JSON."""
    examples, texts = task.examples(300), texts_of(task, 300)
    critiques = [
        text.removeprefix(example.prompt_text).split("\n")[-1] for example, text in zip(examples, texts, strict=True)
    ]
    verdicts = task.verdicts()
    if escaped:
        critiques, verdicts = ([json.dumps(text)[1:-1] for text in some] for some in (critiques, verdicts))
    tokenizer = word_tokenizer(critiques, verdicts)
    known, seen = {*verdicts}, set()
    for critique in critiques:
        tokens = tokenizer.convert_ids_to_tokens(tokenizer(critique).input_ids)
        assert "".join(tokens) == critique
        quoted = re.findall(r'"[^"]*"', critique)
        assert sum(token in known for token in tokens) == len(quoted)
        seen |= known & {*tokens}
    assert len(seen) > 0.7 * len(known)
