r"""Whose words moved a phrase: the change of its log-probability during a run, by critique (`text2grad why`).

A run is made again on its own responses and critiques, which gives the weights θ_k before each optimizer step k. Then,
from the last step to the first, with the moments m, v of AdamW (arXiv 1711.05101) and p the probability of the phrase,

    S_k          = lr_k / (1 − β₁^k) · ∇ log p / (√v̂_k + ε)  +  β₁ S_{k+1}
    share_k(i,t) = (1 − β₁) · c_k(i,t) · ⟨∇ log π(y_it), S_k⟩

is the first-order effect of the gradient of token t of response i on log p, through this step and through the momentum
of all later ones. c is minus the derivative of the clipped loss by log π(y_it), times the factor that clipped the
gradient. The inner products are derivatives of log π(y_it) along S_k, which two passes give for all tokens at once. The
share of a critique is the sum over the tokens of its response and over k. ∇ log p is its
mean between θ_k and θ_{k+1}. What the shares leave of the measured change is of higher order, or of an entropy bonus.
"""

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from text2grad.config import recipe_of_run
from text2grad.errors import ConfigError, DataError
from text2grad.models import encode_prompts
from text2grad.progress import Progress, note
from text2grad.rl import ADAM_BETAS, ADAM_EPS, PPOBatch, RunLog, kl_loss, policy_loss
from text2grad.runs.recipe_run import run_recipe
from text2grad.runs.replay import LeftOut, Replay, Steps, begin_again, weights_apart
from text2grad.types import Critique, Example, Rollout

MOST_CONTEXTS = 16  # places of a phrase over which its log-probability is averaged
GAUSS = ((0.5 - 0.15**0.5, 5 / 18), (0.5, 8 / 18), (0.5 + 0.15**0.5, 5 / 18))
"""Places between θ_k and θ_{k+1}, and their weights, by which ∇ log p is averaged over the step (Gauss-Legendre)."""
NUDGE = 1e-4  # length of the steps along S_k by which derivatives are taken, as a part of the weights' norm

Weights = dict[str, Tensor]


class Share(NamedTuple):
    """What a critique did to log p of the phrase.

    Attributes:
        step: the step that learned from it.
        row: of its response in the step.
        nats: the change of log p, positive where the phrase became likelier.
        record: of the response, with the critique, as in rollouts/.
    """

    step: int
    row: int
    nats: float
    record: Mapping[str, Any]


class Explanation(NamedTuple):
    """The change of log p of a phrase during a run, in nats; averages over the places of the phrase.

    Attributes:
        before: log p before the first step; `after` the last one.
        by_step: the measured change of each step with an update.
        shares: of the critiques, the largest effect in the direction of the change first, what went against it last.
        places: the number of places where the phrase was looked at.
    """

    before: float
    after: float
    by_step: dict[int, float]
    shares: list[Share]
    places: int

    @property
    def explained(self) -> float:
        """The sum of the shares as a part of the measured change; 1 says that they explain all of it."""
        change = self.after - self.before
        return sum(share.nats for share in self.shares) / change if change else 1.0

    def largest(self, most: int) -> list[dict[str, Any]]:
        """Return "step", "row", "nats", "raters" and "words" of the largest shares, in the order of `shares`."""
        largest, rows = sorted(self.shares, key=lambda share: -abs(share.nats))[:most], []
        for share in filter(largest.__contains__, self.shares):
            critique = share.record["critique"]
            raters = sorted({span["rater"] for span in critique["spans"] if span.get("rater")})
            words = " ".join(critique["feedback"].split())[:80]
            rows.append({"step": share.step, "row": share.row, "nats": share.nats, "raters": raters, "words": words})
        return rows


class Update(NamedTuple):
    """One optimizer step of the policy.

    Attributes:
        step: the step of the run.
        rows: those of the step's responses that are in the minibatch, int64 [B].
        minibatch: these responses with scores and advantages.
        rate: lr / (1 − β₁^k).
        scale: the factor that clipped the gradient, at most 1.
        weights: a file of θ_k by the parameters' names, and of √v̂_k + ε by "scale." and the name.
    """

    step: int
    rows: Tensor
    minibatch: PPOBatch
    rate: float
    scale: float
    weights: Path


