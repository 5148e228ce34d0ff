"""What is installed is shown, what is missing is named with the line that installs it, before any work starts."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from text2grad.cli import doctor
from text2grad.cli.__main__ import main
from text2grad.errors import ConfigError, is_installed, require

ARGUMENTS = {
    "quickstart": ["--out", "q"],
    "sft": ["r.toml"],
    "train": ["r.toml"],
    "generate": ["run"],
    "reward": ["r.toml"],
    "compare": ["a", "b"],
    "evaluate critic": ["x.jsonl", "--model", "m", "--out", "o"],
    "annotate": ["r.toml"],
}

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
from text2grad.cli import main
sys.exit(main({arguments}))
"""
HEAVY = sorted(
    {module for modules in doctor.MODULES.values() for module in modules} | {"nltk", "spellchecker", "pyarrow"}
)


def blocked(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that has the core's packages alone."""
    script = BLOCKED.format(names=set(HEAVY), arguments=list(arguments))
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=path)


@pytest.mark.parametrize(
    ("command", "extra", "module"),
    [
        (command, extra, doctor.MODULES[extra][0])
        for command in ARGUMENTS
        for extra in (("annotate",) if command == "annotate" else ("train",))
    ],
)
def test_a_command_without_its_extra_ends_in_one_line_before_anything_is_written(
    command: str,
    extra: str,
    module: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert main([*command.split(), *ARGUMENTS[command]]) == 2
    assert capsys.readouterr().err == (
        f'ConfigError: text2grad {command} needs {module}, not installed here: run pip install -e ".[{extra}]" in the '
        "repository of text2grad\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_core_alone_runs_the_light_commands_and_names_what_the_others_need(tmp_path: Path) -> None:
    found = blocked(tmp_path, "quickstart")
    assert (found.returncode, found.stdout) == (2, "")
    assert 'run pip install -e ".[train]" in the repository' in found.stderr
    assert "Traceback" not in found.stderr
    assert list(tmp_path.iterdir()) == []
    found = blocked(tmp_path, "doctor")
    assert found.returncode == 0, found.stderr
    assert "accelerators  unknown without torch" in found.stdout
    (tmp_path / "t.csv").write_text("prompt,response,feedback\na,b,c\n")
    found = blocked(tmp_path, "feedback", "import", "table", "t.csv", "--out", "t.jsonl")
    assert found.returncode == 0, found.stderr
    found = blocked(tmp_path, "feedback", "export", "t.jsonl", "--out", "d")
    assert found.returncode == 2
    assert 'a Parquet file needs pyarrow, not installed here: run pip install -e ".[train]"' in found.stderr


def test_the_doctor_shows_versions_devices_and_isolation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[-3:] == ["torch", ">=2.9", version("torch")] for line in lines)
    assert any(line.split()[:1] == ["[train]"] for line in lines)
    assert any(line.split()[:1] == ["cpu"] and "cores" in line for line in lines)
    for level in ("bwrap", "unshare"):
        assert any(line.split()[:1] == [level] and "work" in line for line in lines)


def test_what_is_missing_or_too_old_is_shown_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pretended(package: str) -> str:
        if package == "peft":
            raise PackageNotFoundError
        return {"openai": "2.9.1", "nltk": "3.10", "trl": "1.16.0", "vllm": "0.31.0"}.get(
            package, version("text2grad") if package == "text2grad" else "9999.0"
        )

    monkeypatch.setattr(doctor, "version", pretended)
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    rows = {words[-3] if len(words) > 3 else words[0]: words for words in map(str.split, said.splitlines()) if words}
    assert rows["peft"][-1] == "–"
    assert "2.9.1: not in the range" in said
    assert "3.10: not in the range" not in said, "3.10 is above 3.9"
    (end,) = said.split("in the repository of text2grad:\n")[1:]
    assert [line.split("#")[0].strip() for line in end.splitlines()] == [
        'pip install -e ".[train]"',
        'pip install -e ".[annotate]"',
        'pip install -e ".[trl]"',  # it needs peft, too
    ]


def test_the_extras_are_those_of_the_project() -> None:
    extras = doctor.wanted()
    assert {"train", "annotate", "eval", "code", "vllm", "dev"} <= set(extras)
    for packages in extras.values():
        assert len({name for name, _ in packages}) == len(packages)  # [trl] holds [train], whose range it narrows
    ranges = {extra: {name: str(versions) or "any" for name, versions in extras[extra]} for extra in extras}
    assert ranges["train"]["torch"] == ">=2.9"
    assert ranges["annotate"]["openai"] == ">=3"
    assert ranges["vllm"] == {"vllm": "<0.32,>=0.22", "trl": "<1.17,>=1.14", "requests": "any"}


@pytest.mark.parametrize(
    ("trl", "state"),
    [
        ("1.13.9", "1.13.9: not in the range"),
        ("1.14", "1.14"),
        ("1.16.2+local", "1.16.2+local"),
        ("1.17.0rc1", "1.17.0rc1: not in the range"),
        ("1.17.0", "1.17.0: not in the range"),
    ],
)
def test_a_version_outside_a_range_is_shown_with_the_line_that_installs_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trl: str, state: str
) -> None:
    monkeypatch.setattr(doctor, "version", lambda package: trl if package == "trl" else "9999.0")
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.strip() for line in lines if line.split()[:2] == ["trl", "<1.17,>=1.14"]]
    assert [row.partition(">=1.14")[2].strip() for row in rows] == [state, state]  # of [trl] and of [vllm]
    assert any('".[trl]"' in line for line in lines) == (state != trl)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(sys.modules, "json", None)
    return "json"


def test_a_module_is_installed_or_required(gone: str) -> None:
    assert is_installed("argparse")
    assert not is_installed("no_such_module_anywhere")
    assert not is_installed(gone)
    require("argparse", extra="train", purpose="it")
    with pytest.raises(ConfigError) as caught:
        require("no_such_a", "argparse", "no_such_b", extra="eval", purpose="it", otherwise="add --no-words")
    assert str(caught.value) == (
        'it needs no_such_a, no_such_b, not installed here: run pip install -e ".[eval]" in the repository of '
        "text2grad, or add --no-words"
    )
