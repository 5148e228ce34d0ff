"""Preferences are read from every form that they come in."""

import json
from pathlib import Path

import pytest

from evidence.baselines.preference_files import Preference, read_preferences
from places import SHARED
from text2grad.cli.__main__ import main
from text2grad.errors import DataError

ULTRAFEEDBACK = SHARED / "data" / "ultrafeedback_binarized" / "train.jsonl"


def test_pairs_are_read_from_every_form_they_come_in(tmp_path: Path) -> None:
    wanted = Preference("Where?", "In Lyon.", "Here.")
    chat = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "In Lyon."}]
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"prompt": "Where?", "chosen": "In Lyon.", "rejected": "Here.", "score": 3}) + "\n")
    out = ["--out", str(tmp_path / "examples.jsonl"), "--column", "reference=chosen"]
    assert main(["feedback", "import", "table", str(path), *out]) == 0
    assert read_preferences(path) == read_preferences(tmp_path / "examples.jsonl") == [wanted]
    path.write_text(json.dumps({"prompt": "Where?", "chosen": chat, "rejected": "Here."}) + "\n")
    assert read_preferences(path) == [wanted]


def test_a_record_that_is_no_pair_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "Where?", "chosen": "In Lyon.", "rejected": "Here."}\n{"prompt": "Where?"}\n')
    with pytest.raises(DataError, match=rf'^{path}:2: "chosen" must be a text'):
        read_preferences(path)
    path.write_text("")
    with pytest.raises(DataError, match="has no records"):
        read_preferences(path)


@pytest.mark.skipif(not ULTRAFEEDBACK.exists(), reason=f"no data in {ULTRAFEEDBACK}")
def test_ultrafeedback_is_read_whole() -> None:
    found = read_preferences(ULTRAFEEDBACK)
    assert len(found) == 400
    assert all(one.prompt and one.chosen for one in found)
