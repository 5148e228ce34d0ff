"""`text2grad annotate RECIPE.toml`: a language model on a server writes critiques; each answer is paid for once."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2grad.cli.options import (
    SOME_REMAIN,
    add_command,
    add_shared,
    at_least,
    finite,
    print_end,
    print_lines,
    recipe_with,
    refuse_full_directory,
    say,
)
from text2grad.config import Recipe
from text2grad.costs import metered
from text2grad.critics.servers import ANSWERED, Annotator, Item, Judged, Store, Template, Usage, run_session
from text2grad.errors import ConfigError, RequestError
from text2grad.feedback import critique_to_json
from text2grad.files import lock_directory, write_records

NAMED_IDS = 5
ANNOTATOR = {"model", "template", "reasoning", "criteria"}  # settings by which an annotation names its annotator
Results = Sequence[Judged | RequestError]

DESCRIPTION = """\
Have a language model on an OpenAI-compatible server write critiques of responses: feedback in words, and exact quotes
of the positive and negative parts. The recipe's [annotate] names the server and the model. [data] train is a file of

  {"prompt": "...", "response": "...", "reference": "...", "tests": "...", "feedback": "...", "outcome": 1, "id": "..."}

which needs the prompt alone. Without responses, the policy ([model] path) generates them first. With a person's
"feedback", only its quotes are requested; a person's "outcome" stays. Each answer is stored in answers.sqlite before
it is used.

With --own-critic the recipe's critic in Python judges --samples responses of the policy to each prompt."""

EPILOG = """\
examples:
  text2grad annotate my.toml --max-cost 5
  text2grad annotate my.toml --set annotate.base_url=http://localhost:8000/v1 --set annotate.api_key_env=''
  text2grad annotate my.toml --own-critic --samples 4

docs/critics.md explains the files in [annotate] out. Exit status 3: some responses have no critique; they are listed,
and the next run requests the missing answers."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "have a language model on a server write critiques of responses"
    add = add_command(commands, "annotate", run, about, DESCRIPTION, EPILOG, extras=("annotate",)).add_argument
    add_shared(add, "recipe", "--set", "--force")
    add("--max-cost", type=finite(0.0), metavar="DOLLARS", help="stop before the answers in the directory cost more")
    limit = "annotate only the first N responses (with --own-critic: prompts)"
    add("--limit", type=at_least(1), metavar="N", help=limit)
    add("--own-critic", action="store_true", help="let the recipe's critic in Python judge, and no server")
    add("--samples", type=at_least(1), metavar="N", help="with --own-critic: responses to each prompt (default: 1)")
    add("--out", metavar="DIR", help="shorthand for --set annotate.out=DIR")


def run(args: argparse.Namespace) -> int:
    """Load the recipe, check it, then annotate."""
    from text2grad.runs import annotated_examples, items_of

    recipe = recipe_with(args, {"annotate.out": args.out, "annotate.max_cost": args.max_cost})
    if args.own_critic:
        return _by_own_critic(args, recipe)
    if args.samples is not None:
        raise ConfigError("--samples belongs to --own-critic; a server is asked about one response to each prompt")
    settings = recipe.annotate.checked()
    out = Path(settings.out)
    annotator = Annotator(Template.of(settings), **recipe.critic.asking())
    refuse_full_directory(out, "answers.sqlite", force=args.force)
    examples = annotated_examples(recipe, args.limit)
    lock_directory(out)
    with Store(out / "answers.sqlite") as store, metered(out, "annotate") as tokens:
        items = items_of(recipe, out, store, examples)
        results, usage = run_session(settings, store, annotator.annotate, items)
        tokens.add(usage.prompt_tokens, usage.completion_tokens)
    _write(out, recipe, items, results)
    print_lines(_figures(recipe, results, usage))
    _print_end(out, items, results, str(args.recipe))
    return SOME_REMAIN if any(isinstance(result, RequestError) for result in results) else 0


def _by_own_critic(args: argparse.Namespace, recipe: Recipe) -> int:
    """Annotate by the recipe's critic in Python."""
    from text2grad.runs import annotate_by_critic

    if args.max_cost is not None:
        raise ConfigError("--max-cost belongs to a server; leave it out with --own-critic")
    out = Path(recipe.annotate.out)
    if (out / "answers.sqlite").exists():
        raise ConfigError(f"{out} holds a server's answers; choose another --out")
    refuse_full_directory(out, "critic.json", "responses.jsonl", force=args.force)
    lock_directory(out)
    with metered(out, "annotate"):
        annotations = annotate_by_critic(recipe, out, samples=args.samples or 1, limit=args.limit)
    labels = [span.label for annotation in annotations for span in annotation.critique.spans]
    failed = sum(annotation.critique.failed for annotation in annotations)
    figures = {
        "responses": len(annotations),
        "failed critiques": failed,
        "positive spans": labels.count("positive"),
        "negative spans": labels.count("negative"),
    }
    print_lines((name, f"{count:,}") for name, count in figures.items())
    print_end(f"{out}/annotations.jsonl", then=_reward(str(args.recipe), out))
    return SOME_REMAIN if failed else 0


