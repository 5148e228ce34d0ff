"""Memory and time of a step on N GPUs that share a model, by formulas.

`text2grad train RECIPE --dry-run` follows the step's own code on one process; that takes minutes for a large model, and
knows no other engine. The formulas take microseconds, and `make_scale.py` compares them with every measured peak. They
hold for dense decoders with gated MLPs (Llama, Qwen, Mistral).

Dimension key: N GPUs, P parameters, L layers, H hidden size, I intermediate size, V vocabulary, S tokens of a row, t
tokens of a micro-batch on one GPU. Bytes are bytes of one GPU; seconds are those of one step.
"""

import math
from dataclasses import dataclass
from typing import Literal

from text2grad.runs.dry_run.devices import GB, LOST, OVERHEAD

CALL_S = 8e-6
"""Assumed seconds for PyTorch to start one operation on a GPU; decoding is often limited by it."""
BUS = 300e9
"""Assumed bytes per second at which all GPUs gather a tensor together (NCCL's bus bandwidth, 8 NICs of 400 Gb/s)."""
COLLECTIVE_S = 20e-6
"""Assumed seconds of a small all-reduce, of which tensor parallelism needs two per layer and token."""
DECODING_CALLS = 129
"""Operations of a layer for one new token, traced."""
TILE = 16_384
VLLM_ROWS, OWN_ROWS = 256, 64
"""Rows that decode at once: in one vLLM engine, and in our sampler (`rollout.rows_at_once`)."""
ENGINE_WEIGHTS = 40 * 10**9
"""Most bytes of vLLM's weights on one GPU; larger models are split by tensor parallelism."""

ACTIVATIONS = {
    ("float32", False): (40, 16),
    ("float32", True): (32, 16),
    ("bfloat16", False): (24, 8),
    ("bfloat16", True): (40, 10),  # adapters compute in fp32 on copies of their inputs
}
"""Bytes that a layer keeps for its backward pass, per token and H and I; by type and whether adapters are trained."""


@dataclass(frozen=True)
class GPU:
    """Memory and rates of a GPU.

    Attributes:
        memory: bytes.
        flops: bf16 products with fp32 sums per second, of which training is assumed to reach the share `mfu`.
        bandwidth: bytes per second of its memory.
        call_s: seconds to start one operation.
        mfu: share of `flops`.
    """

    memory: int
    flops: float
    bandwidth: float
    call_s: float = CALL_S
    mfu: float = 0.4


H100 = GPU(80 * GB, 989e12, 3_350e9)
"""H100 SXM, by NVIDIA's data sheet."""


@dataclass(frozen=True)
class Decoder:
    """The sizes of a language model.

    Attributes:
        name: for tables.
        layers: L.
        hidden: H.
        intermediate: I.
        keys: width of all key heads together.
        vocabulary: V.
        tied: True if the output layer is the embedding.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    keys: int
    vocabulary: int
    tied: bool = False

    @property
    def layer(self) -> int:
        """Parameters of one layer: attention, gated MLP, two norms."""
        attention = 2 * self.hidden * (self.hidden + self.keys)
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def ends(self) -> int:
        """Parameters of embedding, output layer and last norm."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden + self.hidden

    @property
    def parameters(self) -> int:
        """P."""
        return self.layers * self.layer + self.ends

    def adapter(self, rank: int) -> int:
        """Parameters of LoRA adapters on all linear layers."""
        attention = 2 * (2 * self.hidden) + 2 * (self.hidden + self.keys)
        return self.layers * rank * (attention + 3 * (self.hidden + self.intermediate))

    def cache(self, tokens: int, width: int = 2) -> int:
        """Bytes of keys and values of some tokens."""
        return 2 * self.layers * self.keys * width * tokens

    def forward(self, tokens: float, row: int) -> float:
        """Operations of a forward pass through the layers, in rows of `row` tokens."""
        return tokens * self.layers * (2 * self.layer + 2 * row * self.hidden)

    def head(self, tokens: float) -> float:
        """Operations of the output layer."""
        return 2 * tokens * self.vocabulary * self.hidden


