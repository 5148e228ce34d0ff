"""A reward model that is an adapter: on a base of its own, or on the policy's base, which is then in memory once.

On the policy's base the reward model is a role beside policy, value function and reference (`models`): its adapter
is active only while it decodes or is trained, else frozen and inactive; the policy's outputs do not change by a bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from text2grad.errors import ModelError
from text2grad.models import (
    ADAPTER_WEIGHTS,
    CRITIC_ADAPTER,
    POLICY_ADAPTER,
    adapter_active,
    adapter_parameters,
    base_of,
    check_probe,
    is_peft,
    load_model,
    probe,
    readable_adapter,
    refuse_unread,
    same_trainable,
)


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

    def save_pretrained(self, directory: str | Path) -> None:
        """Write this role's adapter as peft's directory."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        Path(directory).mkdir(parents=True, exist_ok=True)
        weights = get_peft_model_state_dict(self.shared, adapter_name=self.adapter)
        save_file({name: weight.contiguous() for name, weight in weights.items()}, Path(directory) / ADAPTER_WEIGHTS)
        self.shared.peft_config[self.adapter].save_pretrained(str(directory))


def add_role(policy: Any, directory: str | Path) -> AdapterRole:
    """Load an adapter onto the base of a peft policy, frozen and inactive, and return its role.

    Raises:
        ModelError: if it cannot be loaded.
    """
    before = probe(policy)
    with same_trainable(policy), readable_adapter(str(directory)):
        read = policy.load_adapter(str(directory), adapter_name=CRITIC_ADAPTER, is_trainable=False)
        refuse_unread(read.missing_keys, read.unexpected_keys)
    for module in policy.modules():  # a new adapter is active where the policy has none: switch it off
        if hasattr(module, "_active_adapter"):
            module._active_adapter = [POLICY_ADAPTER]
    if not probe(policy).equal(before):  # such as by biases, or PiSSA's change of the base
        raise ModelError(
            f"the adapter {str(directory)!r} changes weights of its base, which the policy shares; name the merged "
            "model as critic.model (`text2grad reward` writes merged/ beside the adapter)"
        )
    role = AdapterRole(policy, CRITIC_ADAPTER)
    check_probe(role, directory, base_of(policy).name_or_path or "of the policy")  # an adapter need not name one
    return role


@contextmanager
def learning(model: Any) -> Iterator[Any]:
    """Yield the model to train: the model itself, or for a role the shared model with only its adapter trainable."""
    if not isinstance(model, AdapterRole):
        yield model
        return
    shared, was_training = model.shared, model.shared.training
    try:
        with same_trainable(shared), adapter_active(shared, model.adapter):
            shared.requires_grad_(False)
            for parameter in adapter_parameters(shared, model.adapter).values():
                parameter.requires_grad_(True)
            yield shared
    finally:
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
