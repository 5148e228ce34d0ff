"""The log of a command: dated lines where standard output is a file, and what `--quiet` and `--verbose` change."""

import logging
import os
import sys
import time

from text2grad.progress import CONSOLE, LOG, STEPS, on_terminal

OTHER_LIBRARIES = {  # read when the libraries are imported, also by processes that a command starts
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


class Lines(logging.Handler):
    """Writes a line with date and time to a file; a warning to stderr; on a terminal, the text above the bars."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; where nobody reads any more (a closed pipe or terminal), the work goes on in silence."""
        text, warning = record.getMessage(), record.levelno >= logging.WARNING
        stream = sys.stderr if warning else sys.stdout
        try:
            if on_terminal():
                CONSOLE.print(text, style="yellow" if warning else None, markup=False, highlight=False, soft_wrap=True)
            else:
                when = time.strftime("%Y-%m-%d %H:%M:%S  ", time.localtime(record.created))
                stream.write(f"{'' if stream.isatty() else when}{text}\n")
                stream.flush()
        except OSError:
            write_nowhere()


def open_streams() -> None:
    """Let standard streams that were closed before the start lead nowhere: files that are opened would become them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def write_nowhere() -> None:
    """Let standard output and standard error lead nowhere, for good."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def configure_log(*, quiet: bool, verbose: bool) -> None:
    """Prepare the loggers of text2grad; bars of other libraries appear on a terminal only.

    Args:
        quiet: warnings and results only.
        verbose: a line for every step, and the notes of other libraries.
    """
    if not verbose and (quiet or not on_terminal()):
        for name, value in OTHER_LIBRARIES.items():
            os.environ.setdefault(name, value)
    LOG.handlers = [Lines()]
    LOG.propagate = False
    LOG.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    STEPS.propagate = verbose or not on_terminal()  # bars show the same
