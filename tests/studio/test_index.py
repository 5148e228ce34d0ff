"""The index: filters against a plain loop, growth, resumed runs, broken lines, searches that take too long."""

import json
import random
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from conversations import FAIR
from studio_world import append, record, session, write_run
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import item_of, turns_to_json
from text2grad_studio.columns import LABELS, ORDERS, Filter
from text2grad_studio.exports import page_of_response
from text2grad_studio.index import RunIndex
from text2grad_studio.session import filter_from
from text2grad_studio.sources import open_sources


def index_of(tmp_path: Path, run: Path) -> RunIndex:
    made = RunIndex(open_sources([run], tmp_path / "store")[0], tmp_path / "index.sqlite")
    assert made.update()
    return made


def places(index: RunIndex, wanted: Filter) -> list[tuple[int, int]]:
    return [(row["step"], row["row"]) for row in index.rows(index.find(wanted).page())]


def test_rows_have_the_sums_of_their_records(tmp_path: Path) -> None:
    index = index_of(tmp_path, write_run(tmp_path / "run"))
    [row] = index.rows(index.find(Filter(step_from=2, text="Prompt 3")).page())
    assert (row["tokens"], row["reward"], row["peak"]) == (7, -3.0, 5.0)  # −1 − step, |−2 − row|
    assert row["kl"] == pytest.approx(0.7)
    assert (row["positive"], row["negative"], row["unmatched"], row["truncated"]) == (1, 1, 0, 0)
    assert index.record(row["id"])["response"] == "The cat sat on the mat."
    assert index.state()["columns"] == ["advantage", "delta", "kl", "reward", "value"]


def test_a_result_that_another_thread_drops_at_the_same_time_is_found(tmp_path: Path) -> None:
    class Dropped(OrderedDict[Any, Any]):
        def __contains__(self, key: object) -> bool:
            is_kept = super().__contains__(key)
            self.clear()  # by the other thread, which keeps its own results
            return is_kept

    index = index_of(tmp_path, write_run(tmp_path / "run"))
    index.columns_now().results = Dropped()
    assert index.find(Filter()).page() == index.find(Filter()).page() == list(range(12, 0, -1))


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


def random_records(rng: random.Random, number: int) -> list[dict[str, Any]]:
    """Return records in which every number may be missing, and statuses and labels vary."""
    records = []
    for _ in range(number):
        spans = [
            {"start": 0, "end": 1, "label": label}
            for label in rng.choices(("positive", "negative"), k=rng.randint(0, 2))
        ]
        critique = {"feedback": "", "spans": spans, "status": rng.choice(("ok", "ok", "repaired", "unparsable"))}
        record: dict[str, Any] = {
            "prompt": f"Prompt {rng.randint(0, 5)}.",
            "response": rng.choice(("The cat", "A dog")),
            "critique": {**critique, "unmatched": ["x"] * rng.randint(0, 1)},
            "truncated": rng.random() < 0.3,
        }
        if rng.random() < 0.8:
            record["step"] = rng.randint(0, 4)
        if rng.random() < 0.8:
            record |= {"reward": rng.choice((-1.0, 0.0, 0.5, 2.0)), "advantage": rng.choice((-2.0, 1.0, 2.0))}
        if rng.random() < 0.2:
            del record["critique"]
        records.append(record)
    return records


