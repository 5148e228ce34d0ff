"""The project itself: the order of its modules, its public names, its recipes, its README and its sizes."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import text2grad
from text2grad.config.recipe import Recipe, load_recipe

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "text2grad"

# Data flows to the right: a module imports from its left alone. Nouns, words, tokens, recipes and critics, tasks,
# gradient, the loop, whole sessions, evidence, the command line.
BANDS = """
    __init__ errors types shapes
    _sandbox_kernel _sandbox_job _sandbox_server _sandbox_worker sandbox
    lenient_json critique_text normalize spans votes support
    pieces offsets weighting align vocabulary
    sections phase_sections config examples critics
    program_text isolation unit_tests ruff_critic
    tasks/__init__ tasks/base
    tasks/_story_words tasks/_story_reading tasks/_story_openings tasks/stories
    tasks/procedural tasks/_fact_reading tasks/_fact_wording
    tasks/_summarization_world tasks/_summarization_posts tasks/_summarization_metric tasks/_summarization_critic
    tasks/summarization
    tasks/_qa_world tasks/_qa_tables tasks/_qa_metric tasks/_qa_critic tasks/qa
    tasks/_code_world tasks/_code_expressions tasks/_code_specs tasks/_code_tests tasks/_code_critic tasks/_code_wording
    tasks/code tasks/registry
    nl_gradient advantages ppo
    logprobs adapters batch shared_prefix pretrained models rollout rewards optim update
    record_files qa_feedback records runlog run_state checkpoint metrics annotations remembered
    sources/__init__ sources/base sources/changes sources/people sources/published sources/tools
    sources/table sources/registry preferences export
    critique_forms critique_writing quoting verbatim critique_grammar skeleton constrained adapter_roles reward_model
    vllm_reward_model
    muon sft reward_training reward_head preference_training steps process_reward_model
    quality refresh scoring launch loop
    annotating/__init__ annotating/store annotating/templates annotating/pace annotating/client annotating/asking
    annotating/judging annotating/items annotating/critic annotating/reward_server annotating/preferring
    tasks/tiny evaluate learned session pipeline
    labelled reward_data reward_trainer reward_card reward_run
    fidelity html terminal side_by_side methods plots annotation_tables report comparison
    reward_evaluation/__init__ reward_evaluation/intervals reward_evaluation/pairs reward_evaluation/units
    reward_evaluation/counting reward_evaluation/wording reward_evaluation/predicting reward_evaluation/evaluation
    reward_evaluation/pictures reward_evaluation/agreement reward_evaluation/study
    commands/__init__ commands/_align_report commands/align commands/annotate commands/import_ commands/recipe
    commands/train commands/generate commands/export commands/reward commands/reward_baseline commands/quickstart
    commands/evaluate_reward commands/win_rate commands/study cli
"""
ORDER = BANDS.split()


def modules() -> dict[str, ast.Module]:
    return {
        path.relative_to(SOURCE).with_suffix("").as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


def imported(tree: ast.Module) -> set[str]:
    """Return the modules of this package that a module imports, types aside."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("text2grad"):
            home = (node.module or "").removeprefix("text2grad").lstrip(".").replace(".", "/")
            for alias in node.names:
                inner = f"{home}/{alias.name}".lstrip("/")
                found.add(inner if (SOURCE / f"{inner}.py").exists() else home)
    return {name if (SOURCE / f"{name}.py").exists() else f"{name}/__init__".lstrip("/") for name in found}


def test_every_module_has_its_place_in_the_order() -> None:
    assert sorted(modules()) == sorted(ORDER)


def test_no_module_imports_from_its_right() -> None:
    place = {name: number for number, name in enumerate(ORDER)}
    wrong = [
        f"{name} imports {other}"
        for name, tree in modules().items()
        if name != "__init__"  # it names the public ones, loaded on first use
        for other in imported(tree)
        if place[other] > place[name]
    ]
    assert not wrong


def test_files_are_short_enough_to_be_read() -> None:
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in SOURCE.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 300} == {}


def test_public_names_are_those_documented_and_all_load() -> None:
    documented = (ROOT / "docs" / "api.md").read_text("utf-8")
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


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.stem)
def test_every_recipe_loads(path: Path) -> None:
    assert isinstance(load_recipe(path), Recipe)


def test_a_wheel_holds_the_recipes_where_the_quickstart_looks_for_them() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"recipes": "text2grad/recipes"}


def test_version_and_changelog_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
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


def test_python_blocks_of_the_readme_run(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        script = tmp_path / f"block{number}.py"
        script.write_text(block, "utf-8")
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_docs_link_only_to_what_exists() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
