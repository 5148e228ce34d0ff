"""A recipe → the memory of a run by role and phase.

Memory is traced (`trace`) for the longest prompt and the longest response, on one process of `processes`. The optimizer
has its state from the second step on, so it counts in every phase. A reward model in the run's processes counts, too
(`critic`), and so does the overhead of a process beyond its tensors (`devices`).
"""

from typing import NamedTuple

from text2grad.config import Recipe
from text2grad.errors import ConfigError
from text2grad.models import context_of, encode_prompts, load_tokenizer, policy_config
from text2grad.progress import note
from text2grad.runs.dry_run.critic import CriticPlanner
from text2grad.runs.dry_run.devices import Device
from text2grad.runs.dry_run.trace import Pass, TracedModel, update_roles
from text2grad.runs.run_examples import run_examples


class Lengths(NamedTuple):
    """Tokens of the prompts: number of prompts, mean and longest."""

    prompts: int
    mean: float
    longest: int


class Plan(NamedTuple):
    """What a process needs: bytes by phase and role, and the numbers of all and of trained parameters."""

    phases: dict[str, dict[str, int]]
    parameters: tuple[int, int]

    @property
    def peak_phase(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def peak(self) -> int:
        """Bytes of the peak phase."""
        return sum(self.phases[self.peak_phase].values())


class Planner:
    """Plans the memory of one recipe.

    Attributes:
        lengths: of the prompts that are trained on.
    """

    def __init__(self, recipe: Recipe, device: Device, *, processes: int = 1, prompt_tokens: int | None = None) -> None:
        """Read the config of the policy, and measure the prompts unless all have `prompt_tokens` tokens.

        Raises:
            ConfigError: if the batch cannot be shared by the processes, or no prompt leaves room for a response.
            ModelError: if config or tokenizer cannot be read.
            DataError: if the prompts cannot be used.
        """
        recipe.refresh.check_processes(processes)
        shares = processes * recipe.ppo.minibatches
        if recipe.rollout.batch_size % shares:
            raise ConfigError(
                f"rollout.batch_size = {recipe.rollout.batch_size} cannot be shared evenly by {processes} processes × "
                f"ppo.minibatches = {recipe.ppo.minibatches}; choose a multiple of {shares}"
            )
        self.recipe, self.device, self.processes = recipe, device, processes
        self.config = policy_config(recipe.model.path, trust_remote_code=recipe.model.trust_remote_code)
        context = context_of(self.config)
        limit = context - recipe.rollout.max_new_tokens
        self.lengths = Lengths(0, prompt_tokens, prompt_tokens) if prompt_tokens else self._measured_lengths(limit)
        if self.lengths.longest > limit:
            raise ConfigError(
                f"prompts of {self.lengths.longest} tokens and rollout.max_new_tokens = "
                f"{recipe.rollout.max_new_tokens} exceed the model's context of {context}; lower the latter, or set "
                'data.too_long = "skip"'
            )

    def plan(self) -> Plan:
        """Trace each phase of a step with the largest pieces that the settings allow."""
        recipe, ppo = self.recipe, self.recipe.ppo
        model = TracedModel(self.config, recipe.model, device=self.device.kind)
        critic = CriticPlanner(recipe, self.config, self.device, self.processes, self.lengths.longest)
        sizes = self.lengths.longest, recipe.rollout.max_new_tokens
        share, fitting = recipe.rollout.batch_size // self.processes, max(ppo.micro_batch_tokens // sum(sizes), 1)
        minibatch, grads = share // ppo.minibatches, model.weights.trainable
        note(f"tracing scoring and update of {min(fitting, share)} rows")
        score = model.score(min(fitting, share), *sizes, kl=ppo.kl)
        how = {"entropy": ppo.entropy_coef > 0, "accumulated": minibatch > fitting}
        update = model.update(min(fitting, minibatch), *sizes, **how)
        sampled_rows = min(recipe.rollout.rows_at_once, share)
        note(f"tracing the rollout of {sampled_rows} rows")
        sampling = _decoding_roles(model.rollout(sampled_rows, *sizes))
        resident = self._resident(model, critic)
        if recipe.rollout.engine == "vllm":
            engine = int(recipe.engine.gpu_memory_utilization * self.device.memory)
            sampling = {"vLLM of rollouts": engine}
            resident = resident if recipe.engine.sleep else {**resident, **sampling}
        changed = grads if self.device.kind == "cuda" else 2 * model.weights.largest
        phases = {
            "rollout": sampling,
            "critic": _decoding_roles(critic.passes()),
            "score": {"working": score.peak},
            "update": update_roles(update, grads),
            "optimizer": {"gradients": grads, "working": changed},
            "refresh": critic.refresh(),
        }
        whole = {name: self.device.with_overhead({**resident, **own}) for name, own in phases.items() if own}
        return Plan(whole, (model.weights.parameters, model.weights.trained_parameters))

    def _resident(self, model: TracedModel, critic: CriticPlanner) -> dict[str, int]:
        """Return what occupies memory in every phase, in bytes by role."""
        weights = model.weights
        own = {"policy": weights.policy, "reference": weights.reference, "value function": weights.value}
        own["optimizer states"] = 2 * weights.trainable
        buckets = {"gradient buckets": weights.trainable} if self.processes > 1 else {}
        return {**own, **critic.weights(), **buckets}

    def _measured_lengths(self, limit: float) -> Lengths:
        """Return the lengths of the prompts that are trained on: `limit` is the most that leaves room."""
        model, rollout, data = self.recipe.model, self.recipe.rollout, self.recipe.data
        tokenizer = load_tokenizer(model.path, trust_remote_code=model.trust_remote_code)
        prompts = encode_prompts(tokenizer, run_examples(self.recipe).train, prompt_format=model.prompt_format)
        lengths = [len(prompt) for prompt in prompts]
        kept = [length for length in lengths if data.too_long == "refuse" or length <= limit]
        if not kept:
            raise ConfigError(
                f"no prompt leaves room for rollout.max_new_tokens = {rollout.max_new_tokens}: the shortest has "
                f"{min(lengths)} tokens, and {max(limit, 0)} fit; lower it, or shorten the prompts"
            )
        return Lengths(len(kept), sum(kept) / len(kept), max(kept))


def _decoding_roles(passes: tuple[Pass, ...]) -> dict[str, int]:
    """Return the bytes by role of the largest of some passes without gradients; empty without passes."""
    if not passes:
        return {}
    largest = max(passes)  # by its peak
    return {"KV cache": largest.kept, "working": largest.peak - largest.kept}
