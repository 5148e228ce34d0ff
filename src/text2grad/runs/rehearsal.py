r"""The signal of a run before the run: sample, ask the critic twice about the same responses, compare.

The responses are those of the run's first step: the same prompts, groups, random numbers and policy. There the policy
is the reference (KL = 0) and V = 0, so the advantages of an answer are GAE of its rewards alone; with a group baseline,
less the mean of the prompt's group. For token t, a_t and b_t are its advantages by the two answers, n the number of
tokens, and m the mean of all:

    noise     MSW = Σ (a_t − b_t)² / 2n           disagreement of the critic with itself
    total     MSB = Σ 2 ((a_t + b_t)/2 − m)² / (n − 1)
    signal-to-noise ratio = (MSB − MSW) / 2 MSW, signal variance over noise variance
    reliability           = (MSB − MSW) / (MSB + MSW), the intraclass correlation ICC(1,1) (Shrout and Fleiss, 1979)

Labels are the signs of δ; their agreement beyond chance is Cohen's κ (1960).
"""

import copy
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from text2grad.config import Recipe
from text2grad.critics import CachedCritic, LLMCritic
from text2grad.critics.servers import Store
from text2grad.errors import ConfigError
from text2grad.feedback import Critic, ask, critique_from_json, critique_to_json
from text2grad.files import lock_directory, to_json, write_atomically, write_files
from text2grad.models import batch_indices, best_device, fitting_prompts, load_tokenizer, padding_id, stop_ids
from text2grad.progress import Progress
from text2grad.reward_models import LocalRewardModel, ServerRewardModel, critic_from_recipe, shares_base
from text2grad.rl import advantages_over_baseline, correlation, prepare_policy, response_records, rewards_of
from text2grad.runs.evaluate_policy import Sampling, sample_rollouts
from text2grad.runs.reports.html import rollouts_page
from text2grad.runs.run_examples import recipe_task, run_examples
from text2grad.types import FAILED_STATUSES, Critique, Example, Rollout

SHOWN = 8
BATCH = 16  # responses of one question to the critic, whose answers are on disk before the next
FEW_LABELS, MANY_FAILURES, MANY_UNMATCHED, MANY_TRUNCATED = 0.01, 0.1, 0.2, 0.5
LOW_RELIABILITY, LOW_KAPPA, PAYS_FOR_LENGTH, ONE_SIDED = 0.4, 0.4, 0.5, 0.98


@dataclass(frozen=True)
class Answers:
    """The critic's answers to one question about all responses.

    Attributes:
        critiques: one per response.
        seconds: time of the answers.
        prompt_tokens: tokens that a server read, where the critic counts them.
        answer_tokens: tokens that it wrote.
        cost: US dollars at the critic's prices.
    """

    critiques: list[Critique]
    seconds: float
    prompt_tokens: int = 0
    answer_tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True)
class Rehearsal:
    """The result of a rehearsal.

    Attributes:
        figures: the content of rehearsal.json.
        warnings: each a fault of the signal, and the settings to change.
        rollouts: the responses.
        critiques: the first answers.
        directory: of rehearsal.json, rehearsal.html and the kept answers.
    """

    figures: dict[str, Any]
    warnings: list[str]
    rollouts: list[Rollout]
    critiques: list[Critique]
    directory: Path


def rehearse(recipe: Recipe, directory: Path, *, responses: int = 64, ask_again: bool = False) -> Rehearsal:
    """Sample responses as the run would, ask the critic twice, and write rehearsal.json and rehearsal.html.

    Args:
        recipe: the settings; `run.out` is not written to.
        directory: for the results and the critic's answers. Answers to the same responses under the same settings of
            the critic are read from it instead of asked for again.
        responses: number of responses; rounded up to whole groups of `rollout.group_size`.
        ask_again: ask for all answers anew.

    Raises:
        ConfigError: if a setting is wrong, or another process writes to the directory.
        CriticError: if the critic fails; its answers so far are kept.
    """
    if directory.resolve() == Path(recipe.run.out).resolve():
        raise ConfigError(f"{directory} is run.out, which `text2grad train` will write; name another with --out")
    lock_directory(directory)
    own = recipe.model_copy(update={"run": recipe.run.model_copy(update={"out": str(directory)})})
    task = recipe_task(recipe)
    examples = run_examples(recipe).train
    tokenizer = load_tokenizer(recipe.model.path, trust_remote_code=recipe.model.trust_remote_code)
    device = best_device()
    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    torch.manual_seed(recipe.run.seed)
    policy = prepare_policy(recipe.model.path, recipe.model)
    critic = critic_from_recipe(
        own, task_critic=task.critic() if task else None, policy=policy if shares_base(recipe) else None
    )
    policy = policy.to(device).eval()
    if isinstance(critic, LocalRewardModel):
        critic.model.to(device)
    start = time.perf_counter()
    rollouts = first_responses(recipe, policy, tokenizer, examples, responses)
    sampling_s = time.perf_counter() - start
    answers = [
        _answers(own, critic if question == 1 else asked_anew(critic, directory), rollouts, question, ask_again)
        for question in (1, 2)
    ]
    return _report(recipe, tokenizer, rollouts, answers, sampling_s, directory)


