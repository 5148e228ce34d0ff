"""`python -m evidence prepare-grounded`: passages → prompts, held-out prompts, and right and altered answers."""

import argparse
from pathlib import Path
from typing import Any

from evidence.tasks.grounded.answers import altered_answers, right_answers
from evidence.tasks.grounded.passages import PASSAGE_FORMATS, read_passages
from evidence.tasks.grounded.prompts import grounded_examples
from text2grad.align import text_offsets
from text2grad.cli.options import (
    add_command,
    add_shared,
    at_least,
    name_values,
    print_end,
    print_lines,
    refuse_overwriting,
)
from text2grad.errors import ConfigError, DataError, ModelError
from text2grad.feedback import write_examples
from text2grad.models import load_tokenizer

DESCRIPTION = """\
Write prompts of the task `grounded`: answer a question from a passage, or summarize a passage. The prompts are chat
messages; passage, question and gold answer stand beside them for critic and metric. Passages are cut after the last
whole sentence within --passage-tokens tokens of the model that will be trained. Records without a passage are left out
and counted. A share of the subjects (texts, or titles of first passages) goes into the held-out file. Two further
files hold the prompts to train on with responses, cut at --answer-tokens tokens, for the annotations of a reward model
(`text2grad annotate --own-critic`): right_answers.jsonl the gold answer and sentences of the passage;
altered_answers.jsonl such sentences with names, numbers and sentences of other passages, and sentences said again."""

EPILOG = """\
formats:
  table        columns "passage", and optionally "question" and "answer" (--column passage=context renames one)
  qa_feedback  Fine-Grained RLHF: questions that people asked, with retrieved passages and a gold answer
  faithbench   source texts of FaithBench, to be summarized

examples:
  python -m evidence prepare-grounded feedback.json --format qa_feedback --tokenizer models/smollm2 --out data/grounded
  python -m evidence prepare-grounded mine.jsonl --tokenizer models/smollm2 --column passage=context --out data/mine"""

HELD_OUT, PASSAGE_TOKENS, ANSWER_TOKENS = 0.25, 200, 48


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "turn passages into prompts of the task grounded"
    add = add_command(commands, "prepare-grounded", run, about, DESCRIPTION, EPILOG).add_argument
    add("path", metavar="PATH", help="a file, a directory of `datasets`, or OWNER/NAME on the Hugging Face hub")
    add("--out", type=Path, required=True, metavar="DIR", help="the directory to write to")
    add("--split", default="train", metavar="NAME", help="split of a data set (default: %(default)s)")
    held_out = "share held out (default: %(default)s)"
    add("--held-out", type=float, default=HELD_OUT, metavar="SHARE", help=held_out)
    add("--seed", type=at_least(0), default=0, metavar="N", help="chooses the held-out share (default: %(default)s)")
    add("--tokenizer", metavar="MODEL", required=True, help="the model whose tokens are counted")
    add("--format", choices=PASSAGE_FORMATS, default="table", help="format (default: %(default)s)")
    add("--column", action="append", default=[], metavar="OURS=THEIRS", help="name of a column in a table")
    cut = "most tokens of a passage; 0 for no limit (default: %(default)s)"
    add("--passage-tokens", type=at_least(0), default=PASSAGE_TOKENS, metavar="N", help=cut)
    cut = "most tokens of a right answer, as rollout.max_new_tokens; 0 for no limit (default: %(default)s)"
    add("--answer-tokens", type=at_least(0), default=ANSWER_TOKENS, metavar="N", help=cut)
    add_shared(add, "--force")


def run(args: argparse.Namespace) -> int:
    """Read the passages, write the files, and print the numbers.

    Raises:
        Text2GradError: if the data, an option or the tokenizer cannot be used; then nothing is written.
    """
    if not 0.0 < args.held_out < 1.0:
        raise ConfigError(f"--held-out must lie between 0 and 1, got {args.held_out:g}")
    files = [args.out / f"{name}.jsonl" for name in ("train", "held_out", "right_answers", "altered_answers")]
    refuse_overwriting(files, force=args.force)
    found = read_passages(
        args.path,
        format=args.format,
        columns=name_values("--column", args.column, form="OURS=THEIRS"),
        split=args.split,
    )
    tokenizer = load_tokenizer(args.tokenizer)

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def cut(text: str) -> str:
        return answer_start(tokenizer, text, args.answer_tokens) if args.answer_tokens else text

    made = grounded_examples(
        found.kept, count=count, passage_tokens=args.passage_tokens, held_out=args.held_out, seed=args.seed
    )
    if not made.train or not made.held_out:
        left_out = found.left_out + made.left_out
        reasons = ", ".join(f"{number} {reason}" for reason, number in left_out.items()) or "none left out"
        raise DataError(
            f"{args.path}: {len(made.train)} prompts to train on and {len(made.held_out)} held out are left "
            f"({reasons}); both need at least one"
        )
    right, altered = list(right_answers(made.train, cut)), list(altered_answers(made.train, cut, seed=args.seed))
    for path, examples in zip(files, (made.train, made.held_out, right, altered), strict=True):
        write_examples(path, examples)
    figures = [("prompts to train on", f"{len(made.train):,}"), ("prompts held out", f"{len(made.held_out):,}")]
    figures += [("right answers", f"{len(right):,}"), ("altered answers", f"{len(altered):,}")]
    figures += [("passages cut", f"{made.cut:,}")]
    figures += [("left out", f"{number:,} {reason}") for reason, number in (found.left_out + made.left_out).items()]
    print_lines(figures)
    recipe = f'[data] task = "grounded", train = "{files[0]}", held_out = "{files[1]}"'
    print_end(", ".join(map(str, files)), note=recipe)
    return 0


def answer_start(tokenizer: Any, text: str, tokens: int) -> str:
    """Return the characters of a text that its first tokens spell, without a character that the next token shares.

    Special tokens that the text spells are text.
    """
    ids, offsets = text_offsets(tokenizer, text)
    if len(ids) <= tokens:
        return text
    if offsets is None:
        raise ModelError(f"{type(tokenizer).__name__} decodes {text[:60]!r} to another text; name another tokenizer")
    return text[: min(offsets[tokens - 1][1], offsets[tokens][0])]
