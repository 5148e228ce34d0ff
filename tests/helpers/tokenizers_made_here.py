"""Tokenizers made on the spot: nothing is downloaded, and each is small enough to go wrong often.

`FAMILIES` names one maker per way that policies spell and decode text; `of_tokens` makes a tokenizer whose
vocabulary is exactly the tokens of one conformance case.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from places import STORIES

CORPUS = [
    "The little dog went to the big park. \"Don't go!\" said Tom, but the dog didn't listen to him.",
    "def mean(values):\n\tif not values:\r\n\t    return 0.0\n    return sum(values) / len(values)\n",
    "Once upon a time, there was a café where naïve people drank thé. Über, Straße, señor.",
    "我喜欢北京。 東京は美味しい。 안녕하세요 שלום עולם مرحبا بك",
    "so glad 😀😀😁 👨‍👩‍👧 🇫🇷 👍🏽 ❤️ today, the 1,250 people were 20% sure... it's what they'd say!",
] * 4
SPECIAL = ["<unk>", "<start>", "<end>"]
SPLIT = "|".join(  # words, numbers of three digits, marks with their newlines, newlines, spaces
    [
        r"(?i:'[stmd]|'re|'ve|'ll)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+",
    ]
)
LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
DECODERS: dict[str, Callable[[], Any]] = {
    "byte_level": decoders.ByteLevel,
    "llama": lambda: decoders.Sequence([*LLAMA, decoders.Strip(content=" ", left=1, right=0)]),
    "gemma": lambda: decoders.Sequence(LLAMA),
    "metaspace": decoders.Metaspace,
    "wordpiece": decoders.WordPiece,
}


def wrapped(core: Tokenizer, **settings: Any) -> PreTrainedTokenizerFast:
    """Wrap a core as transformers does, with an added token that is special to no one."""
    core.add_tokens([AddedToken("<tool>", special=False), AddedToken("né le", special=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<start>", eos_token="<end>", **settings
    )


def of_tokens(family: str, tokens: Sequence[str | dict[str, str]]) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """Return a tokenizer that knows these tokens (see `tests/data/alignment.json`), and their ids."""
    spelled = [part for token in tokens for part in spell(family, token)]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(["<unk>", *spelled]))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.decoder = DECODERS[family]()
    core.add_special_tokens([t["special"] for t in tokens if isinstance(t, dict) and "special" in t])
    core.add_tokens([t["added"] for t in tokens if isinstance(t, dict) and "added" in t])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>"), [vocabulary[t] for t in spelled]


def words(*tokens: str, special: str | None = None) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """Return a byte-level tokenizer of these tokens and their ids."""
    return of_tokens("byte_level", [*tokens, *([{"special": special}] if special else [])])


def spell(family: str, token: str | dict[str, str]) -> list[str]:
    """Return the vocabulary's spelling of a token; more than one for bytes of a family with byte tokens."""
    if isinstance(token, dict) and "bytes" in token:
        data = bytes.fromhex(token["bytes"])
        return [in_letters(data)] if family == "byte_level" else [f"<0x{byte:02X}>" for byte in data]
    if isinstance(token, dict):
        return list(token.values())
    return [in_letters(token.encode()) if family == "byte_level" else token]


def in_letters(data: bytes) -> str:
    """Spell bytes in GPT-2's alphabet."""
    return "".join(bytes_to_unicode()[byte] for byte in data)


def gpt2() -> PreTrainedTokenizerFast:
    """Byte-level BPE that splits as GPT-2."""
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def llama3() -> PreTrainedTokenizerFast:
    """Byte-level BPE that splits as Llama 3 and Qwen."""
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    return _byte_level(
        pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    )


def _byte_level(pre_tokenizer: Any) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )
    return wrapped(core)


def llama2() -> PreTrainedTokenizerFast:
    """SentencePiece BPE with byte fallback; the first space is put in and taken away."""
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL, limit_alphabet=60, show_progress=False)
    core.train_from_iterator(CORPUS, trainer)
    core.decoder = DECODERS["llama"]()
    return wrapped(_with_byte_tokens(core))


def gemma() -> PreTrainedTokenizerFast:
    """SentencePiece Unigram with byte fallback that keeps every space."""
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    core.train_from_iterator(CORPUS[1::5] + CORPUS[2::5], _unigram_trainer())
    core.decoder = DECODERS["gemma"]()
    return wrapped(_with_byte_tokens(core))


def t5() -> PreTrainedTokenizerFast:
    """SentencePiece Unigram without byte fallback."""
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer, core.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    core.train_from_iterator(CORPUS, _unigram_trainer())
    return wrapped(core)


def bert(**settings: Any) -> PreTrainedTokenizerFast:
    """WordPiece."""
    core = Tokenizer(models.WordPiece(unk_token="<unk>"))
    core.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    core.pre_tokenizer, core.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    core.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    )
    return wrapped(core, **settings)


def bert_cleaned() -> PreTrainedTokenizerFast:
    """WordPiece whose decoded text transformers cleans up once more."""
    return bert(clean_up_tokenization_spaces=True)


def stories260k() -> Any:
    """The tokenizer of a real small policy, which is there where the project's shared models are."""
    return AutoTokenizer.from_pretrained(STORIES)


def _unigram_trainer() -> Any:
    return trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)


def _with_byte_tokens(core: Tokenizer) -> Tokenizer:
    """Return the same tokenizer with the 256 byte tokens in its vocabulary."""
    state = json.loads(core.to_str())
    model, names = state["model"], [f"<0x{byte:02X}>" for byte in range(256)]
    if isinstance(model["vocab"], dict):
        model["vocab"] |= {name: len(model["vocab"]) + k for k, name in enumerate(names)}
    else:
        model["vocab"] += [[name, -20.0] for name in names]
    model["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(state))


MAKERS = {maker.__name__: maker for maker in (gpt2, llama3, llama2, gemma, t5, bert, bert_cleaned, stories260k)}
FAMILIES = [name for name in MAKERS if name != "stories260k" or STORIES.exists()]
FAST = ("gpt2", "llama2", "words")
"""Tokenizers of `make test`: bytes, and pieces with a byte fallback; the others are tests of `make test-all`."""


def parameters(names: Iterable[str]) -> list[Any]:
    """Return the names of tokenizers as parameters of a test, those that are not in `FAST` marked as thorough."""
    return [pytest.param(name, marks=[] if name in FAST else pytest.mark.thorough) for name in names]


@lru_cache
def made(name: str) -> Any:
    """Return the tokenizer of this name, made once."""
    return MAKERS[name]()
