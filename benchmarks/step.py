"""Seconds and peak memory of one policy step: rollout, critic, log-probs, update.

    python benchmarks/step.py                         # both vocabularies, ours and the textbook method, JSON to stdout
    python benchmarks/step.py --vocab 8192 --json step.json
    python benchmarks/step.py --peer trl --vocab 8192 --sizes 256x4 512x8 768x12 --threads 1 2

Setting: batch 16, prompt 64, response 64, 4 PPO epochs, LoRA r 16 on the query and value projections (as the
published reference), Llama of hidden size 256 with 4 layers, one thread, fp32. Each measurement runs in a process of
its own, so that its peak memory is not mixed with others. `--peer trl` measures TRL's `GRPOTrainer` on the same work,
without a value function and with MKL; its seconds hold generation, scoring and update. `processor_s` is the processor
time of a step of all threads, which other programs on the machine disturb less. "textbook" makes the same passes with
logits of the whole sequence, log_softmax and gather.

    matrix_rate_share = FLOP of all matrix products in log-probs and update / their seconds / matrix rate

where the matrix rate is the FLOP/s of a large fp32 product in the same process.
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
from typing import Any

BATCH, PROMPT, RESPONSE, EPOCHS = 16, 64, 64, 4
SIZES = {"256x4": (256, 688, 4, 4), "512x8": (512, 1_376, 8, 8), "768x12": (768, 2_048, 12, 12)}
"""Hidden size, intermediate size, layers, heads."""


def build(vocab: int, targets: Any, size: str = "256x4", *, positions: int = 512) -> Any:
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

    def __init__(self, policy: Any, vocab: int, kl: Any, micro_batch_tokens: int = 4096) -> None:
        """Make models, optimizers and prompts."""
        from accelerate import Accelerator

        from text2grad.config.policy import OptimConfig, PPOConfig
        from text2grad.models.policy import PolicyWithValue, Reference
        from text2grad.rl.optimizers import Optimizers
        from text2grad.rl.piece_sizes import PieceSizes
        from text2grad.rl.update import MinibatchGradient

        self.policy, self.vocab, self.kl = policy, vocab, kl
        self.model, self.reference = PolicyWithValue(policy, value="trunk"), Reference(policy)
        optimizers = Optimizers(
            self.model.policy_parameters(),
            self.model.value_parameters(),
            OptimConfig(lr=1e-5),
            total_steps=9,
        )
        optimizers.begin(0)
        self.optimizers, self.config = optimizers, PPOConfig(epochs=EPOCHS, micro_batch_tokens=micro_batch_tokens)
        self.gradient = MinibatchGradient(
            self.model,
            Accelerator(cpu=True),
            self.config,
            temperature=1.0,
            sizes=PieceSizes(micro_batch_tokens=self.config.micro_batch_tokens),
            half_precision=False,
        )
        generator = random.Random(1)
        self.prompts = [[generator.randrange(vocab) for _ in range(PROMPT)] for _ in range(BATCH)]

    def rollout(self, number: int) -> list[tuple[int, ...]]:
        """Sample 64 tokens for each prompt; no id ends a response."""
        from text2grad.models.randomness import step_uniforms
        from text2grad.models.sampling import sample

        uniforms = step_uniforms(seed=0, step=number, rows=BATCH, tokens=RESPONSE)
        return sample(self.policy, self.prompts, uniforms, eos_ids=(self.vocab,), pad_id=0)

    def criticise(self, responses: list[tuple[int, ...]]) -> Any:
        """Return the batch; this benchmark has no critic."""
        from text2grad.models.batch import collate
        from text2grad.types import Example, Rollout

        pairs = zip(self.prompts, responses, strict=True)
        return collate([Rollout(Example("x"), tuple(p), tuple(r), "", truncated=True) for p, r in pairs], pad_id=0)

    def score(self, batch: Any) -> Any:
        """Return the inputs of PPO: log-probs, KL, values, rewards, advantages."""
        from text2grad.rl.advantages import gae, whiten
        from text2grad.rl.nl_gradient import total_rewards
        from text2grad.rl.update import PPOBatch

        mask = batch.response_mask
        scores = self.model.score(batch, self.reference, temperature=1.0, kl=self.kl)
        rewards = total_rewards((batch.response_ids % 3 - 1).float(), scores.kl, mask, beta=0.05)
        advantages, returns = gae(rewards, scores.values, mask, gamma=1.0, lam=0.95)
        return PPOBatch(batch, scores, whiten(advantages, mask), returns)

    def update(self, data: Any, *, seed: int) -> None:
        """Run the epochs of PPO."""
        from text2grad.rl.update import ppo_epochs

        ppo_epochs(self.gradient, self.optimizers, data, seed=seed)


def ours(policy: Any, vocab: int, kl: str, repeats: int, micro_batch_tokens: int) -> dict[str, Any]:
    """Measure this project's step."""
    from torch.utils.flop_counter import FlopCounterMode

    step = Step(policy, vocab, kl, micro_batch_tokens)
    phases: dict[str, list[float]] = {"rollout": [], "critic": [], "logprobs": [], "update": []}
    processor: list[float] = []
    for number in range(repeats + 1):
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
    with FlopCounterMode(display=False) as counter:
        step.update(step.score(batch), seed=0)
    seconds = {name: statistics.median(values) for name, values in phases.items()}
    return {
        "seconds": seconds,
        "processor_s": min(processor),
        "peak_gb": peak_gb,
        "flop": counter.get_total_flops(),
    }


