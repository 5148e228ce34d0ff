"""Requests of the sandbox to the Linux kernel: a root directory of its own, no privileges, few system calls.

These functions run in the sandbox's processes before a program's code, and only remove rights. They import only the
standard library: the processes have no other packages.
"""

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Mapping

FILE_BYTES = 16 * 2**20  # size limit of a program's files
OPEN_FILES = 64

# Numbers of the forbidden system calls: (x86_64, aarch64); None if the processor has no such call.
# fmt: off
FORBIDDEN: dict[str, tuple[int, int | None]] = {
    # no second process, so that no process outlives the program
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "setsid": (112, 157),
    "setpgid": (109, 154),
    # no access to other processes
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "setpriority": (141, 140), "setrlimit": (160, 164),
    # no network; event loops need socketpair, which stays allowed
    "socket": (41, 198),
    # no memory beyond the limit of the address space, and none that lasts until the next program
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180),
    # a small attack surface of the kernel
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsmount": (432, 432), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104),
    "reboot": (169, 142), "swapon": (167, 224),
}
# fmt: on
# Allowed for some arguments, or refused with an error that the C library handles.
CLONE, CLONE3, KILL, TGKILL, PRLIMIT = (56, 220), (435, 435), (62, 129), (234, 131), (302, 261)
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE_THREAD = 0x10000

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE, KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 4, 22, 24, 38, 47

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> int:
    result: int = getattr(_libc, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def set_limits(*, memory_bytes: int, cpu_s: int) -> None:
    """Limit the address space, processor time, file sizes, open files and core files of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def forbid_processes() -> None:
    """Forbid new processes and threads by a limit, if system calls cannot be filtered. The limit does not bind root."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def hide_memory() -> None:
    """Make the memory and files of this process unreadable to other processes of its user."""
    _call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)


def system_call_filter(machine: str, pid: int) -> bytes:
    """Return a filter that refuses the calls in `FORBIDDEN`, new processes, and signals to other processes.

    Args:
        machine: the processor, "x86_64" or "aarch64".
        pid: id of the process itself, to which it may send signals.

    Raises:
        OSError: if the system calls of the machine are not known.
    """
    if machine not in AUDIT_ARCH:
        raise OSError(errno.ENOSYS, f"system calls of {machine} cannot be filtered, only those of {sorted(AUDIT_ARCH)}")
    column = list(AUDIT_ARCH).index(machine)
    refuse, unknown = REFUSE | errno.EPERM, REFUSE | errno.ENOSYS
    lines = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, AUDIT_ARCH[machine]), (RETURN, 0, 0, KILL_PROCESS), (LOAD, 0, 0, 0)]
    lines += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, KILL_PROCESS)]  # x86_64 has a second table of calls there
    for numbers in FORBIDDEN.values():
        if (number := numbers[column]) is not None:
            lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, refuse)]
    lines += [(EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, unknown)]  # then the C library calls clone
    tests: list[tuple[int, list[tuple[int, int, int]]]] = [(CLONE[column], [(ANY_BIT, _low(0), CLONE_THREAD)])]
    tests += [(numbers[column], [(EQUAL, _low(0), pid)]) for numbers in (KILL, TGKILL)]
    tests += [(PRLIMIT[column], [(EQUAL, _low(0), 0), (EQUAL, _low(2), 0), (EQUAL, _low(2) + 4, 0)])]  # asking only
    for number, conditions in tests:
        lines.append((EQUAL, 0, 3 * len(conditions) + 1, number))
        for operation, offset, value in conditions:
            lines += [(LOAD, 0, 0, offset), (operation, 1, 0, value), (RETURN, 0, 0, refuse)]
        lines.append((RETURN, 0, 0, ALLOW))
    lines.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _low(argument: int) -> int:
    return 16 + 8 * argument  # where the low half of a system call's argument lies, on a little-endian machine


def filter_system_calls() -> None:
    """Apply `system_call_filter` to this process and its threads, irrevocably.

    Raises:
        OSError: if the kernel or the machine does not support filters.
    """
    code = system_call_filter(os.uname().machine, os.getpid())
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", PR_SET_SECCOMP, 2, ctypes.c_char_p(program), 0, 0)


def drop_capabilities() -> None:
    """Drop every capability, and forbid to regain one by running another program."""
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
    _mount_tmpfs(new + "/tmp", f"mode=700,size={tmp_bytes},nr_inodes=4096")
    os.chdir(new)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", 2)  # the old root, now mounted over the new one; 2 = MNT_DETACH
    os.chdir("/")


def _mount_tmpfs(path: str, options: str) -> None:
    _call("mount", b"tmpfs", path.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, options.encode())


def _read_only(path: str, *, everything: bool) -> None:
    recursive, attributes = 0x8000 if everything else 0, struct.pack("=4Q", 1 | 2, 0, 0, 0)  # read-only, nosuid
    _call("syscall", MOUNT_SETATTR, -1, ctypes.c_char_p(path.encode()), recursive, ctypes.c_char_p(attributes), 32)
