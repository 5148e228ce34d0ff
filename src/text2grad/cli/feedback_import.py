"""`text2grad feedback import`: feedback in other formats → annotations, with counts of items and losses."""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from text2grad.cli.options import (
    add_command,
    add_shared,
    at_least,
    finite,
    name_values,
    print_end,
    print_lines,
    refuse_bad,
    refuse_overwriting,
    say,
)
from text2grad.errors import ConfigError, DataError, check_known
from text2grad.feedback import WAY_OUT, Annotation, write_annotations, write_examples
from text2grad.feedback.sources import SOURCES, WORDS_ONLY, Item, Options, read_items
from text2grad.progress import CONSOLE, note
from text2grad.runs.reports import print_critique
from text2grad.types import Example

DESCRIPTION = """\
Read feedback in another format and write annotations: one line of JSON per response, with feedback in words and its
spans. Records without feedback are written as examples, for a policy to answer. Data that annotations cannot hold is
counted and reported with the reason."""

EPILOG = """\
examples:
  text2grad feedback import qa_feedback feedback.json --out qa.jsonl --missing-outcome -0.5
  text2grad feedback import table answers.csv --column response=answer --column feedback=comment --out mine.jsonl
  text2grad feedback import table answers.csv --column response=answer --map thumb=up:1,down:-1 --out judged.jsonl
  text2grad feedback import label_studio export.json --label Hallucination=negative --out team.jsonl

If a source has annotations and examples, the examples go to OUT.examples.jsonl. docs/feedback.md shows each format."""

SHOWN_LOSSES, SHOWN_CHARACTERS = 3, 200  # losses of a kind, each of so many characters
SEPARATE = (
    "import again with --ungrounded WORDS.jsonl --force, and ground WORDS.jsonl with `text2grad annotate`: OUT holds "
    "marks and words without a place"
)


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "convert feedback in other formats to annotations, with a report on the losses"
    formats = "\n".join(f"  {name:14}{source.about}" for name, source in SOURCES.items())
    epilog = f"formats:\n{formats}\n\n{EPILOG}"
    add = add_command(commands, "import", run, about, DESCRIPTION, epilog, extras=()).add_argument
    add("format", metavar="FORMAT", choices=SOURCES, help="a format of the list below")
    add("path", metavar="PATH", help="a file, a directory of `datasets`, or OWNER/NAME on the Hugging Face hub")
    add("--out", type=Path, required=True, metavar="OUT", help="the output: a .jsonl file")
    add("--column", action="append", default=[], metavar="OURS=THEIRS", help="name of a column in the source")
    judged = "column of the outcome, and the number that each of its values means, such as thumb=up:1,down:-1"
    add("--map", type=_outcomes, default=("", {}), metavar="COLUMN=VALUE:NUMBER,...", help=judged)
    meanings = "positive, negative or ignore; may be repeated"
    add("--label", action="append", default=[], metavar="NAME=MEANING", help=meanings)
    add("--split", default="train", help="split of a data set or a directory (default: %(default)s)")
    ungrounded = "write words without a place to this .jsonl file, which `text2grad annotate` grounds, not to OUT"
    add("--ungrounded", type=Path, metavar="FILE", help=ungrounded)
    add("--missing-outcome", type=finite(), metavar="X", help="outcome of each error without a span (a missing fact)")
    add("--limit", type=at_least(1), metavar="N", help="read only the first N records")
    add("--skip-bad", action="store_true", help="skip and count bad records instead of stopping at the first")
    add_shared(add, "--force")


