"""The training of a probe: softmax regression on features from a frozen base.

Layer and penalty have the smallest cross-validated loss over prompts, and the threshold the best F1 of the same
predictions, so that no annotation need be kept apart for them.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, get_args

from evidence.baselines.encoding import check_text_ids
from evidence.baselines.probe import (
    LABELS,
    ROWS_AT_ONCE,
    SPLITS,
    Linear,
    ProbeRewardModel,
    ProbeSettings,
    Unit,
    fitting,
    mark_of,
    read_states,
    rows_of,
)
from text2grad.errors import DataError, check_known
from text2grad.feedback.records import Annotation
from text2grad.feedback.words import words_of
from text2grad.models.pretrained import best_device, context_of, load_policy
from text2grad.models.prompts import format_of
from text2grad.reward_models.writing import inputs_of, labels_of
from text2grad.types import Critique

DEPTHS = (3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
"""Layers that are tried, as shares of the base's."""
PENALTIES = (0.2, 0.6, 2.0, 6.0, 20.0, 60.0, 200.0, 600.0, 2_000.0)
"""Penalties that are tried, per dimension: p gives the logits of standardized features a prior deviation of 1 / √p."""
PENALTY_OF_LAYERS = 2.0
"""The penalty with which layers are compared."""
FOLDS = 4
ITERATIONS = 100  # most iterations of L-BFGS


class ProbeReport(NamedTuple):
    """What a probe was trained on, what was chosen, and the cross-validated loss of that choice."""

    learned_from: int  # training annotations
    units: dict[str, int]  # training units, by their most frequent label
    without_units: int  # annotations without a unit, with a failed critique, or whose tokens decode to another text
    too_long: int  # annotations left out: longer than the limit or than the context
    tokens: int  # number of tokens that the base read
    layer: int  # layer of the base, from 1
    penalty: float  # L2 penalty per dimension
    vote_threshold: float  # threshold with the best F1 of marked words in cross-validation
    loss: float  # cross-validated cross-entropy in nats per word
    loss_of_shares: float  # cross-entropy if each word gets the labels' shares
    held_out: dict[str, int]  # held-out units, by label
    right: dict[str, int]  # held-out units that it marks as people did, with the saved threshold, by label


class _Data(NamedTuple):
    """Units of annotations, one beside the other.

    Attributes:
        features: [units, layers, F].
        shares: the share of each label among the words of a unit, [units, 3].
        words: the number of words of a unit, [units].
        groups: the number of the fold of each unit, [units].
    """

    features: Any
    shares: Any
    words: Any
    groups: Any


class _Reading(NamedTuple):
    """What a base read of the annotations that can be learned."""

    annotations: list[Annotation]
    states: list[Any]  # hidden states of each annotation's units, [units, layers, F]
    layers: list[int]
    tokens: int  # number of tokens in distinct rows
    too_long: int  # annotations left out: longer than the limit
    without_units: int  # annotations left out for another reason


def train_probe(
    base: str | Path,
    tokenizer: Any,
    annotations: Sequence[Annotation],
    *,
    unit: Unit = "sentences",
    max_tokens: int = 1_024,
    seed: int = 0,
    held_out: Sequence[Annotation] = (),
) -> tuple[ProbeRewardModel, ProbeReport]:
    """Train a probe on annotations.

    The prompt has the tokenizer's chat template if it has one. The loss is the cross-entropy to the shares of the
    labels among a unit's words, weighted by these words, with a quadratic penalty on the weights.

    Args:
        base: directory or hub name of a causal language model, which stays as it is.
        tokenizer: its tokenizer.
        annotations: training annotations.
        unit: what is labelled.
        max_tokens: longest prompt with the response behind it; longer annotations are left out.
        seed: deals the prompts into folds.
        held_out: annotations to measure on.

    Raises:
        ConfigError: if there is no such unit.
        DataError: if fewer than two responses are left, or all units have the same label.
        ModelError: if there is no model, or its embedding lacks ids of the tokenizer.
    """
    check_known("unit", unit, get_args(Unit))
    model = load_policy(str(base)).eval().requires_grad_(False).to(best_device())
    check_text_ids(model, tokenizer)
    reading = _read(model, tokenizer, annotations, unit, max_tokens)
    data = _data(reading.states, reading.annotations, unit, seed)
    counts = [int(count) for count in data.shares.argmax(1).bincount(minlength=3)]
    labels = [label for label, total in zip(LABELS, data.shares.sum(0).tolist(), strict=True) if total]
    if len(labels) < 2:
        raise DataError(f"all {len(data.words)} {unit} are {LABELS[labels[0]]}; at least two labels are needed")
    data = data._replace(shares=data.shares[:, [list(LABELS).index(label) for label in labels]])
    place, penalty, loss, predicted = _choose(data)
    settings = ProbeSettings(
        base=str(base),
        layer=reading.layers[place],
        labels=tuple(labels),
        unit=unit,
        prompt_format=format_of(tokenizer),
        vote_threshold=_best_threshold(predicted, data, labels),
    )
    linear = fit(data.features[:, place], data.shares, data.words, penalty)
    probe = ProbeRewardModel(model, tokenizer, linear, settings)
    right, total = _measure(probe, held_out)
    return probe, ProbeReport(
        learned_from=len(reading.annotations),
        units={name: count for name, count in zip(LABELS.values(), counts, strict=True) if count},
        without_units=reading.without_units,
        too_long=reading.too_long,
        tokens=reading.tokens,
        layer=settings.layer,
        penalty=penalty,
        vote_threshold=settings.vote_threshold,
        loss=loss,
        loss_of_shares=_loss_of_shares(data),
        held_out=total,
        right=right,
    )


