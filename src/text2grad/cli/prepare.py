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
and counted. A share of the subjects (texts, or titles of first passages) goes into the held-out file. Two further
files hold the prompts to train on with responses, cut at --answer-tokens tokens, for the annotations of a reward model
(`text2grad annotate --own-critic`): right_answers.jsonl the gold answer and sentences of the passage;
altered_answers.jsonl such sentences with names, numbers and sentences of other passages, and sentences said again.

Or write the files of all phases from one of the paper's data sets, `slf5k`, `kodcode` or `ultrafeedback`, divided as
in the paper: sft.jsonl with demonstrations, annotate.jsonl with responses to annotate, train.jsonl with prompts for
`text2grad train`, preferences.jsonl with chosen and rejected responses, held_out.jsonl with prompts that no phase
learns from. Texts that later phases cannot use, such as blank responses, are left out and counted."""

EPILOG = """\
formats of grounded:
  table        columns "passage", and optionally "question" and "answer" (--column passage=context renames one)
  qa_feedback  Fine-Grained RLHF: questions that people asked, with retrieved passages and a gold answer
  faithbench   source texts of FaithBench, to be summarized

examples:
  text2grad prepare grounded feedback.json --format qa_feedback --tokenizer models/smollm2 --out data/grounded
  text2grad prepare grounded mine.jsonl --tokenizer models/smollm2 --column passage=context --out data/mine
  text2grad prepare slf5k JeremyAlain/SLF5K --held-out-split validation --out data/slf5k
  text2grad prepare kodcode KodCode/KodCode-V1-SFT-4o --split train --split incorrect --out data/kodcode
  text2grad prepare kodcode KodCode/KodCode-Light-RL-10K --without data/kodcode/train.jsonl --out data/kodcode-rl
  text2grad prepare ultrafeedback HuggingFaceH4/ultrafeedback_binarized --split train_prefs --out data/ultrafeedback

written: files in OUT; recipes name them (data.train, data.held_out_file, sft.data). A file without records is not
written."""

GROUNDED = "grounded"
DATA_SETS = ("slf5k", "kodcode", "ultrafeedback")
HELD_OUT = {GROUNDED: 0.25, "slf5k": 0.1, "kodcode": 0.05, "ultrafeedback": 0.01}
"""Task → the share of its prompts that is held out unless another is given."""
PASSAGE_TOKENS, ANSWER_TOKENS = 200, 48
TASKS_OF = {
    **dict.fromkeys(("tokenizer", "format", "column", "passage_tokens", "answer_tokens"), (GROUNDED,)),
    **dict.fromkeys(("held_out_split", "prompts", "without"), DATA_SETS),
}
"""Option → the tasks that have it; options that are not here belong to all."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    from text2grad.feedback.sources import PASSAGE_FORMATS

    about = "turn data of others into prompts and held-out prompts"
    add = add_command(commands, "prepare", run, about, DESCRIPTION, EPILOG).add_argument
    tasks = (GROUNDED, *DATA_SETS)
    add("task", metavar="TASK", choices=tasks, help=", ".join(tasks))
    add("path", metavar="PATH", help="a file, a directory of `datasets`, or OWNER/NAME on the Hugging Face hub")
    add("--out", type=Path, required=True, metavar="DIR", help="the directory to write to")
    split = "split of a data set; for a data set of the paper, may be repeated (default: train)"
    add("--split", action="append", default=[], metavar="NAME", help=split)
    shares = ", ".join(f"{share:g} of {task}" for task, share in HELD_OUT.items())
    add("--held-out", type=float, metavar="SHARE", help=f"share held out (default: {shares})")
    add("--seed", type=at_least(0), default=0, metavar="N", help="chooses the held-out share (default: %(default)s)")
    add("--tokenizer", metavar="MODEL", help="for grounded: the model whose tokens are counted")
    add("--format", choices=PASSAGE_FORMATS, help="for grounded: format (default: table)")
    add(
        "--column", action="append", default=[], metavar="OURS=THEIRS", help="for grounded: name of a column in a table"
    )
    cut = f"for grounded: most tokens of a passage; 0 for no limit (default: {PASSAGE_TOKENS})"
    add("--passage-tokens", type=at_least(0), metavar="N", help=cut)
    cut = "for grounded: most tokens of a right answer, as rollout.max_new_tokens; 0 for no limit"
    add("--answer-tokens", type=at_least(0), metavar="N", help=f"{cut} (default: {ANSWER_TOKENS})")
    add("--held-out-split", metavar="NAME", help="for a data set of the paper: its split that is held out, whole")
    add(
        "--without",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="for a data set of the paper: leave out the prompts of this prepared file; may be repeated",
    )
    most = "for a data set of the paper: most prompts, chosen by the seed"
    add("--prompts", type=at_least(1), metavar="N", help=most)
    add_force(add)


