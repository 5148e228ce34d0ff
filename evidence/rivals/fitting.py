"""A trainer of transformers or TRL on the policy of a run, in place, with the run's AdamW and learning rate.

AdamW's moments go on from round to round and are in the run's checkpoints. The learning rate of `optim.schedule` is a
function of the steps of rollouts: it moves through a round's steps while the trainer makes its optimizer steps.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LambdaLR

from evidence.baselines.trainers import train_with
from evidence.rivals.settings import rival_of
from text2grad.errors import TrainingError
from text2grad.models import FineTuning
from text2grad.progress import Progress
from text2grad.rl.optimizers import learning_rate_factor

if TYPE_CHECKING:
    from evidence.rivals.trainer import RivalTrainer

MakeTrainer = Callable[[FineTuning, str], Any]  # settings, temporary directory → trainer


def fit(run: "RivalTrainer", make_trainer: MakeTrainer, *, rows: int, longest: int) -> dict[str, float]:
    """Train the policy in place for `rival.epochs` passes; return the trainer's mean loss and own metrics.

    Args:
        run: the run, at the last step of a round.
        make_trainer: makes the trainer of `run.model.policy`.
        rows: pairs or answers of one pass.
        longest: most tokens of a row.

    Raises:
        TrainingError: if the loss is not finite.
    """
    rival, optim = rival_of(run.recipe), run.recipe.optim
    first, end = run.round_of(run.step)
    steps = rival.epochs * math.ceil(rows / rival.batch_size)
    settings = FineTuning(
        steps=steps,
        batch_size=rival.batch_size,
        accumulate=rival.accumulate,
        learning_rate=optim.lr,
        epochs=float(rival.epochs),
        max_tokens=longest,
        seed=run.recipe.run.seed + first,
        gradient_checkpointing=run.recipe.model.gradient_checkpointing,
    )
    adamw = run.optimizers.by_name["policy"]
    for group in adamw.param_groups:
        group["lr"] = optim.lr

    def factor(done: int) -> float:
        place = first + (end - first) * min(done, steps) / steps
        return learning_rate_factor(
            optim.schedule, place, warmup_steps=optim.warmup_steps, total_steps=run.recipe.run.steps
        )

    run.optimizers.stepped = 1  # from here on the weights are no longer those of the last finished step
    made = []

    def make(directory: str) -> Any:
        trainer = make_trainer(settings, directory)
        trainer.optimizer, trainer.lr_scheduler = adamw, LambdaLR(adamw, factor)
        trainer.args.max_grad_norm = run.optimizers.max_grad_norm
        made.append(trainer)
        return trainer

    with Progress(f"{rival.method}, steps {first + 1} to {end}", steps) as progress:
        train_with(make, run.model.policy, on_step=lambda _: progress.advance())
    run.model.train(run.recipe.model.gradient_checkpointing)
    measured = made[0].state.log_history[-1]
    loss = float(measured["train_loss"])
    if not math.isfinite(loss):
        raise TrainingError(
            f"the loss of {rival.method} is {loss} in the round of steps {first + 1} to {end}; start again with a "
            f"lower optim.lr than {optim.lr}"
        )
    own = {f"rival/{name.replace('/', '_')}": float(measured[name]) for name in OWN if name in measured}
    return {"update/policy_loss": loss, "update/optimizer_steps": float(made[0].state.global_step), **own}


OWN = ("rewards/accuracies", "rewards/margins")
"""Metrics of TRL's trainers that are logged, too."""
