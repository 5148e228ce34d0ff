"""`text2grad feedback check`: who judged each line, the table, and what cannot be judged."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from text2grad.cli.__main__ import main
from text2grad_studio.index import item_of
from text2grad_studio.marks import MarkStore

LYON = "In Lyon on Friday."
LINE: dict[str, Any] = {"prompt": "When?", "response": LYON}
RIGHT, WRONG = [[3, 7, "positive"], [11, 17, "negative"]], [[3, 7, "negative"], [11, 17, "positive"]]
VERDICT = re.compile("(no sign of trouble|cannot be judged|look: .+)$")


def write(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps({**LINE, **line}) + "\n" for line in lines), "utf-8")
    return str(path)


def by(rater: str, spans: list[Any]) -> list[dict[str, Any]]:
    return [{"start": start, "end": end, "label": label, "rater": rater} for start, end, label in spans]


def rows(capsys: pytest.CaptureFixture[str], *files: str) -> tuple[dict[str, str], list[str]]:
    """Return the rows of the table by rater, with single spaces, and the lines below."""
    assert main(["feedback", "check", *files]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    table = [line for line in lines if VERDICT.search(line)]
    return {line.split()[0]: line for line in table}, lines[lines.index(table[-1]) + 1 :]


def test_raters_are_those_of_spans_lines_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    team = write(tmp_path / "team.jsonl", {"spans": by("ann", RIGHT)}, {"spans": [], "rater": "ben", "seconds": 9})
    mine = write(tmp_path / "cleo.jsonl", {"spans": RIGHT}, {"spans": [], "prompt": "Where?"})
    hers = write(tmp_path / "export.jsonl", {"spans": by("dora", RIGHT)}, {"spans": [], "prompt": "Where?"})
    table, below = rows(capsys, team, mine, hers)
    cleo = str(tmp_path / "cleo")
    assert {name: line.split()[1:3] for name, line in table.items()} == {
        "ann": ["1", "2"],
        "ben": ["1", "0"],
        cleo: ["2", "2"],
        "dora": ["2", "2"],
    }
    assert below == []  # one line has a time


def test_lines_by_several_raters_or_by_nobody_among_others_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = by("ann", RIGHT[:1]) + by("ben", RIGHT[1:])
    lines = [{"spans": by("ann", RIGHT)}, {"spans": by("ben", RIGHT)}, {"spans": []}, {"spans": both}]
    team, pair = write(tmp_path / "team.jsonl", *lines), write(tmp_path / "pair.jsonl", {"spans": both})
    table, below = rows(capsys, team, pair)
    assert sorted(table) == ["ann", "ben"]
    assert below == [
        "3 answers name no rater, or several, and are left out",
        'no line has "seconds": haste is not judged',
    ]


def test_the_verdict_has_figures_and_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"prompt": f"When {n}?", "spans": WRONG if rater == "eve" else RIGHT, "rater": rater, "seconds": 20}
        for n in range(6)
        for rater in ("ann", "ben", "cleo", "eve")
    ]
    table, below = rows(capsys, write(tmp_path / "team.jsonl", *lines))
    assert next(iter(table)) == "eve"
    # words: In, Lyon, on, Friday and the full stop; on all of them eve's δ is minus that of the others, whose mean is 0
    assert table["eve"].startswith("eve 6 12 40% -1.00 [-1.00, -1.00] +")
    assert " 20 look: marks the opposite of the others; " in table["eve"]
    assert table["ann"].endswith(" 20 no sign of trouble")
    assert below == []


def test_what_cannot_be_judged_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"spans": RIGHT, "rater": "ann"}, {"prompt": "Where?", "spans": [], "rater": "ben"}]
    table, below = rows(capsys, write(tmp_path / "team.jsonl", *lines))
    assert table["ann"] == "ann 1 2 40% – – – cannot be judged"  # ben marks nothing, which a model of nothing predicts
    assert table["ben"].startswith("ben 1 0 0% – +0.0% [+0.0%, +0.0%] – ")
    assert below == [
        "agreement is not judged, since no response with marks has two raters; harm and single words are",
        'no line has "seconds": haste is not judged',
    ]


def test_one_rater_and_failed_critiques_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = {"critique": {"feedback": "", "spans": [], "status": "timed_out"}, "rater": "ben"}
    file = write(tmp_path / "team.jsonl", {"spans": RIGHT, "rater": "ann"}, failed)
    assert main(["feedback", "check", file]) == 2
    assert "raters are judged by each other, and the files name ann." in capsys.readouterr().err


def test_a_directory_of_the_studio_has_all_its_raters_with_their_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, item = MarkStore(tmp_path), item_of("When?", LYON)
    mark = {"op": "span", "item": item, "id": "a", "start": 3, "end": 7, "label": "positive"}
    for rater, seconds in (("ann", 20), ("ben", 30)):
        for second, events in ((1000, [{"op": "open", **LINE}]), (1000 + seconds, [mark])):
            monkeypatch.setattr("text2grad_studio.marks.time.time_ns", lambda second=second: second * 10**9)
            store.append(rater, "0" * 12, events)
        store = MarkStore(tmp_path)  # whose clock does not go on from the rater before
    table, below = rows(capsys, str(tmp_path))
    assert table["ann"].startswith("ann 1 1 20% 1.00 [1.00, 1.00] ")
    assert table["ann"].endswith(" 20 no sign of trouble")
    assert table["ben"].endswith(" 30 no sign of trouble")
    assert below == []
    assert main(["feedback", "check", str(tmp_path / "marks")]) == 2
    assert "the files name none." in capsys.readouterr().err