def run(args: argparse.Namespace) -> int:
    """Read the data, write the files, and print the numbers.

    Raises:
        Text2GradError: if the data, an option or the tokenizer cannot be used; then nothing is written.
    """
    _check_options(args)
    args.held_out = HELD_OUT[args.task] if args.held_out is None else args.held_out
    if not 0.0 < args.held_out < 1.0:
        raise ConfigError(f"--held-out must lie between 0 and 1, got {args.held_out:g}")
    if args.task == GROUNDED and not args.tokenizer:
        raise ConfigError(
            "grounded cuts passages by tokens; name the model that will be trained with --tokenizer MODEL"
        )
    return _grounded(args) if args.task == GROUNDED else _phases(args)


def _check_options(args: argparse.Namespace) -> None:
    """Refuse options that would have no effect."""
    for name, tasks in TASKS_OF.items():
        value = getattr(args, name)
        given = value is not None and value is not False and value != []
        if given and args.task not in tasks:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is an option of {', '.join(tasks)}, not of {args.task}; leave it out")
    if Path(args.path).is_file() and (args.split or args.held_out_split):
        option = "--split" if args.split else "--held-out-split"
        raise ConfigError(
            f"{option} names a split, and {args.path} is one file, which has none; leave the option out, or give the "
            "directory of the data set"
        )
    if args.held_out_split and args.held_out is not None:
        raise ConfigError("--held-out-split holds out a whole split, and --held-out a share; give one of the two")
    if args.task == GROUNDED and len(args.split) > 1:
        raise ConfigError(f"{GROUNDED} reads one split, got --split {' --split '.join(args.split)}")


def _grounded(args: argparse.Namespace) -> int:
    from text2grad.feedback import write_examples
    from text2grad.feedback.sources import read_passages
    from text2grad.models import load_tokenizer
    from text2grad.progress import CONSOLE
    from text2grad.tasks import altered_answers, grounded_examples, right_answers

    files = [args.out / f"{name}.jsonl" for name in ("train", "held_out", "right_answers", "altered_answers")]
    refuse_overwriting(files, force=args.force)
    found = read_passages(
        args.path,
        format=args.format or "table",
        columns=name_values("--column", args.column, form="OURS=THEIRS"),
        split=(args.split or ["train"])[0],
    )
    tokenizer = load_tokenizer(args.tokenizer)
    passage_tokens = PASSAGE_TOKENS if args.passage_tokens is None else args.passage_tokens
    answer_tokens = ANSWER_TOKENS if args.answer_tokens is None else args.answer_tokens

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def cut(text: str) -> str:
        return answer_start(tokenizer, text, answer_tokens) if answer_tokens else text

    made = grounded_examples(
        found.kept, count=count, passage_tokens=passage_tokens, held_out=args.held_out, seed=args.seed
    )
    if not made.train or not made.held_out:
        raise DataError(
            f"{args.path}: {len(made.train)} prompts to train on and {len(made.held_out)} held out are left "
            f"({_listed(found.left_out + made.left_out)}); both need at least one"
        )
    right, altered = list(right_answers(made.train, cut)), list(altered_answers(made.train, cut, seed=args.seed))
    for path, examples in zip(files, (made.train, made.held_out, right, altered), strict=True):
        write_examples(path, examples)
    figures = [("prompts to train on", f"{len(made.train):,}"), ("prompts held out", f"{len(made.held_out):,}")]
    figures += [("right answers", f"{len(right):,}"), ("altered answers", f"{len(altered):,}")]
    figures += [("passages cut", f"{made.cut:,}")]
    figures += [("left out", f"{number:,} {reason}") for reason, number in (found.left_out + made.left_out).items()]
    print_lines(figures)
    recipe = f'[data] task = "grounded", train = "{files[0]}", held_out_file = "{files[1]}"'
    print_end(CONSOLE, ", ".join(map(str, files)), note=recipe)
    return 0


