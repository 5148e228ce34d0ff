"""The index: filters against a plain loop, growth, resumed runs, broken lines, searches that take too long."""

import json
from pathlib import Path

import pytest

from studio_world import append, record, write_run
from text2grad.errors import ConfigError, DataError
from text2grad.studio.index import Filter, RunIndex, item_of
from text2grad.studio.sources import open_sources


def index_of(tmp_path: Path, run: Path) -> RunIndex:
    made = RunIndex(open_sources([run], tmp_path / "store")[0], tmp_path / "index.sqlite")
    assert made.update()
    return made


def places(index: RunIndex, wanted: Filter) -> list[tuple[int, int]]:
    return [(row["step"], row["row"]) for row in index.rows(index.find(wanted).ids)]


def test_rows_have_the_sums_of_their_records(tmp_path: Path) -> None:
    index = index_of(tmp_path, write_run(tmp_path / "run"))
    [row] = index.rows(index.find(Filter(step_from=2, text="Prompt 3")).ids)
    assert (row["tokens"], row["reward"], row["peak"]) == (7, -3.0, 5.0)  # −1 − step, |−2 − row|
    assert row["kl"] == pytest.approx(0.7)
    assert (row["positive"], row["negative"], row["unmatched"], row["truncated"]) == (1, 1, 0, 0)
    assert index.record(row["id"])["response"] == "The cat sat on the mat."
    assert index.state()["columns"] == ["advantage", "delta", "kl", "reward", "value"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(order="oldest"), [(s, r) for s in range(3) for r in range(4)]),
        (Filter(), [(s, r) for s in (2, 1, 0) for r in (3, 2, 1, 0)]),
        (Filter(step_from=1, step_to=1, order="oldest"), [(1, 0), (1, 1), (1, 2), (1, 3)]),
        (Filter(reward_from=-1.5, order="oldest"), [(0, 0), (0, 1), (0, 2), (0, 3)]),
        (Filter(reward_to=-2.5, status="cut"), [(2, 1)]),
        (Filter(label="unmatched", order="oldest"), [(0, 2), (1, 2), (2, 2)]),
        (Filter(label="none"), []),
        (Filter(status="unparsable"), []),
        (Filter(order="advantage", step_to=0), [(0, 3), (0, 2), (0, 1), (0, 0)]),
        (Filter(order="reward-low", status="cut"), [(2, 1), (1, 1), (0, 1)]),
        (Filter(text="PROMPT 2", order="oldest"), [(0, 2), (1, 2), (2, 2)]),
        (Filter(text="2.", order="oldest"), [(0, 2), (1, 2), (2, 2)]),
        (Filter(text='"cat%'), []),
    ],
)
def test_a_filter_finds_what_a_loop_would_find(tmp_path: Path, wanted: Filter, expected: list[tuple[int, int]]) -> None:
    assert places(index_of(tmp_path, write_run(tmp_path / "run")), wanted) == expected


def test_a_growing_run_is_followed_and_an_unfinished_line_waits(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1)
    index = index_of(tmp_path, run)
    line = json.dumps(record(1, 0, response="The dog")) + "\n"
    with (run / "rollouts" / "00000.jsonl").open("a") as file:
        file.write(line[:40])
        file.flush()
        index.update()
        assert index.state()["rollouts"] == 4
        file.write(line[40:])
    write_run(run, steps=1, rows=1, name="00001")
    index.update()
    assert places(index, Filter(order="oldest")) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (0, 4)]
    assert places(index, Filter(text="dog")) == [(1, 0)]
    again = RunIndex(index.source, index.path)  # a later session reads nothing twice
    again.update()
    assert again.state()["rollouts"] == 6


def test_steps_that_a_resumed_run_repeats_replace_the_old_ones(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=2)
    index, file = index_of(tmp_path, run), run / "rollouts" / "00000.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:4]))
    append(run, [record(1, row, response="A new text of the same step.") for row in range(8)])  # longer than before
    index.update()
    assert index.state()["rollouts"] == 12
    assert len(places(index, Filter(text="new text"))) == 8
    assert len(places(index, Filter(text="the mat"))) == 4


def test_broken_lines_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1, rows=1)
    with (run / "rollouts" / "00000.jsonl").open("a") as file:
        file.write('{"step": 1, "resp\n[1]\n{"step": 1, "prompt": "x"}\n')
    append(run, [record(1, 0)])
    state = index_of(tmp_path, run).state()
    assert (state["rollouts"], state["bad_lines"]) == (2, 3)
    assert state["problem"].startswith("00000.jsonl, byte ")


