"""A run goes on where it was: at its newest checkpoint, bit for bit (same machine and threads), or at the start."""

from text2grad.config import latest_checkpoint
from text2grad.errors import CheckpointError
from text2grad.models import restore_random_states
from text2grad.progress import note
from text2grad.rl.checkpoint import load_checkpoint
from text2grad.rl.rollouts import chosen_examples
from text2grad.rl.run_log import BEGINNING
from text2grad.rl.start import PreparedRun


def restore(run: PreparedRun) -> int:
    """Restore the newest checkpoint, or the state at the start; cut the log back to that step.

    Returns:
        The number of finished steps.

    Raises:
        CheckpointError: if the checkpoint cannot be read, finished steps have lost theirs, or a critic that learns
            needs responses that are gone.
    """
    checkpoint, step, written = latest_checkpoint(run.directory / "checkpoints"), 0, BEGINNING
    if checkpoint is None:
        _refuse_lost_steps(run)
    else:
        state = load_checkpoint(checkpoint, run)
        step, run.kl.beta, written = state["step"], state["beta"], state["log"]
        run.failures.count(state["statuses"])
        run.sizes.restore(state["sizes"])
        run.refresher.restore(state["critic"])
        states = [state["random"], *state["random_of_others"]]  # of another number of processes: the first for all
        same_number = len(states) == run.accelerator.num_processes
        restore_random_states(states[run.accelerator.process_index if same_number else 0])
    run.accelerator.wait_for_everyone()  # every process has read the log before the first one cuts it
    if run.accelerator.is_main_process and (lost := run.log.rewind(written)):
        note(
            f"{run.directory}: {', '.join(lost)} lost lines since the checkpoint of step {step}: curves and pages "
            "have a gap, which a copy of the files would fill",
            warning=True,
        )
    run.accelerator.wait_for_everyone()
    run.log.metrics()  # refuses a damaged file before work starts
    first = max(step - -(-run.recipe.refresh.window // run.recipe.rollout.batch_size), 0)
    past_steps = dict(run.log.rollouts(since=first))
    gone = set(range(first, step)) - past_steps.keys()
    if gone and any(due > step for due in run.recipe.refresh.steps):
        raise CheckpointError(
            f"{run.directory / 'rollouts'} has no responses of step {min(gone)}, from which the critic is refreshed: "
            "put back a copy of the directory, or begin again in another one with --set run.out=DIR"
        )
    for past, records in past_steps.items():
        examples = [run.examples[index] for index in chosen_examples(run, past)]
        run.refresher.observe(examples, run.as_seen(records))
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
