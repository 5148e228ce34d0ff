"""Follow every allocation of a step without memory for it: the step's own code runs on tensors that have only a shape.

The policy is made from its config on torch's meta device; rollout, scoring and update run in `FakeTensorMode`. So the
figures hold for any architecture, adapter and value function that the trainer takes, and change with its code.

Rows of a pass have the same lengths: P prompt tokens and T response tokens. Bytes are integers.
"""

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from text2grad.config import ModelConfig
from text2grad.errors import ModelError
from text2grad.models import (
    PolicyWithValue,
    Reference,
    TokenBatch,
    base_of,
    dtype_to_train,
    enable_checkpointing,
    response_logprobs,
    sample_inverse_cdf,
    tiles_as_on,
)
from text2grad.rl import prepare_policy

CALLS_PER_COLLECTION = 100
"""Recomputed tensors without data stay in circles of Python objects, which are collected too late otherwise."""


class Pass(NamedTuple):
    """One traced pass over some rows.

    Attributes:
        rows: its rows.
        peak: most bytes beyond weights and optimizer states.
        kept: bytes that stay after the forward pass: activations for the backward pass, or the KV cache.
        flops: operations of its matrix products and attention.
        calls: operations that are started, which take time each.
        accumulated: whether the gradients of an earlier micro-batch exist, and are in the peak.
    """

    rows: int
    peak: int
    kept: int
    flops: int
    calls: int
    accumulated: bool = False


@dataclass(frozen=True)
class Weights:
    """Bytes of parameters by role, and of those that are trained.

    Attributes:
        policy: base and adapters.
        reference: the frozen copy; 0 where adapters are switched off instead.
        value: the value function's own weights.
        trainable: of policy and value function: the size of one set of gradients.
        largest: of the largest trainable parameter.
        parameters: number of the policy's parameters.
        trained_parameters: number of trainable parameters.
        layer: of the largest layer of the policy, which FSDP gathers at once.
        ends: of the policy without its layers: embedding, output layer and norm.
    """

    policy: int
    reference: int
    value: int
    trainable: int
    largest: int
    parameters: int
    trained_parameters: int
    layer: int
    ends: int

    @property
    def total(self) -> int:
        """All weights."""
        return self.policy + self.reference + self.value


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that are made while it is active, and the operations.

    Attributes:
        now: bytes of storages that are still in use.
        peak: the most so far; set it to `now` to begin anew.
        calls: operations so far.
    """

    def __init__(self, known: Mapping[int, Tensor], *, collect: bool = False) -> None:
        """Take the tensors that exist already, by the address of their storage; `collect` garbage now and then."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = self.calls = 0
        self._known: dict[int, Any] = dict(known)
        self._collect = collect

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it allocates."""
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        if self._collect and self.calls % CALLS_PER_COLLECTION == 0:
            gc.collect()
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                address, size = storage._cdata, storage.nbytes()
                if address not in self._known:
                    self._known[address] = weakref.finalize(storage, self._free, address, size)
                    self.now += size
                    self.peak = max(self.peak, self.now)
        return out

    def _free(self, address: int, size: int) -> None:
        self.now -= size
        self._known.pop(address, None)


class EqualRows(TokenBatch):
    """A batch whose rows have the same lengths, so that packing needs no look at the data."""

    def at_predictors(self, hidden: Tensor) -> Tensor:
        """Return a copy of the hidden states that predict the response tokens, [N, H]."""
        response = self.response_ids.shape[1]
        return hidden[:, -response - 1 : -1].reshape(-1, hidden.shape[-1]).clone()

    def targets(self) -> Tensor:
        """Return the ids of the response tokens, int64 [N]."""
        return self.response_ids.reshape(-1).clone()

    def last_positions(self) -> Tensor:
        """Return the position of each row's last token, int64 [B]."""
        return self.prompt_lengths + self.response_ids.shape[1] - 1


