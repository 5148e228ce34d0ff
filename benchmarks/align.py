"""Tokens per second from sampled ids and spans to δ, on one thread, compared with other methods.

Methods, each from the same ids, response text and spans to one number per token:
    text2grad    `pseudo_rewards(tokenizer, ids, spans)`: decodes, checks and aligns from ids each time
    given        the same with known `offsets=`, as in a report that aligns one response several times
    re-encoding  the usual method: decode, `tokenizer(text, return_offsets_mapping=True)`, an interval test per token
    reference    the published code, from the checkout of --reference: decode token by token and match
    matcher      the same without the decoding

The benchmark composes the responses: English, emoji and code, 100 to 200 tokens and 4 to 8 spans each, 32 of each kind.
It also trains the tokenizers (byte-level BPE as in GPT-2 and Llama 3, SentencePiece with byte fallback). Times are
processor time of one thread, so that other work on the machine changes them less.

Run: python benchmarks/align.py [--json PATH] [--reference CHECKOUT] [--repeats N]
"""

import argparse
import ast
import contextlib
import difflib
import io
import json
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

for variable in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
    os.environ[variable] = "false" if variable == "TOKENIZERS_PARALLELISM" else "1"

import torch  # noqa: E402 - threads are pinned first
import transformers  # noqa: E402
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

from text2grad.align.delta import pseudo_rewards  # noqa: E402
from text2grad.align.offsets import token_offsets  # noqa: E402
from text2grad.types import Label, Span  # noqa: E402

PHRASES = {
    "english": "the tenant moved out before the lease ended | my landlord refuses to return the deposit | she said, "
    '"I\'m not sure" | the summary leaves out the second city | is well organised and easy to read | however, 1,250 '
    "people didn't agree | it rained on Tuesday; nobody came | which is clearly wrong",
    "emoji": "so glad 😀 to see you | 👨‍👩‍👧 came home late 🏠 | a café in Zürich ☕️ | I ❤️ this 🇫🇷 trip | that was not "
    "fun 😞 at all | naïve but sweet 🍰 | 我喜欢北京 very much | what a day 🎉🎉 indeed",
    "code": "def mean(values):\n    total = 0 | for index in range(len(values)):\n        total += values[index] | "
    "if not values:\n        return None | return total / len(values) | except (KeyError, ValueError) as error:\n"
    "        raise | with open(path, 'r') as lines:\n\t\tdata = [line.strip() for line in lines] | x = {'a': [1, 2.5], "
    "'b': -3} | # the empty list is not handled",
}


LABELS: tuple[Label, ...] = ("positive", "negative")


class Sample(NamedTuple):
    """One response: sampled ids, decoded text and spans."""

    ids: list[int]
    text: str
    spans: list[Span]