LLAMAS = (
    Decoder("8B", 32, 4_096, 14_336, 1_024, 128_256),
    Decoder("70B", 80, 8_192, 28_672, 1_024, 128_256),
    Decoder("405B", 126, 16_384, 53_248, 1_024, 128_256),
)
"""Llama 3.1."""


@dataclass(frozen=True)
class Work:
    """One step: rows of prompt and response, and the tokens of a micro-batch on one GPU."""

    rows: int = 1_024
    prompt: int = 512
    response: int = 512
    micro_batch_tokens: int = 4_096

    @property
    def row(self) -> int:
        """S."""
        return self.prompt + self.response


@dataclass(frozen=True)
class Engine:
    """A training loop, all models fully sharded (FSDP 2, ZeRO 3), with gradient checkpointing.

    Attributes:
        name: for tables.
        rank: of the adapters; 0 trains all weights.
        weights: bytes of a weight of the policy in its shard; moments and gradients of trained weights have 4 each.
        reference: bytes of a weight of the reference; 0 where adapters are switched off instead.
        value_model: True if the value function is a second model of this size, trained in full.
        scoring: forward passes beside the update.
        sampler: "own" gathers whole weights on every GPU; "vllm" splits them over as few GPUs as hold them.
        logits: "tiles", or all logits at once, of the "response" or of "all" tokens.
    """

    name: str
    rank: int
    weights: int
    reference: int
    value_model: bool
    scoring: int
    sampler: Literal["own", "vllm"]
    logits: Literal["tiles", "response", "all"]


ENGINES = (
    Engine("text2grad, LoRA", 16, 2, 0, False, 2, "own", "tiles"),
    Engine("text2grad, full", 0, 4, 4, False, 2, "own", "tiles"),
    Engine("TRL, `GRPOTrainer`", 0, 4, 4, False, 1, "vllm", "response"),
    Engine("verl, `SpanAgentLoop`", 0, 4, 2, True, 3, "vllm", "all"),
)


def overhead(kind: str, size: int) -> int:
    """Return the bytes that a process has beyond `size` bytes of tensors, on a "cpu" or "cuda" device."""
    return OVERHEAD[kind] + int(size * LOST[kind])


def sharded(size: float, processes: int) -> int:
    """Return the bytes of one process's shard."""
    return math.ceil(size / processes)


def gathered(layer: float, ends: float) -> int:
    """Return the bytes of whole weights in a pass: two layers, of which the second is on its way, and the ends."""
    return round(2 * layer + ends)


def activations(
    model: Decoder, tokens: int, *, dtype: str = "bfloat16", adapters: bool = False, checkpointing: bool = True
) -> int:
    """Return the bytes that a forward pass keeps for its backward pass, and those of the layer that is recomputed."""
    of_hidden, of_intermediate = ACTIVATIONS[dtype, adapters]
    layer = tokens * (of_hidden * model.hidden + of_intermediate * model.intermediate)
    inputs = tokens * model.layers * model.hidden * (4 if dtype == "float32" else 2)
    return inputs + layer if checkpointing else model.layers * layer


def one_process(
    model: Decoder,
    tokens: int,
    *,
    rank: int = 0,
    value: Literal["trunk", "adapter", "model"] = "trunk",
    checkpointing: bool = False,
    tile: int = 1_024,
) -> dict[str, int]:
    """Return the bytes of an update of one process by role: fp32, gradients accumulated, half of it responses."""
    adapters = model.adapter(rank) * (2 if value == "adapter" else 1) if rank else 0
    own_value = model.parameters - (0 if model.tied else model.vocabulary * model.hidden) if value == "model" else 0
    trained = adapters or model.parameters + own_value
    passes = 1 if value == "trunk" else 2
    kept = passes * activations(model, tokens, dtype="float32", adapters=bool(rank), checkpointing=checkpointing)
    head = 0 if rank else 4 * model.vocabulary * model.hidden
    return {
        "policy": 4 * (model.parameters + adapters),
        "reference": 0 if rank else 4 * model.parameters,
        "value function": 4 * own_value,
        "optimizer states": 8 * trained,
        "gradients": 4 * trained,
        "activations": kept,
        "working": 4 * tokens * (3 * model.intermediate + 4 * model.hidden) + 12 * tile * tokens // 2 + head,
    }


