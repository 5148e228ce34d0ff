"""`python -m evidence people`: people as judges of the pairs of `text2grad evaluate pairs`, with hidden sides.

A rater sees "text 1" and "text 2" in an order that a random number decides for each pair, and writes 1, 2 or tie. The
id of an item is a hash of the pair and its order: the sheet alone does not tell the order, both input files do.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidence.commands.sheets import Item, Questions, hash_of, read_sheets, sheet_files
from text2grad.cli.options import add_command, add_shared, at_least, print_end, refuse_overwriting, say
from text2grad.critics.servers.preference import Comparison, Preference, Side
from text2grad.errors import ConfigError, DataError

DESCRIPTION = """\
Have people choose the better text of each pair. Without --human: draw pairs at random -> sheet.csv for a spreadsheet,
sheet.html to read. With --human: filled sheets -> wins, ties and losses of FIRST by each person, and their agreement,
also with the models whose verdicts are in --out, a directory of `text2grad evaluate pairs FIRST SECOND`."""

EPILOG = """\
examples:
  python -m evidence people ours.jsonl theirs.jsonl --items 50 --out runs/pairs
  python -m evidence people ours.jsonl theirs.jsonl --human ann.csv --human ben.csv --out runs/duel"""

QUESTIONS = Questions(
    {"better": "Which text is better: 1, 2 or tie?"},
    {"1": "first", "2": "second", "tie": "tie", "=": "tie", "0": "tie"},
    "1, 2 or tie",
)
EXCHANGED: dict[Side, Side] = {"first": "second", "second": "first", "tie": "tie"}
RESULT = "people.json"


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "people as judges of pairs of texts, and their agreement with models"
    add = add_command(commands, "people", run, about, DESCRIPTION, EPILOG, extras=()).add_argument
    add("first", type=Path, metavar="FIRST", help="JSONL file, as of `evaluate pairs`")
    add("second", type=Path, metavar="SECOND", help="JSONL file about the same prompts")
    add("--items", type=at_least(1), default=100, metavar="N", help="number of pairs (default: %(default)s)")
    add("--human", action="append", default=[], type=Path, metavar="SHEET", help="a filled sheet; may be repeated")
    add("--out", type=Path, required=True, metavar="DIR", help="directory of the sheet, or of people.json")
    add_shared(add, "--force")


def run(args: argparse.Namespace) -> int:
    """Write a sheet, or read filled sheets.

    Raises:
        Text2GradError: if a file cannot be used, or the directory holds a sheet.
    """
    from text2grad.files import to_json, write_files
    from text2grad.runs.critic_quality import judges_agreement, read_comparisons, summary, verdict_tables
    from text2grad.runs.reports import as_text

    pairs = read_comparisons(args.first, args.second)
    if not args.human:
        items = pair_items(pairs, args.items, seed=0)
        if not items:
            raise DataError(f"{args.first} and {args.second} have no pair of different texts")
        if (args.out / "sheet.csv").exists():
            raise ConfigError(f"{args.out}/sheet.csv exists and may hold ratings. Choose another --out, or remove it")
        write_files(args.out, sheet_files(items, QUESTIONS, "pairs"))
        print_end(f"{args.out}/sheet.html, sheet.csv", note="each rater fills a copy; give the copies as --human")
        return 0
    refuse_overwriting([args.out / RESULT], force=args.force)
    verdicts = models_verdicts(args.out / "verdicts.jsonl", pairs)
    if twice := [name for name, count in Counter(path.stem for path in args.human).items() if count > 1]:
        raise ConfigError(f"two sheets of --human have the name {twice[0]}; rename one after its rater")
    verdicts |= {f"human {path.stem}": read_pair_sheet(path, pairs) for path in args.human}
    results = {name: summary(preferences) for name, preferences in verdicts.items()}
    agreement = judges_agreement(verdicts)
    say(as_text(verdict_tables(results, agreement)).rstrip())
    write_files(args.out, {RESULT: to_json({"judges": results, "agreement": agreement}, indent=2) + b"\n"})
    print_end(f"{args.out}/{RESULT}")
    return 0


def pair_items(pairs: Sequence[Comparison], number: int, *, seed: int) -> list[Item]:
    """Return at most `number` pairs of different texts at random, in random order and with random sides."""
    rng = random.Random(seed)
    able = [(row, pair) for row, pair in enumerate(pairs, start=1) if pair.first != pair.second]
    drawn = rng.sample(able, min(number, len(able)))
    sides = [rng.random() < 0.5 for _ in drawn]
    items = []
    for n, ((row, pair), swapped) in enumerate(zip(drawn, sides, strict=True), start=1):
        name = f"{n}-{_hash(pair, swapped=swapped)}"
        first, second = (pair.second, pair.first) if swapped else (pair.first, pair.second)
        texts = {"prompt": pair.prompt, "response": pair.response or "", "text_1": first, "text_2": second}
        prompt = f"{pair.prompt}\n\n{pair.response}" if pair.response else pair.prompt
        beside = [{"response": second, "by": "Text 2"}]
        record = {"item": name, "prompt": prompt, "response": first, "by": "Text 1", "beside": beside}
        items.append(Item(name, row, texts, record))
    return items


def _hash(pair: Comparison, *, swapped: bool) -> str:
    return hash_of(pair.prompt, pair.response or "", pair.first, pair.second, "swapped" if swapped else "")[:10]


def read_pair_sheet(path: Path, pairs: Sequence[Comparison]) -> list[Preference]:
    """Return a rater's preference for each pair; none for a pair without a verdict in the sheet.

    Raises:
        DataError: if the file is no sheet of these pairs, or a verdict has no meaning.
    """
    known = {
        _hash(pair, swapped=swapped): (row, swapped) for row, pair in enumerate(pairs) for swapped in (False, True)
    }
    preferences = [Preference(None) for _ in pairs]
    [sheet] = read_sheets([path], QUESTIONS)
    for item, answers in sheet.items():
        key, place = item.rpartition("-")[2], answers["better"]
        if key not in known:
            raise DataError(
                f"{path}: item {item} is no pair of the two files. Give the files, in their order, from which "
                "`python -m evidence people` made the sheet"
            )
        row, swapped = known[key]
        if place is not None:
            side = EXCHANGED[place] if swapped else place
            preferences[row] = Preference(side, (side,), (place,))
    return preferences


def models_verdicts(path: Path, pairs: Sequence[Comparison]) -> dict[str, list[Preference]]:
    """Return the preferences of each model in verdicts.jsonl, pair by pair; none without the file.

    Raises:
        DataError: if the verdicts are about other pairs.
    """
    verdicts: dict[str, list[Preference]] = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        record = json.loads(line)
        given = verdicts.setdefault(record["judge"], [])
        if len(given) == len(pairs) or Comparison(*(record[key] for key in Comparison._fields)) != pairs[len(given)]:
            raise DataError(f"{path} holds verdicts on other pairs; give the files that `evaluate pairs` compared")
        given.append(Preference(record["better"], tuple(record["verdicts"]), tuple(record["places"])))
    for given in verdicts.values():  # of the first pairs alone, by `evaluate pairs --limit`
        given += [Preference(None)] * (len(pairs) - len(given))
    return verdicts
