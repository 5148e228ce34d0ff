"""Our own JSONL, and tables whose columns are mapped to its names.

A record with a response and feedback becomes an annotation: "critique", or "feedback", "spans", "good_spans",
"poor_spans", "outcome" (see `feedback/records.py`). With a better response in "refinement", its changes become the
spans of feedback without spans. A record without feedback becomes an example: "prompt", "reference", "tests"; a
response goes into its `meta`. In text tables, lists are JSON, or as Python and NumPy print them, which is how pandas
and `datasets` write them; empty cells are missing values; the prompt of an annotation may be empty. `Item.unread` names
the columns that an annotation cannot hold.

Entries of "spans" may have labels of the source, as those of doccano, Prodigy, Label Studio and XCOMET, in any key of
`TOOL_KEYS`; a label that is the source's own word is the category of its span. The columns "rater" and
"severity", and "category" if a mapping names it, hold for all spans of the record that say nothing else. A record that
Prodigy's "answer" rejects or ignores is an example.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from text2grad.feedback.critique_text import parse_critique_object
from text2grad.feedback.examples import is_chat
from text2grad.feedback.lenient_json import CutObject, number_of, read_objects
from text2grad.feedback.quotes import QUOTE_KEYS, TOOL_KEYS, place_of, said_about
from text2grad.feedback.record_files import JSON, Object, keys_of, shown
from text2grad.feedback.records import BESIDE, QUOTES, Annotation, means_offsets, parse_record
from text2grad.feedback.sources.base import ADDED, IGNORED, NOT_JUDGED, WORDS_ONLY, Item, Loss, Row, own_word
from text2grad.feedback.words import words_of
from text2grad.types import Critique, Example, Span

OF_ALL = ("rater", "severity", "category")  # columns that all spans of a record share
COLUMNS = ("prompt", "response", "critique", *BESIDE, "refinement", "reference", "tests", "seconds", *OF_ALL)
UNREADABLE = "critiques that cannot be read: their words are kept, δ is 0"
NO_RESPONSE = "feedback without a response, which is empty or missing: examples, no annotations"
NOT_FOUND = "quotes that the response does not contain: no span"
NO_QUOTE = 'entries of quotes that are no text: no span; offsets are "spans": [[start, end, "positive" or "negative"]]'
NO_LABEL = (
    'entries of "spans" that are no quote with the label positive or negative: no span; --label NAME=negative gives a '
    "label its meaning"
)
NO_WORDS = "feedback without a word in it: no judgement"
REJECTED = 'records that their annotator rejected or ignored: their "answer" says so, as Prodigy\'s'
CHAT_JOINED = (
    "chats as prompts, joined to one text that names who spoke: a policy would be asked without their turns; give "
    "[data] train a file with the messages"
)

_BREAK = re.compile(r"(?:[ \t\r]*\n)+(?P<indent>[ \t]*)(?=\S)")
_LISTS = ("spans", *QUOTES, "unmatched", "critique", "prompt")
_FEEDBACK = ("critique", *BESIDE)
_FLAT = "critique."
_NO_QUOTES = {*QUOTES, *QUOTE_KEYS, "good", "poor", "bad", "wrong", "start", "end"}


def read_table(row: Row) -> Iterator[Item]:
    """Yield the item of one record."""
    record = _renamed(row)
    given = {key: record[key] for key in _FEEDBACK if key in record}
    unjudged = {key: value for key, value in record.items() if key not in _FEEDBACK}
    answer = None if "answer" in row.options.columns.values() else row.record.get("answer")
    if given and answer in ("reject", "ignore"):
        yield _example(row, unjudged, Loss(REJECTED, answer))
        return
    if "response" not in record or not given:
        yield _example(row, record)
        return
    if "prompt" not in record:
        raise row.bad(
            f'there is no "prompt"; the record has {keys_of(row.record)}. Say which column it is with --column '
            "prompt=NAME, or add an empty one"
        )
    judged, losses = record.get("critique", record), list[Loss]()
    if isinstance(judged, dict):
        judged, losses = _read_quotes(row, judged)
        record = {**record, "critique": judged} if "critique" in record else judged
    read = parse_record(row.where, record)
    critique = read.critique
    prompt = record["prompt"]
    has_turns = isinstance(prompt, list) and [message.get("role") for message in prompt] != ["user"]
    losses += [Loss(CHAT_JOINED)] if has_turns else []
    in_words = "feedback" in given and given.keys() <= {"feedback", "outcome"}  # none of it has a place in the response
    wordless = in_words and critique.outcome is None and not critique.feedback.strip() and "refinement" not in record
    losses += [Loss(NO_WORDS, shown(given["feedback"]))] if wordless else []
    lost = critique == Critique("") and any(reason in (NO_LABEL, NO_QUOTE) for reason, _ in losses)
    if wordless or lost:
        yield _example(row, unjudged, *losses)
        return
    if in_words:
        critique, unplaced = _grounded(row, read.response, critique, record.get("refinement") or "")
        losses += unplaced
    else:
        losses += [Loss(NOT_FOUND, quote) for quote in critique.unmatched]
        losses += [Loss(UNREADABLE, critique.feedback)] if critique.failed else []
    of_all = {key: record.get(key) for key in OF_ALL if key != "category" or key in row.options.columns}
    about = said_about(of_all) if critique.spans else {}
    critique = replace(critique, spans=tuple(Span(**about | span.stated) for span in critique.spans))
    used = ("critique",) if "critique" in record else ("refinement", *BESIDE) if in_words else BESIDE
    line = {key: record[key] for key in (("seconds",) if critique.spans else ("seconds", "rater")) if key in record}
    known = {"", "prompt", "response", *used, *about, *line, *(["answer"] if answer == "accept" else [])}
    unread = tuple(row.name(key) for key in record if key not in known)
    yield Item(Annotation(read.prompt, read.response, critique, line or None), tuple(losses), unread)


def _read_quotes(row: Row, given: Object) -> tuple[Object, list[Loss]]:
    """Return the parts of a critique without the entries of its lists that would vanish, and these as losses."""
    kept, losses = dict(given), list[Loss]()
    for key in (*QUOTES, "spans"):
        value = given.get(key)
        if key == "spans" and isinstance(value, dict) and value.keys().isdisjoint(_NO_QUOTES):
            value = [list(pair) for pair in value.items()]  # {quote: label}
        if value is None or value == {} or (key == "spans" and not isinstance(value, list)):
            continue
        entries = value if isinstance(value, list) else [value]
        if key == "spans":
            entries = kept[key] = [own for entry in value for own in _own_labels(row, entry, losses)]
        if lost := [entry for entry in entries if not _is_quote(key, entry, whole=not isinstance(value, list))]:
            kept[key] = [entry for entry in entries if entry not in lost]
            losses += [Loss(NO_LABEL if key == "spans" else NO_QUOTE, f"{key}: {shown(entry)}") for entry in lost]
    return kept, losses


def _own_labels(row: Row, entry: Any, losses: list[Loss]) -> Iterator[Any]:
    """Yield an entry of "spans", once for each of its labels, with our label in place of one that has a meaning."""
    at: Any = None  # the place of the label
    if isinstance(entry, dict):
        at = next((key for key in TOOL_KEYS if entry.get(key) is not None), None)
    elif isinstance(entry, list) and entry:  # behind a quote, offsets, or both
        at = isinstance(entry[0], str) + 2 * (place_of(entry) is not None)
    if at is None or (isinstance(entry, list) and len(entry) <= at):
        yield entry
        return
    if entry[at] == []:
        losses.append(Loss(NO_LABEL, f"spans: {shown(entry)}"))
    for label in entry[at] if isinstance(entry[at], list) else [entry[at]]:
        offsets_alone = means_offsets(entry) and isinstance(label, str)
        meaning = row.meaning(label) if offsets_alone else row.options.meaning(str(label))
        if meaning == "ignore":
            losses.append(Loss(IGNORED, f"{label}: {shown(entry)}"))
        elif not isinstance(meaning, str):
            yield entry
        else:
            yield _labelled(entry, at, meaning, own_word(str(label)))


def _labelled(entry: Any, at: Any, meaning: str, word: str | None) -> Object:
    """Return an entry with our label, and its own word for it as the category unless it stands under another key."""
    if isinstance(entry, list):
        quote = {"text": entry[0]} if isinstance(entry[0], str) else {}
        entry = quote | dict(zip(("start", "end"), place_of(entry) or (), strict=False))
    elif at == "severity" or "category" in said_about(entry):
        word = None
    return {**entry, "label": meaning} | ({"category": word} if word else {})


def _is_quote(key: str, entry: Any, *, whole: bool) -> bool:
    """Return True if an entry, or a key's value, is a quote, a blank text, a placed object, or offsets in "spans"."""
    if isinstance(entry, str) and (key != "spans" or not entry.strip()):
        return True
    if means_offsets(entry):
        return key == "spans" or (isinstance(entry, dict) and place_of(entry) is not None)
    parsed = parse_critique_object({key: entry if whole else [entry]})
    return bool(parsed.positive or parsed.negative)


