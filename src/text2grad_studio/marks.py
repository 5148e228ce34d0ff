"""The side store of marks: what each rater said about each response, append-only.

    STORE/marks/RATER/TAB.jsonl      one event per line, flushed to disk before the page hears that it is saved

A page that is opened is a tab with a file of its own, so two tabs never write into one file, and raters have folders of
their own. An event is one operation on one response:

    {"at": ..., "item": ..., "op": "open", "prompt": ..., "response": ..., "ids": [...], "run": ..., "place": [0, 3]}
    {"at": ..., "item": ..., "op": "span", "id": ..., "start": 3, "end": 9, "label": "negative", "note": "", "from": ""}
    {"at": ..., "item": ..., "op": "unspan", "id": ...}
    {"at": ..., "item": ..., "op": "critique", "text": ...}
    {"at": ..., "item": ..., "op": "state", "value": "done", "skipped" or ""}
    {"at": ..., "item": ..., "op": "suggestion", "id": ..., "value": "accepted", "rejected" or ""}

Events of one act of the person have the same "at", in nanoseconds, and the same "act", the name by which a page that
heard no answer sends them again; they are saved once. "by" is "undo" or "redo" for such acts.

The marks of a response are the events of all tabs of a rater in the order in which they were saved. Spans have ids of
their own, so operations of two tabs do not undo each other. Undo is an operation, too: nothing is ever removed but by
`text2grad feedback retract`; "open" repeats text and turns: the marks outlive the run. A line that a crash cut off is
not read; it was never confirmed. A line that a person made invalid is not read either; a message names file and number.
An undo or redo by a page that does not know the last operation on the response is refused: it would take back another
tab's. Characters are those of the whole response; a `Critique` of marks names turns.

Files are read where they changed, so a request costs no more than what is new since the one before.
"""

import json
import os
import re
import threading
import time
import unicodedata
from collections import ChainMap, OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from text2grad.errors import DataError, Text2GradError
from text2grad.feedback import Annotation, annotation_to_json, in_turns, item_of, mark_of, read_tombstones, response_of
from text2grad.files import to_json
from text2grad.types import LABELS, Critique, Span
from text2grad_studio.fields import shown

_RATER = re.compile(r"\w[\w .@-]{0,39}")
TAB = re.compile(r"[0-9a-f]{12}")
MOST_CHARS = 1_000_000  # most characters of a response or a critique
STATES = ("", "done", "skipped")
VERDICTS = ("", "accepted", "rejected")
SPAN = ("id", "start", "end", "label", "note", "from")
KEPT_LISTS = 8  # searches in a rater's marks whose results are kept
SHOWN_FAULTS = 3
TAIL_BYTES = 64  # last bytes that must be unchanged if a file has grown
KEYS = {  # operation → its keys besides "at" and "item"
    "open": ("prompt", "response"),
    "span": ("id", "start", "end", "label"),
    "unspan": ("id",),
    "critique": ("text",),
    "state": ("value",),
    "suggestion": ("id", "value"),
}
OPERATIONS = tuple(KEYS)


def is_rater(name: str) -> bool:
    """Return True for a possible name of a rater; accents and vowel signs count as letters, but begin no name."""
    letters = "".join("a" if unicodedata.category(character).startswith("M") else character for character in name[1:])
    return _RATER.fullmatch(name[:1] + letters) is not None


class StoreError(Text2GradError):
    """The disk refuses marks that are in order; the same request can succeed later."""


class OvertakenError(Text2GradError):
    """Another tab changed the marks first: an undo or redo does not fit them any more."""


