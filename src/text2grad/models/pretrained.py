"""Load causal language models, classifiers and tokenizers by path or hub name; weights from safetensors only."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from text2grad.config import ModelConfig
from text2grad.errors import ConfigError, ModelError, is_out_of_memory
from text2grad.files import readable
from text2grad.progress import note

WIDE = 256  # hidden size from which products of matrices decide the time
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
AT_REVISION = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)@(?P<revision>[\w./-]+)")
OF_MODELS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")  # files of a model that are downloaded
OTHER_PARTS = re.compile(
    r"vision|visual|image|audio|video|speech|multi_?modal|(^|\.)(mtp|v_head|value_head|score|classifier)\b|[kv]_scale$"
    r"|(masked_bias|attn\.bias|attention\.bias|inv_freq|position_ids)$"
)
"""Weights in a model's files that a language model does not need: other senses, other heads, scales, old buffers."""


def local_path(path: str | Path) -> str:
    """Return a path or hub name as it is, and OWNER/NAME@REVISION as the directory of its files, downloaded once.

    Raises:
        ModelError: if the hub has no such revision, or cannot be reached.
    """
    wanted = AT_REVISION.fullmatch(str(path))
    if not wanted or Path(path).exists():
        return str(path)
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(wanted["name"], revision=wanted["revision"], allow_patterns=[*OF_MODELS])
    except Exception as error:  # each release of huggingface_hub has its own HTTP library, with errors of its own
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"cannot load {str(path)!r} from the hub: {reason}") from error


