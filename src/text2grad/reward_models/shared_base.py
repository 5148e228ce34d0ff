"""A reward model that is an adapter: on a base of its own, or on the policy's base, which is then in memory once.

On the policy's base the reward model is a role beside policy, value function and reference (`models`): its adapter
is active only while it decodes or is trained, else frozen and inactive; the policy's outputs do not change by a bit.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from text2grad.models import (
    ADAPTER_WEIGHTS,
    CRITIC_ADAPTER,
    POLICY_ADAPTER,
    adapter_active,
    adapter_parameters,
    base_named_by,
    is_peft,
    load_lora,
    load_model,
    load_policy,
    readable_adapter,
)


def load_writer(directory: str | Path, *, trust_remote_code: bool = False) -> Any:
    """Load a causal language model, or a trainable adapter on its frozen base.

    Raises:
        ModelError: if there is none.
    """
    base = base_named_by(directory)
    if base is None:
        return load_policy(str(directory), trust_remote_code=trust_remote_code)
    return load_lora(load_policy(base, trust_remote_code=trust_remote_code), str(directory), trainable=True)


class AdapterRole:
    """One adapter of a model with several adapters, with the interface of a causal language model."""

    def __init__(self, shared: Any, adapter: str) -> None:
        """Take the shared model and the name of this role's adapter."""
        self.shared, self.adapter = shared, adapter

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the shared model: config, device, training mode."""
        return getattr(self.shared, name)

    def eval(self) -> "AdapterRole":
        """Switch the shared model to evaluation mode and return this role."""
        self.shared.eval()
        return self

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """Run a forward pass with this role's adapter, as the shared beginning of several prompts needs."""
        with adapter_active(self.shared, self.adapter):
            return self.shared(*args, **settings)

    def generate(self, *args: Any, **settings: Any) -> Any:
        """Decode with this role's adapter."""
        with adapter_active(self.shared, self.adapter):
            return self.shared.generate(*args, **settings)

    def save_pretrained(self, directory: str | Path) -> None:
        """Write this role's adapter as peft's directory."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        Path(directory).mkdir(parents=True, exist_ok=True)
        weights = get_peft_model_state_dict(self.shared, adapter_name=self.adapter)
        save_file({name: weight.contiguous() for name, weight in weights.items()}, Path(directory) / ADAPTER_WEIGHTS)
        self.shared.peft_config[self.adapter].save_pretrained(str(directory))


def is_same_model(first: str, second: str) -> bool:
    """Tell whether two hub names are equal, or two paths lead to the same directory."""
    return first == second or (Path(first).is_dir() and Path(first).resolve() == Path(second).resolve())


def add_role(policy: Any, directory: str | Path) -> AdapterRole:
    """Load an adapter onto the base of a peft policy, frozen and inactive, and return its role.

    Raises:
        ModelError: if it cannot be loaded.
    """
    trainable = {name: p.requires_grad for name, p in policy.named_parameters()}
    with _quiet(), readable_adapter(str(directory)):
        policy.load_adapter(str(directory), adapter_name=CRITIC_ADAPTER, is_trainable=False)
    for module in policy.modules():  # where the policy has no adapter, the new one would be on
        if hasattr(module, "_active_adapter"):
            module._active_adapter = [POLICY_ADAPTER]
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(trainable.get(name, False))
    return AdapterRole(policy, CRITIC_ADAPTER)


@contextmanager
def learning(model: Any) -> Iterator[Any]:
    """Yield the model to train: the model itself, or for a role the shared model with only its adapter trainable."""
    if not isinstance(model, AdapterRole):
        yield model
        return
    shared = model.shared
    before = {name: p.requires_grad for name, p in shared.named_parameters()}
    own, was_training = adapter_parameters(shared, model.adapter), shared.training
    for name, parameter in shared.named_parameters():
        parameter.requires_grad_(name in own)
    try:
        with adapter_active(shared, model.adapter):
            yield shared
    finally:
        for name, parameter in shared.named_parameters():
            parameter.requires_grad_(before[name])
        shared.train(was_training)


def load_weights(model: Any, directory: Path, *, trust_remote_code: bool = False) -> None:
    """Load weights that `save_pretrained` wrote into a model or an adapter."""
    if not is_peft(model):
        saved = load_model(type(model), "a refreshed reward model", directory, trust_remote_code=trust_remote_code)
        model.load_state_dict(saved.state_dict())
        return
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    shared, name = (model.shared, model.adapter) if isinstance(model, AdapterRole) else (model, model.active_adapter)
    set_peft_model_state_dict(shared, load_file(directory / ADAPTER_WEIGHTS), adapter_name=name)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():  # as in `adapters.with_lora`
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        yield
