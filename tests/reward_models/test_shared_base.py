"""A reward model that is an adapter: on its own base, and on the policy's, whose numbers stay as they are."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

import small_run
from small_run import EXAMPLES, WORDS, ColourCritic
from text2grad.config.recipe import Recipe
from text2grad.errors import ModelError
from text2grad.feedback.critic import annotate
from text2grad.models import decoding, shared_prefix
from text2grad.models.adapters import CRITIC_ADAPTER, adapter_parameters, with_lora
from text2grad.models.batch import collate
from text2grad.models.fine_tuning import FineTuning
from text2grad.models.policy import PolicyWithValue, Reference
from text2grad.models.pretrained import base_named_by, load_policy
from text2grad.models.probing import save_model
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.load import critic_from_recipe, shares_base
from text2grad.reward_models.refresh import Refresher
from text2grad.reward_models.shared_base import (
    AdapterRole,
    add_role,
    learning,
    load_weights,
)
from text2grad.runs.recipe_run import run_recipe
from text2grad.types import Critique, Example, Rollout
from tiny_models import tiny
from trained_reward_model import train_reward_model

RESPONSES = [" red one cat", " two dog", " green bird red"]
ASKED = EXAMPLES[: len(RESPONSES)]


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, and an adapter on it that learned a little of what to quote."""
    path = tmp_path_factory.mktemp("phases")
    tokenizer = small_run.save_base(path / "base")
    rng = Random(0)
    examples = [rng.choice(EXAMPLES) for _ in range(64)]
    responses = ["".join(f" {rng.choice(WORDS)}" for _ in range(rng.randint(1, 4))) for _ in examples]
    torch.manual_seed(0)
    # More of the base than the policies here adapt: where these have no adapter, the critic's must be off, too.
    writer = with_lora(load_policy(str(path / "base")), r=4, alpha=16, targets=["q_proj", "v_proj", "down_proj"])
    how = FineTuning(steps=20, batch_size=16, learning_rate=1e-2)
    annotations = annotate(ColourCritic(), examples, responses)
    learned, _ = train_reward_model(writer, tokenizer, annotations, how, max_new_tokens=24)
    learned.save(path / "critic")
    return path


def policy_on(phases: Path, *, value_adapter: bool = False) -> Any:
    torch.manual_seed(1)
    base = load_policy(str(phases / "base"))
    made = with_lora(base, r=2, alpha=4, targets=["q_proj", "v_proj"], value_adapter=value_adapter)
    for name, parameter in made.named_parameters():
        if "lora_B" in name:  # zero at first: an adapter that does nothing could be on or off
            torch.nn.init.normal_(parameter, std=0.3)
    return made


def scores_of(policy: Any, tokenizer: Any) -> list[torch.Tensor]:
    """Return log-probs of policy and reference, and values from an adapter where there is one."""
    value = "adapter" if "value" in policy.peft_config else "none"
    ids = [tokenizer(text)["input_ids"] for text in RESPONSES]
    batch = collate([Rollout(ASKED[0], (1, 2), tuple(one), "", False) for one in ids], pad_id=0)
    model = PolicyWithValue(policy, value=value)  # type: ignore[arg-type]
    if model.value_head is not None:
        torch.nn.init.ones_(model.value_head.weight)
    return list(model.score(batch, Reference(policy, base=True), temperature=1.0, kl="k1"))


def bits(model: torch.nn.Module, without: str = "nothing") -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if without not in name}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def weights_in_memory(*models: Any) -> int:
    """Return how many numbers the models hold, each place in memory counted once."""
    return sum({p.data_ptr(): p.numel() for model in models for p in model.parameters()}.values())


# On the policy's base.


