"""The wheel in an environment that holds it and the packages that its metadata names: no repository, no evidence.

The packages that an extra names, transitively, are linked from the environment of the tests: a dependency that
pyproject.toml forgets is missing there.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from places import ROOT


def built_wheel(folder: Path) -> Path:
    """Build the wheel of the repository in a folder."""
    code = f"import os; os.chdir({str(ROOT)!r}); from hatchling.build import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path, *extras: str) -> Path:
    """Make an environment in a folder with the wheel and its extras; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    with ZipFile(wheel) as archive:
        archive.extractall(site)
    (own,) = (candidate for candidate in distributions(path=[str(site)]) if candidate.name == "text2grad")
    for needed in _needed(own, extras):
        _link(needed, site)
    python = folder / "bin" / "python"
    for script in own.entry_points.select(group="console_scripts"):
        command = folder / "bin" / script.name
        command.write_text(
            f"#!{python}\nimport sys\nfrom {script.module} import {script.attr}\nsys.exit({script.attr}())\n"
        )
        command.chmod(0o755)
    return python


def install_sandbox(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel's sandbox and what it needs, without text2grad; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    with ZipFile(wheel) as archive:
        archive.extractall(site, [name for name in archive.namelist() if name.startswith("text2grad_sandbox/")])
    for name in ("lazy_loader", "packaging"):
        _link(distribution(name), site)
    return folder / "bin" / "python"


def run(python: Path, *argv: object, cwd: Path, code: int = 0, **environment: str) -> str:
    """Run the environment's Python away from the repository, and return what it printed."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    variables |= {"OMP_NUM_THREADS": "1", **environment}
    command = [str(python), *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=variables, timeout=280)
    assert done.returncode == code, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def _needed(own: Distribution, extras: Sequence[str]) -> list[Distribution]:
    """Return the distributions that the metadata asks for, each once."""
    needed: dict[str, Distribution] = {}
    waiting = [(own, ("", *extras))]
    while waiting:
        package, wanted = waiting.pop()
        for text in package.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in wanted):
                continue
            name = canonicalize_name(requirement.name)
            if name == "text2grad":  # an extra that contains another
                waiting.append((own, tuple(requirement.extras)))
            elif name not in needed or requirement.extras:
                needed[name] = distribution(name)
                waiting.append((needed[name], ("", *requirement.extras)))
    return list(needed.values())


def _link(needed: Distribution, site: Path) -> None:
    """Link the files of a distribution at the top of the environment's packages."""
    tops = {file.parts[0] for file in needed.files or () if file.parts[0] != ".."} - {"__pycache__"}
    for top in tops:
        source = Path(str(needed.locate_file(top)))
        if not (site / top).exists():
            (site / top).symlink_to(source, target_is_directory=source.is_dir())
        elif not (site / top).is_symlink() or (site / top).resolve() != source.resolve():
            raise AssertionError(f"{needed.name} and another package both have {top}")
