"""The search of a method: its trials, their order, failures, and interruptions at any moment."""

import json
import math
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evidence.plans.jobs import run_jobs
from evidence.plans.methods import METHODS
from evidence.plans.tuning import Tuning, command_of
from pretended_runs import PROGRAM, pretend_runs
from text2grad.config.recipe import load_recipe
from text2grad.errors import CheckpointError, ConfigError, TrainingError

RECIPE = """
[data]
task = "summarization"
eval_examples = 4
[optim]
lr = 1e-4
[run]
steps = 3
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_runs(monkeypatch, tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE)


def faults(tmp_path: Path, **known: Sequence[Any]) -> None:
    """Let trials fail, as name = (exit code, message, also when resumed)."""
    (tmp_path / "faults").write_text(json.dumps({name.replace("_", "-"): list(one) for name, one in known.items()}))


def search(tmp_path: Path, name: str = "search", count: int = 6, **more: Any) -> Tuning:
    settings = {"method": "text2grad", "overrides": ["run.save_every=1"], "of_method": [], "seed": 0, **more}
    return Tuning(recipe=tmp_path / "recipe.toml", out=tmp_path / name, count=count, program=PROGRAM, **settings)


@pytest.mark.parametrize(("method", "rounds"), [("text2grad", None), ("ilf", 1), ("sft_best", 3), ("sdpo", 3)])
def test_a_search_knows_the_usual_rounds_of_its_method(tmp_path: Path, method: str, rounds: int | None) -> None:
    tuning = search(tmp_path, method=method)
    steps = load_recipe(tmp_path / "recipe.toml").run.steps
    assert steps == 3  # fewer than the usual 12 rounds
    assert tuning.space.usual == ({} if rounds is None else {"rival.rounds": rounds})


def finish(tuning: Tuning, *, at_once: int = 3, on_poll: Callable[[str], None] = lambda _: None) -> Tuning:
    run_jobs(tuning.jobs(), on_poll, at_once=at_once)
    return tuning


def starts(tmp_path: Path, place: str = "") -> list[tuple[str, bool]]:
    """Return the directory's name of each start, and whether it was resumed."""
    lines = map(json.loads, (tmp_path / "journal").read_text().splitlines())
    return [(Path(out).name, resumed) for _, out, resumed, _ in lines if place in out]


def told(tuning: Tuning) -> Any:
    return json.loads((tuning.out / "tuning.json").read_bytes())


def test_the_first_trial_has_the_default_settings_and_the_best_is_found(tmp_path: Path) -> None:
    tuning = finish(search(tmp_path))
    assert tuning.finished
    assert sorted(starts(tmp_path)) == [(f"trial-{n:03d}", False) for n in range(6)]
    first = tuning.trials[0]
    assert first.settings["optim.lr"] == 1e-4
    assert first.value == pytest.approx(0.0)  # 1 − (−4 + 3)²
    values = {number: trial.value for number, trial in tuning.trials.items()}
    best = max(values, key=lambda number: values[number] or 0.0)
    assert tuning.best is tuning.trials[best]
    known = told(tuning)
    assert known["best"] == best
    assert [trial["value"] for trial in known["trials"]] == list(values.values())
    (start,) = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines() if "trial-000" in line]
    assert start[3][0] == "run.save_every=1"
    assert "optim.lr=0.0001" in start[3]


def test_a_small_value_is_the_best_of_a_search_that_minimises(tmp_path: Path) -> None:
    tuning = finish(search(tmp_path, minimise=True))
    assert tuning.best is not None
    assert tuning.best.value == min(trial.value or 0.0 for trial in tuning.trials.values())
    assert [trial.value for trial in tuning.ranked()] == sorted(trial.value or 0.0 for trial in tuning.trials.values())


@pytest.mark.parametrize("minimise", [False, True])
def test_within_a_kl_the_best_is_the_one_that_gains_most_with_little(tmp_path: Path, *, minimise: bool) -> None:
    """The evaluations are (KL 0, value 0) and (KL 30 lr, 1 − (log10 lr + 3)²); between them the frontier is a line."""
    metric = {"metric": "rouge_l", "minimise": True} if minimise else {}  # the value below zero
    free = finish(search(tmp_path, "free", 8, **metric))
    tuning = finish(search(tmp_path, "within", 8, at_kl=0.003, **metric))
    for trial in tuning.trials.values():
        lr = trial.settings["optim.lr"]
        value = 1 - (math.log10(lr) + 3) ** 2
        expected = max(0.0, value * min(1.0, 0.003 / (30 * lr)))
        assert trial.value == pytest.approx(-expected if minimise else expected, rel=1e-4)
    rank = sorted(tuning.trials.values(), key=lambda one: (one.value or 0.0) * (1 if minimise else -1))
    assert tuning.best is rank[0]
    assert free.best is not None
    assert tuning.best.settings["optim.lr"] < free.best.settings["optim.lr"]


