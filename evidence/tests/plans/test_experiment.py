"""Plans of studies: refused with reasons; run with a program that pretends to train; records, restarts and failures."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evidence.__main__ import main
from evidence.pages.pages import result_pages
from evidence.pages.records import read_runs
from evidence.pages.selection import groups, missing_of_plan
from evidence.plans.experiment import RUN_SECONDS, Experiment
from evidence.plans.experiment_plan import load_plan
from evidence.plans.jobs import run_jobs
from evidence.plans.records import read_records
from pretended_runs import PROGRAM, pretend_runs
from text2grad.config import digest_of
from text2grad.errors import ConfigError, TrainingError
from text2grad.files import write_records

RECIPE = """
[data]
task = "summarization"
eval_examples = 4
[rollout]
max_new_tokens = 60
[optim]
lr = 1e-4
[run]
steps = 3
"""
HEAD = """
runs = "{out}/runs"
records = "{out}/records"
"""
STUDY = """
[[study]]
name = "first"
task = "summarization"
recipe = "recipe.toml"
critic = "program"
methods = ["text2grad", "dr_grpo"]
seeds = [0, 1]
trials = 3
other_trials = 2
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_runs(monkeypatch, tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE)


def write_plan(tmp_path: Path, text: str = STUDY, head: str = HEAD) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(head.format(out=tmp_path) + text)
    return path


def experiment(tmp_path: Path, text: str = STUDY, head: str = HEAD, **more: Any) -> Experiment:
    path = write_plan(tmp_path, text, head)
    return Experiment(load_plan(path), path, PROGRAM, **more)


def finish(found: Experiment, *, on_poll: Callable[[str], None] = lambda _: None) -> Experiment:
    run_jobs(found.jobs(), on_poll, at_once=3)
    return found


def starts(tmp_path: Path) -> list[list[Any]]:
    lines = (tmp_path / "journal").read_text().splitlines() if (tmp_path / "journal").exists() else []
    return [[command, out.removeprefix(f"{tmp_path}/runs/"), *more] for command, out, *more in map(json.loads, lines)]


def places(tmp_path: Path) -> list[tuple[Any, ...]]:
    names = ("task", "length", "faults", "method", "purpose", "trial", "seed", "eval_seed")
    return [tuple(record[name] for name in names) for record in read_records(tmp_path / "records")]


def test_a_named_rival_gets_the_seeds_trials_and_confirmations_of_a_leading_method(tmp_path: Path) -> None:
    more = "other_seeds = [1]\nconfirm_seeds = [101]\nconfirmed = 2\nother_confirmed = 1\ntrials = 3"
    text = STUDY.replace("trials = 3", more, 1)
    (other,) = experiment(tmp_path, text).studies
    (study,) = experiment(tmp_path, text.replace("other_seeds", 'also_leading = ["dr_grpo"]\nother_seeds')).studies
    assert (other.seeds_of("dr_grpo"), other.trials_of("dr_grpo"), len(other.confirmations("dr_grpo"))) == ((1,), 2, 1)
    assert (study.seeds_of("dr_grpo"), study.trials_of("dr_grpo"), len(study.confirmations("dr_grpo"))) == (
        (0, 1),
        3,
        2,
    )


def test_a_plan_is_run_whole_and_once(tmp_path: Path) -> None:
    found = experiment(tmp_path)
    (study,) = found.studies
    amount = found.amount(study)
    assert (amount.models, amount.trials, amount.evaluations, amount.all_runs) == (3, 5, 4, 9)
    assert amount.seconds == pytest.approx(9 * RUN_SECONDS["program"] * 3 / 60 + 3 * 60.0)
    finish(found)
    every = {
        *(("text2grad", "tuning", trial, 100, 1) for trial in range(3)),
        *(("dr_grpo", "tuning", trial, 100, 1) for trial in range(2)),
        *((method, "evaluation", None, seed, 10 + seed) for method in ("text2grad", "dr_grpo") for seed in (0, 1)),
    }
    assert sorted(map(str, places(tmp_path))) == sorted(str(("summarization", 0, 1.0, *one)) for one in every)
    made = [out for command, out, *_ in starts(tmp_path) if command == "experiment"]
    assert sorted(made) == [f"models/summarization/program-seed-{seed}" for seed in (0, 1, 100)]
    again = experiment(tmp_path)
    assert again.jobs() == {}
    assert again.amount(again.studies[0]).seconds == 0.0
    assert not list((tmp_path / "runs").rglob("trial-*"))  # what is recorded is removed
    assert not list((tmp_path / "runs").rglob("run.json"))


def test_records_of_a_study_that_is_apart_say_so(tmp_path: Path) -> None:
    finish(experiment(tmp_path, STUDY.replace("trials = 3", 'trials = 1\napart = "searched with it"')))
    assert {one.apart for one in read_runs(tmp_path / "records")} == {"searched with it"}
    assert experiment(tmp_path, STUDY.replace("trials = 3", 'trials = 1\napart = "searched with it"')).jobs() == {}


