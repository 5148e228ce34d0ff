"""The one place that shifts, against transformers itself; value function and reference in all their forms."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from transformers.models.llama import LlamaForCausalLM

from text2grad.errors import ConfigError, ModelError
from text2grad.models.adapters import (
    CRITIC_ADAPTER,
    VALUE_ADAPTER,
    adapter_active,
    base_of,
    enable_checkpointing,
    with_lora,
)
from text2grad.models.batch import TokenBatch, collate
from text2grad.models.policy import (
    PolicyWithValue,
    Reference,
    Scores,
    check_model,
    head_of,
    response_logprobs,
)
from text2grad.models.pretrained import load_policy, load_tokenizer
from text2grad.rl.ppo import policy_loss, value_loss
from tiny_models import FAMILIES, VOCAB, batch_of, own_logits, own_logp, rollouts, tiny

# peft asks transformers for a property that has a newer name
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings(
        "ignore:fan_in_fan_out is set to False:UserWarning"
    ),  # GPT-2's layers; peft then mends it
]

LENGTHS = ((3, 4), (5, 1), (2, 0), (1, 6), (7, 3))
MODES = ("none", "trunk", "adapter", "model")


def lora(family: str = "llama", *, value_adapter: bool = True, stirred: bool = True, **overrides: Any) -> Any:
    """Return a model with adapters that say something: a fresh adapter's B is zero."""
    model = with_lora(tiny(family, **overrides), r=2, alpha=4, targets="all-linear", value_adapter=value_adapter)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_A." in name or (stirred and ".lora_B." in name):
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def with_value(policy: Any, mode: str, **kwargs: Any) -> PolicyWithValue:
    """Return the policy with a value head that says something: a fresh head is zero."""
    model = PolicyWithValue(policy, value=mode, **kwargs)  # type: ignore[arg-type]
    if model.value_head is not None:
        generator = torch.Generator().manual_seed(6)
        with torch.no_grad():
            model.value_head.weight.copy_(torch.randn(model.value_head.weight.shape, generator=generator))
            model.value_head.bias.fill_(0.5)
    return model


def policy_for(mode: str) -> Any:
    return lora() if mode == "adapter" else tiny("llama")


def grads(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}


