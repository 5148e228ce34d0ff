"""`text2grad prepare slf5k|kodcode|ultrafeedback`: who gets which prompts, and preferences by unit tests."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from text2grad.cli.__main__ import main
from text2grad.feedback import read_preferences
from text2grad.feedback.sources.phases import Problem, divide
from text2grad.types import Example

PAIRS = [
    {"prompt": f"Question {n}?", "chosen": f"Good {n}.", "rejected": f"Bad {n}.", "score_chosen": 9} for n in range(40)
]
ADD = "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"
PROGRAMS = [
    {
        "question": f"Add two numbers, variant {n}.",
        "solution": f"def add(a, b):\n    return a + b  # {n}",
        "test_code": ADD,
        "trials": {
            "trial_a": {"solution_code": f"def add(a, b):\n    return a - b  # {n}"},
            "trial_b": {"solution_code": f"def add(a, b):\n    return b + a  # {n}"},
        },
    }
    for n in range(3)
]
POSTS = [
    {
        "title": "A",
        "post": "Ann sold a bike.",
        "generated_summary_for_feedback": "Bo sold it.",
        "feedback": "It was Ann.",
    },
    {"title": "A", "post": "Ann sold a bike.", "ideal_human_summary": "Ann sold her bike."},
    {"title": "B", "post": "It rains.", "ideal_human_summary": "Rain."},
    {"title": "C", "post": "It snows.", "generated_summary": "Snow.", "ideal_human_summary": "Snow fell."},
]


def write(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    return str(path)


def lines(directory: Path, name: str) -> list[dict[str, Any]]:
    path = directory / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def test_ultrafeedback_is_divided_among_the_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write(tmp_path / "pairs.jsonl", PAIRS), tmp_path / "out"
    assert main(["prepare", "ultrafeedback", source, "--out", str(out), "--held-out", "0.25"]) == 0
    prompts = {name: {one["prompt"] for one in lines(out, name)} for name in ("sft", "annotate", "train", "held_out")}
    # 10 of 40 are held out; 30 %, 50 % and 20 % of the other 30
    assert {name: len(found) for name, found in prompts.items()} == {
        "sft": 9,
        "annotate": 15,
        "train": 6,
        "held_out": 10,
    }
    assert len(set().union(*prompts.values())) == 40
    responses = [one["response"] for one in lines(out, "annotate")]
    assert len(responses) == 30
    assert len({one["id"] for one in lines(out, "annotate")}) == 30
    pairs = read_preferences(out / "preferences.jsonl")
    assert {one.prompt for one in pairs} == prompts["annotate"]
    assert all(one.chosen.startswith("Good") and one.rejected.startswith("Bad") for one in pairs)
    assert "preferences 15" in " ".join(capsys.readouterr().out.split())
    assert main(["prepare", "ultrafeedback", source, "--out", str(out)]) == 2  # would be overwritten


def test_programs_that_pass_are_preferred_to_those_that_fail(tmp_path: Path) -> None:
    source, out = write(tmp_path / "programs.jsonl", PROGRAMS), tmp_path / "out"
    assert main(["prepare", "kodcode", source, "--out", str(out), "--held-out", "0.3", "--pairs"]) == 0
    assert [len(lines(out, name)) for name in ("sft", "annotate", "train", "held_out")] == [2, 6, 2, 1]
    pairs = read_preferences(out / "preferences.jsonl")
    assert len(pairs) == 2
    assert all("a + b" in one.chosen and "a - b" in one.rejected for one in pairs)
    assert all(one["tests"] == ADD for one in lines(out, "train"))


def test_people_s_words_on_a_summary_go_to_the_annotator(tmp_path: Path) -> None:
    source, other = write(tmp_path / "posts.jsonl", POSTS), write(tmp_path / "other.jsonl", POSTS[2:3])
    out = tmp_path / "out"
    assert main(["prepare", "slf5k", source, "--out", str(out), "--held-out", "0.3", "--seed", "1"]) == 0
    everything = [one for name in ("train", "held_out") for one in lines(out, name)]
    assert sorted(one["reference"] for one in everything) == ["Ann sold her bike.", "Rain.", "Snow fell."]
    told = {one["response"]: one.get("feedback") for one in lines(out, "annotate")}
    assert set(told.items()) <= {("Bo sold it.", "It was Ann."), ("Snow.", None)}
    assert told
    assert main(["prepare", "slf5k", other, "--out", str(tmp_path / "none")]) == 2  # one prompt cannot be divided


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("ultrafeedback", "--pairs"), "--pairs runs unit tests, which ultrafeedback does not have; leave it out"),
        (("ultrafeedback", "--held-out", "0"), "--held-out must lie between 0 and 1, got 0"),
        (("kodcode",), 'there must be a text "test" or "test_code"'),
        (("grounded",), "name the model that will be trained with --tokenizer MODEL"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_written(
    more: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "pairs.jsonl", [{**PAIRS[0], "question": "a"}])
    task, *options = more
    assert main(["prepare", task, source, "--out", str(tmp_path / "out"), *options]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


@given(
    st.integers(2, 60), st.floats(0.0, 0.9), st.integers(0, 5), st.sampled_from(["slf5k", "kodcode", "ultrafeedback"])
)
def test_no_phase_learns_from_a_held_out_prompt(count: int, held_out: float, seed: int, name: str) -> None:
    problems = [Problem(Example(f"{n}", "a"), (("b", ""),), "") for n in range(count)]
    made = divide(problems, name, held_out=held_out, seed=seed)
    again = divide(problems[::-1], name, held_out=held_out, seed=seed)
    parts = [{one.example.prompt for one in part} for part in made]
    assert parts == [{one.example.prompt for one in part} for part in again]  # the order does not matter
    *learned, kept = parts
    assert not kept & set().union(*learned)
    assert set().union(*parts) == {str(n) for n in range(count)}
    if name == "ultrafeedback":
        assert sum(map(len, parts)) == count
    else:
        assert learned[0] == learned[1] == learned[2]
