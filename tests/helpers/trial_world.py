"""The folder of a user in the middle of their work, and trials of commands in copies of it.

policy/            a tiny Llama and its tokenizer
reward/base/       a tiny Llama that can write critiques of annotations.jsonl
prompts.jsonl      prompts with references
annotations.jsonl  responses with critiques
pairs.jsonl        preferences
colours.py         a critic
my.toml            a recipe for `train`, two steps, into runs/mine
judge.toml         a recipe for `reward`, two steps, into runs/judge
ask.toml           a recipe for `annotate`, on a server that does not answer
runs/done/         a finished run of my.toml
runs/critic/       a finished run of judge.toml
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import small_reward
from small_run import EXAMPLES, tokenizer_and_model
from text2grad.cli.__main__ import main

COLOURS = '''"""A critic that likes colours."""

from text2grad import Critique, locate_spans


def critic(examples, responses):
    return [judge(response) for response in responses]


def judge(response):
    colours = [word for word in response.split() if word in ("red", "blue", "green")]
    numbers = [word for word in response.split() if word in ("one", "two", "three")]
    return Critique("Colours are welcome, numbers are not.", locate_spans(response, colours, numbers).spans)
'''
MY_RECIPE = """
[model]
path = "policy"
[data]
train = "prompts.jsonl"
[rollout]
batch_size = 4
max_new_tokens = 5
[critic]
use = "colours:critic"
[ppo]
epochs = 1
[run]
steps = 2
threads = 1
tracker = "none"
out = "runs/mine"
"""
JUDGE_RECIPE = """
[model]
path = "reward/base"
[reward_model]
annotations = ["annotations.jsonl"]
steps = 2
batch_size = 4
lr = 5e-3
max_new_tokens = 40
held_out = 0.34
eval_every = 2
eval_limit = 4
[run]
threads = 1
tracker = "none"
out = "runs/judge"
"""
ASK_RECIPE = """
[data]
train = "responses.jsonl"
[annotate]
base_url = "http://127.0.0.1:9/v1"
model = "judge"
api_key_env = ""
timeout_s = 2
out = "runs/annotations"
"""


def make_world(directory: Path) -> None:
    """Write the folder, and run its two recipes."""
    directory.mkdir(parents=True)
    tokenizer, model = tokenizer_and_model()
    model.save_pretrained(directory / "policy")
    tokenizer.save_pretrained(directory / "policy")
    (directory / "reward").mkdir()
    small_reward.prepare(directory / "reward")
    (directory / "reward" / "annotations.jsonl").rename(directory / "annotations.jsonl")
    lines = [json.dumps({"prompt": e.prompt_text, "reference": "red cat"}) for e in EXAMPLES[:12]]
    (directory / "prompts.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    lines = [json.dumps({"prompt": "one", "response": f"red {n}", "id": str(n)}) for n in range(3)]
    (directory / "responses.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    lines = [json.dumps({"prompt": "one", "chosen": f"red {n}", "rejected": f"two {n}"}) for n in range(8)]
    (directory / "pairs.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (directory / "colours.py").write_text(COLOURS, "utf-8")
    for name, text in (("my", MY_RECIPE), ("judge", JUDGE_RECIPE), ("ask", ASK_RECIPE)):
        (directory / f"{name}.toml").write_text(text, "utf-8")
    for command in (["train", "my.toml", "--out", "runs/done"], ["reward", "judge.toml", "--out", "runs/critic"]):
        ended = attempt(directory, command)
        assert ended.code == 0, ended.text


@dataclass(frozen=True)
class Ended:
    """The end of a command."""

    code: int
    text: str


def attempt(directory: Path, words: list[str]) -> Ended:
    """Run a command in this process, in a directory; whatever a terminal would show is the text."""
    shown, modules = io.StringIO(), set(sys.modules)
    no_hub = mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else it is asked for 20 seconds
    with no_hub, in_directory(directory), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                code = main(words)
        except SystemExit as end:  # argparse
            code = end.code if isinstance(end.code, int) else 1
    for name in set(sys.modules) - modules:  # critics of this folder, which another trial may have, too
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(directory)):
            del sys.modules[name]
    return Ended(code, shown.getvalue())


@contextlib.contextmanager
def in_directory(directory: Path) -> Iterator[None]:
    """Work in a directory, whose modules can be imported."""
    before, path = Path.cwd(), list(sys.path)
    os.chdir(directory)
    sys.path.insert(0, str(directory))
    sys.path_importer_cache.clear()
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path


def digests(directory: Path) -> dict[str, str]:
    """Return the digest of each file of a directory, without locks and caches."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock" and "__pycache__" not in path.parts
    }


Prepare = Callable[[Path], object]


@dataclass(frozen=True)
class Trial:
    """A command that a user may give, and its documented end.

    Attributes:
        name: of the trial.
        command: as on the command line, without `text2grad`.
        says: regular expressions that what is shown must contain, each.
        code: exit code.
        prepare: called with the folder before the command.
        files: name → text or bytes of files that are written before the command.
        writes: whether the command may write; otherwise every file is left as it was, and there is no new file.
    """

    name: str
    command: str
    says: tuple[str, ...] = ()
    code: int = 2
    prepare: Prepare | None = None
    files: dict[str, str | bytes] = field(default_factory=dict)
    writes: bool = False


def check(trial: Trial, world: Path, directory: Path) -> None:
    """Run a trial in a copy of the world."""
    import shlex

    shutil.copytree(world, directory)
    for name, text in trial.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    if trial.prepare:
        trial.prepare(directory)
    before = digests(directory)
    ended = attempt(directory, shlex.split(trial.command))
    after = digests(directory)
    told = f"{trial.command}\nexit code {ended.code}\n{ended.text}"
    assert ended.code == trial.code, told
    assert "Traceback" not in ended.text, told
    for pattern in trial.says:
        assert re.search(pattern, " ".join(ended.text.split())), f"no {pattern!r} in\n{told}"
    lost = [name for name in before if name not in after]
    assert not lost, f"{told}\nlost: {lost}"
    if not trial.writes:
        changed = [name for name in after if after[name] != before.get(name)]
        assert not changed, f"{told}\nwritten: {changed}"
