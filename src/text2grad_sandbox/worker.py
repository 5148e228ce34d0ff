"""One warm worker process of the sandbox, seen from outside: start it, send it programs, read outcomes, end it."""

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import IO, Any, Literal

Isolation = Literal["bwrap", "unshare", "landlock", "process"]

TMP_BYTES = 32 * 2**20  # size of a program's /tmp
START_S = 30.0  # time limit for a worker to become ready
PACKAGE = Path(__file__).parent / "inside"
INSIDE = "/sandbox"  # the place of the modules in bubblewrap, and of files that are in /tmp outside
# `inside` is imported under its own name, so that nothing of text2grad is loaded in the process; no path to it stays.
START = """
import sys, json
sys.path[:0] = [sys.argv[1]]
from inside.server import main
del sys.path[0], sys.path_importer_cache[sys.argv[1]], sys.path_importer_cache[sys.argv[1] + "/inside"]
main(json.loads(sys.argv[2]))
"""


class StartError(Exception):
    """A worker did not start; the message says why."""


def python_path() -> str:
    """Return the base Python of the virtual environment, with links resolved."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def pytest_site() -> str | None:
    """Return the directory that pytest is imported from, or None if it is not installed."""
    package = importlib.util.find_spec("pytest")
    return None if package is None or package.origin is None else str(Path(package.origin).parents[1])


def place_of(path: str) -> str:
    """Return the path of a file for a program: its own path, unless it is in /tmp, where programs have their own."""
    return INSIDE + path if Path(path).is_relative_to("/tmp") else path


def shown() -> tuple[list[str], dict[str, str]]:
    """Return the files and directories that a program sees, each at `place_of` it, and the links by place."""
    prefixes = {str(Path(prefix).resolve()) for prefix in (sys.base_prefix, sys.base_exec_prefix)}
    prefixes.add(str(Path(python_path()).parent))
    prefixes.add(pytest_site() or "/usr")
    binds = ["/usr", *sorted(path for path in prefixes if not Path(path).is_relative_to("/usr"))]
    binds = [path for path in binds if not any(other != path and Path(path).is_relative_to(other) for other in binds)]
    links = {}
    for library in ("/lib", "/lib32", "/lib64"):
        if os.path.islink(library):
            links[library] = os.readlink(library)
        elif os.path.isdir(library):
            binds.append(library)
    extra = ("/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
    return binds + [path for path in extra if os.path.exists(path)], links


def command(isolation: Isolation, directory: str) -> list[str]:
    """Return the command that starts a worker; `directory` is its own empty directory.

    Raises:
        StartError: if a program that the isolation needs is not installed.
    """
    binds, links = shown()
    site, home, python = pytest_site(), str(PACKAGE.parent), python_path()
    settings: dict[str, Any] = {"isolation": isolation, "site": site}
    if isolation != "process":
        settings["site"] = site and place_of(site)
    if isolation == "bwrap":
        prefix = [_find("bwrap"), "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        prefix += ["--unshare-cgroup-try", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
        prefix += ["--new-session", "--die-with-parent"]
        for path in binds:
            prefix += ["--dev-bind" if path.startswith("/dev/") else "--ro-bind", path, place_of(path)]
        for path, target in links.items():
            prefix += ["--symlink", target, path]
        for module in PACKAGE.glob("*.py"):
            prefix += ["--ro-bind", str(module), f"{INSIDE}/inside/{module.name}"]
        prefix += ["--size", str(TMP_BYTES), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp", "--"]
        home, python = INSIDE, place_of(python)
    elif isolation == "unshare":
        prefix = [_find("unshare"), "--user", "--map-root-user", "--mount", "--net", "--ipc", "--uts", "--cgroup"]
        prefix += ["--pid", "--fork", "--kill-child", "--"]
        if place_of(python) != python:
            raise StartError(f"Python is installed in /tmp ({python}), where programs have a directory of their own")
        places = {path: place_of(path) for path in binds}
        settings["root"] = {"new": directory, "binds": places, "links": links, "tmp_bytes": TMP_BYTES}
    elif isolation == "landlock":
        prefix, settings["site"] = [], site
        settings["files"] = {"readable": binds, "writable": directory}
    else:
        prefix = []
    return [*prefix, python, "-s", "-S", "-P", "-c", START, home, json.dumps(settings)]


def _find(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise StartError(f"{program} is not installed")
    return path


class Worker:
    """A warm process and its pipes. It runs one program at a time."""

    def __init__(self, isolation: Isolation) -> None:
        """Start the process; `wait` waits until it is ready.

        Raises:
            StartError: if it cannot be started at all.
        """
        self.isolation = isolation
        self.deadline = time.monotonic() + START_S
        self._inbox = b""
        self._directory = tempfile.mkdtemp(prefix="text2grad-sandbox-")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        try:
            # A fixed hash seed gives sets one order, so that a program always has the same outcome.
            self._process = subprocess.Popen(
                command(isolation, self._directory),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=self._directory,
                env={"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "MALLOC_ARENA_MAX": "1"},
                start_new_session=True,
                bufsize=0,
            )
            # Also at the end of this process, if nobody ends the worker.
            self._finalize = weakref.finalize(self, _end, self._process, self._directory, self._errors, os.getpid())
        except OSError as error:
            _remove(self._directory, self._errors)
            raise StartError(f"{error}") from error
        except StartError:
            _remove(self._directory, self._errors)
            raise

    def fileno(self) -> int:
        """Return the file descriptor of the worker's messages."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send_job(self, request: dict[str, Any], program: bytes, tests: bytes) -> bool:
        """Send a request with a program and its tests; return False if the worker had ended before."""
        message = json.dumps({**request, "sizes": {"program": len(program), "tests": len(tests)}}).encode("ascii")
        try:
            self._send(len(message).to_bytes(4, "big") + message)
        except OSError:
            return False
        with contextlib.suppress(OSError):  # the worker ended with the program; `read` reports that
            self._send(program)
            self._send(tests)
        return True

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._process.stdin.fileno(), rest) :]

    def read(self) -> dict[str, Any] | None:
        """Read the available data, and return the message if it is complete.

        Raises:
            EOFError: if the worker has ended, or sent data that breaks the protocol.
        """
        data = os.read(self.fileno(), 2**20)
        self._inbox += data  # the worker bounds the output
        size = 4 + int.from_bytes(self._inbox[:4], "big")
        if not data or len(self._inbox) > size > 4:
            raise EOFError
        if len(self._inbox) < max(size, 5):
            return None
        message: dict[str, Any] = json.loads(self._inbox[4:])
        self._inbox = b""
        return message

    def wait(self) -> None:
        """Wait until the worker is ready.

        Raises:
            StartError: if it ended instead, with the text of its standard error.
        """
        try:
            ready = None
            while ready is None:
                left = self.deadline - time.monotonic()
                if not select.select([self], [], [], max(left, 0))[0]:
                    raise StartError(f"not ready after {START_S:.0f} s")
                ready = self.read()
            if self.isolation in ("bwrap", "unshare"):  # it has a root of its own now
                os.rmdir(self._directory)
        except EOFError:
            self._process.wait()
            self._errors.seek(0)
            errors = self._errors.read().decode("utf-8", "replace").strip()
            raise StartError(errors[-1000:] or f"ended with exit status {self._process.returncode}") from None

    def end(self) -> None:
        """Kill the worker with its processes, and remove its directory."""
        self._finalize()


def _end(process: subprocess.Popen[bytes], directory: str, errors: IO[bytes], maker: int) -> None:
    """Kill a worker with its processes, and remove its directory; not in a copy of the process that made it."""
    if os.getpid() != maker:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    _remove(directory, errors)


def _remove(directory: str, errors: IO[bytes]) -> None:
    errors.close()
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return
    except OSError:  # a program left files, whose removal can take seconds: nobody waits for it
        command = 'rm -rf -- "$1" </dev/null >/dev/null 2>&1 &'
        subprocess.run(["sh", "-c", command, "sh", directory], check=False)
