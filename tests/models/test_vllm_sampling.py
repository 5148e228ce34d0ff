"""vLLM as the sampler of a run, behind TRL's `VLLMGeneration`: arguments, weights, ids, random numbers, refusals.

vLLM is pretended here (`pretended_vllm`), TRL's class is not. `test_vllm_rollouts.py` runs vLLM itself.
"""

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import small_run
from pretended_vllm import PretendedLLM, pretend_vllm
from text2grad.config.server import EngineConfig
from text2grad.errors import ConfigError, ModelError, TrainingError
from text2grad.models.adapters import with_lora
from text2grad.models.vllm_generation import merged_weights, refuse_other_adapters
from text2grad.models.vllm_sampling import check_engine
from text2grad.rl.trainer import Text2GradTrainer
from tiny_models import tiny

ENGINE: dict[str, Any] = {"rollout": {"engine": "vllm", "batch_size": 8, "max_new_tokens": 6}}


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> type[PretendedLLM]:
    return pretend_vllm(monkeypatch)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    tokenizer, model = small_run.tokenizer_and_model()
    model.save_pretrained(tmp_path / "policy")
    tokenizer.save_pretrained(tmp_path / "policy")
    return tmp_path / "policy"


def trainer(policy: Path, out: Path, *, resume: bool = False, **sections: dict[str, Any]) -> Text2GradTrainer:
    settings = {**ENGINE, **sections}
    settings["rollout"] = {**ENGINE["rollout"], **sections.get("rollout", {})}
    recipe = small_run.recipe(out, **settings)
    tokenizer, _ = small_run.tokenizer_and_model()
    critic = small_run.ColourCritic()
    return Text2GradTrainer(str(policy), critic, small_run.EXAMPLES, recipe, processing_class=tokenizer, resume=resume)


