"""People as judges of pairs: sides are hidden and found again, and people stand beside the models."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from evidence.__main__ import main
from text2grad.files import write_records


def pairs(path: Path, number: int) -> list[str]:
    """Write two files of responses, of which the first has the longer ones; return the command."""
    for name, text in (("ours", "a long text of number {}"), ("theirs", "short {}")):
        write_records(path / f"{name}.jsonl", [{"prompt": f"p{n}", "response": text.format(n)} for n in range(number)])
    return ["people", str(path / "ours.jsonl"), str(path / "theirs.jsonl"), "--out", str(path / "out")]


def sheet(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((path / "out" / "sheet.csv").read_bytes().decode("utf-8-sig"))))


def filled(path: Path, rows: list[dict[str, Any]]) -> str:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def test_people_never_see_the_sides_and_stand_beside_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = pairs(tmp_path, 8)
    assert main([*command, "--items", "8"]) == 0
    assert main(command) == 2
    assert "sheet.csv exists and may hold ratings" in capsys.readouterr().err
    rows = sheet(tmp_path)
    long_first = [row["text_1"].startswith("a long") for row in rows]
    assert 0 < sum(long_first) < 8  # both sides occur
    page = (tmp_path / "out" / "sheet.html").read_text()
    assert "a long text of number 3" in page
    assert "swap" not in page
    for row, longer in zip(rows, long_first, strict=True):  # ann always prefers the long one, but once
        row["better"] = "1" if longer else "2"
    rows[0]["better"] = "tie"
    rows[1]["better"] = ""
    human = ["--human", filled(tmp_path / "ann.csv", rows)]
    places = ["first", "second"]
    verdict = {"judge": "m", "response": None, "better": "first", "verdicts": ["first"] * 2, "places": places}
    texts = [{"prompt": f"p{n}", "first": f"a long text of number {n}", "second": f"short {n}"} for n in range(8)]
    write_records(tmp_path / "out" / "verdicts.jsonl", [{**verdict, **own} for own in texts])
    assert main([*command, *human]) == 0
    found = json.loads((tmp_path / "out" / "people.json").read_bytes())
    ann = found["judges"]["human ann"]
    assert (ann["wins"], ann["ties"], ann["losses"], ann["failed"]) == (6, 1, 0, 1)
    assert ann["rates"]["first_place"]["value"] == pytest.approx(sum(long_first[2:]) / 6)
    assert found["agreement"]["m and human ann"]["agreement"] == pytest.approx(6 / 7)
    turned = [command[0], command[2], command[1], *command[3:]]
    assert main([*turned, *human, "--force"]) == 2
    assert "verdicts.jsonl holds verdicts on other pairs" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "out" / "verdicts.jsonl").unlink()
    assert main([*turned, *human, "--force"]) == 2
    assert "is no pair of the two files. Give the files, in their order" in " ".join(capsys.readouterr().err.split())


def test_a_sheet_without_verdicts_and_a_word_without_meaning_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = pairs(tmp_path, 2)
    assert main(command) == 0
    rows = sheet(tmp_path)
    assert main([*command, "--human", filled(tmp_path / "ann.csv", rows)]) == 2
    assert "Fill in 1, 2 or tie first" in " ".join(capsys.readouterr().err.split())
    rows[0]["better"] = "both"
    assert main([*command, "--human", filled(tmp_path / "ann.csv", rows)]) == 2
    assert "expected 1, 2 or tie, or an empty cell, got 'both'" in " ".join(capsys.readouterr().err.split())
