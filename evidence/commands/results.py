"""`python -m evidence results`: pages and figures of the evidence, from committed JSON."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, name_values, print_end, refuse_overwriting

DESCRIPTION = """\
Write the pages of results from records of finished runs (JSON lines in --runs): comparison.md (all methods of each
task, differences with intervals, costs, tuning) and length.md (values against length, gain against KL), with their
pictures. They state which runs are missing; no run is needed for the command to work.

Also make the figures in the other pages of --out again, between `<!-- results: NAME -->` and `<!-- end -->`, from the
JSON files in --out. No model is loaded.

`results costs RUN...` prints what the phases of any runs cost: minutes, tokens, memory, and minutes per step with the
share of the critic, as in table 13 of the paper. `results paper` lays our figures beside the paper's tables in
paper.md."""

PLAN = Path("evidence/recipes/results.toml")

EPILOG = """\
examples:
  python -m evidence results
  python -m evidence results --runs evidence/results/runs --out evidence/results
  python -m evidence results paper --ours slf5k=runs/evaluation
  python -m evidence results costs runs/reward runs/spans runs/scalar --to runs/costs

evidence/results/README.md explains how the records are made."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "write the pages of results from committed JSON"
    parser = add_command(commands, "results", run, about, DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--runs", type=Path, metavar="DIR", help="records of runs, *.jsonl (default: runs in --out)")
    add(
        "--out",
        type=Path,
        default=Path("evidence/results"),
        metavar="DIR",
        help="pages and JSON (default: %(default)s)",
    )
    planned = "plan of studies, whose missing runs are named (default: evidence/recipes/results.toml, if it exists)"
    add("--plan", type=Path, metavar="FILE", help=planned)

    verbs = parser.add_subparsers(dest="verb", metavar="costs|paper")
    costs = verbs.add_parser("costs", help="minutes, tokens and memory of the phases of any runs (table 13)")
    costs.add_argument(
        "directories", metavar="RUN", type=Path, nargs="+", help="directory of a run, or of several runs"
    )
    kept = "also write cost_tables.md and cost_tables.json there"
    costs.add_argument("--to", type=Path, metavar="DIR", help=kept)
    costs.set_defaults(run=run_costs)
    paper = verbs.add_parser("paper", help="our figures beside the paper's tables: paper.md")
    told = "directory of an evaluation for a table: slf5k, code, qa or reward; may be repeated"
    paper.add_argument("--ours", action="append", default=[], metavar="TABLE=DIR", help=told)
    where = "directory of paper_numbers.json and the page (default: %(default)s)"
    paper.add_argument("--to", type=Path, default=Path("evidence/results"), metavar="DIR", help=where)
    paper.set_defaults(run=run_paper)
    add_shared(costs.add_argument, "--force")


def run_costs(args: argparse.Namespace) -> int:
    """Print, and write on request, the costs of phases.

    Raises:
        Text2GradError: if a directory holds no costs, or a file would be overwritten.
    """
    from evidence.pages.costs import cost_tables, costs_markdown, read_costs
    from text2grad.files import to_json, write_files
    from text2grad.progress import CONSOLE
    from text2grad.runs.reports import as_text, plain

    names = ("cost_tables.md", "cost_tables.json")
    if args.to is not None:
        refuse_overwriting([args.to / name for name in names], force=args.force)
    found = read_costs(args.directories)
    tables = cost_tables(found)
    CONSOLE.print(plain(as_text(tables).rstrip()), soft_wrap=True)
    if args.to is not None:
        data = to_json([one.as_json() for one in found], indent=2) + b"\n"
        write_files(args.to, dict(zip(names, (costs_markdown(tables).encode(), data), strict=True)))
        print_end(", ".join(str(args.to / name) for name in names))
    return 0


def run_paper(args: argparse.Namespace) -> int:
    """Take our figures from evaluations, and write paper.md.

    Raises:
        Text2GradError: if a directory has no figure of its table, or a file is damaged.
    """
    from evidence.pages.paper import OURS, PAGE, merged_ours, ours_json, paper_page
    from text2grad.files import write_files

    given = {name: Path(path) for name, path in name_values("--ours", args.ours, form="TABLE=DIR").items()}
    kept = merged_ours(args.to, given)
    if kept:
        write_files(args.to, {OURS: ours_json(kept)})
    write_files(args.to, {PAGE: paper_page(args.to).encode()})
    print_end(", ".join(str(args.to / name) for name in ((OURS, PAGE) if kept else (PAGE,))))
    return 0


def run(args: argparse.Namespace) -> int:
    """Write the pages.

    Raises:
        Text2GradError: if a record, a JSON file or a block is damaged.
    """
    from evidence.pages.pages import write_results

    plan = args.plan or (PLAN if PLAN.exists() else None)
    written = write_results(args.runs or args.out / "runs", args.out, plan)
    print_end(", ".join(map(str, written)), note="" if written else "nothing: all pages are up to date")
    return 0
