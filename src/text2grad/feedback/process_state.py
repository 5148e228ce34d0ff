"""What a user's code may not change of the process in which it is called: all of it is put back after each call."""

import locale
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from types import ModuleType
from typing import Any

from text2grad.progress import note

STREAMS = ("stdout", "stderr")
_OF_TORCH = {  # a part of torch → the functions that read and set it
    "autograd (torch.set_grad_enabled)": ("is_grad_enabled", "set_grad_enabled"),
    "torch's default dtype": ("get_default_dtype", "set_default_dtype"),
    "torch's default device": ("get_default_device", "set_default_device"),
    "torch's number of threads": ("get_num_threads", "set_num_threads"),
    "torch's precision of products": ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    "torch's deterministic algorithms": ("are_deterministic_algorithms_enabled", "use_deterministic_algorithms"),
}
_Access = tuple[Callable[[], Any], Callable[[Any], Any]]


@contextmanager
def kept_process(whose: str) -> Iterator[None]:
    """Put the process back as it was before a user's code ran, and tell what was changed, once for each.

    Autograd that stays off, say, would end all learning. A copy of the process that comes back from the code ends here:
    it would do the rest of the run a second time. Generators of random numbers stay as the code leaves them.

    Args:
        whose: whose code it is, with its role, for warnings.
    """
    process, before = os.getpid(), [(name, read(), read, restore) for name, (read, restore) in _states().items()]
    filters, copies = list(warnings.filters), []
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
            if read() != value:
                restore(value)
                _tell(whose, name)
        for name, number, copy in copies:
            if getattr(sys, name).closed:
                os.dup2(copy, number)
                setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
                _tell(whose, f"whether sys.{name} is open")
            os.close(copy)


def _states() -> dict[str, _Access]:
    """Return how each part of the process is read and set; parts of torch only where it is imported."""
    set_locale = partial(locale.setlocale, locale.LC_ALL)
    states: dict[str, _Access] = {
        "the locale": (set_locale, set_locale),
        "the working directory": (os.getcwd, os.chdir),
    }
    states |= _attributes("sys", sys, "stdin", *STREAMS)
    if threading.current_thread() is threading.main_thread():  # the only thread that may set a handler
        for number in (signal.SIGINT, signal.SIGTERM):
            states[f"the handler of {number.name}"] = partial(signal.getsignal, number), partial(signal.signal, number)
    if torch := sys.modules.get("torch"):
        states |= {part: (getattr(torch, read), getattr(torch, write)) for part, (read, write) in _OF_TORCH.items()}
        states |= _attributes("torch.backends.cudnn", torch.backends.cudnn, "deterministic", "benchmark")
    return states


def _attributes(owner: str, module: ModuleType, *names: str) -> dict[str, _Access]:
    return {f"{owner}.{name}": (partial(getattr, module, name), partial(setattr, module, name)) for name in names}


@cache
def _tell(whose: str, what: str) -> None:
    note(f"{whose} changed {what} for the whole process; it is put back after each call", warning=True)
