"""What stands around the lines of Algorithm 4: clock, memory, records, audit of the critic, and the logs.

An instrument watches each step of a trainer through one protocol and changes nothing of the training. Packages outside
text2grad register further instruments.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from text2grad.costs import TokenCount, accelerator_peak, peak_memory, reset_accelerator_peak, tokens_of
from text2grad.errors import CriticError
from text2grad.progress import note
from text2grad.rl.metrics import response_records, step_metrics
from text2grad.rl.step import Instrument, Step, watched

_MAKERS: list[Callable[[Any], Instrument | None]] = []


def register_instrument(make: Callable[[Any], Instrument | None]) -> None:
    """Let each trainer that is built from now on ask `make`, with itself as argument, for an instrument or None."""
    if make not in _MAKERS:
        _MAKERS.append(make)


def instruments_of(trainer: Any) -> list[Instrument]:
    """Return the instruments of a trainer, which is already built."""
    own = [CriticErrors(trainer), Memory(trainer), Clock(trainer), Tokens(trainer), Records(trainer), Audit(trainer)]
    registered = [instrument for make in _MAKERS if (instrument := make(trainer)) is not None]
    return [*own, *registered, trainer.callbacks, FailureLimit(trainer)]


class Clock(Instrument):
    """Wall time of the phases of a step in seconds, and the peak memory of each on an accelerator in bytes."""

    def __init__(self, trainer: Any = None) -> None:
        """Start with no phases."""
        super().__init__(trainer)
        self.seconds: dict[str, float] = {}
        self.memory: dict[str, float] = {}

    def before_step(self, number: int) -> None:
        """Forget the phases of the step before."""
        self.seconds, self.memory = {}, {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to `seconds/NAME`, and its peak to `memory/NAME`."""
        reset_accelerator_peak()
        start = time.perf_counter()
        yield
        if peak := accelerator_peak():
            self.memory[f"memory/{name}"] = max(self.memory.get(f"memory/{name}", 0.0), float(peak))
        key = f"seconds/{name}"
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - start

    def after_step(self, step: Step) -> None:
        """Add the seconds and the bytes to the metrics."""
        peak = max([float(peak_memory()), *self.memory.values()])
        step.metrics |= {**self.seconds, **self.memory, "memory/peak_bytes": peak}


class Tokens(Instrument):
    """Tokens that policy and critic read and wrote in a step, of all processes."""

    def __init__(self, trainer: Any) -> None:
        """Take the trainer, already built."""
        super().__init__(trainer)
        self.before = TokenCount()

    def before_step(self, number: int) -> None:
        """Read the critic's count."""
        self.before = tokens_of(self.trainer.critic)

    def after_step(self, step: Step) -> None:
        """Add the counts to the metrics."""
        now = tokens_of(self.trainer.critic)
        mine = {
            "tokens/prompt": sum(len(rollout.prompt_ids) for rollout in step.rollouts),
            "tokens/generated": sum(len(rollout.response_ids) for rollout in step.rollouts),
            "tokens/critic_prompt": now.prompt - self.before.prompt,
            "tokens/critic_generated": now.generated - self.before.generated,
        }
        counts = gather_object([mine])
        step.metrics |= {name: float(sum(count[name] for count in counts)) for name in mine}


class Memory(Instrument):
    """Ends a run that lacks memory with the settings that help."""

    PHASES = ("rollout", "score", "critic", "update")

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Explain a lack of memory."""
        return self.trainer.within_memory(name) if name in self.PHASES else nullcontext()


class CriticErrors(Instrument):
    """Explains an error of the critic or the annotator, and saves the last finished step if no update has begun."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Write the traceback to a file, and say how to go on."""
        try:
            yield
        except CriticError as error:
            trainer = self.trainer
            log = trainer.log.write_critic_error(trainer.step, error)
            kept = "Steps after the last checkpoint are repeated with the critiques on disk"
            if name != "refresh" and trainer.accelerator.num_processes == 1:
                trainer.save()
                kept = "Every finished step is saved"
            reason = str(error).rstrip(".")
            raise CriticError(
                f"{reason}. The traceback is in {log}. {kept}; mend the critic and go on with --resume."
            ) from error


class Records(Instrument):
    """The records of the responses and the metrics of a step, on disk and in the tracker."""

    def before_update(self, step: Step) -> None:
        """Make records and metrics; every process gets the records of all processes."""
        tokens = {
            "reward": step.span_rewards,
            "kl": step.scores.kl,
            "value": step.scores.values,
            "advantage": step.advantages,
        }
        records = response_records(step.number, step.rollouts, step.critiques, step.deltas, step.offsets, tokens)
        step.records = gather_object(records)
        mask = step.batch.response_mask
        step.metrics = step_metrics(step.records, step.scores, step.returns, mask, self._of_all) | step.metrics

    def _of_all(self, columns: Tensor) -> Tensor:
        """Return the columns of all processes, in the order of the processes."""
        if self.trainer.accelerator.num_processes == 1:
            return columns
        return torch.cat(gather_object([columns.cpu()]), 1)

    def after_step(self, step: Step) -> None:
        """Write records and metrics, and warn of a critic that says nothing."""
        trainer = self.trainer
        if trainer.accelerator.is_main_process:
            trainer.log.write_rollouts(step.records)
            trainer.log.write_metrics({"step": step.number, **step.metrics})
        trainer.tracker.log(step.metrics, step.number)
        trainer.silence.count([step.metrics])
        if trainer.accelerator.is_main_process and (warning := trainer.silence.warning()):
            note(f"step {step.number + 1}: {warning}", warning=True)


class Audit(Instrument):
    """How well a learned critic agrees with its annotator on some responses of a step."""

    def before_update(self, step: Step) -> None:
        """Add the agreement to the metrics."""
        with watched(self.trainer, "audit"):
            step.metrics |= self.trainer.refresher.audit(
                self.trainer.tokenizer, step.rollouts, step.deltas, step.critiques
            )


class FailureLimit(Instrument):
    """Stops a run when too many critiques could not be read."""

    def after_step(self, step: Step) -> None:
        """Count the critiques of the step; save the step before the run stops."""
        trainer = self.trainer
        trainer.failures.count(record["critique"]["status"] for record in step.records)
        if trainer.failures.too_many:
            error = trainer.failures.error(
                f"Their responses were kept with δ = 0: look at critique.status in {trainer.directory / 'rollouts'}, "
                "mend the critic, and go on with --resume.",
                setting="critic.max_failure_rate",
            )
            trainer.failures.statuses.clear()  # a mended critic starts anew
            trainer.save()
            raise error
