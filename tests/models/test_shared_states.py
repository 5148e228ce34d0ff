"""Responses to one prompt share its forward pass: states, scores and gradients are those of whole rows."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from transformers import GPTNeoConfig, GPTNeoForCausalLM, MptConfig, MptForCausalLM

from text2grad.models import shared_attention
from text2grad.models.adapters import adapter_active, adapters_off, base_of, enable_checkpointing, trunk_of, with_lora
from text2grad.models.batch import TokenBatch, collate
from text2grad.models.decoding import decode, steps_are_right
from text2grad.models.policy import PolicyWithValue, Reference, response_logprobs
from text2grad.models.randomness import step_uniforms
from text2grad.models.sampling import sample
from text2grad.models.shared_prefix import can_share_prompts, prefill
from text2grad.types import Example, Given, Rollout
from tiny_models import CONFIGS, tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning"),
]
WHOLE = {"gemma2"}  # its attention has a window
SHARING = [family for family in CONFIGS if family not in WHOLE]
PROMPTS = ((3, 4, 5, 6, 7, 8, 9, 10), (20, 21, 22, 23, 24, 25), (5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5))
RESPONSES = ((30, 31, 32), (33,), (), (34, 35, 36, 37), (38, 2), (39, 40, 41), (42,), (43, 44, 45))


def made() -> list[Rollout]:
    """Groups of 4, 3 and 1; an empty response, truncated ones, and members that are no neighbours."""
    prompts = [PROMPTS[n] for n in (0, 1, 0, 0, 1, 2, 0, 1)]
    return [
        Rollout(Example("x"), prompt, response, "y", bool(n % 2))
        for n, (prompt, response) in enumerate(zip(prompts, RESPONSES, strict=True))
    ]


def both() -> tuple[TokenBatch, TokenBatch]:
    """The rows in the order of groups, with shared prompts and without."""
    shared = collate(made(), pad_id=0, share_prompts=True)
    [order] = shared.groups(1_000)
    part, whole = shared.rows(order), collate(made(), pad_id=0).rows(order)
    assert part.cost().shares_prompts
    assert not whole.cost().shares_prompts
    return part, whole


def policy_for(mode: str) -> Any:
    if mode != "adapter":
        return tiny("llama")
    model = with_lora(tiny("llama"), r=2, alpha=4, targets="all-linear", value_adapter=True)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def with_value(mode: str) -> PolicyWithValue:
    model = PolicyWithValue(policy_for(mode), value=mode, detach_trunk=False)  # type: ignore[arg-type]
    if model.value_head is not None:
        torch.manual_seed(6)
        torch.nn.init.normal_(model.value_head.weight)
    return model


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Differences of gradients are at most 1e-5 of the largest entry, which is above 1 here."""
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        limit = 1e-5 * max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=limit, msg=name)
    assert max(gradient.abs().max() for gradient in ours.values()) > 1


def tokens_read(model: Any) -> tuple[list[list[int]], Any]:
    shapes: list[list[int]] = []
    hook = (
        base_of(model)
        .get_decoder()
        .register_forward_pre_hook(
            lambda _, args, kwargs: shapes.append(list(kwargs["input_ids"].shape)), with_kwargs=True
        )
    )
    return shapes, hook


