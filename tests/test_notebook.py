"""The notebook of docs/: it runs without a network, its policy learns, its pages are shown, its file can be read."""

import getpass
import json
import re
import socket
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from places import ROOT, script
from text2grad.config import load_recipe

pytest.importorskip("nbclient")
NOTEBOOK = script("docs/make_notebook.py")
PLACES = re.compile(r"(?<![\w.:/])(?:/(?:home|root|Users|tmp|private|var|work|opt|usr|content|builds?)\b|[A-Z]:\\)")
"""The beginning of an absolute path."""


class Ran:
    """The notebook after a run, and the folder of its files."""

    def __init__(self, folder: Path) -> None:
        self.cells = {cell.id: cell for cell in NOTEBOOK.run(folder).cells}
        (self.files,) = folder.glob("help-desk-*")

    def figures(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the held-out figures before and after the training of the policy."""
        (run,) = json.loads((self.files / "runs" / "policy" / "results.json").read_bytes())["runs"].values()
        return run["before"], run["after"]


class Frames(HTMLParser):
    """The pages in the frames of a text, and whether a frame may run scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.pages, self.tags = list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "iframe":
            given = dict(attributes)
            assert given["sandbox"] in ("", None), "an empty sandbox allows nothing"
            self.pages.append(str(given["srcdoc"]))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("notebook"))


def texts(cell: Any) -> list[str]:
    """Return what a code cell shows, as text."""
    return [
        str(part) for output in cell.get("outputs", ()) for part in (output.get("text"), output.get("data")) if part
    ]


def code_cells() -> list[Any]:
    """Return the code cells of the file, but the one that installs the package."""
    cells = [cell for cell in NOTEBOOK.read().cells if cell.cell_type == "code"]
    return [cell for cell in cells if not NOTEBOOK.tagged(cell, NOTEBOOK.INSTALL)]


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_held_out_replies_are_better_after_the_training(ran: Ran) -> None:
    before, after = ran.figures()
    assert before["good"] < 0.3, "the colleague is hurried"
    assert after["good"] > 0.7
    assert after["right day"] > before["right day"] + 0.2, "the reward model reads the request, too"
    (said,) = (text for text in texts(ran.cells["compare"]))
    assert f"good replies: {before['good']:.0%} before, {after['good']:.0%} after" in said


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_the_reward_model_marks_held_out_replies_like_the_reader(ran: Ran) -> None:
    results = json.loads((ran.files / "runs" / "critic" / "results.json").read_bytes())
    assert "held-out F1" in "".join(texts(ran.cells["reward"]))
    assert results["measured"]["f1"] > 0.9 > results["before"]["f1"]


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("cell", "page"),
    [("critic-page", "runs/critic/evaluation/evaluation.html"), ("report", "runs/policy/report.html")],
)
def test_a_page_is_shown_whole_and_cannot_act(ran: Ran, cell: str, page: str) -> None:
    (output,) = ran.cells[cell].outputs
    frames = Frames(output.data["text/html"])
    assert frames.pages == [(ran.files / page).read_text("utf-8")]
    assert "iframe" in frames.tags
    assert "script" not in {*frames.tags, *Frames(frames.pages[0]).tags}
    prompts = [json.loads(line)["prompt"] for line in (ran.files / "requests.jsonl").read_text("utf-8").splitlines()]
    held_out = [json.loads(line)["prompt"] for line in (ran.files / "held_out.jsonl").read_text("utf-8").splitlines()]
    shown = unescape(frames.pages[0])
    assert any(prompt in shown for prompt in (prompts if cell == "critic-page" else held_out))


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_no_cell_shows_an_error(ran: Ran) -> None:
    for cell in ran.cells.values():
        assert not re.search(r"Error\b|Traceback", "".join(texts(cell))), cell.id


def test_the_file_has_outputs_without_places_of_a_machine() -> None:
    names = {socket.gethostname(), getpass.getuser()} - {"localhost", "root"}
    for cell in code_cells():
        shown = "".join(texts(cell))
        assert not PLACES.search(shown), cell.id
        assert not any(re.search(rf"\b{re.escape(name)}\b", shown) for name in names), cell.id
        assert not re.search(r"Error|Traceback|iframe", shown), cell.id
        silent = NOTEBOOK.tagged(cell, NOTEBOOK.PAGE) or cell.id == "model"
        assert bool(shown) != silent, f"{cell.id}: run docs/make_notebook.py"
    assert NOTEBOOK.NOTEBOOK.stat().st_size < 60_000


def test_the_file_shows_a_policy_that_learned() -> None:
    (said,) = ("".join(texts(cell)) for cell in code_cells() if cell.id == "compare")
    before, after = map(int, re.findall(r"(\d+)%", said))
    assert before + 40 < after


def test_one_line_changes_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {cell.id: cell.source for cell in code_cells()}
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert sources["model"].startswith('MODEL = "tiny"')
    for cell in ("model", "data", "marks", "recipe", "tiny"):
        source = sources[cell].replace('MODEL = "tiny"', 'MODEL = "some/model"')
        exec(compile(source, cell, "exec"), names)
    (folder,) = tmp_path.glob("help-desk-*")
    recipe = load_recipe(folder / "desk.toml")
    assert (recipe.sft.model, recipe.model.path, recipe.model.lora_r) == ("some/model", "runs/start/merged", 16)
    assert recipe.critic.model == f"{recipe.reward_model.out}/model"
    assert not (folder / "tiny").exists()


def test_links_of_the_notebook_lead_somewhere() -> None:
    words = "\n".join(cell.source for cell in NOTEBOOK.read().cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", words)
    assert targets
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []
