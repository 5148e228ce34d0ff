"""`text2grad evaluate-reward`: measure a critic against annotations: precision, recall, spans, quotes and words."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from text2grad.cli.options import (
    add_command,
    add_force,
    add_match,
    add_set,
    at_least,
    finite,
    print_end,
    refuse_full_directory,
)
from text2grad.costs import metered, tokens_of
from text2grad.errors import ConfigError, DataError, ModelError, require
from text2grad.progress import Progress

if TYPE_CHECKING:
    from text2grad.runs.critic_quality import Evaluation, Measures, Pair, Units

FILES = ("evaluation.json", "predictions.jsonl", "tables.txt", "evaluation.png", "evaluation.html")

_NO_SUCH_MODEL = "no such directory, and no model of that name in Hugging Face's local cache"

DESCRIPTION = """\
Measure a critic against annotations, which are the truth: precision and recall of its positive and negative tokens, its
spans and quotes, its feedback in words, and the critiques and quotes that cannot be used.

ANNOTATIONS is a file that `text2grad import` or `text2grad annotate` wrote, or the recipe of `text2grad reward`: its
reward model is then measured on its held-out annotations. They chose its checkpoint, so figures are slightly high. The
critic gets prompt and response only.
Each critique is written to disk before it is used: an evaluation that was killed continues without repeated calls."""

EPILOG = """\
examples:
  text2grad evaluate-reward my.toml
  text2grad evaluate-reward held_out.jsonl --model runs/reward_model --out runs/evaluation
  text2grad evaluate-reward held_out.jsonl --model runs/reward_model --no-constrain --out runs/evaluation-free
  text2grad evaluate-reward held_out.jsonl --critic my_module:critic --tokenizer models/policy --out runs/mine
  text2grad evaluate-reward held_out.jsonl --predictions theirs.jsonl --tokenizer words --no-words --out runs/theirs

written to DIR:
  evaluation.json     every rate with its 95 % interval, and the counts behind it
  predictions.jsonl   the critic's critiques; --predictions reads this file
  tables.txt          tables 1, 6, 7, 8, 15, 18 and 19 of the paper, as printed
  evaluation.png      the main rates as bars with intervals
  evaluation.html     picture, tables, and responses with coloured spans: prediction beside truth
  answers.jsonl       the critic's critiques as they were received; critic.json identifies the critic
  samples.jsonl       instead of it with votes: every sampled critique

docs/evaluation.md defines each number."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    about = "measure a critic against annotations: precision, recall, spans, words"
    parser = add_command(commands, "evaluate-reward", run, about, DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("annotations", metavar="ANNOTATIONS", type=Path, help="JSONL of annotations, the truth; or a recipe, FILE.toml")
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--model", metavar="PATH", help="directory of a generative reward model, a probe, or any language model"
    )
    who.add_argument("--critic", metavar="MODULE:NAME", help="a critic in Python")
    who.add_argument(
        "--predictions", metavar="FILE", type=Path, help="JSONL of critiques of the same responses, instead of a critic"
    )
    add("--out", type=Path, metavar="DIR", help="directory of the results (default with a recipe: beside the model)")
    add_set(add)
    add(
        "--tokenizer",
        metavar="PATH",
        help="count the tokens of this model, or `words` or `characters` (default: tokens of --model, else words)",
    )
    add("--limit", type=int, metavar="N", help="use only the first N annotations")
    add_match(add)
    add("--batch-size", type=int, default=16, metavar="N", help="responses per call of the critic (default: 16)")
    add("--seed", type=at_least(0), default=0, help="of the bootstrap resamples")
    add("--draws", type=int, default=2000, metavar="N", help="number of bootstrap resamples (default: 2000)")
    model = parser.add_argument_group("for --model")
    model.add_argument("--no-constrain", action="store_true", help="decode without constraints (docs/reward_models.md)")
    model.add_argument("--max-new-tokens", type=int, metavar="N", help="longest critique (default: as saved)")
    model.add_argument("--votes", type=int, metavar="N", help="sampled critiques per response (default: as saved)")
    model.add_argument(
        "--vote-threshold",
        type=finite(0.0),
        metavar="A",
        help="share of the votes that marks a character (default: as saved)",
    )
    add_force(add)
    words = parser.add_argument_group("words of critiques")
    words.add_argument("--no-words", action="store_true", help="leave out ROUGE and BLEU")
    words.add_argument(
        "--bertscore", metavar="PATH", help="encoder for BERTScore, such as the directory of roberta-large"
    )
    words.add_argument(
        "--bertscore-layer", type=int, metavar="N", help="layer whose states are compared (default: the last)"
    )
    words.add_argument("--perplexity", metavar="PATH", help="causal language model for perplexity")


