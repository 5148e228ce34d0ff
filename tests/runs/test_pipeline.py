"""The models before RL: the phases, and what is refused."""

from pathlib import Path

import pytest

from small_pipeline import SHORT, assert_start_is_fine_tuned, recipe_of
from text2grad.errors import ConfigError
from text2grad.runs.pipeline import (
    WITHOUT_REWARD_MODEL,
    Phase,
    Pipeline,
)


def pipeline_of(out: Path, *overrides: str) -> Pipeline:
    return Pipeline(recipe_of(*overrides), out, lambda *_: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "seed-0"
    pipeline = pipeline_of(out, *SHORT)
    pipeline.run(phases=WITHOUT_REWARD_MODEL)
    pipeline.evaluate()
    return out


def test_two_phases_make_the_start_of_a_run_with_a_program_critic(made: Path) -> None:
    assert_start_is_fine_tuned(made)


def write_place(pipeline: Pipeline, path: Path) -> None:
    path.write_text(str(pipeline.out))


def test_further_phases_are_made_by_the_functions_that_are_given(tmp_path: Path) -> None:
    recipe = recipe_of(*SHORT)
    further: dict[str, Phase] = {"note": write_place}
    pipeline = Pipeline(recipe, tmp_path, lambda *state: None, further)
    pipeline.run(["note"], phases=())
    assert (tmp_path / "note").read_text() == str(tmp_path)
    with pytest.raises(ConfigError, match=r"a phase has no value 'nothing'.*Known values: sft, .*, note$"):
        pipeline.run(["nothing"], phases=())


def test_a_start_that_needs_a_reward_model_is_refused_without_one(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path / "none", *SHORT, "quickstart.after_reward_model=200")
    with pytest.raises(ConfigError) as caught:
        pipeline.run(phases=WITHOUT_REWARD_MODEL)
    assert str(caught.value) == (
        "quickstart.after_reward_model = 200: the start needs a reward model, and the phases are sft, start. Set "
        "quickstart.after_reward_model = 0, so that the start is the fine-tuned model"
    )
    assert not (tmp_path / "none").exists()


def test_an_unknown_phase_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^a phase has no value 'begin'\. Known values: sft, annotations, reward_model"
    ):
        pipeline_of(tmp_path, *SHORT).run(["begin"])
