"""Critics that are programs: unit tests and ruff. What they say and quote, by hand and on real programs."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from places import SHARED
from text2grad.critics.programs.failing_lines import StatementRun, read_statement_runs, suspect_lines, tracing_tests
from text2grad.critics.programs.program_text import Program, program_in
from text2grad.critics.programs.ruff_critic import RuffCritic
from text2grad.critics.programs.unit_tests import UnitTestCritic, imported
from text2grad.errors import ConfigError, CriticError, DataError
from text2grad.feedback.critic import Critic, ask
from text2grad.feedback.sources.published import read_problems
from text2grad.feedback.user_code import load_callable
from text2grad.types import Critique, Example, Span

SHARED_DATA = SHARED / "data"


def shared(name: str) -> Path:
    if not (SHARED_DATA / name).exists():
        pytest.skip(f"needs ../shared/data/{name}, which is not part of the project")
    return SHARED_DATA / name


@pytest.fixture(scope="module")
def critic() -> Iterator[UnitTestCritic]:
    with UnitTestCritic(workers=2, timeout_s=120, memory_mb=2000) as made:
        yield made


def judged(critic: Critic, tests: str, response: str, prompt: str = "") -> tuple[list[str], list[str], float | None]:
    (found,) = ask(critic, [Example(prompt, tests=tests)], [response], match="exact")
    assert {span.label for span in found.spans} <= {"negative"}
    return found.feedback.split("\n"), [response[span.start : span.end] for span in found.spans], found.outcome


ADD = "def add(a, b):\n    return a - b\n"


@pytest.mark.parametrize(
    ("tests", "response", "feedback", "quotes"),
    [
        ("assert add(1, 2) == 3", "def add(a, b):\n    return a + b", ["All tests pass."], []),
        (
            "assert add(1, 2) == 3, 'sum'",
            ADD,
            [
                "1 of 1 tests fails.",
                "`assert add(1, 2) == 3` fails: its left side is -1.",
                '"a - b" is suspect: failing tests run no other line.',
            ],
            ["a - b"],
        ),
        (
            "assert f(1) == 1\nassert f(-1) == 1\nassert f(-2) == 2",
            "So:\n```py\ndef f(x):\n    if x < 0:\n        y = x * 1  # é\n        return y\n    return x\n```\nOk.",
            [
                "2 of 3 tests fail.",
                "`assert f(-1) == 1` fails: its left side is -1.",
                "`assert f(-2) == 2` fails: its left side is -2.",
                '"x * 1" is suspect: only failing tests run it.',
                '"y" is suspect: only failing tests run it.',
            ],
            ["x * 1", "y"],
        ),
        (
            "assert f([1]) == 1",
            "def f(x):\n    return x[5] + x[0]",
            ['"x[5]" raises IndexError: list index out of range'],
            ["x[5]"],
        ),
        (
            "assert f([1]) == 1",  # carets count columns of the screen: of such a line the whole value is quoted
            "def f(x):\n    return '语' + x[5]",
            ["\"'语' + x[5]\" raises IndexError: list index out of range"],
            ["'语' + x[5]"],
        ),
        (
            "assert f([1]) == 1",
            "def g(x):\n    return x",
            ["`assert f([1]) == 1` raises NameError: name 'f' is not defined"],
            [],
        ),
        ("assert f(1)", "def f(x:\n    return 1", ["\"(\" raises SyntaxError: '(' was never closed"], ["("]),
        ("assert f(1)", "import os\nos._exit(0)", ["The program ended the process before the tests were over."], []),
        (
            "from solution import f\ndef test_a():\n    'D'\n    assert f(1)\ndef test_b():\n    assert f(0) == 1",
            "def f(x):\n    if x:\n        return x\n    return x",
            [
                "1 of 2 tests fails.",
                "`assert f(0) == 1` fails: its left side is 0.",
                '"x" is suspect: only failing tests run it.',
            ],
            ["x"],
        ),
        (
            "import pytest\ndef test_a():\n    assert f(1) == pytest.approx(1)\n    assert f(2) == pytest.approx(2)",
            "def f(x):\n    return 1",
            [
                "1 of 2 tests fails.",
                "`assert f(2) == pytest.approx(2)` fails: its left side is 1.",
                '"1" is suspect: failing tests run no other line.',
            ],
            ["1"],
        ),
        (
            "import pytest\n@pytest.mark.parametrize('x', [1])\ndef test_a(x):\n    assert f(x) == 2",
            "def f(x):\n    return 1",
            ["`assert f(x) == 2` fails."],
            [],
        ),
        (  # a second call of f would have another value, and would change x
            "x = [1, 2, 3]\nassert f(x) == 3\nassert f(x) == 2\nassert x == [3]",
            "def f(x):\n    return x.pop(0)",
            [
                "1 of 3 tests fails.",
                "`assert f(x) == 3` fails: its left side is 1.",
                '"x.pop(0)" is suspect: failing tests run no other line.',
            ],
            ["x.pop(0)"],
        ),
        (  # the lines that made a value belong to the tests that read it, not to the next one
            "small = f(1)\nlarge = f(9)\nassert small == 1\nassert large == 18",
            "def f(x):\n    if x < 5:\n        return x + 1\n    return 2 * x",
            [
                "1 of 2 tests fails.",
                "`assert small == 1` fails: its left side is 2.",
                '"x + 1" is suspect: only failing tests run it.',
            ],
            ["x + 1"],
        ),
        (
            "s = Ends([1, 2])\ns.step = 1\nassert s.first() == 1\nassert s.last() == 2",
            "class Ends:\n    def __init__(self, x):\n        self.x = x\n    def first(self):\n"
            "        return self.x[-1]\n    def last(self):\n        return self.x[-1]",
            [
                "1 of 2 tests fails.",
                "`assert s.first() == 1` fails: its left side is 2.",
                '"self.x[-1]" is suspect: only failing tests run it.',
            ],
            ["self.x[-1]"],
        ),
        (
            "n = f(9)\nn += f(1)\nassert n == 19\nassert f(9) == 18",
            "def f(x):\n    if x < 5:\n        return x + 1\n    return 2 * x",
            [
                "1 of 2 tests fails.",
                "`assert n == 19` fails: its left side is 20.",
                '"x + 1" is suspect: only failing tests run it.',
            ],
            ["x + 1"],
        ),
        *(
            (  # Python's traceback leaves out the last of many frames in one line
                f"{more}assert f(9) == 1",
                "def f(x):\n    if x > 0:\n        return x * f(x - 1)",
                ["\"x * f(x - 1)\" raises TypeError: unsupported operand type(s) for *: 'int' and 'NoneType'"],
                ["x * f(x - 1)"],
            )
            for more in ("", "import inspect\n")
        ),
        (
            "assert f([1]) == 1",
            "class Empty(Exception):\n    pass\ndef f(x):\n    raise Empty('no\\nKeyError: item')",
            ["\"Empty('no\\\\nKeyError: item')\" raises Empty: no"],
            ["Empty('no\\nKeyError: item')"],
        ),
        ("assert f(1) == 1", "def f(x):\n    raise UserWarning", ['"UserWarning" raises UserWarning'], ["UserWarning"]),
        (  # under pytest and unittest an exception is a failure like others
            "import pytest\n@pytest.mark.parametrize('x', [1])\ndef test_a(x):\n    assert f(x) == 2",
            "def f(x):\n    print('two')\n    return [x][x]",
            ['"[x][x]" raises IndexError: list index out of range'],
            ["[x][x]"],
        ),
        (
            "import unittest\nclass Tests(unittest.TestCase):\n    def test_a(self):\n"
            "        with self.assertRaises(ValueError):\n            f(1)",
            "def f(x):\n    return [x][x]",
            ['"[x][x]" raises IndexError: list index out of range'],
            ["[x][x]"],
        ),
        (
            "import pytest\ndef test_a():\n    pytest.skip('no')",
            "x = 1",
            ["The tests were not run: 0 of 1 tests passed; the others were skipped."],
            [],
        ),
    ],
)
def test_unit_tests_say_what_fails_and_quote_its_place(
    critic: UnitTestCritic, tests: str, response: str, feedback: list[str], quotes: list[str]
) -> None:
    assert judged(critic, tests, response) == (feedback, quotes, 1.0 if feedback == ["All tests pass."] else -1.0)


def test_the_first_three_of_many_failing_tests_are_shown(critic: UnitTestCritic) -> None:
    tests = "\n".join(f"assert f({number}) == 9" for number in range(5))
    assert judged(critic, tests, "def f(x):\n    return x\n")[0] == [
        "5 of 5 tests fail.",
        *(f"`assert f({number}) == 9` fails: its left side is {number}." for number in range(3)),
        '"x" is suspect: failing tests run no other line.',
    ]


def test_a_long_message_is_cut_after_two_hundred_characters(critic: UnitTestCritic) -> None:
    said, quotes, _ = judged(critic, "assert f()", "def f():\n    raise ValueError('y' * 300)")
    message = "ValueError: " + "y" * 186 + " …"  # 12 + 186 + 2
    assert (said, quotes) == ([f"\"ValueError('y' * 300)\" raises {message}"], ["ValueError('y' * 300)"])


def test_what_does_not_end_or_asks_for_too_much_has_no_place() -> None:
    with UnitTestCritic(workers=1, timeout_s=0.3, passed_outcome=0.5, failed_outcome=-0.25) as short:
        assert judged(short, "assert f()", "def f():\n    while True: pass") == (
            ["The program did not end within 0.3 seconds."],
            [],
            -0.25,
        )
    with UnitTestCritic(workers=1, timeout_s=120, passed_outcome=0.5, failed_outcome=-0.25) as long:
        assert judged(long, "assert f()", "def f():\n    return 'a' * 10**9") == (
            ["The program asked for more memory than it may have."],
            [],
            -0.25,
        )
        assert judged(long, "assert f()", "f = bool\nf = lambda: 1")[2] == 0.5


def test_an_example_without_tests_cannot_be_judged(critic: UnitTestCritic) -> None:
    with pytest.raises(CriticError) as caught:
        ask(critic, [Example("a", tests="assert f()"), Example("b")], ["", ""], match="exact")
    assert str(caught.value) == (
        "critic UnitTestCritic: UnitTestCritic judges by tests, and those of 1 of 2 prompts cannot be run. The first, "
        "'b': there is no \"tests\". Mend the tests, or remove the prompts"
    )


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (None, 'there is no "tests"'),
        ("", 'there is no "tests"'),
        (["assert f(1)"], '"tests" is a list, and must be one text: its lines, or cases as JSON'),
        ("assert f(", "tests.py cannot be run: SyntaxError: '(' was never closed (<unknown>, line 1)"),
        (
            "x = 1",
            "tests.py cannot be run: ValueError: the tests hold no assertion and no call: no program could fail them",
        ),
        (
            "def check(candidate):\n    assert candidate(1) == 2\n",
            "tests.py cannot be run: ValueError: check is never called: no program could fail the tests. Add "
            "check(NAME), where NAME is the program's function",
        ),
        ("[]", "There are no cases."),
        ("import nosuchpackage\nassert f(1)", "the sandbox's Python has no package nosuchpackage"),
        ("from nosuchpackage.part import g\nassert f(1)", "the sandbox's Python has no package nosuchpackage"),
        (
            "def test_a():\n    import nosuchpackage\n    assert f(1)",
            "the sandbox's Python has no package nosuchpackage",
        ),
    ],
)
def test_tests_that_cannot_be_run_are_refused_before_any_work(critic: UnitTestCritic, tests: Any, reason: str) -> None:
    good = Example("a", tests="assert f(1)")
    with pytest.raises(DataError) as caught:
        critic.check_examples([good, Example("b" * 99, tests=tests), Example("c", tests=tests)])
    assert str(caught.value) == (
        "UnitTestCritic judges by tests, and those of 2 of 3 prompts cannot be run. The first, "
        f"'{'b' * 60}': {reason}. Mend the tests, or remove the prompts"
    )


@pytest.mark.parametrize(
    "tests",
    [
        "import math, os.path\nfrom collections import Counter\nassert f(1)",
        "from solution import f\ndef test_a():\n    assert f(1)",
        "import solution\nassert solution.f(1)",
        "import pytest\ndef test_a():\n    assert f(1) == pytest.approx(1)",
        '[{"input": "1", "output": "1"}]',
    ],
    ids=["standard library", "from solution", "solution", "pytest", "cases"],
)
def test_tests_that_import_only_what_the_sandbox_has_are_not_refused(critic: UnitTestCritic, tests: str) -> None:
    critic.check_examples([Example("a", tests=tests)])


def test_neither_the_standard_library_nor_the_program_is_a_package_to_look_for() -> None:
    tests = "import math, os.path\nfrom json import loads\nfrom solution import f\nimport solution\nfrom . import x\n"
    assert imported(tests) == set()
    assert imported(f"{tests}import a.b, c\ndef test_d():\n    from d.e import f\n") == {"a", "c", "d"}
    assert imported(f"{tests}try:\n    import g\nexcept ImportError:\n    g = None\n") == set()
    assert imported('[{"input": "1", "output": "1"}]') == imported("assert f(") == set()


def test_a_package_that_takes_long_to_import_is_not_called_missing() -> None:
    with UnitTestCritic(workers=1, timeout_s=0.05) as hasty:
        hasty.check_examples([Example("a", tests="import numpy\nassert f(1) == 1")])
        with pytest.raises(DataError, match="those of 2 of 3 prompts cannot be run"):  # equal prompts count each
            hasty.check_examples([Example("a", tests=tests) for tests in ("", "", "assert f(1)")])


def test_a_package_is_imported_in_the_sandbox_once_only(
    critic: UnitTestCritic, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    run = critic._run

    def noted(jobs: Sequence[tuple[str, str]], mode: Any = None) -> Any:
        tried.extend(tests for _, tests in jobs)
        return run(jobs, mode)

    monkeypatch.setattr(critic, "_run", noted)
    examples = [Example(f"{row}", tests=f"import missing_once\nassert f({row})") for row in range(3)]
    for _ in range(2):
        with pytest.raises(DataError, match="those of 3 of 3 prompts cannot be run"):
            critic.check_examples(examples)
    assert tried == ["assert __import__('missing_once')"]


@pytest.mark.slow
def test_the_427_reference_solutions_of_mbpp_pass(critic: UnitTestCritic) -> None:
    records = json.loads(shared("mbpp/sanitized-mbpp.json").read_text("utf-8"))
    examples = [Example(one["prompt"], tests="\n".join(one["test_imports"] + one["test_list"])) for one in records]
    found = critic(examples, [one["code"] for one in records])
    assert [one["task_id"] for one, said in zip(records, found, strict=True) if said.outcome != 1.0] == []
    assert len(found) == 427


@pytest.mark.slow
def test_the_refinements_of_ilf_pass_and_the_programs_before_them_fail(critic: UnitTestCritic) -> None:
    lines = shared("ilf_code_feedback/surge_annotations.jsonl").read_text("utf-8").splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    names = [re.findall(r"^def (\w+)\(", one["prompt"], re.MULTILINE)[-1] for one in records]
    examples = [
        Example("", tests=f"{one['test']}\ndef test_it():\n    check({name})")
        for one, name in zip(records, names, strict=True)
    ]
    mended = critic(examples, [one["unedited_annotator_completion"] for one in records])
    with UnitTestCritic(workers=2, timeout_s=3) as short:  # some never end, which is a failure, too
        before = short(examples, [one["original_model_completion"] for one in records])
    assert [said.outcome for said in mended] == [1.0] * 195
    assert [said.outcome for said in before] == [-1.0] * 195
    assert sum(bool(said.spans) for said in before) > 60  # 83 on an idle machine


def test_the_solutions_of_kodcode_pass_their_pytest_files(critic: UnitTestCritic) -> None:
    kept = [problem.example for problem in read_problems(shared("kodcode/kodcode_algorithm.jsonl"), "kodcode").kept]
    found = critic(kept, [str(one.reference) for one in kept])
    assert [said.outcome for said in found] == [1.0] * 31, [said.feedback for said in found if said.outcome != 1.0]


def test_tests_are_cut_into_statements_that_tell_by_themselves() -> None:
    parts = tracing_tests("x = 1\ndef check(f):\n    y = f(x)\n    assert y == 2, 'no'\ncheck(g)", "#")
    assert "['x = 1', " in parts
    assert "'f = g', 'y = f(x)', 'assert y == 2']" in parts
    for tests in (
        "def test_a(tmp_path): assert 1",
        "class A:\n    def test_a(self): assert 1",
        "def (",
        "x" * 10**6 + "(",
    ):
        assert tracing_tests(tests, "#") == ""


@pytest.mark.parametrize(
    ("failing", "passing", "expected"),
    [
        ([{1, 2, 3}], [{1, 2}], {3}),
        ([{1, 2}, {1, 5}], [{1}], {2, 5}),
        ([{1, 2, 3, 4, 5}], [{1}], set()),  # four lines are no place
        ([{1, 2}], [{1, 2}], set()),
        ([{1}], [{1}], {1}),
        ([{1, 2}], [], set()),
        ([{2}], [], {2}),
        ([], [{1}], set()),
    ],
)
def test_suspects_by_hand(failing: list[set[int]], passing: list[set[int]], expected: set[int]) -> None:
    runs = [StatementRun("f", "AssertionError", frozenset(lines)) for lines in failing]
    runs += [StatementRun("p", "", frozenset(lines)) for lines in passing]
    assert suspect_lines(runs) == expected


def test_lines_that_a_program_prints_do_not_break_the_reading_of_its_tests() -> None:
    said = [
        '#[0,"",[1,3],null]',
        "#[1",
        "#[]",
        "# what?",
        "other",
        '#[1,"",3,null]',
        '#[0,"E",[],null]',
        '#[3,"",[],null]',
    ]
    said += ['#[1,"",[2,3,4],null]', '#[1,"E",[],null]']  # other lines than the statement before: 2 and 4, not 3
    found = [StatementRun("assert f()", "", frozenset({1, 2, 4}))]
    assert read_statement_runs("\n".join(said), "#", "x = 1\nassert f()", "1\n2\n3\n4") == found


@pytest.mark.parametrize(
    "printed",
    [
        "print('two', end='')",
        "sys.stdout.buffer.write(b'x' * 10_000)",
        "os.write(1, b'x' * 100)",
        "print('x' * 4000)",
        "stdout.write('two')",
        "sys.stdout = None",
        "print(sys.stdout.fileno(), end=' ')",
    ],
)
def test_a_program_that_prints_keeps_its_spans(critic: UnitTestCritic, printed: str) -> None:
    body = f"    {printed}\n    if x == 2:\n        return 5\n    return x\n"
    program = f"import os, sys\nfrom sys import stdout\ndef f(x):\n{body}"
    [said] = critic([Example("p", tests="assert f(1) == 1\nassert f(2) == 2\nassert f(3) == 3")], [program])
    assert said.feedback.splitlines()[:2] == ["1 of 3 tests fails.", "`assert f(2) == 2` fails: its left side is 5."]
    assert [program[span.start : span.end] for span in said.spans] == ["5"]


def test_all_of_many_tests_are_counted(critic: UnitTestCritic) -> None:
    tests = "\n".join(f"assert f({x}) == {x}" for x in range(300))
    program = "def f(x):\n    if x >= 250:\n        return -x\n    if x == 3:\n        return 5\n    return x\n"
    [said] = critic([Example("p", tests=tests)], [program])
    assert said.feedback.splitlines()[0] == "51 of 300 tests fail."
    assert [program[span.start : span.end] for span in said.spans] == ["-x", "5"]


def test_tests_that_do_not_end_are_counted() -> None:
    tests = "assert f(1) == 1\nassert f(2) == 2\nassert f(4) == 4\nassert f(3) == 3"
    program = "def f(x):\n    while x > 3:\n        pass\n    if x == 2:\n        return 7\n    return x\n"
    said = [
        "1 of 4 tests fails; 2 did not end.",
        "`assert f(2) == 2` fails: its left side is 7.",
        '"7" is suspect: only failing tests run it.',
    ]
    found = None
    for seconds in (1.0, 5.0, 25.0):  # the tests before the one that hangs take longer on a busy machine
        with UnitTestCritic(workers=1, timeout_s=seconds) as fresh:
            found = judged(fresh, tests, program)[:2]
        if found == (said, ["7"]):
            return
    raise AssertionError(found)


def test_tests_that_read_the_output_are_traced_too(critic: UnitTestCritic) -> None:
    tests = (
        "import io, sys\nold, sys.stdout = sys.stdout, io.StringIO()\nf(1)\nassert sys.stdout.getvalue() == 'one'\n"
        "f(2)\nassert sys.stdout.getvalue() == 'onetwo'\nsys.stdout = old"
    )
    program = "def f(x):\n    if x == 2:\n        print('2', end='')\n    else:\n        print('one', end='')\n"
    [said] = critic([Example("p", tests=tests)], [program])
    assert said.feedback.splitlines()[1].startswith("`assert sys.stdout.getvalue() == 'onetwo'` fails")


SPOILING = """
import gc, os, sys
def find(frame):
    while frame is not None:
        yield from (value for value in (*frame.f_locals.values(), *frame.f_code.co_consts) if isinstance(value, str))
        frame = frame.f_back
