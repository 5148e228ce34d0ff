"""Figures of evidence/results: what is committed is what the JSON files give."""

import json
import re
from pathlib import Path

import pytest
from made_records import record, study, write

from evidence.pages.blocks import BLOCKS, filled
from evidence.pages.markdown import widest
from evidence.pages.measures import lead
from evidence.pages.pages import result_pages
from evidence.pages.paper import paper_page
from evidence.pages.records import read_runs
from evidence.pages.selection import groups, missing_of_plan
from evidence.plans.experiment_plan import load_plan
from places import ROOT
from text2grad.errors import DataError

RESULTS = ROOT / "evidence" / "results"
PAGES = sorted(RESULTS.glob("*.md"))
MADE = ("comparison.md", "length.md", "grounded.md", "paper.md")  # whole pages
NO_FIGURES = {"0.12", "3.11"}
"""Numbers outside of blocks that are no results: β of the stories recipe, Python's version."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_committed_blocks_are_what_the_json_gives(page: Path) -> None:
    text = page.read_text("utf-8")
    assert filled(text, RESULTS) == text, "run python -m evidence results"


def test_committed_pages_are_what_the_records_give() -> None:
    path, records = ROOT / "evidence" / "recipes" / "results.toml", read_runs(RESULTS / "runs")
    for name, data in result_pages(records, missing_of_plan(load_plan(path), path, records), draw=False).items():
        assert (RESULTS / name).read_bytes() == data, f"{name}: run python -m evidence results"
        for picture in re.findall(r"\]\(([^)]+\.png)\)", data.decode()):
            assert (RESULTS / picture).exists(), f"{picture} is not committed: run python -m evidence results"


def test_the_page_beside_the_papers_tables_is_what_the_json_gives() -> None:
    assert (RESULTS / "paper.md").read_text("utf-8") == paper_page(RESULTS), "run python -m evidence results paper"


def test_runs_in_another_way_are_paired_with_the_recipes_by_seed(tmp_path: Path) -> None:
    """Invented shares 0.008, 0.010 → 0.006, 0.007: better by 0.0025 in the mean, ± 12.706 · 0.0005; seed 3 is alone."""
    values = {
        (1, "spans"): 0.008,
        (2, "spans"): 0.010,
        (1, "epochs"): 0.006,
        (2, "epochs"): 0.007,
        (3, "epochs"): 0.5,
    }
    runs = [
        {
            "task": "stories",
            "shown": shown,
            "seed": seed,
            "after": {"invented_share": value, "kl_per_token": 0.03 + 0.01 * (shown == "epochs")},
        }
        for (seed, shown), value in values.items()
    ]
    (tmp_path / "final_values.json").write_text(json.dumps(runs))
    last = filled("<!-- results: final-values -->\n<!-- end -->", tmp_path).splitlines()[-2]
    assert last.split(" | ") == [
        "| stories, spans, 4 epochs, β₁ = 0.5",
        "invented share",
        "0.0090",
        "0.0065",
        "0.0025 (−0.0039 to 0.0089)",
        "0.030",
        "0.040",
        "2 |",
    ]


def test_the_moves_of_tokens_are_added_up_by_cause(tmp_path: Path) -> None:
    """A fifth of the tokens moved wrong, a quarter of these for no known reason: 1 − 0.2 · 0.25 are explained."""
    figures = {"far": 1200, "far_right": 0.8, "open_right": 0.9, "far_distance": 0.97, "fresh_right": None}
    figures["fresh_open_right"] = 0.94
    causes = {"certain": 0.3, "momentum": 0.2, "kl": 0.1, "neighbours": 0.04, "shared": 0.06, "drift": 0.05}
    one = {
        "all": figures,
        "labels": {"negative": figures},
        "lengths": {"9–16": figures, "129–256": {**figures, "open_right": 0.5}},
        "steps": {"15": figures, "5": figures},
        "explanation": {"far_wrong": {"causes": {**causes, "unexplained": 0.25}}},
        "gradient": {"labelled_share": 1.02},
    }
    (tmp_path / "moves.json").write_text(json.dumps({"stories-spans": one}))
    page = filled("".join(f"<!-- results: {name} -->\n<!-- end -->\n" for name in ("moves", "moves-by-part")), tmp_path)
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    shown = {row[0].removeprefix("| "): row[1].removesuffix(" |") for row in rows}
    assert shown["moved right"] == "80%"
    assert shown["without the momentum of earlier updates: moved right"] == "–"
    assert shown["of those that moved wrong: KL, neighbours, the same token elsewhere, all tokens"] == "25%"
    assert shown["moved right or explained"] == "95%"
    assert shown["share of the gradient from labelled tokens"] == "102%"
    assert shown["responses of 129–256 tokens"] == "50%; 94%"
    names = [row[0] for row in rows]
    assert names.index("| step 5") < names.index("| step 15")
    assert names.index("| responses of 9–16 tokens") < names.index("| responses of 129–256 tokens")


def test_every_block_stands_in_a_page() -> None:
    used = [name for page in PAGES for name in re.findall(r"<!-- results: ([\w-]+) -->", page.read_text("utf-8"))]
    assert sorted(used) == sorted(BLOCKS)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in MADE], ids=lambda page: page.name)
def test_no_figure_stands_outside_of_the_blocks(page: Path) -> None:
    text = re.sub(r"<!-- results: .*?<!-- end -->", "", page.read_text("utf-8"), flags=re.DOTALL)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"arXiv \d+\.\d+|arxiv.org/abs/\S+", "", text)
    figures = re.findall(r"\d+\.\d\d+|\d+ %", text)
    assert [one for one in figures if one not in NO_FIGURES] == []


def test_of_a_metric_that_falls_the_lowest_number_is_the_highest() -> None:
    made = [record(name, seed, metric="unsupported_share") for name in ("grpo", "scalar_ppo") for seed in range(2)]
    [group] = groups(made)
    assert group.sign == -1
    assert group.highest_number() == "scalar_ppo"  # 0.80 beside 0.88
    [group] = groups([record("ilf", metric="unsupported_share")])
    assert group.highest_number() is None


@pytest.mark.parametrize(
    ("tuned", "told"),
    [
        (0.90, "No tuned settings end above the recipe's with the whole interval: the recipe's stay the defaults."),
        (0.932, "No tuned settings end above the recipe's with the whole interval: the recipe's stay the defaults."),
        (0.97, "Above the recipe's settings with the whole interval: Text2Grad."),
    ],
)
def test_tuned_settings_beside_those_of_the_recipe(tmp_path: Path, tuned: float, told: str) -> None:
    values = {"text2grad": tuned, "text2grad_group": 0.92, "grpo": 0.99, "recipe_settings": 0.93}
    made = study(values, lengths=(0,), critic="reward_model", speed=4)
    other_task = study(values, lengths=(0,), critic="reward_model", task="qa")
    write(tmp_path / "runs", [*made, *study(lengths=(0,)), *other_task])
    text = filled("<!-- results: defaults -->\n<!-- end -->", tmp_path)
    assert told in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == [
        "| **Text2Grad (the recipe's settings)**",
        "| Text2Grad, tuned",
        "| Text2Grad (group baseline), tuned",
    ]
    apart = study({"text2grad": 0.5, "recipe_settings": 0.5}, lengths=(0,), critic="reward_model", apart="again")
    write(tmp_path / "runs", apart, "apart")
    assert filled("<!-- results: defaults -->\n<!-- end -->", tmp_path) != text
    [group] = groups(made)
    ahead = lead(group, "text2grad", "recipe_settings")
    assert rows[1][2].startswith(f"{ahead.value:.3f} (".replace("-", "−"))
    assert (widest(ahead)[0] > 0) == (tuned > 0.95)
    assert (widest(ahead)[1] > 0) == (tuned > 0.93)  # 0.932: the interval contains 0


def test_tuned_settings_without_records(tmp_path: Path) -> None:
    write(tmp_path / "runs", study(lengths=(0,)))
    assert "is not finished" in filled("<!-- results: defaults -->\n<!-- end -->", tmp_path)


def test_notes_have_a_source_and_a_date() -> None:
    notes = json.loads((RESULTS / "notes.json").read_bytes())
    for name, note in notes.items():
        assert note["what"], name
        assert note["source"], name
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", note["date"]), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- results: speeed -->\n<!-- end -->", "named 'speeed'; choose from: learned-reward"),
        ("<!-- results: discounts -->\n", "1 of 1 blocks of the page have no"),
    ],
)
def test_a_wrong_block_is_refused(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        filled(text, RESULTS)


def test_an_absent_or_damaged_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*quickstart\.json"):
        filled("<!-- results: discounts -->\n<!-- end -->", tmp_path)
    (tmp_path / "quickstart.json").write_text("[", "utf-8")
    with pytest.raises(DataError, match=r"quickstart\.json is damaged"):
        filled("<!-- results: discounts -->\n<!-- end -->", tmp_path)
