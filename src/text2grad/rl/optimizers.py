"""Two AdamW optimizers, for the policy θ and for the value function ψ (Algorithm 4, lines 29-30).

The learning rate of step n is a function of n alone, so a checkpoint needs no state of the schedule.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from text2grad.config import OptimConfig
from text2grad.errors import TrainingError
from text2grad.rl.sharding import whole

ADAM_BETAS, ADAM_EPS = (0.9, 0.999), 1e-5

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate_factor(schedule: Schedule, step: float, *, warmup_steps: int, total_steps: int) -> float:
    """Return the factor on the peak learning rate at a step, in [0, 1].

    Args:
        schedule: "constant", "linear" or "cosine"; the latter two decay to zero at `total_steps`.
        step: number of the batch of rollouts, from 0; fractions lie between two batches.
        warmup_steps: steps of linear rise; step 0 already has 1 / (warmup_steps + 1).
        total_steps: length of the run.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return 1.0
    done = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    return 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


class Optimizers:
    """The optimizers of policy and value function, stepped together.

    Attributes:
        stepped: number of optimizer steps on the current rollouts; with 0 the weights have not changed since sampling.
        moved: True once an optimizer step of this process has changed a weight of the policy.
    """

    def __init__(
        self,
        policy: list[nn.Parameter],
        value: list[nn.Parameter],
        settings: OptimConfig,
        *,
        total_steps: int,
        max_grad_norm: float = 1.0,
    ) -> None:
        """Make an optimizer for the trainable parameters θ and one for ψ, where there are some.

        `total_steps` is the number of batches of rollouts in the run. Each optimizer's gradient is clipped to
        `max_grad_norm`.
        """
        self.settings, self.total_steps, self.max_grad_norm = settings, total_steps, max_grad_norm
        trained = {"policy": (policy, settings.lr), "value": (value, settings.value_lr)}
        self.peak = {name: rate for name, (parameters, rate) in trained.items() if parameters}
        self.by_name = {
            name: torch.optim.AdamW(trained[name][0], lr=rate, betas=ADAM_BETAS, eps=ADAM_EPS, weight_decay=0.0)
            for name, rate in self.peak.items()
        }
        self.at_step, self.stepped, self.moved = 0, 0, not policy

    def begin(self, step: int) -> dict[str, float]:
        """Set the learning rates of a batch of rollouts and return them."""
        self.at_step = step
        factor = learning_rate_factor(
            self.settings.schedule, step, warmup_steps=self.settings.warmup_steps, total_steps=self.total_steps
        )
        for name, optimizer in self.by_name.items():
            for group in optimizer.param_groups:
                group["lr"] = self.peak[name] * factor
        return {f"optim/{name}_lr": rate * factor for name, rate in self.peak.items()}

    def step(self) -> dict[str, float]:
        """Clip gradients, step and zero them; the policy is not stepped while the value function warms up.

        Returns:
            The gradient norms before clipping.

        Raises:
            TrainingError: if a gradient is not finite, when no weight is changed; or if the first step of the policy
                changes no weight in spite of its gradient.
        """
        norms = {
            f"update/{name}_grad_norm": clip_gradients(_parameters(optimizer), self.max_grad_norm)
            for name, optimizer in self.by_name.items()
        }
        if not all(math.isfinite(norm) for norm in norms.values()):
            raise TrainingError(
                f"a gradient is not finite ({norms}); the optimizer step was not made. Resume from the last checkpoint "
                "with a lower optim.lr, or in a wider model.dtype."
            )
        self.stepped += 1
        resting = self.at_step < self.settings.value_warmup_steps and "value" in self.by_name
        watched = not (self.moved or resting) and norms["update/policy_grad_norm"] > 0.0
        before = self._sums_of_policy() if watched else []
        for name, optimizer in self.by_name.items():
            if name == "value" or not resting:
                optimizer.step()
        if watched and self._sums_of_policy() == before:
            raise TrainingError(
                f"the first optimizer step changed no weight of the policy, whose gradient is {norms}: steps of "
                f"optim.lr = {self.settings.lr:g} are lost in the rounding of its weights. Raise optim.lr, or widen "
                "model.dtype."
            )
        self.moved |= watched
        self.zero_grad()
        return norms

    def _sums_of_policy(self) -> list[float]:
        """Return the sum of each of the policy's parameters, which an optimizer step changes if it changes anything."""
        parameters = _parameters(self.by_name["policy"])
        return [float(whole(parameter.detach().sum(dtype=torch.float64))) for parameter in parameters]

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for optimizer in self.by_name.values():
            optimizer.zero_grad(set_to_none=True)

    def states(self) -> dict[Tensor, dict[str, Any]]:
        """Return AdamW's state of each parameter that has one."""
        return {p: state for optimizer in self.by_name.values() for p, state in optimizer.state.items()}

    def restore(self, states: Mapping[Any, dict[str, Any]]) -> None:
        """Restore the states that `states` returned."""
        for optimizer in self.by_name.values():
            optimizer.state.update({p: states[p] for p in _parameters(optimizer) if p in states})


def clip_gradients(parameters: list[nn.Parameter], max_norm: float) -> float:
    """Scale gradients so that their norm, over all shards, is at most `max_norm`; return the norm before."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = whole(torch.nn.utils.get_total_norm(gradients))
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return float(norm)


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