# ----------------------------------------------------------------------------------------------------------- log-probs


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_are_those_of_transformers_alone_and_unpadded(family: str, temperature: float) -> None:
    model, made = tiny(family), rollouts(LENGTHS)
    logp, entropy, hidden = response_logprobs(
        model, collate(made, pad_id=0), temperature=temperature, with_entropy=True
    )
    assert list(logp.shape) == list(entropy.shape) == [5, 6]
    assert list(hidden.before.shape) == [sum(r for _, r in LENGTHS), 16]
    assert list(hidden.after.shape) == [5, 16]
    for row, rollout in enumerate(made):
        n = len(rollout.response_ids)
        torch.testing.assert_close(logp[row, :n].double(), own_logp(model, rollout, temperature), rtol=0, atol=1e-5)
        log_p = own_logits(model, rollout, temperature).log_softmax(-1)
        torch.testing.assert_close(entropy[row, :n].double(), -(log_p.exp() * log_p).sum(-1), rtol=0, atol=1e-5)
        assert not logp[row, n:].any()
        assert not entropy[row, n:].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_transformers_own_logits(family: str) -> None:
    model, rollout = tiny(family), rollouts([(3, 5)])[0]
    logp, entropy, _ = response_logprobs(model, collate([rollout], pad_id=0), temperature=0.6, with_entropy=True)
    (logp.sum() + 0.3 * entropy.sum()).backward()
    ours = grads(model)
    model.zero_grad()
    ids = torch.tensor([rollout.prompt_ids + rollout.response_ids])
    log_p = (model(input_ids=ids, use_cache=False).logits[0, 2:7] / 0.6).log_softmax(-1)
    own = log_p[torch.arange(5), ids[0, 3:]].sum()
    (own - 0.3 * (log_p.exp() * log_p).sum()).backward()
    theirs = grads(model)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padding_gives_the_same_log_probs(family: str) -> None:
    model, made = tiny(family), rollouts(LENGTHS)
    width = max(len(r.prompt_ids) + len(r.response_ids) for r in made)
    ids, mask = torch.zeros(len(made), width, dtype=torch.int64), torch.zeros(len(made), width, dtype=torch.int64)
    for row, r in enumerate(made):
        joined = r.prompt_ids + r.response_ids
        ids[row, width - len(joined) :], mask[row, width - len(joined) :] = torch.tensor(joined), 1
    position_ids = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, position_ids=position_ids, use_cache=False).logits
        logp, _, _ = response_logprobs(model, collate(made, pad_id=0))
    for row, r in enumerate(made):
        n = len(r.response_ids)
        log_p = logits[row, width - n - 1 : width - 1].log_softmax(-1)
        expected = log_p[torch.arange(n), torch.tensor(r.response_ids, dtype=torch.int64)]
        torch.testing.assert_close(logp[row, :n], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_garbage_ids_in_padding_change_no_bit(family: str) -> None:
    clean = batch_of(LENGTHS)
    columns = torch.arange(clean.ids.shape[1])
    padding = columns >= (clean.prompt_lengths + clean.response_lengths)[:, None]
    noise = torch.randint(VOCAB, clean.ids.shape, generator=torch.Generator().manual_seed(9))
    dirty = clean._replace(
        ids=torch.where(padding, noise, clean.ids),
        response_ids=clean.response_ids.masked_fill(~clean.response_mask, -1),  # no id at all: it is never looked up
    )
    assert not torch.equal(dirty.ids, clean.ids)
    model = with_value(tiny(family), "trunk")
    results = []
    for batch in (clean, dirty):
        model.zero_grad()
        passes = model(batch, with_entropy=True)
        (passes.logp.sum() + passes.entropy.sum() + passes.values.square().sum()).backward()
        scores = model.score(batch, Reference(model.policy), temperature=0.7, kl="full")
        results.append([*passes, *scores, *grads(model).values()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_padding_may_be_the_end_of_sequence_that_was_sampled() -> None:
    made = rollouts(LENGTHS)
    last = made[0].response_ids[-1]
    model = tiny("llama")
    usual, doubled = (response_logprobs(model, collate(made, pad_id=pad))[0] for pad in (0, last))
    assert torch.equal(usual, doubled)


@pytest.mark.parametrize("groups", [[[0], [1], [2], [3], [4]], [[4, 1], [0, 2, 3]]])
def test_micro_batches_give_the_same_log_probs_and_gradients(groups: list[list[int]]) -> None:
    model, batch = tiny("llama"), batch_of(LENGTHS)
    logp = response_logprobs(model, batch)[0]
    logp.sum().backward()
    whole = grads(model)
    model.zero_grad()
    for group in groups:
        part = response_logprobs(model, batch.rows(torch.tensor(group)))[0]
        torch.testing.assert_close(part, logp[group, : part.shape[1]], rtol=0, atol=1e-5)
        assert not logp[group, part.shape[1] :].any()
        part.sum().backward()
    split = grads(model)
    assert split.keys() == whole.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(split[name], gradient, rtol=1e-4, atol=1e-4)


def test_no_entropy_is_computed_unless_asked_for() -> None:
    model, batch = tiny("llama"), batch_of(LENGTHS)
    silent, spoken = response_logprobs(model, batch), response_logprobs(model, batch, with_entropy=True)
    assert not silent[1].any()
    assert spoken[1][batch.response_mask].all()
    assert torch.equal(silent[0], spoken[0])


# ---------------------------------------------------------------------------------------------------------------- head


def test_the_head_carries_the_scale_and_the_cap_of_its_family() -> None:
    # set in tiny_models: Cohere multiplies by 0.25, Granite divides by 3, Gemma 2 caps at 3, Phi alone has a bias
    assert [head_of(tiny(f)).scale for f in ("llama", "cohere", "granite")] == [1.0, 0.25, pytest.approx(1 / 3)]
    assert [head_of(tiny(f)).softcap for f in ("llama", "gemma2")] == [None, 3.0]
    assert [f for f in FAMILIES if head_of(tiny(f)).bias is not None] == ["phi"]
    tied = tiny("llama-tied")
    assert head_of(tied).weight is tied.get_input_embeddings().weight


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_the_check(family: str) -> None:
    model = tiny(family).train()
    check_model(model)
    assert model.training
    check_model(tiny(family).to(torch.bfloat16))


def test_an_adapted_model_passes_the_check() -> None:
    check_model(lora())


class LoudFirstToken(LlamaForCausalLM):
    """Does something after its trunk that no head can say."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        out.logits = out.logits.index_add(-1, torch.tensor([0]), torch.full_like(out.logits[..., :1], 1000.0))
        return out


class NoNumber(LlamaForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * float("nan")
        return out


class SlightlyWarmer(LlamaForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        out.logits = out.logits * 1.01
        return out


@pytest.mark.parametrize(("model_class", "nats"), [(LoudFirstToken, "1e+03"), (NoNumber, "nan")])
def test_a_model_that_does_more_after_its_trunk_is_refused(model_class: Any, nats: str) -> None:
    model = tiny("llama", model_class=model_class).train()
    with pytest.raises(ModelError) as error:
        check_model(model)
    # 1,000 on one logit takes about 1,000 nats from every other token
    assert str(error.value) == (
        f"{model_class.__name__}: log-probs from its hidden states differ from its own by {nats} nats, so its output "
        "layer is more than a matrix, a scale and a soft cap. Please report the architecture."
    )
    assert model.training


def test_weights_that_are_no_numbers_are_not_blamed_on_the_architecture() -> None:
    model = tiny("llama")
    torch.nn.init.constant_(model.model.layers[1].mlp.up_proj.weight[3:4], float("nan"))
    with pytest.raises(ModelError) as refused:
        check_model(model)
    assert str(refused.value) == (
        "1 of its weights hold NaN or infinity, the first 'model.layers.1.mlp.up_proj.weight': its log-probs are no "
        "numbers. Load the model again, from undamaged files"
    )


def test_a_small_difference_is_noticed_too() -> None:
    with pytest.raises(ModelError, match="differ from its own by"):
        check_model(tiny("llama", model_class=SlightlyWarmer))


@torch.no_grad()
def test_in_half_precision_large_logits_have_large_rounding_errors() -> None:
    # Logits between 64 and 128 are multiples of 0.5 in bfloat16, so off by up to 0.25; the limit is 100 / 2⁸ = 0.39.
    ids = torch.arange(1, 9)[None]
    models = {}
    for model_class in (LlamaForCausalLM, SlightlyWarmer):
        models[model_class] = model = tiny("llama", model_class=model_class)
        model.lm_head.weight *= 100 / model(input_ids=ids).logits.abs().max()
        model.to(torch.bfloat16)
    model = models[LlamaForCausalLM]
    own = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1).gather(1, ids[0, 1:, None])
    states = base_of(model).get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0, :-1].float()
    exact = (states @ model.lm_head.weight.float().T).log_softmax(-1).gather(1, ids[0, 1:, None])
    assert 0.1 < float((own - exact).abs().max()) < 0.39
    check_model(model)
    with pytest.raises(ModelError, match="SlightlyWarmer: log-probs from its hidden states differ from its own by"):
        check_model(models[SlightlyWarmer])


def test_a_model_without_an_output_layer_is_refused() -> None:
    with pytest.raises(ModelError) as error:
        head_of(tiny("llama").model)
    assert str(error.value) == "LlamaModel has no linear output layer; log-probs need one"


def test_an_adapter_on_the_output_layer_is_refused() -> None:
    model = get_peft_model(tiny("llama"), LoraConfig(target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM"))
    with pytest.raises(ModelError) as error:
        head_of(model)
    assert str(error.value) == (
        "LlamaForCausalLM has a LoRA adapter on its output layer. Leave it out of target_modules "
        '(target_modules="all-linear" does), or train it in full with modules_to_save.'
    )


def test_an_output_layer_trained_in_full_is_the_policys_and_the_reference_keeps_the_old_one() -> None:
    # the way out that the message above names
    config = LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    policy = get_peft_model(tiny("llama"), config)
    reference = Reference(policy)
    with torch.no_grad():
        head_of(policy).weight.mul_(1.5)
    check_model(policy)
    made = rollouts(LENGTHS)
    model = with_value(policy, "none")
    scores = model.score(collate(made, pad_id=0), reference, temperature=1.0, kl="k1")
    for row, rollout in enumerate(made):
        n = len(rollout.response_ids)
        torch.testing.assert_close(scores.logp[row, :n].double(), own_logp(policy, rollout), rtol=0, atol=1e-5)
        expected = own_logp(tiny("llama"), rollout)
        torch.testing.assert_close(scores.logp_ref[row, :n].double(), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(scores.logp, scores.logp_ref, atol=0.05)
    model(collate(made, pad_id=0)).logp.sum().backward()
    assert head_of(policy).weight.grad.any()


# -------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("mode", MODES)
def test_a_fresh_value_function_says_zero(mode: str) -> None:
    model, batch = PolicyWithValue(policy_for(mode), value=mode), batch_of(LENGTHS, truncated=[True] * 5)  # type: ignore[arg-type]
    assert torch.equal(model(batch).values, torch.zeros(5, 6))
    scores = model.score(batch, Reference(model.policy), temperature=1.0, kl="k1")
    assert torch.equal(scores.values, torch.zeros(5, 6))
    assert torch.equal(scores.bootstrap, torch.zeros(5))


@torch.no_grad()
def features(model: Any, rollout: Any) -> torch.Tensor:
    """Return transformers' own last hidden states of one rollout, alone and unpadded, [P + R, H]."""
    ids = torch.tensor([rollout.prompt_ids + rollout.response_ids])
    return model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states[-1][0]


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_values_are_read_before_each_token_and_the_bootstrap_after_the_last(mode: str, family: str) -> None:
    policy = lora(family) if mode == "adapter" else tiny(family)
    made = rollouts(LENGTHS, truncated=[True, False, True, True, False])
    batch = collate(made, pad_id=0)
    model = with_value(policy, mode)
    passes, scores = model(batch), model.score(batch, Reference(policy), temperature=1.0, kl="k1")
    assert torch.equal(passes.values.detach(), scores.values)
    for row, rollout in enumerate(made):
        p, n = len(rollout.prompt_ids), len(rollout.response_ids)
        if mode == "adapter":
            with adapter_active(policy, VALUE_ADAPTER):
                hidden = features(policy, rollout)
        else:
            hidden = features(policy, rollout)
        with torch.no_grad():
            value = model.value_head(hidden)[:, 0]  # of every prefix: value[i] has read ids[0 … i]
        # V before y_t has read x and y_<t, the last of which stands at P − 1 + t; after y it has read everything
        torch.testing.assert_close(passes.values[row, :n], value[p - 1 : p - 1 + n], rtol=0, atol=1e-5)
        assert not passes.values[row, n:].any()
        after = value[p + n - 1].item() if rollout.truncated else 0.0
        assert scores.bootstrap[row].item() == pytest.approx(after, abs=1e-5)


def losses(model: PolicyWithValue, batch: TokenBatch) -> tuple[torch.Tensor, torch.Tensor]:
    passes, ones = model(batch), torch.ones(batch.response_mask.shape)
    policy = policy_loss(
        passes.logp, passes.logp.detach(), ones, batch.response_mask, clip_range=0.2, token_count=14
    ).loss
    value = value_loss(passes.values, ones, -3 * ones, batch.response_mask, clip_range=None, token_count=14)
    return policy, value


@pytest.mark.parametrize(
    ("mode", "detach", "reached"),
    [
        ("trunk", True, {"head"}),
        ("trunk", False, {"head", "policy"}),
        ("adapter", True, {"head", "value adapter"}),
        ("model", True, {"head", "trunk"}),
    ],
)
def test_the_value_loss_goes_where_the_mode_says(mode: str, detach: bool, reached: set[str]) -> None:
    model = with_value(policy_for(mode), mode, detach_trunk=detach)
    losses(model, batch_of(LENGTHS))[1].backward()
    got = grads(model)
    kinds = {
        "head" if name.startswith("value_head.")
        else "trunk" if name.startswith("value_trunk.")
        else "value adapter" if f".{VALUE_ADAPTER}." in name
        else "policy"
        for name in got
    }  # fmt: skip
    assert kinds == reached
    if mode != "trunk" or detach:
        # all of ψ and nothing but ψ: an adapter's A has gradients too, since its B is stirred
        assert len(got) == len(model.value_parameters())


@pytest.mark.parametrize("mode", MODES)
def test_the_policy_loss_reaches_the_policy_alone(mode: str) -> None:
    model = with_value(policy_for(mode), mode)
    losses(model, batch_of(LENGTHS))[0].backward()
    got = grads(model)
    assert got
    assert all(name.startswith("policy.") and f".{VALUE_ADAPTER}." not in name for name in got)
    assert len(got) == len(model.policy_parameters())


@pytest.mark.parametrize("mode", MODES)
def test_every_trained_weight_belongs_to_the_policy_or_the_value_function_and_to_one_only(mode: str) -> None:
    model = with_value(policy_for(mode), mode)
    policy, value = {id(p) for p in model.policy_parameters()}, {id(p) for p in model.value_parameters()}
    assert not policy & value
    assert policy | value == {id(p) for p in model.parameters() if p.requires_grad}
    # llama: two layers of 7 maps and 2 norms, embedding, last norm, head; adapters: 14 maps × A, B; a trunk has no head
    assert len(policy) == (28 if mode == "adapter" else 21)
    assert len(value) == {"none": 0, "trunk": 2, "adapter": 2 + 28, "model": 2 + 20}[mode]


def test_what_was_frozen_on_purpose_is_nobodys_to_train() -> None:
    model = with_value(tiny("llama"), "trunk")
    model.value_head.bias.requires_grad_(False)
    model.policy.get_input_embeddings().weight.requires_grad_(False)
    assert len(model.value_parameters()) == 1
    assert len(model.policy_parameters()) == 20


def test_a_value_model_of_a_policy_with_adapters_is_trained_in_full() -> None:
    policy = lora(value_adapter=False)
    model = with_value(policy, "model")
    losses(model, batch_of(LENGTHS))[1].backward()
    # a head's weight and bias; the trunk's 20 and, on its 14 maps, its own copies of A and B
    assert len(model.value_parameters()) == 2 + 20 + 28
    assert all(p.grad is not None and p.grad.any() for p in model.value_parameters())
    assert not any(p.grad is not None for p in policy.parameters())
    assert len(model.policy_parameters()) == 28


def test_a_value_model_has_no_copy_of_the_critics_adapter() -> None:
    policy = lora(value_adapter=False)
    alone = with_value(policy, "model")
    policy.add_adapter(CRITIC_ADAPTER, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    model, batch = with_value(policy, "model"), batch_of(LENGTHS)
    model.value_head.weight.data.fill_(0.1)
    alone.value_head.weight.data.fill_(0.1)
    assert torch.equal(model(batch).values, alone(batch).values)
    losses(model, batch)[1].backward()
    assert all(p.grad is not None for p in model.value_parameters())
    assert len(model.value_parameters()) == len(alone.value_parameters())
    assert any(f".{CRITIC_ADAPTER}." in name for name, _ in policy.named_parameters())


def test_a_value_model_starts_as_the_policys_trunk_and_then_goes_its_own_way() -> None:
    policy = tiny("llama")
    model, batch = with_value(policy, "model"), batch_of(LENGTHS)
    before = model(batch).values.detach()
    assert torch.equal(before, with_value(policy, "trunk")(batch).values)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    assert torch.equal(model(batch).values, before)


def test_an_adapter_for_values_needs_adapters() -> None:
    for policy in (tiny("llama"), lora(value_adapter=False)):
        with pytest.raises(ConfigError) as error:
            PolicyWithValue(policy, value="adapter")
        assert str(error.value) == (
            'value="adapter" needs a LoRA policy with a second adapter named "value": set [model] lora_r, or choose '
            'value="trunk" or "model"'
        )


def test_a_step_on_the_value_adapter_leaves_the_policy_where_it_is() -> None:
    model, batch = with_value(lora(), "adapter"), batch_of(LENGTHS)
    before = model(batch)
    optimizer = torch.optim.SGD(model.value_parameters(), lr=0.1)
    losses(model, batch)[1].backward()
    optimizer.step()
    after = model(batch)
    assert torch.equal(after.logp, before.logp)
    assert not torch.allclose(after.values, before.values, atol=1e-3)


# ----------------------------------------------------------------------------------------------------------- reference


def test_with_adapters_the_reference_is_the_base_bit_for_bit_and_no_flag_moves() -> None:
    policy, batch = lora(), batch_of(LENGTHS)
    flags = {name: p.requires_grad for name, p in policy.named_parameters()}
    reference = Reference(policy, base=True)
    assert reference.model is None
    with reference.active(policy) as model:
        got = response_logprobs(model, batch)[0]
    assert torch.equal(got, response_logprobs(tiny("llama"), batch)[0])
    assert {name: p.requires_grad for name, p in policy.named_parameters()} == flags
    assert not torch.allclose(response_logprobs(policy, batch)[0], got, atol=0.05)
    scores = with_value(policy, "adapter").score(batch, reference, temperature=1.0, kl="k1")
    assert torch.equal(scores.logp_ref, got)
    assert {name: p.requires_grad for name, p in policy.named_parameters()} == flags


@pytest.mark.parametrize("kl", ["k1", "full"])
@pytest.mark.parametrize("value_adapter", [True, False])
def test_a_fresh_adapter_has_a_kl_of_exactly_zero(kl: Any, value_adapter: bool) -> None:
    policy = lora(stirred=False, value_adapter=value_adapter)
    model = with_value(policy, "adapter" if value_adapter else "trunk")
    scores = model.score(batch_of(LENGTHS), Reference(policy), temperature=0.6, kl=kl)
    assert torch.equal(scores.kl, torch.zeros(5, 6))
    assert torch.equal(scores.logp, scores.logp_ref)


TRAINED = {
    "plain": {},
    "lora_only": {"bias": "lora_only"},  # biases stay when adapters are off, peft 0.21.0; trl#6975
    "all": {"bias": "all"},
    "pissa": {"init_lora_weights": "pissa"},  # the adapter takes its start from the base, peft 0.21.0
    "pissa, fast": {"init_lora_weights": "pissa_niter_4"},
    "olora": {"init_lora_weights": "olora"},
    "dora": {"use_dora": True},
    "head and bias": {"modules_to_save": ["lm_head"], "bias": "all"},
}


@pytest.mark.filterwarnings("ignore::UserWarning:peft")
@pytest.mark.parametrize("kl", ["k1", "full"])
@pytest.mark.parametrize("kind", TRAINED)
def test_the_reference_of_every_adapter_is_the_start_and_stays_it(kind: str, kl: Any) -> None:
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **TRAINED[kind])
    policy, batch = get_peft_model(tiny("qwen2"), config), batch_of(LENGTHS)
    start = response_logprobs(policy, batch)[0].detach()
    flags = {name: p.requires_grad for name, p in policy.named_parameters()}
    model, reference = with_value(policy, "none"), Reference(policy)
    assert float(model.score(batch, reference, temperature=1.0, kl=kl).kl.abs().max()) < 1e-6
    assert bool(reference.start) == (kind not in ("plain", "dora"))  # where the base is the start, nothing is copied
    with torch.no_grad():
        for parameter in model.policy_parameters():
            parameter.mul_(1.2).add_(0.1)
    now = response_logprobs(policy, batch)[0]
    scores = model.score(batch, reference, temperature=1.0, kl=kl)
    torch.testing.assert_close(scores.logp_ref, start, rtol=0, atol=1e-5)
    assert torch.equal(scores.logp, now)
    assert not torch.allclose(now, start, atol=0.05)
    assert {name: p.requires_grad for name, p in policy.named_parameters()} == flags


class Forgetful(LlamaForCausalLM):
    """Loses a weight when it is copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        return tiny("llama", seed=1)


def test_a_reference_that_is_not_the_start_is_refused() -> None:
    with pytest.raises(ModelError, match=r"^a copy of Forgetful, the reference of the KL term, differs from it by "):
        Reference(tiny("llama", model_class=Forgetful))


@pytest.mark.parametrize("kl", ["k1", "full"])
def test_without_adapters_the_reference_is_a_frozen_copy_of_the_start(kl: Any) -> None:
    policy, batch = tiny("llama"), batch_of(LENGTHS)
    model, reference = with_value(policy, "trunk"), Reference(policy)
    start = model.score(batch, reference, temperature=1.0, kl=kl)
    assert torch.equal(start.kl, torch.zeros(5, 6))
    model.train()
    optimizer = torch.optim.SGD(model.policy_parameters(), lr=0.1)
    losses(model, batch)[0].backward()
    optimizer.step()
    scores = model.score(batch, reference, temperature=1.0, kl=kl)
    assert torch.equal(scores.logp_ref, start.logp)
    assert not torch.allclose(scores.logp, start.logp, atol=1e-3)
    assert not any(p.requires_grad or p.grad is not None for p in reference.model.parameters())
    assert not reference.model.training


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("family", ["llama", "gemma2", "phi"])
def test_scores_against_brute_force(family: str, temperature: float) -> None:
    policy, start = tiny(family, seed=1), tiny(family)
    reference = Reference(start)
    made = rollouts(LENGTHS)
    batch = collate(made, pad_id=0)
    model = with_value(policy, "none")
    full = model.score(batch, reference, temperature=temperature, kl="full")
    sampled = model.score(batch, reference, temperature=temperature, kl="k1")
    for row, rollout in enumerate(made):
        n = len(rollout.response_ids)
        log_p = own_logits(policy, rollout, temperature).log_softmax(-1)
        log_q = own_logits(start, rollout, temperature).log_softmax(-1)
        logp, logp_ref = own_logp(policy, rollout, temperature), own_logp(start, rollout, temperature)
        expected = {
            "logp": logp,
            "logp_ref": logp_ref,
            "kl": (log_p.exp() * (log_p - log_q)).sum(-1),
            "entropy": -(log_p.exp() * log_p).sum(-1),
            "values": torch.zeros(n).double(),
        }
        for name, oracle in expected.items():
            for scores in (full, sampled):
                if name == "kl" and scores is sampled:
                    oracle = logp - logp_ref
                got = getattr(scores, name)[row]
                torch.testing.assert_close(got[:n].double(), oracle, rtol=2e-5, atol=2e-5)
                assert not got[n:].any()
    assert torch.equal(full.bootstrap, torch.zeros(5))
    assert not any(x.requires_grad for scores in (full, sampled) for x in scores)


def test_scores_of_zero_are_separate_tensors_of_the_right_shape() -> None:
    scores = Scores.zeros(torch.Size([2, 3]), torch.device("cpu"))
    assert [list(x.shape) for x in scores] == [[2, 3]] * 5 + [[2]]
    assert all(x.dtype == torch.float32 for x in scores)
    scores.logp.fill_(1.0)
    assert not any(x.any() for x in scores[1:])


@pytest.mark.parametrize("kl", ["k1", "full"])
@pytest.mark.parametrize("mode", MODES)
def test_the_first_ratio_of_an_update_is_exactly_one(kl: Any, mode: str) -> None:
    model, batch = with_value(policy_for(mode), mode), batch_of(LENGTHS)
    scores = model.score(batch, Reference(model.policy), temperature=0.6, kl=kl)
    for with_entropy in (False, True):
        passes = model(batch, temperature=0.6, with_entropy=with_entropy)
        assert torch.equal(passes.logp.detach(), scores.logp)
        assert torch.equal(passes.values.detach(), scores.values)
    assert torch.equal(passes.entropy.detach(), scores.entropy) or torch.allclose(
        passes.entropy, scores.entropy, atol=1e-6
    )


# ------------------------------------------------------------------------------------ training mode, dtypes, odd shapes


@pytest.mark.parametrize(
    ("family", "dropout"),
    [("llama", {"attention_dropout": 0.5}), ("gpt2", {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5})],
)
@pytest.mark.parametrize("mode", ["trunk", "model"])
def test_training_mode_flips_no_coins(family: str, dropout: dict[str, float], mode: str) -> None:
    model, batch = with_value(tiny(family, **dropout), mode).train(), batch_of(LENGTHS)
    first, second = model(batch, with_entropy=True), model(batch, with_entropy=True)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    plain = with_value(tiny(family), mode)(batch, with_entropy=True)
    for a, b in zip(first, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def test_an_adapters_dropout_flips_no_coins_either() -> None:
    config = LoraConfig(r=2, lora_alpha=4, lora_dropout=0.5, target_modules="all-linear", task_type="CAUSAL_LM")
    policy = get_peft_model(tiny("llama"), config)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ".lora_B." in name:
                parameter.fill_(0.1)
    model, batch = with_value(policy, "trunk").train(), batch_of(LENGTHS)
    assert torch.equal(model(batch).logp, model(batch).logp)


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("mode", ["none", "trunk", "model"])  # a recipe refuses it with "adapter"
def test_gradient_checkpointing_changes_no_gradient(mode: str, adapters: bool) -> None:
    batch, got = batch_of(LENGTHS), []
    for checkpointing in (False, True):
        policy = lora() if adapters else tiny("llama")
        model = with_value(policy, mode, detach_trunk=False)
        if checkpointing:
            policy.enable_input_require_grads()
            enable_checkpointing(policy)
            assert any(getattr(m, "gradient_checkpointing", False) for m in policy.modules())
        model.train()
        policy_part, value_part = losses(model, batch)
        (policy_part + value_part).backward()
        got.append(grads(model))
    plain, checkpointed = got
    assert checkpointed.keys() == plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_responses_that_are_all_empty_crash_nothing(mode: str) -> None:
    batch = batch_of([(3, 0), (1, 0)], truncated=[True, False])
    model = with_value(policy_for(mode), mode)
    passes = model(batch, with_entropy=True)
    assert [list(x.shape) for x in passes] == [[2, 0]] * 3
    (passes.logp.sum() + passes.entropy.sum() + passes.values.sum()).backward()
    assert not grads(model)
    for kl in ("k1", "full"):
        scores = model.score(batch, Reference(model.policy), temperature=0.6, kl=kl)  # type: ignore[arg-type]
        assert [list(x.shape) for x in scores] == [[2, 0]] * 5 + [[2]]
        assert scores.bootstrap[1] == 0


@pytest.mark.parametrize("mode", MODES)
def test_one_token_and_an_early_end_are_ordinary_responses(mode: str) -> None:
    # one prompt token, one response token; the end-of-sequence is nowhere
    made = rollouts([(1, 1)], truncated=[True])
    model = with_value(policy_for(mode), mode)
    passes = model(collate(made, pad_id=0))
    torch.testing.assert_close(passes.logp.double(), own_logp(model.policy, made[0])[None], rtol=0, atol=1e-5)
    passes.logp.sum().backward()
    assert grads(model)


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_in_half_precision_is_scored_and_trained(mode: str) -> None:
    policy = policy_for(mode).to(torch.bfloat16)
    made = rollouts(LENGTHS, truncated=[True] * 5)
    batch = collate(made, pad_id=0)
    model = with_value(policy, mode)
    passes = model(batch, temperature=0.6, with_entropy=True)
    assert all(x.dtype == torch.float32 for x in passes)
    for kl in ("k1", "full"):
        scores = model.score(batch, Reference(policy), temperature=0.6, kl=kl)  # type: ignore[arg-type]
        assert all(x.dtype == torch.float32 and torch.isfinite(x).all() for x in scores)
        assert torch.equal(scores.logp, passes.logp.detach())
    for row, rollout in enumerate(made):
        n = len(rollout.response_ids)
        # transformers rounds its logits to bf16: 8 bits of numbers around 5
        torch.testing.assert_close(passes.logp[row, :n].double(), own_logp(policy, rollout, 0.6), rtol=0.05, atol=0.1)
    (passes.logp.sum() + passes.values.square().sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert len(grads(model)) >= len(model.policy_parameters())


# ------------------------------------------------------------------------------------------------------------- loading


def test_a_saved_policy_is_loaded_as_it_was(tmp_path: Any) -> None:
    tiny("llama").save_pretrained(tmp_path)
    batch = batch_of(LENGTHS)
    loaded = load_policy(str(tmp_path))
    assert torch.equal(response_logprobs(loaded, batch)[0], response_logprobs(tiny("llama"), batch)[0])
    assert next(load_policy(str(tmp_path), dtype="bfloat16").parameters()).dtype == torch.bfloat16
    tiny("llama").to(torch.float16).save_pretrained(tmp_path)
    assert next(load_policy(str(tmp_path)).parameters()).dtype == torch.float16  # as stored, unless told otherwise


def test_a_path_that_holds_no_model_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ModelError) as error:
        load_policy(str(tmp_path))
    assert str(error.value) == f"cannot load a causal language model from {str(tmp_path)!r}: {error.value.__cause__}"


def test_a_saved_tokenizer_is_loaded_and_a_path_without_one_is_refused(tmp_path: Any) -> None:
    words = Tokenizer(WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="b").save_pretrained(tmp_path / "there")
    assert load_tokenizer(str(tmp_path / "there")).convert_tokens_to_ids(["b", "a"]) == [2, 1]
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(ModelError) as error:
        load_tokenizer(nowhere)
    assert str(error.value) == (
        f"cannot load a tokenizer from {nowhere!r}: there is no such directory, and as a name of the hub: "
        f"{error.value.__cause__}"
    )


def test_weights_as_a_pickle_are_refused(tmp_path: Any) -> None:
    model = tiny("llama")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError) as error:
        load_policy(str(tmp_path))
    assert str(error.value) == f"cannot load a causal language model from {str(tmp_path)!r}: {error.value.__cause__}"
    assert "safetensors" in str(error.value)


def test_last_hidden_is_what_the_head_reads() -> None:
    model, rollout = tiny("gemma2"), rollouts([(4, 3)])[0]
    ids = torch.tensor([rollout.prompt_ids + rollout.response_ids])
    torch.testing.assert_close(
        base_of(model).get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0], features(model, rollout)
    )
