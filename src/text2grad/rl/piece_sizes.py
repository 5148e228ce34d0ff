"""Out of memory: the work is done again in smaller pieces where that changes no result; else the error names settings.

Halved micro-batches give the same gradient up to the order of fp32 sums, and each row of one generate call has its own
uniform numbers. Work that ran out of memory is dropped whole and begun anew; the smaller size stays for the rest of the
run and is saved in its checkpoints, so that a resumed run computes in the same pieces.

With several processes nothing is halved: a process that repeats its work would miss a collective operation in which the
others wait. With sharded weights every pass is a collective operation, so the processes agree on the number of pieces.
"""

import gc
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from text2grad.errors import OutOfMemory, is_out_of_memory
from text2grad.models import Scores, TokenBatch
from text2grad.progress import note

Result = TypeVar("Result")

HELP = {
    "rollout": "lower rollout.rows_at_once (now {rows_at_once}) or rollout.max_new_tokens",
    "critic": "lower rollout.rows_at_once (now {rows_at_once}), the rows of a reward model at a time, too",
    "score": "lower ppo.micro_batch_tokens (now {micro_batch_tokens}), or train an adapter (model.lora_r), which needs "
    "no copy of the weights as reference",
    "update": "lower ppo.micro_batch_tokens (now {micro_batch_tokens}), or set model.gradient_checkpointing = true",
}
"""The settings that lower the memory of each phase."""


class PieceSizes:
    """The sizes of the pieces in which a run samples, scores and updates.

    Attributes:
        micro_batch_tokens: most padded tokens of one forward pass of scoring and update.
        rows_at_once: rows of one generate call.
        changed: True after a size was halved, until it is set to False.
        keeps: whether scoring keeps its pass over the first piece for the update.
        kept: the rows of that piece and its scores, which have a gradient.
    """

    def __init__(
        self,
        *,
        micro_batch_tokens: int,
        rows_at_once: int = 64,
        may_halve: bool = True,
        largest: Callable[[Iterable[int]], list[int]] | None = None,
    ) -> None:
        """Take the sizes of the recipe.

        With several processes `may_halve` is False, and a lack of memory ends the run. `largest` returns the largest of
        each number over all processes; None if their numbers of passes may differ.
        """
        self.micro_batch_tokens, self.rows_at_once = micro_batch_tokens, rows_at_once
        self.may_halve, self.largest, self.changed = may_halve, largest, False
        self.keeps = False
        self.kept: tuple[Tensor, Scores] | None = None
        self._asked = {"micro_batch_tokens": micro_batch_tokens, "rows_at_once": rows_at_once}

    def state(self) -> dict[str, dict[str, int]]:
        """Return the sizes of the recipe and those in use, as JSON data."""
        return {"asked": self._asked, "used": {name: getattr(self, name) for name in self._asked}}

    def restore(self, state: dict[str, dict[str, int]]) -> None:
        """Take the sizes of a checkpoint, except those that the recipe has changed since."""
        for name, size in state["used"].items():
            if state["asked"][name] == self._asked[name]:
                setattr(self, name, size)

    def pieces(self, batch: TokenBatch) -> tuple[TokenBatch, list[Tensor]]:
        """Return the batch, and the rows of each forward pass: of similar length, at most `micro_batch_tokens` each.

        Where all processes must make equally many passes, the largest pieces are halved until this process has as many
        as any other; with too few rows, a piece is repeated. Prompts are shared by all passes of all processes or by
        none, because a shared prompt is a pass of its own.
        """
        groups = batch.groups(self.micro_batch_tokens)
        if self.largest is None:
            return batch, groups
        if batch.prompts:
            groups = self._as_many(groups, self.largest)
            [any_alone] = self.largest([not all(batch.rows(group).cost().shares_prompts for group in groups)])
            if not any_alone:
                return batch, groups
            batch = batch._replace(prompts=())
            groups = batch.groups(self.micro_batch_tokens)
        return batch, self._as_many(groups, self.largest)

    @staticmethod
    def _as_many(groups: list[Tensor], largest: Callable[[Iterable[int]], list[int]]) -> list[Tensor]:
        """Return as many groups of rows as the process with the most groups has."""
        [count] = largest([len(groups)])
        groups = list(groups)
        while len(groups) < count:
            at = max(range(len(groups)), key=lambda number: len(groups[number]))
            halves = [half for half in groups[at].chunk(2) if len(half)]
            groups[at : at + 1] = halves if len(halves) == 2 else [groups[at], groups[at]]
        return groups

    def in_rows(self, rows: int, work: Callable[[], Result]) -> Result:
        """Sample `rows` rows by `work`, again with half of `rows_at_once` after each lack of memory."""
        return self._halving("rollout", "rows_at_once", lambda: min(self.rows_at_once, rows), work)

    def in_micro_batches(self, batch: TokenBatch, work: Callable[[], Result]) -> Result:
        """Run `work` on a batch, again with micro-batches of half the tokens after each lack of memory."""

        def most_tokens() -> int:  # of a piece; 1 if each is one row
            groups = batch.groups(self.micro_batch_tokens)
            alone = all(len(group) == 1 for group in groups)
            return 1 if alone else max(batch.rows(group).cost().tokens for group in groups)

        return self._halving("ppo", "micro_batch_tokens", most_tokens, work)

    def _halving(self, section: str, name: str, used: Callable[[], int], work: Callable[[], Result]) -> Result:
        """Run `work`, again with half of the size that it used after each lack of memory, down to 1."""
        while True:
            try:
                return work()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or not self.may_halve or (size := used()) == 1:
                    raise
            free_memory()  # here the error is gone, and with it the tensors of its frames
            was, half = getattr(self, name), size // 2
            note(f"out of memory: the run goes on with {section}.{name} = {half}, was {was}", warning=True)
            setattr(self, name, half)
            self.changed = True

    @contextmanager
    def explained(self, phase: str, step: int, *, saved: Callable[[], str]) -> Iterator[None]:
        """Turn a lack of memory into an error that names the settings of the phase.

        `saved` saves the finished steps if possible, and returns a sentence about it.

        Raises:
            OutOfMemory: in place of torch's and Python's errors, in the phases of `HELP`.
        """
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if phase not in HELP or not is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)  # the frames hold tensors
            free_memory()
            detail = (str(error).strip().splitlines() or [type(error).__name__])[0]
            alone = "" if self.may_halve else "; with several processes the sizes are not halved during the run"
            raise OutOfMemory(
                f"out of memory in the {phase} of step {step}{alone}. {saved()} To fit, "
                f"{HELP[phase].format(**self.state()['used'])}; `text2grad train RECIPE --dry-run` shows the memory "
                f"of each phase. ({detail})"
            ) from error


def free_memory() -> None:
    """Collect garbage and give cached device memory back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
