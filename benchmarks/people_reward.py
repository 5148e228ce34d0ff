"""A reward model that learns from people's marks and reasons, measured on texts that it has not seen, fold by fold.

    python benchmarks/people_reward.py faithbench --data ../shared/data/faithbench/samples.jsonl
    python benchmarks/people_reward.py qa_feedback --data ../shared/data/qa_feedback/feedback.json --no-words
    python benchmarks/people_reward.py qa_feedback --data ../shared/data/qa_feedback/feedback.json --probe sentences
    python benchmarks/people_reward.py faithbench --data ../shared/data/faithbench/samples.jsonl --probe words \
        --features support

The texts are dealt into folds; the reward model of `recipes/reward-people.toml` learns from the other folds and is
measured on this one. What several people marked in one response is joined. A unit is a word; its score is the share of
`--votes` sampled critiques that mark it negative. F1 is told for each type of error, too: without the words that people
marked with other types alone. Compared:

    model         constrained decoding, votes with the saved threshold; with --probe and --write it reads the marks of
                  the fold's probe
    probe         with --probe in place of the model: `reward-baseline probe` on the same base; probabilities as scores
    model, free   without constraint the likeliest critique, or with --free-votes sampled ones, too; not with
                  reward_model.learned = "choices"
    prior         share of marked training words at this place of a response of this length
    look-up       share of marked occurrences of this word in the training responses
    absent words  share of the words of its sentence that the prompt does not hold; not learned
    everything    every word is marked

Of critiques with words it is told how far the words are about the marks: the quotes in the feedback of the sampled
critiques that stand in marked sentences, and the marked sentences that are quoted; beside the same of people.

Thresholds of prior, look-up and absent words are those of the best F1 on the training folds. Intervals: bootstrap over
texts. Every command continues where it was stopped (`--work`); `--called` keeps a run with other settings apart, in
directory and results. Writes docs/results/people_reward.json.
"""

import argparse
import json
import re
import subprocess
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from text2grad import read_source
from text2grad.critics import CachedDraws
from text2grad.evaluation.intervals import Area, Ratio, Statistic, differences, estimate
from text2grad.feedback import Annotation, read_annotations, write_annotations
from text2grad.feedback.sources.base import NO_ERRORS
from text2grad.files import to_json, write_atomically
from text2grad.models import load_tokenizer
from text2grad.reward_models.probe_training import train_probe
from text2grad.reward_models.absent_words import absent_texts
from text2grad.reward_models.generative import saved_settings
from text2grad.reward_models.marks import annotated_marks
from text2grad.reward_models.probe import mark_of
from text2grad.reward_models.writing import sentences_of
from text2grad.types import Critique, Example, Span

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "people_reward.json"
PLACES, LENGTHS = 10, (10, 20, 40, 80, 160)  # bins of the prior
PROBE_SCORES = "scores.json"
FREE = "model, free"  # the name of the critiques without constraint
SMOOTHING = 2.0  # occurrences at the mean share that each word of the look-up starts with
SCORES = 33  # steps of a score in the area under the ROC curve
F1 = Ratio(("both", "both"), ("marked", "true"))
AUROC = Area(*(tuple(f"{side}/{step}" for step in range(SCORES)) for side in ("true", "other")))


TOLD: dict[str, Statistic] = {
    "quotes in marked sentences": Ratio(("right",), ("quotes",), share=True),
    "marked sentences quoted": Ratio(("told",), ("marked",), share=True),
    "sentences marked": Ratio(("marked",), ("sentences",), share=True),
}
"""How far feedback is about the marks, and the share of quotes in marked sentences if they were in any sentence."""


class Mark(NamedTuple):
    """A range of characters that a person marked, and the type of the error."""

    start: int
    end: int
    kind: str


class Word(NamedTuple):
    """A word of a response.

    Attributes:
        text: in lower case.
        place: in [0, 1).
        length: number of words of its response.
        true: whether people marked it.
        kinds: types of the errors that they marked there.
        absent: share of the words of its sentence that the prompt does not hold.
    """

    text: str
    place: float
    length: int
    true: bool
    kinds: frozenset[str] = frozenset()
    absent: float = 0.0


Score = Callable[[Word], float]