def trl(policy: Any, vocab: int, repeats: int) -> dict[str, Any]:
    """Measure TRL's `GRPOTrainer`: generation, scoring and as many passes over 16 completions."""
    import tempfile

    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from text2grad.tasks.tiny import word_tokenizer

    class Clock(TrainerCallback):  # type: ignore[misc]
        """The time at the end of every fourth optimizer step."""

        at: list[tuple[float, float]] = []  # noqa: RUF012

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            """Remember the time."""
            if state.global_step % EPOCHS == 0:
                self.at.append((time.perf_counter(), time.process_time()))

    tokenizer = word_tokenizer([" ".join(f"w{n}" for n in range(vocab - 3))])
    generator = random.Random(1)
    prompts = [" ".join(f"w{generator.randrange(vocab - 3)}" for _ in range(PROMPT)) for _ in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            max_steps=EPOCHS * (repeats + 1),
            per_device_train_batch_size=BATCH,
            num_generations=4,
            num_iterations=EPOCHS,
            max_completion_length=RESPONSE,
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
        reward = lambda completions, **_: [float(len(one) % 7) for one in completions]  # noqa: E731
        trainer = GRPOTrainer(policy, reward, settings, data, processing_class=tokenizer, callbacks=[Clock()])
        trainer.train()
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(Clock.at[:-1], Clock.at[1:], strict=True)]
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": {"step": min(s[0] for s in steps)}, "processor_s": min(s[1] for s in steps), "peak_gb": peak_gb}


def textbook(policy: Any, vocab: int, kl: str, repeats: int) -> dict[str, Any]:
    """Measure the same passes with logits of the whole sequence, as in trainers without tiles."""
    import torch

    head = torch.nn.Linear(policy.config.hidden_size, 1)
    parameters = [p for p in policy.parameters() if p.requires_grad] + list(head.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)
    ids = torch.randint(0, vocab, (BATCH, PROMPT + RESPONSE), generator=torch.Generator().manual_seed(1))

    def passes(*, entropy: bool) -> tuple[Any, ...]:
        out = policy(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True, use_cache=False)
        logp = out.logits[:, :-1].log_softmax(-1)
        chosen = logp.gather(-1, ids[:, 1:, None])[..., 0][:, PROMPT - 1 :]
        spread = -(logp.exp() * logp).sum(-1) if entropy else None
        return logp, chosen, spread, head(out.hidden_states[-1])[:, PROMPT - 1 : -1, 0]

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
        for _ in range(EPOCHS):
            _, new, _, values = passes(entropy=False)
            ratio = (new - old).exp()
            surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            (0.05 * (values - advantages).square().mean() - surrogate).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return middle - start, time.perf_counter() - middle

    step()
    found = [step() for _ in range(repeats)]
    seconds = {"logprobs": statistics.median(f[0] for f in found), "update": statistics.median(f[1] for f in found)}
    return {"seconds": seconds, "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "flop": None}


def one(args: argparse.Namespace) -> None:
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
    if args.who == "trl":
        return {**setting, **trl(policy, args.vocab[0], args.repeats), "loaded_gb": loaded_gb}
    if args.who == "text2grad":
        setting["micro_batch_tokens"] = args.micro_batch_tokens[0]
        found = ours(policy, args.vocab[0], args.kl, args.repeats, args.micro_batch_tokens[0])
    else:
        found = textbook(policy, args.vocab[0], args.kl, args.repeats)
    without_rollout = found["seconds"]["logprobs"] + found["seconds"]["update"]
    share = found["flop"] / without_rollout / rate if found["flop"] else None
    return {
        **setting,
        "kl": args.kl,
        "lora_targets": args.targets,
        "seconds_without_rollout": without_rollout,
        **found,
        "loaded_gb": loaded_gb,
        "matrix_gflops": rate / 1e9,
        "matrix_rate_share": share,
    }


def main() -> None:
    """Measure every setting, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="+", default=[8_192, 128_256])
    parser.add_argument("--kl", choices=["k1", "full"], default="k1")
    parser.add_argument("--targets", default="qv", help='"qv" (as the published reference) or "all-linear"')
    parser.add_argument("--who", choices=["text2grad", "textbook", "trl"])
    parser.add_argument("--peer", choices=["textbook", "trl"], default="textbook")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["256x4"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--micro-batch-tokens", nargs="+", type=int, default=[4096], help="ours: tokens of one pass")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.who:
        one(args)
        return
    ways = [["text2grad", "--micro-batch-tokens", str(tokens)] for tokens in args.micro_batch_tokens]
    results = []
    for vocab, size, threads, way in product(args.vocab, args.sizes, args.threads, [*ways, [args.peer]]):
        command = [sys.executable, __file__, "--vocab", str(vocab), "--kl", args.kl, "--targets", args.targets]
        command += ["--repeats", str(args.repeats), "--sizes", size, "--threads", str(threads), "--who", *way]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
        results.append(json.loads(output.splitlines()[-1]))
        print(json.dumps(results[-1], indent=1), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
