"""The project itself: rooms, packages and their imports, public names, settings, recipes, documents and wheel."""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import text2grad
from places import ROOT, script
from text2grad.config.recipe import Recipe, load_recipe

SOURCE = ROOT / "src"
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
ROOMS = ("text2grad_sandbox", "text2grad", "text2grad_studio")
"""The packages of the wheel, each after those that it imports."""

GROUND = ("errors", "types", "files", "progress", "costs")
"""Modules at the top of src/text2grad, whose names need no export."""

TAUGHT_PATHS = {
    "text2grad.config.make_recipe",
    "text2grad.tasks.tiny",
    "text2grad.integrations.verl",
}
"""The dotted paths below a package that documents may teach."""

ENTRY_POINTS = {
    ("text2grad.cli", "main"),
    ("text2grad.cli", "parser"),
    ("text2grad_sandbox", "run_tests"),
    ("text2grad_sandbox", "Case"),
}
"""Names that pyproject.toml, documents and the tests of the documents use."""

FOR_EVIDENCE = {
    ("text2grad.align", "WEIGHTINGS"),
    ("text2grad.config", "register_section"),
    ("text2grad.evaluation", "register_suite"),
    ("text2grad.reward_models", "KINDS"),
    ("text2grad.rl", "register_instrument"),
}
"""Names by which packages outside the wheel add their parts."""


class Import(NamedTuple):
    """One imported name: `importer` and `module` are dotted paths; `name` is "" for a whole module."""

    importer: str
    module: str
    name: str


class Row(NamedTuple):
    """A row of the table of rooms and packages in docs/architecture.md."""

    name: str
    may_import: frozenset[str]


def module_name(path: Path) -> str:
    """Return the dotted path of a file below src; a package's own file gives the package."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, importer: str) -> Iterator[Import]:
    """Yield the imports of the rooms and of evidence in a file: at the top, in functions and under TYPE_CHECKING."""
    inside = importer.split(".") if path.name == "__init__.py" else importer.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Import(importer, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = inside[: len(inside) + 1 - node.level] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            yield from (Import(importer, module, alias.name) for alias in node.names)


def box_of(dotted: str) -> str:
    """Return the row of the table that a dotted path belongs to, such as "rl" or "text2grad_studio"."""
    room, _, rest = dotted.partition(".")
    return rest.partition(".")[0] if room == "text2grad" and rest else room


def read_table() -> dict[str, Row]:
    """Return the rows of the table by name, in its order."""
    text = (DOCS / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .+? \| (.+?) \|$", text, re.MULTILINE)
    table = dict[str, Row]()
    for name, cell in rows:
        named = frozenset(table) if cell == "all above" else frozenset(re.findall(r"`(\w+)`", cell))
        table[name] = Row(name, named)
    return table


TABLE = read_table()
FILES = {path: module_name(path) for room in ROOMS for path in sorted((SOURCE / room).rglob("*.py"))}
IMPORTS = [
    entry for path, name in FILES.items() for entry in imports_of(path, name) if entry.module.split(".")[0] in ROOMS
]
STUBS = {module_name(path.with_suffix(".py")): path for room in ROOMS for path in (SOURCE / room).rglob("__init__.pyi")}


def exported(package: str) -> dict[str, str]:
    """Return the names that a package exports, each with the module below the package that defines it."""
    tree = ast.parse(STUBS[package].read_text("utf-8")) if package in STUBS else ast.Module([], [])
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def target_of(entry: Import) -> str:
    """Return the row that an import leads to; `from text2grad import models` leads to models."""
    inner = f"{entry.module}.{entry.name}"
    return box_of(inner if inner in set(FILES.values()) else entry.module)


def across_packages() -> Iterator[tuple[str, str, Import]]:
    """Yield the imports that lead from one row of the table to another; text2grad's own file names the public names."""
    for entry in IMPORTS:
        importer, imported = box_of(entry.importer), target_of(entry)
        if entry.importer != "text2grad" and importer != imported and entry.module != "text2grad":
            yield importer, imported, entry


