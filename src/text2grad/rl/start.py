"""A run before its first step: inputs are read and checked, models and optimizers are made.

Whatever can be refused is refused here, before any work. `PreparedRun` holds the parts; `trainer.py` moves them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import lcm
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from text2grad.align import AlignSettings, resolve
from text2grad.config import ModelConfig, Recipe, check_directory, check_world_size, open_run
from text2grad.errors import ConfigError, ModelError
from text2grad.feedback import Critic, check_examples, digest_of_examples, load_callable, without_thoughts
from text2grad.models import (
    POLICY_ADAPTER,
    PolicyWithValue,
    Reference,
    Scores,
    TokenBatch,
    VLLMSampler,
    call_end,
    can_share_prompts,
    check_adapter,
    check_batch_size,
    check_engine,
    check_model,
    collate,
    context_of,
    enable_checkpointing,
    fitting_prompts,
    format_of,
    half_precision,
    is_peft,
    load_to_train,
    on_cpu,
    padding_id,
    policy_config,
    stop_ids,
    with_chat_template,
    with_lora,
)
from text2grad.progress import note
from text2grad.rl.arguments import examples_of, settings_of, tokenizer_of
from text2grad.rl.callbacks import Callbacks
from text2grad.rl.metrics import FailureRate
from text2grad.rl.optimizers import Optimizers
from text2grad.rl.piece_sizes import PieceSizes
from text2grad.rl.ppo import KLController, TokenMean
from text2grad.rl.refreshing import CriticRefresher, FixedCritic
from text2grad.rl.run_log import RunLog
from text2grad.rl.scoring import score_batch
from text2grad.rl.sharding import check_launch, sharding_of
from text2grad.rl.step import Instrument, phase
from text2grad.rl.toolbox import Toolbox, merged
from text2grad.rl.trackers import RunTracker, check_tracker
from text2grad.rl.update import MinibatchGradient
from text2grad.types import Critique, Example, Rollout

SECTIONS = tuple(name for name in Recipe.model_fields if name not in ("sft", "annotate", "reward_model", "quickstart"))
"""The sections of a recipe whose settings decide the result; the others belong to the commands before `train`."""


class PreparedRun:
    """The checked inputs and the parts of a run.

    Attributes:
        recipe: the settings.
        examples: the prompts x, and `prompt_ids` their token ids; likewise `held_out` and `held_out_ids`.
        model: policy and value function; `reference` is the frozen policy of the KL term.
        optimizers: the optimizers of policy and value function.
        gradient: accumulates the gradient of one minibatch.
        teacher: name → weight of the self-teacher of `ppo.credit`, where it has weights of its own; else empty.
        kl: β of the KL term.
        sizes: the sizes of the pieces of a step that fit into memory.
        log: the growing files of the run; `tracker` sends their numbers to TensorBoard, wandb or trackio.
        vllm: samples the responses, or None where the policy itself does.
    """

    sections: Sequence[str] = SECTIONS
    instruments: Sequence[Instrument] = ()
    step = 0

    def __init__(  # noqa: PLR0913  as TRL's trainers
        self,
        model: Any,
        critic: Critic | str,
        train_dataset: Any,
        args: Recipe | Mapping[str, Any] | str | Path | None = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        callbacks: Sequence[Any] | None = None,
        *,
        refresher: CriticRefresher | None = None,
        resume: bool = False,
        tools: Sequence[Callable[..., Any]] = (),
        environment_factory: Any = None,
        **settings: Any,
    ) -> None:
        """Check everything that can be checked before work starts.

        Args:
            model: a Hugging Face causal language model, with or without peft adapter, or the name or directory of one.
            critic: maps (examples, responses) to critiques, see `text2grad.feedback.ask`; or "module:name" of one.
            train_dataset: the prompts x: a JSONL file, a list of examples, prompts or dicts with "prompt", or a
                `datasets.Dataset`.
            args: a recipe, the path of one, or a dict of settings; None takes the defaults.
            eval_dataset: held-out prompts, given as `train_dataset` is; `data.eval_every` says when they are evaluated.
            processing_class: the policy's tokenizer; None loads the model's own.
            callbacks: transformers' `TrainerCallback`s.
            refresher: audits and retrains a learned critic, where `[refresh]` asks for it.
            resume: continue the run in `run.out`.
            tools: functions that the policy may call, as TRL takes them: with types and a docstring; see `toolbox`.
            environment_factory: makes an environment for each response, such as a class.
            settings: further settings by name, such as `steps=100` or `lr=1e-5`.

        Raises:
            ConfigError: if settings are wrong or do not fit together, or the directory holds another run.
            DataError: if there are no prompts, or a prompt leaves no room for a response.
            ModelError: if the model or tokenizer cannot play its role.
        """
        self.recipe = recipe = settings_of(args, settings)
        self.callbacks = Callbacks(self, callbacks or ())  # they reset accelerate's state, so the accelerator follows
        examples = examples_of(train_dataset, "train_dataset")
        held_out = examples_of(eval_dataset, "eval_dataset") if eval_dataset else []
        self.toolbox = Toolbox(tools, environment_factory) if tools or environment_factory else None
        self.said = dict[int, Critique]()
        self.critic = load_callable(critic, "critic") if isinstance(critic, str) else critic
        self.delta_settings = AlignSettings.of(recipe.reward)
        resolve(recipe.reward.weighting)  # raises now if its tagger is not installed
        if recipe.run.threads:
            torch.set_num_threads(recipe.run.threads)
        set_seed(recipe.run.seed)  # also of `random` and NumPy, for critics that use them
        self.accelerator = make_accelerator(recipe)
        self.sharding = sharding_of(self.accelerator)
        self._refuse_with_shards(held_out)
        self.tracker = RunTracker(self.accelerator, recipe)
        if recipe.refresh.asks and refresher is None:
            raise ConfigError(
                "[refresh] asks to audit or retrain the critic, and the trainer has no refresher: pass "
                "Text2GradTrainer(..., refresher=text2grad.Refresher(...)), or leave [refresh] out"
            )
        if (refresh := recipe.refresh).active:
            check_batch_size("refresh", refresh.batch_size, refresh.accumulate, self.accelerator.num_processes)
        self.refresher = refresher or FixedCritic()
        self.directory = Path(recipe.run.out)
        check_directory(self.directory, resume=resume)
        tokenizer = tokenizer_of(model, recipe.model) if processing_class is None else processing_class
        self.tokenizer = with_chat_template(tokenizer, recipe)
        if self.toolbox is not None:
            examples, held_out = (self._with_tools(rows) for rows in (examples, held_out))
            self.call_end = call_end(self.tokenizer, examples[0])
        self._fit_prompts(model, examples, held_out)
        policy = prepare_policy(model, recipe.model)
        self.eos_ids = stop_ids(
            policy, self.tokenizer, recipe.rollout.eos_token_ids, prompt_format=recipe.model.prompt_format
        )
        if self.toolbox is not None and not recipe.rollout.eos_token_ids:
            self.eos_ids += tuple(self.tokenizer(self.call_end, add_special_tokens=False)["input_ids"][-1:])
        self.pad_id = padding_id(policy, self.tokenizer, self.eos_ids)
        self._open(resume=resume)
        self._build(policy if self.sharding else policy.to(self.accelerator.device))
        self.begin()

    def begin(self) -> None:
        """Begin, when all parts are built."""

    def _with_tools(self, examples: Sequence[Example]) -> list[Example]:
        """Return examples whose prompts have the schemas of the tools; refuse what tools cannot work with."""
        if self.recipe.rollout.engine != "hf" and self.recipe.engine.tensor_parallel_size > 1:
            raise ConfigError("tools need engine.tensor_parallel_size = 1: processes have different numbers of calls")
        if format_of(self.tokenizer, self.recipe.model.prompt_format) == "plain":
            raise ConfigError("tools need prompts in a chat template: take a chat model, and no plain prompt_format")
        tools = {"tools": self.toolbox.schemas if self.toolbox else []}
        return [replace(example, meta={**example.meta, **tools}) for example in examples]

    def with_environments(self, critiques: Sequence[Critique]) -> list[Critique]:
        """Return critiques of the responses that were sampled last, each merged with what its environment said."""
        said = [self.said[row] for row in sorted(self.said)]
        return [merged(*pair) for pair in zip(critiques, said, strict=True)] if said else list(critiques)

    def _refuse_with_shards(self, held_out: Sequence[Example]) -> None:
        """Refuse settings that need whole weights or gradients, or passes of one process alone."""
        processes = self.accelerator.num_processes
        ppo, sampler = self.recipe.ppo, self.recipe.rollout.engine
        if self.sharding is not None and sampler != "hf":
            raise ConfigError(
                f'rollout.engine = "{sampler}" takes whole weights at each step, and FSDP has them in shards; choose '
                'rollout.engine = "hf", or launch plain data parallelism'
            )
        if self.sharding is not None and ppo.has_own_teacher:
            raise ConfigError(
                f"ppo.teacher_update_rate = {ppo.teacher_update_rate} needs whole weights of a teacher, and FSDP has "
                "shards: set it to 1.0, with which the policy is the teacher, or launch plain data parallelism"
            )
        if self.sharding is not None and 0 < len(held_out) < processes:
            raise ConfigError(
                f"{len(held_out)} held-out prompts cannot be shared by {processes} processes; set data.eval_examples "
                f"to {processes} or more, or to 0"
            )

    def _fit_prompts(self, model: Any, examples: Sequence[Example], held_out: Sequence[Example]) -> None:
        """Encode the prompts; refuse or drop those that leave no room for a response, before weights are loaded."""
        recipe, code = self.recipe, self.recipe.model.trust_remote_code
        of_model = policy_config(str(model), trust_remote_code=code) if isinstance(model, str | Path) else model
        fitting = partial(
            fitting_prompts,
            of_model,
            self.tokenizer,
            prompt_format=recipe.model.prompt_format,
            max_new_tokens=recipe.rollout.max_new_tokens,
            too_long=recipe.data.too_long,
        )
        self.examples, self.prompt_ids = fitting(examples)
        self.held_out, self.held_out_ids = fitting(held_out) if held_out else ([], [])
        check_examples(self.critic, [*self.examples, *self.held_out])
        self.longest_prompt = max(map(len, self.prompt_ids))
        self.asking = recipe.critic.asking(self.tokenizer, [*self.prompt_ids, *self.held_out_ids])
        if recipe.rollout.engine != "hf":
            check_engine(recipe.engine, self.accelerator, model=model)

    def as_seen(self, records: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the responses of records as critics see them."""
        return [without_thoughts(record["response"], self.asking["prompt_end"]) for record in records]

    def _open(self, *, resume: bool) -> None:
        """Create the run's directory, or check that it holds this run."""
        if self.accelerator.is_main_process:
            held_out = {"held-out prompts": digest_of_examples(self.held_out)} if self.held_out else {}
            open_run(
                self.directory,
                self.recipe,
                resume=resume,
                processes=self.accelerator.num_processes,
                sections=self.sections,
                inputs={"prompts": digest_of_examples(self.examples), **held_out},
                fixed_steps=self.recipe.optim.schedule != "constant",
            )
        self.accelerator.wait_for_everyone()
        self.log = RunLog(self.directory)

    def _build(self, policy: Any) -> None:
        """Make reference, value function, optimizers and controllers."""
        recipe, ppo = self.recipe, self.recipe.ppo
        if self.accelerator.is_main_process:
            for warning in _warnings_of(policy, recipe):
                note(warning, warning=True)
        self.reference = Reference(policy)
        self.model = PolicyWithValue(policy, value=recipe.model.value)
        self._place(policy)
        self.model.train(recipe.model.gradient_checkpointing)
        self.share_prompts = can_share_prompts(policy)
        if not self.model.policy_parameters():
            raise ModelError(
                f"no weight of the policy ({type(policy).__name__}) can be trained: requires_grad is False for all of "
                "them. Load a peft adapter with PeftModel.from_pretrained(..., is_trainable=True)"
            )
        self.trainable = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.teacher = {n: p.detach().clone() for n, p in self.trainable.items() if ppo.has_own_teacher}
        self.optimizers = Optimizers(
            self.model.policy_parameters(), self.model.value_parameters(), recipe.optim, total_steps=recipe.run.steps
        )
        self.kl = KLController(ppo.beta, ppo.target_kl)
        self.failures = FailureRate(recipe.critic.max_failure_rate, recipe.rollout.batch_size)
        self.sizes = PieceSizes(
            micro_batch_tokens=ppo.micro_batch_tokens,
            rows_at_once=recipe.rollout.rows_at_once,
            may_halve=self.accelerator.num_processes == 1,
            largest=self.sharding.largest if self.sharding else None,
        )
        self.gradient = MinibatchGradient(
            self.model if self.sharding else self.accelerator.prepare_model(self.model),
            self.accelerator,
            ppo,
            temperature=recipe.rollout.temperature,
            loss_mean=TokenMean(ppo.loss_mean, recipe.rollout.max_new_tokens),
            sizes=self.sizes,
            half_precision=self.sharding.half_precision if self.sharding else half_precision(policy),
        )
        self.vllm: VLLMSampler | None = None
        if recipe.rollout.engine != "hf":
            policy_in = (policy, self.tokenizer, self.accelerator, recipe)
            more = (2 * recipe.rollout.max_turns - 1) * recipe.rollout.max_new_tokens if self.toolbox else 0
            longest = int(min(self.longest_prompt + more, context_of(policy) - recipe.rollout.max_new_tokens))
            self.vllm = VLLMSampler(*policy_in, eos_ids=self.eos_ids, longest_prompt=longest)

    def _place(self, policy: Any) -> None:
        """Move the models to the device, or shard them over the processes."""
        if self.recipe.model.gradient_checkpointing:
            enable_checkpointing(policy)
            if self.model.value_trunk is not None:
                enable_checkpointing(self.model.value_trunk)
        if self.sharding is None:
            self.model.to(self.accelerator.device)
            if self.accelerator.num_processes > 1 and self.accelerator.is_main_process:
                note(f"{self.accelerator.num_processes} processes, each with whole models (plain data parallelism)")
        else:
            self.sharding.shard(self.model, self.reference)
        with self.whole_policy() as whole:
            check_model(whole)

    @contextmanager
    def whole_policy(self) -> Iterator[Any]:
        """Yield the policy with whole weights, to sample from; sharded weights are gathered on all devices."""
        with nullcontext() if self.sharding is None else self.sharding.gathered(self.model):
            yield self.model.policy

    @torch.no_grad()
    def move_teacher(self) -> None:
        """Move the weights of a teacher of its own towards the policy's: θ_T ← θ_T + rate (θ − θ_T)."""
        for name, weight in self.teacher.items():
            weight.lerp_(self.trainable[name].detach(), self.recipe.ppo.teacher_update_rate)

    def collate(self, rollouts: Sequence[Rollout]) -> TokenBatch:
        """Return rollouts as a batch on the run's device; responses to one prompt share it where the model can."""
        device = self.accelerator.device
        return collate(rollouts, pad_id=self.pad_id, device=device, share_prompts=self.share_prompts)

    @phase("score")
    def score(self, batch: TokenBatch, *, kl: Literal["k1", "full"], temperature: float | None = None) -> Scores:
        """Return the scores of a batch at a temperature, None for that of the rollouts; see `score_batch`."""
        temperature = self.recipe.rollout.temperature if temperature is None else temperature
        scores = score_batch(self.model, self.reference, batch, self.sizes, temperature=temperature, kl=kl)
        if self.sharding is not None:
            self.sharding.reshard()  # frees the weights that the output layers gathered
        return scores


