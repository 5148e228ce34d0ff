"""What stands around the lines of Algorithm 4."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import small_run
from text2grad.errors import CriticError
from text2grad.rl import instruments as module
from text2grad.rl.instruments import Costs, Records
from text2grad.types import Example, Given, Rollout


def test_the_clock_adds_up_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([10.0, 13.0, 20.0, 20.5, 30.0, 34.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    clock = Costs(None)
    for phase in ("rollout", "update", "rollout"):
        with clock.phase(phase):
            pass
    assert clock.seconds == {"seconds/rollout": 7.0, "seconds/update": 0.5}
    assert clock.memory == {}  # without an accelerator


def test_the_clock_keeps_the_highest_peak_of_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks, resets = iter([0, 300, 300, 50, 50, 200]), []
    monkeypatch.setattr(module, "accelerator_peak", lambda: next(peaks))
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda: resets.append(1))
    clock = Costs(None)
    for phase in ("rollout", "update", "rollout"):
        with clock.phase(phase):
            pass
    assert clock.memory == {"memory/rollout": 300.0, "memory/update": 50.0}
    assert len(resets) == 2  # nothing was in use before the first


def test_what_a_policy_was_given_between_its_turns_counts_as_prompt() -> None:
    rollout = Rollout(Example("x"), (1, 2), (3, 4, 5), "", False, given=(Given(1, (6, 7)), Given(2, (8,))))
    step = SimpleNamespace(rollouts=[rollout, replace(rollout, given=())], metrics=dict[str, float]())
    costs = Costs(SimpleNamespace(critic=None, toolbox=None))
    costs.before_step(0)
    costs.after_step(step)  # type: ignore[arg-type]
    assert (step.metrics["tokens/prompt"], step.metrics["tokens/generated"]) == (2 + 3 + 2, 6)


def test_an_error_of_the_annotator_after_the_update_saves_no_half_step(tmp_path: Path) -> None:
    run = small_run.trainer(tmp_path / "run")

    def fails(step: int) -> dict[str, float]:
        raise CriticError("the annotator is gone")

    run.refresher.refresh_if_due = fails  # type: ignore[method-assign]
    with pytest.raises(CriticError, match=r"gone\. The traceback .*Steps after the last checkpoint are repeated"):
        run.train()
    assert (
        list((tmp_path / "run" / "checkpoints").glob("step-*")) == []
    )  # the weights have changed, the step is not done


def test_a_run_is_warned_early_of_prompts_with_nothing_to_move_to(caplog: pytest.LogCaptureFixture) -> None:
    line = {"delta/labelled_share": 0.5, "delta/cornered_share": 1.0}
    log = SimpleNamespace(write_rollouts=list, write_metrics=dict, metrics=lambda: [line])
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(is_main_process=True),
        log=log,
        vllm=None,
        gradient=SimpleNamespace(half_precision=False),
        tracker=SimpleNamespace(log=lambda metrics, step: None),
    )
    with caplog.at_level("WARNING", logger="text2grad"):
        for number in range(4):
            Records(trainer).after_step(SimpleNamespace(number=number, records=[], metrics={}))  # type: ignore[arg-type]
    assert [text[:60] for text in caplog.messages] == [
        f"step {step}: for 100% of the prompts every response goes the same way"[:60] for step in (1, 3)
    ]
