"""What a run, a model or a file of annotations gives to a repository of the Hugging Face hub, and its card.

A run gives the policy of its best or newest checkpoint, an adapter or a whole model; a directory of `text2grad reward`
its reward model. Optimizer states, recorded rollouts and critiques stay here, and no file names a directory of this
machine. The card of a policy says what it stands on, from whose feedback it learned and how well it does; the first
lines of critiques stand in it for the words that it learned from.
"""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from text2grad.config import best_checkpoint, latest_checkpoint, recipe_of_run
from text2grad.errors import ConfigError, DataError, RequestError
from text2grad.feedback import DATA_FILE, read_annotations, write_folder
from text2grad.files import readable, to_json
from text2grad.models import ADAPTER_CONFIG, base_named_by
from text2grad.rl import RunLog
from text2grad.runs.lineage import write_lineage
from text2grad.runs.reports.run_report import read_run
from text2grad.types import visible

WORDS = 10  # most frequent first lines of critiques in a card
ENDS = (".safetensors", ".json", ".jinja", ".model", ".txt", ".md")  # of a model's files
NAMES_A_PATH = ("_name_or_path", "name_or_path", "base_model_name_or_path")


class Parcel(NamedTuple):
    """What is uploaded.

    Attributes:
        kind: "model" or "dataset", as the hub calls it.
        files: bytes, or the file that holds them, by the path in the repository.
    """

    kind: str
    files: dict[str, bytes | Path]


def parcel(path: Path, *, base: str = "") -> Parcel:
    """Return what a path gives to the hub.

    Args:
        path: a run, a model's or adapter's directory, the output of `text2grad reward`, or a JSONL file of annotations.
        base: the hub's name of the base of an adapter, where the adapter names a directory.

    Raises:
        ConfigError: if an adapter's base is a directory, and no name is given for it.
        DataError: if the path holds nothing of the kind.
    """
    if path.is_file():
        with TemporaryDirectory() as folder:
            write_folder(Path(folder), list(read_annotations(path)))
            return Parcel("dataset", {name: (Path(folder) / name).read_bytes() for name in ("README.md", DATA_FILE)})
    if (path / DATA_FILE).exists():
        return Parcel("dataset", {name: path / name for name in ("README.md", DATA_FILE)})
    checkpoints = path / "checkpoints"
    step = best_checkpoint(checkpoints) or latest_checkpoint(checkpoints) if checkpoints.exists() else None
    model = step / "policy" if step else path / "model" if (path / "model").is_dir() else path
    if not any((model / name).exists() for name in (ADAPTER_CONFIG, "config.json")):
        raise DataError(f"{path} holds no checkpoint, model, adapter or annotations that could be published")
    known = base_named_by(model)
    if known and not base and Path(known).exists():
        raise ConfigError(
            f"{model} is an adapter on the directory {known}; name its base on the hub: push_to_hub(..., base=NAME)"
        )
    files: dict[str, bytes | Path] = {file.name: file for file in sorted(model.iterdir()) if file.suffix in ENDS}
    for name in [name for name in files if name.endswith("config.json")]:
        with readable(model / name, "Copy the model again"):
            settings = json.loads((model / name).read_bytes())
            local = [key for key in NAMES_A_PATH if settings.get(key) and Path(settings[key]).exists()]
            settings |= {key: base or None for key in local}
        if local:
            files[name] = to_json(settings, indent=2)
    if step:
        files["README.md"] = policy_card(path, base or known or "").encode()
    return Parcel("model", files)


