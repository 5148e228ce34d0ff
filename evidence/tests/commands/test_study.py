"""The study for people: sheets that no spreadsheet obeys, and what raters say."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from evidence.__main__ import main
from evidence.commands.sheets import CUT, MAX_CELL, cell, critique_items
from evidence.commands.study import fleiss_kappa, measure_ratings
from text2grad.feedback.records import CritiqueRecord
from text2grad.types import Critique

derandomized = settings(derandomize=True, deadline=None, max_examples=60)

# Fleiss (1971) as in every textbook: 14 raters put 10 subjects into 5 categories.
TEXTBOOK = """0 0 0 0 14  0 2 6 4 2  0 0 3 5 6  0 3 9 2 0  2 2 8 1 1
              7 7 0 0 0   3 2 6 3 0  2 5 3 2 2  6 5 2 1 0  0 2 2 3 7"""


def test_kappa_is_of_the_items_that_every_rater_rated() -> None:
    assert measure_ratings([[True, True], [True, True]])["kappa"] is None
    assert measure_ratings([[True, False]])["kappa"] is None
    rated = measure_ratings([[True, False, True], [True, False, False], [False, False, None]])
    # the first two items: P = (1/3 + 1) / 2 = 2/3, two ratings of six are yes: P_e = 1/9 + 4/9; (6/9 - 5/9) / (4/9)
    assert rated["kappa"] == pytest.approx(1 / 4)


def test_kappa_is_that_of_the_textbook() -> None:
    counts = np.array(TEXTBOOK.split(), dtype=float).reshape(10, 5)
    assert fleiss_kappa(counts) == pytest.approx(0.210, abs=5e-4)


def critiques(path: Path, number: int) -> Path:
    records = [
        {
            "prompt": "=1+1" if row == 0 else f"Where, {row}?",
            "response": f"In Lyon <b>{row}</b>",
            "critique": {"feedback": f"-{row} is right", "spans": [[3, 7, "positive"], [0, 2, "negative"]]},
        }
        for row in range(number)
    ]
    failed = {"prompt": "x", "response": "y", "critique": {"feedback": "", "spans": [], "status": "unparsable"}}
    (path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in [*records, failed]))
    return path / "in.jsonl"


def exported(path: Path, *options: str) -> list[dict[str, str]]:
    assert main(["study", str(critiques(path, 6)), "--out", str(path / "study"), *options]) == 0
    return rows(path)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((path / "study" / "sheet.csv").read_text("utf-8-sig"), newline="")))


def filled(path: Path, name: str, answers: list[tuple[str, str]], *, delimiter: str = ",") -> str:
    """Fill the sheet as a rater does, and save it as a spreadsheet does."""
    text, found = io.StringIO(), rows(path)
    writer = csv.DictWriter(text, list(found[0]), delimiter=delimiter)
    writer.writeheader()
    for row, (critique, spans) in zip(found, answers, strict=True):
        writer.writerow({**row, "critique_correct": critique, "spans_correct": spans})
    (path / f"{name}.csv").write_text(text.getvalue() + delimiter * (len(found[0]) - 1) + "\n", "utf-8", newline="")
    return str(path / f"{name}.csv")


def test_a_sheet_holds_items_drawn_at_random_and_nothing_that_acts_as_a_formula(tmp_path: Path) -> None:
    found = exported(tmp_path)
    assert len(found) == 6  # the critique that could not be read is not rated
    assert len({row["item"] for row in found}) == 6
    assert {row["prompt"] for row in found} == {"'=1+1", *(f"Where, {n}?" for n in range(1, 6))}
    assert {row["critique"] for row in found} == {f"'-{n} is right" for n in range(6)}
    assert {row["positive_quotes"] for row in found} == {"• Lyon"}
    assert {(row["critique_correct"], row["spans_correct"], row["notes"]) for row in found} == {("", "", "")}
    page = (tmp_path / "study" / "sheet.html").read_text()
    assert "In Lyon <b>" not in page
    assert '<span class="t p4" title="δ 1">Lyon</span>' in page
    study = json.loads((tmp_path / "study" / "study.json").read_text())
    assert sorted(study["items"].values()) == [1, 2, 3, 4, 5, 6]
    assert list(study["items"].values()) != [1, 2, 3, 4, 5, 6]


def test_a_seed_draws_the_same_items_and_a_filled_sheet_is_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = exported(tmp_path, "--items", "3")
    assert main(["study", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "study")]) == 2
    assert "study/sheet.csv exists and may hold ratings. Choose another --out, or remove the file" in " ".join(
        capsys.readouterr().err.split()
    )
    (tmp_path / "study" / "sheet.csv").unlink()
    assert exported(tmp_path, "--items", "3") == first


def test_two_critics_on_the_same_responses_have_items_of_their_own_names() -> None:
    names = [
        {item.id for item in critique_items([CritiqueRecord(1, "", "Where?", "In Lyon.", Critique(said))], 1, seed=0)}
        for said in ("Right.", "Wrong.")
    ]
    assert not names[0] & names[1]  # or one critic's filled sheet would count for the other


@derandomized
@given(st.text())
def test_no_cell_begins_as_a_formula_does(text: str) -> None:
    assert not cell(text).lstrip().startswith(("=", "+", "-", "@", "＝"))
    assert cell(text).removeprefix("'") == text.replace("\0", "\ufffd") or text.startswith("'")


def test_a_cell_begins_with_no_tab_and_holds_no_nul() -> None:
    assert (cell("\t1"), cell("\n1"), cell("a\0b")) == ("'\t1", "'\n1", "a\ufffdb")


def test_a_cell_is_cut_where_spreadsheets_would() -> None:
    assert cell("x" * MAX_CELL) == "x" * MAX_CELL
    assert cell("x" * (MAX_CELL + 1)) == "x" * MAX_CELL + CUT


def test_three_raters_come_to_what_is_made_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported(tmp_path, "--items", "4")
    sheets = [
        filled(tmp_path, "ann", [("yes", "1"), ("yes", "1"), ("yes", "0"), ("no", "")]),
        filled(tmp_path, "ben", [("Y", "1"), ("n", "1"), ("correct", "0"), ("0", "")], delimiter=";"),
        filled(tmp_path, "cleo", [("TRUE", "1"), ("yes", "1"), ("no", "0"), ("no", "1")], delimiter="\t"),
    ]
    assert main(["study", *sheets, "--out", str(tmp_path)]) == 0
    assert main(["study", *sheets, "--out", str(tmp_path)]) == 2
    assert "agreement.json would be overwritten; choose another --out, or add --force" in capsys.readouterr().err
    assert main(["study", *sheets, "--out", str(tmp_path), "--force"]) == 0
    found = json.loads((tmp_path / "agreement.json").read_text())["questions"]
    words, spans = found["critique_correct"], found["spans_correct"]
    # words: yes 3 2 2 0 of 3: 7/12; a majority of 3 items of 4; pairs alike 1, 1/3, 1/3, 1: 2/3
    assert (words["items"], words["raters"], words["ratings"]) == (4, 3, 12)
    assert words["correct"]["value"] == 7 / 12
    assert (words["majority"], words["agreement"]) == (3 / 4, pytest.approx(2 / 3))
    # kappa: P_e = (7/12)² + (5/12)² = 74/144; (2/3 − 74/144) / (1 − 74/144) = 22/70
    assert words["kappa"] == pytest.approx(22 / 70)
    # alpha: 12 ratings, disagreement D_o = 1/3, expected 2 · 7 · 5 / (12 · 11) = 70/132: 1 − (1/3) / (70/132) = 26/70
    assert words["alpha"] == pytest.approx(26 / 70)
    # spans: three items rated by all, alike: kappa and agreement 1; the fourth has one rating
    assert (spans["ratings"], spans["agreement"], spans["kappa"], spans["alpha"]) == (10, 1.0, 1.0, 1.0)
    assert spans["correct"]["value"] == 7 / 10
    assert "58.3%" in capsys.readouterr().out


def test_without_ratings_no_share_is_defined() -> None:
    nobody = measure_ratings([[None], [None]])
    assert (nobody["correct"], nobody["majority"], nobody["ratings"]) == (None, None, 0)
    assert measure_ratings([[True], [False]])["majority"] == 0.0


def test_sheets_that_cannot_be_used_are_refused_with_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(tmp_path, "--items", "2")
    good = filled(tmp_path, "good", [("yes", "yes"), ("no", "no")])

    def refused(*sheets: str) -> str:
        assert main(["study", *sheets]) == 2
        return " ".join(capsys.readouterr().err.split())

    assert "row 3, spans_correct: expected yes or no, or an empty cell, got 'maybe'. Correct the cell" in refused(
        filled(tmp_path, "unsure", [("yes", "yes"), ("no", "maybe")])
    )
    assert "blank.csv. Fill in yes or no first" in refused(filled(tmp_path, "blank", [("", ""), ("", "")]))
    lines = Path(good).read_text().splitlines()
    (tmp_path / "short.csv").write_text("\n".join(lines[:-2]) + "\n")
    for sheets in ((good, str(tmp_path / "short.csv")), (str(tmp_path / "short.csv"), good)):
        assert f"{sheets[1]} and {sheets[0]} have different items, such as 2-" in refused(*sheets)
    (tmp_path / "twice.csv").write_text("\n".join([*lines[:-1], lines[1]]) + "\n")
    assert "row 4 repeats item 1-" in refused(str(tmp_path / "twice.csv"))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "it has no column 'item'. Give a filled sheet.csv" in refused(str(tmp_path / "other.csv"))
    (tmp_path / "latin.csv").write_bytes(b"item,\xe9\n")
    assert "save the file as UTF-8" in refused(str(tmp_path / "latin.csv"))
    assert "cannot read" in refused(str(tmp_path / "none.csv"))
