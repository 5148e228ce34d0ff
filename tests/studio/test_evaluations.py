"""Evaluations as curves."""

import json
import os
from pathlib import Path

from text2grad_studio.evaluations import Evaluations


def test_metrics_and_the_critics_agreement_are_read_once_and_broken_files_wait(tmp_path: Path) -> None:
    folder = tmp_path / "evaluations"
    folder.mkdir()
    later = {"step": 50, "metrics": {"f1": 0.5, "note": "x", "nan": float("nan")}, "critic": {"agreement": 0.75}}
    (folder / "000050.json").write_text(json.dumps(later))
    (folder / "000000.json").write_text(json.dumps({"step": 0, "metrics": {"f1": 0.25}, "critic": None}))
    (folder / "000060.json").write_text('{"step": 60, "met')
    evaluations = Evaluations()
    expected = [{"step": 0, "values": {"f1": 0.25}}, {"step": 50, "values": {"f1": 0.5, "critic agreement": 0.75}}]
    assert evaluations.read(tmp_path) == expected
    (folder / "000060.json").write_text(json.dumps({"step": 60, "metrics": {"f1": 1.0}}))
    before = (folder / "000050.json").stat()
    (folder / "000050.json").write_text(" " * before.st_size)
    os.utime(folder / "000050.json", ns=(before.st_atime_ns, before.st_mtime_ns))  # unchanged, as far as anyone sees
    others = ["[]", '{"step": 1e999, "metrics": {}}', '{"step": 1, "metrics": {}, "critic": [1]}', "[" * 100_000]
    for number, text in enumerate(others):  # of other programs
        (folder / f"other-{number}.json").write_text(text)
    assert evaluations.read(tmp_path) == [*expected, {"step": 60, "values": {"f1": 1.0}}]
    assert evaluations.read(tmp_path / "no") == []
