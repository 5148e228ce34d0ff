"""A pretended vLLM in this process, behind TRL's real `VLLMGeneration`: transformers does the work.

It takes arguments, weights and requests in the shapes of vLLM, and it is strict: an argument or a weight that it does
not know is an error. `docs/engines.md` says which tests run vLLM itself.
"""

from collections.abc import Iterable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from trl.generation import vllm_generation


class PretendedLLM:
    """vLLM's `LLM`."""

    made: list["PretendedLLM"]
    sharpness = 1.0  # of another value: an engine that computes something else

    def __init__(
        self,
        model: str,
        *,
        tensor_parallel_size: int,
        gpu_memory_utilization: float,
        max_model_len: int,
        max_num_seqs: int,
        enable_sleep_mode: bool,
        model_impl: str,
        distributed_executor_backend: str,
        seed: int,
        max_num_batched_tokens: int,
        logprobs_mode: str,
        quantization: None,
        trust_remote_code: bool,
        dtype: str,
    ) -> None:
        assert logprobs_mode == "processed_logprobs"
        torch.manual_seed(seed)  # as vLLM does
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        self.limits = max_model_len, max_num_seqs
        self.memory, self.code = gpu_memory_utilization, trust_remote_code
        self.synced, self.closed = 0, False
        self.requests: list[Any] = []
        runner = SimpleNamespace(reload_weights=self._reload, get_model=lambda: self.model)
        executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        core = SimpleNamespace(shutdown=lambda: setattr(self, "closed", True))
        self.llm_engine = SimpleNamespace(model_executor=executor, engine_core=core)
        type(self).made.append(self)

    def _reload(self, *, weights_iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        given = {name: weight.clone() for name, weight in weights_iterator}
        own = dict(self.model.named_parameters())  # tied weights once
        assert given.keys() == own.keys()
        with torch.no_grad():
            for name, weight in given.items():
                assert weight.dtype == own[name].dtype
                own[name].copy_(weight)
        self.synced += 1

    def reset_prefix_cache(self) -> None:
        """Forget nothing: there is no cache."""

    @torch.no_grad()
    def generate(self, prompts: list[Any], *, sampling_params: Any, use_tqdm: bool) -> list[Any]:
        asked = sampling_params
        assert (asked.n, asked.top_p, asked.top_k, asked.min_p, asked.repetition_penalty) == (1, 1.0, 0, 0.0, 1.0)
        assert asked.ignore_eos, "else vLLM ends responses at ids of its own"
        self.requests.append(prompts)
        return [self._continue(prompt["prompt_token_ids"], asked) for prompt in prompts]

    def _continue(self, prompt: list[int], asked: Any) -> Any:
        assert len(prompt) + asked.max_tokens <= self.limits[0]
        ids: list[int] = []
        logps = []
        while len(ids) < asked.max_tokens:
            logits = self.model(torch.tensor([prompt + ids])).logits[0, -1].float() * self.sharpness
            logp = (logits / asked.temperature).log_softmax(-1)
            token = int(torch.multinomial(logp.exp(), 1))
            ids.append(token)
            logps.append({token: SimpleNamespace(logprob=float(logp[token]), rank=1)})
            if token in asked.stop_token_ids:
                break
        output = SimpleNamespace(token_ids=ids, logprobs=logps)
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[output])


def pretend_vllm(monkeypatch: pytest.MonkeyPatch) -> type[PretendedLLM]:
    """Put the pretended vLLM in the place of vLLM, and return its class, whose `made` lists the engines."""
    kind = type("PretendedLLM", (PretendedLLM,), {"made": []})
    monkeypatch.setitem(__import__("sys").modules, "vllm", ModuleType("vllm"))
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda *_: True)
    monkeypatch.setattr(vllm_generation, "LLM", kind, raising=False)
    monkeypatch.setattr(vllm_generation, "SamplingParams", SimpleNamespace, raising=False)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):  # which TRL sets
        monkeypatch.setenv(name, "1" if name == "WORLD_SIZE" else "0")
        monkeypatch.delenv(name)
    return kind
