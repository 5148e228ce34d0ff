"""Versions: lessons in a process of their own; stopped, failed and refused work leaves no version."""

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from critics_by_name import Praise
from places import STORIES
from rated_runs import rated_run
from task_texts import untrained_policy
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import item_of, mark_of
from text2grad.files import appended_records, json_lines, to_json
from text2grad.models import base_named_by, load_policy
from text2grad.runs import explain, weigh
from text2grad_studio.marks import MarkStore
from text2grad_studio.versions import Versions, told
from text2grad_studio.worker import Worker, publish_version

STORY = "there was a little cliws. It was happy."
MARK = {"start": 19, "end": 24, "label": "negative"}
ANNOTATION = {"prompt": "Once upon a time", "response": STORY, "critique": {"feedback": "", "spans": [MARK]}}
SAMPLING = {"max_new_tokens": 6, "temperature": 1.0, "eos_token_ids": [1], "prompt_format": "plain"}


def lesson(parent: int = 0) -> dict[str, Any]:
    return {"parent": parent, "annotations": [ANNOTATION]}


def finished(versions: Versions) -> dict[str, Any]:
    while (work := versions.state()["work"])["state"] == "working":
        time.sleep(0.05)  # the timeout of the test ends a process that hangs
    return dict(work)


@pytest.mark.usefixtures("warm_workers")
def test_a_policy_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    versions = Versions(tmp_path, {"path": str(tmp_path / "no"), "sampling": SAMPLING})
    try:
        versions.begin("teach", lesson())
        work = finished(versions)
    finally:
        versions.stop()
    assert work["state"] == "failed"
    assert str(tmp_path / "no") in work["error"]
    assert versions.state()["versions"] == []


def test_without_a_policy_there_is_nothing_to_teach(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--model PATH"):
        Versions(tmp_path, None).begin("ask", {})
    with pytest.raises(DataError, match="no version 3"):
        Versions(tmp_path, None).version(3)


def test_a_page_that_looks_every_second_reads_no_version_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions, read = Versions(tmp_path, None), list[Path]()
    for number in (1, 2):
        write_version(tmp_path, number).write_text(json.dumps({"version": number, "changes": [0.5] * 1000}))
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path), read_bytes(path))[1])
    known: list[Any] = [{"version": number, "words": [], "raters": []} for number in (1, 2)]
    assert [versions.state()["versions"], versions.state()["versions"]] == [known] * 2
    assert len(read) == 2


def write_version(store: Path, number: int) -> Path:
    path = store / "versions" / f"{number:04d}" / "version.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"version": number}))
    return path


def test_pages_that_ask_at_the_same_time_see_all_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions, asked, answered = Versions(tmp_path, None), threading.Event(), threading.Event()
    first, second = write_version(tmp_path, 1), write_version(tmp_path, 2)
    other = threading.Thread(target=versions.state)
    read_bytes, glob = Path.read_bytes, Path.glob

    def reading(path: Path) -> bytes:
        if path == second and not other.is_alive():
            other.start()
            asked.wait()
        return read_bytes(path)

    def listing(path: Path, pattern: str) -> Iterator[Path]:
        if threading.current_thread() is other:  # the other page's request has begun, and the first one goes on
            asked.set()
            answered.wait()
        return glob(path, pattern)

    monkeypatch.setattr(Path, "read_bytes", reading)
    monkeypatch.setattr(Path, "glob", listing)
    listed = versions.state()["versions"]
    answered.set()
    other.join()
    assert listed == [json.loads(read_bytes(path)) | {"words": [], "raters": []} for path in (first, second)]


def test_a_copy_of_a_version_has_the_number_of_its_folder(tmp_path: Path) -> None:
    write_version(tmp_path, 1)
    shutil.copytree(tmp_path / "versions" / "0001", tmp_path / "versions" / "0002")
    versions = Versions(tmp_path, None)
    assert [version["version"] for version in versions.state()["versions"]] == [1, 2]
    assert versions.version(2)["version"] == 2


