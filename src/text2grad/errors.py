"""The exceptions of text2grad.

Text2GradError
├── ConfigError       a recipe or a setting is wrong; raised before any model loads
├── DataError         a file or a record cannot be used; names the file and the line
├── ShapeError        tensors that belong together differ in shape
├── AlignmentError    spans or ids that cannot belong to this response or tokenizer
├── CriticError       a critic broke its contract, or failed more often than the run allows
├── RequestError      a server gave no answer; says of which kind that is, and whether to try again
├── ModelError        a model or tokenizer cannot play the role it was given
├── TrainingError     the run cannot go on (a loss that is not finite, say)
├── CheckpointError   a checkpoint could not be written or does not fit the run
└── SandboxError      model-written code cannot be run safely here

Each message says what is wrong, the value, where, and the way out. A critic that writes nonsense is no
exception: it is an outcome (`Critique.status`), counted and logged.
"""

from collections.abc import Sequence
from difflib import get_close_matches


class Text2GradError(Exception):
    """Base of every error that text2grad raises on purpose."""


class ConfigError(Text2GradError):
    """A recipe or a setting is wrong."""


class DataError(Text2GradError):
    """A file or a record cannot be used."""


class ShapeError(Text2GradError):
    """Tensors that belong together differ in shape."""


class AlignmentError(Text2GradError):
    """Spans or token ids that cannot belong to this response or tokenizer."""


class CriticError(Text2GradError):
    """A critic broke its contract or failed more often than the run allows."""


class RequestError(Text2GradError):
    """A server gave no answer.

    Attributes:
        kind: timeout, connection, rate_limit, server_error, bad_reply, rejected, or not_asked.
        detail: what happened, in words.
        transient: True where the same request may be answered later.
        fatal: True where no other request would be answered either: a wrong key, an unknown model, an empty account.
        retry_after_s: how long the server asks to be left alone; 0 where it does not say.
        may_cost: True where the server may have written, and charged for, an answer that did not arrive.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        transient: bool = False,
        fatal: bool = False,
        retry_after_s: float = 0.0,
        may_cost: bool = False,
    ) -> None:
        """Take the attributes."""
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail
        self.transient, self.fatal, self.retry_after_s, self.may_cost = transient, fatal, retry_after_s, may_cost


class ModelError(Text2GradError):
    """A model or tokenizer cannot play the role it was given."""


class TrainingError(Text2GradError):
    """The run cannot go on."""


class CheckpointError(Text2GradError):
    """A checkpoint could not be written, or does not fit the run that wants to resume from it."""


def check_known(setting: str, value: object, known: Sequence[str]) -> None:
    """Refuse a value that a setting does not have.

    Raises:
        ConfigError: naming the known values, and the nearest to the one given.
    """
    if value in known:
        return
    near = get_close_matches(str(value), known, n=1)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    raise ConfigError(f"{setting} has no value {value!r}.{hint} Known values: {', '.join(known)}")


class RenamedSetting(FutureWarning):
    """A recipe uses a setting by the name of an earlier version."""
