"""The factor of responses that an engine sampled: by hand, and the law that makes it right."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from text2grad.errors import TrainingError
from text2grad.rl import importance
from text2grad.rl.importance import MOST_KL, engine_weights, warning_of_gap
from text2grad.types import Example, Rollout

ALONE: Any = SimpleNamespace(reduce=lambda x, reduction: x)


def rollouts(*logps: tuple[float, ...]) -> list[Rollout]:
    return [Rollout(Example("x"), (1,), (3,) * len(row), "y", False, row) for row in logps]


def test_factors_and_metrics_by_hand() -> None:
    logp = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, 9.0, 9.0]])  # the padding's 9 must not matter
    mask = torch.tensor([[True, True, True], [True, False, False]])
    sampled = rollouts((-1.0, -1.0, -1.5), (-2.75,))
    weights, metrics = engine_weights(sampled, logp, mask, accelerator=ALONE)
    # log π_old − log π_engine: 0, −1, 1, −0.25; e¹ is cut at 2
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.36788, 2.0], [0.77880, 1.0, 1.0]]), atol=1e-5, rtol=0)
    assert metrics == pytest.approx(
        {
            "engine/kl_per_token": (0 + 1 - 1 + 0.25) / 4,
            "engine/logp_gap": (0 + 1 + 1 + 0.25) / 4,
            "engine/weight_mean": (1 + 0.36788 + 2 + 0.77880) / 4,
            "engine/capped_share": 1 / 4,
        },
        abs=1e-5,
    )


def test_a_mean_over_the_engines_samples_becomes_one_over_the_policys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importance, "CAP", 10.0)
    generator = torch.Generator().manual_seed(0)
    policy, engine = (torch.randn(5, generator=generator).mul(0.2).log_softmax(-1) for _ in range(2))
    values, count = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0]), 200_000
    ids = torch.multinomial(engine.exp(), count, replacement=True, generator=generator)
    sampled = rollouts(tuple(engine[ids].tolist()))
    logp, mask = policy[ids][None], torch.ones(1, count, dtype=torch.bool)
    weights, _ = engine_weights(sampled, logp, mask, accelerator=ALONE)
    wanted = (policy.exp() * values).sum()
    assert float((weights[0] * values[ids]).mean()) == pytest.approx(float(wanted), abs=0.02)
    assert abs(float(values[ids].mean() - wanted)) > 0.05, "else the factor shows nothing"


def test_an_engine_of_other_weights_ends_the_run() -> None:
    logp, mask = torch.tensor([[-1.0, -1.0]]), torch.tensor([[True, True]])
    with pytest.raises(TrainingError, match=r"KL\(engine ‖ policy\) is 0\.5 nats.*rollout\.engine = \"hf\""):
        engine_weights(rollouts((-0.5, -0.5)), logp, mask, accelerator=ALONE)
    with pytest.raises(TrainingError, match="nan"):
        engine_weights(rollouts((float("nan"), 0.0)), logp, mask, accelerator=ALONE)
    assert MOST_KL < 0.5


@pytest.mark.parametrize(
    ("gap", "rounded", "warns"), [(9e-4, False, 0), (2e-3, False, 1), (0.04, True, 0), (0.06, True, 1)]
)
def test_a_gap_beyond_rounding_is_told(gap: float, rounded: bool, warns: int) -> None:
    warning = warning_of_gap({"engine/logp_gap": gap, "engine/kl_per_token": 0.0}, rounded=rounded)
    assert warning.count(f"differ by {gap:.2g} nats") == warns
    assert warning_of_gap({}, rounded=rounded) == "", "a rival's step samples nothing"
