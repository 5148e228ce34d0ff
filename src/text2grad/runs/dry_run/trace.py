"""Follow every allocation of a step without memory for it: the step's own code runs on tensors that have only a shape.

The policy is made from its config on torch's meta device; rollout, scoring and update run in `FakeTensorMode`. So the
figures hold for any architecture, adapter and value function that the trainer takes, and change with its code.

Rows of a pass have the same lengths: P prompt tokens and T response tokens. Bytes are integers.
"""

import gc
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from text2grad.config import ModelConfig
from text2grad.errors import ModelError
from text2grad.models import (
    PolicyWithValue,
    Reference,
    TokenBatch,
    base_of,
    dtype_to_train,
    enable_checkpointing,
    read_tokens,
    sample_inverse_cdf,
    tiles_as_on,
)
from text2grad.rl import prepare_policy

CALLS_PER_COLLECTION = 100
"""Recomputed tensors without data stay in circles of Python objects; Python alone would collect them too late."""


Roles = dict[str, int]
"""Bytes by role: what a pass needs beyond weights and optimizer states."""


class Weights(NamedTuple):
    """Bytes of parameters by role, and two numbers of parameters."""

    policy: int  # base and adapters
    reference: int  # the frozen copy; 0 where adapters are switched off instead
    value: int  # the value function's own weights
    trainable: int  # trainable weights of policy and value function: the size of one set of gradients
    largest: int  # the largest trainable parameter
    parameters: int
    trained_parameters: int


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that are made while it is active.

    Attributes:
        now: bytes of storages that are still in use.
        peak: the most so far; set it to `now` to begin anew.
    """

    def __init__(self, known: Mapping[int, Tensor], *, collect: bool = False) -> None:
        """Take the tensors that exist already, by the address of their storage; `collect` garbage now and then."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = self._calls = 0
        self._known: dict[int, Any] = dict(known)
        self._collect = collect

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count what it allocates."""
        out = func(*args, **(kwargs or {}))
        self._calls += 1
        if self._collect and self._calls % CALLS_PER_COLLECTION == 0:
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


class TracedModel:
    """Policy, value function and reference of a recipe without their weights, ready to be traced."""

    def __init__(self, config: Any, settings: ModelConfig, *, device: str = "cpu") -> None:
        """Make them from transformers' config of the policy and [model], for a device of type "cpu" or "cuda".

        Raises:
            ModelError: if the architecture cannot be made from its config.
        """
        from transformers import AutoModelForCausalLM

        self.config, self.settings, self.device, self.mode = config, settings, device, FakeTensorMode()
        dtype = weights_type(config, dtype_to_train(settings.dtype, settings.lora_r))
        try:
            with torch.device("meta"):
                policy = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                    config, dtype=dtype, trust_remote_code=settings.trust_remote_code
                )
                policy = prepare_policy(policy, settings)
                self.reference = Reference(policy, base=True)
                self.model = PolicyWithValue(policy, value=settings.value)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            raise ModelError(f"cannot make a {config.model_type} model from its config: {error}") from error
        if settings.gradient_checkpointing:
            enable_checkpointing(policy)
            if self.model.value_trunk is not None:
                enable_checkpointing(self.model.value_trunk)
        self.training = settings.gradient_checkpointing
        self.model.train(self.training)
        copies = [self.reference.model] if self.reference.model is not None else []
        self.modules: list[nn.Module] = [self.model, *copies]
        for module in self.modules:
            _make_fake(module, self.mode)
        own = {id(p): p for p in self.model.policy.parameters()}
        beside = [p for p in self.model.parameters() if id(p) not in own]
        value = {id(p): p for p in (*beside, *self.model.value_parameters())}
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.weights = Weights(
            policy=_size(p for name, p in own.items() if name not in value),
            reference=_size(p for copy in copies for p in copy.parameters()),
            value=_size(value.values()),
            trainable=_size(trained),
            largest=max(_size([p]) for p in trained),
            parameters=sum(p.numel() for p in own.values()),
            trained_parameters=sum(p.numel() for p in trained),
        )

    @contextmanager
    def _counting(self) -> Iterator[Allocations]:
        """Count allocations beyond the weights in the block; a `ModelError` says if it depends on data."""
        tensors = [tensor for module in self.modules for tensor in (*module.parameters(), *module.buffers())]
        known = {tensor.untyped_storage()._cdata: tensor for tensor in tensors}
        automatic = gc.isenabled()
        gc.disable()  # garbage is counted until it is collected: the figures must not depend on Python's own times
        gc.freeze()  # collections in the block look at its own objects only
        counted = Allocations(known, collect=self.settings.gradient_checkpointing)
        try:
            with tiles_as_on(self.device), self.mode, counted:
                yield counted
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise ModelError(
                f"the memory of {type(self.model.policy).__name__} cannot be planned: its passes depend on data that a "
                f"plan does not have ({error})"
            ) from error
        finally:
            gc.unfreeze()
            if automatic:
                gc.enable()

    def _batch(self, rows: int, prompt: int, response: int) -> EqualRows:
        """Return a batch of `rows` responses; inside the traced block."""
        ids = torch.zeros(rows, prompt + response, dtype=torch.long)
        prompts, lengths = (torch.full((rows,), length) for length in (prompt, prompt + response))
        mask, of_response = torch.ones(rows, response, dtype=torch.bool), torch.zeros(rows, response, dtype=torch.long)
        return EqualRows(ids, prompts, of_response, mask, mask[:, 0], of_response, lengths)

    def update(self, rows: int, prompt: int, response: int, *, entropy: bool, accumulated: bool = False) -> Roles:
        """Trace forward and backward of one micro-batch, with earlier gradients if they are `accumulated`.

        Gradients grow while activations go, unless earlier ones exist.
        """
        trained = [p for p in self.model.parameters() if p.requires_grad]
        with self._counting() as counted:
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter) if accumulated else None
            gc.collect()
            start = counted.now
            counted.peak = start
            batch = self._batch(rows, prompt, response)
            passes = self.model(batch, with_entropy=entropy)
            loss = passes.logp.square().sum() + passes.entropy.sum() + passes.values.square().sum()
            kept = counted.now - start
            loss.backward()
            peak, gradients = counted.peak, self.weights.trainable
            del passes, loss, batch
        for parameter in trained:
            parameter.grad = None
        peak = peak if accumulated else max(peak, gradients)
        activations = min(max(kept, 0), peak)
        gradients = gradients if accumulated else min(gradients, peak - activations)
        return {"activations": activations, "gradients": gradients, "working": max(peak - activations - gradients, 0)}

    def score(self, rows: int, prompt: int, response: int, *, kl: Literal["k1", "full"]) -> Roles:
        """Trace log-probs of policy and reference, KL and values of one micro-batch."""
        with self._counting() as counted:
            self.model.score(self._batch(rows, prompt, response), self.reference, temperature=1.0, kl=kl)
            return {"working": counted.peak}

    def states(self, rows: int, tokens: int) -> Roles:
        """Trace the last hidden states without gradient."""
        with torch.no_grad(), self._counting() as counted:
            ids = torch.zeros(rows, tokens, dtype=torch.long)
            trunk, mask = base_of(self.model.policy).base_model, torch.ones_like(ids)
            trunk(input_ids=ids, attention_mask=mask, use_cache=False)
            return {"working": counted.peak}

    def rollout(self, rows: int, prompt: int, response: int) -> Roles:
        """Trace the pass over prompts and that of the last decoded token of one generate call; return the larger."""
        from transformers import DynamicCache

        self.model.eval()
        try:
            with torch.no_grad(), self._counting() as counted:
                cache = DynamicCache(config=self.model.policy.config)
                self._decode(cache, torch.zeros(rows, prompt, dtype=torch.long), prompt)
                kept = counted.now
                first = {"KV cache": kept, "working": counted.peak - kept}
                start, counted.peak = counted.now, counted.now
                self._decode(cache, torch.zeros(rows, 1, dtype=torch.long), prompt + 1)
                whole = kept * (prompt + response) // prompt
                layers = max(len(cache.layers), 1)  # a layer's cache is copied when it grows
                last = {"KV cache": whole, "working": max(counted.peak - start, whole // layers)}
                return max(last, first, key=lambda roles: sum(roles.values()))
        finally:
            self.model.train(self.training)

    def _decode(self, cache: Any, ids: Tensor, length: int) -> None:
        mask = torch.ones(len(ids), length, dtype=torch.long)
        positions = torch.arange(length - ids.shape[1], length)[None].expand(len(ids), -1)
        out = read_tokens(self.model.policy, ids, mask, positions, cache)
        scores = out.logits[:, -1, :].to(copy=True, dtype=torch.float32)
        choice = sample_inverse_cdf(scores / 1.0, torch.zeros(len(ids)))
        torch.full_like(scores, -torch.inf).scatter_(1, choice[:, None], 0.0)


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


def weights_type(config: Any, wanted: str) -> torch.dtype:
    """Return the type of the weights: the recipe's, or the checkpoint's where it says "auto"."""
    if wanted != "auto":
        return getattr(torch, wanted)  # type: ignore[no-any-return]
    named = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    return (getattr(torch, named) if isinstance(named, str) else named) or torch.float32


def _size(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors; a tensor that occurs twice counts once."""
    return sum({id(tensor): tensor.numel() * tensor.element_size() for tensor in tensors}.values())
