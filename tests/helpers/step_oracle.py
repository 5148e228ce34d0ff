"""One step of Text2Grad in float64, written from the formulas and without the library's mathematics.

    δ_t from spans  →  earned reward  →  r_t = δ_t − β KL_t  →  GAE  →  whitening  →  epochs of clipped PPO  →  AdamW

Every response goes through the networks alone and unpadded, every sum is written as a sum, and nothing is split into
micro-batches. Only the sampled ids and the critiques are taken from the run that is checked. An `Oracle` keeps its own
weights, optimizer state and β from step to step, so an error of one step shows in all later ones.

Shapes: T response tokens of one response, S its prompt and response together, V vocabulary, H hidden size.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

Weights = dict[str, Tensor]
ADAM_BETA1 = 0.9
ADAM_BETA2, ADAM_EPS = 0.999, 1e-5


@dataclass(frozen=True)
class Response:
    """One sampled response: ids as they were sampled, and what the critic said of it."""

    prompt_ids: list[int]
    ids: list[int]
    text: str
    critique: Any
    truncated: bool
    told_ids: list[int]  # the prompt with the critique's words in it
    given: Mapping[int, list[int]] = field(default_factory=dict)  # number of sampled ids before → ids given there

    @property
    def failed(self) -> bool:
        return self.critique.status in ("unparsable", "timed_out")


class Pass(NamedTuple):
    """What the networks say of one response."""

    all_logp: Tensor  # log π(v | x, y_<t) at the rollout's temperature, [T, V]
    logp: Tensor  # of the sampled tokens, [T]
    values: Tensor  # V before each token, [T]
    after: Tensor  # V after the last token, []

    @property
    def entropy(self) -> Tensor:
        return -(self.all_logp.exp() * self.all_logp).sum(-1)


@dataclass
class Scored:
    """One response before the update; numbers per token are [T] float64, without gradient."""

    response: Response
    logp: Tensor
    logp_ref: Tensor
    kl: np.ndarray
    entropy: np.ndarray
    values: np.ndarray
    bootstrap: float
    delta: np.ndarray
    earned: np.ndarray
    returns: np.ndarray
    advantages: np.ndarray
    taught: np.ndarray


@dataclass(frozen=True)
class Step:
    """What a step should have left behind: numbers per token of each response, metrics, weights and the next β."""

    records: list[dict[str, np.ndarray]]
    metrics: dict[str, float]
    weights: Weights
    beta: float
    minibatches: list[dict[str, float]]  # what each minibatch saw, in order
    failed: list[bool]  # whether the critique of each response could not be used


# --- The networks ----------------------------------------------------------------------------------------------------


class Networks:
    """Policy, reference and value function as functions of named float64 weights."""

    def __init__(self, base: Any, trainable: Mapping[str, Tensor], settings: Any) -> None:
        """Take the model as it was given to the trainer, in float64, and the trainer's trainable weights by name."""
        self.base, self.settings = base.double().requires_grad_(False).eval(), settings
        self.reference: Weights = {name: weight.clone() for name, weight in base.named_parameters()}
        self.weights: Weights = {name: w.detach().double().clone().requires_grad_() for name, w in trainable.items()}

    def of_value(self, name: str) -> bool:
        """Tell whether a weight belongs to the value function rather than to the policy."""
        return name.startswith(("value_head.", "value_trunk.")) or ".value." in name

    def policy(self) -> Weights:
        """Return the weights of the base model as the policy has them."""
        own = {name.removeprefix("policy."): w for name, w in self.weights.items() if name.startswith("policy.")}
        return self._adapted("default") if self.settings.lora_r else {**self.reference, **own}

    def value(self) -> Weights:
        """Return the weights of the base model as the value function has them, where it has its own."""
        if self.settings.value == "adapter":
            return self._adapted("value")
        prefix = self.base.base_model_prefix
        own = {n.replace("value_trunk", prefix, 1): w for n, w in self.weights.items() if n.startswith("value_trunk.")}
        return {**self.reference, **own}

    def _adapted(self, adapter: str) -> Weights:
        """Return W + (alpha/r) B A for every adapted matrix W."""
        weights, scale = dict(self.reference), self.settings.lora_alpha / self.settings.lora_r
        for name, down in self.weights.items():
            if name.endswith(f".lora_A.{adapter}.weight"):
                up = self.weights[name.replace(".lora_A.", ".lora_B.")]
                module = name.removeprefix("policy.base_model.model.").removesuffix(f".lora_A.{adapter}.weight")
                weights[f"{module}.weight"] = weights[f"{module}.weight"] + scale * up @ down
        return weights

    def run(self, weights: Weights, response: Response) -> tuple[Tensor, Tensor]:
        """Return logits [T, V] that predict each response token, and the hidden states that did, one more, [T + 1, H].

        A token is predicted at the position before its own; the state at the last one is that which the response was
        left in. Given ids stand between the sampled ones and are predicted by nobody.
        """
        ids, predictors = list(response.prompt_ids), list[int]()
        for t, token in enumerate([*response.ids, None]):
            ids += response.given.get(t, [])
            predictors.append(len(ids) - 1)
            ids += [] if token is None else [token]
        options = {"use_cache": False, "output_hidden_states": True}
        output = functional_call(self.base, weights, (torch.tensor([ids]),), options)
        return output.logits[0, predictors[:-1]], output.hidden_states[-1][0, predictors]

    def log_softmax(self, weights: Weights, response: Response, temperature: float) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the whole vocabulary at a temperature, and the hidden states."""
        logits, hidden = self.run(weights, response)
        scaled = logits / temperature
        return scaled - scaled.exp().sum(-1, keepdim=True).log(), hidden

    def __call__(self, response: Response, temperature: float) -> Pass:
        """Return log-probabilities and values of one response, differentiable by `weights`."""
        all_logp, hidden = self.log_softmax(self.policy(), response, temperature)
        logp = all_logp[torch.arange(len(response.ids)), torch.tensor(response.ids)]
        if self.settings.value == "none":
            values = torch.zeros(len(hidden), dtype=torch.float64)
        else:
            if self.settings.value in ("adapter", "model"):
                _, hidden = self.run(self.value(), response)
            else:
                hidden = hidden.detach()
            values = hidden @ self.weights["value_head.weight"][0] + self.weights["value_head.bias"]
        return Pass(all_logp, logp, values[:-1], values[-1])


# --- From spans to the earned reward ---------------------------------------------------------------------------------


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return the piece of the response that each token of a word tokenizer writes; special tokens write nothing."""
    special = set(tokenizer.all_special_ids)
    return ["" if i in special else tokenizer.convert_ids_to_tokens(i) for i in ids]