@pytest.mark.parametrize("content", [b"", b'{"version": 1, "par', b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_version_is_named_and_the_others_stay_usable(tmp_path: Path, content: bytes) -> None:
    path = write_version(tmp_path, 1)
    write_version(tmp_path, 2)
    path.write_bytes(content)
    versions = Versions(tmp_path, None)
    state = versions.state()
    assert [version["version"] for version in state["versions"]] == [2]
    [trouble] = state["troubles"]
    assert trouble.startswith(f"version 1 cannot be used, since {path} cannot be read: ")
    assert trouble.endswith(
        "Put a copy of the file in its place, or move the folder 0001 away; other versions can be used"
    )
    with pytest.raises(DataError) as caught:
        versions.version(1)
    assert str(caught.value) == trouble
    shutil.move(path.parent, tmp_path / "away")
    assert versions.state()["troubles"] == []


def taught(response: str, words: str, rater: str = "ann") -> dict[str, Any]:
    span = {"start": 0, "end": len(response), "label": "negative", "rater": rater}
    return {"prompt": "p", "response": response, "critique": {"feedback": words, "spans": [span]}}


def write_marks(store: Path, number: int, parent: int, before: list[Any], own: list[Any], **more: Any) -> None:
    path = write_version(store, number)
    path.with_name("marks.jsonl").write_bytes(json_lines([*before, *own]))
    about = {"version": number, "parent": parent, "made": "2026-03-12T10:00:00+00:00", "responses": len(own), **more}
    path.write_text(json.dumps(about))


def test_a_version_has_the_words_and_raters_that_those_before_it_have_not(tmp_path: Path) -> None:
    first, second = taught("cat", "No cats."), taught("dog", "No dogs.", "bob")
    write_marks(tmp_path, 1, 0, [], [first])
    write_marks(tmp_path, 2, 1, [], [first, second])  # a retraining has all of the rater's marks
    write_marks(tmp_path, 3, 2, [], [second])  # once more
    versions = Versions(tmp_path, None)
    listed = versions.state()["versions"]
    assert [about["words"] for about in listed] == [["No cats."], ["No dogs."], ["No dogs."]]
    assert [about["raters"] for about in listed] == [["ann"], ["bob"], ["bob"]]
    assert "records" not in listed[0]
    lessons = versions.learned(3)
    assert [(own["name"], own["date"]) for own in lessons] == [(f"version {n}", "2026-03-12") for n in (1, 2, 3)]
    assert [own["records"] for own in lessons] == [[first], [second], [second]]
    assert [own["name"] for own in versions.learned(1)] == ["version 1"]
    shutil.rmtree(tmp_path / "versions" / "0001")
    assert [own["name"] for own in versions.learned(2)] == ["version 2"]
    (tmp_path / "versions" / "0002" / "version.json").write_text('{"parent": 2}')  # of its own, by a person's hand
    assert [own["name"] for own in versions.learned(2)] == ["version 2"]


def test_words_are_what_is_no_note_on_a_quote_or_notes_alone() -> None:
    records = [taught("cat", words) for words in ('Be kind.\n"cat": rude\nAlways.', '"cat": rude', "", '"cat": rude')]
    assert told({"records": records})["words"] == ["Be kind.\nAlways.", '"cat": rude']


def test_damaged_marks_of_a_version_are_named(tmp_path: Path) -> None:
    write_marks(tmp_path, 1, 0, [], [{"prompt": "p"}])
    [trouble] = Versions(tmp_path, None).state()["troubles"]
    assert "0001/marks.jsonl: it holds no 'critique'. Put back a copy of it" in trouble


def test_the_lessons_of_a_policy_come_before_those_of_its_versions(tmp_path: Path) -> None:
    policy = tmp_path / "begin" / "run" / "checkpoints" / "step-000001" / "policy"
    policy.mkdir(parents=True)
    (policy / "adapter_config.json").write_text('{"base_model_name_or_path": "some/model"}')
    (policy / "adapter_model.safetensors").touch()
    (tmp_path / "begin" / "marks.jsonl").write_bytes(json_lines([taught("cat", "No cats.")]))
    (tmp_path / "begin" / "lesson.json").write_text('{"marked_before": 0.9, "marked_after": 0.1}')
    write_marks(tmp_path, 1, 0, [], [taught("dog", "No dogs.")])
    versions = Versions(tmp_path, {"path": str(policy), "sampling": SAMPLING})
    [lesson] = versions.state()["lessons"]
    assert (lesson["name"], lesson["words"], lesson["effect"]) == ("begin", ["No cats."], [0.9, 0.1])
    assert "records" not in lesson
    assert [own["name"] for own in versions.learned(1)] == ["begin", "version 1"]
    assert [own["name"] for own in versions.learned(0)] == ["begin"]
    (tmp_path / "begin" / "lesson.json").write_text("[")
    assert Versions(tmp_path, versions.policy).learned(0) == [], "the page opens without them"


class PretendedProcess:
    """Takes requests; `stop` lets another tab do something first."""

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.meanwhile = threading.Thread()

    def send(self, request: dict[str, Any]) -> None:
        self.requests.append(request["number"])

    def stop(self) -> None:
        self.meanwhile.start()
        self.meanwhile.join(0.1)  # a tab that waits for the end of `stop` goes on behind it
        self.requests.clear()


def test_work_that_begins_while_another_is_stopped_is_not_stopped(tmp_path: Path) -> None:
    versions = Versions(tmp_path, {"path": "policy", "sampling": SAMPLING})
    process = versions._process = PretendedProcess()  # type: ignore[assignment]
    process.meanwhile = threading.Thread(target=lambda: versions.begin("ask", {}))
    versions.stop(versions.begin("teach", lesson())["number"])
    process.meanwhile.join()
    work = versions.state()["work"]
    assert (work["state"], work["kind"], process.requests) == ("working", "ask", [work["number"]])


def test_a_late_stop_stops_no_work_that_began_after_it_was_meant(tmp_path: Path) -> None:
    versions = Versions(tmp_path, {"path": "policy", "sampling": SAMPLING})
    process = versions._process = PretendedProcess()  # type: ignore[assignment]
    first = versions.begin("teach", lesson())["number"]
    versions._hear({"number": first, "state": "done"})
    versions.stop(first)  # nothing is under way
    second = versions.begin("retrain", {})["number"]
    with pytest.raises(ConfigError) as caught:
        versions.stop(first)
    assert str(caught.value) == (
        "this work has ended; a retraining has begun since, perhaps from another tab, and is not stopped"
    )
    assert process.requests == [first, second]
    versions.stop(second)
    assert versions.state()["work"]["state"] == "stopped"
    anew = Versions(tmp_path, versions.policy)  # as the next server makes it
    anew._process = process
    assert anew.begin("ask", {})["number"] > second


@pytest.mark.usefixtures("warm_workers")
def test_a_question_why_is_answered_without_a_policy_as_the_command_does(tmp_path: Path) -> None:
    untrained_policy(tmp_path / "start")
    Praise.asked, Praise.after = 0, 11  # the critique of row 3 of step 1 praises, and no other says anything
    settings = ("data.eval_examples=0", "run.steps=3", "ppo.beta=0.0", "optim.value_warmup_steps=0")
    run = rated_run(tmp_path / "start", tmp_path / "run", "Praise", *settings)
    request = {"run": str(run), "source": "my run"}
    versions = Versions(tmp_path / "store", None)
    try:
        versions.begin("why", {**request, "phrase": Praise.phrase})
        work = finished(versions)
        versions.begin("why", {**request, "phrase": "no such words"})
        failed = finished(versions)
    finally:
        versions.stop()
    assert work["state"] == "done", work
    result, shares = work["result"], work["result"]["shares"]
    assert (result["source"], result["phrase"], result["places"]) == ("my run", Praise.phrase, 1)
    assert (result["critiques"], len(shares)) == (24, 10)
    assert result["after"] > result["before"]
    assert (shares[0]["step"], shares[0]["row"], shares[0]["words"]) == (1, 3, "I like that.")
    nats = [share["nats"] for share in shares]
    assert nats == sorted(nats, reverse=True)
    explained = explain(run, Praise.phrase)
    assert result["explained"] == pytest.approx(explained.explained, rel=1e-3)
    assert (failed["state"], failed["kind"]) == ("failed", "why")
    assert "no response of the run contains 'no such words'" in failed["error"]
    assert list((tmp_path / "store" / "versions").iterdir()) == [], "weights of the steps are removed"


@pytest.mark.skipif(not STORIES.exists(), reason="models/stories260k is not in the shared folder")
@pytest.mark.usefixtures("warm_workers")
def test_lessons_follow_each_other_stop_and_name_their_policy(tmp_path: Path) -> None:
    versions = Versions(tmp_path, {"path": str(STORIES), "sampling": SAMPLING})
    try:
        versions.begin("teach", lesson())
        with pytest.raises(ConfigError, match="under way"):
            versions.begin("ask", {})
        versions.stop()
        assert versions.state()["work"]["state"] == "stopped"
        assert versions.state()["versions"] == []
        versions.begin("teach", lesson())
        assert finished(versions)["state"] == "done", versions.state()
        shutil.copytree(tmp_path / "versions" / "0001", tmp_path / "versions" / "0001-copy")  # no version
        versions.begin("teach", lesson(parent=1))
        assert finished(versions)["state"] == "done", versions.state()
        versions.begin("teach", lesson(parent=7))
        assert "no version 7" in finished(versions)["error"]
        versions.begin("ask", {"prompt": "Once upon a time", "versions_asked": [0, 0, 2], "seed": 3})
        answers = finished(versions)["result"]["answers"]
    finally:
        versions.stop()
    assert [version["parent"] for version in versions.state()["versions"]] == [0, 1]
    first, second = (versions.version(n)["changes"][0] for n in (1, 2))
    assert second["before"] == pytest.approx(first["after"], abs=0.1)  # version 2 begins where 1 ended, in bfloat16
    assert answers[0] == answers[1]  # the same random numbers, and no trace of the adapters
    assert len(answers[2]["logp"]) == len(answers[2]["ids"]) == len(answers[2]["offsets"])
    directory = tmp_path / "versions" / "0002"
    assert base_named_by(directory) == str(tmp_path / "versions" / "0001")
    assert load_policy(str(directory)) is not None
    assert {path.name for path in (tmp_path / "versions").iterdir()} == {"0001", "0001-copy", "0002"}
    assert b"The marked questions" in versions.answers(2)
    with pytest.raises(DataError, match="Version 3 has no answers before and after"):
        versions.answers(3)
    weighed = weigh(directory, {"0001": 0.0}, tmp_path / "weighed")
    assert base_named_by(weighed) == str(STORIES)


def test_the_worker_of_a_killed_server_and_that_of_the_next_one_publish_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins to publish while the first one writes."""
    request = {
        "versions": str(tmp_path / "versions"),
        "policy": {"path": "base"},
        "parent": 0,
        "annotations": [{"n": 1}],
    }

    def publish(name: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter").write_text(name)
        publish_version(request, tmp_path / name, [], {"kind": name})

    second, copy = threading.Thread(target=publish, args=("second",)), shutil.copytree

    def copying(source: Path, target: Path, **how: Any) -> Any:
        if source.name == "first":
            second.start()
            second.join(timeout=0.5)  # it waits for the first one
        return copy(source, target, **how)

    monkeypatch.setattr(shutil, "copytree", copying)
    publish("first")
    second.join()
    adapters = {path.name: (path / "adapter").read_text() for path in (tmp_path / "versions").iterdir()}
    assert adapters == {"0001": "first", "0002": "second"}
    for number, name in enumerate(("first", "second"), 1):
        about = json.loads((tmp_path / "versions" / f"000{number}" / "version.json").read_text())
        assert (about["version"], about["kind"], about["parent"], about["policy"]) == (number, name, 0, "base")
        assert (tmp_path / "versions" / f"000{number}" / "marks.jsonl").read_text() == '{"n": 1}\n'


def test_marks_are_withdrawn_from_all_files_and_the_versions_that_learned_from_them_are_named(tmp_path: Path) -> None:
    store = MarkStore(tmp_path)
    events: list[dict[str, Any]] = [
        {"op": "open", "item": item_of("p", "cat one"), "prompt": "p", "response": "cat one"},
        {
            "op": "span",
            "item": item_of("p", "cat one"),
            "id": "a",
            "start": 0,
            "end": 3,
            "label": "negative",
            "note": "",
        },
        {
            "op": "span",
            "item": item_of("p", "cat one"),
            "id": "b",
            "start": 4,
            "end": 7,
            "label": "negative",
            "note": "",
        },
    ]
    store.append("ann", "0" * 12, events)
    before = store.annotations("ann")
    for number, parent, marks in ((1, 0, []), (2, 0, before), (3, 2, []), (4, 1, [])):
        folder = tmp_path / "versions" / f"{number:04d}"
        folder.mkdir(parents=True)
        (folder / "marks.jsonl").write_bytes(json_lines(marks))
        (folder / "version.json").write_bytes(to_json({"version": number, "parent": parent}))
    (tmp_path / "versions" / "0009").mkdir()  # of a person, and no version
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "run.sqlite").write_bytes(b"open")
    store.append("ann", "0" * 12, [{**events[1], "start": 1}])  # moved since
    names = [
        mark_of(events[0]["item"], {**event, "rater": "ann"}) for event in store.events("ann")[1:] if event["id"] == "a"
    ]
    asked = {"rater": "ann", "item": events[0]["item"], "id": "a"}
    request = {"kind": "withdraw", "versions": str(tmp_path / "versions"), "marks": names, **asked}
    told = {**asked, "marks": 2, "learned": [2, 3], "parent": 0}  # the mark, before and after it was moved
    code = f"import sys, pathlib, text2grad.files as files; files.lock_directory(pathlib.Path({str(tmp_path)!r}))"
    server = [sys.executable, "-c", f"{code}; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline()
        assert Worker().answer({**request, "sure": False}, lambda **_: None) == {**told, "sure": False}
        assert store.annotations("ann") != before, "it is still there, where it was moved to"
        assert (tmp_path / "versions" / "0002" / "marks.jsonl").read_bytes() == json_lines(before)
        assert Worker().answer({**request, "sure": True}, lambda **_: None) == {**told, "sure": True}
        process.stdin.close()
    assert list(store.marked("ann")[events[0]["item"]].spans) == ["b"]
    [left] = list(appended_records(tmp_path / "versions" / "0002" / "marks.jsonl"))
    assert [(span["start"], span["end"]) for span in left["critique"]["spans"]] == [(4, 7)]
    told_of = [json.loads((tmp_path / "versions" / f"{n:04d}" / "version.json").read_bytes()) for n in (1, 2, 3, 4)]
    assert [about.get("withdrawn") for about in told_of] == [None, True, True, None]
    assert (tmp_path / "index" / "run.sqlite").exists(), "the server has it open"
    with pytest.raises(DataError, match="no mark of ann is in"):
        Worker().answer({**request, "sure": True}, lambda **_: None)
    with pytest.raises(DataError, match="no mark of bob is in"):
        Worker().answer({**request, "rater": "bob", "marks": [""], "sure": True}, lambda **_: None)