def _warnings_of(policy: Any, recipe: Recipe) -> Iterator[str]:
    """Yield warnings of settings with which a run trains its policy hardly, or not as most people expect."""
    if not is_peft(policy) and half_precision(policy):
        yield (
            "all weights are trained in 16 bits: most of an AdamW update is rounded away (bfloat16), or the update "
            'is far too large (float16); set model.dtype = "float32", or model.lora_r to train an adapter'
        )
    warmup = recipe.optim.value_warmup_steps
    if recipe.model.value != "none" and warmup >= recipe.run.steps:
        yield (
            f"optim.value_warmup_steps = {warmup} leaves none of the {recipe.run.steps} steps to the policy, which "
            "stays as it is; lower it, or raise run.steps"
        )


def prepare_policy(model: Any, settings: ModelConfig) -> Any:
    """Return the policy, loaded where a path was given, with a fresh LoRA adapter where the settings ask for one.

    Raises:
        ConfigError: if its adapters have other names, or as `load_to_train`.
        ModelError: if the path holds no model that can be loaded, or the model has an adapter that could not be.
    """
    if isinstance(model, str | Path):
        model = load_to_train(str(model), settings)
    if is_peft(model) and POLICY_ADAPTER not in model.peft_config:
        raise ConfigError(
            f"the policy's adapters are named {', '.join(map(repr, model.peft_config))}, but text2grad trains and "
            f"saves the one named {POLICY_ADAPTER!r}; load it with adapter_name={POLICY_ADAPTER!r}"
        )
    if is_peft(model):
        check_adapter(model)
    if settings.lora_r and not is_peft(model):
        model = with_lora(
            model,
            r=settings.lora_r,
            alpha=settings.lora_alpha,
            targets=settings.lora_targets,
            value_adapter=settings.value == "adapter",
        )
    return model


