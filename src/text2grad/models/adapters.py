"""One base model in several roles: activate LoRA adapters and select trainable parameters.

The policy is the adapter named `default`; a value function may have its own, named `value`; the reference is the base
with adapters off, or with the adapter as it was; a reward model may be the adapter `critic`. No second copy of the
base is loaded for any of them.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from text2grad.errors import ConfigError, ModelError, known_names
from text2grad.models.probing import apart, check_probe, model_errors, not_finite, probe, refuse_unread, rounding

POLICY_ADAPTER = "default"
VALUE_ADAPTER = "value"
CRITIC_ADAPTER = "critic"
LINEAR = (nn.Linear, Conv1D)  # GPT-2's layers are of the second class
ALL_LINEAR, UPPER_THIRD = "all-linear", "upper-third"  # `lora_targets` that are no names of modules


def is_peft(model: nn.Module) -> bool:
    """Return True when the model carries adapters of the peft library."""
    return hasattr(model, "peft_config") and hasattr(model, "disable_adapter")


def policy_only(model: Any) -> dict[str, list[str]]:
    """Return the arguments of `save_pretrained` that leave out the critic's adapter."""
    if not is_peft(model):
        return {}
    return {"selected_adapters": [name for name in model.peft_config if name != CRITIC_ADAPTER]}


def base_of(model: Any) -> Any:
    """Return the causal language model itself, without peft's wrapper."""
    return model.get_base_model() if is_peft(model) else model


def trunk_of(model: Any) -> Any:
    """Return the layers below the output layer; `get_decoder` of some classes is the output layer, or the whole model.

    Raises:
        ModelError: if no part of the model is one.
    """
    base = base_of(model)
    head = base.get_output_embeddings()
    for part in (base.get_decoder(), base.base_model, *base.children()):
        if isinstance(part, PreTrainedModel) and not any(module is head for module in part.modules()):
            return part
    raise ModelError(f"{type(base).__name__} has no part that is a model without its output layer; log-probs need one")


def with_lora(
    model: Any, *, r: int, alpha: int, targets: str | Sequence[str], dropout: float = 0.0, value_adapter: bool = False
) -> Any:
    """Return the model with a fresh LoRA adapter for the policy, and one for the value function on request.

    Args:
        model: a causal language model.
        r: rank.
        alpha: scale; the update is alpha/r · BA.
        targets: names of the modules to adapt, "all-linear", or "upper-third", which is that in the last third of the
            layers: what a word means there depends less on its context, and no gradient goes through the others.
        dropout: rate of dropout on the adapter's input, in training mode.
        value_adapter: add a second adapter for the value function.

    Raises:
        ConfigError: if a name of `targets` fits no linear module, or peft refuses a module that they fit.
    """
    from peft import LoraConfig, get_peft_model

    check_lora_targets(model, targets)
    if targets == UPPER_THIRD:
        targets = _upper_third(model)
    targets = targets if isinstance(targets, str) else list(targets)
    config = LoraConfig(r=r, lora_alpha=alpha, lora_dropout=dropout, target_modules=targets, task_type="CAUSAL_LM")
    if targets == ALL_LINEAR:
        layers = ((name, part) for name, part in model.named_modules() if isinstance(part, LINEAR))
        config.exclude_modules = [name for name, layer in layers if not _is_product(layer)]
    try:
        with retired_name():
            model = get_peft_model(model, config, adapter_name=POLICY_ADAPTER)
    except ValueError as error:  # such as a layer of Mamba, whose kernel reads the weight itself
        raise ConfigError(f"model.lora_targets = {targets!r}: {error} Name other modules") from error
    if value_adapter:
        model.add_adapter(VALUE_ADAPTER, config)
        for parameter in adapter_parameters(model, VALUE_ADAPTER).values():
            parameter.requires_grad_(True)
    return model


