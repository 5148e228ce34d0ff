"""Tokens per second of writing critiques: constrained decoding against transformers' `generate`, same model, same run.

    python benchmarks/reward_decode.py                             # three models, batch 16 and 64, JSON to stdout
    python benchmarks/reward_decode.py --size 32k --batch 16 --json reward_decode.json

Models with random weights: "tiny" is the model of the quickstart (width 64, 2 layers, 512 ids); "32k" and "128k" are
Llamas of hidden size 512 with 8 layers and that number of ids (about 40 and 90 million parameters). Two kinds of runs.
"trained": a bonus on the logits makes each row write a critique with quotes from its response, as a trained model
would, also without the constraint. "untrained": no bonus; almost no argmax token is allowed.

The runs are interleaved; ratios are ratios of medians. All times are processor time of one thread, so that other work
on the machine does not count. `overhead_share` is the time within the constraint over the time of the constrained run;
`prepare_seconds` is the delay before the first critique of a tokenizer. `votes`: eight critiques of each question of
384 tokens; tokens per second with a prefix for every row ("whole"), with one shared prefix per question ("once"), and
the ratio.

With `--peer`, llguidance compiles the grammar of each response, if it is installed (`pip install llguidance`).
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROMPT, NEW_TOKENS = 64, 64
QUESTION, VOTES = 384, 8
SIZES = {"tiny": (512, 64, 2), "32k": (32_000, 512, 8), "128k": (128_256, 512, 8)}


def build_tokenizer(size: int) -> Any:
    """Return a byte-level tokenizer of bytes, the marks of JSON, and the most frequent words of a dictionary."""
    from spellchecker import SpellChecker
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    frequencies = SpellChecker().word_frequency
    words = sorted(frequencies.words(), key=lambda word: (-frequencies[word], word))
    forms = (form for word in words for form in (f" {word}", word, f" {word.title()}", word.title()))
    marks = ['", "', '",', '"]', '"]}', "[]", '":', '["', " [", "textual", "_feedback", "_spans", "good", "poor", '{"']
    letters = bytes_to_unicode()
    spelled = ("".join(letters[byte] for byte in text.encode()) for text in (*marks, *forms))
    tokens = list(dict.fromkeys(["</s>", *letters.values(), *spelled]))[:size]
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="</s>"))
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", pad_token="</s>")


def build_model(size: int, width: int, layers: int) -> Any:
    """Return a Llama with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=max(4, width // 64),
        num_key_value_heads=max(4, width // 64),
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def encode(vocabulary: Any, text: str) -> list[int]:
    """Return the ids of a text; at each place the longest token that fits."""
    data, ids = text.encode(), []
    while data:
        end = max(end for end in range(1, min(len(data), 32) + 1) if data[:end] in vocabulary.spelled)
        ids.append(vocabulary.spelled[data[:end]][0])
        data = data[end:]
    return ids


def make_rows(vocabulary: Any, batch: int) -> tuple[list[str], list[list[int]]]:
    """Return responses, and for each the ids of a critique that quotes it, at most `NEW_TOKENS` − 1."""
    from text2grad.reward_models.writing import critique_target
    from text2grad.types import Critique, Span

    generator = random.Random(0)
    words = [data.decode() for data in vocabulary.spelled if data[:1] == b" " and data[1:].isalpha()]
    responses, scripts = [], []
    for _ in range(batch):
        response = "".join(generator.choices(words, k=80))
        script: list[int] = []
        for length in range(1, 40):
            feedback = "".join(generator.choices(words, k=length)).strip()
            cuts = sorted(generator.sample(range(1, 80), 4))
            places = [len(" ".join(response.split(" ")[: cut + 1])) for cut in cuts]
            spans = (Span(places[0], places[1], "positive"), Span(places[2], places[3], "negative"))
            ids = encode(vocabulary, critique_target(Critique(feedback, spans), response))
            if len(script) < len(ids) < NEW_TOKENS:
                script = ids
        responses.append(response)
        scripts.append(script)
    return responses, scripts


class Script:
    """Makes a model write given ids, by a bonus on the logits."""

    def __init__(self, scripts: list[list[int]], eos: int) -> None:
        """Store the ids of each row, filled up with the end-of-sequence id."""
        import torch

        ended = [ids + [eos] * (NEW_TOKENS - len(ids)) for ids in scripts]
        self.ids = torch.tensor(ended)

    def add(self, logits: Any, rows: Any, step: int) -> Any:
        """Give the next id of each row a bonus."""
        column = self.ids[rows, step, None]
        return logits.scatter_add(1, column, logits.new_full(column.shape, 1e4))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Do so as a logits processor of transformers."""
        return self.add(scores, range(len(scores)), input_ids.shape[1] - PROMPT)


class Timed:
    """A choice of tokens and the seconds spent in it."""

    def __init__(self, choose: Any) -> None:
        """Wrap a choice."""
        self.choose, self.seconds = choose, 0.0

    def __call__(self, logits: Any, rows: Any, step: int) -> Any:
        """Choose and add the time."""
        start = time.process_time()
        tokens = self.choose(logits, rows, step)
        self.seconds += time.process_time() - start
        return tokens


class Bench:
    """One model, one batch size."""

    def __init__(self, size: str, batch: int) -> None:
        """Make model, tokenizer, responses and prompts, and measure the preparation."""
        from text2grad.reward_models import CritiqueFormat
        from text2grad.reward_models.decoding.constrained import skeleton_of

        ids, width, layers = SIZES[size]
        self.model, self.tokenizer = build_model(ids, width, layers), build_tokenizer(ids)
        start = time.process_time()
        self.skeleton = skeleton_of(self.tokenizer, CritiqueFormat(), size=ids, eos_ids=(0,))
        self.prepare_seconds = time.process_time() - start
        self.responses, self.scripts = make_rows(self.skeleton.vocabulary, batch)
        generator = random.Random(1)
        self.prompts = [[generator.randrange(1, ids) for _ in range(PROMPT)] for _ in range(batch)]

    def plain(self, script: Any) -> float:
        """Return seconds per token of greedy decoding with `generate` of transformers."""
        import torch
        from transformers import GenerationConfig, LogitsProcessorList

        prompts = torch.tensor(self.prompts)
        config = GenerationConfig(eos_token_id=0, pad_token_id=0, max_new_tokens=NEW_TOKENS, do_sample=False)
        start = time.process_time()
        output = self.model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            generation_config=config,
            logits_processor=LogitsProcessorList([script] if script else []),
        )
        seconds = time.process_time() - start
        written = (output[:, PROMPT:] != 0).sum() + (output[:, -1] == 0).sum()
        return seconds / int(written)

    def ours(self, script: Any, *, constrain: bool) -> tuple[float, float]:
        """Return seconds per token of the reward model's decoding, and the share of the constraint."""
        from text2grad.feedback.spans import critique_from_text
        from text2grad.models.decoding import decode, most_likely
        from text2grad.reward_models.decoding.constrained import ConstrainedCritique, valid_choice
        from text2grad.reward_models.decoding.quotable import QuoteLimits

        start = time.process_time()
        critiques = [
            ConstrainedCritique(self.skeleton, response, eos_ids=(0,), room=NEW_TOKENS, limits=QuoteLimits())
            for response in (self.responses if constrain else ())
        ]
        begun = time.process_time() - start
        timed = Timed(valid_choice(critiques) if constrain else most_likely)

        def choose(logits: Any, rows: Any, step: int) -> Any:
            return timed(script.add(logits, rows, step) if script else logits, rows, step)

        ids = decode(self.model, self.prompts, choose, max_new_tokens=NEW_TOKENS, eos_ids=(0,), pad_id=0)
        seconds = time.process_time() - start
        for critique, response in zip(critiques, self.responses, strict=False):
            found = critique_from_text(critique.text, response, occurrences="first")
            assert found.status == "ok", critique.text
            assert not found.unmatched, critique.text
        return seconds / sum(map(len, ids)), (begun + timed.seconds) / seconds

    def measure(self, repeats: int) -> dict[str, Any]:
        """Return tokens per second of all runs, ratios to plain decoding, and the share of the constraint."""
        runs: dict[str, list[float]] = {}
        shares: dict[str, list[float]] = {}
        for number in range(repeats + 1):
            for kind, script in (("trained", Script(self.scripts, 0)), ("untrained", None)):
                plain = self.plain(script)
                free, _ = self.ours(script, constrain=False)
                constrained, share = self.ours(script, constrain=True)
                if number:  # the first round warms up
                    for name, value in (("plain", plain), ("ours", free), ("constrained", constrained)):
                        runs.setdefault(f"{kind} {name}", []).append(value)
                    shares.setdefault(kind, []).append(share)
        median = {name: statistics.median(values) for name, values in runs.items()}
        return {
            "tokens_per_second": {name: 1 / value for name, value in median.items()},
            "ratio": {
                f"{kind} {run}": median[f"{kind} plain"] / median[f"{kind} {run}"]
                for kind in ("trained", "untrained")
                for run in ("ours", "constrained")
            },
            "overhead_share": {kind: statistics.median(values) for kind, values in shares.items()},
        }

    def votes(self, repeats: int) -> dict[str, float]:
        """Return tokens per second of several critiques of a question, with a prefix per row and per question."""
        from text2grad.models.decoding import decode

        generator, ids = random.Random(2), len(self.tokenizer)
        count = len(self.prompts) // VOTES
        questions = [[generator.randrange(1, ids) for _ in range(QUESTION)] for _ in range(count)]
        rows = [question for question in questions for _ in range(VOTES)]
        groups = [str(number) for number in range(count) for _ in range(VOTES)]
        runs: dict[str, list[float]] = {"whole": [], "once": []}
        for number in range(repeats + 1):
            for name, given in (("whole", []), ("once", groups)):
                start = time.process_time()
                decode(self.model, rows, max_new_tokens=NEW_TOKENS, eos_ids=(0,), pad_id=0, groups=given)
                if number:
                    runs[name].append(time.process_time() - start)
        speed = {name: len(rows) * NEW_TOKENS / statistics.median(seconds) for name, seconds in runs.items()}
        return {**speed, "ratio": speed["once"] / speed["whole"]}

    def peer(self) -> dict[str, float]:
        """Return the seconds of llguidance to read the tokenizer, and the mean to compile the grammar of a response."""
        from llguidance import LLMatcher
        from llguidance.hf import from_tokenizer

        from text2grad.reward_models.decoding.grammar import critique_grammar

        start = time.process_time()
        tokenizer = from_tokenizer(self.tokenizer)
        read = time.process_time()
        for response in self.responses:
            matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(critique_grammar(response)))
            matcher.compute_bitmask()
            assert not matcher.is_error(), matcher.get_error()
        return {"read_seconds": read - start, "compile_seconds": (time.process_time() - read) / len(self.responses)}


def one(args: argparse.Namespace) -> None:
    """Measure one setting in this process and print it as JSON."""
    import torch

    torch.set_num_threads(1)
    bench = Bench(args.size[0], args.batch[0])
    found = {
        "size": args.size[0],
        "parameters": bench.model.num_parameters(),
        "batch": args.batch[0],
        "prepare_seconds": bench.prepare_seconds,
        **bench.measure(args.repeats),
        "votes": bench.votes(args.repeats),
    }
    print(json.dumps({**found, "llguidance": bench.peer()} if args.peer else found))


def main() -> None:
    """Measure every setting, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--here", action="store_true", help="measure the first size and batch in this process")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.here:
        one(args)
        return
    results = []
    for size in args.size:
        for batch in args.batch:
            command = [sys.executable, __file__, "--here", "--size", size, "--batch", str(batch)]
            command += ["--repeats", str(args.repeats), *(["--peer"] if args.peer else [])]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
            results.append(json.loads(output.splitlines()[-1]))
            print(json.dumps(results[-1], indent=1), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
