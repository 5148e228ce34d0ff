"""Programs: reference solutions pass, wrong ones do not, for each format of records; extraction and pass@k by hand."""

import itertools
import json
from math import comb
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from places import SHARED
from text2grad.errors import DataError
from text2grad.evaluation.registry import make_suites
from text2grad.evaluation.suite import Answer, Scores, SuiteOptions
from text2grad.evaluation.suites import code
from text2grad.evaluation.suites.code import CodeSuite, head_of, pass_at_k, program_of_chat
from text2grad.feedback.record_files import json_object, read_entries

OPTIONS = SuiteOptions(accept_weaker=True)


def suite_of(tmp_path: Path, *records: Any, name: str = "code", samples: int = 1) -> CodeSuite:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    [found] = make_suites([f"{name}={path}"], SuiteOptions(accept_weaker=True, samples=samples))
    assert isinstance(found, CodeSuite)
    return found


def scores(suite: CodeSuite, *texts: str, continues: bool = False) -> list[Scores]:
    """Return the scores of answers to the questions in turn."""
    answers = [
        Answer(question, number, (text,), (9,), ("stop",), continues=continues)
        for number, (question, text) in enumerate(zip(itertools.cycle(suite.questions), texts, strict=False))
    ]
    return suite.score(answers, Path())


def passed(suite: CodeSuite, *texts: str, continues: bool = False) -> list[bool]:
    return [bool(one["passed"]) for one in scores(suite, *texts, continues=continues)]