def joined(annotations: Iterable[Annotation]) -> list[Annotation]:
    """Return one annotation per response, with the marks and the reasons of all people."""
    found: dict[tuple[str, str], list[Critique]] = defaultdict(list)
    for one in annotations:
        found[one.prompt, one.response].append(one.critique)
    return [Annotation(*key, _union(critiques)) for key, critiques in found.items()]


def _union(critiques: Sequence[Critique]) -> Critique:
    spans: dict[Span, None] = {}
    for critique in critiques:
        spans |= dict.fromkeys(critique.spans)
    reasons = dict.fromkeys(critique.feedback for critique in critiques if critique.feedback.strip())
    return Critique("\n".join(reasons), tuple(spans))


def marks_of(path: str, form: str) -> dict[str, list[Mark]]:
    """Return response → marks with their types, from the published file; benign and questionable ones are left out."""
    text, found = Path(path).read_text("utf-8"), defaultdict(list)
    if form == "qa_feedback":
        for record in json.loads(text):
            errors = record["feedback"]["errors"]
            found[record["prediction 1"]] += [Mark(one["start"], one["end"], one["error type"]) for one in errors]
    else:
        for record in map(json.loads, text.splitlines()):
            for one in record["annotations"]:
                kind = next((label for label in reversed(sorted(one["labels"])) if label.startswith("Unwanted")), "")
                found[record["summary"]] += [Mark(one["start"], one["end"], kind)] if kind else []
    return found


def kinds_of(marked: Mapping[str, list[Mark]]) -> list[str]:
    """Return the types of errors, the most frequent first."""
    return [kind for kind, _ in Counter(mark.kind for marks in marked.values() for mark in marks).most_common()]


def words_of(response: str, critique: Critique, marks: Iterable[Mark] = (), prompt: str | None = None) -> list[Word]:
    """Return the words of a response with the negative marks of a critique, and the types of the errors.

    Without a prompt none of its words is asked for.
    """
    marked = negative(critique, response)
    places = list(re.finditer(r"\w+", response))
    absent = [0.0] * len(places) if prompt is None else absent_shares(prompt, response)
    return [
        Word(
            one[0].lower(),
            number / len(places),
            len(places),
            any(marked[one.start() : one.end()]),
            frozenset(mark.kind for mark in marks if mark.start < one.end() and one.start() < mark.end),
            absent[number],
        )
        for number, one in enumerate(places)
    ]


def absent_shares(prompt: str, response: str) -> list[float]:
    """Return for each word of a response the share of the words of its sentence that the prompt does not hold."""
    absent = absent_texts(prompt, response)
    starts = [start for start, _ in sentences_of(response)]
    words = [(unit_of(starts, one.start()), one.start() in absent) for one in re.finditer(r"\w+", response)]
    inside: dict[int, list[bool]] = defaultdict(list)
    for sentence, lacks in words:
        inside[sentence].append(lacks)
    return [sum(inside[sentence]) / len(inside[sentence]) for sentence, _ in words]


def unit_of(starts: Sequence[int], place: int) -> int:
    """Return the number of the unit in which a place is; `starts` of all units."""
    return max(0, bisect_right(starts, place) - 1)


def negative(critique: Critique, response: str) -> list[bool]:
    """Return for each character whether a negative span holds it."""
    found = [False] * len(response)
    for span in critique.spans:
        if span.label == "negative":
            found[span.start : span.end] = [True] * (span.end - span.start)
    return found


def prior(train: Sequence[Word]) -> Score:
    """Return the share of marked training words by place and length."""
    return _share(train, lambda word: (int(word.place * PLACES), sum(word.length > most for most in LENGTHS)))


def look_up(train: Sequence[Word]) -> Score:
    """Return the share of marked training words that are the same word."""
    return _share(train, lambda word: word.text)


def _share(train: Sequence[Word], key: Callable[[Word], Any]) -> Score:
    mean = sum(word.true for word in train) / len(train)
    of_all, marked = Counter(map(key, train)), Counter(key(word) for word in train if word.true)
    return lambda word: (marked[key(word)] + SMOOTHING * mean) / (of_all[key(word)] + SMOOTHING)


