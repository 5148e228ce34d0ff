"""The factor of responses that an engine sampled: by hand, by TRL's own lines, and the law that makes it right."""

import ast
import math
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from text2grad.config import RolloutConfig, make_recipe
from text2grad.errors import ConfigError, TrainingError
from text2grad.rl.importance import MOST_KL, engine_weights, warning_of_gap
from text2grad.types import Example, Rollout

ALONE: Any = SimpleNamespace(reduce=lambda x, reduction: x, gather=lambda x: x)
USUAL = RolloutConfig(engine="vllm").correction


def rollouts(*logps: tuple[float, ...]) -> list[Rollout]:
    return [Rollout(Example("x"), (1,), (3,) * len(row), "y", False, row) for row in logps]


LOGP = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, 9.0, 9.0]])  # the padding's 9 must not matter
MASK = torch.tensor([[True, True, True], [True, False, False]])
SAMPLED = rollouts((-1.0, -1.0, -1.5), (-2.75,))
# log ρ = log π_old − log π_engine: 0, −1, 1 (ρ = 1, 0.36788, 2.71828; in total 0) and −0.25 (ρ = 0.77880)


def test_factors_and_metrics_by_hand() -> None:
    weights, metrics = engine_weights(SAMPLED, LOGP, MASK, USUAL, accelerator=ALONE)
    # e¹ is cut at 2
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.36788, 2.0], [0.77880, 1.0, 1.0]]), atol=1e-5, rtol=0)
    assert metrics == pytest.approx(
        {
            "engine/kl_per_token": (0 + 1 - 1 + 0.25) / 4,
            "engine/logp_gap": (0 + 1 + 1 + 0.25) / 4,
            "engine/logp_gap_max": 1.0,
            "engine/weight_mean": (1 + 0.36788 + 2 + 0.77880) / 4,
            "engine/capped_share": 1 / 4,
            "engine/k3_kl": (0 + 0.36788 + (2.71828 - 2) + (0.77880 - 0.75)) / 4,  # ρ − 1 − log ρ
            "engine/ppl_ratio": (1 + 1.28403) / 2,  # e^0 and e^0.25, of one token
            # (1 + 0.36788 + 2 + 0.77880)² / (4 · (1 + 0.13534 + 4 + 0.60653)) = 17.19496 / 22.96746
            "engine/eff_sample_size": 0.748666,
        },
        abs=1e-5,
    )


@pytest.mark.parametrize(
    ("engine", "factors", "beyond"),
    [
        ("vllm", [[1.0, 0.36788, 2.0], [0.7788, 1.0, 1.0]], 1),
        ("vllm token_truncate 2", [[1.0, 0.36788, 2.0], [0.7788, 1.0, 1.0]], 1),
        ("vllm token_truncate 0.5 2", [[1.0, 0.5, 2.0], [0.7788, 1.0, 1.0]], 2),
        ("vllm token_mask 2", [[1.0, 0.36788, 0.0], [0.7788, 1.0, 1.0]], 1),
        ("vllm token_mask 0.5 inf", [[1.0, 0.0, 2.71828], [0.7788, 1.0, 1.0]], 1),
        ("vllm sequence_truncate 0.8 2.5", [[1.0, 1.0, 1.0], [0.8, 1.0, 1.0]], 1),
        ("vllm sequence_mask 0.8 2.5", [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]], 1),
        ("vllm sequence_mask 0.5 0.9", [[0.0, 0.0, 0.0], [0.7788, 1.0, 1.0]], 3),
    ],
)
def test_the_modes_by_hand(engine: str, factors: list[list[float]], beyond: int) -> None:
    how = RolloutConfig(engine=engine).correction
    weights, metrics = engine_weights(SAMPLED, LOGP, MASK, how, accelerator=ALONE)
    torch.testing.assert_close(weights, torch.tensor(factors), atol=1e-5, rtol=0)
    assert metrics["engine/capped_share"] == beyond / 4
    assert metrics["engine/weight_mean"] == pytest.approx(float(weights[MASK].mean()))


