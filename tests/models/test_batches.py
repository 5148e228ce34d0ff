"""Rows of a batch keep to themselves, and are sampled as they are scored, on many architectures; a table of them."""

import itertools
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DataCollatorForSeq2Seq

from text2grad.errors import ModelError
from text2grad.models import decoding
from text2grad.models.adapters import with_lora
from text2grad.models.decoding import check_rows, steps_are_right
from text2grad.models.fine_tuning import FineTuning, row_of_ids, train_on_rows
from text2grad.models.policy import check_model
from text2grad.models.sampling import sample
from text2grad.tasks.tiny import word_tokenizer

VOCABULARY = 61
ENDS: dict[str, int] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4} | ENDS
LLAMA = SMALL | {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128}
EXPERTS = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}
SEQ2SEQ = {"vocab_size": VOCABULARY, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4} | ENDS
SEQ2SEQ |= {"decoder_ffn_dim": 48, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}
STATES = {"mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_chunk_size": 4}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128} | ENDS
MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8} | ENDS
BERT = SMALL | {"intermediate_size": 48, "max_position_embeddings": 128}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bamba": LLAMA | STATES | {"attn_layer_indices": [1]},
    "bart": SEQ2SEQ,
    "bert": BERT,
    "bert, is_decoder": BERT | {"is_decoder": True},
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4} | ENDS,
    "cohere2": LLAMA | {"sliding_window": 4},
    "deepseek_v3": LLAMA
    | {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 4, "v_head_dim": 8}
    | {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
    | {"num_key_value_heads": 4, "head_dim": 8, "first_k_dense_replace": 1},
    "falcon": SMALL,
    "falcon_h1": LLAMA | STATES | {"mamba_d_ssm": 64},
    "falcon_mamba": MAMBA,
    "gemma2": LLAMA | {"sliding_window": 4},
    "gemma3_text": LLAMA | {"sliding_window": 4},
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neo": SMALL
    | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gpt_neox": BERT,
    "gpt_oss": EXPERTS | {"sliding_window": 8},
    "gptj": GPT | {"rotary_dim": 4},
    "granitemoehybrid": EXPERTS | STATES | {"layer_types": ["mamba", "attention"]},
    "jamba": EXPERTS
    | {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}
    | {"mamba_d_state": 8, "mamba_dt_rank": 4, "num_experts": 4},
    "llama": LLAMA,
    "mamba": MAMBA,
    "mamba2": MAMBA | {"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    "mbart": SEQ2SEQ,
    "minimax": EXPERTS | HYBRID | {"block_size": 4},
    "mistral": LLAMA | {"sliding_window": 4},
    "mixtral": EXPERTS,
    "mpt": {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4} | ENDS,
    "nemotron_h": LLAMA
    | {"layers_block_type": ["mamba", "attention"], "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 8}
    | {"n_groups": 1, "chunk_size": 4},
    "openai-gpt": GPT,
    "opt": SMALL | {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 128},
    "pegasus": SEQ2SEQ,
    "phi3": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "qwen3_5_text": LLAMA | LINEAR | HYBRID,
    "qwen3_moe": EXPERTS | {"moe_intermediate_size": 16, "num_experts": 4},
    "qwen3_next": EXPERTS
    | LINEAR
    | HYBRID
    | {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "recurrent_gemma": LLAMA
    | {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 4}
    | {"block_types": ["recurrent", "recurrent", "attention"]},
    "rwkv": {"vocab_size": VOCABULARY, "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2} | ENDS,
    "whisper": SEQ2SEQ | {"max_target_positions": 128},
    "xglm": {"vocab_size": VOCABULARY, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4} | ENDS,
    "xlm-roberta": BERT,
    "zamba": SMALL
    | {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "intermediate_size": 48}
    | {"num_key_value_heads": 4, "attention_head_dim": 16, "attention_hidden_size": 64, "mamba_d_state": 8}
    | {"mamba_dt_rank": 4, "use_mamba_kernels": False},
    "zamba2": SMALL
    | {
        "layers_block_type": ["mamba", "hybrid"],
        "intermediate_size": 48,
        "num_key_value_heads": 4,
        "attention_head_dim": 16,
    }
    | {"mamba_d_state": 8, "mamba_headdim": 8, "n_mamba_heads": 8, "mamba_ngroups": 1, "chunk_size": 4}
    | {"num_mem_blocks": 1, "adapter_rank": 4, "use_mamba_kernels": False},
}
SAMPLE = (
    "llama",
    "falcon_h1",
    "rwkv",
    "minimax",
    "bart",
    "openai-gpt",
    "nemotron_h",
    "mpt",
    "gemma2",
    "recurrent_gemma",
)
REFUSED = ("bert", "xlm-roberta")  # each token sees what follows it
WHOLE = {"bart", "mbart", "minimax", "nemotron_h", "openai-gpt", "pegasus", "recurrent_gemma", "rwkv", "whisper"}
WHOLE |= {"zamba2"}
PROMPTS = [(5, 6, 7), (1, *range(9, 21)), (30, 31, 32, 33, 34, 35), (44,), (5, 6, 7)]


def built(name: str, spread: float = 0.3) -> Any:
    """Return a random model whose log-probs differ by nats."""
    kind, config = name.partition(",")[0], ARCHITECTURES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                torch.nn.init.normal_(parameter, std=spread)
    return model.eval()


@torch.no_grad()
def alone(model: Any, prompt: Sequence[int], response: Sequence[int]) -> Tensor:
    """Return the log-probs of a response by one pass over one row: what all else is compared with."""
    ids = torch.tensor([[*prompt, *response]])
    logp = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
    return logp[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]


def sampled_against_scored(model: Any) -> float:
    """Return the largest difference in nats between the log-probs of sampled tokens and those of their row alone."""
    uniforms = torch.rand(len(PROMPTS), 10, generator=torch.Generator().manual_seed(3))
    told = list[tuple[float, ...]]()
    rows = itertools.count()

    def ended(ids: list[int]) -> bool:  # three of the five rows leave after three tokens, so that the batch shrinks
        return len(ids) == 3 and next(rows) < 3

    responses = sample(
        model,
        PROMPTS,
        uniforms,
        eos_ids=[2],
        pad_id=0,
        on_part=lambda _, logps: told.extend(logps),
        ended=ended,
    )
    pairs = zip(PROMPTS, responses, told, strict=True)
    return max(float((alone(model, prompt, ids) - torch.tensor(logps)).abs().max()) for prompt, ids, logps in pairs)


@torch.no_grad()
def trained_together_against_alone(model: Any) -> float:
    """Return by how many nats per token the loss of a batch of rows differs from that of its rows one at a time."""
    tokenizer = word_tokenizer(["a b c"])
    tokenizer.pad_token_id = 0
    rows = [row_of_ids(prompt, range(30, 33 + number)) for number, prompt in enumerate(PROMPTS)]
    collate = DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100)
    counts = [3 + number for number in range(len(rows))]
    apart = sum(float(model(**collate([row])).loss) * count for row, count in zip(rows, counts, strict=True))
    return abs(float(model(**collate(rows)).loss) - apart / sum(counts))


def outcome(name: str) -> tuple[str, str, str]:
    """Return how a model is sampled, and both differences; or that it is refused."""
    model = built(name)
    try:
        check_rows(model)
    except ModelError:
        return "refused", "", ""
    way = "steps with a cache" if steps_are_right(model, 0) else "whole rows"
    return way, f"{sampled_against_scored(model):.0e}", f"{trained_together_against_alone(model):.0e}"


@pytest.mark.parametrize("name", SAMPLE)
def test_rows_are_sampled_as_they_are_scored(name: str, caplog: pytest.LogCaptureFixture) -> None:
    # transformers 5.23: RWKV hands its state from row to row, MiniMax and BART count the padding before a prompt
    # (transformers#31540, #41790), the first GPT has no cache, NemotronH's steps are 0.002 nats off
    way, sampled, trained = outcome(name)
    assert way == ("whole rows" if name in WHOLE else "steps with a cache")
    assert ("whole row" in caplog.text) == (name in WHOLE)
    assert float(sampled) < 2e-4
    assert float(trained) < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "right"), [("llama", True), ("rwkv", False), ("mbart", False)])
def test_the_trial_knows_the_noise_of_16_bits_and_reads_adapters(name: str, right: bool, dtype: torch.dtype) -> None:
    model = built(name).to(dtype)
    if name == "llama":  # an adapter whose output is not zero
        model = with_lora(model, r=2, alpha=4, targets="all-linear", dropout=0.5).to(dtype)
        for parameter in model.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.3)
    check_rows(model)
    assert steps_are_right(model, 0) is right


