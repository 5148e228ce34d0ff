"""`text2grad feedback prepare slf5k|kodcode|ultrafeedback`: who gets which prompts, and preferences by unit tests."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from text2grad.cli.__main__ import main
from text2grad.feedback.sources.published import BLANK, EQUAL, KNOWN, Problem, divide, read_problems, split_unit
from text2grad.types import Example

PAIRS = [
    {"prompt": f"Question {n}?", "chosen": f"Good {n}.", "rejected": f"Bad {n}.", "score_chosen": 9} for n in range(40)
]
ADD = "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"
PROGRAMS = [
    {
        "question": f"Add two numbers, variant {n}.",
        "solution": f"def add(a, b):\n    return a + b  # {n}",
        "test_code": f"{ADD}# {n}",
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


PREPARE = ("feedback", "prepare")


def write(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    return str(path)


def lines(directory: Path, name: str) -> list[dict[str, Any]]:
    path = directory / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def test_ultrafeedback_is_divided_among_the_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = write(tmp_path / "pairs.jsonl", PAIRS), tmp_path / "out"
    assert main([*PREPARE, "ultrafeedback", source, "--out", str(out), "--held-out", "0.25"]) == 0
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
    pairs = lines(out, "preferences")
    assert {one["prompt"] for one in pairs} == prompts["annotate"]
    assert all(one["chosen"].startswith("Good") and one["rejected"].startswith("Bad") for one in pairs)
    assert "preferences 15" in " ".join(capsys.readouterr().out.split())
    assert main([*PREPARE, "ultrafeedback", source, "--out", str(out)]) == 2  # would be overwritten


def test_people_s_words_on_a_summary_go_to_the_annotator(tmp_path: Path) -> None:
    source, other = write(tmp_path / "posts.jsonl", POSTS), write(tmp_path / "other.jsonl", POSTS[2:3])
    out = tmp_path / "out"
    assert main([*PREPARE, "slf5k", source, "--out", str(out), "--held-out", "0.3"]) == 0
    everything = [one for name in ("train", "held_out") for one in lines(out, name)]
    assert sorted(one["reference"] for one in everything) == ["Ann sold her bike.", "Rain.", "Snow fell."]
    told = {one["response"]: one.get("feedback") for one in lines(out, "annotate")}
    assert set(told.items()) <= {("Bo sold it.", "It was Ann."), ("Snow.", None)}
    assert told
    assert main([*PREPARE, "slf5k", other, "--out", str(tmp_path / "none")]) == 2  # one prompt cannot be divided


def test_programs_are_divided_with_their_tests(tmp_path: Path) -> None:
    source, out = write(tmp_path / "programs.jsonl", PROGRAMS), tmp_path / "out"
    assert main([*PREPARE, "kodcode", source, "--out", str(out), "--held-out", "0.3"]) == 0
    assert [len(lines(out, name)) for name in ("sft", "annotate", "train", "held_out")] == [2, 6, 2, 1]
    assert all(one["tests"].startswith(ADD) for name in ("annotate", "train") for one in lines(out, name))


def test_people_s_choice_between_two_summaries_is_a_preference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = {"generated_summary_for_comparison_A": "First.", "generated_summary_for_comparison_B": "Second."}
    posts = [{**POSTS[0], "title": str(n), **two} for n in range(4)]
    for post, choice in zip(posts, ("Summary A", "Summary B", "Summary A", None), strict=True):
        post["comparison_preference"] = choice
    posts[2]["generated_summary_for_comparison_B"] = "First."  # nothing to learn from
    source, out = write(tmp_path / "posts.jsonl", posts), tmp_path / "out"
    other = write(tmp_path / "other.jsonl", [{"prompt": "Title: 9"}])
    assert main([*PREPARE, "slf5k", source, "--out", str(out), "--held-out", "0.01", "--without", other]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "left out 1 preferences between equal responses" in said
    (kept_out,) = lines(out, "held_out")
    found = {("0" in one["prompt"], one["chosen"], one["rejected"]) for one in lines(out, "preferences")}
    both = {("Title: 0", (True, "First.", "Second.")), ("Title: 1", (False, "Second.", "First."))}
    assert found == {pair for title, pair in both if title not in kept_out["prompt"]}
    write(tmp_path / "odd.jsonl", [{**posts[0], "comparison_preference": "neither"}])
    assert main([*PREPARE, "slf5k", str(tmp_path / "odd.jsonl"), "--out", str(tmp_path / "none")]) == 2
    assert "must name summary A or summary B, got 'neither'" in " ".join(capsys.readouterr().err.split())


def test_texts_that_no_phase_can_use_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [
        {"prompt": " ", "chosen": "a", "rejected": "b"},
        {"prompt": "Blank chosen?", "chosen": " \n", "rejected": "b"},
        {"prompt": "Equal?", "chosen": "a", "rejected": "a"},
        {"prompt": "Used elsewhere?", "chosen": "a", "rejected": "b"},
    ]
    source, out = write(tmp_path / "pairs.jsonl", [*PAIRS, *bad]), tmp_path / "out"
    before = write(tmp_path / "before.jsonl", [{"prompt": "Used elsewhere?"}])
    assert main([*PREPARE, "ultrafeedback", source, "--out", str(out), "--without", before]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for reason in (
        "1 records without a prompt",
        "1 blank responses and references",
        "1 preferences between equal responses",
        "1 records whose prompt is held out or used elsewhere",
    ):
        assert f"left out {reason}" in said
    everything = [one for name in ("sft", "annotate", "train", "held_out") for one in lines(out, name)]
    prompts = {one["prompt"] for one in everything}
    assert "Equal?" in prompts
    assert prompts <= {"Blank chosen?", "Equal?", *(one["prompt"] for one in PAIRS)}
    texts = [one.get(key) for one in everything for key in ("prompt", "reference", "response")]
    assert all(text is None or text.strip() for text in texts)
    assert not {one["prompt"] for one in lines(out, "preferences")} & {"Blank chosen?", "Equal?"}
    half = tmp_path / "half.jsonl"
    half.write_text('{"prompt": "a", "chosen": "b \\ud83d", "rejected": "c"}\n', "utf-8")
    assert main([*PREPARE, "ultrafeedback", str(half), "--out", str(tmp_path / "none")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "half.jsonl:1:" in told
    assert "half of a surrogate pair" in told


def test_records_of_one_prompt_are_one_problem_with_usable_texts_alone(tmp_path: Path) -> None:
    records = [("Q?", "a", "b"), ("Q?", "c", "d"), ("Q?", "a", "b"), ("Q?", "e", " "), ("Equal?", "f", "f")]
    keys = ("prompt", "chosen", "rejected")
    source = write(tmp_path / "pairs.jsonl", [dict(zip(keys, one, strict=True)) for one in records])
    (asked, equal), left_out = read_problems(source, "ultrafeedback")
    assert asked.pairs == (("a", "b"), ("c", "d"))
    assert {text for text, _ in asked.responses} == set("abcde")
    assert (equal.pairs, equal.example.reference, equal.responses) == ((), "f", (("f", ""),))
    assert left_out == {BLANK: 1, EQUAL: 1}


def test_a_prompt_of_the_held_out_split_is_not_learned_from(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    write(tmp_path / "hub" / "train.jsonl", PAIRS[:6])
    write(tmp_path / "hub" / "test.jsonl", PAIRS[5:7])
    out = tmp_path / "out"
    assert main([*PREPARE, "ultrafeedback", str(tmp_path / "hub"), "--held-out", "test", "--out", str(out)]) == 0
    assert {one["prompt"] for one in lines(out, "held_out")} == {"Question 5?", "Question 6?"}
    learned = {one["prompt"] for name in ("sft", "annotate", "train") for one in lines(out, name)}
    assert learned == {f"Question {n}?" for n in range(5)}


def test_a_data_set_with_code_of_its_own_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    def load(*_: object) -> None:
        raise RuntimeError("Dataset scripts are no longer supported, but found SLF5K.py")

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    assert main([*PREPARE, "slf5k", "someone/SLF5K", "--out", str(tmp_path / "out")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "found SLF5K.py. Download its data files, name them train.jsonl, validation.jsonl" in told


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("slf5k", "--split", "train"), "pairs.jsonl is one file, which has none; leave the option out"),
        (("slf5k", "--held-out", "test"), "--held-out test names a split, and"),
        (("ultrafeedback", "--held-out", "0"), "--held-out must lie between 0 and 1, got 0"),
        (("kodcode",), 'there must be a text "test" or "test_code"'),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_written(
    more: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "pairs.jsonl", [{**PAIRS[0], "question": "a"}])
    task, *options = more
    assert main([*PREPARE, task, source, "--out", str(tmp_path / "out"), *options]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_too_few_prompts_for_both_parts_are_explained_by_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "pairs.jsonl", PAIRS[:4])
    assert main([*PREPARE, "ultrafeedback", source, "--out", str(tmp_path / "out"), "--prompts", "1"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "held out are left of 4 (none left out; --prompts takes 1 of them); both need at least one" in told


@given(st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=40), st.floats(0.0, 0.9), st.integers(0, 5))
def test_prompts_with_equal_tests_stay_on_one_side(tests: list[str], held_out: float, seed: int) -> None:
    problems = [Problem(Example(f"{n}", "a", one), ()) for n, one in enumerate(tests)]
    made = divide(problems, "kodcode", held_out=held_out, seed=seed)
    sides = [{str(one.example.tests) for one in part} for part in (made["train"], made["held_out"])]
    assert sides[0].isdisjoint(sides[1])
    assert len(made["train"]) + len(made["held_out"]) == len(tests)
    most = max(map(tests.count, tests))  # the last unit may hold more than are asked for
    assert 0 <= len(made["held_out"]) - (max(1, round(held_out * len(tests))) if held_out else 0) < most
    again = divide(problems[::-1], "kodcode", held_out=held_out, seed=seed)
    assert again["held_out"] == made["held_out"][::-1]


def test_rewritten_questions_are_left_out_by_their_tests(tmp_path: Path) -> None:
    asked = [{"question": words, "solution": "x = 1", "test_code": ADD} for words in ("Add two.", "Return the sum.")]
    source = write(tmp_path / "a.jsonl", [*asked, {**PROGRAMS[0], "question": "Other"}])
    for without in ([Example("Add two.", None, ADD)], [Example("Add two."), Example("Return the sum.")]):
        found = read_problems(source, "kodcode", without=without)
        assert [one.example.prompt for one in found.kept] == ["Other"]
        assert found.left_out == {KNOWN: 2}
    assert split_unit(Example("Add two.")) == "Add two."


def test_the_command_leaves_out_rewritten_questions_by_their_tests(tmp_path: Path) -> None:
    others = [{**PROGRAMS[0], "question": f"Other {n}", "test_code": f"{ADD}# {n}\n"} for n in range(4)]
    source = write(tmp_path / "a.jsonl", [*others, {"question": "Sum.", "solution": "x = 1", "test_code": ADD}])
    seen = write(tmp_path / "seen.jsonl", [{"prompt": "Add two.", "tests": ADD}])
    out = tmp_path / "out"
    assert main([*PREPARE, "kodcode", source, "--out", str(out), "--held-out", "0.3", "--without", seen]) == 0
    prompts = [one["prompt"] for name in ("train", "held_out") for one in lines(out, name)]
    assert sorted(prompts) == [f"Other {n}" for n in range(4)]


@given(
    st.integers(2, 60), st.floats(0.0, 0.9), st.integers(0, 5), st.sampled_from(["slf5k", "kodcode", "ultrafeedback"])
)
def test_no_phase_learns_from_a_held_out_prompt(count: int, held_out: float, seed: int, name: str) -> None:
    problems = [Problem(Example(f"{n}", "a"), (("b", ""),)) for n in range(count)]
    made = divide(problems, name, held_out=held_out, seed=seed)
    again = divide(problems[::-1], name, held_out=held_out, seed=seed)
    parts = [{one.example.prompt for one in part} for part in made.values()]
    assert parts == [{one.example.prompt for one in part} for part in again.values()]  # the order does not matter
    *learned, kept = parts
    assert not kept & set().union(*learned)
    assert set().union(*parts) == {str(n) for n in range(count)}
    if name == "ultrafeedback":
        assert sum(map(len, parts)) == count
    else:
        assert learned[0] == learned[1] == learned[2]