def _renamed(row: Row) -> Object:
    """Return the record under our names, without missing values; only a prompt may be empty."""
    mapped = row.options.columns
    for ours, theirs in mapped.items():
        if theirs not in row.record:
            raise row.bad(f'there is no column "{theirs}" for "{ours}"; the record has {keys_of(row.record)}')
    taken = set(mapped.values())
    plain = {key: value for key, value in row.record.items() if key not in taken}
    renamed = {**plain, **{ours: row.record[theirs] for ours, theirs in mapped.items()}}
    kept = {key: value for key, value in renamed.items() if value is not None and (value != "" or key == "prompt")}
    cells = {key: _cell(key.removeprefix(_FLAT), value) for key, value in kept.items()}
    mapped_outcomes = any(isinstance(meaning, float) for meaning in row.options.labels.values())
    if isinstance(cells.get("outcome"), str | bool) or (mapped_outcomes and "outcome" in cells):
        cells["outcome"] = row.outcome(kept["outcome"])
    if "critique" not in cells and not any(theirs.startswith(_FLAT) for theirs in taken):  # a column for each part
        parts = {key.removeprefix(_FLAT): cells.pop(key) for key in kept if key.startswith(_FLAT)}
        cells |= {"critique": parts} if parts else {}
    return cells


def _cell(key: str, value: Any) -> Any:
    """Return the value of a cell of a text table."""
    value = number_of(value) if key == "outcome" else value
    if not isinstance(value, str):
        return value
    if key != "outcome" and (key not in _LISTS or value.lstrip()[:1] not in ("[", "{")):
        return value
    try:
        read = JSON.decode(value.strip())
    except ValueError:
        read = _literal(value)
        if read is None or (key == "critique" and "status" not in read):  # the text of a critic
            return value
    return value if key == "prompt" and not is_chat(read) else read


