"""Programs: HumanEval, MBPP, their plus versions and LiveCodeBench, judged by tests in the sandbox.

pass@k          share of questions that k answers solve: of n answers of which c pass, 1 - C(n - c, k) / C(n, k), the
                unbiased estimator of arXiv 2107.03374; mean over questions
base_pass@k     of the original tests alone, for records with further tests
parses          share of programs that Python can parse
timeout         share of programs that exceed the time limit
cut             share of answers that the length limit cut
forgeable       share of passes that a program written against the sandbox could have forged (docs/sandbox.md)

The format of a record follows from its keys, so `--suite code` reads every format:

    base_input, plus_input          EvalPlus's own files, HumanEvalPlus.jsonl and MbppPlus.jsonl
    entry_point, test               HumanEval; also the plus version as the hub has it
    test_list                       MBPP, sanitized or full; also the plus version as the hub has it
    public_test_cases               LiveCodeBench
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import DataError
from text2grad.evaluation.intervals import Ratio
from text2grad.evaluation.suite import (
    Answer,
    Answered,
    AnsweredSuite,
    Counts,
    Measure,
    Question,
    Scores,
    Source,
    SuiteOptions,
    check_ids,
    digest_of_questions,
    entries_of,
    mean_of,
    sums,
)
from text2grad.evaluation.suites import evalplus, livecodebench
from text2grad.evaluation.suites.programs import STOPS, head_of, parses, program_of_chat
from text2grad.feedback import bad_record, json_object, keys_of
from text2grad.progress import Progress
from text2grad_sandbox import Case, Result, Sandbox

KS = (1, 2, 5, 10, 20, 50, 100)
QUESTIONS = "questions"
_AT_ONCE = 64  # programs between two steps of the progress bar
_TIMEOUT_S, _LONG_TIMEOUT_S, _CASE_TIMEOUT_S = 10.0, 60.0, 6.0

SOURCES: Mapping[str, Source] = {
    "code": Source("a JSONL file of HumanEval, MBPP, EvalPlus or LiveCodeBench", "their authors"),
    "humaneval": Source("HumanEval.jsonl.gz", "human-eval (OpenAI)", "openai/openai_humaneval"),
    "humaneval+": Source("HumanEvalPlus.jsonl.gz", "EvalPlus", "evalplus/humanevalplus"),
    "mbpp": Source("sanitized-mbpp.json", "MBPP (google-research)", "google-research-datasets/mbpp:sanitized"),
    "mbpp+": Source("MbppPlus.jsonl.gz", "EvalPlus", "evalplus/mbppplus"),
    "livecodebench": Source("test.jsonl (of the release that you want)", "LiveCodeBench (code_generation_lite)"),
}

_ASK = "Write Python code that solves the problem below. Reply with the whole program in one fenced code block."
_ASK_FUNCTION = (
    "Complete the Python function below. Reply with the whole function, imports included, in one fenced code block."
)

Tests = str | tuple[Case, ...]


class Problem(NamedTuple):
    """What judges a question's answers.

    Attributes:
        function: name of the function in question; "" for a program that reads standard input.
        head: imports and helpers in the prompt, which stand before an answer's program.
        body_of: beginning of the program that an indented body continues.
        tests: sets of tests by name; an answer passes if it passes all.
        timeout_s: time limit of one set of tests, in seconds.
        starter: code that the answer begins with, in LiveCodeBench.
        reference: a right program; "" if the record has none.
        owner: class whose method the function is; "" for none.
    """

    function: str
    head: str
    body_of: str
    tests: Mapping[str, Tests]
    timeout_s: float
    starter: str = ""
    reference: str = ""
    owner: str = ""


class CodeSuite(AnsweredSuite):
    """Programs judged by tests."""

    max_new_tokens = 768

    def __init__(self, name: str, options: SuiteOptions) -> None:
        """Read the questions.

        Raises:
            DataError: if the data cannot be used.
        """
        self.name, self.options = name, options
        self.questions: Sequence[Question]
        self.problems: dict[str, Problem] = {}
        questions = []
        for question, problem in _problems(name, options):
            questions.append(question)
            self.problems[question.id] = problem
        self.questions = questions
        check_ids(name, questions)
        self.measures = dict(self._measures())

    def _measures(self) -> Iterator[tuple[str, Measure]]:
        ks = [k for k in KS if k <= self.options.samples]
        for k in ks:
            about = f"share of questions that {k} answer{'s' * (k > 1)} would solve"
            yield f"pass@{k}", Measure(Ratio((f"pass@{k}",), (QUESTIONS,), share=True), about=about)
        if any("base" in one.tests for one in self.problems.values()):
            for k in ks:
                about = "by the original tests alone"
                yield f"base_pass@{k}", Measure(Ratio((f"base_pass@{k}",), (QUESTIONS,), share=True), about=about)
        yield "parses", mean_of("parses", share=True, about="programs that Python can parse")
        yield "timeout", mean_of("timeout", "lower", share=True, about="programs that exceed the time limit")
        yield "cut", mean_of("cut", "lower", share=True, about="answers that the length limit cut")
        about = "passes that a program written against the sandbox could have forged"
        yield "forgeable", Measure(Ratio(("forgeable",), ("passed",)), "lower", False, about)

    def identity(self) -> dict[str, Any]:
        """Return the questions and the limits."""
        one = self.options
        limits = {"timeout_s": one.timeout_s, "memory_mb": one.memory_mb, "accept_weaker": one.accept_weaker}
        ids = [[name, repr(problem)] for name, problem in self.problems.items()]
        tests = digest_of_questions([Question(name, text) for name, text in ids])
        return {"suite": self.name, "questions": digest_of_questions(self.questions), "tests": tests, **limits}

    def check(self) -> None:
        """Start the sandbox once.

        Raises:
            SandboxError: if programs cannot be isolated on this machine.
        """
        Sandbox(workers=1, accept_weaker=self.options.accept_weaker).close()

    def program(self, answer: Answer) -> str:
        """Return the program in an answer, as it runs."""
        problem = self.problems[answer.question]
        if answer.continues:
            program = problem.body_of + answer.text
        else:
            body_of = problem.body_of if problem.function and f"def {problem.function}" in problem.body_of else ""
            program = program_of_chat(
                answer.text, function=problem.owner or problem.function, head=problem.head, prompt=body_of
            )
        if problem.function and any(livecodebench.CALLED in str(one) for one in problem.tests.values()):
            return livecodebench.with_call(program, problem.function, problem.starter)
        return program

    def score(self, answered: Sequence[Answered], folder: Path) -> list[Scores]:
        """Return for each answer whether its program passes, and why not; equal programs run once."""
        programs = [self.program(one.answer) for one in answered]
        jobs = {
            (one.question.id, program, name): (program, tests, self._timeout(one.question.id))
            for one, program in zip(answered, programs, strict=True)
            for name, tests in self.problems[one.question.id].tests.items()
        }
        results = dict(zip(jobs, self._run(list(jobs.values())), strict=True))
        found = []
        for one, program in zip(answered, programs, strict=True):
            own = {name: results[one.question.id, program, name] for name in self.problems[one.question.id].tests}
            found.append(_scores(one.answer, program, own))
        return found

    def _timeout(self, question: str) -> float:
        return self.options.timeout_s or self.problems[question].timeout_s

    def _run(self, jobs: Sequence[tuple[str, Tests, float]]) -> list[Result]:
        """Return the results of programs; those with the same limit run together."""
        results: dict[int, Result] = {}
        with (
            Sandbox(accept_weaker=self.options.accept_weaker) as sandbox,
            Progress(f"{self.name}: programs", len(jobs), unit="program") as progress,
        ):
            for limit in sorted({limit for _, _, limit in jobs}):
                rows = [row for row, job in enumerate(jobs) if job[2] == limit]
                for start in range(0, len(rows), _AT_ONCE):
                    some = rows[start : start + _AT_ONCE]
                    chunk = [jobs[row][:2] for row in some]
                    memory = self.options.memory_mb
                    for row, result in zip(
                        some, sandbox.run_many(chunk, timeout_s=limit, memory_mb=memory), strict=True
                    ):
                        results[row] = result
                        progress.advance()
        return [results[row] for row in range(len(jobs))]

    def counts(self, question: Question, scores: Sequence[Scores]) -> Counts:
        """Return the sums, and the estimates of pass@k."""
        found = {**sums(scores), "answers": float(len(scores)), QUESTIONS: 1.0}
        for prefix in ("", "base_"):
            passed = sum(bool(one.get(f"{prefix}passed")) for one in scores)
            for k in KS:
                if k <= len(scores):
                    found[f"{prefix}pass@{k}"] = pass_at_k(len(scores), passed, k)
        return found


def pass_at_k(answers: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the share of draws of k answers that hold one that passes (arXiv 2107.03374).

    Example:
        >>> round(pass_at_k(5, 2, 2), 6)  # 1 - C(3, 2) / C(5, 2) = 1 - 3 / 10
        0.7
    """
    return 1.0 - comb(answers - passed, k) / comb(answers, k)


