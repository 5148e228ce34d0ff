"""`text2grad doctor`: extras, devices, sandbox and versions of this installation, and the lines that add the rest."""

import argparse
import os
import platform
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from packaging.requirements import Requirement  # lazy_loader needs it, too
from packaging.specifiers import SpecifierSet
from rich.table import Table
from rich.text import Text

from text2grad.cli.options import add_command, say
from text2grad.errors import INSTALL, is_installed, require
from text2grad.progress import CONSOLE
from text2grad_sandbox import isolations

MODULES = {  # modules of an extra that its commands load
    "train": ("torch", "transformers", "accelerate", "peft", "trl", "datasets", "matplotlib"),
    "annotate": ("openai", "aiohttp"),
    "tune": ("optuna",),
    "studio": ("starlette", "uvicorn", "regex"),
}

ABOUT = {
    "train": "everything that loads a model",
    "annotate": "critics on OpenAI-compatible servers",
    "eval": "ROUGE, BLEU, the agreement of raters, length control of AlpacaEval",
    "code": "tests of programs that are written for pytest",
    "trl": "text2grad.GRPOTrainer",
    "tune": "search of settings, and experiments by a plan",
    "studio": "text2grad studio; teaching also needs [train]",
    "lm-eval": "text2grad evaluate policy --suite arc, and any task of lm-eval",
    "vllm": 'rollout.engine = "vllm"; in an environment of its own, beside [train]',
    "dev": "tests and checks of the project",
}
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


DESCRIPTION = """\
Show which optional packages are installed, in which versions, on which devices models can run, and how strongly
model-written code is isolated. Of each missing part the line that installs it is shown."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "show which extras, devices, sandbox and versions there are"
    add_command(commands, "doctor", run, about, DESCRIPTION, "example:\n  text2grad doctor", extras=())


def check_extras(command: str, extras: Sequence[str]) -> None:
    """Refuse a command whose extras are not installed, by a `ConfigError` with the line that installs them."""
    for extra in extras:
        require(*MODULES[extra], extra=extra, purpose=command)


def run(args: argparse.Namespace) -> int:
    """Print the state of the installation."""
    extras = {
        extra: [(name, versions, _state(name, versions)) for name, versions in packages]
        for extra, packages in wanted().items()
    }
    say(f"text2grad {version('text2grad')}, Python {platform.python_version()}, {platform.platform()}\n")
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("extra", "package", "wanted", "installed"):
        table.add_column(column, no_wrap=True)
    for extra, packages in extras.items():
        for row, (name, versions, state) in enumerate(packages):
            table.add_row(Text("" if row else f"[{extra}]"), name, str(versions) or "any", state)
        table.add_row()
    CONSOLE.print(table, soft_wrap=True)
    states = {"devices": _devices(), "isolation of model-written code (unit tests of code)": _isolation()}
    for title, pairs in states.items():
        say("\n".join([f"\n{title}", *(f"  {name:13} {state}" for name, state in pairs)]))
    if missing := [extra for extra, packages in extras.items() if any(set("–:") & set(part[2]) for part in packages)]:
        lines = [f"  {INSTALL.format(extra=extra):28}# {ABOUT.get(extra, extra)}" for extra in missing]
        say("\n".join(["\nin the repository of text2grad:", *lines]))
    return 0


def wanted() -> dict[str, list[tuple[str, SpecifierSet]]]:
    """Return (package, range of versions) of each extra, as the installed project declares them."""
    extras: dict[str, dict[str, SpecifierSet]] = {}
    for requirement in map(Requirement, requires("text2grad") or ()):
        if match := _EXTRA.search(str(requirement.marker)):
            packages = extras.setdefault(match[1], {})
            known = packages.get(requirement.name, requirement.specifier)
            packages[requirement.name] = max(known, requirement.specifier, key=len)  # an extra narrows what it holds
    order = sorted(extras.items(), key=lambda pair: [*ABOUT, pair[0]].index(pair[0]))
    return {extra: list(packages.items()) for extra, packages in order}


def _state(package: str, versions: SpecifierSet) -> str:
    """Return the version of a package, as "1.8.2: not in the range" if it is another; "–" where it is not installed."""
    try:
        there = version(package)
    except PackageNotFoundError:
        return "–"
    return there if versions.contains(there, prereleases=True) else f"{there}: not in the range"


def _devices() -> Iterator[tuple[str, str]]:
    """Yield the processor, and each accelerator with its memory."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield "cpu", f"{os.cpu_count()} cores, {pages:.0f} GiB of memory"
    if not is_installed("torch"):
        yield "accelerators", "unknown without torch"
        return
    import torch

    if not torch.accelerator.is_available():
        yield "accelerators", "none that torch sees"
    elif torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(number)
            yield f"cuda:{number}", f"{device.name}, {device.total_memory / 2**30:.0f} GiB"
    else:
        name = str(torch.accelerator.current_accelerator())
        yield "accelerator", name + (" (not used: it has no 64-bit numbers)" if name == "mps" else "")


def _isolation() -> Iterator[tuple[str, str]]:
    """Yield whether each isolation of the sandbox works, the strongest first."""
    for level, reason in isolations().items():
        works = "works, on request only: hides no files" if level == "process" else "works"
        yield level, f"does not work: {reason[:160]}" if reason else works
    yield "pytest", "installed" if is_installed("pytest") else "not installed: pip install pytest"
