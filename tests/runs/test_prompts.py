"""Which prompts are trained on and which are held out."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from text2grad.config.recipe import make_recipe
from text2grad.errors import ConfigError, DataError
from text2grad.runs.prompts import RunExamples, run_examples
from text2grad.tasks.registry import built_in
from text2grad.types import Example

PROMPTS = [f"prompt {number}" for number in range(50)]


def write(path: Path, prompts: Sequence[Any]) -> str:
    path.write_text("".join(json.dumps({"prompt": prompt, "row": row}) + "\n" for row, prompt in enumerate(prompts)))
    return str(path)


def split(train: str, **data: Any) -> RunExamples:
    return run_examples(make_recipe({"data": {"train": train, **data}}))


def texts(examples: Sequence[Example]) -> list[str]:
    return [example.prompt_text for example in examples]


def test_a_share_depends_on_prompts_alone(tmp_path: Path) -> None:
    ordered = split(write(tmp_path / "a.jsonl", PROMPTS), held_out=0.2)
    assert len(ordered.held_out) == 10
    assert sorted(texts(ordered.train) + texts(ordered.held_out)) == sorted(PROMPTS)
    assert texts(ordered.held_out) == [prompt for prompt in PROMPTS if prompt in texts(ordered.held_out)]
    mixed = Random(1).sample(PROMPTS, len(PROMPTS))
    shuffled = split(write(tmp_path / "b.jsonl", mixed), held_out=0.2)
    assert set(texts(shuffled.held_out)) == set(texts(ordered.held_out))
    recipe = make_recipe({"data": {"train": str(tmp_path / "a.jsonl"), "held_out": 0.2}, "run": {"seed": 7}})
    assert run_examples(recipe) == ordered, "runs of several seeds are evaluated on the same prompts"


def test_equal_prompts_are_on_one_side_with_all_their_examples(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "prompt 3"}]  # the same text as a chat
    found = split(write(tmp_path / "a.jsonl", [*PROMPTS[:10], *PROMPTS[:10], chat]), held_out=0.5)
    assert not set(texts(found.train)) & set(texts(found.held_out))
    assert len(found.train) + len(found.held_out) == 21
    assert [example.meta["row"] for example in found.held_out] == sorted(e.meta["row"] for e in found.held_out)


def test_an_evaluation_takes_a_bounded_number_and_the_others_stay_held_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", PROMPTS)
    everything, some = split(path, held_out=0.4), split(path, held_out=0.4, eval_examples=5)
    assert some.train == everything.train
    assert len(some.held_out) == 5
    assert all(example in everything.held_out for example in some.held_out)
    assert some.held_out != everything.held_out[:5], "a sorted file is not cut after its first topic"
    more = split(path, held_out=0.4, eval_examples=10)
    assert all(example in more.held_out for example in some.held_out), "a larger evaluation holds the smaller one"
    assert split(path, held_out=0.4, eval_examples=0).held_out == []
    doubles = split(write(tmp_path / "b.jsonl", ["a", "a", "a", "b", "b", "b"]), held_out=0.5, eval_examples=2)
    assert len(doubles.held_out) == 2


def test_prompts_of_a_held_out_file_are_removed_from_training(tmp_path: Path) -> None:
    held_out = write(tmp_path / "held.jsonl", ["new", PROMPTS[4], PROMPTS[2]])
    found = split(write(tmp_path / "a.jsonl", [*PROMPTS[:6], PROMPTS[4]]), held_out=held_out)
    assert texts(found.held_out) == ["new", PROMPTS[4], PROMPTS[2]]
    assert texts(found.train) == [PROMPTS[0], PROMPTS[1], PROMPTS[3], PROMPTS[5]]
    assert found.removed == 3  # "prompt 2" once, "prompt 4" twice


@pytest.mark.parametrize(
    ("prompts", "data", "text"),
    [
        (["a"], {"held_out": 0.5}, "has one prompt only"),
        (["a", "a"], {"held_out": 0.5}, "has one prompt only"),
        (["a", "b"], {"held_out": "all.jsonl"}, "all 2 prompts of .* are in all.jsonl, too"),
        (["a", "b"], {"held_out": "nowhere.jsonl"}, "nowhere.jsonl"),
    ],
)
def test_a_split_that_leaves_nothing_is_refused(
    prompts: list[str], data: dict[str, Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "all.jsonl", ["b", "a", "c"])
    with pytest.raises(DataError, match=text):
        split(write(tmp_path / "a.jsonl", prompts), **data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"train": "a.jsonl", "held_out": 1.0}, "held_out = 1.0: Input should be less than 1"),
        ({"train": "a.jsonl", "held_out": -0.1}, "held_out = -0.1"),
        ({"task": "summarization", "held_out": 0.1}, "a built-in task has held-out examples of its own"),
        ({"train": "a.jsonl", "metric": "m:f"}, "has no responses to measure; hold out prompts with held_out = 0.1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(data: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_recipe({"data": data})


def test_a_built_in_task_has_its_own_split() -> None:
    task, made = built_in("summarization"), {"quickstart": {"examples": 20}}
    found = run_examples(make_recipe({"data": {"task": "summarization", "eval_examples": 4}, **made}))
    assert found == RunExamples(task.train(20, 0), task.held_out(4, 0))
    assert run_examples(make_recipe({"data": {"task": "summarization", "eval_examples": 0}, **made})).held_out == []
