"""Runs of several processes, made one after the other in one launch, since each process takes seconds to import torch.

    torchrun --nproc-per-node 2 tests/helpers/sharded_runs.py DIRECTORY NAME[:STEPS] ...

Each run ends in DIRECTORY/NAME, and is resumed where that exists. The numbers of processes and of parameters of each
process stand in DIRECTORY/NAME-RANK.json. The part of NAME after a slash is its key in `RUNS`.
"""

import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from safetensors.torch import save_file

from tests.helpers import small_run
from text2grad.models import with_lora
from text2grad.reward_models import CritiqueFormat, GenerativeRewardModel, Refresher
from text2grad.reward_models.shared_base import add_role
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.runs.evaluations import Evaluations
from text2grad.tasks.tiny import tiny_llama
from text2grad.types import Critique, Example

FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
Sections = Mapping[str, dict[str, Any]]

PIECES: Sections = {"ppo": {"micro_batch_tokens": 14, "target_kl": 0.1, "entropy_coef": 0.01, "kl": "full"}}
MODEL: Sections = {"model": {"value": "model", "gradient_checkpointing": True}}
GROUPS: Sections = {
    "rollout": {"batch_size": 16, "group_size": 4},
    "ppo": {"baseline": "group", "minibatches": 1, "epochs": 4},
    "model": {"value": "none"},
}
ADAPTERS: Sections = {
    "model": {"lora_r": 4, "value": "adapter"},
    "optim": {"lr": 1e-2, "value_lr": 1e-2},
    "rollout": {"group_size": 2},
}
TAUGHT: Sections = {
    "ppo": {"credit": "gated", "teacher_update_rate": 1.0, "whiten": "scale", "micro_batch_tokens": 60},
    "model": {"value": "none"},
}
# All annotations of a refresh are one batch, so that their order in it does not matter.
REFRESH: Sections = {
    "refresh": {"steps": [1, 3], "window": 8, "batch_size": 8, "train_steps": 16, "lr": 1e-2, "audit": 6}
}
RUNS: dict[str, tuple[Sections, Mapping[str, str]]] = {
    "full": (PIECES, FSDP),
    "model": (MODEL, FSDP),
    "groups": (GROUPS, {**FSDP, "FSDP_RESHARD_AFTER_FORWARD": "false"}),
    "lora": (ADAPTERS, FSDP),
    "taught": (TAUGHT, FSDP),
    "ddp": (PIECES, {}),
    "refresh": (REFRESH, {}),
    "refresh_sharded": (REFRESH, FSDP),
    "refresh_role": (REFRESH, {}),
    "draws": ({}, FSDP),
    "half_base": (ADAPTERS, FSDP),
    "halves": ({}, {**FSDP, "ACCELERATE_MIXED_PRECISION": "bf16"}),
}
"""Settings and accelerate's environment of each run."""

LONG = [Example(" ".join([*small_run.WORDS, example.prompt_text])) for example in small_run.EXAMPLES]
HELD_OUT = small_run.EXAMPLES[:5]  # three for one process, two for the other


class DrawingCritic(small_run.ColourCritic):
    """Overlooks half of the responses at random, and draws more often in later processes."""

    def judge(self, response: str) -> Critique:
        for _ in range(1 + int(os.environ.get("RANK", "0"))):
            drawn = max(random.random(), np.random.random(), float(torch.rand(())))
        return super().judge(response) if drawn < 0.8 else Critique("-")


def with_learned_critic(name: str) -> tuple[Any, Any, Any]:
    """Return tokenizer, policy, and a reward model: of its own, or as an adapter on the policy's base."""
    tokenizer = small_run.critic_tokenizer()
    policy, base = (tiny_llama(tokenizer, seed=1, width=32, layers=1, context=64) for _ in range(2))
    torch.manual_seed(7)
    if name in ("refresh", "refresh_sharded"):
        return tokenizer, policy, GenerativeRewardModel(base, tokenizer, CritiqueFormat(max_new_tokens=24))
    policy = with_lora(policy, r=2, alpha=4, targets=["q_proj", "v_proj"])
    writer = with_lora(base, r=4, alpha=16, targets=["q_proj", "v_proj"])
    with tempfile.TemporaryDirectory() as saved:
        GenerativeRewardModel(writer, tokenizer, CritiqueFormat(max_new_tokens=24)).save(Path(saved))
        critic = GenerativeRewardModel.load(saved, model=add_role(policy, saved))
    return tokenizer, policy, critic


def run(directory: Path, name: str, *, steps: int = 2) -> Text2GradTrainer:
    """Make or resume a run up to a step, with evaluations before and after it, and return its trainer."""
    key = name.rpartition("/")[2]
    sections = {section: dict(values) for section, values in RUNS[key][0].items()}
    sections["run"] = {"steps": steps, "save_every": 2}
    sections["optim"] = {"schedule": "constant", "lr": 3e-3, "value_lr": 1e-2, **sections.get("optim", {})}
    tokenizer, model = small_run.tokenizer_and_model()
    if key == "groups":  # a model whose output layer is its embedding
        model.config.tie_word_embeddings = True
        model.tie_weights()
    if key == "half_base":  # frozen bfloat16 weights and fp32 adapters in one layer
        model.bfloat16()
    critic: Any = DrawingCritic() if key == "draws" else small_run.ColourCritic()
    recipe = small_run.recipe(directory / name, **sections)
    if key.startswith("refresh"):
        tokenizer, model, critic = with_learned_critic(key)
    asked = directory / f"{name}-asked-{os.environ.get('RANK', '0')}.jsonl"
    made = Text2GradTrainer(
        model,
        critic,
        LONG if key == "groups" else small_run.EXAMPLES,
        recipe,
        eval_dataset=HELD_OUT,
        processing_class=tokenizer,
        refresher=Refresher(recipe, critic, small_run.ColourCritic(asked)),
        resume=(directory / name / "run.json").exists(),
    )
    evaluate = Evaluations(made)
    if made.accelerator.num_processes > 1:
        (directory / f"{name}-{made.accelerator.process_index}.json").write_text(json.dumps(held(made)))
    evaluate(made)
    made.train(evaluate)
    if key.startswith("refresh"):
        weights = {key: weight.clone() for key, weight in critic.model.state_dict().items()}
        save_file(weights, directory / f"{name}-critic-{made.accelerator.process_index}.safetensors")
    return made


def held(made: Text2GradTrainer) -> dict[str, Any]:
    """Return how much this process holds of the models of a run."""
    from torch.distributed.tensor import DTensor

    modules = [made.model, *([made.reference.model] if made.reference.model is not None else [])]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    local = [parameter.to_local() if isinstance(parameter, DTensor) else parameter for parameter in parameters]
    return {
        "processes": made.accelerator.num_processes,
        "sharded": all(isinstance(parameter, DTensor) for parameter in parameters),
        "own": sum(parameter.numel() for parameter in local),
        "all": sum(parameter.numel() for parameter in parameters),
    }


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


if __name__ == "__main__":
    torch.set_num_threads(1)
    PartialState.destroy_process_group = lambda self, group=None: None  # which the end of a run calls; others follow
    for item in sys.argv[2:]:
        name, _, count = item.partition(":")
        with environment(RUNS[name.rpartition("/")[2]][1]):
            run(Path(sys.argv[1]), name, steps=int(count or 2))
