"""A run from its first step to its last: steps, checkpoints, evaluations, callbacks, signals."""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object

from text2grad.config import BEST, Interruption, latest_checkpoint, read_best
from text2grad.errors import Interrupted
from text2grad.files import to_json, write_atomically
from text2grad.progress import Progress, note
from text2grad.rl.checkpoint import remove_old_checkpoints, save_checkpoint
from text2grad.rl.evaluation import held_out_metrics
from text2grad.rl.instruments import instruments_of
from text2grad.rl.metrics import said_nothing
from text2grad.rl.resume import restore
from text2grad.rl.start import PreparedRun
from text2grad.rl.step import Step

FIGURES = {"reward": "reward/per_response", "KL": "kl/per_token", "loss": "update/policy_loss"}
"""Name in the progress → metric."""


class TrainingLoop(PreparedRun):
    """The steps of a run; a subclass says what a step is.

    Attributes:
        step: number of finished steps.
    """

    def begin(self) -> None:
        """Begin at the newest checkpoint, or at the start."""
        self.saved_step = -1  # finished steps of the last checkpoint, -1 without one
        self.callbacks.call("on_init_end")
        self.instruments = instruments_of(self)
        self._restore()

    def train(self, after_step: Callable[[Any], None] | None = None) -> Path:
        """Run until `run.steps` and return the directory of the trained policy, an ordinary Hugging Face directory.

        Args:
            after_step: called with the trainer after each finished step, but not after a signal; None evaluates on
                the held-out prompts.

        Raises:
            CriticError: if the critic breaks its contract or fails too often; finished steps are saved first.
            TrainingError: if a loss is not finite.
            OutOfMemory: if memory runs out where no smaller piece helps; finished steps are saved if possible.
            CheckpointError: if a checkpoint cannot be written.
            Interrupted: after SIGINT or SIGTERM, once the step under way is finished and saved.
        """
        total = self.recipe.run.steps
        if self.step < total:
            self.tracker.start(self.step)
        self.callbacks.call("on_train_begin")
        if after_step is None:
            after_step = TrainingLoop.evaluate_if_due
            if self.step == 0:
                self.evaluate_if_due()
        progress = Progress("train", total, done=self.step, enabled=self.accelerator.is_main_process)
        silent = not self.step or said_nothing(self.log.metrics())
        with Interruption() as interruption, progress:
            while self.step < total:
                metrics = self.train_step().metrics
                figures: dict[str, Any] = {name: metrics[key] for name, key in FIGURES.items() if key in metrics}
                silent = silent and said_nothing([metrics])
                progress.advance(**figures | ({"critic": "labels nothing"} if silent else {}))
                due = self.step % self.recipe.run.save_every == 0 or self.step == total
                if due or self.sizes.changed or self.callbacks.control.should_save:
                    self.save()  # new sizes of pieces, too: a resumed run uses them
                if self._interrupted(interruption) and self.step < total:
                    self.save()
                    self._end()
                    raise Interrupted(
                        interruption.received or signal.SIGTERM,
                        f"stopped after step {self.step} of {total}, which is saved",
                    )
                after_step(self)
                if self.callbacks.control.should_training_stop:
                    self.save()
                    break
        self._end()
        return latest_checkpoint(self.directory / "checkpoints") / "policy"  # type: ignore[operator]

    def train_step(self) -> Step:
        """Make one step."""
        raise NotImplementedError

    @property
    def policy_is_new(self) -> bool:
        """Whether the last step changed the policy: False within a round of several steps, as a rival has them."""
        return True

    @property
    def evaluation_is_due(self) -> bool:
        """Whether the held-out prompts are to be evaluated after this step, by the recipe or a callback's wish."""
        every, ends = self.recipe.data.eval_every, (0, self.recipe.run.steps)
        due = self.step in ends or (every and self.step % every == 0) or self.callbacks.control.should_evaluate
        return bool(self.held_out and self.policy_is_new and due)

    def evaluate_if_due(self) -> None:
        """Measure the reward on the held-out prompts, if there are any and this step is due."""
        if not self.evaluation_is_due:
            return
        metrics = held_out_metrics(self)
        self.tracker.log(metrics, self.step)
        if self.accelerator.is_main_process:
            reward, kl = metrics["eval/reward/per_response"], metrics["eval/kl/per_token"]
            note(f"step {self.step}: held-out reward {reward:.3f} per response, KL {kl:.3f} nats per token")
        self.callbacks.call("on_evaluate", metrics=metrics)

    def save(self) -> None:
        """Write a checkpoint of the last finished step, unless there is one."""
        if self.saved_step == self.step and not self.sizes.changed:
            return
        save_checkpoint(self, self.step)
        self.saved_step = self.step
        self.callbacks.call("on_save")

    def keep_if_best(self, value: float) -> None:
        """Keep the checkpoint of the last finished step in place of the best one so far if its evaluation is better.

        Args:
            value: value of the main metric; only the value in the first process counts.

        Raises:
            CheckpointError: if it cannot be written.
        """
        directory, is_main = self.directory / "checkpoints", self.accelerator.is_main_process
        best, sign = read_best(directory) if is_main else {}, 1.0 if self.recipe.run.keep_best == "highest" else -1.0
        if gather_object([not best or sign * value > sign * best["value"]])[0]:
            self.save()
            if is_main:
                write_atomically(directory / BEST, to_json({"step": self.step, "value": value}) + b"\n")
                remove_old_checkpoints(directory, self.recipe.run.keep_checkpoints)
            self.accelerator.wait_for_everyone()

    def within_memory(self, name: str) -> AbstractContextManager[None]:
        """Return the context of a phase in which a lack of memory ends the run with the settings that help."""
        return self.sizes.explained(name, self.step, saved=self._save_before_update)

    def _save_before_update(self) -> str:
        """Save the last finished step, unless this step has changed weights or other processes would have to join."""
        if self.accelerator.num_processes == 1 and not self.optimizers.stepped:
            self.save()
        checkpoint = latest_checkpoint(self.directory / "checkpoints")
        return f"{checkpoint} is kept: go on with --resume." if checkpoint else "No step was finished."

    def _interrupted(self, interruption: Interruption) -> bool:
        """Tell whether any process received a signal, so that all processes stop after the same step."""
        received = torch.tensor([float(interruption.received is not None)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(received, reduction="sum") > 0)

    def _restore(self) -> None:
        """Restore the newest checkpoint, or the state at the start."""
        self.step = restore(self)
        self.saved_step = self.step if latest_checkpoint(self.directory / "checkpoints") else -1

    def _tell(self, event: str, what: Any) -> None:
        """Call a method of all instruments."""
        for instrument in self.instruments:
            getattr(instrument, event)(what)

    def _end(self) -> None:
        """End vLLM, then the tracker, and with it the group of processes."""
        self.callbacks.call("on_train_end")
        if self.vllm is not None:
            self.accelerator.wait_for_everyone()
            self.vllm.close()
        self.tracker.finish()