def _read(model: Any, tokenizer: Any, annotations: Sequence[Annotation], unit: Unit, max_tokens: int) -> _Reading:
    """Return the states of the annotations at the layers that are tried.

    Raises:
        DataError: if fewer than two responses can be learned.
    """
    depth = model.config.get_text_config().num_hidden_layers
    layers = sorted({max(1, round(depth * share)) for share in DEPTHS})
    usable = [
        annotation for annotation in annotations if not annotation.critique.failed and SPLITS[unit](annotation.response)
    ]
    rows = rows_of(tokenizer, *inputs_of(usable), unit, format_of(tokenizer))
    limit = min(max_tokens, context_of(model))
    kept, _ = fitting(rows, limit)
    too_long = sum(len(row.ids) > limit for row in rows)
    others = len(annotations) - len(kept) - too_long
    if len({(usable[row].prompt, usable[row].response) for row in kept}) < 2:
        raise DataError(
            f"{len(kept)} of {len(annotations)} annotations can be learned ({too_long} are longer than {limit} tokens, "
            f"{others} have no {unit}, a failed critique, or tokens that decode to another text); a probe needs at "
            "least two responses"
        )
    states = read_states(model, rows, kept, layers, ROWS_AT_ONCE, title="read the annotations")
    tokens = sum(map(len, {tuple(rows[row].ids) for row in kept}))
    return _Reading([usable[row] for row in kept], states, layers, tokens, too_long, others)


def _data(features: Sequence[Any], annotations: Sequence[Annotation], unit: Unit, seed: int) -> _Data:
    """Return the units of the annotations with the shares of their labels and their folds."""
    import torch

    units = [labels for annotation in annotations for labels in _labels(annotation, unit)]
    shares = [[labels.count(label) / max(len(labels), 1) for label in LABELS] for labels in units]
    groups = [fold for fold, states in zip(_folds(annotations, seed), features, strict=True) for _ in states]
    return _Data(
        torch.cat(list(features)),
        torch.tensor(shares),
        torch.tensor([float(len(labels)) for labels in units]),
        torch.tensor(groups),
    )


def _folds(annotations: Sequence[Annotation], seed: int) -> list[int]:
    """Return the fold of each annotation: prompts are dealt into folds, or responses where there are fewer prompts."""
    keys: list[Any] = [annotation.prompt for annotation in annotations]
    if len(set(keys)) < FOLDS:
        keys = [(annotation.prompt, annotation.response) for annotation in annotations]
    distinct = sorted(set(keys))
    Random(seed).shuffle(distinct)
    folds = {key: number % FOLDS for number, key in enumerate(distinct)}
    return [folds[key] for key in keys]


def _labels(annotation: Annotation, unit: Unit) -> list[list[int]]:
    """Return the labels of the words that begin in each unit: 1, −1 or 0."""
    response = annotation.response
    starts = [start for start, _ in SPLITS[unit](response)]
    inside: list[list[int]] = [[] for _ in starts]
    labels = labels_of(response, annotation.critique.spans)
    for (word_start, _), label in zip(words_of(response), labels, strict=True):
        inside[max(0, bisect_right(starts, word_start) - 1)].append(label)
    return inside


