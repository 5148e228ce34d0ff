"""The project itself: its packages and their imports, its public names, settings, recipes, documents and wheel."""

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

import text2grad
from evidence.plans.experiment_plan import load_plan
from evidence.plans.records import recipe_digest
from places import ROOT, script
from text2grad.config.recipe import Recipe, load_recipe

SOURCE = ROOT / "src" / "text2grad"
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if page.name != "log.md")]
"""What users read; docs/log.md is a diary."""

TAUGHT_PATHS = {"text2grad.config.make_recipe", "text2grad.tasks.tiny"}
"""The dotted paths below a package that documents may teach."""

ENTRY_POINTS = {("cli", "main"), ("cli", "parser")}
"""Names that pyproject.toml and the tests of the documents use."""

architecture = script("docs/make_architecture.py")
TABLE = {package.name: package for package in architecture.read_table((DOCS / "architecture.md").read_text("utf-8"))}
IMPORTS = architecture.imports()
STUBS = {architecture.module_name(path.with_suffix(".py")): path for path in sorted(SOURCE.rglob("__init__.pyi"))}


def exported(package: str) -> dict[str, str]:
    """Return the names that a package exports, each with the module below the package that defines it."""
    tree = ast.parse(STUBS[package].read_text("utf-8")) if package in STUBS else ast.Module([], [])
    return {
        alias.asname or alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def across_packages() -> Iterator[tuple[str, str, object]]:
    """Yield the imports that lead from one package to another; text2grad's own file names the public names."""
    for found in IMPORTS:
        importer, imported = architecture.package_of(found)
        if importer and importer != imported:
            yield importer, imported, found


def test_the_top_holds_packages_and_the_ground_alone() -> None:
    files = {path.name for path in SOURCE.iterdir() if path.is_file()}
    assert files == {
        "__init__.py",
        "__init__.pyi",
        "errors.py",
        "types.py",
        "files.py",
        "progress.py",
        "costs.py",
        "py.typed",
    }
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert packages | {"errors", "types", "files", "progress", "costs"} == set(TABLE)


def test_the_table_has_no_circle() -> None:
    listed = list(TABLE)
    for number, package in enumerate(TABLE.values()):
        assert package.may_import <= set(listed[:number]), f"{package.name} may import what stands at or below it"


def test_every_import_is_in_the_table() -> None:
    wrong = [found for importer, imported, found in across_packages() if imported not in TABLE[importer].may_import]
    assert not wrong


def test_imports_from_another_package_go_through_what_it_exports() -> None:
    wrong = [
        found
        for _, imported, found in across_packages()
        if imported not in architecture.GROUND
        and found.name not in exported(found.module)
        and found.module  # `from text2grad import models` gives the package, whose attributes are its exported names
    ]
    assert not wrong


def test_no_module_imports_itself_by_a_detour() -> None:
    modules = {architecture.module_name(path) for path in SOURCE.rglob("*.py")}
    imported: dict[str, set[str]] = defaultdict(set)
    for found in IMPORTS:
        inner = f"{found.module}.{found.name}".lstrip(".")
        target = inner if inner in modules else found.module
        if target != found.importer:
            imported[found.importer].add(target)

    def reachable(start: str) -> set[str]:
        seen, waiting = set[str](), [start]
        while waiting:
            new = imported[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    assert [module for module in sorted(modules) if module in reachable(module)] == []


def test_the_picture_is_what_the_script_draws() -> None:
    drawn = architecture.draw(list(TABLE.values()))
    found = (DOCS / "architecture.svg").read_text("utf-8")
    assert found == drawn, "run python docs/make_architecture.py"


@pytest.mark.parametrize("package", [name for name in TABLE if name not in architecture.GROUND])
def test_a_package_states_what_it_may_import(package: str) -> None:
    text = ast.get_docstring(ast.parse((SOURCE / package / "__init__.py").read_text("utf-8"))) or ""
    stated = re.search(r"May import: ([^.]+)\.", " ".join(text.split()))
    assert stated is not None
    assert set(re.findall(r"`(\w+)`", stated[1])) == TABLE[package].may_import


def test_every_folder_of_tests_is_a_package() -> None:
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")} - {Path(), Path("user_trials")}
    assert [folder for folder in sorted(folders) if not (SOURCE / folder / "__init__.py").exists()] == []
    assert {path.name for path in tests.glob("test_*.py")} <= {
        "test_documents.py",
        "test_project.py",
        "test_costs.py",
        "test_devices.py",
        "test_progress.py",
        "test_old_files.py",
    }


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_import_names_that_exist(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("text2grad"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                found = hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
                assert found, f"{path.name}:{node.lineno}: {node.module} has no {alias.name}"


def test_every_exported_name_loads() -> None:
    for package in STUBS:
        module = importlib.import_module(f"text2grad.{package}".rstrip("."))
        for name in exported(package):
            assert not isinstance(getattr(module, name), ModuleType), f"text2grad.{package}: {name}"


def test_no_exported_name_is_the_name_of_a_module_beside_it() -> None:
    """Python would put the module in its place as soon as something imports the module."""
    for package, stub in STUBS.items():
        modules = {path.stem for path in stub.parent.iterdir()} - {"__init__"}
        assert modules & set(exported(package)) == set(), f"text2grad.{package}"


def test_every_exported_name_is_used_elsewhere_or_public() -> None:
    used = {(found.module, found.name) for found in IMPORTS if not f"{found.importer}.".startswith(f"{found.module}.")}
    for package in STUBS:  # a package above passes names of those below on
        used |= {(f"{package}.{module}".lstrip("."), name) for name, module in exported(package).items()}
    names = {(package, name) for package in STUBS if package for name in exported(package)}
    assert sorted(names - used - ENTRY_POINTS) == []


def test_public_names_are_those_documented_and_all_load() -> None:
    documented = (DOCS / "api.md").read_text("utf-8")
    for name in text2grad.__all__:
        assert getattr(text2grad, name).__doc__, name
        assert f"`{name}" in documented, f"docs/api.md does not name {name}"


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No text2grad attribute Trainer"):
        _ = text2grad.Trainer


@pytest.mark.parametrize("name", ["text2grad", "text2grad.align", "text2grad.feedback.spans", "text2grad.cli"])
def test_importing_the_core_loads_nothing_heavy(name: str) -> None:
    code = f"import sys, {name}; print([m for m in ('torch', 'transformers', 'matplotlib', 'trl') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_mathematics_does_not_load_transformers() -> None:
    names = "text2grad.rl.nl_gradient, text2grad.rl.ppo, text2grad.models.logprobs"
    code = f"import sys, {names}; print('transformers' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


PLANS = {path for path in (ROOT / "recipes").glob("*.toml") if "[[study]]" in path.read_text("utf-8")}


@pytest.mark.parametrize("path", sorted({*(ROOT / "recipes").glob("*.toml")} - PLANS), ids=lambda p: p.stem)
def test_every_recipe_loads(path: Path) -> None:
    assert isinstance(load_recipe(path), Recipe)


@pytest.mark.parametrize("path", sorted(PLANS), ids=lambda p: p.stem)
def test_every_plan_loads(path: Path) -> None:
    assert load_plan(path).study


def test_the_records_belong_to_the_recipes_of_their_plans() -> None:
    """A changed base recipe would make all records of its plan those of another recipe: they would be run again."""
    compared = 0
    for path in PLANS:
        plan = load_plan(path)
        for study in plan.study:
            file = ROOT / plan.records / f"{study.name}.jsonl"
            lines = file.read_text("utf-8").splitlines() if file.exists() else []
            found = {one["recipe"] for one in map(json.loads, lines) if one["task"] == study.task and not one["length"]}
            assert found <= {recipe_digest(load_recipe(path.parent / study.recipe))}
            compared += len(found)
    assert compared >= 3


def test_the_makefile_tells_the_time_that_the_records_took() -> None:
    hours = int(re.search(r"^results: .* (\d+) core-hours", (ROOT / "Makefile").read_text("utf-8"), re.M)[1])
    plan = load_plan(ROOT / "recipes" / "results.toml")
    files = {ROOT / plan.records / f"{study.name}.jsonl" for study in plan.study}
    seconds = sum(json.loads(line)["seconds"] for file in files for line in file.read_text("utf-8").splitlines())
    assert 0.75 < seconds / 3600 / hours < 1.1  # the models before them come on top


def test_every_setting_is_used_by_a_recipe_or_a_method_or_documented() -> None:
    recipes = [tomllib.loads(path.read_text("utf-8")) for path in (ROOT / "recipes").glob("*.toml")]
    pages = "\n".join(page.read_text("utf-8") for page in PAGES)
    methods = (SOURCE / "experiments" / "methods.py").read_text("utf-8")

    def named(section: str, key: str) -> bool:
        in_pages = (
            rf'\b{section}\.{key}\b|`{key}\b|\b{key}(`| =)|\[{section}\] {key}\b|"{key}":|--{key.replace("_", "-")}\b'
        )
        return (
            any(key in recipe.get(section, {}) for recipe in recipes)
            or re.search(in_pages, pages) is not None
            or f"{section}.{key}=" in methods
        )

    settings = [
        (section, key) for section, field in Recipe.model_fields.items() for key in type(field.default).model_fields
    ]
    assert [f"{section}.{key}" for section, key in settings if not named(section, key)] == []


def test_a_wheel_holds_recipes_stubs_and_the_report_page() -> None:
    """The patterns of pyproject.toml: hatchling takes every file of the package that git does not ignore."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/text2grad"], "force-include": {"recipes": "text2grad/recipes"}}
    assert all(needed_in_a_wheel().values())
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *map(str, needed_in_a_wheel().values())],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert ignored.stdout == ""


def test_a_wheel_that_is_built_holds_them(tmp_path: Path) -> None:
    builder = pytest.importorskip("hatchling.build", reason="hatchling is not installed")
    script = (
        f"import os; os.chdir({str(ROOT)!r}); from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    )
    assert builder is not None
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    with ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert set(needed_in_a_wheel()) <= set(wheel.namelist())


def needed_in_a_wheel() -> dict[str, Path]:
    """Return the files beside modules that an installed package needs, by their names in the wheel."""
    beside = [
        path for pattern in ("__init__.pyi", "page/*", "studio/static/*", "py.typed") for path in SOURCE.rglob(pattern)
    ]
    recipes = {f"text2grad/recipes/{path.name}": path for path in (ROOT / "recipes").glob("*.toml")}
    return {path.relative_to(SOURCE.parent).as_posix(): path for path in beside} | recipes


def test_version_and_changelog_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    newest = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert text2grad.__version__ == project["version"] == newest.group(1)


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text) + re.findall(r'src="(?!https?:)([^"]+)"', text):
        assert (ROOT / target).exists(), target


def test_every_command_in_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    from text2grad.cli.__main__ import parser

    known = parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    for command in set(re.findall(r"^(?:\.venv/bin/)?text2grad ([a-z-]+)", text, re.MULTILINE)):
        assert command in known, command


def test_ci_runs_exactly_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8").strip().splitlines()[-1]
    assert script == "make test"
    assert "make test" in (ROOT / "README.md").read_text("utf-8")


def test_docs_link_only_to_what_exists() -> None:
    for page in DOCS.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_functions_linked_in_the_architecture_are_in_their_files() -> None:
    text = (DOCS / "architecture.md").read_text("utf-8")
    linked = re.findall(r"\[`([\w.]+)`\]\(\.\./src/text2grad/([\w/]+\.py)\)", text)
    assert len(linked) > 10
    for name, file in linked:
        tree = ast.parse((SOURCE / file).read_text("utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        defined |= {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign) and isinstance(target := node.target, ast.Name)
        }
        assert set(name.split(".")) <= defined, f"{name} is not in {file}"


def test_documents_teach_public_names_and_no_deep_paths() -> None:
    deep = re.compile(r"\btext2grad\.\w+\.\w+")
    found = {
        (page.name, path)
        for page in PAGES
        if page.name != "architecture.md"  # for contributors: it shows the insides
        for path in deep.findall(page.read_text("utf-8"))
    }
    assert sorted((page, path) for page, path in found if path not in TAUGHT_PATHS) == []
