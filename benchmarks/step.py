"""Seconds and peak memory of one policy step: rollout, critic, log-probs, update.

    python benchmarks/step.py                         # both vocabularies, ours and the textbook method, JSON to stdout
    python benchmarks/step.py --vocab 8192 --json step.json
    python benchmarks/step.py --peer trl --vocab 8192 --sizes 256x4 512x8 768x12 --threads 1 2
    python benchmarks/step.py --work long --peer trl --peer-rows 16 --vocab 32000 --sizes 768x12 --threads 1 2
    python benchmarks/step.py --work turns --vocab 8192 --repeats 5 --json evidence/results/step_turns.json

Setting ("short"): batch 16, prompt 64, response 64, 4 PPO epochs, LoRA r 16 on the query and value projections (as the
published reference), Llama of hidden size 256 with 4 layers, one thread, fp32. "long": batch 32 in groups of 8 to a
prompt, prompt 512, response 128, 2 epochs. Each measurement runs in a process of its own, so that its peak memory is
not mixed with others. `--peer trl` measures TRL's `GRPOTrainer` on the same work and with the same products of
matrices, without a value function; its seconds hold generation, scoring and update, and `times_as_fast` and
`part_of_memory` compare the two. `processor_s` is the processor time of a step of all threads, which other programs on
the machine disturb less. Figures are medians of the repeats after a first step. "textbook" makes the same passes with
logits of the whole sequence, log_softmax and gather.

"turns": whole steps of the trainer on trajectories of 4 turns, the first three of which call a tool that answers at
once. `times_as_long` is relative to "single" responses to the same prompts with as many tokens in all; "sampled" are
responses with as many sampled tokens, whose prompts hold what the tool says, and "anew" turns without caches. What
rows say is prescribed, at the cost of sampling it.

    matrix_rate_share = FLOP of all matrix products in log-probs and update / their seconds / matrix rate,

where the matrix rate is the FLOP/s of a large fp32 product in the same process; products of attention count, half where
it is causal.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple


class Work(NamedTuple):
    """What a step does: responses, responses to a prompt, tokens of prompts and responses, passes of the update."""

    batch: int
    group: int
    prompt: int
    response: int
    epochs: int


WORK = {
    "short": Work(16, 1, 64, 64, 4),
    "long": Work(32, 8, 512, 128, 2),
    "tiny": Work(8, 4, 160, 8, 2),
    "turns": Work(16, 4, 64, 256, 4),
}
SIZES = {"256x4": (256, 688, 4, 4), "512x8": (512, 1_376, 8, 8), "768x12": (768, 2_048, 12, 12)}
"""Hidden size, intermediate size, layers, heads."""

TURNS, TOLD = 4, 14  # words of a result of the tool
TALKS = ("single", "sampled", "turns", "anew")
CALL = '{"name": "look", "arguments": {"place": "', '"}}'
ROLES = "<user>", "<assistant>", "<tool>"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}"
    "{% if m.role == 'assistant' %}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def build(vocab: int, targets: Any, size: str = "256x4", *, positions: int = 1024) -> Any:
    """Return a Llama with a LoRA adapter, in evaluation mode."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from text2grad.models.adapters import with_lora

    torch.manual_seed(0)
    hidden, intermediate, layers, heads = SIZES[size]
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
    )
    return with_lora(LlamaForCausalLM(config), r=16, alpha=32, targets=targets).eval()


def matrix_rate() -> float:
    """Return FLOP/s of a large fp32 matrix product on this thread."""
    import torch

    a, b = torch.randn(1024, 1024), torch.randn(1024, 8192)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return 2 * 1024 * 1024 * 8192 / min(times)