def slow_find(records: list[dict[str, Any]], wanted: Filter) -> list[int]:
    """Return the numbers that a filter finds, by loops over the records."""

    def labels(record: dict[str, Any]) -> list[str]:
        return [span["label"] for span in record.get("critique", {}).get("spans", ())]

    def meets(record: dict[str, Any]) -> bool:
        step, reward, status = record.get("step"), record.get("reward"), record.get("critique", {}).get("status", "")
        return all(
            (
                wanted.step_from is None or (step is not None and step >= wanted.step_from),
                wanted.step_to is None or (step is not None and step <= wanted.step_to),
                wanted.reward_from is None or (reward is not None and reward >= wanted.reward_from),
                wanted.reward_to is None or (reward is not None and reward <= wanted.reward_to),
                wanted.label not in ("positive", "both") or "positive" in labels(record),
                wanted.label not in ("negative", "both") or "negative" in labels(record),
                wanted.label != "none" or not labels(record),
                wanted.label != "unmatched" or bool(record.get("critique", {}).get("unmatched")),
                not wanted.status or (record["truncated"] if wanted.status == "cut" else status == wanted.status),
                not wanted.text or wanted.text.lower() in f"{record['prompt']}\n{record['response']}".lower(),
            )
        )

    def missing_last(value: float | None) -> tuple[bool, float]:
        return (value is None, value or 0.0)

    def peak(record: dict[str, Any]) -> float | None:
        return -abs(record["advantage"]) if "advantage" in record else None

    def doubts(record: dict[str, Any]) -> int:
        critique = record.get("critique", {})
        signs = (critique.get("unmatched"), critique.get("status", "ok") != "ok", len(set(labels(record))) == 2)
        return -sum(map(bool, signs))

    keys: dict[str, Callable[[int], Any]] = {
        "newest": lambda n: -n,
        "oldest": lambda n: n,
        "reward-low": lambda n: missing_last(records[n].get("reward")),
        "reward-high": lambda n: missing_last(-records[n]["reward"] if "reward" in records[n] else None),
        "advantage": lambda n: missing_last(peak(records[n])),
        "uncertain": lambda n: (doubts(records[n]), missing_last(peak(records[n]))),
        "kl": lambda n: 0,
        "longest": lambda n: 0,
        "shortest": lambda n: 0,
    }
    return [n + 1 for n in sorted(range(len(records)), key=keys[wanted.order]) if meets(records[n])]


def test_every_filter_and_order_finds_what_loops_over_the_records_find(tmp_path: Path) -> None:
    rng = random.Random(0)
    records = random_records(rng, 120)
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records[:70]))
    index = index_of(tmp_path, file)
    assert index.find(Filter(order="oldest")).page() == list(range(1, 71))
    with file.open("a") as more:  # columns in memory are extended
        more.writelines(json.dumps(record) + "\n" for record in records[70:])
    index.update()
    for number in range(300):
        wanted = Filter(
            step_from=rng.choice((None, None, 2)),
            step_to=rng.choice((None, None, 3)),
            reward_from=rng.choice((None, None, 0.0)),
            reward_to=rng.choice((None, None, 0.5)),
            label=rng.choice(("", "", *LABELS)),
            status=rng.choice(("", "", "ok", "repaired", "unparsable", "cut", "no such status")),
            text=rng.choice(("", "", "", "cat", "PROMPT 3", "g")),
            order=list(ORDERS)[number % len(ORDERS)],
        )
        result = index.find(wanted)
        assert result.page() == slow_find(records, wanted), wanted
        for at, number in enumerate(result.page()[:3]):
            assert (result.place(number), result.page(at, 1)) == (at, [number])
        assert result.place(10**6) == -1
    item = index.record(7)["item"]
    same = [n + 1 for n, other in enumerate(records) if item_of(other["prompt"], other["response"]) == item]
    assert index.find(Filter(items=(item,), order="oldest")).page() == same
    others = index.find(Filter(without=(item,), order="oldest")).page()
    assert others == [n for n in range(1, 121) if n not in same]


def test_a_file_that_is_no_index_is_made_anew_and_odd_records_are_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1, rows=2)
    (tmp_path / "index.sqlite").write_bytes(b"this is no database, but a text of some length " * 40)
    append(run, [record(1, 0, critique={"spans": None}), record(1, 1, critique={"spans": [3]}), record(10**30, 2)])
    state = index_of(tmp_path, run).state()
    assert (state["rollouts"], state["bad_lines"], state["steps"]) == (3, 2, [0, 0])


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


