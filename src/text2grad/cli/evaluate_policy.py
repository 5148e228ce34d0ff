"""`text2grad evaluate policy`: models on public benchmarks, side by side, with intervals."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, at_least, finite, print_end, refuse_full_directory
from text2grad.config import Endpoint, load_recipe
from text2grad.errors import require
from text2grad.evaluation import SUITES, make_suites
from text2grad.files import write_files
from text2grad.progress import CONSOLE

DESCRIPTION = """\
Measure models on benchmarks: sample answers, score them, and print every figure with a 95 % interval. MODEL is a
directory of a model or a LoRA adapter, a run of `text2grad train`, a name on the Hugging Face hub, or the address of an
OpenAI-compatible server; NAME=MODEL gives it a name. Several models answer the same questions; --baseline adds paired
differences. Each answer is written before it is used: a run that was killed goes on where it stopped."""

EPILOG = """\
examples:
  text2grad evaluate policy models/policy --suite summarization=posts.jsonl --out runs/summaries
  text2grad evaluate policy before=models/base after=runs/mine --baseline before \\
      --suite code=HumanEval.jsonl.gz --temperature 0.8 --samples 20 --out runs/code
  text2grad evaluate policy big=http://localhost:8000/v1 --model-name llama --suite mt_bench=mt_bench \\
      --judge judge.toml --set annotate.max_cost=5 --out runs/chat

--set changes settings of the judge's file, or of an empty recipe: model.dtype, model.trust_remote_code,
model.prompt_format (auto, chat or plain), data.too_long=skip (a prompt without room counts as failed), of a MODEL on a
server server.api_key_env, server.concurrency and server.timeout_s, of the judge annotate.*

docs/evaluation.md lists the files, defines each figure, and says where the data of each suite comes from."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "measure models on benchmarks: texts, code, knowledge, chat"
    suites = "\n".join(f"  {name:16}{kind.about}" for name, kind in SUITES.items())
    suites += "\n  lm-eval:TASK    any task of lm-eval\n  MODULE:NAME     a suite that a module of yours registers"
    parser = add_command(commands, "policy", run, about, f"{DESCRIPTION}\n\nsuites:\n{suites}", EPILOG)
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="+", help="PATH, hub name or http://…/v1; or NAME=…")
    named = "a suite and its data: FILE, directory of `datasets` or hub name (default: its own); may be repeated"
    add("--suite", dest="suites", action="append", required=True, metavar="NAME[=DATA]", help=named)
    add("--split", default="", help="split of a data set (default: the suite's own)")
    add("--limit", type=at_least(1), metavar="N", help="only the first N questions of each suite")
    add("--out", type=Path, required=True, metavar="DIR", help="directory of the results")
    add("--baseline", default="", metavar="NAME", help="name of the model from which differences are taken")
    add_shared(add, "--force", "--set")
    add("--temperature", type=finite(0.0), default=0.0, help="0 takes the most likely token (default: %(default)s)")
    add("--samples", type=at_least(1), default=1, metavar="N", help="answers to each question (default: 1)")
    add("--max-new-tokens", type=at_least(1), metavar="N", help="longest answer (default: the suite's own)")
    add("--seed", type=at_least(0), default=0, help="of sampling and intervals (default: %(default)s)")
    add("--model-name", action="append", default=[], metavar="[NAME=]MODEL", help="the model's name on its server")
    judge = "chat: TOML file whose [annotate] names the judge, its server, prices"
    add("--judge", type=Path, metavar="FILE", help=judge)
    add("--perplexity", default="", metavar="PATH", help="texts: causal language model that reads the answers")
    add("--bertscore", default="", metavar="PATH", help="texts: encoder for BERTScore, such as roberta-large")
    shots = "examples before each question of arc and lm-eval:TASK (default: the task's own)"
    add("--shots", type=at_least(0), metavar="N", help=shots)
    add("--accept-weaker", action="store_true", help="run programs although none can be kept from reading files")


def run(args: argparse.Namespace) -> int:
    """Check arguments and data, then sample, score and write."""
    from text2grad.evaluation import EvaluationSettings, Sampling, SuiteOptions, evaluate_models, read_subjects
    from text2grad.runs.reports import policy_page, print_evaluation

    refuse_full_directory(args.out, "answers", force=args.force)
    recipe = load_recipe(args.judge, args.overrides)
    loading = recipe.model.model_dump(include={"prompt_format", "trust_remote_code", "dtype"})
    subjects = read_subjects(args.models, args.model_name, **loading)
    if any(subject.served for subject in subjects) or args.judge is not None:
        require("openai", "aiohttp", extra="annotate", purpose="a model on a server")
    judge = None if args.judge is None else recipe.annotate.checked()
    options = SuiteOptions(judge=judge, **_given(args, SuiteOptions))
    too_long: Any = "empty" if recipe.data.too_long == "skip" else "refuse"
    sampling = Sampling(too_long=too_long, **_given(args, Sampling))
    endpoint = Endpoint(**recipe.server.model_dump(include={"api_key_env", "concurrency", "timeout_s"}))
    settings = EvaluationSettings(args.out, sampling, endpoint, args.baseline, force=args.force)
    evaluation = evaluate_models(subjects, make_suites(args.suites, options), settings)
    print_evaluation(CONSOLE, evaluation)
    write_files(args.out, {"evaluation.html": policy_page(evaluation).encode()})
    print_end(f"{args.out}/evaluation.json, evaluation.html, answers/, scores/")
    return 0


def _given(args: argparse.Namespace, settings: type[Any]) -> dict[str, Any]:
    """Return the arguments that have the names of a dataclass's fields, but the judge, whose argument is a file."""
    names = [field.name for field in fields(settings) if field.name in args and field.name != "judge"]
    return {name: getattr(args, name) for name in names}