def first_responses(
    recipe: Recipe, policy: Any, tokenizer: Any, examples: Sequence[Example], count: int
) -> list[Rollout]:
    """Return responses to the first prompts of the run; as many as a batch has are those of its first step.

    `count` is rounded up to whole groups of responses to one prompt, which are neighbours.
    """
    rollout = recipe.rollout
    examples, _ = fitting_prompts(
        policy,
        tokenizer,
        examples,
        prompt_format=rollout.prompt_format,
        max_new_tokens=rollout.max_new_tokens,
        too_long=recipe.data.too_long,
    )
    groups = math.ceil(count / rollout.group_size)
    prompts = batch_indices(len(examples), groups, step=0, seed=recipe.run.seed)
    chosen = [index for index in prompts for _ in range(rollout.group_size)]
    eos = stop_ids(policy, tokenizer, rollout.eos_token_ids)
    sampling = Sampling(
        rollout.max_new_tokens, rollout.temperature, eos, padding_id(policy, tokenizer, eos), rollout.rows_at_once
    )
    return sample_rollouts(
        policy,
        tokenizer,
        [examples[index] for index in chosen],
        sampling,
        prompt_format=rollout.prompt_format,
        seed=recipe.run.seed,
    )


def asked_anew(critic: Critic, directory: Path) -> Critic:
    """Return the critic without its memory of earlier answers, so that a second question reaches it."""
    if isinstance(critic, CachedCritic):
        return asked_anew(critic.critic, directory)
    if isinstance(critic, LLMCritic | ServerRewardModel):
        critic = copy.copy(critic)
        critic.path = directory / "second-answers.sqlite"
    return critic


def _answers(recipe: Recipe, critic: Critic, rollouts: Sequence[Rollout], question: int, ask_again: bool) -> Answers:
    """Return the answers of one question; each batch of them is on disk before the next is asked for."""
    path = Path(recipe.run.out) / f"answers-{question}.json"
    asked = {
        "critic": [getattr(recipe, name).model_dump(mode="json") for name in ("critic", "server", "vllm", "data")],
        "responses": [rollout.response for rollout in rollouts],
    }
    kept = json.loads(path.read_bytes()) if path.exists() and not ask_again else {}
    kept = kept if kept.get("asked") == asked else {"asked": asked, "critiques": [], "seconds": 0.0}
    store = critic.path if isinstance(critic, LLMCritic | ServerRewardModel) else None
    if ask_again and store is not None and question == 2:
        store.unlink(missing_ok=True)
    before = _tokens(store)
    with Progress(f"question {question}", len(rollouts), done=len(kept["critiques"]), unit="response") as progress:
        while len(kept["critiques"]) < len(rollouts):
            part = rollouts[len(kept["critiques"]) :][:BATCH]
            start = time.perf_counter()
            found = ask(critic, [r.example for r in part], [r.response for r in part], match=recipe.critic.match)
            kept["seconds"] += time.perf_counter() - start
            kept["critiques"] += [critique_to_json(critique) for critique in found]
            kept["tokens"] = [now - then for now, then in zip(_tokens(store), before, strict=True)]
            write_atomically(path, to_json(kept))
            for _ in part:
                progress.advance()
    critiques = [
        critique_from_json(record, rollout.response, where=str(path))
        for record, rollout in zip(kept["critiques"], rollouts, strict=True)
    ]
    prompt_tokens, answer_tokens = kept.get("tokens", (0, 0))
    cost = critic.spending.cost(prompt_tokens, answer_tokens) if isinstance(critic, LLMCritic) else 0.0
    return Answers(critiques, kept["seconds"], prompt_tokens, answer_tokens, cost)


def _tokens(store: Path | None) -> tuple[int, int]:
    if store is None or not store.exists():
        return 0, 0
    with Store(store) as found:
        return found.tokens()


