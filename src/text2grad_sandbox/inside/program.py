"""A program in a process of its own: it serves the calls of the judge, or runs as a script."""

import atexit
import sys
from os import _exit
from sys import setprofile, settrace

from .harness import Verdict, flush, frames_and_last_lines, module_of, send_verdict, verdict_of
from .peer import Ended, Program
from .values import BadMessage


def serve(channel: int, text: str, site: str | None) -> None:
    """Load a program, answer the judge's requests, and end the process with the judge."""
    module = module_of(text)
    program = Program(channel, module, lambda error: frames_and_last_lines(error, site))
    try:
        exec(compile(text, "solution.py", "exec", dont_inherit=True), vars(module))
    except BaseException as error:  # noqa: BLE001 - any exception of a program is an outcome
        program.fail(error)
        _exit(0)
    settrace(None)
    setprofile(None)
    try:
        program.send(["loaded"])
        program.serve_until_the_end()
    except (Ended, BadMessage):
        flush()
        _exit(0)


def run_script(channel: int, text: str, site: str | None, arguments: tuple[str, ...]) -> None:
    """Run a program as a script, which reads standard input; report how it ended, and end the process."""
    module = module_of(text, "__main__")
    sys.argv = ["solution.py", *arguments]
    verdict = Verdict("ended")
    try:
        exec(compile(text, "solution.py", "exec", dont_inherit=True), vars(module))
    except SystemExit as error:
        if error.code not in (None, 0):
            verdict = Verdict("error", f"The program exited with status {error.code!s:.100}.")
    except BaseException as error:  # noqa: BLE001 - any exception of a program is an outcome
        verdict = verdict_of(error, site=site)
    _finish()
    flush()
    send_verdict(channel, verdict)
    _exit(0)


def _finish() -> None:
    """Do as Python at its end: wait for the threads, then call the functions that `atexit` was given."""
    threading = sys.modules.get("threading")
    for step in (getattr(threading, "_shutdown", None), atexit._run_exitfuncs):
        try:
            if step is not None:
                step()
        except BaseException:  # noqa: BLE001 - Python prints such an exception, and goes on
            continue