def fit(features: Any, shares: Any, words: Any, penalty: float) -> Linear:
    """Return the softmax regression with the smallest penalized loss, by L-BFGS from zero.

    Args:
        features: [units, F].
        shares: the targets, whose rows sum to 1, [units, labels].
        words: the weights of the units, [units]; they are divided by their mean.
        penalty: p of the term F · p / 2 · Σ w², over the weights of standardized features.
    """
    import torch

    mean, deviation = features.mean(0), features.std(0, correction=0).clamp_min(1e-6)
    inputs, weights = (features - mean) / deviation, words / words.mean()
    weight = torch.zeros(shares.shape[1], features.shape[1], requires_grad=True)
    bias = torch.zeros(shares.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimizer.zero_grad()
        losses = torch.nn.functional.cross_entropy(inputs @ weight.T + bias, shares, reduction="none")
        loss = (weights * losses).sum() + penalty * features.shape[1] / 2 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return Linear(weight.detach(), bias.detach(), mean, deviation)


def _choose(data: _Data) -> tuple[int, float, float, Any]:
    """Return place of the layer, penalty, loss and predictions of the best cross-validation: first the layer."""
    of_layers = {place: _validated(data, place, PENALTY_OF_LAYERS) for place in range(data.features.shape[1])}
    place = min(of_layers, key=lambda layer: of_layers[layer][0])
    of_penalties = {
        penalty: of_layers[place] if penalty == PENALTY_OF_LAYERS else _validated(data, place, penalty)
        for penalty in PENALTIES
    }
    penalty = min(of_penalties, key=lambda value: of_penalties[value][0])
    return (place, penalty, *of_penalties[penalty])


def _validated(data: _Data, place: int, penalty: float) -> tuple[float, Any]:
    """Return the loss in nats per word of units whose fold was not trained on, and their probabilities."""
    predicted = data.shares.new_zeros(data.shares.shape)
    for fold in data.groups.unique().tolist():
        others = data.groups != fold
        trained = fit(data.features[others, place], data.shares[others], data.words[others], penalty)
        predicted[~others] = trained(data.features[~others, place])
    return _loss(predicted, data), predicted


def _loss(predicted: Any, data: _Data) -> float:
    losses = -(data.shares * predicted.clamp_min(1e-9).log()).sum(1)
    return float((data.words * losses).sum() / data.words.sum())


def _loss_of_shares(data: _Data) -> float:
    """Return the loss of predicting the shares of the labels among all words."""
    shares = (data.words[:, None] * data.shares).sum(0) / data.words.sum()
    return _loss(shares.expand_as(data.shares), data)


def _best_threshold(predicted: Any, data: _Data, labels: Sequence[int]) -> float:
    """Return the threshold, in hundredths, with the best F1 of positive and negative words in cross-validation."""
    of_labels = dict(zip(labels, range(len(labels)), strict=True))

    def column(values: Any, label: int) -> list[float]:
        return values[:, of_labels[label]].tolist() if label in of_labels else [0.0] * len(values)

    negative, positive = column(predicted, -1), column(predicted, 1)
    truth = {-1: column(data.shares, -1), 1: column(data.shares, 1)}
    words = data.words.tolist()
    in_all = sum(count * (low + high) for count, low, high in zip(words, truth[-1], truth[1], strict=True))

    def f1(threshold: float) -> float:
        marks = [mark_of(*pair, threshold) for pair in zip(negative, positive, strict=True)]
        marked = sum(count for count, mark in zip(words, marks, strict=True) if mark)
        both = sum(words[row] * truth[mark][row] for row, mark in enumerate(marks) if mark)
        return float(2 * both / (marked + in_all))

    return max((step / 100 for step in range(5, 96)), key=lambda threshold: (f1(threshold), -abs(threshold - 0.5)))


def _measure(probe: ProbeRewardModel, annotations: Sequence[Annotation]) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many units are marked with the most frequent label of their words, and all units, by label."""
    given = [annotation for annotation in annotations if not annotation.critique.failed]
    unit, threshold = probe.settings.unit, probe.settings.vote_threshold
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for annotation, scores in zip(given, probe.scores(*inputs_of(given)), strict=True):
        if isinstance(scores, Critique):
            continue
        for labels, score in zip(_labels(annotation, unit), scores, strict=True):
            truth = max(LABELS, key=labels.count)
            total[LABELS[truth]] += 1
            right[LABELS[truth]] += mark_of(score.negative, score.positive, threshold) == truth
    return {name: right[name] for name in total}, dict(total)