def run(args: argparse.Namespace) -> int:
    """Check the arguments, run the critic, measure, and write the results.

    Raises:
        Text2GradError: if a file, a model or a setting cannot be used; files and settings are checked before the
            critic runs.
    """
    from text2grad.runs.critic_quality import evaluate, read_truth

    args.recipe = None
    _complete(args)
    for name in ("limit", "batch_size", "draws", "max_new_tokens", "votes"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is at least 1, got {getattr(args, name)}")
    if args.model is None and any(
        (args.no_constrain, args.max_new_tokens, args.votes, args.vote_threshold is not None)
    ):
        raise ConfigError(
            "--no-constrain, --max-new-tokens, --votes and --vote-threshold need --model. Leave them out, or add it"
        )
    if args.bertscore is None and args.bertscore_layer is not None:
        raise ConfigError("--bertscore-layer needs --bertscore. Name its model, or leave the layer out")
    refuse_full_directory(args.out, "critic.json", force=args.force)
    _refuse_other_annotations(args)
    console = Console()
    truth = read_truth(args.annotations, limit=args.limit, to_encode=args.model is not None)
    measures = _measures(args)
    pairs, units, critic, constrained = _pairs(args, truth)
    found = evaluate(pairs, units, measures)
    if not found.marked:
        raise DataError(
            f"{units.name}: no response of {args.annotations} decodes to its own text. Choose another --tokenizer, "
            "such as --tokenizer words"
        )
    _write(args, found, pairs, {"critic": critic, "constrained": constrained})
    _print(console, args, found)
    return 0


def _complete(args: argparse.Namespace) -> None:
    """Take annotations, reward model and directory from a recipe; refuse missing options."""
    if args.annotations.suffix == ".toml":
        from text2grad.config import load_recipe
        from text2grad.reward_models.training import held_out_file, reward_directory, trained_model

        args.recipe = load_recipe(args.annotations, args.overrides)
        directory = reward_directory(args.recipe)
        args.annotations, args.out = held_out_file(directory), args.out or directory / "evaluation"
        if args.critic is None and args.predictions is None:
            args.model = args.model or str(trained_model(directory))
    elif args.overrides:
        raise ConfigError("--set overrides settings of a recipe, and the annotations are a file of records")
    if args.model is None and args.critic is None and args.predictions is None:
        raise ConfigError("nothing to measure: name a critic with --model, --critic or --predictions")
    if args.out is None:
        raise ConfigError("name the directory of the results with --out DIR")


def _refuse_other_annotations(args: argparse.Namespace) -> None:
    """Refuse to overwrite the measurements on other annotations.

    Raises:
        ConfigError: if evaluation.json is of another file of annotations, and `--force` is not given.
    """
    path = args.out / "evaluation.json"
    if args.force or not path.exists():
        return
    try:
        before = json.loads(path.read_bytes()).get("annotations")
    except (OSError, ValueError, AttributeError):
        before = "unknown annotations"
    if before != str(args.annotations):
        raise ConfigError(
            f"{path} holds measurements on {before}, and would be overwritten; choose another --out, or add --force"
        )


def _measures(args: argparse.Namespace) -> "Measures":
    """Return the measurements besides spans; their models are loaded before the critic runs."""
    from text2grad.evaluation import load_encoder, load_reader
    from text2grad.runs.critic_quality import Measures, check_words

    if not args.no_words:
        check_words()
    encoder = load_encoder(args.bertscore, args.bertscore_layer) if args.bertscore else None
    reader = load_reader(args.perplexity) if args.perplexity else None
    return Measures(words=not args.no_words, encoder=encoder, reader=reader, draws=args.draws, seed=args.seed)


def _pairs(args: argparse.Namespace, truth: Sequence[Any]) -> tuple[list["Pair"], "Units", str, bool | None]:
    """Return pairs of critiques, their unit, the name of the critic, and whether its decoding was constrained."""
    from text2grad.feedback import load_critic
    from text2grad.models import best_device
    from text2grad.reward_models import is_probe
    from text2grad.runs.critic_quality import check_identity, fingerprint, read_predictions

    if args.predictions is not None:
        pairs = read_predictions(args.predictions, truth, match=args.match, whole=args.limit is None)
        units = _units(args, None)
        check_identity(args.out, {"predictions": str(args.predictions)})
        return pairs, units, args.predictions.name, None
    probed = args.model is not None and is_probe(args.model)
    critic: Any = _probe(args) if probed else _model(args) if args.model is not None else load_critic(args.critic)
    if args.model is not None:
        critic.model.to(best_device())
    units = _units(args, critic.tokenizer if args.model is not None else None)
    identity = {"model": args.model, "critic": args.critic, "match": args.match}
    if probed:
        identity |= {"vote threshold": critic.settings.vote_threshold, "files": fingerprint(Path(args.model))}
    elif args.model is not None:
        identity |= {"format": critic.format.as_json(), "files": fingerprint(Path(args.model))}
    check_identity(args.out, identity)
    constrained = None if probed or args.model is None else critic.format.constrain
    return _judged(args, critic, truth), units, args.model or args.critic, constrained


def _judged(args: argparse.Namespace, critic: Any, truth: Sequence[Any]) -> list["Pair"]:
    """Run the critic; a model with votes keeps all its sampled critiques."""
    from text2grad.runs.critic_quality import paired, paired_votes, predictions, sampled_predictions

    votes = args.model is not None and getattr(getattr(critic, "format", None), "votes", 1) > 1
    answers: Iterator[Any] = (
        sampled_predictions(critic, truth, args.out, batch_size=args.batch_size)
        if votes
        else predictions(critic, truth, args.out, batch_size=args.batch_size, match=args.match)
    )
    found, counted = [], tokens_of(critic)
    with metered(args.out, "evaluate-reward") as meter, Progress("run the critic", len(truth), unit="response") as bar:
        for answer in answers:
            found.append(answer)
            bar.advance()
            now = tokens_of(critic)
            meter.add(now.prompt - counted.prompt, now.generated - counted.generated)
            counted = now
    return paired_votes(truth, found, threshold=critic.format.vote_threshold) if votes else paired(truth, found)


def _probe(args: argparse.Namespace) -> Any:
    """Return the probe of a directory.

    Raises:
        ConfigError: if options of decoding are given, which a probe does not do.
    """
    from text2grad.reward_models import ProbeRewardModel

    if args.no_constrain or args.max_new_tokens or args.votes:
        raise ConfigError(
            f"{args.model} holds a probe, which decodes nothing: leave out --no-constrain, --max-new-tokens and --votes"
        )
    threshold = {} if args.vote_threshold is None else {"vote_threshold": args.vote_threshold}
    return ProbeRewardModel.load(args.model, **threshold)


def _model(args: argparse.Namespace) -> Any:
    """Return the generative reward model of a directory."""
    from text2grad.errors import ModelError
    from text2grad.reward_models import GenerativeRewardModel, decoding_of

    if not Path(args.model).is_dir():
        raise ModelError(f"--model {args.model}: no such directory. Name the directory of a saved reward model")
    recipe = args.recipe
    settings = {} if recipe is None else decoding_of(recipe, args.model)
    if args.no_constrain:
        settings["constrain"] = False
    for name in ("max_new_tokens", "votes", "vote_threshold"):
        if (value := getattr(args, name)) is not None:
            settings[name] = value
    code = recipe is not None and recipe.model.trust_remote_code
    return GenerativeRewardModel.load(args.model, trust_remote_code=code, **settings)


def load_tokenizer(path: str) -> Any:
    """Return the tokenizer of a directory or of a model in Hugging Face's local cache, without download.

    Raises:
        ConfigError: if transformers is not installed.
        ModelError: if there is no tokenizer.
    """
    require("transformers", extra="train", purpose="a tokenizer")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if Path(path).exists() else _NO_SUCH_MODEL
        raise ModelError(
            f"cannot load a tokenizer from {path}: {reason}. Give the directory of a model, with its tokenizer.json"
        ) from error


def _units(args: argparse.Namespace, own: Any) -> "Units":
    """Return the unit that precision and recall count."""
    from text2grad.runs.critic_quality import CUTS, Units

    if args.tokenizer in CUTS or (args.tokenizer is None and own is None):
        return Units(args.tokenizer or "words")
    if args.tokenizer is None:
        return Units(f"tokens of {args.model}", own)
    return Units(f"tokens of {args.tokenizer}", load_tokenizer(args.tokenizer))


def _write(args: argparse.Namespace, found: "Evaluation", pairs: Sequence["Pair"], whose: dict[str, Any]) -> None:
    """Write the five files, each complete or not at all."""
    from text2grad.feedback import Annotation, annotation_to_json
    from text2grad.files import json_lines, to_json, write_files
    from text2grad.runs.critic_quality import evaluation_page, evaluation_png, tables
    from text2grad.runs.reports import as_text

    record = {"annotations": str(args.annotations), **whose}
    page = evaluation_page(found, whose["critic"], args.annotations.name)
    predictions = [annotation_to_json(Annotation(one.prompt, one.response, one.predicted)) for one in pairs]
    files = {
        "predictions.jsonl": json_lines(predictions),
        "evaluation.json": to_json({**record, **found.as_json()}, indent=2) + b"\n",
        "tables.txt": as_text(tables(found)).encode("utf-8", "backslashreplace"),
        "evaluation.png": evaluation_png(found),
        "evaluation.html": page.encode(),
    }
    write_files(args.out, files)


def _print(console: Console, args: argparse.Namespace, found: "Evaluation") -> None:
    """Print the tables and the responses that were left out."""
    from text2grad.reward_models import is_probe
    from text2grad.runs.critic_quality import NAMED, tables
    from text2grad.runs.reports import as_text, plain

    console.print(plain(f"unit: {found.unit}; [low, high]: 95 % bootstrap intervals over responses\n"))
    console.print(plain(as_text(tables(found)).rstrip()), soft_wrap=True)
    if found.left_out:
        named = ", ".join(found.left_out[:NAMED]) + (", …" if len(found.left_out) > NAMED else "")
        line = f"\nleft out, since their tokens decode to another text: {len(found.left_out):,} ({named})"
        console.print(plain(line, style="yellow"), soft_wrap=True)
    kind = ("--set", "critic.kind=probe") if args.model and is_probe(args.model) else ()
    train = ("text2grad", "train", "RECIPE.toml", "--set", f"critic.model={args.model}", *kind) if args.model else ()
    use = ("text2grad", "train", "RECIPE.toml", "--critic", args.critic) if args.critic else ()
    note = "" if train or use else f"open {args.out}/evaluation.html in a browser"
    print_end(console, f"{args.out}/{', '.join(FILES)}", then=train or use, note=note)
