"""`text2grad prepare`: data of others → prompts and held-out prompts, or the files of all phases, for recipes."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import (
    add_command,
    add_force,
    at_least,
    name_values,
    print_end,
    print_lines,
    refuse_overwriting,
)
from text2grad.errors import ConfigError, DataError

DESCRIPTION = """\
Write prompts of the task `grounded`: answer a question from a passage, or summarize a passage. The prompts are chat
messages; passage, question and gold answer stand beside them for critic and metric. Passages are cut after the last
whole sentence within --passage-tokens tokens of the model that will be trained. Records without a passage are left out
and counted. A share of the subjects (texts, or titles of first passages) goes into the held-out file. A third file,
right_answers.jsonl, holds the prompts to train on with responses that are right, for a reward model to learn praise
from (`text2grad annotate --own-critic`): the gold answer, and sentences of the passage, cut at --answer-tokens tokens.

Or write the files of all phases from one of the paper's data sets, `slf5k`, `kodcode` or `ultrafeedback`, divided as
in the paper: sft.jsonl with demonstrations, annotate.jsonl with responses to annotate, train.jsonl with prompts for
`text2grad train`, preferences.jsonl with chosen and rejected responses, held_out.jsonl with prompts that no phase
learns from."""

EPILOG = """\
formats of grounded:
  table        columns "passage", and optionally "question" and "answer" (--column passage=context renames one)
  qa_feedback  Fine-Grained RLHF: questions that people asked, with retrieved passages and a gold answer
  faithbench   source texts of FaithBench, to be summarized

examples:
  text2grad prepare grounded feedback.json --format qa_feedback --tokenizer models/smollm2 --out data/grounded
  text2grad prepare grounded mine.jsonl --tokenizer models/smollm2 --column passage=context --out data/mine
  text2grad prepare slf5k JeremyAlain/SLF5K --held-out-split validation --out data/slf5k
  text2grad prepare kodcode KodCode/KodCode-V1-SFT-4o --prompts 9000 --pairs --out data/kodcode
  text2grad prepare ultrafeedback HuggingFaceH4/ultrafeedback_binarized --split train_prefs --out data/ultrafeedback

written: files in OUT; recipes name them (data.train, data.held_out_file, sft.data). A file without records is not
written."""

GROUNDED = "grounded"
DATA_SETS = ("slf5k", "kodcode", "ultrafeedback")
HELD_OUT = {GROUNDED: 0.25, "slf5k": 0.1, "kodcode": 0.05, "ultrafeedback": 0.01}
"""Task → the share of its prompts that is held out unless another is given."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    from text2grad.feedback.sources import PASSAGE_FORMATS

    about = "turn data of others into prompts and held-out prompts"
    add = add_command(commands, "prepare", run, about, DESCRIPTION, EPILOG).add_argument
    tasks = (GROUNDED, *DATA_SETS)
    add("task", metavar="TASK", choices=tasks, help=", ".join(tasks))
    add("path", metavar="PATH", help="a file, a directory of `datasets`, or OWNER/NAME on the Hugging Face hub")
    add("--out", type=Path, required=True, metavar="DIR", help="the directory to write to")
    add("--split", default="train", help="split of a data set (default: %(default)s)")
    shares = ", ".join(f"{share:g} of {task}" for task, share in HELD_OUT.items())
    add("--held-out", type=float, metavar="SHARE", help=f"share held out (default: {shares})")
    add("--seed", type=at_least(0), default=0, metavar="N", help="chooses the held-out share (default: %(default)s)")
    add("--tokenizer", metavar="MODEL", help="for grounded: the model whose tokens are counted")
    add("--format", choices=PASSAGE_FORMATS, default="table", help="for grounded: format (default: %(default)s)")
    add(
        "--column", action="append", default=[], metavar="OURS=THEIRS", help="for grounded: name of a column in a table"
    )
    cut = "for grounded: most tokens of a passage; 0 for no limit (default: %(default)s)"
    add("--passage-tokens", type=at_least(0), default=200, metavar="N", help=cut)
    cut = (
        "for grounded: most tokens of a right answer, as rollout.max_new_tokens; 0 for no limit (default: %(default)s)"
    )
    add("--answer-tokens", type=at_least(0), default=48, metavar="N", help=cut)
    add("--held-out-split", metavar="NAME", help="for a data set of the paper: its split that is held out, whole")
    most = "for a data set of the paper: most prompts, chosen by the seed"
    add("--prompts", type=at_least(1), metavar="N", help=most)
    pairs = "for kodcode: run the tests of all programs in the sandbox, and pair those that pass with those that fail"
    add("--pairs", action="store_true", help=pairs)
    add_force(add)


