"""`text2grad annotate RECIPE.toml`: a language model on a server writes critiques; each answer is paid for once."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from text2grad.cli.options import (
    add_command,
    add_force,
    add_set,
    at_least,
    print_end,
    refuse_full_directory,
    shorthands,
)
from text2grad.costs import metered
from text2grad.errors import ConfigError
from text2grad.files import lock_directory

if TYPE_CHECKING:
    from text2grad.config import Recipe
    from text2grad.critics.servers import AnnotationResult, Budget, Item, Usage


SOME_REMAIN = 3
"""Exit status if a response has no critique."""

NAMED_IDS = 5

DESCRIPTION = """\
Have a language model on an OpenAI-compatible server write critiques of responses: feedback in words, and exact quotes
of the positive and negative parts. The recipe's [annotate] names the server and the model. [data] train is a file of

  {"prompt": "...", "response": "...", "reference": "...", "tests": "...", "feedback": "...", "id": "..."}

of which only the prompt is required. Without responses, the policy ([model] path) generates them first. With human
"feedback", only the quotes it refers to are requested. The key is read from the environment and never written.

Each answer is stored in answers.sqlite before it is used. A run that was killed continues where it stopped, and a
finished run that is repeated makes no request.

With --own-critic no server is asked: the recipe's critic in Python (refresh.annotator, critic.use, or the program of
the built-in task) judges --samples responses of the policy to each prompt, for a reward model to learn from."""

EPILOG = """\
examples:
  text2grad annotate my.toml --max-cost 5
  text2grad annotate my.toml --set annotate.base_url=http://localhost:8000/v1 --set annotate.api_key_env=''
  text2grad annotate my.toml --own-critic --samples 4

written to [annotate] out:
  annotations.jsonl   prompt, response, critique with spans, the annotating model, its tokens
  failures.jsonl      responses without a critique: the kind of failure, and its details
  answers.sqlite      all answers that were paid for
  responses.jsonl     the policy's responses, if it generated them

exit status:
  0   every response has a critique
  2   nothing was requested: a setting or a file cannot be used
  3   some responses have no critique: they are listed, and the next run requests the missing answers"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "have a language model on a server write critiques of responses"
    add = add_command(commands, "annotate", run, about, DESCRIPTION, EPILOG).add_argument
    add("recipe", type=Path, help="TOML file of settings; `text2grad recipe` prints all of them")
    add("--max-cost", metavar="DOLLARS", help="stop before the answers in the directory cost more")
    add("--max-requests", metavar="N", help="stop after N requests")
    add("--limit", type=int, metavar="N", help="annotate only the first N responses (with --own-critic: prompts)")
    add("--own-critic", action="store_true", help="let the recipe's critic in Python judge, and no server")
    add("--samples", type=at_least(1), metavar="N", help="with --own-critic: responses to each prompt (default: 1)")
    add("--out", metavar="DIR", help="shorthand for --set annotate.out=DIR")
    add_force(add)
    add_set(add)


def run(args: argparse.Namespace) -> int:
    """Load the recipe, check it, then annotate."""
    from text2grad.config import load_recipe
    from text2grad.critics.servers import AnnotationSession, Annotator, Store, Template, run_session
    from text2grad.runs import annotated_examples, endpoint_values, items_of

    limits = {"annotate.max_cost": args.max_cost, "annotate.max_requests": args.max_requests}
    recipe = load_recipe(args.recipe, [*args.overrides, *shorthands({"annotate.out": args.out}, limits)])
    if args.own_critic:
        return _by_own_critic(args, recipe)
    if args.samples is not None:
        raise ConfigError("--samples belongs to --own-critic; a server is asked about one response to each prompt")
    settings = recipe.annotate
    endpoint, spending = endpoint_values(settings)
    check_limit(args.limit)
    out, console = Path(settings.out), Console()
    annotator = Annotator(Template(settings.template, settings.reasoning), recipe.critic.match)
    refuse_full_directory(out, "answers.sqlite", force=args.force)
    examples = annotated_examples(recipe, args.limit)
    lock_directory(out)
    with Store(out / "answers.sqlite") as store, metered(out, "annotate") as meter:
        items = items_of(recipe, out, store, examples)
        if not args.force:
            _refuse_other_annotations(out, recipe, items)
        session = AnnotationSession(endpoint, store, annotator.annotate, spending)
        results, usage, budget = run_session(session, items)
        meter.add(usage.prompt_tokens, usage.completion_tokens)
    _write(out, recipe, items, results)
    _print_summary(console, out, items, results, _figures(recipe, results, usage, budget), str(args.recipe))
    return SOME_REMAIN if any(result.failure for result in results) else 0