def test_a_shared_critic_writes_what_it_writes_alone_and_the_policy_is_the_same_bit_for_bit(phases: Path) -> None:
    alone = GenerativeRewardModel.load(phases / "critic")
    policy = policy_on(phases, value_adapter=True)
    before = scores_of(policy, alone.tokenizer)
    trainable = [name for name, p in policy.named_parameters() if p.requires_grad]
    critic = GenerativeRewardModel.load(phases / "critic", model=add_role(policy, phases / "critic"))
    loaded = scores_of(policy, alone.tokenizer)
    written = critic.write(ASKED, RESPONSES)
    after = scores_of(policy, alone.tokenizer)
    assert written == alone.write(ASKED, RESPONSES)
    base = GenerativeRewardModel(load_policy(str(phases / "base")), alone.tokenizer, CritiqueFormat(max_new_tokens=24))
    assert written != base.write(ASKED, RESPONSES), "the adapter matters"
    assert before[2].abs().max() > 0.01, "so does the policy's"
    for found in (loaded, after):
        assert all(torch.equal(one, other) for one, other in zip(before, found, strict=True))
    assert [name for name, p in policy.named_parameters() if p.requires_grad] == trainable


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning", "ignore:PiSSA changes")
@pytest.mark.parametrize("change", [{"bias": "all"}, {"init_lora_weights": "pissa"}, {"other base": True}])
def test_a_critic_that_would_change_the_policys_base_or_was_trained_on_another_is_refused(
    phases: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    tiny("qwen2").save_pretrained(tmp_path / "base")
    other = change.pop("other base", False)
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", **change)
    critic = get_peft_model(load_policy(str(tmp_path / "base")), config)
    for parameter in critic.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    save_model(critic, tmp_path / "critic")
    policy = with_lora(tiny("qwen2", seed=int(other)), r=2, alpha=4, targets=["q_proj"])
    said = "is not the model that was saved" if other else "changes weights of its base, which the policy shares"
    with pytest.raises(ModelError, match=said):
        add_role(policy, tmp_path / "critic")


def test_a_shared_critic_of_several_responses_to_one_prompt_writes_what_it_writes_alone(
    phases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def prefill(*args: Any) -> Any:
        found.append(shared_prefix.prefill(*args))
        return found[-1]

    monkeypatch.setattr(decoding, "prefill", prefill)
    asked = [Example(" ".join(WORDS))] * len(RESPONSES)
    alone = GenerativeRewardModel.load(phases / "critic")
    critic = GenerativeRewardModel.load(phases / "critic", model=add_role(policy_on(phases), phases / "critic"))
    assert critic.write(asked, RESPONSES) == alone.write(asked, RESPONSES)
    shared, own = found[1::2]  # each model's first batch is preceded by a trial of its cache
    assert shared is not None  # the prompt was read once, with the critic's adapter
    torch.testing.assert_close(shared[2].layers[0].keys, own[2].layers[0].keys)
    torch.testing.assert_close(shared[2].layers[0].values, own[2].layers[0].values)


def test_one_base_is_in_memory(phases: Path) -> None:
    policy, base = policy_on(phases), load_policy(str(phases / "base"))
    own = weights_in_memory(policy)
    alone = load_policy(str(phases / "critic"), merge=False)
    adapter = sum(p.numel() for p in adapter_parameters(alone, "default").values())
    assert weights_in_memory(alone) == weights_in_memory(base) + adapter
    role = add_role(policy, phases / "critic")
    assert weights_in_memory(policy, role) == own + adapter
    assert weights_in_memory(policy, alone) == own + adapter + weights_in_memory(base) + adapter


def test_a_role_is_saved_as_an_adapter_that_loads_alone(phases: Path, tmp_path: Path) -> None:
    policy = policy_on(phases)
    critic = GenerativeRewardModel.load(phases / "critic", model=add_role(policy, phases / "critic"))
    critic.save(tmp_path / "again")
    again = GenerativeRewardModel.load(tmp_path / "again")
    assert again.write(ASKED, RESPONSES) == critic.write(ASKED, RESPONSES)
    assert sorted(path.name for path in (tmp_path / "again").iterdir() if "adapter" in path.name) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_learning_moves_the_role_alone(phases: Path) -> None:
    policy = policy_on(phases, value_adapter=True)
    role = add_role(policy, phases / "critic")
    trainable = [name for name, p in policy.named_parameters() if p.requires_grad]
    before, mine = bits(policy, ".critic."), bits(policy)
    tokenizer = GenerativeRewardModel.load(phases / "critic").tokenizer
    shown = annotate(ColourCritic(), ASKED, RESPONSES)
    with learning(role) as model:
        train_reward_model(model, tokenizer, shown, FineTuning(steps=2, batch_size=2, learning_rate=1e-2))
    assert same(before, bits(policy, ".critic."))
    assert not same(mine, bits(policy))
    assert [name for name, p in policy.named_parameters() if p.requires_grad] == trainable
    load_weights(role, phases / "critic")
    assert same(mine, bits(policy))


# Which recipes share.


def recipe(phases: Path, out: Path, **sections: Any) -> Recipe:
    lora = {"path": str(phases / "base"), "lora_r": 2, "lora_targets": ["q_proj", "v_proj"], "value": "adapter"}
    base: dict[str, Any] = {
        "model": lora,
        "critic": {"model": str(phases / "critic"), "max_failure_rate": 1.0},
        "run": {"steps": 2, "save_every": 1},
    }
    merged = {name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}}
    return small_run.recipe(out, **merged)


def test_a_base_is_shared_by_a_lora_policy_and_an_adapter_on_the_very_same_base(
    phases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shares_base(recipe(phases, tmp_path))
    assert not shares_base(recipe(phases, tmp_path, model={"lora_r": 0, "value": "trunk"}))
    assert not shares_base(recipe(phases, tmp_path, model={"path": str(phases / "other")}))
    assert not shares_base(recipe(phases, tmp_path, critic={"model": str(phases / "base")}))
    assert not shares_base(recipe(phases, tmp_path, critic={"model": ""}))
    assert not shares_base(recipe(phases, tmp_path, critic={"use": "module:name"}))
    assert not shares_base(recipe(phases, tmp_path, critic={"kind": "server"}))
    monkeypatch.chdir(phases)
    assert shares_base(recipe(phases, tmp_path, model={"path": "base"})), "another spelling of the same directory"


@pytest.mark.parametrize("again", [(), (1,)], ids=["fixed", "refreshed"])
def test_a_run_that_shares_its_base_ends_as_one_that_does_not(
    phases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: Sequence[int]
) -> None:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": e.prompt}) + "\n" for e in EXAMPLES))
    refresh = {"steps": list(again), "train_steps": 2, "batch_size": 4, "lr": 1e-2, "window": 8}
    refresh["annotator"] = "small_run:ColourCritic"
    found = []
    for name in ("shared", "apart"):
        if name == "apart":
            monkeypatch.setattr("text2grad.runs.recipe_run.shares_base", lambda recipe: False)
        data = {"train": str(tmp_path / "prompts.jsonl")}
        run_recipe(recipe(phases, tmp_path / name, data=data, refresh=refresh))
        found.append(small_run.weights(tmp_path / name))
        last = sorted((tmp_path / name / "checkpoints").glob("step-*"))[-1]
        assert not (last / "policy" / CRITIC_ADAPTER).exists(), "a policy is saved without its critic"
    assert same(*found)


# On a base of its own, trained again.


def refresher(out: Path, critic: GenerativeRewardModel) -> Refresher:
    settings = {"steps": [1], "window": 12, "train_steps": 2, "batch_size": 4, "lr": 1e-2}
    return Refresher(small_run.recipe(out, refresh=settings), critic, ColourCritic())


def test_an_adapter_is_trained_again_on_a_base_that_stays(phases: Path, tmp_path: Path) -> None:
    critic = GenerativeRewardModel.load(phases / "critic")
    before, base = bits(critic.model), bits(critic.model, "lora")
    one = refresher(tmp_path, critic)
    one.observe(ASKED, RESPONSES)
    assert one.refresh_if_due(1) == {"critic/refreshed": 1.0}
    trained = bits(critic.model)
    assert same(base, bits(critic.model, "lora"))
    assert not same(before, trained)
    other = GenerativeRewardModel.load(phases / "critic")
    refresher(tmp_path, other).restore(one.state())
    assert same(trained, bits(other.model)), "a resumed run goes on with what was trained"
    assert same(trained, bits(GenerativeRewardModel.load(tmp_path / "critic" / "step-000001").model))


# What cannot be loaded.


def test_an_adapter_without_a_base_or_without_safetensors_is_refused(phases: Path, tmp_path: Path) -> None:
    assert base_named_by(phases / "base") is None
    assert base_named_by(phases / "critic") == str(phases / "base")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError) as caught:
        base_named_by(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'adapter_config.json'} names no base model: set base_model_name_or_path to its directory or name"
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "x"}))
    with pytest.raises(ModelError) as caught:
        base_named_by(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has no adapter_model.safetensors; save the adapter as safetensors, nothing else is loaded"
    )


def test_a_recipe_loads_the_adapter_onto_the_policy_it_is_given(phases: Path, tmp_path: Path) -> None:
    policy = policy_on(phases)
    critic = critic_from_recipe(recipe(phases, tmp_path), policy=policy)
    assert isinstance(critic, GenerativeRewardModel)
    assert isinstance(critic.model, AdapterRole)
    assert critic.model.shared is policy
    assert critic.model.eval() is critic.model
    assert isinstance(critic([Example("red")], [" red"])[0], Critique)
