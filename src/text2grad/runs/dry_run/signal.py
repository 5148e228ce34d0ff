r"""The signal of a run before the run: sample, ask the critic twice about the same responses, compare.

The responses are those of the run's first step: the same prompts, groups, random numbers and policy. There the policy
is the reference (KL = 0) and V = 0, so the advantages of an answer are GAE of its rewards alone; with a group baseline,
less the mean of the prompt's group. For token t, a_t and b_t are its advantages by the two answers, n the number of
tokens, and m the mean of all:

    noise     MSW = Σ (a_t − b_t)² / 2n           disagreement of the critic with itself
    total     MSB = Σ 2 ((a_t + b_t)/2 − m)² / (n − 1)
    reliability = (MSB − MSW) / (MSB + MSW), the intraclass correlation ICC(1,1) (Shrout and Fleiss, 1979): the share
                  of variance that is signal

Labels are the signs of δ; their agreement beyond chance is Cohen's κ (1960). Groups of responses to one prompt are
counted by the first answers, as in the log of `GRPOTrainer`. The price of the critic is that of the second question,
which no answer in a store shortens.
"""

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from text2grad.config import Recipe
from text2grad.costs import tokens_of
from text2grad.critics import CachedCritic, LLMCritic
from text2grad.feedback import Critic, ask
from text2grad.integrations import group_shares, one_number
from text2grad.models import batch_indices, best_device, fitting_prompts, load_tokenizer
from text2grad.progress import note
from text2grad.reward_models import ServerRewardModel, critic_from_recipe, shares_base
from text2grad.rl import advantages_over_baseline, correlation, discounts, prepare_policy, rewards_of
from text2grad.runs.evaluate_policy import sample_rollouts
from text2grad.runs.prompts import recipe_task, run_examples
from text2grad.types import FAILED_STATUSES, Critique, Example, Rollout

RESPONSES = 64
FEW_LABELS, MANY_FAILURES, MANY_UNMATCHED, MANY_TRUNCATED = 0.01, 0.1, 0.2, 0.5
LOW_RELIABILITY, LOW_KAPPA, PAYS_FOR_LENGTH, ONE_SIDED = 0.4, 0.4, 0.5, 0.98


class Signal(NamedTuple):
    """What the critic says about a few responses."""

    figures: dict[str, Any]
    warnings: list[str]  # each a fault of the signal, and the settings to change
    rollouts: list[Rollout]
    critiques: list[Critique]  # the first answers


def measure_signal(recipe: Recipe, *, responses: int = RESPONSES) -> Signal:
    """Sample responses as the run would, and ask the critic twice; nothing is trained.

    Raises:
        CriticError: if the critic fails.
    """
    task, settings, device = recipe_task(recipe), recipe.model, best_device()
    tokenizer = load_tokenizer(settings.path, trust_remote_code=settings.trust_remote_code)
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    torch.manual_seed(recipe.run.seed)
    policy = prepare_policy(settings.path, settings)
    with TemporaryDirectory() as place:
        own = recipe.model_copy(update={"run": recipe.run.model_copy(update={"out": place})})
        of_policy = policy if shares_base(recipe) else None
        critic = critic_from_recipe(own, task_critic=task.critic() if task else None, policy=of_policy)
        policy = policy.to(device).eval()
        if isinstance(model := getattr(critic, "model", None), torch.nn.Module):
            model.to(device)
        rollouts = first_responses(recipe, policy, tokenizer, run_examples(recipe).train, responses)
        first = _answers(recipe, tokenizer, critic, rollouts, "the first time")
        critic = asked_anew(critic, Path(place))
        before = tokens_of(critic)
        second = _answers(recipe, tokenizer, critic, rollouts, "again")
        after = tokens_of(critic)
    asked = (after.prompt - before.prompt, after.generated - before.generated)
    figures = {
        **signal_figures(recipe, tokenizer, rollouts, first, second),
        "critic_tokens": asked,
        "critic_cost": critic.endpoint.cost(*asked) / len(rollouts) if isinstance(critic, LLMCritic) else 0.0,
    }
    return Signal(figures, warnings_of(figures, recipe), rollouts, first)


def first_responses(
    recipe: Recipe, policy: Any, tokenizer: Any, examples: Sequence[Example], count: int
) -> list[Rollout]:
    """Return responses to the first prompts of the run; as many as a batch has are those of its first step.

    `count` is rounded up to whole groups of responses to one prompt, which are neighbours.
    """
    rollout, seed = recipe.rollout, recipe.run.seed
    limits: dict[str, Any] = {"prompt_format": recipe.model.prompt_format, "max_new_tokens": rollout.max_new_tokens}
    examples, _ = fitting_prompts(policy, tokenizer, examples, too_long=recipe.data.too_long, **limits)
    prompts = batch_indices(len(examples), math.ceil(count / rollout.group_size), step=0, seed=seed)
    chosen = [examples[index] for index in prompts for _ in range(rollout.group_size)]
    return sample_rollouts(policy, tokenizer, chosen, rollout, prompt_format=recipe.model.prompt_format, seed=seed)


