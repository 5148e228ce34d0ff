"""A policy that says what a test wants: tiny models, chat templates of TRL, and tokens that are forced."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from text2grad.models import sampling
from text2grad.models.decoding import decode
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.tasks.tiny import tiny_llama

FOLDER = Path(trl.__file__).parent / "chat_templates"
SPECIAL = """
<|im_start|> <|im_end|> <|endoftext|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|user|>
<|assistant|> <|observation|> <|system|> <|start|> <|message|> <|channel|> <|end|> <|return|> <|call|>
<turn|> <|turn> <|tool_response> <tool_response|> <|tool_call> <tool_call|> <|"|> <｜User｜> <｜Assistant｜>
<｜end▁of▁sentence｜> <｜tool▁calls▁begin｜> <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜>
<｜tool▁calls▁end｜> <｜tool▁outputs▁begin｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜> <｜tool▁outputs▁end｜>
<end_of_utterance> <|eot|> <start_of_turn> <end_of_turn>
""".split()  # noqa: SIM905
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def tokenizer(name: str) -> Any:
    """Return a byte-level tokenizer with one of TRL's templates, in which line breaks join what stands before them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ċ", "Ċ"), (".", "Ċ"), (">", "Ċ"), ("Ġ", "Ġ")]
    texts = ["<eos>", "<bos>", *SPECIAL, *PLAIN, *alphabet, *map("".join, merges)]
    vocabulary = {token: number for number, token in enumerate(texts)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", bos_token="<bos>")
    made.add_special_tokens({"additional_special_tokens": SPECIAL})
    made.add_tokens(PLAIN)  # as in Qwen's and DeepSeek's tokenizers
    made.chat_template = (FOLDER / f"{name}.jinja").read_text("utf-8")
    return made


def look(place: str, days: int = 1) -> str:
    """Look at the weather.

    Args:
        place: Where.
        days: How many days.
    """
    return f"{place}: sunny, {days}."


def force(monkeypatch: pytest.MonkeyPatch, made: Any, say: Callable[[str], str | None]) -> list[list[tuple[int, ...]]]:
    """Let the policy sample what `say` returns for a prompt's text, its own for None; return the prompts of batches."""
    seen = list[list[tuple[int, ...]]]()

    def forced(model: Any, prompts: Sequence[tuple[int, ...]], choose: Any, **how: Any) -> Any:
        seen.append([tuple(prompt) for prompt in prompts])
        texts = [say(made.decode(list(prompt))) for prompt in prompts]
        ids = [None if text is None else made(text, add_special_tokens=False)["input_ids"] for text in texts]

        def said(logits: Any, rows: Any, step: int) -> Any:
            own = choose(logits, rows, step).tolist()
            wanted = [ids[row] for row in rows.tolist()]
            chosen = [token if w is None else w[min(step, len(w) - 1)] for token, w in zip(own, wanted, strict=True)]
            logp = logits.log_softmax(-1).gather(1, torch.tensor(chosen)[:, None])[:, 0]
            choose.keywords["logps"][rows, step] = logp  # at temperature 1
            return torch.tensor(chosen)

        return decode(model, prompts, said, **how)

    monkeypatch.setattr(sampling, "decode", forced)
    return seen


def trainer(out: Path, made: Any, prompts: Sequence[Any], critic: Any = None, **given: Any) -> Text2GradTrainer:
    """Return a trainer of a random model with this tokenizer."""
    settings: dict[str, Any] = {"batch_size": len(prompts), "max_new_tokens": 120, "steps": 2, "tracker": "none"}
    settings |= {"threads": 1, "out": str(out), "seed": 5, "epochs": 1}
    model = tiny_llama(made, seed=1, width=16, layers=1, context=4000)
    judge = critic or (lambda examples, responses: [""] * len(responses))
    return Text2GradTrainer(model, judge, list(prompts), processing_class=made, **{**settings, **given})