def make_accelerator(recipe: Recipe) -> Accelerator:
    """Return accelerate's view of the processes and trackers of a run.

    Raises:
        ConfigError: if the tracker is not installed, the launcher started more processes than accelerate sees, or the
            batch cannot be shared evenly.
    """
    check_tracker(recipe.run.tracker)
    check_launch()
    # No autocast: the type of the weights alone decides, so that old and new passes of a batch compute the same.
    accelerator = Accelerator(
        mixed_precision="no",
        log_with=None if recipe.run.tracker == "none" else recipe.run.tracker,
        project_dir=recipe.run.out,
        cpu=on_cpu(),
    )
    check_world_size(accelerator.num_processes)
    check_shares(recipe, accelerator.num_processes)
    return accelerator


def check_shares(recipe: Recipe, processes: int) -> None:
    """Refuse a batch that processes, groups and minibatches cannot share evenly.

    Raises:
        ConfigError: naming the divisor.
    """
    size, group, minibatches = recipe.rollout.batch_size, recipe.rollout.group_size, recipe.ppo.minibatches
    shares = processes * lcm(group, minibatches)
    if size % shares:
        raise ConfigError(
            f"rollout.batch_size = {size} cannot be shared evenly by {processes} processes, in whole groups of "
            f"rollout.group_size = {group} and by ppo.minibatches = {minibatches}; choose a multiple of {shares}"
        )
