"""Keeping a learned critic honest while the policy learns from it.

A policy finds the mistakes of a reward model that stands still. So some responses of each step are audited by the
annotator who taught it, and after chosen steps it is trained again on the policy's own last responses, among older
annotations so that it does not forget.

    critic/annotations.jsonl     every answer of the annotator: it is never asked twice
    critic/step-000010/          the reward model since step 10
"""

import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from text2grad.align import AlignSettings, response_deltas
from text2grad.config import RefreshConfig
from text2grad.critics import CachedCritic
from text2grad.errors import ConfigError
from text2grad.feedback import Annotation, Critic, Match, annotate, ask, read_annotations
from text2grad.files import published
from text2grad.models import FineTuning, random_states, restore_random_states
from text2grad.reward_models.agreement import Quality, compare
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.shared_base import learning, load_weights
from text2grad.reward_models.training.examples import train_reward_model
from text2grad.types import Critique, Example, Rollout


class Refresher:
    """Audits a learned critic, and trains it again when it is time."""

    def __init__(
        self,
        config: RefreshConfig,
        critic: Any,
        annotator: Critic | None,
        directory: Path,
        *,
        delta_settings: AlignSettings,
        match: Match,
        seed: int,
        trust_remote_code: bool,
    ) -> None:
        """Check that there is something to refresh and somebody to ask.

        Args:
            config: [refresh], when and how.
            critic: the critic of the loop; to be refreshed it must be a `GenerativeRewardModel`.
            annotator: the critic that knows better.
            directory: of the run.
            delta_settings: how spans become δ.
            match: how quotes of the annotator are found in the response.
            seed: of the run.
            trust_remote_code: run code that comes with the model.

        Raises:
            ConfigError: if the critic cannot be trained, or there is no annotator, or several processes.
            DataError: if the old annotations cannot be read.
        """
        if config.active and not isinstance(critic, GenerativeRewardModel):
            raise ConfigError(
                f"[refresh] trains the critic again, but it is a {type(critic).__name__}, no generative reward model. "
                "Name one with critic.model, or leave refresh.steps and refresh.drift out."
            )
        if (config.active or config.audit) and annotator is None:
            raise ConfigError('[refresh] needs an annotator; name one with refresh.annotator = "module:name"')
        self.config, self.critic, self.delta_settings, self.seed = config, critic, delta_settings, seed
        self.directory = directory / "critic"
        self.match, self.trust_remote_code = match, trust_remote_code
        self.annotator: Critic | None = None
        if annotator is not None:
            self.annotator = CachedCritic(annotator, self.directory / "annotations.jsonl", match=self.match)
        self.old = read_annotations(config.replay_from) if config.active and config.replay_from else []
        self.seen: deque[tuple[Example, str]] = deque(maxlen=config.window)
        self.current, self.last_kl = "", 0.0

    def audit(self, tokenizer: Any, rollouts: Sequence[Rollout], deltas: Any, critiques: Any) -> dict[str, float]:
        """Return how far the critic is from the annotator on the first responses of a step."""
        n = self.config.audit
        if not n or self.annotator is None:
            return {}
        quality = judge(
            self.annotator, tokenizer, rollouts[:n], deltas[:n], critiques[:n], self.delta_settings, match=self.match
        )
        return {f"audit/{name}": value for name, value in quality.metrics().items()}

    def observe(self, examples: Sequence[Example], responses: Sequence[str]) -> None:
        """Take a step's responses, those of all processes in the order of the batch."""
        self.seen.extend(zip(examples, responses, strict=True))

    def refresh_if_due(self, step: int, kl_per_token: float) -> dict[str, float]:
        """Train the critic on the last responses, or load what a killed run trained at this very step.

        Args:
            step: how many steps are finished.
            kl_per_token: of the last of them, nats.

        Returns:
            `critic/refreshed`, 1 when it was; nothing where it never is. It is not where no critique of the annotator
            could be read.
        """
        if not self.config.active:
            return {}
        moved = self.config.drift is not None and abs(kl_per_token - self.last_kl) >= self.config.drift
        if step not in self.config.steps and not moved:
            return {"critic/refreshed": 0.0}
        name = f"step-{step:06d}"
        if not (self.directory / name).exists():
            before = random_states()
            if not self._train(step):
                return {"critic/refreshed": 0.0}
            restore_random_states(before)
            with published(self.directory / name) as temporary:
                self.critic.save(temporary)
        self._load(name)
        self.last_kl = kl_per_token
        return {"critic/refreshed": 1.0}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: which reward model is in use."""
        return {"current": self.current, "last_kl": self.last_kl}

    def restore(self, state: dict[str, Any]) -> None:
        """Undo `state`."""
        self.last_kl = state["last_kl"]
        if state["current"]:
            self._load(state["current"])

    def prune(self, needed: set[str]) -> None:
        """Remove reward models that no checkpoint needs."""
        for path in self.directory.glob("step-*"):
            if path.name not in {*needed, self.current}:
                shutil.rmtree(path, ignore_errors=True)

    def _train(self, step: int) -> bool:
        """Train the critic, and tell whether there was anything new to learn from."""
        examples, responses = zip(*self.seen, strict=True)
        assert self.annotator is not None  # checked when this was made
        fresh = [one for one in annotate(self.annotator, examples, responses) if not one.critique.failed]
        if not fresh:
            return False
        fresh = thinned(fresh, self.config.negative_share, Random(f"{self.seed} {step} thinned"))
        share = self.config.replay
        count = min(len(self.old), round(len(fresh) * share / (1 - share)))
        mixed: list[Annotation] = [*fresh, *Random(f"{self.seed} {step}").sample(self.old, count)]
        how = FineTuning(
            steps=self.config.train_steps,
            batch_size=self.config.batch_size,
            learning_rate=self.config.lr,
            optimizer=self.config.optimizer,
            seed=(self.seed + step) % 2**32,
            prompt_format=self.critic.prompt_format,
        )
        device = self.critic.model.device  # a trainer of transformers moves the model to its own
        critic = self.critic
        with learning(critic.model) as model:
            train_reward_model(
                model,
                critic.tokenizer,
                mixed,
                how,
                write_feedback=critic.write_feedback,
                form=critic.form,
                constrain=critic.constrain,
            )
        self.critic.model.to(device)
        return True

    def _load(self, name: str) -> None:
        """Take up saved weights; those just trained are loaded too, so that a resumed run has the same bits."""
        load_weights(self.critic.model, self.directory / name, trust_remote_code=self.trust_remote_code)
        self.current = name


def judge(
    annotator: Critic,
    tokenizer: Any,
    rollouts: Sequence[Rollout],
    deltas: Sequence[Sequence[float]],
    critiques: Sequence[Critique],
    settings: AlignSettings,
    *,
    match: Match,
) -> Quality:
    """Return how a critic's δ on some responses compare with an annotator's.

    Args:
        annotator: the critic that knows better.
        tokenizer: the policy's.
        rollouts: the responses.
        deltas: δ of each by the critic.
        critiques: what the critic wrote.
        settings: how spans become δ.
        match: how quotes of the annotator are found in the response.

    Raises:
        CriticError: if the annotator fails.
    """
    true = ask(annotator, [r.example for r in rollouts], [r.response for r in rollouts], match=match)
    true_deltas, _ = response_deltas(tokenizer, rollouts, true, settings)
    return compare(deltas, true_deltas, critiques)


def thinned(annotations: Sequence[Annotation], share: float, rng: Random) -> list[Annotation]:
    """Leave out annotations that blame nothing until those that do make up a share, as far as there are any.

    A reward model that sees little but praise learns to praise whatever it reads.

    Args:
        annotations: in any order, which is kept.
        share: of those with a negative span.
        rng: chooses what stays.
    """
    blaming = [any(span.label == "negative" for span in one.critique.spans) for one in annotations]
    others = [row for row, blames in enumerate(blaming) if not blames]
    room = round(sum(blaming) * (1 - share) / share) if share and any(blaming) else len(others)
    kept = set(rng.sample(others, min(room, len(others))))
    return [one for row, one in enumerate(annotations) if blaming[row] or row in kept]
