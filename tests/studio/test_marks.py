"""Marks: every operation on disk, tabs and raters apart, nothing lost by a crash, critiques that the project reads."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conversations import FAIR
from studio_world import session
from text2grad.errors import DataError
from text2grad.feedback import annotation_to_json, item_of, mark_of, read_annotations, turns_to_json
from text2grad.files import json_lines
from text2grad.runs.lineage import Retraction
from text2grad.types import Conversation, Span, Turn
from text2grad_studio.exports import page_of_marks
from text2grad_studio.marks import Marked, MarkStore, OvertakenError, StoreError

PROMPT, RESPONSE = "Where?", "In Lyon, on Friday."
ITEM = item_of(PROMPT, RESPONSE)
OPEN = {"op": "open", "prompt": PROMPT, "response": RESPONSE, "ids": [1, 2], "run": "one", "place": [0, 3]}


def span(name: str, start: int, end: int, label: str = "negative", note: str = "") -> dict[str, Any]:
    return {
        "op": "span",
        "item": ITEM,
        "id": name,
        "start": start,
        "end": end,
        "label": label,
        "note": note,
        "from": "",
    }


def test_two_tabs_and_two_raters_keep_all_their_marks(tmp_path: Path) -> None:
    store = MarkStore(tmp_path)
    first, second, other = store.new_tab(), store.new_tab(), store.new_tab()
    store.append("ann", first, [OPEN, span("a", 3, 7)])
    store.append("ann", second, [OPEN, span("b", 12, 18, "positive")])
    store.append("ben", other, [OPEN, span("a", 0, 2)])
    store.append("ann", first, [{"op": "unspan", "item": ITEM, "id": "zzz"}, span("a", 3, 7, note="wrong city")])
    mine = MarkStore(tmp_path).marked("ann")[ITEM]  # a new process
    assert {key: (span["start"], span["end"], span["label"]) for key, span in mine.spans.items()} == {
        "a": (3, 7, "negative"),
        "b": (12, 18, "positive"),
    }
    assert [span["start"] for span in MarkStore(tmp_path).marked("ben")[ITEM].spans.values()] == [0]
    assert MarkStore(tmp_path).raters() == ["ann", "ben"]
    assert len(list((tmp_path / "marks" / "ann").iterdir())) == 2


def test_a_new_tab_goes_on_with_a_response_that_an_earlier_tab_opened(tmp_path: Path) -> None:
    MarkStore(tmp_path).append("ann", "0" * 12, [OPEN, span("a", 3, 7)])
    store = MarkStore(tmp_path)  # after a crash
    store.append("ann", "1" * 12, [span("b", 12, 18)])  # what waited in the browser
    assert list(MarkStore(tmp_path).marked("ann")[ITEM].spans) == ["a", "b"]
    with pytest.raises(DataError, match='before its "open"'):
        store.append("ben", "2" * 12, [span("b", 12, 18)])  # another rater has opened nothing


def test_a_disk_that_takes_no_marks_is_no_fault_of_the_marks(tmp_path: Path) -> None:
    store = MarkStore(tmp_path)
    (tmp_path / "marks").touch()
    with pytest.raises(StoreError) as caught:
        store.append("ann", "0" * 12, [OPEN, span("a", 3, 7)])
    assert str(caught.value) == f"cannot save marks in {tmp_path}/marks/ann/000000000000.jsonl: Not a directory"
    (tmp_path / "marks").unlink()
    store.append("ann", "0" * 12, [OPEN, span("a", 3, 7)])
    assert list(store.marked("ann")[ITEM].spans) == ["a"]


def test_marks_become_annotations_that_the_project_reads(tmp_path: Path) -> None:
    store = MarkStore(tmp_path)
    events = [OPEN, span("b", 9, 18, note="it was Monday"), span("a", 3, 7, "positive")]
    store.append("ann", store.new_tab(), [*events, {"op": "critique", "item": ITEM, "text": " Half right. "}])
    annotation = store.marked("ann")[ITEM].annotation("ann")
    assert annotation.critique.feedback == 'Half right.\n"on Friday": it was Monday'
    assert annotation.critique.spans == (Span(3, 7, "positive"), Span(9, 18, "negative"))
    (tmp_path / "out.jsonl").write_bytes(json_lines([annotation_to_json(annotation)]))
    assert read_annotations(tmp_path / "out.jsonl") == [annotation]


def test_exported_marks_say_who_made_them_and_how_long_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, item = session(tmp_path), item_of("When?", RESPONSE)
    other = [{**OPEN, "prompt": "When?"}, {**span("b", 3, 7), "item": item}]
    done = {"op": "state", "item": item, "value": "done"}
    for second, events in ((1000, [OPEN, span("a", 3, 7)]), (1020, other), (1025, [done])):
        monkeypatch.setattr("text2grad_studio.marks.time.time_ns", lambda second=second: second * 10**9)
        made.marks.append("ann", "0" * 12, events)
    # nothing tells when the first response was opened; the second took 20 s from the act before, and 5 s more
    lines = made.marks.annotations("ann")
    assert [(line["rater"], line["seconds"]) for line in lines] == [("ann", None), ("ann", 25.0)]


def test_a_line_that_a_crash_cut_off_costs_itself_only(tmp_path: Path) -> None:
    store, tab = MarkStore(tmp_path), MarkStore(tmp_path).new_tab()
    store.append("ann", tab, [OPEN, span("a", 3, 7)])
    file = tmp_path / "marks" / "ann" / f"{tab}.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"at": 9, "item": "')
    again = MarkStore(tmp_path)
    assert list(again.marked("ann")[ITEM].spans) == ["a"]
    again.append("ann", tab, [span("b", 0, 2)])
    assert list(MarkStore(tmp_path).marked("ann")[ITEM].spans) == ["a", "b"]


def test_undo_is_an_operation_and_history_keeps_everything(tmp_path: Path) -> None:
    store, tab = MarkStore(tmp_path), MarkStore(tmp_path).new_tab()
    store.append("ann", tab, [OPEN, span("a", 3, 7)])
    store.append("ann", tab, [{"op": "unspan", "item": ITEM, "id": "a"}])
    assert store.marked("ann")[ITEM].empty
    assert [event["op"] for event in store.events("ann", ITEM)] == ["open", "span", "unspan"]
    times = [event["at"] for event in store.events("ann")]
    assert times == sorted(times)
    assert len(set(times)) == 2  # acts


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (span("a", 3, 20), "0 <= start < end <= 19"),
        (span("a", 4, 4), "0 <= start < end <= 19"),
        (span("a", 3, 7, "bad"), "positive or negative"),
        ({**span("a", 3, 7), "start": True}, "0 <= start"),
        ({**span("a", 3, 7), "note": 3}, '"note" of an operation'),
        ({"op": "critique", "item": ITEM, "text": "x" * 1_000_001}, "at most 1,000,000 characters"),
        ({"op": "state", "item": ITEM, "value": "finished"}, '"value" of state is one of "", "done", "skipped"'),
        ({"op": "drop", "item": ITEM}, "is one of open, span, unspan, critique, state, suggestion; got"),
        ({"op": "unspan", "item": "other", "id": "a"}, 'before its "open"'),
        ({**OPEN, "ids": ["1"]}, "token ids"),
    ],
)
def test_what_is_no_operation_is_refused_and_nothing_is_saved(
    tmp_path: Path, event: dict[str, Any], message: str
) -> None:
    store, tab = MarkStore(tmp_path), MarkStore(tmp_path).new_tab()
    with pytest.raises(DataError, match=message):
        store.append("ann", tab, [OPEN, span("ok", 0, 2), event])
    assert store.marked("ann") == {}


@pytest.mark.parametrize("rater", ["ann", "Ann B.", "प्रिया", "Jose\u0301"])
def test_names_of_raters_are_of_any_script(tmp_path: Path, rater: str) -> None:
    MarkStore(tmp_path).append(rater, "0" * 12, [OPEN, span("a", 2, 5)])
    assert MarkStore(tmp_path).raters() == [rater]


@pytest.mark.parametrize(("rater", "tab"), [("../ann", "0" * 12), ("", "0" * 12), ("ann", "../x"), ("ann", "0" * 13)])
def test_names_lead_to_no_other_place(tmp_path: Path, rater: str, tab: str) -> None:
    with pytest.raises(DataError, match="is no name"):
        MarkStore(tmp_path / "store").append(rater, tab, [OPEN])
    assert not (tmp_path / "store").exists()


def test_an_act_that_is_sent_again_is_saved_once(tmp_path: Path) -> None:
    store = MarkStore(tmp_path)
    at = store.append("ann", "0" * 12, [OPEN, span("a", 3, 7)], "first")
    assert store.append("ann", "1" * 12, [OPEN, span("a", 3, 7)], "first") == at  # by the next page
    store.append("ann", "0" * 12, [span("a", 3, 7), span("b", 12, 18)], "second")
    path = tmp_path / "marks" / "ann" / f"{'0' * 12}.jsonl"
    path.write_bytes(path.read_bytes()[:-9])  # a full disk cut the act off
    store = MarkStore(tmp_path)
    store.append("ann", "0" * 12, [span("a", 3, 7), span("b", 12, 18)], "second")
    events = MarkStore(tmp_path).events("ann")
    assert [event["op"] for event in events] == ["open", "span", "span", "span"]
    assert len({event["at"] for event in events[2:]}) == 1
    with pytest.raises(DataError, match='"act" of an operation is a text of at most 40 characters'):
        store.append("ann", "0" * 12, [span("a", 3, 7)], "x" * 41)


def test_an_undo_that_does_not_know_the_last_operation_is_refused(tmp_path: Path) -> None:
    store, first, second = MarkStore(tmp_path), "1" * 12, "2" * 12
    critique = {"op": "critique", "item": ITEM, "text": "Half right."}
    undo = {"op": "unspan", "item": ITEM, "id": "a", "by": "undo"}
    store.append("ann", first, [OPEN, span("a", 3, 7)], "first", seen=0)
    store.append("ann", second, [OPEN, critique], "second", seen=0)  # a mark is not refused
    with pytest.raises(OvertakenError) as caught:
        store.append("ann", first, [undo], "third", seen=1)
    assert str(caught.value) == (
        "another tab changed the marks of this response meanwhile, so nothing was undone or redone"
    )
    assert list(store.marked("ann")[ITEM].spans) == ["a"]
    at = store.append("ann", first, [undo], "fourth", seen=2)
    assert store.append("ann", first, [undo], "fourth", seen=2) == at  # sent again: it is no other act
    assert store.operations_before("ann", ITEM, at) == 2
    store.append("ben", first, [OPEN, span("a", 3, 7)], seen=0)  # raters are apart


def test_an_operation_that_is_new_is_read_and_applied_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, others = MarkStore(tmp_path), [{**OPEN, "prompt": f"Prompt {n}."} for n in range(5)]
    for opening in others:
        item = item_of(opening["prompt"], RESPONSE)
        store.append("ann", "0" * 12, [opening, {**span("a", 3, 7), "item": item}])
    assert len(store.listed("ann")) == 5
    applied, take = list[str](), Marked.take
    monkeypatch.setattr(Marked, "take", lambda self, event: (applied.append(self.item), take(self, event))[1])
    before = store.marked("ann")
    store.append("ann", "1" * 12, [{**span("b", 0, 2), "item": item}])
    assert [marks.item for marks in store.listed("ann")][:2] == [item, item_of("Prompt 3.", RESPONSE)]
    assert {digest for digest in applied if digest} == {item}
    assert list(before[item].spans) == ["a"]  # a request that still reads it is not disturbed
    assert list(store.marked("ann")[item].spans) == ["a", "b"]
    assert [marks.opened["prompt"] for marks in store.listed("ann", "PROMPT 2")] == ["Prompt 2."]


def test_files_that_a_person_changes_are_read_anew(tmp_path: Path) -> None:
    store, folder = MarkStore(tmp_path), tmp_path / "marks" / "ann"
    store.append("ann", "0" * 12, [OPEN, span("a", 3, 7)])
    store.append("ann", "1" * 12, [span("b", 12, 18)])
    assert list(store.marked("ann")[ITEM].spans) == ["a", "b"]
    first, second = sorted(folder.iterdir())
    second.write_text(second.read_text().replace('"b"', '"c"'))  # as many bytes
    assert list(store.marked("ann")[ITEM].spans) == ["a", "c"]
    MarkStore(tmp_path).append("ann", "2" * 12, [span("d", 0, 2)])  # another process
    assert [list(known.marked("ann")[ITEM].spans) for known in (store, MarkStore(tmp_path))] == [["a", "c", "d"]] * 2
    second.unlink()
    assert list(store.marked("ann")[ITEM].spans) == ["a", "d"]
    with first.open("a") as file:
        file.write('{"at": 1, "op": "span", "item": 3}\n{"at": 2, "op": "span", "item": "x"}\n')  # by hand
    assert list(store.marked("ann")) == [ITEM]
    first.unlink()
    assert [marks.item for marks in store.listed("ann")] == []  # the text is gone with its file


def test_a_clock_that_is_set_back_changes_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MarkStore(tmp_path).append("ann", "0" * 12, [OPEN, span("a", 3, 7)])
    monkeypatch.setattr("text2grad_studio.marks.time.time_ns", lambda: 1)
    MarkStore(tmp_path).append("ann", "1" * 12, [{"op": "unspan", "item": ITEM, "id": "a"}])  # after a restart
    assert MarkStore(tmp_path).marked("ann")[ITEM].spans == {}


def test_a_line_that_a_person_damaged_is_named_and_costs_itself_only(tmp_path: Path) -> None:
    store, folder = MarkStore(tmp_path), tmp_path / "marks" / "ann"
    store.append("ann", "0" * 12, [OPEN, span("a", 3, 7)])
    store.append("ann", "0" * 12, [span("b", 12, 18)])
    file = folder / f"{'0' * 12}.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"end":18', b'"fin":18').replace(b'"end": 18', b'"fin": 18'))
    assert list(store.whole("ann")[ITEM].spans) == ["a"]
    assert store.faults("ann") == [f'{file}, line 3: an operation "span" has no "end"']
    with file.open("ab") as more:
        more.write(
            b'{"open": 1}\n{"at": 9, "item": "x", "op": "state", "value": "finished"}\n[1]\n{"cut off by a cra\n'
        )
    assert store.faults("ann")[1:] == [
        f'{file}, line 4: it has no "op"',
        f'{file}, line 5: "value" of state is one of "", "done", "skipped"; got "finished"',
        f"{file}, line 6: it is no JSON object",
    ]
    file.write_bytes(whole)
    assert (list(store.marked("ann")[ITEM].spans), store.faults("ann")) == (["a", "b"], [])


def test_marks_whose_text_a_person_removed_are_named_when_they_are_taken_away(tmp_path: Path) -> None:
    made, other = session(tmp_path), {**OPEN, "prompt": "When?"}
    made.marks.append("ann", "0" * 12, [OPEN, span("a", 3, 7), {"op": "state", "item": ITEM, "value": "done"}])
    made.marks.append("ann", "1" * 12, [other, {**span("b", 3, 7), "item": item_of("When?", RESPONSE)}])
    file = tmp_path / "marks" / "ann" / f"{'0' * 12}.jsonl"
    whole = file.read_text()
    file.write_text('{"op": "open"}\n' + "".join(whole.splitlines(keepends=True)[1:]))
    taken: list[Callable[[], Any]] = [
        lambda: made.marks.annotations("ann"),
        lambda: page_of_marks(made, "ann"),
        lambda: made.to_teach("ann", None),
    ]
    for take in taken:
        with pytest.raises(DataError) as caught:
            take()
        assert str(caught.value) == (
            f'the text of a marked response of ann cannot be read: {file}, line 1: an operation "open" has no "at". '
            f'Mend the line, or remove all lines with "item": "{ITEM}"'
        )
    assert len(made.to_teach("ann", [item_of("When?", RESPONSE)])) == 1
    assert [marks["prompt"] for marks in made.marked("ann")["items"]] == ["When?"]
    assert made.agreement() == {"pairs": []}
    file.write_text(whole.splitlines(keepends=True)[1])
    with pytest.raises(DataError, match=f'no line in .* has "op": "open" and "item": "{ITEM}"'):
        made.marks.annotations("ann")
    file.write_text(whole)
    assert len(made.marks.annotations("ann")) == 2


def test_a_line_that_an_editor_makes_longer_in_its_place_is_read_anew(tmp_path: Path) -> None:
    store = MarkStore(tmp_path)
    store.append("ann", "0" * 12, [OPEN, span("a", 3, 7)])
    store.append("ann", "0" * 12, [span("b", 12, 18)])
    assert store.marked("ann")[ITEM].spans["a"]["note"] == ""
    file = tmp_path / "marks" / "ann" / f"{'0' * 12}.jsonl"
    with file.open("r+b") as same:  # the file is the same one, and longer
        changed = (
            same.read().replace(b'"note":""', b'"note":"it was Monday"').replace(b'"note": ""', b'"note":"Monday"')
        )
        same.seek(0)
        same.write(changed)
    assert store.marked("ann")[ITEM].spans["a"]["note"] != ""
    assert [event["op"] for event in store.events("ann")] == ["open", "span", "span"]


def test_a_mark_keeps_its_reason_and_its_rater(tmp_path: Path) -> None:
    store = MarkStore(tmp_path)
    store.append("ann", store.new_tab(), [OPEN, span("b", 9, 18, note=" it was Monday "), span("a", 3, 7, "positive")])
    critique = store.marked("ann")[ITEM].critique_of("ann")
    assert [span.stated for span in critique.spans] == [
        {"start": 3, "end": 7, "label": "positive", "rater": "ann", "source": "studio"},
        {"start": 9, "end": 18, "label": "negative", "reason": "it was Monday", "rater": "ann", "source": "studio"},
    ]


SPOKEN = {"prompt": "When?", "response": str(FAIR), "turns": turns_to_json(FAIR)}
SPOKEN_ITEM = item_of("When?", FAIR)


def mark_in_turns(store: MarkStore) -> None:
    """Mark in "Look up Lyon.In Lyon on Monday, on Monday.": "Lyon" of turn 3, "Look" of turn 1, and "Lyon.In"."""
    marks = [span("a", 16, 20, note="it was Nice"), span("b", 0, 4, "positive"), span("c", 8, 15)]
    store.append("ann", store.new_tab(), [{**OPEN, **SPOKEN}, *({**mark, "item": SPOKEN_ITEM} for mark in marks)])


def test_marks_on_a_conversation_name_their_turns_and_are_read_with_them(tmp_path: Path) -> None:
    mark_in_turns(MarkStore(tmp_path))
    annotation = MarkStore(tmp_path).marked("ann")[SPOKEN_ITEM].annotation("ann")
    in_first, in_third = Span(8, 13, "negative", 1), Span(0, 2, "negative", 3)  # of the mark over both turns
    assert annotation.critique.spans == (Span(0, 4, "positive", 1), in_first, in_third, Span(3, 7, "negative", 3))
    assert annotation.critique.feedback == '"Lyon": it was Nice'
    (tmp_path / "out.jsonl").write_bytes(json_lines([annotation_to_json(annotation)]))
    (read,) = read_annotations(tmp_path / "out.jsonl")
    assert read == annotation
    assert isinstance(read.response, Conversation)
    assert read.response.turns == FAIR.turns


def test_equal_words_after_another_result_of_a_tool_have_marks_of_their_own() -> None:
    told = Conversation([*FAIR.turns[:2], Turn("tool", "Lyon: Monday", name="look"), *FAIR.turns[3:]])
    assert str(told) == str(FAIR)
    assert len({item_of("When?", response) for response in (FAIR, told, str(FAIR))}) == 3


@pytest.mark.parametrize("turns", [turns_to_json(FAIR)[:3], [{"role": "assistant"}], "turns", 3])
def test_turns_that_say_something_else_than_the_response_are_refused(tmp_path: Path, turns: Any) -> None:
    store = MarkStore(tmp_path)
    with pytest.raises(DataError, match='an operation "open": "turns" is a list of'):
        store.append("ann", store.new_tab(), [{**OPEN, **SPOKEN, "turns": turns}])
    assert store.marked("ann") == {}


def test_a_conversation_is_exported_and_not_taught(tmp_path: Path) -> None:
    made = session(tmp_path)
    mark_in_turns(made.marks)
    page = page_of_marks(made, "ann")
    assert page.count('<div class="turn given"><p class="where as-is">turn 2 · tool · look</p>Lyon: Friday</div>') == 1
    assert ">Look</span>" in page
    said = (
        r'<span class="t n4"[^>]*>In</span>',
        '<span class="t" title="δ 0"> </span>',
        r'<span [^>]*Nice">Lyon</span>',
    )
    assert re.search(f"turn 3 · assistant</p>{''.join(said)}", page)
    (listed,) = made.marked("ann")["items"]
    assert listed["turns"] == SPOKEN["turns"]
    with pytest.raises(DataError, match="mark a word of a response of one turn first"):
        made.to_teach("ann", None)
    made.marks.append("ann", made.marks.new_tab(), [OPEN, span("d", 3, 7)])
    assert [taught["response"] for taught in made.to_teach("ann", None)] == [RESPONSE]
    assert len(made.marks.annotations("ann")) == 2


def test_a_rater_takes_marks_back_and_an_old_copy_brings_none_again(tmp_path: Path) -> None:
    store, runs = MarkStore(tmp_path), tmp_path / "runs"
    runs.mkdir()
    events = [OPEN, span("a", 3, 7, note="wrong city"), span("a", 0, 7, note="no city"), span("b", 12, 18)]
    store.append("ann", "0" * 12, [*events, {"op": "critique", "item": ITEM, "text": "Half right."}])
    store.append("ann", "1" * 12, [OPEN, span("b", 12, 19, "positive", note="a better note")])
    store.append("ben", "2" * 12, [OPEN, span("a", 3, 7, note="of Ben")])
    folder = tmp_path / "marks" / "ann"
    copies = {path: path.read_bytes() for path in sorted(folder.iterdir())}

    name = mark_of(ITEM, {"rater": "ann", "start": 0, "end": 7, "label": "negative"})
    Retraction(tmp_path, runs, "ann", name).write("a test")
    marked = store.marked("ann")[ITEM]
    assert (list(marked.spans), marked.critique) == (["b"], "Half right.")
    left = b"".join(path.read_bytes() for path in folder.iterdir())
    assert [note for note in (b"wrong city", b"no city", b"a better note") if note in left] == [b"a better note"]

    Retraction(tmp_path, runs, "ann").write("a test")
    assert store.marked("ann") == {}
    assert b"".join(path.read_bytes() for path in folder.iterdir()).strip() == b""
    assert list(store.marked("ben")[ITEM].spans) == ["a"]
    for path, data in copies.items():
        path.write_bytes(data)
    later = MarkStore(tmp_path)
    assert later.marked("ann") == {}
    assert [fault.partition(": ")[2] for fault in later.faults("ann")] == ["its mark was withdrawn"] * 7
    later.append("ann", "3" * 12, [OPEN, span("a", 3, 7, note="still the wrong city")])
    assert list(later.marked("ann")[ITEM].spans) == ["a"], "the same mark, made again"
