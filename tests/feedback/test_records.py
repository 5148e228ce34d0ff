"""Readers of critiques: every form that is accepted, and every complaint word for word."""

import bz2
import gzip
import json
import lzma
import os
import re
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from conversations import FAIR
from text2grad.errors import DataError
from text2grad.feedback.examples import read_demonstrations, read_examples
from text2grad.feedback.record_files import json_object, read_entries
from text2grad.feedback.records import (
    TOMBSTONES,
    Annotation,
    CritiqueRecord,
    annotation_to_json,
    critique_to_json,
    item_of,
    mark_of,
    read_annotations,
    read_critique_records,
    take_marks,
    write_annotations,
)
from text2grad.files import read_text
from text2grad.types import Conversation, Critique, Span, Turn

WAY_OUT = ". Mend or remove the record"
LYON = "I live in Lyon."


def lines(tmp_path: Path, *records: Any) -> Path:
    path = tmp_path / "critiques.jsonl"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def read_one(tmp_path: Path, record: Any, **settings: Any) -> CritiqueRecord:
    (judged,) = read_critique_records(lines(tmp_path, record), **settings)
    return judged


NEGATIVE = Critique("No.", (Span(10, 14, "negative"),))


@pytest.mark.parametrize(
    ("record", "critique"),
    [
        ({"critique": 'No. {"poor_spans": ["Lyon"]}'}, NEGATIVE),
        ({"critique": {"feedback": "No.", "poor_spans": ["Lyon"]}}, NEGATIVE),
        ({"critique": {"feedback": "No.", "positive": [], "negative": ["Lyon"]}}, NEGATIVE),
        ({"critique": {"feedback": "No.", "spans": [["Lyon", "negative"]]}}, NEGATIVE),
        ({"critique": {"feedback": "No.", "spans": [[10, 14, "negative"]]}}, NEGATIVE),
        ({"critique": {"feedback": "No.", "spans": [{"start": 10, "end": 14, "label": "negative"}]}}, NEGATIVE),
        ({"feedback": "No.", "poor_spans": ["Lyon"]}, NEGATIVE),
        ({"feedback": "No.", "good_spans": [], "poor_spans": ["Lyon"]}, NEGATIVE),
        ({"feedback": "No.", "positive_spans": [], "bad_spans": ["Lyon"]}, NEGATIVE),
        ({"feedback": "No.", "negative_spans": ["Lyon"]}, NEGATIVE),
        ({"feedback": "No.", "spans": [[10, 14, "negative"]]}, NEGATIVE),
        ({"spans": [[10, 14, "negative"]]}, Critique("", (Span(10, 14, "negative"),))),
        ({"spans": [{"start": 10, "end": 14, "text": "Lyon", "label": "negative"}], "feedback": "No."}, NEGATIVE),
        ({"feedback": "No.", "poor_spans": [{"text": "Lyon", "start": 10, "end": 14, "severity": "major"}]}, NEGATIVE),
        ({"feedback": "Fine.", "outcome": "−0.5"}, Critique("Fine.", outcome=-0.5)),
        ({"critique": "I like it."}, Critique("I like it.", status="unparsable")),
        ({"critique": {"feedback": "Fine.", "spans": []}}, Critique("Fine.")),
        ({"critique": {"feedback": "Fine.", "spans": [], "outcome": -0.5}}, Critique("Fine.", outcome=-0.5)),
        (
            {"critique": {"feedback": "Both.", "spans": [[0, 1, "positive"]], "poor_spans": ["Lyon", "Nice"]}},
            Critique("Both.", (Span(0, 1, "positive"), Span(10, 14, "negative")), unmatched=("Nice",)),
        ),
        (
            {"critique": {"feedback": "?", "spans": [], "outcome": None, "status": "repaired", "unmatched": ["Nice"]}},
            Critique("?", status="repaired", unmatched=("Nice",)),
        ),
        (
            {"critique": {"feedback": "", "spans": [], "outcome": None, "status": "timed_out", "unmatched": []}},
            Critique("", status="timed_out"),
        ),
    ],
)
def test_a_critique_may_be_given_in_many_ways(tmp_path: Path, record: dict[str, Any], critique: Critique) -> None:
    judged = read_one(tmp_path, {"prompt": "Where?", "response": LYON, **record})
    where = f"{tmp_path / 'critiques.jsonl'}:1"
    assert judged == CritiqueRecord(1, where, "Where?", LYON, critique)