def _report(
    recipe: Recipe,
    tokenizer: Any,
    rollouts: list[Rollout],
    answers: Sequence[Answers],
    sampling_s: float,
    directory: Path,
) -> Rehearsal:
    """Compute the figures, write the files and return the rehearsal."""
    records, deltas, advantages, rewards = [], [], [], []
    for one in answers:
        found, offsets, batch, given = rewards_of(recipe, tokenizer, rollouts, one.critiques)
        gained = first_advantages(recipe, given, batch.response_mask)
        records.append(
            response_records(0, rollouts, one.critiques, found, offsets, {"reward": given, "advantage": gained})
        )
        deltas.append(np.sign(np.concatenate([np.asarray(row, dtype=float) for row in found])))
        advantages.append(gained[batch.response_mask].double().numpy())
        rewards.append(given.sum(1).double().numpy())
    lengths = batch.response_lengths.double().numpy()
    planned, asked, first = recipe.run.steps * recipe.rollout.batch_size, 2 * len(rollouts), answers[0]
    critic_s, cost = sum(one.seconds for one in answers) / asked, sum(one.cost for one in answers) / asked
    figures = {
        "responses": len(rollouts),
        "tokens": int(lengths.sum()),
        "truncated_share": float(batch.truncated.double().mean()),
        "sampling_seconds": sampling_s,
        **critique_figures([critique for one in answers for critique in one.critiques]),
        **label_figures(*deltas),
        **advantage_figures(*advantages),
        "reward_mean": float(rewards[0].mean()),
        "reward_deviation": float(rewards[0].std()),
        "reward_length_correlation": correlation(lengths, rewards[0]),
        "critic_seconds_per_response": critic_s,
        "critic_cost_per_response": cost,
        "critic_tokens": [first.prompt_tokens, first.answer_tokens],
        "run_responses": planned,
        "run_critic_hours": critic_s * planned / 3600,
        "run_critic_cost": cost * planned,
    }
    warnings = warnings_of(figures, recipe)
    for one, other in zip(*records, strict=True):
        one["by"], other["by"] = "first answer", "second answer"
    shown = [{**one, "beside": [other]} for one, other in zip(*records, strict=True)][:SHOWN]
    page = rollouts_page(
        f"Rehearsal of {Path(recipe.run.out).name}",
        shown,
        intro="\n\n".join(warnings) or "No warnings.",
        summary=summary(figures),
    )
    content = {"rehearsal.json": to_json({**figures, "warnings": warnings}, indent=1), "rehearsal.html": page.encode()}
    write_files(directory, content)
    return Rehearsal(figures, warnings, rollouts, first.critiques, directory)