@dataclass(slots=True)
class Marked:
    """The marks of one rater on one response.

    Attributes:
        item: digest of prompt and response.
        opened: the event "open": prompt, response, turns, ids, run and place.
        spans: by id, in the order in which they were made.
        critique: words about the whole response.
        state: "done", "skipped" or "".
        suggestions: verdicts on the critic's spans, by their id.
        events: number of operations.
        at: when the last was saved, in nanoseconds.
    """

    item: str
    opened: Mapping[str, Any] = field(default_factory=dict)
    spans: dict[str, dict[str, Any]] = field(default_factory=dict)
    critique: str = ""
    state: str = ""
    suggestions: dict[str, str] = field(default_factory=dict)
    events: int = 0
    at: int = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """Apply an operation."""
        op, self.at = event["op"], int(event["at"])
        self.events += op != "open"
        if op == "open":
            self.opened = event
        elif op == "span":
            self.spans[event["id"]] = {key: event.get(key, "") for key in SPAN}
        elif op == "unspan":
            self.spans.pop(event["id"], None)
        elif op == "critique":
            self.critique = event["text"]
        elif op == "state":
            self.state = event["value"]
        else:
            self.suggestions[event["id"]] = event["value"]

    @property
    def empty(self) -> bool:
        """True if nothing is said: no span and no words."""
        return not self.spans and not self.critique.strip()

    @property
    def response(self) -> str:
        """The response, a `Conversation` if it has turns."""
        return response_of(self.opened, "a marked response")

    def critique_of(self, rater: str) -> Critique:
        """Return the marks as a critique; its feedback is the words about the whole, then each span's note.

        A span has its note as the reason, and names the rater; in a conversation it names its turn.
        """
        response = self.response
        spans = sorted(self.spans.values(), key=lambda span: (span["start"], span["end"]))
        notes = [f'"{response[span["start"] : span["end"]]}": {span["note"]}' for span in spans if span["note"].strip()]
        words = "\n".join([*([self.critique.strip()] if self.critique.strip() else []), *notes])
        kept = {
            Span(s["start"], s["end"], s["label"], reason=s["note"].strip() or None, rater=rater, source="studio")
            for s in spans
        }
        return Critique(words, tuple(sorted(in_turns(response, kept)[0])))

    def annotation(self, rater: str) -> Annotation:
        """Return prompt, response and critique, as `text2grad reward` reads them."""
        return Annotation(self.opened["prompt"], self.response, self.critique_of(rater))

    def as_json(self) -> dict[str, Any]:
        """Return the marks for the page."""
        return {
            "item": self.item,
            "spans": list(self.spans.values()),
            "critique": self.critique,
            "state": self.state,
            "suggestions": self.suggestions,
            "at": self.at,
        }


class _State(NamedTuple):
    """What shows that a file has not changed."""

    inode: int
    size: int
    time_ns: int


class _Read(NamedTuple):
    """How far a file is read: its whole lines."""

    state: _State | None = None
    size: int = 0  # bytes
    lines: int = 0
    tail: bytes = b""  # the last bytes


class _Known:
    """All that is read of a rater's files; an object that `MarkStore` has returned is never changed afterwards."""

    def __init__(self) -> None:
        self.files: dict[Path, _Read] = {}
        self.faults: list[str] = []  # lines that are no operations
        self.events: list[dict[str, Any]] = []
        self.of_item: dict[str, list[dict[str, Any]]] = {}
        self.opened: dict[str, Mapping[str, Any]] = {}
        self.acts: dict[str, list[int]] = {}  # times of the operations of each act
        self.marked: dict[str, Marked] = {}
        self.before: tuple[int, dict[str, Marked]] = (0, {})  # marks after so many operations
        self.lists: OrderedDict[str, list[Marked]] = OrderedDict()  # searched words → marks

    @property
    def last(self) -> int:
        """Time of the last operation."""
        return int(self.events[-1]["at"]) if self.events else 0

    def take(self, events: Sequence[dict[str, Any]]) -> None:
        """Take operations that follow those which are known."""
        changed: dict[str, Marked] = {}
        for event in events:
            item = event["item"]
            if item not in changed:
                marked = self.marked.get(item, Marked(item))
                changed[item] = replace(marked, spans=dict(marked.spans), suggestions=dict(marked.suggestions))
            changed[item].take(event)
            self.events.append(event)
            self.of_item.setdefault(item, []).append(event)
            if event["op"] == "open":
                self.opened[item] = event
            if event.get("act"):
                self.acts.setdefault(event["act"], []).append(int(event["at"]))
        self.marked = {**self.marked, **changed}
        self.lists.clear()