def test_a_search_within_a_kl_goes_on_with_this_kl_and_these_evaluations_alone(tmp_path: Path) -> None:
    finish(search(tmp_path, count=1, at_kl=0.01))
    assert told(search(tmp_path, count=1, at_kl=0.01))["at_kl"] == 0.01
    with pytest.raises(ConfigError, match=r"holds another search; --at-kl: 0\.01 → 0\.02\. Continue"):
        search(tmp_path, at_kl=0.02)
    with pytest.raises(ConfigError, match=r"holds another search; --at-kl: 0\.01 → None\. Continue"):
        search(tmp_path)
    with pytest.raises(ConfigError, match=r"holds another search; data\.eval_every: 0 → 1\. Continue"):
        search(tmp_path, at_kl=0.01, overrides=["run.save_every=1", "data.eval_every=1"])
    finish(search(tmp_path, "free", 1))
    finer = search(tmp_path, "free", 1, overrides=["run.save_every=1", "data.eval_every=1"])
    assert finer.ended == 1  # the final value does not depend on it
    path = tmp_path / "free" / "tuning.json"
    path.write_text(json.dumps({name: one for name, one in json.loads(path.read_bytes()).items() if name != "at_kl"}))
    assert search(tmp_path, "free", 1).ended == 1  # of an earlier version


@pytest.mark.parametrize("ended", [1, 3, 5])
def test_an_interrupted_search_goes_on_as_if_it_had_not_been(tmp_path: Path, ended: int) -> None:
    whole = finish(search(tmp_path, "whole"), at_once=3)
    broken = search(tmp_path, "broken")

    def interrupt(_: str) -> None:
        if broken.ended >= ended:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finish(broken, at_once=1, on_poll=interrupt)
    goes_on = search(tmp_path, "broken")
    assert goes_on.ended == ended
    assert finish(goes_on, at_once=2).trials == whole.trials
    names = [name for name, _ in starts(tmp_path, "broken")]
    assert [names.count(f"trial-{n:03d}") for n in range(ended)] == [1] * ended  # no finished trial is run again


def test_a_killed_trial_is_resumed(tmp_path: Path) -> None:
    whole = finish(search(tmp_path, "whole"))
    faults(tmp_path, trial_002=(-9, "step 1", False))
    with pytest.raises(TrainingError) as caught:
        finish(search(tmp_path), at_once=1)
    assert str(caught.value) == (
        f"trial 2 stopped with exit code -9: step 1\nAll its output is in {tmp_path}/search/trial-002.log. The same "
        "command goes on with this trial"
    )
    assert finish(search(tmp_path)).trials == whole.trials
    assert [resumed for name, resumed in starts(tmp_path, "search") if name == "trial-002"] == [False, True]
    assert [name for name, _ in starts(tmp_path, "search")].count("trial-001") == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [(2, "TrainingError: the loss is not finite"), (1, "OutOfMemory: of step 2"), (2, "CriticError: no")],
)
def test_a_warning_behind_the_error_of_a_trial_does_not_hide_it(tmp_path: Path, code: int, error: str) -> None:
    faults(
        tmp_path,
        trial_001=(code, f"step 1\n{error}\nresource_tracker.py:1: UserWarning: leaked semaphores\n  warn(", True),
    )
    tuning = finish(search(tmp_path))
    assert tuning.trials[1].error == error
    assert tuning.ended == 6


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
@pytest.mark.parametrize("error", ["TrainingError: the loss is not finite", "out of memory; see plan"])
def test_a_crash_at_the_exit_behind_the_error_of_a_trial_does_not_end_the_search(
    tmp_path: Path, number: int, error: str
) -> None:
    faults(tmp_path, trial_001=(-number, f"step 1\n{error}\nFatal Python error: Aborted", True))
    tuning = finish(search(tmp_path))
    assert tuning.trials[1].error == error
    assert tuning.ended == 6


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_from_outside_ends_the_search_and_its_trial_goes_on(tmp_path: Path, number: int) -> None:
    faults(tmp_path, trial_001=(-number, "step 1\nTrainingError: the loss is not finite", False))
    with pytest.raises(TrainingError, match=f"stopped with exit code -{number:d}: "):
        finish(search(tmp_path), at_once=1)
    assert finish(search(tmp_path)).trials[1].error == ""


