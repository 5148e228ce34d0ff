"""What a user's code may not change of the process in which it is called: all of it is put back after each call."""

import gc
import locale
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from operator import attrgetter
from typing import Any

from text2grad.progress import LOG, STEPS, note

STREAMS = ("stdout", "stderr")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD)
OF_TORCH = "TORCHINDUCTOR_"  # begins variables that torch itself sets
_OF_TORCH = {  # a part of torch → the functions that read and set it
    "autograd (torch.set_grad_enabled)": ("is_grad_enabled", "set_grad_enabled"),
    "autograd's search for anomalies": ("is_anomaly_enabled", "set_anomaly_enabled"),
    "torch's default dtype": ("get_default_dtype", "set_default_dtype"),
    "torch's number of threads": ("get_num_threads", "set_num_threads"),
    "torch's deterministic algorithms": ("get_deterministic_debug_mode", "set_deterministic_debug_mode"),
} | {
    f"torch's attention ({kind})": (f"backends.cuda.{kind}_sdp_enabled", f"backends.cuda.enable_{kind}_sdp")
    for kind in ("flash", "mem_efficient", "math", "cudnn")
}
_PRECISIONS = ("", ".cuda.matmul", ".mkldnn", ".mkldnn.matmul", ".mkldnn.conv", ".cudnn", ".cudnn.conv", ".cudnn.rnn")
_MODES: list[Any] = []  # would be left if they were collected
_environments: dict[str, dict[str, str | None]] = {}  # whose code → the variables that it changed, as it left them
_stopping: list[Any] = [signal.SIG_DFL]  # the process's own handler of SIGTERM
_copying = threading.local()
_Access = tuple[Callable[[], Any], Callable[[Any], Any]]


@contextmanager
def kept_process(whose: str, *, loading: bool = False) -> Iterator[None]:
    """Put the process back as it was before a user's code ran, and tell what was changed, once for each.

    Autograd that stays off, say, would end all learning. A copy of the process that comes back from the code ends here:
    it would do the rest of the run a second time. Generators of random numbers stay as the code leaves them. The next
    call finds the environment as the last one left it.

    Args:
        whose: whose code it is, with its role, for warnings.
        loading: the code is loaded, not called; the environment that it sets is meant for the process.
    """
    process, before = os.getpid(), [(name, _value(read), read, restore) for name, (read, restore) in _states().items()]
    _stopping[0] = signal.getsignal(signal.SIGTERM)
    filters, copies, changed = list(warnings.filters), [], []
    own = _environments.setdefault(whose, {})
    outside = _set_variables(own)
    inside = dict(os.environ)
    for name in STREAMS:
        with suppress(AttributeError, OSError, ValueError):  # a stream that is None, in memory or closed already
            number = getattr(sys, name).fileno()
            copies.append((name, number, os.dup(number)))
    try:
        yield
    finally:
        if os.getpid() != process:
            os._exit(1)
        warnings.filters[:] = filters  # type: ignore[index]  # libraries change them when they are imported: no word
        for name, value, read, restore in before:
            received = getattr(getattr(value, "__self__", None), "received", None)  # a signal, by `Interruption`
            if _value(read) != value and received is None:
                restore(value)
                changed.append(name)
        for name, number, copy in copies:
            stream = getattr(sys, name)
            if stream.closed or _value(partial(os.fstat, number)) is None:
                os.dup2(copy, number)
                if stream.closed:
                    setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
                changed.append(f"whether sys.{name} is open")
            os.close(copy)
        if not loading:
            names = {name for name, _ in inside.items() ^ dict(os.environ).items() if not name.startswith(OF_TORCH)}
            own.update({name: os.environ.get(name) for name in names})
            _set_variables({name: inside.get(name) for name in names} | outside)
            changed += [f"os.environ[{name!r}]" for name in sorted(names)]
        for name in changed:
            _tell(whose, name)


def _before_copy() -> None:
    """Hold SIGTERM back while the process is copied."""
    _copying.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_copy() -> None:
    """Let SIGTERM through again, in the process and in its copy, as it was before."""
    signal.pthread_sigmask(signal.SIG_SETMASK, _copying.mask)


def _in_copy() -> None:
    """Let SIGTERM end a copy of the process, such as a worker of a pool, which waits for the end of its workers."""
    if _stopping[0] == signal.getsignal(signal.SIGTERM):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _after_copy()  # not before: the handler of the process would have lost a signal until now


os.register_at_fork(before=_before_copy, after_in_parent=_after_copy, after_in_child=_in_copy)