def _literal(text: str) -> Any:
    """Return the list or object that Python or NumPy printed; None for any other text."""
    whole = f'{{"cell": {text}}}'
    for lenient_ends in (False, True):  # NumPy writes no commas
        value, start, end = next(read_objects(whole, lenient_ends=lenient_ends), (None, 0, 0))
        if value is not None and (start, end) == (0, len(whole)) and not isinstance(value, CutObject):
            return value.get("cell")
    return None


def _example(row: Row, record: Object, *losses: Loss) -> Item:
    """Return a record without feedback as an example."""
    if record.get("prompt", "") == "":
        raise row.bad(
            f'there is neither a "response" with feedback nor a "prompt"; the record has {keys_of(row.record)}. Say '
            "which columns they are with --column prompt=NAME --column response=NAME --column feedback=NAME"
        )
    for key in ("reference", "tests"):
        if not isinstance(record.get(key), str | None):
            raise row.bad(f'"{row.name(key)}" must be a text')
    if not isinstance(record["prompt"], str | list):
        raise row.bad(f'"{row.name("prompt")}" must be a text or a chat')
    meta = {key: value for key, value in record.items() if key not in ("prompt", "reference", "tests")}
    own = [NOT_JUDGED] if "response" in meta else [NO_RESPONSE] * any(key in meta for key in _FEEDBACK)
    example = Example(record["prompt"], record.get("reference"), record.get("tests"), meta)
    return Item(example, (*losses, *map(Loss, own)))


def _grounded(row: Row, response: str, critique: Critique, better: Any) -> tuple[Critique, list[Loss]]:
    """Return feedback in words with the changes of a better response ("" for none) as its spans."""
    if not isinstance(better, str):
        raise row.bad(f'"{row.name("refinement")}" must be a text')
    if not better:
        return critique, [Loss(WORDS_ONLY)]
    spans, added = changed_spans(response, better)
    return replace(critique, spans=tuple(spans)), [Loss(ADDED)] * added + [Loss(WORDS_ONLY)] * (not spans)


class _Piece(NamedTuple):
    key: str
    start: int
    end: int


def changed_spans(response: str, better: str) -> tuple[list[Span], int]:
    r"""Return the changed or deleted parts of a response as negative spans, and the number of added pieces of text.

    difflib compares words, signs, and line breaks with the indentation after them; white space within a line does not
    count. Text that the corrected response only adds has no place in the response.

    Example:
        >>> response = "def add(a, b):\n    return a - b"
        >>> spans, added = changed_spans(response, "def add(a, b):\n    return a + b\n")
        >>> [response[span.start : span.end] for span in spans], added
        (['-'], 0)
        >>> changed_spans("Lyon.", "Lyon, on Friday.")
        ([], 1)
    """
    old, new = _pieces(response), _pieces(better)
    matcher = SequenceMatcher(None, [piece.key for piece in old], [piece.key for piece in new], autojunk=False)
    changes = [change for change in matcher.get_opcodes() if change[0] != "equal"]
    spans = [_span(response, old, begin, end) for kind, begin, end, *_ in changes if kind != "insert"]
    return spans, len(changes) - len(spans)


def _pieces(text: str) -> list[_Piece]:
    """Split a text into words, signs, and line breaks with the indentation after them."""
    breaks = _BREAK.finditer("\n" + text)  # so that the first line has an indentation too
    pieces = [_Piece("\n" + match["indent"], max(match.start() - 1, 0), match.end() - 1) for match in breaks]
    pieces += [_Piece(text[start:end], start, end) for start, end in words_of(text)]
    return sorted(pieces, key=lambda piece: (piece.start, piece.end))


def _span(response: str, pieces: Sequence[_Piece], begin: int, end: int) -> Span:
    """Return the span of some pieces, without white space around it; a changed indentation marks the next word."""
    start, stop = pieces[begin].start, pieces[end - 1].end
    if not response[start:stop].strip():
        return Span(pieces[begin].end, pieces[min(end, len(pieces) - 1)].end, "negative")
    text = response[start:stop]
    return Span(start + len(text) - len(text.lstrip()), stop - len(text) + len(text.rstrip()), "negative")
