"""`text2grad evaluate critic`: measure a critic against annotations: precision, recall, spans, quotes and words."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from text2grad.cli.options import (
    add_command,
    add_shared,
    at_least,
    print_end,
    refuse_full_directory,
    refuse_other_results,
    say,
    shorthands,
)
from text2grad.config import Recipe, load_recipe
from text2grad.costs import metered, tokens_of
from text2grad.critics import CachedCritic
from text2grad.errors import ConfigError, DataError, ModelError, require
from text2grad.feedback import Annotation, annotation_to_json
from text2grad.files import json_lines, to_json, write_files
from text2grad.runs.reports import as_text
from text2grad.types import Example

if TYPE_CHECKING:
    from text2grad.evaluation import Wording
    from text2grad.runs.critic_quality import Evaluation, Pair, Units

DESCRIPTION = """\
Measure a critic against annotations, which are the truth: precision and recall of its positive and negative tokens, its
spans and quotes, its feedback in words, and the critiques and quotes that cannot be used.

ANNOTATIONS is a file that `text2grad feedback import` or `text2grad annotate` wrote, or the recipe of `text2grad
reward`: its reward model is then measured on its held-out annotations, which chose its checkpoint, so figures are
slightly high. A killed evaluation continues without repeated calls of the critic."""

EPILOG = """\
examples:
  text2grad evaluate critic my.toml
  text2grad evaluate critic held_out.jsonl --model runs/reward_model --set critic.constrain=false --out runs/free
  text2grad evaluate critic held_out.jsonl --critic my_module:critic --tokenizer models/policy --out runs/mine
  text2grad evaluate critic held_out.jsonl --predictions theirs.jsonl --tokenizer words --no-words --out runs/theirs

--set changes the recipe or, with a file of annotations, the defaults: critic.match, critic.votes, critic.constrain, ...

evaluation.html shows rates with 95 % intervals, tables 1, 6, 7, 8, 15, 18 and 19 of the paper, and responses with
coloured spans, prediction beside truth. docs/evaluation.md explains the files and defines each number."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "measure a critic against annotations: precision, recall, spans, words"
    parser = add_command(commands, "critic", run, about, DESCRIPTION, EPILOG)
    add, who = parser.add_argument, parser.add_mutually_exclusive_group().add_argument
    add("annotations", metavar="ANNOTATIONS", type=Path, help="JSONL of annotations, the truth; or a recipe, FILE.toml")
    who("--model", metavar="PATH", help="directory of a generative reward model, or of any language model")
    who("--critic", metavar="MODULE:NAME", help="a critic in Python")
    theirs = "JSONL of critiques of the same responses, instead of a critic"
    who("--predictions", metavar="FILE", type=Path, help=theirs)
    add("--out", type=Path, metavar="DIR", help="directory of the results (default with a recipe: beside the model)")
    add_shared(add, "--set", "--force")
    unit = "count the tokens of this model, or `words` or `characters` (default: tokens of --model, else words)"
    add("--tokenizer", metavar="PATH", help=unit)
    add("--limit", type=at_least(1), metavar="N", help="use only the first N annotations")
    add("--no-words", action="store_true", help="leave out ROUGE and BLEU")
    add("--bertscore", metavar="PATH", help="encoder for BERTScore, such as the directory of roberta-large")
    add("--perplexity", metavar="PATH", help="causal language model for the perplexity of the feedback")


BEATEN = "marking everything has at least the critic's F1, for each label"


def run(args: argparse.Namespace) -> int:
    """Check the arguments, run the critic, measure, and write the results."""
    from text2grad.runs.critic_quality import evaluate, read_truth

    recipe = _complete(args)
    refuse_full_directory(args.out, "critic.json", force=args.force)
    about = {"annotations": str(args.annotations)}
    refuse_other_results(args.out / "evaluation.json", about, force=args.force)
    truth = read_truth(args.annotations, limit=args.limit, to_encode=args.model is not None)
    wording = _wording(args)
    pairs, units = _pairs(args, recipe, truth)
    evaluation = evaluate(pairs, units, wording)
    if not evaluation.marked:
        raise DataError(
            f"{units.name}: no response of {args.annotations} decodes to its own text. Choose another --tokenizer, "
            "such as --tokenizer words"
        )
    _report(args, evaluation, pairs)
    return 0


def _complete(args: argparse.Namespace) -> Recipe:
    """Return the recipe, which names the critic; annotations, model and directory come from it if none is given."""
    from text2grad.models import MODEL
    from text2grad.reward_models.training import HELD_OUT_FILE, finished_file, reward_directory

    path = args.annotations if args.annotations.suffix == ".toml" else None
    if path is not None:
        directory = reward_directory(load_recipe(path, args.overrides))
        args.annotations, args.out = finished_file(directory, HELD_OUT_FILE), args.out or directory / "evaluation"
        if args.critic is None and args.predictions is None:
            args.model = args.model or str(finished_file(directory, MODEL))
    if args.model is None and args.critic is None and args.predictions is None:
        raise ConfigError("nothing to measure: name a critic with --model, --critic or --predictions")
    if args.out is None:
        raise ConfigError("name the directory of the results with --out DIR")
    named = shorthands({"critic.model": args.model, "critic.use": args.critic})
    recipe = load_recipe(path, [*args.overrides, *named, *(['critic.use=""'] if args.model else [])])
    if args.model and recipe.critic.kind != "server" and not Path(args.model).is_dir():
        raise ModelError(f"--model {args.model}: no such directory. Name the directory of a saved reward model")
    return recipe