def tensor_parallel(model: Decoder, processes: int) -> int:
    """Return the GPUs of one vLLM engine: the smallest power of two whose parts are small enough."""
    parts = 1
    while 2 * model.parameters / parts > ENGINE_WEIGHTS and 2 * parts <= processes:
        parts *= 2
    return parts


def memory(model: Decoder, engine: Engine, processes: int, work: Work) -> dict[str, dict[str, int]]:
    """Return the bytes of one GPU by phase and role, without what CUDA and its allocator take."""
    parameters, tokens = model.parameters, work.micro_batch_tokens
    trained = model.adapter(engine.rank) if engine.rank else parameters
    models = 2 if engine.value_model else 1
    frozen = 2 * parameters if engine.rank else 0
    held = frozen + 4 * trained if engine.rank else engine.weights * parameters * models
    resident = {
        "weights": sharded(held, processes),
        "reference": sharded(engine.reference * parameters, processes),
        "optimizer states": sharded(8 * trained * models, processes),
    }
    parts = 1 if engine.sampler == "own" else tensor_parallel(model, processes)
    rows = min(work.rows * parts // processes, OWN_ROWS if engine.sampler == "own" else VLLM_ROWS)
    rollout = {
        "weights to sample": 2 * parameters // parts,
        "KV cache": model.cache(max(rows, 1) * work.row) // min(parts, 8),
    }
    gradients = 0 if engine.rank else 2 * (model.layer + model.ends)
    response = tokens * work.response // work.row
    logits = {
        "tiles": 12 * TILE * response + (0 if engine.rank else 4 * model.vocabulary * model.hidden),
        "response": 6 * response * model.vocabulary,
        "all": 6 * tokens * model.vocabulary,
    }[engine.logits]
    update = {
        "gradients": sharded(4 * trained, processes),
        "gathered weights": gathered(2 * model.layer, 2 * model.ends) + gradients,
        "activations": activations(model, tokens, adapters=bool(engine.rank)),
        "logits": logits,
    }
    return {"rollout": {**resident, **rollout}, "update": {**resident, **update}}


def seconds(model: Decoder, engine: Engine, processes: int, work: Work, device: GPU = H100) -> dict[str, float]:
    """Return the seconds of one step by phase, one epoch over its rows, without the critic."""
    parameters, tokens = model.parameters, work.rows * work.row
    rate = processes * device.flops * device.mfu
    with_head = tokens if engine.logits == "all" else work.rows * work.response
    forward = model.forward(tokens, work.row) + model.head(with_head)
    pieces = math.ceil(tokens / processes / work.micro_batch_tokens)
    gather = 2 * parameters / BUS * pieces * (processes > 1)
    backward = 1 if engine.rank else 2  # adapters need no gradient of the weights
    update = (2 + backward) * forward  # forward, again in the backward pass, backward
    reduce = 0 if engine.rank else gather
    trained = 2 if engine.value_model else 1
    return {
        "rollout": _rollout(model, engine, processes, work, device),
        "score": engine.scoring * max(forward / rate, gather),
        "update": trained * max(update / rate, 2 * gather + reduce),
    }


def _rollout(model: Decoder, engine: Engine, processes: int, work: Work, device: GPU) -> float:
    """Return the seconds of prompts and decoding."""
    prompts = model.forward(work.rows * work.prompt, work.prompt) / (processes * device.flops * device.mfu)
    own = engine.sampler == "own"
    parts = 1 if own else tensor_parallel(model, processes)
    rows = max(work.rows * parts // processes, 1)
    at_once = min(rows, OWN_ROWS if own else VLLM_ROWS)
    cache = model.cache(at_once * (work.prompt + work.response // 2))
    reading = (2 * model.parameters + cache) / parts / device.bandwidth
    products = at_once * 2 * model.parameters / (parts * device.flops * device.mfu)
    start = DECODING_CALLS * model.layers * CALL_S if own else 0.0
    waiting = 2 * model.layers * COLLECTIVE_S if parts > 1 else 0.0
    whole = 2 * model.parameters / BUS * (processes > 1)  # gathered, or handed to vLLM, once
    return prompts + whole + math.ceil(rows / at_once) * work.response * (max(reading, products, start) + waiting)
