"""Held-out F1 of a small reward model trained for minutes on human spans, compared with baselines without a model.

    python evidence/benchmarks/reward_proof.py mqm --data ../shared/data/mqm_ted_ende/segments.jsonl
    python evidence/benchmarks/reward_proof.py qa_feedback --data ../shared/data/qa_feedback/feedback.json

A Llama with random weights and a byte-level BPE of the training texts is trained on 72 % of the annotations. 8 %
select the checkpoint, and the other 20 % are the test set, for three seeds with different splits. The split holds out
whole prompts. The file also has figures of models that had seen other responses to the same prompts, a split that is
gone. Baselines:

    nothing     no token is negative, F1 0
    everything  every token is negative
    prior       a token is negative by its place in the response and the length of the response: shares of the training
                annotations, with the threshold of the best F1 there
    memory      a word is negative if it is negative in a training response to the same prompt

Each model decodes with and without the constraint. `--votes` samples several critiques of a response; the vote
threshold is chosen on the 8 %. `--copies` adds training examples with changed responses: one response, or the
beginning of one joined to the end of another response to the same prompt, without a quarter of the words and with the
marks that are left; so the model cannot memorize responses. Writes evidence/results/reward_proof.json.
"""

import argparse
import json
import os
import platform
import random
import re
import shutil
import tempfile
import time
from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from evidence import register
from text2grad import read_source
from text2grad.config.recipe import Recipe, make_recipe
from text2grad.feedback.records import Annotation, write_annotations
from text2grad.feedback.splits import split_by_prompt
from text2grad.files import to_json, write_atomically
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.training.held_out import HeldOutSet
from text2grad.reward_models.training.run import RewardRun
from text2grad.reward_models.writing import SYMBOLS, critique_prompt, critique_target
from text2grad.types import Example, Span

RESULTS = Path(__file__).parents[1] / "results" / "reward_proof.json"
LEFT_OUT, CROSSED = 0.25, 0.6  # share of words left out; share of copies joined from two responses
PLACES, LENGTHS = 20, (8, 16, 24, 32, 48, 64, 96, 128, 192)  # bins of the prior


