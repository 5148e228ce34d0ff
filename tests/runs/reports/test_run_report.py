"""Finished runs become numbers, a table, a picture and a page; what is no run is refused."""

import io
import json
import os
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from text2grad.errors import DataError
from text2grad.runs.reports.plots import (
    COLOURS,
    Line,
    curve_panel,
    panels_png,
    smoothed_points,
)
from text2grad.runs.reports.run_report import PANELS, Run, change_table, read_run, run_panels, write_report

pytestmark = pytest.mark.usefixtures("drawn_pictures")

STEPS = 4


def metrics(step: int, bend: float = 1.0) -> dict[str, float]:
    return {
        "step": step,
        "reward/per_response": bend * step,
        "delta/negative_share": 0.5 - 0.1 * step,
        "kl/per_token": 0.01 * step,
        "seconds/rollout": 1.5,
        "seconds/update": 0.123,
    }


def record(response: str, step: int = 0) -> dict[str, Any]:
    return {
        "step": step,
        "prompt": f"prompt of {response}",
        "response": response,
        "truncated": False,
        "critique": {"feedback": f"words on {response}", "spans": [], "outcome": None, "status": "ok", "unmatched": []},
        "ids": [1],
        "offsets": [[0, len(response)]],
        "delta": [1.0],
    }


def run_in(directory: Path, *, evaluations: dict[int, dict[str, float]] | None = None, bend: float = 1.0) -> Path:
    """Write what a run of four steps writes, rollouts in two files."""
    (directory / "rollouts").mkdir(parents=True)
    lines = [json.dumps(metrics(step, bend)) for step in range(STEPS)]
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    for number, steps in enumerate(([0, 1], [2, 3])):
        rows = [
            json.dumps(record(f"{directory.name} says {row} at {step}", step)) for step in steps for row in "abcdefghi"
        ]
        (directory / "rollouts" / f"{number:05d}.jsonl").write_text("\n".join(rows) + "\n")
    for step, found in (evaluations or {}).items():
        (directory / "evaluations").mkdir(exist_ok=True)
        held_out = [
            {**record(f"{directory.name} held out {row} at {step}", step), "prompt": f"held-out prompt {row}"}
            for row in "ab"
        ]
        content = {"step": step, "metrics": found, "records": held_out, "responses": held_out}
        (directory / "evaluations" / f"{step:06d}.json").write_text(json.dumps(content))
    return directory


EVALUATIONS = {
    0: {"fact_f1": 0.25, "mean_tokens": 20.0, "kl_per_token": 0.0},
    2: {"fact_f1": 0.9, "mean_tokens": 30.0, "kl_per_token": 0.1},
    4: {"fact_f1": 0.75, "mean_tokens": 18.25, "kl_per_token": 0.0123},
}


# Reading.


def curves_png(runs: list[Run], *, metric: str = "") -> bytes:
    return panels_png(run_panels({run.directory.name: [run] for run in runs}, metric))


def test_a_run_is_read_back_in_the_order_of_its_steps(tmp_path: Path) -> None:
    run = read_run(run_in(tmp_path / "spans", evaluations=dict(reversed(EVALUATIONS.items()))))
    assert run.directory == tmp_path / "spans"
    assert run.metrics == [metrics(step) for step in range(STEPS)]
    assert [one["step"] for one in run.evaluations] == [0, 2, 4]


@pytest.mark.parametrize("content", [None, ""])
def test_a_directory_without_a_step_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    with pytest.raises(DataError) as caught:
        read_run(tmp_path)
    assert str(caught.value) == f"{tmp_path} holds no run with a finished step: metrics.jsonl is missing or empty"


def test_a_line_torn_by_a_kill_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1, "rew')
    with pytest.raises(DataError) as caught:
        read_run(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'metrics.jsonl'} is damaged (Unterminated string starting at: line 1 column 13 (char 12)). "
        "Resume the run with --resume, which repairs the file"
    )


def test_a_damaged_evaluation_is_named(tmp_path: Path) -> None:
    run = run_in(tmp_path / "spans", evaluations=EVALUATIONS)
    path = next((run / "evaluations").glob("*.json"))
    path.write_text("{cut")
    with pytest.raises(DataError, match=f"^cannot read {path}: .* Remove it: the report goes on without it$"):
        read_run(run)


# The table.


def test_results_hold_before_after_time_and_place(tmp_path: Path) -> None:
    run = read_run(run_in(tmp_path / "spans", evaluations=EVALUATIONS))
    results = write_report(run, tmp_path / "out", metric="fact_f1", title="A run")
    seconds = {"rollout": 6.0, "update": 0.49}
    assert results == {
        "runs": {
            "spans": {
                "before": EVALUATIONS[0],
                "after": EVALUATIONS[4],
                "steps": STEPS,
                "seconds": seconds,
                "out": str(tmp_path / "spans"),
            },
        }
    }
    plain = write_report(read_run(run_in(tmp_path / "plain")), tmp_path / "other", title="Not evaluated")
    assert plain["runs"]["plain"] == {
        **results["runs"]["spans"],
        "before": {},
        "after": {},
        "out": str(tmp_path / "plain"),
    }
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["curves.png", "report.html", "results.json"]