def f(x):
    for mark in {text for text in find(sys._getframe()) if len(text) == 16}:
        for record in RECORDS:
            os.write(1, f"\\n{mark}{record}\\n".encode())
    return x
"""


@pytest.mark.parametrize(
    "record",
    [
        "[" * 4000,
        '[0,"AssertionError",["x"],null]',
        '[5,7,[1,"x"],[3]]',
        '[0,"b",[1e400],null]',
        '[0,"b",[true],null]',
        '[0,"b",[-5, 99999999],"y"]',
        '{"a": 1}',
        '[0,"' + "a" * 5000 + '", [1], 5]',
        "null",
        '[0, "AssertionError", [4], {"a": 1}]',
        '[2, "", [], null]',
        '[-1, "", [], null]',
        '[true, "", [], null]',
        '[0, "", [1, 1000000000], null]',
    ],
    ids=range(14),
)
def test_a_program_that_prints_records_of_its_own_costs_only_its_critique(critic: UnitTestCritic, record: str) -> None:
    tests = "assert f(1) == 2\nassert f(2) == 2"
    hostile = f"RECORDS = [{record!r}]\n{SPOILING}"
    [spoiled, other] = ask(critic, [Example("", tests=tests)] * 2, [hostile, "def f(x): return 2 * x"], match="exact")
    assert (spoiled.outcome, other.outcome) == (-1.0, -1.0)
    assert other.feedback.splitlines()[0] == "1 of 2 tests fails."
    assert read_statement_runs("mark" + record, "mark", tests, hostile) == []


def test_training_is_told_of_verdicts_that_rest_on_a_program_s_word(caplog: pytest.LogCaptureFixture) -> None:
    def said() -> list[str]:
        lines = [record.message for record in caplog.records]
        caplog.clear()
        return lines

    apart, shared = Example("", tests="assert f(1) == 1"), Example("", tests="import inspect\nassert f(1) == 1")
    with UnitTestCritic(workers=1, timeout_s=120) as fresh:
        fresh([apart, apart], ["def f(x): return x", "def f(x): return 2"])
        assert said() == []
        fresh([shared, apart], ["def f(x): return x"] * 2)
        assert [line.partition(" could")[0] for line in said()] == ["1 of 3 programs that passed"]
        fresh([shared], ["def f(x): return x"])
        assert said() == []
    assert [line.partition(" could")[0] for line in said()] == ["2 of 4 programs that passed"]


def test_a_response_over_the_limit_costs_only_its_critique(critic: UnitTestCritic) -> None:
    long, bad = "x = 1\n" * 10**6, "x = '\ud800'"
    [first, second, third] = critic([Example("", tests="assert x == 1")] * 3, [long, bad, "x = 1"])
    assert (
        first.feedback
        == "The tests were not run: The program was not run: it has 6000000 bytes; the sandbox runs at most 1048576."
    )
    assert [one.outcome for one in (first, second, third)] == [-1.0, -1.0, 1.0]


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("x = 1", "x = 1"),
        ("a\n```\nx\n```\n```py\ny\n```", "y\n"),
        ("a\n```\nx\n```\nb", "x\n"),
        ("a\n```python title=b\nx = '''```'''\n```", "x = '''```'''\n"),
        ("````python\n```\n````\n", "```\n"),
        ("~~~py\nx\n~~~", "x\n"),
        ("```python\nx = 1\ny", "x = 1\ny"),
        ("  ```python\r\nx\r\n  ```\r\n", "x\r\n"),
        ("```\nx\n`````\nb", "x\n"),
        ("```py\nx\n```\n```py\nxy\n```\n```py\nz\n```", "xy\n"),
        ("```\nlonger\n```\n```Python3\nx\n```", "x\n"),
    ],
)
def test_the_program_of_a_response(response: str, text: str) -> None:
    program = program_in(response)
    assert program.text == text
    assert response[program.start : program.start + len(text)] == text


def test_a_program_in_an_indented_fence_loses_the_indentation_and_keeps_its_places() -> None:
    response = "1. Use this:\n\n   ```python\n   def f(x):\n       return g(x)\n\n  y = 1\n   ```\n"
    program = program_in(response)
    assert program.text == "def f(x):\n    return g(x)\n\ny = 1\n"
    span = program.expression(2)
    assert span is not None
    assert response[span.start : span.end] == "g(x)"
    whole = program.span(0, len(program.text))
    assert whole is not None
    assert response[whole.start : whole.end] == "def f(x):\n       return g(x)\n\n  y = 1"
    last = program.expression(4)
    assert last is not None
    assert response[last.start : last.end] == "1"


@pytest.mark.parametrize(
    ("line", "quote"),
    [
        (1, "g(1)"),
        (2, "a > 1"),
        (3, "a['é']"),
        (4, "break #o"),
        (5, "(1,\n     2)"),
        (7, "ValueError('#')"),
        (8, "else: #b"),
        (99, None),
    ],
)
def test_the_expression_of_a_line(line: int, quote: str | None) -> None:
    text = (
        "x = g(1)\nwhile a > 1:\n    b += a['é']  #n\n    break #o\ny = (1,\n     2)\nraise ValueError('#')\nelse: #b"
    )
    broken = Program(text.replace("\nelse: #b", ""), 3) if line < 8 else Program(text, 3)
    span = broken.expression(line)
    assert (span and ("abc" + text)[span.start : span.end]) == quote


@pytest.mark.parametrize(
    ("text", "line", "quote"),
    [
        ("for a in b: pass", 1, "b"),
        ("match a:\n    case _: pass", 1, "a"),
        ("x = 'é'+y;z", 1, "'é'+y"),  # the parser counts bytes
        ("x = 1\ry = 2", 2, "2"),
        ("x = 1\0", 1, "x = 1\0"),  # which no parser reads
        *((f"x = {'-' * deep}1", 1, f"x = {'-' * deep}1") for deep in (3_000, 20_000)),
    ],
    ids=range(7),
)
def test_the_expression_of_a_line_in_other_programs(text: str, line: int, quote: str) -> None:
    span = Program(text).expression(line)
    assert span is not None
    assert text[span.start : span.end] == quote


def test_a_column_beyond_its_line_is_the_end_of_the_line() -> None:
    program = Program("ab\ncd")
    assert [program.at(1, 1), program.at(1, 9), program.at(2, 2), program.at(2, 9), program.at(3, 1)] == [0, 3, 4, 5, 5]


RUFF = [
    ("import os\n", 'F401 `os` imported but unused: "os"', ["os"]),
    ("x = '😀é'; y = zz  # noqa\n", 'F821 Undefined name `zz`: "zz"', ["zz"]),
    ("Hi\n```py\nprint(zz)\n```", 'F821 Undefined name `zz`: "zz"', ["zz"]),
    ("x = 1\n", "ruff finds nothing to say.", []),
    ("x\u2028= 1\r\ny = zz\r\n", None, None),
    ("", "ruff finds nothing to say.", []),
]


@pytest.mark.parametrize(("response", "feedback", "quotes"), RUFF)
def test_ruff_quotes_what_it_says(response: str, feedback: str | None, quotes: list[str] | None) -> None:
    (found,) = ask(RuffCritic(), [Example("")], [response], match="exact")
    if feedback is None:
        assert found.outcome is None
        return
    assert found == Critique(feedback, found.spans)
    assert [response[span.start : span.end] for span in found.spans] == quotes


@pytest.mark.parametrize("program", ["x = zz", "x = 1\ny = zz"])
def test_columns_of_ruff_leave_out_a_byte_order_mark(program: str) -> None:
    (found,) = RuffCritic()([Example("")], ["\ufeff" + program])
    assert [("\ufeff" + program)[span.start : span.end] for span in found.spans] == ["zz"]


def test_ruff_says_syntax_errors_and_takes_outcomes_and_rules() -> None:
    critic = RuffCritic(select=["F8", "I"], clean_outcome=1, faulty_outcome=-0.5)
    broken, clean = ask(critic, [Example("")] * 2, ["def f(:\n", "import os\n"], match="exact")
    assert broken.spans == (Span(6, 7, "negative"),)
    assert (
        broken.feedback.splitlines()[0] == 'invalid-syntax Expected a parameter or the end of the parameter list: ":"'
    )
    assert (broken.outcome, clean.outcome, clean.spans) == (-0.5, 1.0, ())


def test_rules_that_ruff_does_not_know_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^ruff fails: .*Unknown rule selector.*QQQ"):
        RuffCritic(select=["QQQ"])
    with pytest.raises(ConfigError) as caught:
        RuffCritic(select="F401")
    assert str(caught.value) == "select must be a list of rules, got the text 'F401'. Write ['F401']"


def test_ruff_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(ConfigError) as caught:
        RuffCritic()
    assert str(caught.value) == "RuffCritic needs ruff: pip install ruff"


@given(st.text(st.sampled_from("ab:(=\n\r\t 😀'#\"`"), max_size=20))
def test_places_in_a_program_are_places_in_its_response(text: str) -> None:
    program = Program(text, 7)
    for line in range(1, len(program.line_starts) + 3):
        span = program.expression(line)
        if span is not None:
            quote = ("-" * 7 + text)[span.start : span.end]
            assert quote == quote.strip() != ""


def test_both_are_critics_by_the_names_that_a_recipe_uses() -> None:
    assert isinstance(load_callable("text2grad:RuffCritic", "critic"), RuffCritic)
    made = load_callable("text2grad:UnitTestCritic", "critic")
    assert isinstance(made, UnitTestCritic)
    made.__exit__(None, None, None)
