"""`text2grad annotate RECIPE.toml`: a language model on a server judges responses, and no answer is paid for twice."""

import argparse
import asyncio
import fcntl
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from text2grad.errors import ConfigError, DataError

if TYPE_CHECKING:
    from text2grad.config import Recipe
    from text2grad.critics.servers import Budget, Item, Pace, Tally, Verdict


class Judged(Protocol):
    """What became of something that was judged."""

    @property
    def failure(self) -> object:
        """None where nothing failed."""


One = TypeVar("One", contravariant=True)
Found = TypeVar("Found", bound=Judged)


class Judging(Protocol[One, Found]):
    """A run over many items, such as `annotating.judging.Session`."""

    async def run(
        self,
        items: Sequence[One],
        on_done: "Callable[[Found, Tally, Budget], None] | None" = None,
        on_start: "Callable[[Pace], None] | None" = None,
    ) -> tuple[list[Found], "Tally", "Budget"]:
        """Judge the items."""


SOME_REMAIN = 3
"""Exit status when some responses have no critique, or were not asked about again as the recipe wants."""

NAMED_IDS = 5

DESCRIPTION = """\
Ask a language model on any OpenAI-compatible server what it thinks of responses: a critique in words, then exact quotes
of what is good and what is poor. The recipe's [annotate] says who is asked and how, [data] train is a file of

  {"prompt": "...", "response": "...", "reference": "...", "tests": "...", "feedback": "...", "id": "..."}

of which only the prompt is needed. Without responses the policy, [model] path, responds first. With "feedback", what a
person said, only its places are asked for. The key is read from the environment, and written nowhere.

Every answer is in answers.sqlite before anything else happens to it. A run that was killed goes on where it stopped,
and a finished run that is repeated makes no request."""

EPILOG = """\
examples:
  text2grad annotate my.toml --max-cost 5
  text2grad annotate my.toml --set annotate.base_url=http://localhost:8000/v1 --set annotate.api_key_env=''
  text2grad align runs/annotations/annotations.jsonl --tokenizer models/policy

written to [annotate] out:
  annotations.jsonl   prompt, response, critique with spans; and whom it is by, its tokens, quotes without support
  failures.jsonl      what has no critique, of which kind the failure is, and what was said
  answers.sqlite      every answer ever paid for
  responses.jsonl     the policy's responses, where it gave some

exit status:
  0   every response has a critique
  2   nothing was asked: a setting or a file cannot be used
  3   some remain: they are listed, and the next run asks again for those that got no answer"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "annotate",
        help="have responses judged by a language model on a server",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("recipe", type=Path, help="TOML file of settings; `text2grad recipe` prints all of them")
    add("--max-cost", metavar="DOLLARS", help="stop before all answers in the directory cost more")
    add("--max-requests", metavar="N", help="stop after so many requests")
    add("--limit", type=int, metavar="N", help="judge only the first N responses")
    add("--out", metavar="DIR", help="shorthand for --set annotate.out=DIR")
    add("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override a setting")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load the recipe, refuse what is wrong with it, then ask."""
    from text2grad.config import load_recipe
    from text2grad.critics.servers import Session, Store, check_server
    from text2grad.experiments import items_of

    recipe = load_recipe(args.recipe, [*args.overrides, *_shorthands(args)])
    settings = recipe.annotate
    check_server(settings)
    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit is at least 1, got {args.limit}")
    out, console = Path(settings.out), Console()
    with alone(out), Store(out / "answers.sqlite") as store:
        items = items_of(recipe, out, store, limit=args.limit)
        verdicts, tally, budget = judge_all(console, Session(settings, store, recipe.critic.match), items)
    _write(out, recipe, items, verdicts)
    _print_summary(console, out, items, verdicts, _figures(recipe, verdicts, tally, budget))
    return SOME_REMAIN if any(verdict.failure for verdict in verdicts) else 0


def _shorthands(args: argparse.Namespace) -> Sequence[str]:
    pairs = (("out", args.out and f"'{args.out}'"), ("max_cost", args.max_cost), ("max_requests", args.max_requests))
    return [f"annotate.{name}={value}" for name, value in pairs if value]


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Refuse a second run on the same directory: both would pay for the same answers."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with (out / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise ConfigError(f"another run is writing to {out}; wait for it, or choose another [annotate] out") from error
    except OSError as error:
        raise DataError(f"cannot write to {out}: {error.strerror}") from error