def policy_card(run: Path, base: str) -> str:
    """Return the card of a run's policy; `base` is its base on the hub, "" for a model that was trained whole."""
    recipe, lineage, record = recipe_of_run(run), write_lineage(run), read_run(run, without_steps=True)
    sides = [own["metrics"] for own in record.evaluations]
    names = [name for name in sides[0] if name in sides[-1]] if sides else []
    rows = "".join(f"| {name} | {sides[0][name]:.4g} | {sides[-1][name]:.4g} |\n" for name in names)
    head = "Held-out figures before and after the training:\n\n| | before | after |\n|---|---|---|\n"
    figures = f"{head}{rows}" if rows else ""
    lines = Counter[str]()
    for _, records in RunLog(run).rollouts(since=0):
        lines.update(record["critique"]["feedback"].partition("\n")[0].strip() for record in records)
    del lines[""]
    words = "".join(f"- {_plain(line)} ({count}×)\n" for line, count in lines.most_common(WORDS))
    steps = len(record.metrics)
    header = f"base_model: {json.dumps(base)}\n" if base else ""
    on = f"It stands on [{base}](https://huggingface.co/{base}). " if base else ""
    method = {"spans": "spans of critiques", "self_teacher": "a self-teacher", "gated": "gated spans"}[
        recipe.ppo.credit
    ]
    return f"""---
{header}library_name: {"peft" if base else "transformers"}
pipeline_tag: text-generation
tags: [text2grad]
---

# A policy that learned from critiques

{on}Trained by text2grad ([Text2Grad](https://arxiv.org/abs/2505.22338)) in {steps} steps: the rewards of single
tokens come from {method}.

{figures}
Feedback (SHA-256 of its files), marks by label, raters and categories:

```json
{to_json({name: lineage[name] for name in sorted(lineage) if name != "parent"}, indent=2).decode()}
```

What critiques said most often:

{words or "(nothing)"}"""


def _plain(line: str) -> str:
    """Return a line of a critique as text that acts neither on a terminal nor on a page."""
    return "".join(f"\\{char}" if char in r"\`*_{}[]<>()#!|&" else char for char in visible(line[:200]))


def push_to_hub(path: str | Path, name: str, *, base: str = "", public: bool = False) -> str:
    """Upload a policy, adapter, reward model or annotations to the Hugging Face hub; return OWNER/NAME@REVISION.

    `model.path` takes what is returned. The token is that of `hf auth login`, or HF_TOKEN.

    Args:
        path: a run, a model's or adapter's directory, the output of `text2grad reward`, or a JSONL file of annotations.
        name: OWNER/NAME of the repository, made if it does not exist.
        base: the hub's name of the base of an adapter, where the adapter names a directory.
        public: a new repository can be read by all; one that exists stays as it is.

    Raises:
        ConfigError: if an adapter's base is a directory, and no name is given for it.
        DataError: if the path holds nothing of the kind.
        RequestError: if the hub refuses, or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    contents = parcel(Path(path), base=base)
    add = [CommitOperationAdd(place, data) for place, data in contents.files.items()]
    with _hub_errors(name):
        api = HfApi()
        api.create_repo(name, repo_type=contents.kind, private=not public, exist_ok=True)
        done = api.create_commit(name, add, commit_message="Upload by text2grad", repo_type=contents.kind)
    return f"{name}@{done.oid}"


def check_push(name: str, base: str = "") -> None:
    """Refuse a name that is none, or a missing or wrong token, before work starts that would be pushed at its end.

    Args:
        name: OWNER/NAME.
        base: the base of the adapter that will be trained; "" for a whole model.

    Raises:
        ConfigError: if the base is a directory of this machine.
        RequestError: if the hub refuses, or cannot be reached.
    """
    if base and Path(base).exists():
        raise ConfigError(
            f"--push: the adapter's base is the directory {base}; train on a model of the hub, or call "
            f"text2grad.push_to_hub(PATH, {name!r}, base=NAME) afterwards, with the base's name on the hub"
        )
    from huggingface_hub import HfApi
    from huggingface_hub.utils._validators import validate_repo_id

    with _hub_errors(name):
        validate_repo_id(name)
        HfApi().whoami()


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each release of huggingface_hub has its own HTTP library, with errors of its own
        reason = " ".join(str(error).split())[:300]
        way_out = "Log in with `hf auth login`, or set HF_TOKEN, and give the command again"
        raise RequestError("rejected", f"cannot push to {name}: {reason}. {way_out}", fatal=True) from error