def test_prompt_and_ids_are_optional_and_a_chat_becomes_one_text(tmp_path: Path) -> None:
    base = {"response": LYON, "critique": "Fine."}
    assert read_one(tmp_path, base).prompt == ""
    assert read_one(tmp_path, base).ids is None
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    assert read_one(tmp_path, {**base, "prompt": chat}).prompt == "<user>\nHi\n</user>\n\n<assistant>\nHo\n</assistant>"
    assert read_one(tmp_path, {**base, "ids": [3, 0, 7]}).ids == (3, 0, 7)


def test_an_annotation_has_a_prompt_which_may_be_empty(tmp_path: Path) -> None:
    base = {"response": LYON, "critique": "Fine."}
    assert [one.prompt for one in read_annotations(lines(tmp_path, {**base, "prompt": ""}))] == [""]
    path = lines(tmp_path, {**base, "question": "Where?"})
    with pytest.raises(DataError) as caught:
        read_annotations(path)
    keys = 'the record has the keys "response", "critique", "question"'
    assert str(caught.value) == f'{path}:1: there is no "prompt", which may be empty; {keys}{WAY_OUT}'


def by(*raters: str | None) -> list[dict[str, Any]]:
    return [{"start": n, "end": 5, "label": "positive", "rater": rater} for n, rater in enumerate(raters)]


@pytest.mark.parametrize(
    ("line", "rater", "seconds"),
    [
        ({"spans": by("ann", "ann")}, "ann", None),
        ({"spans": by("ann", "ben")}, None, None),
        ({"spans": by("ann", "ben"), "rater": "cleo", "seconds": 4}, "cleo", 4),
        ({"spans": by(None), "rater": 7, "seconds": "2.5"}, "7", 2.5),
        ({"spans": [], "rater": None, "seconds": None}, None, None),
        ({"spans": [], "seconds": "soon"}, None, None),
    ],
)
def test_a_line_or_its_spans_say_who_judged_and_how_long(
    tmp_path: Path, line: dict[str, Any], rater: str | None, seconds: float | None
) -> None:
    record = read_one(tmp_path, {"response": LYON, **line})
    assert (record.rater, record.seconds) == (rater, seconds)


def test_quotes_are_found_as_the_match_says(tmp_path: Path) -> None:
    record = {"response": LYON, "poor_spans": ["LYON"]}
    assert read_one(tmp_path, record).critique.unmatched == ("LYON",)
    assert read_one(tmp_path, record, match="normalized").critique.spans == (Span(10, 14, "negative"),)


def test_blank_lines_and_a_byte_order_mark_do_no_harm_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "critiques.jsonl"
    line = json.dumps({"response": LYON, "critique": "Fine."}).encode()
    path.write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\n  \n" + line)
    assert [judged.number for judged in read_critique_records(path)] == [1, 4]
    path.write_bytes(b"\xef\xbb\xbf\r\n" + line)
    assert [judged.number for judged in read_critique_records(path)] == [2]


