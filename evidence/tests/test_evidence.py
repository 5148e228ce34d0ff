"""Evidence as a whole: its recipes and plans load, its records belong to them, its imports and links lead somewhere."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from evidence.plans.experiment_plan import load_plan
from evidence.plans.records import recipe_digest
from places import ROOT
from text2grad.config.recipe import load_recipe

EVIDENCE = ROOT / "evidence"
RECIPES = sorted((EVIDENCE / "recipes").glob("*.toml"))
PLANS = [path for path in RECIPES if "study" in tomllib.loads(path.read_text("utf-8"))]
PROGRAMS = sorted(path for folder in (EVIDENCE, ROOT / "benchmarks") for path in folder.rglob("*.py"))
PAGES = sorted(path for folder in ("results", "docs") for path in (EVIDENCE / folder).glob("*.md"))
OURS = ("text2grad", "text2grad_sandbox", "text2grad_studio", "evidence")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_plan_and_every_recipe_loads(path: Path) -> None:
    if path not in PLANS:
        load_recipe(path)
        return
    for study in load_plan(path).study:
        load_recipe(path.parent / study.recipe)


def test_the_records_belong_to_the_recipes_of_their_plans() -> None:
    """A changed base recipe would make all records of its plan those of another recipe: they would be run again."""
    compared = 0
    for path in PLANS:
        plan = load_plan(path)
        for study in plan.study:
            file = ROOT / plan.records / f"{study.name}.jsonl"
            lines = file.read_text("utf-8").splitlines() if file.exists() else []
            found = {one["recipe"] for one in map(json.loads, lines) if one["task"] == study.task and not one["length"]}
            assert found <= {recipe_digest(load_recipe(path.parent / study.recipe))}, f"{file}: {study.name}"
            compared += len(found)
    assert compared >= 3


def names_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import of ours in a file; "" for a whole module."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] in OURS)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            yield from ((node.module, alias.name) for alias in node.names)


def test_what_is_imported_exists() -> None:
    """Also in programs that no test runs."""
    missing = [
        (str(path.relative_to(ROOT)), module, name)
        for path in PROGRAMS
        for module, name in names_of(path)
        if find_spec(module) is None
        or (name and not hasattr(import_module(module), name) and find_spec(f"{module}.{name}") is None)
    ]
    assert missing == []


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub makes them of its headings."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text("utf-8")))
    for link in links:
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("path", [*PAGES, *PROGRAMS, *RECIPES], ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_that_are_named_exist(path: Path) -> None:
    named = re.findall(
        r"(?<![\w./-])((?:evidence/)?docs/[\w-]+\.md|(?:evidence/)?recipes/[\w/-]+\.toml)", path.read_text("utf-8")
    )
    assert [name for name in named if not (ROOT / name).exists()] == []
