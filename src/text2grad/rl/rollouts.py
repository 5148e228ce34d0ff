"""The responses of a step, and the critiques of them (Algorithm 4, lines 10-12).

A critic with an attribute `overlap` of n > 0 is asked while the policy still samples: it has n parts of the step at a
time, each in a thread. A part is the responses that the policy samples at once. The last critique arrives no later than
the critic's own latency after the last response if the critic keeps up, that is, answers n parts at a time as fast as
the policy samples. If each critique depends on its own response alone, the critiques are those of a critic that is
asked about the whole step afterwards.

The critiques of a whole step are on disk before anything uses them, and a killed run asks for none of them again. A run
that is killed before the last part is answered asks for all parts of this step again.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from text2grad.feedback import Critic, ask
from text2grad.models import batch_indices, make_rollouts, random_states, restore_random_states, step_uniforms
from text2grad.rl.start import PreparedRun
from text2grad.types import Critique, Rollout


class EarlyCritiques:
    """The critiques of a step that are asked for in threads, part by part, while other responses are sampled."""

    def __init__(self, critic: Critic, how: Mapping[str, Any], parts: int) -> None:
        """Take the critic, how `ask` asks it, and the number of parts that it may have at a time, each in a thread."""
        self.critic, self.how, self._parts = critic, how, list[Future[list[Critique]]]()
        self._pool = ThreadPoolExecutor(parts, thread_name_prefix="text2grad-critic")

    def __enter__(self) -> "EarlyCritiques":
        """Return this object, which gets the parts."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the parts that the critic has, and start no others."""
        self._pool.shutdown(cancel_futures=True)

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Ask for the critiques of some responses."""
        examples, responses = [r.example for r in rollouts], [r.response for r in rollouts]
        self._parts.append(self._pool.submit(ask, self.critic, examples, responses, **self.how))

    def restart(self) -> None:
        """Forget the parts so far: the step is sampled again, in smaller parts."""
        for part in self._parts:
            part.cancel()
        self._parts.clear()

    def critiques(self) -> list[Critique]:
        """Wait for all parts, and return their critiques in the order of the responses.

        Raises:
            CriticError: of the first part that failed.
        """
        return [critique for part in self._parts for critique in part.result()]


def chosen_examples(run: PreparedRun, step: int) -> list[int]:
    """Return the indices of a step's examples, over all processes; the responses to a prompt are neighbours."""
    rollout = run.recipe.rollout
    count = rollout.batch_size // rollout.group_size
    prompts = batch_indices(len(run.examples), count, step=step, seed=run.recipe.run.seed)
    return [index for index in prompts for _ in range(rollout.group_size)]


def sample_rollouts(run: PreparedRun, step: int, early: EarlyCritiques | None = None) -> list[Rollout]:
    """Return this process's responses of a step; each batch of them goes to `early` as soon as it is sampled."""
    rollout, rank = run.recipe.rollout, run.accelerator.process_index
    share = rollout.batch_size // run.accelerator.num_processes
    mine = slice(rank * share, (rank + 1) * share)
    chosen = chosen_examples(run, step)[mine]
    prompts, rollouts = [run.prompt_ids[index] for index in chosen], list[Rollout]()

    def on_part(responses: list[tuple[int, ...]], logps: list[tuple[float, ...]]) -> None:
        here = slice(len(rollouts), len(rollouts) + len(responses))
        examples = [run.examples[index] for index in chosen[here]]
        part = make_rollouts(run.tokenizer, examples, prompts[here], responses, run.eos_ids, logps)
        rollouts.extend(part)
        if early is not None:
            early.add(part)

    def sample_all() -> None:
        rollouts.clear()
        if early is not None:
            early.restart()
        if run.vllm is not None:
            if (kept := _kept_samples(run, step, len(prompts))) is None:
                run.vllm.sample(prompts, step=step, on_part=on_part)
            else:
                on_part(*kept)
            return
        uniforms = step_uniforms(
            seed=run.recipe.run.seed, step=step, rows=rollout.batch_size, tokens=rollout.max_new_tokens
        )
        run.sample_policy(prompts, uniforms[mine], on_part)

    run.sizes.in_rows(len(prompts), sample_all)
    return rollouts


def _kept_samples(
    run: PreparedRun, step: int, count: int
) -> tuple[list[tuple[int, ...]], list[tuple[float, ...]]] | None:
    """Return vLLM's responses of a step whose critiques a killed run left; None unless every process has some."""
    kept = run.log.kept_samples(step, run.accelerator.process_index, count)
    having = torch.tensor([float(kept is not None)], device=run.accelerator.device)
    if bool(run.accelerator.reduce(having, reduction="sum") == run.accelerator.num_processes):
        return kept
    run.log.drop_critiques(step)
    return None


def critiques_of(
    run: PreparedRun, step: int, rollouts: Sequence[Rollout], early: EarlyCritiques | None = None
) -> list[Critique]:
    """Return the critiques of a step: from disk where a killed run has left them, from `early`, or from the critic.

    Raises:
        CriticError: if the critic breaks its contract.
    """
    rank = run.accelerator.process_index
    if (kept := run.log.kept_critiques(step, rank, rollouts)) is not None:
        critiques, states = kept
        if states is not None:
            restore_random_states(states)  # the critic of the killed run drew random numbers, too
        return critiques
    if early is None:
        examples, responses = [r.example for r in rollouts], [r.response for r in rollouts]
        critiques = ask(run.critic, examples, responses, **run.asking)
    else:
        critiques = early.critiques()
    run.log.keep_critiques(step, rank, rollouts, critiques, random_states(), ids=run.vllm is not None)
    return critiques
