"""The suites by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import NamedTuple

from text2grad.errors import ConfigError, check_known
from text2grad.evaluation.suite import Suite, SuiteOptions


class SuiteKind(NamedTuple):
    """A kind of suite: how one is made, and a line for `--help`."""

    make: Callable[[SuiteOptions], Suite]
    about: str


def _suite(place: str, *name: str) -> Callable[[SuiteOptions], Suite]:
    """Return the maker of a suite, "module:class"; the module is imported with the first suite, not for `--help`."""

    def make(options: SuiteOptions) -> Suite:
        module, _, kind = place.partition(":")
        found: Suite = getattr(import_module(f"text2grad.evaluation.suites.{module}"), kind)(*name, options)
        return found

    return make


SUITES: Mapping[str, SuiteKind] = {
    "summarization": SuiteKind(
        _suite("text:SummarizationSuite"), "ROUGE, BLEU, chrF, BERTScore, perplexity of summaries"
    ),
    "perplexity": SuiteKind(_suite("text:PerplexitySuite"), "perplexity of texts under the model itself"),
    "alpaca_eval": SuiteKind(
        _suite("alpaca_eval:AlpacaEvalSuite"),
        "AlpacaEval 2: win rate against a baseline, length-controlled, by a judge",
    ),
    "mt_bench": SuiteKind(_suite("mt_bench:MTBenchSuite"), "MT-Bench: ratings of two turns by a judge"),
    "mt_bench_pairs": SuiteKind(
        _suite("mt_bench:MTBenchPairsSuite"), "MT-Bench: both turns against another model's, by a judge"
    ),
    "code": SuiteKind(_suite("code:CodeSuite", "code"), "pass@k of programs; the format of --data decides"),
    "humaneval": SuiteKind(_suite("code:CodeSuite", "humaneval"), "pass@k on HumanEval"),
    "humaneval+": SuiteKind(
        _suite("code:CodeSuite", "humaneval+"), "pass@k on HumanEval+, by EvalPlus's inputs and rules"
    ),
    "mbpp": SuiteKind(_suite("code:CodeSuite", "mbpp"), "pass@k on MBPP"),
    "mbpp+": SuiteKind(_suite("code:CodeSuite", "mbpp+"), "pass@k on MBPP+, by EvalPlus's inputs and rules"),
    "livecodebench": SuiteKind(_suite("code:CodeSuite", "livecodebench"), "pass@k on a file of LiveCodeBench"),
    "grounding": SuiteKind(
        _suite("grounding:GroundingSuite"), "unsupported names and numbers in answers from a passage"
    ),
    "arc": SuiteKind(_suite("knowledge:LMEvalSuite", "arc"), "ARC-Challenge by lm-eval"),
}
GROUPS: Mapping[str, Sequence[str]] = {"chat": ("alpaca_eval", "mt_bench", "mt_bench_pairs")}
"""Name → suites that it stands for, of which those with data are taken."""

ALL, LM_EVAL = "all", "lm-eval:"
COMPARING = ("alpaca_eval", "mt_bench_pairs")
"""Suites that compare with the answers of another model (`--against`)."""


def make_suites(
    names: Sequence[str], data: Sequence[str], options: SuiteOptions, against: Sequence[str] = ()
) -> list[Suite]:
    """Return the suites that a command line names, with their data.

    Args:
        names: of suites, of groups, or "all", which takes every suite that `data` names.
        data: FILE for a single suite, or SUITE=FILE.
        options: of all suites.
        against: FILE for a single suite, or SUITE=FILE: answers to compare with, of chat suites.

    Raises:
        ConfigError: if a name is unknown, or it is not clear to which suite a file belongs.
        DataError: if the data of a suite cannot be used.
    """
    files = _files(names, data)
    chosen = _chosen(names, files)
    unused = [name for name in files if name not in chosen]
    if unused:
        raise ConfigError(f"--data {unused[0]}=…: this suite is not evaluated; add --suite {unused[0]}")
    others = _files(names, against, "--against")
    if odd := [name for name in others if name not in COMPARING]:
        raise ConfigError(f"--against {odd[0]}=…: suite {odd[0]} compares with no answers; leave it out")
    return [
        _kind(name).make(replace(options, data=files.get(name, ""), against=others.get(name, ""))) for name in chosen
    ]


def _kind(name: str) -> SuiteKind:
    return SuiteKind(_suite("knowledge:LMEvalSuite", name), "") if name.startswith(LM_EVAL) else SUITES[name]


def _is_suite(name: str) -> bool:
    return name in SUITES or (name.startswith(LM_EVAL) and name != LM_EVAL)


def _files(names: Sequence[str], data: Sequence[str], option: str = "--data") -> dict[str, str]:
    """Return the file of each suite."""
    found: dict[str, str] = {}
    for given in data:
        name, sign, path = given.partition("=")
        if sign and _is_suite(name):
            found[name] = path
        elif len(names) == 1 and _is_suite(names[0]) and not found:
            found[names[0]] = given
        else:
            raise ConfigError(
                f"{option} {given}: say to which suite this belongs: {option} SUITE=FILE, with a suite of "
                f"{', '.join(SUITES)}"
            )
    return found


def _chosen(names: Sequence[str], files: Mapping[str, str]) -> list[str]:
    """Return the names of the suites, each once."""
    chosen: dict[str, None] = {}
    for name in names:
        if _is_suite(name):
            chosen[name] = None
            continue
        check_known("--suite", name, [*SUITES, f"{LM_EVAL}TASK", *GROUPS, ALL])
        members = [one for one in GROUPS.get(name, SUITES) if one in files]
        if not members:
            raise ConfigError(
                f"--suite {name} takes the suites that --data names, and it names none of "
                f"{', '.join(GROUPS.get(name, SUITES))}; give --data SUITE=FILE"
            )
        chosen |= dict.fromkeys(members)
    return list(chosen)