def test_the_last_line_of_a_file_needs_no_line_break(tmp_path: Path) -> None:
    file, rest = tmp_path / "a.jsonl", '"response": "two"}'
    file.write_text('{"response": "one"}\n{' + rest)
    index = index_of(tmp_path, file)

    def texts() -> list[str]:
        return [row["response"] for row in index.rows(index.find(Filter(order="oldest")).page())]

    def grow(text: str) -> None:
        with file.open("a") as more:
            more.write(text)
        assert index.update()

    assert texts() == ["one", "two"]
    assert index.state()["bytes"] == [file.stat().st_size] * 2
    generation = index.generation
    grow('\n{"step": 3, ')  # the file goes on in order: nothing is read again, and half a record waits
    assert (texts(), index.generation) == (["one", "two"], generation + 1)  # of the line break
    grow(rest)
    assert texts() == ["one", "two", "two"]
    assert index.find(Filter(step_from=3)).page() == [3]
    grow('{"response": "four"}\n')  # the line was not at its end: it is no record
    assert texts() == ["one", "two"]
    assert index.state()["bad_lines"] == 1


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


@pytest.mark.parametrize(
    ("more", "is_bad"),
    [
        pytest.param({"reward": 10**400, "offsets": []}, True, id="a reward beyond any float"),
        pytest.param({"advantage": [10**400] + [0] * 6}, True, id="an advantage beyond any float"),
        pytest.param({"kl": [10**30] * 7}, False, id="integers that SQLite does not hold"),
        pytest.param({"critique": {"feedback": "", "spans": [], "status": "\ud800"}}, False, id="half a character"),
        pytest.param({"meta": "NESTED"}, True, id="deeply nested"),
    ],
)
def test_a_strange_line_costs_itself_alone(tmp_path: Path, more: dict[str, Any], *, is_bad: bool) -> None:
    run = write_run(tmp_path / "run", steps=0)
    line = json.dumps(record(0, 0, **more)).replace('"NESTED"', "[" * 100_000 + "]" * 100_000)
    (run / "rollouts" / "00000.jsonl").write_text(f"{line}\n{json.dumps(record(1, 0))}\n")
    state = index_of(tmp_path, run).state()
    assert (state["rollouts"], state["bad_lines"]) == ((1, 1) if is_bad else (2, 0))


def test_numbers_beyond_any_float_are_missing_numbers_of_their_response(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=0)
    line = json.dumps(
        record(0, 0, kl=["LARGE", 0.5, "NOTHING"] + [0.5] * 4, logp=["SMALL"] * 7, logp_after=[-1.0] * 7)
    ).replace('"LARGE"', "1e999")
    line = line.replace('"SMALL"', "-1e999").replace('"NOTHING"', "NaN")
    (run / "rollouts" / "00000.jsonl").write_text(f"{line}\n")
    index = index_of(tmp_path, run)
    [number] = index.find(Filter()).page()
    kept = index.record(number)
    assert (kept["kl"][:3], kept["change"]) == ([None, 0.5, None], [None] * 7)
    json.dumps(kept, allow_nan=False)  # as the page gets it


def test_a_regular_expression_without_end_stops_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("text2grad_studio.index.REGEX_SECONDS", 0.2)
    run = write_run(tmp_path / "run", steps=1, rows=1)
    append(run, [record(1, 0, response="a" * 60 + "!")])
    index = index_of(tmp_path, run)
    result = index.find(Filter(regex=r"^(a|aa)+$", order="oldest"))
    assert result.page() == []
    assert result.unread == 1
    assert places(index, Filter(regex=r"^The \w+ sat")) == [(0, 0)]
    with pytest.raises(ConfigError, match="is no regular expression"):
        index.find(Filter(regex="("))


def test_surrogates_and_marks_of_queries_are_plain_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1, rows=1)
    append(run, [record(1, 0, response='half \ud800 "quoted" AND (NEAR) % _')])
    index = index_of(tmp_path, run)
    for text in ('"quoted" AND', "(NEAR)", "% _", "_"):
        assert places(index, Filter(text=text)) == [(1, 0)], text
    number = index.find(Filter(text="quoted")).page()[0]
    assert index.record(number)["response"] == 'half \ud800 "quoted" AND (NEAR) % _'