def _set_variables(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set variables of the environment, remove those that are None, and return what they were."""
    before = {name: os.environ.pop(name, None) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    return before


def _value(read: Callable[[], Any]) -> Any:
    """Return what is read, None if it is gone, such as a working directory that was removed."""
    with suppress(OSError):
        return read()


def _umask() -> int:
    """Return the mask of new files, which can be read by setting it only."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _set_disabled(disabled: list[bool]) -> None:
    """Set whether the logs of text2grad are silent, as `logging.config` leaves every log that it does not know."""
    LOG.disabled, STEPS.disabled = disabled


def _function_modes() -> tuple[Any, ...]:
    """Return the context of torch's default device, if any, and the modes that are entered, in order."""
    torch = sys.modules["torch"]
    device = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return device, *torch.overrides._get_current_function_mode_stack()


def _set_function_modes(modes: tuple[Any, ...]) -> None:
    """Enter modes in the place of those that are entered; a default device and a mode take each other's place."""
    torch = sys.modules["torch"]
    while torch.overrides._len_torch_function_stack():
        torch.overrides._pop_mode()
    for mode in modes[1:]:
        torch.overrides._push_mode(mode)
    torch._GLOBAL_DEVICE_CONTEXT.device_context = modes[0]


def _leave_modes(read: Callable[[], list[Any]], before: list[Any]) -> None:
    """Leave modes that were entered since."""
    for mode in reversed(read()[len(before) :]):
        mode.__exit__(None, None, None)


def _precisions() -> list[str | None]:
    """Return torch's precisions of products: the old setting, None where the new ones contradict it, and the new."""
    torch, old = sys.modules["torch"], None
    with suppress(RuntimeError):
        old = torch.get_float32_matmul_precision()
    return [old, *(attrgetter(f"backends{part}.fp32_precision")(torch) for part in _PRECISIONS)]


def _set_precisions(precisions: list[str | None]) -> None:
    """Set the precisions of `_precisions`; the old setting changes some of the new ones, which follow."""
    torch = sys.modules["torch"]
    if precisions[0]:
        torch.set_float32_matmul_precision(precisions[0])
    for part, precision in zip(_PRECISIONS, precisions[1:], strict=True):
        attrgetter(f"backends{part}")(torch).fp32_precision = precision


def _set_inference(on: bool) -> None:
    """Set torch's inference mode, which has no setter: the mode is entered, and not left."""
    _MODES.append(sys.modules["torch"].inference_mode(on))
    _MODES[-1].__enter__()


def _states() -> dict[str, _Access]:
    """Return how each part of the process is read and set; parts of libraries only where they are imported."""
    set_locale = partial(locale.setlocale, locale.LC_ALL)
    states: dict[str, _Access] = {
        "logging.disable": (partial(getattr, logging.root.manager, "disable"), logging.disable),
        "text2grad's log": (lambda: [logger.disabled for logger in (LOG, STEPS)], _set_disabled),
        "the locale": (set_locale, set_locale),
        "the working directory": (os.getcwd, os.chdir),
        "the mask of new files (os.umask)": (_umask, os.umask),
        "the alarm (signal.alarm)": (  # one that was set is cancelled, and would have ended the run
            lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0,
            lambda on: on or signal.setitimer(signal.ITIMER_REAL, 0),
        ),
        "the collection of garbage": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    }
    states |= _attributes("sys", sys, "stdin", *STREAMS)
    if threading.current_thread() is threading.main_thread():  # the only thread that may set a handler
        for number in SIGNALS:
            states[f"the handler of {number.name}"] = partial(signal.getsignal, number), partial(signal.signal, number)
    if numpy := sys.modules.get("numpy"):
        states["NumPy's handling of errors (np.seterr)"] = numpy.geterr, lambda errors: numpy.seterr(**errors)
    if torch := sys.modules.get("torch"):
        states["torch's inference mode"] = torch.is_inference_mode_enabled, _set_inference  # sets autograd, too
        for kind in ("cpu", "cuda"):
            enabled = partial(torch.is_autocast_enabled, kind)
            states[f"autocast ({kind})"] = enabled, partial(torch.set_autocast_enabled, kind)
        states |= {name: (attrgetter(r)(torch), attrgetter(w)(torch)) for name, (r, w) in _OF_TORCH.items()}
        states["torch's default device or modes"] = _function_modes, _set_function_modes
        dispatch = sys.modules["torch.utils._python_dispatch"]._get_current_dispatch_mode_stack
        states["torch's dispatch modes"] = dispatch, partial(_leave_modes, dispatch)
        states["torch's precision of products"] = _precisions, _set_precisions
        states |= _attributes("torch.backends.cudnn", torch.backends.cudnn, "enabled", "deterministic", "benchmark")
    return states


def _attributes(owner: str, of: object, *names: str) -> dict[str, _Access]:
    """Return how attributes of a module are read and set."""
    return {f"{owner}.{name}": (partial(getattr, of, name), partial(setattr, of, name)) for name in names}


@cache
def _tell(whose: str, what: str) -> None:
    """Warn, once for each part of the process that somebody's code changes."""
    note(f"{whose} changed {what} for the whole process; it is put back after each call", warning=True)
