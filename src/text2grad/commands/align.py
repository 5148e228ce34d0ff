"""`text2grad align`: critiques and a tokenizer -> a reward for every token, and a report on what was lost."""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from text2grad import html
from text2grad.align import Mode, Overlap, SpanMass
from text2grad.errors import AlignmentError, ConfigError, DataError, ModelError
from text2grad.fidelity import Fidelity, Tally
from text2grad.labelled import AlignSettings, Labelled, label_tokens
from text2grad.record_files import WAY_OUT
from text2grad.records import Form, Judged, read_judged
from text2grad.runlog import write_atomically
from text2grad.spans import Match
from text2grad.terminal import plain, print_critique
from text2grad.weighting import WeightingName, resolve

NOT_ALL_ALIGNED = 3
"""Exit status when some responses got no rewards, since the tokenizer cannot say their text."""

HTML_RESPONSES = 50
NAMED_PROBLEMS = 20

_NO_SUCH_MODEL = "no such directory, and no model of that name in Hugging Face's local cache"
_DEFAULTS = {
    "--format": "jsonl",
    "--match": "exact",
    "--mode": "expand",
    "--weighting": "uniform",
    "--overlap": "cancel",
    "--span-mass": "token",
}

DESCRIPTION = """\
Turn critiques in words into one reward per token, for a policy's tokenizer, and report what the words lost on the way:
quotes that the response does not contain, spans that no token fits, the share of tokens that learn anything.

INPUT holds one JSON object per line:

  {"prompt": "Where do you live?", "response": "I live in Lyon.",
   "critique": {"feedback": "Lyon is not where she lives.", "poor_spans": ["Lyon"]}}

"critique" may also be the text that a critic wrote, or have offsets: "spans": [[10, 14, "negative"]].
The rollouts/*.jsonl of a run are such files, and so is the rewards.jsonl that this command writes."""

EPILOG = """\
examples:
  text2grad align critiques.jsonl --tokenizer models/policy --out fidelity
  text2grad align runs/stories/rollouts/00000.jsonl --tokenizer models/policy --mode contract
  text2grad align feedback.json --format qa_feedback --tokenizer models/policy --out fidelity

written to DIR, each file whole or not at all:
  rewards.jsonl   per response: ids, offsets, delta, the spans as characters of the decoded text, quotes not found
  report.json     the figures, the settings, and the responses that have no rewards
  report.html     the figures and the first responses with coloured tokens; open it in any browser

exit status:
  0   every record has rewards, or was skipped as --skip-bad allows
  2   nothing was written: a record, a file or a setting cannot be used
  3   rewards were written, but some responses have none: their tokens decode to another text"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command to the subparsers of a command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "align",
        help="critiques + tokenizer -> a reward for every token, and a report on what was lost",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("input", metavar="INPUT", type=Path, help="responses with their critiques")
    add("--tokenizer", required=True, metavar="PATH", help="the policy's tokenizer: the directory of a model")
    add("--out", type=Path, metavar="DIR", help="where to write rewards and reports; without it, only print")
    add("--limit", type=_at_least(1), metavar="N", help="read only the first N records")
    _choice(parser, "--format", Form, "form of INPUT")
    add("--skip-bad", action="store_true", help="count records that cannot be used instead of stopping at the first")
    add("--show", type=_at_least(0), default=2, metavar="N", help="print N responses with coloured spans (default: 2)")
    how = parser.add_argument_group("how words become rewards")
    _choice(how, "--match", Match, "how quotes are found: character by character, or forgiving case, white space, ...")
    _choice(how, "--mode", Mode, "the tokens a span means: all it touches, those inside it, or none unless it fits")
    _choice(how, "--weighting", WeightingName, "how a span weighs its tokens")
    _choice(how, "--overlap", Overlap, "what a token in a positive and a negative span gets")
    _choice(how, "--span-mass", SpanMass, "1 per token, 1 per span, or divided by the response's length")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the command; return the exit status.

    Raises:
        Text2GradError: if a record, a file, the tokenizer or a setting cannot be used; nothing is written then.
    """
    console = Console()
    settings = AlignSettings(args.mode, args.weighting, args.overlap, args.span_mass)
    tokenizer = load_tokenizer(args.tokenizer)
    gathered = _Gathered()
    if args.out is None:
        _gather(args, tokenizer, settings, gathered, None)
    else:
        with _writing(args.out) as file:
            _gather(args, tokenizer, settings, gathered, file)
        _write_reports(args, settings, gathered)
    _print_report(console, args, gathered)
    return NOT_ALL_ALIGNED if gathered.not_aligned else 0