class TracedModel:
    """The models of a run without their weights, ready to be traced."""

    def __init__(self, config: Any, settings: ModelConfig, *, device: str = "cpu", lora_dropout: float = 0.0) -> None:
        """Make them from the policy's config.

        Args:
            config: transformers' config of the policy.
            settings: [model].
            device: type of the device that is planned for: "cpu" or "cuda".
            lora_dropout: rate of dropout before the adapter of the policy; PPO has none.

        Raises:
            ModelError: if the architecture cannot be made from its config.
        """
        from transformers import AutoModelForCausalLM

        self.settings, self.device, self.mode = settings, device, FakeTensorMode()
        dtype = weights_type(config, dtype_to_train(settings.dtype, settings.lora_r))
        try:
            with torch.device("meta"):
                policy = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                    config, dtype=dtype, trust_remote_code=settings.trust_remote_code
                )
                policy = prepare_policy(policy, settings)
                reference = Reference(policy)
                model = PolicyWithValue(policy, value=settings.value)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            raise ModelError(f"cannot make a {config.model_type} model from its config: {error}") from error
        if settings.gradient_checkpointing:
            enable_checkpointing(policy)
            if model.value_trunk is not None:
                enable_checkpointing(model.value_trunk)
        if lora_dropout:
            _switch_on_dropout(policy, lora_dropout, device)
        self.training = settings.gradient_checkpointing or lora_dropout > 0
        model.train(self.training)
        copies = [reference.model] if reference.model is not None else []
        for module in (model, *copies):
            _make_fake(module, self.mode)
        self.model, self.reference = model, reference
        own = {id(p): p for p in model.policy.parameters()}
        value = {id(p): p for p in model.parameters() if id(p) not in own} | {
            id(p): p for p in model.value_parameters()
        }
        trained = [p for p in model.parameters() if p.requires_grad]
        layers = [_size(layer.parameters()) for layer in getattr(base_of(policy).get_decoder(), "layers", [])]
        self.weights = Weights(
            policy=_size(p for name, p in own.items() if name not in value),
            reference=_size(reference.model.parameters()) if reference.model is not None else 0,
            value=_size(value.values()),
            trainable=_size(trained),
            largest=max(map(_bytes, trained)),
            parameters=sum(p.numel() for p in own.values()),
            trained_parameters=sum(p.numel() for p in trained),
            layer=max(layers, default=0),
            ends=_size(own.values()) - sum(layers),
        )

    @contextmanager
    def _tracing(self) -> Iterator[tuple[Allocations, FlopCounterMode]]:
        """Count allocations and operations of the block."""
        modules = [self.model, *([self.reference.model] if self.reference.model is not None else [])]
        checkpointing = self.settings.gradient_checkpointing
        with _counting(
            modules, self.mode, self.device, type(self.model.policy).__name__, collect=checkpointing
        ) as both:
            yield both

    def batch(self, rows: int, prompt: int, response: int) -> EqualRows:
        """Return a batch of `rows` responses; inside the traced block."""
        ids = torch.zeros(rows, prompt + response, dtype=torch.long)
        lengths = torch.full((rows,), prompt)
        mask = torch.ones(rows, response, dtype=torch.bool)
        return EqualRows(ids, lengths, torch.zeros(rows, response, dtype=torch.long), mask, mask[:, 0])

    def update(
        self, rows: int, prompt: int, response: int, *, entropy: bool, bf16: bool = False, accumulated: bool = False
    ) -> Pass:
        """Trace forward and backward of one micro-batch.

        Args:
            rows: its rows.
            prompt: tokens of each prompt.
            response: tokens of each response.
            entropy: whether the loss has an entropy term.
            bf16: the forward pass computes in mixed precision.
            accumulated: the gradients of an earlier micro-batch exist, and are in the peak.
        """
        trained = [one for one in self.model.parameters() if one.requires_grad]
        with self._tracing() as (counted, flops):
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter) if accumulated else None
            gc.collect()
            start = counted.now
            counted.peak, counted.calls = start, 0
            batch = self.batch(rows, prompt, response)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                passes = self.model(batch, with_entropy=entropy)
            loss = passes.logp.square().sum() + passes.entropy.sum() + passes.values.square().sum()
            kept = counted.now - start
            loss.backward()
            found = Pass(rows, counted.peak, kept, flops.get_total_flops(), counted.calls, accumulated)
            del passes, loss, batch
        for parameter in trained:
            parameter.grad = None
        return found

    def score(self, rows: int, prompt: int, response: int, *, kl: str) -> Pass:
        """Trace log-probs of policy and reference, KL and values of one micro-batch."""
        with self._tracing() as (counted, flops):
            batch = self.batch(rows, prompt, response)
            self.model.score(batch, self.reference, temperature=1.0, kl=kl)  # type: ignore[arg-type]
            return Pass(rows, counted.peak, 0, flops.get_total_flops(), counted.calls)

    def logprobs(self, rows: int, prompt: int, response: int) -> Pass:
        """Trace the log-probs of responses behind their prompts, without gradient."""
        with torch.no_grad(), self._tracing() as (counted, flops):
            response_logprobs(self.model.policy, self.batch(rows, prompt, response))
            return Pass(rows, counted.peak, 0, flops.get_total_flops(), counted.calls)

    def states(self, rows: int, tokens: int) -> Pass:
        """Trace the hidden states of all layers, without gradient, and a copy of a row's in 32 bits."""
        with torch.no_grad(), self._tracing() as (counted, flops):
            ids = torch.zeros(rows, tokens, dtype=torch.long)
            trunk, mask = base_of(self.model.policy).base_model, torch.ones_like(ids)
            read = trunk(input_ids=ids, attention_mask=mask, use_cache=False, output_hidden_states=True)
            torch.stack([read.hidden_states[-2][0]], 1).float()
            return Pass(rows, counted.peak, 0, flops.get_total_flops(), counted.calls)

    def rollout(self, rows: int, prompt: int, response: int) -> tuple[Pass, Pass]:
        """Trace the pass over prompts and the last decoded token of one generate call.

        Returns:
            The prompts' pass, and one decoding step with the cache of P + T tokens; `kept` is the KV cache.
        """
        from transformers import DynamicCache

        policy = self.model.policy
        self.model.eval()
        try:
            with torch.no_grad(), self._tracing() as (counted, flops):
                cache = DynamicCache(config=policy.config)
                self._decode(cache, torch.zeros(rows, prompt, dtype=torch.long), prompt)
                kept = counted.now
                first = Pass(rows, counted.peak, kept, flops.get_total_flops(), counted.calls)
                start, calls, counted.peak = counted.now, counted.calls, counted.now
                self._decode(cache, torch.zeros(rows, 1, dtype=torch.long), prompt + 1)
                working = counted.peak - start
                last_flops = flops.get_total_flops() - first.flops
                whole = kept * (prompt + response) // prompt
                layers = max(len(cache.layers), 1)
                peak = whole + max(working, whole // layers)  # a layer's cache is copied when it grows
                return first, Pass(rows, peak, whole, last_flops, counted.calls - calls)
        finally:
            self.model.train(self.training)

    def _decode(self, cache: Any, ids: Tensor, length: int) -> None:
        mask = torch.ones(len(ids), length, dtype=torch.long)
        positions = torch.arange(length - ids.shape[1], length)[None].expand(len(ids), -1)
        out = self.model.policy(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        scores = out.logits[:, -1, :].to(copy=True, dtype=torch.float32)
        choice = sample_inverse_cdf(scores / 1.0, torch.zeros(len(ids)))
        torch.full_like(scores, -torch.inf).scatter_(1, choice[:, None], 0.0)


class FusedDropout(nn.Module):
    """Dropout as a GPU computes it: the mask has a byte for each number, and on a CPU as many bytes as the number."""

    def __init__(self, p: float) -> None:
        """Take the rate."""
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return x with a share p of its numbers set to zero, scaled."""
        return torch.native_dropout(x, self.p, self.training)[0]


def _switch_on_dropout(policy: nn.Module, p: float, device: str) -> None:
    """Give the adapters of a policy dropout before them, which PPO has not: `PolicyWithValue` switches it off."""
    for name, module in list(policy.named_modules()):
        if name.endswith("lora_dropout") and isinstance(module, nn.ModuleDict):
            for adapter in module:
                module[adapter] = FusedDropout(p) if device == "cuda" else nn.Dropout(p)


def trace_classifier(
    config: Any, kind: str, rows: int, tokens: int, *, dtype: torch.dtype, device: str, trust_remote_code: bool = False
) -> Pass:
    """Trace one pass of a classifier over rows of `tokens` tokens, as a scalar or process reward model makes it.

    Args:
        config: transformers' config of the model.
        kind: "scalar" or "process".
        rows: responses at once.
        tokens: of each row.
        dtype: of the weights.
        device: type of the device that is planned for: "cpu" or "cuda".
        trust_remote_code: run code that comes with the model.

    Raises:
        ModelError: if there is no such classifier for this config, or it cannot be traced.
    """
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    head: Any = AutoModelForSequenceClassification if kind == "scalar" else AutoModelForTokenClassification
    try:
        with torch.device("meta"):
            model = head.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code).eval()
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise ModelError(f"cannot make a {config.model_type} classifier from its config: {error}") from error
    mode = FakeTensorMode()
    _make_fake(model, mode)
    if model.config.pad_token_id is None:
        model.config.pad_token_id = 0  # the tokenizer names it; any does
    with torch.no_grad(), _counting([model], mode, device, type(model).__name__) as (counted, flops):
        ids = torch.ones(rows, tokens, dtype=torch.long)
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
        return Pass(rows, counted.peak, 0, flops.get_total_flops(), counted.calls)


def _make_fake(module: nn.Module, mode: FakeTensorMode) -> None:
    """Give every parameter and buffer a shape-only tensor that says it is on a CPU."""
    made: dict[int, Any] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                if id(parameter) not in made:
                    fake = FakeTensor(mode, parameter.data, torch.device("cpu"))
                    made[id(parameter)] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
                part._parameters[name] = made[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = FakeTensor(mode, buffer.to("meta"), torch.device("cpu"))


@contextmanager
def _counting(
    modules: Sequence[nn.Module], mode: FakeTensorMode, device: str, name: str, *, collect: bool = False
) -> Iterator[tuple[Allocations, FlopCounterMode]]:
    """Count allocations beyond the weights of some modules, and operations, of the block.

    Raises:
        ModelError: if a pass depends on data; `name` is that of the model.
    """
    known = {
        tensor.untyped_storage()._cdata: tensor
        for module in modules
        for tensor in (*module.parameters(), *module.buffers())
    }
    automatic = gc.isenabled()
    gc.disable()  # garbage is counted until it is collected: the figures must not depend on Python's own times
    gc.freeze()  # collections in the block look at its own objects only
    try:
        with (
            tiles_as_on(device),
            mode,
            FlopCounterMode(display=False) as flops,
            Allocations(known, collect=collect) as counted,
        ):
            yield counted, flops
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise ModelError(
            f"the memory of {name} cannot be planned: its passes depend on data that a plan does not have ({error})"
        ) from error
    finally:
        gc.unfreeze()
        if automatic:
            gc.enable()


def weights_type(config: Any, wanted: str) -> torch.dtype:
    """Return the type of the weights: the recipe's, or the checkpoint's where it says "auto"."""
    if wanted != "auto":
        return getattr(torch, wanted)  # type: ignore[no-any-return]
    named = getattr(config, "dtype", None)
    if named is None:
        named = getattr(config.get_text_config(), "dtype", None)
    found = getattr(torch, named) if isinstance(named, str) else named
    return found or torch.float32


def read_config(path: str, *, trust_remote_code: bool = False) -> Any:
    """Return the config of a model, by directory or hub name.

    Raises:
        ModelError: if there is none, or the hub cannot be reached.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"cannot read the config of {path!r}: {str(error).splitlines()[0]}. Without a network, "
            "name a directory that holds its "
            "config.json (--model DIR); a plan needs no weights"
        ) from error


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _size(tensors: Any) -> int:
    return sum({id(tensor): _bytes(tensor) for tensor in tensors}.values())
