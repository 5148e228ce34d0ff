"""A trainer takes what a researcher has at hand: names, files, dicts, data sets, and settings by name."""

import json
import random
from pathlib import Path
from typing import Any

import datasets
import pytest

import small_run
from text2grad.config.recipe import Recipe, make_recipe
from text2grad.errors import ConfigError, DataError
from text2grad.rl.arguments import examples_of, settings_of
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.types import Critique, Example

SMALL = {"steps": 1, "batch_size": 4, "max_new_tokens": 4, "tracker": "none", "threads": 1}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy")
    tokenizer, model = small_run.tokenizer_and_model()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_model_by_its_directory_a_critic_a_list_of_prompts_and_settings_by_name(policy: Path, tmp_path: Path) -> None:
    trainer = Text2GradTrainer(
        str(policy), small_run.ColourCritic(), ["red cat", "one dog"], **SMALL, out=str(tmp_path)
    )
    assert trainer.tokenizer.get_vocab() == small_run.tokenizer_and_model()[0].get_vocab()
    assert (trainer.train() / "model.safetensors").exists()


def test_a_loaded_model_brings_the_tokenizer_of_its_directory(policy: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy)
    trainer = Text2GradTrainer(model, small_run.ColourCritic(), ["red"], SMALL | {"run.out": str(tmp_path)})
    assert len(trainer.tokenizer) == len(small_run.tokenizer_and_model()[0])
    made_here = small_run.tokenizer_and_model()[1]
    with pytest.raises(ConfigError, match="the tokenizer of this LlamaForCausalLM is not known: give it as proc"):
        Text2GradTrainer(made_here, small_run.ColourCritic(), ["red"], SMALL, out=str(tmp_path / "other"))


def test_a_critic_by_its_name_and_a_recipe_by_its_file(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "polite.py").write_text("def critic(examples, responses):\n    return ['' for _ in responses]\n")
    (tmp_path / "my.toml").write_text(f'[run]\nsteps = 7\nout = "{tmp_path / "run"}"\ntracker = "none"\n')
    monkeypatch.chdir(tmp_path)
    trainer = Text2GradTrainer(policy, "polite:critic", ["red"], "my.toml", steps=2, max_new_tokens=4)
    assert (trainer.recipe.run.steps, trainer.critic.__name__) == (2, "critic")


CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["a", "b"], [Example("a"), Example("b")]),
        ([Example("a", "r")], [Example("a", "r")]),
        ([{"prompt": "a", "reference": "r", "level": 2}], [Example("a", "r", meta={"level": 2})]),
        ([{"messages": CHAT}], [Example(CHAT[:1], "Hello")]),
        (datasets.Dataset.from_dict({"prompt": ["a", "b"]}), [Example("a"), Example("b")]),
        (datasets.Dataset.from_dict({"prompt": [CHAT[:1]], "tests": ["t"]}), [Example(CHAT[:1], None, "t")]),
    ],
    ids=["prompts", "examples", "dicts", "chats", "data set", "data set of chats"],
)
def test_rows_of_any_kind_are_examples(rows: Any, expected: list[Example]) -> None:
    assert examples_of(rows, "train_dataset") == expected


def test_a_file_of_examples_is_read(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "a"}) + "\n")
    assert examples_of(tmp_path / "prompts.jsonl", "train_dataset") == [Example("a")]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "train_dataset holds no examples"),
        ([{"text": "a"}], r'train_dataset\[0\]: an example is an object with a "prompt"'),
        (["a", 3], r'train_dataset\[1\]: an example is an object with a "prompt"'),
        (datasets.DatasetDict({"train": datasets.Dataset.from_dict({"prompt": ["a"]})}), "the splits train; name one"),
        (7, "train_dataset is a int: give a JSONL file"),
    ],
)
def test_rows_that_are_no_examples_are_named(rows: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        examples_of(rows, "train_dataset")


@pytest.mark.parametrize(
    "given",
    [
        {"run": {"steps": 7}, "optim": {"lr": 0.5}},
        {"run.steps": 7, "optim.lr": 0.5},
        {"steps": 7, "lr": 0.5},
        {"run": {"steps": 7}, "lr": 0.5},
    ],
    ids=["sections", "dotted", "short", "mixed"],
)
def test_settings_by_section_by_full_name_and_by_key(given: dict[str, Any]) -> None:
    expected = make_recipe({"run": {"steps": 7}, "optim": {"lr": 0.5}})
    assert settings_of(given, {}) == settings_of(None, given) == expected


def test_keywords_change_a_recipe_and_leave_its_other_settings() -> None:
    recipe = make_recipe({"run": {"steps": 7, "seed": 3}, "rollout": {"eos_token_ids": [2]}})
    assert settings_of(recipe, {}) is recipe
    changed = settings_of(recipe, {"steps": 9})
    assert (changed.run.steps, changed.run.seed, changed.rollout.eos_token_ids) == (9, 3, (2,))
    assert settings_of(None, {}) == Recipe()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"step": 7}, "there is no setting 'step'; did you mean 'steps'"),
        ({"learning_speed_of_all": 7}, "`text2grad recipe` lists all settings"),
        ({"run.step": 7}, r'\[run\] has no key "step"'),
        ({"steps": "many"}, r"\[run\] steps"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settings_of(given, {})


def test_settings_of_another_library_are_refused() -> None:
    from transformers import TrainingArguments

    with pytest.raises(ConfigError, match=r"args is a TrainingArguments; give a text2grad\.Recipe"):
        settings_of(TrainingArguments(use_cpu=True), {})  # type: ignore[arg-type]


def test_held_out_prompts_are_evaluated_before_between_and_after(policy: Path, tmp_path: Path) -> None:
    class Told(small_run.ColourCritic):
        def __call__(self, examples: Any, responses: Any) -> Any:
            calls.append([example.prompt for example in examples])
            return [Critique("", outcome=random.random()) for _ in responses]

    calls: list[list[str]] = []
    settings = {**SMALL, "steps": 4, "eval_every": 2}
    trainer = Text2GradTrainer(
        policy, Told(), ["red", "blue"], settings, eval_dataset=["one", "two", "three"], out=str(tmp_path / "run")
    )
    trainer.train()
    held_out = [number for number, prompts in enumerate(calls) if prompts == ["one", "two", "three"]]
    assert held_out == [0, 3, 6]  # beside four steps
    calls.clear()
    plain = Text2GradTrainer(policy, Told(), ["red", "blue"], settings, out=str(tmp_path / "plain"))
    plain.train()
    small_run.assert_same_run(tmp_path / "run", tmp_path / "plain")  # to be evaluated changes no training
