"""Programs: HumanEval, MBPP and their plus versions, judged by tests in the sandbox.

pass@k          probability that one of k answers passes; from n answers with c passes 1 - C(n - c, k) / C(n, k), the
                unbiased estimator of arXiv 2107.03374; mean over questions
cut, parses     shares of answers that the length limit cut, and of programs that Python can parse
forgeable       share of passes that a program written against the sandbox could have forged (docs/critics.md)

The keys of a record tell its format, so `--suite code` reads every format. The plus versions are data sets of
EvalPlus on the hub (arXiv 2305.01210), whose tests compare by EvalPlus's rules.

    entry_point, test               HumanEval and HumanEval+
    test_list                       MBPP, sanitized or full, and MBPP+

The program in a chat model's answer is that of `critics.program_in`. The beginning of the prompt, its imports and
helpers, stands before it: answers often leave it out, and a definition of their own replaces it; imports from
`__future__` move to the top. A program that is the indented body of the function continues the prompt. An answer that
continues its prompt is the prompt and the answer, cut at the first text that begins something else.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any

from text2grad.critics import fault, program_in
from text2grad.errors import DataError
from text2grad.evaluation.suite import Answer, AnsweredSuite, Counts, Question, Scores, Source, SuiteOptions, mean_of
from text2grad.feedback import bad_record, keys_of
from text2grad.progress import Progress
from text2grad_sandbox import Result, Sandbox

KS = (1, 2, 5, 10, 20, 50, 100)
_AT_ONCE = 64  # programs between two steps of the progress bar
_MEMORY_MB = 4096  # address space of a program
TIMEOUT_S, LONG_TIMEOUT_S = 10.0, 60.0  # seconds of a program with its tests; the plus versions have the long limit

_SOURCES = (
    Source("code", "a JSONL file of HumanEval or MBPP of their authors"),
    Source("humaneval", "HumanEval.jsonl.gz of human-eval (OpenAI)", "openai/openai_humaneval"),
    Source("humaneval+", "the rows as JSONL of EvalPlus", "evalplus/humanevalplus"),
    Source("mbpp", "sanitized-mbpp.json of MBPP (google-research)", "google-research-datasets/mbpp:sanitized"),
    Source("mbpp+", "the rows as JSONL of EvalPlus", "evalplus/mbppplus"),
)
SOURCES = {source.suite: source for source in _SOURCES}

_ASK = "Write Python code that solves the problem below. Reply with the whole program in one fenced code block."
_ASK_FUNCTION = (
    "Complete the Python function below. Reply with the whole function, imports included, in one fenced code block."
)
_FUTURE = re.compile(r"^from __future__ import (?:[^(\n]*|\([^)]*\)[^\n]*)$", re.MULTILINE)

STOPS = ("\ndef ", "\nclass ", "\nif __name__", "\nprint(", "\nassert ", "\n@", "\n#", "\n```", "\nimport ", "\nfrom ")
"""Texts that end a body of a function that continues its prompt."""
_STOPS_OF_MBPP = ('\n"""', "\nassert", "\nprint(", "\nif __name__", "\n```")


class CodeSuite(AnsweredSuite):
    """Programs judged by tests."""

    max_new_tokens = 768

    def __init__(self, options: SuiteOptions) -> None:
        """Read the questions and what judges them."""
        self.name, self.options = options.suite, options
        self.timeout_s = LONG_TIMEOUT_S if self.name.endswith("+") else TIMEOUT_S
        self.questions = list(_questions(options))
        self.settings = {"timeout_s": self.timeout_s, "accept_weaker": options.accept_weaker}
        forged = "passes that a program written against the sandbox could have forged"
        self.measures = {
            **{
                f"pass@{k}": mean_of(f"pass@{k}", over="questions", share=True, about=f"solved by one of {k} answers")
                for k in KS
                if k <= options.samples
            },
            "cut": mean_of("cut", "lower", share=True, about="answers that the length limit cut"),
            "parses": mean_of("parses", share=True, about="programs that Python can parse"),
            "forgeable": mean_of("forgeable", "lower", over="passed", about=forged),
        }

    def check(self) -> None:
        """Start the sandbox once; it raises SandboxError if programs cannot be isolated on this machine."""
        Sandbox(workers=1, accept_weaker=self.options.accept_weaker).close()

    def score(self, answers: Sequence[Answer], folder: Path) -> list[Scores]:
        """Return for each answer whether its program passes, and why not; equal programs run once."""
        jobs = [(program_of(answer), answer.question.data["tests"]) for answer in answers]
        results = self._run(list(dict.fromkeys(jobs)))
        return [_scores(answer, job[0], results[job]) for answer, job in zip(answers, jobs, strict=True)]

    def _run(self, jobs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Result]:
        """Return the results by program and tests."""
        results: dict[tuple[str, str], Result] = {}
        with (
            Sandbox(accept_weaker=self.options.accept_weaker) as sandbox,
            Progress(f"{self.name}: programs", len(jobs), unit="program") as progress,
        ):
            for start in range(0, len(jobs), _AT_ONCE):
                some = jobs[start : start + _AT_ONCE]
                judged = sandbox.run_many(some, timeout_s=self.timeout_s, memory_mb=_MEMORY_MB)
                results |= zip(some, judged, strict=True)
                progress.advance(len(some))
        return results

    def counts(self, scores: Sequence[Scores]) -> Counts:
        """Return the sums, and the estimates of pass@k."""
        passed = sum(bool(score.get("passed")) for score in scores)
        estimates = {f"pass@{k}": pass_at_k(len(scores), passed, k) for k in KS if k <= len(scores)}
        return {**super().counts(scores), "questions": 1.0, **estimates}


