"""`text2grad evaluate`: models on public benchmarks, side by side, with intervals."""

import argparse
import os
from pathlib import Path
from typing import Any

from text2grad.cli.options import (
    add_command,
    add_force,
    add_set,
    at_least,
    finite,
    print_end,
    refuse_full_directory,
    shorthands,
)
from text2grad.errors import ConfigError, require

DESCRIPTION = """\
Measure models on benchmarks: sample answers, score them, and print every figure with a 95 % interval. MODEL is a
directory of a model or a LoRA adapter, a run of `text2grad train`, a name on the Hugging Face hub, or the address of an
OpenAI-compatible server; NAME=MODEL gives it a name. Several models are compared on the same questions; --baseline
adds paired differences.

Each answer is written before it is used. A run that was killed goes on where it stopped, with the answers that an
undisturbed run would have; an answer of a server is requested once."""

EPILOG = """\
examples:
  text2grad evaluate models/policy --suite summarization --data posts.jsonl --out runs/summaries
  text2grad evaluate before=models/base after=runs/mine --baseline before --suite code --data HumanEval.jsonl.gz \\
      --out runs/code
  text2grad evaluate big=http://localhost:8000/v1 --model-name llama --suite humaneval \\
      --data humaneval=HumanEval.jsonl.gz --temperature 0.8 --samples 20 --out runs/served

  text2grad evaluate runs/mine --suite mt_bench --data mt_bench --judge judge.toml --max-cost 5 --out runs/chat

written to DIR:
  evaluation.json             every figure with its interval, differences, models and settings
  evaluation.png, .html       the figures as a picture, and a page with answers side by side
  answers/SUITE.MODEL.jsonl   the answers; scores/SUITE.MODEL.jsonl their scores
  answers.sqlite              every answer of a server
  judgements/answers.sqlite   every judgement, paid for once

docs/evaluation.md defines each figure, and says where the data of each suite comes from."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    from text2grad.evaluation import SUITES

    about = "measure models on benchmarks: texts, code, knowledge, chat"
    suites = "\n".join(f"  {name:16}{kind.about}" for name, kind in SUITES.items())
    suites += "\n  lm-eval:TASK    any task of lm-eval\n  MODULE:NAME     a suite that a module of yours registers"
    parser = add_command(commands, "evaluate", run, about, f"{DESCRIPTION}\n\nsuites:\n{suites}", EPILOG)
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="+", help="PATH, hub name or http://…/v1; or NAME=…")
    named = "a suite, or `all` that --data names; may be repeated"
    add("--suite", dest="suites", action="append", required=True, metavar="NAME", help=named)
    files = "data of a suite: FILE, directory of `datasets` or hub name; SUITE=FILE with several suites"
    add("--data", action="append", default=[], metavar="[SUITE=]FILE", help=files)
    add("--split", default="", help="split of a data set (default: the suite's own)")
    add("--limit", type=at_least(1), metavar="N", help="only the first N questions of each suite")
    add("--out", type=Path, required=True, metavar="DIR", help="directory of the results")
    add("--baseline", default="", metavar="NAME", help="name of the model from which differences are taken")
    add("--draws", type=at_least(1), default=2000, metavar="N", help="bootstrap resamples (default: %(default)s)")
    add_force(add)
    _add_answers(parser)
    texts = parser.add_argument_group("texts").add_argument
    texts("--perplexity-model", default="", metavar="PATH", help="causal language model that reads the answers")
    texts("--bertscore", default="", metavar="PATH", help="encoder for BERTScore, such as roberta-large")
    texts("--bertscore-layer", type=at_least(0), metavar="N", help="layer whose states are compared (default: last)")
    shots = "examples before each question of arc and lm-eval:TASK (default: the task's own)"
    parser.add_argument_group("knowledge").add_argument("--shots", type=at_least(0), metavar="N", help=shots)
    chat = parser.add_argument_group("chat (a judge on a server)").add_argument
    chat("--judge", type=Path, metavar="FILE", help="TOML file whose [annotate] names the judge's server and model")
    chat("--max-cost", metavar="DOLLARS", help="budget of all judgements in the directory; a dearer run is refused")
    add_set(chat)
    code = parser.add_argument_group("programs").add_argument
    limit = "seconds of one program with its tests (default: 10; EvalPlus 60)"
    code("--program-timeout", type=finite(0.1), metavar="S", help=limit)
    code("--program-memory", type=at_least(64), default=4096, metavar="MIB", help="MiB of one program (default: 4096)")
    code("--accept-weaker", action="store_true", help="run programs although none can be kept from reading files")


def _add_answers(parser: argparse.ArgumentParser) -> None:
    """Add the options of sampling and of servers."""
    answers = parser.add_argument_group("answers").add_argument
    answers("--temperature", type=finite(0.0), default=0.0, help="0 takes the most likely token (default: %(default)s)")
    answers("--samples", type=at_least(1), default=1, metavar="N", help="answers to each question (default: 1)")
    answers("--max-new-tokens", type=at_least(1), metavar="N", help="longest answer (default: the suite's own)")
    answers("--seed", type=at_least(0), default=0, help="of sampling and intervals (default: %(default)s)")
    answers(
        "--prompt-format", choices=("auto", "chat", "plain"), default="auto", help="auto: chat with a chat template"
    )
    answers(
        "--rows-at-once", type=at_least(1), default=16, metavar="N", help="answers per batch (default: %(default)s)"
    )
    long = "a prompt that leaves no room: refuse, or count an empty answer"
    answers("--too-long", choices=("refuse", "empty"), default="refuse", help=long)
    answers("--dtype", default="auto", help="of the weights: auto, float32, bfloat16, … (default: as saved)")
    answers("--trust-remote-code", action="store_true", help="run code that comes with a model")
    served = parser.add_argument_group("models on a server").add_argument
    served("--model-name", action="append", default=[], metavar="[NAME=]MODEL", help="the model's name on its server")
    served("--api-key-env", default="", metavar="VARIABLE", help="environment variable with the key (default: no key)")
    served("--concurrency", type=at_least(1), default=32, metavar="N", help="most requests under way (default: 32)")
    served("--timeout", type=finite(0.0), default=300.0, metavar="S", help="seconds of one request (default: 300)")


def run(args: argparse.Namespace) -> int:
    """Check arguments and data, then sample, score and write.

    Raises:
        Text2GradError: if a file, a model or an option cannot be used; files and options are checked first.
    """
    from text2grad.critics.servers import Endpoint
    from text2grad.evaluation import (
        EvaluationSettings,
        Sampling,
        SuiteOptions,
        evaluate_models,
        make_suites,
        read_subjects,
    )
    from text2grad.progress import CONSOLE
    from text2grad.runs.reports import print_evaluation

    refuse_full_directory(args.out, "answers", force=args.force)
    subjects = read_subjects(
        args.models,
        model_names=args.model_name,
        prompt_format=args.prompt_format,
        trust_remote_code=args.trust_remote_code,
    )
    if any(one.served for one in subjects):
        require("openai", "aiohttp", "tenacity", extra="annotate", purpose="a model on a server")
        if args.api_key_env and not os.environ.get(args.api_key_env):
            raise ConfigError(
                f"--api-key-env {args.api_key_env}: the variable holds no key; set it, or leave the option out "
                "for a server without keys"
            )
    elif args.model_name:
        raise ConfigError(f"--model-name {args.model_name[0]}: no model is on a server; give http://HOST:PORT/v1")
    if args.bertscore_layer is not None and not args.bertscore:
        raise ConfigError("--bertscore-layer needs --bertscore. Name its model, or leave the layer out")
    options = SuiteOptions(
        split=args.split,
        limit=args.limit,
        samples=args.samples,
        rows_at_once=args.rows_at_once,
        shots=args.shots,
        timeout_s=args.program_timeout,
        memory_mb=args.program_memory,
        accept_weaker=args.accept_weaker,
        perplexity_model=args.perplexity_model,
        bertscore=args.bertscore,
        bertscore_layer=args.bertscore_layer,
        judge=_judge(args),
    )
    sampling = Sampling(
        temperature=args.temperature,
        samples=args.samples,
        max_new_tokens=args.max_new_tokens,
        seed=args.seed,
        rows_at_once=args.rows_at_once,
        too_long=args.too_long,
    )
    settings = EvaluationSettings(
        args.out,
        sampling,
        Endpoint("", api_key_env=args.api_key_env, concurrency=args.concurrency, timeout_s=args.timeout),
        args.baseline,
        args.draws,
        args.dtype,
        args.force,
    )
    suites = make_suites(args.suites, args.data, options)
    found = evaluate_models(subjects, suites, settings)
    print_evaluation(CONSOLE, found)
    _write(args.out, found)
    print_end(CONSOLE, f"{args.out}/evaluation.json, evaluation.png, evaluation.html, answers/, scores/")
    return 0


def _judge(args: argparse.Namespace) -> Any:
    """Return the judge of chat suites; None if none is named."""
    from text2grad.config import load_recipe
    from text2grad.evaluation import Judge
    from text2grad.runs import endpoint_values

    if args.judge is None:
        if args.max_cost is not None or args.overrides:
            raise ConfigError("--max-cost and --set belong to a judge; name it with --judge FILE")
        return None
    require("openai", "aiohttp", "tenacity", extra="annotate", purpose="a judge on a server")
    limit = shorthands({}, {"annotate.max_cost": args.max_cost})
    return Judge(*endpoint_values(load_recipe(args.judge, [*args.overrides, *limit]).annotate))


def _write(out: Path, found: Any) -> None:
    from text2grad.files import write_files
    from text2grad.runs.reports import evaluation_picture, policy_page

    write_files(out, {"evaluation.png": evaluation_picture(found), "evaluation.html": policy_page(found).encode()})