def byte_bpe(texts: list[str], size: int) -> Any:
    """Return a byte-level BPE with tokens for the JSON of a critique."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=["<pad>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    core.add_tokens(list(SYMBOLS[:4]))
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="</s>", clean_up_tokenization_spaces=False
    )


def make_base(path: Path, annotations: list[Annotation], options: argparse.Namespace, seed: int) -> None:
    """Write a tokenizer of the training texts and a Llama with random weights."""
    texts = [critique_prompt(Example(one.prompt), one.response) for one in annotations]
    texts += [critique_target(one.critique, one.response, write_feedback=options.words) for one in annotations]
    tokenizer = byte_bpe(texts, options.vocabulary)
    torch.manual_seed(seed)
    width = options.width
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=width * 8 // 3 // 4 * 4,
            num_hidden_layers=options.layers,
            num_attention_heads=width // 32,
            num_key_value_heads=width // 32,
            max_position_embeddings=options.context,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
            initializer_range=0.05,
        )
    )
    with torch.no_grad():
        for layer in model.model.layers:  # a token attends to equal tokens: `begin_alike` in tasks/tiny.py
            layer.self_attn.k_proj.weight.copy_(layer.self_attn.q_proj.weight)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


class Prior:
    """The share of negative tokens by place and length, and the threshold on it with the best F1."""

    def __init__(self, deltas: list[tuple[float, ...]]) -> None:
        """Count the training tokens."""
        self.counts: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        for delta in deltas:
            for place, value in enumerate(delta):
                cell = self.counts[self.cell(place, len(delta))]
                cell[0] += value < 0
                cell[1] += 1
        negative = sum(n for n, _ in self.counts.values())
        right = marked = 0
        best, self.threshold = 0.0, 0.0
        for n, total in sorted(self.counts.values(), key=lambda cell: -cell[0] / cell[1]):
            right, marked = right + n, marked + total
            if (f1 := 2 * right / (marked + negative)) > best:
                best, self.threshold = f1, n / total

    @staticmethod
    def cell(place: int, length: int) -> tuple[int, int]:
        """Return the bin of a token."""
        return place * PLACES // length, bisect_right(LENGTHS, length)

    def f1(self, deltas: list[tuple[float, ...]]) -> float:
        """Return the F1 of the predictions on held-out tokens."""
        right = marked = negative = 0
        for delta in deltas:
            for place, value in enumerate(delta):
                n, total = self.counts.get(self.cell(place, len(delta)), (0, 1))
                guess = n / total >= self.threshold and n > 0
                right, marked, negative = right + (guess and value < 0), marked + guess, negative + (value < 0)
        return 2 * right / (marked + negative)


def with_words_left_out(one: Annotation, rng: random.Random) -> Annotation:
    """Return the annotation without some words of its response; marked words are left out 0.3 times as often."""
    kept = [True] * len(one.response)
    for word in re.finditer(r"\S+\s*", one.response):
        marked = any(span.start < word.end() and word.start() < span.end for span in one.critique.spans)
        if rng.random() < LEFT_OUT * (0.3 if marked else 1.0):
            kept[word.start() : word.end()] = [False] * len(word[0])
    response = "".join(character for character, here in zip(one.response, kept, strict=True) if here)
    place = [0, *accumulate(kept)]
    spans = []
    for span in one.critique.spans:
        text = response[place[span.start] : place[span.end]]
        start = place[span.start] + len(text) - len(text.lstrip())
        if text.strip():
            spans.append(Span(start, start + len(text.strip()), span.label))
    return Annotation(one.prompt, response, replace(one.critique, spans=tuple(spans))) if response.strip() else one


def crossed(one: Annotation, other: Annotation, rng: random.Random) -> Annotation:
    """Return the beginning of one response joined to the end of another, with the marks of both; cut between words."""
    share = rng.random()
    cuts = [cut_near(share, half) for half in (one, other)]
    if None in cuts:
        return one
    first, second = (int(cut or 0) for cut in cuts)
    behind = [s for s in other.critique.spans if s.start >= second]
    spans = [s for s in one.critique.spans if s.end <= first]
    spans += [Span(s.start - second + first, s.end - second + first, s.label) for s in behind]
    return Annotation(
        one.prompt, one.response[:first] + other.response[second:], replace(one.critique, spans=tuple(spans))
    )


def cut_near(share: float, one: Annotation) -> int | None:
    """Return the start of the word nearest to `share` of the response that is not within a span."""
    starts = [found.start() for found in re.finditer(r"(?<=\s)\S", one.response)]
    free = [at for at in starts if not any(span.start < at < span.end for span in one.critique.spans)]
    return min(free, key=lambda at: abs(at - share * len(one.response)), default=None)


def variants(learned: list[Annotation], copies: int, seed: int) -> list[Annotation]:
    """Return the annotations and `copies` − 1 changed copies of each."""
    rng, by_prompt = random.Random(seed), defaultdict(list)
    for one in learned:
        by_prompt[one.prompt].append(one)
    made = list(learned)
    for one in (one for _ in range(copies - 1) for one in learned):
        others = [other for other in by_prompt[one.prompt] if other is not one]
        both = crossed(one, rng.choice(others), rng) if others and rng.random() < CROSSED else one
        made.append(with_words_left_out(both, rng))
    return made


def words_of(one: Annotation) -> list[tuple[str, bool]]:
    """Return the words of a response, and which of them a negative span touches."""
    negative = [(span.start, span.end) for span in one.critique.spans if span.label == "negative"]
    return [
        (found[0].lower(), any(start < found.end() and found.start() < end for start, end in negative))
        for found in re.finditer(r"\w+|[^\w\s]", one.response)
    ]


def f1_of_memory(train: list[Annotation], test: list[Annotation]) -> float:
    """Return the F1, in words, of the words that are negative in a training response to the same prompt."""
    known = defaultdict(set)
    for one in train:
        known[one.prompt] |= {word for word, negative in words_of(one) if negative}
    guesses = [(word in known[one.prompt], negative) for one in test for word, negative in words_of(one)]
    marked, negative = sum(guess for guess, _ in guesses), sum(true for _, true in guesses)
    return 2 * sum(guess and true for guess, true in guesses) / (marked + negative)


def f1_of_everything(deltas: list[tuple[float, ...]]) -> float:
    """Return the F1 of marking every token negative."""
    values = [value for delta in deltas for value in delta]
    negative = sum(value < 0 for value in values)
    return 2 * negative / (len(values) + negative)


def one_seed(options: argparse.Namespace, read: list[Annotation], seed: int, scratch: Path) -> dict[str, Any]:
    """Train one model and return its metrics and seconds."""
    rest, test = split_by_prompt(read, 0.2, seed)
    train, chooses = split_by_prompt(rest, 0.1, seed)
    learned = [one for one in train if one.critique.spans or not options.only_marked]
    write_annotations(scratch / "train.jsonl", variants(learned, options.copies, seed))
    write_annotations(scratch / "chooses.jsonl", chooses)
    make_base(scratch / "base", learned, options, seed)
    started = time.perf_counter()
    run = RewardRun(recipe_of(options, scratch, seed))
    path = run.run(lambda step, steps, found: print(f"seed {seed} step {step}/{steps}", found, flush=True))
    seconds = time.perf_counter() - started
    prior, held_out = Prior(HeldOutSet(run.tokenizer, train).deltas), HeldOutSet(run.tokenizer, test)
    found: dict[str, Any] = {
        "seconds": round(seconds, 1),
        "counts": {**run.counts, "tested": len(held_out.annotations)},
        "nothing": 0.0,
        "everything": f1_of_everything(held_out.deltas),
        "prior": prior.f1(held_out.deltas),
        "memory": f1_of_memory(train, test),
    }
    ways: dict[str, dict[str, Any]] = {"constrained": {}, "free": {"constrain": False}}
    if options.votes > 1:
        ways |= {f"{name}, the likeliest": {**settings, "votes": 1} for name, settings in ways.items()}
    for name, settings in ways.items():
        critic = GenerativeRewardModel.load(path, **settings)
        quality = held_out.measure(critic)
        found[name] = quality.metrics() | {"vote_threshold": critic.format.vote_threshold}
    return found


def recipe_of(options: argparse.Namespace, scratch: Path, seed: int) -> Recipe:
    """Return the recipe of a seed."""
    return make_recipe(
        {
            "model": {"path": str(scratch / "base")},
            "reward_model": {
                "annotations": (str(scratch / "train.jsonl"),),
                "held_out": str(scratch / "chooses.jsonl"),
                "steps": options.steps,
                "batch_size": options.batch_size,
                "lr": options.lr,
                "optimizer": options.optimizer,
                "write_feedback": options.words,
                "max_tokens": options.context,
                "max_new_tokens": options.max_new_tokens,
                "eval_every": options.eval_every,
            },
            "critic": {"quote_limits": ["whole_words"], "votes": options.votes},
            "run": {"seed": seed, "out": str(scratch / "run"), "threads": options.threads, "tracker": "none"},
        }
    )


def main() -> None:
    """Measure every seed and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("format", choices=("mqm", "qa_feedback"))
    add("--data", required=True)
    add("--seeds", type=int, default=3)
    add("--first-seed", type=int, default=0)
    add("--steps", type=int, default=600)
    add("--eval-every", type=int, default=100)
    add("--batch-size", type=int, default=16)
    add("--lr", type=float, default=2e-3)
    add("--optimizer", choices=("adamw", "muon"), default="muon")
    add("--words", action=argparse.BooleanOptionalAction, default=False, help="write the feedback, too")
    add("--copies", type=int, default=1, help="training examples of each annotation; all but one are changed")
    add("--votes", type=int, default=1, help="critiques sampled of each response and combined by vote")
    add("--only-marked", action="store_true", help="train only on annotations with a span; test on all")
    add("--vocabulary", type=int, default=2_000)
    add("--width", type=int, default=128)
    add("--layers", type=int, default=3)
    add("--context", type=int, default=640)
    add("--max-new-tokens", type=int, default=256)
    add("--threads", type=int, default=2)
    add("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    register()
    read = [one for one in read_source(options.data, format=options.format) if isinstance(one, Annotation)]
    seeds = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        scratch = Path(tempfile.mkdtemp())
        try:
            seeds.append(one_seed(options, read, seed, scratch))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        print(json.dumps(seeds[-1], indent=1), flush=True)
    before = json.loads(options.out.read_bytes()) if options.out.exists() else {}
    settings = {k: v for k, v in vars(options).items() if k not in ("data", "out")}
    machine = {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count()}
    done = {options.format: {"settings": settings, "machine": machine, "seeds": seeds}}
    write_atomically(options.out, to_json({**before, **done}))


if __name__ == "__main__":
    main()
