"""The program that is judged is that of the answer, in whatever fences and behind whatever drafts it stands."""

from pathlib import Path
from textwrap import indent

import pytest

from text2grad.critics.programs.failing_lines import split_tests
from text2grad.critics.programs.program_text import Program, fault, judged_program, program_in
from text2grad.critics.programs.ruff_critic import RuffCritic
from text2grad.critics.programs.unit_tests import UnitTestCritic, imported
from text2grad.critics.servers.annotation import Item, add_test_outcomes
from text2grad.critics.servers.store import Store
from text2grad.types import Example, Span
from text2grad_sandbox import names_of_tests

RIGHT = "def f(x):\n    return x + 1\n"
WRONG = "def f(x):\n    y = x\n    y = y * 7\n    return y\n"  # longer, so that length does not find the right one
EXAMPLE = Example("Write f.", tests="assert f(1) == 2")


def fence(code: str, language: str = "python", ticks: str = "```") -> str:
    return f"{ticks}{language}\n{code}{ticks}\n"


DOCUMENTED = 'def f(x):\n    """Add.\n\n    ```python\n    f(1)\n    ```\n    """\n    return x + 1\n'
DRAFT, ANSWER = fence(WRONG), fence(RIGHT)
RESPONSES = {
    # where the answer begins: evalplus/evalplus#297
    "behind reasoning": f"<think>Maybe\n{DRAFT}no.</think>\nHere:\n{ANSWER}",
    "behind reasoning that the prompt opened": f"Maybe\n{DRAFT}no.\n</think>\n{ANSWER}",
    "behind a fence without end in reasoning": f"<think>```python\n{WRONG}</think>\n{ANSWER}",
    "right behind the mark": f"<think>{DRAFT}</think>{ANSWER}",
    "before more reasoning": f"{ANSWER}<think>\nCheck:\n{DRAFT}</think>\nDone.",
    "behind Mistral's reasoning": f"[THINK]{DRAFT}[/THINK]{ANSWER}",
    "behind Kimi's reasoning": f"◁think▷{DRAFT}◁/think▷{ANSWER}",
    "in harmony's final channel": f"<|channel|>analysis<|message|>{DRAFT}<|channel|>final<|message|>{ANSWER}",
    **{
        f"behind {tag}, without a fence": f"<{tag}>\n{DRAFT}</{tag}>\n{RIGHT}"
        for tag in ("analysis", "plan", "reflection", "scratchpad", "thought", "reasoning")
    },
    "behind two sections": f"Sure.\n<analysis>\n{DRAFT}</analysis>\n<plan>\n{DRAFT}</plan>\n{RIGHT}",
    "in an analysis, and nothing else": f"<analysis>\nSo:\n{ANSWER}</analysis>",
    "in harmony's final channel, without a fence": "<|start|>assistant".join(
        [f"<|channel|>analysis<|message|>{DRAFT}<|end|>", f"<|channel|>final<|message|>{RIGHT}"]
    ),
    "in Muse's channel to the user": f" to=self<|message|>{DRAFT}<|eom|><|start|>assistant to=user<|message|>{RIGHT}",
    "in tags of an answer": f"<think>x</think>\n<answer>\n{ANSWER}</answer>",
    # several fences
    "behind a draft": f"{DRAFT}No, better:\n{ANSWER}",
    "before a longer use": ANSWER + "Use:\n" + fence("for x in range(100):\n    print(x, f(x), 'a long line')\n"),
    "glued fences": f"```python\n{RIGHT.rstrip()}```\nDone:\n```python\nprint(f(1))\n```",
    "bars": f"<|think_start|>{fence('def f(x): return 0')}<|think_end|>{ANSWER}",
    "before longer tests": ANSWER + fence("from solution import f\ndef test_f():\n    assert f(1) == 2 != f(2)\n"),
    "before its output": fence(RIGHT, "") + "Output:\n" + fence("2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n" * 3, ""),
    "behind JSON": fence('{"a": 1, "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb": 2}\n', "json") + fence(RIGHT, ""),
    "before a long command": ANSWER + fence("python solution.py --with many --long arguments, one by one\n", "bash"),
    "behind a fence in a line": f"Write ```f(1)``` so.\n{ANSWER}",
    # lists and quotes
    "in a list": "1. So:\n\n" + indent(ANSWER, "   "),
    "in a list of two digits": "10. So:\n\n" + indent(ANSWER, "    "),
    "in a list of lists": "- a\n  1. b\n     c\n\n" + indent(ANSWER, "      "),
    "beside a bullet": "- " + indent(ANSWER, "  ").lstrip(),
    "in a list with tabs": "1.\tSo:\n\n" + indent(ANSWER, "\t"),
    "in a quote": "As said:\n" + indent(ANSWER, "> ") + "\nend",
    "in a quote without blanks": ">```python\n>def f(x):\n>    return x + 1\n>```\n",
    "in a quote of a quote": indent(ANSWER, "> > "),
    "in a quote in a list": "- a\n" + indent(ANSWER, "  > "),
    "in a quote that ends": "> ```python\n> def f(x):\n>     return x + 1\n\nThat is it.\n",
    # fences without end
    "without end": f"Here:\n```python\n{RIGHT}",
    "without end, before words": f"Here:\n```python\n{RIGHT}\nThis adds one to x.",
    "behind a fence without end": f"```python\n{WRONG}\nBetter:\n{ANSWER}",
    "without end, before a use": f"```python\n{RIGHT}\nUse it:\n```python\nprint(f(1))\n```\n",
    "with an end too far right": f"```python\n{RIGHT}    ```\nDone.",
    "with another end": f"```python\n{RIGHT}~~~\n",
    # kinds of fences
    "in tildes": fence(RIGHT, "python", "~~~"),
    "in tildes without language": fence(RIGHT, "", "~~~"),
    "without language": fence(RIGHT, ""),
    "in a longer fence": fence(RIGHT, "python", "`````"),
    "in a document in a longer fence": fence(f"# T\n{ANSWER}", "markdown", "````"),
    "in a longer fence without language": fence(ANSWER, "", "````"),
    "in a document in an equal fence": f"```markdown\n# T\n{ANSWER}more\n```\n",
    "with attributes": "```{.python .numberLines}\n" + RIGHT + "```\n",
    "of R Markdown": "```{python}\n" + RIGHT + "```\n",
    "with a file": "```python:solution.py\n" + RIGHT + "```\n",
    "behind a blank": "``` Python\n" + RIGHT + "```\n",
    "with carriage returns": f"Hi\n{ANSWER}".replace("\n", "\r\n"),
    # fences and marks in the program
    "with a fence in its docstring": fence(DOCUMENTED),
    "with fences in a text": fence(f'DOC = """\n{fence("f(1)")}"""\n{RIGHT}'),
    "alone, with a fence in its docstring": DOCUMENTED,
    "with marks of reasoning": fence("import re\nMARK = re.compile(r'<think>.*?</think>\\n')\n" + RIGHT),
    # programs in parts, and without a fence
    "behind its helper": fence("def one():\n    return 1\n") + "So:\n" + fence("def f(x):\n    return x + one()\n"),
    "before its helper": fence("def f(x):\n    return x + one()\n") + "with:\n" + fence("def one():\n    return 1\n"),
    "behind its imports": fence("import math\n") + fence("def f(x):\n    return x + int(math.cos(0))\n"),
    "alone": RIGHT,
    "between words": f"Sure:\n\n{RIGHT}\nThat adds one.",
    "behind reasoning, without a fence": f"<think>\n{WRONG}</think>\n{RIGHT}",
    "in backticks": "The answer is `def f(x): return x + 1`.",
    "in backticks, with lines": f"I'd write\n`{RIGHT.rstrip()}`\nThat is it.",
    "in two backticks": "``f = lambda x: x + 1``: then `f(1)` is `2`, and `y = f(3)` is `4`.",
    "in three backticks of one line": "```python def f(x): return x + 1```",
    "in backticks, behind its import": "Use `import math`, then `def f(x): return x + int(math.cos(0))`.",
    "in backticks, behind its header": "`def f(x):` begins it. So: `def f(x): return x + 1`",
    "in backticks, behind a draft": "Maybe `def f(x): return x`? No: `def f(x): return x + 1`",
    "in backticks, behind reasoning": "<think>`def f(x): return x`</think>`def f(x): return x + 1`",
    "in a tag of code": f"<pre><code class='python'>{RIGHT.rstrip()}</code></pre>",
    "in tags of an answer, without a fence": f"<think>x</think>\n<answer>\n{RIGHT}</answer>",
}  # fmt: skip