@cache
def trl_ratio() -> Any:
    """Return TRL's own lines from the log-probs to the factors, compiled; TRL itself is not imported."""
    spec = find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / "trainer" / "grpo_trainer.py").read_text("utf-8"))
    [block] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and any(ast.unparse(line).startswith("sequence_level_is =") for line in node.body)
    ]
    return compile(ast.Module(block.body, []), "grpo_trainer.py", "exec")


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("how", ["truncate", "mask"])
@pytest.mark.parametrize("limits", ["2", "0.7 1.5", "0.9 inf"])
def test_the_factors_are_those_of_trl(level: str, how: str, limits: str) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([5, 3, 1, 4])
    mask = torch.arange(5) < lengths[:, None]
    logp = -torch.rand(4, 5, generator=generator)
    theirs = logp + torch.randn(4, 5, generator=generator) * 0.4
    sampled = rollouts(*(tuple(row[:n].tolist()) for row, n in zip(theirs, lengths.tolist(), strict=True)))
    setting = RolloutConfig(engine=f"vllm {level}_{how} {limits}").correction
    weights, _ = engine_weights(sampled, logp, mask, setting, accelerator=ALONE)
    names = {"old_per_token_logps": logp, "sampling_per_token_logps": theirs, "completion_mask": mask.long()}
    named = zip(("mode", "clip_min", "clip_max"), setting, strict=True)
    own = {f"vllm_importance_sampling_{name}": value for name, value in named}
    space: dict[str, Any] = {**names, "tool_mask": None, "torch": torch, "math": math}
    exec(trl_ratio(), space | {"self": SimpleNamespace(**own)}, result := dict[str, Any]())
    ratio = result["vllm_importance_sampling_ratio"].expand_as(mask)
    torch.testing.assert_close(weights[mask], ratio[mask])
    assert len(set(ratio[mask].tolist())) > 1, "else the limits leave nothing to compare"


@pytest.mark.parametrize(
    "engine", ["vllm token_mask", "vllm token_mask 2 2", "vllm token_mask 3 2", "vllm mask 2", "tgi"]
)
def test_another_correction_is_refused(engine: str) -> None:
    with pytest.raises(ConfigError, match=f'engine = \'{engine}\': write "hf", "vllm".*LOWER, which may be left out'):
        make_recipe({"rollout": {"engine": engine}})


def test_responses_of_no_tokens_have_no_gap() -> None:
    nothing = torch.zeros(1, 0)
    _, metrics = engine_weights(rollouts(()), nothing, nothing > 0, USUAL, accelerator=ALONE)
    assert (metrics["engine/logp_gap_max"], metrics["engine/ppl_ratio"]) == (0.0, 1.0)


def test_a_mean_over_the_engines_samples_becomes_one_over_the_policys() -> None:
    generator = torch.Generator().manual_seed(0)
    policy, engine = (torch.randn(5, generator=generator).mul(0.2).log_softmax(-1) for _ in range(2))
    values, count = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0]), 200_000
    ids = torch.multinomial(engine.exp(), count, replacement=True, generator=generator)
    sampled = rollouts(tuple(engine[ids].tolist()))
    logp, mask = policy[ids][None], torch.ones(1, count, dtype=torch.bool)
    weights, _ = engine_weights(sampled, logp, mask, ("token_truncate", 0.0, 10.0), accelerator=ALONE)
    wanted = (policy.exp() * values).sum()
    assert float((weights[0] * values[ids]).mean()) == pytest.approx(float(wanted), abs=0.02)
    assert abs(float(values[ids].mean() - wanted)) > 0.05, "else the factor shows nothing"


def test_an_engine_of_other_weights_ends_the_run() -> None:
    logp, mask = torch.tensor([[-1.0, -1.0]]), torch.tensor([[True, True]])
    with pytest.raises(TrainingError, match=r"KL\(engine ‖ policy\) is 0\.5 nats.*rollout\.engine = \"hf\""):
        engine_weights(rollouts((-0.5, -0.5)), logp, mask, USUAL, accelerator=ALONE)
    with pytest.raises(TrainingError, match="nan"):
        engine_weights(rollouts((float("nan"), 0.0)), logp, mask, USUAL, accelerator=ALONE)
    assert MOST_KL < 0.5


@pytest.mark.parametrize(
    ("gap", "rounded", "warns"), [(9e-4, False, 0), (2e-3, False, 1), (0.04, True, 0), (0.06, True, 1)]
)
def test_a_gap_beyond_rounding_is_told(gap: float, rounded: bool, warns: int) -> None:
    warning = warning_of_gap({"engine/logp_gap": gap, "engine/kl_per_token": 0.0}, rounded=rounded)
    assert warning.count(f"differ by {gap:.2g} nats") == warns
    assert warning_of_gap({}, rounded=rounded) == "", "a rival's step samples nothing"
