"""Fine-tuning on the best answers: the loss on logits of transformers, and the learning rate through the rounds."""

from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from small_rival import judged, trainer

from evidence.rivals.imitation import imitate, imitate_best, supervised_ids
from evidence.rivals.judged import Judged
from small_run import assert_same_run
from text2grad.errors import OutOfMemory
from text2grad.types import Critique, Example, Rollout
from tiny_models import own_logp


def test_labels_are_on_the_answer_alone() -> None:
    row = supervised_ids(Rollout(Example("x"), (5, 6), (7, 1), "y", truncated=False))
    assert row == {"input_ids": [5, 6, 7, 1], "labels": [-100, -100, 7, 1]}


def test_the_loss_is_the_mean_over_the_answers_tokens_and_falls(tmp_path: Path) -> None:
    more = {"rival": {"batch_size": 8, "rounds": 1}, "optim": {"lr": 1e-2, "schedule": "constant"}}
    run = trainer(tmp_path / "run", "sft_best", **more)
    answers = run.sample()

    def loss() -> float:
        return -float(torch.cat([own_logp(run.model.policy, one) for one in answers]).mean())

    before = loss()
    metrics = imitate(run, answers)
    assert metrics["update/policy_loss"] == pytest.approx(before, abs=1e-4)
    assert (metrics["rival/imitated"], metrics["update/optimizer_steps"]) == (8, 1)
    assert loss() < before


def test_the_best_of_each_prompt_is_imitated(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", "sft_best", rival={"keep": 0.25})
    given = [Judged(one, Critique(""), float(n)) for n, one in enumerate(run.sample())]
    assert imitate_best(run, given)["rival/imitated"] == 2  # one of four, twice
    assert imitate_best(run, [judged(1, failed=True)] * 8) == {"rival/imitated": 0.0}


def test_the_schedule_spans_all_rounds_and_the_moments_go_on(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", "sft_best", optim={"lr": 0.01, "schedule": "linear"}, rival={"epochs": 2})
    adamw = run.optimizers.by_name["policy"]
    answers = run.sample()
    assert imitate(run, answers)["update/optimizer_steps"] == 4  # 8 answers, 4 a step, 2 passes
    assert adamw.param_groups[0]["lr"] == pytest.approx(0.005)  # after 2 of 4 steps
    run.step = 3
    imitate(run, answers)
    assert adamw.param_groups[0]["lr"] == pytest.approx(0.0)
    assert {float(state["step"]) for state in adamw.state.values()} == {8.0}


def test_a_lack_of_memory_while_it_learns_saves_no_half_learned_policy(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rival": {"rounds": 1, "epochs": 2}}
    trainer(tmp_path / "calm", "sft_best", **settings).train()
    run = trainer(tmp_path / "short", "sft_best", **settings)
    adamw, taken = run.optimizers.by_name["policy"], list[int]()
    step = adamw.step

    def fails(_: Any, *given: Any, **named: Any) -> Any:
        taken.append(1)
        if len(taken) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return step(*given, **named)

    adamw.step = MethodType(fails, adamw)  # type: ignore[method-assign]
    with pytest.raises(OutOfMemory):
        run.train()
    assert len(taken) == 3
    assert not list((tmp_path / "short" / "checkpoints").glob("step-*"))
    trainer(tmp_path / "short", "sft_best", resume=True, **settings).train()
    assert_same_run(tmp_path / "calm", tmp_path / "short")