def test_the_search_and_its_confirmation_have_settings_of_their_own(tmp_path: Path) -> None:
    study = STUDY.replace("trials = 3", 'trials = 3\nconfirm_seeds = [101]\ntune_settings = ["run.steps=2"]', 1)
    finish(experiment(tmp_path, study))
    steps = {
        purpose: {
            one["settings"].get("run.steps", 3)
            for one in read_records(tmp_path / "records")
            if one["purpose"] == purpose
        }
        for purpose in ("tuning", "evaluation")
    }
    assert steps == {"tuning": {2}, "evaluation": {3}}
    assert experiment(tmp_path, study).jobs() == {}
    pages = result_pages(read_runs(tmp_path / "records"), draw=False)
    assert "Trials had 2 steps, evaluations the recipe's." in pages["comparison.md"].decode()
    with pytest.raises(ConfigError, match='has no key "stps"'):
        experiment(tmp_path, study.replace("run.steps=2", "run.stps=2"))


def test_an_evaluation_has_the_best_settings_of_the_search(tmp_path: Path) -> None:
    finish(experiment(tmp_path, STUDY.replace("\ntrials = 3", "\ntrials = 8")))
    records = [one for one in read_records(tmp_path / "records") if one["method"] == "text2grad"]
    tuned = [one for one in records if one["purpose"] == "tuning"]
    best = max(tuned, key=lambda one: one["curve"][-1]["value"])
    assert best["trial"] != 0
    for one in records:
        if one["purpose"] == "evaluation":
            assert one["settings"] == best["settings"]
    (command,) = [one for one in starts(tmp_path) if one[1].endswith("seed-1/length-0-faults-1/text2grad")]
    assert "world.eval_seed=11" in command[3]
    assert "run.seed=1" in command[3]
    assert f"model.path='{tmp_path}/runs/models/summarization/program-seed-1/start'" in command[3]


def test_a_study_may_compare_by_another_metric(tmp_path: Path) -> None:
    study = STUDY.replace("\ntrials = 3", '\nmetric = "rouge_l"\ntrials = 4')
    finish(experiment(tmp_path, study))
    records = [one for one in read_records(tmp_path / "records") if one["method"] == "text2grad"]
    tuned = [one for one in records if one["purpose"] == "tuning"]
    worst = min(tuned, key=lambda one: one["curve"][-1]["metrics"]["fact_f1"])
    for one in records:
        value = one["curve"][-1]["metrics"]["rouge_l"]
        assert (one["metric"], one["curve"][-1]["value"], one["items"]) == ("rouge_l", value, [value] * 4)
        if one["purpose"] == "evaluation":
            assert one["settings"] == worst["settings"]  # the best by rouge_l
    assert experiment(tmp_path, study).jobs() == {}
    with pytest.raises(ConfigError, match=r"metric has no value 'rouge'\. Did you mean \"rouge_l\"\?"):
        experiment(tmp_path, study.replace("rouge_l", "rouge")).jobs()


def test_a_study_may_search_for_the_gain_within_a_kl(tmp_path: Path) -> None:
    """The KL is 30 × optim.lr: the best final value has a rate of 1e-3, the most gain within 0.003 a lower one.

    The best within the KL collapses on the further seed, so that the second one is evaluated, as the pages say.
    """
    study = STUDY.replace("\ntrials = 3", "\ntune_at_kl = 0.003\nconfirm_seeds = [101]\nconfirmed = 2\ntrials = 8")
    (tmp_path / "faults").write_text(json.dumps({"best-1-seed-101": [0, "-20", False]}))
    finish(experiment(tmp_path, study))
    records = [one for one in read_records(tmp_path / "records") if one["method"] == "text2grad"]
    tuned = [one for one in records if one["purpose"] == "tuning"]

    def within(record: Any) -> float:
        end = record["curve"][-1]
        return float(max(0.0, end["value"] * min(1.0, 0.003 / end["kl_per_token"])))

    own = [one for one in tuned if one["seed"] == 100]
    first, second, *_ = sorted(own, key=within, reverse=True)
    assert first["curve"][-1]["value"] < max(one["curve"][-1]["value"] for one in tuned)
    assert {one["trial"] for one in tuned if one["seed"] == 101} == {first["trial"], second["trial"]}
    assert {str(one["settings"]) for one in records if one["purpose"] == "evaluation"} == {str(second["settings"])}
    assert {one.get("at_kl") for one in tuned} == {0.003}
    assert {one.get("at_kl") for one in records if one["purpose"] == "evaluation"} == {None}
    assert experiment(tmp_path, study).jobs() == {}
    (group,) = groups(read_runs(tmp_path / "records"))
    best = group.tuning.trials["text2grad"][0]
    assert (best.number, best.seeds, best.at_kl) == (second["trial"], 2, 0.003)
    assert best.value == pytest.approx(within(second), rel=1e-4)  # both seeds have the same value
    assert (
        missing_of_plan(load_plan(tmp_path / "plan.toml"), tmp_path / "plan.toml", read_runs(tmp_path / "records"))
        == []
    )
    shutil.rmtree(tmp_path / "runs")
    assert experiment(tmp_path, study).jobs() == {}  # by the records alone
    (tmp_path / "faults").write_text("{}")
    (tmp_path / "calm").mkdir()
    (tmp_path / "calm" / "recipe.toml").write_text(RECIPE)
    calm = finish(experiment(tmp_path / "calm", study))  # the values on the further seed are the same
    ends = [one["curve"][-1]["value"] for one in (first, second)]
    assert ends[0] + within(first) < ends[1] + within(second)
    best_within = calm.best(calm.studies[0], "text2grad")
    assert best_within is not None
    assert best_within.number == first["trial"]
    other = study.replace("tune_at_kl = 0.003\n", "")
    with pytest.raises(
        ConfigError, match=r"with other settings \(tune_at_kl: 0\.003 → as the recipe\); give the study"
    ):
        experiment(tmp_path, other).jobs()


