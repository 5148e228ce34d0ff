"""Models × suites → answers, scores and figures, side by side; differences from a baseline are paired by question.

answers/            the answers (`answering`)
costs.json          seconds, tokens and peak memory
scores/             SUITE.MODEL.jsonl: the scores of each answer, or the counts of each question
evaluation.json     figures with intervals, differences, models, settings

Scores are kept with a digest of the answers and of everything else that decides them: a repeated evaluation computes
nothing again. Intervals: percentile bootstrap of 95 % over questions. A model is loaded once, answers all suites, and
is released before answers are scored.
"""

import gc
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from text2grad.config import Endpoint
from text2grad.costs import TokenCount, metered
from text2grad.errors import ConfigError, check_known
from text2grad.evaluation import answering
from text2grad.evaluation.answering import AnswerFile, Sampling, stem_of
from text2grad.evaluation.intervals import DRAWS, LEVEL, Estimate, Rows, estimate
from text2grad.evaluation.subjects import LoadedModel, Subject, load, outline
from text2grad.evaluation.suite import Answer, AnsweredSuite, ExaminedSuite, Scores, Suite
from text2grad.files import json_lines, lock_directory, to_json, write_atomically, write_files

Row = dict[str, Any]


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of an evaluation."""

    out: Path  # directory of its files
    sampling: Sampling = field(default_factory=Sampling)
    server: Endpoint = field(default_factory=lambda: Endpoint(api_key_env=""))  # key, concurrency, time limit
    baseline: str = ""  # name of the model from which differences are taken
    force: bool = False  # replace answers of other models or settings in `out`


@dataclass
class SuiteResult:
    """The figures of one suite: by model, then by question, by name or by answer."""

    suite: Suite
    questions: list[str] = field(default_factory=list)
    counts: dict[str, Rows] = field(default_factory=dict)
    figures: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    differences: dict[str, dict[str, Estimate]] = field(default_factory=dict)  # differences from the baseline
    answers: dict[str, list[Answer]] = field(default_factory=dict)  # empty for a suite that reads the model itself
    scores: dict[str, list[Scores]] = field(default_factory=dict)

    def endings(self, model: str) -> dict[str, int]:
        """Return how many turns of a model ended in each way: those of `Answer`, and "empty" for one without a text."""
        turns = [
            turn for answer in self.answers.get(model, ()) for turn in zip(answer.texts, answer.finish, strict=True)
        ]
        ways = (how if text.strip() or how == "too_long" else "empty" for text, how in turns)
        return dict(sorted(Counter(ways).items()))

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        figures, differences = (
            {model: {name: estimate._asdict() for name, estimate in own.items()} for model, own in by_model.items()}
            for by_model in (self.figures, self.differences)
        )
        return {
            "questions": len(self.questions),
            "identity": self.suite.identity(),
            "measures": {
                name: {"better": measure.better, "about": measure.about}
                for name, measure in self.suite.measures.items()
            },
            "models": figures,
            "endings": {name: self.endings(name) for name in self.answers},
            "differences": differences,
        }


@dataclass(frozen=True)
class PolicyEvaluation:
    """An evaluation: the models, the results by suite, in order, and the settings."""

    subjects: Sequence[Subject]
    results: Sequence[SuiteResult]
    settings: EvaluationSettings

    def as_json(self) -> dict[str, Any]:
        """Return the whole evaluation as JSON; equal inputs give equal files."""
        sampling = self.settings.sampling
        return {
            "models": {subject.name: subject.as_json() for subject in self.subjects},
            "baseline": self.settings.baseline,
            "sampling": asdict(sampling),
            "intervals": {"draws": DRAWS, "level": LEVEL, "seed": sampling.seed},
            "suites": {result.suite.name: result.as_json() for result in self.results},
        }


def evaluate_models(
    subjects: Sequence[Subject], suites: Sequence[Suite], settings: EvaluationSettings
) -> PolicyEvaluation:
    """Answer, score and sum up; write `evaluation.json`.

    Raises:
        Text2GradError: before the first answer, if models, suites and settings do not fit each other or the directory,
            or a prompt is too long; later, if a server did not answer.
    """
    if settings.baseline:
        check_known("--baseline", settings.baseline, [subject.name for subject in subjects])
    served = [subject.name for subject in subjects if subject.served]
    examining = [suite.name for suite in suites if isinstance(suite, ExaminedSuite)]
    if served and examining:
        raise ConfigError(
            f"suite {examining[0]} reads the model itself, and {served[0]} is on a server; name the directory of its "
            "weights, or leave the suite out"
        )
    for suite in suites:
        suite.check()
    lock_directory(settings.out)
    results = [SuiteResult(suite) for suite in suites]
    with metered(settings.out, "evaluate") as tokens:
        waiting = [_Work(subject, suites, settings) for subject in subjects]  # all are checked before the first
        while waiting:
            work = waiting.pop(0)
            for result in results:
                work.answer(result, tokens)
            del work
            gc.collect()  # frees the memory of the weights
        for result in results:
            for name in result.answers:
                _score(result, name, settings)
            _sum_up(result, settings)
    evaluation = PolicyEvaluation(subjects, results, settings)
    write_files(settings.out, {"evaluation.json": to_json(evaluation.as_json(), indent=2) + b"\n"})
    return evaluation


class _Work:
    """One model, loaded when it is first needed, and its answers on disk."""

    def __init__(self, subject: Subject, suites: Sequence[Suite], settings: EvaluationSettings) -> None:
        """Read the answers that are there, and check model, prompts and server before anything is sampled."""
        self.subject, self.settings = subject, settings
        self._outline = None if subject.served else outline(subject)
        self._files: dict[str, AnswerFile] = {}
        for suite in suites:
            if isinstance(suite, AnsweredSuite):
                file = AnswerFile(settings.out, suite, subject, settings.sampling)
                file.open(force=settings.force)
                self._files[suite.name] = file
                if self._outline is not None and file.missing:
                    answering.check_room(self._outline, file)
                elif file.missing:
                    answering.endpoint_of(file, settings.server).checked("server")

    @cached_property
    def _model(self) -> LoadedModel:
        assert self._outline is not None
        return load(self._outline)

    def answer(self, result: SuiteResult, tokens: TokenCount) -> None:
        """Sample or request the missing answers of a suite; suites without answers (lm-eval) are scored."""
        suite, name = result.suite, self.subject.name
        if isinstance(suite, AnsweredSuite):
            file = self._files[suite.name]
            if self.subject.served:
                answering.request_answers(file, self.settings.out, self.settings.server, tokens)
            elif file.missing:
                answering.sample_answers(self._model, file, tokens)
            chat = self.subject.prompt_format != "plain" if self._outline is None else self._outline.chat
            result.answers[name] = file.answers(chat=chat)
        elif isinstance(suite, ExaminedSuite):
            out, basis, examine = self.settings.out, {"subject": self.subject.identity()}, suite.examine
            rows = _kept(suite, name, out, basis, lambda: [{"id": key, **own} for key, own in examine(self._model)])
            result.questions, result.counts[name] = [row["id"] for row in rows], rows


def _score(result: SuiteResult, name: str, settings: EvaluationSettings) -> None:
    """Score the answers of one model."""
    suite, answers = result.suite, result.answers[name]
    assert isinstance(suite, AnsweredSuite)
    said = [[answer.question.id, answer.sample, answer.answers, answer.finish] for answer in answers]
    score, each = suite.score, settings.sampling.samples

    def scored() -> list[Row]:
        rows = zip(answers, score(answers, settings.out / "judgements"), strict=True)
        return [{"id": answer.question.id, "sample": answer.sample, **own} for answer, own in rows]

    lines = _kept(suite, name, settings.out, {"answers": sha256(to_json(said)).hexdigest()}, scored)
    scores = [{key: value for key, value in line.items() if key not in ("id", "sample")} for line in lines]
    result.questions, result.scores[name] = [question.id for question in suite.questions], list(scores)
    result.counts[name] = [suite.counts(scores[start : start + each]) for start in range(0, len(scores), each)]


def _kept(suite: Suite, name: str, out: Path, basis: Mapping[str, Any], compute: Callable[[], list[Row]]) -> list[Row]:
    """Return scores: those on disk if they belong to suite and `basis`, else new ones, which are written."""
    path = out / "scores" / f"{stem_of(suite, name)}.jsonl"
    belongs, now = path.with_suffix(".json"), to_json({"suite": suite.identity(), **basis})
    with suppress(OSError, ValueError):  # absent, or cut
        if belongs.read_bytes() == now:
            return [json.loads(line) for line in path.read_bytes().splitlines()]
    lines = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    belongs.unlink(missing_ok=True)
    write_atomically(path, json_lines(lines))
    write_atomically(belongs, now)
    return lines


def _sum_up(result: SuiteResult, settings: EvaluationSettings) -> None:
    """Compute figures and paired differences."""
    statistics = {name: measure.statistic for name, measure in result.suite.measures.items()}
    seed, base = settings.sampling.seed, settings.baseline
    for name, rows in result.counts.items():
        result.figures[name] = estimate(rows, statistics, seed=seed)
        if base and name != base:
            result.differences[name] = estimate(rows, statistics, minus=result.counts[base], seed=seed)