def best_threshold(train: Sequence[Word], score: Score) -> float:
    """Return the score from which on words are marked, for the best F1 on training words."""
    ranked = sorted(((score(word), word.true) for word in train), reverse=True)
    true, both, best, found = sum(word.true for word in train), 0, 0.0, 1.0
    for number, (value, right) in enumerate(ranked, start=1):
        both += right
        last = number == len(ranked) or ranked[number][0] < value
        if last and 2 * both / (number + true) > best:
            best, found = 2 * both / (number + true), value
    return found


def counts(
    words: Sequence[Word], scores: Sequence[float], marks: Sequence[bool], kinds: Iterable[str] = ()
) -> Counter[str]:
    """Return the counts of `F1`, overall and for types of errors, and of `AUROC`; scores are in [0, 1]."""
    found: Counter[str] = Counter()
    for word, score, mark in zip(words, scores, marks, strict=True):
        for prefix in ("", *(f"{kind}/" for kind in kinds if kind in word.kinds or not word.kinds)):
            found[f"{prefix}both"] += word.true and mark
            found[f"{prefix}true"] += word.true
            found[f"{prefix}marked"] += mark
        found[f"{'true' if word.true else 'other'}/{round(score * (SCORES - 1))}"] += 1
    return found


def baselines(train: Sequence[Word]) -> dict[str, tuple[Score, float]]:
    """Return score and threshold of each baseline."""
    scores: dict[str, Score] = {"prior": prior(train), "look-up": look_up(train), "absent words": attrgetter("absent")}
    found = {name: (score, best_threshold(train, score)) for name, score in scores.items()}
    return found | {"everything": (lambda word: 1.0, 1.0)}


def text2grad(*words: object) -> None:
    """Run a command of text2grad, whose output is shown; end with it if it fails."""
    command = [sys.executable, "-m", "text2grad.cli", *map(str, words)]
    print("$ text2grad", *map(str, words), flush=True)
    if code := subprocess.run(command, check=False).returncode:
        sys.exit(code)


def fold_of_model(
    options: argparse.Namespace, directory: Path, train: list[Annotation], test: list[Annotation]
) -> None:
    """Train and measure the reward model of a fold; nothing is done twice."""
    directory.mkdir(parents=True, exist_ok=True)
    learned = balanced(train, options.seed) if options.balance else train
    for name, part in (("train", learned), ("test", test)):
        if not (directory / f"{name}.jsonl").exists():
            write_annotations(directory / f"{name}.jsonl", part)
    overrides = [f'reward_model.annotations=["{directory}/train.jsonl"]', f"reward_model.out={directory}/reward"]
    overrides += [f"model.path={options.model}", f"reward_model.write_feedback={str(options.words).lower()}"]
    overrides += [f"reward_model.probe={probe_directory(options)}/{directory.name}/probe"] if options.probe else []
    overrides += options.set
    settings = [word for one in overrides for word in ("--set", one)]
    if not (directory / "reward" / "model").exists():
        again = ["--resume"] if (directory / "reward").exists() else []
        text2grad("reward", ROOT / "recipes" / "reward-people.toml", *settings, *again)
    measure = ["evaluate-reward", directory / "test.jsonl", "--model", directory / "reward" / "model", "--no-words"]
    for name, how in (("votes", []), ("free", ["--no-constrain"])):
        is_fixed = saved_settings(directory / "reward" / "model").get("learned") == "choices"
        votes = options.votes if name == "votes" else options.free_votes
        if not votes or (name == "free" and is_fixed):
            continue  # fixed: without the constraint it cannot write a critique
        if not (directory / name / "evaluation.json").exists():
            text2grad(*measure, *how, "--votes", votes, "--out", directory / name)


def shown_whole(annotations: Iterable[Annotation]) -> list[Annotation]:
    """Return the annotations whose marks the prompt shows, with feedback about these marks alone.

    A mark of few words of a sentence is not shown, and lines of qa_feedback about what a response lacks are of no mark.
    """

    def is_shown(one: Annotation) -> bool:
        marked = [mark for mark in annotated_marks(one, "sentences") if mark.label < 0]
        spans = [span for span in one.critique.spans if span.label == "negative"]
        return all(any(mark.start < span.end and span.start < mark.end for mark in marked) for span in spans)

    def about_marks(critique: Critique) -> Critique:
        lines = [line for line in critique.feedback.split("\n") if not line.startswith("Missing-")]
        return replace(critique, feedback="\n".join(lines) or NO_ERRORS)

    return [one._replace(critique=about_marks(one.critique)) for one in annotations if is_shown(one)]


