"""TRL's connection to vLLM: weights in the policy's own type, adapters added without touching the base.

Importing this module imports TRL, and vLLM where it is installed.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from trl.generation import vllm_generation

from text2grad.errors import ModelError
from text2grad.models.adapters import is_peft

OF_ADAPTERS = re.compile(r"\.lora_\w+\.|\.original_module\.")
WRAPPERS = re.compile(r"^base_model\.model\.|_checkpoint_wrapped_module\.|modules_to_save\.\w+\.|(?<=\.)base_layer\.")


class PolicyGeneration(vllm_generation.VLLMGeneration):
    """`VLLMGeneration` for a policy in training; three things differ from TRL's.

    - vLLM loads the weights in the policy's type. TRL leaves the type to vLLM, which takes 16 bits for 32-bit weights.
    - The adapter's update is added to a copy of each weight. TRL merges in place and subtracts again, which rounds the
      frozen base, and so the reference, at every step.
    - On a CPU vLLM reloads the weights: its layers keep packed copies, which assignments do not reach.
    """

    def __init__(self, policy: Any, accelerator: Any, tokenizer: Any, **settings: Any) -> None:
        """Load the model in `policy.name_or_path`.

        Args:
            policy: whose weights `sync_weights` sends.
            accelerator: accelerate's.
            tokenizer: the policy's.
            settings: TRL's.
        """
        refuse_other_adapters(policy)
        self._dtype = str(policy.dtype).removeprefix("torch.")
        super().__init__(policy, accelerator, tokenizer, **settings)

    def _init_vllm(self) -> None:
        plain: Any = getattr(vllm_generation, "LLM", None)  # TRL passes a fixed list of arguments to vLLM's engine
        setattr(vllm_generation, "LLM", partial(plain, dtype=self._dtype))  # noqa: B010
        try:
            super()._init_vllm()  # type: ignore[no-untyped-call]
        finally:
            setattr(vllm_generation, "LLM", plain)  # noqa: B010

    def _iter_named_params(self) -> Iterator[tuple[str, Tensor]]:
        return merged_weights(self.model)

    def sync_weights(self) -> None:
        """Give vLLM the policy's weights of now."""
        if self.accelerator.device.type != "cpu":
            super().sync_weights()  # type: ignore[no-untyped-call]
            return
        runner = self.llm.llm_engine.model_executor.driver_worker.model_runner
        runner.reload_weights(weights_iterator=self._iter_named_params())
        for layer in runner.get_model().modules():
            if hasattr(layer, "cpu_linear") and layer.weight.numel():
                # an output layer tied to the embedding: it keeps its weight, and reloading does not pack it again
                layer.quant_method.process_weights_after_loading(layer)
        self.llm.reset_prefix_cache()


@torch.no_grad()
def merged_weights(policy: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight of a policy by its name in a checkpoint; sharded weights whole, the active adapter added.

    The policy stays as it is. Every process must iterate, since gathering a sharded weight needs all of them.
    """
    modules = dict(policy.named_modules()) if is_peft(policy) else {}
    for name, parameter in policy.named_parameters():
        if modules and OF_ADAPTERS.search(name):
            continue
        weight = _whole(parameter.data)
        owner, inside, kind = name.rpartition(".base_layer.")
        layer = modules.get(owner)
        if inside and kind == "weight" and layer is not None and not layer.disable_adapters:
            for adapter in layer.active_adapters:
                if adapter in layer.r:
                    weight = weight + _whole(layer.get_delta_weight(adapter)).to(weight)
        yield WRAPPERS.sub("", name), weight


def refuse_other_adapters(policy: Any) -> None:
    """Refuse adapters whose effect is more than a matrix that is added to a weight.

    Raises:
        ModelError: if the policy has one.
    """
    if not is_peft(policy):
        return
    from peft.tuners.lora import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, layer in policy.named_modules():
        if not isinstance(layer, BaseTunerLayer):
            continue
        plain = isinstance(layer, LoraLayer) and not layer.lora_variant and not any(layer.lora_bias.values())
        if not plain:
            raise ModelError(
                f'{name} has an adapter that cannot be merged for vLLM by adding a matrix; rollout.engine = "vllm" '
                'takes plain LoRA only (model.lora_r), or choose rollout.engine = "hf"'
            )


def _whole(weight: Tensor) -> Tensor:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight
