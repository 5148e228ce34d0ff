"""The suites by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from text2grad.errors import ConfigError, check_known
from text2grad.evaluation.suite import Suite, SuiteOptions


class SuiteKind(NamedTuple):
    """A kind of suite: how one is made, and a line for `--help`."""

    make: Callable[[SuiteOptions], Suite]
    about: str


def _summarization(options: SuiteOptions) -> Suite:
    from text2grad.evaluation.suites.text import SummarizationSuite

    return SummarizationSuite(options)


def _perplexity(options: SuiteOptions) -> Suite:
    from text2grad.evaluation.suites.text import PerplexitySuite

    return PerplexitySuite(options)


SUITES: Mapping[str, SuiteKind] = {
    "summarization": SuiteKind(_summarization, "ROUGE, BLEU, chrF, BERTScore, perplexity of summaries"),
    "perplexity": SuiteKind(_perplexity, "perplexity of texts under the model itself"),
}
GROUPS: Mapping[str, Sequence[str]] = {}
"""Name → suites that it stands for, of which those with data are taken."""

ALL = "all"


def make_suites(names: Sequence[str], data: Sequence[str], options: SuiteOptions) -> list[Suite]:
    """Return the suites that a command line names, with their data.

    Args:
        names: of suites, of groups, or "all", which takes every suite that `data` names.
        data: FILE for a single suite, or SUITE=FILE.
        options: of all suites.

    Raises:
        ConfigError: if a name is unknown, or it is not clear to which suite a file belongs.
        DataError: if the data of a suite cannot be used.
    """
    files = _files(names, data)
    chosen = _chosen(names, files)
    unused = [name for name in files if name not in chosen]
    if unused:
        raise ConfigError(f"--data {unused[0]}=…: this suite is not evaluated; add --suite {unused[0]}")
    return [_kind(name).make(replace(options, data=files.get(name, ""))) for name in chosen]


def _kind(name: str) -> SuiteKind:
    check_known("--suite", name, [*SUITES, *GROUPS, ALL])
    return SUITES[name]


def _files(names: Sequence[str], data: Sequence[str]) -> dict[str, str]:
    """Return the file of each suite."""
    found: dict[str, str] = {}
    for given in data:
        name, sign, path = given.partition("=")
        if sign and name in SUITES:
            found[name] = path
        elif len(names) == 1 and names[0] in SUITES and not found:
            found[names[0]] = given
        else:
            raise ConfigError(
                f"--data {given}: say to which suite this belongs: --data SUITE=FILE, with a suite of "
                f"{', '.join(SUITES)}"
            )
    return found


def _chosen(names: Sequence[str], files: Mapping[str, str]) -> list[str]:
    """Return the names of the suites, each once."""
    chosen: dict[str, None] = {}
    for name in names:
        if name in SUITES:
            chosen[name] = None
            continue
        check_known("--suite", name, [*SUITES, *GROUPS, ALL])
        members = [one for one in GROUPS.get(name, SUITES) if one in files]
        if not members:
            raise ConfigError(
                f"--suite {name} takes the suites that --data names, and it names none of "
                f"{', '.join(GROUPS.get(name, SUITES))}; give --data SUITE=FILE"
            )
        chosen |= dict.fromkeys(members)
    return list(chosen)
