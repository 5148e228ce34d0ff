"""The exceptions of text2grad.

Text2GradError
├── ConfigError       a recipe or a setting is wrong; raised before any model loads
├── DataError         a file or a record cannot be used; names the file and the line
├── ShapeError        tensors that belong together differ in shape
├── AlignmentError    spans or ids that cannot belong to this response or tokenizer
├── CriticError       a critic broke its contract, or failed more often than the run allows
├── ModelError        a model or tokenizer cannot play the role it was given
├── TrainingError     the run cannot go on (a loss that is not finite, say)
├── CheckpointError   a checkpoint could not be written or does not fit the run
└── SandboxError      model-written code cannot be run safely here

Each message says what is wrong, the value, where, and the way out. A critic that writes nonsense is no
exception: it is an outcome (`Critique.status`), counted and logged.
"""


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


class ModelError(Text2GradError):
    """A model or tokenizer cannot play the role it was given."""


class TrainingError(Text2GradError):
    """The run cannot go on."""


class CheckpointError(Text2GradError):
    """A checkpoint could not be written, or does not fit the run that wants to resume from it."""
