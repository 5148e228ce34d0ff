"""Rows of rewards.jsonl read back as they were written."""

import json
import math
from pathlib import Path

from evidence.commands.align_report import row_of
from evidence.commands.token_rewards import label_tokens
from text2grad.align.delta import AlignSettings
from text2grad.feedback.records import CritiqueRecord, read_critique_records
from text2grad.types import Critique, Span
from tokenizers_made_here import made


def test_a_record_that_was_written_reads_back_as_the_same_rewards(tmp_path: Path) -> None:
    tokenizer = made("llama2")
    text = "so glad 😀😀 today"
    critique = Critique("Too\nmany.", (Span(8, 10, "negative"), Span(0, 7, "positive")), -0.5, "repaired", ("Nice",))
    record = CritiqueRecord(7, "x:7", "Ask", text, critique)
    settings = AlignSettings(span_mass="span")
    first = label_tokens(tokenizer, record.response, record.critique, settings, ids=record.ids)
    path = tmp_path / "rewards.jsonl"
    path.write_text(json.dumps(row_of(record, first)))
    (read,) = read_critique_records(path)
    again = label_tokens(tokenizer, read.response, read.critique, settings, ids=read.ids)
    written = row_of(read, again)
    assert written == {**row_of(record, first), "record": 1, "critique": written["critique"]}
    assert sorted(again.spans) == sorted(first.spans)
    assert again.critique.feedback == "Too\nmany."
    assert (again.critique.outcome, again.critique.status) == (-0.5, "repaired")
    assert again.critique.unmatched == ("Nice",)
    assert math.fsum(again.delta) == math.fsum(first.delta)
