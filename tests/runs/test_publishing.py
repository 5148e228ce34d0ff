"""What goes to the hub, what stays here, and what is loaded from there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hub_server import TOKEN, Hub, hub_server
from rated_runs import rated_run
from task_texts import untrained_policy
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import Annotation, read_annotations, write_annotations
from text2grad.models import load_policy, with_lora
from text2grad.runs.publishing import _plain, check_push, parcel, policy_card
from text2grad.types import Critique, Span
from tiny_models import tiny

SETTINGS = (
    "data.eval_examples=4",
    "run.steps=2",
    "run.save_every=1",
    "optim.value_warmup_steps=0",
    "data.eval_every=1",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a policy that is trained whole, on the marks of two raters."""
    home = tmp_path_factory.mktemp("published")
    untrained_policy(home / "start")
    return rated_run(home / "start", home / "mine", "Raters", *SETTINGS)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter on a base that is a directory."""
    tiny("llama").save_pretrained(tmp_path / "base")
    policy = with_lora(load_policy(str(tmp_path / "base")), r=2, alpha=4, targets="all-linear")
    policy.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def ask(hub: Hub, home: Path, script: str, *arguments: object, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """Run a script with a hub as its hub."""
    unset = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"}
    env = {name: value for name, value in os.environ.items() if name not in unset}
    env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    env |= {"HF_TOKEN": token} if token else {}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=home, check=False)


def test_a_policy_is_pushed_privately_and_loaded_by_its_revision(run: Path, tmp_path: Path) -> None:
    script = """
import sys
import text2grad, torch
from text2grad.models import load_policy, load_tokenizer
name = text2grad.push_to_hub(sys.argv[1], "me/mine")
policy = load_policy(name)
print(name, len(load_tokenizer(name)))
torch.save(policy.state_dict(), sys.argv[2])
"""
    with hub_server() as hub:
        done = ask(hub, tmp_path, script, run, tmp_path / "loaded.pt")
    assert done.returncode == 0, done.stderr
    [made] = hub.made
    assert (made["name"], made["organization"]) == ("mine", "me")
    assert made.get("visibility", made.get("private")) in ("private", True)  # in releases from 2, and before
    [(revision, files)] = hub.files.items()
    assert done.stdout.startswith(f"me/mine@{revision} ")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    assert not {"state.json", "run.json", "metrics.jsonl"} & files.keys()
    assert not [name for name, data in files.items() if str(run).encode() in data], "no path of this machine"
    newest = max(run.glob("checkpoints/step-*/policy"))
    loaded, here = torch.load(tmp_path / "loaded.pt"), load_policy(str(newest)).state_dict()
    assert all(torch.equal(loaded[name], here[name]) for name in here)


def test_the_card_of_a_policy_has_figures_raters_and_words(run: Path) -> None:
    card = policy_card(run, "org/base")
    assert card.startswith('---\nbase_model: "org/base"\nlibrary_name: peft\n')
    first, last = (json.loads((run / "evaluations" / f"00000{step}.json").read_bytes()) for step in (0, 2))
    assert f"| reward | {first['metrics']['reward']:.4g} | {last['metrics']['reward']:.4g} |" in card
    assert " in 2 steps: " in card
    raters = json.loads((run / "lineage.json").read_bytes())["raters"]
    assert raters
    assert all(f'"{rater}": {count}' in card for rater, count in raters.items())
    records = [
        json.loads(line) for path in (run / "rollouts").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    words = [record["critique"]["feedback"].partition("\n")[0] for record in records]
    said = max(set(filter(None, words)), key=words.count)
    assert f"({words.count(said)}×)" in card
    assert "library_name: transformers" in policy_card(run, "")


def test_words_of_critiques_act_neither_on_a_page_nor_on_a_terminal() -> None:
    assert _plain("<b>![x](y)\x1b[0m") == r"\<b\>\!\[x\]\(y\)␛\[0m"


def test_an_adapter_on_a_directory_names_its_base_on_the_hub(adapter: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapter is an adapter on the directory .*base; name its base on the hub"):
        parcel(adapter)
    with pytest.raises(ConfigError, match=r"--push: the adapter's base is the directory .*base; train on a model of"):
        check_push("me/mine", str(adapter.parent / "base"))
    files = parcel(adapter, base="org/base").files
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "org/base"  # type: ignore[arg-type]
    assert str(adapter.parent) in (adapter / "adapter_config.json").read_text(), "the file here stays as it is"


def test_annotations_become_a_data_set(tmp_path: Path) -> None:
    annotation = Annotation("p", "one cat", Critique("No.", (Span(0, 3, "negative"),)))
    write_annotations(tmp_path / "marks.jsonl", [annotation])
    contents = parcel(tmp_path / "marks.jsonl")
    assert contents.kind == "dataset"
    assert set(contents.files) == {"README.md", "data/train.parquet"}
    (tmp_path / "back.parquet").write_bytes(contents.files["data/train.parquet"])  # type: ignore[arg-type]
    assert list(read_annotations(tmp_path / "marks.jsonl")) == [annotation]


def test_what_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no checkpoint, model, adapter or annotations"):
        parcel(tmp_path)


@pytest.mark.parametrize(
    ("name", "token", "reason"),
    [
        ("me/mine", "hf_wrong", "Invalid user token"),
        ("me/mine", "", "oken"),
        ("no name/ at/all", TOKEN, "Repo id must"),
    ],
)
def test_a_push_that_would_be_refused_is_refused_before_work_starts(
    name: str, token: str, reason: str, tmp_path: Path
) -> None:
    script = "import sys; from text2grad.runs import check_push; check_push(sys.argv[1])"
    with hub_server() as hub:
        done = ask(hub, tmp_path, script, name, token=token)
    last = done.stderr.splitlines()[-1]
    assert "RequestError: rejected: cannot push to" in last
    assert reason in last
    assert "hf auth login" in last
    assert "hf_wrong" not in done.stderr
    assert not hub.made


def test_a_revision_that_the_hub_does_not_have_is_told(tmp_path: Path) -> None:
    script = "from text2grad.models import load_policy; load_policy('me/mine@gone')"
    with hub_server() as hub:
        done = ask(hub, tmp_path, script)
    assert "ModelError: cannot load 'me/mine@gone' from the hub: " in done.stderr
