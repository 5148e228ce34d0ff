"""The models before RL where the task has a length: the phases, the context of the models, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from evidence.tasks.lengths import (
    CONTEXT,
    WITHOUT_REWARD_MODEL,
    LengthPipeline,
    Phase,
    copy_weights,
    count_tokens,
    longest_text,
    training_lengths,
)
from small_pipeline import SHORT, assert_start_is_fine_tuned, recipe_of
from text2grad.config import load_recipe
from text2grad.errors import ConfigError
from text2grad.feedback import annotate
from text2grad.models import FineTuning, load_tokenizer
from text2grad.reward_models import critique_target
from text2grad.runs.pipeline import Pipeline
from text2grad.runs.prompts import recipe_task, run_examples, world_of
from text2grad.runs.recipe_run import critic_of_run, run_recipe
from text2grad.tasks import TaskSettings, procedural_task, tiny_llama, word_tokenizer
from text2grad.types import Example

TWO_POSTS = [*SHORT, "world.length=2", "world.truths=false", "rollout.max_new_tokens=46"]


def pipeline_of(out: Path, *overrides: str) -> LengthPipeline:
    return LengthPipeline(recipe_of(*overrides), out)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "seed-0"
    pipeline = pipeline_of(out, *TWO_POSTS)
    pipeline.run_phases(WITHOUT_REWARD_MODEL)
    pipeline.evaluate()
    return out


def test_two_phases_make_the_start_of_a_run_with_a_program_critic(made: Path) -> None:
    assert_start_is_fine_tuned(made)


def test_a_run_trains_evaluates_and_is_judged_with_the_settings_of_its_task(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    overrides = [f"model.path={made / 'start'}", f"run.out={out}", "run.steps=1", "rollout.batch_size=4"]
    recipe = recipe_of(*TWO_POSTS, *overrides, "refresh.steps=[]", "refresh.audit=0")
    run_recipe(recipe)
    [line] = (out / "rollouts" / "00000.jsonl").read_text("utf-8").splitlines()[:1]
    record = json.loads(line)
    assert record["prompt"].startswith("A: ")
    assert "is right: " not in record["critique"]["feedback"]
    evaluation = json.loads(sorted((out / "evaluations").glob("*.json"))[-1].read_bytes())
    assert len(evaluation["responses"]) == 8
    assert all("\nB: " in row["prompt"] for row in evaluation["responses"])
    critic = critic_of_run(recipe, out, next(path for path in sorted(out.glob("checkpoints/*")) if path.is_dir()))
    assert critic is not None
    [critique] = critic([run_examples(recipe).held_out[0]], [""])
    assert critique.feedback == "The summary is empty."


@pytest.mark.parametrize("length", [0, 8])
def test_prompt_answer_and_critique_of_the_longest_items_fit_the_context(length: int, tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, f"world.length={length}", "rollout.max_new_tokens=180")
    task = pipeline.task
    if not length:
        assert pipeline.context == CONTEXT
        return
    examples = task.examples(40, seed=7)  # of another seed than those that were measured
    said = [str(example.reference) for example in examples]
    targets = [critique_target(one.critique, one.response) for one in annotate(task.critic(), examples, said)]
    longest = max(map(count_tokens, (e.prompt_text + t for e, t in zip(examples, targets, strict=True)))) + 180
    assert CONTEXT < longest <= pipeline.context < 2 * longest


def test_the_models_of_a_length_have_its_context(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path / "long", *SHORT, "world.length=8", "rollout.max_new_tokens=180")
    pipeline.run_phases(("sft",))
    assert AutoConfig.from_pretrained(tmp_path / "long" / "sft").max_position_embeddings == pipeline.context
    assert pipeline.context == max(CONTEXT, longest_text(pipeline.task, 180))
    tokenizer = load_tokenizer(str(tmp_path / "long" / "sft"))
    words = tokenizer.get_vocab()
    assert all(word in words and f" {word}" in words for word in pipeline.task.vocabulary())


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, [0]), (1, [1]), (8, [2, 4, 8])],
)
def test_fine_tuning_begins_with_short_items(length: int, expected: list[int]) -> None:
    assert training_lengths(procedural_task("summarization", "train", TaskSettings(length))) == expected


def test_each_length_has_its_share_of_the_steps_and_the_batch_has_as_many_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[int, int, set[int], int]] = []

    def fine_tune(
        model: Any, _: Any, examples: list[Example], answers: list[str], settings: FineTuning, *, on_step: Any
    ) -> Any:
        parts = {len(example.meta["parts"]) for example in examples}
        assert {answer.count("\n") + 1 for answer in answers} == parts
        trained.append((settings.steps, settings.batch_size, parts, len(examples)))
        on_step(1)
        return model

    monkeypatch.setattr("evidence.tasks.lengths.fine_tune", fine_tune)
    overrides = ["world.length=8", "rollout.max_new_tokens=150", "sft.steps=7", "sft.batch_size=2"]
    recipe = recipe_of(*SHORT, *overrides)
    LengthPipeline(recipe, tmp_path).run_phases(("sft",))
    assert trained == [(2, 8, {2}, 16), (2, 4, {4}, 8), (3, 2, {8}, 6)]


def test_a_limit_below_the_shortest_answer_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    # Eight lines of 17 tokens, 7 line breaks, and the end.
    recipe = recipe_of("world.length=8", "rollout.max_new_tokens=143", f"run.out={tmp_path / 'run'}")
    for call in (lambda: world_of(recipe), lambda: run_recipe(recipe)):
        with pytest.raises(ConfigError, match=r"^rollout\.max_new_tokens = 143: at length 8 the shortest .* 144 "):
            call()
    with pytest.raises(ConfigError, match=r"^rollout\.max_new_tokens = 143"):
        LengthPipeline(recipe, tmp_path / "models").run_phases()
    assert not list(tmp_path.iterdir())
    world_of(recipe_of("world.length=8", "rollout.max_new_tokens=144"))
    world_of(recipe_of("rollout.max_new_tokens=4"))  # usual items: the user's choice


def test_the_recipe_gives_the_task_its_settings() -> None:
    recipe = recipe_of("world.length=8", "world.faults=0.25", "world.truths=false", "rollout.max_new_tokens=180")
    assert world_of(recipe)[0] == TaskSettings(8, 0.25, False)
    task = recipe_task(recipe)
    assert task is not None
    assert task.critic() == type(task.critic())(truths=False)
    assert task.train(3, 1)[0].prompt_text.startswith("A: ")


@pytest.mark.parametrize(("setting", "named"), [("world.length=2", "length"), ("world.faults=0.5", "faults")])
def test_the_settings_of_a_task_are_refused_without_one(setting: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('[data]\ntrain = "prompts.jsonl"\n', "utf-8")
    with pytest.raises(ConfigError, match=rf"^{named} in \[world\]: only a built-in task has them; set data\.task"):
        run_examples(load_recipe(path, [setting]))


def write_place(pipeline: Pipeline, path: Path) -> None:
    path.write_text(str(pipeline.out))


def test_further_phases_are_made_by_the_functions_that_are_given(tmp_path: Path) -> None:
    further: dict[str, Phase] = {"note": write_place}
    pipeline = LengthPipeline(recipe_of(*SHORT), tmp_path, further)
    pipeline.run_phases(["note"])
    assert (tmp_path / "note").read_text() == str(tmp_path)
    with pytest.raises(ConfigError, match=r"a phase has no value 'nothing'.*Known values: sft, .*, note$"):
        pipeline.run_phases(["nothing"])


def test_a_start_that_needs_a_reward_model_is_refused_without_one(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path / "none", *SHORT, "quickstart.after_reward_model=200")
    with pytest.raises(ConfigError) as caught:
        pipeline.run_phases(WITHOUT_REWARD_MODEL)
    assert str(caught.value) == (
        "quickstart.after_reward_model = 200: the start needs a reward model, and the phases are sft, start. Set "
        "quickstart.after_reward_model = 0, so that the start is the fine-tuned model"
    )
    assert not (tmp_path / "none").exists()


def test_a_model_with_more_words_says_the_same_about_the_known_ones() -> None:
    """A word in front changes every id; the two models agree on texts of known words, new words apart."""
    words = ["red cat", " red"]
    known, more = word_tokenizer(words, ["<x>"]), word_tokenizer([*words, "a a a", " cat a"], ["<y>", "<x>"])
    source, target = tiny_llama(known, seed=1), tiny_llama(more, seed=2)
    copy_weights(source, known, target, more)
    texts = {"input_ids": known("red cat<x>", return_tensors="pt").input_ids}
    again = {"input_ids": more("red cat<x>", return_tensors="pt").input_ids}
    assert texts["input_ids"].tolist() != again["input_ids"].tolist()
    ours, theirs = source(**texts).logits, target(**again).logits
    columns = [more.get_vocab()[token] for token, _ in sorted(known.get_vocab().items(), key=lambda item: item[1])]
    torch.testing.assert_close(theirs[..., columns], ours)
    assert len(more) == len(known) + 3  # "a", " a" and "<y>"