def _scores(answer: Answer, program: str, results: Mapping[str, Result]) -> Scores:
    worst = next((one for one in results.values() if not one.passed), next(iter(results.values())))
    passed = all(one.passed for one in results.values())
    scores: dict[str, Any] = {
        "passed": passed,
        "reason": worst.reason,
        "error": "" if passed else _last_line(worst.output),
        "parses": parses(program),
        "timeout": worst.reason == "timeout",
        "cut": answer.finish[0] == "length",
        "forgeable": passed and any(one.forgeable for one in results.values()),
    }
    if "base" in results:
        scores["base_passed"] = results["base"].passed
    return scores


def _last_line(output: str) -> str:
    return output.strip().rpartition("\n")[2][:200]


def _problems(suite: str, options: SuiteOptions) -> Iterator[tuple[Question, Problem]]:
    """Yield the questions of a suite and what judges them."""
    for entry in entries_of(suite, options, SOURCES[suite]):
        record = json_object(entry.record, entry.where)
        kind = next((read for keys, read in _FORMATS if all(key in record for key in keys)), None)
        if kind is None:
            raise DataError(
                f"{entry.where}: no record of HumanEval (entry_point, test), MBPP (test_list), EvalPlus (base_input) "
                f"or LiveCodeBench (public_test_cases): {keys_of(record)}"
            )
        yield kind(record, entry.where)


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise bad_record(where, f'"{key}" must be a text that is not empty')
    return value