def span_weights(span: Any, texts: Sequence[str], setting: Any) -> dict[int, float]:
    """Return the weight of each token that a span marks, by the token's index."""
    ends = np.cumsum([len(text) for text in texts]).tolist()
    ranges = [(end - len(text), end) for text, end in zip(texts, ends, strict=True)]
    touched = [t for t, (a, b) in enumerate(ranges) if max(a, span.start) < min(b, span.end)]
    inside = [t for t in touched if span.start <= ranges[t][0] and ranges[t][1] <= span.end]
    if setting.mode == "strict":
        inside = inside if inside == touched else []
    marked = touched if setting.mode == "expand" else inside
    count = len(marked)
    if setting.weighting == "uniform":
        weights = [1.0] * count
    else:  # linear_decay: from 1 at the first token to 0.1 at the last
        weights = [1.0 if count == 1 else 1.0 - 0.9 * i / (count - 1) for i in range(count)]
    mass = {"token": 1.0, "span": sum(weights), "response": float(len(texts))}[setting.span_mass]
    return {t: weight / mass for t, weight in zip(marked, weights, strict=True)}


def deltas(response: Response, texts: Sequence[str], setting: Any) -> np.ndarray:
    """Return δ_t in [−1, 1] of each token."""
    delta = np.zeros(len(texts))
    if response.failed:
        return delta
    marks: list[list[tuple[str, float]]] = [[] for _ in texts]  # of each token, in the order of the spans
    for span in response.critique.spans:
        size = 1.0 if span.weight is None else span.weight
        for said, table in (
            (span.severity, setting.severity),
            (span.rater, setting.raters),
            (span.category, setting.categories),
        ):
            size *= table.get(said.lower(), 1.0) if said else 1.0
        for t, weight in span_weights(span, texts, setting).items():
            marks[t].append((span.label, size * weight))
    for t, own in enumerate(marks):
        labels = {label for label, _ in own}
        if len(labels) == 2 and setting.overlap == "cancel":
            continue
        if len(labels) == 2 and setting.overlap == "last_wins":  # the spans after the last one of the other label
            other = max(i for i, (label, _) in enumerate(own) if label != own[-1][0])
            own = own[other + 1 :]
        sign = -1.0 if any(label == "negative" for label, _ in own) else 1.0
        wanted = "negative" if sign < 0 else "positive"
        delta[t] = sign * max((weight for label, weight in own if label == wanted), default=0.0)
    return delta


