"""Settings of vLLM as the sampler of rollouts: [engine]."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from text2grad.config.section import Count, NonNegative, Positive, Section

COLOCATED = ("tensor_parallel_size", "sleep", "enforce_eager", "gpu_memory_utilization")
SERVED = ("base_url", "timeout_s", "group_port")


class EngineConfig(Section):
    """vLLM as the sampler of rollouts, rollout.engine = "vllm"; its weights are the policy's at each step."""

    mode: Literal["colocate", "server"] = "colocate"
    """vLLM in the processes of the run, on their GPUs ("colocate"), or a server on GPUs of its own ("server")."""
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = 0.3
    """Share of the GPU's memory for vLLM, weights included (colocate); the rest is left to training."""
    tensor_parallel_size: Count = 1
    """Processes of the run that share one vLLM (colocate)."""
    sleep: bool = False
    """Free vLLM's memory during scoring and update (colocate); waking up takes time."""
    enforce_eager: bool = False
    """Do not compile (colocate): faster start, slower sampling."""
    base_url: str = "http://localhost:8000"
    """URL of the server, without /v1."""
    timeout_s: Positive = 240.0
    """Most seconds to wait for the server to start."""
    group_port: Count = 51_216
    """TCP port over which weights go to the server."""
    importance_cap: NonNegative = 2.0
    """Most of the factor π_old / π_engine on a token's advantage (truncated importance sampling); 0 for no factor."""

    @model_validator(mode="after")
    def _has_effect(self) -> "EngineConfig":
        other = COLOCATED if self.mode == "server" else SERVED
        idle = list(self.changed(other))
        if idle and self.mode == "server":
            raise ValueError(
                f'{idle[0]} has no effect with mode = "server": give it to the command line of the server, or choose '
                'mode = "colocate"'
            )
        if idle:
            raise ValueError(f'{idle[0]} has no effect with mode = "colocate"; leave it out, or choose mode = "server"')
        return self