@dataclass(frozen=True)
class Watched(PPOBatch):
    """What an update learns from, with the number of its step, and the rows of all minibatches so far."""

    step: int = 0
    taken: list[Tensor] = field(default_factory=list)

    def rows(self, index: Tensor) -> PPOBatch:
        """Return the rows of a minibatch."""
        self.taken.append(index)
        return super().rows(index)


class Recorded(Replay):
    """Makes the steps of a run again on its own responses, and keeps what each optimizer step used."""

    def __init__(self, *inputs: Any, scratch: Path, **settings: Any) -> None:
        """Take a replay's inputs and a directory for weights."""
        self.scratch, self.updates = scratch, list[Update]()
        super().__init__(*inputs, **settings)
        if self.accelerator.num_processes > 1 or self.sharding is not None:
            raise ConfigError("`why` runs in one process, on one device; start it without a launcher")
        own = {id(p) for p in self.model.policy_parameters()}
        self.of_policy = {name: p for name, p in self.trainable.items() if id(p) in own}
        self._make_step, self.optimizers.step = self.optimizers.step, self._recorded_step  # type: ignore[method-assign]

    def ppo_batch(self, step: Any) -> PPOBatch:
        """Return what the update of a step learns from, and remember it."""
        whole = super().ppo_batch(step)
        parts = whole.batch, whole.scores, whole.advantages, whole.returns, whole.kl_coef
        self._data = Watched(*parts, step=step.number)
        return self._data

    def _recorded_step(self) -> dict[str, float]:
        """Make an optimizer step, and keep what it used."""
        optimizer = self.optimizers.by_name["policy"]
        rows, before = self._data.taken[-1], self._copy()
        counts = self._counts(optimizer)
        norms = self._make_step()
        if self._counts(optimizer) == counts:
            return norms  # the policy rests while the value function warms up
        count = max(self._counts(optimizer))
        corrections = [1 - beta**count for beta in ADAM_BETAS]
        tensors = dict(before)
        for name, parameter in self.of_policy.items():
            if parameter in optimizer.state:
                spread = (optimizer.state[parameter]["exp_avg_sq"] / corrections[1]).sqrt()
                tensors[f"scale.{name}"] = spread + ADAM_EPS
        path = self.scratch / f"{len(self.updates):06d}.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        rate = float(optimizer.param_groups[0]["lr"]) / corrections[0]
        scale = min(1.0, self.optimizers.max_grad_norm / (norms["update/policy_grad_norm"] + 1e-6))  # as torch clips
        self.updates.append(Update(self._data.step, rows, PPOBatch.rows(self._data, rows), rate, scale, path))
        return norms

    def _counts(self, optimizer: torch.optim.Optimizer) -> list[float]:
        return [float(state["step"]) for state in optimizer.state.values()] or [0.0]

    def _copy(self) -> Weights:
        return {name: parameter.detach().clone() for name, parameter in self.of_policy.items()}

    @torch.no_grad()
    def put(self, weights: Mapping[str, Tensor]) -> None:
        """Give the policy other weights."""
        for name, parameter in self.of_policy.items():
            parameter.copy_(weights[name])

    def log_probs(self, batch: Any) -> Tensor:
        """Return log π of each token at the rollouts' temperature, [B, T]."""
        logp: Tensor = self.model(batch, temperature=self.recipe.rollout.temperature).logp
        return logp


