"""Every command ends with counts, the place of its files, and what comes next."""

import shlex
from pathlib import Path

import pytest

from text2grad.cli.__main__ import main, parser
from text2grad.feedback.records import Annotation, write_annotations
from text2grad.types import Critique, Span


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from text2grad.tasks.tiny import word_tokenizer

    monkeypatch.chdir(tmp_path)
    word_tokenizer(["I live in Lyon."]).save_pretrained(tmp_path / "tok")
    critique = Critique("Lyon is wrong.", (Span(10, 14, "negative"),))
    write_annotations(tmp_path / "a b.jsonl", [Annotation("Where?", "I live in Lyon.", critique)] * 2)
    (tmp_path / "judge.py").write_text(
        "from text2grad import Critique, Span\n"
        "def critic(e, r):\n    return [Critique('No.', (Span(10, 14, 'negative'),))] * len(r)\n"
        "def silent(e, r):\n    return [Critique('Fine.')] * len(r)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "p.csv").write_text("prompt\nWhere?\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "counts", "written", "following"),
    [
        (
            "feedback import table 'a b.jsonl' --out 'c d.jsonl'",
            "annotations   2",
            "c d.jsonl",
            "text2grad reward RECIPE.toml --annotations 'c d.jsonl'",
        ),
        (
            "feedback import table p.csv --out p.jsonl",
            "examples      1",
            "p.jsonl",
            "text2grad annotate RECIPE.toml --set data.train=p.jsonl",
        ),
        (
            "feedback export 'a b.jsonl' --out d",
            "spans         2",
            "d/README.md, data/train.parquet",
            "hf upload OWNER/NAME d --repo-type dataset --private",
        ),
        (
            "evaluate critic 'a b.jsonl' --critic judge:critic --out f --no-words",
            "precision and recall",
            "f/evaluation.json, predictions.jsonl, tables.txt, evaluation.html",
            "text2grad train RECIPE.toml --critic judge:critic",
        ),
        (
            "evaluate critic 'a b.jsonl' --critic judge:silent --out s --no-words",
            "F1 of marking everything",
            "s/evaluation.json, predictions.jsonl, tables.txt, evaluation.html",
            "marking everything has at least the critic's F1, for each label; read its critiques in s/evaluation.html "
            "before a policy learns from them",
        ),
    ],
)
def test_a_command_ends_with_counts_place_and_the_next_command(
    words: str, counts: str, written: str, following: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(words)) == 0
    said = capsys.readouterr().out
    assert counts in said
    assert said.endswith((f"\nwritten: {written}\n" if written else "") + f"next:    {following}\n")
    if following.startswith("text2grad"):
        parser().parse_args(shlex.split(following)[1:])  # a command line that can be copied
