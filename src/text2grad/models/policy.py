"""Policy, value function and reference; `response_logprobs` is the only place that pairs tokens with predictors.

    policy      any Hugging Face causal language model, in full or as a LoRA adapter
    value       V_ψ(x, y_<t): a linear head that starts at zero, on the policy's trunk ("trunk"), on its own adapter of
                the same base ("adapter"), or on its own model ("model"); "none" leaves V = 0
    reference   the base with adapters off, or a frozen copy where there are no adapters

Hidden states are cut to the response positions before the output layer, and log-probs come from them in tiles
(`logprobs`), so no [B, T, V] tensor exists. Outside this module all tensors are response-aligned.
Shapes: B responses, S all tokens, T response tokens, N response tokens of the batch packed, H hidden size.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from text2grad.errors import ConfigError, ModelError
from text2grad.models.adapters import (
    VALUE_ADAPTER,
    adapter_active,
    adapter_parameters,
    adapters_off,
    base_of,
    disable_dropout,
    drop_resting_adapters,
    half_precision,
    is_peft,
    trunk_of,
)
from text2grad.models.batch import TokenBatch
from text2grad.models.decoding import check_rows, steps_are_right
from text2grad.models.logprobs import Head, pair_logprobs, sampled_pair, token_logprobs
from text2grad.models.probing import EQUAL, apart, evaluating, model_errors, not_finite, probe
from text2grad.models.shared_prefix import States, shared_states

SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
ValueMode = Literal["none", "trunk", "adapter", "model"]


class Passes(NamedTuple):
    """One differentiable pass: each [B, T] fp32, zero outside the mask."""

    logp: Tensor
    entropy: Tensor
    values: Tensor


class Scores(NamedTuple):
    """Scores of rollouts: each [B, T] fp32, zero outside the mask; bootstrap is [B]."""

    logp: Tensor
    logp_ref: Tensor
    kl: Tensor  # exact KL(π ‖ π_ref) per token in nats, or k1 = log π − log π_ref
    entropy: Tensor
    values: Tensor
    bootstrap: Tensor  # V after the last token of a truncated response, 0 for one that ended

    @classmethod
    def zeros(cls, shape: torch.Size, device: torch.device) -> "Scores":
        """Return scores of zero for [B, T] tokens."""
        logp, logp_ref, kl, entropy, values = torch.zeros(5, *shape, device=device)
        return cls(logp, logp_ref, kl, entropy, values, torch.zeros(shape[0], device=device))


def head_of(model: Any) -> Head:
    """Return the output layer of a causal language model, with the scale and cap its config asks for.

    Raises:
        ModelError: if there is no linear output layer, or an adapter sits on it.
    """
    base = base_of(model)
    layer, config = base.get_output_embeddings(), base.config.get_text_config()
    if not isinstance(getattr(layer, "weight", None), Tensor):
        raise ModelError(f"{type(base).__name__} has no linear output layer; log-probs need one")
    if hasattr(layer, "lora_A"):
        raise ModelError(
            f"{type(base).__name__} has a LoRA adapter on its output layer. Leave it out of target_modules "
            '(target_modules="all-linear" does), or train it in full with modules_to_save.'
        )
    scale = getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None) or 1.0
    scaling = getattr(config, "logits_scaling", None) or 1.0
    scale *= scaling if config.model_type == "hyperclovax" else 1 / scaling
    cap = next((cap for name in SOFT_CAPS if (cap := getattr(config, name, None))), None)
    return Head(layer.weight, getattr(layer, "bias", None), float(scale), cap)


def response_states(trunk: Any, batch: TokenBatch) -> States:
    """Return the trunk's last hidden states before each response token and after the last; prompts are shared if set.

    Without sharing no attention mask is passed: with right padding, causal attention keeps padding out of every real
    position, and the attention kernels take their fast causal path.
    """
    if batch.prompts and batch.cost().shares_prompts:
        return shared_states(trunk, batch)
    hidden = trunk(input_ids=batch.ids, use_cache=False).last_hidden_state  # [B, S, H]
    rows = torch.arange(len(batch.ids), device=batch.ids.device)
    return States(batch.at_predictors(hidden), hidden[rows, batch.last_positions()])


def response_logprobs(
    model: Any, batch: TokenBatch, *, temperature: float = 1.0, with_entropy: bool = False
) -> tuple[Tensor, Tensor, States]:
    """Return log π(y_t | x, y_<t), its entropy and the trunk's features: the one place that shifts.

    Args:
        model: a causal language model.
        batch: right-padded rollouts.
        temperature: of the rollout.
        with_entropy: compute the entropy too; zeros otherwise.

    Returns:
        logp [B, T] and entropy [B, T] in nats, zero outside the mask, and the hidden states.
    """
    states = response_states(trunk_of(model), batch)
    targets = batch.targets()  # [N]
    stats = token_logprobs(states.before, head_of(model), targets, temperature=temperature, with_entropy=with_entropy)
    return batch.unpack(stats.logp), batch.unpack(stats.entropy), states


class PolicyWithValue(nn.Module):
    """The trainable part of a run: the policy, and the value function in one of its four forms."""

    def __init__(self, policy: Any, *, value: ValueMode = "trunk", detach_trunk: bool = True) -> None:
        """Take a policy and give it a value function.

        Args:
            policy: a causal language model, or one with a peft adapter.
            value: where the value head reads its features.
            detach_trunk: with value="trunk", keep the value loss out of the policy's weights.

        Raises:
            ConfigError: if value="adapter" and the model has no adapters.
        """
        super().__init__()
        if value == "adapter" and VALUE_ADAPTER not in getattr(policy, "peft_config", {}):
            raise ConfigError(
                'value="adapter" needs a LoRA policy with a second adapter named "value": set [model] lora_r, or '
                'choose value="trunk" or "model"'
            )
        disable_dropout(policy)
        self.policy = policy
        self.value_mode = value
        self.detach_trunk = detach_trunk
        self.value_trunk = copy.deepcopy(trunk_of(policy)) if value == "model" else None
        if self.value_trunk is not None:  # all of its weights are trained: in 16 bits most of an update is rounded away
            drop_resting_adapters(self.value_trunk)  # without gradients: data parallelism would wait for them
            self.value_trunk.float().requires_grad_(True)
        width = head_of(policy).weight.shape[1]
        self.value_head = None if value == "none" else nn.Linear(width, 1, device=policy.device)
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    def value_parameters(self) -> list[nn.Parameter]:
        """Return the trainable parameters ψ of the value function, the policy's own left out."""
        named = {} if self.value_head is None else dict(self.value_head.named_parameters(prefix="head"))
        if self.value_trunk is not None:
            named |= dict(self.value_trunk.named_parameters(prefix="trunk"))
        if self.value_mode == "adapter":
            named |= adapter_parameters(self.policy, VALUE_ADAPTER)
        return [p for p in named.values() if p.requires_grad]

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return the trainable parameters θ of the policy."""
        own = {id(p) for p in self.value_parameters()}
        return [p for p in self.policy.parameters() if p.requires_grad and id(p) not in own]

    def forward(self, batch: TokenBatch, *, temperature: float = 1.0, with_entropy: bool = False) -> Passes:
        """Return log-probs, entropy and values at every response token, differentiable."""
        logp, entropy, states = response_logprobs(
            self.policy, batch, temperature=temperature, with_entropy=with_entropy
        )
        return Passes(logp, entropy, self._values(batch, states)[0])

    def _values(self, batch: TokenBatch, states: States) -> tuple[Tensor, Tensor]:
        """Return V before each response token, [B, T], and V after the last one, [B]."""
        if self.value_head is None:
            empty = torch.zeros(batch.response_mask.shape, device=batch.ids.device)
            return empty, empty.new_zeros(len(empty))
        if self.value_mode == "adapter":
            with adapter_active(self.policy, VALUE_ADAPTER):
                states = response_states(trunk_of(self.policy), batch)
        elif self.value_trunk is not None:
            states = response_states(self.value_trunk, batch)
        elif self.detach_trunk:
            states = States(states.before.detach(), states.after.detach())
        before, after = (self.value_head(part.float())[:, 0] for part in states)
        return batch.unpack(before), after

    def score(
        self,
        batch: TokenBatch,
        reference: "Reference",
        *,
        temperature: float,
        kl: Literal["k1", "full"],
        learns: bool = False,
    ) -> Scores:
        """Return log-probs of policy and reference, their KL, entropy, values and the bootstrap.

        Args:
            batch: right-padded rollouts.
            reference: the frozen start.
            temperature: of the rollout.
            kl: "k1", the sampled log-ratio; "full", exact over the vocabulary.
            learns: whether log-probs and values of the policy have a gradient, as those of `forward`.
        """
        with torch.no_grad():
            other, other_head = reference.read(self.policy, batch)
        targets, head = batch.targets(), head_of(self.policy)
        with torch.set_grad_enabled(learns):
            states = response_states(trunk_of(self.policy), batch)
            values, after = self._values(batch, states)
            mine = states.before
            if kl == "full":
                pair = pair_logprobs(mine, head, other, other_head, targets, temperature=temperature)
                if learns:
                    pair = pair._replace(logp=token_logprobs(mine, head, targets, temperature=temperature).logp)
            else:
                pair = sampled_pair(mine, head, other, other_head, targets, temperature=temperature)
            logp, logp_ref, per_token, entropy = (batch.unpack(x) for x in pair)
            return Scores(logp, logp_ref, per_token, entropy, values, after * batch.truncated)


class ReferenceTrunk(nn.Module):
    """A frozen causal language model whose pass ends before the output layer."""

    def __init__(self, model: Any) -> None:
        """Take the model."""
        super().__init__()
        self.model = model

    def forward(self, batch: TokenBatch) -> Tensor:
        """Return the last hidden states before each response token, packed, [N, H]."""
        return response_states(trunk_of(self.model), batch).before


class Reference:
    """The frozen start π_ref: the policy's base with adapters off, where this is the start, or a copy taken now.

    Attributes:
        model: the copy of a policy without adapters, or None.
        trunk: the copy as the module that makes the passes (where weights are sharded, it gathers them), or None.
        start: with adapters, the trained weights of now where the base with adapters off is not the start (a trained
            adapter; PiSSA and OLoRA, which change the base) or does not stay it (trained biases); else empty.
    """

    def __init__(self, policy: Any, *, base: bool = False) -> None:
        """Take a copy where it is needed; with `base` the reference of a policy with adapters is always their base.

        Raises:
            ModelError: if the KL divergence of policy and reference is not 0 now; up to 1e-6 nats are rounding.
        """
        self.model = None if is_peft(policy) else copy.deepcopy(policy).requires_grad_(False).eval()
        self.trunk = None if self.model is None else ReferenceTrunk(self.model)
        self.start: dict[nn.Parameter, Tensor] = {}
        if base:
            return
        now, trained = probe(policy), [parameter for parameter in policy.parameters() if parameter.requires_grad]
        with self.active(policy) as start:
            bare = probe(start)
            with _holding({parameter: parameter.detach() + 1 for parameter in trained} if start is policy else {}):
                moved = probe(start)
        far = max(apart(bare, now), apart(moved, bare))
        if far > EQUAL and self.model is None:
            self.start = {parameter: parameter.detach().clone() for parameter in trained}
        elif far > EQUAL and now.isfinite().all():
            raise ModelError(
                f"a copy of {type(policy).__name__}, the reference of the KL term, differs from it by {far:.2g} nats"
            )

    def read(self, policy: Any, batch: TokenBatch) -> tuple[Tensor, Head]:
        """Return the last hidden states before each response token, packed, [N, H], and the output layer."""
        if self.trunk is not None:
            return self.trunk(batch), head_of(self.model)
        with self.active(policy):
            head = head_of(policy)
            if self.start:  # the weights of now, which go with the block
                bias = None if head.bias is None else head.bias.detach()
                head = replace(head, weight=head.weight.detach(), bias=bias)
            return response_states(trunk_of(policy), batch).before, head

    @contextmanager
    def active(self, policy: Any) -> Iterator[Any]:
        """Yield the model that computes π_ref."""
        if self.model is not None:
            yield self.model
        else:
            with _holding(self.start) if self.start else adapters_off(policy):
                yield policy


@contextmanager
def _holding(values: Mapping[nn.Parameter, Tensor]) -> Iterator[None]:
    """Give parameters other values in the block."""
    before = {parameter: parameter.data for parameter in values}
    try:
        for parameter, value in values.items():
            parameter.data = value.to(parameter.device)
        yield
    finally:
        for parameter, value in before.items():
            parameter.data = value


def check_model(policy: Any) -> None:
    """Refuse a model whose logits differ from what the tiles compute, or whose rows depend on others (`check_rows`).

    Raises:
        ModelError: if a pass fails, a weight is no number, or a log-prob of its own
            differs by more than noise: then the model does something after its trunk that `head_of` does not know.
    """
    vocab = head_of(policy).weight.shape[0]
    ids = torch.arange(1, 9, device=policy.device)[None] % vocab
    fails = f"{type(base_of(policy)).__name__} cannot be sampled from and scored: "  # each has its own error for it
    with model_errors(fails), evaluating(policy):
        logits = policy(input_ids=ids, use_cache=False).logits[0, :-1].float()
        hidden = trunk_of(policy)(input_ids=ids, use_cache=False).last_hidden_state[0, :-1]
        early = trunk_of(policy)(input_ids=ids[:, :4], use_cache=False).last_hidden_state[0, :-1]
        own = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        ours = token_logprobs(hidden, head_of(policy), ids[0, 1:]).logp
        ahead = float((token_logprobs(early, head_of(policy), ids[0, 1:4]).logp - ours[:3]).abs().max())
    worst = float((own - ours).abs().max())
    rounding = float(logits.abs().max()) * 2**-8  # largest rounding error of the model's own logits in bfloat16
    limit = max(0.1, rounding) if half_precision(policy) else 1e-3
    if ahead >= limit:
        raise ModelError(
            f"{type(base_of(policy)).__name__}: log-probs change by {ahead:.2g} nats with later tokens: it reads ahead."
            " Set is_decoder (or causal) to true in its config.json, or take a causal language model"
        )
    if not worst < limit:
        if broken := not_finite(policy):
            raise ModelError(f"{broken}: its log-probs are no numbers. Load the model again, from undamaged files")
        raise ModelError(
            f"{type(base_of(policy)).__name__}: log-probs from its hidden states differ from its own by {worst:.2g} "
            "nats, so its output layer is more than a matrix, a scale and a soft cap. Please report the architecture."
        )
    with model_errors(fails):
        check_rows(policy)
        steps_are_right(policy, pad_id=0)  # a warning before the run where they are not
