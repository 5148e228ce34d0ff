"""Readers of the paper's data sets: what each published form becomes, and every refusal word for word."""

import json
from pathlib import Path
from typing import Any

import pytest

from places import SHARED
from text2grad.errors import DataError
from text2grad.feedback.sources.published import Problem, read_problems
from text2grad.types import Example

WAY_OUT = ". Mend or remove the record"


def read(tmp_path: Path, name: str, *records: Any) -> list[Problem]:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return read_problems(path, name).kept


def refusal(tmp_path: Path, name: str, *records: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(tmp_path, name, *records)
    return str(caught.value).replace(str(tmp_path), "DIR")


@pytest.mark.parametrize(
    ("name", "file", "prompts", "responses", "pairs"),
    [
        ("ultrafeedback", "ultrafeedback_binarized/train.jsonl", 400, 799, 399),
        ("slf5k", "slf5k_slice/posts_ideal.jsonl", 50, 0, 0),
        ("kodcode", "kodcode/kodcode_algorithm.jsonl", 31, 93, 0),
    ],
)
def test_published_sets_are_read_whole(name: str, file: str, prompts: int, responses: int, pairs: int) -> None:
    path = SHARED / "data" / file
    if not path.exists():
        pytest.skip(f"needs ../shared/data/{file}, which is not part of the project")
    problems = read_problems(path, name).kept
    assert [len(problems), *(sum(map(len, parts)) for parts in zip(*(p[1:] for p in problems), strict=True))] == [
        prompts,
        responses,
        pairs,
    ]
    assert all(problem.example.prompt and problem.example.reference for problem in problems)
    assert all("assert" in str(problem.example.tests) for problem in problems if name == "kodcode")


def test_slf5k_in_its_three_forms(tmp_path: Path) -> None:
    hub = {"title": "T", "post": "P", "generated_summary_for_feedback": "S", "feedback": "Too short.\n", "id": "x"}
    prompt = "Write an excellent summary of the given text.\n\nTitle: T\n\nText: P\n\nTL;DR:"
    (words,) = read(tmp_path, "slf5k", hub)
    assert words == Problem(Example(prompt), (("S", "Too short."),))
    (bare,) = read(
        tmp_path,
        "slf5k",
        {**hub, "feedback": "", "ideal_human_summary": " I ", "tldr_human_reference_summary": "T"},
    )
    assert bare == Problem(Example(prompt, "I"), ())
    (post,) = read(tmp_path, "slf5k", {"summary_prompt": "Sum up: P", "tldr_human_reference_summary": "T"})
    assert post == Problem(Example("Sum up: P", "T"), ())
    path = tmp_path / "readme.json"  # as the reference's README shows it
    path.write_text(json.dumps({"t3_1": {"generated_summary": "My girlfriend …", "Post": "My girlfriend is"}}))
    assert read_problems(path, "slf5k").kept == [
        Problem(
            Example("Write an excellent summary of the given text.\n\nText: My girlfriend is\n\nTL;DR:"),
            (("My girlfriend …", ""),),
        )
    ]


def test_ultrafeedback_in_its_four_forms(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    readme = {"prompt": "Q", "prompt_id": "3", "response": chat, "is_chosen": True, "score": 4.0, "critique": ""}
    original = {
        "instruction": "Q",
        "completions": [{"response": "A", "critique": "Fine."}, {"response": "B", "model": "m"}],
    }
    pair = {"prompt": "Q", "chosen": chat, "rejected": "B", "score_chosen": 7}
    question = Example("Q")
    assert [read(tmp_path, "ultrafeedback", form) for form in (readme, {**readme, "critique": "Fine."})] == [
        [Problem(question, (("A", ""),))],
        [Problem(question, (("A", "Fine."),))],
    ]
    assert read(tmp_path, "ultrafeedback", original) == [Problem(question, (("A", "Fine."), ("B", "")))]
    expected = Problem(Example("Q", "A"), (("A", ""), ("B", "")), (("A", "B"),))
    assert read(tmp_path, "ultrafeedback", pair) == [expected]
    assert refusal(tmp_path, "ultrafeedback", {**readme, "response": chat[:1]}) == (
        'DIR/in.jsonl:1: "response" must be a chat that ends with the assistant, got '
        f'[{{"role": "user", "content": "Q"}}]{WAY_OUT}'
    )
    assert refusal(tmp_path, "ultrafeedback", {**original, "completions": [3]}) == (
        f"DIR/in.jsonl:1: a completion is an object, got 3{WAY_OUT}"
    )


def test_kodcode_as_published_and_as_the_readme_shows_it(tmp_path: Path) -> None:
    record = {"question": "Q", "solution": "def f(): ...", "question_id": "L_1", "gpt_difficulty": "hard", "log": "..."}
    expected = Problem(Example("Q", "def f(): ...", "assert f()"), (("def f(): ...", ""),))
    for key in ("test", "test_code"):
        assert read(tmp_path, "kodcode", {**record, key: "assert f()"}) == [expected]
    others = {"trials": {"a": {"solution_code": "1"}, "b": {"solution_code": " "}}, "r1_solution": "2"}
    (problem,) = read(tmp_path, "kodcode", {**record, "test": "assert f()", **others})
    assert [text for text, _ in problem.responses] == ["def f(): ...", "1", "2"]
    assert refusal(tmp_path, "kodcode", {"question": "Q"}) == (
        f'DIR/in.jsonl:1: there must be a text "test" or "test_code"; the record has the keys "question"{WAY_OUT}'
    )