def test_the_best_trials_are_confirmed_on_further_seeds(tmp_path: Path) -> None:
    """The best trial diverges on one of them, so that the second becomes the best; the third is not run again."""
    study = STUDY.replace("trials = 3", "trials = 8\nconfirm_seeds = [101, 102]\nconfirmed = 2\nother_confirmed = 1", 1)
    faults = {"best-1-seed-102": [2, "TrainingError: the loss is not finite", True]}
    (tmp_path / "faults").write_text(json.dumps(faults))
    found = experiment(tmp_path, study)
    assert found.amount(found.studies[0]).all_runs == 8 + 2 * 2 + 2 + 1 * 2 + 4
    finish(found)
    records = [one for one in read_records(tmp_path / "records") if one["method"] == "text2grad"]
    tuned = [one for one in records if one["purpose"] == "tuning" and one["seed"] == 100]
    first, second, *_ = sorted(tuned, key=lambda one: -one["curve"][-1]["value"])
    again = {(one["trial"], one["seed"]) for one in records if one["purpose"] == "tuning" and one["seed"] != 100}
    assert again == {(one["trial"], seed) for one in (first, second) for seed in (101, 102)}
    assert {str(one["settings"]) for one in records if one["purpose"] == "evaluation"} == {str(second["settings"])}
    (command,) = [one for one in starts(tmp_path) if one[1].endswith("tuning/text2grad/best-2-seed-101")]
    assert {"run.seed=101", "world.eval_seed=1"} <= set(command[3])
    assert f"model.path='{tmp_path}/runs/models/summarization/program-seed-101/start'" in command[3]
    assert found.amount(found.studies[0]).trials == 0
    assert experiment(tmp_path, study).jobs() == {}
    (group,) = groups(read_runs(tmp_path / "records"))
    best, diverged, *others = group.tuning.trials["text2grad"]
    assert (best.number, best.seeds) == (second["trial"], 3)
    assert (diverged.number, diverged.seeds, diverged.error) == (
        first["trial"],
        3,
        "TrainingError: the loss is not finite",
    )
    assert {one.seeds for one in others} == {1}
    assert missing_of_plan(found.plan, found.path, read_runs(tmp_path / "records")) == []


def test_an_experiment_goes_on_with_the_confirmation_of_its_trials(tmp_path: Path) -> None:
    finish(experiment(tmp_path))
    before = len(starts(tmp_path))
    found = experiment(tmp_path, STUDY.replace("trials = 3", "trials = 3\nconfirm_seeds = [7]", 1))
    amount = found.amount(found.studies[0])
    assert (amount.models, amount.trials) == (1, 3 + 2)
    assert amount.evaluations == 4  # their settings wait for the confirmation
    finish(found)
    new = [out for command, out, *_ in starts(tmp_path)[before:] if command == "train"]
    assert sorted(out.rsplit("/", 2)[-2:] == ["text2grad", f"best-{n}-seed-7"] for n, out in enumerate(new, 1))
    assert len(new) == 3 + 2  # the evaluations have the same best settings, and are not run again


def test_without_its_directory_an_experiment_goes_on_from_the_records(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "recipe.toml").write_text(RECIPE)
    finish(experiment(whole))
    expected = read_records(whole / "records")
    found = experiment(tmp_path)

    def interrupt(_: str) -> None:
        if len(found.ended) >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(found, on_poll=interrupt)
    shutil.rmtree(tmp_path / "runs")  # another machine
    finish(experiment(tmp_path))

    def known(records: list[Any]) -> set[str]:
        return {json.dumps({k: v for k, v in one.items() if k != "machine"}, sort_keys=True) for one in records}

    assert known(read_records(tmp_path / "records")) == known(expected)
    runs = [out for command, out, *_ in starts(tmp_path) if command == "train" and "/whole/" not in out]
    assert all(runs.count(out) <= 2 for out in runs)


