"""Every code block of README.md, CONTRIBUTING.md and docs/ runs, in order, in one folder per document.

CONTRIBUTING.md, "Code in documents", is the manual. Everything that differs from a reader's machine is in this file:

- `GIVEN`: files that a reader brings, such as exports of annotation tools; models are tiny and have random weights.
- `SHORT`: options that shorten a command; `train` and `reward` empty their `run.out` first unless they resume, because
  documents show alternatives below each other.
- `STAND_INS`: commands that need a network, a server or many GPUs.
- `here`: addresses of servers (here: tests/helpers/fault_server.py).
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

import warm_commands
from fault_server import Running
from places import DATA, ROOT, SHARED
from text2grad.config.recipe import load_recipe
from text2grad.tasks.tiny import tiny_llama
from tokenizers_made_here import made
from warm_commands import Warm

DIARIES = ("log.md", "results")
DOCUMENTS = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
    if page.name not in DIARIES and "\n```" in page.read_text("utf-8")
]
SLOW = {"evaluation.md", "quickstart.md", "training.md"}
"""Documents that need more than about 10 seconds; README.md is read first, and always runs."""

CHATS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct")
MODELS = ("models/base", "models/policy", *CHATS)
GIVEN = {
    "feedback.md": {"export.json": (DATA / "label_studio_1.23.2.json").read_text("utf-8")},
}
SHARED_RECORDS = 40  # of each file below ../shared
STAND_INS = r"""
set -euo pipefail
export OPENAI_API_KEY=none
shorter() {
  case "$1" in
    quickstart) echo --set sft.steps=10 --set quickstart.after_reward_model=1 --set reward_model.steps=40 \
      --set reward_model.batch_size=8 --set quickstart.responses=256 --set run.steps=2 --set refresh.steps=[] \
      --set quickstart.examples=200 --set data.eval_examples=4 --set data.eval_every=0 \
      --set rollout.max_new_tokens=12 --set rollout.batch_size=8 ;;
    train) echo --set run.steps=2 --set rollout.batch_size=4 --set rollout.max_new_tokens=8 \
      --set quickstart.examples=64 --set data.eval_examples=4 --set data.eval_every=0 --set run.tracker=none \
      --set data.too_long=skip --set critic.max_failure_rate=1.0 ;;
    reward) echo --set reward_model.epochs=0.05 --set reward_model.batch_size=4 --set reward_model.eval_limit=2 \
      --set reward_model.max_new_tokens=80 --set run.tracker=none ;;
    evaluate) [ "$2" != critic ] || echo --limit 4 ;;
  esac
}
until_ready() {  # a server: stopped as by Ctrl-C when its page can be opened, or it can be asked; the end it has then
  local status=0 expected=$1
  shift
  $WARM -m text2grad.cli "$@" > ../opened &
  until grep -qE "^(open|ask)" ../opened; do kill -0 $!; sleep 0.1; done
  kill -INT $!
  wait $! || status=$?
  [ $status = $expected ]
}
text2grad() {  # a reward model of random weights labels no token, which ends `train` with status 3
  local status=0
  [ "$1" != studio ] || { until_ready 0 "$@" --no-browser --port 0; return; }
  [ "$1" != serve ] || { until_ready 130 "$@" --listen 127.0.0.1:0; return; }
  warm text2grad "$@" $(shorter "$@") 2> ../said || status=$?
  cat ../said >&2
  [ $status = 0 ] || { [ "$1 $status" = "train 3" ] && grep -q "labelled no token" ../said; }
}
torchrun() { warm torchrun "$@" $(launched "$@"); }    # its own parser reads the options; then one process
accelerate() { warm accelerate "$@" $(launched "$@"); }
launched() { while [ "$1" != text2grad.cli ]; do shift; done; shorter "$2"; }
python() {
  local file=$1
  case "$*" in
    -*) command python3 "$@" ;;
    served_verl.py | served_skyrl.py) command python3 -m py_compile "$file" ;;  # run in test_served.py
    *) warm python "$@" ;;
  esac
}
make() {
  case $1 in
    quickstart) text2grad quickstart ;;
    *) command make --dry-run -C "$ROOT" "$1" > /dev/null ;;
  esac
}
pip() { :; }           # the extras are compared with pyproject.toml
vllm() { :; }
label-studio() { :; }
curl() { :; }          # export.json is given
"""


class Block(NamedTuple):
    """A code block: its language, the file that it is (or ""), its text and its line in the document."""

    language: str
    file: str
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a document."""
    found = []
    for match in re.finditer(r"^```(\w+)(?: +(\S+))?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        language, file, code = match[1], match[2] or "", match[3]
        named = re.match(r"# (\S+\.(?:py|toml))\n", code)
        if named and not file:
            file = named[1].rpartition("/")[2]
        found.append(Block(language, file, code, text.count("\n", 0, match.start()) + 1))
    return found


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models that documents name: tiny, of random weights, with a chat template where it chats."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = deepcopy(made("llama3"))
    tokenizer.pad_token = "<end>"
    for name in MODELS:
        tiny_llama(tokenizer, seed=0, width=32, layers=1, context=4096).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[it]{% endif %}"
    )
    for name in CHATS:
        (folder / name / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in SLOW else ()) for page in DOCUMENTS],
    ids=lambda page: page.name,
)
def test_the_code_of_a_document_runs(page: Path, tmp_path: Path, models: Path, warm: Warm, server: Running) -> None:
    text = page.read_text("utf-8")
    folder = tmp_path / "project"
    shutil.copytree(models, folder)
    for name, given in GIVEN.get(page.name, {}).items():
        (folder / name).write_text(here(given, server), "utf-8")
    for name in set(re.findall(r"\.\./(shared/data/[\w./-]+)", text)):
        if not SHARED.exists():
            pytest.skip(f"{page.name} reads ../shared, which is absent")
        cut_copy(SHARED.parent / name, tmp_path / name)
    if page.name == "feedback.md":
        export_of_argilla(folder)
    client = f"{sys.executable} -IS {warm_commands.__file__} {warm.path}"
    start = f'ROOT={ROOT}; WARM="{client}"; warm() {{ $WARM "$@"; }}\n{STAND_INS}'
    for block in blocks(text):
        run_block(block._replace(text=here(block.text, server)), folder, start, f"{page.name}:{block.line}")


