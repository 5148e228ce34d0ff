"""Requests of the sandbox to the Linux kernel: a root directory of its own, Landlock, no privileges, few system calls.

These functions run in the sandbox's processes before a program's code, and only remove rights. They import only the
standard library: the processes have no other packages.
"""

import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
from collections.abc import Iterable, Mapping

OPEN_FILES = 64
MOST_FILES = 4_096  # most files of a program on disk

# Numbers of the allowed system calls: (x86_64, aarch64); None if the processor has no such call.
# fmt: off
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # open files: read, write, wait
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "close": (3, 57), "close_range": (436, 436), "lseek": (8, 62), "dup": (32, 23), "dup2": (33, None),
    "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59), "poll": (7, None), "ppoll": (271, 73),
    "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "eventfd2": (290, 19), "timerfd_create": (283, 85), "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87),
    "flock": (73, 32), "fsync": (74, 82), "fdatasync": (75, 83), "ftruncate": (77, 46), "truncate": (76, 45),
    "fallocate": (285, 47),
    "fadvise64": (221, 223), "sendfile": (40, 71), "copy_file_range": (326, 285),
    # names of files
    "open": (2, None), "openat": (257, 56), "creat": (85, None), "stat": (4, None), "fstat": (5, 80),
    "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291), "access": (21, None), "faccessat": (269, 48),
    "faccessat2": (439, 439), "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17),
    "chdir": (80, 49), "fchdir": (81, 50), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "link": (86, None), "linkat": (265, 37),
    "unlink": (87, None), "unlinkat": (263, 35), "symlink": (88, None), "symlinkat": (266, 36),
    "readlink": (89, None), "readlinkat": (267, 78), "umask": (95, 166), "statfs": (137, 43), "fstatfs": (138, 44),
    # memory
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "madvise": (28, 233), "msync": (26, 227), "mincore": (27, 232), "get_mempolicy": (239, 236),
    # signals of the process to itself, and time
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "pause": (34, None), "alarm": (37, None), "getitimer": (36, 102),
    "setitimer": (38, 103), "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "gettimeofday": (96, 169),
    "time": (201, None), "clock_gettime": (228, 113), "clock_getres": (229, 114), "times": (100, 153),
    # questions
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150),
    "getgroups": (115, 158), "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156),
    "getpriority": (140, 141), "uname": (63, 160), "sysinfo": (99, 179), "getrusage": (98, 165),
    "getrlimit": (97, 163), "getcpu": (309, 168), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "getrandom": (318, 278),
    # threads, and the end
    "futex": (202, 98), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "set_tid_address": (218, 96),
    "rseq": (334, 293), "membarrier": (324, 283), "sched_yield": (24, 124), "exit": (60, 93),
    "exit_group": (231, 94), "wait4": (61, 260), "waitid": (247, 95),
    # pairs of connected streams, which event loops need
    "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211), "recvmsg": (47, 212), "shutdown": (48, 210),
    "getsockopt": (55, 209), "getsockname": (51, 204), "getpeername": (52, 205),
}
# Carried out where the files that a program can name are its own: Landlock limits none of these.
METADATA: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
}
# fmt: on
SERVER_ONLY: dict[str, tuple[int | None, int | None]] = {"pidfd_open": (434, 434), "splice": (275, 76)}
# Allowed for some arguments, or refused with an error that the C library handles.
CLONE, CLONE3, KILL, TGKILL, PRLIMIT = (56, 220), (435, 435), (62, 129), (234, 131), (302, 261)
FCNTL, IOCTL, PRCTL, SOCKETPAIR, SECCOMP = (72, 25), (16, 29), (157, 167), (53, 199), (317, 277)
FCNTL_ALLOWED = (0, 1, 2, 3, 5, 6, 7, 36, 37, 38, 1030, 1032)  # duplicate, flags, locks: no owner, no signal, no lease
F_SETFL, O_ASYNC = 4, 0x2000
NOTIF_RECV, NOTIF_SEND, CONTINUE = 0xC0502100, 0xC0182101, 1  # requests to the listener of a filter
IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, NOTIF_RECV, NOTIF_SEND)  # questions, flags
PRCTL_ALLOWED = (3, 15, 16)  # is it dumpable; the name of a thread
STREAMS = (1, 1 | 0o4000, 1 | 0o2000000, 1 | 0o2004000)  # SOCK_STREAM, with SOCK_NONBLOCK and SOCK_CLOEXEC
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE_THREAD = 0x10000

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE, KILL_PROCESS, NOTIFY = 0x7FFF0000, 0x00050000, 0x80000000, 0x7FC00000
REFUSED, UNKNOWN = REFUSE | errno.EPERM, REFUSE | errno.ENOSYS
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 1, 4, 24, 38, 47
OWN_PID = 0x5E1F5E1F  # stands for the process's own id until the filter is applied

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    result: int = getattr(_libc, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def set_limits(*, memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    """Limit the address space, processor time and file sizes of this process, and end it with its parent."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def limit_open_files() -> None:
    """Limit the open files of this process and all that it starts, and let none leave an image of its memory."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def forbid_processes() -> None:
    """Forbid new processes and threads by a limit, if system calls cannot be filtered. The limit does not bind root."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def hide_memory() -> None:
    """Make the memory and files of this process unreadable to other processes of its user."""
    _call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)


def common_filter(machine: str) -> bytes:
    """Return the filter of the server and of all its processes: it allows the calls in `ALLOWED` and those below.

    Args:
        machine: the processor, "x86_64" or "aarch64".

    Raises:
        OSError: if the system calls of the machine are not known.
    """
    column = _column(machine)
    lines = [
        (LOAD, 0, 0, 4),  # architecture
        (EQUAL, 1, 0, AUDIT_ARCH[machine]),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, 0),  # number
    ]
    if machine == "x86_64":  # calls of the x32 interface
        lines += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, KILL_PROCESS)]
    whole = [KILL, TGKILL, PRLIMIT, PRCTL, CLONE, SECCOMP, *SERVER_ONLY.values()]
    numbers = {number[column] for number in (*ALLOWED.values(), *METADATA.values(), *whole)} - {None}
    for first, last in _ranges(sorted(number for number in numbers if number is not None)):
        lines += [(AT_LEAST, 0, 2, first), (AT_LEAST, 1, 0, last + 1), (RETURN, 0, 0, ALLOW)]
    lines += [(EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, UNKNOWN)]  # its flags are in memory, where no filter reads
    lines += _allowed_if(FCNTL[column], [(_low(1), FCNTL_ALLOWED)], set_flags=True)
    lines += _allowed_if(IOCTL[column], [(_low(1), IOCTL_ALLOWED)])
    lines += _allowed_if(SOCKETPAIR[column], [(_low(0), [1]), (_low(1), STREAMS)])
    lines.append((RETURN, 0, 0, REFUSED))
    return _packed(lines)


def process_filter(machine: str, *, own_files: bool, threads: int) -> bytes:
    """Return the further filter of a program's process: no other process, no signal to another, no new limits.

    Args:
        machine: the processor, "x86_64" or "aarch64".
        own_files: whether to carry out the calls in `METADATA`; if not, they succeed without an effect.
        threads: what a new thread does: `ALLOW`, `NOTIFY` the listener, or `REFUSE`.
    """
    column = _column(machine)
    lines = [(LOAD, 0, 0, 0)]
    without_effect = () if own_files else METADATA.values()
    calls = [(number, REFUSED) for number in (SECCOMP, *SERVER_ONLY.values())]
    for number, answer in [*calls, *((number, REFUSE) for number in without_effect)]:  # error 0: success
        if number[column] is not None:
            lines += [(EQUAL, 0, 1, number[column] or 0), (RETURN, 0, 0, answer)]
    lines += _allowed_if(KILL[column], [(_low(0), [OWN_PID])])
    lines += _allowed_if(TGKILL[column], [(_low(0), [OWN_PID])])
    lines += _allowed_if(PRLIMIT[column], [(_low(0), [0]), (_low(2), [0]), (_low(2) + 4, [0])])  # asking only
    lines += _allowed_if(PRCTL[column], [(_low(0), PRCTL_ALLOWED)])
    answer = threads if threads != REFUSE else REFUSED
    lines += [(EQUAL, 0, 4, CLONE[column]), (LOAD, 0, 0, _low(0)), (ANY_BIT, 1, 0, CLONE_THREAD)]
    lines += [(RETURN, 0, 0, REFUSED), (RETURN, 0, 0, answer), (RETURN, 0, 0, ALLOW)]
    return _packed(lines)


Line = tuple[int, int, int, int]


def _column(machine: str) -> int:
    if machine not in AUDIT_ARCH:
        raise OSError(errno.ENOSYS, f"system calls of {machine} cannot be filtered, only those of {sorted(AUDIT_ARCH)}")
    return list(AUDIT_ARCH).index(machine)


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last number of each run of successive numbers."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _allowed_if(call: int, all_of: Iterable[tuple[int, Iterable[int]]], *, set_flags: bool = False) -> list[Line]:
    """Return lines that allow a call if each checked word of its arguments has an allowed value, else refuse it."""
    body: list[Line] = []
    for offset, values in all_of:
        wanted = list(values)
        body.append((LOAD, 0, 0, offset))
        if set_flags:  # the flags of an open file, but not signals
            body += [(EQUAL, 0, 4, F_SETFL), (LOAD, 0, 0, _low(2)), (ANY_BIT, 0, 1, O_ASYNC)]
            body += [(RETURN, 0, 0, REFUSED), (RETURN, 0, 0, ALLOW)]
        body += [(EQUAL, len(wanted) - place, 0, value) for place, value in enumerate(wanted)]
        body.append((RETURN, 0, 0, REFUSED))
    return [(EQUAL, 0, len(body) + 1, call), *body, (RETURN, 0, 0, ALLOW)]


def _packed(lines: Iterable[Line]) -> bytes:
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _low(argument: int) -> int:
    return 16 + 8 * argument  # where the low half of a system call's argument lies, on a little-endian machine


class Filter:
    """A filter of system calls, made once and applied by many processes: it costs each of them one call."""

    def __init__(self, code: bytes) -> None:
        """Take the filter's lines."""
        self._buffer = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("@HP", len(code) // 8, ctypes.addressof(self._buffer))
        self._program = ctypes.create_string_buffer(program, len(program))
        own = struct.pack("=I", OWN_PID)
        self._own = [at for at in range(4, len(code), 8) if code[at : at + 4] == own]
        self._number = SECCOMP[_column(os.uname().machine)]

    def apply(self, *, listen: bool = False) -> int:
        """Apply the filter to this process and its later threads, irrevocably.

        Args:
            listen: whether a supervisor decides on calls with the answer `NOTIFY`.

        Returns:
            The descriptor of the listener; −1 without a listener.

        Raises:
            OSError: if the kernel does not support filters, or listeners.
        """
        for at in self._own:
            struct.pack_into("=I", self._buffer, at, os.getpid())
        listener = _call("syscall", self._number, 1, 8 if listen else 0, self._program)
        return listener if listen else -1


def server_filter() -> Filter:
    """Return the filter of the server and of all that it starts.

    Raises:
        OSError: if the system calls of this machine are not known.
    """
    return Filter(common_filter(os.uname().machine))


def program_filter(*, own_files: bool, listen: bool) -> Filter:
    """Return the further filter of a program or its tests.

    Args:
        own_files: see `process_filter`.
        listen: whether a supervisor counts the threads; otherwise none can be started.
    """
    return Filter(process_filter(os.uname().machine, own_files=own_files, threads=NOTIFY if listen else REFUSE))


def forbid_privileges() -> None:
    """Forbid this process and all that it starts to gain rights, which filters need."""
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def answer_thread(listener: int, *, allowed: bool) -> None:
    """Let a process that waits for a new thread go on, or refuse the thread. Raises OSError if it does not wait."""
    request = bytearray(80)
    fcntl.ioctl(listener, NOTIF_RECV, request)
    (number,) = struct.unpack_from("=Q", request)
    error, flags = (0, CONTINUE) if allowed else (-errno.EAGAIN, 0)
    fcntl.ioctl(listener, NOTIF_SEND, bytearray(struct.pack("=QqiI", number, 0, error, flags)))


LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # on every processor
LANDLOCK_LEAST = 3
"""The least version of Landlock that limits truncation (Linux 6.2)."""
_READ, _WRITE = 0b1101, 0x7FF2  # execute, read files and directories; write, remove, make, refer, truncate
_DEVICE = 0b110 | 1 << 14


def landlock_version() -> int:
    """Return the version of Landlock that the kernel offers; 0 if it has none."""
    return max(int(_libc.syscall(LANDLOCK_CREATE, None, 0, 1)), 0)


def restrict_files(readable: Iterable[str], writable: str) -> None:
    """Limit this process and its children, irrevocably, to reading some files and to writing in one directory.

    Args:
        readable: files and directories that may be read and executed; devices may be written, too.
        writable: the directory in which everything is allowed, except devices and sockets.

    Raises:
        OSError: if the kernel has no Landlock of version 3.
    """
    version = landlock_version()
    if version < LANDLOCK_LEAST:
        raise OSError(
            errno.ENOSYS, f"the kernel's Landlock has version {version}, needed is {LANDLOCK_LEAST} (Linux 6.2)"
        )
    files = _READ | _WRITE | (1 << 15 if version >= 5 else 0)  # requests to devices
    rules = struct.pack("=Q", files)
    rules += struct.pack("=Q", 3) if version >= 4 else b""  # TCP
    rules += struct.pack("=Q", 3) if version >= 6 else b""  # signals and abstract sockets
    ruleset = _call("syscall", LANDLOCK_CREATE, ctypes.c_char_p(rules), len(rules), 0)
    own = (_READ | _WRITE) & ~(1 << 6 | 1 << 9 | 1 << 11)
    for path, access in [*((path, _READ) for path in readable), (writable, own)]:
        there = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if path.startswith("/dev/"):
            access = _DEVICE
        elif not os.path.isdir(path):
            access &= 0b101
        rule = ctypes.c_char_p(struct.pack("=Qi", access, there))
        _call("syscall", LANDLOCK_ADD, ruleset, 1, rule, 0)
        os.close(there)
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("syscall", LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def drop_capabilities() -> None:
    """Drop all capabilities, and forbid to regain any by running another program."""
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", PR_CAP_AMBIENT, 4, 0, 0, 0)
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # the kernel has no more capabilities
    header, nothing = struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *[0] * 6)
    _call("capset", ctypes.c_char_p(header), ctypes.c_char_p(nothing))


MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MOUNT_SETATTR = 442


def enter_root(new: str, *, binds: Mapping[str, str], links: Mapping[str, str], tmp_bytes: int) -> None:
    """Build a root directory of read-only bind mounts, and make it the root. Needs a mount namespace.

    Args:
        new: an empty directory on which to mount the root.
        binds: files and directories to show, each with its path in the new root.
        links: symbolic links: path in the new root → target.
        tmp_bytes: size of /tmp, the only writable directory.

    Raises:
        OSError: if the kernel refuses; it needs Linux 5.12.
    """
    _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    _mount_tmpfs(new, "mode=755,size=1m")
    for path, place in binds.items():
        inside = new + place
        if os.path.isdir(path):
            os.makedirs(inside, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            os.close(os.open(inside, os.O_CREAT | os.O_WRONLY, 0o600))
        _call("mount", path.encode(), inside.encode(), None, MS_BIND | MS_REC, None)
    for path, target in links.items():
        os.symlink(target, new + path)
    os.makedirs(new + "/tmp", exist_ok=True)
    _read_only(new, everything=True)
    _mount_tmpfs(new + "/tmp", f"mode=700,size={tmp_bytes},nr_inodes={MOST_FILES}")
    os.chdir(new)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", 2)  # the old root, now mounted over the new one; 2 = MNT_DETACH
    os.chdir("/")


def _mount_tmpfs(path: str, options: str) -> None:
    _call("mount", b"tmpfs", path.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options.encode())


def _read_only(path: str, *, everything: bool) -> None:
    recursive, attributes = 0x8000 if everything else 0, struct.pack("=4Q", 1 | 2, 0, 0, 0)  # read-only, nosuid
    _call("syscall", MOUNT_SETATTR, -1, ctypes.c_char_p(path.encode()), recursive, ctypes.c_char_p(attributes), 32)