class MarkStore:
    """The events of all raters below one directory."""

    def __init__(self, directory: Path) -> None:
        """Take the directory, which need not exist."""
        self.directory, self.withdrawn = directory / "marks", read_tombstones(directory)
        self._lock = threading.Lock()
        self._raters: dict[str, _Known] = {}
        self._last = 0

    def new_tab(self) -> str:
        """Return the name of a tab; its file appears with its first event."""
        return token_hex(6)

    def append(
        self, rater: str, tab: str, events: Sequence[Mapping[str, Any]], act: str = "", *, seen: int | None = None
    ) -> int:
        """Save the operations of one act; when this returns they are on disk. Return its time.

        Args:
            rater: name of a person.
            tab: as `new_tab` returned it.
            events: operations of the module's docstring, without "at".
            act: name of the act, if it has one; events that were saved under it are not saved again.
            seen: operations on the response that the page knew before this act; None if it does not count them.

        Raises:
            DataError: if an operation is invalid; nothing is saved then.
            OvertakenError: if the act is an undo or redo, and there are operations that the page does not know.
            StoreError: if the files cannot be read or written.
        """
        path, act = self._file(rater, tab), _text({"act": act}, "act", 40)
        with self._lock:
            try:  # another tab of the rater may have opened the response: a page sends what an earlier page left
                known = self._known(rater)
            except OSError as error:
                raise StoreError(f"cannot read marks in {path.parent}: {error.strerror}") from error
            opened = ChainMap[str, Mapping[str, Any]]({}, known.opened)
            saved = known.acts.get(act, [])
            self._last = max(self._last, known.last)  # the clock may have been set back
            at = saved[0] if saved else max(time.time_ns(), self._last + 1)
            lines = []
            for event in events[len(saved) :]:
                checked = _checked(event, opened)
                if checked["op"] == "open":
                    opened[checked["item"]] = checked
                elif event.get("by") in ("undo", "redo"):
                    _check_seen(known.marked.get(checked["item"]), seen if not saved else None)
                    checked["by"] = event["by"]
                lines.append(to_json({"at": at, **({"act": act} if act else {}), **checked}) + b"\n")
            if not lines:
                return at
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab") as file:
                    if file.tell() and not self._ends_whole(path):
                        file.write(b"\n")  # a crash cut the last line off
                    file.write(b"".join(lines))
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise StoreError(f"cannot save marks in {path}: {error.strerror}") from error
            self._last = max(self._last, at)
            return at

    def raters(self) -> list[str]:
        """Return the raters with marks; folders whose names cannot be raters' names are ignored."""
        folders = self.directory.iterdir() if self.directory.is_dir() else ()
        return sorted(path.name for path in folders if path.is_dir() and is_rater(path.name))

    def events(self, rater: str, item: str | None = None) -> list[dict[str, Any]]:
        """Return a rater's operations on a response, or on all responses, in the order in which they were saved."""
        with self._lock:
            known = self._known(rater)
            return list(known.events if item is None else known.of_item.get(item, ()))

    def operations(self, rater: str) -> int:
        """Return how many operations a rater has made, the opening of responses included."""
        with self._lock:
            return len(self._known(rater).events)

    def operations_before(self, rater: str, item: str, at: int) -> int:
        """Return how many operations on a response, opening it apart, came before a time."""
        return sum(event["op"] != "open" and int(event["at"]) < at for event in self.events(rater, item))

    def marked(self, rater: str) -> dict[str, Marked]:
        """Return the marks of a rater by response."""
        with self._lock:
            return self._known(rater).marked

    def whole(self, rater: str, items: Collection[str] | None = None) -> dict[str, Marked]:
        """Return the marks of a rater by response, each with the text of the response, for exports and lessons.

        Args:
            rater: name of a person.
            items: the responses that count; None takes all.

        Raises:
            DataError: if the text of a marked response cannot be read, since a person changed its line.
        """
        with self._lock:
            known = self._known(rater)
        wanted = known.marked.keys() if items is None else set(items)
        chosen = {item: marks for item, marks in known.marked.items() if item in wanted}
        unreadable = (item for item, marks in chosen.items() if not marks.opened and (marks.state or not marks.empty))
        lost = next(unreadable, None)
        if lost is not None:
            why = known.faults or [f'no line in {self._folder(rater)} has "op": "open" and "item": "{lost}"']
            raise DataError(
                f"the text of a marked response of {rater} cannot be read: {'; '.join(why[:SHOWN_FAULTS])}. Mend the "
                f'line, or remove all lines with "item": "{lost}"'
            )
        return chosen

    def annotations(self, rater: str) -> list[dict[str, Any]]:
        """Return the lines of a rater's marks, with the sampled ids; skipped responses are left out.

        The seconds of a response are those from each act before to the rater's next act, on this response.
        """
        whole, seconds = self.whole(rater).values(), defaultdict[str, float](float)
        for before, event in pairwise(self.events(rater)):
            seconds[event["item"]] += (event["at"] - before["at"]) / 1e9
        return [
            {**annotation_to_json(marks.annotation(rater)), "rater": rater, "seconds": seconds[marks.item] or None}
            | ({"ids": marks.opened["ids"]} if marks.opened["ids"] else {})
            for marks in whole
            if marks.state == "done" or not (marks.empty or marks.state)
        ]

    def faults(self, rater: str) -> list[str]:
        """Return the lines of a rater's files that are no operations, each with file, number and reason."""
        with self._lock:
            return self._known(rater).faults

    def marked_after(self, rater: str, operations: int) -> dict[str, Marked]:
        """Return the marks of a rater by response, as they were after so many operations."""
        with self._lock:
            known = self._known(rater)
            if operations >= len(known.events):
                return known.marked
            if known.before[0] != operations:
                known.before = operations, _folded(known.events[:operations])
            return known.before[1]

    def listed(self, rater: str, words: str = "") -> list[Marked]:
        """Return the responses on which a rater said something, the last first.

        Args:
            rater: name of a person.
            words: occur in prompt, response or critique; case does not matter.
        """
        with self._lock:
            known, words = self._known(rater), words.lower()
            if words not in known.lists:
                spoken = (marks for marks in known.marked.values() if marks.events and marks.opened)
                listed = [marks for marks in spoken if words in _said(marks)]
                known.lists[words] = sorted(listed, key=lambda marks: -marks.at)
                while len(known.lists) > KEPT_LISTS:
                    known.lists.popitem(last=False)
            return known.lists[words]

    def _folder(self, rater: str) -> Path:
        if not is_rater(rater):
            raise DataError(f"{rater!r} is no name of a rater: letters, digits, spaces and .@_-, at most 40")
        return self.directory / rater

    def _files(self, rater: str) -> list[Path]:
        return sorted(self._folder(rater).glob("*.jsonl"))

    def _file(self, rater: str, tab: str) -> Path:
        if not TAB.fullmatch(tab):
            raise DataError(f"{tab!r} is no name of a tab; reload the page")
        return self._folder(rater) / f"{tab}.jsonl"

    def _known(self, rater: str) -> _Known:
        """Return all that a rater has on disk; only bytes that were added since the last call are read."""
        known = self._raters.get(rater, _Known())
        states = {path: _state(path) for path in self._files(rater)}
        new = None
        if not any(_is_other(states.get(path), read.state) for path, read in known.files.items()):
            new = _new_bytes(known.files, states)
        if new is None:
            known = _Known()
            new = _new_bytes({}, states) or {}
        files, faults, events = dict(known.files), list(known.faults), list[dict[str, Any]]()
        for path, data in new.items():
            before, whole = files.get(path, _Read()), data[: data.rfind(b"\n") + 1]
            lines = whole.splitlines()
            for number, line in enumerate(lines, before.lines + 1):
                event = _parsed(line)
                if isinstance(event, dict) and self._is_withdrawn(rater, event):
                    event = "its mark was withdrawn"
                if isinstance(event, str):
                    faults.append(f"{path}, line {number}: {event}")
                elif event is not None:
                    events.append(event)
            tail = (before.tail + whole)[-TAIL_BYTES:]
            files[path] = _Read(states[path], before.size + len(whole), before.lines + len(lines), tail)
        events.sort(key=lambda event: int(event["at"]))
        if events and int(events[0]["at"]) < known.last:  # a file that a person brought from elsewhere
            events, known = sorted([*known.events, *events], key=lambda event: int(event["at"])), _Known()
        if events:
            known.take(events)
        known.files, known.faults = files, faults
        self._raters[rater] = known
        return known

    def _is_withdrawn(self, rater: str, event: Mapping[str, Any]) -> bool:
        """Return True for an operation that a person brought back, and not for the same mark made again later."""
        stone = self.withdrawn.get(mark_of(event["item"], {**event, "rater": rater})) if self.withdrawn else None
        return stone is not None and int(event["at"]) <= int(stone["at"])

    def _ends_whole(self, path: Path) -> bool:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _state(path: Path) -> _State:
    status = path.stat()
    return _State(status.st_ino, status.st_size, status.st_mtime_ns)