@pytest.mark.parametrize(
    ("text", "count"),
    [("Ü", 2), ("ü", 2), ("üB", 2), ("ÜBE", 2), ("o", 1), ("bell", 1), ("und der", 1), ("behind", 1)],
)
def test_searches_know_the_case_of_every_letter_and_do_not_end_at_a_nul(tmp_path: Path, text: str, count: int) -> None:
    run = write_run(tmp_path / "run", steps=0)
    append(run, [record(0, 0, response="Über den Tag", prompt="a", critique={"feedback": "gut", "spans": []})])
    append(
        run,
        [record(0, 1, response="spät\0und der Rest", prompt="b\0behind", critique={"feedback": "übel", "spans": []})],
    )
    append(run, [record(0, 2, response="x", prompt="c", critique={"feedback": "no\0bell", "spans": []})])
    index = index_of(tmp_path, run)
    assert len(index.find(Filter(text=text)).ids) == count
    [row] = index.rows([2])
    assert (row["response"], row["prompt_text"]) == ("spät␀und der Rest", "b␀behind")
    assert index.record(2)["response"] == "spät\0und der Rest"
    assert index.prompt_number("b\0behind") == row["prompt"]


def test_links_name_a_step_and_a_row(tmp_path: Path) -> None:
    index = index_of(tmp_path, write_run(tmp_path / "run"))
    number = index.at_place(2, 3)
    assert number is not None
    record = index.record(number)
    assert (record["place"], record["prompt"]) == ([2, 3], "Prompt 3.")
    assert record["item"] == item_of("Prompt 3.", "The cat sat on the mat.")
    assert index.at_place(9, 0) is None


def test_curves_are_means_of_steps(tmp_path: Path) -> None:
    curves = index_of(tmp_path, write_run(tmp_path / "run")).columns_now().curves()
    assert [(step["step"], step["reward"], step["truncated"], step["negative"]) for step in curves] == [
        (0, -1.0, 0.25, 1.0),
        (1, -2.0, 0.25, 1.0),
        (2, -3.0, 0.25, 1.0),
    ]
    assert [step["tokens"] for step in curves] == [7.0] * 3


def test_a_source_without_tokens_has_no_curve_of_lengths(tmp_path: Path) -> None:
    file = tmp_path / "trl.jsonl"
    lines = [{"step": step, "prompt": "Hello?", "completion": "Hi.", "reward": 0.5} for step in (1, 2)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curves = index_of(tmp_path, file).columns_now().curves()
    assert [(step["step"], step["tokens"], step["reward"]) for step in curves] == [(1, None, 0.5), (2, None, 0.5)]


def test_files_of_other_projects_are_read(tmp_path: Path) -> None:
    file = tmp_path / "trl.jsonl"
    chat = [{"role": "user", "content": "Hello?"}]
    file.write_text(json.dumps({"step": 3, "prompt": chat, "completion": "Hi there.", "reward": 0.5}) + "\n")
    index = index_of(tmp_path, file)
    [row] = index.rows(index.find(Filter()).page())
    assert (row["response"], row["prompt_text"], row["reward"], row["kl"]) == ("Hi there.", "Hello?", 0.5, None)
    assert index.state()["columns"] == []


def test_chats_with_calls_of_tools_and_with_images_are_read(tmp_path: Path) -> None:
    file = tmp_path / "trl.jsonl"
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}  # as Parquet returns it
    parts = [{"type": "image", "text": None}, {"type": "text", "text": "What is this?"}]
    chat = [{"role": "user", "content": parts}, call, {"role": "tool", "content": "a cat"}]
    file.write_text(
        json.dumps({"prompt": chat, "completion": [call, {"role": "assistant", "content": "A cat."}]}) + "\n"
    )
    index = index_of(tmp_path, file)
    [row] = index.rows(index.find(Filter()).page())
    spoken = "<user>\nWhat is this?\n</user>\n\n<tool>\na cat\n</tool>"
    assert (row["prompt_text"], row["response"]) == (spoken, "A cat.")
    assert index.state()["bad_lines"] == 0