def asked_anew(critic: Critic, directory: Path) -> Critic:
    """Return the critic without its memory of earlier answers, so that a second question reaches it."""
    if isinstance(critic, CachedCritic):
        return asked_anew(critic.critic, directory)
    if isinstance(critic, LLMCritic | ServerRewardModel):
        critic = copy.copy(critic)
        critic.path = directory / "second-answers.sqlite"
    return critic


def _answers(recipe: Recipe, tokenizer: Any, critic: Critic, rollouts: Sequence[Rollout], which: str) -> list[Critique]:
    """Return the answers of one question."""
    note(f"asking the critic about {len(rollouts)} responses, {which}")
    examples, responses = [rollout.example for rollout in rollouts], [rollout.response for rollout in rollouts]
    how = recipe.critic.asking(tokenizer, [rollout.prompt_ids for rollout in rollouts])
    return ask(critic, examples, responses, **how)


def signal_figures(
    recipe: Recipe, tokenizer: Any, rollouts: Sequence[Rollout], first: Sequence[Critique], second: Sequence[Critique]
) -> dict[str, Any]:
    """Return figures of the responses and of two answers about each."""
    labels, advantages, rewards = [], [], []
    shares: tuple[float | None, float | None] = None, None
    group_size, ppo = recipe.rollout.group_size, recipe.ppo
    for answers in (first, second):
        deltas, _, batch, given = rewards_of(recipe.reward, tokenizer, rollouts, answers)
        labels.append(np.sign(np.concatenate([np.asarray(row, dtype=float) for row in deltas])))
        mask, nothing = batch.response_mask, torch.zeros_like(given)
        gained = advantages_over_baseline(ppo, given, nothing, batch, group_size=group_size).advantages
        advantages.append(gained[mask].double().numpy())
        rewards.append(given.sum(1).double().numpy())
        if answers is first and group_size > 1:
            numbers = torch.tensor(one_number(given, first))
            how: dict[str, Any] = {"group_size": group_size, "gamma": discounts(ppo, batch), "lam": ppo.lam}
            shares = group_shares(numbers, given, mask, **how)
    lengths, critiques = batch.response_lengths.double().numpy(), [*first, *second]
    spans, unmatched = (sum(len(getattr(each, name)) for each in critiques) for name in ("spans", "unmatched"))
    return {
        "responses": len(rollouts),
        "tokens": int(lengths.sum()),
        "truncated_share": float(batch.truncated.double().mean()),
        "failed_share": float(np.mean([each.status in FAILED_STATUSES for each in critiques])),
        "silent_share": float(np.mean([not each.spans and each.outcome is None for each in critiques])),
        "outcome_share": float(np.mean([each.outcome is not None for each in critiques])),
        "unmatched_share": unmatched / max(spans + unmatched, 1),
        **label_figures(*labels),
        "reliability": reliability(*advantages),
        "reward_mean": float(rewards[0].mean()),
        "reward_deviation": float(rewards[0].std()),
        "reward_length_correlation": correlation(lengths, rewards[0]),
        **dict(zip(("frac_reward_zero_std", "frac_zero_std_with_spans"), shares, strict=True)),
    }


def group_line(figures: dict[str, Any]) -> str:
    """Return in how many groups one number teaches nothing, and spans do; and what to do about the rest.

    Example:
        >>> group_line({"frac_reward_zero_std": 0.75, "frac_zero_std_with_spans": 0.5})
        'in 75% of the groups; spans teach in 50%, nothing in 25%: raise rollout.temperature, or take harder prompts'
    """
    same, taught = figures["frac_reward_zero_std"], figures["frac_zero_std_with_spans"]
    if same is None:
        return "unknown with one response per prompt: set rollout.group_size = 4 to see it"
    if taught == same:
        return f"in {same:.0%} of the groups, and spans teach in all of these: learn from them" if same else "nowhere"
    rest = f"in {same:.0%} of the groups; spans teach in {taught:.0%}, nothing in {same - taught:.0%}"
    return f"{rest}: raise rollout.temperature, or take harder prompts"


def label_figures(first: Any, second: Any) -> dict[str, float | None]:
    """Return shares of tokens by label, and the agreement of two answers: labels −1, 0 and 1, [tokens] each.

    Example:
        >>> figures = label_figures(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0]))
        >>> figures["cohen_kappa"]  # (3/4 − 1/2) / (1 − 1/2): 2/4 · 1/4 + 2/4 · 3/4 by chance
        0.5
    """
    both = np.concatenate([first, second])
    shares = {name: float((both == label).mean()) for name, label in (("positive", 1), ("negative", -1), ("no", 0))}
    agreed = float((first == second).mean())
    chance = sum(float((first == label).mean() * (second == label).mean()) for label in (-1, 0, 1))
    return {
        **{f"{name}_label_share": share for name, share in shares.items()},
        "label_agreement": agreed,
        "cohen_kappa": (agreed - chance) / (1 - chance) if chance < 1 else None,
    }


