"""The suites by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import NamedTuple

from text2grad.errors import ConfigError, DataError, check_known
from text2grad.evaluation.suite import AnsweredSuite, Suite, SuiteOptions

ALL, LM_EVAL = "all", "lm-eval:"


class SuiteKind(NamedTuple):
    """A kind of suite: how one is made, and a line for `--help`."""

    make: Callable[[SuiteOptions], Suite]
    about: str


SUITES: dict[str, SuiteKind] = {}


def register_suite(name: str, make: Callable[[SuiteOptions], Suite], about: str = "") -> None:
    """Make a suite known by a name; a module that does so is named by `--suite MODULE:NAME`."""
    SUITES[name] = SuiteKind(make, about)


def _ours(place: str, options: SuiteOptions) -> Suite:
    """Return a suite, "module:class"; the module is imported with the first suite, not for `--help`."""
    module, _, kind = place.partition(":")
    suite: Suite = getattr(import_module(f"text2grad.evaluation.suites.{module}"), kind)(options)
    return suite


for _name, _place, _about in (
    ("summarization", "text:SummarizationSuite", "ROUGE, BLEU, BERTScore, perplexity of summaries"),
    ("perplexity", "text:PerplexitySuite", "perplexity of texts under the model itself"),
    ("alpaca_eval", "alpaca_eval:AlpacaEvalSuite", "AlpacaEval 2: win rate, also length-controlled, by a judge"),
    ("mt_bench", "mt_bench:MTBenchSuite", "MT-Bench: ratings of two turns by a judge"),
    ("code", "code:CodeSuite", "pass@k of programs; the format of --data decides"),
    ("humaneval", "code:CodeSuite", "pass@k on HumanEval"),
    ("humaneval+", "code:CodeSuite", "pass@k on HumanEval+"),
    ("mbpp", "code:CodeSuite", "pass@k on MBPP"),
    ("mbpp+", "code:CodeSuite", "pass@k on MBPP+"),
    ("arc", "knowledge:LMEvalSuite", "ARC-Challenge by lm-eval"),
):
    register_suite(_name, partial(_ours, _place), _about)
_OF_LM_EVAL = SuiteKind(partial(_ours, "knowledge:LMEvalSuite"), "a task of lm-eval")


def make_suites(names: Sequence[str], data: Sequence[str], options: SuiteOptions) -> list[Suite]:
    """Return the suites that a command line names, with their data: FILE for a single suite, or SUITE=FILE.

    Names are of suites, "lm-eval:TASK", "MODULE:NAME", or "all", which takes every suite that `data` names.

    Raises:
        ConfigError: if a name is unknown, or it is not clear to which suite a file belongs.
        DataError: if the data of a suite cannot be used.
    """
    names = [_imported(name) for name in names]
    files = _files(names, data)
    chosen = dict.fromkeys(name for given in names for name in (files if given == ALL else [given]))
    if not chosen:
        raise ConfigError("--suite all takes the suites that --data names, and it names none; give --data SUITE=FILE")
    if unused := [name for name in files if name not in chosen]:
        raise ConfigError(f"--data {unused[0]}=…: this suite is not evaluated; add --suite {unused[0]}")
    suites = [
        SUITES.get(name, _OF_LM_EVAL).make(replace(options, suite=name, data=files.get(name, ""))) for name in chosen
    ]
    for suite in suites:
        if isinstance(suite, AnsweredSuite):
            _refuse_equal_ids(suite)
    return suites


def _is_suite(name: str) -> bool:
    return name in SUITES or name.startswith(LM_EVAL)


def _imported(name: str) -> str:
    """Return a known name; of MODULE:NAME, the name, which the module registers."""
    if name == ALL or _is_suite(name):
        return name
    module, colon, own = name.partition(":")
    if colon:
        try:
            import_module(module)
        except ImportError as error:
            raise ConfigError(f"--suite {name}: cannot import {module}: {error}; name a module of Python") from error
    check_known("--suite", own or name, [*SUITES, f"{LM_EVAL}TASK", "MODULE:NAME", ALL])
    return own


def _files(names: Sequence[str], given: Sequence[str]) -> Mapping[str, str]:
    """Return the file of each suite."""
    files: dict[str, str] = {}
    for text in given:
        name, sign, path = text.partition("=")
        if sign and _is_suite(name):
            files[name] = path
        elif len(names) == 1 and names[0] != ALL and not files:
            files[names[0]] = text
        else:
            raise ConfigError(
                f"--data {text}: say to which suite this belongs: --data SUITE=FILE, with one of {', '.join(SUITES)}"
            )
    return files


def _refuse_equal_ids(suite: AnsweredSuite) -> None:
    known: set[str] = set()
    for number, question in enumerate(suite.questions, start=1):
        if question.id in known:
            raise DataError(
                f"suite {suite.name}: question {number} has the id {question.id!r} of an earlier one, so that their "
                "answers could not be told apart; change one of them"
            )
        known.add(question.id)
