"""Token rewards → the reports of `python -m evidence align` on the losses between critique and tokens."""

import argparse
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Console

from evidence.commands.annotation_tables import Counts, Prices, panel_size, paper_tables, task_panels
from evidence.commands.fidelity import Tally
from evidence.commands.token_rewards import TokenRewards
from text2grad.align import AlignSettings
from text2grad.errors import DataError
from text2grad.feedback import WAY_OUT, CritiqueRecord
from text2grad.feedback.records import critique_to_json
from text2grad.files import write_files
from text2grad.runs.reports import html
from text2grad.runs.reports.plots import Picture, panels_png, pictures
from text2grad.runs.reports.terminal import as_text, plain, print_critique, print_figures

HTML_RESPONSES = 50
NAMED_PROBLEMS = 20
FILES = ("rewards.jsonl", "report.json", "report.html", "tables.txt", "tables.png")


@dataclass(slots=True)
class Gathered:
    """The data of the reports."""

    tally: Tally = field(default_factory=Tally)
    tasks: dict[str, Counts] = field(default_factory=dict)
    shown: list[tuple[CritiqueRecord, TokenRewards]] = field(default_factory=list)
    not_aligned: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def skip(self, error: DataError) -> None:
        """Count a record that could not be used."""
        self.tally.skip()
        self.skipped.append(str(error).removesuffix(f". {WAY_OUT}"))

    def add(self, task: str, tokenizer: Any, record: CritiqueRecord, rewards: TokenRewards | None) -> None:
        """Count a response; `rewards` is None if its tokens decode to another text."""
        if rewards is None:
            self.tally.leave_out()
            self.not_aligned.append(record.where)
            return
        self.tally.add(rewards)
        self.tasks.setdefault(task, Counts()).add(tokenizer, record, rewards)
        if len(self.shown) < HTML_RESPONSES:
            self.shown.append((record, rewards))


def write_reports(args: argparse.Namespace, settings: AlignSettings, gathered: Gathered) -> None:
    """Write report.json, report.html, tables.txt and tables.png.

    Raises:
        DataError: if a file cannot be written.
    """
    prices = Prices(args.price_read, args.price_written)
    inputs = [str(path) for path in args.input]
    report = {
        "input": inputs[0] if len(inputs) == 1 else inputs,
        "tokenizer": args.tokenizer,
        "settings": {"match": args.match, **{name: value for name, value in asdict(settings).items() if value}},
        **gathered.tally.report().as_json(),
        "prices_usd_per_million_tokens": asdict(prices),
        "tasks": {name: counts.as_json(prices) for name, counts in gathered.tasks.items()},
        "without_rewards": gathered.not_aligned,
        "skipped_records": gathered.skipped,
    }
    tables, panels = paper_tables(gathered.tasks, prices), task_panels(gathered.tasks, prices)
    size = panel_size(gathered.tasks)
    files = {
        "report.json": (json.dumps(report, indent=2) + "\n").encode(),
        "report.html": _page(args, settings, gathered, tables, pictures(panels, size=size)).encode(),
        "tables.txt": as_text(tables).encode("utf-8", "backslashreplace"),
        "tables.png": panels_png(panels, size=size),
    }
    write_files(args.out, files)


def print_report(console: Console, args: argparse.Namespace, gathered: Gathered) -> None:
    """Print some responses, the numbers, and the problems."""
    for record, rewards in gathered.shown[: args.show]:
        print_critique(console, rewards.text, replace(rewards.critique, spans=rewards.spans), title=record.where)
    title = f"{_names(args)} → {args.tokenizer.rpartition('/')[2]}"
    print_figures(console, gathered.tally.report().rows(), title=title)
    tables = paper_tables(gathered.tasks, Prices(args.price_read, args.price_written))
    console.print(plain("\n" + as_text(tables).rstrip()), soft_wrap=True)
    _print_problems(console, "no rewards, because the tokens decode to another text:", gathered.not_aligned)
    _print_problems(console, "skipped:", gathered.skipped)
    flagged = [" ".join(span.split()) for counts in gathered.tasks.values() for span in counts.flagged]
    _print_problems(console, "first spans without word overlap with the feedback:", flagged[: args.show])


def row_of(record: CritiqueRecord, rewards: TokenRewards) -> dict[str, Any]:
    """Return a row of rewards.jsonl, in the form of a run's rollouts; `read_critique_records` reads it."""
    return {
        "record": record.number,
        "prompt": record.prompt,
        "response": rewards.text,
        "critique": critique_to_json(replace(rewards.critique, spans=rewards.spans)),
        "ids": list(rewards.ids),
        "offsets": [list(pair) for pair in rewards.offsets],
        "delta": list(rewards.delta),
    }


def _names(args: argparse.Namespace) -> str:
    return ", ".join(path.name for path in args.input)


def _page(
    args: argparse.Namespace,
    settings: AlignSettings,
    gathered: Gathered,
    tables: list[html.Table],
    panels: list[Picture],
) -> str:
    """Return report.html."""
    shown, fidelity = gathered.shown, gathered.tally.report()
    used = {"match": args.match, **{name: value for name, value in asdict(settings).items() if value}}
    intro = (
        f"Critiques of {_names(args)} as rewards of the tokens of {args.tokenizer.rpartition('/')[2]}.\n\n"
        + " · ".join(f"{name.replace('_', ' ')}: {value}" for name, value in used.items())
    )
    heading = "Responses" if len(shown) == fidelity.aligned else "First responses"
    return html.rollouts_page(
        "From critiques to token rewards",
        intro=intro,
        summary=fidelity.rows(),
        groups=[(heading, [row_of(record, rewards) for record, rewards in shown])],
        images=[("Tokens written, shares, and tokens per span, by task", panels)],
        tables=tables,
    )


def _print_problems(console: Console, heading: str, problems: list[str]) -> None:
    """Print the first problems of a kind, and the number of others."""
    if not problems:
        return
    console.print(plain(f"\n{heading}", style="yellow"))
    for problem in problems[:NAMED_PROBLEMS]:
        console.print(plain(f"  {problem}"), soft_wrap=True)
    if len(problems) > NAMED_PROBLEMS:
        console.print(f"  and {len(problems) - NAMED_PROBLEMS:,} more")
