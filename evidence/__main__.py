"""`python -m evidence <command>`, from a clone: the commands of text2grad, and those of the experiments."""

import sys
from collections.abc import Sequence

from evidence import register
from evidence.commands import (
    align,
    analyse,
    experiment,
    fetch_model,
    pairs,
    people,
    prepare_grounded,
    results,
    reward_baseline,
    rival,
    study,
    tune,
)
from text2grad import cli

COMMANDS = (
    fetch_model,
    prepare_grounded,
    pairs,
    people,
    study,
    align,
    reward_baseline,
    rival,
    tune,
    experiment,
    results,
    analyse,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of text2grad or of the experiments, and return its exit code."""
    register()
    return cli.main(argv, COMMANDS, prog="python -m evidence")


if __name__ == "__main__":
    sys.exit(main())