def _upper_third(model: Any) -> list[str]:
    """Return the names of the linear modules in the last third of a model's layers."""
    layers: Any = max((part for part in trunk_of(model).modules() if isinstance(part, nn.ModuleList)), key=len)
    upper = {part for layer in layers[len(layers) * 2 // 3 :] for part in layer.modules() if isinstance(part, LINEAR)}
    return [name for name, part in model.named_modules() if part in upper and _is_product(part)]


@torch.no_grad()
def _is_product(layer: Any) -> bool:
    """Return whether a linear layer returns a product: some routers return a tuple, others' inputs are in groups."""
    if type(layer).forward in (nn.Linear.forward, Conv1D.forward):
        return True
    try:
        return isinstance(layer(layer.weight.new_zeros(1, layer.weight.shape[1])), torch.Tensor)
    except (RuntimeError, ValueError):
        return False


def check_lora_targets(model: nn.Module, targets: str | Sequence[str]) -> None:
    """Check that every name of `model.lora_targets` fits a module: the end of its dotted name, or a regular expression.

    Raises:
        ConfigError: if a name fits none; the message lists the names of the linear modules.
    """
    if targets in (ALL_LINEAR, UPPER_THIRD):
        return
    names = [name for name, _ in model.named_modules() if name]
    linear = sorted({name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, LINEAR)})
    for target in [targets] if isinstance(targets, str) else targets:
        try:
            fits = re.compile(target if isinstance(targets, str) else rf"(.*\.)?{re.escape(target)}").fullmatch
        except re.error as error:
            raise ConfigError(f"model.lora_targets = {target!r} is no regular expression: {error}") from error
        if not any(map(fits, names)):
            known = known_names("linear module", target, linear)
            raise ConfigError(
                f"model.lora_targets: the model has no module {target!r}.{known}; all-linear takes all but "
                "the output layer, upper-third those of the last layers"
            )


def load_lora(base: Any, path: str, *, trainable: bool = False) -> Any:
    """Return a base model with the LoRA adapter that was saved in a directory.

    Raises:
        ModelError: if it is damaged, does not fit the base, is no adapter of the layers' weights, or was saved on
            another base.
    """
    from peft import MODEL_TYPE_TO_PEFT_MODEL_MAPPING, PeftConfig, PeftModel, load_peft_weights

    with readable_adapter(path):  # as PeftModel.from_pretrained, which does not tell what it read
        config = PeftConfig.from_pretrained(path)
        config.inference_mode = not trainable
        names = None if config.is_prompt_learning else getattr(base, "_checkpoint_conversion_mapping", {})
        adapted: Any = MODEL_TYPE_TO_PEFT_MODEL_MAPPING.get(config.task_type or "", PeftModel)(base, config)
        read = adapted.load_adapter(path, POLICY_ADAPTER, is_trainable=trainable, key_mapping=names)
        if not config.is_prompt_learning:
            lacks = [key for key in read.missing_keys if ".lora_" in key]
            if lacks:  # peft 0.21 renames also names of the model's own, as it does the base's (Laguna, Inkling 2)
                own = load_peft_weights(path, device="cpu")
                named = {re.sub(r"\.lora_\w+", rf"\g<0>.{POLICY_ADAPTER}", name): own[name] for name in own}
                read = adapted.load_state_dict(named, strict=False)
                lacks = [key for key in lacks if key in read.missing_keys]
            refuse_unread(lacks, read.unexpected_keys)
        if broken := not_finite(adapted):
            raise ValueError(broken)
    check_adapter(adapted, f"the adapter {path!r}")
    check_probe(adapted, path, base=adapted.active_peft_config.base_model_name_or_path)
    return adapted


def check_adapter(adapted: Any, name: str = "the policy's adapter") -> None:
    """Raise a `ModelError` if an adapter adds nothing to weights, or began by a change of its base.

    Loading an adapter does not repeat such a change if it came of random numbers or data.
    """
    if not hasattr(adapted, "merge_and_unload"):  # such as prompt tuning, which lengthens the prompt
        kind = adapted.active_peft_config.peft_type.value
        raise ModelError(f"{name} is of the type {kind}, which cannot be merged into its base; name a LoRA adapter")
    for config in adapted.peft_config.values():
        start = str(getattr(config, "init_lora_weights", None))
        if start.startswith(("pissa_niter", "corda", "loftq", "lora_ga")):
            raise ModelError(
                f"{name} has init_lora_weights = {start!r}: its start changed the base, and loading it does so in "
                'another way. Choose True or "pissa", or convert it by path_initial_model_for_weight_conversion of peft'
            )


def merged(adapted: Any, path: str) -> Any:
    """Return a model with its adapter merged into its weights.

    Raises:
        ModelError: if the merged model computes something else.
    """
    way_out = "). Train one that can be: without lora_bias, say, where layers of the base have no bias"
    fails = model_errors(f"the adapter {path!r} cannot be merged into its base (", way_out)
    with fails, retired_name(), warnings.catch_warnings():
        before, eps = probe(adapted), torch.finfo(adapted.dtype).eps
        warnings.filterwarnings("ignore", message=".*tie", category=UserWarning)  # of weights that have their own now
        _untie(adapted)
        model = adapted.merge_and_unload().requires_grad_(True)  # peft froze the base
    if (far := apart(probe(model), before)) > rounding(before, eps):
        raise ModelError(
            f"the adapter {path!r} cannot be merged into its base: log-probs of the merged model differ by {far:.2g} "
            "nats. The base reads an adapted weight beside the adapter; train one on other modules (all-linear)"
        )
    return model


def _untie(adapted: Any) -> None:
    """Give layers weights of their own that share them with an adapted one, as the ends of a tied model do."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    wrappers: Any = (BaseTunerLayer, AuxiliaryTrainingWrapper)
    own = {id(p) for outer in adapted.modules() if isinstance(outer, wrappers) for p in outer.parameters()}
    replicated = any(getattr(config, "layer_replication", None) for config in adapted.peft_config.values())
    seen: set[int] = set()
    for module in adapted.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) in seen and (replicated or id(parameter) in own):
                setattr(module, name, nn.Parameter(parameter.detach().clone()))
            seen.add(id(parameter))


@contextmanager
def readable_adapter(path: str) -> Iterator[None]:
    """Name the directory and the reason where peft cannot load an adapter in the block.

    Raises:
        ModelError: if it cannot.
    """
    way_out = "). Copy it again, or name in its adapter_config.json the base that it was trained on"
    with model_errors(f"cannot load the adapter {path!r} onto its base (", way_out), retired_name():
        yield


@contextmanager
def retired_name() -> Iterator[None]:
    """Silence the warning about a name of transformers that peft and TRL still use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        warnings.filterwarnings("error", message="Found missing adapter keys")
        yield


def adapter_parameters(model: nn.Module, adapter: str) -> dict[str, nn.Parameter]:
    """Return the weights of one LoRA adapter by name, without modules of the base that share the adapter's name."""
    own = re.compile(rf"\.lora_\w+\.{re.escape(adapter)}(\.|$)")
    return {name: parameter for name, parameter in model.named_parameters() if own.search(name)}


def drop_resting_adapters(model: nn.Module) -> None:
    """Remove the LoRA adapters that are not active, such as a critic's from a copy of the policy's layers."""
    for layer in list(model.modules()):
        if hasattr(layer, "lora_A"):
            names = {*layer.lora_A, *layer.lora_embedding_A} - {*layer.active_adapters}  # type: ignore[misc]
            for name in names:
                layer.delete_adapter(name)  # type: ignore[operator]


@contextmanager
def adapter_active(model: nn.Module, name: str) -> Iterator[None]:
    """Run the model with the adapter `name`; which parameters are trainable does not change."""
    layers = [module for module in model.modules() if hasattr(module, "_active_adapter")]
    before = [layer._active_adapter for layer in layers]
    for layer in layers:
        layer._active_adapter = [name]  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer, active in zip(layers, before, strict=True):
            layer._active_adapter = active


@contextmanager
def adapters_off(model: Any) -> Iterator[None]:
    """Run the bare base model; which parameters are trainable does not change."""
    with same_trainable(model), model.disable_adapter():
        yield


@contextmanager
def same_trainable(model: Any) -> Iterator[None]:
    """Restore at the end which weights are trainable; new ones are not."""
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    try:
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before.get(name, False))


def disable_dropout(model: nn.Module) -> None:
    """Set every rate of dropout, layer drop and router jitter to zero, so that PPO's ratios compare weights only.

    This holds in `train()` mode too, which gradient checkpointing needs. Phi-3.5 MoE's `router_jitter_noise` is no rate
    of noise: within that distance its router weighs experts against each other, also in `eval()` mode.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and re.search("drop|(?<!router_)jitter", name):
                setattr(module, name, 0.0)


def enable_checkpointing(model: Any) -> None:
    """Enable gradient checkpointing, under the name that this release of transformers has for it."""
    base = base_of(model)
    if hasattr(base, "activation_checkpointing_enable"):
        base.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    else:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def half_precision(model: nn.Module) -> bool:
    """Return True when any weight is stored in fewer than 32 bits."""
    return any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
