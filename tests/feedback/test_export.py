"""Annotations going out, and `text2grad feedback import` and `export` from their command lines."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from text2grad.cli.__main__ import main
from text2grad.errors import DataError
from text2grad.feedback.examples import write_examples
from text2grad.feedback.export import DATA_FILE, write_folder
from text2grad.feedback.records import (
    Annotation,
    critique_from_json,
    critique_to_json,
    read_annotations,
    write_annotations,
)
from text2grad.feedback.sources.registry import read_source
from text2grad.types import LABELS, Critique, Example, Span

ANNOTATIONS = [
    Annotation("Where?", "I live in Lyon.", Critique("No.", (Span(10, 14, "negative"),), -0.5, "repaired", ("Nice",))),
    Annotation("é", "😀", Critique("")),
]
SAID = Span(10, 14, "negative", reason="It's\nNice.", severity="major", weight=0.5)


@pytest.mark.parametrize("name", ["a.jsonl", DATA_FILE])
def test_what_is_written_is_what_is_read_and_datasets_loads_it(tmp_path: Path, name: str) -> None:
    datasets = pytest.importorskip("datasets")
    path = tmp_path / "deep" / name
    write_annotations(tmp_path / "deep" / "a.jsonl", ANNOTATIONS)
    write_folder(tmp_path / "deep", ANNOTATIONS)
    assert read_source(path) == ANNOTATIONS
    kind = {".jsonl": "json", ".parquet": "parquet"}[path.suffix]
    loaded = datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["critique"]["spans"] == [{"start": 10, "end": 14, "label": "negative"}]
    assert loaded[1]["critique"]["outcome"] is None


QUOTES = Annotation(
    'Say "it":', "It's in\nLyon.", Critique("a 'b' \"c\"\n\\n", (Span(0, 4, "positive"), Span(8, 12, "negative")), None)
)


@pytest.mark.parametrize("way", ["datasets", "pandas", "lists", "flat", "normalized"])
def test_an_export_comes_back_from_a_csv(tmp_path: Path, way: str) -> None:
    """`datasets` 5.2.0 and pandas 3.1.1 write lists as Python or NumPy print them."""
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    given = [*ANNOTATIONS, QUOTES, QUOTES._replace(response="NA", critique=Critique("So.", unmatched=("it's", "b")))]
    given.append(ANNOTATIONS[0]._replace(critique=Critique("No.", (Span(0, 1, "positive"), SAID))))
    write_folder(tmp_path, given)
    frame, path = pandas.read_parquet(tmp_path / DATA_FILE), tmp_path / "a.csv"
    rows = datasets.Dataset.from_parquet(str(tmp_path / DATA_FILE), cache_dir=str(tmp_path / "cache"))
    if way in ("datasets", "flat"):
        (rows.flatten() if way == "flat" else rows).to_csv(path)
    elif way == "pandas":
        frame.to_csv(path)
    else:
        made = pandas.json_normalize(list(rows)) if way == "normalized" else pandas.DataFrame(list(rows))
        made.to_csv(path, index=False)
    read = read_source(path)
    assert read == given
    assert [span.stated for span in read[-1].critique.spans] == [Span(0, 1, "positive").stated, SAID.stated]  # type: ignore[union-attr]


def test_the_folder_is_a_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    write_folder(tmp_path / "ds", ANNOTATIONS, license="apache-2.0")
    assert sorted(path.relative_to(tmp_path / "ds").as_posix() for path in (tmp_path / "ds").rglob("*.*")) == [
        "README.md",
        DATA_FILE,
    ]
    loaded = datasets.load_dataset(str(tmp_path / "ds"), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["response"] == [one.response for one in ANNOTATIONS]


def test_the_data_card_counts_and_its_header_is_yaml(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    write_folder(tmp_path / "feedback: 2", ANNOTATIONS, license="apache-2.0")
    card = (tmp_path / "feedback: 2" / "README.md").read_text("utf-8")
    header = yaml.safe_load(card.split("---")[1])
    assert header["license"] == "apache-2.0"
    assert header["pretty_name"] == "feedback: 2"
    assert header["configs"] == [{"config_name": "default", "data_files": [{"split": "train", "path": DATA_FILE}]}]
    assert "2 responses, 0 positive and 1\nnegative spans. 1 responses have feedback without spans." in card


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Mend the annotation$"):
        write_folder(tmp_path, [Annotation("", "\ud83d", Critique(""))])
    with pytest.raises(DataError, match="Object of type set is not JSON serializable"):
        write_examples(tmp_path / "a.jsonl", [Example("", meta={"a": set()})])
    assert list(tmp_path.iterdir()) == []


def test_the_import_command_writes_both_kinds_and_accounts_for_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [
        {"prompt": "Where?", "text": "I live in Lyon.", "bad": ["Lyon", "Nice"], "rating": 2},
        {"q": "no prompt"},
        {"prompt": "Where?"},
    ]
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    arguments = ["feedback", "import", "table", str(path), "--out", str(out)]
    mapped = [*arguments, "--column", "response=text", "--column", "poor_spans=bad"]
    assert main(mapped) == 2  # the second record has no such columns
    assert not out.exists()
    assert main([*mapped, "--skip-bad"]) == 0
    said = capsys.readouterr().out
    assert "annotations   1\nspans         1, 1 negative\nexamples      0\n" in said
    assert "2 × records that cannot be used\n" in said
    assert "1 × quotes that the response does not contain: no span\n" in said
    assert f"  {path}:1: Nice\n" in said
    assert "\ncolumns not read: rating; --column OURS=THEIRS reads one, --map one of judgements" in said
    assert said.endswith(f"next:    text2grad reward RECIPE.toml --annotations {out}\n")
    assert read_annotations(out)[0].critique.unmatched == ("Nice",)
    before = out.read_bytes()
    assert main([*arguments, "--skip-bad"]) == 2
    assert f"{out} would be overwritten; choose another --out, or add --force" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert main([*arguments, "--skip-bad", "--force"]) == 0
    first, second = map(json.loads, out.read_text().splitlines())
    meta = {"text": "I live in Lyon.", "bad": ["Lyon", "Nice"], "rating": 2}
    assert first == {"prompt": "Where?", "reference": None, "tests": None, "meta": meta}
    assert second == {"prompt": "Where?", "reference": None, "tests": None, "meta": {}}


def test_losses_are_told_by_kind_the_most_frequent_first_with_three_places(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, said = tmp_path / "in.jsonl", {"prompt": "Q", "response": "R", "feedback": "No.", "outcome": 1}
    path.write_text("\n".join(map(json.dumps, [{**said, "poor_spans": ["X"]}, *[said] * 5, {}])))
    assert main(["feedback", "import", "table", str(path), "--out", str(tmp_path / "out.jsonl"), "--skip-bad"]) == 0
    kinds = [kind for kind in capsys.readouterr().out.partition("\nwritten:")[0].split("\n\n") if " × " in kind]
    assert [kind.splitlines()[0].partition(" × ")[::2] for kind in kinds] == [
        ("5", "words without a place: no token learns from them until they are grounded in spans"),
        ("1", "records that cannot be used"),
        ("1", "quotes that the response does not contain: no span"),
    ]
    places = [f"  {path}:{number}" for number in (2, 3, 4)]
    assert kinds[0].splitlines()[1:] == [*places, "  and 2 more"]
    assert len(kinds[1].splitlines()) == 2


def test_words_without_a_place_go_to_a_file_of_their_own_for_annotate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = {"prompt": "Where?", "response": "I live in Lyon.", "feedback": "No."}
    others: list[dict[str, Any]] = [{"outcome": -1}, {"poor_spans": ["Lyon"]}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({**told, **more}) + "\n" for more in others))
    import_it = ["feedback", "import", "table", "in.jsonl", "--out", "out.jsonl"]
    assert main(import_it) == 0
    assert capsys.readouterr().out.endswith(
        "next:    import again with --ungrounded WORDS.jsonl --force, and ground WORDS.jsonl with "
        "`text2grad annotate`: OUT holds marks and words without a place\n"
    )
    assert len(read_annotations("out.jsonl")) == 2
    assert main([*import_it, "--ungrounded", "words.jsonl", "--force"]) == 0
    assert capsys.readouterr().out.endswith(
        "\nwritten: out.jsonl, words.jsonl\nnext:    text2grad annotate RECIPE.toml --set data.train=words.jsonl\n"
    )
    assert [len(one.critique.spans) for one in read_annotations("out.jsonl")] == [1]
    assert read_annotations("words.jsonl") == [Annotation("Where?", "I live in Lyon.", Critique("No.", outcome=-1))]
    for path, why in (("words.jsonl", "would be overwritten"), ("in.jsonl", "is the source itself")):
        assert main(["feedback", "import", "table", "in.jsonl", "--out", "c.jsonl", "--ungrounded", path]) == 2
        assert f"{path} {why}" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "in.jsonl").write_text(json.dumps(told) + "\n")
    assert main(["feedback", "import", "table", "in.jsonl", "--out", "b.jsonl", "--ungrounded", "w.jsonl"]) == 0
    assert capsys.readouterr().out.endswith(
        "\nwritten: w.jsonl\nnext:    text2grad annotate RECIPE.toml --set data.train=w.jsonl\n"
    )
    assert not (tmp_path / "b.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "a.txt"], "ConfigError: --out is a .jsonl file, got a.txt"),
        (["--out", "a.jsonl", "--column", "a"], "ConfigError: --column is given as NAME=VALUE, got 'a'"),
        (
            ["--out", "a.jsonl", "--column", "prompt=a", "--column", "prompt=b"],
            "ConfigError: --column prompt=a and --column prompt=b exclude each other; keep one of them",
        ),
        (
            ["--out", "a.jsonl", "--label", "a=ignore", "--label", "a=positive"],
            "ConfigError: --label a=ignore and --label a=positive exclude each other; keep one of them",
        ),
        (
            ["--out", "a.jsonl", "--ungrounded", "b.parquet"],
            "ConfigError: --ungrounded is a .jsonl file, got b.parquet",
        ),
        (
            ["--out", "a.jsonl", "--ungrounded", "a.jsonl"],
            "ConfigError: --ungrounded a.jsonl is also a file of --out; choose another --ungrounded",
        ),
        (["--out", "a.jsonl", "--label", "a=b"], "ConfigError: --label has no value 'b'. Known values: positive, "),
        (["--out", "a.jsonl"], "DataError: cannot read gone.jsonl: No such file or directory"),
    ],
)
def test_the_import_command_refuses(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["feedback", "import", "table", "gone.jsonl", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_label_that_no_record_has_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = {"type": "labels", "value": {"labels": ["Error"], "start": 0, "end": 2}}
    record = {"data": {"prompt": "", "response": "It snowed."}, "annotations": [{"result": [mark]}]}
    (tmp_path / "in.jsonl").write_text(json.dumps(record) + "\n", "utf-8")
    for number, (label, told) in enumerate([("error=positive", False), ("Erorr=positive", True)]):
        out = ["--out", str(tmp_path / f"{number}.jsonl")]
        assert main(["feedback", "import", "label_studio", str(tmp_path / "in.jsonl"), *out, "--label", label]) == 0
        words = "no record has Erorr, which --label or --map names; there are: Error"
        assert (words in " ".join(capsys.readouterr().err.split())) == told


TEAM = (
    "question,answer,comment,thumb\nWhere?,In Lyon.,The city is right.,up\n"
    "When?,On Friday.,Wrong day.,Down\nHow?,By bus.,,\n"
)


@pytest.mark.parametrize(
    ("values", "given", "outcomes"),
    [
        (("up", "Down", ""), "up:1,down:-1", [1.0, -1.0]),
        (("👍", "👎", ""), "👍:1,👎:-1", [1.0, -1.0]),
        (("5", "2.0", ""), "1:-1,2:-0.5,3:0,4:0.5,5:1", [1.0, -0.5]),  # pandas writes 2.0 beside an empty cell
        (("very good", "a: b", ""), "very good:1,a: b:0", [1.0, 0.0]),
    ],
)
def test_words_of_a_column_become_outcomes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: tuple[str, ...], given: str, outcomes: list[float]
) -> None:
    table = TEAM.replace("up\n", f"{values[0]}\n").replace("Down\n", f"{values[1]}\n")
    (tmp_path / "team.csv").write_text(table, "utf-8")
    out = tmp_path / "out.jsonl"
    columns = ("prompt=question", "response=answer", "feedback=comment")
    named = [part for column in columns for part in ("--column", column)]
    import_it = ["feedback", "import", "table", str(tmp_path / "team.csv"), "--out", str(out), *named]
    assert main([*import_it, "--map", f"thumb={given}"]) == 0
    said = capsys.readouterr().out
    assert [one.critique.outcome for one in read_annotations(out)] == outcomes
    assert "2 × words without a place" in said  # an outcome gives the words no place
    assert said.endswith(f"next:    text2grad annotate RECIPE.toml --set data.train={out}\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--column", "outcome=thumb"],
            '"thumb" is "up"; say its number with --map thumb=up:1,down:-1, which knows nothing',
        ),
        (
            ["--map", "thumb=up:1,no:-1"],
            '"thumb" is "Down"; say its number with --map thumb=up:1,down:-1, which knows up, no',
        ),
        (["--map", "thumb=up:1,up:-1"], "expected one number for each value, as in thumb=up:1,down:-1, got"),
        (["--map", "thumb"], "expected one number for each value, as in thumb=up:1,down:-1, got 'thumb'"),
        (["--map", "thumb=up:nan"], "expected a finite number, got 'nan'"),
        (["--map", "a=up:1", "--column", "outcome=b"], "--column outcome=b and --column outcome=a exclude each other"),
    ],
)
def test_words_without_a_number_are_no_outcomes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    (tmp_path / "team.csv").write_text(TEAM, "utf-8")
    columns = ["--column", "prompt=question", "--column", "response=answer"]
    out = ["--out", str(tmp_path / "out.jsonl")]
    try:
        assert main(["feedback", "import", "table", str(tmp_path / "team.csv"), *out, *columns, *options]) == 2
    except SystemExit:  # of argparse
        assert "--map" in options
    assert message in " ".join(capsys.readouterr().err.split())


def test_values_of_a_map_that_no_record_has_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "", "response": "Lyon.", "helpful": true}\n', "utf-8")
    out = tmp_path / "out.jsonl"
    import_it = ["feedback", "import", "table", str(tmp_path / "in.jsonl"), "--out", str(out)]
    assert main([*import_it, "--map", "helpful=true:1,no:-1"]) == 0
    told = "no record has no, which --label or --map names; there are: True"
    assert told in " ".join(capsys.readouterr().err.split())
    assert read_annotations(out) == [Annotation("", "Lyon.", Critique("", outcome=1.0))]


def test_the_export_command_writes_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_annotations(tmp_path / "a.jsonl", ANNOTATIONS)
    arguments = [
        "feedback",
        "export",
        str(tmp_path / "a.jsonl"),
        str(tmp_path / "a.jsonl"),
        "--out",
        str(tmp_path / "ds"),
    ]
    assert main(arguments) == 0
    assert read_source(tmp_path / "ds" / DATA_FILE) == ANNOTATIONS * 2
    assert "annotations   4" in capsys.readouterr().out


def test_the_export_command_writes_into_a_folder_with_files_only_when_it_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "a.jsonl", tmp_path / "out"
    write_annotations(path, [Annotation("Where?", "In Lyon.", Critique("No."))])
    out.mkdir()
    assert main(["feedback", "export", str(path), "--out", str(out)]) == 0, "an empty folder is free"
    (out / "README.md").write_text("# Mine")
    assert main(["feedback", "export", str(path), "--out", str(out)]) == 2
    assert "holds other files (README.md, data); choose another --out, or add --force" in capsys.readouterr().err
    assert (out / "README.md").read_text() == "# Mine"
    assert main(["feedback", "export", str(path), "--out", str(out), "--force"]) == 0
    assert "# out" in (out / "README.md").read_text()
    assert main(["feedback", "export", str(path), "--out", str(path)]) == 2
    assert "is a file; choose another --out, a directory" in capsys.readouterr().err


SAYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9).filter(str.strip)
MARKS = st.builds(
    Span,
    st.integers(0, 3),
    st.integers(4, 9),
    st.sampled_from(LABELS),
    turn=st.none() | st.integers(0, 5),
    reason=st.none() | SAYS,
    category=st.none() | SAYS,
    severity=st.none() | SAYS,
    weight=st.none() | st.floats(0, 1e9),
    rater=st.none() | SAYS,
    source=st.none() | SAYS,
)


def stated(annotations: list[Any]) -> list[list[dict[str, Any]]]:
    """Return all that the spans say, which equality leaves out."""
    return [[span.stated for span in annotation.critique.spans] for annotation in annotations]


@given(st.lists(MARKS, min_size=1, max_size=3, unique=True))
@settings(deadline=None, max_examples=40)
def test_what_spans_say_comes_back_from_every_file(spans: list[Span]) -> None:
    critique = Critique("So.", tuple(sorted(spans)))
    given = [Annotation("Where?", "0123456789", critique), ANNOTATIONS[0]]
    stored = json.loads(json.dumps(critique_to_json(critique)))
    assert (
        stated([given[0]._replace(critique=critique_from_json(stored, "0123456789", where="here"))])
        == stated(given)[:1]
    )
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        write_annotations(directory / "a.jsonl", given)
        assert stated(read_annotations(directory / "a.jsonl")) == stated(given)
        assert stated(read_source(directory / "a.jsonl")) == stated(given)
        write_folder(directory, given)
        assert stated(read_source(directory / DATA_FILE)) == stated(given)
        assert stated(read_annotations(directory / DATA_FILE)) == stated(given)


def test_what_nobody_says_is_left_out_of_files(tmp_path: Path) -> None:
    said = Span(10, 14, "negative", reason="It is Nice.", weight=0.5)
    plain, full = critique_to_json(ANNOTATIONS[0].critique), critique_to_json(Critique("", (said,)))
    assert json.dumps(plain["spans"]) == '[{"start": 10, "end": 14, "label": "negative"}]'
    assert json.dumps(full["spans"]) == (
        '[{"start": 10, "end": 14, "label": "negative", "reason": "It is Nice.", "weight": 0.5}]'
    )
    for name, annotations, columns in (
        ("plain", ANNOTATIONS, ["start", "end", "label"]),
        (
            "full",
            [ANNOTATIONS[0]._replace(critique=Critique("", (said,)))],
            ["start", "end", "label", "reason", "weight"],
        ),
    ):
        write_folder(tmp_path / name, annotations)
        schema = pq.read_schema(tmp_path / name / DATA_FILE)
        assert [field.name for field in schema.field("critique").type.field("spans").type.value_type] == columns
        card = (tmp_path / name / "README.md").read_text("utf-8")
        assert ("reason, weight: null where unknown" in card) == (name == "full")
