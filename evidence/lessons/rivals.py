"""Other methods that learn from the answers of a lesson: the same policy, adapter, questions and figures.

    marks             the lesson's own steps, on the marked answers alone
    thumb-reinforce   a thumb for each answer, down where it has a mark: -(R_i - mean R) Σ_t log π
    thumb-grpo        a thumb for each of four answers to a prompt, the given one among them (arXiv 2402.03300)
    dpo               the edited answer against the marked one (arXiv 2305.18290)
    sft               cross-entropy on the edited answers, and on those without a mark, which need no edit
    prompt            no step: the comment as the system prompt
    prompt-below      no step: the comment below the question, as a lesson asks again

Those with steps of their own share one loop: AdamW, a linear schedule, gradients clipped to a norm of 1, and
`rollout.batch_size` prompts in a step. Sampling, figures and files are those of `give_lesson`. An answer was sampled by
the policy as it was at the start, so its log-prob there is π_ref of DPO, and π_old and π_ref of GRPO.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from evidence.lessons.edits import KEEPS_END, edited
from evidence.lessons.losses import GROUP, Loss, cross_entropy, dpo, grpo, reinforce
from text2grad.align import encode
from text2grad.config import Recipe
from text2grad.errors import DataError
from text2grad.models import TokenBatch, batch_indices, encode_prompts, messages_of, with_end
from text2grad.rl.optimizers import Optimizers
from text2grad.runs import lesson as lessons
from text2grad.runs.lesson import Judged, LessonRun, LessonTrainer, ReadOnce, give_lesson
from text2grad.tasks import Lesson
from text2grad.types import Critique, Example, Rollout


class Row(NamedTuple):
    """An answer of a step, and its reward: of a thumb, or 1 for a chosen and -1 for a rejected answer."""

    rollout: Rollout
    reward: float


@dataclass(frozen=True)
class Plan:
    """What a rival learns from.

    Attributes:
        units: the answers of each prompt, which stay together.
        needed: what the rival needs from the person, in words.
        counts: further figures by name.
    """

    units: Sequence[Sequence[Row]]
    needed: str
    counts: Mapping[str, float] = field(default_factory=dict)


def thumb(own: Judged) -> float:
    """Return 1 for an answer without a mark, and -1 for one with a mark."""
    return -1.0 if own.blamed else 1.0


def given_thumbs(run: "RivalRun") -> Plan:
    """Return the given answers, with their thumbs minus the mean thumb."""
    thumbs = [thumb(own) for own in run.marked]
    mean = sum(thumbs) / len(thumbs)
    rows = [[Row(own.rollout, value - mean)] for own, value in zip(run.marked, thumbs, strict=True)]
    return Plan(rows, f"a thumb for each of {len(rows)} answers", {"mean_reward": mean})


def group_thumbs(run: "RivalRun") -> Plan:
    """Return each given answer with further ones to its prompt, judged by the lesson's program."""
    more = GROUP - 1
    asked = [own.rollout.example for own in run.marked for _ in range(more)]
    samples = run.judged(run(asked, seed=run.recipe.run.seed + lessons.TRIES_SEED))
    groups = [[own, *samples[more * place : more * (place + 1)]] for place, own in enumerate(run.marked)]
    units = [[Row(own.rollout, thumb(own)) for own in group] for group in groups]
    alike = sum(len({row.reward for row in unit}) == 1 for unit in units)
    needed = f"a thumb for each of {len(units) * GROUP} answers, {GROUP} to each prompt"
    return Plan(units, needed, {"groups": len(units), "groups_alike": alike})


def edits(run: "RivalRun") -> list[tuple[Judged, Rollout]]:
    """Return each marked answer with its edit, where the edit leaves something."""
    pairs = list[tuple[Judged, Rollout]]()
    for own in run.marked:
        old = own.rollout
        if own.blamed and (text := edited(run.name, run.lesson, old.example, old.response)):
            ids, is_cut = encode(run.tokenizer, text), old.truncated and run.name in KEEPS_END
            whole = ids if is_cut else with_end(run.tokenizer, ids, run.recipe.model.prompt_format)
            pairs.append((own, replace(old, response_ids=tuple(whole), response=text, truncated=is_cut)))
    return pairs