def test_a_limit_counts_records_and_reads_no_further(tmp_path: Path) -> None:
    path = lines(tmp_path, *[{"response": str(n), "critique": "Fine."} for n in range(3)], "not JSON")
    assert [judged.response for judged in read_critique_records(path, limit=2)] == ["0", "1"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"response": ', "not JSON: Expecting value at character 15"),
        ('["a"]', "a record is a JSON object, got list"),
        ("[" * 100_000, "nested too deeply"),
        (
            '{"response": "abc", "outcome": 0.5, "outcome": -0.5}',
            'not JSON that can be read: the key "outcome" stands twice with two values',
        ),
        (
            {"response": "abc", "spans": [{"start": 0, "end": 2, "text": "bc", "label": "negative"}]},
            'span [0, 2, "negative"] quotes "bc", which is not what stands there',
        ),
        ({"response": "abc", "outcome": "50%"}, '"outcome" is a finite number or null, got "50%"'),
        ({}, '"response" must be a text; the record has no keys'),
        ({"answer": "x", "critique": ""}, '"response" must be a text; the record has the keys "answer", "critique"'),
        ({"response": ["x"], "critique": ""}, '"response" must be a text; got ["x"]'),
        (
            {"response": "x", "prompt": "p"},
            '"critique" must be a critic\'s text or an object of "feedback" and spans; the record has the keys '
            '"response", "prompt"',
        ),
        (
            {"response": "x", "critique": 7},
            '"critique" must be a critic\'s text or an object of "feedback" and spans; got 7',
        ),
        ({"response": "x", "critique": "", "prompt": 7}, '"prompt" is text or a list of chat messages, got 7'),
        ({"response": "x", "critique": "", "prompt": [7]}, '"prompt" is text or a list of chat messages, got [7]'),
        ({"response": "x", "critique": "", "ids": [1, True]}, '"ids" is a list of token ids, got [1, true]'),
        ({"response": "x", "critique": "", "ids": [-1]}, '"ids" is a list of token ids, got [-1]'),
        (
            {"response": "abc", "spans": [[0, 2, "positive"], [1, 4, "negative"]]},
            'span [1, 4, "negative"] does not lie in the response, which has 3 characters',
        ),
        (
            {"response": "abc", "spans": [[2, 1, "negative"]]},
            'span [2, 1, "negative"] does not lie in the response, which has 3 characters',
        ),
        ({"response": "abc", "spans": [[0, 1]]}, 'a span is [start, end, "positive" or "negative"], got [0, 1]'),
        (
            {"response": "abc", "spans": [[0, 1, "bad"]]},
            'a span is [start, end, "positive" or "negative"], got [0, 1, "bad"]',
        ),
        (
            {"response": "abc", "critique": {"spans": [], "status": "fine"}},
            '"status" is one of ok, repaired, unparsable, timed_out, withdrawn, got "fine"',
        ),
        (
            {"response": "abc", "critique": {"spans": [], "unmatched": "Nice"}},
            '"unmatched" is a list of quotes, got "Nice"',
        ),
    ],
)
def test_a_record_that_cannot_be_used_is_named_with_its_line_and_the_way_out(
    tmp_path: Path, record: Any, message: str
) -> None:
    path = lines(tmp_path, {"response": "x", "critique": "Fine."}, "", record)
    with pytest.raises(DataError) as caught:
        list(read_critique_records(path))
    assert str(caught.value) == f"{path}:3: {message}{WAY_OUT}"


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"response": "caf\xe9"}')
    with pytest.raises(DataError) as caught:
        list(read_critique_records(path))
    assert str(caught.value) == (f"{path}:1: not UTF-8 (invalid continuation byte); save the file as UTF-8{WAY_OUT}")


