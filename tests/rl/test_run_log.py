"""What a run writes can be cut back to any moment, is there whole or not at all, and holds any text."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conversations import FAIR
from text2grad.errors import DataError
from text2grad.files import published, to_json, write_atomically
from text2grad.rl import run_log as runlog
from text2grad.rl.run_log import RunLog
from text2grad.types import Conversation, Critique, Example, Rollout, Span, Turn


@pytest.fixture
def log(tmp_path: Path) -> RunLog:
    return RunLog(tmp_path, rollout_file_bytes=100)


def files(log: RunLog) -> dict[str, bytes]:
    return {
        str(path.relative_to(log.directory)): path.read_bytes()
        for path in sorted(log.directory.rglob("*"))
        if path.is_file()
    }


def lines(number: int, step: int) -> list[dict[str, Any]]:
    return [{"step": step, "row": row} for row in range(number)]  # {"step": 0, "row": 0} and a newline are 22 bytes


# Metrics and rollouts.


def test_metrics_and_rollouts_are_appended_as_lines_of_json(log: RunLog) -> None:
    log.write_metrics({"step": 0, "reward": 0.5})
    log.write_metrics({"step": 1, "reward": -0.5})
    log.write_rollouts(lines(2, 0))
    log.write_rollouts(lines(1, 1))
    assert files(log) == {
        "metrics.jsonl": b'{"step": 0, "reward": 0.5}\n{"step": 1, "reward": -0.5}\n',
        "rollouts/00000.jsonl": b'{"step": 0, "row": 0}\n{"step": 0, "row": 1}\n{"step": 1, "row": 0}\n',
    }


def test_a_file_of_rollouts_that_has_reached_its_size_is_followed_by_the_next(log: RunLog) -> None:
    log.write_rollouts(lines(4, 0))  # 88 bytes: goes on
    log.write_rollouts(lines(1, 1))  # 110: full
    log.write_rollouts(lines(9, 2))  # 198: full at once, and not torn apart
    log.write_rollouts(lines(1, 3))
    assert {name: data.count(b"\n") for name, data in files(log).items()} == {
        "rollouts/00000.jsonl": 5,
        "rollouts/00001.jsonl": 9,
        "rollouts/00002.jsonl": 1,
    }


def test_a_file_of_exactly_the_size_is_full(tmp_path: Path) -> None:
    log = RunLog(tmp_path, rollout_file_bytes=22)
    log.write_rollouts(lines(1, 0))
    log.write_rollouts(lines(1, 1))
    assert len(files(log)) == 2


def test_a_log_that_is_opened_again_goes_on_in_the_last_file(log: RunLog) -> None:
    log.write_rollouts(lines(5, 0))
    log.write_rollouts(lines(1, 1))
    RunLog(log.directory, rollout_file_bytes=100).write_rollouts(lines(1, 2))
    assert files(log)["rollouts/00001.jsonl"] == b'{"step": 1, "row": 0}\n{"step": 2, "row": 0}\n'


def test_rewinding_restores_every_byte_of_every_moment(log: RunLog) -> None:
    moments = [(log.position(), files(log))]
    for step in range(12):
        log.write_rollouts(lines(2, step))
        log.write_metrics({"step": step})
        moments.append((json.loads(json.dumps(log.position())), files(log)))
    assert moments[0][0] == {"metrics_bytes": 0, "rollout_files": 0, "rollout_bytes": 0}
    assert len(files(log)) == 5, "the case should hold several files of rollouts"
    for position, before in reversed(moments):
        assert log.rewind(position) == []
        found = files(log)
        assert {name: data for name, data in found.items() if data} == before


def test_rewinding_to_now_changes_nothing(log: RunLog) -> None:
    log.write_rollouts(lines(3, 0))
    log.write_metrics({"step": 0})
    before = files(log)
    log.rewind(log.position())
    assert files(log) == before


def test_a_line_torn_by_a_kill_is_cut_off(log: RunLog) -> None:
    log.write_metrics({"step": 0})
    position, before = log.position(), files(log)
    with (log.directory / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 1, "rew')
    log.rewind(position)
    assert files(log) == before


def test_steps_are_counted_by_whole_lines(log: RunLog) -> None:
    assert log.steps_written() == 0
    log.write_metrics({"step": 0})
    log.write_metrics({"step": 1})
    with (log.directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    assert log.steps_written() == 2


def test_a_log_that_lost_its_end_is_not_filled_up(log: RunLog) -> None:
    log.write_metrics({"step": 0})
    log.write_rollouts(lines(2, 0))
    position = log.position()
    (log.directory / "metrics.jsonl").write_bytes(b'{"step')
    (log.directory / "rollouts" / "00000.jsonl").unlink()
    assert log.rewind(position) == ["metrics.jsonl", "rollouts/00000.jsonl"]
    assert files(log) == {"metrics.jsonl": b'{"step'}


def test_files_before_and_behind_one_that_is_gone_are_known_by_their_numbers(log: RunLog) -> None:
    for step in range(3):
        log.write_rollouts(lines(5, step))  # 110 bytes: one file each
    position, before = log.position(), files(log)
    log.write_rollouts(lines(5, 3))
    (log.directory / "rollouts" / "00001.jsonl").unlink()
    assert log.rewind(position) == ["rollouts/00001.jsonl"]
    del before["rollouts/00001.jsonl"]
    assert files(log) == before
    assert log.rewind(log.position()) == ["rollouts/00001.jsonl"]


def test_numbers_that_json_does_not_have_are_refused_and_nothing_is_written(log: RunLog) -> None:
    log.write_metrics({"step": 0})
    before = files(log)
    for broken in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
            log.write_metrics({"step": 1, "reward": broken})
        with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
            log.write_rollouts([{"step": 1, "delta": [0.0]}, {"step": 1, "delta": [broken]}])
    assert {name: data for name, data in files(log).items() if data} == before


ODD_TEXTS = ["\ud800 half a pair", "😀 a whole one", "a\u2028b\x00c\n", "naïve", ""]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_comes_back_from_one_line(text: str) -> None:
    data = to_json({"text": text})
    assert json.loads(data) == {"text": text}
    assert data.decode("ascii").splitlines() == [data.decode("ascii")]


# Responses, read again.


def said(step: int, *texts: str) -> list[dict[str, Any]]:
    return [{"step": step, "response": text, "delta": [0.0]} for text in texts]


def responses(log: RunLog, *, since: int) -> list[tuple[int, list[str]]]:
    return [(step, [record["response"] for record in records]) for step, records in log.rollouts(since=since)]


def test_responses_come_back_by_step_and_in_order_from_one_file_or_many(tmp_path: Path) -> None:
    steps = [(step, [f"{step}{row}" for row in "abc"[: step % 3 + 1]]) for step in range(9)]
    # A line has 46 bytes. At 100 the steps share files so: 0 1, 2, 3 4, 5, 6 7, 8.
    for size, count in ((1, 9), (100, 6), (10_000, 1)):
        directory = tmp_path / str(size)
        directory.mkdir()
        log = RunLog(directory, rollout_file_bytes=size)
        for step, texts in steps:
            log.write_rollouts(said(step, *texts))
        assert len(files(log)) == count
        for since in (-3, 0, 1, 4, 7, 8, 9, 20):
            assert responses(log, since=since) == [pair for pair in steps if pair[0] >= since], (size, since)


def test_only_the_files_that_hold_the_steps_are_read(tmp_path: Path) -> None:
    log = RunLog(tmp_path, rollout_file_bytes=1)
    for step in range(5):
        log.write_rollouts(said(step, str(step)))
    for number in (0, 1):
        (tmp_path / "rollouts" / f"{number:05d}.jsonl").write_bytes(b"unreadable\n")
    assert responses(log, since=3) == [(3, ["3"]), (4, ["4"])]


@pytest.mark.parametrize("line", ["{cut", "[]", '{"response": ""}'])
def test_a_damaged_file_of_responses_is_named(tmp_path: Path, line: str) -> None:
    RunLog(tmp_path).write_rollouts(said(0, "a"))
    path = tmp_path / "rollouts" / "00000.jsonl"
    path.write_text(line)
    with pytest.raises(DataError, match=f"^cannot read {path}: .* Put back a copy of it, or start again in another"):
        responses(RunLog(tmp_path), since=0)


def test_a_log_without_responses_gives_none(log: RunLog) -> None:
    assert responses(log, since=-80) == []
    log.write_rollouts([])
    assert responses(log, since=0) == []
    log.write_rollouts(said(0, "a"))
    log.rewind({"metrics_bytes": 0, "rollout_files": 1, "rollout_bytes": 0})
    assert responses(log, since=0) == []


def test_an_empty_last_file_hides_nothing(tmp_path: Path) -> None:
    log = RunLog(tmp_path, rollout_file_bytes=1)
    log.write_rollouts(said(0, "a"))
    log.write_rollouts(said(1, "b"))
    log.rewind({**log.position(), "rollout_bytes": 0})
    assert responses(log, since=0) == [(0, ["a"])]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_response_comes_back(log: RunLog, text: str) -> None:
    log.write_rollouts(said(0, text, "and another"))
    assert responses(log, since=0) == [(0, [text, "and another"])]


# Whole or not at all.


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, b"old and long")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((runlog.os, "fsync", full) if moment == "fsync" else (Path, "replace", full)))
    with pytest.raises(OSError, match="No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path], "and no half-written one"
    monkeypatch.undo()
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "state.json", []
    monkeypatch.setattr(runlog.os, "fsync", lambda number: seen.append((os.fstat(number).st_size, path.exists())))
    write_atomically(path, b"four")
    assert seen == [(4, False)]


def publish(final: Path, text: str) -> None:
    with published(final) as temporary:
        temporary.mkdir()
        (temporary / "weights").write_text(text)


def test_a_directory_is_replaced_whole(tmp_path: Path) -> None:
    final = tmp_path / "model"
    publish(final, "old")
    (final / "more").write_text("of the old one")
    publish(final, "new")
    assert {path.name: path.read_text() for path in final.iterdir()} == {"weights": "new"}
    assert list(tmp_path.iterdir()) == [final]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(39, "Directory not empty")], ids=["ctrl-c", "disk"])
def test_a_directory_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    final, rename = tmp_path / "model", Path.rename
    publish(final, "old")

    def failing(path: Path, target: Path) -> Path:
        if path.name == ".model.tmp":  # the new one, on its way to its name
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(type(error)):
        publish(final, "new")
    assert {path.name: path.read_text() for path in final.iterdir()} == {"weights": "old"}
    assert not (tmp_path / ".model.old").exists()
    monkeypatch.undo()
    publish(final, "new")
    assert (final / "weights").read_text() == "new"
    assert list(tmp_path.iterdir()) == [final]


# Critiques.

ROLLOUTS = [Rollout(Example("q"), (1,), (2,), text, False) for text in (ODD_TEXTS[0], "see Lyon")]
CRITIQUES = [
    Critique("wrong", (Span(4, 8, "negative"), Span(0, 3, "positive")), -0.1, "repaired", ("Paris", "\udfff")),
    Critique("", status="timed_out"),
]


def test_critiques_come_back_as_they_were_kept(log: RunLog) -> None:
    assert log.kept_critiques(3, 0, ROLLOUTS) is None
    log.keep_critiques(3, 0, ROLLOUTS, CRITIQUES, {"python": [1]})
    assert log.kept_critiques(3, 0, ROLLOUTS) == (CRITIQUES, {"python": [1]})
    assert log.kept_critiques(3, 1, ROLLOUTS) is None
    assert log.kept_critiques(2, 0, ROLLOUTS) is None
    assert sorted(files(log)) == ["critiques/000003-0.json"]


def test_critiques_of_each_process_are_kept_apart(log: RunLog) -> None:
    log.keep_critiques(3, 0, ROLLOUTS[:1], CRITIQUES[:1], {})
    log.keep_critiques(3, 1, ROLLOUTS[1:], CRITIQUES[1:], {})
    assert log.kept_critiques(3, 0, ROLLOUTS[:1]) == (CRITIQUES[:1], {})
    assert log.kept_critiques(3, 1, ROLLOUTS[1:]) == (CRITIQUES[1:], {})


def test_critiques_are_found_by_another_number_of_processes(log: RunLog) -> None:
    log.keep_critiques(3, 0, ROLLOUTS, CRITIQUES, {})  # by one process: rows 0 and 1
    assert log.kept_critiques(3, 0, ROLLOUTS[:1]) == (CRITIQUES[:1], {})
    assert log.kept_critiques(3, 1, ROLLOUTS[1:]) == (CRITIQUES[1:], None)
    log.keep_critiques(4, 1, ROLLOUTS, CRITIQUES, {})  # by the second of two: rows 2 and 3
    assert log.keeps_critiques(4)
    assert log.kept_critiques(4, 0, ROLLOUTS * 2) is None  # rows 0 to 3
    log.keep_critiques(4, 0, ROLLOUTS, CRITIQUES, {})
    assert log.kept_critiques(4, 0, ROLLOUTS * 2) == (CRITIQUES * 2, {})
    assert log.kept_critiques(4, 3, ROLLOUTS[1:]) == (CRITIQUES[1:], None)


def test_critiques_of_other_responses_are_not_taken_for_these(log: RunLog) -> None:
    log.keep_critiques(3, 0, ROLLOUTS, CRITIQUES, {})
    with pytest.raises(DataError) as caught:
        log.kept_critiques(3, 0, ROLLOUTS[::-1])
    assert str(caught.value) == (
        f"{log.directory / 'critiques'} holds critiques of other responses than this run samples at step 3: the seed, "
        "the weights or the number of threads or processes changed. Resume with the same, or remove 000003-*.json "
        "there to ask the critic again."
    )


def test_a_critique_is_needed_for_each_response_to_be_kept(log: RunLog) -> None:
    with pytest.raises(ValueError, match="zip"):
        log.keep_critiques(3, 0, ROLLOUTS, CRITIQUES[:1], {})
    assert files(log) == {}


def test_critiques_of_the_steps_a_checkpoint_covers_are_forgotten(log: RunLog) -> None:
    for step in (0, 4, 5, 11):
        for rank in (0, 1):
            log.keep_critiques(step, rank, ROLLOUTS, CRITIQUES, {})
    log.forget_critiques(5)
    assert [name.split("/")[1] for name in files(log)] == [
        "000005-0.json",
        "000005-1.json",
        "000011-0.json",
        "000011-1.json",
    ]
    log.forget_critiques(12)
    assert files(log) == {}


def test_critiques_of_a_conversation_keep_their_turns_and_belong_to_its_results_too(log: RunLog) -> None:
    critique = Critique("", (Span(0, 7, "positive", 1), Span(11, 17, "negative", 3)))
    rollout = Rollout(Example("q"), (1,), (2,), FAIR, False)
    log.keep_critiques(3, 0, [rollout], [critique], {})
    assert log.kept_critiques(3, 0, [rollout]) == ([critique], {})
    other = Conversation([*FAIR.turns[:2], Turn("tool", "Lyon: Monday"), FAIR.turns[3]])
    with pytest.raises(DataError, match="critiques of other responses"):
        log.kept_critiques(3, 0, [replace(rollout, response=other)])
