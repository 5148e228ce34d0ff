"""The exceptions of text2grad, and the checks that raise them in several packages.

Each message names the error, the value, its place, and the way out. An unparsable critique is not an exception: it is a
result (`Critique.status`), counted and logged.
"""

import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.util import find_spec


class Text2GradError(Exception):
    """Base class of the errors of text2grad."""


class ConfigError(Text2GradError):
    """A recipe or a setting is wrong; raised before any model loads."""


class DataError(Text2GradError):
    """A file or a record cannot be used; the message names the file and the line."""


class ShapeError(Text2GradError):
    """Tensors that belong together differ in shape."""


class AlignmentError(Text2GradError):
    """Spans or token ids that cannot belong to this response or tokenizer."""


class CriticError(Text2GradError):
    """A critic broke its contract or failed more often than the run allows."""


class MetricError(Text2GradError):
    """A metric broke its contract."""


class RequestError(Text2GradError):
    """A server gave no answer.

    Attributes:
        kind: timeout, connection, rate_limit, server_error, bad_reply, rejected, or not_asked.
        detail: a description.
        fatal: True if all other requests would fail too: a wrong key, an unknown model, an empty account.
        retry_after_s: the delay that the server requires before a retry, in seconds; 0 if it names none.
        status: the status of HTTP; 0 without one.
    """

    def __init__(
        self, kind: str, detail: str, *, fatal: bool = False, retry_after_s: float = 0.0, status: int = 0
    ) -> None:
        """Create an error with the attributes of the class."""
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail, self.fatal, self.retry_after_s, self.status = kind, detail, fatal, retry_after_s, status

    @property
    def transient(self) -> bool:
        """True if a retry of the same request can succeed."""
        return self.kind not in ("rejected", "not_asked") and not self.fatal

    @property
    def may_cost(self) -> bool:
        """True if the server may have charged for an answer that did not arrive."""
        return self.kind in ("timeout", "connection", "bad_reply")


class ModelError(Text2GradError):
    """A model or tokenizer is unsuitable for its role."""


class TrainingError(Text2GradError):
    """The run cannot continue, for example after a loss that is not finite."""


class OutOfMemory(TrainingError):
    """The machine or its accelerator has no memory left for a phase of the run."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python or torch says that memory ran out.

    Example:
        >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))
        True
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, without importing it
        return True
    text = "".join(traceback.format_exception_only(error))  # also of an error whose message cannot be made
    return isinstance(error, RuntimeError) and any(
        words in text for words in ("can't allocate memory", "out of memory")
    )


class CheckpointError(Text2GradError):
    """A checkpoint could not be written, or does not fit the run that resumes from it."""


class Interrupted(Text2GradError):
    """A signal ended the run after a finished step, which is saved; `signal` is its number."""

    def __init__(self, signal: int, message: str) -> None:
        """Take the number of the signal and the message."""
        super().__init__(message)
        self.signal = signal


def check_known(setting: str, value: object, known: Sequence[str]) -> None:
    """Check that a value is known.

    Raises:
        ConfigError: if it is unknown; the message lists the known values and suggests the most similar.
    """
    if value not in known:
        raise ConfigError(
            f"{setting} has no value {value!r}.{known_names('value', value if isinstance(value, str) else '', known)}"
        )


def known_names(kind: str, name: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the most similar known name, and all of them.

    Example:
        >>> known_names("key", "betta", ["beta", "gamma"])
        ' Did you mean "beta"? Known keys: beta, gamma'
    """
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    return f"{hint} Known {kind}s: {', '.join(known)}"


INSTALL = 'pip install -e ".[{extra}]"'
"""The line that installs an extra; it works in the repository of text2grad."""


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require(*modules: str, extra: str, purpose: str, otherwise: str = "") -> None:
    """Check that the optional modules of an extra are installed, for a purpose; `otherwise` is a way out without them.

    Raises:
        ConfigError: if one is missing; the message names the modules and the line that installs the extra.
    """
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        raise ConfigError(
            f"{purpose} needs {', '.join(missing)}, not installed here: run {INSTALL.format(extra=extra)} in the "
            f"repository of text2grad{f', or {otherwise}' if otherwise else ''}"
        )