@pytest.fixture(params=[1, 10**6], ids=["attends to shared", "copies"], autouse=True)
def least_shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows attend to the keys and values of their prompt, or have copies of them."""
    monkeypatch.setattr(shared_attention, "LEAST_SHARED", request.param)
    return int(request.param)


def test_each_prompt_is_read_once_and_responses_go_on_from_it() -> None:
    model = tiny("llama")
    assert can_share_prompts(model)
    shared_attention.can_attend_to_shared(trunk_of(model))  # tries the architecture once
    shapes, hook = tokens_read(model)
    part, whole = both()
    response_logprobs(model, part)
    response_logprobs(model, whole)
    hook.remove()
    assert shapes == [[3, 11], [8, 4], [8, 14]]  # 3 prompts, then 8 responses; without sharing 8 whole rows
    assert (part.cost().tokens, whole.cost().tokens) == (3 * 11 + 8 * 4, 8 * 14)


@pytest.mark.parametrize("family", SHARING)
def test_log_probs_entropy_and_their_gradient_are_those_of_whole_rows(family: str) -> None:
    model = tiny(family)
    assert can_share_prompts(model)
    found = []
    for batch in both():
        logp, entropy, states = response_logprobs(model, batch, temperature=0.7, with_entropy=True)
        weights = torch.linspace(-1, 1, logp.numel()).reshape(logp.shape)
        found.append((logp, entropy, *states, gradients(model, (weights * logp + 0.3 * entropy).sum())))
    for ours, theirs in zip(found[0][:4], found[1][:4], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert_same(found[0][4], found[1][4])


@pytest.mark.parametrize("mode", ["none", "trunk", "adapter", "model"])
def test_values_scores_and_their_gradients_are_those_of_whole_rows(mode: str) -> None:
    model = with_value(mode)
    reference = Reference(model.policy)
    part, whole = both()
    for kl in ("k1", "full"):
        pair = (model.score(batch, reference, temperature=1.0, kl=kl) for batch in (part, whole))
        for name, ours, theirs in zip(*(["logp", "logp_ref", "kl", "entropy", "values", "after"], *pair), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5, msg=name)
    passes = [model(batch) for batch in (part, whole)]
    mask = part.response_mask
    found = [gradients(model, (one.logp - one.values.square())[mask].sum()) for one in passes]
    assert_same(found[0], found[1])


def test_models_with_windows_and_with_gradient_checkpointing_read_whole_rows() -> None:
    assert not can_share_prompts(tiny("gemma2"))
    model = tiny("llama")
    enable_checkpointing(model)
    assert can_share_prompts(model.eval())  # without training mode nothing is computed again
    assert not can_share_prompts(model.train())


def test_groups_keep_equal_prompts_together_by_hand() -> None:
    batch = collate(made(), pad_id=0, share_prompts=True)
    assert batch.prompts == (0, 1, 0, 0, 1, 2, 0, 1)
    # by prompt length, then response length: prompt 1 (6 tokens) with responses of 1, 2, 3; prompt 0 (8 tokens) with 0,
    # 1, 3, 4; prompt 2. Prompt 1: 6 + 3 · 3 = 15 tokens. With the first row of prompt 0: 2 · 8 + 4 · 3 = 28.
    # Prompt 0 alone: 8 + 4 · 4 = 24, with prompt 2: 2 · 11 + 5 · 4 = 42.
    assert [group.tolist() for group in batch.groups(27)] == [[1, 4, 7], [2, 6, 0, 3], [5]]
    assert [batch.rows(group).cost() for group in batch.groups(27)] == [(15, True), (24, True), (14, False)]
    # 35 would hold the first rows of prompt 0, too, 2 · 8 + 6 · 3 = 34; but then that prompt would be read twice.
    assert [group.tolist() for group in batch.groups(35)] == [[1, 4, 7], [2, 6, 0, 3], [5]]
    # 20 do not hold prompt 0 with all of its rows: 8 + 3 · 3 = 17 are three of them, and the last one is 12.
    assert [group.tolist() for group in batch.groups(20)] == [[1, 4, 7], [2, 6, 0], [3], [5]]


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=9),
    st.integers(1, 60),
)
def test_groups_hold_every_row_once_and_cost_no_more_than_allowed(shape: list[tuple[int, int]], tokens: int) -> None:
    rows = [Rollout(Example("x"), tuple(range(1, 2 + 3 * p)), (7,) * r, "y", False) for p, r in shape]
    batch = collate(rows, pad_id=0, share_prompts=True)
    groups = batch.groups(tokens)
    assert sorted(row for group in groups for row in group.tolist()) == list(range(len(shape)))
    for group in groups:
        part = batch.rows(group)
        assert len(group) == 1 or part.cost().tokens <= tokens
        assert part.cost().tokens <= part.ids.numel()
        numbers = list(part.prompts)
        assert numbers == sorted(numbers, key=numbers.index)  # equal prompts are neighbours


def test_a_group_is_sampled_as_row_by_row_from_one_prompt_pass() -> None:
    model = tiny("llama")
    prompts = [PROMPTS[0]] * 3 + [PROMPTS[1]] * 3
    uniforms = step_uniforms(seed=3, step=0, rows=6, tokens=7)
    end: dict[str, Any] = {"eos_ids": [2], "pad_id": 0}
    assert steps_are_right(model, 0)
    assert can_share_prompts(model)
    shapes, hook = tokens_read(model)
    together = sample(model, prompts, uniforms, **end)
    assert shapes[0] == [2, 7]  # both prompts without their last token
    hook.remove()
    alone = [sample(model, [prompt], uniforms[n : n + 1], **end)[0] for n, prompt in enumerate(prompts)]
    assert together == alone
    assert len(set(together)) == 6


def test_a_model_whose_attention_counts_slots_shares_nothing() -> None:
    # GPT-Neo limits local attention to the last slots, with the padding between prompt and response among them.
    def made(*kinds: str) -> Any:
        sizes = {"vocab_size": 64, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64}
        torch.manual_seed(0)
        model = GPTNeoForCausalLM(
            GPTNeoConfig(**sizes, attention_types=[[list(kinds), 2 // len(kinds)]], window_size=4)
        )
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        return model.eval()

    assert can_share_prompts(made("global"))
    model = made("global", "local")
    assert not can_share_prompts(model)
    rows = [(3,) * 12 + (4, 5), (3,) * 12 + (6, 7, 8), (9, 10), (9, 11, 12)]
    assert prefill(model, rows, [0, 0, 1, 1], 0) is None
    alone = [decode(model, [row], max_new_tokens=5, eos_ids=(), pad_id=0)[0] for row in rows]
    assert decode(model, rows, max_new_tokens=5, eos_ids=(), pad_id=0, groups=[0, 0, 1, 1]) == alone


def test_a_model_whose_alibi_counts_slots_reads_every_row_whole() -> None:
    torch.manual_seed(0)
    config = MptConfig(vocab_size=64, d_model=32, n_heads=4, n_layers=2, max_seq_len=64)
    model = MptForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    rows = [(3,) * 12 + (4, 5), (3,) * 12 + (6, 7, 8), (9, 10), (9, 11, 12)]
    assert prefill(model, rows, [0, 0, 1, 1], 0) is None
    alone = [decode(model, [row], max_new_tokens=5, eos_ids=(), pad_id=0)[0] for row in rows]
    assert decode(model, rows, max_new_tokens=5, eos_ids=(), pad_id=0, groups=[0, 0, 1, 1]) == alone


# --- Trajectories: given ids stand between the sampled ones -----------------------------------------------------------

TALKS = [  # groups of 3 and 2; turns that are empty, given ids at the beginning and at the end, and a single turn
    Rollout(Example("x"), PROMPTS[n], response, "y", cut, given=tuple(Given(*between) for between in given_ids))
    for n, response, cut, given_ids in [
        (0, (30, 31, 32), True, [(1, (50, 51))]),
        (0, (33,), True, []),
        (1, (38, 2), False, [(1, (56, 56)), (1, (57,))]),
        (0, (34, 35, 36, 37), True, [(2, (52,)), (3, (53, 54)), (4, (55,))]),
        (1, (), True, [(0, (58,))]),
    ]
]


class Alone(NamedTuple):
    """What transformers says of one trajectory: log-probs, entropies and values of its tokens, and after."""

    logp: Tensor
    entropy: Tensor
    values: Tensor
    after: Tensor


def alone(model: PolicyWithValue, own: Rollout) -> Alone:
    """Read a trajectory in one pass of its own, and look at the places before the sampled ids."""
    ids, before = list(own.prompt_ids), list[int]()
    for t in range(len(own.response_ids) + 1):
        ids += [token for place, between in own.given if place == t for token in between]
        before.append(len(ids) - 1)
        ids += own.response_ids[t : t + 1]
    row, read = torch.tensor([ids]), {"use_cache": False, "output_hidden_states": True}
    out = model.policy(row, **read)
    scores = (out.logits[0, before[:-1]] / 0.7).log_softmax(-1)
    states = out.hidden_states[-1][0, before]
    if model.value_mode == "adapter":
        with adapter_active(model.policy, "value"):
            states = model.policy(row, **read).hidden_states[-1][0, before]
    if model.value_mode == "model":
        states = model.value_trunk(input_ids=row, use_cache=False).last_hidden_state[0, before]
    values = torch.zeros(len(before)) if model.value_head is None else model.value_head(states)[:, 0]
    logp = scores.gather(1, torch.tensor(own.response_ids, dtype=torch.long)[:, None])[:, 0]
    return Alone(logp, -(scores.exp() * scores).sum(-1), values[:-1], values[-1])


def loss_of(logp: Tensor, entropy: Tensor, values: Tensor) -> Tensor:
    """A loss in which no two of the tokens, packed, count the same."""
    weights = torch.linspace(-1, 1, len(logp))
    return (weights * logp).sum() + 0.3 * (weights.flip(0) * entropy).sum() - values.square().sum()


@pytest.mark.parametrize("mode", ["none", "trunk", "adapter", "model"])
def test_a_trajectory_is_read_as_transformers_reads_it_alone(mode: str) -> None:
    model, order = with_value(mode), (2, 4, 0, 1, 3)
    reference = Reference(model.policy, base=True)
    expected = [alone(model, TALKS[row]) for row in order]
    packed = [torch.cat([getattr(own, name) for own in expected]) for name in ("logp", "entropy", "values")]
    gradient = gradients(model, loss_of(*packed))
    start = packed[0]
    if mode == "adapter":
        with adapters_off(model.policy):
            start = torch.cat([alone(model, TALKS[row]).logp for row in order])
    for share in (True, False):
        batch = collate(TALKS, pad_id=0, share_prompts=share).rows(torch.tensor(order))
        assert batch.cost() == ((2 * 8 + 5 * 8, True) if share else (5 * 16, False))
        ours, mask = model(batch, temperature=0.7, with_entropy=True), batch.response_mask
        for name, mine, theirs in zip(("logp", "entropy", "values"), ours, packed, strict=True):
            torch.testing.assert_close(mine[mask], theirs, rtol=0, atol=1e-5, msg=name)
            assert not mine[~mask].any()
        assert_same(gradients(model, loss_of(*(x[mask] for x in ours))), gradient)
        scored = model.score(batch, reference, temperature=0.7, kl="full")
        after = torch.stack([own.after for own in expected]) * batch.truncated
        for mine, theirs in ((scored.logp[mask], packed[0]), (scored.logp_ref[mask], start), (scored.bootstrap, after)):
            torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["qwen2", "gpt2", "gemma2"])
def test_trajectories_of_other_architectures_are_read_as_transformers_reads_them(family: str) -> None:
    model = PolicyWithValue(tiny(family), value="none")
    batch = collate(TALKS, pad_id=0, share_prompts=family not in WHOLE)
    logp = model(batch, temperature=0.7).logp
    expected = torch.cat([alone(model, own).logp for own in TALKS])
    torch.testing.assert_close(logp[batch.response_mask], expected, rtol=0, atol=1e-5)
