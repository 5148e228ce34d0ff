"""Finished runs → records: by hand from a small run directory, and files of records."""

import json
from pathlib import Path
from typing import Any

import pytest

from evidence.plans.records import (
    FIELDS,
    KEY,
    Place,
    append_record,
    read_records,
    recipe_digest,
    record_of,
    settings_between,
)
from pretended_runs import write_run
from text2grad.config.recipe import Recipe, make_recipe
from text2grad.errors import DataError

PLACE = Place("short", "qa", 4, 0.5, "program", "grpo", "tuning", 3, 7)
BASE = make_recipe({"data": {"task": "qa"}, "rollout": {"batch_size": 8}, "optim": {"lr": 1e-3}})


def recipe(**sections: dict[str, Any]) -> Recipe:
    given = {"data": {"task": "qa"}, "rollout": {"batch_size": 8}, "optim": {"lr": 1e-3}, "run": {"steps": 3}}
    return make_recipe({name: {**given.get(name, {}), **sections.get(name, {})} for name in {*given, *sections}})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = recipe(
        model={"path": "runs/start"},
        data={"eval_every": 2},
        world={"eval_seed": 11, "length": 4, "faults": 0.5},
        optim={"lr": 2e-3},
        run={"seed": 7, "out": "runs/x", "save_every": 1, "steps": 3},
        refresh={"steps": [1, 2]},
    )
    write_run(tmp_path / "run", made, [0.25, 1.0, 1 / 3])
    return tmp_path / "run"


def test_a_record_by_hand(run: Path) -> None:
    record = record_of(run, PLACE, BASE)
    assert record.pop("machine").keys() == {"cpu", "threads", "torch"}
    assert record.pop("recipe") == recipe_digest(BASE)
    assert record == {
        **{"study": "short", "task": "qa", "length": 4, "faults": 0.5, "critic": "program", "method": "grpo"},
        **{"purpose": "tuning", "trial": 3, "seed": 7, "eval_seed": 11},
        "settings": {"data.eval_every": 2, "refresh.steps": [1, 2], "optim.lr": 2e-3, "run.steps": 3},
        **{"steps": 3, "rollouts": 24, "tokens": 60, "seconds": 4.5},  # 3 × 8, × 2.5 tokens, × 1.5 s
        "start": "ab" * 8,
        "version": "0.1.0 cccccccccc",
        "metric": "fact_f1",
        "curve": [
            {
                **{"step": 0, "rollouts": 0, "tokens": 0, "seconds": 0.0, "value": 0.0, "kl_per_token": 0.0},
                "metrics": {"fact_f1": 0.0, "rouge_l": 0.0, "kl_per_token": 0.0},
            },
            {
                **{"step": 3, "rollouts": 24, "tokens": 60, "seconds": 4.5, "value": 0.527778, "kl_per_token": 0.06},
                "metrics": {"fact_f1": 0.527778, "rouge_l": -0.527778, "kl_per_token": 0.06},
            },
        ],
        "items": [0.25, 1.0, 0.333333],
        "items_at_start": [0.0, 0.0, 0.0],
        "item_ids": ["8a8de823"] * 3,  # the first 8 digits of the SHA-256 of "?"
        "diagnostics": {"entropy/per_token": 2.0, "length/mean": 2.5},  # the last of three steps
    }


def test_the_settings_are_those_asked_for_where_the_command_added_its_own(run: Path) -> None:
    asked = recipe(optim={"lr": 5e-3}, run={"steps": 3})
    assert record_of(run, PLACE, BASE, asked=asked)["settings"] == {"optim.lr": 5e-3, "run.steps": 3}


def test_a_curve_in_the_middle_counts_the_steps_before(run: Path) -> None:
    evaluation = json.loads((run / "evaluations" / "000003.json").read_bytes())
    (run / "evaluations" / "000002.json").write_text(json.dumps({**evaluation, "step": 2}))
    point = record_of(run, PLACE, BASE)["curve"][1]
    assert (point["step"], point["rollouts"], point["tokens"], point["seconds"]) == (2, 16, 40, 3.0)


def test_a_run_that_diverged_has_the_items_of_its_last_evaluation_and_the_error(run: Path) -> None:
    (run / "evaluations" / "000003.json").unlink()
    record = record_of(run, PLACE, BASE, error="TrainingError: not finite")
    assert record["error"] == "TrainingError: not finite"
    assert record["items"] == record["items_at_start"] == [0.0, 0.0, 0.0]


