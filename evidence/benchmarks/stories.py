"""Train a pretrained model with the same critiques in three ways: as spans, or as one number per story.

    python evidence/benchmarks/stories.py ../shared/models/stories260k --out evidence/results

Trains evidence/recipes/stories.toml in three ways with three seeds each: spans with a short discount (the recipe), the
same δ summed into one number per story at γ = 1, and spans at γ = 1. Two runs at a time, one thread each. Writes
stories.json and stories.png and prints the table. Every run is evaluated before and after on 500 stories from held-out
openings. Finished runs are not repeated.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ARMS: dict[str, list[str]] = {
    "spans, short discount": [],
    "one number, γ = 1": ["reward.placement=last_token", "ppo.gamma=1.0", "ppo.whiten=full"],
    "spans, γ = 1": ["ppo.gamma=1.0", "ppo.whiten=full"],
}
COLUMNS = ("invented_share", "stories_with_invented", "distinct_2", "kl_per_token", "mean_words", "mean_tokens")


def train(job: tuple[str, int, Path, Path]) -> dict[str, Any]:
    """Train one way with one seed and return its metrics."""
    arm, seed, model, runs = job
    directory = runs / f"{list(ARMS).index(arm)}-{seed}"
    started = time.perf_counter()
    if not (directory / "results.json").exists():
        command = [sys.executable, "-m", "evidence", "train", str(ROOT / "evidence" / "recipes" / "stories.toml")]
        for setting in (
            f"model.path='{model}'",
            f"run.out='{directory}'",
            f"run.seed={seed}",
            "run.threads=1",
            *ARMS[arm],
        ):
            command += ["--set", setting]
        if (directory / "run.json").exists():
            command.append("--resume")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (runs / f"{directory.name}.log").open("ab") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log, env=environment)
    (run,) = json.loads((directory / "results.json").read_text("utf-8"))["runs"].values()
    path = [
        (point["step"], *(point["metrics"][key] for key in ("invented_share", "distinct_2", "kl_per_token")))
        for point in (
            json.loads(file.read_text("utf-8")) for file in sorted((directory / "evaluations").glob("*.json"))
        )
    ]
    print(f"{arm}, seed {seed}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return {"arm": arm, "seed": seed, **{k: run[k] for k in ("before", "after", "seconds", "steps")}, "path": path}


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Plot invented words against diversity and against KL, one path per run."""
    from matplotlib.figure import Figure

    from text2grad.runs.reports.plots import COLOURS, GRID, INK

    figure = Figure(figsize=(9.6, 4.0), dpi=120, layout="constrained", facecolor="white")
    for axis, (column, label) in zip(
        figure.subplots(1, 2, sharey=True),
        ((2, "distinct 2-grams"), (3, "KL from the start, nats per token")),
        strict=True,
    ):
        for number, arm in enumerate(ARMS):
            for run in (r for r in results if r["arm"] == arm):
                xs, ys = [p[column] for p in run["path"]], [100 * p[1] for p in run["path"]]
                axis.plot(xs, ys, color=COLOURS[number], linewidth=1.2, alpha=0.5)
                named = arm if run["seed"] == 0 else None
                axis.plot(xs[-1], ys[-1], "o", color=COLOURS[number], markersize=7, label=named)
        for start in (run["path"][0] for run in results):
            axis.plot(start[column], 100 * start[1], "s", color=INK)
        axis.set_xlabel(label, color=INK)
        axis.grid(color=GRID, linewidth=0.8)
        axis.set_axisbelow(True)
        axis.tick_params(colors=INK)
        for side in ("top", "right", "left", "bottom"):
            axis.spines[side].set_visible(False)
        axis.set_ylim(bottom=0)
    left, right = figure.axes
    left.set_ylabel("invented words, % of all words", color=INK)
    left.set_title("500 held-out stories; squares: before training", loc="left", fontsize=10.5, color=INK)
    right.legend(frameon=False, labelcolor=INK)
    figure.savefig(path)


def table(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table: before training, and mean and range over seeds of each way."""
    lines = ["| | " + " | ".join(c.replace("_", " ") for c in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for arm, when in (("before", "before"), *((arm, "after") for arm in ARMS)):
        rows = [r[when] for r in results if arm in ("before", r["arm"])]
        if not rows:
            continue
        cells = []
        for column in COLUMNS:
            values = [row[column] for row in rows]
            cells.append(f"{statistics.fmean(values):.4g} ({min(values):.3g} – {max(values):.3g})")
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the results and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "evidence" / "results")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "stories-contrast")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=2)
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    model = args.model.resolve()  # a resumed run must have the settings of its start
    jobs = [(arm, seed, model, args.runs) for seed in range(args.seeds) for arm in ARMS]
    with ThreadPoolExecutor(args.at_once) as pool:
        results = list(pool.map(train, jobs))
    (args.out / "stories.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    draw(results, args.out / "stories.png")
    print(table(results))


if __name__ == "__main__":
    main()
