"""Signal, noise and autocorrelation by hand, on data with known answers and against numpy; and the formula."""

from itertools import pairwise

import numpy as np
import pytest

from evidence.analysis.formula import formula_line, predicted_ratio, predicted_variance
from evidence.analysis.noise import autocorrelation, mean_autocorrelation, variance_parts
from evidence.analysis.rollouts import Batch, batch_of
from evidence.analysis.signals import discounted, placed_rewards, signals
from text2grad.config import make_recipe


def records(deltas: list[list[float]], *, prompts: str = "", reward: list[list[float]] | None = None) -> list[dict]:  # type: ignore[type-arg]
    return [
        {
            "step": 0,
            "response": "",
            "critique": {"feedback": "", "spans": []},
            "prompt": prompts[n] if prompts else f"p{n}",
            "ids": list(range(len(delta))),
            "delta": delta,
            "reward": reward[n] if reward else delta,
            "kl": [0.0] * len(delta),
            "advantage": delta,
        }
        for n, delta in enumerate(deltas)
    ]


def batch(deltas: list[list[float]], **more: object) -> Batch:
    return batch_of(0, records(deltas, **more))  # type: ignore[arg-type]


def random_batch(rng: np.random.Generator, responses: int, length: int, span: int = 1) -> Batch:
    """Return responses of spans of one length, at random places, each + or − or (half of them) unlabelled."""
    shift = rng.integers(0, span, responses)
    signs = rng.choice([-1.0, 0.0, 0.0, 1.0], size=(responses, length // span + 2))
    return batch([list(np.repeat(row, span)[s : s + length]) for row, s in zip(signs, shift, strict=True)])


def test_signals_by_hand() -> None:
    found = batch([[0, 1, -1], [1, 1]])
    made = signals(found, make_recipe({}), factor=0.5)
    assert made["spans"].tolist() == [[0.25, 0.5, -1.0], [1.5, 1.0, 0.0]]
    assert made["number"].tolist() == [[0, 0, 0], [2, 2, 0]]
    assert made["number_at_end"].tolist() == [[0, 0, 0], [1, 2, 0]]  # 2 · 0.5, 2 · 1
    assert made["logged"].tolist() == [[0, 1, -1], [1, 1, 0]]


def test_a_number_has_the_mean_of_its_group_as_baseline_where_every_prompt_has_one() -> None:
    recipe = make_recipe({})
    grouped = batch([[1, 1], [1, -1], [1, 0], [-1, -1]], prompts="aabb")
    assert signals(grouped, recipe, factor=0.5)["number"][:, 0].tolist() == [1, -1, 1.5, -1.5]  # sums 2 0 1 −2
    single = batch([[1, 1], [1, -1], [1, 0]], prompts="aab")
    assert signals(single, recipe, factor=0.5)["number"][:, 0].tolist() == [2, 0, 1]


def test_rewards_of_a_run_with_one_number_go_back_to_their_tokens() -> None:
    deltas, summed = [[1.0, 0.0, -1.0], [1.0, 1.0]], [[0.0, 0.0, -1.75], [0.0, 4.0]]
    recipe = make_recipe(
        {"reward": {"placement": "last_token", "positive": 0.5, "negative": -2.0, "unlabelled": -0.25}}
    )
    # 0.5 − 0.25 − 2 = −1.75 as logged; 0.5 + 0.5 = 1, so 3 of the 4 are an outcome on the last token
    assert placed_rewards(batch(deltas, reward=summed), recipe).tolist() == [[0.5, -0.25, -2.0], [0.5, 3.5, 0.0]]
    # verdicts: −1 for the first, with an outcome of 3 (logged 2); 0.5 for the second
    outcome_only = make_recipe({"reward": {"placement": "verdict", "positive": 0.5}})
    verdicts = batch(deltas, reward=[[0.0, 0.0, 2.0], [0.0, 0.5]])
    assert placed_rewards(verdicts, outcome_only).tolist() == [[0.5, 0.0, 2.0], [0.5, 0.5, 0.0]]
    own = make_recipe({"reward": {"positive": 0.5}})
    assert placed_rewards(batch(deltas, reward=summed), own).tolist() == [[0.0, 0.0, -1.75], [0.0, 4.0, 0.0]]


def test_signal_and_noise_by_hand() -> None:
    labels = np.array([[1, 1, -1, -1]] * 2)
    advantages = np.array([[3.0, 1.0, -1.0, -3.0]] * 2)  # means ±2: 4 between labels, 1 within
    assert variance_parts(advantages, labels, labels != 0) == pytest.approx((4.0, 1.0))
    assert variance_parts(advantages + 7.0, labels, labels != 0) == pytest.approx((4.0, 1.0))
    assert variance_parts(3 * advantages, labels, labels != 0) == pytest.approx((36.0, 9.0))
    padded = np.pad(advantages, ((0, 0), (0, 2)), constant_values=99.0)
    padding = np.pad(labels, ((0, 0), (0, 2)))
    assert variance_parts(padded, padding, padding != 0) == pytest.approx((4.0, 1.0))


def test_one_response_has_neither_signal_nor_noise() -> None:
    labels = np.array([[1, -1]])
    assert variance_parts(labels.astype(float), labels, labels != 0) == (0.0, 0.0)


def test_the_jackknife_equals_the_one_of_a_loop_and_removes_the_bias_of_one_number_per_response() -> None:
    rng = np.random.default_rng(1)
    signal, plain = [], []
    for _ in range(200):
        labels = rng.choice([-1, 0, 1], size=(12, 10))
        labels[:, :8] = labels[:, :1]  # labels of a response are alike, so means of labels differ by chance
        advantages = np.repeat(rng.normal(size=(12, 1)), 10, axis=1)  # independent of the labels: no signal
        found = variance_parts(advantages, labels, np.ones_like(labels, bool))
        signal.append(found.signal)
        plain.append(between(advantages, labels))
    assert np.mean(plain) > 0.1
    assert abs(np.mean(signal)) < 0.02
    without = [between(np.delete(advantages, n, 0), np.delete(labels, n, 0)) for n in range(12)]
    assert found.signal == pytest.approx(12 * plain[-1] - 11 * np.mean(without))


def between(advantages: np.ndarray, labels: np.ndarray) -> float:  # type: ignore[type-arg]
    """Return the variance of the labels' means, by numpy alone."""
    means = np.zeros_like(advantages)
    for label in np.unique(labels):
        means[labels == label] = advantages[labels == label].mean()
    return float(means.var())


def test_the_autocorrelation_of_an_autoregressive_process_is_a_power_of_its_coefficient() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(400, 260))
    process = discounted(noise, 0.6)[:, :200]  # A_t = e_t + 0.6 A_{t+1}, far from its start
    found = autocorrelation(process, np.ones_like(process, bool), lags=4)
    assert found.values == pytest.approx([0.6, 0.36, 0.216, 0.1296], abs=0.01)
    assert found.pairs.tolist() == [400 * (200 - j) for j in range(1, 5)]


def test_the_autocorrelation_is_that_of_numpy_and_padding_is_no_pair() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(3, 7))
    mask = np.arange(7) < np.array([7, 4, 1])[:, None]
    found = autocorrelation(values, mask, lags=8)
    centre = values[mask].mean()
    rows = [values[0] - centre, values[1, :4] - centre]
    for lag in (1, 2, 3):
        x, y = (np.concatenate(side) for side in zip(*((row[:-lag], row[lag:]) for row in rows), strict=True))
        assert found.values[lag - 1] == pytest.approx((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))
        assert found.pairs[lag - 1] == len(x)
    assert found.pairs[6:].tolist() == [0, 0]


