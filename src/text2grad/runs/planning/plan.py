"""A recipe → memory by role and phase, time of a step, tokens and money, and settings that make it fit.

Memory is traced (`trace`) for the longest prompt and the longest response, on one process of `processes`. The optimizer
has its state from the second step on, so it counts in every phase. Beyond the tensors a process has

    CPU     OVERHEAD["cpu"] for tokenizer and Python objects
    GPU     OVERHEAD["cuda"] for CUDA's context and libraries, and 5 % that the caching allocator cannot use

(the figures for a GPU are assumptions). Time: products at `mfu` of the device's rate; an operation takes at least
`call_s`; a decoding step at least one reading of weights and KV cache. A reward model in the run's processes counts,
with critiques of the longest length; the time of any other critic is measured by `text2grad rehearse`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from text2grad.config import ModelConfig, Recipe
from text2grad.errors import ConfigError, DataError, ModelError
from text2grad.models import ADAPTER_CONFIG, base_named_by, context_of, dtype_to_train, encode_prompts, load_tokenizer
from text2grad.progress import note
from text2grad.reward_models import saved_format, saved_probe, shares_base
from text2grad.runs.planning.devices import GB, Device
from text2grad.runs.planning.reading import LABELS, READERS, rows_read, trace_reading
from text2grad.runs.planning.scale import gathered, sharded
from text2grad.runs.planning.trace import Pass, TracedModel, read_config, weights_type
from text2grad.runs.run_examples import run_examples
from text2grad.types import Example

OVERHEAD = {"cpu": 40 * 10**6, "cuda": 10**9}
FRAGMENTATION = {"cpu": 1.0, "cuda": 1.05}
SMALLEST_LORA = 16


@dataclass(frozen=True)
class Lengths:
    """Tokens of the prompts: number of prompts, mean and longest."""

    prompts: int
    mean: float
    longest: int


class PlannedMemory:
    """Bytes of one process by phase and role, as `phases`."""

    phases: dict[str, dict[str, int]]

    @property
    def peak_phase(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def peak(self) -> int:
        """Bytes of the peak phase."""
        return sum(self.phases[self.peak_phase].values())


@dataclass(frozen=True)
class Plan(PlannedMemory):
    """What a run needs, per process.

    Attributes:
        phases: bytes by phase and role.
        lengths: of the prompts.
        response_tokens: length limit of a response.
        sampled_tokens: most response tokens of one step, all processes.
        seconds: of one step by phase, a refresh by its share of a step; empty if the device's rates are unknown.
        parameters: of the policy, and the trained ones.
    """

    phases: dict[str, dict[str, int]]
    lengths: Lengths
    response_tokens: int
    sampled_tokens: int
    parameters: tuple[int, int]
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Advice:
    """Settings that make a run fit, and its peak in bytes then."""

    settings: dict[str, Any]
    peak: int


class Planner:
    """Plans one recipe and its variants; traces are kept, so that variants share them."""

    def __init__(
        self,
        recipe: Recipe,
        device: Device,
        *,
        processes: int = 1,
        in_shards: bool = False,
        prompt_tokens: int | None = None,
    ) -> None:
        """Read the config of the policy and measure the prompts.

        Args:
            recipe: the settings.
            device: the device of one process.
            processes: number of processes, one GPU each.
            in_shards: FSDP 2 shards weights, gradients and optimizer states over the processes; else each holds all.
            prompt_tokens: length of all prompts, whose number is the recipe's; None measures the recipe's prompts with
                the policy's tokenizer.

        Raises:
            ConfigError: if the batch cannot be shared by the processes.
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
        self.shards = processes if in_shards else 1
        path = base_named_by(recipe.model.path) or recipe.model.path  # an adapter is merged into its base
        self.config = read_config(path, trust_remote_code=recipe.model.trust_remote_code)
        self.lengths = (
            Lengths(number_of_prompts(recipe), prompt_tokens, prompt_tokens)
            if prompt_tokens
            else self._measured_lengths()
        )
        context = context_of(SimpleNamespace(config=self.config))
        if self.lengths.longest + recipe.rollout.max_new_tokens > context:
            raise ConfigError(
                f"prompts of {self.lengths.longest} tokens and rollout.max_new_tokens = "
                f"{recipe.rollout.max_new_tokens} exceed the model's context of {context}; lower the latter, or set "
                'data.too_long = "skip"'
            )
        self._models: dict[str, TracedModel] = {}
        self._passes: dict[tuple[Any, ...], Any] = {}

    def plan(self, recipe: Recipe | None = None) -> Plan:
        """Return the plan of the recipe, or of a variant of it."""
        recipe = recipe or self.recipe
        model, prompt, response = self._model(recipe), self.lengths.longest, recipe.rollout.max_new_tokens
        weights, cuda = model.weights, self.device.kind == "cuda"
        share = recipe.rollout.batch_size // self.processes
        prompts, decoding = self._traced(recipe, "rollout", self._sampled_rows(recipe))
        fitting = max(recipe.ppo.micro_batch_tokens // (prompt + response), 1)
        minibatch = share // recipe.ppo.minibatches
        scored, updated = min(fitting, share), min(fitting, minibatch)
        score = self._traced(recipe, "score", scored)
        update = self._traced(recipe, "update", updated, accumulated=minibatch > updated)
        grads, resident = weights.trainable, self._resident(recipe)
        rollout = max((prompts, decoding), key=lambda one: one.peak)
        sampling = {"KV cache": rollout.kept, "working": rollout.peak - rollout.kept}
        if recipe.rollout.engine == "vllm":
            sampling = self._engine(recipe)
            resident = resident if recipe.engine.sleep else {**resident, **sampling}
        changed = grads if cuda else 2 * weights.largest
        phases = {
            "rollout": sampling,
            **self._critic(recipe),
            "score": {"working": score.peak},
            "update": update_roles(update, grads),
            "optimizer": {"gradients": grads, "working": changed},
            **self._refresh(recipe),
        }
        if self.shards > 1:
            layers = gathered(weights.layer, weights.ends)
            phases["rollout"]["gathered weights"] = weights.policy
            phases["score"]["gathered weights"] = layers
            whole = min(grads, weights.layer + weights.ends)  # gradients before they are summed over processes
            phases["update"] |= {"gathered weights": layers + whole, "gradients": sharded(grads, self.shards)}
            own = {"gradients": sharded(grads, self.shards), "working": sharded(changed, self.shards)}
            phases["optimizer"] |= own
        return Plan(
            {name: with_overhead(self.device.kind, {**resident, **own}) for name, own in phases.items()},
            self.lengths,
            response,
            recipe.rollout.batch_size * response,
            (weights.parameters, weights.trained_parameters),
            self._seconds(recipe, prompts, decoding, score, update) if self.device.flops else {},
        )

    def _engine(self, recipe: Recipe) -> dict[str, int]:
        """Return the memory of the vLLM that samples the rollouts in the processes of the run."""
        if recipe.engine.mode == "server":
            return {}
        return {"vLLM of rollouts": int(recipe.engine.gpu_memory_utilization * self.device.memory)}

    def _resident(self, recipe: Recipe) -> dict[str, int]:
        """Return what occupies memory in every phase, in bytes by role."""
        weights = self._model(recipe).weights
        models = {
            "policy": weights.policy,
            "reference": weights.reference,
            "value function": weights.value,
            "optimizer states": 2 * weights.trainable,
        }
        buckets = {"gradient buckets": weights.trainable} if self.processes > self.shards else {}
        shards = {name: sharded(size, self.shards) for name, size in models.items()}
        return {**shards, **self._critic_weights(recipe), **buckets}

    def advice(self, memory: int) -> list[Advice]:
        """Return settings with which the peak fits into `memory` bytes: first those that change no result."""
        found = []
        for first in stronger(self.recipe.model):
            settings = self._fitting(first, memory)
            if settings is not None:
                found.append(settings)
            if len(found) == 2:
                break
        return found

    def _fitting(self, settings: dict[str, Any], memory: int) -> Advice | None:
        """Halve the sizes of pieces of the phases that do not fit; None if single rows do not fit."""
        settings = dict(settings)
        if sum(with_overhead(self.device.kind, self._resident(with_settings(self.recipe, settings))).values()) > memory:
            return None  # smaller pieces do not help; nothing is traced
        while True:
            recipe = with_settings(self.recipe, settings)
            plan = self.plan(recipe)
            if plan.peak <= memory:
                return Advice(settings, plan.peak)
            if plan.peak_phase in ("rollout", "critic"):
                rows = self._critic_rows(recipe) if plan.peak_phase == "critic" else self._sampled_rows(recipe)
                if rows == 1:
                    return None
                settings["rollout.rows_at_once"] = rows // 2
            elif plan.peak_phase in ("score", "update"):
                row = self.lengths.longest + recipe.rollout.max_new_tokens
                share = recipe.rollout.batch_size // self.processes
                now = min(recipe.ppo.micro_batch_tokens, share * row)
                if now // row <= 1:
                    return None
                settings["ppo.micro_batch_tokens"] = max(now // row // 2, 1) * row
            elif plan.peak_phase == "refresh":
                parts = recipe.refresh.accumulate * 2
                if recipe.refresh.batch_size % (self.processes * parts):
                    return None
                settings["refresh.accumulate"] = parts
            else:
                return None

    def _measured_lengths(self) -> Lengths:
        recipe = self.recipe
        examples = recipe_examples(recipe)
        limit = context_of(SimpleNamespace(config=self.config)) - recipe.rollout.max_new_tokens
        kept = [one for one in self._tokens(examples) if recipe.data.too_long == "refuse" or one <= limit]
        if not kept:
            raise ConfigError(f"no prompt leaves room for rollout.max_new_tokens = {recipe.rollout.max_new_tokens}")
        return Lengths(len(kept), sum(kept) / len(kept), max(kept))

    def _tokens(self, examples: Sequence[Example]) -> list[int]:
        """Return the number of tokens of each prompt."""
        model = self.recipe.model
        try:
            tokenizer = load_tokenizer(model.path, trust_remote_code=model.trust_remote_code)
        except ModelError as error:
            raise ModelError(
                f"{error}. Give the length of prompts with --prompt-tokens N to plan without it"
            ) from error
        return [
            len(one) for one in encode_prompts(tokenizer, examples, prompt_format=self.recipe.rollout.prompt_format)
        ]

    def _model(self, recipe: Recipe) -> TracedModel:
        key = recipe.model.model_dump_json()
        if key not in self._models:
            self._models = {key: TracedModel(self.config, recipe.model, device=self.device.kind)}
        return self._models[key]

    def _traced(self, recipe: Recipe, phase: str, rows: int, *, accumulated: bool = False) -> Any:
        """Return the pass of a phase, or for rollouts both; traced once. `accumulated`: see `TracedModel.update`."""
        prompt, response = self.lengths.longest, recipe.rollout.max_new_tokens
        entropy, kl = recipe.ppo.entropy_coef > 0, recipe.ppo.kl
        key = (recipe.model.model_dump_json(), phase, rows, response, entropy, kl, accumulated)
        if key not in self._passes:
            model = self._model(recipe)
            checkpointing = " with gradient checkpointing" if recipe.model.gradient_checkpointing else ""
            note(f"tracing the {phase} of {rows} rows{checkpointing}")
            if phase == "rollout":
                self._passes[key] = model.rollout(rows, prompt, response)
            elif phase == "score":
                self._passes[key] = model.score(rows, prompt, response, kl=kl)
            else:
                self._passes[key] = model.update(rows, prompt, response, entropy=entropy, accumulated=accumulated)
        return self._passes[key]

    def _critic_weights(self, recipe: Recipe) -> dict[str, int]:
        """Return what a reward model in this process occupies in every phase."""
        critic = recipe.critic
        if not critic.learned or critic.kind == "server":
            return {}
        if critic.kind == "vllm":
            return {"vLLM": int(recipe.vllm.gpu_memory_utilization * self.device.memory)}
        if not Path(critic.model).exists():
            writes = f", which writes reward_model.max_new_tokens = {recipe.reward_model.max_new_tokens}"
            note(
                f"critic.model = {critic.model!r} does not exist yet: planned as a model like the policy"
                f"{'' if critic.kind in READERS else writes}",
                warning=True,
            )
            weights = self._model(recipe).weights
            return {"reward model": 4 * weights.parameters if critic.kind in LABELS else weights.policy}
        files = list(Path(critic.model).glob("*.safetensors"))
        if not files:
            raise ModelError(f"critic.model = {critic.model!r} holds no *.safetensors, whose size a plan needs")
        base = saved_probe(critic.model)["base"] if critic.kind == "probe" else base_named_by(critic.model)
        if base is not None and critic.kind == "probe":
            base = base_named_by(base) or base  # an adapter is merged into its own base
        if base is not None and not shares_base(recipe):
            of_base = list(Path(base).glob("*.safetensors"))
            if not of_base:
                note(
                    f"critic.model = {critic.model!r} reads the base {base!r}, which is no directory with "
                    "*.safetensors here: its memory is not in this plan",
                    warning=True,
                )
            files += of_base
        return {"reward model": sum(file.stat().st_size for file in files)}

    def _critic(self, recipe: Recipe) -> dict[str, dict[str, int]]:
        """Return the memory of the work of a reward model in this process."""
        critic = recipe.critic
        if critic.learned and critic.kind in READERS:
            found = self._reading(recipe)
            return {} if found is None else {"critic": {"working": found.peak}}
        if not critic.learned or critic.kind != "generative":
            return {}
        longest = max(self._writing(recipe)[1:], key=lambda one: one.peak)
        return {"critic": {"KV cache": longest.kept, "working": longest.peak - longest.kept}}

    def _writing(self, recipe: Recipe) -> tuple[int, Pass, Pass]:
        """Return the bytes of the writing reward model, its pass over prompts, and that of the last token."""
        path, rows = recipe.critic.model, self._critic_rows(recipe)
        prompt, tokens = self._critique_lengths(recipe)
        shared = Path(path).exists() and shares_base(recipe)
        own = Path(path).exists() and not shared  # else its weights are as [model] says
        key = ("critic", path if own else recipe.model.model_dump_json(), rows, prompt, tokens)
        if key not in self._passes:
            model = self._model(recipe) if shared else self._writer(recipe)
            self._passes[key] = model.weights.policy, *model.rollout(rows, prompt, tokens)
        found: tuple[int, Pass, Pass] = self._passes[key]
        return found

    def _critique_lengths(self, recipe: Recipe) -> tuple[int, int]:
        """Return the longest tokens before a critique, and of the critique."""
        path = recipe.critic.model
        longest = saved_format(path).max_new_tokens if Path(path).exists() else recipe.reward_model.max_new_tokens
        return self.lengths.longest + recipe.rollout.max_new_tokens, longest

    def _writer(self, recipe: Recipe, **trained: Any) -> TracedModel:
        """Return the critic's model without weights; one that is not made yet is like the policy.

        `trained`: settings of [model] for a training.
        """
        path, code = recipe.critic.model, recipe.model.trust_remote_code
        made = Path(path).exists()
        config = read_config(base_named_by(path) or path, trust_remote_code=code) if made else self.config
        saved_as = "auto" if made else dtype_to_train(recipe.model.dtype, recipe.model.lora_r)
        dtype = str(weights_type(config, saved_as)).removeprefix("torch.")
        settings = ModelConfig.model_validate({"value": "none", "dtype": dtype, **trained})
        return TracedModel(config, settings, device=self.device.kind)

    def _refresh(self, recipe: Recipe) -> dict[str, dict[str, int]]:
        """Return the memory of training the generative reward model of this process again; its weights are resident."""
        refresh, critic = recipe.refresh, recipe.critic
        if not refresh.active or not critic.learned:
            return {}
        if critic.kind != "generative":
            note(f'critic.kind = "{critic.kind}": the memory of its refresh is not in this plan', warning=True)
            return {}
        trained, update = self._learning(recipe)
        roles = update_roles(update, trained)
        buckets = {"gradient buckets of the refresh": trained} if self.processes > 1 else {}
        return {"refresh": {**roles, "optimizer states of the refresh": 2 * trained, **buckets}}

    def _learning(self, recipe: Recipe) -> tuple[int, Pass]:
        """Return the bytes that a refresh of the reward model trains, and the pass of one of its micro-batches.

        The loss is taken as that of the policy's update; an adapter as one of the policy's kind, of its own rank.
        """
        refresh, critic = recipe.refresh, recipe.critic
        prompt, tokens = self._critique_lengths(recipe)
        rows = refresh.batch_size // (self.processes * refresh.accumulate)
        checkpointing = recipe.model.gradient_checkpointing
        accumulated = refresh.accumulate > 1
        key = ("refresh", recipe.model.model_dump_json(), rows, prompt, tokens, accumulated)
        if key not in self._passes:
            note(f"tracing the refresh of {rows} rows{' with gradient checkpointing' if checkpointing else ''}")
            rank = _rank_of(critic.model) if Path(critic.model).exists() else recipe.model.lora_r
            writer = self._writer(recipe, lora_r=rank, gradient_checkpointing=checkpointing)
            update = writer.update(rows, prompt, tokens, entropy=False, accumulated=accumulated)
            self._passes[key] = writer.weights.trainable, update
        found: tuple[int, Pass] = self._passes[key]
        return found

    def _reading(self, recipe: Recipe) -> Pass | None:
        """Return the pass in which a critic that writes nothing reads responses; None without the base of a probe."""
        critic, rows = recipe.critic, self._critic_rows(recipe)
        key = ("reading", critic.kind, critic.model, rows, self.lengths.longest, recipe.rollout.max_new_tokens)
        if key not in self._passes:
            note(f"tracing the critic, which reads {rows} rows")
            sizes = {"prompt": self.lengths.longest, "rows": rows}
            self._passes[key] = trace_reading(recipe, self.config, device=self.device.kind, **sizes)
        found: Pass | None = self._passes[key]
        return found

    def _sampled_rows(self, recipe: Recipe) -> int:
        """Return the rows of one generate call of the rollout."""
        return min(recipe.rollout.rows_at_once, recipe.rollout.batch_size // self.processes)

    def _critic_rows(self, recipe: Recipe) -> int:
        """Return the responses that a reward model in this process reads, or the critiques that it decodes, at once."""
        if recipe.critic.kind in READERS:
            return rows_read(recipe, recipe.rollout.batch_size // self.processes)
        return min(recipe.rollout.rows_at_once, self._critiques(recipe))

    def _critiques(self, recipe: Recipe) -> int:
        """Return the critiques that a reward model in this process writes in a step."""
        path, votes = recipe.critic.model, recipe.critic.votes
        if votes is None:
            votes = saved_format(path).votes if Path(path).exists() else 1
        return recipe.rollout.batch_size // self.processes * votes

    def _seconds(self, recipe: Recipe, prompts: Pass, decoding: Pass, score: Pass, update: Pass) -> dict[str, float]:
        """Return the seconds of one step by phase."""
        device, rollout, critic, refresh = self.device, recipe.rollout, recipe.critic, recipe.refresh
        scale = (self.lengths.mean + rollout.max_new_tokens) / (self.lengths.longest + rollout.max_new_tokens)
        share = rollout.batch_size // self.processes
        minibatch = share // recipe.ppo.minibatches
        found = {
            "rollout": device.seconds_of_decoding(
                self._model(recipe).weights.policy, prompts, decoding, share, rollout.max_new_tokens
            )
        }
        if critic.learned and critic.kind == "generative":
            tokens = self._critique_lengths(recipe)[1]
            found["critic"] = device.seconds_of_decoding(*self._writing(recipe), self._critiques(recipe), tokens)
        elif critic.learned and critic.kind in READERS and (reading := self._reading(recipe)):
            found["critic"] = device.seconds_of(reading, share, scale)
        found["score"] = device.seconds_of(score, share, scale)
        found["update"] = recipe.ppo.epochs * recipe.ppo.minibatches * device.seconds_of(update, minibatch, scale)
        if refresh.steps and critic.learned and critic.kind == "generative":
            due = sum(step <= recipe.run.steps for step in refresh.steps) / recipe.run.steps
            one = device.seconds_of(self._learning(recipe)[1], refresh.batch_size // self.processes, scale)
            found["refresh"] = due * refresh.train_steps * one
        return found


def _rank_of(directory: str) -> int:
    """Return the rank of a saved adapter; 0 for a whole model."""
    config = Path(directory) / ADAPTER_CONFIG
    return int(json.loads(config.read_bytes())["r"]) if config.exists() else 0


def overhead(kind: str, size: int) -> int:
    """Return the bytes that a process has beyond `size` bytes of tensors, on a "cpu" or "cuda" device."""
    return OVERHEAD[kind] + int(size * (FRAGMENTATION[kind] - 1))


def with_overhead(kind: str, roles: Mapping[str, int]) -> dict[str, int]:
    """Return bytes by role with those beyond the tensors as "other", without roles of no bytes."""
    return {name: size for name, size in {**roles, "other": overhead(kind, sum(roles.values()))}.items() if size}


def stronger(model: ModelConfig) -> Iterator[dict[str, Any]]:
    """Yield sets of settings that save more and more memory beside those of [model]."""
    settings: dict[str, Any] = {}
    yield dict(settings)
    if not model.gradient_checkpointing:
        settings["model.gradient_checkpointing"] = True
        yield dict(settings)
    if model.value == "model":
        settings["model.value"] = "trunk"
        yield dict(settings)
    if not model.lora_r:
        settings["model.lora_r"] = SMALLEST_LORA
        yield dict(settings)
    if model.dtype in ("auto", "float32"):
        settings["model.dtype"] = "bfloat16"
        yield dict(settings)


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """Return a recipe with settings changed, named as for `--set`."""
    for name, value in settings.items():
        section, key = name.split(".")
        changed = getattr(recipe, section).model_copy(update={key: value})
        recipe = recipe.model_copy(update={section: changed})
    return recipe


def recipe_examples(recipe: Recipe) -> Sequence[Example]:
    """Return the training prompts of a recipe.

    Raises:
        ConfigError: if it names none.
        DataError: if they cannot be read.
    """
    if not recipe.data.task and not recipe.data.train:
        raise ConfigError("[data] names neither a task nor a train file; set one of them")
    return run_examples(recipe).train


def number_of_prompts(recipe: Recipe) -> int:
    """Return the number of training prompts: of the recipe's file where it can be read, otherwise `data.examples`."""
    data = recipe.data
    if not data.train:
        return data.examples
    try:
        return len(recipe_examples(recipe))
    except DataError as error:
        note(f"{error}; planned with data.examples = {data.examples} prompts", warning=True)
        return data.examples


@dataclass(frozen=True)
class Money:
    """Estimated tokens and US dollars of annotation with the prices of [annotate].

    Attributes:
        responses: number of responses.
        prompt_tokens: of all requests.
        answer_tokens: of all answers.
        cost: US dollars.
    """

    responses: int
    prompt_tokens: int
    answer_tokens: int
    cost: float


def annotation_cost(recipe: Recipe, lengths: Lengths, *, responses: int, answer_tokens: int) -> Money:
    """Return the price of critiques of `responses` responses.

    A request holds the template's instructions (4 characters per token), a prompt of mean length and a response of the
    length limit.
    """
    from text2grad.critics.servers import Spending, Template

    settings = recipe.annotate
    empty = Template(settings.template, settings.reasoning).messages(Example("x"), "")[0]["content"]
    request = len(empty) // 4 + round(lengths.mean) + recipe.rollout.max_new_tokens
    prices = Spending(input_price=settings.input_price, output_price=settings.output_price)
    total = responses * request, responses * answer_tokens
    return Money(responses, *total, prices.cost(*total))


def update_roles(update: Pass, gradients: int) -> dict[str, int]:
    """Split the peak of forward and backward; gradients grow while activations go, unless earlier ones exist."""
    peak = update.peak if update.accumulated else max(update.peak, gradients)
    activations = min(max(update.kept, 0), peak)
    share = gradients if update.accumulated else min(gradients, peak - activations)
    return {"activations": activations, "gradients": share, "working": max(peak - activations - share, 0)}


def gigabytes(size: float) -> str:
    """Return bytes as text in GB (10⁹ bytes).

    Example:
        >>> gigabytes(21_300_000_000), gigabytes(4_200_000)
        ('21.3 GB', '0.004 GB')
    """
    return (
        f"{size / GB:.1f} GB"
        if size >= 10 * GB
        else f"{size / GB:.2f} GB"
        if size >= GB / 10
        else f"{size / GB:.3f} GB"
    )
