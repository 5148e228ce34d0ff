"""The models that are evaluated: a name, and a path, hub name or server.

SFT=runs/sft/model          a directory of a model or a LoRA adapter
ours=runs/mine              a run of `text2grad train`: the policy of its newest checkpoint
HuggingFaceTB/SmolLM2-...   a name on the Hugging Face hub
big=http://localhost:8000/v1   an OpenAI-compatible server, with --model-name
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.config import digest_of, latest_checkpoint, recipe_of_run
from text2grad.errors import ConfigError, DataError
from text2grad.models import (
    base_named_by,
    best_device,
    format_of,
    load_policy,
    load_tokenizer,
    padding_id,
    policy_config,
    stop_ids,
)

_NAMED = re.compile(r"(?P<name>[\w.@+-]+)=(?P<path>.+)")
_SERVER = ("http://", "https://")
_INNER = re.compile(r"\.*|policy|model|merged|final|v1|checkpoints|step-\d+")  # parts of paths that name nothing


@dataclass(frozen=True, slots=True)
class Subject:
    """One model that is evaluated."""

    name: str  # its name in tables and files
    path: str  # directory, hub name, or address of a server up to /v1
    model_name: str = ""  # on the server; empty for a model that is loaded here
    prompt_format: str = "auto"  # "chat", "plain", or "auto": chat where the model has a chat template
    eos_ids: tuple[int, ...] = ()  # ids that end a response; empty takes the model's own
    trust_remote_code: bool = False  # run code that comes with the model
    dtype: str = "auto"  # type of the weights, as transformers names it; "auto" takes it as saved

    @property
    def served(self) -> bool:
        """True for a model on a server."""
        return self.path.startswith(_SERVER)

    def identity(self) -> dict[str, Any]:
        """Return the identity of this model: digests of its files, or its name on the server or the hub."""
        if self.served:
            return {"server": self.path, "model": self.model_name, "prompt_format": self.prompt_format}
        identity: dict[str, Any] = {"prompt_format": self.prompt_format, "eos_ids": list(self.eos_ids)}
        for key, path in (("model", self.path), ("base", base_named_by(self.path))):
            if path:
                identity[key] = digest_of(Path(path))[:16] if Path(path).is_dir() else path
        return identity if self.dtype == "auto" else {**identity, "dtype": self.dtype}

    def as_json(self) -> dict[str, Any]:
        """Return path and identity, always with the type of weights that are loaded here."""
        return {"path": self.path, **self.identity(), **({} if self.served else {"dtype": self.dtype})}


class LoadedModel(NamedTuple):
    """A subject in memory; without its weights, its config stands for them, and no id ends a response."""

    subject: Subject
    model: Any  # the language model, in eval mode, on its device
    tokenizer: Any
    chat: bool  # prompts go through the chat template
    eos_ids: tuple[int, ...] = ()  # ids that end a response
    pad_id: int = 0  # fills the left of short prompts


def read_subjects(given: Sequence[str], model_names: Sequence[str] = (), **settings: Any) -> list[Subject]:
    """Return the models that a command line names, each as PATH or NAME=PATH.

    Models on servers have `model_names`: MODEL for all, or NAME=MODEL. `settings` are further attributes of all
    subjects; the format "auto" of a run is the format in its recipe.

    Raises:
        ConfigError: if a path is empty, two models have one name, or a server's model has no name.
        DataError: if a directory holds a run without a checkpoint.
    """
    names = dict(map(_named, model_names))
    if len(names) < len(model_names):
        raise ConfigError(
            f"--model-name {model_names[-1]}: say which is whose by --model-name NAME=MODEL, once for each"
        )
    subjects: dict[str, Subject] = {}
    for text in given:
        name, path = _named(text)
        if not path.strip():
            raise ConfigError("a model is an empty text; give a directory, a name on the hub, or an address")
        if path.startswith(_SERVER):
            model = names.get(name) or names.get("", "")
            if not model:
                raise ConfigError(f"{path}: name the model on this server with --model-name MODEL")
            subject = Subject(name or _short(model), path, model, **settings)
        else:
            subject = _local(Subject(name or _short(path), path, **settings))
        before = subjects.setdefault(subject.name, subject)
        if before is not subject:
            raise ConfigError(
                f"{before.path} and {path} are both called {subject.name!r}; give them names: NAME={path}"
            )
    served = [name for name, subject in subjects.items() if subject.served]
    if unused := [name or model for name, model in names.items() if name not in ("", *served) or not served]:
        raise ConfigError(f"--model-name {unused[0]}: no server among the models has this name")
    return list(subjects.values())


def _named(text: str) -> tuple[str, str]:
    """Return the name in front of NAME=PATH, "" for a bare path, and the path."""
    match = None if text.startswith(_SERVER) or Path(text).exists() else _NAMED.fullmatch(text)
    return (match["name"], match["path"]) if match else ("", text)


def _local(subject: Subject) -> Subject:
    """Return a model that is loaded here; for the directory of a run, the policy of its newest checkpoint."""
    directory = Path(subject.path)
    if not (directory / "run.json").exists():
        return subject
    recipe, checkpoint = recipe_of_run(directory), latest_checkpoint(directory / "checkpoints") or directory
    places = (checkpoint / "policy", directory / "model", directory / "policy")
    policies = [path for path in places if path.is_dir()]
    if not policies:
        raise DataError(
            f"{directory} is a run without a checkpoint; wait for its first (run.save_every), or name the directory of "
            "another model"
        )
    return replace(
        subject,
        path=str(policies[0]),
        prompt_format=recipe.model.prompt_format if subject.prompt_format == "auto" else subject.prompt_format,
        eos_ids=tuple(recipe.rollout.eos_token_ids),
        trust_remote_code=subject.trust_remote_code or recipe.model.trust_remote_code,
    )


def _short(path: str) -> str:
    """Return a name for a path: its last part that says something.

    Example:
        >>> _short("runs/mine/model/"), _short("HuggingFaceTB/SmolLM2-135M-Instruct")
        ('mine', 'SmolLM2-135M-Instruct')
    """
    told = [part for part in path.split("/") if not _INNER.fullmatch(part)]
    return re.sub(r"[^\w.@+-]+", "-", told[-1] if told else Path(path).name or "model")


def outline(subject: Subject) -> LoadedModel:
    """Return a model without its weights; a file of weights that is damaged is refused."""
    code = subject.trust_remote_code
    tokenizer = load_tokenizer(subject.path, trust_remote_code=code)
    config = policy_config(subject.path, trust_remote_code=code)
    return LoadedModel(subject, config, tokenizer, format_of(tokenizer, subject.prompt_format) == "chat")


def load(outlined: LoadedModel) -> LoadedModel:
    """Load the weights of an outlined model, on the accelerator if there is one; an adapter is merged into its base."""
    subject = outlined.subject
    code = subject.trust_remote_code
    model = load_policy(subject.path, dtype=subject.dtype, trust_remote_code=code).eval().to(best_device())
    eos = stop_ids(model, outlined.tokenizer, subject.eos_ids, prompt_format=subject.prompt_format)
    return outlined._replace(model=model, eos_ids=eos, pad_id=padding_id(model, outlined.tokenizer, eos))