def test_a_crash_without_an_error_of_the_settings_ends_the_search(tmp_path: Path) -> None:
    faults(tmp_path, trial_001=(-signal.SIGSEGV, "step 1\nFatal Python error: Segmentation fault", False))
    with pytest.raises(TrainingError, match="Segmentation fault"):
        finish(search(tmp_path), at_once=1)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_finished_trial_whose_process_crashes_at_the_exit_counts(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = finish(search(tmp_path, "whole"))
    faults(tmp_path, trial_001=(-number, "numbers  results.json\nFatal Python error: Aborted", False, "whole"))
    assert finish(search(tmp_path)).trials == whole.trials
    assert [name for name, _ in starts(tmp_path, "search")].count("trial-001") == 1
    told = f"trial 1 stopped with exit code -{number:d} behind its results, which are complete and count"
    assert told in " ".join(caplog.messages)


def test_a_trial_that_stops_with_an_error_of_its_own_does_not_count_though_it_has_results(tmp_path: Path) -> None:
    faults(tmp_path, trial_001=(2, "CheckpointError: other inputs", False, "whole"))
    with pytest.raises(TrainingError, match="trial 1 stopped with exit code 2: CheckpointError: other inputs"):
        finish(search(tmp_path), at_once=1)


def test_a_failure_before_a_resume_is_not_that_of_the_resumed_trial(tmp_path: Path) -> None:
    faults(tmp_path, trial_001=(-9, "TrainingError: the loss is not finite", False))
    with pytest.raises(TrainingError, match="exit code -9"):
        finish(search(tmp_path), at_once=1)
    faults(tmp_path, trial_001=(2, "ValueError: something else", False))
    with pytest.raises(TrainingError, match="trial 1 stopped with exit code 2: ValueError: something else"):
        finish(search(tmp_path), at_once=1)


def test_a_diverged_trial_counts_as_the_worst_and_is_not_run_again(tmp_path: Path) -> None:
    faults(tmp_path, trial_001=(2, "TrainingError: the loss is not finite", True))
    tuning = finish(search(tmp_path))
    assert tuning.trials[1].error == "TrainingError: the loss is not finite"
    assert tuning.trials[1].value is None
    assert tuning.ranked()[-1] is tuning.trials[1]
    assert tuning.ended == 6
    again = finish(search(tmp_path))
    assert again.trials == tuning.trials
    assert len(starts(tmp_path)) == 6


def test_the_default_settings_may_diverge_but_not_a_whole_round(tmp_path: Path) -> None:
    lost = (1, "out of memory; `text2grad train RECIPE --dry-run` shows", True)
    faults(tmp_path, trial_000=lost, trial_001=lost, trial_002=lost)
    assert finish(search(tmp_path)).best is not None
    faults(tmp_path, trial_000=lost, trial_001=lost, trial_002=lost, trial_003=lost)
    with pytest.raises(TrainingError, match=r"All trials so far failed: mend the recipe$"):
        finish(search(tmp_path, "other"))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ppo", ["model.lora_r=8"]),
        ("text2grad", ["model.lora_r=8", "model.gradient_checkpointing=true"]),
        ("ppo", ["ppo.baseline=group", "model.value=none", "rollout.group_size=4"]),
        ("scalar_ppo", ["ppo.baseline=group", "model.value=none", "rollout.group_size=4"]),
    ],
)
def test_a_search_with_lora_or_a_group_baseline_ends(tmp_path: Path, method: str, settings: list[str]) -> None:
    tuning = search(tmp_path, method=method, overrides=settings, of_method=METHODS[method].settings)
    assert finish(tuning).finished


def test_refused_settings_are_not_stored(tmp_path: Path) -> None:
    tuning = search(tmp_path)
    proposed = [{"optim.lr": 1e-3}, {"model.value": "adapter"}, {"optim.lr": 1e-4}]
    tuning.space = SimpleNamespace(default={}, propose=lambda *_, **__: proposed)  # type: ignore[assignment]
    with pytest.raises(ConfigError) as caught:
        finish(tuning)
    assert str(caught.value) == (
        f'trial 2 of text2grad cannot be run: {tmp_path}/recipe.toml: model.value = "adapter" needs model.lora_r > 0'
    )
    assert not (tuning.out / "tuning.json").exists()
    assert tuning.trials == {}


