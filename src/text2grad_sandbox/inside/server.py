"""The warm process of the sandbox: it forks the processes of a job, watches them, and passes their verdict on.

It never runs a program's code itself, and never holds a program or its tests, so that no later process has a copy. A
request on standard input is a message with limits and sizes, then the program, then the tests; the processes that need
them read them. A job has
    separate   two processes: the program, and the judge, which runs the tests
    shared     one process that loads the program, then reads the tests and runs them
    script     one process that runs the program on some input; its output is the result
"""

import contextlib
import errno
import fcntl
import gc
import importlib
import json
import math
import os
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from typing import Any

from . import harness, judge, kernel, program, shared
from .peer import PURE_MODULES

CHANNEL, SAYS = 3, 4  # descriptors in the processes of a job: to the other process, and to this one
CLEAN_S = 0.2  # time to count or remove the files that a program left; else the whole worker is replaced
SAID_BYTES = 100_000  # limit of the data that a job's process may send
START_S = 10.0  # time for a process to set its limits
LOOK_S = 0.05  # between two looks at the files of a program, where no file system limits them


def main(settings: dict[str, Any]) -> None:
    """Isolate this process, report that it is ready, and serve until the input closes.

    Args:
        settings: "isolation"; "site", the directory of pytest; for "unshare" "root", the arguments of `enter_root`; for
            "landlock" "files", the arguments of `restrict_files`.
    """
    inbox, outbox = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    isolation = settings["isolation"]
    if isolation == "unshare":
        kernel.enter_root(**settings["root"])
    if isolation == "landlock":
        kernel.restrict_files(**settings["files"])
    if sys.platform == "linux":
        kernel.drop_capabilities()
        kernel.hide_memory()
    if isolation in ("bwrap", "unshare"):
        os.chdir("/tmp")
    harness.hide_the_sandbox(settings["site"])
    kernel.limit_open_files()
    filters = _filters(own_files=isolation != "landlock")
    if not filters and isolation != "process":
        raise OSError(errno.ENOSYS, "the kernel does not filter system calls (seccomp)")
    os.environ.clear()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    gc.freeze()
    harness.send(outbox, b'{"ready": true}')
    server = {"inbox": inbox, "isolation": isolation, "site": settings["site"], "filters": filters}
    while (request := harness.receive(inbox)) is not None:
        job = json.loads(request)
        _load_frameworks(job, settings["site"])
        result = Job(job, server).result()
        left, clean = _clean(".")
        result |= {"clean": result["clean"] and clean, "files": left}
        harness.send(outbox, json.dumps(result).encode("ascii"))


def _load_frameworks(request: dict[str, Any], site: str | None) -> None:
    """Load pytest and unittest when the first job needs them, so that later ones need not."""
    plan = request.get("plan", {})
    if request["mode"] == "shared":
        for name in sorted({*plan["imports"], *shared.framework(plan)} & {*PURE_MODULES, "unittest"}):
            importlib.import_module(name)
    if site is not None and plan.get("pytest") and "pytest" not in sys.modules:
        sys.path.append(site)
        for plugin in importlib.import_module("_pytest.config").default_plugins:
            importlib.import_module(f"_pytest.{plugin}")
        importlib.import_module("pytest")
        gc.collect()
        gc.freeze()


def _filters(*, own_files: bool) -> dict[bool, kernel.Filter]:
    """Filter the calls of this process; return the filters of programs, with and without a listener, if they work."""
    try:
        kernel.forbid_privileges()
        common = kernel.server_filter()
        filters = {listen: kernel.program_filter(own_files=own_files, listen=listen) for listen in (True, False)}
    except OSError:
        return {}
    working = {listen: own for listen, own in filters.items() if _works(common, own, listen=listen)}
    if working:
        common.apply()
    return working


def _works(common: kernel.Filter, own: kernel.Filter, *, listen: bool) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            common.apply()
            own.apply(listen=listen)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _files(directory: str, most: float = math.inf, *, remove: bool = False) -> tuple[int, int, int]:
    """Return number, bytes and bytes on the disk of the files below a directory, counted up to `most`; or remove them.

    Each directory is opened from its neighbour: the time to resolve a path grows with its length, which has a limit.

    Raises:
        OSError: if a directory cannot be opened or a file not be removed, or the time is up.
    """
    until, number, size, on_disk = time.monotonic() + CLEAN_S, 0, 0, 0
    here, names, waiting = os.open(directory, os.O_DIRECTORY), list[str](), list[list[str]]()
    try:
        while number <= most:
            waiting.append([])
            for entry in list(os.scandir(here)):
                number, about = number + 1, entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(about.st_mode):
                    waiting[-1].append(entry.name)
                else:
                    size, on_disk = size + about.st_size, on_disk + about.st_blocks * 512
                    if remove:
                        os.unlink(entry.name, dir_fd=here)
            while not waiting[-1]:
                waiting.pop()
                if not waiting:
                    return number, size, on_disk
                name = names.pop()
                _step(here, "..", until)
                if remove:
                    os.rmdir(name, dir_fd=here)
            names.append(waiting[-1].pop())
            _step(here, names[-1], until)
        return number, size, on_disk
    finally:
        os.close(here)