def metrics(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_each_step_is_sampled_with_the_weights_of_that_step(
    vllm: type[PretendedLLM], policy: Path, tmp_path: Path
) -> None:
    run = trainer(policy, tmp_path / "run", rollout={"temperature": 0.7, "group_size": 2, "rows_at_once": 3})
    before = {name: weight.clone() for name, weight in run.model.policy.named_parameters()}
    run.train()
    [engine] = vllm.made
    assert engine.synced == len(engine.requests) == 4  # steps
    assert engine.closed
    assert engine.limits == (2 + 6, 3)  # the longest prompt and a response; rows at once
    assert (engine.memory, engine.code) == (0.3, False)
    assert all(len(prompts) == 8 for prompts in engine.requests), "vLLM makes its own batches"
    assert all(prompts[::2] == prompts[1::2] for prompts in engine.requests)
    assert any(not torch.equal(before[name], weight) for name, weight in run.model.policy.named_parameters())
    for found in metrics(tmp_path / "run"):
        assert found["engine/logp_gap"] < 1e-5
        assert found["engine/weight_mean"] == pytest.approx(1.0, abs=1e-5)


def test_a_resumed_run_draws_the_same_numbers_and_critics_keep_theirs(
    vllm: type[PretendedLLM], policy: Path, tmp_path: Path
) -> None:
    random.seed(5)
    wanted = random.Random(5).random()
    trainer(policy, tmp_path / "other", run={"seed": 4, "steps": 1}).train()
    random.seed(5)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    whole = trainer(policy, tmp_path / "whole", run={"steps": 1})
    random.seed(5)
    torch.manual_seed(5)
    whole.vllm.sample([(3, 4)], step=0, on_part=lambda *_: None)  # type: ignore[union-attr]
    assert torch.equal(torch.get_rng_state(), state)
    assert random.random() == wanted
    whole.train()
    trainer(policy, tmp_path / "half", run={"steps": 2}, optim={"schedule": "constant", "lr": 3e-3}).train()
    trainer(policy, tmp_path / "full", optim={"schedule": "constant", "lr": 3e-3}).train()
    trainer(policy, tmp_path / "half", optim={"schedule": "constant", "lr": 3e-3}, resume=True).train()
    small_run.assert_same_run(tmp_path / "half", tmp_path / "full")
    texts = [rollouts(tmp_path / one) for one in ("whole", "other")]
    assert texts[0] != texts[1], "another seed, other responses"


def test_a_killed_run_goes_on_with_the_responses_whose_critiques_are_on_disk(
    vllm: type[PretendedLLM], policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, asked = tmp_path / "run", list[str]()

    class Counting(small_run.ColourCritic):
        def __call__(self, examples: Any, responses: Any) -> Any:
            asked.extend(responses)
            return super().__call__(examples, responses)

    monkeypatch.setattr(small_run, "ColourCritic", Counting)
    run = trainer(policy, out, run={"steps": 4, "save_every": 2})
    for _ in range(2):
        run.train_step()
    run.save()
    run.train_step()
    before = asked[-8:]
    assert len(asked) == 3 * 8
    monkeypatch.setattr("text2grad.models.vllm_sampling.torch.manual_seed", lambda _: torch.seed())  # as on a server
    trainer(policy, out, run={"steps": 4, "save_every": 2}, resume=True).train()
    assert len(asked) == 4 * 8, "the third step's critiques are not asked for again"
    third = [
        json.loads(line) for file in sorted((out / "rollouts").glob("*")) for line in file.read_text().splitlines()
    ]
    assert [one["response"] for one in third if one["step"] == 2] == before
    assert all(found["engine/logp_gap"] < 1e-5 for found in metrics(out))
    again = trainer(policy, tmp_path / "again", run={"steps": 1})
    again.train_step()
    kept = again.log.journal(0, 0).kept
    assert set(kept) == {("sample", row, 0) for row in range(8)}, "the first turn of each response, until it is saved"


def rollouts(out: Path) -> list[str]:
    first = sorted((out / "rollouts").glob("*.jsonl"))[0]
    return [json.loads(line)["response"] for line in first.read_text().splitlines()][:8]


def test_an_engine_that_computes_something_else_is_weighed_or_ends_the_run(
    vllm: type[PretendedLLM], policy: Path, tmp_path: Path
) -> None:
    vllm.sharpness = 1.2
    trainer(policy, tmp_path / "near", run={"steps": 1}).train()
    [found] = metrics(tmp_path / "near")
    assert found["engine/logp_gap"] > 1e-3
    assert found["engine/weight_mean"] != pytest.approx(1.0, abs=1e-4)
    vllm.sharpness = 20.0
    with pytest.raises(TrainingError, match="the responses are not the policy's"):
        trainer(policy, tmp_path / "far", run={"steps": 1}).train()


def test_the_factor_is_on_the_advantages(vllm: type[PretendedLLM], policy: Path, tmp_path: Path) -> None:
    vllm.sharpness = 1.2
    found = {}
    for cap in (0.25, 0.5):
        corrected = {"engine": f"vllm token_truncate {cap}"}
        trainer(policy, tmp_path / str(cap), run={"steps": 1}, rollout=corrected).train()
        log = sorted((tmp_path / str(cap) / "rollouts").glob("*.jsonl"))[0]
        found[cap] = [x for line in log.read_text().splitlines() for x in json.loads(line)["advantage"]]
    # every factor near 1 is cut
    torch.testing.assert_close(torch.tensor(found[0.5]), torch.tensor(found[0.25]) * 2, atol=2e-5, rtol=0)
    assert metrics(tmp_path / "0.5")[0]["engine/capped_share"] == 1.0


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("family", ["llama", "llama-tied", "gpt2"])
def test_merged_weights_are_those_that_peft_merges_and_leave_the_policy_as_it_is(family: str) -> None:
    adapted = with_lora(tiny(family), r=4, alpha=8, targets="all-linear", value_adapter=True)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    before = {name: weight.clone() for name, weight in adapted.named_parameters()}
    merged = {name: weight.clone() for name, weight in merged_weights(adapted)}
    assert all(torch.equal(before[name], weight) for name, weight in adapted.named_parameters())
    plain = tiny(family)
    assert merged.keys() == dict(plain.named_parameters()).keys()
    ids = torch.arange(3, 11)[None]
    with torch.no_grad():
        wanted = adapted(ids).logits
        for name, weight in plain.named_parameters():
            weight.copy_(merged[name])
        torch.testing.assert_close(plain(ids).logits, wanted, atol=1e-4, rtol=1e-4)
        with adapted.disable_adapter():
            off = dict(merged_weights(adapted))
    assert any(not torch.equal(off[name], weight) for name, weight in merged.items())


def test_a_lora_policy_is_synced_and_its_base_stays(vllm: type[PretendedLLM], policy: Path, tmp_path: Path) -> None:
    run = trainer(policy, tmp_path / "run", model={"lora_r": 4, "value": "adapter"}, optim={"lr": 5e-2})
    base = {name: p.clone() for name, p in run.model.policy.named_parameters() if not p.requires_grad}
    run.train()
    assert base
    assert all(torch.equal(base[name], dict(run.model.policy.named_parameters())[name]) for name in base)
    assert max(found["engine/logp_gap"] for found in metrics(tmp_path / "run")) < 1e-5
    assert metrics(tmp_path / "run")[-1]["kl/per_token"] > 1e-3, "else the adapter has not moved"


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")
def test_adapters_that_are_more_than_a_matrix_are_refused() -> None:
    from peft import LoraConfig, get_peft_model

    refuse_other_adapters(tiny("llama"))
    refuse_other_adapters(with_lora(tiny("llama"), r=2, alpha=4, targets="all-linear"))
    dora = get_peft_model(tiny("llama"), LoraConfig(r=2, target_modules=["q_proj"], use_dora=True))
    with pytest.raises(ModelError, match=r"q_proj has an adapter that cannot be merged.*rollout\.engine = \"hf\""):
        refuse_other_adapters(dora)


def accelerator(processes: int = 1) -> Any:
    return SimpleNamespace(num_processes=processes)


def refused(settings: EngineConfig, pattern: str, *, model: Any = "policy", **of_run: Any) -> None:
    with pytest.raises(ConfigError, match=pattern):
        check_engine(settings, accelerator(**of_run), model=model)


def test_without_vllm_nothing_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    with pytest.raises(
        ConfigError, match=r'rollout\.engine = "vllm" needs vLLM.*\[train,vllm\].*choose rollout\.engine'
    ):
        trainer(small_policy_config(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def small_policy_config(tmp_path: Path) -> Path:
    """A directory with a config and no weights: what loads it fails."""
    _, model = small_run.tokenizer_and_model()
    model.config.save_pretrained(tmp_path / "config")
    return tmp_path / "config"


def test_what_does_not_fit_is_refused(vllm: type[PretendedLLM], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineConfig()
    check_engine(settings, accelerator(), model="policy")
    refused(settings, r"model\.name_or_path, which is empty", model=tiny("llama"))
    refused(EngineConfig(tensor_parallel_size=2), r"tensor_parallel_size = 2 does not divide the 3", processes=3)
    monkeypatch.setattr("text2grad.models.vllm_sampling.version", lambda _: "1.13.2")
    refused(settings, r"tested with trl>=1\.14,<1\.17; installed is 1\.13\.2")


def test_what_vllm_cannot_load_is_explained(vllm: type[PretendedLLM], policy: Path, tmp_path: Path) -> None:
    def broken(self: Any, *_: Any, **__: Any) -> None:
        raise ValueError("architectures ['X'] are not supported")

    vllm.__init__ = broken  # type: ignore[assignment, method-assign]
    with pytest.raises(ModelError, match=r"vLLM cannot load '.*policy' \(ValueError: arch.*rollout\.engine = \"hf\""):
        trainer(policy, tmp_path / "run")


def test_a_response_ends_with_its_first_end_of_sequence(vllm: type[PretendedLLM], policy: Path, tmp_path: Path) -> None:
    run, parts = trainer(policy, tmp_path / "run"), list[Any]()
    end = run.eos_ids[0]
    written, logps = [5, end, 6, end], [[-0.1], [-0.2], [-0.3], [-0.4]]
    run.vllm._generation.generate = lambda *_: ([], [written], [logps], [])  # type: ignore[union-attr]
    run.vllm.sample([(3,)], step=0, on_part=lambda *part: parts.append(part))  # type: ignore[union-attr]
    assert parts == [([(5, end)], [(-0.1, -0.2)])]


def test_a_token_without_log_prob_is_an_error(vllm: type[PretendedLLM], policy: Path, tmp_path: Path) -> None:
    vllm.sharpness = float("inf")
    run = trainer(policy, tmp_path / "run")
    run.vllm._generation.generate = lambda *_: ([], [[5, 6]], [[[-0.1], [None]]], [])  # type: ignore[union-attr]
    with pytest.raises(ModelError, match="no log-prob for a sampled token"):
        run.vllm.sample([(3,)], step=0, on_part=lambda *_: None)  # type: ignore[union-attr]
