"""Learning rates by hand at every edge; who steps, who rests, and what stops a step."""

import math

import pytest
import torch
from torch import nn

from text2grad.config.recipe import OptimConfig
from text2grad.errors import TrainingError
from text2grad.rl.optimizers import Optimizers, learning_rate_factor


def factors(schedule: str, *, warmup_steps: int, total_steps: int) -> list[float]:
    return [
        learning_rate_factor(schedule, step, warmup_steps=warmup_steps, total_steps=total_steps)
        for step in range(total_steps + 1)
    ]


def test_a_linear_rate_falls_to_zero_at_the_end() -> None:
    assert factors("linear", warmup_steps=0, total_steps=4) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_a_cosine_rate_falls_to_zero_at_the_end() -> None:
    half = math.sqrt(0.5)  # cos(π/4)
    expected = [1.0, (1 + half) / 2, 0.5, (1 - half) / 2, 0.0]
    assert factors("cosine", warmup_steps=0, total_steps=4) == pytest.approx(expected)


def test_a_constant_rate_stays() -> None:
    assert factors("constant", warmup_steps=0, total_steps=3) == [1.0, 1.0, 1.0, 1.0]


def test_the_rate_rises_first_and_the_peak_comes_after_the_warm_up() -> None:
    assert factors("constant", warmup_steps=3, total_steps=5) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    # two steps of rise, then (step − 2) / 4 of the way down
    assert factors("linear", warmup_steps=2, total_steps=6) == pytest.approx([1 / 3, 2 / 3, 1.0, 0.75, 0.5, 0.25, 0.0])
    assert factors("cosine", warmup_steps=2, total_steps=4) == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5, 0.0])


def test_a_run_that_is_all_warm_up_divides_by_nothing() -> None:
    assert factors("linear", warmup_steps=2, total_steps=2) == pytest.approx([1 / 3, 2 / 3, 1.0])


class Toy:
    """Two weights of a policy, one of a value function, and their optimizers."""

    def __init__(self, *, policy: bool = True, value: bool = True, total_steps: int = 10, **config: object) -> None:
        clip = float(config.pop("max_grad_norm", 1.0))  # type: ignore[arg-type]
        self.theta = nn.Parameter(torch.tensor([1.0, -2.0]))
        self.rest = nn.Parameter(torch.tensor([5.0]))
        self.psi = nn.Parameter(torch.tensor([3.0]))
        settings = OptimConfig(**({"lr": 0.1, "value_lr": 0.01, "schedule": "constant"} | config))  # type: ignore[arg-type]
        self.names = {self.theta: "theta", self.rest: "rest", self.psi: "psi"}
        self.optimizers = Optimizers(
            [self.theta, self.rest] if policy else [],
            [self.psi] if value else [],
            settings,
            total_steps=total_steps,
            max_grad_norm=clip,
        )

    def states(self) -> dict[str, dict[str, torch.Tensor]]:
        return {self.names[parameter]: state for parameter, state in self.optimizers.states().items()}

    def gradients(self, theta: tuple[float, float], psi: float) -> None:
        self.theta.grad = torch.tensor(theta)
        self.psi.grad = torch.tensor([psi])

    def weights(self) -> list[float]:
        return [*self.theta.tolist(), *self.rest.tolist(), *self.psi.tolist()]


def test_begin_sets_and_returns_the_rates_of_both_optimizers() -> None:
    toy = Toy(schedule="linear", total_steps=4)
    assert toy.optimizers.begin(1) == pytest.approx({"optim/policy_lr": 0.075, "optim/value_lr": 0.0075})
    rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in toy.optimizers.by_name.items()}
    assert rates == pytest.approx({"policy": 0.075, "value": 0.0075})
    assert toy.optimizers.begin(0) == pytest.approx({"optim/policy_lr": 0.1, "optim/value_lr": 0.01})


def test_the_first_step_of_adamw_by_hand() -> None:
    # AdamW's first step after bias correction: w ← w − lr · g / (|g| + 1e-5).
    # g = 1e-5 moves by half of lr, which shows the 1e-5; a parameter without gradient stays as it is.
    toy = Toy(max_grad_norm=100.0)
    toy.optimizers.begin(0)
    toy.gradients((1e-5, -4.0), 2.0)
    toy.optimizers.step()
    expected = [1.0 - 0.05, -2.0 + 0.1 * 4 / 4.00001, 5.0, 3.0 - 0.01 * 2 / 2.00001]
    assert toy.weights() == pytest.approx(expected, rel=1e-6)
    assert toy.theta.grad is None
    assert toy.psi.grad is None


def test_each_optimizer_is_clipped_on_its_own_and_the_norms_are_those_before() -> None:
    # ‖(3, 4)‖ = 5 is clipped to 1: (0.6, 0.8), up to torch's 1e-6 in the norm; 0.5 is left as it is.
    # AdamW keeps 0.1 g and 0.001 g² after its first step.
    toy = Toy(max_grad_norm=1.0)
    toy.optimizers.begin(0)
    toy.gradients((3.0, 4.0), 0.5)
    assert toy.optimizers.step() == pytest.approx({"update/policy_grad_norm": 5.0, "update/value_grad_norm": 0.5})
    states = toy.states()
    assert states["theta"]["exp_avg"].tolist() == pytest.approx([0.06, 0.08], rel=1e-5)
    assert states["theta"]["exp_avg_sq"].tolist() == pytest.approx([0.00036, 0.00064], rel=1e-5)
    assert states["psi"]["exp_avg"].tolist() == pytest.approx([0.05])