def _step(here: int, name: str, until: float) -> None:
    """Open a directory beside an open one in its place."""
    if time.monotonic() > until:
        raise TimeoutError
    there = os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
    os.dup2(there, here)
    os.close(there)


def _clean(directory: str) -> tuple[list[int] | None, bool]:
    """Remove the files that a program left; return their number and bytes, if known, and whether none is left."""
    left = None
    try:
        os.chmod(directory, 0o700)
        left = list(_files(directory)[:2])
        _files(directory, remove=True)
        os.utime(directory, (0, 0))
    except OSError:
        return left, False
    return left, True


def _verdict_in(message: bytes) -> tuple[str, str, int]:
    """Return reason, report and number of a verdict; a script, which can write what it likes, may spoil its own."""
    try:
        reason, report, own_answers = json.loads(message)
        return str(reason), str(report), int(own_answers)
    except (ValueError, TypeError, RecursionError):
        return "", "", 0


class Job:
    """The processes of one program, seen from outside."""

    def __init__(self, request: dict[str, Any], server: dict[str, Any]) -> None:
        """Fork the processes, one after the other: each reads its part of the input."""
        self.server, self.request, self.mode = server, request, request["mode"]
        self.limits = request["limits"]
        self.begun = time.monotonic()
        self.deadline = self.begun + self.limits["timeout_s"]
        self.kept = self.limits["output_kb"] * 1024
        self.printed, self.output_bytes, self.said = b"", 0, b""
        self.threads, self.stopped = 0, ""
        self.pids: dict[str, int] = {}
        self.listeners: list[int] = []
        self.clean = True
        self.unread = request["sizes"]["tests"]  # bytes of the tests that no process has read
        self.answer: list[bytes | None] = []  # what is left to write in mode "shared"; None: the tests
        self.prints, printer = os.pipe()
        self.says, sayer = socket.socketpair()
        if self.mode == "separate":
            ends = socket.socketpair()
            self._fork("program", self._serve, [ends[0].fileno()], printer)
            self._fork("judge", self._judge, [ends[1].fileno(), sayer.fileno()], printer)
            for end in ends:
                end.close()
        else:
            self._fork("program", self._shared if self.mode == "shared" else self._script, [sayer.fileno()], printer)
        sayer.close()
        os.close(printer)
        self.says.setblocking(False)
        self.token = os.urandom(shared.TOKEN_BYTES)  # made after the process that must say it

    # In the new processes. Each function reads its input, and returns the work that begins when all limits are set.

    def _serve(self) -> Callable[[], None]:
        text, site = self._text("program"), self.server["site"]
        return lambda: program.serve(CHANNEL, text, site)

    def _judge(self) -> Callable[[], None]:
        tests, site, plan = self._text("tests"), self.server["site"], self.request["plan"]
        return lambda: harness.send_verdict(SAYS, judge.run(CHANNEL, tests, plan, site))

    def _shared(self) -> Callable[[], None]:
        text, site, size = self._text("program"), self.server["site"], self.request["sizes"]["tests"]
        needed = {*self.request["plan"]["imports"], *shared.framework(self.request["plan"])}
        return lambda: shared.run(CHANNEL, text, size, site, needed)

    def _script(self) -> Callable[[], None]:
        text, site, arguments = self._text("program"), self.server["site"], tuple(self.request["arguments"])
        stdin = self._text("tests").encode("utf-8", "surrogatepass")
        with open("stdin", "wb") as file:
            file.write(stdin)
        os.dup2(os.open("stdin", os.O_RDONLY), 0)
        os.unlink("stdin")
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        return lambda: program.run_script(CHANNEL, text, site, arguments)

    def _text(self, part: str) -> str:
        data = harness.receive_bytes(self.server["inbox"], self.request["sizes"][part])
        return data.decode("utf-8", "surrogatepass")

    def _fork(self, name: str, prepare: Callable[[], Callable[[], None]], ends: list[int], printer: int) -> None:
        """Fork a process that first reads its part of the input and sets its limits; wait until it has."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid:
            self.pids[name] = pid
            theirs.close()
            with ours:
                self._await(ours, name)
            return
        try:
            work = prepare()
            high = [fcntl.fcntl(end, fcntl.F_DUPFD, 32) for end in (printer, *ends, theirs.fileno())]
            null = os.open("/dev/null", os.O_RDWR)
            if self.mode != "script":
                os.dup2(null, 0)
            os.dup2(high[0], 1)
            os.dup2(null if self.mode == "script" else high[0], 2)
            for place, end in enumerate(high[1:], start=CHANNEL):
                os.dup2(end, place)
            ready = CHANNEL + len(ends)
            os.closerange(ready + 1, kernel.OPEN_FILES)
            self._limit(socket.socket(fileno=ready), listen=name == "program")
            work()
        finally:
            os._exit(0 if name == "judge" else 1)

    def _limit(self, ready: socket.socket, *, listen: bool) -> None:
        """Set all limits of this process, and report that they are set; `listen` lets it start threads."""
        limits, listener = self.limits, -1
        kernel.set_limits(
            memory_bytes=limits["memory_mb"] * 2**20,
            cpu_s=math.ceil(limits["timeout_s"]) + 1,
            file_bytes=limits["files_mb"] * 2**19,
        )
        filters = self.server["filters"]
        if not filters:
            kernel.forbid_processes()
        elif listen and True in filters:
            listener = filters[True].apply(listen=True)
        else:
            filters[False].apply()
        if listener < 0:
            ready.send(b"r")
        else:
            socket.send_fds(ready, [b"r"], [listener])
            os.close(listener)
        ready.close()

    # In the server.

    def _await(self, ready: socket.socket, name: str) -> None:
        """Wait until a process has its input and its limits."""
        ready.settimeout(max(self.deadline - time.monotonic(), 0.001) + START_S)
        try:
            data, listeners, _, _ = socket.recv_fds(ready, 1, 1)
        except OSError:
            data, listeners = b"", []
        self.listeners += listeners
        if data and (name == "judge" or self.mode == "script"):
            self.unread = 0
        if not data:  # the process died: nobody knows what it has read
            self.clean = False

    def result(self) -> dict[str, Any]:
        """Wait for the end, end all processes, and return the reason, the output and the usage."""
        in_time = self.clean and self._watch()
        if self._looks() and not self.stopped:
            self._look()
        usage, status = self._end()
        reason, report, own_answers = self._verdict(status) if in_time else ("timeout", "The time was up.", 0)
        if self.stopped:
            reason, report = "crashed", self.stopped
        return {
            "reason": reason,
            "report": report,
            "printed": self.printed.decode("utf-8", "replace"),
            "own_answers": own_answers,
            "usage": usage | {"output_bytes": self.output_bytes, "threads": self.threads},
            "clean": self.clean,
        }

    def _watch(self) -> bool:
        """Serve the processes until the last one ends; return False if the time limit passed first."""
        last = os.pidfd_open(self.pids["judge" if "judge" in self.pids else "program"])
        poller = select.poll()
        for descriptor in (last, self.prints, self.says.fileno(), *self.listeners):
            poller.register(descriptor, select.POLLIN)
        poller.register(self.server["inbox"], 0)  # reports only that the other side has closed
        wait_s = LOOK_S if self._looks() else math.inf
        try:
            while (left := self.deadline - time.monotonic()) > 0:
                for descriptor, event in poller.poll(math.ceil(min(left, wait_s) * 1000)):
                    if descriptor == last:
                        return self._program_ends()
                    if self._serve_file(descriptor, event):
                        poller.unregister(descriptor)
                    elif descriptor == self.says.fileno():
                        poller.modify(descriptor, select.POLLIN | (select.POLLOUT if self.answer else 0))
                if self._looks() and self._look():
                    return True
            return False
        finally:
            os.close(last)

    def _serve_file(self, descriptor: int, event: int) -> bool:
        """Serve one open file; return True at its end."""
        if descriptor == self.prints:
            return self._read_prints()
        if descriptor in self.listeners:
            if event & select.POLLIN:
                self._answer_thread(descriptor)
            return not event & select.POLLIN
        if descriptor == self.says.fileno():
            return self._serve_says(event)
        self._end()  # nobody waits for the result
        os._exit(0)

    def _looks(self) -> bool:
        """Tell whether no file system limits the files of a program."""
        return self.server["isolation"] in ("landlock", "process")

    def _look(self) -> bool:
        """Look at the files; return True if they are larger, or more, than a file system of the sandbox would hold."""
        with contextlib.suppress(OSError):
            number, _, on_disk = _files(".", kernel.MOST_FILES)
            if number > kernel.MOST_FILES or on_disk > self.limits["files_mb"] * 2**20:
                self.stopped = f"The program wrote more than {self.limits['files_mb']} MiB of files."
        return bool(self.stopped)

    def _program_ends(self) -> bool:
        """Wait for a program that has closed its channel; return False if the time limit passed first."""
        self._read_says()
        if self.mode != "separate" or b'"ended"' not in self.said[:16]:
            return True
        program = os.pidfd_open(self.pids["program"])
        left = self.deadline - time.monotonic()
        ended = select.select([program], [], [], max(left, 0))[0]
        os.close(program)
        return bool(ended)

    def _read_says(self) -> None:
        """Read all that was said."""
        try:
            while len(self.said) <= SAID_BYTES and (data := self.says.recv(65536)):
                self.said += data
        except OSError:
            return

    def _answer_thread(self, listener: int) -> None:
        allowed = self.threads < self.limits["threads"]
        self.threads += allowed
        try:
            kernel.answer_thread(listener, allowed=allowed)
        except OSError:  # the thread that asked was killed
            self.threads -= allowed

    def _read_prints(self) -> bool:
        """Read printed text; return True at its end."""
        data = os.read(self.prints, 65536)
        self.printed += data[: max(self.kept - len(self.printed), 0)]
        self.output_bytes += len(data)
        return not data

    def _serve_says(self, event: int) -> bool:
        """Read from and write to the process that has the verdict; return True when it has closed."""
        if event & select.POLLIN:
            try:
                data = self.says.recv(65536)
            except OSError:
                return True
            if not data or len(self.said) > SAID_BYTES:
                return True
            if not self.said and self.mode == "shared":  # the program is loaded
                plan = json.dumps(self.request["plan"]).encode("ascii")
                self.answer = [len(plan).to_bytes(4, "big") + plan, None, self.token]
            self.said += data
        elif event & (select.POLLHUP | select.POLLERR):
            return True
        try:
            self._write_answer()
        except BlockingIOError:
            return False  # until the process reads
        except OSError:
            return True
        return False

    def _write_answer(self) -> None:
        """Write plan, tests and token to a process in mode "shared".

        The tests go from pipe to socket without a copy in this process, whose memory later processes inherit.
        """
        while self.answer:
            part = self.answer[0]
            if part:
                self.answer[0] = part[self.says.send(part) :]
            elif part is None and self.unread:
                self.unread -= os.splice(self.server["inbox"], self.says.fileno(), min(self.unread, 65536))
            else:
                del self.answer[0]

    def _end(self) -> tuple[dict[str, Any], int]:
        """Kill the processes, read what they left, and return the usage and the program's status."""
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
        usage, status = {"cpu_s": 0.0, "memory_mb": 0.0}, 0
        for name, pid in self.pids.items():
            _, code, used = os.wait4(pid, 0)
            usage["cpu_s"] += used.ru_utime + used.ru_stime
            if name == "program":
                status, usage["memory_mb"] = os.waitstatus_to_exitcode(code), used.ru_maxrss / 1024
        usage["wall_s"] = time.monotonic() - self.begun
        for listener in self.listeners:
            os.close(listener)
        while not self._read_prints():
            pass
        os.close(self.prints)
        self._read_says()
        self.says.close()
        null = os.open("/dev/null", os.O_WRONLY)
        while self.unread and self.clean:  # the next request begins after the tests
            self.unread -= os.splice(self.server["inbox"], null, self.unread)
        os.close(null)
        return usage, status

    def _verdict(self, status: int) -> tuple[str, str, int]:
        """Return reason, report and the number of comparisons that the program decided."""
        if status == -signal.SIGXCPU:
            return "timeout", "The time on the processor was up.", 0
        if self.mode == "shared":
            return (*shared.judge(self.said, status, self.token), 0)
        messages = shared.messages_of(self.said)
        if len(messages) == 1:
            reason, report, own_answers = _verdict_in(messages[0])
            says = ("ended", "error", "memory") if self.mode == "script" else ("passed", "failed", "error", "memory")
            if reason in says:
                return reason, report, own_answers
        return "crashed", shared.ended_without_verdict(status), 0