def _wording(args: argparse.Namespace) -> "Wording":
    """Return what is measured of the feedback; models are loaded before the critic runs."""
    from text2grad.evaluation import Wording, load_scorer

    if not args.no_words:
        require("rouge_score", "sacrebleu", extra="eval", purpose="ROUGE and BLEU", otherwise="add --no-words")
    scorers = load_scorer(args.bertscore or "", "BERTScore"), load_scorer(args.perplexity or "", "perplexity")
    return Wording(not args.no_words, *scorers)


def _pairs(args: argparse.Namespace, recipe: Recipe, truth: Sequence[Any]) -> tuple[list["Pair"], "Units"]:
    """Return pairs of critiques and their unit; the critic runs unless its predictions are given."""
    from text2grad.models import best_device
    from text2grad.reward_models import LocalRewardModel, critic_from_recipe
    from text2grad.runs.critic_quality import check_identity, identity_of, paired, read_predictions

    match = recipe.critic.match
    if args.predictions is not None:
        pairs = read_predictions(args.predictions, truth, match=match, whole=args.limit is None)
        check_identity(args.out, {"predictions": str(args.predictions)})
        return pairs, _units(args, None)
    critic: Any = critic_from_recipe(recipe)
    if isinstance(critic, LocalRewardModel):
        critic.model.to(best_device())
    units = _units(args, getattr(critic, "tokenizer", None) if args.model else None)
    check_identity(args.out, identity_of(critic, args.model or args.critic, recipe))
    examples, responses = [Example(record.prompt) for record in truth], [record.response for record in truth]
    with metered(args.out, "evaluate critic") as tokens:
        before = tokens_of(critic)
        try:
            cached = CachedCritic(critic, args.out / "answers.jsonl", **recipe.critic.asking())
            critiques = cached.in_batches(examples, responses)
        finally:
            after = tokens_of(critic)
            tokens.add(after.prompt - before.prompt, after.generated - before.generated)
    return paired(truth, critiques), units


def _units(args: argparse.Namespace, own: Any) -> "Units":
    """Return the unit that precision and recall count; `own` is the tokenizer of the critic."""
    from text2grad.models import load_tokenizer
    from text2grad.runs.critic_quality import CUTS, Units

    if args.tokenizer in CUTS or (args.tokenizer is None and own is None):
        return Units(args.tokenizer or "words")
    if args.tokenizer is None:
        return Units(f"tokens of {args.model}", own)
    return Units(f"tokens of {args.tokenizer}", load_tokenizer(args.tokenizer))


def _report(args: argparse.Namespace, evaluation: "Evaluation", pairs: Sequence["Pair"]) -> None:
    """Write the four files, each complete or not at all, and print the tables and the responses that were left out."""
    from text2grad.runs.critic_quality import NAMED, evaluation_page, tables

    critic = args.model or args.critic or args.predictions.name
    record = {"annotations": str(args.annotations), "critic": critic, **evaluation.as_json()}
    predictions = [annotation_to_json(Annotation(pair.prompt, pair.response, pair.predicted)) for pair in pairs]
    text = as_text(tables(evaluation))
    files = {
        "evaluation.json": to_json(record, indent=2) + b"\n",
        "predictions.jsonl": json_lines(predictions),
        "tables.txt": text.encode("utf-8", "backslashreplace"),
        "evaluation.html": evaluation_page(evaluation, critic, args.annotations.name).encode(),
    }
    write_files(args.out, files)
    say(f"unit: {evaluation.unit}; [low, high]: 95 % bootstrap intervals over responses\n")
    say(text.rstrip())
    if left_out := evaluation.left_out:
        named = ", ".join(left_out[:NAMED]) + (", …" if len(left_out) > NAMED else "")
        say(f"\nleft out, since their tokens decode to another text: {len(left_out):,} ({named})", style="yellow")
    use = ["--set", f"critic.model={args.model}"] if args.model else ["--critic", args.critic]
    then = [] if args.predictions else ["text2grad", "train", "RECIPE.toml", *use]
    note = "" if then else f"open {args.out}/evaluation.html in a browser"
    if evaluation.beaten_by_marking_everything:
        note = f"{BEATEN}; read its critiques in {args.out}/evaluation.html before a policy learns from them"
    print_end(f"{args.out}/{', '.join(files)}", then=then, note=note)