def answer_start(tokenizer: Any, text: str, tokens: int) -> str:
    """Return the characters of a text that its first tokens spell, without a character that the next token shares.

    Special tokens that the text spells are text.
    """
    from text2grad.align import token_offsets

    whole = text.encode("utf-8", "replace").decode()  # halves of surrogate pairs as "?"
    encoded = tokenizer(
        whole,
        add_special_tokens=False,
        split_special_tokens=True,
        return_offsets_mapping=tokenizer.is_fast,
        verbose=False,
    )
    ids = encoded["input_ids"]
    if len(ids) <= tokens:
        return text
    if tokenizer.is_fast:
        offsets = encoded["offset_mapping"]
    else:
        offsets = token_offsets(tokenizer, ids, skip_special_tokens=False)
    return text[: min(offsets[tokens - 1][1], offsets[tokens][0])]


def _phases(args: argparse.Namespace) -> int:
    """Write the files of all phases from a data set of the paper."""
    from text2grad.feedback import read_examples
    from text2grad.feedback.sources import (
        divide,
        known_preferences,
        read_problems,
        responses_to_annotate,
        split_unit,
    )
    from text2grad.files import json_lines, write_files
    from text2grad.progress import CONSOLE

    names = ("sft", "annotate", "train", "preferences", "held_out")
    refuse_overwriting([args.out / f"{name}.jsonl" for name in names], force=args.force)
    known = [one for path in args.without for one in read_examples(path)]
    without = {text for one in known for text in (str(one.prompt), split_unit(one))}
    kept_out = []
    if args.held_out_split:
        kept_out = read_problems(args.path, args.task, splits=[args.held_out_split], without=without).kept
        without |= {text for one in kept_out for text in (str(one.example.prompt), split_unit(one.example))}
    problems, left_out = read_problems(args.path, args.task, splits=args.split or ["train"], without=without)
    held_out = 0.0 if args.held_out_split else args.held_out
    made = divide(problems, args.task, held_out=held_out, seed=args.seed, most=args.prompts)
    made = made._replace(held_out=kept_out) if args.held_out_split else made
    if not made.prompts or not made.held_out:
        taken = f"; --prompts takes {args.prompts:,} of them" if args.prompts is not None else ""
        raise DataError(
            f"{args.path}: {len(made.prompts)} prompts to train on and {len(made.held_out)} held out are left of "
            f"{len(problems)} ({_listed(left_out)}{taken}); both need at least one"
        )
    preferences = known_preferences(made.responses)
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
    figures = [(words, f"{len(lines[name]):,}") for words, name in zip(meaning, names, strict=True)]
    print_lines(figures + [("left out", f"{number:,} {reason}") for reason, number in left_out.items()])
    recipe = f"recipes/paper/{args.task}.toml holds the commands of all phases"
    print_end(CONSOLE, ", ".join(str(args.out / name) for name in written), note=recipe)
    return 0


def _listed(left_out: Any) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in left_out.items()) or "none left out"
