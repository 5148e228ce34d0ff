"""The paper's tables, counted by hand with a tokenizer that makes a token of every character."""

from typing import Any

import pytest

from evidence.commands.annotation_tables import Counts, Prices, paper_tables
from evidence.commands.token_rewards import TokenRewards
from text2grad.feedback.records import CritiqueRecord
from text2grad.runs.critic_quality.evaluation import quartiles
from text2grad.runs.reports.html import Table
from text2grad.runs.reports.terminal import as_text
from text2grad.types import Critique, Span


class Characters:
    """A tokenizer of characters."""

    def __call__(self, text: str, **settings: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}

    def decode(self, ids: list[int], **settings: Any) -> str:
        return "".join(map(chr, ids))


def counts() -> Counts:
    spans = (Span(0, 2, "negative"), Span(3, 4, "positive"))
    critique = Critique("ab", spans, -0.5, unmatched=("x",))
    record = CritiqueRecord(1, "f:1", "why", "ab c", critique)
    ids, offsets = tuple(map(ord, "ab c")), tuple((k, k + 1) for k in range(4))
    found = Counts()
    delta = (-1.0, -1.0, 0.0, 1.0)
    rewards = TokenRewards("ab c", critique, ids, "ab c", offsets, spans, ((0, 1), (3,)), delta)
    found.add(Characters(), record, rewards)
    return found


def test_one_response_by_hand() -> None:
    # Read: 3 of the prompt, 4 of the response. Written: {"textual_feedback": "ab", "good_spans": ["c"], "poor_spans":
    # ["ab"]} and
    # [["a", -1], ["b", -1], [" ", 0], ["c", 1]], a token for each of their characters.
    written = len('{"textual_feedback": "ab", "good_spans": ["c"], "poor_spans": ["ab"]}')
    dense = len('[["a", -1], ["b", -1], [" ", 0], ["c", 1]]')
    found = counts().as_json(Prices(read=1.0, written=2.0))
    assert found == {
        "responses": 1,
        "read": 7,
        "written": written,
        "written_dense": dense,
        "tokens": 4,
        "tokens_labelled": 3,
        "spans": 2,
        "unmatched": 1,
        "unsupported": 1,
        "saved_share": 1 - written / dense,
        "cost_usd": (7 + 2 * written) / 1e6,
        "cost_dense_usd": (7 + 2 * dense) / 1e6,
        "unmatched_rate": 1 / 3,
        "unsupported_share": 0.5,
        "spans_per_response": 2.0,
        "labelled_share": 0.75,
        "span_tokens": {"positive": [1.0, 1.0, 1.0], "negative": [2.0, 2.0, 2.0]},
        "outcomes": {"none": 0, "negative": 1, "zero": 0, "positive": 0},
        "flagged": ["f:1: c"],
    }


@pytest.mark.parametrize(("outcome", "kind"), [(None, "none"), (-1.0, "negative"), (0.0, "zero"), (0.5, "positive")])
def test_outcomes_are_counted_by_kind(outcome: float | None, kind: str) -> None:
    found = Counts()
    critique = Critique("", outcome=outcome)
    rewards = TokenRewards("", critique, (), "", (), (), (), ())
    found.add(Characters(), CritiqueRecord(1, "f", "", "", critique), rewards)
    assert found.outcomes == {kind: 1}
    assert found.as_json(Prices())["span_tokens"] == {"positive": None, "negative": None}


def test_the_tables_name_each_task_and_the_prices() -> None:
    tables = paper_tables({"qa": counts(), "none": Counts()}, Prices())
    assert [row[0] for row in tables[0].rows] == ["qa", "none"]
    assert tables[1].caption == "Cost of annotation (table 14), USD at 2.5 per million tokens read and 10 written"
    assert tables[2].rows[0] == ("qa", "2", "33.3 % (1)", "50.0 % (1)", "2.00", "75.0 %")
    assert list(tables[3].rows) == [("qa", "positive", "1", "1", "1"), ("qa", "negative", "2", "2", "2")]
    assert tables[4].rows[0] == ("qa", "0", "1", "0", "0")


def test_tables_as_text() -> None:
    lines = as_text([Table("T", ("a", "bb"), [("xyz", "1")]), Table("U", ("c",), [])]).splitlines()
    assert [line for line in lines if line.strip(" ─")] == ["T", "  a     bb", "  xyz    1", "U", "  c"]


def test_quartiles_of_nothing_are_none() -> None:
    assert quartiles([]) is None