def _by_own_critic(args: argparse.Namespace, recipe: "Recipe") -> int:
    """Annotate by the recipe's critic in Python.

    Raises:
        ConfigError: if an option of servers is given, or the directory holds a server's answers.
    """
    from text2grad.runs import annotate_by_critic
    from text2grad.runs.reports import print_figures

    if args.max_cost is not None or args.max_requests is not None:
        raise ConfigError("--max-cost and --max-requests belong to a server; leave them out with --own-critic")
    check_limit(args.limit)
    out, console = Path(recipe.annotate.out), Console()
    if (out / "answers.sqlite").exists():
        raise ConfigError(f"{out} holds a server's answers; choose another --out")
    refuse_full_directory(out, "critic.json", "responses.jsonl", force=args.force)
    lock_directory(out)
    with metered(out, "annotate"):
        found = annotate_by_critic(recipe, out, samples=args.samples or 1, limit=args.limit)
    labels = [span.label for one in found for span in one.critique.spans]
    failed = sum(one.critique.failed for one in found)
    figures = [
        ("responses", f"{len(found):,}"),
        ("failed critiques", f"{failed:,}"),
        ("positive spans", f"{labels.count('positive'):,}"),
        ("negative spans", f"{labels.count('negative'):,}"),
    ]
    print_figures(console, figures)
    reward = ("text2grad", "reward", str(args.recipe), "--annotations", f"{out}/annotations.jsonl")
    print_end(console, f"{out}/annotations.jsonl", then=reward)
    return SOME_REMAIN if failed else 0


def _refuse_other_annotations(out: Path, recipe: "Recipe", items: Sequence["Item"]) -> None:
    """Refuse to overwrite annotations that this run will not write again.

    Raises:
        ConfigError: if annotations.jsonl has a response that is not among the items, or another model's annotations.
    """
    path, settings = out / "annotations.jsonl", recipe.annotate
    now = {"model": settings.model, "template": settings.template, "reasoning": settings.reasoning}
    wanted = {(item.id, item.response) for item in items}
    lost = 0
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
            same = {key: record["annotator"][key] for key in now} == now
            lost += not same or (record["id"], record["response"]) not in wanted
        except (ValueError, LookupError, TypeError):
            lost += 1
    if lost:
        raise ConfigError(
            f"{path} holds {lost:,} annotations of other responses, or of another model or template, that would be "
            "overwritten; choose another --out, or add --force (answers.sqlite keeps all answers that were paid for)"
        )


def check_limit(limit: int | None) -> None:
    """Refuse a `--limit` below 1."""
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit must be at least 1, got {limit}")


def _write(out: Path, recipe: "Recipe", items: Sequence["Item"], results: Sequence["AnnotationResult"]) -> None:
    """Write annotations.jsonl and failures.jsonl atomically."""
    from text2grad.feedback import critique_to_json
    from text2grad.files import write_records

    settings = recipe.annotate
    annotations, failures = [], []
    for item, result in zip(items, results, strict=True):
        record = {"id": item.id, "prompt": item.example.prompt_text, "response": item.response}
        if result.critique is not None:
            annotator = {
                "model": settings.model,
                "template": settings.template,
                "reasoning": settings.reasoning,
                "prompt_tokens": result.prompt_tokens,
                "completion_tokens": result.completion_tokens,
            }
            annotations.append({**record, "critique": critique_to_json(result.critique), "annotator": annotator})
        if result.failure is not None:
            failures.append({**record, "kind": result.failure.kind, "detail": result.failure.detail})
    for name, records in (("annotations", annotations), ("failures", failures)):
        write_records(out / f"{name}.jsonl", records)


def _figures(
    recipe: "Recipe", results: Sequence["AnnotationResult"], usage: "Usage", budget: "Budget"
) -> list[tuple[str, str]]:
    """Return the figures of a run by name."""
    critiques = [result.critique for result in results if result.critique]
    quotes = sum(len(one.spans) + len(one.unmatched) for one in critiques)
    priced = any(recipe.annotate.prices)
    return [
        ("critiques", f"{len(critiques):,} of {len(results):,}"),
        ("answers from before", f"{usage.reused:,}"),
        ("requests", f"{budget.requests:,}, of which {usage.retried:,} repeated"),
        ("tokens", f"{usage.prompt_tokens:,} read, {usage.completion_tokens:,} written"),
        *([("cost of all answers", f"${budget.cost:.4f}")] if priced else []),
        ("spans", f"{sum(len(one.spans) for one in critiques):,}"),
        ("quotes not found", f"{sum(len(one.unmatched) for one in critiques):,} of {quotes:,}"),
    ]


def _print_summary(
    console: Console,
    out: Path,
    items: Sequence["Item"],
    results: Sequence["AnnotationResult"],
    figures: Sequence[tuple[str, str]],
    recipe: str,
) -> None:
    """Print the figures, then the kinds of failures, each with its first ids."""
    from text2grad.critics.servers import ANSWERED
    from text2grad.runs.reports import plain, print_figures

    print_figures(console, figures)
    kinds: dict[str, list[tuple[str, str]]] = {}
    for item, result in zip(items, results, strict=True):
        if result.failure:
            kinds.setdefault(result.failure.kind, []).append((item.id, result.failure.detail))
    if kinds:
        console.print(plain("\nwithout a critique:", style="yellow"))
    for kind, failed in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        named = ", ".join(name for name, _ in failed[:NAMED_IDS]) + (", …" if len(failed) > NAMED_IDS else "")
        console.print(plain(f"  {kind}: {len(failed):,} ({named}): {failed[0][1]}"), soft_wrap=True)
    reward = ("text2grad", "reward", recipe, "--annotations", f"{out}/annotations.jsonl")
    answered = sum(len(kinds.get(kind, ())) for kind in ANSWERED)  # these answers are kept
    missing = sum(map(len, kinds.values())) - answered
    again = f"run the same command again: it requests the {missing:,} missing answers only" if missing else ""
    print_end(console, f"{out}/annotations.jsonl, failures.jsonl", then=reward, note=again)
