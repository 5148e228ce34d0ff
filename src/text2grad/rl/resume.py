"""The state of a run on disk: saved after a finished step, restored bit for bit (same machine and threads)."""

from collections.abc import Mapping
from typing import Any

from accelerate.utils import gather_object

from text2grad.config import latest_checkpoint
from text2grad.errors import CheckpointError
from text2grad.models import random_states, restore_random_states
from text2grad.progress import note
from text2grad.rl.checkpoint import checkpoint_critics, load_checkpoint, save_checkpoint
from text2grad.rl.rollouts import chosen_examples
from text2grad.rl.run_log import BEGINNING
from text2grad.rl.start import PreparedRun


def save(run: PreparedRun, step: int) -> None:
    """Write a checkpoint of the last finished step; all processes call this.

    Raises:
        CheckpointError: if it cannot be written.
    """
    drawn, *of_others = gather_object([random_states()])  # each process's critic draws its own random numbers
    directory, is_main, sharded = run.directory / "checkpoints", run.accelerator.is_main_process, bool(run.sharding)
    if is_main or sharded:
        save_checkpoint(
            directory,
            policy=run.model.policy,
            tokenizer=run.tokenizer,
            trainable=run.trainable,
            optimizers=run.optimizers,
            state={
                "step": step,
                "beta": run.kl.beta,
                "statuses": list(run.failures.statuses),
                "log": run.log.position(),
                "sizes": run.sizes.state(),
                "critic": run.refresher.state(),
                "random": drawn,
                "random_of_others": of_others,
            },
            keep=run.recipe.run.keep_checkpoints,
            sharded=sharded,
            writes=is_main,
        )
    if is_main:
        run.log.forget_critiques(step)
        run.refresher.prune(checkpoint_critics(directory))
    run.sizes.changed = False
    run.accelerator.wait_for_everyone()


def restore(run: PreparedRun) -> int:
    """Restore the newest checkpoint, or the state at the start; cut the log back to that step.

    Returns:
        The number of finished steps.

    Raises:
        CheckpointError: if the checkpoint cannot be read, or finished steps have lost theirs.
    """
    checkpoint, step, written = latest_checkpoint(run.directory / "checkpoints"), 0, BEGINNING
    if checkpoint is None:
        _refuse_lost_steps(run)
    else:
        state = load_checkpoint(checkpoint, trainable=run.trainable, optimizers=run.optimizers)
        step, run.kl.beta, written = state["step"], state["beta"], state["log"]
        run.failures.count(state["statuses"])
        run.sizes.restore(state["sizes"])
        run.refresher.restore(state["critic"])
        restore_random_states(_own_random_states(run, state, str(checkpoint)))
    run.accelerator.wait_for_everyone()  # every process has read the log before the first one cuts it
    if run.accelerator.is_main_process:
        run.log.rewind(written)
    run.accelerator.wait_for_everyone()
    run.log.metrics()  # refuses a damaged file before work starts
    batches = -(-run.recipe.refresh.window // run.recipe.rollout.batch_size)
    for past, records in run.log.rollouts(since=step - batches):
        examples = [run.examples[index] for index in chosen_examples(run, past)]
        run.refresher.observe(examples, [record["response"] for record in records])
    return step


def _refuse_lost_steps(run: PreparedRun) -> None:
    """Refuse a run whose checkpoints are gone; warn of one that was killed before its first checkpoint."""
    settings, lost = run.recipe.run, run.log.steps_written()
    # The first checkpoint removes the critiques of step 0: if they exist, the run was killed before it.
    if lost >= settings.steps and not run.log.keeps_critiques(0):
        raise CheckpointError(
            f"{run.directory} has {lost} finished steps in metrics.jsonl, and their checkpoints are gone: restore "
            f"{run.directory / 'checkpoints'}, or begin again in another directory with --set run.out=DIR"
        )
    if lost >= min(settings.save_every, settings.steps) and run.accelerator.is_main_process:
        note(
            f"{run.directory} holds no checkpoint: its {lost} steps are made again, with the critiques on disk",
            warning=True,
        )


def _own_random_states(run: PreparedRun, state: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return this process's random states; if the number of processes has changed, those of the first process."""
    saved: list[Mapping[str, Any]] = [state["random"], *state["random_of_others"]]
    processes = run.accelerator.num_processes
    if len(saved) == processes:
        return saved[int(run.accelerator.process_index)]
    if run.accelerator.is_main_process:
        note(
            f"{path} holds the random states of another number of processes ({len(saved)}, now {processes}): all go on "
            "with those of the first. A critic that draws random numbers draws others than in a run that was never "
            "stopped",
            warning=True,
        )
    return saved[0]
