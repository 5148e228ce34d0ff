"""The command line: `text2grad <command>`. Each command is a module of this package; it imports torch when it runs."""

import argparse
import errno
import os
import shlex
import signal
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points, version
from typing import Any

from rich.console import Console

from text2grad.cli import (
    annotate,
    compare,
    doctor,
    evaluate_critic,
    evaluate_pairs,
    evaluate_policy,
    feedback_check,
    feedback_export,
    feedback_import,
    feedback_prepare,
    feedback_retract,
    generate,
    quickstart,
    recipe,
    reward,
    serve,
    sft,
    train,
    why,
    without,
)
from text2grad.cli.log import configure_log, open_streams, write_nowhere
from text2grad.config import signals_interrupt
from text2grad.errors import Interrupted, OutOfMemory, Text2GradError, is_out_of_memory
from text2grad_sandbox import SandboxError

VERBOSITY = ("-q", "--quiet", "-v", "--verbose")
EXIT_ERROR = 2
EXIT_OUT_OF_MEMORY = 1
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, somebody's share of it, or the largest file
SPINS = "1000"  # looks of a thread of torch at the others' parts before it sleeps (libgomp's variable)
# Threads usually spin for milliseconds, which are lost where one of the others waits for a core: beside one busy
# process, fine-tuning a small model on two cores took 50 times as long. Alone, few spins cost 5 to 10 %.


class CommandParser(argparse.ArgumentParser):
    """A parser that tells what a command which does not exist may mean."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse an unknown command with the nearest one."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            nearest = get_close_matches(value, action.choices, n=1)
            ways = f"did you mean `{nearest[0]}`?" if nearest else f"the commands are {', '.join(action.choices)}"
            self.error(f"there is no command `{value}`; {ways}")
        super()._check_value(action, value)


def parser(more: Iterable[Any] = (), *, prog: str = "text2grad") -> argparse.ArgumentParser:
    """Return the parser of all commands.

    Args:
        more: modules of further commands, each with `add_parser(subparsers)` and `run(args)`.
        prog: the name of the program in its texts.
    """
    top = CommandParser(
        prog=prog,
        description="Reinforcement learning from critiques in words: the quotes of a critique become spans of the "
        "response, spans become per-token rewards, rewards become the policy gradient (Text2Grad, arXiv 2505.22338).",
        epilog=f"`{prog} COMMAND --help` explains each command. -q and -v may also stand after the command.",
    )
    top.add_argument("--version", action="version", version=f"text2grad {version('text2grad')}")
    loudness = top.add_mutually_exclusive_group()
    loudness.add_argument("-q", "--quiet", action="store_true", help="only results and warnings, without bars and log")
    loudness.add_argument("-v", "--verbose", action="store_true", help="a line for every step, and libraries' notes")
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    installed = [entry.load() for entry in entry_points(group="text2grad.commands")]  # commands of other packages
    quickstart.add_parser(commands)
    about = "annotations from data sets and other formats, and as a data set with a card"
    kinds = (feedback_prepare, feedback_import, feedback_check, feedback_export, feedback_retract)
    _add_group(commands, "feedback", about, kinds)
    for module in (annotate, sft, reward, train):
        module.add_parser(commands)
    about = "measure policies, critics, and pairs of texts"
    _add_group(commands, "evaluate", about, (evaluate_policy, evaluate_critic, evaluate_pairs))
    for module in (generate, compare, why, without, serve, *installed, recipe, doctor, *more):
        module.add_parser(commands)
    return top


def _add_group(commands: Any, name: str, about: str, modules: Iterable[Any]) -> None:
    """Add a command that has commands of its own."""
    group = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
    below = group.add_subparsers(required=True, metavar="command")
    for module in modules:
        module.add_parser(below)


def main(argv: Sequence[str] | None = None, more: Iterable[Any] = (), *, prog: str = "text2grad") -> int:
    """Run a command and return its exit code; the arguments beside `argv` are those of `parser`.

    0: success; 1: out of memory; 2: another error; 130, 143 and 129: stopped by Ctrl-C, SIGTERM and SIGHUP. Standard
    error has the explanation, or the command that continues.
    """
    open_streams()
    argv = sys.argv[1:] if argv is None else argv
    loudness = [word for word in argv if word in VERBOSITY]  # may stand anywhere
    args = parser(more, prog=prog).parse_args([*loudness, *(word for word in argv if word not in VERBOSITY)])
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when torch is imported, which commands do later
    configure_log(quiet=args.quiet, verbose=args.verbose)
    try:
        with signals_interrupt():
            doctor.check_extras(args.called, args.extras)
            return int(args.run(args))
    except Interrupted as error:
        return _stopped(error.signal, f"{error}. ", prog, argv, args, saved=True)
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        saved = hasattr(args, "directory") and (args.directory / "run.json").exists()
        return _stopped(number, "interrupted. ", prog, argv, args, saved=saved)
    except (MemoryError, RuntimeError) as error:  # while a model loads, say
        if not is_out_of_memory(error):
            raise
        needs = "`text2grad train RECIPE --dry-run` shows what a run needs"
        return _failed(f"out of memory; {needs}. ({error})", EXIT_OUT_OF_MEMORY)
    except BrokenPipeError:  # `| head` has read enough
        write_nowhere()
        return 128 + signal.SIGPIPE
    except OSError as error:  # a full disk, say; without a file it is no user's
        if error.filename is None and error.errno not in FULL:
            raise
        place = error.filename or "a file or the output"
        saved = "; what was saved before is whole" if error.errno in FULL else ""
        return _failed(f"cannot read or write {place}: {error.strerror}{saved}", EXIT_ERROR)
    except (Text2GradError, SandboxError) as error:
        code = EXIT_OUT_OF_MEMORY if isinstance(error, OutOfMemory) else EXIT_ERROR
        return _failed(f"{type(error).__name__}: {error}", code)


def _failed(message: str, code: int) -> int:
    Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
    return code


def _stopped(
    number: int, message: str, prog: str, argv: Sequence[str], args: argparse.Namespace, *, saved: bool
) -> int:
    """Print the command that continues, from saved steps where there are some; return the exit code of a signal."""
    more = ["--resume"] if saved and getattr(args, "resume", None) is False else []
    command = " ".join([prog, shlex.join([*argv, *more])])
    Console(stderr=True, soft_wrap=True).print(f"{message}Continue with: {command}", markup=False, highlight=False)
    return 128 + number


if __name__ == "__main__":
    sys.exit(main())
