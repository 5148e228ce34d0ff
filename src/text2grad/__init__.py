"""Reinforcement learning from feedback in words (Text2Grad, arXiv 2505.22338).

Public names load on first use, so that `import text2grad` stays light: reading critiques and aligning them
needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from text2grad.types import Critique, Example, Rollout, Span

__version__ = "0.1.0"

_HOME = {
    "Critique": "types",
    "Example": "types",
    "Rollout": "types",
    "Span": "types",
}

__all__ = ["Critique", "Example", "Rollout", "Span"]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'text2grad' has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = getattr(import_module(f"text2grad.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
