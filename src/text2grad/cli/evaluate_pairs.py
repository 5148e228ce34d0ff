"""`text2grad evaluate pairs`: compare two sets of critiques or responses by language models, in both orders."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.cli.options import (
    SOME_REMAIN,
    add_command,
    add_shared,
    at_least,
    finite,
    print_end,
    refuse_full_directory,
    refuse_other_results,
    say,
    shorthands,
)
from text2grad.config import Endpoint, load_recipe
from text2grad.costs import metered
from text2grad.critics.servers import (
    Comparison,
    Preference,
    Store,
    Usage,
    expected_expense,
    prefer,
    questions,
    refuse_beyond_budget,
    run_session,
)
from text2grad.errors import ConfigError, RequestError
from text2grad.files import json_lines, lock_directory, to_json, write_files
from text2grad.runs.reports import as_text

DESCRIPTION = """\
Have judges choose the better of two responses to the same prompt, or of two critiques of the same response. A model
judges each pair twice, with either text first: a text wins only if it is preferred both times.

FIRST and SECOND are JSONL files: responses as lines with "prompt" and "response", or critiques as in predictions.jsonl
of `evaluate critic`. A judge is a model on an OpenAI-compatible server. Cost is told before the first request; a run
that would exceed --max-cost is refused. Each answer is in answers.sqlite before it is used, and is paid for once."""

EPILOG = """\
examples:
  text2grad evaluate pairs ours.jsonl theirs.jsonl --judge my.toml --max-cost 5 --out runs/duel
  text2grad evaluate pairs ours.jsonl theirs.jsonl --judge my.toml --judge gpt-4o --dry-run --out runs/duel

win_rate.json holds wins, ties and losses of FIRST with 95 % intervals, position bias, failures and the agreement of
judges; verdicts.jsonl each pair. Exit status 3: some pairs have no verdict; the next run requests them."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "compare two sets of responses or critiques by language models, in both orders"
    add = add_command(commands, "pairs", run, about, DESCRIPTION, EPILOG, extras=("annotate",)).add_argument
    add("first", type=Path, metavar="FIRST", help="JSONL file")
    add("second", type=Path, metavar="SECOND", help="JSONL file about the same prompts")
    judge = "TOML file whose [annotate] names model and server; or a MODEL on the first file's server; may be repeated"
    add("--judge", action="append", required=True, metavar="FILE|MODEL", help=judge)
    add("--out", type=Path, required=True, metavar="DIR", help="output directory")
    add("--limit", type=at_least(1), metavar="N", help="compare only the first N pairs")
    add("--max-cost", type=finite(0.0), metavar="DOLLARS", help="budget of all answers in the directory")
    add("--dry-run", action="store_true", help="tell requests, tokens and cost, and request nothing")
    add_shared(add, "--force", "--set")


def run(args: argparse.Namespace) -> int:
    """Check the settings and all files, print the expected cost, then compare."""
    from text2grad.runs.critic_quality import judges_agreement, read_comparisons, summary

    judges = _judges(args)
    comparisons = read_comparisons(args.first, args.second, limit=args.limit)
    what = "responses" if not comparisons or comparisons[0].response is None else "critiques"
    refuse_full_directory(args.out, "answers.sqlite", force=args.force)
    about = {"first": str(args.first), "second": str(args.second), "what": what}
    refuse_other_results(args.out / "win_rate.json", about, force=args.force)
    lock_directory(args.out)
    verdicts: dict[str, list[Preference]] = {}
    with Store(args.out / "answers.sqlite") as store:
        asked = [question for comparison in comparisons for question in questions(comparison)]
        forecasts = [expected_expense(judge, store, asked) for judge in judges]
        for forecast in forecasts:
            say(forecast.text)
        if args.dry_run:
            return 0
        limits = [judge.max_cost for judge in judges if judge.max_cost is not None]
        refuse_beyond_budget(forecasts, max(limits, default=None))
        own = [store.tokens(judge.model) for judge in judges]
        others = [whole - sum(part) for whole, part in zip(store.tokens(), zip(*own, strict=True), strict=True)]
        before = sum(forecast.spent for forecast in forecasts) + max(judge.cost(*others) for judge in judges)
        usage = Usage(before)  # of all judges, each at its own prices, others at the dearest
        with metered(args.out, "evaluate pairs") as tokens:
            try:
                for judge in judges:
                    phase = f"ask {judge.model}"
                    given, _ = run_session(judge, store, prefer, comparisons, usage=usage, phase=phase)
                    verdicts[judge.model] = [
                        Preference(None, failure=own) if isinstance(own, RequestError) else own for own in given
                    ]
            finally:
                tokens.add(usage.prompt_tokens, usage.completion_tokens)
    results = {name: summary(preferences) for name, preferences in verdicts.items()}
    spent = {"requests": usage.requests, "answers_from_before": usage.reused, "cost_usd": usage.cost}
    first, agreement = next(iter(verdicts)), judges_agreement(verdicts)
    record = {**about, "judge": first, **results[first], **spent, "judges": results, "agreement": agreement}
    _report(args, record, comparisons, verdicts)
    return SOME_REMAIN if any(result["failed"] for result in results.values()) else 0


