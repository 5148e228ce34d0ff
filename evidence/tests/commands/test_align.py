"""`python -m evidence align`: what it writes, says and returns, and its rewards on real human feedback."""

import argparse
import errno
import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from transformers.convert_slow_tokenizer import bytes_to_unicode

from evidence.commands import align, align_report as _align_report
from places import SHARED
from text2grad.align.delta import pseudo_rewards
from text2grad.errors import ConfigError, DataError, ModelError
from text2grad.feedback import Annotation, read_source, write_annotations
from text2grad.types import Span
from tokenizers_made_here import made

QA_FEEDBACK = SHARED / "data" / "qa_feedback" / "feedback.json"
STORIES = SHARED / "models" / "stories260k"
WAY_OUT = ". Mend or remove the record; --skip-bad leaves out all such records"
LYON = {
    "prompt": "Where?",
    "response": "I live in Lyon.",
    "critique": {"feedback": "No.", "poor_spans": ["Lyon", "Nice"]},
}
FINE = {"response": "So glad today.", "critique": 'Good. {"good_spans": ["glad"]}'}
BAD = {"response": "x", "spans": [[0, 2, "negative"]]}
FILES = ["report.html", "report.json", "rewards.jsonl", "tables.png", "tables.txt"]
NOT_SAID = {"response": "Quebec", "critique": "Fine."}  # bert() knows no Q


