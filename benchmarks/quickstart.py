"""Seconds and held-out F1 of `text2grad quickstart`, an earlier commit's beside this checkout's.

    python benchmarks/quickstart.py --json evidence/results/quickstart_speed.json

Both run in this environment, in turn, and each pair has a seed of its own: a run is given again with one seed more, and
leaves the finished ones alone. The earlier commit stands in a worktree of git; packages that it needs and that are
missing are named before anything runs. "ratio" is the earlier time divided by this checkout's. Nothing else may use the
machine meanwhile.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from statistics import median
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
COMMIT = "3d79ea59"
TASK = "summarization"


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Yield a directory with the files of a commit."""
    git = ("git", "-C", str(ROOT), "worktree")
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "earlier"
        subprocess.run([*git, "add", "--quiet", "--detach", str(place), commit], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def missing(place: Path) -> list[str]:
    """Return what a checkout needs, to train and annotate as well, and this environment has no package of."""
    project = tomllib.loads((place / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    installed = {canonicalize_name(package.name) for package in distributions()}
    needed = [*project["dependencies"], *extras["train"], *extras["annotate"]]
    return [line for line in needed if canonicalize_name(Requirement(line).name) not in installed]


def run(place: Path, out: Path, seed: int, settings: Sequence[str]) -> dict[str, Any]:
    """Run the quickstart of a checkout for a seed, after those before it; return its seconds, and F1 by method."""
    command = [sys.executable, "-m", "text2grad.cli", "quickstart", "--seeds", str(seed + 1), "--out", str(out)]
    command += [part for setting in settings for part in ("--set", setting)]
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=place, env={**os.environ, "PYTHONPATH": str(place / "src")})
    seconds = time.perf_counter() - started
    files = [path for directory in (out / TASK, out) if (path := directory / "results.json").exists()]
    result = json.loads(files[0].read_bytes())["tasks"][TASK]  # earlier commits wrote it one directory higher
    f1 = {name: method["final"][seed] for name, method in result["methods"].items()}
    return {"seconds": round(seconds, 1), "f1": f1, "phases": result["seconds"][seed], "items": items(out, seed)}


def items(out: Path, seed: int) -> list[str]:
    """Return the held-out prompts of the last evaluation of Text2Grad."""
    last = max((out / TASK / f"seed-{seed}" / "text2grad" / "evaluations").glob("*.json"))
    return [response["prompt"] for response in json.loads(last.read_bytes())["responses"]]


def compare(commit: str, pairs: int, settings: Sequence[str]) -> dict[str, Any]:
    """Return pairs of runs, one for each seed, and medians."""
    made = []
    with checkout(commit) as earlier, tempfile.TemporaryDirectory() as scratch:
        if lacking := missing(earlier):
            sys.exit(f"commit {commit} needs {len(lacking)} more: pip install {shlex.join(lacking)}")
        for seed in range(pairs):
            places = {"before": earlier, "now": ROOT}
            pair = {name: run(place, Path(scratch, name), seed, settings) for name, place in places.items()}
            same = pair["before"].pop("items") == pair["now"].pop("items")
            ratio = round(pair["before"]["seconds"] / pair["now"]["seconds"], 2)
            made.append({"seed": seed, **pair, "ratio": ratio, "same_held_out_items": same})
            sys.stdout.write(f"{json.dumps(made[-1])}\n")
    medians = {name: median(pair[name]["seconds"] for pair in made) for name in ("before", "now")}
    return {
        "commit": commit,
        "cores": os.cpu_count(),
        "pairs": made,
        **medians,
        "ratio": median(p["ratio"] for p in made),
    }


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=COMMIT, help="the earlier one (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs, of seeds 0, 1, ... (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting of both, for a trial")
    parser.add_argument("--json", type=Path, help="file of the figures")
    given = parser.parse_args()
    figures = json.dumps(compare(given.commit, given.pairs, given.settings), indent=1)
    if given.json:
        given.json.write_text(f"{figures}\n", "utf-8")
    sys.stdout.write(f"{figures}\n")


if __name__ == "__main__":
    main()