def test_lengths_faults_and_varied_settings(tmp_path: Path) -> None:
    study = STUDY.replace("trials = 3", "trials = 0").replace("other_trials = 2", "other_trials = 0")
    study = study.replace('methods = ["text2grad", "dr_grpo"]', 'methods = ["text2grad"]').replace("[0, 1]", "[4]")
    study += 'lengths = [1, 2]\nfaults = [1.0, 0.5]\n[study.with_length]\n2 = ["rollout.max_new_tokens=70"]\n'
    finish(experiment(tmp_path, study + '[study.vary]\n"ppo.beta" = [0.1, 0.3]\n'))
    found = {(r["length"], r["faults"], r["settings"].get("ppo.beta")): r for r in read_records(tmp_path / "records")}
    assert set(found) == {
        (length, faults, beta) for length in (1, 2) for faults in (1.0, 0.5) for beta in (None, 0.1, 0.3)
    }
    every, path = read_runs(tmp_path / "records"), tmp_path / "plan.toml"
    assert missing_of_plan(load_plan(path), path, every) == []
    path.write_text(path.read_text().replace("[0.1, 0.3]", "[0.1, 0.4]"))
    first = "first, summarization, program as critic: Text2Grad"
    assert missing_of_plan(load_plan(path), path, every) == [f"{first} 8 of 12 evaluations"]
    path.write_text(path.read_text().replace("[0.1, 0.4]", "[0.3, 0.05]"))  # 0.05: the recipe's own
    assert missing_of_plan(load_plan(path), path, every) == []
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("steps = 3", "steps = 4"))
    assert missing_of_plan(load_plan(path), path, every) == [
        "first, summarization, program as critic: none of 12 evaluations"
    ]
    assert found[2, 0.5, 0.3]["settings"] == {"rollout.max_new_tokens": 70, **found[1, 0.5, 0.3]["settings"]}
    (command,) = [one for one in starts(tmp_path) if one[1].endswith("length-2-faults-0.5/text2grad-2")]
    assert {"world.length=2", "world.faults=0.5", "ppo.beta=0.3", "rollout.max_new_tokens=70"} <= set(command[3])
    models = [one for one in starts(tmp_path) if one[1].endswith("program-length-2-faults-0.5-seed-4")]
    assert {"world.length=2", "world.faults=0.5", "quickstart.after_reward_model=0", "run.seed=4"} <= set(models[0][3])


def test_a_kept_run_with_other_settings_is_set_aside(tmp_path: Path) -> None:
    study = STUDY.replace("trials = 3", "trials = 0").replace("other_trials = 2", "other_trials = 0")
    study = study.replace('methods = ["text2grad", "dr_grpo"]', 'methods = ["text2grad"]').replace("[0, 1]", "[4]")
    head = "keep_runs = true\n"
    finish(experiment(tmp_path, head + study))
    place = tmp_path / "runs" / "first" / "summarization" / "program" / "seed-4" / "length-0-faults-1"
    assert (place / "text2grad" / "run.json").exists()
    finish(experiment(tmp_path, head + study))  # nothing is missing
    assert not (place / "text2grad-before-1").exists()
    finish(experiment(tmp_path, head + study + 'settings = ["ppo.beta=0.3"]\n'))
    assert (place / "text2grad-before-1" / "run.json").exists()
    last = [one for one in starts(tmp_path) if one[1].endswith("length-0-faults-1/text2grad")][-1]
    assert "ppo.beta=0.3" in last[3]
    records = read_records(tmp_path / "records")
    assert sorted(one["settings"].get("ppo.beta", 0.0) for one in records) == [0.0, 0.3]


def test_a_study_takes_the_tuning_of_another(tmp_path: Path) -> None:
    study = STUDY.replace('"first"', '"second"').replace("[0, 1]", "[2]") + 'tuned_in = "first"\n'
    study = study.replace('"dr_grpo"', '"rloo"')
    finish(experiment(tmp_path, STUDY + study))
    first, second = (read_records(tmp_path / "records" / f"{name}.jsonl") for name in ("first", "second"))
    tuned = {one["method"] for one in second if one["purpose"] == "tuning"}
    assert tuned == {"rloo"}
    best = next(one for one in first if (one["method"], one["purpose"]) == ("text2grad", "evaluation"))
    there = next(one for one in second if (one["method"], one["purpose"]) == ("text2grad", "evaluation"))
    assert there["settings"] == best["settings"]


def test_the_reward_models_runs_take_the_tuning_with_the_program(tmp_path: Path) -> None:
    learned = STUDY.replace("[0, 1]", "[2]").replace('critic = "program"', 'tuned_in = "first"')
    finish(experiment(tmp_path, STUDY + learned.replace('"dr_grpo"', '"frozen"')))
    found = [one for one in read_records(tmp_path / "records") if one["critic"] == "reward_model"]
    assert {one["method"] for one in found if one["purpose"] == "tuning"} == {"frozen"}
    searched = ("optim.lr", "ppo.beta", "ppo.epochs", "ppo.gamma", "reward.positive")
    evaluated = [one for one in read_records(tmp_path / "records") if one["purpose"] == "evaluation"]
    best, again, there = (
        {name: one["settings"].get(name) for name in searched} for one in evaluated if one["method"] == "text2grad"
    )
    assert best == again == there