def judge_all(
    console: Console, session: "Judging[One, Found]", items: Sequence[One]
) -> tuple[list[Found], "Tally", "Budget"]:
    """Judge the items with a progress bar; the first Ctrl-C lets what is under way end, the second does not."""

    async def work() -> tuple[list[Found], "Tally", "Budget"]:
        loop = asyncio.get_running_loop()

        def start(pace: "Pace") -> None:
            def stop(number: signal.Signals) -> None:
                pace.stop(f"stopped by {number.name}")
                loop.remove_signal_handler(number)

            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop, number)

        with _bar(console, len(items)) as on_done:
            return await session.run(items, on_done, start)

    return asyncio.run(work())


@contextmanager
def _bar(console: Console, total: int) -> Iterator[Callable[["Judged", "Tally", "Budget"], None]]:
    """Show how much is done, how fast, for how much, and how long it will take."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn

    class Rate(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0.0:.1f}/s")

    columns = (
        *(TextColumn("asking"), BarColumn(), MofNCompleteColumn(), Rate("")),
        *(TextColumn("${task.fields[cost]:.2f}"), TextColumn("{task.fields[failed]} failed"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console) as progress:
        task, failed = progress.add_task("", total=total, cost=0.0, failed=0), 0

        def on_done(verdict: "Judged", _: "Tally", budget: "Budget") -> None:
            nonlocal failed
            failed += verdict.failure is not None
            progress.update(task, advance=1, cost=budget.cost, failed=failed)

        yield on_done


def _write(out: Path, recipe: "Recipe", items: Sequence["Item"], verdicts: Sequence["Verdict"]) -> None:
    """Write annotations.jsonl and failures.jsonl, each whole or not at all."""
    from text2grad.feedback import critique_to_json
    from text2grad.files import write_records

    settings = recipe.annotate
    annotations, failures = [], []
    for item, verdict in zip(items, verdicts, strict=True):
        what = {"id": item.id, "prompt": item.example.prompt_text, "response": item.response}
        if verdict.critique is not None:
            annotator = {
                "model": settings.model,
                "template": settings.template,
                "reasoning": settings.reasoning,
                "prompt_tokens": verdict.prompt_tokens,
                "completion_tokens": verdict.completion_tokens,
                "unsupported": list(verdict.unsupported),
            }
            annotations.append({**what, "critique": critique_to_json(verdict.critique), "annotator": annotator})
        if verdict.failure is not None:
            failures.append({**what, "kind": verdict.failure.kind, "detail": verdict.failure.detail})
    for name, records in (("annotations", annotations), ("failures", failures)):
        write_records(out / f"{name}.jsonl", records)


def _figures(
    recipe: "Recipe", verdicts: Sequence["Verdict"], tally: "Tally", budget: "Budget"
) -> list[tuple[str, str]]:
    """Return what the run came to, by name."""
    critiques = [verdict.critique for verdict in verdicts if verdict.critique]
    quotes = sum(len(one.spans) + len(one.unmatched) for one in critiques)
    priced = recipe.annotate.input_price or recipe.annotate.output_price
    return [
        ("critiques", f"{len(critiques):,} of {len(verdicts):,}"),
        ("answers from before", f"{tally.reused:,}"),
        ("requests", f"{budget.requests:,}, of which {tally.retried:,} repeated"),
        ("tokens", f"{tally.prompt_tokens:,} read, {tally.completion_tokens:,} written"),
        *([("cost of all answers", f"${budget.cost:.4f}")] if priced else []),
        ("spans", f"{sum(len(one.spans) for one in critiques):,}"),
        ("quotes not found", f"{sum(len(one.unmatched) for one in critiques):,} of {quotes:,}"),
        ("without support", f"{sum(len(one.unsupported) for one in verdicts):,}"),
    ]


def _print_summary(
    console: Console,
    out: Path,
    items: Sequence["Item"],
    verdicts: Sequence["Verdict"],
    figures: Sequence[tuple[str, str]],
) -> None:
    """Print the figures, then the failures by kind, each with its first ids."""
    from text2grad.experiments.reports import plain

    table = Table.grid(padding=(0, 3))
    for name, value in figures:
        table.add_row(plain(name, style="dim"), plain(value))
    console.print(table)
    kinds: dict[str, list[tuple[str, str]]] = {}
    for item, verdict in zip(items, verdicts, strict=True):
        if verdict.failure:
            kinds.setdefault(verdict.failure.kind, []).append((item.id, verdict.failure.detail))
    if kinds:
        console.print(plain("\nwithout a critique, or not asked again:", style="yellow"))
    for kind, failed in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        named = ", ".join(name for name, _ in failed[:NAMED_IDS]) + (", …" if len(failed) > NAMED_IDS else "")
        console.print(plain(f"  {kind}: {len(failed):,} ({named}): {failed[0][1]}"), soft_wrap=True)
    console.print(plain(f"\nwritten: {out}/annotations.jsonl, failures.jsonl"), soft_wrap=True)
