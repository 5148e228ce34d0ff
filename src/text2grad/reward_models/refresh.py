"""Refresh of a reward model during RL: audit it, and train it again on the policy's own responses.

A policy exploits the errors of a fixed reward model. So the annotator judges some responses of each step (audit), and
after chosen steps the reward model is trained on the policy's last responses, mixed with older annotations so that it
does not forget. In a run of several processes the first one asks the annotator and writes, and all of them share each
batch of the training. The reward model is whole in each process, also where FSDP has the policy in shards.

    critic/annotations.jsonl     cache of the annotator's critiques; no response is annotated twice
    critic/step-000010/          the reward model from step 10 on
"""

import shutil
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from text2grad.align import AlignSettings, response_deltas
from text2grad.config import Recipe
from text2grad.critics import CachedCritic
from text2grad.errors import ConfigError, CriticError, DataError
from text2grad.feedback import Annotation, Critic, annotate, ask, read_annotations
from text2grad.files import published
from text2grad.models import FineTuning, context_of, random_states, restore_random_states
from text2grad.progress import note
from text2grad.reward_models.agreement import Agreement, compare
from text2grad.reward_models.generative import NO_LIMIT
from text2grad.types import Critique, Example, Label, Rollout

Made = TypeVar("Made")

_TRAINABLE = ("model", "train_further", "save", "restore")
"""What a critic that can be trained has, as `GenerativeRewardModel` does."""


class Refresher:
    """Audits the critic of a run and trains it again when a refresh is due."""

    def __init__(self, recipe: Recipe, critic: Any, annotator: Critic | None) -> None:
        """Check that the critic can be trained, and that there is an annotator, whose critiques are taken as the truth.

        [refresh] of the recipe says when and how.

        Raises:
            ConfigError: if the critic cannot be trained, or there is no annotator.
            DataError: if the old annotations cannot be read.
        """
        settings = recipe.refresh
        if settings.active and not all(hasattr(critic, name) for name in _TRAINABLE):
            raise ConfigError(
                f"[refresh] trains the critic further, and a {type(critic).__name__} cannot be trained. Set "
                "critic.model to a generative reward model, or remove refresh.steps."
            )
        if settings.asks and annotator is None:
            raise ConfigError('[refresh] needs an annotator; set refresh.annotator = "module:name"')
        self.recipe, self.settings, self.critic = recipe, settings, critic
        self.directory, how = Path(recipe.run.out) / "critic", recipe.critic.asking()
        store = self.directory / "annotations.jsonl"
        self.annotator = None if annotator is None else CachedCritic(annotator, store, **how)
        replayed = settings.replay_from if settings.active else ""
        old = read_annotations(replayed, prompt_end=how["prompt_end"]) if replayed else []
        self.old = [annotation for annotation in old if not annotation.critique.failed]
        self.window: deque[tuple[Example, str]] = deque(maxlen=settings.window)
        self.current = ""

    def audit(self, tokenizer: Any, rollouts: Sequence[Rollout], deltas: Any, critiques: Any) -> dict[str, float]:
        """Return the critic's agreement with the annotator on the first responses of a step; empty if disabled."""
        n, annotator = self.settings.audit, self.annotator
        if not n or annotator is None:
            return {}
        mine = list(zip(rollouts[:n], deltas[:n], critiques[:n], strict=True))
        first = gather_object(mine)[:n]  # first items of the whole batch

        def agreement() -> Agreement:
            some, of_critic, said = zip(*first, strict=True)
            settings = AlignSettings.of(self.recipe.reward)
            how = self.recipe.critic.asking(tokenizer, [rollout.prompt_ids for rollout in some])
            return judge(annotator, tokenizer, some, of_critic, said, settings, **how)

        return {f"audit/{name}": value for name, value in of_first_process(agreement).metrics().items()}

    def observe(self, examples: Sequence[Example], responses: Sequence[str]) -> None:
        """Add a step's responses, of all processes in the order of the batch, to the window."""
        self.window.extend(zip(examples, responses, strict=True))

    def refresh_if_due(self, step: int) -> dict[str, float]:
        """Train the critic on the window after `step` steps; or load its weights, if an interrupted run trained it.

        Returns:
            `critic/refreshed`: 1.0 if refreshed now, 0.0 if not due or no critique of the annotator can be learned.
            Empty if no refresh is set.
        """
        if not self.settings.active:
            return {}
        if step not in self.settings.steps:
            return {"critic/refreshed": 0.0}
        name = f"step-{step:06d}"
        if not of_first_process((self.directory / name).exists):
            before = random_states()
            trained = self._train(step)
            restore_random_states(before)
            if not trained:
                return {"critic/refreshed": 0.0}
            of_first_process(partial(self._publish, name))
        self._load(name)
        return {"critic/refreshed": 1.0}

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the name of the current reward model."""
        return {"current": self.current}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state that `state` returned, and load that reward model's weights."""
        if state["current"]:
            self._load(state["current"])

    def prune(self, needed: set[str]) -> None:
        """Remove the reward models whose names are not in `needed`, except the current one."""
        for path in self.directory.glob("step-*"):
            if path.name not in {*needed, self.current}:
                shutil.rmtree(path, ignore_errors=True)

    def _train(self, step: int) -> bool:
        """Train the critic; return False if no critique of the annotator can be learned."""
        annotations = self._mixture(step)
        if not annotations:
            return False
        settings, critic = self.settings, self.critic
        training = FineTuning(
            **settings.model_dump(include={"batch_size", "optimizer", "accumulate"}),
            steps=settings.train_steps,
            learning_rate=settings.lr,
            max_tokens=int(min(context_of(critic.model), NO_LIMIT)),
            gradient_checkpointing=self.recipe.model.gradient_checkpointing,
            seed=(self.recipe.run.seed + step) % 2**32,
        )
        device = critic.model.device  # a training moves the model to its own
        try:
            critic.train_further(annotations, training)
        except DataError as error:  # no annotation is short enough; an error here would stop every resumed run again
            if PartialState().is_main_process:
                note(f"step {step}: the critic stays as it is: {error}", warning=True)
            return False
        critic.model.to(device)
        return True

    def _mixture(self, step: int) -> list[Annotation]:
        """Return new annotations of the window, rebalanced, and older ones; none if no new critique can be learned."""
        examples, responses = zip(*self.window, strict=True)
        assert self.annotator is not None  # checked in the constructor
        judged = of_first_process(partial(annotate, self.annotator, examples, responses))
        new = [annotation for annotation in judged if not annotation.critique.failed]
        settings, seed = self.settings, f"{self.recipe.run.seed} {step}"
        thinned = Random(f"{seed} thinned")
        new = rebalanced(new, "negative", settings.negative_share, thinned)
        new = rebalanced(new, "positive", settings.positive_share, thinned)
        count = min(len(self.old), round(len(new) * settings.replay / (1 - settings.replay)))
        return [*new, *Random(seed).sample(self.old, count)]

    def _publish(self, name: str) -> None:
        with published(self.directory / name) as temporary:
            self.critic.save(temporary)

    def _load(self, name: str) -> None:
        """Load saved weights, also right after training, so that a resumed run has the same bits."""
        self.critic.restore(self.directory / name, trust_remote_code=self.recipe.model.trust_remote_code)
        self.current = name