def _reward(recipe: str, out: Path) -> list[str]:
    """Return the command that trains a reward model on the annotations."""
    return ["text2grad", "reward", recipe, "--annotations", f"{out}/annotations.jsonl"]


def _write(out: Path, recipe: Recipe, items: Sequence[Item], results: Results) -> None:
    """Write annotations.jsonl and failures.jsonl atomically."""
    settings = {name: value for name, value in recipe.annotate.model_dump(include=ANNOTATOR).items() if value != ()}
    annotations, failures = [], []
    for item, result in zip(items, results, strict=True):
        record = {"id": item.id, "prompt": item.example.prompt_text, "response": item.response}
        if isinstance(result, RequestError):
            failures.append({**record, "kind": result.kind, "detail": result.detail})
            continue
        critique, answer = result
        tokens = {name: max(getattr(answer, name) or 0, 0) for name in ("prompt_tokens", "completion_tokens")}
        annotations.append({**record, "critique": critique_to_json(critique), "annotator": {**settings, **tokens}})
    write_records(out / "annotations.jsonl", annotations)
    write_records(out / "failures.jsonl", failures)


def _figures(recipe: Recipe, results: Results, usage: Usage) -> list[tuple[str, str]]:
    """Return the figures of a run by name."""
    critiques = [result[0] for result in results if not isinstance(result, RequestError)]
    quotes = sum(len(critique.spans) + len(critique.unmatched) for critique in critiques)
    priced = any(recipe.annotate.prices)
    return [
        ("critiques", f"{len(critiques):,} of {len(results):,}"),
        ("answers from before", f"{usage.reused:,}"),
        ("requests", f"{usage.requests:,}, of which {usage.retried:,} repeated"),
        ("tokens", f"{usage.prompt_tokens:,} read, {usage.completion_tokens:,} written"),
        *([("cost of all answers", f"${usage.cost:.4f}")] if priced else []),
        ("spans", f"{sum(len(critique.spans) for critique in critiques):,}"),
        ("quotes not found", f"{sum(len(critique.unmatched) for critique in critiques):,} of {quotes:,}"),
    ]


def _print_end(out: Path, items: Sequence[Item], results: Results, recipe: str) -> None:
    """Print the kinds of failures, each with its first ids, then the files and the next command."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for item, result in zip(items, results, strict=True):
        if isinstance(result, RequestError):
            kinds.setdefault(result.kind, []).append((item.id, result.detail))
    if kinds:
        say("\nwithout a critique:", style="yellow")
    for kind, failed in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        named = ", ".join(name for name, _ in failed[:NAMED_IDS]) + (", …" if len(failed) > NAMED_IDS else "")
        say(f"  {kind}: {len(failed):,} ({named}): {failed[0][1]}")
    answered = sum(len(kinds.get(kind, ())) for kind in ANSWERED)  # these answers are kept
    missing = sum(map(len, kinds.values())) - answered
    again = f"run the same command again: it requests the {missing:,} missing answers only" if missing else ""
    if "rejected" in kinds or any("budget" in detail for _, detail in kinds.get("not_asked", ())):
        again = f"mend what the lines above say; then {again}"
    then = [] if all(isinstance(result, RequestError) for result in results) else _reward(recipe, out)
    print_end(f"{out}/annotations.jsonl, failures.jsonl", then=then, note=again)