@pytest.mark.parametrize("name", RESPONSES)
def test_the_program_of_the_answer_is_judged_and_keeps_its_places(name: str) -> None:
    response = RESPONSES[name]
    program = judged_program(EXAMPLE, response)
    names: dict = {}
    exec(compile(program.text, name, "exec"), names)
    assert [names["f"](1), names["f"](3)] == [2, 4]
    assert "Done" not in program.text
    for offset, character in enumerate(program.text):
        if character.strip():  # each character of the program is at its place in the response
            span = program.span(offset, offset + 1)
            assert span is not None
            assert response[span.start : span.end] == character


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("<think>```python\ndef f(x): return x + 1\n```", ""),  # cut off in the reasoning
        ("def f(x):\n    return x +\nimport os\n", "def f(x):\n    return x +\nimport os\n"),  # faults are not cut away
        ("def f(x):\n    y = x\n    return y +\n", "def f(x):\n    y = x\n    return y +\n"),
        ("def f(x): return x\ndef g(:\n    pass\n", "def f(x): return x\ndef g(:\n    pass\n"),
        ("I cannot.", "I cannot."),
        ("Call `g = 1` so.", "Call `g = 1` so."),  # is not f
        ("`def f(x): return x +`", "`def f(x): return x +`"),
        (fence("def g(x): return 1\n") + fence("def f(:\n"), "def f(:\n"),  # what seems to define f
        (fence("list = [1]\n") + fence("def f(x): return list(x)\n"), "def f(x): return list(x)\n"),
        ("```python\n" * 40, "```python\n" * 31),
    ],
)
def test_what_is_no_answer_or_no_python_is_judged_as_it_is(response: str, text: str) -> None:
    assert judged_program(EXAMPLE, response).text == text