def build_tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """Train one tokenizer of each kind on the texts of the benchmark."""
    texts = [compose(kind, random.Random(seed), 40)[0] for kind in PHRASES for seed in range(40)]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(r" ", "merged_with_next"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    pieces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return {
        "gpt2": _trained(texts, 400, pre_tokenizer=byte_level, decoder=decoders.ByteLevel()),
        "llama3": _trained(texts, 400, pre_tokenizer=split, decoder=decoders.ByteLevel()),
        "llama2": _trained(texts, 250, normalizer=pieces, decoder=decoders.Sequence(undo)),
    }


def _trained(texts: list[str], size: int, **parts: Any) -> PreTrainedTokenizerFast:
    """Train a BPE so small that it splits common words into as many tokens as a large vocabulary splits rare words."""
    core = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    for name, part in parts.items():
        setattr(core, name, part)
    byte_level = "normalizer" not in parts
    spelled = [] if byte_level else [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size + 256,
        special_tokens=["<unk>", "<|eot_id|>", *spelled],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else [],
        **({} if byte_level else {"limit_alphabet": 70}),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    if not byte_level:  # byte tokens belong to the vocabulary and are not special
        state = json.loads(core.to_str())
        state["added_tokens"] = state["added_tokens"][:2]
        core = Tokenizer.from_str(json.dumps(state))
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<|eot_id|>")


def compose(kind: str, draw: random.Random, phrases: int) -> tuple[str, list[tuple[int, int]]]:
    """Return a text of `phrases` phrases and the characters [start, end) of each."""
    text, places = "", []
    known = PHRASES[kind].split(" | ")
    for _ in range(phrases):
        phrase = draw.choice(known)
        places.append((len(text), len(text) + len(phrase)))
        text += phrase + ("\n" if kind == "code" else draw.choice([". ", ", "]))
    return text, places


def make_samples(tokenizer: PreTrainedTokenizerFast, kind: str, count: int = 32) -> list[Sample]:
    """Make responses of 100 to 200 tokens with an end of sequence, each with 4 to 8 labelled phrases."""
    samples: list[Sample] = []
    for seed in range(10_000):
        draw = random.Random(seed)
        text, places = compose(kind, draw, draw.randint(5, 25))
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        if tokenizer.decode(ids, skip_special_tokens=True) != text:
            raise SystemExit(f"encoding and decoding changes a {kind} text of the benchmark")
        if 100 <= len(ids) <= 200:
            chosen = sorted(draw.sample(places, min(len(places), draw.randint(4, 8))))
            samples.append(Sample(ids, text, [Span(*place, draw.choice(LABELS)) for place in chosen]))
        if len(samples) == count:
            return samples
    raise SystemExit(f"too few {kind} responses of 100 to 200 tokens")


def re_encoded(tokenizer: PreTrainedTokenizerFast, sample: Sample) -> list[float]:
    """Decode, encode the text again, and test each token against each span."""
    text = tokenizer.decode(sample.ids, skip_special_tokens=True)
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    delta = [0.0] * len(offsets)
    for t, (start, end) in enumerate(offsets):
        for span in sample.spans:
            if start < span.end and span.start < end:
                delta[t] = 1.0 if span.label == "positive" else -1.0
    return delta


def load_reference(checkout: Path) -> Callable[[list[str], Sample], Any]:
    """Load the functions of the published matcher from a checkout, without running its other code."""
    home = checkout / "nl_gradiant_policy_optimization" / "kodcode"
    names = {"re": re, "difflib": difflib, "torch": torch}
    wanted = {
        "train_kodcode.py": {"normalize_code_whitespace", "fuzzy_find", "process_response_with_spans"},
        "text2grad_trainer.py": {"assign_token_rewards", "rematch_scores"},
    }
    for file, functions in wanted.items():
        tree = ast.parse((home / file).read_text())
        found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in functions]
        if {n.name for n in found} != functions:
            raise SystemExit(f"{home / file} has no {functions - {n.name for n in found}}")
        exec(compile(ast.Module(body=found, type_ignores=[]), file, "exec"), names)  # type: ignore[arg-type]
    return lambda tokens, sample: _reference(names, tokens, sample)


def decode_one_by_one(tokenizer: PreTrainedTokenizerFast, sample: Sample) -> list[str]:
    """Decode as the published training loop does."""
    return [re.sub("[‘’‛]", "'", tokenizer.decode(i).strip()) for i in sample.ids]


def _reference(names: dict[str, Any], tokens: list[str], sample: Sample) -> Any:
    """Match as the published training loop does for one response."""
    quotes = {label: [sample.text[s.start : s.end] for s in sample.spans if s.label == label] for label in LABELS}
    scored = names["process_response_with_spans"](sample.text, quotes["negative"], quotes["positive"])
    header = ["<|start_header_id|>", "assistant", "<|end_header_id|>"]
    trainer = type("Trainer", (), {"assign_token_rewards": names["assign_token_rewards"]})()
    scores = [[torch.tensor(score) for _, score in scored]]
    return names["rematch_scores"](trainer, scores, [[word for word, _ in scored]], [header + tokens])


def tokens_per_second(way: Callable[[int], Any], samples: list[Sample], repeats: int) -> float:
    """Return the median over repeats of tokens per second; each repeat processes all samples once."""
    tokens = sum(len(sample.ids) for sample in samples)
    rates = []
    for _ in range(repeats):
        begun = time.thread_time()
        for k in range(len(samples)):
            way(k)
        rates.append(tokens / (time.thread_time() - begun))
    return statistics.median(rates)


def measure(
    tokenizer: PreTrainedTokenizerFast, samples: list[Sample], reference: Any, repeats: int
) -> dict[str, float]:
    """Return tokens per second of each way on these samples."""
    known = [token_offsets(tokenizer, sample.ids) for sample in samples]
    ways: dict[str, Callable[[int], Any]] = {
        "text2grad": lambda k: pseudo_rewards(tokenizer, samples[k].ids, samples[k].spans),
        "given": lambda k: pseudo_rewards(tokenizer, samples[k].ids, samples[k].spans, offsets=known[k]),
        "re-encoding": lambda k: re_encoded(tokenizer, samples[k]),
    }
    if reference is not None:
        tokens = [decode_one_by_one(tokenizer, sample) for sample in samples]
        ways["reference"] = lambda k: reference(decode_one_by_one(tokenizer, samples[k]), samples[k])
        ways["matcher"] = lambda k: reference(tokens[k], samples[k])
    with contextlib.redirect_stdout(io.StringIO()):  # the published code prints
        rates = {name: tokens_per_second(way, samples, repeats) for name, way in ways.items()}
    return {name: round(rate) for name, rate in rates.items()}


def main() -> None:
    """Measure every tokenizer on every kind of response and print one JSON object."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--json", type=Path, help="write the result here as well")
    arguments.add_argument("--reference", type=Path, help="a checkout of the published code")
    arguments.add_argument("--repeats", type=int, default=15, help="repeats per median (default 15)")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    reference = load_reference(chosen.reference) if chosen.reference else None
    rows = []
    for name, tokenizer in build_tokenizers().items():
        for kind in PHRASES:
            samples = make_samples(tokenizer, kind)
            rates = measure(tokenizer, samples, reference, chosen.repeats)
            tokens = statistics.mean(len(sample.ids) for sample in samples)
            ratios = {f"over {peer}": round(rates["text2grad"] / rates[peer], 1) for peer in list(rates)[2:]}
            rows.append({"tokenizer": name, "kind": kind, "mean tokens": tokens, "tokens/s": rates, **ratios})
    result = {
        "unit": "tokens per second of processor time, median, one thread",
        "versions": {"python": sys.version.split()[0], "transformers": transformers.__version__},
        "repeats": chosen.repeats,
        "rows": rows,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if chosen.json:
        chosen.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
