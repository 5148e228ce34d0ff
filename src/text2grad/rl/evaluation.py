"""The responses to the held-out prompts, and the reward on them, as a trainer in a script measures it.

Critic, δ and rewards are those of training; the policy is never trained on these responses. `text2grad train` samples
the same responses, and evaluates them with the metric of its task instead (`runs`).
"""

from accelerate.utils import gather_object

from text2grad.feedback import ask
from text2grad.models import draws_apart, make_rollouts, step_uniforms
from text2grad.progress import Progress
from text2grad.rl.metrics import response_records, step_metrics
from text2grad.rl.rewards import rewards_of
from text2grad.rl.start import PreparedRun
from text2grad.types import Rollout

EVALUATION_SEED = 20_250_522  # keeps the random numbers of evaluations apart from those of training


def held_out_metrics(run: PreparedRun) -> dict[str, float]:
    """Return the metrics of all held-out prompts, with one response each, as "eval/NAME".

    All evaluations of a run draw the same random numbers, and training draws the same numbers without evaluations.

    Raises:
        CriticError: if the critic breaks its contract.
    """
    with draws_apart(run.recipe.run.seed + EVALUATION_SEED):
        rollouts = held_out_responses(run, own_held_out(run))
        examples, responses = [r.example for r in rollouts], [r.response for r in rollouts]
        critiques = ask(run.critic, examples, responses, **run.asking)
    batch = run.collate(rollouts)
    scores = run.score(batch, kl="k1")
    deltas, offsets, _, rewards = rewards_of(run.recipe.reward, run.tokenizer, rollouts, critiques, batch)
    tokens = {"reward": rewards, "kl": scores.kl}
    records = gather_object(response_records(0, rollouts, critiques, deltas, offsets, tokens))
    metrics = step_metrics(records, scores, scores.values, batch.response_mask)
    del metrics["value/explained_variance"]  # its targets exist in an update only
    return {f"eval/{name}": value for name, value in metrics.items()}


def own_held_out(run: PreparedRun) -> range:
    """Return the positions of this process's share of the held-out prompts."""
    count, processes, rank = len(run.held_out), run.accelerator.num_processes, run.accelerator.process_index
    return range(rank * count // processes, (rank + 1) * count // processes)


def held_out_responses(run: PreparedRun, rows: range, title: str | None = None) -> list[Rollout]:
    """Return one response to each held-out prompt of `rows`; batches that do not fit into memory are halved.

    All calls draw the same random numbers for a prompt, whatever `rows` are. Progress is shown if there is a title.
    """
    settings, here = run.recipe.rollout, slice(rows.start, rows.stop)
    seed, prompts = run.recipe.run.seed + EVALUATION_SEED, run.held_out_ids[here]
    uniforms = step_uniforms(seed=seed, step=0, rows=len(run.held_out), tokens=settings.max_new_tokens)
    shown = title is not None and run.accelerator.is_main_process

    def sample_all() -> list[tuple[int, ...]]:
        with Progress(title or "", len(rows), unit="response", enabled=shown) as progress:
            return run.sample_policy(prompts, uniforms[here], lambda part, _: progress.advance(len(part)))

    responses = run.sizes.in_rows(len(rows), sample_all)
    return make_rollouts(run.tokenizer, run.held_out[here], prompts, responses, run.eos_ids)