def run(args: argparse.Namespace) -> int:
    """Read the source, write annotations and examples, and print the first annotation and the counts."""
    beside = _check_outputs(args)
    labels: Any = name_values("--label", args.label)
    for meaning in labels.values():
        check_known("--label", meaning, ("positive", "negative", "ignore"))
    column, outcomes = args.map
    columns = name_values("--column", [*args.column, *([f"outcome={column}"] if column else [])])
    options = Options(columns, labels | outcomes, args.missing_outcome)
    annotations, words, bad = list[Annotation](), list[Annotation](), list[str]()

    def skip(error: DataError) -> None:
        bad.append(str(error).removesuffix(f". {WAY_OUT}"))

    on_bad = skip if args.skip_bad else refuse_bad
    items = list(read_items(args.path, args.format, options, split=args.split, limit=args.limit, on_bad=on_bad))
    examples = [item.made for item in items if isinstance(item.made, Example)]
    judged = [(item, item.made) for item in items if isinstance(item.made, Annotation)]
    if judged and not args.quiet and not SOURCES[args.format].private:
        print_critique(CONSOLE, judged[0][1].response, judged[0][1].critique, title=judged[0][0].where)
    for item, made in judged:
        alone = args.ungrounded and WORDS_ONLY in dict(item.losses)
        (words if alone else annotations).append(made)
    files: list[tuple[Path, Any, Callable[[Path, Any], None]]] = [
        (args.out, annotations, write_annotations),
        (args.ungrounded, words, write_annotations),
        (beside if annotations else args.out, examples, write_examples),
    ]
    written = []
    for path, made, write in files:
        if made:
            write(path, made)
            written.append(path)
    _print_account(items, bad, [] if args.limit else options.unmet(), options.met)
    if not written:
        raise DataError(f"{args.path}: no record can be used; nothing was written")
    marked = any(annotation.critique.spans for annotation in annotations)
    then: tuple[str, ...] = ("text2grad", "reward", "RECIPE.toml", "--annotations", str(args.out))
    if words or not marked:  # the annotations would give no token a reward
        grounds = args.ungrounded if words else written[0]
        then = ("text2grad", "annotate", "RECIPE.toml", "--set", f"data.train={grounds}")
    mixed = marked and not args.ungrounded and any(WORDS_ONLY in dict(item.losses) for item in items)
    print_end(", ".join(map(str, written)), then=then, note=SEPARATE if mixed else "")
    return 0


def _outcomes(text: str) -> tuple[str, dict[str, float]]:
    """Return the column that --map names, and the outcome of each of its values."""
    column, _, pairs = text.partition("=")
    split = [(value.strip(), number) for value, _, number in (pair.rpartition(":") for pair in pairs.split(","))]
    if not all(value for value, _ in split) or len(dict(split)) < len(split):
        raise argparse.ArgumentTypeError(f"expected one number for each value, as in thumb=up:1,down:-1, got {text!r}")
    return column, {value: finite()(number) for value, number in split}


def _check_outputs(args: argparse.Namespace) -> Path:
    """Return the file of examples beside annotations, after checking the outputs."""
    beside: Path = args.out.with_suffix(".examples.jsonl")
    given = {"--out": args.out, **({"--ungrounded": args.ungrounded} if args.ungrounded else {})}
    for option, path in given.items():
        if path.suffix != ".jsonl":
            raise ConfigError(f"{option} is a .jsonl file, got {path}")
        if path.exists() and path.resolve() == Path(args.path).resolve():
            raise ConfigError(f"{option} {path} is the source itself; choose another {option}")
    if args.ungrounded and args.ungrounded.resolve() in (args.out.resolve(), beside.resolve()):
        raise ConfigError(f"--ungrounded {args.ungrounded} is also a file of --out; choose another --ungrounded")
    refuse_overwriting([*given.values(), beside], force=args.force)
    return beside


def _print_account(items: Sequence[Item], bad: list[str], unmet: list[str], met: set[str]) -> None:
    """Print the numbers of items, the losses with their reasons, and the given labels that no record had."""
    judged = [item.made for item in items if isinstance(item.made, Annotation)]
    examples = sum(isinstance(item.made, Example) for item in items)
    labels = Counter(span.label for annotation in judged for span in annotation.critique.spans)
    spans = f"{labels.total():,}{''.join(f', {count:,} {label}' for label, count in labels.items())}"
    print_lines([("annotations", f"{len(judged):,}"), ("spans", spans), ("examples", f"{examples:,}")])
    losses: dict[str, list[str]] = {"records that cannot be used": bad} if bad else {}
    for item in items:
        for reason, detail in item.losses:
            losses.setdefault(reason, []).append(f"{item.where}: {detail}" if detail else item.where)
    for reason, places in sorted(losses.items(), key=lambda loss: -len(loss[1])):
        say(f"\n{len(places):,} × {reason}", style="yellow")
        for place in places[:SHOWN_LOSSES]:
            say(f"  {shorten(place, SHOWN_CHARACTERS, placeholder=' …')}")
        if len(places) > SHOWN_LOSSES:
            say(f"  and {len(places) - SHOWN_LOSSES:,} more")
    if unread := ", ".join(sorted({column for item in items for column in item.unread})):
        say(f"\ncolumns not read: {unread}; --column OURS=THEIRS reads one, --map one of judgements", style="yellow")
    if unmet:
        there = ", ".join(sorted(met)) or "none"
        note(f"no record has {', '.join(unmet)}, which --label or --map names; there are: {there}", warning=True)