def command(*arguments: object) -> int:
    parser = argparse.ArgumentParser("text2grad")
    align.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["align", *map(str, arguments)])
    return int(args.run(args))


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tokenizers made on the spot, as directories."""
    root = tmp_path_factory.mktemp("tokenizers")
    for name in ("gpt2", "gemma", "bert"):
        made(name).save_pretrained(root / name)
    return {name: root / name for name in ("gpt2", "gemma", "bert")}


def lines(tmp_path: Path, *records: Any) -> Path:
    path = tmp_path / "critiques.jsonl"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def written(out: Path) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    rewards = [json.loads(line) for line in (out / "rewards.jsonl").read_text().splitlines()]
    return rewards, json.loads((out / "report.json").read_text()), (out / "report.html").read_text()


def test_critiques_become_rewards_a_report_and_a_page(
    tmp_path: Path, tokenizers: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = lines(tmp_path, LYON, FINE), tmp_path / "deep" / "out"
    assert command(path, "--tokenizer", tokenizers["gpt2"], "--out", out) == 0
    rewards, report, page = written(out)
    assert [record["record"] for record in rewards] == [1, 2]
    first = rewards[0]
    assert first["critique"]["spans"] == [{"start": 10, "end": 14, "label": "negative"}]
    assert first["critique"]["unmatched"] == ["Nice"]
    assert first["delta"] == pseudo_rewards(made("gpt2"), first["ids"], [Span(10, 14, "negative")])
    assert made("gpt2").decode(first["ids"]) == first["response"] == LYON["response"]
    tokens = len(first["ids"]) + len(rewards[1]["ids"])
    assert report == {
        **report,
        "input": str(path),
        "tokenizer": str(tokenizers["gpt2"]),
        "settings": {
            "match": "exact",
            "mode": "expand",
            "weighting": "uniform",
            "overlap": "cancel",
            "span_mass": "token",
        },
        "aligned": 2,
        "tokens": tokens,
        "spans": 2,
        "unmatched": 1,
        "unmatched_rate": 1 / 3,
        "labelled_share": sum(map(abs, first["delta"] + rewards[1]["delta"])) / tokens,
        "without_rewards": [],
        "skipped_records": [],
    }
    assert len(re.findall("<article>", page)) == 2
    assert sorted(file.name for file in out.iterdir()) == FILES
    said = capsys.readouterr().out
    assert "− Lyon" in said
    assert "not found: Nice" in said
    assert re.search(r"quotes not found +33\.3 % \(1 of 3\)", said)
    assert f"written: {out}/rewards.jsonl, report.json, report.html, tables.txt, tables.png" in said


def test_without_a_place_to_write_it_only_prints(
    tmp_path: Path, tokenizers: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines(tmp_path, LYON)
    monkeypatch.chdir(tmp_path)
    assert command(path, "--tokenizer", tokenizers["gpt2"], "--show", 0) == 0
    assert list(tmp_path.iterdir()) == [path]
    said = capsys.readouterr().out
    assert "responses aligned" in said
    assert "− Lyon" not in said


def test_settings_reach_the_rewards(tmp_path: Path, tokenizers: dict[str, Path]) -> None:
    record = {"response": "I live in Lyon.", "good_spans": ["live in lyon"], "poor_spans": ["Lyon."]}
    settings = {"match": "normalized", "mode": "contract", "weighting": "linear_decay", "overlap": "last_wins"}
    options = [f"--{name}={value}" for name, value in settings.items()]
    command(lines(tmp_path, record), "--tokenizer", tokenizers["gpt2"], "--out", tmp_path, "--span-mass=span", *options)
    (reward,), report, _ = written(tmp_path)
    spans = [Span(2, 14, "positive"), Span(10, 15, "negative")]
    settings.pop("match")
    assert reward["delta"] == pseudo_rewards(made("gpt2"), reward["ids"], spans, span_mass="span", **settings)  # type: ignore[arg-type]
    assert report["settings"] == {"match": "normalized", "span_mass": "span", **settings}


def test_a_bad_record_stops_the_command_and_nothing_is_written_or_lost(
    tmp_path: Path, tokenizers: dict[str, Path]
) -> None:
    path, out = lines(tmp_path, LYON, BAD), tmp_path / "out"
    out.mkdir()
    (out / "rewards.jsonl").write_text("of an earlier run")
    with pytest.raises(DataError) as caught:
        command(path, "--tokenizer", tokenizers["gpt2"], "--out", out, "--force")
    said = 'span [0, 2, "negative"] does not lie in the response, which has 1 characters'
    assert str(caught.value) == f"{path}:2: {said}{WAY_OUT}"
    assert [(file.name, file.read_text()) for file in out.iterdir()] == [("rewards.jsonl", "of an earlier run")]


def test_bad_records_are_counted_and_named_when_they_may_be_skipped(
    tmp_path: Path, tokenizers: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = {**FINE, "ids": [1, 999_999]}
    path = lines(tmp_path, BAD, LYON, "{", unknown)
    assert command(path, "--tokenizer", tokenizers["gpt2"], "--out", tmp_path, "--skip-bad") == 0
    rewards, report, _ = written(tmp_path)
    assert [record["record"] for record in rewards] == [2]
    assert report["skipped"] == 3
    assert report["skipped_records"] == [
        f'{path}:1: span [0, 2, "negative"] does not lie in the response, which has 1 characters',
        f"{path}:3: not JSON: Expecting property name enclosed in double quotes at character 3",
        f"{path}:4: id 999999 is not in the tokenizer's vocabulary. Sample from the tokenizer's ids only, or give the "
        "tokenizer that belongs to this policy",
    ]
    assert f"skipped:\n  {path}:1: span" in capsys.readouterr().out


def test_half_of_a_surrogate_pair_is_a_bad_record_in_a_response_and_only_counted_elsewhere(
    tmp_path: Path, tokenizers: dict[str, Path]
) -> None:
    half = "I live \ud83d in Lyon."
    elsewhere = {**LYON, "prompt": half, "critique": {"feedback": half, "poor_spans": ["Lyon"]}}
    path = lines(tmp_path, LYON, {**LYON, "response": half}, elsewhere)
    said = f"{path}:2: the response holds '\\ud83d' at character 7, half of a surrogate pair, which no tokenizer can "
    said += "encode"
    with pytest.raises(DataError) as caught:
        command(path, "--tokenizer", tokenizers["gpt2"])
    assert str(caught.value) == said + WAY_OUT
    assert command(path, "--tokenizer", tokenizers["gpt2"], "--out", tmp_path, "--skip-bad") == 0
    rewards, report, _ = written(tmp_path)
    assert [record["record"] for record in rewards] == [1, 3]
    assert report["skipped_records"] == [said]


def test_ids_of_another_tokenizer_stop_the_command_with_the_line(tmp_path: Path, tokenizers: dict[str, Path]) -> None:
    path = lines(tmp_path, {**FINE, "ids": [1, 999_999]})
    with pytest.raises(DataError) as caught:
        command(path, "--tokenizer", tokenizers["gpt2"])
    assert str(caught.value).startswith(f"{path}:1: id 999999 is not in the tokenizer's vocabulary")
    assert str(caught.value).endswith(WAY_OUT)


def test_responses_that_the_tokenizer_cannot_say_get_no_rewards_and_their_own_exit_status(
    tmp_path: Path, tokenizers: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path, *[NOT_SAID] * 22, FINE)
    assert command(path, "--tokenizer", tokenizers["bert"], "--out", tmp_path) == align.NOT_ALL_ALIGNED == 3
    rewards, report, _ = written(tmp_path)
    assert [record["record"] for record in rewards] == [23]
    assert (report["not_aligned"], report["aligned"], report["tokens"]) == (22, 1, len(rewards[0]["ids"]))
    assert report["without_rewards"] == [f"{path}:{line}" for line in range(1, 23)]
    said = capsys.readouterr().out
    assert f"no rewards, because the tokens decode to another text:\n  {path}:1\n" in said
    assert f"  {path}:20\n  and 2 more\n" in said


def test_what_the_command_writes_it_reads_again_with_the_same_rewards(
    tmp_path: Path, tokenizers: dict[str, Path]
) -> None:
    command(lines(tmp_path, LYON, FINE), "--tokenizer", tokenizers["gpt2"], "--out", tmp_path)
    before, report, _ = written(tmp_path)
    again_too = (tmp_path / "rewards.jsonl", "--tokenizer", tokenizers["gpt2"], "--out", tmp_path)
    with pytest.raises(ConfigError, match=r"rewards.jsonl and 4 more files .* choose another --out, or add --force$"):
        command(*again_too)
    assert command(*again_too, "--force") == 0
    after, again, _ = written(tmp_path)
    assert after == before
    (first,), (second,) = (given["tasks"].values() for given in (report, again))  # named by the files, which differ
    assert {**second, "flagged": len(second["flagged"])} == {**first, "flagged": len(first["flagged"])}
    assert {**again, "input": report["input"], "tasks": report["tasks"]} == report


def test_spans_move_along_where_white_space_changes_on_paper_and_on_screen(
    tmp_path: Path, tokenizers: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path, {"response": "the  dog ", "poor_spans": ["dog "]})
    assert command(path, "--tokenizer", tokenizers["bert"], "--out", tmp_path) == 0
    (reward,), report, _ = written(tmp_path)
    assert reward["response"] == "the dog"
    assert reward["critique"]["spans"] == [{"start": 4, "end": 7, "label": "negative"}]
    assert report["respaced"] == 1
    assert "  − dog\n" in capsys.readouterr().out


def test_the_page_shows_the_first_responses_and_says_so(tmp_path: Path, tokenizers: dict[str, Path]) -> None:
    records = [{**LYON, "prompt": f"question {n}"} for n in range(_align_report.HTML_RESPONSES + 1)]
    command(lines(tmp_path, *records), "--tokenizer", tokenizers["gpt2"], "--out", tmp_path, "--show", 0)
    page = written(tmp_path)[2]
    assert len(re.findall("<article>", page)) == _align_report.HTML_RESPONSES
    assert "First responses" in page


def test_a_limit_reads_the_first_records_only(tmp_path: Path, tokenizers: dict[str, Path]) -> None:
    command(lines(tmp_path, LYON, FINE, "{"), "--tokenizer", tokenizers["gpt2"], "--out", tmp_path, "--limit", 2)
    assert written(tmp_path)[1]["aligned"] == 2


def test_errors_say_what_is_wrong_and_the_way_out(tmp_path: Path, tokenizers: dict[str, Path]) -> None:
    good, empty, nowhere = lines(tmp_path, FINE), tmp_path / "empty", tmp_path / "nowhere"
    empty.mkdir()
    cases: list[tuple[list[object], str]] = [
        ([nowhere], f"cannot read {nowhere}: No such file or directory"),
        ([good, "--out", good / "x"], f"cannot write {good / 'x'}/rewards.jsonl: Not a directory"),
    ]
    for arguments, message in cases:
        with pytest.raises(DataError) as caught:
            command(*arguments, "--tokenizer", tokenizers["gpt2"])
        assert str(caught.value) == message
    with pytest.raises(ModelError) as no_tokenizer:
        command(good, "--tokenizer", empty)
    assert str(no_tokenizer.value).startswith(f"cannot load a tokenizer from {str(empty)!r}: ")
    with pytest.raises(ModelError) as no_directory:
        command(good, "--tokenizer", "models/nowhere")
    assert str(no_directory.value).startswith(
        "cannot load a tokenizer from 'models/nowhere': there is no such directory"
    )


@pytest.mark.parametrize("name", ["rewards.jsonl", "report.json", "report.html"])
def test_a_full_disk_leaves_no_half_written_file(
    name: str, tmp_path: Path, tokenizers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = ["rewards.jsonl", "report.json", "report.html"].index(name)

    def fsync(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    out = tmp_path / "out"
    with pytest.raises(DataError) as caught:
        command(lines(tmp_path, FINE), "--tokenizer", tokenizers["gpt2"], "--out", out)
    assert str(caught.value) == f"cannot write {out / name}: No space left on device"
    assert name not in [file.name for file in out.iterdir()]


@pytest.mark.parametrize("option", ["--limit=0", "--limit=x", "--show=-1", "--mode=fuzzy", "--format=csv"])
def test_values_that_make_no_sense_are_refused_before_anything_is_read(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command("nowhere", "--tokenizer", "nowhere", option)
    assert caught.value.code == 2
    assert option.split("=")[0] in capsys.readouterr().err


def test_help_shows_an_example_of_input_and_of_use_and_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("--help")
    said = capsys.readouterr().out
    example = re.search(r'\{"prompt".*?\}\}', said, re.DOTALL)
    assert example
    assert json.loads(example[0])["critique"]["poor_spans"] == ["Lyon"]
    assert "python -m evidence align critiques.jsonl --tokenizer models/policy --out fidelity" in said
    assert re.findall(r"^  (\d)   ", said, re.MULTILINE) == ["0", "2", "3"]


def test_the_command_line_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, evidence.commands.align; sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def token_bytes(tokenizer: Any, ids: list[int]) -> list[bytes]:
    """What each id adds to the text, from the spelling in the vocabulary alone; for the three tokenizers below."""
    spellings = tokenizer.convert_ids_to_tokens(ids)
    if tokenizer.convert_tokens_to_ids("Ġ") not in (None, tokenizer.unk_token_id):
        byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
        return [bytes(byte_of[letter] for letter in token) for token in spellings]
    parts = [bytes([int(t[3:5], 16)]) if re.fullmatch("<0x..>", t) else t.replace("▁", " ").encode() for t in spellings]
    if not tokenizer.decode(ids).startswith(" "):  # the first space was put in by the encoder, and is taken away
        parts[0] = parts[0].removeprefix(b" ")
    return parts


@pytest.mark.skipif(not QA_FEEDBACK.exists(), reason="needs ../shared/data/qa_feedback, no part of the project")
@pytest.mark.parametrize("name", ["stories260k", "gpt2", "gemma"])
def test_on_human_feedback_the_marked_tokens_are_exactly_those_that_touch_a_span(
    name: str, tmp_path: Path, tokenizers: dict[str, Path]
) -> None:
    if name == "stories260k" and not STORIES.exists():
        pytest.skip("needs ../shared/models/stories260k, no part of the project")
    place = tokenizers.get(name, STORIES)
    people = tmp_path.parent / "people.jsonl"
    judged = read_source(QA_FEEDBACK, format="qa_feedback")
    write_annotations(people, [annotation for annotation in judged if isinstance(annotation, Annotation)])
    assert command(people, "--tokenizer", place, "--out", tmp_path, "--show", 0) == 0
    rewards, report, page = written(tmp_path)
    raw = json.loads(QA_FEEDBACK.read_text())
    assert len(rewards) == len(raw) == report["aligned"] == 400
    labelled = total = 0
    for record, source in zip(rewards, raw, strict=True):
        response = source["prediction 1"]
        marked = [False] * len(response.encode())  # bytes of the response that a person marked
        for error in source["feedback"]["errors"]:
            first, stop = (len(response[: error[end]].encode()) for end in ("start", "end"))
            marked[first:stop] = [True] * (stop - first)
        parts, at, expected = token_bytes(made(name), record["ids"]), 0, []
        assert b"".join(parts) == response.encode()
        for part in parts:
            expected.append(-1.0 if any(marked[at : at + len(part)]) else 0.0)
            at += len(part)
        assert record["delta"] == expected
        labelled, total = labelled + expected.count(-1.0), total + len(expected)
    assert report["spans"] == sum(len(source["feedback"]["errors"]) for source in raw) == 1110
    assert report["labelled_share"] == labelled / total
    assert (report["unmatched"], report["not_aligned"], report["respaced"]) == (0, 0, 0)
    shown = re.findall(r'<div class="text"[^>]*>(.*?)</div>', page, re.DOTALL)
    assert [unescape(re.sub("<[^>]*>", "", text)) for text in shown] == [r["prediction 1"] for r in raw[:50]]