def test_refused_settings_of_an_earlier_version_are_proposed_anew(tmp_path: Path) -> None:
    faults(tmp_path, trial_002=(2, "ConfigError: refused", False))
    with pytest.raises(TrainingError, match="ConfigError: refused"):
        finish(search(tmp_path), at_once=1)
    path = tmp_path / "search" / "tuning.json"
    known = json.loads(path.read_bytes())
    known["trials"][2]["settings"]["model.value"] = "adapter"
    path.write_text(json.dumps(known))
    assert finish(search(tmp_path)).trials == finish(search(tmp_path, "whole")).trials


def test_another_error_ends_the_search(tmp_path: Path) -> None:
    """A full disk says nothing about the settings."""
    faults(tmp_path, trial_001=(2, "cannot read or write x: No space left on device", False))
    with pytest.raises(TrainingError, match=r"No space left on device\n.*The same command goes on with this trial$"):
        finish(search(tmp_path), at_once=1)
    assert finish(search(tmp_path)).ended == 6


def test_a_run_that_labelled_nothing_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = search(tmp_path, count=1)
    finish(tuning)
    tuning.trials[0] = tuning.trials[0].__class__(0, tuning.trials[0].settings)
    assert tuning.jobs()["trial 0"].on_end("trial 0", 3)  # type: ignore[misc]
    assert tuning.trials[0].value == pytest.approx(0.0)


def test_trials_of_elsewhere_are_not_run_again(tmp_path: Path) -> None:
    whole = finish(search(tmp_path, "whole"))
    restored = search(tmp_path, "restored")
    restored.restore([whole.trials[number] for number in (0, 1, 3, 4)])
    assert finish(restored).trials == whole.trials
    assert sorted(name for name, _ in starts(tmp_path, "restored")) == ["trial-002", "trial-005"]


def test_a_directory_holds_one_search(tmp_path: Path) -> None:
    finish(search(tmp_path, count=1))
    with pytest.raises(ConfigError) as caught:
        search(tmp_path, seed=1, minimise=True, overrides=["ppo.clip_range=0.3", "run.steps=4"])
    assert str(caught.value) == (
        f"{tmp_path}/search holds another search; --seed: 0 → 1; --minimise: False → True; ppo.clip_range: 0.2 → 0.3; "
        "run.steps: 3 → 4. Continue with the same settings, or choose another directory with --out DIR"
    )
    assert search(tmp_path, count=3).ended == 1  # more trials go on
    (tmp_path / "search" / "tuning.json").write_text("{")
    with pytest.raises(CheckpointError, match="Restore it from a backup, or choose another directory"):
        search(tmp_path)


def confirm(tuning: Tuning) -> Tuning:
    run_jobs(finish(tuning).confirmation_jobs(), lambda _: None, at_once=2)
    return tuning


def test_the_best_trials_are_run_on_further_seeds_and_the_mean_over_all_seeds_decides(tmp_path: Path) -> None:
    first, second, third = (trial.number for trial in finish(search(tmp_path)).ranked()[:3])
    faults(tmp_path, **{f"trial_{first:03d}_seed_8": (0, "-20", False)})  # a collapse
    tuning = confirm(search(tmp_path, confirm_seeds=(7, 8)))
    ended = [name for name, _ in starts(tmp_path)]
    expected = [f"trial-{n:03d}-seed-{seed}" for n in (first, second, third) for seed in (7, 8)]
    assert ended[6:] == expected  # and no trial twice
    seeds = [json.loads(line)[3][-1] for line in (tmp_path / "journal").read_text().splitlines()[6:]]
    assert seeds == ["run.seed=7", "run.seed=8"] * 3
    best = tuning.trials[first]
    assert tuning.values_of(best) == [best.value, best.value, -20]
    assert tuning.best is tuning.trials[second]
    assert told(tuning)["best"] == second
    again = confirm(search(tmp_path, confirm_seeds=(7, 8)))
    assert (again.best, again.confirmations) == (tuning.best, tuning.confirmations)
    assert len(starts(tmp_path)) == 12  # nothing is run again