def of_first_process(make: Callable[[], Made]) -> Made:
    """Return in all processes what `make` returns in the first one, which alone calls it.

    Raises:
        CriticError: in all processes, if it is raised in the first one.
    """
    made: list[Any] = [None, None]  # the result, or the error
    if PartialState().is_main_process:
        try:
            made[0] = make()
        except CriticError as error:
            made[1] = error
    result, raised = broadcast_object_list(made)
    if raised is not None:
        raise raised
    return result  # type: ignore[no-any-return]


def judge(
    annotator: Critic,
    tokenizer: Any,
    rollouts: Sequence[Rollout],
    deltas: Sequence[Sequence[float]],
    critiques: Sequence[Critique],
    settings: AlignSettings,
    **how: Any,
) -> Agreement:
    """Return the agreement of the critic's `deltas` and `critiques` with the annotator's on some responses.

    The tokenizer is the policy's; `how` is how `ask` asks the annotator.

    Raises:
        CriticError: if the annotator fails.
    """
    true = ask(annotator, [r.example for r in rollouts], [r.response for r in rollouts], **how)
    true_deltas, _ = response_deltas(tokenizer, rollouts, true, settings)
    return compare(deltas, true_deltas, critiques)


def rebalanced(annotations: Sequence[Annotation], label: Label, share: float, rng: Random) -> list[Annotation]:
    """Leave out annotations without a span of a label, at random, until those with one make up a share.

    A reward model that is trained on few negative spans marks most text as positive, and the other way round. The
    order is kept; a share of 0, or no annotation with such a span, keeps all annotations.
    """
    holds = [any(span.label == label for span in annotation.critique.spans) for annotation in annotations]
    others = [row for row, has_span in enumerate(holds) if not has_span]
    room = round(sum(holds) * (1 - share) / share) if share and any(holds) else len(others)
    kept = set(rng.sample(others, min(room, len(others))))
    return [annotation for row, annotation in enumerate(annotations) if holds[row] or row in kept]
