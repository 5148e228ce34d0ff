"""The reward on held-out prompts, measured by a trainer in a script.

Critic, δ and rewards are those of training; the policy is never trained on these responses. `text2grad train` evaluates
with the metric of its task instead (`runs`).
"""

from accelerate.utils import gather_object

from text2grad.align import response_deltas
from text2grad.feedback import ask
from text2grad.models import draws_apart, make_rollouts, sample, step_uniforms
from text2grad.rl.metrics import response_records, step_metrics
from text2grad.rl.rewards import token_rewards
from text2grad.rl.start import PreparedRun
from text2grad.types import Rollout

SEED = 20_250_522  # keeps the random numbers of evaluations apart from those of training


def held_out_metrics(run: PreparedRun) -> dict[str, float]:
    """Return the metrics of all held-out prompts, with one response each, as "eval/NAME".

    All evaluations of a run draw the same random numbers, and training draws the same numbers without evaluations.

    Raises:
        CriticError: if the critic breaks its contract.
    """
    count, processes, rank = len(run.held_out), run.accelerator.num_processes, run.accelerator.process_index
    mine = slice(rank * count // processes, (rank + 1) * count // processes)
    with draws_apart(run.recipe.run.seed + SEED):
        rollouts = _sampled(run, mine)
        examples, responses = [r.example for r in rollouts], [r.response for r in rollouts]
        critiques = ask(run.critic, examples, responses, match=run.recipe.critic.match)
    deltas, offsets = response_deltas(run.tokenizer, rollouts, critiques, run.delta_settings)
    batch = run.collate(rollouts)
    scores = run.score(batch, kl="k1")
    rewards = token_rewards(run.recipe.reward, deltas, critiques, batch, responses=responses, offsets=offsets)
    tokens = {"reward": rewards, "kl": scores.kl}
    records = gather_object(response_records(0, rollouts, critiques, deltas, offsets, tokens))
    metrics = step_metrics(records, scores, scores.values, batch.response_mask)
    del metrics["value/explained_variance"]  # its targets exist in an update only
    return {f"eval/{name}": value for name, value in metrics.items()}


def _sampled(run: PreparedRun, mine: slice) -> list[Rollout]:
    """Return this process's responses to the held-out prompts."""
    settings, prompts = run.recipe.rollout, run.held_out_ids[mine]
    uniforms = step_uniforms(
        seed=run.recipe.run.seed + SEED, step=0, rows=len(run.held_out_ids), tokens=settings.max_new_tokens
    )
    with run.whole_policy() as policy:
        responses = sample(
            policy,
            prompts,
            uniforms[mine],
            eos_ids=run.eos_ids,
            pad_id=run.pad_id,
            temperature=settings.temperature,
            rows_at_once=run.sizes.rows_at_once,
        )
    return make_rollouts(run.tokenizer, run.held_out[mine], prompts, responses, run.eos_ids)
