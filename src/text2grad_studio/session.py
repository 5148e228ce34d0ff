"""One session of the studio: the sources and their indices, the marks, the versions, and the rater.

Everything that the routes of `app` answer is computed here, from values to JSON data, without HTTP.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

from text2grad.errors import ConfigError, DataError
from text2grad.feedback import annotation_to_json, item_of, mark_of
from text2grad.progress import note
from text2grad.runs import contradictions
from text2grad_studio.agreement import agreement, finished
from text2grad_studio.columns import LABELS, Filter
from text2grad_studio.evaluations import Evaluations
from text2grad_studio.fields import MOST, choice, integer, shown
from text2grad_studio.index import RunIndex
from text2grad_studio.marks import Marked, MarkStore
from text2grad_studio.sources import Source
from text2grad_studio.suggestions import Suggestions
from text2grad_studio.versions import Versions

PAGE_ROWS = 200  # most rows of one answer
SLICE_S = 0.5  # time of indexing before the next source has its turn
FOLLOW_S = 1.0  # between two looks at the files of a run
TROUBLE_S = 10.0  # before files that could not be read are tried again


class Session:
    """What a server holds; its methods may be called from several threads."""

    def __init__(
        self,
        sources: Sequence[Source],
        store: Path,
        *,
        rater: str,
        read_only: bool,
        versions: Versions,
        suggestions: Suggestions,
    ) -> None:
        """Open the indices.

        Args:
            sources: the runs and files.
            store: directory of indices, marks and versions.
            rater: the person at the page, until the page names another.
            read_only: refuse marks and lessons.
            versions: the versions of the policy that lessons made.
            suggestions: the critics of the sources.
        """
        self.sources, self.store, self.rater, self.read_only = list(sources), store, rater, read_only
        self.marks, self.versions, self.suggestions = MarkStore(store), versions, suggestions
        self.indices = [RunIndex(source, store / "index" / f"{_name_of(source)}.sqlite") for source in sources]
        self._ended = threading.Event()
        self._evaluations = Evaluations()

    def follow(self) -> None:
        """Index the sources, and go on while they grow; returns after `end`."""
        waits = dict.fromkeys(range(len(self.indices)), 0.0)
        while not self._ended.is_set():
            whole = True
            for number, index in enumerate(self.indices):
                if time.monotonic() < waits[number]:
                    continue
                try:
                    whole &= index.update(seconds=SLICE_S)
                    index.trouble = ""
                except (DataError, ConfigError, OSError) as error:
                    if index.trouble != str(error):
                        note(f"{index.source.path}: {error}", warning=True)
                    index.trouble, waits[number] = str(error), time.monotonic() + TROUBLE_S
            self._ended.wait(FOLLOW_S if whole else 0.0)

    def end(self) -> None:
        """Let `follow` return."""
        self._ended.set()

    def overview(self) -> dict[str, Any]:
        """Return what the page asks for first and again every second or two."""
        runs = [
            {"name": index.source.name, "kind": index.source.kind, "path": str(index.source.path), **index.state()}
            | {"has_critic": number in self.suggestions.critics, "explains": index.source.explains}
            for number, index in enumerate(self.indices)
        ]
        return {
            "runs": runs,
            "rater": self.rater,
            "raters": self.marks.raters(),
            "read_only": self.read_only,
            "has_critic": bool(self.suggestions.critics),
            "teaching": self.versions.state(),
        }

    def find(
        self,
        run: int,
        wanted: Filter,
        *,
        marked: str,
        rater: str,
        start: int,
        count: int,
        near: int = -1,
        item: str = "",
        operations: int | None = None,
    ) -> dict[str, Any]:
        """Return one page of the responses that meet the conditions.

        Args:
            run: number of the source.
            wanted: conditions and order.
            marked: "mine" or "done" for the responses that the rater marked or finished, "open" for those that the
                rater has neither finished nor skipped; "" for all.
            rater: the person.
            start: first place in the order.
            count: places, at most `PAGE_ROWS`.
            near: number of a response whose place in the order is wanted, too: "at", −1 if it is not there.
            item: its digest; "at" is −1 if the number belongs to another response by now. "" takes any.
            operations: `marked` is judged by this many first operations of the rater, as the answer with the first page
                counts them: what is finished while the list is read moves no response of its later pages. None takes
                all.
        """
        index, mine = self._index(run), self.marks.marked(rater)
        if operations is None:
            operations = self.marks.operations(rater)
        if marked in ("mine", "done", "open"):
            then = self.marks.marked_after(rater, operations).values()
            if marked == "open":
                wanted = replace(wanted, without=tuple(sorted(marks.item for marks in then if marks.state)))
            else:
                chosen = (marks for marks in then if (marks.state == "done" if marked == "done" else not marks.empty))
                wanted = replace(wanted, items=tuple(sorted(marks.item for marks in chosen)))
        result = index.find(wanted)
        rows = index.rows(result.page(start, min(count, PAGE_ROWS)))
        for row in rows:
            marks = mine.get(row["item"], Marked(row["item"]))
            row |= {"marks": len(marks.spans), "state": marks.state, "words": bool(marks.critique.strip())}
        at = result.place(near) if not item or index.item(near) == item else -1
        state = {"unread": result.unread, "generation": index.generation, "at": at}
        return {"total": len(result.ids), "start": start, "rows": rows, "operations": operations, **state}

    def rollout(self, run: int, number: int, item: str = "") -> dict[str, Any]:
        """Return the record of a response.

        Raises:
            DataError: if the number is unknown, or the digest belongs to another response.
        """
        return self._index(run).record(number, item)

    def at_place(self, run: int, step: int | None, row: int) -> dict[str, Any]:
        """Return the record at the place that a link names.

        Raises:
            DataError: if the run has no response at that place.
        """
        index = self._index(run)
        number = index.at_place(step, row)
        if number is None:
            raise DataError(f"{index.source.name} has no response {row} of step {step}")
        return index.record(number)

    def same_prompt(self, run: int, number: int, item: str = "") -> dict[str, Any]:
        """Return the responses to the same prompt in every source, in the order of the steps.

        Raises:
            DataError: as `rollout`.
        """
        text = self._index(run).record(number, item)["prompt"]
        groups = []
        for other, index in enumerate(self.indices):
            prompt = index.prompt_number(text)
            ids = [] if prompt is None else index.find(Filter(prompt=prompt, order="oldest")).page()
            groups.append({"run": other, "total": len(ids), "rows": index.rows(ids[:PAGE_ROWS], preview=2000)})
        return {"prompt": text, "groups": groups}

    def curves(self, run: int) -> dict[str, Any]:
        """Return the means of each step, and the run's evaluations on held-out prompts."""
        index = self._index(run)
        return {"steps": index.columns_now().curves(), "evaluations": self._evaluations.read(index.source.path)}

    def save(
        self, rater: str, tab: str, events: Sequence[Mapping[str, Any]], act: str = "", seen: int | None = None
    ) -> dict[str, Any]:
        """Save the operations on marks of one act, once: a page that heard no answer sends them again.

        Args:
            rater: the person.
            tab: the page.
            events: operations on one response.
            act: its name.
            seen: operations on the response that the page knew before; the answer counts them as "before".

        Raises:
            DataError: if an operation is invalid.
            OvertakenError: if it is an undo or redo of a page that has not seen all operations.
        """
        at = self.marks.append(rater, tab, events, act, seen=seen)
        item = str(events[-1].get("item", "")) if events else ""
        return {"at": at, "before": self.marks.operations_before(rater, item, at)}

    def item(self, rater: str, item: str) -> dict[str, Any]:
        """Return a rater's marks on a response, all acts that led to them, and others' marks once it is done.

        A rater sees nothing of other raters before the own marks are finished: ratings stay blind.
        """
        events = self.marks.events(rater, item)
        marked = Marked(item)
        for event in events:
            marked.take(event)
        others = []
        if marked.state == "done":
            for other in self.marks.raters():
                theirs = self.marks.marked(other).get(item) if other != rater else None
                if theirs is not None and theirs.state == "done":
                    others.append({"rater": other, **theirs.as_json()})
        acts = groupby((event for event in events if event["op"] != "open"), key=lambda event: event["at"])
        return {**marked.as_json(), "history": [list(act) for _, act in acts], "others": others}

    def suggest(self, run: int, prompt: str, response: str) -> dict[str, Any]:
        """Ask the critic of a source about a response; the answer shows in `suggestion`.

        Raises:
            ConfigError: if it has no critic.
        """
        return self.suggestions.ask(run, item_of(prompt, response), prompt, response)

    def to_teach(self, rater: str, items: Sequence[str] | None) -> list[dict[str, Any]]:
        """Return marked responses of one turn, as annotations with their token ids, and finished ones without a mark.

        Raises:
            DataError: if no response has a span, or the text of a response cannot be read.
        """
        whole = [marks for marks in self.marks.whole(rater, items).values() if not marks.opened.get("turns")]
        taken = [marks for marks in whole if marks.state == "done" or (marks.spans and marks.state != "skipped")]
        if not any(marks.spans for marks in taken):
            raise DataError("there is nothing to teach: mark a word of a response of one turn first")
        ids = [{"ids": list(ids)} if (ids := marks.opened["ids"]) else {} for marks in taken]
        return [annotation_to_json(own.annotation(rater)) | more for own, more in zip(taken, ids, strict=True)]

    def not_taught(self, rater: str, items: Sequence[str] | None, parent: int) -> list[dict[str, Any]]:
        """Return what a version and those before it have not learned of `to_teach`; all, if that has no mark."""
        annotations = self.to_teach(rater, items)
        learned = [record for lesson in self.versions.learned(parent) for record in lesson["records"]]
        new = [own for own in annotations if own not in learned]
        return new if any(own["critique"]["spans"] for own in new) else annotations

    def contradictions(self, rater: str, number: int) -> list[str]:
        """Return sentences about words that a rater judges otherwise than the lessons that made a version."""
        return contradictions(self.to_teach(rater, None), self.versions.learned(number))

    def why(self, run: int, phrase: str) -> dict[str, Any]:
        """Ask which critiques of a run moved the probability of a phrase; the answer shows in `overview`.

        Raises:
            DataError: if the source is no run that can be made again, or the phrase is blank.
            ConfigError: if other work is under way.
        """
        source = self._index(run).source
        if not source.explains:
            raise DataError(f"{source.name} is no run of `text2grad train` with a checkpoint")
        if not phrase.strip():
            raise DataError("the phrase is blank; choose words of a response")
        return self.versions.begin("why", {"run": str(source.path), "source": source.name, "phrase": phrase})

    def withdraw(self, rater: str, item: str, span: str, *, sure: bool) -> dict[str, Any]:
        """Ask which versions learned from a mark, or from all of a rater; with `sure` they are taken out of all files.

        A mark is named by the digest of its response and its id there; "" and "" take all marks.

        Raises:
            DataError: if one of the two is missing.
        """
        if bool(item) != bool(span):
            raise DataError("a mark has an item and an id; leave out both for all marks")
        own = (event for event in self.marks.events(rater, item) if event["op"] == "span" and event["id"] == span)
        names = sorted({mark_of(item, {**event, "rater": rater}) for event in own}) if item else [""]
        request = {"rater": rater, "item": item, "id": span, "sure": sure, "marks": names}
        return self.versions.begin("withdraw", request)

    def own_text(self, prompt: str, response: str) -> dict[str, Any]:
        """Return the record of a text that a person typed."""
        item = item_of(prompt, response)
        return {"prompt": prompt, "response": response, "item": item, "place": None, "source": "", "own": True}

    def marked(
        self, rater: str, words: str = "", *, start: int = 0, count: int | None = None, item: str = ""
    ) -> dict[str, Any]:
        """Return responses that a rater marked, the last first, how many there are, and lines that cannot be read.

        Args:
            rater: the person.
            words: occur in prompt, response or critique.
            start: first place in the list.
            count: places; None takes all.
            item: digest of a response whose place is wanted, too: "at", −1 if it is not there.
        """
        listed = self.marks.listed(rater, words)
        at = next((place for place, marks in enumerate(listed) if marks.item == item), -1) if item else -1
        kept = ("prompt", "response", "turns", "run", "place", "ids")
        items = [
            marks.as_json() | {key: marks.opened.get(key) for key in kept}
            for marks in listed[start : None if count is None else start + count]
        ]
        return {"items": items, "total": len(listed), "at": at, "faults": self.marks.faults(rater)}

    def agreement(self) -> dict[str, Any]:
        """Return how far the raters agree on responses that two of them finished."""
        raters = self.marks.raters()
        return {"pairs": agreement({rater: finished(self.marks.events(rater)) for rater in raters})}

    def _index(self, run: int) -> RunIndex:
        if not 0 <= run < len(self.indices):
            raise DataError(f"there is no source number {run}; the session has {len(self.indices)}")
        return self.indices[run]


def _name_of(source: Source) -> str:
    """Return a file name for the index of a source."""
    return f"{source.path.name[:40]}-{sha256(str(source.path).encode()).hexdigest()[:12]}"


def filter_from(query: Mapping[str, str]) -> Filter:
    """Return the conditions that the page asks for.

    Raises:
        DataError: if a bound is no number, or the label is unknown.
    """
    return Filter(
        step_from=_number(query, "step_from", int),
        step_to=_number(query, "step_to", int),
        reward_from=_number(query, "reward_from", float),
        reward_to=_number(query, "reward_to", float),
        label=choice(query.get("label", ""), "label", LABELS),
        status=query.get("status", ""),
        text=query.get("text", "").strip(),
        regex=query.get("regex", ""),
        turn=_number(query, "turn", int),
        prompt=_number(query, "prompt", int),
        order=query.get("order") or "newest",
    )


def _number(query: Mapping[str, str], key: str, kind: Any) -> Any:
    text = query.get(key, "").strip()
    if not text:
        return None
    if kind is int:
        return integer(text, key, least=-MOST)
    try:
        number = kind(text)
        json.dumps(number, allow_nan=False)
    except ValueError as error:
        raise DataError(f"{key} is a number, got {shown(text)}") from error
    return number
