"""SDPO: the teacher's advantages on logits of transformers, and the direction of the update."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_rival import trainer

from evidence.rivals.judged import Judged
from evidence.rivals.self_distillation import distil, teacher_advantages
from text2grad.models import collate
from text2grad.types import Critique
from tiny_models import own_logp


def test_the_advantage_is_the_teachers_logprob_minus_the_policys(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", "sdpo", rollout={"temperature": 0.7})
    rollouts = run.sample()
    critiques = [Critique("red cat")] * 8
    critiques[2] = Critique("red cat", status="unparsable")
    critiques[5] = Critique("red " * 70)  # leaves no room in the context of 64
    judged = [Judged(one, critique, 0.0) for one, critique in zip(rollouts, critiques, strict=True)]
    batch = collate(rollouts, pad_id=run.pad_id)
    found, taught = teacher_advantages(run, judged, run.score(batch, kl="k1").logp)
    assert taught == [0, 1, 3, 4, 6, 7]
    for row, one in enumerate(rollouts):
        expected = torch.zeros(found.shape[1], dtype=torch.float64)
        if row in taught:
            text = f"{one.example.prompt_text} {one.response} red cat"
            teacher = replace(one, prompt_ids=tuple(run.tokenizer(text)["input_ids"]))
            difference = own_logp(run.model.policy, teacher, 0.7) - own_logp(run.model.policy, one, 0.7)
            expected[: len(difference)] = difference
        assert torch.allclose(found[row].double(), expected, atol=1e-4)
        assert row not in taught or expected.abs().max() > 1e-3


def test_tokens_that_the_teacher_prefers_become_more_probable(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", "sdpo", optim={"lr": 1e-2}, ppo={"epochs": 4, "clip_range": 10.0})
    rollouts = run.sample()
    judged = [Judged(one, Critique("red cat"), 0.0) for one in rollouts]
    batch = collate(rollouts, pad_id=run.pad_id)
    before = run.score(batch, kl="k1").logp
    advantages, _ = teacher_advantages(run, judged, before)
    metrics = distil(run, judged)
    change = run.score(batch, kl="k1").logp - before
    assert float((change * advantages).sum()) > 0.2 * float(change.norm() * advantages.norm())
    assert metrics["rival/taught"] == 8
    tokens = int(batch.response_mask.sum())
    assert metrics["rival/teacher_kl_per_token"] == pytest.approx(-float(advantages.sum()) / tokens, abs=1e-5)


def test_a_round_learns_at_the_rate_of_its_first_step(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", "sdpo", optim={"lr": 1e-2, "schedule": "linear"}, rival={"rounds": 1})
    total = run.recipe.run.steps
    run.step = total - 1  # the last step of the only round: the schedule is nearly at zero there
    metrics = distil(run, [Judged(one, Critique("red cat"), 0.0) for one in run.sample()])
    assert metrics["optim/policy_lr"] == pytest.approx(1e-2)


def test_a_round_without_critiques_changes_nothing(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", "sdpo")
    before = [parameter.clone() for parameter in run.model.parameters()]
    failed = Critique("", status="timed_out")
    assert distil(run, [Judged(one, failed, 0.0) for one in run.sample()])["rival/taught"] == 0
    assert all(map(torch.equal, run.model.parameters(), before))