def _is_other(now: _State | None, before: _State | None) -> bool:
    """Return True for a file that was removed, replaced, or changed without growing."""
    if now is None or before is None:
        return True
    return now != before and (now.inode != before.inode or now.size <= before.size)


def _new_bytes(files: Mapping[Path, _Read], states: Mapping[Path, _State]) -> dict[Path, bytes] | None:
    """Return the bytes that were appended since the last look; None if an editor changed a file before its end."""
    new = {}
    for path, state in states.items():
        before = files.get(path, _Read())
        if state != before.state:
            with path.open("rb") as file:
                file.seek(before.size - len(before.tail))
                if file.read(len(before.tail)) != before.tail:
                    return None
                new[path] = file.read()
    return new


def _said(marked: Marked) -> str:
    return f"{marked.opened['prompt']}\n{marked.opened['response']}\n{marked.critique}".lower()


def _check_seen(marked: Marked | None, seen: int | None) -> None:
    """Check that a page knows all operations on a response.

    Raises:
        OvertakenError: if there are more than it has seen.
    """
    if seen is not None and marked is not None and marked.events > seen:
        raise OvertakenError(
            "another tab changed the marks of this response meanwhile, so nothing was undone or redone"
        )


def _folded(events: Iterable[Mapping[str, Any]]) -> dict[str, Marked]:
    by_item: dict[str, Marked] = {}
    for event in events:
        by_item.setdefault(event["item"], Marked(event["item"])).take(event)
    return by_item