def explain(parent: Path, phrase: str, prompt: str | None = None, *, scratch: Path | None = None) -> Explanation:
    """Return which critiques of a run moved the log-probability of a phrase.

    Args:
        parent: the directory of a run of `text2grad train`, on one device.
        phrase: looked up in the run's responses, after the words before it; else it begins the answer to `prompt`.
        prompt: only responses to this prompt; None: to all.
        scratch: directory for the weights before each step, removed at the end; None: the system's.

    Raises:
        DataError: if the phrase is blank, or no response has it, and no prompt is given.
        ConfigError: if the run's prompts came from a script, or it had several processes.
    """
    if not phrase.strip():
        raise DataError("the phrase is blank; give words of an answer")
    steps = dict(RunLog(parent).rollouts(since=0))
    recipe = recipe_of_run(parent)
    silent = recipe.critic.model_copy(update={"use": f"{__name__}:nobody", "model": ""})
    fixed = recipe.refresh.model_copy(update={"steps": (), "audit": 0, "replay_from": ""})
    recipe = recipe.model_copy(update={"critic": silent, "refresh": fixed})
    with tempfile.TemporaryDirectory(prefix="text2grad-why-", dir=scratch) as directory:
        out = Path(directory) / "run"
        recipe = recipe.model_copy(update={"run": recipe.run.model_copy(update={"out": str(out), "tracker": "none"})})
        begin_again(parent, out, recipe, {"parent": str(parent)}, from_step=0)
        made = list[Recorded]()

        def trainer(*inputs: Any, **settings: Any) -> Recorded:
            made.append(
                Recorded(*inputs, scratch=Path(directory), steps=steps, left_out=LeftOut(), same=True, **settings)
            )
            return made[0]

        run_recipe(recipe, resume=True, trainer_class=trainer, evaluations_class=partial(_Stop, len(steps)))
        if apart := weights_apart(parent, out):
            note(
                f"the run made again is {apart:.2g} of the weights' norm apart from {parent}: another machine, or "
                "another number of threads; the shares are of the run made again",
                warning=True,
            )
        contexts = _contexts(made[0], steps, phrase, prompt)
        return _explained(made[0], contexts, steps)


