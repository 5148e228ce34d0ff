"""`text2grad feedback import` from its command line."""

import json
from pathlib import Path

import pytest

from text2grad.cli.__main__ import main
from text2grad.feedback.records import Annotation, read_annotations
from text2grad.types import Critique


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
    assert "\ncolumns not read: rating; --column OURS=THEIRS reads one\n" in said
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


def test_words_without_a_place_go_to_a_file_of_their_own_for_annotate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = {"prompt": "Where?", "response": "I live in Lyon.", "feedback": "No."}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({**told, **more}) + "\n" for more in ({}, {"outcome": -1})))
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
    assert [one.critique.outcome for one in read_annotations("out.jsonl")] == [-1]
    assert read_annotations("words.jsonl") == [Annotation("Where?", "I live in Lyon.", Critique("No."))]
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
        words = "gives a meaning to Erorr, which no record has; its labels: Error"
        assert (words in " ".join(capsys.readouterr().err.split())) == told