def here(text: str, server: Running) -> str:
    """Return a text of a document with the address of the server of the tests."""
    text = re.sub(r"http://(localhost|127\.0\.0\.1):8000/v1", server.url, text)
    return re.sub(r"^\[annotate\]$", f'[annotate]\nbase_url = "{server.url}"', text, flags=re.MULTILINE)


def run_block(block: Block, folder: Path, start: str, place: str) -> None:
    """Run a block, or write and read the file that it is."""
    if block.file:
        (folder / block.file).write_text(block.text, "utf-8")
    if block.language == "toml":
        path = folder / (block.file or "my.toml")
        path.write_text(block.text, "utf-8")
        load_recipe(path)
    elif block.language == "json":
        assert [json.loads(line) for line in block.text.splitlines()], place
    elif block.language == "xml":
        ElementTree.fromstring(block.text)
    elif block.language in ("bash", "python"):
        if block.language == "python":
            file = block.file or f"block_{place.rpartition(':')[2]}.py"
            (folder / file).write_text(block.text, "utf-8")
        code = block.text if block.language == "bash" else f"python {file}"
        carry = "\nexport -p > ../environment"  # for the next block
        done = subprocess.run(
            ["bash", "-c", f"{start}[ ! -f ../environment ] || . ../environment\n{code}{carry}"],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=240,
            check=False,
        )
        said = f"{place}:\n{block.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, said


def export_of_argilla(folder: Path) -> None:
    """Write an export of Argilla, as `datasets` saves it."""
    import datasets

    argilla = json.loads((DATA / "argilla_2.8.0_flat.json").read_text("utf-8"))
    datasets.Dataset.from_list(argilla).to_parquet(folder / "export.parquet")


def cut_copy(source: Path, target: Path) -> None:
    """Copy the first records of a JSON list or of a JSONL file; a directory is copied whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=shutil.copyfile, dirs_exist_ok=True)
        target.chmod(0o755)
    elif source.suffix == ".json":
        target.write_text(json.dumps(json.loads(source.read_bytes())[:SHARED_RECORDS]), "utf-8")
    else:
        with source.open(encoding="utf-8") as lines:
            target.write_text("".join(islice(lines, SHARED_RECORDS)), "utf-8")


def test_documents_install_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = {
        name
        for page in DOCUMENTS
        for one in re.findall(r"(?:text2grad|\.)\[([\w,]+)\]", page.read_text("utf-8"))
        for name in one.split(",")
    }
    assert named <= set(extras)
    assert named