def test_a_trial_leaves_random_numbers_modes_and_gradients_as_they_were() -> None:
    model = built("rwkv").train()
    model.rwkv.blocks[1].eval()  # a part that a user froze
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    with torch.enable_grad():
        check_rows(model)
        assert not steps_are_right(model, 0)
        assert torch.is_grad_enabled()
    assert [module.training for module in model.modules()] == modes
    assert len(set(modes)) == 2
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_trial_fits_a_short_context_and_a_small_vocabulary() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model("gpt2", **ARCHITECTURES["gpt2"] | {"vocab_size": 5, "n_positions": 7})
        model = AutoModelForCausalLM.from_config(config).eval()
    check_rows(model)
    assert steps_are_right(model, 0)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("spread", [0.02, 0.3])  # 0.02: the weights of a model that nobody trained
def test_a_model_that_sees_what_follows_is_neither_scored_nor_trained(name: str, spread: float) -> None:
    model, rows = built(name, spread), [row_of_ids(prompt, [30, 2]) for prompt in PROMPTS]
    before = [parameter.clone() for parameter in model.parameters()]
    for refused in (
        lambda: check_rows(model),
        lambda: sampled_against_scored(model),
        lambda: train_on_rows(model, rows, FineTuning(steps=1, batch_size=5)),
    ):
        with pytest.raises(ModelError, match=r"change by .* nats with the padding behind it.*is_decoder = true"):
            refused()
    assert all(map(torch.equal, before, model.parameters()))