def balanced(annotations: Sequence[Annotation], seed: int) -> list[Annotation]:
    """Return the annotations with a mark on the half of a sentence, and half as many of the others, shuffled.

    A model that reads marks learns p(critique | marks, text), whose estimate a choice of annotations by their marks
    does not bias; where few sentences are marked it would else see few marks to repeat.
    """
    labelled = [(one, {mark.label for mark in annotated_marks(one, "sentences")}) for one in annotations]
    marked, others = (
        [one for one, labels in labelled if labels - {0}],
        [one for one, labels in labelled if not labels - {0}],
    )
    random = Random(seed)
    random.shuffle(others)
    kept = marked + others[: len(marked) // 2]
    random.shuffle(kept)
    return kept


def probe_directory(options: argparse.Namespace) -> Path:
    """Return the directory of the probes of all folds."""
    return directory_of(options, probe_name(options))


def probe_name(options: argparse.Namespace) -> list[str]:
    """Return the words that name a probe in the results."""
    return [f"probe of {options.probe}", *(["support"] if options.features == "support" else [])]


def directory_of(options: argparse.Namespace, parts: Iterable[str]) -> Path:
    """Return the directory of a method."""
    return Path(options.work / options.format / re.sub(r"\W+", "-", " ".join(parts)))


def fold_of_probe(
    options: argparse.Namespace, directory: Path, train: list[Annotation], test: list[Annotation]
) -> None:
    """Train the probe of a fold, and keep its scores; features are read once for all folds."""
    path = directory / PROBE_SCORES
    if path.exists():
        return
    states = directory.parent / "states"
    states.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(options.model)
    probe, report = train_probe(
        options.model,
        tokenizer,
        train,
        unit=options.probe,
        features=options.features,
        max_tokens=options.max_tokens,
        store=states,
    )
    print(report._asdict(), flush=True)
    scores = probe.scores([Example(one.prompt) for one in test], [one.response for one in test], store=states)
    if failed := next((one.feedback for one in scores if isinstance(one, Critique)), ""):
        sys.exit(f"a response cannot be read: {failed}")
    probe.save(directory / "probe")
    record = {"threshold": probe.vote_threshold, "report": report._asdict(), "scores": scores}
    write_atomically(path, to_json(record))


def of_words(response: str, scores: Sequence[Sequence[Any]]) -> list[tuple[float, float]]:
    """Return for each word the probabilities of negative and of positive, those of the unit in which it begins."""
    starts = [score[0] for score in scores]
    places = [unit_of(starts, one.start()) for one in re.finditer(r"\w+", response)]
    return [(scores[place][2], scores[place][3]) for place in places]


def rows_of_fold(
    directory: Path, train: list[Annotation], test: list[Annotation], marked: Mapping[str, list[Mark]]
) -> dict[str, dict[str, Counter[str]]]:
    """Return method → text → counts; `marked`: response → marks of people."""
    found: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    known = [word for one in train for word in words_of(one.response, one.critique, prompt=one.prompt)]
    compared, kinds = baselines(known), kinds_of(marked)
    written = {
        name: {(one.prompt, one.response): one.critique for one in read_annotations(path)}
        for name in ("votes", "free")
        if (path := directory / name / "predictions.jsonl").exists()
    }
    probed = json.loads(path.read_bytes()) if (path := directory / PROBE_SCORES).exists() else None
    sampled = {
        name: votes_of(path, test)
        for name in written
        if (path := directory / name / "samples.jsonl").exists() or name == "votes"  # free may be the likeliest alone
    }
    for row, one in enumerate(test):
        words = words_of(one.response, one.critique, marked[one.response], one.prompt)
        key = (one.prompt, one.response)
        for name, (score, threshold) in compared.items():
            values = [score(word) for word in words]
            found[name][one.prompt] += counts(words, values, [value >= threshold for value in values], kinds)
        if probed:
            pairs = of_words(one.response, probed["scores"][row])
            marked_so = [mark_of(*pair, probed["threshold"]) < 0 for pair in pairs]
            found["probe"][one.prompt] += counts(words, [pair[0] for pair in pairs], marked_so, kinds)
            continue
        marks = {name: [word.true for word in words_of(one.response, of[key])] for name, of in written.items()}
        for name, method in (("votes", "model"), ("free", FREE)):
            if name in marks:  # the share of the sampled critiques, or the marks of the likeliest one
                values = sampled[name][row] if name in sampled else [float(mark) for mark in marks[name]]
                found[method][one.prompt] += counts(words, values, marks[name], kinds)
    return found


def told(critique: Critique, response: str) -> Counter[str]:
    """Return the counts of `TOLD`: a quote belongs to the sentence in which it begins, where it stands first."""
    units = annotated_marks(Annotation("", response, critique), "sentences")
    marked = {number for number, unit in enumerate(units) if unit.label < 0}
    starts = [unit.start for unit in units]
    quotes = [quote.rstrip("… ") for quote in re.findall(r'"([^"]+)"', critique.feedback)]
    places = [unit_of(starts, response.index(quote)) for quote in quotes if quote and quote in response]
    right = sum(place in marked for place in places)
    of_marked = len(marked.intersection(places))
    return Counter(quotes=len(places), right=right, told=of_marked, marked=len(marked), sentences=len(units))


def told_of_fold(directory: Path, test: Sequence[Annotation]) -> dict[str, dict[str, Counter[str]]]:
    """Return method → text → counts of `TOLD` over the sampled critiques; "people": of the annotations."""
    found: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    paths = {"model": directory / "votes" / "samples.jsonl", FREE: directory / "free" / "samples.jsonl"}
    of_methods = {name: drawn_critiques(path, test) for name, path in paths.items() if path.exists()}
    of_methods["people"] = [[one.critique] for one in test]
    for name, of_responses in of_methods.items():
        for one, critiques in zip(test, of_responses, strict=True):
            for critique in critiques:
                found[name][one.prompt] += told(critique, one.response)
    return found


class Sampled:
    """Stands for the reward model, whose critiques are all in the cache."""

    def draw(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[Critique]]:
        """Refuse: the evaluation wrote a critique of each response."""
        sys.exit(f"the critiques of {len(responses)} responses are missing; remove the directory `votes` of the fold")


def drawn_critiques(path: Path, test: Sequence[Annotation]) -> list[list[Critique]]:
    """Return the sampled critiques of each response."""
    return CachedDraws(Sampled(), path)([Example(one.prompt) for one in test], [one.response for one in test])


def votes_of(path: Path, test: Sequence[Annotation]) -> list[list[float]]:
    """Return for each word of each response the share of the sampled critiques that mark it."""
    found = []
    for one, critiques in zip(test, drawn_critiques(path, test), strict=True):
        marks = [[word.true for word in words_of(one.response, critique)] for critique in critiques]
        found.append([sum(column) / len(column) for column in zip(*marks, strict=True)])
    return found


def options_of() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("format", choices=("faithbench", "qa_feedback"))
    add("--data", required=True)
    add("--model", default="models/smollm2", help="base of the reward model")
    add("--called", action="append", default=[], help="further words in the name of the results; may be repeated")
    add("--words", action=argparse.BooleanOptionalAction, default=True, help="write the reasons before the quotes")
    add("--folds", type=int, default=5)
    add("--only", type=int, action="append", help="a fold to run, from 0; may be repeated (default: all)")
    add("--votes", type=int, default=16, help="critiques with the constraint; 0: none, where --free-votes are sampled")
    add("--free-votes", type=int, default=1, help="critiques without constraint; 1: the likeliest; 0: none")
    add("--probe", choices=("words", "sentences", "lines"), help="measure a probe of these units in place of a model")
    add("--write", action="store_true", help="with --probe: measure a model that reads the probe's marks")
    add("--balance", action="store_true", help="with --write: learn from texts with marks, and half as many others")
    add("--apart", action="store_true", help="with --write: learn each person's critique whose marks are all shown")
    add("--features", choices=("states", "support"), default="states", help="what a probe reads of a unit")
    add("--max-tokens", type=int, default=4096, help="longest prompt with response of a probe")
    add("--limit", type=int, help="only the first N texts")
    add("--seed", type=int, default=0, help="deals the texts into folds")
    add("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="a further setting of the recipe")
    add("--work", type=Path, default=Path("runs/people"), help="directory of models and critiques")
    add("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    if not options.votes and options.free_votes < 2:
        parser.error(f"--votes 0 leaves nothing to measure with --free-votes {options.free_votes}; sample several")
    if (options.write and not options.probe) or ((options.balance or options.apart) and not options.write):
        parser.error(
            "--write belongs to --probe, --balance and --apart to --write: a model without marks would see too many"
        )
    return options


def main() -> None:
    """Measure every fold that is missing, and write the results of all."""
    options = options_of()
    source = read_source(options.data, format=options.format)
    of_people = [one for one in source if isinstance(one, Annotation)]
    read = joined(of_people)
    taught = shown_whole(of_people) if options.apart else read
    marked = marks_of(options.data, options.format)
    texts = sorted({one.prompt for one in read})
    Random(options.seed).shuffle(texts)
    fold_of = {text: number % options.folds for number, text in enumerate(texts[: options.limit])}
    is_probe = bool(options.probe) and not options.write
    method = "probe" if is_probe else "model" if options.votes else FREE
    parts = probe_name(options) if options.probe else []
    if not is_probe:
        how = "with words" if options.words else "without words"
        parts = [how, f"marks of a {parts[0]}", *parts[1:]] if parts else [how]
    parts += options.called
    base = directory_of(options, parts)
    rows: dict[str, dict[str, Counter[str]]] = defaultdict(dict)
    about: dict[str, dict[str, Counter[str]]] = defaultdict(dict)
    done = options.only or list(range(options.folds))
    for fold in done:
        train = [one for one in read if fold_of.get(one.prompt, fold) != fold]
        test = [one for one in read if fold_of.get(one.prompt) == fold]
        if options.probe:
            fold_of_probe(options, (probe_directory(options) if options.write else base) / f"fold-{fold}", train, test)
        if not is_probe:
            fold_of_model(
                options, base / f"fold-{fold}", [one for one in taught if fold_of.get(one.prompt, fold) != fold], test
            )
        for name, of_texts in rows_of_fold(base / f"fold-{fold}", train, test, marked).items():
            rows[name] |= of_texts
        if not is_probe and options.words:
            for name, of_texts in told_of_fold(base / f"fold-{fold}", test).items():
                about[name] |= of_texts
    order = sorted(rows[method])
    figures: dict[str, Statistic] = {"f1": F1, "auroc": AUROC}
    of_kinds: dict[str, Statistic] = {
        kind: Ratio((f"{kind}/both",) * 2, (f"{kind}/marked", f"{kind}/true")) for kind in kinds_of(marked)
    }
    feedback = {name: plain(estimate(list(one.values()), TOLD)) for name, one in about.items()}
    tables = {name: [dict(of_texts[text]) for text in order] for name, of_texts in rows.items()}
    result = {
        "texts": len(order),
        "responses": sum(one.prompt in rows[method] for one in read),
        "folds": done,
        "settings": [*options.set, *(f"--{name}" for name in ("balance", "apart") if getattr(options, name))],
        "words": {kind: sum(one.get(f"{kind}/true", 0) for one in tables["everything"]) for kind in of_kinds},
        "figures": {name: plain(estimate(one, figures)) for name, one in tables.items()},
        "f1 by type": {name: plain(estimate(one, of_kinds)) for name, one in tables.items()},
        **({"feedback": feedback} if feedback else {}),
        **{
            f"{ours} ahead of": {
                name: plain(differences(tables[ours], one, figures)) for name, one in tables.items() if name != ours
            }
            for ours in dict.fromkeys((method, FREE))
            if ours in tables
        },
    }
    print(json.dumps(result, indent=1))
    before = json.loads(options.json.read_bytes()) if options.json.exists() else {}
    before[", ".join([options.format, *parts])] = result
    write_atomically(options.json, to_json(before, indent=1) + b"\n")


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """Return estimates as JSON."""
    return {name: one._asdict() for name, one in found.items()}


if __name__ == "__main__":
    main()