def test_one_number_on_all_tokens_is_wholly_autocorrelated() -> None:
    number = np.repeat(np.array([[1.0], [2.0], [-3.0]]), 5, axis=1)
    found = autocorrelation(number, np.ones((3, 5), bool), lags=4)
    assert found.values == pytest.approx([1, 1, 1, 1])
    assert mean_autocorrelation(
        [found, autocorrelation(number[:, :2], np.ones((3, 2), bool), lags=4)]
    ) == pytest.approx([1] * 4)
    assert autocorrelation(np.ones((2, 3)), np.ones((2, 3), bool), lags=1).values.tolist() == [0.0]


def test_steps_are_averaged_by_their_pairs() -> None:
    one = autocorrelation(np.array([[1.0, -1.0, 1.0, -1.0]]), np.ones((1, 4), bool), lags=2)  # −1, 1; 3 and 2 pairs
    two = autocorrelation(np.array([[1.0, 1.0], [-1.0, -1.0]]), np.ones((2, 2), bool), lags=2)  # 1; 2 pairs
    assert mean_autocorrelation([one, two]) == pytest.approx([(-3 + 2) / 5, 1.0])


def test_the_formula_for_spans_of_one_token_is_the_closed_form() -> None:
    length, factor = 400, 0.5
    # spans: Σ_{j≥1} g^2j = g²/(1 − g²) of noise, but for the last tokens; number: T − 1 of noise
    exact = np.mean([sum(factor ** (2 * j) for j in range(1, length - t)) for t in range(length)])
    assert predicted_ratio({length: 5}, factor=factor, span_tokens=1.0) == pytest.approx((length - 1) / exact)
    assert exact == pytest.approx(1 / 3, rel=0.01)
    # a group of 4: T·4/3 − 1 of noise
    grouped = predicted_ratio({length: 5}, factor=factor, span_tokens=1.0, group=4)
    assert grouped == pytest.approx((length * 4 / 3 - 1) / exact)