def test_bad_records_are_handed_over_when_asked_and_the_rest_is_read(tmp_path: Path) -> None:
    good = {"response": "x", "critique": "Fine."}
    path = lines(tmp_path, good, "{", good, {"response": 1})
    bad: list[DataError] = []
    assert [judged.number for judged in read_critique_records(path, on_bad=bad.append)] == [1, 3]
    assert [str(error).split(": ")[0] for error in bad] == [f"{path}:2", f"{path}:4"]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    empty, missing = lines(tmp_path), tmp_path / "nowhere.jsonl"
    cases = [
        (empty, f"{empty} has no records"),
        (missing, f"cannot read {missing}: No such file or directory"),
        (tmp_path, f"cannot read {tmp_path}: Is a directory"),
    ]
    for path, message in cases:
        with pytest.raises(DataError) as caught:
            list(read_critique_records(path))
        assert str(caught.value) == message


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "x.tsv", "x.jsonl.gz"])
def test_a_byte_order_mark_is_passed_over_and_utf_16_is_refused(tmp_path: Path, name: str) -> None:
    kind = name.split(".")[1]
    text = {"csv": "prompt,response\na,b\n", "tsv": "prompt\tresponse\na\tb\n"}.get(
        kind, '{"prompt": "a", "response": "b"}'
    )
    path = tmp_path / name
    write = (lambda data: path.write_bytes(gzip.compress(data))) if name.endswith(".gz") else path.write_bytes
    write(b"\xef\xbb\xbf" + text.encode())
    (entry,) = read_entries(path)
    assert json_object(entry.record, "here") == {"prompt": "a", "response": "b"}
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        write(text.encode(encoding))
        with pytest.raises(DataError, match=r"is UTF-16, or binary; save it as UTF-8$"):
            list(read_entries(path))


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_csv_whose_header_is_one_field_with_semicolons_or_tabs_has_this_delimiter(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "excel.csv"
    path.write_text(f'\ufeffprompt{mark}response\r\nWhere?{mark}"In Lyon, or{mark} Nice."\r\n', "utf-8")
    (entry,) = read_entries(path)
    assert entry.record == {"prompt": "Where?", "response": f"In Lyon, or{mark} Nice."}
    for header in (f"prompt,a{mark}b", "a;b\tc"):  # commas, or both marks: the comma
        path.write_text(f"{header}\n{header}\n", "utf-8")
        (entry,) = read_entries(path)
        assert list(entry.record) == header.split(",")


@pytest.mark.parametrize("mark", [";", ",", "\t", "|"])
def test_the_first_line_that_excel_writes_names_the_delimiter_and_is_no_header(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "excel.csv"
    for told in (f"sep={mark}", f'"sep={mark}"'):
        path.write_bytes(f"\ufeff{told}\r\na,b{mark}c\r\n1{mark}2\r\n\r\n1{mark}2{mark}3{mark}4\r\n".encode())
        first, last = read_entries(path)
        header = ["a", "b", "c"] if mark == "," else ["a,b", "c"]
        assert (first.where, last.where) == (f"{path}:3", f"{path}:5")
        assert isinstance(last.record, DataError)
        assert (
            isinstance(first.record, DataError) if mark == "," else first.record == dict(zip(header, "12", strict=True))
        )
    path.write_text("sep=a,b\n1,2\n")  # a column
    (entry,) = read_entries(path)
    assert entry.record == {"sep=a": "1", "b": "2"}


@pytest.mark.parametrize("name", ["x.tab", "x.txt", "X.TXT", "x.txt.gz"])
def test_text_with_tabs_is_a_table_by_other_names_too(tmp_path: Path, name: str) -> None:
    write = (lambda text: gzip.compress(text)) if name.endswith(".gz") else (lambda text: text)
    (tmp_path / name).write_bytes(write(b"prompt\tresponse\r\nWhere?\tIn Lyon.\r\n"))
    (entry,) = read_entries(tmp_path / name)
    assert entry.record == {"prompt": "Where?", "response": "In Lyon."}
    if name != "x.tab":
        (tmp_path / name).write_bytes(write(b'\xef\xbb\xbf {"prompt": "Where?"}\n'))
        (entry,) = read_entries(tmp_path / name)
        assert json_object(entry.record, "here") == {"prompt": "Where?"}


@pytest.mark.parametrize("field", ["prompt", "response", "feedback"])
def test_halves_of_surrogate_pairs_are_refused_where_a_tokenizer_reads_the_annotations(
    tmp_path: Path, field: str
) -> None:
    record = {"prompt": "a", "response": "b", "feedback": "c", field: "\ud83d"}
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({**record, "feedback": "c"}) + "\n" + json.dumps(record))
    assert len(read_annotations(path)) == 2
    line = 2 if field == "feedback" else 1
    with pytest.raises(DataError, match=rf"x.jsonl:{line}: \"{field}\" holds .*half of a surrogate pair"):
        read_annotations(path, to_encode=True)


HEADER = "prompt\tresponse\n"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('a\t"She said ""b""."\n', [["a", 'She said "b".']]),  # as pandas 3.1.1 writes a cell with marks
        ('a\t"b\tc"\n', [["a", "b\tc"]]),  # and one with a tab
        ('a\t"b\nc"\nd\te\n', [["a", "b\nc"], ["d", "e"]]),
        ('"a"\t"She said ""b"", ""c""."\r\n', [["a", 'She said "b", "c".']]),
        ('a\t"b" she said\n', [["a", '"b" she said']]),  # raw, as the tables of WMT from 2021 on
        ('a\t"b\nc\td"\n', [["a", '"b'], ["c", 'd"']]),  # a quotation over two segments
        ('a\t"b"\n', [["a", '"b"']]),  # both could be: raw, and a message says so
        ('a\t"She said ""b""."\nc\td "e"\n', [["a", '"She said ""b""."'], ["c", 'd "e"']]),
    ],
)
def test_quotation_marks_of_a_tsv_are_of_csv_if_every_one_can_only_be_that(
    tmp_path: Path, text: str, rows: list[list[str]]
) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes((HEADER + text).encode())
    assert [list(entry.record.values()) for entry in read_entries(path)] == rows


def test_a_tsv_whose_header_is_quoted_is_quoted_as_csv_and_a_csv_with_tabs_too(tmp_path: Path) -> None:
    text = '"prompt"\t"response"\n"a"\t"b"\n'  # csv.QUOTE_ALL
    for name in ("x.tsv", "x.csv"):
        (tmp_path / name).write_text(text)
        assert [entry.record for entry in read_entries(tmp_path / name)] == [{"prompt": "a", "response": "b"}]