def reliability(first: Any, second: Any) -> float | None:
    """Return the reliability of advantages by two answers, [tokens] each; None if they do not vary.

    Example:
        >>> reliability(np.array([1.0, -1.0]), np.array([1.0, -1.0]))
        1.0
    """
    count, means = max(len(first), 1), (first + second) / 2
    within = float(((first - second) ** 2).sum()) / (2 * count)
    between = 2 * float(((means - means.sum() / count) ** 2).sum()) / max(count - 1, 1)
    return (between - within) / (between + within) if between + within else None


def warnings_of(figures: dict[str, Any], recipe: Recipe) -> list[str]:
    """Return what is wrong with the signal, each with what to change."""
    failed, unmatched, cut = (figures[f"{name}_share"] for name in ("failed", "unmatched", "truncated"))
    labelled, kappa, reliable = 1.0 - figures["no_label_share"], figures["cohen_kappa"], figures["reliability"]
    length, deviation, beta = figures["reward_length_correlation"], figures["reward_deviation"], recipe.ppo.beta
    positive = figures["positive_label_share"] / labelled if labelled else 0.0
    critic, reward, said = recipe.critic, recipe.reward, labelled >= FEW_LABELS
    paid, lower = ("length", "reward.positive") if length > 0 else ("brevity", "the weight of reward.negative")
    lower = f"lower {lower}" if said else "let it judge long and short answers alike"
    fails = failed > min(MANY_FAILURES, recipe.critic.max_failure_rate)
    silent = not said and not figures["outcome_share"]
    unsteady = (kappa is not None and kappa < LOW_KAPPA) or (reliable is not None and reliable < LOW_RELIABILITY)
    one_sided = said and not 1 - ONE_SIDED <= positive <= ONE_SIDED
    spelled = 'set critic.match = "normalized"' if critic.match == "exact" else ""
    constrained = "set critic.constrain = true" if critic.learned and critic.constrain is False else ""
    votes = critic.learned and critic.kind == "generative" and not critic.votes
    more_votes = "let it vote (critic.votes = 5)" if votes else ""
    more = "raise server.max_tokens if its answers are cut" if critic.learned else "let it write whole JSON with quotes"
    steady = "" if critic.learned else "ask its model at a lower temperature"
    mass = 'set reward.span_mass = "response" or "span"' if reward.span_mass == "token" and said else ""
    punish = "" if reward.truncated < 0 else "set reward.truncated below 0"
    weigh = "raise reward.positive and reward.negative" if said else ""
    teach = "train it on annotations of both" if critic.learned else "ask it for both sides"
    quote = "train it on annotations with quotes" if critic.learned else "ask it for short quotes, right and wrong"
    faults = {
        f"the critic fails: {failed:.0%} of its critiques cannot be read; {_either(more, constrained)}": fails,
        f"the critic says nothing: {labelled:.1%} of the tokens have a label; {_either(quote, spelled)}": silent,
        f"{unmatched:.0%} of the quotes are not in the response; {_either(spelled, constrained) or quote}": unmatched
        > MANY_UNMATCHED,
        f"the critic contradicts itself: κ {number(kappa)}, reliability of the advantages {number(reliable)}; "
        f"{_either(steady, more_votes, 'raise rollout.batch_size')}": unsteady,
        f"the critic always says the same: {positive:.0%} of the labelled tokens are positive; {teach}, or weigh them "
        "with reward.positive and reward.negative": one_sided,
        "every response gets the same reward, so nothing can be learned from comparing them; raise rollout.temperature,"
        " or take harder prompts or another critic": deviation < 1e-6 and not fails and not silent,
        f"the critic pays for {paid}: reward and length correlate with r = {length:.2f}; {_either(mass, lower)}": abs(
            length
        )
        > PAYS_FOR_LENGTH,
        f"{cut:.0%} of the responses are cut by the length limit; raise rollout.max_new_tokens, or "
        f"{_either('name the ids that end one in rollout.eos_token_ids', punish)}": cut > MANY_TRUNCATED,
        f"the rewards are small beside the KL term: their deviation is {deviation:.2g} per response, and one nat of KL "
        f"costs ppo.beta = {beta:g}; {_either('lower ppo.beta', weigh)}": 0 < deviation < beta,
    }
    return [text for text, wrong in faults.items() if wrong]


def _either(*ways: str) -> str:
    """Return the ways out that are not empty."""
    return ", or ".join(filter(None, ways))


def number(value: float | None) -> str:
    """Return a figure as text, also one that does not exist."""
    return "undefined" if value is None else f"{value:.2f}"