def gathered(response: Response, earned: np.ndarray, texts: Sequence[str], placement: str) -> np.ndarray:
    """Return the sums of the rewards on the last token of each step; a step ends where a token holds its end.

    Of several turns each has steps of its own.
    """
    starts = [0, *sorted(at for at in response.given if 0 < at < len(texts)), len(texts)]
    if len(starts) > 2 and placement != "last_token":
        alone = replace(response, given={})
        parts = [slice(*pair) for pair in pairwise(starts)]
        return np.concatenate([gathered(alone, earned[own], texts[own], placement) for own in parts])
    marks = {"last_token": "", "lines": "\n", "sentences": ".!?…\n", "clauses": ".!?…,;:\n"}[placement]
    gathered_rewards, total = np.zeros(len(earned)), 0.0
    for t, text in enumerate(texts):
        total += earned[t]
        rest = "".join(texts[t + 1 :]).strip()
        if t == len(texts) - 1 or (text and text[-1] in marks and rest):
            gathered_rewards[t], total = total, 0.0
    return gathered_rewards


def earned_rewards(response: Response, delta: np.ndarray, texts: Sequence[str], setting: Any) -> np.ndarray:
    """Return what each token earns before the KL term."""
    earned = np.zeros(len(delta))
    if not response.failed:
        for t, d in enumerate(delta):
            earned[t] = setting.positive * d if d > 0 else setting.negative * -d if d < 0 else setting.unlabelled
        if setting.placement == "verdict":
            worst = setting.negative if min(delta) < 0 else setting.positive if max(delta) > 0 else 0.0
            earned = np.array([*[0.0] * (len(delta) - 1), worst])
        elif setting.placement != "spans":
            earned = gathered(response, earned, texts, setting.placement)
        earned[-1] += response.critique.outcome or 0.0
    earned[-1] += setting.truncated * response.truncated
    return earned


# --- Advantages ------------------------------------------------------------------------------------------------------


def advantages_of(
    rewards: np.ndarray, values: np.ndarray, bootstrap: float, gammas: Sequence[float], lam: float
) -> np.ndarray:
    """Return A_t = Σ_{k ≥ t} (Π_{t ≤ s < k} γ_s λ) (r_k + γ_k V_{k+1} − V_k), the double sum as it stands."""
    following = np.append(values[1:], bootstrap)
    advantages = np.zeros(len(rewards))
    for t in range(len(rewards)):
        for k in range(t, len(rewards)):
            weight = math.prod(gamma * lam for gamma in gammas[t:k])
            advantages[t] += weight * (rewards[k] + gammas[k] * following[k] - values[k])
    return advantages


def over_group(group: "Sequence[Scored]", *, leave_one_out: bool, how: str) -> None:
    """Subtract from each token the mean of its prompt's responses (or of the others), each response counting once."""
    raw, means = [scored.advantages for scored in group], [float(scored.advantages.mean()) for scored in group]
    n, middle = len(group), sum(means) / len(group)
    deviation = math.sqrt(sum(float(((row - middle) ** 2).mean()) for row in raw) / (n - 1))
    for number, (scored, row) in enumerate(zip(group, raw, strict=True)):
        others = [mean for j, mean in enumerate(means) if j != number]
        scored.advantages = row - (sum(others) / (n - 1) if leave_one_out else middle)
        if how == "group":
            scored.advantages = scored.advantages / (deviation + 1e-4)


def whitened(rows: Sequence[np.ndarray], how: str) -> list[np.ndarray]:
    """Return advantages of unit deviation over all tokens of the batch, with zero mean too where how is "full"."""
    if how in ("none", "group"):
        return list(rows)
    every = np.concatenate(rows)
    shift = every.mean() if how == "full" else 0.0
    return [(row - shift) / math.sqrt(every.var(ddof=1) + 1e-8) for row in rows]


def credit_of_teacher(log_ratio: np.ndarray, delta: np.ndarray, ppo: Any, setting: Any) -> np.ndarray:
    """Return the log-ratio of teacher and policy, or, where spans are, its size as a share of the mean, times δ."""
    if ppo.credit == "self_teacher":
        return log_ratio
    marked = [t for t, d in enumerate(delta) if d]
    credit, mean = np.zeros(len(delta)), sum(abs(log_ratio[t]) for t in marked) / max(len(marked), 1)
    for t in marked if mean > 1e-4 else []:
        worth = setting.positive * delta[t] if delta[t] > 0 else setting.negative * -delta[t]
        credit[t] = worth * abs(log_ratio[t]) / mean
    return credit


