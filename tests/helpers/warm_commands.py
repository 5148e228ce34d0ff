"""Commands in processes that begin with the libraries loaded: seconds of imports are spent once, not per command.

`serving` starts a process that imports torch, transformers and TRL, then forks for each command that the client sends:
the client is this file as a script, and passes on its arguments, folder, environment, stdin, stdout and stderr.

    python tests/helpers/warm_commands.py SOCKET text2grad train my.toml      → text2grad.cli.main(["train", "my.toml"])
    python tests/helpers/warm_commands.py SOCKET python check.py              → check.py as __main__
    python tests/helpers/warm_commands.py SOCKET torchrun --nproc-per-node 8 -m text2grad.cli train my.toml
                                     → the launcher's own parser reads its options; the command runs in one process
"""

import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

LOADED = (
    "accelerate.commands.launch",
    "matplotlib.figure",
    "torch.distributed.run",
    "trl",
    "text2grad.experiments.recipe_run",
    "text2grad.reward_models.training.run",
)
MOST_BYTES = 1 << 20  # of a command with its environment


@contextmanager
def serving(path: Path) -> Iterator[None]:
    """Start the process that forks, and end it."""
    command = [sys.executable, __file__, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.kill()


def ask(path: str, argv: Sequence[str]) -> int:
    """Have a command run, and return its exit code."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        request = json.dumps({"argv": argv, "cwd": os.getcwd(), "environment": dict(os.environ)}).encode()
        socket.send_fds(client, [request], [0, 1, 2])
        code = client.recv(1)
    return code[0] if code else 1  # no answer: the process was killed


def serve(path: str) -> None:
    """Import the libraries, then fork for each request."""
    for module in LOADED:
        import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a fork would read, and so copy, all that was imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            client, _ = server.accept()
            request, files, _, _ = socket.recv_fds(client, MOST_BYTES, 3)
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                code = _forked(json.loads(request), files)
                client.send(bytes([code]))
                os._exit(0)
            client.close()
            for file in files:
                os.close(file)


def _forked(request: dict[str, object], files: Sequence[int]) -> int:
    """Become the process of a command: its streams, folder, environment and arguments."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    try:
        return _run(*request["argv"])  # type: ignore[misc]
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(end.code)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (Exception, KeyboardInterrupt):  # noqa: BLE001  a command ends as a Python process does
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _run(program: str, *argv: str) -> int:
    if program == "python":
        import runpy

        sys.argv, sys.path[0] = list(argv), str(Path(argv[0]).resolve().parent)
        runpy.run_path(argv[0], run_name="__main__")
        return 0
    from text2grad.cli import main

    sys.argv, sys.path[0] = ["text2grad", *argv], ""
    command = _command(program, argv)
    _empty_run(command)
    return main(command)


def _empty_run(argv: Sequence[str]) -> None:
    """Remove the run in the directory of a command that begins one."""
    from text2grad.cli.__main__ import parser
    from text2grad.cli.options import shorthands
    from text2grad.config import load_recipe

    args = parser().parse_args(argv)
    if args.command in ("train", "reward", "sft") and not args.resume:
        recipe = load_recipe(args.recipe, [*args.overrides, *shorthands({"run.out": args.out})])
        shutil.rmtree(recipe.run.out, ignore_errors=True)


def _command(program: str, argv: Sequence[str]) -> Sequence[str]:
    """Return the arguments of text2grad out of the arguments of a launcher."""
    if program == "text2grad":
        return argv
    if program == "torchrun":
        from torch.distributed.run import get_args_parser

        read = get_args_parser().parse_args(argv)
    else:
        from accelerate.commands.launch import launch_command_parser

        read = launch_command_parser().parse_args(argv[1:])
    assert read.module, argv
    assert read.training_script == "text2grad.cli", argv
    return list(read.training_script_args)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2:]))