def _of_edits(run: "RivalRun", count: int, units: Sequence[Sequence[Row]]) -> Plan:
    """Return the plan of a rival that learns from `count` edits."""
    needed = f"{len(run.marked)} answers read, and {count} of them written again"
    return Plan(units, needed, {"edited": count, "left_out": sum(own.blamed for own in run.marked) - count})


def preferences(run: "RivalRun") -> Plan:
    """Return the pairs of edited and marked answers."""
    pairs = edits(run)
    return _of_edits(run, len(pairs), [[Row(edit, 1.0), Row(own.rollout, -1.0)] for own, edit in pairs])


def demonstrations(run: "RivalRun") -> Plan:
    """Return the edited answers, and those without a mark."""
    pairs = edits(run)
    answers = [*(edit for _, edit in pairs), *(own.rollout for own in run.marked if not own.blamed)]
    return _of_edits(run, len(pairs), [[Row(rollout, 1.0)] for rollout in answers])


def marks(run: "RivalRun") -> Plan:
    """Return nothing: the trainer of the lesson takes the steps."""
    return Plan([], f"{len(run.marked)} answers read, a comment, and the words of {run.count} answers marked")


def with_system_prompt(example: Example, comment: str) -> Example:
    """Return a question with a comment as the system prompt, in place of the one that the chat template has."""
    return replace(example, prompt=[{"role": "system", "content": comment}, *messages_of(example)])


def with_comment_below(example: Example, comment: str) -> Example:
    """Return a question with a comment below it."""
    return replace(example, prompt=f"{example.prompt_text}\n\n{comment}")


def comment(run: "RivalRun", commented: Callable[[Example, str], Example]) -> Plan:
    """Return nothing but the mean number of tokens that the comment adds to a prompt; `run.longer` has the prompts."""
    plain = run.held_out[: run.recipe.data.eval_examples]
    asked = [commented(example, run.lesson.comment) for example in plain]
    how = {"prompt_format": run.recipe.model.prompt_format}
    run.longer = dict(zip(*(encode_prompts(run.tokenizer, own, **how) for own in (plain, asked)), strict=True))
    more = [len(ids) - len(own) for own, ids in run.longer.items()]
    return Plan([], "a comment, and its tokens in every request", {"tokens_per_request": sum(more) / len(more)})


RIVALS: Mapping[str, tuple[Callable[["RivalRun"], Plan], Loss | None]] = {
    "marks": (marks, None),
    "thumb-reinforce": (given_thumbs, reinforce),
    "thumb-grpo": (group_thumbs, grpo),
    "dpo": (preferences, dpo),
    "sft": (demonstrations, cross_entropy),
    "prompt": (partial(comment, commented=with_system_prompt), None),
    "prompt-below": (partial(comment, commented=with_comment_below), None),
}
"""Name of a rival → what it learns from, and the loss of its steps, if they are its own."""


def teach(trainer: LessonTrainer, units: Sequence[Sequence[Row]], loss_of: Loss, *, passes: int) -> int:
    """Take the steps of a rival, and return their number.

    Args:
        trainer: of the lesson, which has read the answers of all units.
        units: the answers of each prompt.
        loss_of: the loss of a step.
        passes: over the prompts.
    """
    size = min(trainer.recipe.rollout.batch_size, len(units))
    steps = passes * ceil(len(units) / size)
    optimizers = Optimizers(trainer.model.policy_parameters(), [], trainer.recipe.optim, total_steps=steps)
    for step in range(steps):
        chosen = batch_indices(len(units), size, step=step, seed=trainer.recipe.run.seed)
        rows = [row for index in chosen for row in units[index]]
        batch = trainer.collate([row.rollout for row in rows])
        temperature = trainer.recipe.rollout.temperature
        scores = trainer.model.score(batch, trainer.reference, temperature=temperature, kl="k1", learns=True)
        rewards = torch.tensor([row.reward for row in rows], device=batch.ids.device)
        optimizers.begin(step)
        loss_of(scores.logp, scores.logp_ref, batch.response_mask, rewards).backward()  # type: ignore[no-untyped-call]
        optimizers.step()
    return steps


