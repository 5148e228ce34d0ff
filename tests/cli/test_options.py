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
    "models": {"--model", "--out", "--resume"},  # sft, reward
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
    known = {option for command in commands().values() for option in command._option_string_actions} | OTHERS
    assert {"--resume", "--set", "--skip-bad"} <= known
    unknown = {str(path): advice(SOURCE / path) - known for path in MODULES}
    assert {path: odd for path, odd in unknown.items() if odd} == {}


def test_commands_and_options_are_few() -> None:
    """At most 15 commands, 23 with those of groups, and 122 options: to take marks back needs three, a push too."""
    names, top = list(commands()), parser()
    assert sum(" " not in name for name in names) <= 15
    assert len(names) <= 23
    actions = [action for command in (top, *commands().values()) for action in command._actions]
    assert sum(bool(action.option_strings) and action.dest != "help" for action in actions) <= 122


@pytest.mark.parametrize("module", [path for path in MODULES if path.parent.name == "cli"], ids=str)
def test_the_messages_of_a_command_name_its_own_options(module: Path) -> None:
    name = module.stem.replace("_", " ")
    if name in commands():
        assert advice(SOURCE / module) <= set(commands()[name]._option_string_actions)


@pytest.mark.parametrize("part", SEVERAL)
def test_messages_of_shared_parts_name_options_that_all_their_commands_have(part: str) -> None:
    modules = [path for path in map(str, MODULES) if path.startswith(part) and (path == part or path not in SEVERAL)]
    named = {path: advice(SOURCE / path) - SEVERAL[part] - OTHERS for path in modules}
    assert {path: odd for path, odd in named.items() if odd} == {}


@pytest.mark.parametrize(
    "words",
    [
        "feedback import table x.jsonl --out y.jsonl --limit -1",
        "feedback prepare slf5k x.jsonl --out y --prompts 1.5",
        "evaluate pairs a b --judge r.toml --out o --limit 0",
        "evaluate policy m --suite s --out o --seed -1",
        "evaluate policy m --suite s --out o --temperature nan",
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


@pytest.mark.parametrize("command", ["annotate r.toml", "evaluate pairs a b --judge r.toml --out o"])
def test_an_empty_limit_is_refused_and_not_taken_for_no_limit(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--max-cost", ""])
    assert "argument --max-cost: expected a finite number of at least 0, got ''" in capsys.readouterr().err
    assert shorthands({"annotate.max_cost": 0.0, "annotate.other": None}) == ["annotate.max_cost=0.0"]


@pytest.mark.parametrize(
    "setting", ["annotate.temperature=nan", "ppo.beta=inf", "optim.lr=-inf", "rollout.temperature=nan"]
)
def test_settings_that_are_no_finite_numbers_are_refused(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.toml").write_text("")
    assert main(["train", str(tmp_path / "r.toml"), "--model", "m", "--set", setting]) == 2
    assert "should be a finite number" in capsys.readouterr().err