def test_a_small_mean_over_the_seeds_is_the_best_of_a_search_that_minimises(tmp_path: Path) -> None:
    first, second = (trial.number for trial in finish(search(tmp_path, minimise=True)).ranked()[:2])
    faults(tmp_path, **{f"trial_{first:03d}_seed_8": (0, "20", False)})
    tuning = confirm(search(tmp_path, minimise=True, confirm_seeds=(8,), confirmed=2))
    assert [name for name, _ in starts(tmp_path)][6:] == [f"trial-{first:03d}-seed-8", f"trial-{second:03d}-seed-8"]
    assert tuning.best is tuning.trials[second]


def test_a_trial_that_fails_on_a_further_seed_is_not_the_best(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = (trial.number for trial in finish(search(tmp_path)).ranked()[:2])
    faults(tmp_path, **{f"trial_{first:03d}_seed_7": (2, "TrainingError: the loss is not finite", True)})
    tuning = confirm(search(tmp_path, confirm_seeds=(7,)))
    assert tuning.confirmations[first, 7].error == "TrainingError: the loss is not finite"
    assert tuning.best is tuning.trials[second]
    assert f"trial {first} seed 7 failed and counts as the worst: TrainingError: the loss is not finite" in caplog.text


def test_a_further_seed_that_is_stopped_is_resumed(tmp_path: Path) -> None:
    assert search(tmp_path, confirm_seeds=(7,)).confirmation_jobs() == {}  # no trial has ended
    first, second, third = (trial.number for trial in finish(search(tmp_path)).ranked()[:3])
    faults(
        tmp_path,
        **{f"trial_{first:03d}_seed_7": (0, "-20", False), f"trial_{second:03d}_seed_7": (-9, "step 1", False)},
    )
    with pytest.raises(TrainingError, match="The same command goes on with this trial"):
        confirm(search(tmp_path, confirm_seeds=(7,)))
    tuning = search(tmp_path, confirm_seeds=(7,))
    assert list(tuning.confirmations) == [(first, 7)]
    assert tuning.best is tuning.trials[first]  # until all of them have ended, the best of the trials
    assert confirm(tuning).best is tuning.trials[second]
    started = [(name, resumed) for name, resumed in starts(tmp_path) if "seed" in name]
    stopped = f"trial-{second:03d}-seed-7"
    assert started == [
        (f"trial-{first:03d}-seed-7", False), (stopped, False), (stopped, True), (f"trial-{third:03d}-seed-7", False)
    ]  # fmt: skip


def test_a_failed_trial_is_not_run_on_further_seeds_and_a_better_later_trial_is(tmp_path: Path) -> None:
    faults(tmp_path, trial_001=(2, "TrainingError: the loss is not finite", True))
    tuning = confirm(search(tmp_path, count=2, confirm_seeds=(7,)))
    assert list(tuning.confirmations) == [(0, 7)]
    more = confirm(search(tmp_path, count=6, confirm_seeds=(7,), confirmed=1))
    assert more.best is more.ranked()[0]
    assert sorted(more.confirmations) == sorted({(0, 7), (more.ranked()[0].number, 7)})
    assert search(tmp_path, count=8, confirm_seeds=(7,)).confirmation_jobs() == {}  # two trials are missing


def test_a_further_seed_differs_from_that_of_the_trials(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        search(tmp_path, confirm_seeds=(1, 0))
    assert str(caught.value) == "--confirm-seeds 0: the trials themselves have this seed (run.seed); name another"


def test_a_search_is_another_on_other_prompts(tmp_path: Path) -> None:
    """Values on other held-out prompts cannot be compared with those of the trials so far."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    (tmp_path / "recipe.toml").write_text(f'[data]\ntrain = "{prompts}"\nheld_out = 0.5\n[run]\nsteps = 3\n')
    finish(search(tmp_path, count=1))
    assert search(tmp_path, count=2).ended == 1
    prompts.write_text('{"prompt": "a"}\n{"prompt": "c"}\n')
    with pytest.raises(
        ConfigError, match=r"search holds another search; data\.train: other contents\. Continue with the"
    ):
        search(tmp_path, count=2)


def test_a_search_needs_held_out_items(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds out no items, by which trials are compared"):
        search(tmp_path, overrides=["data.eval_examples=0"])


def test_a_rival_is_run_by_its_own_command() -> None:
    words = command_of(["text2grad"], "ilf", Path("my.toml"), ["optim.lr=1e-3"])
    assert words == ["text2grad", "rival", "ilf", "my.toml", "--set", "optim.lr=1e-3"]
    assert command_of(["text2grad"], "grpo", Path("my.toml"), []) == ["text2grad", "train", "my.toml"]