def test_some_lengths_have_fewer_seeds(tmp_path: Path) -> None:
    study = STUDY.replace("trials = 3", "trials = 0").replace('["text2grad", "dr_grpo"]', '["text2grad"]')
    study += "lengths = [1, 2]\n[study.seeds_at]\n1 = [1]\n"
    found = finish(experiment(tmp_path, study))
    assert {(one[1], one[6]) for one in places(tmp_path)} == {(1, 1), (2, 0), (2, 1)}
    assert found.amount(found.studies[0]).all_runs == 3
    assert missing_of_plan(found.plan, found.path, read_runs(tmp_path / "records")) == []


def test_other_methods_have_fewer_seeds(tmp_path: Path) -> None:
    study = STUDY.replace("trials = 3", "trials = 0\nother_seeds = [1]").replace("other_trials = 2", "other_trials = 0")
    study = study.replace('"dr_grpo"', '"sft_best"')
    made = experiment(tmp_path, study)
    assert missing_of_plan(made.plan, made.path, []) == [
        "first, summarization, program as critic: none of 3 evaluations"
    ]
    found = finish(made)
    runs = [(one["method"], one["seed"]) for one in read_records(tmp_path / "records")]
    assert sorted(runs) == [("sft_best", 1), ("text2grad", 0), ("text2grad", 1)]
    assert found.amount(found.studies[0]).all_runs == 3
    assert missing_of_plan(found.plan, found.path, read_runs(tmp_path / "records")) == []


def test_only_one_study_and_what_it_needs(tmp_path: Path) -> None:
    study = STUDY.replace('"first"', '"second"').replace("[0, 1]", "[2]") + 'tuned_in = "first"\n'
    finish(experiment(tmp_path, STUDY + study, only=["second"]))
    assert {(one["study"], one["purpose"]) for one in read_records(tmp_path / "records")} == {
        ("first", "tuning"),
        ("second", "evaluation"),
    }
    with pytest.raises(ConfigError, match=r"has no study 'third'; studies: first, second$"):
        experiment(tmp_path, STUDY + study, only=["third"])


def test_a_diverged_evaluation_has_a_record_with_its_error(tmp_path: Path) -> None:
    study = STUDY.replace("trials = 3", "trials = 0").replace("[0, 1]", "[0]")
    study = study.replace('["text2grad", "dr_grpo"]', '["text2grad"]')
    (tmp_path / "faults").write_text(json.dumps({"text2grad": [2, "TrainingError: the loss is not finite", True]}))
    finish(experiment(tmp_path, study))
    (record,) = read_records(tmp_path / "records")
    assert record["error"] == "TrainingError: the loss is not finite"
    assert record["items"] == record["items_at_start"]
    assert experiment(tmp_path, study).jobs() == {}


def test_a_diverged_trial_is_known_from_its_record(tmp_path: Path) -> None:
    (tmp_path / "faults").write_text(json.dumps({"trial-001": [2, "TrainingError: the loss is not finite", True]}))
    finish(experiment(tmp_path))
    errors = [(one["method"], one["trial"]) for one in read_records(tmp_path / "records") if "error" in one]
    assert sorted(errors) == [("dr_grpo", 1), ("text2grad", 1)]
    shutil.rmtree(tmp_path / "runs")
    again = experiment(tmp_path)
    assert again.jobs() == {}
    assert again.tuning(again.studies[0], "text2grad").trials[1].error == "TrainingError: the loss is not finite"


def test_what_diverges_in_its_first_step_has_a_record_too(tmp_path: Path) -> None:
    lost = [2, "TrainingError: the loss is not finite", True, "evaluated"]
    (tmp_path / "faults").write_text(json.dumps(dict.fromkeys(("trial-001", "best-2-seed-101", "dr_grpo"), lost)))
    study = STUDY.replace("trials = 3", "trials = 3\nconfirm_seeds = [101]\nconfirmed = 2\nother_confirmed = 1", 1)
    assert finish(experiment(tmp_path, study)).failed == []
    failed = [one for one in read_records(tmp_path / "records") if "error" in one]
    told = {(one["method"], one["purpose"], one["seed"]) for one in failed}
    assert told == {
        *((method, "tuning", 100) for method in ("text2grad", "dr_grpo")),
        ("text2grad", "tuning", 101),
        *(("dr_grpo", "evaluation", seed) for seed in (0, 1)),
    }
    for one in failed:
        assert (one["steps"], one["rollouts"], one["diagnostics"]) == (0, 0, {})
        assert [point["step"] for point in one["curve"]] == [0]
        assert one["items"] == one["items_at_start"]
    assert experiment(tmp_path, study).jobs() == {}
    pages = result_pages(read_runs(tmp_path / "records"), draw=False)
    assert "seed 0, after 0 steps (TrainingError: the loss is not finite)" in pages["comparison.md"].decode()


def test_a_trial_that_fails_before_it_begins_does_not_end_the_work(tmp_path: Path) -> None:
    (tmp_path / "faults").write_text(json.dumps({"trial-001": [1, "out of memory; see plan", True, "nothing"]}))
    assert finish(experiment(tmp_path)).failed == []
    assert len(read_records(tmp_path / "records")) == 9 - 2  # both methods have such a trial
    (tmp_path / "faults").write_text(json.dumps({"text2grad": [1, "out of memory; see plan", False, "nothing"]}))
    found = finish(experiment(tmp_path, STUDY.replace('"first"', '"second"')))
    assert len(found.failed) == 1
    assert "text2grad stopped with exit code 1: out of memory; see plan (all its output" in found.failed[0]