def test_a_tsv_without_rows_has_none(tmp_path: Path) -> None:
    for text in ("", HEADER, '"prompt"\t"response"\n'):
        (tmp_path / "x.tsv").write_text(text)
        assert list(read_entries(tmp_path / "x.tsv")) == []


def test_a_row_with_a_tab_too_many_is_the_only_one_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text(HEADER + 'a\t"b\tc" d\ne\tf\n')  # the marks cannot be those of CSV: a text follows the second
    bad, good = read_entries(path)
    assert isinstance(bad.record, DataError)
    assert good.record == {"prompt": "e", "response": "f"}


def test_a_comment_at_the_end_of_a_header_is_no_column(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("a\tb\t# see the viewer\n1\t2\n1\t2\t3\n1\n")
    short, whole, bad = read_entries(path)
    assert (short.record, whole.record) == ({"a": "1", "b": "2"}, {"a": "1", "b": "2", "# see the viewer": "3"})
    assert isinstance(bad.record, DataError)
    path.write_text("a\t#b\n1\n")  # a name of a column
    (bad,) = read_entries(path)
    assert isinstance(bad.record, DataError)


def zstd(data: bytes) -> bytes:
    return bytes(pyarrow.Codec("zstd").compress(data).to_pybytes())


def pzstd(data: bytes) -> bytes:
    """As pzstd of zstd 1.5 writes it: a frame that readers skip (its number, its length 4), then several frames."""
    return b"\x50\x2a\x4d\x18\x04\0\0\0size" + zstd(data[:9]) + zstd(data[9:])


PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd, ".ZST": pzstd}


@pytest.mark.parametrize("end", PACKED)
def test_text_may_be_compressed_whatever_the_file_is_named(tmp_path: Path, end: str) -> None:
    table = tmp_path / f"x.csv{end}"
    table.write_bytes(PACKED[end](b"prompt,response\na,007\n"))
    assert [entry.record for entry in read_entries(table)] == [{"prompt": "a", "response": "007"}]
    data = b'{"prompt": "a", "reference": "b"}\n'
    for name in ("prompts.jsonl", "prompts"):
        path = tmp_path / name
        path.write_bytes(PACKED[end](data))
        assert [(example.prompt, example.reference) for example in read_examples(path)] == [("a", "b")]
        path.write_bytes(PACKED[end](data * 9)[:-5])
        with pytest.raises(DataError, match=rf"^cannot read {path}: (Compressed file ended before|Truncated)"):
            read_examples(path)
    plain = tmp_path / f"plain{end}"
    plain.write_bytes(data)
    assert len(read_examples(plain)) == 1


def test_a_workbook_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    path.write_bytes(b"PK\x03\x04" + bytes(20))
    for read in (read_examples, read_annotations, lambda path: list(read_entries(path))):
        with pytest.raises(DataError, match=r"is a workbook \(.xlsx, .ods\) or a ZIP archive; save its table as CSV"):
            read(path)


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "x"])
def test_prompts_chats_and_annotations_are_read_from_parquet(tmp_path: Path, name: str) -> None:
    """Parquet gives each object the keys of all: a message without calls is none with null calls."""

    def demonstrations(path: Path) -> Any:
        return read_demonstrations([path])

    def read(read: Any, *rows: dict[str, Any]) -> Any:
        table = {key: [row.get(key) for row in rows] for row in rows for key in row}
        parquet.write_table(pyarrow.table(table), tmp_path / name)
        return read(tmp_path / name)

    when = datetime(2024, 1, 1, 10)
    for_json = read(read_examples, {"prompt": "a", "when": when, "n": Decimal("0.5")}, {"prompt": "b", "n": None})
    assert [dict(example.meta) for example in for_json] == [{"when": "2024-01-01 10:00:00", "n": "0.5"}, {}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "a": 1, "b": None}]}
    asked = {"role": "user", "content": "Add.", "tool_calls": None}
    (chat, prompt) = read(
        demonstrations, {"messages": [asked, call]}, {"messages": None, "prompt": "a", "reference": "b"}
    )
    assert chat.turns[0].prompt == [{"role": "user", "content": "Add."}]
    assert chat.turns[0].message == {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "a": 1}]}
    assert (prompt.prompt, prompt.turns[0].answer) == ("a", "b")
    (annotation,) = read(
        read_annotations,
        {"prompt": "a", "response": LYON, "critique": {"feedback": "No.", "poor_spans": ["Lyon"], "outcome": None}},
    )
    assert annotation == Annotation("a", LYON, NEGATIVE)