@pytest.mark.parametrize("learning", [(0, 2), (1, 3)])
def test_the_time_of_rounds_counts_where_only_some_steps_learn(tmp_path: Path, learning: tuple[int, ...]) -> None:
    run = read_run(run_in(tmp_path / "rival"))
    for step, line in enumerate(run.metrics):
        if step not in learning:
            del line["seconds/update"]
    results = write_report(run, tmp_path / "out", metric="fact_f1", title="A rival")
    assert results["runs"]["rival"]["seconds"] == {"rollout": 6.0, "update": 0.25}  # 2 · 0.123, rounded


def test_the_table_has_a_row_for_each_metric_of_both_ends() -> None:
    before = {"fact_f1": -0.25, "mean_tokens": 20.0}
    after = {"fact_f1": 1.0, "mean_tokens": 1018.25, "new": -12.34}
    ends = [{"step": step, "metrics": found, "responses": [{}] * 3} for step, found in ((0, before), (4, after))]
    shown = change_table(Run(Path("a"), [metrics(0)], ends))
    assert (shown.caption, shown.columns) == ("3 held-out responses", ("", "step 0", "step 4", "change"))
    assert shown.rows == [("fact f1", "-0.2500", "1.00", "+1.250"), ("mean tokens", "20.00", "1,018", "+998.250")]


def test_without_two_evaluations_the_table_is_of_rollouts() -> None:
    shown = change_table(Run(Path("a"), [metrics(step) for step in range(4)], []))
    assert (shown.caption, shown.columns) == ("Rollouts in training", ("", "first 2 steps", "last 2 steps", "change"))
    assert shown.rows[0] == ("reward", "0.5000", "2.50", "+2.000")  # (0 + 1) / 2 and (2 + 3) / 2
    assert [row[0] for row in shown.rows] == ["reward", "negative share", "kl per token"]


# The picture.


def pixels(png: bytes) -> np.ndarray[Any, Any]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return matplotlib.image.imread(io.BytesIO(png))[:, :, :3]  # [height, width, 3] in [0, 1]


def drawn_in(image: np.ndarray[Any, Any], colour: str) -> np.ndarray[Any, Any]:
    """Return the columns in which a line of this very colour is drawn."""
    return np.unique((np.abs(image - np.array(to_rgb(colour))) < 0.01).all(axis=2).nonzero()[1])


def curves(name: str, *, bend: float = 1.0, evaluated: bool = False) -> Run:
    steps = [metrics(step, bend) for step in range(STEPS)]
    points = [(0, 0.25), (4, 0.25 + bend / 2)] if evaluated else []
    return Run(
        Path(name), steps, [{"step": step, "metrics": {"fact_f1": value, "rouge_l": value}} for step, value in points]
    )


def test_every_panel_shows_a_line_of_each_run() -> None:
    image = pixels(curves_png([curves("first"), curves("second", bend=0.5), curves("third", bend=-1.0)]))
    panels = [  # the second colour is a grey, which the letters have too
        {int(column * len(PANELS) / image.shape[1]) for column in drawn_in(image, colour)} for colour in COLOURS
    ]
    assert 0 in panels[0]  # in the others the curve of the first run lies under that of the third
    assert panels[2] == {0, 1, 2}
    assert panels[3] == set()


def test_evaluations_add_a_panel_before_the_others() -> None:
    plain = pixels(curves_png([curves("spans")]))
    evaluated = pixels(curves_png([curves("spans", evaluated=True)], metric="fact_f1"))
    panels, width = len(PANELS) + 1, evaluated.shape[1]
    assert width / panels == pytest.approx(plain.shape[1] / len(PANELS), rel=0.01)
    assert {int(column * panels / width) for column in drawn_in(evaluated, COLOURS[0])} == set(range(panels))


def test_the_picture_follows_the_numbers_and_names_the_metric() -> None:
    first = curves_png([curves("a", evaluated=True)], metric="fact_f1")
    assert curves_png([curves("a", evaluated=True)], metric="fact_f1") == first
    assert curves_png([curves("a", evaluated=True, bend=-1.0)], metric="fact_f1") != first
    assert curves_png([curves("a", evaluated=True)], metric="rouge_l") != first