def test_a_layer_that_mixes_the_rows_of_a_batch_is_refused_before_a_run() -> None:
    model = built("llama")
    model.model.embed_tokens.register_forward_hook(lambda _, __, read: read + read.mean(dim=0))
    with pytest.raises(ModelError, match=r"^LlamaForCausalLM: the log-probs of a row change by"):
        check_model(model)  # one row alone agrees with its hidden states


def test_rounding_of_log_probs_that_are_nearly_equal_is_no_difference() -> None:
    # an untrained model over 507 tokens: −log 507 = −6.23, where float32 has steps of 4.8e-7
    theirs = torch.full((3, 5), -6.23).add(torch.linspace(0, 1e-5, 5))
    assert decoding._difference(built("llama"), theirs + 4.8e-7, theirs) == 0.0
    assert decoding._difference(built("llama"), theirs + 1e-4, theirs) == pytest.approx(1e-4, rel=0.01)


def test_memory_that_runs_out_in_a_trial_is_no_fault_of_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError

    model = built("llama")
    monkeypatch.setattr(decoding, "_decode_batch", full)
    for _ in range(2):  # and the next batch, a smaller one, tries again
        with pytest.raises(torch.OutOfMemoryError):
            steps_are_right(model, 0)


@pytest.mark.slow
def test_all_architectures_are_sampled_as_they_are_scored() -> None:
    outcomes = {name: outcome(name) for name in ARCHITECTURES}
    lines = [
        f"{date.today()}, transformers {transformers.__version__}, torch {torch.__version__}: models/test_batches.py",
        "",
        "Random weights. Largest difference of log-probs in nats between the sampled tokens of a batch and each row",
        "alone, and of the mean loss between a batch of rows and its rows one at a time. Rows are padded, not packed.",
        "",
        "| architecture | sampled by | sampled − scored | trained together − alone |",
        "|---|---|---|---|",
        *(f"| {name} | {' | '.join(values)} |" for name, values in outcomes.items()),
    ]
    place = Path(__file__).parents[1] / "matrices" / "packing_and_sampling.md"
    place.parent.mkdir(exist_ok=True)
    place.write_text("\n".join(lines) + "\n", "utf-8")
    assert [name for name, values in outcomes.items() if values[0] == "refused"] == list(REFUSED)
    assert {name for name, values in outcomes.items() if values[0] == "whole rows"} == WHOLE
    assert all(float(value) < 1e-3 for values in outcomes.values() for value in values[1:] if value)