def load_tokenizer(path: str) -> Any:
    """Return the tokenizer of a directory, or of a name in Hugging Face's local cache; nothing is downloaded.

    Raises:
        ConfigError: if transformers is not installed.
        ModelError: if there is no tokenizer.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ConfigError('tokenizers need transformers: pip install "text2grad[train]"') from error
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if Path(path).exists() else _NO_SUCH_MODEL
        raise ModelError(
            f"cannot load a tokenizer from {path}: {reason}. Give the directory of a model, with its tokenizer.json"
        ) from error


@dataclass(slots=True)
class _Gathered:
    """What the reports are made of."""

    tally: Tally = field(default_factory=Tally)
    shown: list[Labelled] = field(default_factory=list)
    not_aligned: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def skip(self, error: DataError) -> None:
        """Count a record that cannot be used."""
        self.tally.skip()
        self.skipped.append(str(error).removesuffix(f". {WAY_OUT}"))

    def take(self, judged: Judged, labelled: Labelled | None) -> None:
        """Count a response."""
        if labelled is None:
            self.tally.leave_out()
            self.not_aligned.append(judged.where)
            return
        self.tally.add(labelled)
        if len(self.shown) < HTML_RESPONSES:
            self.shown.append(labelled)


def _gather(
    args: argparse.Namespace, tokenizer: Any, settings: AlignSettings, gathered: _Gathered, file: IO[bytes] | None
) -> None:
    """Give every response of the input its rewards; write them where there is a file."""
    settings = replace(settings, weighting=resolve(settings.weighting))  # a tagger is loaded once
    on_bad = gathered.skip if args.skip_bad else None
    for judged in read_judged(args.input, form=args.format, match=args.match, limit=args.limit, on_bad=on_bad):
        try:
            labelled = label_tokens(tokenizer, judged, settings)
        except AlignmentError as error:
            bad = DataError(f"{judged.where}: {str(error).rstrip('.')}. {WAY_OUT}")
            if on_bad is None:
                raise bad from error
            on_bad(bad)
            continue
        gathered.take(judged, labelled)
        if file and labelled:
            file.write(json.dumps(labelled.as_record(), allow_nan=False).encode() + b"\n")


@contextmanager
def _writing(directory: Path) -> Iterator[IO[bytes]]:
    """Open the file of rewards, which is there whole at the end, or not at all."""
    path = directory / "rewards.jsonl"
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file, _removed_on_error(temporary):
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    """Leave no half-written file behind."""
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _write_reports(args: argparse.Namespace, settings: AlignSettings, gathered: _Gathered) -> None:
    """Write report.json and report.html."""
    report = {
        "input": str(args.input),
        "tokenizer": args.tokenizer,
        "settings": {"match": args.match, **asdict(settings)},
        **gathered.tally.report().as_json(),
        "without_rewards": gathered.not_aligned,
        "skipped_records": gathered.skipped,
    }
    files = {"report.json": json.dumps(report, indent=2) + "\n", "report.html": _page(args, settings, gathered)}
    for name, text in files.items():
        try:
            write_atomically(args.out / name, text.encode())
        except OSError as error:
            raise DataError(f"cannot write {args.out / name}: {error.strerror}") from error


def _page(args: argparse.Namespace, settings: AlignSettings, gathered: _Gathered) -> str:
    """Return report.html."""
    shown, fidelity = gathered.shown, gathered.tally.report()
    how = {"match": args.match, **asdict(settings)}
    intro = (
        f"What the critiques of {args.input.name} say of each token of {Path(args.tokenizer).name}.\n\n"
        + " · ".join(f"{name.replace('_', ' ')}: {value}" for name, value in how.items())
    )
    heading = "Responses" if len(shown) == fidelity.aligned else "First responses"
    return html.rollouts_page(
        "From words to tokens",
        intro=intro,
        summary=fidelity.rows(),
        groups=[(heading, [labelled.as_record() for labelled in shown])],
    )


def _print_report(console: Console, args: argparse.Namespace, gathered: _Gathered) -> None:
    """Print some responses, the figures, and what was left out."""
    for labelled in gathered.shown[: args.show]:
        critique = replace(labelled.judged.critique, spans=labelled.spans)
        print_critique(console, labelled.text, critique, title=labelled.judged.where)
    console.print(_table(gathered.tally.report(), f"{args.input.name} → {Path(args.tokenizer).name}"))
    _print_problems(console, "no rewards, since the tokens decode to another text:", gathered.not_aligned)
    _print_problems(console, "skipped:", gathered.skipped)
    if args.out is not None:
        console.print(plain(f"\nwritten: {args.out}/rewards.jsonl, report.json, report.html"), soft_wrap=True)


def _table(fidelity: Fidelity, title: str) -> Table:
    """Return the figures as a table."""
    table = Table.grid(padding=(0, 3))
    table.add_row(plain(title, style="bold"))
    for name, value in fidelity.rows():
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _print_problems(console: Console, heading: str, problems: list[str]) -> None:
    """Print the first problems of a kind, and how many more there are."""
    if not problems:
        return
    console.print(plain(f"\n{heading}", style="yellow"))
    for problem in problems[:NAMED_PROBLEMS]:
        console.print(plain(f"  {problem}"), soft_wrap=True)
    if len(problems) > NAMED_PROBLEMS:
        console.print(f"  and {len(problems) - NAMED_PROBLEMS:,} more")


def _choice(parser: Any, name: str, values: Any, words: str) -> None:
    """Add an option that has the values of a Literal."""
    default = _DEFAULTS[name]
    parser.add_argument(name, choices=get_args(values), default=default, help=f"{words} (default: %(default)s)")


def _at_least(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from the command line."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got {text!r}")
        return int(text)

    return read