def run(args: argparse.Namespace) -> int:
    """Read the data, write the files, and print the numbers.

    Raises:
        Text2GradError: if the data, an option or the tokenizer cannot be used; then nothing is written.
    """
    args.held_out = HELD_OUT[args.task] if args.held_out is None else args.held_out
    if not 0.0 < args.held_out < 1.0:
        raise ConfigError(f"--held-out must lie between 0 and 1, got {args.held_out:g}")
    if args.task == GROUNDED and not args.tokenizer:
        raise ConfigError(
            "grounded cuts passages by tokens; name the model that will be trained with --tokenizer MODEL"
        )
    if args.pairs and args.task != "kodcode":
        raise ConfigError(f"--pairs runs unit tests, which {args.task} does not have; leave it out")
    return _grounded(args) if args.task == GROUNDED else _phases(args)


def _grounded(args: argparse.Namespace) -> int:
    from text2grad.feedback import write_examples
    from text2grad.feedback.sources import read_passages
    from text2grad.models import load_tokenizer
    from text2grad.progress import CONSOLE
    from text2grad.tasks import grounded_examples, right_answers

    files = args.out / "train.jsonl", args.out / "held_out.jsonl", args.out / "right_answers.jsonl"
    refuse_overwriting(files, force=args.force)
    found = read_passages(
        args.path,
        format=args.format,
        columns=name_values("--column", args.column, form="OURS=THEIRS"),
        split=args.split,
    )
    tokenizer = load_tokenizer(args.tokenizer)

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def count(text: str) -> int:
        return len(encode(text))

    def cut(text: str) -> str:
        ids = encode(text)
        short = 0 < args.answer_tokens < len(ids)
        return tokenizer.decode(ids[: args.answer_tokens], skip_special_tokens=True) if short else text

    made = grounded_examples(
        found.kept, count=count, passage_tokens=args.passage_tokens, held_out=args.held_out, seed=args.seed
    )
    if not made.train or not made.held_out:
        raise DataError(
            f"{args.path}: {len(made.train)} prompts to train on and {len(made.held_out)} held out are left "
            f"({_listed(found.left_out + made.left_out)}); both need at least one"
        )
    right = list(right_answers(made.train, cut))
    for path, examples in zip(files, (made.train, made.held_out, right), strict=True):
        write_examples(path, examples)
    figures = [("prompts to train on", f"{len(made.train):,}"), ("prompts held out", f"{len(made.held_out):,}")]
    figures += [("right answers", f"{len(right):,}"), ("passages cut", f"{made.cut:,}")]
    figures += [("left out", f"{number:,} {reason}") for reason, number in (found.left_out + made.left_out).items()]
    print_lines(figures)
    recipe = f'[data] task = "grounded", train = "{files[0]}", held_out_file = "{files[1]}"'
    print_end(CONSOLE, ", ".join(map(str, files)), note=recipe)
    return 0


def _phases(args: argparse.Namespace) -> int:
    """Write the files of all phases from a data set of the paper."""
    from text2grad.critics import preferences_by_tests
    from text2grad.feedback.sources import divide, known_preferences, read_problems, responses_to_annotate
    from text2grad.files import json_lines, write_files
    from text2grad.progress import CONSOLE

    names = ("sft", "annotate", "train", "preferences", "held_out")
    refuse_overwriting([args.out / f"{name}.jsonl" for name in names], force=args.force)
    problems = read_problems(args.path, args.task, split=args.split)
    if args.held_out_split:
        kept_out = read_problems(args.path, args.task, split=args.held_out_split)
        known = {str(one.example.prompt) for one in kept_out}
        problems = [one for one in problems if str(one.example.prompt) not in known]
        made = divide(problems, args.task, held_out=0.0, seed=args.seed, most=args.prompts)._replace(held_out=kept_out)
    else:
        made = divide(problems, args.task, held_out=args.held_out, seed=args.seed, most=args.prompts)
    if not made.prompts or not made.held_out:
        raise DataError(
            f"{args.path}: {len(made.prompts)} prompts to train on and {len(made.held_out)} held out are left of "
            f"{len(problems)}; both need at least one"
        )
    preferences = known_preferences(made.responses)
    if args.pairs:
        examples = [one.example for one in made.responses]
        preferences += preferences_by_tests(examples, [[text for text, _ in one.responses] for one in made.responses])
    examples_of = {"sft": made.demonstrations, "train": made.prompts, "held_out": made.held_out}
    lines = {
        name: [
            {"prompt": one.example.prompt, "reference": one.example.reference, "tests": one.example.tests}
            for one in part
        ]
        for name, part in examples_of.items()
    }
    lines["annotate"] = list(responses_to_annotate(made.responses))
    lines["preferences"] = [one._asdict() for one in preferences]
    written = {f"{name}.jsonl": json_lines(lines[name]) for name in names if lines[name]}
    write_files(args.out, written)
    meaning = ("demonstrations", "responses to annotate", "prompts to train on", "preferences", "prompts held out")
    print_lines([(words, f"{len(lines[name]):,}") for words, name in zip(meaning, names, strict=True)])
    recipe = f"recipes/paper/{args.task}.toml holds the commands of all phases"
    print_end(CONSOLE, ", ".join(str(args.out / name) for name in written), note=recipe)
    return 0


def _listed(left_out: Any) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in left_out.items()) or "none left out"