def test_a_regular_expression_without_end_stops_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("text2grad.studio.index.REGEX_SECONDS", 0.2)
    run = write_run(tmp_path / "run", steps=1, rows=1)
    append(run, [record(1, 0, response="a" * 60 + "!")])
    index = index_of(tmp_path, run)
    found = index.find(Filter(regex=r"^(a|aa)+$", order="oldest"))
    assert list(found.ids) == []
    assert found.unread == 1
    assert places(index, Filter(regex=r"^The \w+ sat")) == [(0, 0)]
    with pytest.raises(ConfigError, match="is no regular expression"):
        index.find(Filter(regex="("))


def test_surrogates_and_marks_of_queries_are_plain_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1, rows=1)
    append(run, [record(1, 0, response='half \ud800 "quoted" AND (NEAR) % _')])
    index = index_of(tmp_path, run)
    for text in ('"quoted" AND', "(NEAR)", "% _", "_"):
        assert places(index, Filter(text=text)) == [(1, 0)], text
    number = index.find(Filter(text="quoted")).ids[0]
    assert index.record(number)["response"] == 'half \ud800 "quoted" AND (NEAR) % _'


def test_links_name_a_step_and_a_row(tmp_path: Path) -> None:
    index = index_of(tmp_path, write_run(tmp_path / "run"))
    number = index.at_place(2, 3)
    assert number is not None
    found = index.record(number)
    assert (found["place"], found["prompt"]) == ([2, 3], "Prompt 3.")
    assert found["item"] == item_of("Prompt 3.", "The cat sat on the mat.")
    assert index.at_place(9, 0) is None


def test_curves_are_means_of_steps(tmp_path: Path) -> None:
    curves = index_of(tmp_path, write_run(tmp_path / "run")).curves()
    assert [(one["step"], one["reward"], one["truncated"], one["negative"]) for one in curves] == [
        (0, -1.0, 0.25, 1.0),
        (1, -2.0, 0.25, 1.0),
        (2, -3.0, 0.25, 1.0),
    ]


def test_files_of_other_projects_are_read(tmp_path: Path) -> None:
    file = tmp_path / "trl.jsonl"
    chat = [{"role": "user", "content": "Hello?"}]
    file.write_text(json.dumps({"step": 3, "prompt": chat, "completion": "Hi there.", "reward": 0.5}) + "\n")
    index = index_of(tmp_path, file)
    [row] = index.rows(index.find(Filter()).ids)
    assert (row["response"], row["prompt_text"], row["reward"], row["kl"]) == ("Hi there.", "Hello?", 0.5, None)
    assert index.state()["columns"] == []


def test_completions_that_trl_logs_are_read_and_followed(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "out" / "completions").mkdir(parents=True)

    def log(step: int) -> None:
        columns = {
            "step": [step, step],
            "prompt": [[{"role": "user", "content": "Hello?"}]] * 2,
            "completion": [[{"role": "assistant", "content": "Hi."}], [{"role": "assistant", "content": "No."}]],
            "polite": [1.0, 0.25],
            "short": [0.5, 0.5],
            "advantage": [0.7, -0.8],
        }
        pq.write_table(pa.table(columns), tmp_path / "out" / "completions" / f"completions_{step:05d}.parquet")

    log(5)
    index = index_of(tmp_path, tmp_path / "out")
    log(10)
    index.update()
    rows = index.rows(index.find(Filter(order="reward-high", step_from=10)).ids)
    assert [(row["step"], row["response"], row["reward"], row["peak"]) for row in rows] == [
        (10, "Hi.", 1.5, 0.7),
        (10, "No.", 0.75, 0.8),
    ]
    record = index.record(rows[0]["id"])
    assert (record["prompt"], record["rewards"]) == ("Hello?", {"polite": 1.0, "short": 0.5})
    assert index.state()["rollouts"] == 4


def test_what_holds_no_rollouts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_sources([tmp_path / "no"], tmp_path)
    with pytest.raises(DataError, match="holds no rollouts/"):
        open_sources([tmp_path], tmp_path)
    (tmp_path / "a.csv").touch()
    with pytest.raises(DataError, match=r"is no \.jsonl file"):
        open_sources([tmp_path / "a.csv"], tmp_path)
