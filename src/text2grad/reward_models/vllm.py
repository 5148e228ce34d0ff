"""A generative reward model in vLLM, in this process: the prompts and critiques of `GenerativeRewardModel`.

Decoding is greedy, or sampled for a vote. Each prompt carries the grammar of the critiques of its response
(`critique_grammar`), which vLLM enforces; limits that a grammar cannot express are refused.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import ConfigError, ModelError
from text2grad.models import ADAPTER_CONFIG, base_named_by, check_vllm, load_tokenizer
from text2grad.reward_models.decoding.grammar import check_expressible, grammar_of
from text2grad.reward_models.format import CritiqueFormat, saved_format
from text2grad.reward_models.generative import CritiqueDecoder
from text2grad.types import Example

_DEFAULTS = {"dtype": "auto", "gpu_memory_utilization": 0.4}  # the policy trains in the rest of the memory
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the maximal adapter ranks that vLLM accepts


class Request(NamedTuple):
    """A prompt to continue.

    Attributes:
        prompt_ids: token ids of the prompt.
        max_tokens: length limit of a continuation.
        grammar: enforced on the continuation; "" for none.
        draws: number of continuations to sample, with the seed 0; 1 decodes greedily.
    """

    prompt_ids: list[int]
    max_tokens: int
    grammar: str
    draws: int = 1


class VLLMEngine:
    """A language model or adapter, loaded by vLLM.

    Attributes:
        context: length limit of a prompt with its continuation, in tokens.
    """

    def __init__(self, directory: str | Path, config: Mapping[str, Any], *, trust_remote_code: bool) -> None:
        """Load a model, or an adapter on the base that its configuration names; None leaves an argument out.

        Raises:
            ModelError: if vLLM cannot load it.
        """
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        base = base_named_by(directory)
        settings = {name: value for name, value in {**_DEFAULTS, **config}.items() if value is not None}
        if base is not None:
            settings |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _rank(Path(directory))}
        try:
            self._llm = LLM(
                model=base or str(directory),
                tokenizer=str(directory),
                trust_remote_code=trust_remote_code,
                load_format="safetensors",
                generation_config="vllm",  # ignore the model's own penalties; its ends of sequence still count
                structured_outputs_config={"backend": "guidance"},
                **settings,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelError(f"vLLM cannot load {str(directory)!r}: {error}") from error
        self._adapter = None if base is None else LoRARequest("critic", 1, str(directory))
        self.context: int = self._llm.llm_engine.model_config.max_model_len

    def write(self, requests: Sequence[Request]) -> list[list[list[int]]]:
        """Return the token ids of each continuation, up to and including an end of sequence."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        settings = [
            SamplingParams(
                temperature=1.0 if request.draws > 1 else 0.0,
                n=request.draws,
                seed=0,
                max_tokens=request.max_tokens,
                detokenize=False,
                structured_outputs=StructuredOutputsParams(grammar=request.grammar) if request.grammar else None,
            )
            for request in requests
        ]
        prompts: Any = [{"prompt_token_ids": request.prompt_ids} for request in requests]
        answers = self._llm.generate(prompts, settings, use_tqdm=False, lora_request=self._adapter)
        return [[list(written.token_ids) for written in answer.outputs] for answer in answers]


class VLLMRewardModel(CritiqueDecoder):
    """A critic that is a language model in vLLM: `model(examples, responses)` returns critiques."""

    def __init__(self, engine: VLLMEngine, tokenizer: Any, format: CritiqueFormat) -> None:
        """Take an engine that has loaded a trained model, its tokenizer, and the format of its critiques.

        Raises:
            ConfigError: if a grammar cannot express a limit.
            ModelError: as `CritiqueDecoder`.
        """
        check_expressible(format)
        ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        super().__init__(tokenizer, format, size=len(tokenizer), eos_ids=ends)
        self.engine = engine

    def _drawn(self, examples: Sequence[Example], responses: Sequence[str], draws: int) -> list[list[str]]:
        prompts = self.prompts(examples, responses)
        rooms = [min(self.format.max_new_tokens, self.engine.context - len(ids)) for ids in prompts]
        rows = [row for row, room in enumerate(rooms) if room >= self._least_tokens(responses[row])]
        requests = [
            Request(prompts[row], rooms[row], grammar_of(responses[row], self.format, rooms[row]), draws or 1)
            for row in rows
        ]
        texts = [[""]] * len(prompts)
        for row, written in zip(rows, self.engine.write(requests), strict=True):
            texts[row] = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in written]
        return texts

    @classmethod
    def load(
        cls, directory: str | Path, *, config: Mapping[str, Any], trust_remote_code: bool = False, **changes: Any
    ) -> "VLLMRewardModel":
        """Load a model or adapter that `GenerativeRewardModel.save` wrote, or any language model that writes critiques.

        `config` holds the arguments of vLLM's engine. `changes` are attributes of `CritiqueFormat` that replace the
        saved ones.

        Raises:
            ConfigError: if vLLM is not installed, or a setting is wrong.
            ModelError: if there is no such model, or vLLM cannot load it.
        """
        format = replace(saved_format(directory), **changes)
        check_expressible(format)
        _check_vllm()
        tokenizer = load_tokenizer(str(directory), trust_remote_code=trust_remote_code)
        if format.constrain:
            _check_grammar_support(tokenizer)
        engine = VLLMEngine(directory, config, trust_remote_code=trust_remote_code)
        return cls(engine, tokenizer, format)


def _check_vllm() -> None:
    """Check that vLLM can be imported, and that this is the only process of the run.

    Raises:
        ConfigError: if not.
    """
    check_vllm('critic.kind = "vllm"', otherwise='choose critic.kind = "server" or "generative"')
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        raise ConfigError(
            f'critic.kind = "vllm" needs a run of one process, but this run has {processes}: each would load the '
            'model onto the same GPU. Serve it with `vllm serve`, and choose critic.kind = "server"'
        )


def _check_grammar_support(tokenizer: Any) -> None:
    """Refuse a tokenizer whose tokens llguidance, vLLM's grammar library, cannot convert to bytes."""
    from llguidance.hf import from_tokenizer

    try:
        from_tokenizer(tokenizer)
    except ValueError as error:
        raise ModelError(
            f'vLLM cannot enforce a grammar with this tokenizer ({error}). Choose critic.kind = "generative", or '
            "decode without a grammar: critic.constrain = false."
        ) from error


def _rank(directory: Path) -> int:
    """Return the maximal adapter rank to set in vLLM: the smallest that it accepts and that suffices."""
    saved = json.loads((directory / ADAPTER_CONFIG).read_bytes())
    rank = max([saved["r"], *saved.get("rank_pattern", {}).values()])
    return next((size for size in _RANKS if size >= rank), rank)
