"""`python -m evidence <command>`, from a clone: the commands of text2grad, and those of the experiments."""

import sys

from evidence import register
from evidence.commands import align, analyse, experiment, prepare_grounded, results, rival, tune
from text2grad.cli import main

COMMANDS = (prepare_grounded, align, rival, tune, experiment, results, analyse)


if __name__ == "__main__":
    register()
    sys.exit(main(None, COMMANDS, prog="python -m evidence"))