def test_completions_that_trl_logs_are_read_and_followed(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "out" / "completions").mkdir(parents=True)

    def log(step: int, first: str = "Hi.") -> None:
        columns = {
            "step": [step, step],
            "prompt": [[{"role": "user", "content": "Hello?"}]] * 2,
            "completion": [[{"role": "assistant", "content": first}], [{"role": "assistant", "content": "No."}]],
            "polite": [1.0, 0.25],
            "short": [0.5, 0.5],
            "advantage": [0.7, -0.8],
        }
        pq.write_table(pa.table(columns), tmp_path / "out" / "completions" / f"completions_{step:05d}.parquet")

    log(5)
    index = index_of(tmp_path, tmp_path / "out")
    log(10)
    index.update()
    rows = index.rows(index.find(Filter(order="reward-high", step_from=10)).page())
    assert [(row["step"], row["response"], row["reward"], row["peak"]) for row in rows] == [
        (10, "Hi.", 1.5, 0.7),
        (10, "No.", 0.75, 0.8),
    ]
    record = index.record(rows[0]["id"])
    assert (record["prompt"], record["rewards"]) == ("Hello?", {"polite": 1.0, "short": 0.5})
    assert index.state()["rollouts"] == 4

    # TRL writes a file again at the end of the training, and others under its name after a resume
    generation = index.generation
    log(10)
    index.update()
    assert index.generation == generation
    log(10, "Resumed.")
    index.update()
    rows = index.rows(index.find(Filter(order="oldest")).page())
    assert [row["response"] for row in rows] == ["Hi.", "No.", "Resumed.", "No."]


def test_critiques_in_tables_of_trl_are_shown(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "out" / "completions").mkdir(parents=True)
    span = {"start": 8, "end": 11, "label": "negative"}
    rest = {"spans": [span], "outcome": 0.5, "status": "repaired", "unmatched": ["Maybe"]}
    columns = {
        "step": [1] * 5,
        "prompt": ["Hello?"] * 5,
        # of the first, TRL's table has no reasoning
        "completion": [[{"role": "assistant", "content": text}] for text in ("No.", "Hm... . No.", "A.", "B.", "C.")],
        "spans": [1.0] * 5,
        "critique": ["Too short.", "Too long.", "As before.", None, "Another's."],
        "critique_spans": [
            *(json.dumps(rest | {"response": "Hm.... .No."}), json.dumps(rest)),
            *(None, None, "no JSON"),
        ],
        "advantage": [0.5] * 5,
    }
    file = tmp_path / "out" / "completions" / "completions_00001.parquet"
    pq.write_table(pa.table(columns), file)
    index = index_of(tmp_path, tmp_path / "out")
    records = [index.record(number) for number in index.find(Filter(order="oldest")).page()]
    assert [record["response"] for record in records] == ["Hm.... .No.", "Hm... . No.", "A.", "B.", "C."]
    assert records[0]["critique"] == {"feedback": "Too short.", **rest}
    assert records[2]["critique"] == {"feedback": "As before.", "spans": [], "status": ""}
    assert "critique" not in records[3]
    assert records[4]["critique"]["feedback"] == "Another's."
    rows = index.rows(index.find(Filter(order="oldest")).page())
    assert [(row["negative"], row["unmatched"], row["status"]) for row in rows] == [
        *[(1, 1, "repaired")] * 2,
        *[(0, 0, "")] * 3,
    ]
    assert index.state()["statuses"] == ["repaired"]
    assert len(index.find(Filter(text="before")).ids) == 1

    # a table of an older version has feedback alone, and its store has files without critiques
    pq.write_table(pa.table(columns).drop_columns(["critique_spans"]), file)
    before = tmp_path / "another" / "converted" / sha256(str(tmp_path / "out").encode()).hexdigest()[:12]
    before.mkdir(parents=True)
    (before / "completions_00001.jsonl").write_text('{"prompt": "Hello?", "completion": "No."}\n')
    [older] = open_sources([tmp_path / "out"], tmp_path / "another")
    older.convert()
    lines = [json.loads(line) for line in older.files()[0].read_text().splitlines()]
    assert [record.get("critique", {}).get("feedback") for record in lines] == columns["critique"]


