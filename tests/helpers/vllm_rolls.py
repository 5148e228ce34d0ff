"""A run whose responses vLLM samples, and a comparison of vLLM with the trained policy: with the Python of vLLM.

    python tests/helpers/vllm_rolls.py MODEL RUN OUT [SECTION.KEY=VALUE ...]

MODEL is the directory of a policy. OUT gets JSON: for vLLM as in the last step ("before") and with the weights of
now ("after"), the largest difference of the log-probs of sampled tokens from the policy's, whether the responses at
temperature 0 are the policy's, and the sampled ids; and the names of frozen weights that have changed.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from text2grad.config.recipe import load_recipe
from text2grad.models.policy import response_logprobs
from text2grad.models.pretrained import load_tokenizer
from text2grad.models.sampling import make_rollouts, sample
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.types import Critique, Example, Span

PROMPTS = [
    Example(f"Once upon a time, {name} had a {thing}") for name in ("Lily", "Ben") for thing in ("cat", "red ball")
]


def critic(examples: Any, responses: Any) -> list[Critique]:
    """Mark the first half of each response as positive, and the second as negative."""
    halves = [len(text) // 2 for text in responses]
    return [
        Critique("Be brief.", (Span(0, half, "positive"), Span(half, len(text), "negative"))) if half else Critique("")
        for half, text in zip(halves, responses, strict=True)
    ]


def main(model: str, run: str, out: str, *overrides: str) -> None:
    """Train, compare, write."""
    Path(f"{run}.toml").write_text("")
    recipe = load_recipe(f"{run}.toml", [f"run.out={run}", *overrides])
    trainer = Text2GradTrainer(model, critic, PROMPTS, recipe, processing_class=load_tokenizer(model))
    frozen = {name: p.clone() for name, p in trainer.model.policy.named_parameters() if not p.requires_grad}
    trainer._end = lambda: None  # type: ignore[method-assign]  # vLLM is asked again
    trainer.train()
    engine: Any = trainer.vllm
    comparison = {"before": compare(trainer, engine, sync=False), "after": compare(trainer, engine, sync=True)}
    parameters = dict(trainer.model.policy.named_parameters())
    comparison["frozen_changed"] = [name for name, p in frozen.items() if not torch.equal(p, parameters[name])]
    Path(out).write_text(json.dumps(comparison))
    engine.close()


def compare(trainer: Text2GradTrainer, engine: Any, *, sync: bool) -> dict[str, Any]:
    """Compare vLLM with the policy."""
    if sync:
        engine._generation.sync_weights()
    engine._generation.sync_weights, plain = lambda: None, engine._generation.sync_weights
    rollouts: list[Any] = []
    prompts = trainer.prompt_ids * 4
    examples = trainer.examples * 4

    def add(ids: Any, logps: Any) -> None:
        rollouts.extend(make_rollouts(trainer.tokenizer, examples, prompts, ids, trainer.eos_ids, logps))

    engine.rows_at_once = len(prompts)
    engine.sample(prompts, step=99, on_part=add)
    batch = trainer.collate(rollouts)
    with torch.no_grad():
        own, _, _ = response_logprobs(trainer.model.policy, batch, temperature=trainer.recipe.rollout.temperature)
    gap = max(
        abs(own[row, at].item() - logp)
        for row, rollout in enumerate(rollouts)
        for at, logp in enumerate(rollout.engine_logp)
    )
    sampled = [rollout.response_ids for rollout in rollouts]
    rollouts.clear()
    engine._generation.temperature = 0.0
    engine.sample(prompts, step=99, on_part=add)
    engine._generation.temperature = trainer.recipe.rollout.temperature
    uniforms = torch.zeros(len(prompts), trainer.recipe.rollout.max_new_tokens)
    greedy = sample(
        trainer.model.policy, prompts, uniforms, eos_ids=trainer.eos_ids, pad_id=trainer.pad_id, temperature=0.0
    )
    engine._generation.sync_weights = plain
    return {
        "gap": gap,
        "greedy": [rollout.response_ids for rollout in rollouts] == greedy,
        "sampled": [list(ids) for ids in sampled],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