def nobody(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
    """Refuse to judge: a run that is made again has its critiques."""
    raise DataError(f"a run that is made again has {len(responses)} responses without a critique")


class _Stop:
    """Evaluates nothing, and ends a run after the steps that its parent made."""

    def __init__(self, count: int, *_: Any, **__: Any) -> None:
        self.count = count

    def __call__(self, trainer: Replay) -> None:
        if trainer.step >= self.count:
            trainer.callbacks.control.should_training_stop = True


def _contexts(trainer: Recorded, steps: Steps, phrase: str, prompt: str | None) -> list[Rollout]:
    """Return places of a phrase: what stands before it as the prompt, its own tokens as the response.

    A token that holds only a part of the phrase's first or last word counts as its own.

    Raises:
        DataError: if no response has the phrase, and no prompt is given.
    """
    places = dict[tuple[tuple[int, ...], tuple[int, ...]], Rollout]()
    prompts = {example.prompt_text: ids for example, ids in zip(trainer.examples, trainer.prompt_ids, strict=True)}
    for record in (record for records in steps.values() for record in records):
        start = record["response"].find(phrase)
        if start < 0 or prompt not in (None, record["prompt"]) or record["prompt"] not in prompts:
            continue
        end, ids = start + len(phrase), record["ids"]
        own = [t for t, (first, last) in enumerate(record["offsets"]) if first < end and last > start]
        before = (*prompts[record["prompt"]], *ids[: own[0]])
        tokens = tuple(ids[own[0] : own[-1] + 1])
        places.setdefault((before, tokens), Rollout(Example(record["prompt"]), before, tokens, phrase, truncated=False))
    if not places and prompt is None:
        raise DataError(f"no response of the run contains {phrase!r}; give the prompt after which it is to stand")
    if not places:
        tokens = tuple(trainer.tokenizer(phrase, add_special_tokens=False)["input_ids"])
        form = trainer.recipe.model.prompt_format
        before = encode_prompts(trainer.tokenizer, [Example(str(prompt))], prompt_format=form)[0]
        return [Rollout(Example(str(prompt)), before, tokens, phrase, truncated=False)]
    return list(places.values())[:MOST_CONTEXTS]


def _explained(trainer: Recorded, contexts: Sequence[Rollout], steps: Steps) -> Explanation:
    """Walk from the last optimizer step to the first, and add up the shares."""
    batch, shares, by_step = trainer.collate(contexts), defaultdict[tuple[int, int], float](float), dict[int, float]()
    later = {name: torch.zeros_like(p) for name, p in trainer.of_policy.items()}  # S_{k+1}
    after = trainer._copy()
    last = now = _log_p(trainer, batch, len(contexts))
    with Progress("attribute", len(trainer.updates)) as progress:
        for update in reversed(trainer.updates):
            tensors: Weights = load_file(update.weights, device=str(trainer.accelerator.device))
            weights = {name: tensors[name] for name in trainer.of_policy}
            later = {name: ADAM_BETAS[0] * value for name, value in later.items()}
            for place, part in GAUSS:
                trainer.put({name: weights[name].lerp(after[name], place) for name in weights})
                for name, slope in _gradient(trainer, batch, len(contexts)).items():
                    if f"scale.{name}" in tensors:
                        later[name] += part * update.rate * slope / tensors[f"scale.{name}"]
            nats = _token_shares(trainer, update, weights, later)
            for row, own in zip(update.rows.tolist(), nats.sum(dim=1).tolist(), strict=True):
                shares[update.step, row] += own
            trainer.put(weights)
            before, now, after = now, _log_p(trainer, batch, len(contexts)), weights
            by_step[update.step] = by_step.get(update.step, 0.0) + before - now
            progress.advance()
    ranked = sorted(shares.items(), key=lambda item: item[1], reverse=last >= now)
    named = [Share(step, row, nats, steps[step][row]) for (step, row), nats in ranked]
    return Explanation(now, last, dict(sorted(by_step.items())), named, len(contexts))


def _token_shares(trainer: Recorded, update: Update, weights: Weights, along: Weights) -> Tensor:
    """Return share_k of each token of a minibatch, [B, T], in nats.

    Args:
        trainer: whose policy gets other weights on the way.
        update: the optimizer step k.
        weights: θ_k.
        along: S_k, by parameter.
    """
    part, loss_mean, ppo = update.minibatch, trainer.gradient.loss_mean, trainer.recipe.ppo
    mask = part.batch.response_mask
    size = float(sum(w.double().square().sum() for w in weights.values())) ** 0.5
    length = float(sum(w.double().square().sum() for w in along.values())) ** 0.5
    nudge = NUDGE * size / max(length, 1e-300)
    passes = list[Tensor]()
    for sign in (1, -1):
        trainer.put({name: weights[name] + sign * nudge * along[name] for name in weights})
        logp = torch.zeros(mask.shape, device=mask.device)
        read, groups = trainer.sizes.pieces(part.batch)
        for index in groups:
            with torch.no_grad():
                piece = trainer.log_probs(read.rows(index))
            logp[index, : piece.shape[1]] = piece
        passes.append(logp)
    slope = (passes[0] - passes[1]) / (2 * nudge)
    logp = ((passes[0] + passes[1]) / 2).requires_grad_()
    count, rows = float(mask.sum()), float(len(mask))
    of_tokens = loss_mean.weights(mask, token_count=count, row_count=rows)
    advantages = part.advantages * of_tokens
    loss = policy_loss(logp, part.scores.logp, advantages, mask, clip_range=ppo.clip_range, token_count=count).loss
    if part.kl_coef:
        loss = loss + part.kl_coef * kl_loss(logp, part.scores.logp_ref, mask, of_tokens, token_count=count)
    (derivative,) = torch.autograd.grad(loss, logp)
    nats: Tensor = -derivative * update.scale * (1 - ADAM_BETAS[0]) * slope
    return nats


def _log_p(trainer: Recorded, batch: Any, places: int) -> float:
    with torch.no_grad():
        return float(trainer.log_probs(batch).sum()) / places


def _gradient(trainer: Recorded, batch: Any, places: int) -> Weights:
    """Return ∇ log p of the phrase, averaged over its places, by parameter."""
    trainer.model.zero_grad(set_to_none=True)
    (trainer.log_probs(batch).sum() / places).backward()  # type: ignore[no-untyped-call]
    gradient = {name: p.grad for name, p in trainer.of_policy.items() if p.grad is not None}
    trainer.model.zero_grad(set_to_none=True)
    return gradient