class Step:
    """One step of the training loop, phase by phase."""

    def __init__(
        self, policy: Any, vocab: int, kl: Any, micro_batch_tokens: int = 4096, work: Work = WORK["short"]
    ) -> None:
        """Make models, optimizers and prompts."""
        from accelerate import Accelerator

        from text2grad.config.policy import OptimConfig, PPOConfig
        from text2grad.models.policy import PolicyWithValue, Reference
        from text2grad.rl.optimizers import Optimizers
        from text2grad.rl.piece_sizes import PieceSizes
        from text2grad.rl.update import MinibatchGradient

        self.policy, self.vocab, self.kl, self.work = policy, vocab, kl, work
        self.model, self.reference = PolicyWithValue(policy, value="trunk"), Reference(policy)
        optimizers = Optimizers(
            self.model.policy_parameters(),
            self.model.value_parameters(),
            OptimConfig(lr=1e-5),
            total_steps=9,
        )
        optimizers.begin(0)
        self.optimizers, self.config = optimizers, PPOConfig(epochs=work.epochs, micro_batch_tokens=micro_batch_tokens)
        self.gradient = MinibatchGradient(
            self.model,
            Accelerator(cpu=True),
            self.config,
            temperature=1.0,
            sizes=PieceSizes(micro_batch_tokens=self.config.micro_batch_tokens),
            half_precision=False,
        )
        generator = random.Random(1)
        distinct = [[generator.randrange(vocab) for _ in range(work.prompt)] for _ in range(work.batch // work.group)]
        self.prompts = [prompt for prompt in distinct for _ in range(work.group)]

    def rollout(self, number: int) -> list[tuple[int, ...]]:
        """Sample a response to each prompt; no id ends a response."""
        from text2grad.models.randomness import step_uniforms
        from text2grad.models.sampling import sample

        uniforms = step_uniforms(seed=0, step=number, rows=self.work.batch, tokens=self.work.response)
        return sample(self.policy, self.prompts, uniforms, eos_ids=(self.vocab,), pad_id=0)

    def criticise(self, responses: list[tuple[int, ...]]) -> Any:
        """Return the batch; this benchmark has no critic."""
        from text2grad.models.batch import collate
        from text2grad.models.shared_prefix import can_share_prompts
        from text2grad.types import Example, Rollout

        pairs = zip(self.prompts, responses, strict=True)
        rollouts = [Rollout(Example("x"), tuple(p), tuple(r), "", truncated=True) for p, r in pairs]
        return collate(rollouts, pad_id=0, share_prompts=can_share_prompts(self.policy))

    def score(self, batch: Any) -> Any:
        """Return the inputs of PPO: log-probs, KL, values, rewards, advantages."""
        from text2grad.rl.advantages import gae, whiten
        from text2grad.rl.nl_gradient import total_rewards
        from text2grad.rl.scoring import score_batch
        from text2grad.rl.update import PPOBatch

        mask = batch.response_mask
        with self.gradient.sharing_first_pass():
            scores = score_batch(self.model, self.reference, batch, self.gradient.sizes, temperature=1.0, kl=self.kl)
        rewards = total_rewards((batch.response_ids % 3 - 1).float(), scores.kl, mask, beta=0.05)
        advantages, returns = gae(rewards, scores.values, mask, gamma=1.0, lam=0.95)
        return PPOBatch(batch, scores, whiten(advantages, mask), returns)

    def update(self, data: Any, *, seed: int) -> None:
        """Run the epochs of PPO."""
        from text2grad.rl.update import ppo_epochs

        ppo_epochs(self.gradient, self.optimizers, data, seed=seed)


def ours(policy: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Measure this project's step."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    def attention(query: Any, key: Any, value: Any, _: float = 0.0, causal: bool = False, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value)) // (1 + causal)

    def backward(grad: Any, query: Any, key: Any, value: Any, *more: Any, **_: Any) -> int:
        return int(sdpa_backward_flop_count(grad, query, key, value)) // (1 + more[3])

    aten = torch.ops.aten
    of_attention = {
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }
    step = Step(policy, args.vocab[0], args.kl, args.micro_batch_tokens[0], WORK[args.work])
    phases: dict[str, list[float]] = {"rollout": [], "critic": [], "logprobs": [], "update": []}
    processor: list[float] = []
    for number in range(args.repeats + 1):
        clock, began = [time.perf_counter()], time.process_time()
        responses = step.rollout(number)
        clock.append(time.perf_counter())
        batch = step.criticise(responses)
        clock.append(time.perf_counter())
        learning = step.score(batch)
        clock.append(time.perf_counter())
        step.update(learning, seed=number)
        clock.append(time.perf_counter())
        for name, begin, end in zip(phases, clock[:-1], clock[1:], strict=True):
            phases[name] += [end - begin] * (number > 0)  # the first step warms up
        processor += [time.process_time() - began] * (number > 0)
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    with FlopCounterMode(display=False, custom_mapping=of_attention) as counter:
        step.update(step.score(batch), seed=0)
    seconds = {name: statistics.median(values) for name, values in phases.items()}
    return {
        "seconds": seconds,
        "processor_s": statistics.median(processor),
        "peak_gb": peak_gb,
        "flop": counter.get_total_flops(),
    }


def prescribe(vocab: int, turns: int) -> tuple[Any, list[str]]:
    """Let rows say a call in each turn and an answer in the last, for the cost of sampling; return tokenizer, words."""
    import torch

    from text2grad.models import sampling
    from text2grad.rl import conversations
    from text2grad.tasks.tiny import word_tokenizer

    words = [f" w{number}" for number in range(vocab - len(word_tokenizer(CALL, ROLES)))]
    tokenizer = word_tokenizer([*CALL, "".join(words)], ROLES)
    tokenizer.chat_template = TEMPLATE
    of_words = tokenizer.convert_tokens_to_ids(words)
    head, tail = (tokenizer(part, add_special_tokens=False).input_ids for part in CALL)
    draw = sampling.sample_inverse_cdf

    def said(*, rows: int, tokens: int, turn: int, **seeds: int) -> torch.Tensor:
        """Return the ids of a turn in place of uniform numbers, [rows, tokens]."""
        before, behind = (head, tail) if turn + 1 < turns else ([], [])
        generator, free = random.Random(f"{seeds} {turn}"), tokens - len(before) - len(behind) - 1
        ids = [[*before, *generator.choices(of_words, k=free), *behind, tokenizer.eos_token_id] for _ in range(rows)]
        return torch.tensor(ids, dtype=torch.float32)

    def drawn(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        draw(logits, ids / vocab)
        return ids.long()

    conversations.step_uniforms, sampling.sample_inverse_cdf = said, drawn
    return tokenizer, words


def talks(policy: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Measure whole steps of the trainer, on responses of one or several turns."""
    import tempfile

    from text2grad.models.kv_cache import Caches
    from text2grad.rl.trainer import Text2GradTrainer

    work, turns = WORK[args.work], 1 if args.who in ("single", "sampled") else TURNS
    tokenizer, words = prescribe(args.vocab[0], turns)

    def look(place: str) -> str:
        """Look at a place.

        Args:
            place: Where.
        """
        return "".join(words[:TOLD])

    if args.who == "anew":
        Caches.keep = lambda *_: None
    told = (TOLD + 2) * (TURNS - 1)  # with the marks of two roles
    generator, length = random.Random(1), work.prompt + told * (args.who == "sampled")
    prompts = ["".join(generator.choices(words, k=length)) for _ in range(2 * work.batch)]
    rollout = {"batch_size": work.batch, "group_size": work.group, "max_turns": turns}
    rollout["max_new_tokens"] = (work.response + told * (args.who == "single")) // turns
    seconds, processor, phases = list[float](), list[float](), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Text2GradTrainer(
            policy,
            lambda examples, responses: [row % 3 - 1.0 for row in range(len(responses))],
            prompts,
            processing_class=tokenizer,
            tools=[look] if turns > 1 else (),
            ppo={"epochs": work.epochs, "kl": args.kl, "micro_batch_tokens": args.micro_batch_tokens[0]},
            rollout=rollout,
            run={"out": folder, "threads": args.threads[0], "tracker": "none", "steps": args.repeats + 1},
        )
        for number in range(args.repeats + 1):
            began, of_processor = time.perf_counter(), time.process_time()
            step = trainer.train_step()
            if number:  # the first step warms up
                seconds.append(time.perf_counter() - began)
                processor.append(time.process_time() - of_processor)
                for name in ("rollout", "score", "update"):
                    phases.setdefault(name, []).append(step.metrics[f"seconds/{name}"])
    return {
        "turns": turns,
        "tokens": {name: int(step.metrics[f"tokens/{name}"]) for name in ("prompt", "generated")},
        "seconds": {"step": statistics.median(seconds)},
        "phases": {name: statistics.median(values) for name, values in phases.items()},
        "processor_s": statistics.median(processor),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "load": os.getloadavg()[0],
    }


def trl(policy: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Measure TRL's `GRPOTrainer`: generation, scoring and as many passes over the completions."""
    import tempfile

    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from text2grad.tasks.tiny import word_tokenizer

    work, vocab = WORK[args.work], args.vocab[0]

    class Clock(TrainerCallback):  # type: ignore[misc]
        """The time at the end of each step's last pass."""

        at: list[tuple[float, float]] = []  # noqa: RUF012

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            """Remember the time."""
            if state.global_step % work.epochs == 0:
                self.at.append((time.perf_counter(), time.process_time()))

    tokenizer = word_tokenizer([" ".join(f"w{n}" for n in range(vocab - 3))])
    generator = random.Random(1)
    prompts = [" ".join(f"w{generator.randrange(vocab - 3)}" for _ in range(work.prompt)) for _ in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            max_steps=work.epochs * (args.repeats + 1),
            per_device_train_batch_size=args.peer_rows or work.batch,
            gradient_accumulation_steps=work.batch // (args.peer_rows or work.batch),
            num_generations=max(work.group, 4),
            num_iterations=work.epochs,
            max_completion_length=work.response,
            beta=0.05,
            learning_rate=1e-5,
            bf16=False,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            gradient_checkpointing=False,
        )
        data = Dataset.from_list([{"prompt": prompt} for prompt in prompts])
        reward = lambda completions, **_: [float(len(text) % 7) for text in completions]  # noqa: E731
        trainer = GRPOTrainer(policy, reward, settings, data, processing_class=tokenizer, callbacks=[Clock()])
        trainer.train()
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(Clock.at[:-1], Clock.at[1:], strict=True)]
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds, processor = (statistics.median(times) for times in zip(*steps, strict=True))
    return {"seconds": {"step": seconds}, "processor_s": processor, "peak_gb": peak_gb}


def textbook(policy: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Measure the same passes with logits of the whole sequence, as in trainers without tiles."""
    import torch

    work, kl = WORK[args.work], args.kl
    head = torch.nn.Linear(policy.config.hidden_size, 1)
    parameters = [p for p in policy.parameters() if p.requires_grad] + list(head.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)
    shape = (work.batch, work.prompt + work.response)
    ids = torch.randint(0, args.vocab[0], shape, generator=torch.Generator().manual_seed(1))

    def passes(*, entropy: bool) -> tuple[Any, ...]:
        out = policy(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True, use_cache=False)
        logp = out.logits[:, :-1].log_softmax(-1)
        chosen = logp.gather(-1, ids[:, 1:, None])[..., 0][:, work.prompt - 1 :]
        spread = -(logp.exp() * logp).sum(-1) if entropy else None
        return logp, chosen, spread, head(out.hidden_states[-1])[:, work.prompt - 1 : -1, 0]

    def step() -> tuple[float, float]:
        start = time.perf_counter()
        with torch.no_grad():
            logp, old, _, _ = passes(entropy=True)
            with policy.disable_adapter():
                logp_ref, ref, _, _ = passes(entropy=False)
            divergence = (logp.exp() * (logp - logp_ref)).sum(-1) if kl == "full" else old - ref
            del logp, logp_ref, divergence
            advantages = torch.randn(old.shape)
        middle = time.perf_counter()
        for _ in range(work.epochs):
            _, new, _, values = passes(entropy=False)
            ratio = (new - old).exp()
            surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            (0.05 * (values - advantages).square().mean() - surrogate).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return middle - start, time.perf_counter() - middle

    step()
    steps = [step() for _ in range(args.repeats)]
    seconds = {"logprobs": statistics.median(s[0] for s in steps), "update": statistics.median(s[1] for s in steps)}
    return {"seconds": seconds, "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "flop": None}


def measure_alone(args: argparse.Namespace) -> None:
    """Measure one setting in this process and print it as JSON."""
    import torch

    torch.set_num_threads(args.threads[0])
    policy = build(args.vocab[0], ["q_proj", "v_proj"] if args.targets == "qv" else args.targets, args.sizes[0])
    print(json.dumps(measure(policy, args)))


def measure(policy: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one way to make a step."""
    loaded_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rate = matrix_rate()
    setting = {"who": args.who, "vocab": args.vocab[0], "size": args.sizes[0], "threads": args.threads[0]}
    setting |= {"work": args.work}
    if args.who in TALKS:
        return {**setting, **talks(policy, args), "loaded_gb": loaded_gb}
    if args.who == "trl":
        return {**setting, "rows": args.peer_rows, **trl(policy, args), "loaded_gb": loaded_gb}
    if args.who == "text2grad":
        setting["micro_batch_tokens"] = args.micro_batch_tokens[0]
        costs = ours(policy, args)
    else:
        costs = textbook(policy, args)
    without_rollout = costs["seconds"]["logprobs"] + costs["seconds"]["update"]
    share = costs["flop"] / without_rollout / rate if costs["flop"] else None
    return {
        **setting,
        "kl": args.kl,
        "lora_targets": args.targets,
        "seconds_without_rollout": without_rollout,
        **costs,
        "loaded_gb": loaded_gb,
        "matrix_gflops": rate / 1e9,
        "matrix_rate_share": share,
    }


def compared(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, float]:
    """Return how many times as fast as the peer a step is, and which part of its memory it takes; of turns, as long."""
    if ours["who"] in TALKS:
        return {
            "times_as_long": ours["seconds"]["step"] / peer["seconds"]["step"],
            "times_as_long_in_processor_time": ours["processor_s"] / peer["processor_s"],
            "part_of_memory": ours["peak_gb"] / peer["peak_gb"],
        }
    of_peer = peer["seconds"]
    seconds = sum(value for name, value in ours["seconds"].items() if "step" in of_peer or name in of_peer)
    processor = (
        {"times_as_fast_in_processor_time": peer["processor_s"] / ours["processor_s"]} if "step" in of_peer else {}
    )
    return {
        "times_as_fast": sum(of_peer.values()) / seconds,
        **processor,
        "part_of_memory": ours["peak_gb"] / peer["peak_gb"],
    }


def main() -> None:
    """Measure every setting, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="+", default=[8_192, 128_256])
    parser.add_argument("--kl", choices=["k1", "full"], default="k1")
    parser.add_argument("--targets", default="qv", help='"qv" (as the published reference) or "all-linear"')
    parser.add_argument("--who", choices=["text2grad", "textbook", "trl", *TALKS])
    parser.add_argument("--peer", choices=["textbook", "trl"], default="textbook")
    parser.add_argument("--work", choices=WORK, default="short")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["256x4"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--micro-batch-tokens", nargs="+", type=int, default=[4096], help="ours: tokens of one pass")
    parser.add_argument("--peer-rows", type=int, default=0, help="TRL: rows of one pass; 0: the whole batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.who:
        measure_alone(args)
        return
    ways = [["text2grad", "--micro-batch-tokens", str(tokens)] for tokens in args.micro_batch_tokens]
    results: list[dict[str, Any]] = []
    for vocab, size, threads in product(args.vocab, args.sizes, args.threads):
        command = [sys.executable, __file__, "--vocab", str(vocab), "--kl", args.kl, "--targets", args.targets]
        command += [
            "--work",
            args.work,
            "--peer-rows",
            str(args.peer_rows),
            "--repeats",
            str(args.repeats),
            "--sizes",
            size,
            "--threads",
            str(threads),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        peer: dict[str, Any] = {}
        for way in [[who] for who in TALKS] if args.work == "turns" else [[args.peer], *ways]:
            lines = subprocess.run(
                [*command, "--who", *way], stdout=subprocess.PIPE, text=True, check=True, env=environment
            )
            measured = json.loads(lines.stdout.splitlines()[-1])
            results.append(measured | (compared(measured, peer) if peer else {}))
            peer = peer or measured
            print(json.dumps(results[-1], indent=1), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
