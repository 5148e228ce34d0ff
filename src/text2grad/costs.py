"""Seconds, tokens and peak memory of a phase, in one shape for all phases (table 13 of the paper).

Each phase keeps costs.json in its directory: an object with the keys of `Cost`, to which a run that is continued adds.
Supervised training counts in its checkpoints, and writes the file at its end. Reinforcement learning logs the same for
each part of each step in metrics.jsonl instead.
"""

import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock

from text2grad.files import to_json, write_atomically

COSTS_FILE = "costs.json"
_COUNTING = Lock()
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss


@dataclass(slots=True)
class TokenCount:
    """Tokens that a model has read and written so far."""

    prompt: int = 0
    generated: int = 0

    def add(self, prompt: int, generated: int) -> None:
        """Count more tokens; several threads may do so at once."""
        with _COUNTING:
            self.prompt += prompt
            self.generated += generated


@dataclass(slots=True)
class Cost:
    """Costs of a phase so far, over all processes that it had one after another.

    Attributes:
        phase: such as "annotate".
        seconds: wall time.
        prompt_tokens: tokens read by models; 0 if no model read any.
        generated_tokens: tokens written by models.
        peak_memory_bytes: most memory at once; see `peak_memory`.
        runs: number of processes.
    """

    phase: str
    seconds: float = 0.0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    peak_memory_bytes: int = 0
    runs: int = 0


@contextmanager
def metered(directory: Path, phase: str) -> Iterator[TokenCount]:
    """Measure the block as a phase of a directory; yield the count of its tokens.

    The costs are written at its end, also after an error, if there is such a directory by then; earlier costs of the
    phase in the directory are continued.
    """
    begun, tokens = time.monotonic(), TokenCount()
    try:
        yield tokens
    finally:
        before = read_cost(directory)
        cost = before if before is not None and before.phase == phase else Cost(phase)
        cost.seconds += time.monotonic() - begun
        cost.prompt_tokens += tokens.prompt
        cost.generated_tokens += tokens.generated
        cost.peak_memory_bytes = max(cost.peak_memory_bytes, peak_memory())
        cost.runs += 1
        if directory.is_dir():
            write_cost(directory, cost)


def read_cost(directory: Path) -> Cost | None:
    """Return the costs in costs.json of a directory; None if there is none that can be read."""
    try:
        return Cost(**json.loads((directory / COSTS_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def write_cost(directory: Path, cost: Cost) -> None:
    """Write the costs of a phase to costs.json of its directory."""
    write_atomically(directory / COSTS_FILE, to_json(asdict(cost)) + b"\n")


def peak_memory() -> int:
    """Return the most memory at once in bytes: of tensors on the accelerator if one is used, else of the process."""
    return accelerator_peak() or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


def accelerator_peak() -> int:
    """Return the most memory of tensors on the accelerator since the last reset in bytes; 0 without one."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.max_memory_allocated()) if torch is not None and torch.cuda.is_initialized() else 0


def tokens_of(critic: object) -> TokenCount:
    """Return the tokens that a critic has read and written so far; zeros for a critic that does not count them."""
    tokens = getattr(critic, "tokens", None)
    return replace(tokens) if isinstance(tokens, TokenCount) else TokenCount()
