"""`text2grad win-rate`: two sets of critiques or responses, judged in both orders by a language model (appendix E)."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from text2grad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from text2grad.critics.servers import Contest, Preference

SOME_REMAIN = 3
"""Exit status when some pairs have no verdict."""

DESCRIPTION = """\
Ask a language model on any OpenAI-compatible server which of two critiques of the same response, or which of two
responses to the same prompt, is better. Each pair is judged twice, either text standing first once: a text wins only
where it is preferred both times; contradicting verdicts are a tie, and are counted besides.

FIRST and SECOND are JSONL files: for critiques, as `evaluate-reward` writes predictions.jsonl; for responses, lines
with "prompt" and "response". The recipe's [annotate] says who is asked, and how; the key comes from the environment.
Every answer is in answers.sqlite before anything else happens to it, and is paid for once."""

EPILOG = """\
examples:
  text2grad win-rate runs/a/predictions.jsonl runs/b/predictions.jsonl --recipe my.toml --out runs/a-against-b
  text2grad win-rate ours.jsonl theirs.jsonl --what responses --recipe my.toml --max-cost 5 --out runs/duel

written to DIR:
  win_rate.json     wins, ties and losses of FIRST with 95 % intervals, inconsistent verdicts, failures
  verdicts.jsonl    each pair and its verdicts
  answers.sqlite    every answer ever paid for

exit status:
  0   every pair has a verdict
  2   nothing was asked: a setting or a file cannot be used
  3   some pairs have none: they are listed, and the next run asks again for those that got no answer"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "win-rate",
        help="two sets of critiques or responses, judged in both orders by a language model",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("first", type=Path, metavar="FIRST", help="JSONL file")
    add("second", type=Path, metavar="SECOND", help="JSONL file about the same prompts")
    add("--recipe", type=Path, required=True, help="TOML file whose [annotate] names the server and the model")
    add("--out", type=Path, required=True, metavar="DIR", help="where to write")
    add("--what", choices=("critiques", "responses"), default="critiques", help="(default: %(default)s)")
    add("--limit", type=int, metavar="N", help="only the first N pairs")
    add("--max-cost", metavar="DOLLARS", help="stop before all answers in the directory cost more")
    add("--max-requests", metavar="N", help="stop after so many requests")
    add("--seed", type=int, default=0, help="of the resamples of the intervals")
    add("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a setting")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read both files, refuse what is wrong, then ask.

    Raises:
        Text2GradError: if a file or a setting cannot be used; nothing is asked then.
    """
    from text2grad.cli.annotate import alone, judge_all
    from text2grad.config import load_recipe
    from text2grad.critics.servers import PreferenceSession, Store, check_server

    limits = (("max_cost", args.max_cost), ("max_requests", args.max_requests))
    recipe = load_recipe(args.recipe, [*args.overrides, *(f"annotate.{k}={v}" for k, v in limits if v)])
    check_server(recipe.annotate)
    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit is at least 1, got {args.limit}")
    contests = _contests(args)
    console = Console()
    with alone(args.out), Store(args.out / "answers.sqlite") as store:
        preferences, tally, budget = judge_all(console, PreferenceSession(recipe.annotate, store), contests)
    result = {
        **{"first": str(args.first), "second": str(args.second), "what": args.what, "judge": recipe.annotate.model},
        **summary(preferences, seed=args.seed),
        **{"requests": budget.requests, "answers_from_before": tally.reused, "cost_usd": budget.cost},
    }
    _write(args.out, result, contests, preferences)
    _print(console, args, result, preferences)
    return SOME_REMAIN if result["failed"] else 0


def _contests(args: argparse.Namespace) -> list["Contest"]:
    """Return the pairs that both files have."""
    from text2grad.critics.servers import Contest
    from text2grad.experiments.critic_quality import read_predictions
    from text2grad.feedback import read_critique_records, read_examples
    from text2grad.reward_models import critique_target

    if args.what == "critiques":
        first = list(read_critique_records(args.first, limit=args.limit))
        pairs = read_predictions(args.second, first, whole=args.limit is None)
        both = [(critique_target(p.true, p.response), critique_target(p.predicted, p.response)) for p in pairs]
        return [Contest(p.prompt, p.response, *texts) for p, texts in zip(pairs, both, strict=True)]
    sides = []
    for path in (args.first, args.second):
        found = {one.prompt_text: one.meta.get("response") for one in read_examples(path)}
        if not all(isinstance(response, str) for response in found.values()):
            raise DataError(f'{path}: each line needs "prompt" and "response", two texts')
        sides.append(found)
    differing = list(sides[0].keys() ^ sides[1].keys())
    if differing:
        raise DataError(
            f"{args.first} and {args.second} do not answer the same prompts: {len(differing):,} stand in one alone, "
            f"such as {min(differing)[:60]!r}. Give two files of responses to the same prompts, one each"
        )
    prompts = list(sides[0])[: args.limit]
    return [Contest(prompt, None, str(sides[0][prompt]), str(sides[1][prompt])) for prompt in prompts]


def summary(preferences: Sequence["Preference"], *, seed: int) -> dict[str, Any]:
    """Return wins, ties and losses of the first set, with intervals over pairs; those without a verdict are apart."""
    from text2grad.experiments.critic_quality import Ratio, estimate

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


def _write(out: Path, result: Any, contests: Sequence["Contest"], preferences: Sequence["Preference"]) -> None:
    """Write win_rate.json and verdicts.jsonl, each whole or not at all."""
    import json

    from text2grad.files import write_atomically, write_records

    records = [
        {
            **{"prompt": contest.prompt, "response": contest.response},
            **{"first": contest.first, "second": contest.second},
            **{"better": one.better, "verdicts": list(one.verdicts), "inconsistent": one.inconsistent},
            "failure": one.failure._asdict() if one.failure else None,
        }
        for contest, one in zip(contests, preferences, strict=True)
    ]
    write_records(out / "verdicts.jsonl", records)
    write_atomically(out / "win_rate.json", json.dumps(result, indent=2, allow_nan=False).encode() + b"\n")


def _print(console: Console, args: argparse.Namespace, result: Any, preferences: Sequence["Preference"]) -> None:
    """Print the rates, and what has no verdict."""
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
    console.print(plain(f"\nwritten: {args.out}/win_rate.json, verdicts.jsonl"), soft_wrap=True)