# --- The whole step --------------------------------------------------------------------------------------------------


class Oracle:
    """Repeats the steps of a run in float64."""

    def __init__(
        self, base: Any, trainable: Mapping[str, Tensor], tokenizer: Any, recipe: Any, clip: float, horizon: int
    ) -> None:
        """Take the model as the trainer got it (a copy), the trainer's trainable weights, tokenizer and settings."""
        self.networks = Networks(base, trainable, recipe.model)
        self.tokenizer, self.recipe, self.clip, self.horizon = tokenizer, recipe, clip, horizon
        self.step, self.beta = 0, recipe.ppo.beta
        self.teacher = {name: w.detach().clone() for name, w in self.networks.weights.items()}
        self.momentum = {name: torch.zeros_like(w) for name, w in self.networks.weights.items()}
        self.square = {name: torch.zeros_like(w) for name, w in self.networks.weights.items()}
        self.optimizer_steps: dict[str, int] = defaultdict(int)

    def __call__(self, responses: Sequence[Response]) -> Step:
        """Make one step on sampled responses."""
        scored = self._scored(responses)
        metrics = self._metrics(scored) | self._rates() | {"kl/beta": self.beta}
        records = [
            {"delta": s.delta, "reward": s.earned, "kl": s.kl, "value": s.values, "advantage": s.advantages}
            for s in scored
        ]
        minibatches, epochs = self._update(scored)
        for name in {name for seen in minibatches for name in seen}:
            values = [seen[name] for seen in minibatches if name in seen]
            metrics[name] = sum(values) if name == "update/skipped" else sum(values) / len(values)
        metrics["update/epochs"] = float(epochs)
        self._move_beta(metrics["kl/per_sequence"], len(responses))
        self.step += 1
        weights = {name: w.detach().clone() for name, w in self.networks.weights.items()}
        for name, w in weights.items():  # the teacher goes a part of the way
            self.teacher[name] = self.teacher[name] + self.recipe.ppo.teacher_update_rate * (w - self.teacher[name])
        return Step(records, metrics, weights, self.beta, minibatches, [response.failed for response in responses])

    def _scored(self, responses: Sequence[Response]) -> list[Scored]:
        ppo, reward, temperature = self.recipe.ppo, self.recipe.reward, self.recipe.rollout.temperature
        scored = []
        for response in responses:
            with torch.no_grad():
                mine = self.networks(response, temperature)
                reference, _ = self.networks.log_softmax(self.networks.reference, response, temperature)
            if ppo.kl == "full":  # KL(π ‖ π_ref) = Σ_v π(v) (log π(v) − log π_ref(v))
                kl = (mine.all_logp.exp() * (mine.all_logp - reference)).sum(-1)
            else:
                kl = mine.logp - reference[torch.arange(len(response.ids)), torch.tensor(response.ids)]
            texts = token_texts(self.tokenizer, response.ids)
            assert "".join(texts) == response.text
            delta = deltas(response, texts, reward)
            earned, values = earned_rewards(response, delta, texts, reward), mine.values.numpy()
            bootstrap = float(mine.after) if response.truncated else 0.0
            beta = self.beta if ppo.kl_in == "reward" else 0.0
            rest, taught = earned, np.zeros(len(delta))
            if ppo.credit != "spans":
                rest = np.zeros(len(delta))
                rest[-1] = reward.truncated * response.truncated
                if not response.failed:
                    rest[-1] += response.critique.outcome or 0.0
                    taught = credit_of_teacher(self._log_ratio(response, mine.logp), delta, ppo, reward)
            at_end = ppo.gamma if ppo.gamma_turn is None else ppo.gamma_turn
            gammas = [at_end if t + 1 in response.given else ppo.gamma for t in range(len(delta))]
            raw = advantages_of(rest - beta * kl.numpy(), values, bootstrap, gammas, ppo.lam)
            sampled = reference[torch.arange(len(response.ids)), torch.tensor(response.ids)]
            scored.append(
                Scored(
                    response,
                    mine.logp,
                    sampled,
                    kl.numpy(),
                    mine.entropy.numpy(),
                    values,
                    bootstrap,
                    delta,
                    earned,
                    raw + values,
                    raw,
                    taught,
                )
            )
        if ppo.baseline != "value":
            size = self.recipe.rollout.group_size
            for first in range(0, len(scored), size):
                over_group(scored[first : first + size], leave_one_out=ppo.baseline == "leave_one_out", how=ppo.whiten)
        together = [row.advantages + row.taught for row in scored]
        for row, advantages in zip(scored, whitened(together, ppo.whiten), strict=True):
            row.advantages = advantages
        return scored

    def _log_ratio(self, response: Response, logp: Tensor) -> np.ndarray:
        """Return log π_T(y_t | x, c, y_<t) − log π(y_t | x, y_<t)."""
        policy, self.networks.weights = self.networks.weights, self.teacher
        with torch.no_grad():
            taught = self.networks(replace(response, prompt_ids=response.told_ids), self.recipe.rollout.temperature)
        self.networks.weights = policy
        return (taught.logp - logp).numpy()

    def _update(self, scored: Sequence[Scored]) -> tuple[list[dict[str, float]], int]:
        """Return what each minibatch saw, and how many passes over the batch were made."""
        ppo, seen = self.recipe.ppo, []
        for epoch in range(ppo.epochs):
            # Of every `minibatches` neighbouring rows each goes to another minibatch, by a draw that follows from
            # seed + step + epoch alone: the row with the n-th smallest number of its neighbours names minibatch n.
            generator = torch.Generator().manual_seed(self.recipe.run.seed + self.step + epoch)
            draw = torch.rand(len(scored) // ppo.minibatches, ppo.minibatches, generator=generator)
            assigned = draw.argsort(dim=1).flatten().tolist()
            for number in range(ppo.minibatches):
                chosen = [row for row, which in zip(scored, assigned, strict=True) if which == number]
                seen.append(self._minibatch(chosen))
        return seen, epoch + 1

    def _minibatch(self, chosen: Sequence[Scored]) -> dict[str, float]:
        """Make one optimizer step on some responses."""
        ppo, names = self.recipe.ppo, list(self.networks.weights)
        passes = [self.networks(row.response, self.recipe.rollout.temperature) for row in chosen]
        logp, values, entropy = (torch.cat([getattr(p, n) for p in passes]) for n in ("logp", "values", "entropy"))
        logp_old = torch.cat([row.logp for row in chosen])
        values_old, returns, advantages = (
            torch.from_numpy(np.concatenate([getattr(row, name) for row in chosen]))
            for name in ("values", "returns", "advantages")
        )
        # weight of each token in the mean of the surrogate and of the KL term
        lengths, limit = [len(row.response.ids) for row in chosen], self.recipe.rollout.max_new_tokens
        share = {
            "token": [1 / sum(lengths)] * len(chosen),
            "response": [1 / len(chosen) / length for length in lengths],
            "constant": [1 / len(chosen) / limit] * len(chosen),
        }[ppo.loss_mean]
        weights = torch.tensor([w for w, n in zip(share, lengths, strict=True) for _ in range(n)], dtype=torch.float64)
        ratio = (logp - logp_old).exp()
        clipped = ratio.clamp(1 - ppo.clip_range, 1 + ppo.clip_range)
        surrogate = torch.minimum(ratio * advantages, clipped * advantages)
        value_error = (values - returns) ** 2
        if ppo.value_clip_range:
            near = values_old + (values - values_old).clamp(-ppo.value_clip_range, ppo.value_clip_range)
            value_error = torch.maximum(value_error, (near - returns) ** 2)
        policy_loss, value_loss = -(weights * surrogate).sum(), 0.5 * value_error.mean()
        tensors = {
            "update/policy_loss": policy_loss,
            "update/value_loss": value_loss,
            "update/ratio_mean": ratio.mean(),
            "update/ratio_max": ratio.max(),
            "update/clip_fraction": (ratio * advantages > clipped * advantages).double().mean(),
            "update/approx_kl_per_token": (ratio - 1 - ratio.log()).mean(),
            "update/skipped": (ratio.mean() > 10.0).double(),
        }
        if ppo.entropy_coef:
            tensors["update/entropy_per_token"] = entropy.mean()
        seen = {name: float(x.detach()) for name, x in tensors.items()}
        if seen["update/skipped"]:
            return seen
        loss = policy_loss + ppo.vf_coef * value_loss - ppo.entropy_coef * entropy.mean()
        if ppo.kl_in == "loss":
            to_reference = torch.cat([row.logp_ref for row in chosen]) - logp
            loss = loss + self.beta * (weights * (to_reference.exp() - 1 - to_reference)).sum()
        # This raises where the loss does not reach a weight; a coefficient of 0 reaches it with a gradient of 0.
        gradients = torch.autograd.grad(loss, [self.networks.weights[name] for name in names])
        return seen | self._optimizer_step(dict(zip(names, gradients, strict=True)))

    def _optimizer_step(self, gradients: Weights) -> dict[str, float]:
        """Clip each optimizer's gradients on their own, step, and return their norms before clipping."""
        optim, norms = self.recipe.optim, {}
        has_value = any(map(self.networks.of_value, gradients))
        resting = has_value and self.step < optim.value_warmup_steps
        for role, is_value in (("policy", False), ("value", True)):
            own = {name: g for name, g in gradients.items() if self.networks.of_value(name) == is_value}
            if not own:
                continue
            norm = math.sqrt(sum(float((g**2).sum()) for g in own.values()))
            norms[f"update/{role}_grad_norm"] = norm
            if is_value or not resting:
                factor = min(1.0, self.clip / (norm + 1e-6))
                self._adamw(role, {name: factor * g for name, g in own.items()})
        return norms

    def _adamw(self, role: str, gradients: Weights) -> None:
        """Make one step of AdamW (arXiv 1711.05101, algorithm 2), its decay scaled by the learning rate."""
        self.optimizer_steps[role] += 1
        count, beta1, beta2 = self.optimizer_steps[role], ADAM_BETA1, ADAM_BETA2
        rate = self._rates()[f"optim/{role}_lr"]
        for name, gradient in gradients.items():
            mean = self.momentum[name] = beta1 * self.momentum[name] + (1 - beta1) * gradient
            square = self.square[name] = beta2 * self.square[name] + (1 - beta2) * gradient**2
            weight = self.networks.weights[name].detach()
            weight = weight - rate * (mean / (1 - beta1**count)) / ((square / (1 - beta2**count)).sqrt() + ADAM_EPS)
            self.networks.weights[name] = weight.requires_grad_()

    def _rates(self) -> dict[str, float]:
        """Return the learning rates of this step: a linear rise over warmup_steps, then the schedule's fall to 0."""
        optim, total = self.recipe.optim, self.recipe.run.steps
        if self.step < optim.warmup_steps:
            factor = (self.step + 1) / (optim.warmup_steps + 1)
        else:
            share = (self.step - optim.warmup_steps) / (total - optim.warmup_steps)
            falls = {"constant": 1.0, "linear": 1 - share, "cosine": (1 + math.cos(math.pi * share)) / 2}
            factor = falls[optim.schedule]
        rates = {"optim/policy_lr": factor * optim.lr}
        return rates if self.recipe.model.value == "none" else rates | {"optim/value_lr": factor * optim.value_lr}

    def _move_beta(self, kl_per_sequence: float, responses: int) -> None:
        ppo = self.recipe.ppo
        if ppo.target_kl is not None:
            error = min(max(kl_per_sequence / ppo.target_kl - 1, -0.2), 0.2)
            self.beta = self.beta * (1 + error * min(responses / self.horizon, 1))

    def _metrics(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Return the metrics of a step that come before its update."""
        names = ("delta", "kl", "entropy", "values", "returns")
        delta, kl, entropy, values, returns = (np.concatenate([getattr(s, name) for s in scored]) for name in names)
        lengths = np.array([float(len(s.response.ids)) for s in scored])
        rewards = np.array([s.earned.sum() for s in scored])
        spread = lengths.std() * rewards.std()
        covariance = ((lengths - lengths.mean()) * (rewards - rewards.mean())).mean()
        return {
            "reward/per_response": rewards.mean(),
            "delta/positive_share": (delta > 0).mean(),
            "delta/negative_share": (delta < 0).mean(),
            "delta/labelled_share": (delta != 0).mean(),
            "kl/per_token": kl.mean(),
            "kl/per_sequence": kl.sum() / len(scored),
            "entropy/per_token": entropy.mean(),
            "value/explained_variance": 1 - (returns - values).var() / returns.var(),
            "critic/failure_rate": float(np.mean([s.response.failed for s in scored])),
            "length/mean": lengths.mean(),
            "length/truncated_share": float(np.mean([s.response.truncated for s in scored])),
            "length/reward_correlation": covariance / spread if spread else 0.0,
        }
