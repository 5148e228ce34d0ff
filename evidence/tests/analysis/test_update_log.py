"""What an update did is measured without changing the update, and the numbers are transformers' own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import small_run
from evidence import register
from evidence.analysis.update_log import EarlierMomentum, UpdateEffect
from text2grad.models.batch import collate
from text2grad.rl.ppo import TokenMean
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.types import Example, Rollout
from tiny_models import own_logp

register()

STEPS = {"steps": 3, "save_every": 3}


def effect_of(trainer: Text2GradTrainer) -> UpdateEffect:
    return next(instrument for instrument in trainer.instruments if isinstance(instrument, UpdateEffect))


def records_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rollouts" / "00000.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with the measurement at steps 0 and 2, and the same run without."""
    folder = tmp_path_factory.mktemp("runs")
    for name, every in (("with", 2), ("without", 0)):
        small_run.trainer(folder / name, run=STEPS, analysis={"track_update": every}).train()
    return folder / "with", folder / "without"


def test_a_run_with_the_measurement_ends_with_the_same_weights_bit_for_bit(runs: tuple[Path, Path]) -> None:
    first, second = (small_run.weights(run) for run in runs)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    measured, plain = (small_run.untimed(run / "metrics.jsonl") for run in runs)
    without = [{k: v for k, v in line.items() if not k.startswith("update/gradient_norm")} for line in measured]
    assert without == plain


def test_a_resumed_run_may_begin_to_measure(tmp_path: Path) -> None:
    schedule = {"optim": {"schedule": "constant"}}
    small_run.trainer(tmp_path / "run", run={**STEPS, "steps": 2, "save_every": 2}, **schedule).train()
    again = {"run": STEPS, "analysis": {"track_update": 2}, **schedule}
    small_run.trainer(tmp_path / "run", resume=True, **again).train()
    assert ["logp_after" in record for record in records_of(tmp_path / "run")] == [False] * 16 + [True] * 8


def test_the_steps_that_are_due_have_the_log_probs_and_the_norms(runs: tuple[Path, Path]) -> None:
    measured = records_of(runs[0])
    assert {record["step"] for record in measured if "logp_after" in record} == {0, 2}
    for record in measured:
        if record["step"] != 1:
            assert len(record["logp"]) == len(record["logp_after"]) == len(record["ids"])
            assert record["logp"] != record["logp_after"]
            assert len(record["logp_without_momentum"]) == len(record["ids"])
            assert (record["logp_without_momentum"] == record["logp_after"]) == (record["step"] == 0)
    lines = small_run.untimed(runs[0] / "metrics.jsonl")
    assert ["update/gradient_norm" in line for line in lines] == [True, False, True]
    for line in (lines[0], lines[2]):  # the norms of two vectors and of their sum
        whole, labelled, unlabelled = (line[f"update/gradient_norm{n}"] for n in ("", "_labelled", "_unlabelled"))
        assert abs(labelled - unlabelled) <= whole <= labelled + unlabelled
        assert min(whole, labelled, unlabelled) > 0


def first_step(tmp_path: Path) -> tuple[Text2GradTrainer, Text2GradTrainer, list[Rollout], dict[str, float]]:
    """Return the trainer before and after one step that is measured, its rollouts, and the metrics."""
    before = small_run.trainer(tmp_path / "before")
    rollouts = before.sample()
    after = small_run.trainer(tmp_path / "after", run=STEPS, analysis={"track_update": 1})
    return before, after, rollouts, after.train_step().metrics


def test_log_probs_before_and_after_are_those_of_transformers_alone_and_unpadded(tmp_path: Path) -> None:
    before, after, rollouts, _ = first_step(tmp_path)
    for rollout, record in zip(rollouts, records_of(tmp_path / "after"), strict=True):
        assert list(rollout.response_ids) == record["ids"]
        for trainer, name in ((before, "logp"), (after, "logp_after")):
            assert record[name] == pytest.approx(own_logp(trainer.model.policy, rollout).tolist(), abs=2e-5)