def test_the_formula_by_double_sums() -> None:
    """The definitions of `formula`, term by term, for responses of two lengths."""
    factor, span = 0.8, 2.5
    lengths = {7: 2, 4: 1}

    def rho(lag: int) -> float:
        return max(0.0, 1 - abs(lag) / span)

    def ratio(weights: list[list[np.ndarray]]) -> float:  # type: ignore[type-arg]
        """weights: for each response, for each t, the weight of each token's δ in A_t."""
        slopes, variances = [], []
        for response in weights:
            for t, weight in enumerate(response):
                tokens = range(len(weight))
                slopes.append(sum(weight[k] * rho(k - t) for k in tokens))
                variances.append(sum(weight[j] * weight[k] * rho(j - k) for j in tokens for k in tokens))
        signal = np.mean(slopes) ** 2
        return float(signal / (np.mean(variances) - signal))

    def of(length: int, g: float | None) -> list[np.ndarray]:  # type: ignore[type-arg]
        ones = np.ones(length)
        return [
            ones if g is None else np.array([g ** (k - t) * (k >= t) for k in range(length)]) for t in range(length)
        ]

    spans, number = ([of(n, g) for n, count in lengths.items() for _ in range(count)] for g in (factor, None))
    assert predicted_ratio(lengths, factor=factor, span_tokens=span) == pytest.approx(ratio(spans) / ratio(number))
    whole = sum(count * sum(rho(j - k) for j in range(n) for k in range(n)) for n, count in lengths.items())
    assert predicted_variance(lengths, span_tokens=span) == pytest.approx(whole / 18)


@pytest.mark.parametrize(("length", "span", "factor"), [(16, 1, 0.475), (48, 4, 0.475), (48, 1, 0.9)])
def test_the_formula_predicts_what_is_measured_on_random_spans(length: int, span: int, factor: float) -> None:
    rng = np.random.default_rng(5)
    found = random_batch(rng, 6000, length, span)
    made = signals(found, make_recipe({}), factor=factor)
    spans, number = (variance_parts(made[name], found.labels, found.mask) for name in ("spans", "number"))
    measured = (spans.signal / spans.noise) / (number.signal / number.noise)
    # spans at the ends of a response are cut, and a token's place in its span is not known to its label
    assert measured == pytest.approx(predicted_ratio({length: 1}, factor=factor, span_tokens=span), rel=0.12)


def test_the_ratio_grows_with_length_and_is_one_for_one_token() -> None:
    line = formula_line(factor=0.5, span_tokens=1.6, group=1, longest=40)
    assert line[0][0] == 4
    assert line[-1][0] == 80
    assert all(second[1] > first[1] for first, second in pairwise(line))
    assert predicted_ratio({1: 3}, factor=0.5, span_tokens=1.0) == 1.0
    assert predicted_ratio({9: 3}, factor=0.0, span_tokens=1.0) == float("inf")  # spans without noise
