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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from text2grad.costs import Meter, metered
from text2grad.errors import ConfigError, check_known
from text2grad.evaluation.answering import (
    AnswerFile,
    Said,
    Sampling,
    ServerSettings,
    check_room,
    endpoint_of,
    is_complete,
    read_answers,
    request_answers,
    sample_answers,
    stem_of,
)
from text2grad.evaluation.intervals import DRAWS, Estimate, differences, estimate
from text2grad.evaluation.subjects import LoadedModel, Subject, load, outline
from text2grad.evaluation.suite import Answer, Answered, AnsweredSuite, Counts, ExaminedSuite, Scores, Suite
from text2grad.files import json_lines, lock_directory, to_json, write_atomically, write_files

RESULT = "evaluation.json"


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of an evaluation.

    Attributes:
        out: directory of its files.
        sampling: how answers are sampled.
        server: how servers are requested.
        baseline: name of the model from which differences are taken; empty for none.
        draws: resamples of the intervals.
        dtype: of the weights, as transformers names it.
        force: replace answers of other models or settings in `out`.
    """

    out: Path
    sampling: Sampling = field(default_factory=Sampling)
    server: ServerSettings = field(default_factory=ServerSettings)
    baseline: str = ""
    draws: int = DRAWS
    dtype: str = "auto"
    force: bool = False


@dataclass
class SuiteResult:
    """The figures of one suite.

    Attributes:
        suite: the suite.
        questions: ids of the questions.
        counts: of each question, by model.
        figures: by model and name.
        differences: from the baseline, by model and name.
        answers: by model; empty for a suite that reads the model itself.
        scores: of each answer, by model.
    """

    suite: Suite
    questions: list[str] = field(default_factory=list)
    counts: dict[str, list[Counts]] = field(default_factory=dict)
    figures: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    differences: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    scores: dict[str, list[Scores]] = field(default_factory=dict)

    def endings(self, model: str) -> dict[str, int]:
        """Return how many turns of a model ended in each way: "stop", "length", "too_long", or a server's word."""
        return dict(sorted(Counter(how for one in self.answers.get(model, ()) for how in one.finish).items()))

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON."""

        def number(figure: str, one: Estimate) -> dict[str, float]:
            return one._asdict() if self.suite.measures[figure].statistic else {"value": one.value}

        def plain(found: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
            return {name: {key: number(key, one) for key, one in own.items()} for name, own in found.items()}

        measures = {
            name: {"better": one.better, "about": one.about, "shown": one.shown}
            for name, one in self.suite.measures.items()
        }
        return {
            "questions": len(self.questions),
            "identity": self.suite.identity(),
            "measures": measures,
            "models": plain(self.figures),
            "endings": {name: self.endings(name) for name in self.answers},
            "differences": plain(self.differences),
        }


@dataclass(frozen=True)
class PolicyEvaluation:
    """An evaluation of models.

    Attributes:
        subjects: the models.
        results: by suite, in order.
        settings: of the evaluation.
    """

    subjects: Sequence[Subject]
    results: Sequence[SuiteResult]
    settings: EvaluationSettings

    def as_json(self) -> dict[str, Any]:
        """Return the whole evaluation as JSON; equal inputs give equal files."""
        sampling, dtype = self.settings.sampling, self.settings.dtype
        return {
            "models": {
                one.name: {"path": one.path, **one.identity(), **({} if one.served else {"dtype": dtype})}
                for one in self.subjects
            },
            "baseline": self.settings.baseline,
            "sampling": {name: getattr(sampling, name) for name in sampling.__dataclass_fields__},
            "intervals": {"draws": self.settings.draws, "level": 0.95, "seed": sampling.seed},
            "suites": {one.suite.name: one.as_json() for one in self.results},
        }


def evaluate_models(
    subjects: Sequence[Subject], suites: Sequence[Suite], settings: EvaluationSettings
) -> PolicyEvaluation:
    """Answer, score and sum up; write `evaluation.json`.

    Raises:
        ConfigError: if the baseline is no model, a model or an option does not fit a suite, or the directory holds
            other answers.
        DataError: if a prompt is too long.
        ModelError: if a model cannot be loaded.
        RequestError: if a server did not answer.
    """
    if settings.baseline:
        check_known("--baseline", settings.baseline, [one.name for one in subjects])
    _refuse_servers(subjects, suites)
    for suite in suites:
        suite.check()
    lock_directory(settings.out)
    results = [SuiteResult(suite) for suite in suites]
    try:
        with metered(settings.out, "evaluate") as meter:
            for work in [_Work(subject, suites, settings) for subject in subjects]:  # all are checked before the first
                _answer_all(work, results, settings, meter)
            for result in results:
                if isinstance(result.suite, AnsweredSuite):
                    for subject in subjects:
                        _score(result.suite, subject, result, settings)
                _sum_up(result, settings)
    finally:
        for suite in suites:
            suite.close()
    found = PolicyEvaluation(subjects, results, settings)
    write_files(settings.out, {RESULT: to_json(found.as_json(), indent=2) + b"\n"})
    return found


def _refuse_servers(subjects: Sequence[Subject], suites: Sequence[Suite]) -> None:
    served = [one.name for one in subjects if one.served]
    examining = [one.name for one in suites if isinstance(one, ExaminedSuite)]
    if served and examining:
        raise ConfigError(
            f"suite {examining[0]} reads the model itself, and {served[0]} is on a server; name the directory of its "
            "weights, or leave the suite out"
        )


class _Work:
    """One model, loaded when it is first needed, and its answers on disk."""

    def __init__(self, subject: Subject, suites: Sequence[Suite], settings: EvaluationSettings) -> None:
        """Read the answers that are there, and check model, prompts and server before anything is sampled."""
        self.subject, self.settings = subject, settings
        self._outline = None if subject.served else outline(subject)
        self._loaded: LoadedModel | None = None
        self._files: dict[str, tuple[AnswerFile, Said]] = {}
        for suite in suites:
            if isinstance(suite, AnsweredSuite):
                file = AnswerFile(settings.out, suite, subject, settings.sampling, dtype=settings.dtype)
                said = file.open(force=settings.force)
                self._files[suite.name] = file, said
                if is_complete(suite, settings.sampling, said):
                    continue
                if self._outline is None:
                    endpoint_of(file, settings.server).check("evaluate")
                else:
                    check_room(self._outline, file)

    def model(self) -> LoadedModel:
        """Return the model with its weights."""
        if self._loaded is None:
            assert self._outline is not None
            self._loaded = load(self._outline, dtype=self.settings.dtype)
        return self._loaded

    def release(self) -> None:
        """Free the memory of the weights."""
        self._loaded = None
        gc.collect()

    def answers(self, suite: AnsweredSuite, meter: Meter) -> list[Answer]:
        """Return all answers; those that are missing are sampled or requested."""
        file, said = self._files[suite.name]
        if not is_complete(suite, self.settings.sampling, said):
            if self.subject.served:
                said = request_answers(file, self.settings.out, self.settings.server, meter)
            else:
                sample_answers(self.model(), file, said, meter)
        chat = self.subject.prompt_format != "plain" if self._outline is None else self._outline.chat
        return read_answers(suite, self.settings.sampling, said, chat=chat)


def _answer_all(work: _Work, results: Sequence[SuiteResult], settings: EvaluationSettings, meter: Meter) -> None:
    """Let one model answer all suites; suites that read it are scored here."""
    for result in results:
        if isinstance(result.suite, AnsweredSuite):
            result.answers[work.subject.name] = work.answers(result.suite, meter)
        elif isinstance(result.suite, ExaminedSuite):
            _examine(result.suite, work, result, settings)
    work.release()


def _examine(suite: ExaminedSuite, work: _Work, result: SuiteResult, settings: EvaluationSettings) -> None:
    subject = work.subject
    kept = _KeptScores(settings.out, suite, subject, {"subject": subject.identity(settings.dtype)})
    lines = kept.read()
    if lines is None:
        lines = [{"id": name, **counts} for name, counts in suite.examine(work.model())]
        kept.write(lines)
    _take(result, subject, [str(one["id"]) for one in lines], list(lines))


def _score(suite: AnsweredSuite, subject: Subject, result: SuiteResult, settings: EvaluationSettings) -> None:
    """Score the answers of one model."""
    answers = result.answers[subject.name]
    said = sha256(to_json([[one.question, one.sample, one.texts, one.finish] for one in answers])).hexdigest()
    kept = _KeptScores(settings.out, suite, subject, {"answers": said})
    lines = kept.read()
    if lines is None:
        scores = suite.score(answered(suite, answers), settings.out / "judgements")
        lines = [
            {"id": one.question, "sample": one.sample, **found} for one, found in zip(answers, scores, strict=True)
        ]
        kept.write(lines)
    scores = [{key: value for key, value in one.items() if key not in ("id", "sample")} for one in lines]
    result.scores[subject.name] = scores
    rows = _by_question(scores, len(suite.questions))
    counts = [suite.counts(question, own) for question, own in zip(suite.questions, rows, strict=True)]
    _take(result, subject, [one.id for one in suite.questions], counts)


def _by_question(scores: Sequence[Scores], questions: int) -> Iterator[Sequence[Scores]]:
    each = len(scores) // questions
    for start in range(0, len(scores), each):
        yield scores[start : start + each]


def _take(result: SuiteResult, subject: Subject, names: list[str], counts: Sequence[Mapping[str, Any]]) -> None:
    """Keep the counts of one model; all models have the same questions."""
    if result.questions and result.questions != names:
        raise ConfigError(
            f"suite {result.suite.name}: {subject.name} has other questions than the models before it; remove its "
            "files below scores/ and run the command again"
        )
    result.questions = names
    result.counts[subject.name] = [
        {key: float(value) for key, value in one.items() if isinstance(value, int | float)} for one in counts
    ]


def _sum_up(result: SuiteResult, settings: EvaluationSettings) -> None:
    """Compute figures and paired differences."""
    suite, base = result.suite, settings.baseline
    statistics = {name: one.statistic for name, one in suite.measures.items() if one.statistic}
    draws, seed = settings.draws, settings.sampling.seed
    for name, rows in result.counts.items():
        found = estimate(rows, statistics, draws=draws, seed=seed) | _of_all(result, name)
        result.figures[name] = {key: found[key] for key in suite.measures if key in found}
    for name, rows in result.counts.items() if base else ():
        if name != base:
            paired = differences(rows, result.counts[base], statistics, draws=draws, seed=seed)
            mine, theirs = _of_all(result, name), _of_all(result, base)
            paired |= {key: Estimate(*[one.value - theirs[key].value] * 3) for key, one in mine.items()}
            result.differences[name] = {key: paired[key] for key in suite.measures if key in paired}


def _of_all(result: SuiteResult, name: str) -> dict[str, Estimate]:
    """Return the figures of one model that have no interval."""
    if not isinstance(result.suite, AnsweredSuite):
        return {}
    found = result.suite.of_all(answered(result.suite, result.answers[name]))
    return {key: Estimate(value, value, value) for key, value in found.items()}


def answered(suite: AnsweredSuite, answers: Sequence[Answer]) -> list[Answered]:
    """Return answers with their questions."""
    questions = {one.id: one for one in suite.questions}
    return [Answered(questions[one.question], one) for one in answers]


class _KeptScores:
    """The scores of one model in one suite, on disk, with everything that decides them."""

    def __init__(self, out: Path, suite: Suite, subject: Subject, inputs: Mapping[str, Any]) -> None:
        self.path = out / "scores" / f"{stem_of(suite, subject)}.jsonl"
        self._of = self.path.with_suffix(".json")
        self._now = {"suite": suite.identity(), **inputs}

    def read(self) -> list[dict[str, Any]] | None:
        """Return the lines if they belong to these inputs, else None."""
        try:
            if json.loads(self._of.read_bytes()) != json.loads(to_json(self._now)):
                return None
            return [json.loads(line) for line in self.path.read_bytes().splitlines()]
        except (OSError, ValueError):
            return None

    def write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write the lines, then what they belong to."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._of.unlink(missing_ok=True)
        write_atomically(self.path, json_lines(lines))
        write_atomically(self._of, to_json(self._now))