def first_advantages(recipe: Recipe, rewards: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """Return the advantages of the first step, where V = 0, before they are whitened over the batch, [B, T] fp32.

    Args:
        recipe: the settings.
        rewards: of each token, [B, T]; the responses to one prompt are neighbours.
        response_mask: True on response tokens, bool [B, T].
    """
    return advantages_over_baseline(recipe, rewards, torch.zeros_like(rewards), response_mask).advantages


def critique_figures(critiques: Sequence[Critique]) -> dict[str, float]:
    """Return shares of failed and empty critiques, and of quotes that the response does not contain."""
    spans = sum(len(critique.spans) for critique in critiques)
    unmatched = sum(len(critique.unmatched) for critique in critiques)
    return {
        "failed_share": sum(critique.status in FAILED_STATUSES for critique in critiques) / len(critiques),
        "silent_share": sum(not critique.spans and critique.outcome is None for critique in critiques) / len(critiques),
        "unmatched_share": unmatched / max(spans + unmatched, 1),
        "outcome_share": sum(critique.outcome is not None for critique in critiques) / len(critiques),
    }


def label_figures(first: Any, second: Any) -> dict[str, float | None]:
    """Return shares of tokens by label, and the agreement of two answers about the same tokens.

    Args:
        first: labels −1, 0 and 1 by the first answer, [tokens].
        second: by the second answer, [tokens].

    Example:
        >>> found = label_figures(np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0]))
        >>> found["label_agreement"], found["cohen_kappa"]  # (3/4 − 1/2) / (1 − 1/2): 2/4 · 1/4 + 2/4 · 3/4 by chance
        (0.75, 0.5)
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


def advantage_figures(first: Any, second: Any) -> dict[str, float | None]:
    """Return signal-to-noise ratio and reliability of advantages by two answers; see the module's docstring.

    Both are None if the advantages do not vary; the ratio is None if the answers are equal, where it is infinite.

    Example:
        >>> advantage_figures(np.array([1.0, -1.0]), np.array([1.0, -1.0]))
        {'signal_to_noise': None, 'reliability': 1.0}
    """
    count = len(first)
    within = float(((first - second) ** 2).sum()) / (2 * max(count, 1))
    means = (first + second) / 2
    between = 2 * float(((means - means.mean()) ** 2).sum()) / max(count - 1, 1) if count else 0.0
    if between + within == 0:
        return {"signal_to_noise": None, "reliability": None}
    return {
        "signal_to_noise": (between - within) / (2 * within) if within else None,
        "reliability": (between - within) / (between + within),
    }


def warnings_of(figures: dict[str, Any], recipe: Recipe) -> list[str]:
    """Return what is wrong with the signal, each with what to change."""
    labelled, kappa = 1.0 - figures["no_label_share"], figures["cohen_kappa"]
    reliability, length = figures["reliability"], figures["reward_length_correlation"]
    positive = figures["positive_label_share"] / labelled if labelled else 0.0
    spoken = figures["outcome_share"] > 0
    found = [
        (
            figures["failed_share"] > min(MANY_FAILURES, recipe.critic.max_failure_rate),
            f"the critic fails: {figures['failed_share']:.0%} of its critiques cannot be read. Look at their "
            "status in answers-1.json; raise server.max_tokens or annotate.max_tokens if answers are cut, or set "
            "critic.constrain = true.",
        ),
        (
            labelled < FEW_LABELS and not spoken,
            f"the critic says nothing: {labelled:.1%} of the tokens have a label. Ask it for short quotes of good and "
            'poor parts, and look for quotes with other spelling (critic.match = "normalized").',
        ),
        (
            figures["unmatched_share"] > MANY_UNMATCHED,
            f"{figures['unmatched_share']:.0%} of the quotes are not in the response. Set critic.match = "
            '"normalized", or take a constrained reward model (critic.constrain = true).',
        ),
        (
            (kappa is not None and kappa < LOW_KAPPA) or (reliability is not None and reliability < LOW_RELIABILITY),
            f"the critic contradicts itself: κ {_number(kappa)}, reliability of the advantages {_number(reliability)}. "
            "Lower annotate.temperature, let it vote (critic.votes = 5), or raise rollout.batch_size to average over "
            "more responses.",
        ),
        (
            labelled >= FEW_LABELS and not ONE_SIDED >= positive >= 1 - ONE_SIDED,
            f"the critic always says the same: {positive:.0%} of the labelled tokens are positive. Change its prompt "
            "to ask for both sides, or weigh them with reward.positive and reward.negative.",
        ),
        (
            figures["reward_deviation"] < 1e-6,
            "every response gets the same reward, so nothing can be learned from comparing them. Raise "
            "rollout.temperature, or take harder prompts or another critic.",
        ),
        (
            abs(length) > PAYS_FOR_LENGTH,
            f"the critic pays for {'length' if length > 0 else 'brevity'}: reward and length correlate with r = "
            f'{length:.2f}. Set reward.span_mass = "response" or "span", or lower '
            f"{'reward.positive' if length > 0 else 'the weight of reward.negative'}.",
        ),
        (
            figures["truncated_share"] > MANY_TRUNCATED,
            f"{figures['truncated_share']:.0%} of the responses are cut by the length limit. Raise "
            "rollout.max_new_tokens, name the ids that end a response in rollout.eos_token_ids, or set "
            "reward.truncated below 0.",
        ),
        (
            recipe.ppo.beta > 0 and 0 < figures["reward_deviation"] < recipe.ppo.beta,
            f"the rewards are small beside the KL term: their deviation is {figures['reward_deviation']:.2g} per "
            f"response, and one nat of KL costs ppo.beta = {recipe.ppo.beta:g}. Lower ppo.beta, or raise "
            "reward.positive and reward.negative.",
        ),
    ]
    return [text for wrong, text in found if wrong]


def summary(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures in words, for the terminal and the page."""
    ratio = figures["signal_to_noise"]
    equal = figures["reliability"] is not None and ratio is None
    cost = figures["run_critic_cost"]
    return [
        ("responses", f"{figures['responses']} ({figures['tokens']:,} tokens)"),
        ("cut by the length limit", f"{figures['truncated_share']:.0%}"),
        ("tokens labelled positive", f"{figures['positive_label_share']:.1%}"),
        ("tokens labelled negative", f"{figures['negative_label_share']:.1%}"),
        ("failed critiques", f"{figures['failed_share']:.0%}"),
        ("critiques without a mark", f"{figures['silent_share']:.0%}"),
        ("quotes not found", f"{figures['unmatched_share']:.0%}"),
        ("labels alike in both answers", f"{figures['label_agreement']:.1%} (κ {_number(figures['cohen_kappa'])})"),
        ("signal-to-noise of advantages", "no noise" if equal else _number(ratio)),
        ("reliability of advantages", _number(figures["reliability"])),
        ("reward per response", f"{figures['reward_mean']:.3g} (deviation {figures['reward_deviation']:.3g})"),
        ("reward and length", f"r = {figures['reward_length_correlation']:.2f}"),
        ("critic, seconds per response", f"{figures['critic_seconds_per_response']:.3g}"),
        ("critic, whole run", f"{figures['run_critic_hours']:.3g} h" + (f" (${cost:,.2f})" if cost else "")),
    ]


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.2f}"