def ways(*, forget: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the way of two weights in the last four of seven steps, and the part of the momentum before these."""
    gradients = torch.randn(7, 2, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [10.0]])
    weights = [torch.nn.Parameter(torch.zeros(5)) for _ in range(2)]
    optimizer = torch.optim.AdamW(weights, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.0)

    def steps(which: range) -> None:
        for step in which:
            for weight, gradient in zip(weights, gradients[step], strict=True):
                weight.grad = gradient.clone()
            if step == 5:
                weights[1].grad = None  # it is not stepped, and its momentum stays
            optimizer.step()

    steps(range(3))
    if forget:
        for weight in weights:
            optimizer.state[weight]["exp_avg"].zero_()
    before = [weight.detach().clone() for weight in weights]
    optimizer.param_groups[0]["lr"] = 0.05
    earlier = EarlierMomentum(optimizer)
    steps(range(3, 7))
    way = [weight.detach() - start for weight, start in zip(weights, before, strict=True)]
    moved = earlier.end()
    found = [moved[weight].clone() for weight in weights]
    steps(range(1))  # after the end nothing is added
    assert all(torch.equal(moved[weight], one) for weight, one in zip(weights, found, strict=True))
    return way, found


def test_the_part_of_earlier_momentum_is_the_way_that_adamw_does_not_go_without_it() -> None:
    """The oracle is AdamW itself with the same gradients and second moments, and a first moment of zero."""
    (way, part), (without, nothing) = ways(forget=False), ways(forget=True)
    for whole, found, rest in zip(way, part, without, strict=True):
        assert found == pytest.approx(whole - rest, abs=1e-6)
        assert found.abs().max() > 1e-3
    assert all((one == 0).all() for one in nothing)


def test_log_probs_without_momentum_are_those_of_an_optimizer_that_has_none(tmp_path: Path) -> None:
    settings = {"run": STEPS, "analysis": {"track_update": 1}, "ppo": {"epochs": 1, "minibatches": 1, "gamma": 0.5}}
    trainers = [small_run.trainer(tmp_path / name, **settings) for name in ("with", "without")]
    for trainer, forgets in zip(trainers, (False, True), strict=True):
        trainer.train_step()
        if forgets:
            for state in trainer.optimizers.by_name["policy"].state.values():
                state["exp_avg"].zero_()
        trainer.train_step()
    whole, fresh = (records_of(tmp_path / name)[8:] for name in ("with", "without"))
    for one, other in zip(whole, fresh, strict=True):
        assert one["ids"] == other["ids"]
        assert one["logp_without_momentum"] == pytest.approx(other["logp_after"], abs=2e-5)
        assert one["logp_without_momentum"] != pytest.approx(one["logp_after"], abs=2e-4)


def test_the_norms_are_those_of_the_gradients_by_plain_autograd(tmp_path: Path) -> None:
    before, _, rollouts, metrics = first_step(tmp_path)
    records = records_of(tmp_path / "after")
    policy = before.model.policy
    for name, chosen in (("", (-1, 0, 1)), ("_labelled", (-1, 1)), ("_unlabelled", (0,))):
        policy.zero_grad()
        tokens = 0
        for rollout, record in zip(rollouts, records, strict=True):  # one response at a time, from whole logits
            ids = torch.tensor([rollout.prompt_ids + rollout.response_ids])
            start = len(rollout.prompt_ids) - 1
            logits = policy(input_ids=ids).logits[0, start : start + len(rollout.response_ids)]
            logp = logits.log_softmax(-1).gather(1, torch.tensor(rollout.response_ids)[:, None])[:, 0]
            weights = torch.tensor(
                [a * (d in chosen) for a, d in zip(record["advantage"], record["delta"], strict=True)]
            )
            (weights * logp).sum().backward()
            tokens += len(weights)
        squares = sum(float(p.grad.double().square().sum()) for p in before.model.policy_parameters())
        assert metrics[f"update/gradient_norm{name}"] == pytest.approx(squares**0.5 / tokens, rel=1e-3)


def test_the_norms_follow_the_mean_of_the_loss(tmp_path: Path) -> None:
    """Twice the weight of a response is twice its advantages."""
    trainer = small_run.trainer(
        tmp_path / "run", run=STEPS, analysis={"track_update": 1}, ppo={"loss_mean": "constant"}
    )
    batch = collate(rollouts((2, 3), (2, 6)), pad_id=0)
    advantages, deltas = torch.ones(2, 6), [[1.0] * 3, [1.0] * 6]
    constant = effect_of(trainer).before(0, batch, advantages, deltas)["update/gradient_norm"]
    effect_of(trainer).loss_mean = TokenMean()
    plain = effect_of(trainer).before(0, batch, advantages, deltas)["update/gradient_norm"]
    assert constant == pytest.approx(plain * 9 / 2 / 6, rel=1e-5)  # Σ / (2 responses · 6 tokens), not Σ / 9
    effect_of(trainer).loss_mean = TokenMean("response")
    halved = torch.tensor([[1.0], [0.5]]).expand(2, 6)
    response = effect_of(trainer).before(0, batch, advantages, deltas)["update/gradient_norm"]
    effect_of(trainer).loss_mean = TokenMean()
    weighted = effect_of(trainer).before(0, batch, halved, deltas)["update/gradient_norm"]
    assert response == pytest.approx(weighted * 9 / 2 / 3, rel=1e-5)  # 1/(2·3) and 1/(2·6) in place of 1/9 and 1/18


def rollouts(*lengths: tuple[int, int]) -> list[Rollout]:
    return [Rollout(Example("x"), tuple(range(3, 3 + p)), tuple(range(4, 4 + r)), "y", False) for p, r in lengths]


def test_nothing_is_left_in_the_gradients_and_micro_batches_change_no_norm(tmp_path: Path) -> None:
    trainer = small_run.trainer(tmp_path / "run", run=STEPS, analysis={"track_update": 1})
    rollouts = trainer.sample()
    batch = collate(rollouts, pad_id=trainer.pad_id)
    advantages = torch.arange(batch.response_mask.numel(), dtype=torch.float32).reshape(batch.response_mask.shape)
    deltas = [[float(t % 2) for t in range(len(rollout.response_ids))] for rollout in rollouts]
    whole = effect_of(trainer).before(0, batch, advantages, deltas)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    trainer.sizes.micro_batch_tokens = 1
    assert effect_of(trainer).before(0, batch, advantages, deltas) == pytest.approx(whole, rel=1e-4)
    assert effect_of(trainer).before(0, batch, torch.zeros_like(advantages), deltas)["update/gradient_norm"] == 0.0