class WithoutComment:
    """The policy that reads prompts without the comment, as the reference of the policy that reads it."""

    def __init__(self, trainer: LessonTrainer, longer: Mapping[tuple[int, ...], tuple[int, ...]]) -> None:
        """Let a trainer sample and score answers to longer prompts in place of its held-out ones."""
        self.plain, self.collate, self.longer = trainer.reference, trainer.collate, longer
        self.twins = dict[tuple[int, ...], Rollout]()
        trainer.held_out_ids = [longer[ids] for ids in trainer.held_out_ids]
        trainer.reference, trainer.collate = self, self.collate_longer  # type: ignore[method-assign]

    def collate_longer(self, rollouts: Sequence[Rollout]) -> TokenBatch:
        """Return a batch of answers to the prompts with the comment."""
        batch = self.collate([replace(own, prompt_ids=self.longer[own.prompt_ids]) for own in rollouts])
        self.twins |= zip(ReadOnce.rows(batch), rollouts, strict=True)
        return batch

    def read(self, policy: Any, batch: TokenBatch) -> Any:
        """Return what `Reference.read` does, of the same answers to the prompts without the comment."""
        return self.plain.read(policy, self.collate([self.twins[row] for row in ReadOnce.rows(batch)]))


class RivalRun(LessonRun):
    """A lesson whose steps are those of a rival; `plan` is there once there is a trainer."""

    longer: Mapping[tuple[int, ...], tuple[int, ...]]

    def __init__(self, recipe: Recipe, lesson: Lesson, *, rival: str, name: str, passes: int) -> None:
        """Take the names of rival and lesson, and the passes over the prompts."""
        self.rival, self.name, self.lesson, self.passes = rival, name, lesson, passes
        super().__init__(recipe, lesson)

    def alternatives(self) -> list[Judged]:
        """Return none: a rival has no use for them."""
        return []

    def trainer(self, answers: Sequence[Judged]) -> LessonTrainer:
        """Return a trainer whose steps are the rival's."""
        plan_of, loss_of = RIVALS[self.rival]
        self.plan = plan = plan_of(self)
        if loss_of and not plan.units:
            raise DataError(f"{self.rival} has nothing to learn from: no edit of a marked answer leaves a word")
        rows = [Judged(row.rollout, Critique("")) for unit in plan.units for row in unit]
        trainer = super().trainer(rows or answers)

        def train(after_step: object) -> None:
            if loss_of:
                trainer.step = teach(trainer, plan.units, loss_of, passes=self.passes)
            else:
                WithoutComment(trainer, self.longer)

        if self.rival != "marks":
            trainer.train = train  # type: ignore[assignment, method-assign]
        return trainer


def give_rival(rival: str, name: str, recipe: Recipe, lesson: Lesson, *, passes: int) -> dict[str, Any]:
    """Teach a policy by a rival from the answers in `run.out`, and return the figures as `give_lesson` does.

    Args:
        rival: one of `RIVALS`.
        name: of the lesson, for its edits.
        recipe: the settings.
        lesson: the ready lesson, whose program judges and edits.
        passes: over the prompts.

    Raises:
        DataError: as `give_lesson`, or if no edit leaves a word.
    """
    runs = list[RivalRun]()

    def run(recipe: Recipe, lesson: Lesson) -> RivalRun:
        runs.append(RivalRun(recipe, lesson, rival=rival, name=name, passes=passes))
        return runs[0]

    with patch.multiple(lessons, LessonRun=run, PASSES=passes, STEPS=1):  # as many steps as the passes have
        figures = give_lesson(recipe, lesson, mode="marks")
    del figures["alternatives"]
    plan = runs[0].plan
    return {**figures, "mode": rival, "passes": passes, **plan.counts, "needed": plan.needed}