def test_the_top_holds_rooms_packages_and_the_ground_alone() -> None:
    assert {path.name for path in SOURCE.iterdir() if any(path.rglob("*.py"))} == set(ROOMS)
    files = {path.name for path in (SOURCE / "text2grad").iterdir() if path.is_file()}
    assert files == {"__init__.py", "__init__.pyi", "py.typed", *(f"{name}.py" for name in GROUND)}
    packages = {path.name for path in (SOURCE / "text2grad").iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert packages | {*GROUND, "text2grad_sandbox", "text2grad_studio"} == set(TABLE)


def test_the_rooms_are_small_enough_to_live_in() -> None:
    """All text files below src count: Python, stubs, pages; but not the questions and comments of lessons."""
    limits = {"text2grad": 37_250, "text2grad_studio": 7_600, "text2grad_sandbox": 3_700}
    listed = subprocess.run(["git", "ls-files", "src"], capture_output=True, text=True, cwd=ROOT, check=True)
    lines = dict.fromkeys(limits, 0)
    for name in listed.stdout.split():
        if (ROOT / name).exists() and not re.search(r"/lessons/(questions|lessons)\.toml$", name):
            lines[name.split("/")[1]] += len((ROOT / name).read_bytes().splitlines())
    assert {room: count for room, count in lines.items() if count > limits[room]} == {}


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5, such as Debian 12's, matches such patterns wrongly (python/cpython#106052): (?>(?:…)*)."""
    wrong = re.compile(r"(?<!\\)\)[*+?]\+")
    assert [path for path in SOURCE.rglob("*.py") if wrong.search(path.read_text("utf-8"))] == []


def has_docstring(node: ast.AST) -> bool:
    """Return whether a part of the syntax tree can have a docstring and has one."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None


def test_docstrings_keep_their_share_of_the_lines() -> None:
    """Lines of docstrings of modules, classes and functions, quotes included, over all lines of src/text2grad."""
    docstrings = lines = 0
    for path in (SOURCE / "text2grad").rglob("*.py"):
        text = path.read_text("utf-8")
        lines += len(text.splitlines())
        strings = [node.body[0] for node in ast.walk(ast.parse(text)) if has_docstring(node)]  # type: ignore[attr-defined]
        docstrings += sum(string.end_lineno - string.lineno + 1 for string in strings)
    assert docstrings / lines >= 0.2111


def core_files() -> list[Path]:
    """Return the files of the core in the order in which docs/architecture.md lists them."""
    rows = re.findall(
        r"^\| \[[\w/]+\.py\]\(\.\./(src/[\w/]+\.py)\)", (DOCS / "architecture.md").read_text("utf-8"), re.MULTILINE
    )
    return [ROOT / row for row in rows]


def test_the_core_is_read_in_an_afternoon() -> None:
    """Words → spans → δ → gradient → loop: few lines, and few names from elsewhere."""
    core = {FILES[path]: len(path.read_text("utf-8").splitlines()) for path in core_files()}
    assert len(core) == 19
    assert sum(core.values()) <= 3_500, core
    outside = defaultdict[str, set[str]](set)
    for entry in IMPORTS:
        below = exported(entry.module).get(entry.name) if entry.module in STUBS else None
        module = f"{entry.module}.{below}" if below else entry.module
        if entry.importer in core and module not in core:
            outside[entry.importer].add(entry.name)
    assert {name: names for name, names in outside.items() if len(names) > 5} == {}


def test_the_trainer_is_the_algorithm() -> None:
    path = SOURCE / "text2grad" / "rl" / "trainer.py"
    names = [
        name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    ]
    assert len(path.read_text("utf-8").splitlines()) <= 400
    assert len(names) <= 50
    rl = {name for name in FILES.values() if name.startswith("text2grad.rl.")}
    whole_recipes = {entry.importer for entry in IMPORTS if entry.importer in rl and entry.name == "Recipe"}
    assert whole_recipes <= {f"text2grad.rl.{name}" for name in ("arguments", "callbacks", "loop", "start", "trackers")}


CLEAN_TESTS = [path for name in ("helpers", "sandbox", "studio") for path in (ROOT / "tests" / name).glob("*.py")]


def test_variables_name_what_they_hold() -> None:
    """`for one in found` says nothing: a reader must look elsewhere for what the values are."""
    wrong = set[str]()
    for path in [*FILES, *CLEAN_TESTS]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            bound = [getattr(node, field, None) for field in ("arg", "name", "asname", "rest")]
            bound += [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []
            if {"found", "one"} & set(bound):
                wrong.add(f"{path.relative_to(ROOT)}:{node.lineno}")  # type: ignore[attr-defined]
    assert sorted(wrong) == []


def test_labels_are_positive_and_negative_where_people_read_them() -> None:
    """Words between quotation marks are those of a form that a model writes."""
    page = (SOURCE / "text2grad_studio" / "static").iterdir()
    for path in [*PAGES, *page]:
        assert re.findall(r'(?i)(?<!")\b(?:poor|praise[ds]?|blame[ds]?)\b', path.read_text("utf-8")) == [], path.name


def test_the_table_has_no_circle() -> None:
    listed = list(TABLE)
    for number, row in enumerate(TABLE.values()):
        assert row.may_import <= set(listed[:number]), f"{row.name} may import what stands at or below it"


def test_every_import_is_in_the_table() -> None:
    wrong = [entry for importer, imported, entry in across_packages() if imported not in TABLE[importer].may_import]
    assert not wrong


def test_nothing_imports_evidence_and_the_sandbox_imports_nothing_of_ours() -> None:
    tests = {path: path.stem for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")}
    wrong = [
        (path.name, entry.module)
        for path, name in {**FILES, **tests}.items()
        for entry in imports_of(path, name)
        if entry.module.split(".")[0] == "evidence"
    ]
    assert wrong == []
    ours = [entry for entry in IMPORTS if entry.importer.startswith("text2grad_sandbox")]
    assert {entry.module.split(".")[0] for entry in ours} == {"text2grad_sandbox"}


def test_imports_from_another_package_go_through_what_it_exports() -> None:
    wrong = [
        entry
        for _, imported, entry in across_packages()
        if imported not in GROUND and entry.name not in exported(entry.module)
    ]
    assert not wrong


def test_no_module_imports_itself_by_a_detour() -> None:
    modules = set(FILES.values())
    imported: dict[str, set[str]] = defaultdict(set)
    for entry in IMPORTS:
        inner = f"{entry.module}.{entry.name}"
        target = inner if inner in modules else entry.module
        if target != entry.importer:
            imported[entry.importer].add(target)

    def reachable(start: str) -> set[str]:
        seen, waiting = set[str](), [start]
        while waiting:
            new = imported[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    assert [module for module in sorted(modules) if module in reachable(module)] == []


def test_every_folder_of_tests_is_a_package() -> None:
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    others = {Path(), Path("user_trials"), Path("studio"), Path("sandbox"), Path("wheel")}
    missing = [folder for folder in folders - others if not (SOURCE / "text2grad" / folder / "__init__.py").exists()]
    assert missing == []
    assert {path.name for path in tests.glob("test_*.py")} <= {
        "test_documents.py",
        "test_project.py",
        "test_costs.py",
        "test_devices.py",
        "test_notebook.py",
        "test_progress.py",
        "test_site.py",
    }


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_import_names_that_exist(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("text2grad"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                exists = hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
                assert exists, f"{path.name}:{node.lineno}: {node.module} has no {alias.name}"


def test_every_exported_name_loads() -> None:
    for package in STUBS:
        module = importlib.import_module(package)
        for name in exported(package):
            assert not isinstance(getattr(module, name), ModuleType), f"{package}: {name}"


def test_no_exported_name_is_the_name_of_a_module_beside_it() -> None:
    """Python would put the module in its place as soon as something imports the module."""
    for package, stub in STUBS.items():
        modules = {path.stem for path in stub.parent.iterdir()} - {"__init__"}
        assert modules & set(exported(package)) == set(), package


def test_every_exported_name_is_used_elsewhere_or_public() -> None:
    used = {(entry.module, entry.name) for entry in IMPORTS if not f"{entry.importer}.".startswith(f"{entry.module}.")}
    for package in STUBS:  # a package above passes names of those below on
        used |= {(f"{package}.{module}", name) for name, module in exported(package).items()}
    names = {(package, name) for package in STUBS if package != "text2grad" for name in exported(package)}
    assert sorted(names - used - ENTRY_POINTS - FOR_EVIDENCE) == []


def test_public_names_are_those_documented_and_all_load() -> None:
    documented = (DOCS / "reference.md").read_text("utf-8")
    for name in text2grad.__all__:
        assert getattr(text2grad, name).__doc__, name
        assert f"`{name}" in documented, f"docs/reference.md does not name {name}"


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No text2grad attribute Trainer"):
        _ = text2grad.Trainer


@pytest.mark.parametrize("name", ["text2grad", "text2grad.align", "text2grad.feedback.spans", "text2grad.cli"])
def test_importing_the_core_loads_nothing_heavy(name: str) -> None:
    code = f"import sys, {name}; print([m for m in ('torch', 'transformers', 'matplotlib', 'trl') if m in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_the_mathematics_does_not_load_transformers() -> None:
    names = "text2grad.rl.nl_gradient, text2grad.rl.ppo, text2grad.models.logprobs"
    code = f"import sys, {names}; print('transformers' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "False"


RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(path: Path) -> None:
    assert isinstance(load_recipe(path), Recipe)


def test_the_reference_is_what_the_script_writes() -> None:
    assert (DOCS / "reference.md").read_text("utf-8") == script("docs/make_reference.py").page()


def test_version_and_changelog_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    newest = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert text2grad.__version__ == project["version"] == newest.group(1)


def words_of(text: str) -> int:
    """Return the number of words, as `wc -w` counts them."""
    return len(text.split())


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 60
    assert words_of(text) <= 550
    code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    plain = re.sub(r"\]\([^)]*\)|<[^>]*>|\d*[A-Za-z]+[\w.-]*\d[\w.-]*|arXiv \S+", "", code)
    assert len(re.findall(r"\d[\d.,]*", plain)) <= 12
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text) + re.findall(r'src="(?!https?:)([^"]+)"', text):
        assert (ROOT / target).exists(), target


def test_the_documents_are_few_and_short() -> None:
    pages = sorted(DOCS.glob("*.md"))
    assert len(pages) <= 12
    assert sum(words_of(page.read_text("utf-8")) for page in pages) <= 26_000
    assert len((ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()) <= 40
    assert words_of((ROOT / "CONTRIBUTING.md").read_text("utf-8")) <= 350


def test_every_command_in_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    from text2grad.cli.__main__ import parser

    known = parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    for command in set(re.findall(r"^(?:\.venv/bin/)?text2grad ([a-z-]+)", text, re.MULTILINE)):
        assert command in known, command


def test_ci_runs_exactly_the_test_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8").strip().splitlines()[-2:]
    assert script == ["make test", "make test-all"]
    assert "make test" in (ROOT / "README.md").read_text("utf-8")


def test_docs_link_only_to_what_exists() -> None:
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_functions_linked_in_the_architecture_are_in_their_files() -> None:
    text = (DOCS / "architecture.md").read_text("utf-8")
    linked = re.findall(r"\[`([\w.]+)`\]\(\.\./(src/[\w/]+\.py)\)", text)
    assert len(linked) > 10
    for name, file in linked:
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        defined |= {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and isinstance(target := node.target, ast.Name)
        }
        assert set(name.split(".")) <= defined, f"{name} is not in {file}"


def test_documents_teach_public_names_and_no_deep_paths() -> None:
    deep = re.compile(r"\btext2grad\.\w+\.\w+")
    taught = {
        (page.name, path)
        for page in PAGES
        if page.name != "architecture.md"  # for contributors: it shows the insides
        for path in deep.findall(page.read_text("utf-8"))
    }
    assert sorted((page, path) for page, path in taught if path not in TAUGHT_PATHS) == []
