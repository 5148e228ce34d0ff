"""Commands in processes that begin with the libraries loaded: seconds of imports are spent once, not per command.

`serving` starts a process that imports torch, transformers and TRL, then forks for each command that the client sends:
the client is this file as a script, and passes on its arguments, folder, environment, stdin, stdout and stderr.

    python tests/helpers/warm_commands.py SOCKET text2grad train my.toml      → text2grad.cli.main(["train", "my.toml"])
    python tests/helpers/warm_commands.py SOCKET python check.py              → check.py as __main__
    python tests/helpers/warm_commands.py SOCKET torchrun --nproc-per-node 8 -m text2grad.cli train my.toml
                                     → the launcher's own parser reads its options; the command runs in one process

    python tests/helpers/warm_commands.py SOCKET -m text2grad_studio.worker           → as `python -m`

Tests start commands by `start`, `finish` and `together`. `sys.executable` of a command is a script that starts
`python -m` here, too. `text2grad` empties the directory of a run that it begins, `-m text2grad.cli` does not.
"""

import gc
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

LOADED = (
    "accelerate.commands.launch",
    "matplotlib.figure",
    "torch.distributed.run",
    "trl",
    "uvicorn",
    "text2grad.runs.recipe_run",
    "text2grad.reward_models.training.run",
    "text2grad_studio.app",
    "text2grad_studio.worker",
)
MOST_BYTES = 1 << 20  # of a command with its environment
NUMBER = struct.Struct("q")
EMPTY_PNG = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
SECONDS = 240


@contextmanager
def held_port() -> Iterator[int]:
    """Yield a port that the system gives to nobody else meanwhile; a server that is told it can listen there."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


class Forked:
    """A command in a process of its own: of `subprocess.Popen`, what tests use. It leads a session."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self.pid = self._number(None)
        self.returncode: int | None = None

    def _number(self, seconds: float | None) -> int:
        self._server.settimeout(seconds)
        data = self._server.recv(NUMBER.size)
        return int(NUMBER.unpack(data)[0]) if data else -signal.SIGKILL  # no answer: the server was killed

    def wait(self, seconds: float | None = None) -> int:
        """Return the exit code, or the negative number of the signal; raise `TimeoutError` after some seconds."""
        if self.returncode is None:
            self.returncode = self._number(seconds)
            self._server.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        try:
            return self.wait(0)
        except BlockingIOError:
            return None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and the processes that it started."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()

    def kill_at(self, mark: Path) -> None:
        """Kill the process as soon as a file exists; fail if it ends, or hangs, before."""
        until = time.monotonic() + SECONDS
        while not mark.exists() and self.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        self.kill()
        assert mark.exists()
        assert self.returncode == -signal.SIGKILL


class Warm:
    """The client of the server at a socket; `python` is the script beside it."""

    def __init__(self, path: Path) -> None:
        self.path, self.python = path, str(path.with_name("python"))

    def start(
        self,
        *argv: object,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        out: Any = None,
        err: Any = None,
        given: Any = None,
    ) -> Forked:
        """Start a command, with the variables of this process and those that are given; its streams go to files."""
        with open(os.devnull, "r+b") as nothing:
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(self.path))
            variables = {**os.environ, **(environment or {})}
            request = {"argv": [*map(str, argv)], "cwd": str(cwd or Path.cwd()), "environment": variables}
            streams = [file.fileno() for file in (given or nothing, out or nothing, err or nothing)]
            socket.send_fds(client, [json.dumps(request).encode()], streams)
        return Forked(client)

    def finish(self, *argv: object, environment: Mapping[str, str] | None = None) -> None:
        """Run a command to its end; where it fails or hangs, show what it said."""
        self._finish(argv, [environment or {}])

    def together(self, processes: int, *argv: object, **variables: str) -> None:
        """Run a command in several processes, with the variables that torchrun sets on one machine."""
        with held_port() as port:
            every = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", **variables}
            every |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
            self._finish(argv, [{**every, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)])

    def _finish(self, argv: Sequence[object], environments: Sequence[Mapping[str, str]]) -> None:
        with tempfile.TemporaryFile() as said:
            started = [self.start(*argv, environment=environment, err=said) for environment in environments]
            try:
                codes = [command.wait(SECONDS) for command in started]
            finally:
                for command in started:
                    command.kill()
                said.seek(0)
                told = said.read().decode(errors="replace")[-4000:]
            assert not any(codes), f"{' '.join(map(str, argv))} ended with {codes}:\n{told}"


@contextmanager
def serving(path: Path, *, python: str = sys.executable) -> Iterator[Warm]:
    """Start the process that forks, in the environment of a Python, and end it."""
    program, script, python = python, path.with_name("python"), shlex.quote(python)
    client = f"{python} -IS {shlex.quote(__file__)} {shlex.quote(str(path))}"
    script.write_text(f'#!/bin/sh\n[ "$1" != -m ] || exec {client} "$@"\nexec {python} "$@"\n')
    script.chmod(0o755)
    command = [program, __file__, str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if program != sys.executable:
        environment.pop("PYTHONPATH", None)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield Warm(path)
        finally:
            process.kill()


def serve(path: str) -> None:
    """Import the libraries, as quiet as commands keep them, then fork for each request."""
    from text2grad.cli.log import OTHER_LIBRARIES

    os.environ.update(OTHER_LIBRARIES)
    from text2grad.runs.reports import plots

    for module in LOADED:
        import_module(module)
    sys.executable = Warm(Path(path)).python
    plots.to_png = lambda figure: EMPTY_PNG  # matplotlib took most of the time of a command on tiny models
    gc.collect()
    gc.freeze()  # a collection in a fork would read, and so copy, all that was imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
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
                _watch(client, json.loads(request), files)
                os._exit(0)
            client.close()
            for file in files:
                os.close(file)


def _watch(client: socket.socket, request: dict[str, Any], files: Sequence[int]) -> None:
    """Fork the process of a command; tell its id, and its end."""
    leads, led = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(leads)
        os.close(led)
        client.close()
        os._exit(_forked(request, files))
    os.close(led)
    os.read(leads, 1)  # until it leads a session: whoever kills it at once kills its group
    os.close(leads)
    for file in files:
        os.close(file)  # a pipe ends with the process of the command
    client.send(NUMBER.pack(pid))
    threading.Thread(target=_kill_with, args=(client, pid), daemon=True).start()
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):
        client.send(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _kill_with(client: socket.socket, pid: int) -> None:
    """Kill a command when the process that started it has been killed."""
    client.recv(1)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _forked(request: dict[str, Any], files: Sequence[int]) -> int:
    """Become the process of a command: its streams, folder, environment and arguments."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[1:1] = [
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path
    ]
    try:
        return _run(*request["argv"])
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
    import runpy

    if program == "-m" and argv[0] != "text2grad.cli":
        sys.argv, sys.path[0] = list(argv), ""
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
        return 0
    if program == "python":
        sys.argv, sys.path[0] = list(argv), str(Path(argv[0]).resolve().parent)
        runpy.run_path(argv[0], run_name="__main__")
        return 0
    from text2grad.cli import main

    sys.argv, sys.path[0] = ["text2grad", *argv[program == "-m" :]], ""
    if program == "-m":
        return main(argv[1:])
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
        streams = {"given": sys.stdin, "out": sys.stdout, "err": sys.stderr}
        started = Warm(Path(sys.argv[1])).start(*sys.argv[2:], **streams)
        for forwarded in (signal.SIGINT, signal.SIGTERM):
            signal.signal(forwarded, lambda number, _: os.kill(started.pid, number))
        code = started.wait()
        sys.exit(code if code >= 0 else 128 - code)
