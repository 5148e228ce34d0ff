"""`python -m evidence align`: critiques and a tokenizer → a pseudo-reward per token, and a report on the losses."""

import argparse
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Literal, get_args

from rich.console import Console

from evidence.commands.align_report import FILES, Gathered, print_report, row_of, write_reports
from evidence.commands.annotation_tables import Prices
from evidence.commands.token_rewards import label_tokens
from text2grad.align import AlignSettings, resolve
from text2grad.align.delta import Mode, Overlap, SpanMass
from text2grad.cli.options import add_command, add_shared, at_least, finite, print_end, refuse_bad, refuse_overwriting
from text2grad.errors import AlignmentError, DataError
from text2grad.feedback import WAY_OUT, Match, read_critique_records
from text2grad.files import to_json, write_atomically
from text2grad.types import HALF_PAIR

NOT_ALL_ALIGNED = 3
"""Exit status if some responses have no rewards, because their tokens decode to another text."""

DESCRIPTION = """\
Convert critiques in words to one reward per token of a policy's tokenizer, and report the losses: quotes that the
response does not contain, spans without a token, the share of tokens with a reward.

INPUT holds one JSON object per line:

  {"prompt": "Where do you live?", "response": "I live in Lyon.",
   "critique": {"feedback": "Lyon is not where she lives.", "poor_spans": ["Lyon"]}}

"critique" may also be the text of a critic, or an object with offsets: "spans":
[{"start": 10, "end": 14, "label": "negative"}].
The rollouts/*.jsonl of a run and the rewards.jsonl of this command have this form."""

EPILOG = """\
examples:
  python -m evidence align critiques.jsonl --tokenizer models/policy --out fidelity
  python -m evidence align runs/stories/rollouts/00000.jsonl --tokenizer models/policy --mode contract

files in DIR, each written atomically:
  rewards.jsonl   per response: ids, offsets, delta, the spans as characters of the decoded text, quotes not found
  report.json     the numbers, in total and per INPUT, the settings, and the responses without rewards
  report.html     the numbers and the first responses with coloured tokens; for any browser
  tables.txt      tokens and cost of annotation, fidelity and length of spans: tables 12, 14, 15, 18 of the paper
  tables.png      the same tables as bars

exit status:
  0   every record has rewards, or was skipped by --skip-bad
  2   nothing was written: a record, a file or a setting cannot be used
  3   rewards were written, but some responses have none: their tokens decode to another text"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "convert critiques to one reward per token, with a report on the losses"
    parser = add_command(commands, "align", run, about, DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("input", metavar="INPUT", type=Path, nargs="+", help="responses with critiques; one file per task")
    add("--tokenizer", required=True, metavar="PATH", help="the policy's tokenizer: the directory of a model")
    add("--out", type=Path, metavar="DIR", help="directory for rewards and reports; without it, only print")
    add("--limit", type=at_least(1), metavar="N", help="read only the first N records of each INPUT")
    add("--skip-bad", action="store_true", help="skip and count bad records instead of stopping at the first")
    add("--show", type=at_least(0), default=2, metavar="N", help="print N responses with coloured spans (default: 2)")
    add_shared(add, "--force")
    parser.set_defaults(weights={})  # the records' spans have their own
    settings = parser.add_argument_group("from critiques to rewards")
    _choice(settings, "--match", Match, "exact", "how quotes are located: exactly, or ignoring case, white space, ...")
    _choice(
        settings,
        "--mode",
        Mode,
        "expand",
        "tokens that a span marks: all it touches, only tokens inside it, or none unless it ends at token boundaries",
    )
    _choice(
        settings,
        "--weighting",
        Literal["uniform", "linear_decay", "token_importance"],
        "uniform",
        "weights of the tokens of a span",
    )
    _choice(settings, "--overlap", Overlap, "cancel", "reward of a token in a positive and a negative span")
    _choice(
        settings,
        "--span-mass",
        SpanMass,
        "token",
        "sum of weights: 1 per token, 1 per span, or divided by the response length",
    )
    cost = parser.add_argument_group("cost of annotation, in US dollars per million tokens (default: GPT-4o's prices)")
    for name, default in (("read", Prices().read), ("written", Prices().written)):
        cost.add_argument(
            f"--price-{name}", type=finite(0.0), default=default, metavar="USD", help="(default: %(default)s)"
        )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    Raises:
        Text2GradError: if a record, a file, the tokenizer or a setting cannot be used; then nothing is written.
    """
    console = Console()
    settings = AlignSettings.of(args)
    if args.out is not None:
        refuse_overwriting([args.out / name for name in FILES], force=args.force)
    from text2grad.models import load_tokenizer

    tokenizer = load_tokenizer(args.tokenizer)
    gathered = Gathered()
    if args.out is None:
        _gather(args, tokenizer, settings, gathered, None)
    else:
        path = args.out / "rewards.jsonl"
        try:
            args.out.mkdir(parents=True, exist_ok=True)
            lines = BytesIO()
            _gather(args, tokenizer, settings, gathered, lines)
            write_atomically(path, lines.getvalue())
        except OSError as error:
            raise DataError(f"cannot write {path}: {error.strerror}") from error
        write_reports(args, settings, gathered)
    print_report(console, args, gathered)
    if args.out is None:
        print_end("", note="add --out DIR to write the rewards and the reports")
    else:
        print_end(f"{args.out}/{', '.join(FILES)}", note=f"open {args.out}/report.html in a browser")
    return NOT_ALL_ALIGNED if gathered.not_aligned else 0


def _gather(
    args: argparse.Namespace, tokenizer: Any, settings: AlignSettings, gathered: Gathered, file: IO[bytes] | None
) -> None:
    """Label the tokens of every response; write the rewards if a file is given."""
    settings = replace(settings, weighting=resolve(settings.weighting))  # so that a tagger is loaded only once
    on_bad = gathered.skip if args.skip_bad else refuse_bad
    read = partial(read_critique_records, match=args.match, limit=args.limit, on_bad=on_bad)
    for task, record in ((path.stem, record) for path in args.input for record in read(path)):
        try:
            if record.ids is None and (half := HALF_PAIR.search(record.response)):
                raise AlignmentError(
                    f"the response holds {half[0]!r} at character {half.start()}, half of a surrogate pair, which no "
                    "tokenizer can encode"
                )
            rewards = label_tokens(tokenizer, record.response, record.critique, settings, ids=record.ids)
        except AlignmentError as error:
            on_bad(DataError(f"{record.where}: {str(error).rstrip('.')}. {WAY_OUT}"))
            continue
        gathered.add(task, tokenizer, record, rewards)
        if file and rewards:
            file.write(to_json(row_of(record, rewards)) + b"\n")


def _choice(parser: Any, name: str, values: Any, default: str, words: str) -> None:
    """Add an option with the values of a Literal."""
    parser.add_argument(name, choices=get_args(values), default=default, help=f"{words} (default: %(default)s)")
