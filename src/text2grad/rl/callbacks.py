"""transformers' `TrainerCallback`s in a training of text2grad, at their usual events.

    on_init_end, on_train_begin, on_step_begin, on_step_end, on_log, on_evaluate, on_save, on_train_end

`should_training_stop`, `should_save` and `should_evaluate` of their control are obeyed after each step. One step is
one batch of rollouts, with all its optimizer steps.
"""

from collections.abc import Sequence
from typing import Any

from text2grad.models import on_cpu
from text2grad.rl.step import Instrument, Step


class Callbacks(Instrument):
    """Calls transformers' callbacks.

    Attributes:
        args: transformers' arguments of the run; None without callbacks.
        control: transformers' flags by which the callbacks ask for a save, an evaluation or the end.
        state: transformers' view of the run, which the callbacks read; `log_history` has all metrics.
    """

    def __init__(self, trainer: Any, callbacks: Sequence[Any]) -> None:
        """Take the callbacks, objects or classes, of a trainer that has its recipe."""
        from transformers.trainer_callback import TrainerControl, TrainerState
        from transformers.training_args import TrainingArguments

        super().__init__(trainer)
        self.callbacks = [callback() if isinstance(callback, type) else callback for callback in callbacks]
        run, saving = trainer.recipe.run, {"logging_steps": 1, "save_steps": trainer.recipe.run.save_every}
        self.control, self.state = TrainerControl(), TrainerState(max_steps=run.steps, **saving)
        self.args = (
            TrainingArguments(
                output_dir=run.out,
                max_steps=run.steps,
                learning_rate=trainer.recipe.optim.lr,
                per_device_train_batch_size=trainer.recipe.rollout.batch_size,
                seed=run.seed,
                report_to="none",
                use_cpu=on_cpu(),
                **saving,
            )
            if callbacks
            else None
        )

    def call(self, event: str, **what: Any) -> None:
        """Call an event of all callbacks, such as "on_log" with `logs`; each may return a changed control."""
        trainer, rollout = self.trainer, self.trainer.recipe.rollout
        self.state.is_local_process_zero = trainer.accelerator.is_local_main_process
        self.state.is_world_process_zero = trainer.accelerator.is_main_process
        self.state.global_step = trainer.step
        self.state.epoch = trainer.step * rollout.batch_size / rollout.group_size / len(trainer.examples)
        what |= {"model": trainer.model.policy, "processing_class": trainer.tokenizer}
        for callback in self.callbacks:
            self.control = getattr(callback, event)(self.args, self.state, self.control, **what) or self.control

    def before_step(self, number: int) -> None:
        """Tell the callbacks that a step begins."""
        self.control.should_save = self.control.should_evaluate = self.control.should_log = False
        self.call("on_step_begin")

    def after_step(self, step: Step) -> None:
        """Tell the callbacks that a step ended; add its metrics to `state.log_history`, and pass them on."""
        if not self.callbacks:
            return
        self.call("on_step_end")
        logs = {**step.metrics, "step": self.trainer.step}
        self.state.log_history.append(logs)
        self.call("on_log", logs=logs)