def _parsed(line: bytes) -> dict[str, Any] | str | None:
    """Return the operation of a line, or why a person's change made it none; None for a line that a crash cut off."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return "it is no JSON object"
    if "op" not in event:
        return 'it has no "op"'
    op = event["op"]
    if not isinstance(op, str) or op not in KEYS:
        return _unknown(op)
    lost = next((key for key in ("at", "item", *KEYS[op]) if key not in event), None)
    if lost is not None:
        return f'an operation "{op}" has no "{lost}"'
    if type(event["at"]) is not int:
        return f'"at" of an operation is a time in nanoseconds, got {shown(event["at"])}'
    try:
        _text(event, "item", 40)
        if op != "open":
            _checked_mark(event, op, event["item"], MOST_CHARS)
            return event
        texts = _checked_open(event)
    except DataError as error:
        return str(error)
    return {**texts, **event}


def _checked(event: Mapping[str, Any], opened: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return an operation with the fields that it has, all of the right type.

    Raises:
        DataError: if the event is no valid operation.
    """
    op = event.get("op")
    if op == "open":
        return _checked_open(event)
    item = _text(event, "item", 40)
    if item not in opened:
        raise DataError(f'the marks of {item!r} begin with an operation before its "open"; reload the page')
    return _checked_mark(event, op, item, len(opened[item]["response"]))


def _checked_mark(event: Mapping[str, Any], op: Any, item: str, length: int) -> dict[str, Any]:
    """Return an operation on a response of so many characters, as `_checked`."""
    if op == "span":
        return {"item": item, "op": op, **_checked_span(event, length)}
    if op == "unspan":
        return {"item": item, "op": op, "id": _text(event, "id", 40)}
    if op == "critique":
        return {"item": item, "op": op, "text": _text(event, "text", MOST_CHARS)}
    if op == "state":
        return {"item": item, "op": op, "value": _value(event, STATES)}
    if op == "suggestion":
        return {"item": item, "op": op, "id": _text(event, "id", 40), "value": _value(event, VERDICTS)}
    raise DataError(_unknown(op))


def _unknown(op: Any) -> str:
    return f'"op" of an operation is one of {", ".join(OPERATIONS)}; got {shown(op)}'


def _checked_open(event: Mapping[str, Any]) -> dict[str, Any]:
    prompt, response = _text(event, "prompt", MOST_CHARS), _text(event, "response", MOST_CHARS)
    ids, place = event.get("ids"), event.get("place")
    if ids is not None and not (isinstance(ids, list) and all(type(token) is int and token >= 0 for token in ids)):
        raise DataError(f'"ids" are the token ids of the response, or null; got {shown(ids)}')
    if place is not None and not (isinstance(place, list) and len(place) == 2):
        raise DataError(f'"place" is [step, row], or null; got {shown(place)}')
    turns, run = event.get("turns"), _text(event, "run", 400)
    whole = response_of({"response": response, "turns": turns}, 'an operation "open"')
    known = {"prompt": prompt, "response": response, "ids": ids, "run": run, "place": place}
    known |= {"turns": turns} if turns else {}
    return {"item": item_of(prompt, whole), "op": "open", **known}


def _checked_span(event: Mapping[str, Any], length: int) -> dict[str, Any]:
    start, end, label = event.get("start"), event.get("end"), event.get("label")
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= length:
        raise DataError(
            f"a span has 0 <= start < end <= {length}, the characters of the response; got {shown([start, end])}"
        )
    if label not in LABELS:
        raise DataError(f'"label" of a span is positive or negative, got {shown(label)}')
    note, origin = _text(event, "note", MOST_CHARS), _text(event, "from", 40)
    return {"id": _text(event, "id", 40), "start": start, "end": end, "label": label, "note": note, "from": origin}


def _value(event: Mapping[str, Any], known: Sequence[str]) -> str:
    value = event.get("value")
    if value not in known:
        words = ", ".join(f'"{word}"' for word in known)
        raise DataError(f'"value" of {event["op"]} is one of {words}; got {shown(value)}')
    return str(value)


def _text(event: Mapping[str, Any], key: str, most: int) -> str:
    value = event.get(key, "")
    if not isinstance(value, str) or len(value) > most:
        raise DataError(f'"{key}" of an operation is a text of at most {most:,} characters, got {shown(value)}')
    return value