def test_a_run_without_metric_has_rewards_as_items(run: Path) -> None:
    for file in (run / "evaluations").iterdir():
        found = json.loads(file.read_bytes())
        rewards = [{"prompt": "?", "reward": -1.5, "metrics": {}}]
        file.write_text(json.dumps({**found, "metric": "reward", "metrics": {"reward": -1.5}, "responses": rewards}))
    assert record_of(run, PLACE, BASE)["items"] == [-1.5]


def test_a_run_without_evaluations_has_no_record(run: Path) -> None:
    for file in (run / "evaluations").iterdir():
        file.unlink()
    with pytest.raises(
        DataError, match=r"has no evaluation on held-out items; a record needs data\.eval_examples above"
    ):
        record_of(run, PLACE, BASE)


def test_the_digest_of_a_recipe_holds_what_it_sets() -> None:
    assert recipe_digest(BASE) == recipe_digest(recipe(run={"out": "elsewhere"}).model_copy(update={"run": BASE.run}))
    assert recipe_digest(BASE) != recipe_digest(recipe(optim={"lr": 2e-3}))
    assert recipe_digest(make_recipe({})) == recipe_digest(make_recipe({"model": {"path": "x"}}))


def test_paths_seeds_and_output_are_no_settings() -> None:
    other = recipe(
        model={"path": "a"},
        critic={"model": "b"},
        world={"eval_seed": 3, "length": 2, "faults": 0.1},
        run={"seed": 5, "threads": 2, "tracker": "none", "steps": 100},
        rollout={"rows_at_once": 2},
    )
    assert settings_between(BASE, other) == {}
    assert settings_between(BASE, recipe(ppo={"beta": 0.3}, run={"steps": 100})) == {"ppo.beta": 0.3}
    assert settings_between(recipe(ppo={"beta": 0.3}), recipe()) == {"ppo.beta": 0.05}


def test_a_run_has_one_record(run: Path, tmp_path: Path) -> None:
    records, record = tmp_path / "records", record_of(run, PLACE, BASE)
    assert append_record(records, record)
    assert not append_record(records, {**record, "seconds": 9.0})
    for name, value in {
        **{"task": "code", "length": 8, "faults": 0.1, "critic": "reward_model", "method": "rloo"},
        **{"purpose": "evaluation", "trial": None, "seed": 8, "recipe": "r", "settings": {}},
    }.items():
        assert append_record(records, {**record, name: value}), name
    assert append_record(records, {**record, "study": "another"})
    found = read_records(records / "short.jsonl")
    assert found[0] == record
    assert len(found) == len(KEY)
    assert [one["study"] for one in read_records(records)] == ["another"] + ["short"] * len(KEY)
    assert sorted(path.name for path in records.iterdir()) == ["another.jsonl", "short.jsonl"]


@pytest.mark.parametrize("name", FIELDS)
def test_a_record_without_a_field_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    record, path = record_of(run, PLACE, BASE), tmp_path / "short.jsonl"
    path.write_text(json.dumps(record) + "\n" + json.dumps({k: v for k, v in record.items() if k != name}) + "\n")
    with pytest.raises(DataError) as caught:
        read_records(path)
    assert str(caught.value) == f"{path}:2: the record has no {name!r}"


def test_damaged_files_are_refused(run: Path, tmp_path: Path) -> None:
    record, path = record_of(run, PLACE, BASE), tmp_path / "short.jsonl"
    for line, message in {
        "{": "not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); restore the line "
        "from version control, or remove it",
        "[]": "a record is an object, got list",
        json.dumps({**record, "seed": True}): "'seed' is true, not int",
        json.dumps({**record, "trial": "1"}): "'trial' is \"1\", not int",
        json.dumps(record) + "\n" + json.dumps(record): "the run has a record in line 1, too; remove one of the lines",
    }.items():
        path.write_text(line + "\n")
        with pytest.raises(DataError) as caught:
            read_records(path)
        assert str(caught.value) == f"{path}:{1 + line.count(chr(10))}: {message}"
    with pytest.raises(DataError, match="`python -m evidence experiment` writes such files"):
        read_records(tmp_path / "none.jsonl")