@pytest.mark.parametrize(
    ("name", "file", "number"),
    [("humaneval", "humaneval/HumanEval.jsonl.gz", 164), ("mbpp", "mbpp/sanitized-mbpp.json", 427)],
)
def test_all_reference_solutions_pass(name: str, file: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (SHARED / "data" / file).exists():
        pytest.skip("needs ../shared/data, which is not part of the project")
    monkeypatch.setattr(code, "TIMEOUT_S", 120.0)  # one solution needs 6 s of a core, which other tests may occupy
    [suite] = make_suites([f"{name}={SHARED / 'data' / file}"], OPTIONS)
    assert isinstance(suite, CodeSuite)
    assert len(suite.questions) == number
    records = [json_object(entry.record, "") for entry in read_entries(SHARED / "data" / file)]
    right = [one.get("code") or one["prompt"] + one["canonical_solution"] for one in records]
    texts = [f"Here:\n```python\n{program}\n```\nDone." for program in right]
    found = scores(suite, *texts)
    assert [one["error"] for one in found if not one["passed"]] == []
    assert sum(bool(one["forgeable"]) for one in found) <= 1
    broken = [text.replace("return ", "return not ") for text in texts]
    assert sum(passed(suite, *broken[::8])) <= 5


HUMANEVAL = {
    "task_id": "HumanEval/x",
    "prompt": 'import math\n\n\ndef helper(x):\n    return x\n\n\ndef area(r):\n    """Area of a circle."""\n',
    "entry_point": "area",
    "canonical_solution": "    return helper(math.pi * r * r)\n",
    "test": "def check(candidate):\n    assert abs(candidate(2) - 12.566370614359172) < 1e-9\n",
}


def test_drafts_in_the_reasoning_are_no_programs(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, HUMANEVAL)
    draft, right = (f"```python\ndef area(r):\n    return {value}\n```" for value in ("3", "math.pi * r * r"))
    replies = [
        f"[THINK]{draft}[/THINK]\nUse helper(x).",
        f"<|channel|>analysis<|message|>{draft}<|end|><|start|>assistant<|channel|>final<|message|>{right}",
        f"<think>{right}",  # cut
        f"So:\n{draft}\n</think>\n{right}",  # the template opened it
        right.replace("return", "ends = '</think>'\n    return"),
    ]
    assert program_of_chat(replies[0], function="area") == "\nUse helper(x)."
    assert passed(suite, *replies) == [False, True, False, True, True]


def test_a_base_model_continues_and_a_chat_model_replies(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, HUMANEVAL)
    [question] = suite.questions
    assert question.continuation == HUMANEVAL["prompt"]
    assert HUMANEVAL["prompt"].strip() in question.prompt
    body = HUMANEVAL["canonical_solution"]
    assert passed(suite, body, "    return 3\n", continues=True) == [True, False]
    replies = [
        f"```python\n{HUMANEVAL['prompt']}{body}```",  # whole
        "```python\ndef area(r):\n    return helper(math.pi * r ** 2)\n```",  # import and helper are the prompt's
        f"```\n{body}```",  # the body alone
        "def area(r):\n    return math.pi * r * r\n\nThis is the area.",  # no fence
        "<think>```def area(r): return 0```</think>\n```python\ndef area(r):\n    return math.pi * r * r\n```",
        "```python\ndef area(r):\n    return 3\n```\nWait:\n```python\ndef area(r):\n    return math.pi*r*r\n```\n"
        "So:\n```python\nprint(area(2))\n```",  # the last that defines it
        "I cannot.",
        "",
        "```python\ndef area(r):\n    return 3\n```",
    ]
    assert passed(suite, *replies) == [True] * 6 + [False] * 3
    future = "from __future__ import annotations\n\ndef area(r: Unknown):\n    return helper(math.pi * r ** 2)\n"
    assert passed(suite, f"```python\n{future}```", f'```python\n"""The area."""\n# So:\n{future}```') == [True, True]
    syntax, empty = scores(suite, "```python\ndef area(r:\n```", "")
    assert (syntax["parses"], syntax["reason"]) == (False, "error")
    assert not empty["parses"]  # only the imports and helpers of the prompt would


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_pass(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / comb(n, k))


def test_pass_at_k_of_a_question_counts_its_answers(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, HUMANEVAL, samples=5)
    assert [name for name in suite.measures if name.startswith("pass")] == ["pass@1", "pass@2", "pass@5"]
    row = suite.counts([{"passed": one} for one in (True, False, False, True, False)])
    assert (row["pass@1"], row["pass@2"], row["pass@5"]) == pytest.approx((0.4, 0.7, 1.0))


def test_code_is_found_between_words() -> None:
    assert program_of_chat("No code at all", function="f") == "No code at all"
    answer = "Sure:\nimport math\ndef f(x): return math.pi\nEnjoy it now!"
    assert program_of_chat(answer, function="f") == "import math\ndef f(x): return math.pi\n"
    assert head_of("def other(): ...\n\nasync def f(): ...", "f") == "def other(): ...\n\n"
    assert program_of_chat("```python\nx = 1\n```\n```python\ny = 2\n```") == "y = 2\n"


def test_imports_from_the_future_stay_first() -> None:
    answer = "from __future__ import annotations  # x: A\nfrom __future__ import (\n    division,\n)\nx: A = 1\n"
    program = program_of_chat(answer, head="import math\n")
    assert program == (
        "from __future__ import annotations  # x: A\nfrom __future__ import (\n    division,\n)\n"
        "import math\n\n\n\nx: A = 1\n"
    )
    compile(program, "program", "exec", dont_inherit=True)
    assert program_of_chat(answer) == answer


def test_records_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'data\.jsonl:1: no record of HumanEval .*: the keys "question"\. The plus'):
        suite_of(tmp_path, {"question": "?"})
    with pytest.raises(DataError, match=r'data\.jsonl:1: "test" must be a text that is not empty'):
        suite_of(tmp_path, HUMANEVAL | {"test": ""})
    with pytest.raises(DataError, match=r"^suite code: 2 questions have the id 'HumanEval/x', so that"):
        suite_of(tmp_path, HUMANEVAL, HUMANEVAL)
    with pytest.raises(DataError, match=r"^suite code: no data is given\. Give a JSONL file of HumanEval or MBPP of"):
        make_suites(["code"], OPTIONS)