def pass_at_k(answers: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the share of draws of k answers that hold one that passes (arXiv 2107.03374).

    Example:
        >>> round(pass_at_k(5, 2, 2), 6)  # 1 - C(3, 2) / C(5, 2) = 1 - 3 / 10
        0.7
    """
    return 1.0 - comb(answers - passed, k) / comb(answers, k)


def _scores(answer: Answer, program: str, result: Result) -> Scores:
    return {
        "passed": result.passed,
        "reason": result.reason,
        "error": "" if result.passed else result.output.strip().rpartition("\n")[2][:200],
        "parses": bool(answer.text.strip()) and not fault(program),  # an empty answer is no program, even as it runs
        "forgeable": result.passed and result.forgeable,
        "cut": answer.finish[0] == "length",
    }


def program_of(answer: Answer) -> str:
    """Return the program in an answer, as it runs."""
    data = answer.question.data
    if answer.continues:
        return str(data["body_of"] + answer.text)
    body_of = data["body_of"] if data["function"] and f"def {data['function']}" in data["body_of"] else ""
    return program_of_chat(answer.texts[0], function=data["function"], head=data["head"], prompt=body_of)


def program_of_chat(answer: str, *, function: str = "", head: str = "", prompt: str = "") -> str:
    r"""Return the program of a chat model's answer about a function, if there is one; see the module.

    `head` are the imports and helpers of the prompt; `prompt` is the beginning that an indented body continues.

    Example:
        >>> program_of_chat("Sure:\n```python\ndef f(x):\n    return x\n```\nUse it:\n```\nf(1)\n```", function="f")
        'def f(x):\n    return x\n'
    """
    program = program_in(answer, {function} if function else ()).text
    if prompt and not head_of(program, function) and re.match(r"(?:[ \t]*\r?\n)*[ \t]+\S", program):
        return prompt + program
    if not head.strip():
        return program
    future = "".join(f"{line}\n" for line in _FUTURE.findall(program))  # stays first, as Python demands
    return f"{future}{head}\n{_FUTURE.sub('', program)}"


def head_of(prompt: str, function: str) -> str:
    r"""Return a prompt up to the definition of a function: imports and helpers.

    Example:
        >>> head_of("import math\n\ndef area(r):\n    ...", "area")
        'import math\n\n'
    """
    definition = re.search(rf"^(?:async )?def {re.escape(function)}\b", prompt, re.MULTILINE)
    return prompt[: definition.start()] if definition else ""


def _questions(options: SuiteOptions) -> Iterator[Question]:
    """Yield the questions of a suite, with what judges their answers.

    data: `function` under test; `head` of imports and helpers, which stands before an answer's program; `body_of`, the
    beginning of the program that an indented body continues; `tests`.
    """
    for _, where, record in SOURCES[options.suite].entries(options):
        if "entry_point" in record and "test" in record:
            yield _of_humaneval(record, where)
        elif "test_list" in record:
            yield _of_mbpp(record, where)
        else:
            raise DataError(
                f"{where}: no record of HumanEval (entry_point, test) or MBPP (test_list): {keys_of(record)}. "
                "The plus versions are evalplus/humanevalplus and evalplus/mbppplus on the Hugging Face hub"
            )


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise bad_record(where, f'"{key}" must be a text that is not empty')
    return value


def _in_block(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _of_humaneval(record: Mapping[str, Any], where: str) -> Question:
    prompt, name = _text(record, "prompt", where), _text(record, "entry_point", where)
    tests = f"{_text(record, 'test', where)}\ncheck({name})"
    asked = f"{_ASK_FUNCTION}\n\n{_in_block(prompt)}"
    data = {"function": name, "head": head_of(prompt, name), "body_of": prompt, "tests": tests}
    return Question(_text(record, "task_id", where), asked, continuation=prompt, stop=STOPS, data=data)


def _of_mbpp(record: Mapping[str, Any], where: str) -> Question:
    told = str(record.get("prompt") or record.get("text") or "").strip()
    listed = record["test_list"]
    if not told or not isinstance(listed, list) or not listed or not all(isinstance(test, str) for test in listed):
        raise bad_record(where, '"prompt" (or "text") must be a text, and "test_list" a list of assertions')
    setup = [*(record.get("test_imports") or []), record.get("test_setup_code") or ""]
    tests = str(record.get("test") or "\n".join([*filter(None, setup), *listed]))  # "test": the plus version on the hub
    name = _function_in(listed[0], str(record.get("code") or ""))
    prompt = f'"""\n{told}\n{listed[0]}\n"""\n'
    ask = f"{_ASK}\n\n{told}\nIt must pass this test:\n\n{_in_block(listed[0])}"
    data = {"function": name, "head": "", "body_of": prompt, "tests": tests}
    return Question(str(record["task_id"]), ask, continuation=prompt, stop=_STOPS_OF_MBPP, data=data)


def _function_in(test: str, reference: str) -> str:
    """Return the function of the reference that a test calls, or else the first that the test calls."""
    calls = re.findall(r"\b(\w+)\s*\(", test)
    defined = set(re.findall(r"^(?:async )?def (\w+)", reference, re.MULTILINE))
    return next((name for name in calls if name in defined), calls[0] if calls else "")
