"""The warm process of the sandbox: it forks one process per program, watches it, and checks its verdict.

It never runs a program's code itself. A request on standard input is two messages: the program with its limits, and the
tests. The tests are read after the fork, so that the program's process has no copy of them.
"""

import ast
import errno
import gc
import json
import math
import os
import select
import shutil
import signal
import socket
import sys
import time
from hmac import compare_digest
from typing import Any

from . import job, kernel

OUTPUT_CHARS = 10_000
CHANNEL_BYTES = 100_000  # limit of the data that a program's process may send
LEFT_FILES = 1_000  # with more files left by a program, the whole worker is replaced instead of cleaned


def main(settings: dict[str, Any]) -> None:
    """Isolate this process, report that it is ready, and serve until the input closes.

    Args:
        settings: "isolation"; "site", the directory of pytest; for "unshare" "root", the arguments of `enter_root`.
    """
    inbox, outbox = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    if settings["isolation"] == "unshare":
        kernel.enter_root(**settings["root"])
        kernel.drop_capabilities()
    if settings["isolation"] != "process":
        os.chdir("/tmp")
    filtered = _can_filter()
    if not filtered and settings["isolation"] != "process":
        raise OSError(errno.ENOSYS, "the kernel does not filter system calls (seccomp)")
    if sys.platform == "linux":
        kernel.hide_memory()
    os.environ.clear()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    gc.freeze()
    job.send(outbox, b'{"ready": true}')
    while (request := job.receive(inbox)) is not None:
        reason, output = Job(json.loads(request), inbox, filtered=filtered, site=settings["site"]).outcome()
        outcome = {"reason": reason, "output": output, "clean": _clean(".")}
        job.send(outbox, json.dumps(outcome).encode("ascii"))


