"""Every causal language model that can be made tiny: it samples as it is scored and trains, or is refused by name.

`tests/matrices/architectures.md` is the table of the last run. Each architecture has a process of its own.
"""

import os
import signal
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import PromptTuningConfig, get_peft_model
from torch import Tensor
from transformers import FalconConfig, LlamaConfig

from architectures import kinds, model_of
from matrices import write_matrix
from text2grad.config import ModelConfig, make_recipe
from text2grad.errors import ModelError, Text2GradError
from text2grad.models.adapters import trunk_of, with_lora
from text2grad.models.batch import collate
from text2grad.models.decoding import decode
from text2grad.models.policy import check_model, head_of, response_logprobs
from text2grad.models.pretrained import load_policy
from text2grad.models.shared_prefix import can_share_prompts
from text2grad.rl.start import prepare_policy
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Critique, Example, Rollout, Span

SECONDS = 300
PROMPTS = [(5, 6, 7, 8, 9, 10, 11, 12), (20, 21, 22)]
NOISE = 1e-3  # nats
WORDS = "please say yes or no . maybe later today we go to the old town by train and see two churches"


def apart(model: Any) -> str:
    """Return how sampling and scoring differ; an empty text if they do not."""
    sampled: dict[tuple[int, int], float] = {}

    def choose(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        logp = logits.log_softmax(-1)
        tokens = torch.topk(logits, 3).indices[torch.arange(len(rows)), (rows + step) % 3]
        for row, token, own in zip(rows.tolist(), tokens.tolist(), logp, strict=True):
            sampled[row, step] = float(own[token])
        return tokens

    prompts = [PROMPTS[row // 2] for row in range(4)]
    responses = decode(model, prompts, choose, max_new_tokens=5, eos_ids=[2], pad_id=0, groups=prompts)
    made = [Rollout(Example("x"), *pair, "y", False) for pair in zip(prompts, responses, strict=True)]
    with torch.no_grad():
        scored = [
            response_logprobs(model, collate(made, pad_id=0, share_prompts=share))[0]
            for share in {False, can_share_prompts(model)}
        ]
        alone = [response_logprobs(model, collate([one], pad_id=0))[0][0] for one in made]
    told = torch.zeros_like(scored[0])
    for (row, step), own in sampled.items():
        if step < len(responses[row]):
            told[row, step] = own
    nats = {
        "sampled and scored": (told - scored[0]).abs().max(),
        "shared prompts and whole rows": (scored[-1] - scored[0]).abs().max(),
        "batches and single rows": max(
            (one - row[: len(one)]).abs().max() for one, row in zip(alone, scored[0], strict=True)
        ),
    }
    return "; ".join(f"{what} differ by {float(far):.2g} nats" for what, far in nats.items() if not far < NOISE)


def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
    """Praise the first half of every response."""
    halves = [(len(response) + 1) // 2 for response in responses]
    return [Critique("half", (Span(0, half, "positive"),) if half else ()) for half in halves]


def trained(model: Any, lora_r: int, folder: Path) -> str:
    """Train one step from a directory and load the policy of its checkpoint; return what is wrong."""
    tokenizer = word_tokenizer([WORDS])
    examples = [Example("please say yes or no ."), Example("see two churches")]
    recipe = make_recipe(
        {
            "rollout": {"batch_size": 4, "group_size": 2, "max_new_tokens": 4},
            "run": {"steps": 1, "out": str(folder / f"run-{lora_r}"), "threads": 1},
            "model": {"lora_r": lora_r},
        }
    )
    trainer = Text2GradTrainer(str(folder / "base"), critic, examples, recipe, processing_class=tokenizer)
    trainer.train()
    policy = trainer.model.policy.eval()
    saved = load_policy(str(next((folder / f"run-{lora_r}").glob("checkpoints/*/policy"))), dtype="float32").eval()
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        start, now, again = (part(input_ids=ids, use_cache=False).logits for part in (model, policy, saved))
    if not (now - start).abs().max() > 0:
        return "the update changes nothing"
    far = float((now - again).abs().max())
    return "" if far < NOISE else f"the saved policy differs by {far:.2g}"


def outcome(kind: Any) -> str:
    """Return what happens with an architecture."""
    try:
        model = model_of(kind)
    except Exception as error:  # noqa: BLE001 - a row of the table
        return f"not made here: {type(error).__name__}: {error}"
    try:
        check_model(model)
        wrong = [apart(model)]
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            model.save_pretrained(folder / "base")
            for lora_r in (0, 2):
                try:
                    wrong.append(trained(model, lora_r, folder))
                except Text2GradError as error:
                    wrong.append(f"refused with {'LoRA' if lora_r else 'all weights'}: {error}")
    except ModelError as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - a row of the table
        return f"WRONG: {type(error).__name__}: {error}"
    problems = "; ".join(filter(None, wrong))
    if all(part.startswith("refused with LoRA") for part in filter(None, wrong)):
        return f"right; {problems}" if problems else "right"
    return f"WRONG: {problems}"


def outcome_apart(kind: Any) -> str:
    """Return the outcome from a process of its own, with a limit of time."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        os.write(write, " ".join(outcome(kind).split())[:400].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        said = told.read().decode("utf-8", "replace")
    os.waitpid(child, 0)
    return said or f"WRONG: no outcome within {SECONDS} s"


def named(name: str) -> Any:
    return next(kind for kind in kinds() if kind.__name__ == name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Llama4TextConfig", "PhimoeConfig", "LagunaConfig"])
def test_architectures_with_ways_of_their_own_train_and_come_back(name: str) -> None:
    # transformers 5.23. Llama 4: `get_decoder` is the whole model, and the router is a linear layer with two outputs.
    # Phi-3.5 MoE: its router computes with what is named a jitter. Laguna: peft 0.21 does not find its adapter's names.
    assert outcome(named(name)) == "right"


@pytest.mark.parametrize("name", ["OpenAIGPTConfig", "HyperCLOVAXConfig", "GitConfig"])
def test_models_of_their_own_ways_are_scored_as_they_compute(name: str) -> None:
    # OpenAI GPT takes no cache; HyperCLOVA X multiplies its logits by what Granite calls a divisor; GIT's attention
    # gives other states to responses that go on from a shared prompt
    model = model_of(named(name))
    check_model(model)
    assert can_share_prompts(model) is False or name == "HyperCLOVAXConfig"
    assert apart(model) == "" or name == "GitConfig"


def test_a_soft_cap_of_another_name_is_one() -> None:
    model = model_of(named("RecurrentGemmaConfig"))  # logits_soft_cap
    assert head_of(model).softcap == model.config.logits_soft_cap
    check_model(model)


def test_an_output_layer_behind_another_layer_is_refused_by_name() -> None:
    # ModernBERT decoder: `get_decoder` is its output layer, and before that stand a matrix, an activation and a norm
    with pytest.raises(
        ModelError, match="ModernBertDecoderForCausalLM: log-probs from its hidden states differ from its"
    ):
        check_model(model_of(named("ModernBertDecoderConfig")))


def test_a_model_that_reads_ahead_is_refused_by_name() -> None:
    with pytest.raises(
        ModelError, match=r"XLMWithLMHeadModel: log-probs change by .* nats with later tokens: it reads"
    ):
        check_model(model_of(named("XLMConfig")))  # causal is False


def test_a_pass_that_fails_is_told_with_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(LlamaConfig)
    monkeypatch.setattr(model, "forward", lambda input_ids: None)  # it takes no use_cache
    with pytest.raises(
        ModelError, match=r"^LlamaForCausalLM cannot be sampled from and scored: TypeError: .*'use_cache'"
    ):
        check_model(model)


def test_a_model_that_is_one_piece_is_refused_by_name() -> None:
    class OnePiece(torch.nn.Linear):
        get_decoder = get_output_embeddings = lambda self: self
        base_model = property(lambda self: self)

    with pytest.raises(ModelError) as caught:
        trunk_of(OnePiece(2, 2))
    assert str(caught.value) == "OnePiece has no part that is a model without its output layer; log-probs need one"


@pytest.mark.parametrize("kind", [FalconConfig, LlamaConfig])
def test_linear_layers_of_their_own_class_take_an_adapter_if_they_are_products(kind: Any) -> None:
    adapted = with_lora(model_of(kind), r=2, alpha=4, targets="all-linear")  # all of Falcon's are of its own class
    assert any(".lora_A." in name for name, _ in adapted.named_parameters())
    check_model(adapted)


@pytest.mark.filterwarnings("ignore")
def test_prompt_tuning_is_refused_as_what_it_is() -> None:
    prompts = PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    with pytest.raises(ModelError) as caught:
        prepare_policy(get_peft_model(model_of(LlamaConfig), prompts), ModelConfig())
    assert str(caught.value) == (
        "the policy's adapter is of the type PROMPT_TUNING, which cannot be merged into its base; name a LoRA adapter"
    )


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.filterwarnings("ignore")
def test_every_architecture_is_right_or_refused_by_name() -> None:
    chosen = os.environ.get("ARCHITECTURES", "").split()
    rows = {
        kind.__name__.removesuffix("Config"): outcome_apart(kind)
        for kind in kinds()
        if not chosen or kind.__name__ in chosen
    }
    if not chosen:
        write_matrix("architectures", ("configuration", "outcome"), rows.items(), transformers, torch)
    assert [row for row in rows.items() if row[1].startswith("WRONG")] == []
