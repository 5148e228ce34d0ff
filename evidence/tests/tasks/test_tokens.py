"""Texts of the tasks in the tokenizer that is made for them."""

import pytest

from evidence.tasks.code.task import CodeTask
from evidence.tasks.qa.task import QATask
from text2grad.tasks.base import Task
from text2grad.tasks.registry import built_in
from text2grad.tasks.tiny import word_tokenizer
from verdict_tokens import check_verdicts


def test_every_opening_of_the_stories_task_comes_back() -> None:
    task = built_in("stories")
    texts = [example.prompt_text for example in (*task.train(100, 0), *task.held_out(100, 0))]
    tokenizer = word_tokenizer(texts)
    for text in texts:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.parametrize("task", [QATask(), CodeTask()], ids=lambda task: task.name)
@pytest.mark.parametrize("escaped", [False, True])
def test_a_verdict_is_one_token_right_after_the_quoted_word(task: Task, escaped: bool) -> None:
    check_verdicts(task, escaped=escaped)
