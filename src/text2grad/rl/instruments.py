"""What stands around the lines of Algorithm 4: costs, records, audit of the critic, errors, and the logs.

An instrument watches each step of a trainer through one protocol. Packages outside text2grad register further ones.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object

from text2grad.costs import TokenCount, accelerator_peak, peak_memory, tokens_of
from text2grad.errors import CriticError
from text2grad.progress import note
from text2grad.rl.importance import warning_of_gap
from text2grad.rl.metrics import WARNED_STEPS, response_records, step_metrics, warning_of_corners, warning_of_silence
from text2grad.rl.step import Instrument, Step, watched

_MAKERS: list[Callable[[Any], Instrument | None]] = []


def register_instrument(make: Callable[[Any], Instrument | None]) -> None:
    """Let each trainer that is built from now on ask `make`, with itself as argument, for an instrument or None."""
    if make not in _MAKERS:
        _MAKERS.append(make)


def instruments_of(trainer: Any) -> list[Instrument]:
    """Return the instruments of a trainer, which is already built."""
    registered = [instrument for make in _MAKERS if (instrument := make(trainer)) is not None]
    own = Errors(trainer), Costs(trainer), Records(trainer)
    return [*own, *registered, trainer.callbacks, FailureLimit(trainer)]


class Costs(Instrument):
    """Of a step: the seconds of its phases, their peak memory on an accelerator in bytes, and its tokens."""

    def __init__(self, trainer: Any) -> None:
        """Start with no phases."""
        super().__init__(trainer)
        self.seconds, self.memory = defaultdict[str, float](float), defaultdict[str, float](float)
        self.before = TokenCount()

    def before_step(self, number: int) -> None:
        """Forget the phases of the step before, and read the critic's count of tokens."""
        self.seconds.clear()
        self.memory.clear()
        self.before = tokens_of(self.trainer.critic)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to `seconds/NAME`, and its peak to `memory/NAME`."""
        if accelerator_peak():
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        yield
        if peak := accelerator_peak():
            self.memory[f"memory/{name}"] = max(self.memory[f"memory/{name}"], float(peak))
        self.seconds[f"seconds/{name}"] += time.perf_counter() - start

    def after_step(self, step: Step) -> None:
        """Add all to the metrics; the tokens that policy and critic read and wrote are those of all processes."""
        peak = max([float(peak_memory()), *self.memory.values()])
        now = tokens_of(self.trainer.critic)
        given = sum(len(given.ids) for rollout in step.rollouts for given in rollout.given)
        mine = {
            "tokens/prompt": sum(len(rollout.prompt_ids) for rollout in step.rollouts) + given,
            "tokens/generated": sum(len(rollout.response_ids) for rollout in step.rollouts),
            "tokens/critic_prompt": now.prompt - self.before.prompt,
            "tokens/critic_generated": now.generated - self.before.generated,
        }
        counts = gather_object([mine])
        step.metrics |= {**self.seconds, **self.memory, "memory/peak_bytes": peak}
        step.metrics |= {name: float(sum(count[name] for count in counts)) for name in mine}


class Errors(Instrument):
    """Ends a run that lacks memory, or whose critic or annotator fails, with the way out and what is saved."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Explain an error; save the last finished step if no update has begun."""
        trainer = self.trainer
        try:
            with trainer.within_memory(name):
                yield
        except CriticError as error:
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
        """Make records and metrics, also of the audit of a learned critic; every process gets all records."""
        tokens = {
            "reward": step.span_rewards,
            "kl": step.scores.kl,
            "value": step.scores.values,
            "advantage": step.advantages,
        }
        records = response_records(step.number, step.rollouts, step.critiques, step.deltas, step.offsets, tokens)
        step.records = gather_object(records)
        mask, of_all = step.batch.response_mask, lambda columns: torch.cat(gather_object([columns.cpu()]), 1)
        step.metrics = step_metrics(step.records, step.scores, step.returns, mask, of_all) | step.metrics
        with watched(self.trainer, "audit"):
            audit, tokenizer = self.trainer.refresher.audit, self.trainer.tokenizer
            step.metrics |= audit(tokenizer, step.rollouts, step.deltas, step.critiques)

    def after_step(self, step: Step) -> None:
        """Write records and metrics, and warn of a critic that says nothing or leaves nothing to move to."""
        trainer = self.trainer
        if trainer.accelerator.is_main_process:
            trainer.log.write_rollouts(step.records)
            trainer.log.write_metrics({"step": step.number, **step.metrics})
            rounded = trainer.vllm is not None or trainer.gradient.half_precision
            so_far = trainer.log.metrics() if step.number + 1 in WARNED_STEPS else []
            told = warning_of_silence(so_far), warning_of_corners(so_far), warning_of_gap(step.metrics, rounded=rounded)
            for warning in filter(None, told):
                note(f"step {step.number + 1}: {warning}", warning=True)
        trainer.tracker.log(step.metrics, step.number)


class FailureLimit(Instrument):
    """Stops a run when too many critiques could not be read."""

    def after_step(self, step: Step) -> None:
        """Count the critiques of the step; save the step before the run stops."""
        trainer = self.trainer
        trainer.failures.count(record["critique"]["status"] for record in step.records)
        if trainer.failures.too_many:
            error = trainer.failures.error(
                f"Their responses were kept with δ = 0: look at critique.status in {trainer.directory / 'rollouts'}, "
                "mend the critic, and go on with --resume."
            )
            trainer.failures.statuses.clear()  # a mended critic starts anew
            trainer.save()
            raise error