def test_every_job_of_models_has_a_log_of_its_own(tmp_path: Path) -> None:
    jobs = experiment(tmp_path, STUDY + "faults = [0.5, 0.25]\n").jobs()
    models = {name: job.log.name for name, job in jobs.items() if name.startswith("models ")}
    assert models["models summarization/program-faults-0.5-seed-1"] == "program-faults-0.5-seed-1.log"
    assert len(set(models.values())) == len(models) > 1


def test_what_is_finished_when_its_process_crashes_counts(tmp_path: Path) -> None:
    crash = [-11, "Fatal Python error: Segmentation fault", False, "whole"]
    (tmp_path / "faults").write_text(
        json.dumps(dict.fromkeys(("models", "trial-001", "best-1-seed-101", "dr_grpo"), crash))
    )
    study = STUDY.replace("trials = 3", "trials = 3\nconfirm_seeds = [101]\nconfirmed = 1\nother_confirmed = 1", 1)
    assert finish(experiment(tmp_path, study)).failed == []
    assert json.loads((tmp_path / "faults").read_text()).keys() == {"models"}  # which stays
    records = read_records(tmp_path / "records")
    assert len(records) == 3 + 2 + 2 + 4
    assert not any("error" in one for one in records)


def test_a_failed_job_stops_what_needs_it_alone(tmp_path: Path) -> None:
    faults = {"trial-001": [2, "cannot read or write x: No space left on device", False]}
    (tmp_path / "faults").write_text(json.dumps(faults))
    found = finish(experiment(tmp_path))
    assert len(found.failed) == 1
    assert found.failed[0].startswith("first summarization program ")
    assert "No space left on device" in found.failed[0]
    purposes = [one["purpose"] for one in read_records(tmp_path / "records")]
    assert purposes.count("tuning") == 4
    assert purposes.count("evaluation") == 2  # of the other method
    assert finish(experiment(tmp_path)).failed == []
    assert len(read_records(tmp_path / "records")) == 9


def test_the_third_failure_ends_the_work(tmp_path: Path) -> None:
    full = [2, "cannot read or write x: No space left on device", True]
    (tmp_path / "faults").write_text(json.dumps({name: full for name in ("trial-000", "trial-001")}))
    with pytest.raises(TrainingError, match=r"^3 jobs failed:\nfirst summarization program "):
        finish(experiment(tmp_path))


def test_runs_may_be_kept(tmp_path: Path) -> None:
    study = STUDY.replace("trials = 3", "trials = 0").replace("other_trials = 2", "other_trials = 0")
    finish(experiment(tmp_path, study, HEAD + "keep_runs = true\n"))
    assert len(list((tmp_path / "runs").rglob("run.json"))) == 4


def test_records_of_other_settings_are_not_taken_for_the_search(tmp_path: Path) -> None:
    finish(experiment(tmp_path))
    other = STUDY + 'settings = ["ppo.clip_range=0.3"]\n'
    with pytest.raises(ConfigError, match=r"tuning/text2grad holds another search; ppo.clip_range: 0\.2 → 0\.3"):
        experiment(tmp_path, other).jobs()
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(ConfigError) as caught:
        experiment(tmp_path, other).jobs()
    assert str(caught.value) == (
        "the records of study 'first' hold trials of text2grad on summarization with other settings (ppo.clip_range: "
        "as the recipe → 0.3); give the study another name, or remove the records"
    )


def test_another_base_recipe_makes_new_evaluations_and_its_search_is_another(tmp_path: Path) -> None:
    study = STUDY.replace("trials = 3", "trials = 0").replace("other_trials = 2", "other_trials = 0")
    finish(experiment(tmp_path, study))
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("lr = 1e-4", "lr = 3e-4"))
    finish(experiment(tmp_path, study))
    found = read_records(tmp_path / "records")
    assert len(found) == 8
    assert len({one["recipe"] for one in found}) == 2
    assert experiment(tmp_path, study).jobs() == {}
    finish(experiment(tmp_path, STUDY.replace('"first"', '"second"')))
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with pytest.raises(ConfigError) as caught:
        experiment(tmp_path, STUDY.replace('"first"', '"second"')).jobs()
    now, before = (one["recipe"] for one in (found[0], found[-1]))
    assert str(caught.value) == (
        "the records of study 'second' hold trials of text2grad on summarization with another recipe.toml (digest "
        f"{before} → {now}); restore the recipe, give the study another name, or remove the records"
    )


def test_a_trial_whose_record_is_removed_is_run_again(tmp_path: Path) -> None:
    finish(experiment(tmp_path))
    expected, before = read_records(tmp_path / "records"), len(starts(tmp_path))
    kept = [one for one in expected if (one["method"], one["trial"]) != ("text2grad", 1)]
    write_records(tmp_path / "records" / "first.jsonl", kept)
    found = experiment(tmp_path)
    assert found.amount(found.studies[0]).trials == 1
    finish(found)
    assert [Path(out).name for command, out, *_ in starts(tmp_path)[before:] if command == "train"] == ["trial-001"]
    assert sorted(map(str, read_records(tmp_path / "records"))) == sorted(map(str, expected))


def test_records_of_another_pretrained_model_or_metric_are_refused(tmp_path: Path) -> None:
    study = STUDY.replace("trials = 3", "trials = 0").replace("other_trials = 2", "other_trials = 0")
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)
    finish(experiment(tmp_path, study + f'model = "{tmp_path}/a"\n'))
    file = tmp_path / "records" / "first.jsonl"
    start = digest_of(tmp_path / "a")[:16]
    write_records(file, [{**one, "start": start} for one in read_records(file)])  # as a true run has it
    assert experiment(tmp_path, study + f'model = "{tmp_path}/a"\n').jobs() == {}
    with pytest.raises(ConfigError) as caught:
        experiment(tmp_path, study + f'model = "{tmp_path}/b"\n').jobs()
    assert str(caught.value) == (
        "the records of study 'first' hold runs on summarization that began at other weights than model = "
        f"'{tmp_path}/b' (digest {start} → {digest_of(tmp_path / 'b')[:16]}); give the study another name, or remove "
        "the records"
    )
    with pytest.raises(ConfigError) as caught:
        experiment(tmp_path, study + f'model = "{tmp_path}/a"\nmetric = "rouge_l"\n').jobs()
    assert str(caught.value) == (
        "the records of study 'first' hold runs on summarization with another metric (fact_f1 → rouge_l); give the "
        "study another name, or remove the records"
    )


