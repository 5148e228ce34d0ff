"""The agent loop beside verl's own functions: dense scores through its KL term and GAE; `make verl-test` runs it."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from places import ROOT
from text2grad.errors import ConfigError
from text2grad.rl.advantages import gae, whiten
from text2grad.rl.nl_gradient import total_rewards
from text2grad.tasks.tiny import word_tokenizer

pytest.importorskip("verl", reason="verl has an environment of its own: make verl-test")
pytestmark = pytest.mark.filterwarnings("ignore")

TOKENIZER = word_tokenizer(["please yes or later no"])
TEXT = "please yes or later"


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function from settings to a loop whose sampling returns `TEXT`."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

    from text2grad.integrations.verl import SpanAgentLoop

    def init(self: Any, trainer_config: Any, tokenizer: Any, **_: Any) -> None:
        self.config, self.tokenizer, self.response_length = trainer_config, tokenizer, length

    async def run(self: Any, sampling_params: Any, **_: Any) -> Any:
        ids = TOKENIZER(TEXT).input_ids
        metrics = AgentLoopMetrics()
        mask = [1, 1, 0, 1]  # the third id is no action of the model
        return AgentLoopOutput(prompt_ids=[1], response_ids=ids, response_mask=mask, metrics=metrics)

    monkeypatch.setattr(SingleTurnAgentLoop, "__init__", init)
    monkeypatch.setattr(SingleTurnAgentLoop, "run", run)

    length = 8

    def make(estimator: str = "gae", *, most: int = 8, **settings: Any) -> Any:
        nonlocal length
        length = most
        config = {"algorithm": {"adv_estimator": estimator}, "trainer": {"use_v1": True}}
        return SpanAgentLoop(trainer_config=config, tokenizer=TOKENIZER, critic="verl_critics:critic", **settings)

    return make


def output_of(loop: Any) -> Any:
    return asyncio.run(loop.run({}, raw_prompt=[{"role": "user", "content": "Well?"}], extra_info={"n": 1}))


def test_the_loop_is_registered_and_its_output_has_a_score_for_each_id(loop: Any) -> None:
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    assert _agent_loop_registry["text2grad"] == {"_target_": "text2grad.integrations.verl.SpanAgentLoop"}
    found = output_of(loop(reward={"positive": 2.0}))
    as_dict = found.as_dict()
    # yes or: 2 each, but "or" is masked; later: -1, and on the last token the outcome 0.5
    torch.testing.assert_close(as_dict["rm_scores"], torch.tensor([0.0, 2.0, 0.0, -0.5]))
    assert as_dict["rm_scores"].shape == as_dict["responses"].shape
    assert found.reward_score == pytest.approx(1.5)  # so verl scores nothing itself
    assert "token_scores" not in as_dict
    assert found.extra_fields["critique"].startswith("{'n': 1")
    assert found.extra_fields["critique_status"] == "ok"
    cut = output_of(loop(most=4, reward={"truncated": -1.0})).as_dict()["rm_scores"]
    torch.testing.assert_close(cut, torch.tensor([0.0, 1.0, 0.0, -1.5]))


def test_settings_that_make_one_number_are_refused_when_the_loop_is_made(loop: Any) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.adv_estimator = grpo"):
        loop("grpo")


def test_verls_kl_term_and_gae_give_our_advantages(loop: Any) -> None:
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.core_algos import FixedKLController, compute_gae_advantage_return
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty

    scores = output_of(loop()).as_dict()["rm_scores"]
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    rewards = torch.stack([scores, torch.tensor([1.0, -1.0, 0.0, 0.0])])
    logp, reference, values = torch.randn(2, 4), torch.randn(2, 4), torch.randn(2, 4) * mask
    tensors = {
        "token_level_scores": rewards,
        "old_log_probs": logp,
        "ref_log_prob": reference,
        "response_mask": mask,
        "responses": mask,
        "attention_mask": mask,
    }
    data = DataProto(batch=TensorDict(tensors, batch_size=2), non_tensor_batch={"uid": np.array(["a", "b"])})
    data, _ = apply_kl_penalty(data, kl_ctrl=FixedKLController(0.1), kl_penalty="kl")
    theirs, returns = compute_gae_advantage_return(
        data.batch["token_level_rewards"], values, mask.float(), torch.tensor(0.5), torch.tensor(0.95)
    )
    ours = gae(
        total_rewards(rewards, logp - reference, mask.bool(), beta=0.1), values, mask.bool(), gamma=0.5, lam=0.95
    )
    torch.testing.assert_close(whiten(ours.advantages, mask.bool()), theirs * mask, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.returns, returns * mask, atol=1e-6, rtol=0)


@pytest.mark.parametrize("nodes", [1, 8])
def test_the_recipe_names_settings_that_verl_has(nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hydra import compose, initialize_config_module
    from hydra.utils import get_class
    from omegaconf import OmegaConf

    from text2grad.integrations.verl_scores import refuse_scalar_settings

    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > arguments\n')
    (tmp_path / "python").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MODEL": "models/policy", "NODES": str(nodes)}
    script = ROOT / "recipes" / "verl" / "train.sh"
    subprocess.run(["bash", str(script), "trainer.total_epochs=3"], cwd=tmp_path, env=environment, check=True)
    module, *overrides = (tmp_path / "arguments").read_text().splitlines()[1:]
    assert module == "verl.trainer.main_ppo"
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    refuse_scalar_settings(config)
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node == 8 * nodes
    assert (config.trainer.total_epochs, config.algorithm.lam, config.algorithm.kl_ctrl.kl_coef) == (3, 0.95, 0.2)
    [entry] = OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    assert entry.name == config.actor_rollout_ref.rollout.agent.default_agent_loop
    assert get_class(entry["_target_"]).__name__ == "SpanAgentLoop"
    config.algorithm.adv_estimator = "grpo"
    with pytest.raises(ConfigError, match="adv_estimator = grpo"):
        refuse_scalar_settings(config)
