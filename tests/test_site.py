"""The site of the documents: built without a warning, links that lead somewhere, a search, nothing from elsewhere."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import text2grad
from places import ROOT

pytest.importorskip("mkdocs")
pytestmark = pytest.mark.thorough


class Page(HTMLParser):
    """The links, the names that links can lead to, and the files that a page loads by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.names, self.loads = list[str](), set[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("script", "img", "source", "link") and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads += [given[name] for name in ("src", "srcset", "href") if name in given]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}


def test_each_document_is_a_page_and_every_link_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.stem for path in pages} == documents | {"index"}
    lost = []
    for path, page in pages.items():
        for link in (link for link in page.links if not urlsplit(link).scheme):
            target, _, name = link.partition("#")
            goal = (path.parent / unquote(target)).resolve() if target else path
            goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.exists() or (name and goal in pages and unquote(name) not in pages[goal].names):
                lost.append((path.name, link))
    assert not lost


def test_a_page_loads_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert not [(path.name, load) for path, page in pages.items() for load in page.loads if urlsplit(load).netloc]
    for path, page in pages.items():
        assert all((path.parent / unquote(urlsplit(load).path)).exists() for load in page.loads if load)


def test_settings_public_names_and_words_can_be_searched(site: Path, pages: dict[Path, Page]) -> None:
    index = json.loads((site / "search" / "search_index.json").read_bytes())["docs"]
    text = " ".join(entry["text"] for entry in index)
    for word in ("quote_exact", "gamma_turn", "NL-Gradient", "unmatched"):
        assert word in text
    names = pages[site / "reference.html"].names
    assert {f"text2grad.{name}" for name in text2grad.__all__} <= names


def test_code_blocks_are_code_and_colours_follow_the_reader(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        assert not re.search("```|&gt;&gt;&gt;", re.sub(r"<(pre|code)\b.*?</\1>", "", text, flags=re.DOTALL)), path.name
        assert 'media="(prefers-color-scheme: dark)"' in text, path.name