def test_the_metric_of_a_task_on_files_is_checked_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_metric.py").write_text("def metric(example, response):\n    return {'short': 1.0}\n")
    rows = [{"prompt": f"Who? {n}", "reference": "Ann.", "passage": "Ann came.", "question": "Who?"} for n in range(8)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    text = '[data]\ntask = "grounded"\ntrain = "items.jsonl"\nheld_out = 0.5\nmetric = "own_metric:metric"\n'
    (tmp_path / "recipe.toml").write_text(text)
    (tmp_path / "model").mkdir()
    study = STUDY.replace('task = "summarization"', f'task = "grounded"\nmodel = "{tmp_path}/model"')
    for known in ("short", "unsupported_share"):
        assert experiment(tmp_path, study + f'metric = "{known}"\n').jobs()
    with pytest.raises(
        ConfigError,
        match=r"""metric has no value 'polite'\. Did you mean "copied"\? Known values: .*short, unsupported""",
    ):
        experiment(tmp_path, study + 'metric = "polite"\n').jobs()


def test_models_of_other_settings_are_refused(tmp_path: Path) -> None:
    study = STUDY.replace("trials = 3", "trials = 0").replace("other_trials = 2", "other_trials = 0")
    experiment(tmp_path, study).jobs()
    with pytest.raises(ConfigError, match=r"made by other settings: sft.steps: 800 → 5\. Name another directory with"):
        experiment(tmp_path, study + 'settings = ["sft.steps=5"]\n').jobs()


def test_a_pretrained_model_needs_no_phases(tmp_path: Path) -> None:
    study = STUDY.replace("trials = 3", "trials = 0").replace("other_trials = 2", "other_trials = 0")
    (tmp_path / "model").mkdir()
    finish(experiment(tmp_path, study + f'model = "{tmp_path}/model"\n'))
    assert {command for command, *_ in starts(tmp_path)} == {"train"}
    assert f"model.path='{tmp_path}/model'" in starts(tmp_path)[0][3]
    with pytest.raises(ConfigError, match=r"model = 'none/such' does not exist; the path starts at the working"):
        experiment(tmp_path, study + 'model = "none/such"\n').jobs()


@pytest.mark.parametrize(
    ("change", "reason"),
    {
        ("seeds = [0, 1]", "seeds = [0, 100]"): "study 'first': tune_seed = 100 is one of the seeds; tune on another",
        ("trials = 3", "tune_eval_seed = 11"): "study 'first': tune_eval_seed = 11 chooses held-out items of an "
        "evaluation (its seed + 10); choose another",
        ("seeds = [0, 1]", "seeds = [1, 1]"): "study 'first': seeds = [1, 1] names a value twice",
        ("seeds = [0, 1]", "seeds = []"): "study 'first': seeds = []: Tuple should have at least 1 item",
        ("seeds = [0, 1]", ""): "study 'first': seeds: Field required",
        ("trials = 3", "other_seeds = [1, 2]"): "study 'first': other_seeds chooses among seeds = [0, 1], and has [2]",
        ("trials = 3", "other_seeds = [1, 1]"): "study 'first': other_seeds = [1, 1] names a value twice",
        (
            "trials = 3",
            'also_leading = ["ppo"]',
        ): "also_leading chooses among methods = ['text2grad', 'dr_grpo'], and has ['ppo']",
        ("trials = 3", "confirm_seeds = [3, 1]"): "study 'first': confirm_seeds = [3, 1]: 1 is used already; name",
        ("trials = 3", "tries = 3"): "study 'first': tries: Extra inputs are not permitted; keys: name, task, recipe",
        ("dr_grpo", "drgrpo"): "study 'first', task 'summarization': methods has no value 'drgrpo'. Did you mean "
        '"dr_grpo"?',
        ("dr_grpo", "no_words"): 'the method no_words needs a reward_model_without_words, which critic = "program" '
        "does not make; leave it out, or set critic",
        (
            "trials = 3",
            'settings = ["critic.use=own:critic"]',
        ): "critic.use = 'own:critic', but the critic of a study is the task's program, or a reward model",
        ('task = "summarization"', 'task = "qa"'): "recipe.toml has data.task = 'summarization'; name its task",
        ("recipe.toml", "none.toml"): "is no recipe: cannot read",
        ("trials = 3", 'tuned_in = "second"'): "tuned_in = 'second' is no other study of the plan",
        ("trials = 3", 'settings = ["ppo.bet=3"]'): '[ppo] has no key "bet". Did you mean "beta"?',
        ("trials = 3", "lengths = [8]"): "rollout.max_new_tokens = 60: at length 8 the shortest answers",
        ("trials = 3", 'settings = ["data.eval_examples=0"]'): "data.eval_examples = 0 leaves no held-out items",
        ("trials = 3", "tune_at_kl = 0.0"): "study 'first': tune_at_kl = 0.0: Input should be greater than 0",
        ("trials = 3", "trials = -1"): "study 'first': trials = -1: Input should be greater than or equal to 0",
        ("other_trials = 2", "[study.with_length]\n7 = []"): "study 'first': with_length names ['7'], which no run has",
        ("other_trials = 2", "[study.seeds_at]\n7 = [0]"): "study 'first': seeds_at names ['7'], which no run has",
        ("other_trials = 2", "lengths = [8]\n[study.seeds_at]\n8 = [0, 3]"): "seeds_at chooses among seeds = [0, 1], "
        "and has 8: [0, 3]",
        ('critic = "program"', 'model = "x"'): 'set critic = "program", or leave model out',
    }.items(),
)
def test_a_wrong_plan_is_refused_with_its_reason(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    path = write_plan(tmp_path, STUDY.replace(*change))
    with pytest.raises(ConfigError) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)
    assert f"{path}: study: " not in str(caught.value)  # the plan has a study


def test_a_plan_on_prompts_of_ones_own_is_refused_with_the_commands_that_take_them(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('[data]\ntrain = "prompts.jsonl"\nheld_out = 0.1\n')
    with pytest.raises(ConfigError, match=r"recipe.toml has no data.task: a study compares methods on a built-in task"):
        load_plan(write_plan(tmp_path))


def test_two_studies_of_the_same_name_task_and_critic_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"two studies are named 'first' with task 'summarization' and critic"):
        load_plan(write_plan(tmp_path, STUDY + STUDY))
    with pytest.raises(ConfigError, match=r"no plan of studies: Invalid value"):
        load_plan(write_plan(tmp_path, "name = "))
    with pytest.raises(ConfigError, match=r"plan.toml: study: Field required"):
        load_plan(write_plan(tmp_path, ""))


def test_the_command_says_what_is_missing(tmp_path: Path, capsys: Any) -> None:
    path = write_plan(tmp_path)
    assert main(["experiment", str(path), "--list", "--at-once", "2"]) == 0
    text = capsys.readouterr().out
    assert "first, summarization, program" in text
    assert "expected: 3 min 27 s in one process, 1 min 44 s with --at-once 2" in text  # 9 × 3 s + 3 × 60 s
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_tiny_experiment_with_real_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    root = Path(__file__).parents[2]
    assert main(["experiment", str(root / "recipes" / "results-short.toml"), "--at-once", "2"]) == 0
    records = read_records(tmp_path / "runs" / "results-short" / "records")
    evaluations = [one for one in records if one["purpose"] == "evaluation"]
    assert len(records) == 3 * len(evaluations)
    assert len({one["start"] for one in evaluations}) == 1
    assert {len(one["items"]) for one in evaluations} == {32}
    assert {tuple(one["items_at_start"]) for one in evaluations} == {tuple(evaluations[0]["items_at_start"])}
    assert [point["step"] for point in records[0]["curve"]] == [0, 2, 4]
    assert main(["experiment", str(root / "recipes" / "results-short.toml")]) == 0
    assert len(read_records(tmp_path / "runs" / "results-short" / "records")) == len(records)


def test_one_slow_run_does_not_change_the_expected_time(tmp_path: Path, capsys: Any) -> None:
    finish(experiment(tmp_path))
    for file in (tmp_path / "records").iterdir():
        records = [json.loads(line) for line in file.read_text().splitlines()]
        slow = {one["method"]: one for one in records}.values()  # one of each method
        for one in records:
            one["seconds"] = 1000.0 if one in slow else 8.0
        write_records(file, records)
    capsys.readouterr()
    path = write_plan(tmp_path, STUDY.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    assert main(["experiment", str(path), "--list"]) == 0
    assert "expected: 1 min 20 s in one process" in capsys.readouterr().out  # 60 s of models, 2 × 1.25 × 8 s
