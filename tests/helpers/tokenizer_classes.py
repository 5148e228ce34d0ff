"""Every tokenizer class of the installed transformers, each made with a small vocabulary of its own kind; no downloads.

A class in Rust is made without a vocabulary first: its kind (WordPiece, Unigram, BPE of bytes or of letters) then shows
which of the vocabularies of `tokenizers_made_here` fits. Classes in Python read files that are written here.
"""

import importlib
import json
import pkgutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from inspect import isclass, signature
from pathlib import Path
from typing import Any

import transformers.models
from transformers import PreTrainedTokenizerBase
from transformers.tokenization_python import PythonBackend

from tokenizers_made_here import CORPUS, made

LETTERS = sorted({*"".join(CORPUS)} - {" ", "\n", "\r", "\t"})
WORDS = ["the", "fair", "is", "in", "on", "park", "dog"]
OF_KIND = {"WordPiece": "bert", "Unigram": "t5", "bytes": "gpt2", "letters": "llama2"}
MORE = {"tags_dict": {}}
MARKS = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    "<mask>",
    "[UNK]",
    "[PAD]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "__start__",
    "__end__",
    "__unk__",
    "|",
]


@cache
def classes() -> dict[str, Any]:
    """Return every class by its module and name; modules that need a missing package are left out."""
    named: dict[str, Any] = {}
    for package in pkgutil.iter_modules(transformers.models.__path__):
        folder = Path(transformers.models.__path__[0], package.name)
        for file in sorted(folder.glob("tokenization_*.py")):
            try:
                module = importlib.import_module(f"transformers.models.{package.name}.{file.stem}")
            except (ImportError, NameError):
                continue
            for name, kind in vars(module).items():
                own = isclass(kind) and issubclass(kind, PreTrainedTokenizerBase) and kind.__module__ == module.__name__
                if own and kind is getattr(module, kind.__name__, None):
                    named.setdefault(name, kind)
    if importlib.util.find_spec("mistral_common"):
        from transformers.tokenization_mistral_common import MistralCommonBackend

        named["MistralCommonBackend"] = MistralCommonBackend
    return named


def tokenizers() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each class, and for mistral-common each of its files, with a function that makes one."""
    for name, kind in sorted(classes().items()):
        if name != "MistralCommonBackend":
            yield name, lambda kind=kind: make(kind)
            continue
        import mistral_common

        for file in sorted(Path(mistral_common.__file__).parent.glob("data/*")):
            if "tokenizer" in file.name or file.suffix == ".json":
                yield f"{name}({file.name})", lambda kind=kind, file=file: kind(tokenizer_path=str(file))


def make(kind: Any) -> Any:
    """Return a tokenizer of a class."""
    if issubclass(kind, PythonBackend):
        with tempfile.TemporaryDirectory() as directory:
            return kind(**_files(kind, Path(directory)))
    arguments = signature(kind.__init__).parameters
    if "vocab" not in arguments and "args" not in arguments and "vocab_file" in arguments:
        with tempfile.TemporaryDirectory() as directory:
            return kind(**_files(kind, Path(directory)))
    more = {name: MORE[name] for name in MORE if name in arguments}
    blank = kind(**more)
    core = blank.backend_tokenizer
    model = type(core.model).__name__
    if model == "BPE":
        model = "bytes" if "ByteLevel" in str(core.decoder) else "letters"
    state = json.loads(made(OF_KIND[model]).backend_tokenizer.to_str())["model"]
    merges = {"merges": [tuple(pair) for pair in state["merges"]]} if "merges" in state else {}
    if isinstance(state["vocab"], dict):
        known = state["vocab"]
        vocabulary: Any = known | {x: len(known) + k for k, x in enumerate(set(blank.all_special_tokens) - {*known})}
    else:
        known = [tuple(piece) for piece in state["vocab"]]
        vocabulary = [(x, 0.0) for x in blank.all_special_tokens if x not in dict(known)] + known
    unknown = {} if model == "WordPiece" else {"unk_token": "<unk>"}
    return kind(vocab=vocabulary, **merges, **more, **unknown)


def _files(kind: Any, folder: Path) -> dict[str, Any]:
    """Return the arguments of a class in Python, with the files that it reads."""
    given: dict[str, Any] = {}
    name = kind.__name__
    tokens = [*MARKS, *WORDS, *(f"{letter}</w>" for letter in LETTERS), *LETTERS, *(f"##{x}" for x in LETTERS)]
    tokens += [f"<|byte{byte}|>" for byte in range(256)] + ["<SP>", "<BR>", "<TAB>", "</_>", "</n>"]
    tokens += [f"{letter}@@" for letter in LETTERS] + [f"{word}</w>" for word in WORDS]
    if name in ("ClvpTokenizer",):
        tokens = [*MARKS, *json.loads(made("gpt2").backend_tokenizer.to_str())["model"]["vocab"]]
    if name == "MgpstrTokenizer":
        tokens += [" ", "[GO]", "[s]"]
    ids = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    for argument in signature(kind.__init__).parameters:
        path = folder / argument
        if argument in ("source_spm", "target_spm", "spm_file") or (argument == "vocab_file" and _reads_pieces(kind)):
            path = _pieces()
        elif argument == "vocab_file" and name == "MyT5Tokenizer":
            path.write_text(json.dumps({"decompose_map": {}, "merge_map": {}}))
        elif argument == "vocab_file" and kind.vocab_files_names.get("vocab_file", "").endswith("json"):
            path.write_text(json.dumps(ids))
        elif argument == "vocab_file" and name == "GPTNeoXJapaneseTokenizer":
            path.write_text("\n".join(ids))
        elif argument in ("vocab_file", "monolingual_vocab_file"):
            lines = (
                list(ids)
                if name not in ("PhobertTokenizer", "BertweetTokenizer", "BartphoTokenizer")
                else _counted(ids)
            )
            path.write_text("\n".join(lines))
        elif argument in ("src_vocab_file", "tgt_vocab_file", "vocab", "word_shape_file", "word_pronunciation_file"):
            path.write_text(json.dumps(ids))
        elif argument == "merges_file":
            path.write_text("#version: 0.2\n" + ("t h\nth e</w>\n" if name != "ClvpTokenizer" else ""))
        elif argument == "emoji_file":
            path.write_text(json.dumps({"emoji": {}, "emoji_inv": {}}))
        elif argument == "langs":
            given["langs"] = ["en", "de"]
            continue
        else:
            continue
        given[argument] = str(path)
    return given


def _counted(ids: dict[str, int]) -> list[str]:
    return [f"{token} 1" for token in ids]


def _reads_pieces(kind: Any) -> bool:
    return kind.vocab_files_names.get("vocab_file", "").endswith(".model")


@cache
def _pieces() -> Path:
    """Return a file of sentencepiece's, trained here.

    Raises:
        ImportError: if the package is not installed.
    """
    import sentencepiece

    folder = Path(tempfile.mkdtemp(prefix="pieces"))
    (folder / "corpus").write_text("\n".join("".join(CORPUS[:5]).splitlines() * 30))
    trainer = {"vocab_size": 360, "hard_vocab_limit": False, "minloglevel": 2, "character_coverage": 1.0}
    sentencepiece.SentencePieceTrainer.train(input=folder / "corpus", model_prefix=folder / "pieces", **trainer)
    return folder / "pieces.model"
