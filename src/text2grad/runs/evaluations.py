"""Evaluations of a run on its held-out examples: before training, every `data.eval_every` steps, and after training.

evaluations/000050.json    one evaluation:
    step       number of finished steps
    metric     name of the main metric, which the curves show
    metrics    name → mean over the held-out responses
    responses  prompt, response, number of tokens, KL, log π_ref (at temperature 1), reward and metrics of every
               response; the prompts are the same in every evaluation, and a response follows from the same random
               numbers
    records    the first responses with critique, spans and all numbers per token, as in rollouts/
    critic     agreement of a learned critic with the annotator, at the first and the last step

Each process samples and judges a share of the held-out examples. Critiques are on disk before anything uses them: an
evaluation that was interrupted asks for the others only.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import exp
from pathlib import Path
from statistics import fmean
from typing import Any

from accelerate.utils import gather_object
from torch import Tensor

from text2grad.critics import CachedCritic
from text2grad.errors import MetricError, Text2GradError
from text2grad.evaluation import distinct
from text2grad.feedback import Critic
from text2grad.files import readable, to_json, write_atomically
from text2grad.models import draws_apart
from text2grad.progress import note
from text2grad.reward_models import Agreement, judge
from text2grad.rl import (
    EVALUATION_SEED,
    Text2GradTrainer,
    discounts,
    gae,
    held_out_responses,
    own_held_out,
    response_records,
    rewards_of,
    total_rewards,
    whiten,
)
from text2grad.runs.metric import WAY_OUT, Metric, measure
from text2grad.tasks import BuiltIn
from text2grad.types import Critique, Rollout

DIRECTORY = "evaluations"
SHOWN = 12  # responses whose records are kept whole

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Evaluations:
    """Evaluates a run after the steps that are due.

    Attributes:
        trainer: of the run, with the held-out examples.
        task: the built-in task, or None.
        metric: the user's metric, or None.
        annotator: judges the critic at both ends, or None.
        judge_all: ask the critic about every response; False asks about the first responses only.
    """

    trainer: Text2GradTrainer
    task: BuiltIn | None = None
    metric: Metric | None = None
    annotator: Critic | None = None
    judge_all: bool = True

    def __call__(self, trainer: Text2GradTrainer) -> None:
        """Evaluate if it is due and not done before.

        Raises:
            CriticError: if the critic breaks its contract; finished steps are saved.
            MetricError: if the metric does; finished steps are saved.
            OutOfMemory: if memory runs out where no smaller batch helps; finished steps are saved if possible.
        """
        if not trainer.evaluation_is_due:
            return
        step = trainer.step
        path = trainer.directory / DIRECTORY / f"{step:06d}.json"
        is_main, main_value = trainer.accelerator.is_main_process, 0.0
        if gather_object([path.exists()])[0]:
            with readable(path, "Remove it, and the same command evaluates that step again"):
                evaluation = json.loads(path.read_bytes()) if is_main else {}
        else:
            evaluation = self._new(step, path)
        if is_main:  # an evaluation of an earlier process, too, which TensorBoard drops on resume
            metrics, main_value = evaluation["metrics"], evaluation["metrics"][evaluation["metric"]]
            trainer.tracker.log({f"eval/{name}": value for name, value in metrics.items()}, step)
        if step and trainer.recipe.run.keep_best != "none":
            trainer.keep_if_best(main_value)

    def _new(self, step: int, path: Path) -> dict[str, Any]:
        """Evaluate and write the file; after an error of critic or metric the finished steps are saved."""
        trainer = self.trainer
        path.parent.mkdir(exist_ok=True)
        try:
            with draws_apart(self._seed_of(step)):  # training draws the same with and without the evaluation
                evaluation = self._evaluate(step)
        except Text2GradError:
            if step and trainer.accelerator.num_processes == 1:
                trainer.save()
            raise
        if trainer.accelerator.is_main_process:
            write_atomically(path, to_json(evaluation))
            note(in_short(evaluation))
        self._cache(step).unlink(missing_ok=True)
        return evaluation

    def _evaluate(self, step: int) -> dict[str, Any]:
        trainer = self.trainer
        mine = own_held_out(trainer)
        annotator = self.annotator if step in (0, trainer.recipe.run.steps) else None
        shown = len(mine[: max(0, SHOWN - mine.start)])
        judged = len(mine) if self.judge_all or annotator is not None else shown
        rows, records, agreement = list[Row](), list[Row](), Agreement()
        if mine:
            with trainer.within_memory("rollout"):
                rollouts = self.sample(mine)
            rows = self._rows(rollouts, first=mine.start)
            with trainer.within_memory("critic"):
                critiques = self._ask(step, rollouts[:judged], first=mine.start)
            with trainer.within_memory("score"):
                deltas, offsets, numbers = self._numbers(rollouts, critiques)
            reference = numbers.pop("logp_ref")
            for row, kl, logp_ref in zip(rows, numbers["kl"], reference, strict=True):
                row["kl"], row["logp_ref"] = (float(values[: row["tokens"]].sum()) for values in (kl, logp_ref))
            if self.judge_all:
                for row, critique, delta, reward in zip(rows, critiques, deltas, numbers["reward"], strict=True):
                    row["reward"] = float(reward.sum())
                    row["positive_tokens"] = sum(value > 0 for value in delta)
                    row["negative_tokens"] = sum(value < 0 for value in delta)
                    row |= {"status": critique.status, "failed": critique.failed}
            records = response_records(
                step, rollouts[:shown], critiques[:shown], deltas[:shown], offsets[:shown], numbers
            )
            if annotator is not None:
                with trainer.within_memory("critic"):
                    settings, how = trainer.delta_settings, trainer.asking
                    agreement = judge(annotator, trainer.tokenizer, rollouts, deltas, critiques, settings, **how)
        agreement = reduce(Agreement.merged, gather_object([agreement]))
        return {
            "step": step,
            **self._summary(gather_object(rows)),
            "critic": agreement.metrics(),
            "records": gather_object(records),
        }

    def sample(self, rows: range) -> list[Rollout]:
        """Return a response to each held-out prompt of `rows`."""
        return held_out_responses(self.trainer, rows, "evaluate: sample")

    def _rows(self, rollouts: Sequence[Rollout], *, first: int) -> list[Row]:
        """Return the record of each response without critique, with the user's metric."""
        values: Sequence[Mapping[str, float]] = [{}] * len(rollouts)
        if self.metric is not None:
            examples, responses = [r.example for r in rollouts], [r.response for r in rollouts]
            values = measure(self.metric, examples, responses, first=first, total=len(self.trainer.held_out))
        return [
            {
                "prompt": rollout.example.prompt_text,
                "response": rollout.response,
                "tokens": len(rollout.response_ids),
                "truncated": rollout.truncated,
                "metrics": dict(numbers),
            }
            for rollout, numbers in zip(rollouts, values, strict=True)
        ]

    def _seed_of(self, step: int, row: int = 0) -> int:
        """Return the seed of the draws of critic and metric from a row on, whether or not earlier rows are judged."""
        settings = self.trainer.recipe.run
        return (settings.seed + EVALUATION_SEED) * 1_000_003 + step * len(self.trainer.held_out) + row

    def _ask(self, step: int, rollouts: Sequence[Rollout], *, first: int) -> list[Critique]:
        """Return the critiques of responses, asked for in batches as in training; `first` is the row of the first."""
        trainer = self.trainer
        critic = CachedCritic(trainer.critic, self._cache(step), **trainer.asking)
        return critic.in_batches(
            [rollout.example for rollout in rollouts],
            [rollout.response for rollout in rollouts],
            trainer.recipe.rollout.batch_size // trainer.accelerator.num_processes,
            phase="evaluate: judge",
            shown=trainer.accelerator.is_main_process,
            around=lambda row: draws_apart(self._seed_of(step, first + row)),
        )

    def _numbers(
        self, rollouts: Sequence[Rollout], critiques: Sequence[Critique]
    ) -> tuple[list[list[float]], list[list[tuple[int, int]]], dict[str, Tensor]]:
        """Return δ and offsets of the judged B, and numbers per token by name, each [B, T].

        KL (k1) and logp_ref are of all responses, reward, value and advantage of the judged ones. logp_ref is of
        temperature 1, all others of the temperature of the rollouts.
        """
        trainer, ppo = self.trainer, self.trainer.recipe.ppo
        batch = trainer.collate(rollouts)
        scores = trainer.score(batch, kl="k1")
        cold = scores if trainer.recipe.rollout.temperature == 1.0 else trainer.score(batch, kl="k1", temperature=1.0)
        if not critiques:
            return [], [], {"kl": scores.kl, "logp_ref": cold.logp_ref}
        judged = rollouts[: len(critiques)]
        first = trainer.collate(judged)
        deltas, offsets, _, rewards = rewards_of(trainer.recipe.reward, trainer.tokenizer, judged, critiques, first)
        mask, rows, columns = first.response_mask, *first.response_mask.shape
        kl, values, bootstrap = scores.kl[:rows, :columns], scores.values[:rows, :columns], scores.bootstrap[:rows]
        total = total_rewards(rewards, kl, mask, beta=trainer.beta_in_reward)
        gamma = discounts(ppo, first)
        advantages = gae(total, values, mask, gamma=gamma, lam=ppo.lam, bootstrap=bootstrap).advantages
        if ppo.whiten in ("scale", "full"):  # a held-out prompt has no group
            advantages = whiten(advantages, mask, center=ppo.whiten == "full")
        numbers = {"reward": rewards, "kl": scores.kl, "value": values, "advantage": advantages}
        return deltas, offsets, {**numbers, "logp_ref": cold.logp_ref}

    def _summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Return the main metric's name, the means over all responses, and the responses."""
        names = rows[0]["metrics"].keys()
        other = next((row["metrics"].keys() for row in rows if row["metrics"].keys() != names), names)
        if other != names:
            raise MetricError(f"the metric returned the names {sorted(other)} and {sorted(names)}. {WAY_OUT}")
        means = {name: fmean(row["metrics"][name] for row in rows) for name in names}
        main = next(iter(means), "reward")
        if self.task is not None:
            of_set, each = self.task.measure(self.trainer.held_out, [row["response"] for row in rows])
            for row, numbers in zip(rows, each, strict=True):
                row["metrics"] |= numbers
            means, main = {**of_set, **means}, self.task.metric
        tokens = max(sum(row["tokens"] for row in rows), 1)
        metrics = {
            **means,
            **(_critic_figures(rows, tokens) if self.judge_all else {}),
            "distinct_2": means.get("distinct_2", distinct((row["response"] for row in rows), 2)),
            "kl_per_token": sum(row["kl"] for row in rows) / tokens,
            "reference_perplexity": exp(min(-sum(row["logp_ref"] for row in rows) / tokens, 700.0)),
            "mean_tokens": fmean(row["tokens"] for row in rows),
            "truncated_share": fmean(row["truncated"] for row in rows),
        }
        return {"metric": main, "metrics": metrics, "responses": list(rows)}

    def _cache(self, step: int) -> Path:
        """Return the file of the critiques of an evaluation under way."""
        return self.trainer.directory / DIRECTORY / f"{step:06d}-{self.trainer.accelerator.process_index}.jsonl"


def in_short(evaluation: Mapping[str, Any]) -> str:
    """Return an evaluation as one line.

    Example:
        >>> in_short({"step": 5, "metric": "f1", "metrics": {"f1": 0.5, "reward": 1.25, "kl_per_token": 0.0123}})
        'held-out at step 5: f1 0.500, reward 1.250, kl per token 0.012'
    """
    metrics = evaluation["metrics"]
    names = dict.fromkeys((evaluation["metric"], "reward", "kl_per_token"))
    shown = ", ".join(f"{name.replace('_', ' ')} {metrics[name]:.3f}" for name in names if name in metrics)
    return f"held-out at step {evaluation['step']}: {shown}"


def _critic_figures(rows: Sequence[Row], tokens: int) -> dict[str, float]:
    """Return the mean reward per response, the shares of tokens by label, and the share of failed critiques."""
    positive, negative = (sum(row[f"{label}_tokens"] for row in rows) / tokens for label in ("positive", "negative"))
    return {
        "reward": fmean(row["reward"] for row in rows),
        "positive_share": positive,
        "negative_share": negative,
        "unlabelled_share": 1.0 - positive - negative,
        "failure_rate": fmean(row["failed"] for row in rows),
    }
