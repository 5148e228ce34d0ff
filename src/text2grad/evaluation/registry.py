"""The suites by name."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from text2grad.errors import ConfigError, DataError, check_known

if TYPE_CHECKING:
    from text2grad.evaluation.suite import Suite, SuiteOptions

LM_EVAL = "lm-eval:"


class SuiteKind(NamedTuple):
    """A kind of suite: how one is made, and a line for `--help`."""

    make: "Callable[[SuiteOptions], Suite]"
    about: str


SUITES: dict[str, SuiteKind] = {}


def register_suite(name: str, make: "Callable[[SuiteOptions], Suite]", about: str = "") -> None:
    """Make a suite known by a name; a module that does so is named by `--suite MODULE:NAME`."""
    SUITES[name] = SuiteKind(make, about)


def _ours(place: str, options: "SuiteOptions") -> "Suite":
    """Return a suite, "module:class"; the module is imported with the first suite, not for `--help`."""
    module, _, kind = place.partition(":")
    suite: Suite = getattr(import_module(f"text2grad.evaluation.suites.{module}"), kind)(options)
    return suite


for _name, _place, _about in (
    ("summarization", "text:SummarizationSuite", "ROUGE, BLEU, BERTScore, perplexity of summaries"),
    ("alpaca_eval", "alpaca_eval:AlpacaEvalSuite", "AlpacaEval 2: win rate, also length-controlled, by a judge"),
    ("mt_bench", "mt_bench:MTBenchSuite", "MT-Bench: ratings of two turns by a judge"),
    ("code", "code:CodeSuite", "pass@k of programs; the format of the data decides"),
    ("humaneval", "code:CodeSuite", "pass@k on HumanEval"),
    ("humaneval+", "code:CodeSuite", "pass@k on HumanEval+"),
    ("mbpp", "code:CodeSuite", "pass@k on MBPP"),
    ("mbpp+", "code:CodeSuite", "pass@k on MBPP+"),
    ("arc", "knowledge:LMEvalSuite", "ARC-Challenge by lm-eval"),
):
    register_suite(_name, partial(_ours, _place), _about)


def make_suites(given: Sequence[str], options: "SuiteOptions") -> "list[Suite]":
    """Return the suites that a command line names, each as NAME, or with its data as NAME=FILE.

    Names are of suites, "lm-eval:TASK", or "MODULE:NAME", a suite that a module registers.

    Raises:
        ConfigError: if a name is unknown, or named twice.
        DataError: if the data of a suite cannot be used.
    """
    data: dict[str, str] = {}
    for text in given:
        place, _, file = text.partition("=")
        name = _imported(place)
        if name in data:
            raise ConfigError(f"--suite {text}: the suite {name} is named twice; name it once")
        data[name] = file
    lm_eval = SuiteKind(partial(_ours, "knowledge:LMEvalSuite"), "")
    suites = [SUITES.get(name, lm_eval).make(replace(options, suite=name, data=file)) for name, file in data.items()]
    for suite in suites:
        ids = Counter(question.id for question in suite.questions)
        name, count = ids.most_common(1)[0] if ids else ("", 0)
        if count > 1:
            raise DataError(
                f"suite {suite.name}: {count} questions have the id {name!r}, so that their answers could not be told "
                "apart; change the others"
            )
    return suites


def _imported(name: str) -> str:
    """Return a known name; of MODULE:NAME, the name, which the module registers."""
    if name in SUITES or name.startswith(LM_EVAL):
        return name
    module, colon, own = name.partition(":")
    if colon:
        try:
            import_module(module)
        except ImportError as error:
            raise ConfigError(f"--suite {name}: cannot import {module}: {error}; name a module of Python") from error
    check_known("--suite", own or name, [*SUITES, f"{LM_EVAL}TASK", "MODULE:NAME"])
    return own