def _in_block(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _function_question(task: str, prompt: str) -> Question:
    return Question(task, f"{_ASK_FUNCTION}\n\n{_in_block(prompt)}", continuation=prompt, stop=STOPS)


def _of_humaneval(record: Mapping[str, Any], where: str) -> tuple[Question, Problem]:
    prompt, name = _text(record, "prompt", where), _text(record, "entry_point", where)
    tests = {"tests": f"{_text(record, 'test', where)}\ncheck({name})"}
    reference = prompt + str(record.get("canonical_solution") or "")
    question = _function_question(_text(record, "task_id", where), prompt)
    return question, Problem(name, head_of(prompt, name), prompt, tests, _TIMEOUT_S, "", reference)


def _of_evalplus(record: Mapping[str, Any], where: str) -> tuple[Question, Problem]:
    prompt, name, task = (_text(record, key, where) for key in ("prompt", "entry_point", "task_id"))
    if not isinstance(record.get("canonical_solution"), str):
        raise bad_record(where, '"canonical_solution" must be a text')
    reference = prompt + str(record["canonical_solution"])
    sets = {"base": "base_input", "plus": "plus_input"}
    tests = {label: evalplus.tests_of(record, key, where) for label, key in sets.items() if record.get(key)}
    if head_of(prompt, name) or f"def {name}" in prompt:
        question, head = _function_question(task, prompt), head_of(prompt, name)
    else:  # MBPP+: a docstring with the problem and one assertion
        told = prompt.strip().strip('"').strip()
        ask = f"{_ASK}\n\n{told}"
        question, head = Question(task, ask, continuation=prompt, stop=('\n"""', "\nassert", "\nprint(", "\n```")), ""
    return question, Problem(name, head, prompt, tests, _LONG_TIMEOUT_S, "", reference)


def _of_mbpp(record: Mapping[str, Any], where: str) -> tuple[Question, Problem]:
    told = str(record.get("prompt") or record.get("text") or "").strip()
    listed = record["test_list"]
    if not told or not isinstance(listed, list) or not listed or not all(isinstance(one, str) for one in listed):
        raise bad_record(where, '"prompt" (or "text") must be a text, and "test_list" a list of assertions')
    setup = [*(record.get("test_imports") or []), str(record.get("test_setup_code") or "")]
    tests = "\n".join([*(one for one in setup if one), *listed])
    if isinstance(record.get("test"), str) and record["test"].strip():  # the plus version on the hub
        tests = str(record["test"])
    reference = str(record.get("code") or "")
    name = _function_in(listed[0], reference)
    prompt = f'"""\n{told}\n{listed[0]}\n"""\n'
    ask = f"{_ASK}\n\n{told}\nIt must pass this test:\n\n{_in_block(listed[0])}"
    stop = ('\n"""', "\nassert", "\nprint(", "\nif __name__", "\n```")
    question = Question(str(record["task_id"]), ask, continuation=prompt, stop=stop)
    return question, Problem(name, "", prompt, {"tests": tests}, _TIMEOUT_S, "", reference)


def _function_in(test: str, reference: str) -> str:
    """Return the function of the reference that a test calls, or else the first that the test calls."""
    try:
        called = [
            node.func.id
            for node in ast.walk(ast.parse(test))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
    except SyntaxError:
        called = []
    defined = set(re.findall(r"^(?:async )?def (\w+)", reference, re.MULTILINE))
    return next((name for name in called if name in defined), called[0] if called else "")


def _of_livecodebench(record: Mapping[str, Any], where: str) -> tuple[Question, Problem]:
    told, starter = _text(record, "question_content", where), str(record.get("starter_code") or "")
    function = livecodebench.function_of(record)
    cases = livecodebench.cases_of(record, where)
    if cases[0]["testtype"] == "functional" and not function:
        raise bad_record(where, '"metadata" must name the function in question ("func_name")')
    form = (
        f"Use this beginning:\n\n{_in_block(starter)}"
        if starter.strip()
        else "Read the input from standard input, and write the answer to standard output."
    )
    question = Question(_text(record, "question_id", where), f"{_ASK}\n\n{told}\n\n{form}")
    called = function if cases[0]["testtype"] == "functional" else ""
    head = "from typing import *\n" if starter.strip() else ""
    limit = _CASE_TIMEOUT_S * (len(cases) if called else 1)
    owner = "Solution" if called and "class Solution" in starter else ""
    tests = {"tests": livecodebench.tests_of(cases)}
    return question, Problem(called, head, "", tests, limit, starter, owner=owner)


_FORMATS: Sequence[tuple[tuple[str, ...], Callable[[Mapping[str, Any], str], tuple[Question, Problem]]]] = (
    (("base_input",), _of_evalplus),
    (("entry_point", "test"), _of_humaneval),
    (("test_list",), _of_mbpp),
    (("public_test_cases",), _of_livecodebench),
)
"""Keys of a record → its reader; the first that fits."""