def _judges(args: argparse.Namespace) -> Sequence[Endpoint]:
    """Return the models that judge."""
    files = [name for name in args.judge if name.endswith(".toml")]
    if not files:
        raise ConfigError(f"--judge {args.judge[0]} is a model on the server of a --judge FILE.toml, which is missing")
    judges = []
    for name in args.judge:
        path, model = (name, None) if name.endswith(".toml") else (files[0], name)
        overrides = [*args.overrides, *shorthands({"annotate.model": model})]
        judges.append(load_recipe(path, overrides).annotate.checked())
    if twice := [model for model, count in Counter(judge.model for judge in judges).items() if count > 1]:
        raise ConfigError(f"two judges are the model {twice[0]}; their answers would be the same ones")
    if args.max_cost is not None and not any(any(judge.prices) for judge in judges):
        raise ConfigError("--max-cost needs prices, without which nothing costs anything: give annotate.prices")
    if args.max_cost is None:
        return judges
    return [judge.model_copy(update={"max_cost": args.max_cost}) if any(judge.prices) else judge for judge in judges]


def _report(
    args: argparse.Namespace, result: Any, comparisons: Sequence[Comparison], verdicts: Mapping[str, Any]
) -> None:
    """Write win_rate.json and verdicts.jsonl, whose lines name the judge, and print the tables and the failures."""
    from text2grad.runs.critic_quality import verdict_tables

    records = [
        {
            "judge": name,
            **comparison._asdict(),
            **preference._asdict(),
            "inconsistent": preference.inconsistent,
            "failure": (failure := preference.failure) and {"kind": failure.kind, "detail": failure.detail},
        }
        for name, preferences in verdicts.items()
        for comparison, preference in zip(comparisons, preferences, strict=True)
    ]
    files = {"win_rate.json": to_json(result, indent=2) + b"\n", "verdicts.jsonl": json_lines(records)}
    write_files(args.out, files)
    say(f"\n{args.first} against {args.second} ({result['what']})\n")
    say(as_text(verdict_tables(result["judges"], result["agreement"])).rstrip())
    counted = f"{result['requests']:,} requests, {result['answers_from_before']:,} answers from before"
    say(f"\n{counted}, ${result['cost_usd']:.4f} for all answers")
    missing = [(name, own.failure) for name, given in verdicts.items() for own in given if own.failure]
    details = {(name, failure.kind): failure.detail for name, failure in reversed(missing)}
    for (name, kind), count in Counter((name, failure.kind) for name, failure in missing).most_common():
        say(f"  {name}, without a verdict: {kind}, {count:,} times: {details[name, kind]}", style="yellow")
    note = f"run the same command again: it requests the missing verdicts of {len(missing):,} pairs only"
    note = note if missing else f"read the verdicts of single pairs in {args.out}/verdicts.jsonl"
    print_end(f"{args.out}/{', '.join(files)}", note=note)