def test_smoothing_starts_at_the_first_value_and_forgets_slowly() -> None:
    # 1;  0.8·1 + 0.2·2 = 1.2;  0.8·1.2 + 0.2·0 = 0.96
    assert [y for _, y in smoothed_points([(0, 1.0), (1, 2.0), (2, 0.0)])] == pytest.approx([1.0, 1.2, 0.96])
    assert smoothed_points([]) == []


# The page.


def shown(out: Path) -> str:
    return unescape((out / "report.html").read_text("utf-8"))


def test_the_page_shows_the_same_held_out_prompts_before_and_after(tmp_path: Path) -> None:
    run = read_run(run_in(tmp_path / "a", evaluations=EVALUATIONS))
    write_report(run, tmp_path / "out", metric="fact_f1", title="A & B")
    page = shown(tmp_path / "out")
    for text in ("A & B", "Before training", "after 4 steps", "After 4 steps", "0.7500", "0.2500"):
        assert text in page, text
    for step in (0, 4):
        for row in "ab":
            assert page.count(f"a held out {row} at {step}") >= 2, "response and critique"
    assert page.count("held-out prompt a") == 1, "both responses stand below one prompt"
    assert "a held out a at 2" not in page


def test_a_run_without_held_out_examples_shows_its_first_and_last_rollouts(tmp_path: Path) -> None:
    write_report(read_run(run_in(tmp_path / "a")), tmp_path / "out", title="One run")
    page = shown(tmp_path / "out")
    places = [page.index(f"<h2>{text}") for text in ("Rollouts of the first step", "Rollouts of the last step")]
    places[1:1] = [page.index("prompt of a says a at 0"), page.index("prompt of a says f at 0")]
    assert sorted(places) == places
    assert page.index("prompt of a says d at 3") > places[-1]
    assert all(f"prompt of a says {row} at 0" in page for row in "abcdef")
    assert all(f"prompt of a says {row} at 3" in page for row in "defghi")
    for absent in ("a says g at 0", "a says c at 3", "at 1", "at 2"):
        assert f"prompt of {absent}" not in page


def test_a_run_evaluated_once_has_no_curve_of_its_metric_and_shows_its_rollouts(tmp_path: Path) -> None:
    run = read_run(run_in(tmp_path / "a", evaluations={0: EVALUATIONS[0]}))
    write_report(run, tmp_path / "out", metric="fact_f1", title="One run")
    assert (tmp_path / "out" / "curves.png").read_bytes() == curves_png(
        [run._replace(evaluations=[])], metric="fact_f1"
    )
    assert "Rollouts of the first step" in shown(tmp_path / "out")


def test_the_curve_of_the_metric_goes_through_every_evaluation_that_has_it(tmp_path: Path) -> None:
    run = read_run(run_in(tmp_path / "a", evaluations=EVALUATIONS | {3: {"mean_tokens": 20.0}}))
    write_report(run, tmp_path / "out", metric="fact_f1", title="One run")
    known = [each for each in run.evaluations if each["step"] != 3]
    assert [each["metrics"]["fact_f1"] for each in known] == [0.25, 0.9, 0.75]
    expected = curves_png([run._replace(evaluations=known)], metric="fact_f1")
    assert (tmp_path / "out" / "curves.png").read_bytes() == expected


def test_every_panel_is_inside_the_page(tmp_path: Path) -> None:
    write_report(read_run(run_in(tmp_path / "a")), tmp_path / "out", title="One run")
    page = shown(tmp_path / "out")
    assert page.count("<img alt=") == len(PANELS)


def test_several_lines_are_named_beside_the_panel() -> None:
    def names(count: int, **level: Any) -> list[str] | None:
        axis = Figure(figsize=(4, 3), dpi=130, layout="constrained").subplots()
        lines = [Line(name, [(0, 0.0), (1, 0.5)], look=n) for n, name in enumerate(["_a", *"bcdefg"][:count])]
        curve_panel("t", "step", lines, **level)(axis)
        legend = axis.get_legend()
        return legend and [text.get_text() for text in legend.get_texts()]

    assert names(7) == list("abcdefg")
    assert names(1) is None
    assert names(1, level=("a name of two lines", 0.5)) == ["a name of two\nlines", "a"]


@pytest.mark.parametrize(("named", "kept"), [("no_such_backend", False), ("svg", True)])
def test_pictures_are_drawn_where_a_notebook_names_a_backend_that_is_missing(named: str, kept: bool) -> None:
    code = "import os; from functools import partial; from text2grad.runs.reports.plots import panels_png, style; "
    code += "png = panels_png([partial(style, title='a')]); import matplotlib; "
    code += "print(png[1:4], os.environ['MPLBACKEND'], matplotlib.get_backend())"
    environment = {**os.environ, "MPLBACKEND": named}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    png, variable, backend = done.stdout.split() or ["", "", done.stderr]
    assert (png, variable) == ("b'PNG'", named)
    assert (backend == named) is kept
