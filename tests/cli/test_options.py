"""Options: numbers are checked when they are read, and messages advise options that the command has."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from places import ROOT
from text2grad.cli.__main__ import main, parser
from text2grad.cli.options import shorthands

SOURCE = ROOT / "src" / "text2grad"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z_-]*[a-z]")
OTHERS = {"--multi_gpu", "--fsdp", "--fsdp_state_dict_type", "--fsdp_version", "--zero", "--use_fsdp", "--config_file"}
OTHERS |= {"--max-model-len", "--logprobs-mode", "--weight-transfer-config"}
"""Options of accelerate and of vLLM's server, which messages name."""

SEVERAL = {
    "feedback": set[str](),
    "models": {"--out"},  # sft, reward
    "critics": set[str](),
    "config/run_directory.py": {"--resume", "--set", "--model", "--out"},  # train, sft, reward
    "rl": {"--resume", "--set"},  # train
}
"""Parts of the library that several commands run, and the options that all of these commands have."""


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command; those of subcommands are `command subcommand`."""

    def below(top: argparse.ArgumentParser, prefix: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
        for action in top._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, one in action.choices.items():
                    yield f"{prefix}{name}", one
                    yield from below(one, f"{prefix}{name} ")

    return dict(below(parser(), ""))


def options(name: str) -> set[str]:
    return {
        option
        for command, one in commands().items()
        if command.split()[0] == name
        for option in one._option_string_actions
    }


def advice(path: Path) -> set[str]:
    """Return the options that the messages of errors and warnings in a module name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if name.endswith("Error") or name in ("note", "bad_record"):
            texts = (
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )
            found |= {option for text in texts for option in OPTION.findall(text)}
    return found


MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


def test_messages_name_options_that_some_command_has() -> None:
    known = {option for name in commands() for option in options(name.split()[0])} | OTHERS
    assert {"--resume", "--set", "--skip-bad"} <= known
    unknown = {str(path): advice(SOURCE / path) - known for path in MODULES}
    assert {path: odd for path, odd in unknown.items() if odd} == {}


@pytest.mark.parametrize("module", [path for path in MODULES if path.parent.name == "cli"], ids=str)
def test_the_messages_of_a_command_name_its_own_options(module: Path) -> None:
    name = module.stem.strip("_").replace("_", "-")
    if name in commands():
        assert advice(SOURCE / module) <= options(name)


@pytest.mark.parametrize("part", SEVERAL)
def test_messages_of_shared_parts_name_options_that_all_their_commands_have(part: str) -> None:
    modules = [path for path in map(str, MODULES) if path.startswith(part) and (path == part or path not in SEVERAL)]
    named = {path: advice(SOURCE / path) - SEVERAL[part] - OTHERS for path in modules}
    assert {path: odd for path, odd in named.items() if odd} == {}


@pytest.mark.parametrize(
    "words",
    [
        "import table x.jsonl --out y.jsonl --missing-outcome nan",
        "import table x.jsonl --out y.jsonl --limit -1",
        "import table x.jsonl --out y.jsonl --show 1.5",
        "study export x.jsonl --out y --seed -1",
        "judge a b --recipe r --out o --seed -1",
        "evaluate-reward x --model m --out o --vote-threshold nan",
        "evaluate-reward x --model m --out o --seed -1",
    ],
)
def test_numbers_out_of_range_and_numbers_that_are_none_are_wrong_usage(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert re.search(r"expected a (whole|finite) number.*, got '", said)
    assert words.split()[-2] in said


@pytest.mark.parametrize("option", ["--max-cost", "--max-requests"])
def test_an_empty_limit_is_refused_and_not_taken_for_no_limit(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = option.strip("-").replace("-", "_")
    (tmp_path / "r.toml").write_text("")
    judge = ["judge", "a.jsonl", "b.jsonl", "--recipe", str(tmp_path / "r.toml"), "--out", str(tmp_path / "out")]
    for command in (["annotate", str(tmp_path / "r.toml")], judge):
        assert main([*command, option, ""]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"the option for annotate.{name} is an empty text; give it a value, or leave it out" in said
    assert shorthands({}, {"annotate.max_cost": "0", "annotate.max_requests": None}) == ["annotate.max_cost=0"]


@pytest.mark.parametrize(
    "setting", ["annotate.input_price=nan", "ppo.beta=inf", "optim.lr=-inf", "rollout.temperature=nan"]
)
def test_settings_that_are_no_finite_numbers_are_refused(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.toml").write_text("")
    assert main(["train", str(tmp_path / "r.toml"), "--model", "m", "--set", setting]) == 2
    assert "should be a finite number" in capsys.readouterr().err
