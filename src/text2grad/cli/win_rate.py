"""`text2grad win-rate`: compare two sets of critiques or responses by a language model, in both orders (appendix E)."""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from text2grad.cli.options import add_command, add_force, add_set, at_least, print_end, refuse_full_directory
from text2grad.errors import ConfigError, DataError
from text2grad.files import lock_directory

if TYPE_CHECKING:
    from text2grad.critics.servers import Comparison, Preference

SOME_REMAIN = 3
"""Exit status if some pairs have no verdict."""

DESCRIPTION = """\
Have a language model on an OpenAI-compatible server choose the better of two critiques of the same response, or of two
responses to the same prompt. Each pair is judged twice, with either text first: a text wins only if it is preferred
both times; contradicting verdicts are a tie, and are also counted as inconsistent.

FIRST and SECOND are JSONL files: critiques as in predictions.jsonl of `evaluate-reward`, or responses as lines with
"prompt" and "response". The recipe's [annotate] names the server and the model; the key comes from the environment.
Each answer is stored in answers.sqlite before it is used, and is paid for once."""

EPILOG = """\
examples:
  text2grad win-rate runs/a/predictions.jsonl runs/b/predictions.jsonl --recipe my.toml --out runs/a-against-b
  text2grad win-rate ours.jsonl theirs.jsonl --what responses --recipe my.toml --max-cost 5 --out runs/duel

written to DIR:
  win_rate.json     wins, ties and losses of FIRST with 95 % intervals, inconsistent verdicts, failures
  verdicts.jsonl    each pair and its verdicts
  answers.sqlite    all answers that were paid for

exit status:
  0   every pair has a verdict
  2   nothing was requested: a setting or a file cannot be used
  3   some pairs have no verdict: they are listed, and the next run requests the missing answers"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "compare two sets of critiques or responses by a language model, in both orders"
    add = add_command(commands, "win-rate", run, about, DESCRIPTION, EPILOG).add_argument
    add("first", type=Path, metavar="FIRST", help="JSONL file")
    add("second", type=Path, metavar="SECOND", help="JSONL file about the same prompts")
    add("--recipe", type=Path, required=True, help="TOML file whose [annotate] names the server and the model")
    add("--out", type=Path, required=True, metavar="DIR", help="output directory")
    add("--what", choices=("critiques", "responses"), default="critiques", help="(default: %(default)s)")
    add("--limit", type=int, metavar="N", help="compare only the first N pairs")
    add("--max-cost", metavar="DOLLARS", help="stop before the answers in the directory cost more")
    add("--max-requests", metavar="N", help="stop after N requests")
    add("--seed", type=at_least(0), default=0, help="random seed of the bootstrap intervals (default: %(default)s)")
    add_force(add)
    add_set(add)


def run(args: argparse.Namespace) -> int:
    """Check the settings and both files, then compare.

    Raises:
        Text2GradError: if a file or a setting cannot be used; nothing was requested then.
    """
    from text2grad.cli.annotate import check_limit
    from text2grad.config import load_recipe
    from text2grad.critics.servers import AnnotationSession, Store, prefer, run_session
    from text2grad.experiments import endpoint_values

    limits = (("max_cost", args.max_cost), ("max_requests", args.max_requests))
    recipe = load_recipe(args.recipe, [*args.overrides, *(f"annotate.{k}={v}" for k, v in limits if v)])
    endpoint, spending = endpoint_values(recipe.annotate)
    check_limit(args.limit)
    comparisons = _comparisons(args)
    refuse_full_directory(args.out, "answers.sqlite", force=args.force)
    _refuse_other_texts(args)
    console = Console()
    lock_directory(args.out)
    with Store(args.out / "answers.sqlite") as store:
        session = AnnotationSession(endpoint, store, prefer, spending)
        preferences, usage, budget = run_session(session, comparisons)
    result = {
        **{"first": str(args.first), "second": str(args.second), "what": args.what, "judge": recipe.annotate.model},
        **summary(preferences, seed=args.seed),
        **{"requests": budget.requests, "answers_from_before": usage.reused, "cost_usd": budget.cost},
    }
    _write(args.out, result, comparisons, preferences)
    _print(console, args, result, preferences)
    return SOME_REMAIN if result["failed"] else 0


def _refuse_other_texts(args: argparse.Namespace) -> None:
    """Refuse to overwrite a comparison of other files.

    Raises:
        ConfigError: if win_rate.json is about other files, and `--force` is not given.
    """
    path = args.out / "win_rate.json"
    if args.force or not path.exists():
        return
    try:
        before = json.loads(path.read_bytes())
        compared = [before[key] for key in ("first", "second", "what")]
    except (OSError, ValueError, LookupError, TypeError):
        compared = ["unknown files"]
    if compared != [str(args.first), str(args.second), args.what]:
        raise ConfigError(
            f"{path} compares {' and '.join(map(str, compared[:2]))}, and would be overwritten; choose another --out, "
            "or add --force"
        )


def _comparisons(args: argparse.Namespace) -> list["Comparison"]:
    """Return the pairs of texts about the same prompt in both files."""
    from text2grad.critics.servers import Comparison
    from text2grad.experiments.critic_quality import read_predictions
    from text2grad.feedback import read_critique_records, read_examples
    from text2grad.reward_models import critique_target

    if args.what == "critiques":
        first = list(read_critique_records(args.first, limit=args.limit))
        pairs = read_predictions(args.second, first, whole=args.limit is None)
        both = [(critique_target(p.true, p.response), critique_target(p.predicted, p.response)) for p in pairs]
        return [Comparison(p.prompt, p.response, *texts) for p, texts in zip(pairs, both, strict=True)]
    sides = []
    for path in (args.first, args.second):
        found = {one.prompt_text: one.meta.get("response") for one in read_examples(path)}
        if not all(isinstance(response, str) for response in found.values()):
            raise DataError(f'{path}: each line needs the texts "prompt" and "response"')
        sides.append(found)
    differing = list(sides[0].keys() ^ sides[1].keys())
    if differing:
        raise DataError(
            f"{args.first} and {args.second} do not answer the same prompts: {len(differing):,} prompts occur in "
            f"one file only, such as {min(differing)[:60]!r}. Give two files of responses to the same prompts"
        )
    prompts = list(sides[0])[: args.limit]
    return [Comparison(prompt, None, str(sides[0][prompt]), str(sides[1][prompt])) for prompt in prompts]


def summary(preferences: Sequence["Preference"], *, seed: int) -> dict[str, Any]:
    """Return wins, ties and losses of the first set, with intervals; pairs without a verdict are excluded."""
    from text2grad.evaluation import Ratio, estimate

    judged = [one for one in preferences if one.better is not None]
    names = {"win": "first", "tie": "tie", "loss": "second"}
    rows = [{name: float(one.better == side) for name, side in names.items()} | {"pairs": 1.0} for one in judged]
    rates = estimate(rows, {name: Ratio((name,), ("pairs",)) for name in names}, seed=seed)
    inconsistent = [one for one in judged if one.inconsistent]
    contrary = Counter(one.verdicts for one in inconsistent)
    return {
        "pairs": len(judged),
        **{f"{name}s" if name != "loss" else "losses": sum(int(row[name]) for row in rows) for name in names},
        "rates": {name: one._asdict() for name, one in rates.items()},
        "inconsistent": len(inconsistent),
        "first_place_twice": contrary["first", "second"],
        "second_place_twice": contrary["second", "first"],
        "alike": sum(not one.verdicts for one in judged),
        "failed": len(preferences) - len(judged),
    }


def _write(out: Path, result: Any, comparisons: Sequence["Comparison"], preferences: Sequence["Preference"]) -> None:
    """Write win_rate.json and verdicts.jsonl atomically."""
    from text2grad.files import json_lines, to_json, write_files

    records = [
        {
            **{"prompt": comparison.prompt, "response": comparison.response},
            **{"first": comparison.first, "second": comparison.second},
            **{"better": one.better, "verdicts": list(one.verdicts), "inconsistent": one.inconsistent},
            "failure": one.failure._asdict() if one.failure else None,
        }
        for comparison, one in zip(comparisons, preferences, strict=True)
    ]
    summary_json = to_json(result, indent=2) + b"\n"
    write_files(out, {"verdicts.jsonl": json_lines(records), "win_rate.json": summary_json})


def _print(console: Console, args: argparse.Namespace, result: Any, preferences: Sequence["Preference"]) -> None:
    """Print the rates, and the failures."""
    from text2grad.experiments.reports import plain

    console.print(plain(f"{args.first} against {args.second}, judged by {result['judge']}"), soft_wrap=True)
    for name, one in result["rates"].items():
        line = f"  {name:14}{one['value']:.1%} [{one['low']:.1%}, {one['high']:.1%}]"
        console.print(plain(line), soft_wrap=True)
    for name in ("pairs", "inconsistent", "first_place_twice", "second_place_twice", "alike", "failed"):
        console.print(plain(f"  {name.replace('_', ' '):20}{result[name]:,}"))
    console.print(plain(f"  requests            {result['requests']:,}, ${result['cost_usd']:.4f} for all answers"))
    kinds = Counter(one.failure.kind for one in preferences if one.failure)
    for kind, count in kinds.most_common():
        detail = next(one.failure.detail for one in preferences if one.failure and one.failure.kind == kind)
        console.print(plain(f"  without a verdict: {kind}, {count:,} times: {detail}", style="yellow"), soft_wrap=True)
    failed = result["failed"]
    note = f"run the same command again: it requests the missing verdicts of {failed:,} pairs only" if failed else ""
    note = note or f"read the verdicts of single pairs in {args.out}/verdicts.jsonl"
    print_end(console, f"{args.out}/win_rate.json, verdicts.jsonl", note=note)