def test_a_prompt_that_opened_the_reasoning_makes_a_cut_draft_no_answer() -> None:
    prompts = (
        "Write f.\nAssistant: <think>\n",
        [{"role": "user", "content": "f"}, {"role": "assistant", "content": "<think>"}],
    )
    assert [judged_program(Example(prompt, tests=EXAMPLE.tests), ANSWER).text for prompt in prompts] == ["", ""]
    assert judged_program(EXAMPLE, ANSWER).text == RIGHT


def test_a_warning_of_python_is_no_fault() -> None:
    assert [fault("'\\d'\n"), fault("x = 1\ny = (\n"), fault("x = '\0'"), fault("#" * 100_001)] == [0, 2, 1, 1]
    assert Program("x = f('\\d')").expression(1) == Span(4, 11, "negative")
    tests = "import left\nassert f('\\d') == 1"
    assert (names_of_tests(tests), imported(tests), split_tests(tests)[1][0]) == ({"f"}, {"left"}, True)


SCRIPT = "n = int(input())\nprint(n + 1)\n"


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (fence("n = int(input())\nm = n * 7 - n * 6\nprint(m)\n") + "Wait:\n" + fence(SCRIPT), SCRIPT),
        (fence(SCRIPT) + "`int` reads it:\n" + fence("number_of_things = int(input().strip())\n"), SCRIPT),
        (fence("# nothing reads or prints\n") + fence("x = 1\n"), "# nothing reads or prints\n"),
    ],
)
def test_a_script_is_the_last_block_that_does_what_the_longest_does(response: str, text: str) -> None:
    cases = '{"inputs": ["1"], "outputs": ["2"]}'
    assert judged_program(Example("", tests=cases), response).text == text
    assert program_in(response).text == text


@pytest.mark.parametrize(
    "tests",
    [
        "import solution\nassert solution.f(1) == 2",
        "from solution import f\ndef test_f(): assert f(1) == 2",
        "import pytest\n@pytest.mark.parametrize('x', [1])\ndef test_f(x): assert f(x) == 2",
        "from solution import f as g\nassert g(1) == 2",
    ],
)
def test_tests_of_any_form_name_what_the_program_defines(tests: str) -> None:
    use = fence("print('a long use of f, longer than f itself', f(1))\n")
    assert judged_program(Example("", tests=tests), ANSWER + use).text == RIGHT


def test_a_program_in_pieces_marks_what_it_means() -> None:
    response = "a <think>b</think>\n```python\nx = 1\ny = 2\n```"
    program = program_in(response)
    assert program == Program("x = 1\ny = 2\n", response.index("x = 1"))
    quoted = program_in("> ```python\n> x = (1,\n>      2)\n> ```")
    span = quoted.expression(1)
    assert span is not None
    assert "> ```python\n> x = (1,\n>      2)\n> ```"[span.start : span.end] == "(1,\n>      2)"


def test_every_judge_of_programs_judges_the_answer(tmp_path: Path) -> None:
    """A right answer behind a longer wrong draft, and a wrong one behind a right draft (evalplus/evalplus#297)."""
    right, draft = f"<think>Maybe\n{DRAFT}no.</think>\nHere:\n{ANSWER}", f"<think>\n{ANSWER}</think>\n{DRAFT}"
    cut = f"<think>\n{ANSWER}"
    with UnitTestCritic(workers=1, timeout_s=20) as critic:
        critiques = critic([EXAMPLE] * 3, [right, draft, cut])
    assert [critique.outcome for critique in critiques] == [1.0, -1.0, -1.0]
    spans = [draft[span.start : span.end] for span in critiques[1].spans]
    assert all(draft.index(span) > draft.index("</think>") for span in spans)
    faults = RuffCritic(clean_outcome=1.0)([EXAMPLE] * 2, [f"<think>\n{fence('x = zz')}</think>\n{ANSWER}", cut])
    assert [critique.outcome for critique in faults] == [1.0, None]
    assert faults[1].feedback == "The response ends within its reasoning."
    with Store(tmp_path / "store.sqlite") as store:
        items = add_test_outcomes([Item(str(row), EXAMPLE, said) for row, said in enumerate([right, draft])], store)
    assert [str(item.tests).partition(".")[0] for item in items] == [
        "All tests passed",
        "The tests did not pass (failed)",
    ]


def test_a_span_ends_before_the_reasoning_that_follows_it() -> None:
    response = "```python\nx = zz<think>sure?</think>\ny = 2\n```"
    program = program_in(response)
    assert program.text == "x = zz\ny = 2\n"
    span = program.expression(1)
    assert span is not None
    assert response[span.start : span.end] == "zz"
