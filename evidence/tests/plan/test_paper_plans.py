"""The records of the paper's plans: every command with its own settings, and a plan made anew beside its record."""

import json

import pytest

from evidence.plan.paper_plans import ALL, RESULTS, changed_settings, planned

RECORDS = json.loads(RESULTS.read_bytes())


def test_the_records_have_every_command_with_its_own_settings() -> None:
    assert {(plan["recipe"], plan["where"], plan["phase"]) for plan in RECORDS} == set(ALL)
    for plan in RECORDS:
        assert plan["settings"] == changed_settings(plan["recipe"], plan["phase"], plan["processes"])
    layers = 'model.lora_targets=["q_proj","k_proj","v_proj","o_proj"]'
    assert changed_settings("paper/kodcode", "reward", 8) == [layers, "reward_model.accumulate=1"]
    assert changed_settings("paper/slf5k", "train", 8) == ["rollout.batch_size=16"]  # 12, in multiples of 8
    assert changed_settings("paper/slf5k", "sft", 4) == ["sft.accumulate=2"]  # of 8


@pytest.mark.parametrize(
    ("recipe", "where", "phase"),
    [asked if asked[:2] == ("qwen-0.5b", "1") else pytest.param(*asked, marks=pytest.mark.slow) for asked in ALL],
)
def test_a_plan_made_anew_is_that_of_the_record(recipe: str, where: str, phase: str) -> None:
    """The records were made with the words of a prompt that a reward model was shown."""
    asked = (recipe, where, phase)
    (record,) = (plan for plan in RECORDS if (plan["recipe"], plan["where"], plan["phase"]) == asked)
    plan = planned(*asked)
    assert plan["peak"] == pytest.approx(record["peak"], rel=0.03)
    assert (plan["peak_phase"], plan["fits"]) == (record["peak_phase"], record["fits"])
