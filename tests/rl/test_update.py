"""One PPO update: its gradient against one written by hand, what changes nothing, and what stops it."""

import math
import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from text2grad.config.policy import OptimConfig, PPOConfig
from text2grad.errors import TrainingError
from text2grad.models.batch import collate
from text2grad.models.policy import PolicyWithValue, Reference, Scores
from text2grad.rl.optimizers import Optimizers
from text2grad.rl.piece_sizes import PieceSizes
from text2grad.rl.scoring import score_batch
from text2grad.rl.update import MinibatchGradient, PPOBatch, minibatch_rows, ppo_epochs
from text2grad.types import Rollout
from tiny_models import own_logits, rollouts, tiny

LENGTHS = ((3, 4), (5, 1), (2, 5), (1, 6), (4, 2), (2, 3))
RATE = 3e-3


class Recorded:
    """Stands for the optimizers: it keeps the gradient that it was given, and moves nothing."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.gradients = model, list[dict[str, Tensor]]()

    def step(self) -> dict[str, float]:
        self.gradients.append({n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None})
        self.zero_grad()
        return {"update/policy_grad_norm": 1.0}

    def zero_grad(self) -> None:
        self.model.zero_grad(set_to_none=True)


class Bench:
    """A policy with a value function, rollouts scored by it, and advantages and returns drawn at random."""

    def __init__(
        self,
        *,
        family: str = "llama",
        value: str = "trunk",
        lengths: tuple[tuple[int, int], ...] = LENGTHS,
        temperature: float = 1.0,
        recorded: bool = False,
        detach_trunk: bool = True,
        lr: float = RATE,
        max_ratio: float = 10.0,
        **ppo: Any,
    ) -> None:
        self.model = PolicyWithValue(tiny(family), value=value, detach_trunk=detach_trunk)  # type: ignore[arg-type]
        self.reference = Reference(self.model.policy)
        self.rollouts, self.temperature = rollouts(lengths), temperature
        generator = torch.Generator().manual_seed(1)
        width = max(response for _, response in lengths)
        self.advantages = torch.randn(len(lengths), width, generator=generator)
        self.returns = torch.randn(len(lengths), width, generator=generator)
        self.max_ratio = max_ratio
        self.config = PPOConfig(**({"epochs": 1} | ppo))
        settings = OptimConfig(lr=lr, value_lr=lr, schedule="constant")
        self.optimizers: Any = Recorded(self.model)
        if not recorded:
            policy, psi = self.model.policy_parameters(), self.model.value_parameters()
            self.optimizers = Optimizers(policy, psi, settings, total_steps=100, max_grad_norm=100.0)
            self.optimizers.begin(0)
        self.gradient = self.gradient_with(half_precision=False)

    def gradient_with(self, *, half_precision: bool) -> MinibatchGradient:
        return MinibatchGradient(
            self.model,
            Accelerator(cpu=True),
            self.config,
            temperature=self.temperature,
            sizes=PieceSizes(micro_batch_tokens=self.config.micro_batch_tokens),
            half_precision=half_precision,
        )

    def update(self, data: PPOBatch, *, seed: int) -> dict[str, float]:
        return ppo_epochs(self.gradient, self.optimizers, data, seed=seed, max_ratio=self.max_ratio)

    def learning(self, order: list[int] | None = None) -> PPOBatch:
        """Score the rollouts with the policy as it stands now; rows may come in another order."""
        rows = torch.tensor(order or range(len(self.rollouts)))
        batch = collate([self.rollouts[row] for row in rows.tolist()], pad_id=0)
        scores = self.model.score(batch, self.reference, temperature=self.temperature, kl="k1")
        mask = batch.response_mask
        return PPOBatch(
            batch, scores, self.advantages[rows].masked_fill(~mask, 0), self.returns[rows].masked_fill(~mask, 0)
        )

    def weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def logp(self, row: int, token: int) -> float:
        learning = self.learning()
        return float(learning.scores.logp[row, token])


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# The gradient.


def test_the_gradient_of_the_first_step_is_that_of_the_losses_written_by_hand() -> None:
    # At ratio 1 the surrogate's gradient is that of −Σ A log π / N; the value loss is ½ Σ (V − R)² / N with V = 0 at
    # the start; the bonus is Σ H / N. The logits are transformers' own, unpadded, row by row, at the temperature.
    bench = Bench(recorded=True, entropy_coef=0.3, vf_coef=0.5, temperature=0.7, detach_trunk=False)
    torch.nn.init.normal_(bench.model.value_head.weight, std=0.1)
    learning = bench.learning()
    bench.update(learning, seed=0)
    (found,) = bench.optimizers.gradients

    policy, tokens = bench.model.policy, sum(response for _, response in LENGTHS)
    policy.zero_grad()
    loss = torch.zeros(())
    for row, rollout in enumerate(bench.rollouts):
        length, start = len(rollout.response_ids), len(rollout.prompt_ids) - 1
        output = policy(input_ids=torch.tensor([rollout.prompt_ids + rollout.response_ids]), output_hidden_states=True)
        logp = (output.logits[0, start : start + length] / 0.7).log_softmax(-1)
        chosen = logp.gather(1, torch.tensor(rollout.response_ids)[:, None])[:, 0]
        values = bench.model.value_head(output.hidden_states[-1][0, start : start + length])[:, 0]
        loss = loss - (bench.advantages[row, :length] * chosen).sum()
        loss = loss + 0.5 * 0.5 * (values - bench.returns[row, :length]).square().sum()
        loss = loss + 0.3 * (logp.exp() * logp).sum()
    (loss / tokens).backward()
    expected = {name: p.grad for name, p in bench.model.named_parameters() if p.grad is not None}
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=2e-6, msg=name)


def test_what_the_first_step_saw_by_hand() -> None:
    bench = Bench(entropy_coef=0.1, max_ratio=1.1)
    learning = bench.learning()
    found = bench.update(learning, seed=0)
    mask = learning.batch.response_mask
    entropy = torch.cat([own_logits(bench.reference.model, r).log_softmax(-1) for r in bench.rollouts])
    assert found == pytest.approx(
        {
            "update/policy_loss": -float(learning.advantages[mask].mean()),  # ratio 1
            "update/value_loss": 0.5 * float(learning.returns[mask].square().mean()),  # V = 0
            "update/ratio_mean": 1.0,
            "update/ratio_max": 1.0,
            "update/clip_fraction": 0.0,
            "update/approx_kl_per_token": 0.0,
            "update/entropy_per_token": -float((entropy.exp() * entropy).sum(-1).mean()),
            "update/policy_grad_norm": found["update/policy_grad_norm"],
            "update/value_grad_norm": found["update/value_grad_norm"],
            "update/skipped": 0.0,
            "update/epochs": 1.0,
        },
        abs=1e-5,
    )
    assert found["update/policy_grad_norm"] > 0.01
    assert found["update/value_grad_norm"] > 0.01


def test_later_passes_see_the_ratio_move_and_the_clip_bite() -> None:
    first, third = (Bench(epochs=epochs, clip_range=0.05) for epochs in (1, 3))
    once, thrice = first.update(first.learning(), seed=0), third.update(third.learning(), seed=0)
    assert (once["update/clip_fraction"], once["update/approx_kl_per_token"]) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert thrice["update/clip_fraction"] > 0.1
    assert thrice["update/approx_kl_per_token"] > 1e-3
    assert thrice["update/ratio_max"] > 1.05
    assert thrice["update/epochs"] == 3.0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_token_that_is_praised_becomes_likelier_and_one_that_is_faulted_rarer(sign: float) -> None:
    bench = Bench(lr=1e-3)
    bench.advantages = torch.zeros_like(bench.advantages)
    bench.advantages[2, 3] = sign
    before = bench.logp(2, 3)
    bench.update(bench.learning(), seed=0)
    assert sign * (bench.logp(2, 3) - before) > 0.01


def test_the_entropy_bonus_raises_the_entropy() -> None:
    # A bandit: one prompt token, one response token, every answer worth the same.
    def entropy_after(coefficient: float) -> tuple[float, float]:
        bench = Bench(lengths=((1, 1),) * 4, entropy_coef=coefficient, vf_coef=0.0)
        bench.advantages = torch.zeros_like(bench.advantages)
        before = float(bench.learning().scores.entropy.mean())
        for step in range(5):
            bench.update(bench.learning(), seed=step)
        return before, float(bench.learning().scores.entropy.mean())

    before, after = entropy_after(0.1)
    assert after > before + 0.05
    before, after = entropy_after(0.0)
    assert after == before


def test_the_value_function_comes_closer_to_the_returns_and_leaves_the_policy_alone() -> None:
    bench = Bench(value="trunk", vf_coef=1.0, value_clip_range=0.0, epochs=20)
    bench.advantages = torch.zeros_like(bench.advantages)
    before = {name: p.detach().clone() for name, p in bench.model.policy.named_parameters()}
    found = bench.update(bench.learning(), seed=0)
    learning = bench.learning()
    mask = learning.batch.response_mask
    error = 0.5 * float((learning.scores.values - learning.returns)[mask].square().mean())
    assert error < 0.9 * 0.5 * float(learning.returns[mask].square().mean())
    assert found["update/value_loss"] > error  # the mean over all passes, of which the first was the worst
    assert same(before, {name: p.detach() for name, p in bench.model.policy.named_parameters()})


def test_a_value_clip_of_zero_means_none() -> None:
    # In the second pass V has moved from V_old = 0. A clip of 1e-6 pretends that it has not: the loss stays that of
    # V = 0 and gets no gradient where V came closer.
    losses = {clip: Bench(vf_coef=1.0, value_clip_range=clip, epochs=2, lr=0.01) for clip in (0.0, 1e-6, 1e6)}
    found = {clip: b.update(b.learning(), seed=0)["update/value_loss"] for clip, b in losses.items()}
    assert found[0.0] == found[1e6]
    assert found[0.0] < found[1e-6]


# What changes nothing.


@pytest.mark.parametrize("tokens", [1, 12, 30])
def test_the_size_of_a_micro_batch_changes_no_gradient(tokens: int) -> None:
    settings = {"entropy_coef": 0.1, "minibatches": 2, "epochs": 2, "recorded": True}
    whole, split = Bench(**settings), Bench(micro_batch_tokens=tokens, **settings)  # type: ignore[arg-type]
    assert len(split.learning().batch.groups(tokens)) > 1
    one, other = whole.update(whole.learning(), seed=3), split.update(split.learning(), seed=3)
    assert one == pytest.approx(other, abs=1e-5)
    for first, second in zip(whole.optimizers.gradients, split.optimizers.gradients, strict=True):
        assert set(first) == set(second)
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-6, msg=name)


def test_the_size_of_a_micro_batch_changes_the_weights_by_fp32_noise_alone() -> None:
    # AdamW's first steps are about lr · g/(|g| + 1e-5): noise of 1e-8 in g moves a weight by at most 1e-3 lr.
    benches = [Bench(micro_batch_tokens=tokens, minibatches=2, epochs=2) for tokens in (1, 20, 16_384)]
    found = [bench.update(bench.learning(), seed=3) for bench in benches]
    assert found[0]["update/ratio_max"] > 1.01
    assert found[1] == pytest.approx(found[0], rel=1e-3, abs=1e-5)
    assert found[2] == pytest.approx(found[0], rel=1e-3, abs=1e-5)
    for bench in benches[1:]:
        for name, weight in bench.weights().items():
            torch.testing.assert_close(weight, benches[0].weights()[name], rtol=0, atol=0.02 * RATE, msg=name)


def test_the_order_of_rows_changes_no_gradient() -> None:
    one, other = Bench(recorded=True), Bench(recorded=True)
    one.update(one.learning(), seed=0)
    other.update(other.learning([4, 2, 0, 5, 1, 3]), seed=0)
    for name, gradient in one.optimizers.gradients[0].items():
        torch.testing.assert_close(gradient, other.optimizers.gradients[0][name], rtol=1e-4, atol=1e-6, msg=name)


def test_what_stands_in_padding_changes_no_bit() -> None:
    clean, dirty = Bench(), Bench()
    clean.update(clean.learning(), seed=0)
    learning = dirty.learning()
    padding = ~learning.batch.response_mask
    scores = Scores(*(x.masked_fill(padding, 77.0) if x.ndim == 2 else x for x in learning.scores))
    filled = (x.masked_fill(padding, -55.0) for x in (learning.advantages, learning.returns))
    dirty.update(PPOBatch(learning.batch, scores, *filled), seed=0)
    assert same(clean.weights(), dirty.weights())


def test_a_row_without_a_response_changes_no_gradient() -> None:
    one, other = Bench(recorded=True), Bench(recorded=True, lengths=(*LENGTHS, (3, 0)))
    other.advantages[:6], other.returns[:6] = one.advantages, one.returns
    one.update(one.learning(), seed=0)
    other.update(other.learning(), seed=0)
    for name, gradient in one.optimizers.gradients[0].items():
        torch.testing.assert_close(gradient, other.optimizers.gradients[0][name], rtol=1e-4, atol=1e-6, msg=name)


def test_the_same_seed_makes_the_same_bits_and_another_other_minibatches() -> None:
    benches = [Bench(minibatches=3, epochs=2) for _ in range(3)]
    for bench, seed in zip(benches, (5, 5, 6), strict=True):
        torch.manual_seed(int(torch.randint(1_000, ())))  # whatever ran before
        bench.update(bench.learning(), seed=seed)
    assert same(benches[0].weights(), benches[1].weights())
    assert not same(benches[0].weights(), benches[2].weights())


def test_each_pass_uses_every_row_once_in_minibatches_of_one_size_and_another_order() -> None:
    orders = []
    for seed in range(12):
        parts = [part.tolist() for part in minibatch_rows(6, 3, seed=seed)]
        assert [len(part) for part in parts] == [2, 2, 2]
        assert sorted(row for part in parts for row in part) == [0, 1, 2, 3, 4, 5]
        orders.append(str(parts))
    assert len(set(orders)) > 6
    bench = Bench(minibatches=3, epochs=4, recorded=True)
    assert bench.update(bench.learning(), seed=0)["update/epochs"] == 4.0
    assert len(bench.optimizers.gradients) == 12
    passes = bench.optimizers.gradients[::3]  # weights never move here: equal minibatches would give equal gradients
    assert len({float(gradients["policy.lm_head.weight"].sum()) for gradients in passes}) > 1


def test_a_minibatch_may_end_anywhere_in_the_batch() -> None:
    assert [part.tolist() for part in minibatch_rows(4, 1, seed=9)] == [[0, 1, 2, 3]]
    assert [sorted(part.tolist()) for part in minibatch_rows(4, 4, seed=9)] != [[0, 1, 2, 3]]


def test_rows_are_taken_with_all_that_belongs_to_them_and_trimmed() -> None:
    bench = Bench()
    learning = bench.learning()
    part = learning.rows(torch.tensor([4, 1]))  # responses of 2 tokens and of 1
    assert part.advantages.tolist() == learning.advantages[[4, 1], :2].tolist()
    assert part.returns.tolist() == learning.returns[[4, 1], :2].tolist()
    assert part.batch.response_mask.tolist() == [[True, True], [True, False]]
    assert part.scores.logp.tolist() == learning.scores.logp[[4, 1], :2].tolist()
    assert part.scores.bootstrap.tolist() == learning.scores.bootstrap[[4, 1]].tolist()


# What stops an update, or a part of it.


def test_a_model_with_dropout_is_found_out_before_the_first_step() -> None:
    bench = Bench(family="gpt2", epochs=2)
    learning = bench.learning()
    for module in bench.model.modules():  # against what PolicyWithValue does
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    bench.model.train()
    before = bench.weights()
    with pytest.raises(TrainingError) as caught:
        bench.update(learning, seed=0)
    shape = re.fullmatch(
        r"before the first optimizer step the policy is π_old, but the largest \|log π − log π_old\| is "
        r"(?P<deviation>[\d.e+-]+) \(tolerance 1e-04\): the model is not deterministic \(dropout, or a layer that "
        r"depends on the batch\), so PPO's ratios would compare noise",
        str(caught.value),
    )
    assert shape is not None, str(caught.value)
    assert float(shape["deviation"]) > 1e-3
    assert same(before, bench.weights())


@pytest.mark.parametrize("sign", [1, -1])
def test_the_first_ratio_of_no_token_may_differ_from_one_by_more_than_the_noise_of_fp32(sign: int) -> None:
    for size, passes in ((6e-5, True), (1.6e-4, False)):
        bench = Bench()
        learning = bench.learning()
        learning.scores.logp[3, 5] += sign * size
        if passes:
            bench.update(learning, seed=0)
        else:
            with pytest.raises(TrainingError, match=r"but the largest \|log π − log π_old\| is 0\.00016 "):
                bench.update(learning, seed=0)


def test_in_half_precision_single_first_ratios_may_differ_and_the_mean_deviation_is_compared() -> None:
    # One token up, another down: 2 · 1.0 / 21 tokens = 0.095, 2 · 1.1 / 21 = 0.105.
    for size, passes in ((1.0, True), (1.1, False)):
        bench = Bench(micro_batch_tokens=1)
        bench.gradient = bench.gradient_with(half_precision=True)
        learning = bench.learning()
        learning.scores.logp[0, 0] += size
        learning.scores.logp[3, 5] -= size
        if passes:
            bench.update(learning, seed=0)
        else:
            with pytest.raises(TrainingError, match=r"but the mean \|log π − log π_old\| is 0\.1 \(tolerance 1e-01\)"):
                bench.update(learning, seed=0)


@pytest.mark.parametrize("row", range(len(LENGTHS)))
def test_the_largest_ratio_is_found_in_whichever_micro_batch_it_stands(
    row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(micro_batch_tokens=1)
    monkeypatch.setattr("text2grad.rl.update.RATIO_TOLERANCE", 1.0)
    learning = bench.learning()
    learning.scores.logp[row, 0] -= math.log(1.5)
    assert bench.update(learning, seed=0)["update/ratio_max"] == pytest.approx(1.5, rel=1e-5)


@pytest.mark.parametrize("row", range(len(LENGTHS)))
def test_a_first_ratio_other_than_one_is_found_in_whichever_micro_batch_it_stands(row: int) -> None:
    bench = Bench(micro_batch_tokens=1, minibatches=1)
    learning = bench.learning()
    learning.scores.logp[row, 0] += 0.5
    with pytest.raises(TrainingError, match=r"the largest \|log π − log π_old\| is 0\.5 \(tolerance 1e-04\)"):
        bench.update(learning, seed=0)


@pytest.mark.parametrize("where", ["advantages", "returns"])
def test_a_loss_that_is_no_number_changes_no_weight(where: str) -> None:
    bench = Bench(micro_batch_tokens=12)
    learning = bench.learning()
    getattr(learning, where)[3, 0] = math.nan
    before, expected = bench.weights(), -float(learning.advantages[learning.batch.response_mask].mean())
    with pytest.raises(TrainingError) as caught:
        bench.update(learning, seed=0)
    value = 0.5 * float(learning.returns[learning.batch.response_mask].square().mean())
    assert str(caught.value) == (
        f"the loss is not finite (policy {expected:.4g}, value {value:.4g}) before an optimizer step, which was not "
        "made. Resume from the last checkpoint with a lower optim.lr or a higher ppo.beta, or look at the last "
        "rollouts for what was sampled."
    )
    assert same(before, bench.weights())
    assert bench.optimizers.states() == {}


def test_a_minibatch_whose_mean_ratio_is_too_high_is_skipped_and_counted() -> None:
    bench = Bench(max_ratio=0.999, epochs=3, minibatches=2)  # so that even ratio 1 is too high
    before = bench.weights()
    found = bench.update(bench.learning(), seed=0)
    assert found["update/skipped"] == 6.0  # a count, not a mean
    assert "update/policy_grad_norm" not in found
    assert same(before, bench.weights())
    assert all(parameter.grad is None for parameter in bench.model.parameters())


def test_only_the_minibatches_after_the_ratio_ran_away_are_skipped() -> None:
    bench = Bench(max_ratio=1.5, epochs=3, lr=0.1)
    bench.advantages = torch.ones_like(bench.advantages)
    found = bench.update(bench.learning(), seed=0)
    assert 0 < found["update/skipped"] < 3
    assert found["update/ratio_max"] > 1.5


def test_a_policy_without_value_function_learns_too() -> None:
    bench = Bench(value="none", vf_coef=1.0)
    before = bench.weights()
    found = bench.update(bench.learning(), seed=0)
    assert "update/value_grad_norm" not in found
    assert not same(before, bench.weights())


def test_responses_of_no_tokens_at_all_move_nothing() -> None:
    bench = Bench(lengths=((2, 1),))
    bench.rollouts = [Rollout(r.example, r.prompt_ids, (), "", True) for r in bench.rollouts]
    bench.advantages, bench.returns = torch.zeros(1, 0), torch.zeros(1, 0)
    before = bench.weights()
    found = bench.update(bench.learning(), seed=0)
    assert found["update/ratio_mean"] == 0.0
    assert same(before, bench.weights())


def test_sums_over_processes_are_sums_and_no_means() -> None:
    bench = Bench(recorded=True)
    learning = bench.learning()
    tokens = float(learning.batch.response_mask.sum())

    class OneOfTwo(Accelerator):
        """The first of two processes with the same rows."""

        def reduce(self, tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
            return tensor * 2 if reduction == "sum" else tensor

    bench.update(learning, seed=0)
    alone = bench.optimizers.gradients[0]
    bench.gradient.accelerator = OneOfTwo(cpu=True)
    bench.update(learning, seed=0)
    assert tokens > 1
    for name, gradient in bench.optimizers.gradients[1].items():
        torch.testing.assert_close(2 * gradient, alone[name])  # twice the tokens, and its own half of them


def test_without_autograd_nothing_would_be_learned_and_the_update_says_so() -> None:
    bench = Bench()
    learning = bench.learning()
    with torch.no_grad(), pytest.raises(TrainingError, match=r"no gradient.*: autograd is off"):
        bench.update(learning, seed=0)
    bench.model.requires_grad_(False)
    with pytest.raises(TrainingError, match=r"no gradient.*: no weight is trainable"):
        bench.update(learning, seed=0)


def test_a_gradient_of_exactly_zero_is_an_error_where_tokens_have_advantages_alone() -> None:
    bench = Bench(value="none")
    for parameter in bench.model.parameters():
        parameter.register_hook(torch.zeros_like)
    before = bench.weights()
    with pytest.raises(TrainingError, match="gradient of the policy is exactly 0 although tokens have advantages"):
        bench.update(bench.learning(), seed=0)
    bench.advantages = torch.zeros_like(bench.advantages)  # a critic that says nothing
    assert bench.update(bench.learning(), seed=0)["update/policy_grad_norm"] == 0.0
    assert same(before, bench.weights())


# The pass of scoring is the first of the update.


@pytest.mark.parametrize(
    ("value", "kl", "grouped", "tokens", "pieces"),
    [
        ("trunk", "k1", False, 10_000, 1),
        ("none", "k1", False, 20, 3),
        ("model", "full", True, 10_000, 1),
        ("trunk", "k1", True, 16, 2),  # prompts of 5 tokens: 5 + 4 · 2 = 13 and 5 + 2 · 5 = 15 tokens
    ],
)
def test_the_pass_of_scoring_that_is_also_the_first_of_the_update_changes_no_bit(
    value: str, kl: Literal["k1", "full"], grouped: bool, tokens: int, pieces: int
) -> None:
    weights, seen, passes = [], [], []
    for shared in (False, True):
        bench = Bench(value=value, epochs=2, micro_batch_tokens=tokens, temperature=0.7, detach_trunk=False)
        if grouped:
            lengths = (2, 1, 5, 2, 2, 4)
            own = rollouts(tuple((5, length) for length in lengths))
            bench.rollouts = [
                replace(row, prompt_ids=own[length > 3].prompt_ids) for row, length in zip(own, lengths, strict=True)
            ]
        hook = bench.model.register_forward_hook(lambda *_: passes.append(shared))  # noqa: B023
        for step in range(3):
            batch = collate(bench.rollouts, pad_id=0, share_prompts=grouped)
            with bench.gradient.sharing_first_pass() if shared else nullcontext():
                scores = score_batch(bench.model, bench.reference, batch, bench.gradient.sizes, temperature=0.7, kl=kl)
            assert not any(part.requires_grad for part in scores)
            assert (bench.gradient.sizes.kept is not None) == (shared and step > 0)  # the first step checks
            mask = batch.response_mask
            advantages, returns = (part[:, : mask.shape[1]] * mask for part in (bench.advantages, bench.returns))
            seen.append(bench.update(PPOBatch(batch, scores, advantages, returns), seed=step))
            assert bench.gradient.sizes.kept is None
        hook.remove()
        weights.append(bench.weights())
    assert same(*weights)
    assert seen[:3] == seen[3:]
    # 3 steps of 2 epochs; two of the steps leave out one pass
    assert (passes.count(False), passes.count(True)) == (6 * pieces, 6 * pieces - 2)


def test_the_pass_of_scoring_is_not_kept_where_the_update_begins_with_another() -> None:
    for setting in {"minibatches": 2}, {"entropy_coef": 0.1}, {}:
        bench = Bench(**setting)
        bench.update(bench.learning(), seed=0)
        with bench.gradient.sharing_first_pass():
            assert bench.gradient.sizes.keeps == (not setting)
        assert not bench.gradient.sizes.keeps


def test_a_kept_pass_over_other_rows_is_dropped() -> None:
    # A lack of memory after scoring halves the pieces: the first then has other rows.
    bench, usual = Bench(micro_batch_tokens=10_000), Bench(micro_batch_tokens=20)
    for each in bench, usual:
        each.update(each.learning(), seed=0)
    learning = bench.learning()
    sizes = bench.gradient.sizes
    with bench.gradient.sharing_first_pass():
        score_batch(bench.model, bench.reference, learning.batch, sizes, temperature=1.0, kl="k1")
    assert sizes.kept is not None
    sizes.micro_batch_tokens = 20
    assert bench.update(learning, seed=1) == pytest.approx(usual.update(usual.learning(), seed=1), abs=1e-5)
    assert sizes.kept is None
