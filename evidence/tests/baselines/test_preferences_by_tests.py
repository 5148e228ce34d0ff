"""Programs for one problem become preferences by its unit tests."""

import json
from pathlib import Path

import pytest

from evidence.__main__ import main
from evidence.baselines.preference_files import read_preferences

TESTS = "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"
GOOD, OTHER, BAD = (f"def add(a, b):\n    return {text}" for text in ("a + b", "b + a", "a - b"))


def write(path: Path, records: list[tuple[str, str]]) -> Path:
    lines = [{"prompt": prompt, "response": program, "tests": TESTS} for prompt, program in records]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def test_programs_that_pass_are_preferred_to_those_that_fail(tmp_path: Path) -> None:
    records = [("Add.", BAD), ("Add.", OTHER), ("Add.", GOOD), ("Sum.", BAD), ("Plus.", GOOD)]
    source, out = write(tmp_path / "annotate.jsonl", records), tmp_path / "preferences.jsonl"
    assert main(["pairs", str(source), "--out", str(out)]) == 0
    assert [tuple(one) for one in read_preferences(out)] == [("Add.", OTHER, BAD)]
    assert main(["pairs", str(source), "--out", str(out)]) == 2  # would be overwritten


def test_a_draft_in_the_reasoning_is_not_preferred(tmp_path: Path) -> None:
    drafted = f"<think>```python\n{GOOD}\n```</think>\n```python\n{BAD}\n```"
    records = [("Add.", GOOD), ("Add.", drafted)]
    source, out = write(tmp_path / "annotate.jsonl", records), tmp_path / "preferences.jsonl"
    assert main(["pairs", str(source), "--out", str(out)]) == 0
    assert [tuple(pair) for pair in read_preferences(out)] == [("Add.", GOOD, drafted)]


def test_without_a_failing_program_beside_one_that_passes_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "annotate.jsonl", [("Add.", GOOD), ("Sum.", BAD)])
    assert main(["pairs", str(source), "--out", str(tmp_path / "out.jsonl")]) == 2
    assert "no problem has a program that passes its tests beside one that fails" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not (tmp_path / "out.jsonl").exists()
