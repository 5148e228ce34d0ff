"""`text2grad doctor`: extras, devices, sandbox and versions of this installation, and the lines that add the rest."""

import argparse
import os
import platform
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from text2grad.cli.options import add_command
from text2grad.errors import INSTALL, is_installed, require

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

MODULES = {
    "train": ("torch", "transformers", "accelerate", "peft", "trl", "datasets", "matplotlib"),
    "annotate": ("openai", "aiohttp", "tenacity"),
    "tune": ("optuna",),
    "studio": ("starlette", "uvicorn", "regex"),
}
"""Modules of an extra that its commands load."""

ABOUT = {
    "train": "everything that loads a model",
    "annotate": "critics on OpenAI-compatible servers",
    "eval": "ROUGE, BLEU, the agreement of raters, length control of AlpacaEval",
    "code": "tests of programs that are written for pytest",
    "trl": "text2grad.SpanGRPOTrainer",
    "tune": "search of settings, and experiments by a plan",
    "studio": "text2grad studio; teaching also needs [train]",
    "lm-eval": "text2grad evaluate policy --suite arc, and any task of lm-eval",
    "vllm": 'critic.kind = "vllm", rollout.engine = "vllm"; in an environment of its own, beside [train]',
    "dev": "tests and checks of the project",
}
TRACKERS = ("tensorboard", "wandb", "trackio")
FAULTS = {">=": "too old", "<": "too new"}
"""Operator of a bound → fault of a version outside."""

_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add_command(
        commands,
        "doctor",
        run,
        "show which extras, devices, sandbox and versions there are",
        "Show which optional packages are installed, in which versions, on which devices models can run, and how "
        "strongly model-written code is isolated. Of each missing part the line that installs it is shown.",
        "example:\n  text2grad doctor",
        extras=(),
    )


def check_extras(command: str, extras: Sequence[str]) -> None:
    """Check that the extras that a command needs are installed, before its work starts.

    Raises:
        ConfigError: if a package is missing; the message names the extra and the line that installs it.
    """
    for extra in extras:
        require(*MODULES[extra], extra=extra, purpose=command)


def run(args: argparse.Namespace) -> int:
    """Print the state of the installation."""
    console = Console(soft_wrap=True)
    console.print(f"text2grad {version('text2grad')}, Python {platform.python_version()}, {platform.platform()}\n")
    missing = _print_extras(console)
    console.print("\ndevices")
    for line in _devices():
        console.print(Text(f"  {line}"))
    console.print("\nisolation of model-written code (unit tests of code)")
    for line in _isolation():
        console.print(Text(f"  {line}"))
    console.print("\ntrackers (run.tracker)")
    for name in TRACKERS:
        console.print(Text(f"  {name:13}{_version(name) or f'not installed: pip install {name}'}"))
    if missing:
        console.print("\nin the repository of text2grad:")
        for extra in missing:
            console.print(Text(f"  {INSTALL.format(extra=extra):28}# {ABOUT.get(extra, extra)}"))
    return 0


def wanted() -> "dict[str, list[tuple[str, SpecifierSet]]]":
    """Return (package, range of versions) of each extra, as the installed project declares them."""
    from packaging.requirements import Requirement  # lazy_loader needs it, too

    extras: dict[str, list[tuple[str, SpecifierSet]]] = {}
    for requirement in map(Requirement, requires("text2grad") or ()):
        if found := _EXTRA.search(str(requirement.marker)):
            extras.setdefault(found[1], []).append((requirement.name, requirement.specifier))
    return dict(sorted(extras.items(), key=lambda pair: [*ABOUT, pair[0]].index(pair[0])))


def _print_extras(console: Console) -> list[str]:
    """Print a table of the extras and their packages; return the extras that are not complete."""
    table, missing = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0)), []
    for column in ("extra", "package", "wanted", "installed"):
        table.add_column(column, no_wrap=True)
    for extra, packages in wanted().items():
        for row, (name, versions) in enumerate(packages):
            there = _version(name)
            state = f"{there}{_fault(there, versions)}" if there else "–"
            if state != there and extra not in missing:
                missing.append(extra)
            table.add_row(Text("" if row else f"[{extra}]"), name, _range(versions), state)
        table.add_row()
    console.print(table)
    return missing


def _version(package: str) -> str:
    """Return the version of a package, or "" if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _fault(there: str, versions: "SpecifierSet") -> str:
    """Return ": " and the fault of a version, or "" if it is in the range.

    Example:
        >>> from packaging.specifiers import SpecifierSet
        >>> [_fault(there, SpecifierSet(">=1.9,<1.17")) for there in ("1.8.2", "1.10+cpu", "1.17.0")]
        [': too old', '', ': too new']
    """
    outside = [one for one in versions if not one.contains(there, prereleases=True)]
    return f": {FAULTS.get(outside[0].operator, 'not in the range')}" if outside else ""


def _range(versions: "SpecifierSet") -> str:
    """Return a range as text, the least version first."""
    return ",".join(sorted(map(str, versions), reverse=True)) or "any"


def _devices() -> Iterator[str]:
    """Yield the processor, and each accelerator with its memory."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield f"cpu           {os.cpu_count()} cores, {pages:.0f} GiB of memory"
    if not is_installed("torch"):
        yield "accelerators  unknown without torch"
        return
    import torch

    if not torch.accelerator.is_available():
        yield "accelerators  none that torch sees"
    elif torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(number)
            yield f"cuda:{number}        {device.name}, {device.total_memory / 2**30:.0f} GiB"
    else:
        found = torch.accelerator.current_accelerator()
        yield f"accelerator   {found}" + (" (not used: it has no 64-bit numbers)" if str(found) == "mps" else "")


def _isolation() -> Iterator[str]:
    """Yield whether each isolation of the sandbox works, the strongest first."""
    from text2grad_sandbox import isolations

    for level, reason in isolations().items():
        works = "works, on request only: hides no files" if level == "process" else "works"
        yield f"{level:13} " + (f"does not work: {reason[:160]}" if reason else works)
    pytest = "installed" if is_installed("pytest") else "not installed: pip install pytest"
    yield f"{'pytest':13} {pytest}"