def test_the_policy_rests_while_the_value_function_warms_up_and_moves_after() -> None:
    toy = Toy(value_warmup_steps=2)
    for step in range(2):
        toy.optimizers.begin(step)
        before = toy.psi.item()
        toy.gradients((1.0, 1.0), 1.0)
        toy.optimizers.step()
        assert torch.equal(toy.theta, torch.tensor([1.0, -2.0]))
        assert toy.psi.item() < before
        assert toy.theta.grad is None, "a gradient of the warm-up must not be added to later ones"
    assert set(toy.states()) == {"psi"}
    toy.optimizers.begin(2)
    toy.gradients((1.0, 1.0), 1.0)
    toy.optimizers.step()
    # the first step of its own: lr · g / (|g| + 1e-5), the gradient clipped to 1/√2 each
    assert toy.theta.tolist() == pytest.approx([0.9, -2.1], rel=1e-5)


def test_a_policy_without_value_function_never_waits_for_one() -> None:
    toy = Toy(value=False, value_warmup_steps=5)
    assert toy.optimizers.begin(0) == {"optim/policy_lr": 0.1}
    toy.gradients((1.0, 1.0), 1.0)
    assert set(toy.optimizers.step()) == {"update/policy_grad_norm"}
    assert toy.theta.tolist() == pytest.approx([0.9, -2.1], rel=1e-5)
    assert toy.psi.item() == 3.0


def test_a_frozen_policy_has_no_optimizer() -> None:
    toy = Toy(policy=False)
    assert set(toy.optimizers.by_name) == {"value"}


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["policy", "value"])
def test_a_gradient_that_is_not_finite_changes_no_weight(broken: float, where: str) -> None:
    toy = Toy()
    toy.optimizers.begin(0)
    before = toy.weights()
    toy.gradients((broken if where == "policy" else 1.0, 0.0), broken if where == "value" else 1.0)
    with pytest.raises(TrainingError) as caught:
        toy.optimizers.step()
    norms = {
        "update/policy_grad_norm": broken if where == "policy" else 1.0,
        "update/value_grad_norm": broken if where == "value" else 1.0,
    }
    assert str(caught.value) == (
        f"a gradient is not finite ({norms}); the optimizer step was not made. Resume from the last checkpoint with a "
        "lower optim.lr, or in a wider model.dtype."
    )
    assert toy.weights() == before
    assert toy.states() == {}


def test_states_put_back_into_new_optimizers_go_on_bit_for_bit() -> None:
    def advance(toy: Toy, steps: range) -> None:
        for step in steps:
            toy.optimizers.begin(step)
            toy.gradients((math.sin(step + 1), -0.3), 0.1 * step - 0.2)
            toy.optimizers.step()

    settings = {"schedule": "cosine", "value_warmup_steps": 1}
    whole, first, second = Toy(**settings), Toy(**settings), Toy(**settings)  # type: ignore[arg-type]
    advance(whole, range(6))
    advance(first, range(3))
    states = {name: {key: value.clone() for key, value in state.items()} for name, state in first.states().items()}
    assert set(states) == {"theta", "psi"}
    assert set(states["theta"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert states["theta"]["step"].item() == 2  # it rested in step 0
    with torch.no_grad():
        second.theta.copy_(first.theta), second.psi.copy_(first.psi)
    second.optimizers.restore({second.theta: states["theta"], second.psi: states["psi"]})
    advance(second, range(3, 6))
    assert second.weights() == whole.weights()


def test_parameters_without_state_stay_without_one() -> None:
    toy = Toy()
    toy.optimizers.restore({})
    assert toy.states() == {}


def test_a_first_step_that_rounding_swallows_is_an_error_and_one_without_gradient_is_none() -> None:
    # float32 holds 1 and −2 to 6e-8 and 1.2e-7, so steps of 1e-12 change nothing.
    toy = Toy(lr=1e-12)
    toy.optimizers.begin(0)
    toy.gradients((0.0, 0.0), 1.0)
    toy.optimizers.step()
    toy.gradients((1.0, 1.0), 1.0)
    with pytest.raises(TrainingError, match=r"changed no weight of the policy, .*: steps of optim.lr = 1e-12 are lost"):
        toy.optimizers.step()


def test_later_steps_may_be_as_small_as_a_schedule_makes_them() -> None:
    toy = Toy(schedule="linear", total_steps=10**9)
    for step in (0, 10**9 - 1):  # 0.1 · 1e-9 at the end
        toy.optimizers.begin(step)
        toy.gradients((1.0, 1.0), 1.0)
        toy.optimizers.step()
    assert toy.optimizers.moved