def test_turns_of_trls_trainer_keep_their_spans(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "out" / "completions").mkdir(parents=True)
    said, heard = {"role": "assistant", "text": "Yes. ", "sampled": True}, {"role": "tool", "text": "Lyon: Friday"}
    turns = [{"role": "user", "text": "When?"}, said, heard, {**said, "text": "Monday."}]
    marked = {"positive": (3, 1), "negative": (6, 3)}
    places = [{"start": 0, "end": end, "label": label, "turn": turn} for label, (end, turn) in marked.items()]
    rest = {"spans": places, "status": "ok", "response": "Yes. Monday.", "turns": turns}
    columns = {"step": [1], "prompt": ["When?"], "completion": ["-"], "critique": ["No."]}
    table = pa.table({**columns, "critique_spans": [json.dumps(rest)]})
    pq.write_table(table, tmp_path / "out" / "completions" / "completions_00001.parquet")
    index = index_of(tmp_path, tmp_path / "out")
    [number] = index.find(Filter()).page()
    record = index.record(number)
    assert (record["response"], record["turns"]) == ("Yes. Monday.", turns)
    assert record["critique"]["spans"] == places


def test_what_holds_no_rollouts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_sources([tmp_path / "no"], tmp_path)
    with pytest.raises(DataError, match="holds no rollouts/"):
        open_sources([tmp_path], tmp_path)
    (tmp_path / "a.csv").touch()
    with pytest.raises(DataError, match=r"is no \.jsonl file"):
        open_sources([tmp_path / "a.csv"], tmp_path)


def test_a_page_that_goes_on_after_a_restart_sees_another_generation(tmp_path: Path) -> None:
    [source] = open_sources([write_run(tmp_path / "run")], tmp_path)
    index = RunIndex(source, tmp_path / "index.sqlite")
    index.update()
    again = RunIndex(source, tmp_path / "index.sqlite")
    for row in range(index.generation - again.generation):  # as many changes as before
        append(tmp_path / "run", [record(9, row)])
        again.update()
    assert again.generation != index.generation


def test_a_conversation_is_found_by_the_turns_that_the_critic_marks(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1, rows=1)
    talk = {"step": 1, "prompt": "When?", "response": str(FAIR), "turns": turns_to_json(FAIR)}
    said = [[(1, "positive"), (3, "negative")], [(70, "negative")], [(True, "negative"), (None, "positive")]]
    for marks in said:
        spans = [{"start": 0, "end": 2, "label": label, "turn": turn} for turn, label in marks]
        append(run, [{**talk, "critique": {"feedback": "No.", "spans": spans, "status": "ok"}}])
    index = index_of(tmp_path, run)
    for turn, rows in ((1, [(1, 0)]), (3, [(1, 0)]), (0, []), (2, []), (-1, []), (62, [(1, 1)]), (99, [(1, 1)])):
        assert places(index, Filter(turn=turn)) == rows
    assert filter_from({"turn": "3"}).turn == 3
    record = index.record(2)
    assert record["response"].turns == FAIR.turns
    assert record["turns"] == talk["turns"]
    assert record["item"] == item_of("When?", FAIR) != item_of("When?", str(FAIR))
    (row,) = index.rows([2])
    assert row["response"] == f"{FAIR.turns[1].text}\n{FAIR.turns[3].text}", "turns do not run into one another"


def test_turns_that_say_something_else_are_a_bad_line_and_those_of_another_program_are_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1, rows=1)
    append(run, [record(1, 0, turns=turns_to_json(FAIR)), *(record(1, 1, turns=turns) for turns in (["Say."], 2, []))])
    index = index_of(tmp_path, run)
    assert (index.state()["rollouts"], index.state()["bad_lines"]) == (4, 1)
    assert 'a response: "turns" is a list of' in index.state()["problem"]
    assert not any("turns" in index.record(number) for number in range(1, 5))


def test_a_shared_conversation_without_tokens_has_the_critics_spans_in_their_turns(tmp_path: Path) -> None:
    span = {"start": 3, "end": 7, "label": "negative", "turn": 3}  # "Lyon", which stands in turn 1, too
    talk = {"response": str(FAIR), "turns": turns_to_json(FAIR), "critique": {"feedback": "No.", "spans": [span]}}
    (tmp_path / "talk.jsonl").write_text(json.dumps({"prompt": "When?", **talk}) + "\n")
    page = page_of_response(session(tmp_path / "store", tmp_path / "talk.jsonl"), "ann", 0, 1)
    assert page.count('title="δ -1">Lyon</span>') == 1
    assert "Look up Lyon.</span></div>" in page  # in turn 1 it has no colour
    assert "4 parts" in page