def policy_config(path: str, *, trust_remote_code: bool = False) -> Any:
    """Return the config of a causal language model, or of an adapter's base, without loading weights.

    Raises:
        ModelError: if the path holds no such model, or a file of weights is damaged, as its header shows.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    path = local_path(path)
    _refuse_damaged_weights(Path(path))
    if base := base_named_by(path):
        with _loading("an adapter's base", path):
            return policy_config(base, trust_remote_code=trust_remote_code)
    with _loading("a causal language model", path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    remote = trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not remote:
        raise ModelError(
            f"{path!r} is a {config.model_type} model, not a causal language model; name the directory or hub name of "
            "such a model"
        )
    return config


def dtype_to_train(dtype: str, lora_r: int) -> str:
    """Return the type of the weights of a model to train: "auto" is float32 if all of them are trained."""
    return "float32" if dtype == "auto" and not lora_r else dtype


def load_to_train(path: str, settings: ModelConfig) -> Any:
    """Load the model that [model] of a recipe trains: all of its weights, or a new LoRA adapter on it.

    Raises:
        ConfigError: if `lora_r` is above 0 and the path holds an adapter, without which the new one would be saved, or
            `lora_targets` names a module that the model lacks; before weights are loaded.
        ModelError: as `load_policy`.
    """
    r, code = settings.lora_r, settings.trust_remote_code
    if r and base_named_by(path) is not None:
        raise ConfigError(
            f"{path} is a LoRA adapter, and model.lora_r = {r} would train a second one on it. Name the merged "
            "model (`text2grad sft` and `text2grad reward` write merged/ beside it), or set model.lora_r = 0"
        )
    if r and settings.lora_targets != "all-linear":
        import torch
        from transformers import AutoModelForCausalLM

        from text2grad.models.adapters import check_lora_targets

        config, make = policy_config(path, trust_remote_code=code), AutoModelForCausalLM.from_config
        with torch.device("meta"):  # without memory for weights
            check_lora_targets(make(config, trust_remote_code=code), settings.lora_targets)  # type: ignore[no-untyped-call]
    return load_policy(path, dtype=dtype_to_train(settings.dtype, r), trust_remote_code=code)


def load_policy(path: str, *, dtype: str = "auto", trust_remote_code: bool = False, merge: bool = True) -> Any:
    """Load a causal language model; an adapter is merged into its base, or else stays, trainable on its frozen base.

    Raises:
        ModelError: if the path holds no model that can be loaded, or loaded it is not the one that was saved.
    """
    from transformers import AutoModelForCausalLM

    from text2grad.models.probing import check_probe

    how: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    path = local_path(path)
    base = base_named_by(path)
    if base is not None:
        from text2grad.models.adapters import load_lora, merged

        with _loading("an adapter's base", path):
            model = load_policy(base, **how)
        adapted = load_lora(model, path, trainable=not merge)
        return merged(adapted, path) if merge else adapted
    model = load_model(AutoModelForCausalLM, "a causal language model", path, **how)
    check_probe(model, path)
    return model


def load_model(kind: Any, what: str, path: str | Path, *, new_head: bool = False, **settings: Any) -> Any:
    """Load a saved model of any class, or a language model's trunk with a new head.

    Args:
        kind: transformers' class for it, such as `AutoModelForSequenceClassification`.
        what: the kind in words, for the error.
        path: directory or hub name.
        new_head: the head is made anew where the files have another one.
        settings: further arguments of `from_pretrained`.

    Raises:
        ModelError: if the path holds no model that can be loaded, its files lack a weight or have one without a place
            in the model, or a weight holds NaN.
    """
    from text2grad.models.probing import not_finite, refuse_unread

    path = local_path(path)
    with _loading(what, path):
        model, read = kind.from_pretrained(str(path), use_safetensors=True, output_loading_info=True, **settings)
        trunk = f"{model.base_model_prefix}." if new_head else ""
        unread = [key for key in read["unexpected_keys"] if not OTHER_PARTS.search(key)]
        refuse_unread(*([key for key in keys if key.startswith(trunk)] for keys in (read["missing_keys"], unread)))
        if broken := not_finite(model):
            raise ValueError(f"{broken}; copy or download it again")
    if on_cpu():
        _warn_of_slow_halves(model)
    return model


def _warn_of_slow_halves(model: Any) -> None:
    """Warn where a wide model in 16 bits will compute on an x86 CPU without AVX-512, where their products are slow."""
    import torch

    width = getattr(model.config.get_text_config(), "hidden_size", 0) or 0
    halves = model.dtype in (torch.bfloat16, torch.float16)
    if halves and width >= WIDE and torch.backends.cpu.get_cpu_capability() == "AVX2":
        note(
            f"the weights are in {str(model.dtype).removeprefix('torch.')}, and this CPU, without AVX-512, has no fast "
            'products in 16 bits: in 32 bits they take about a fiftieth of the time. Choose "float32" as their dtype '
            "(of a policy: model.dtype)",
            warning=True,
        )


def best_device() -> Any:
    """Return torch's device of the accelerator if there is one, else of the CPU.

    Apple's GPUs (mps) have no 64-bit numbers, in which sums over a batch are computed: there it is the CPU.
    """
    import torch

    device = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if device is None or device.type == "mps" else device


def on_cpu() -> bool:
    """Return whether `best_device` is the CPU."""
    return str(best_device().type) == "cpu"


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> Any:
    """Load a model's tokenizer; that of the base where an adapter has none beside it.

    Raises:
        ModelError: if the path holds none that can be loaded.
    """
    from transformers import AutoTokenizer

    path = local_path(path)
    while (base := base_named_by(path)) and not any(Path(path).glob("tokenizer*")):
        path = local_path(base)
    with _loading("a tokenizer", path):
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)


def context_of(model: Any) -> float:
    """Return the context length of a model or a config in tokens; infinite if the config names no limit."""
    config = getattr(model, "config", model).get_text_config()
    return getattr(config, "max_position_embeddings", None) or float("inf")


def vocabulary_of(model: Any) -> float:
    """Return the number of token ids that a model or a config knows; infinite if the config names none."""
    config = getattr(model, "config", model).get_text_config()
    return getattr(config, "vocab_size", None) or float("inf")


def base_named_by(directory: str | Path) -> str | None:
    """Return the base model that an adapter's directory names; None where there is no adapter.

    Raises:
        ModelError: if the adapter names none, or its weights are no safetensors.
    """
    config = Path(local_path(directory)) / ADAPTER_CONFIG
    if not config.exists():
        return None
    with readable(config, "Copy the adapter again", ModelError):
        base = json.loads(config.read_bytes()).get("base_model_name_or_path")
    if not base:
        raise ModelError(f"{config} names no base model: set base_model_name_or_path to its directory or name")
    if not (config.parent / ADAPTER_WEIGHTS).exists():
        raise ModelError(
            f"{directory} has no {ADAPTER_WEIGHTS}; save the adapter as safetensors, nothing else is loaded"
        )
    return str(base)


@contextmanager
def _loading(what: str, path: str | Path) -> Iterator[None]:
    """Raise a `ModelError` with the reason where a library cannot load a model or tokenizer in the block."""
    try:
        yield
    except Exception as error:  # each library has its own for a damaged file
        if is_out_of_memory(error):
            raise
        raise ModelError(f"cannot load {what} from {str(path)!r}{_why_unloadable(path, error)}") from error


def _why_unloadable(path: str | Path, error: Exception) -> str:
    policies = sorted(Path(path).glob("checkpoints/step-*/policy")) or sorted(Path(path).glob("step-*/policy"))
    if policies:
        return f", which holds a run; its policy is {policies[-1]}"
    base = base_named_by(path)
    moved = base is not None and not Path(base).exists()
    if moved and isinstance(error, ModelError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what it says about the base is said below
    plain = isinstance(error, OSError | ValueError | ModelError)
    reason = str(error) if plain else f"{type(error).__name__}: {error}"
    if reason.startswith("Unrecognized configuration class"):  # and the names of all that are recognized
        reason = (
            "transformers has no class of this purpose for models of its type; name a model of another family, such as "
            "Llama, Qwen2 or Gemma"
        )
    if moved:
        reason = (
            f"it is an adapter on {base!r}, which is no directory seen from {Path.cwd()} (run the command where the "
            f"adapter was trained, or change base_model_name_or_path in {Path(path) / ADAPTER_CONFIG}), and as a name "
            f"of the hub: {reason}"
        )
    elif not Path(path).exists():
        reason = f"there is no such directory, and as a name of the hub: {reason}"
    return f": {reason}"


def _refuse_damaged_weights(directory: Path) -> None:
    from safetensors import SafetensorError, safe_open

    for file in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} is damaged or incomplete ({error}); copy or download it again") from error