def _can_filter() -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            kernel.filter_system_calls()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _clean(directory: str) -> bool:
    """Remove the files that a program left; return False if there are too many, or if that fails."""
    try:
        os.chmod(directory, 0o700)
        left = 0
        for _, directories, files in os.walk(directory):
            left += len(directories) + len(files)
            if left > LEFT_FILES:
                return False
        for entry in list(os.scandir(directory)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
    except (OSError, RecursionError):
        return False
    return True


def plan(tests: str) -> dict[str, Any]:
    """Return the tests, the names of the functions to call, and whether pytest is needed.

    Raises:
        ValueError: if no statement of the tests can fail; SyntaxError or another error of the parser otherwise.
    """
    tree = ast.parse(tests)
    nodes = list(ast.walk(tree))
    if not any(isinstance(node, ast.Assert | ast.Raise | ast.Call) for node in nodes):
        raise ValueError("the tests hold no assertion and no call: no program could fail them")
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    every = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imports |= {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    methods = [
        method
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.name.startswith("test")
    ]
    nested = [node for node in every if node.name.startswith("test_") and node not in functions]
    fixtures = [node for node in functions if node.args.args or node.args.posonlyargs or node.decorator_list]
    wants_pytest = "pytest" in imports or bool(methods or nested or fixtures)
    return {"tests": tests, "functions": [node.name for node in functions], "pytest": wants_pytest}


class Job:
    """The process of one program, seen from outside."""

    def __init__(self, request: dict[str, Any], inbox: int, *, filtered: bool, site: str | None) -> None:
        """Fork the process, then read the tests, so that the process does not have them yet."""
        self.deadline = time.monotonic() + request["timeout_s"]
        self.printed, self.left_out = b"", 0
        self.received = b""
        self.pid, self.channel, self.prints = self._fork(request, filtered=filtered, site=site)
        self.inbox = inbox
        self.tests = json.loads(job.receive(inbox) or b'""')
        self.token = os.urandom(job.TOKEN_BYTES)

    def _fork(self, request: dict[str, Any], *, filtered: bool, site: str | None) -> tuple[int, socket.socket, int]:
        ours, theirs = socket.socketpair()
        prints, printer = os.pipe()
        pid = os.fork()
        if pid:
            theirs.close()
            os.close(printer)
            ours.setblocking(False)
            return pid, ours, prints
        try:
            os.dup2(printer, 1)
            os.dup2(printer, 2)
            os.dup2(theirs.fileno(), 200)
            os.dup2(200, job.CHANNEL)
            os.closerange(job.CHANNEL + 1, 256)
            kernel.set_limits(memory_bytes=request["memory_mb"] * 2**20, cpu_s=math.ceil(request["timeout_s"]) + 1)
            if filtered:
                kernel.filter_system_calls()
            else:
                kernel.forbid_processes()
            job.run(request["program"], site=site)
        finally:
            os._exit(1)

    def outcome(self) -> tuple[str, str]:
        """Wait for the end of the process, kill it after its time limit, and return the reason and the output."""
        try:
            message = job.pack(plan(self.tests))
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            self._kill()
            return "error", f"tests.py cannot be run: {type(error).__name__}: {error}"[:1000]
        in_time = self._watch(len(message).to_bytes(4, "big") + message + self.token)
        status = self._kill()
        reason, report = self._judge(status) if in_time else ("timeout", "The time was up.")
        printed = self.printed.decode("utf-8", "replace")[: OUTPUT_CHARS - len(report) - 100]
        left_out = self.left_out + len(self.printed) - len(printed.encode())
        if left_out > 0:
            printed += f"\n[{left_out} bytes more were printed]"
        gap = "\n" if printed and not printed.endswith("\n") else ""
        return reason, printed + gap + report

    def _watch(self, answer: bytes) -> bool:
        """Send the tests when the program is loaded, and collect data; return False if the time limit passed first."""
        poller = select.poll()
        poller.register(self.inbox, 0)  # reports only that the other side has closed
        poller.register(self.prints, select.POLLIN)
        poller.register(self.channel, select.POLLIN)
        waiting = {self.prints, self.channel.fileno()}
        while waiting:
            left = self.deadline - time.monotonic()
            if left <= 0:
                return False
            for descriptor, _ in poller.poll(math.ceil(left * 1000)):
                if descriptor == self.inbox:
                    self._kill()
                    os._exit(0)
                if descriptor == self.prints:
                    ended = self._read_prints()
                else:
                    ended = self._read_channel()
                    if self.received and answer:
                        answer = self._write_channel(answer)
                        poller.modify(self.channel, select.POLLIN | (select.POLLOUT if answer else 0))
                if ended:
                    poller.unregister(descriptor)
                    waiting.discard(descriptor)
        return self._ends_in_time()

    def _ends_in_time(self) -> bool:
        while True:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
            if time.monotonic() > self.deadline:
                return False
            time.sleep(0.0005)

    def _read_prints(self) -> bool:
        data = os.read(self.prints, 65536)
        kept = data[: max(4 * OUTPUT_CHARS - len(self.printed), 0)]
        self.printed += kept
        self.left_out += len(data) - len(kept)
        return not data

    def _read_channel(self) -> bool:
        try:
            data = self.channel.recv(65536)
        except BlockingIOError:
            return False
        except OSError:
            return True
        self.received += data
        return not data or len(self.received) > CHANNEL_BYTES

    def _write_channel(self, data: bytes) -> bytes:
        try:
            return data[self.channel.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            return b""

    def _kill(self) -> int:
        os.kill(self.pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.channel.close()
        os.close(self.prints)
        return status

    def _judge(self, status: int) -> tuple[str, str]:
        """Return the reason and the report; "passed" requires exactly the two messages of a passing run."""
        if status == -signal.SIGXCPU:
            return "timeout", "The time on the processor was up."
        messages = self._messages()
        if status == 0 and messages:
            reason, _, report = messages[-1].partition(b"\0")
            if (
                len(messages) == 2
                and messages[0] == b"loaded\0"
                and compare_digest(messages[1], b"passed\0" + self.token)
            ):
                return "passed", ""
            if reason in (b"failed", b"error", b"memory") and len(report) <= job.REPORT_BYTES:
                return reason.decode(), report.decode("utf-8", "replace")
        end = f"with exit status {status}" if status >= 0 else f"by signal {-status}"
        return "crashed", f"The process ended {end}, without a verdict of the tests."

    def _messages(self) -> list[bytes]:
        """Split the received data into messages; return no message if the data are incomplete."""
        messages, rest = [], self.received
        while rest:
            size = int.from_bytes(rest[:4], "big")
            if len(rest) < 4 + size:
                return []
            messages.append(rest[4 : 4 + size])
            rest = rest[4 + size :]
        return messages