def test_a_fifo_and_a_device_are_refused_and_a_pipe_is_read(tmp_path: Path) -> None:
    """`text2grad train` waited for ever for a FIFO that nobody writes to, and /dev/zero never ends."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for path in (tmp_path / "fifo", tmp_path / "link", Path("/dev/zero")):
        for read in (read_examples, read_annotations, lambda path: list(read_entries(path)), read_text):
            with pytest.raises(DataError, match=rf"^{path} is a FIFO or a device, which may never end; give a file"):
                read(path)
    for data in (b'{"prompt": "a"}\n', gzip.compress(b'{"prompt": "a"}\n')):
        end, begin = os.pipe()  # as <(...) of a shell
        os.write(begin, data)
        os.close(begin)
        assert [example.prompt for example in read_examples(f"/dev/fd/{end}")] == ["a"]
        os.close(end)


@pytest.mark.parametrize("name", ["x.csv", "X.CSV", "x.Csv.gz"])
def test_names_of_columns_have_no_blanks_at_their_ends(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"prompt, response ,feedback\na, b,c\n")
    assert [entry.record for entry in read_entries(tmp_path / name)] == [
        {"prompt": "a", "response": " b", "feedback": "c"}
    ]


TEXTS = ["None", "NA", "nan", "null", "", "2024-01-01", "2024-01-01T10:00:00Z", "007", "1e5", "12345678901234567890123"]


@pytest.mark.parametrize("name", ["train.csv", "data/train.tsv", "train.jsonl", "train.json"])
def test_a_directory_of_text_is_read_as_its_files_are(tmp_path: Path, name: str) -> None:
    """`datasets` 5.2.0 makes null of NA, and a time of 2024-01-01 in JSON lines."""
    pytest.importorskip("datasets")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if path.suffix in (".csv", ".tsv"):
        mark = "," if path.suffix == ".csv" else "\t"
        path.write_text(f"prompt{mark}response\n" + "".join(f"p{mark}{text}\n" for text in TEXTS))
    else:
        records = [{"prompt": "p", "response": text} for text in TEXTS]
        lines = json.dumps(records) if path.suffix == ".json" else "\n".join(map(json.dumps, records))
        path.write_text(lines)
    assert [entry.record["response"] for entry in read_entries(tmp_path)] == TEXTS
    assert [json_object(entry.record, "")["response"] for entry in read_entries(path)] == TEXTS


def test_records_of_a_directory_have_all_keys_and_settings_of_the_data_card_are_obeyed(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "train.jsonl").write_text('{"a": 1}\n{"b": "2024-01-01"}\n')
    assert [entry.record for entry in read_entries(tmp_path)] == [{"a": 1, "b": None}, {"a": None, "b": "2024-01-01"}]
    card = "---\nconfigs:\n- config_name: default\n  data_files: [{split: dev, path: x.csv}]\n  skiprows: 1\n---\n"
    (tmp_path / "README.md").write_text(card)
    (tmp_path / "x.csv").write_text("from a tool\na\nb\n")
    assert [entry.record for entry in read_entries(tmp_path, split="dev")] == [{"a": "b"}]


def test_files_of_a_data_set_on_the_hub_are_read_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    (tmp_path / "0a1b").write_text("prompt;response\nWhen?;2024-01-01\nWho?;NA\n")  # as the cache names a file
    names = {"train": ["hf://datasets/me/words@1/data/train.csv"]}
    config = datasets.packaged_modules.csv.CsvConfig(sep=";")
    config.data_files = names
    builder = SimpleNamespace(name="csv", config=config)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_: builder)
    manager = SimpleNamespace(download={names["train"][0]: str(tmp_path / "0a1b")}.__getitem__)
    monkeypatch.setattr(datasets, "DownloadManager", lambda: manager)
    assert [entry.record["response"] for entry in read_entries("me/words")] == ["2024-01-01", "NA"]
    assert [entry.where for entry in read_entries("me/words")] == [f"me/words [train]: record {n}" for n in (1, 2)]


@pytest.mark.parametrize("key", ["spans", "poor_spans"])
@pytest.mark.parametrize("weight", [-1, "NaN", "heavy", [1]])
def test_a_weight_that_is_none_is_refused_with_its_place(tmp_path: Path, key: str, weight: Any) -> None:
    entry = {"start": 10, "end": 14, "text": "Lyon", "label": "negative", "weight": weight}
    record = {"response": LYON, key: [entry]}
    with pytest.raises(DataError) as caught:
        read_one(tmp_path, record)
    shown = "nan" if weight == "NaN" else repr(weight)
    assert str(caught.value) == (
        f"{tmp_path}/critiques.jsonl:1: a span's weight is a finite number from 0 up, got {shown} at [10, 14]. Its "
        f"label says the sign, and 0 takes the mark away{WAY_OUT}"
    )


def test_names_of_other_tools_and_numbers_as_raters_are_read(tmp_path: Path) -> None:
    entry = {
        "start": 10,
        "end": 14,
        "label": "negative",
        "annotator": 7,
        "error_type": "Fact",
        "note": "No.",
        "weight": "2",
    }
    blank = {
        "start": 0,
        "end": 1,
        "label": "positive",
        "reason": " ",
        "rater": None,
        "severity": ["major"],
        "turn": "x",
    }
    judged = read_one(tmp_path, {"response": LYON, "spans": [entry, blank]})
    assert [span.stated for span in judged.critique.spans] == [
        {"start": 0, "end": 1, "label": "positive"},
        {"start": 10, "end": 14, "label": "negative", "reason": "No.", "category": "Fact", "weight": 2, "rater": "7"},
    ]


# Conversations.


def in_turn(end: int, turn: Any) -> Any:
    return {"critique": {"spans": [{"start": 0, "end": end, "label": "negative", "turn": turn}]}}


def spoken(**part: Any) -> Any:
    return {"response": "x", "turns": [{"role": "assistant", "text": "x", "sampled": True, **part}]}


IN_TURNS = Critique("No.", (Span(0, 7, "positive", 1), Span(11, 17, "negative", 3), Span(0, 3, "negative")))


def test_a_conversation_and_the_turns_of_its_spans_come_back_from_disk(tmp_path: Path) -> None:
    called = Turn("assistant", "Look", True, "hm", ({"name": "look", "arguments": {"city": "Lyon"}},))
    for whole in (FAIR, Conversation([called, Turn("tool", "Friday", name="look")])):
        spans = IN_TURNS.spans if whole is FAIR else (Span(0, 4, "negative", 0),)
        given = Annotation("When?", whole, replace(IN_TURNS, spans=spans))
        write_annotations(tmp_path / "a.jsonl", [given])
        (found,) = read_annotations(tmp_path / "a.jsonl", to_encode=True)
        assert isinstance(found.response, Conversation)
        assert found.response.turns == whole.turns
        assert set(found.critique.spans) == set(spans)
    assert json.loads((tmp_path / "a.jsonl").read_text())["critique"]["spans"] == [
        {"start": 0, "end": 4, "label": "negative", "turn": 0}
    ]
    assert "turn" not in json.dumps(annotation_to_json(Annotation("", "see", Critique("", (Span(0, 3, "negative"),)))))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"turns": "none"}, '"turns" is a list of'),
        ({"turns": [{"role": "user"}]}, '"turns" is a list of'),
        ({"turns": [{"role": "assistant", "text": 5, "sampled": True}]}, '"turns" is a list of'),
        ({"turns": [{"role": "assistant", "text": "x", "said": 1}]}, '"turns" is a list of'),
        (spoken(thought=5), '"turns" is a list of'),
        (spoken(name=["look"]), '"turns" is a list of'),
        (spoken(tool_calls=["look"]), '"turns" is a list of'),
        ({"response": "other"}, 'and "response" is what is sampled'),
        (in_turn(3, 2), "in turn 2; the policy wrote the turns [1, 3]"),
        (in_turn(3, True), "in turn true; the policy"),
        (in_turn(14, 1), "which has 13 characters"),
    ],
)
def test_turns_that_cannot_be_read_are_refused_with_their_place(tmp_path: Path, changed: Any, message: str) -> None:
    record = {**annotation_to_json(Annotation("When?", FAIR, Critique("No."))), **changed}
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_one(tmp_path, record)
    assert ".jsonl:1" in str(caught.value)


def test_half_a_pair_in_any_turn_is_refused_where_a_tokenizer_reads_it(tmp_path: Path) -> None:
    halved = Conversation([Turn("tool", "\ud83d"), Turn("assistant", "see", True)])
    write_annotations(tmp_path / "a.jsonl", [Annotation("", halved, Critique(""))])
    assert len(read_annotations(tmp_path / "a.jsonl")) == 1
    with pytest.raises(DataError):
        read_annotations(tmp_path / "a.jsonl", to_encode=True)


def test_annotations_lose_thoughts_and_the_spans_in_them_where_a_reward_model_sees_none(tmp_path: Path) -> None:
    spans = (Span(7, 11, "negative"), Span(20, 24, "positive"))  # "Lyon" in the thought, "Rome" behind it
    own = Turn("assistant", "<think>Lyon</think> Rome", True)
    conversation = Annotation("", Conversation([own]), Critique("", (*(replace(it, turn=0) for it in spans), spans[1])))
    write_annotations(tmp_path / "a.jsonl", [Annotation("", own.text, Critique("", spans)), conversation])
    whole = read_annotations(tmp_path / "a.jsonl")
    assert [annotation.response for annotation in whole] == [own.text] * 2
    one, other = read_annotations(tmp_path / "a.jsonl", prompt_end="")
    assert one == Annotation("", " Rome", Critique("", (Span(1, 5, "positive"),)))
    assert other.response == " Rome"
    assert set(other.critique.spans) == {Span(1, 5, "positive", 0)}


def test_marks_are_taken_out_of_a_record_and_the_last_takes_all_that_is_said() -> None:
    ann, bob = Span(0, 2, "negative", rater="ann", reason="Too short."), Span(3, 7, "positive", rater="bob")
    both = Annotation("Where?", "In Lyon.", Critique("Hm.", (ann, bob), 0.5, "ok", ("Rome",)))
    record = annotation_to_json(both)
    item = item_of("Where?", "In Lyon.")
    assert item == sha256(b"Where?\0In Lyon.").hexdigest()[:20]
    names = [mark_of(item, span.stated) for span in (ann, bob)]
    assert take_marks(record, lambda _, span: span["rater"] == "eve") == set()
    assert record == annotation_to_json(both)
    assert take_marks(record, lambda mark, _: mark == names[0]) == {names[0]}
    assert record["critique"] == critique_to_json(Critique("", (bob,), 0.5))
    assert take_marks(record, lambda mark, _: True) == {names[1]}
    assert record["critique"] == critique_to_json(Critique("", status="withdrawn"))
    silent = annotation_to_json(both._replace(critique=Critique("Fine.", outcome=1.0)))
    assert take_marks(silent, lambda mark, _: True) == set()
    assert silent["critique"] == critique_to_json(Critique("Fine.", outcome=1.0))
    cached = {"key": sha256(b"Where?\0In Lyon.").hexdigest(), "critique": annotation_to_json(both)["critique"]}
    assert take_marks(cached, lambda mark, _: True) == {*names}
    chat = {**annotation_to_json(both), "prompt": [{"role": "user", "content": "Where?"}]}
    assert take_marks(chat, lambda mark, _: True) == {*names}


def test_a_mark_has_its_name_from_who_says_what_about_which_words_and_not_from_the_reason() -> None:
    span = Span(3, 7, "negative", rater="ann")
    others = [replace(span, **change) for change in ({"start": 2}, {"end": 8}, {"label": "positive"}, {"turn": 1})]
    others += [replace(span, rater="bob"), replace(span, rater=None)]
    names = [mark_of("item", other.stated) for other in (span, *others)]
    assert len({*names, mark_of("other item", span.stated)}) == 8
    assert mark_of("item", replace(span, reason="No.", category="style", severity="major").stated) == names[0]


def test_annotations_without_withdrawn_marks_are_written_and_damaged_tombstones_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marked = Annotation("Where?", LYON, Critique("No.", (Span(10, 14, "negative", rater="ann"),)))
    other = marked._replace(prompt="Who?")
    mark = mark_of(item_of("Where?", LYON), marked.critique.spans[0].stated)
    (tmp_path / TOMBSTONES).write_text(json.dumps({"mark": mark, "rater": "ann", "at": 1, "reason": "a test"}))
    with caplog.at_level("WARNING", logger="text2grad"):
        write_annotations(tmp_path / "team.jsonl", [marked, other])
    said = f"{tmp_path / 'team.jsonl'}: 1 marks are left out, which were withdrawn ({tmp_path / TOMBSTONES})"
    assert caplog.messages == [said]
    first, second = read_annotations(tmp_path / "team.jsonl")
    assert (first.critique, first.critique.failed) == (Critique("", status="withdrawn"), True)
    assert second == other
    (tmp_path / TOMBSTONES).write_text('{"name": "x"}')
    with pytest.raises(DataError, match=r"withdrawn\.jsonl: it holds no 'mark'\. Put back a copy of it"):
        write_annotations(tmp_path / "team.jsonl", [marked])
