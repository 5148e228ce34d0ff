r"""How much clearer are spans than one number? A prediction from the length of responses and spans, γ and λ.

Section 3.6 and Appendix A of the paper compare weights: under spans a reward k−t tokens later weighs (γλ)^(k−t); on the
last token the same reward weighs (γλ)^(T−t), less by the factor α = (γλ)^−(T−k), "2.8" for γλ = 0.95 and 20 tokens
(0.95^−20 = 2.79). But a factor that all advantages share is no information: whitening and Adam remove it, and γ = λ = 1
avoids it. Here signal is compared with noise (`noise`), for the number as it is used best, with γ = λ = 1:

    a response has T tokens. A span has m tokens and one sign, independent of the other spans and as likely + as −:
    corr(δ_t, δ_{t+j}) = ρ_j = max(0, 1 − j/m).   With g = γλ, and in units of Var(δ):

    spans     E[A_t | δ_t] = s_t δ_t,  s_t = Σ_{j=0}^{T−t} g^j ρ_j        Var(A_t) = Σ_{j,k=0}^{T−t} g^(j+k) ρ_|j−k|
    number    E[A_t | δ_t] = s_t δ_t,  s_t = Σ_{k=1}^{T} ρ_|k−t|          Var(A_t) = Σ_{j,k=1}^{T} ρ_|j−k|
    ratio     (s̄² / (V̄ − s̄²))_spans / (s̄² / (V̄ − s̄²))_number           s̄, V̄: means over t

A number with the mean of a group of G as baseline has V̄ G/(G−1) in place of V̄. For spans of one token and long
responses the signal-to-noise ratio of spans is (1 − g²)/g² at any length, that of the number 1/(T−1): the ratio grows
as T. The density of labels is in both ratios and cancels.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

SHORTEST, LONGEST = 4, 1024  # tokens: the ends of the formula's line


def predicted_ratio(lengths: Mapping[int, int], *, factor: float, span_tokens: float, group: int = 1) -> float:
    """Return the predicted ratio of the signal-to-noise ratios, spans over number.

    Args:
        lengths: tokens of a response → number of responses.
        factor: γλ of the spans.
        span_tokens: m, tokens of a span, at least 1.
        group: responses that share the number's baseline; 1 for no group.

    Returns:
        The ratio; infinite for spans without noise (γλ = 0), 1 where a response has one token.

    Example:
        >>> round(predicted_ratio({101: 1}, factor=0.5, span_tokens=1.0), 1)  # about 100 / (0.25/0.75)
        304.0
    """
    spans = _signal_to_noise(lengths, factor, span_tokens)
    number = _signal_to_noise(lengths, None, span_tokens, group)
    return 1.0 if spans == number else spans / number if number else float("inf")


def _signal_to_noise(lengths: Mapping[int, int], factor: float | None, span_tokens: float, group: int = 1) -> float:
    """Return s̄² / (V̄ − s̄²) over the tokens of all responses; `factor` None stands for the number."""
    tokens = slope = variance = 0.0
    for length, count in lengths.items():
        found = _spans(length, factor, span_tokens) if factor is not None else _number(length, span_tokens)
        tokens, slope, variance = tokens + length * count, slope + found[0] * count, variance + found[1] * count
    if not tokens:
        return 0.0
    signal = (slope / tokens) ** 2
    noise = variance / tokens * (group / (group - 1) if group > 1 else 1.0) - signal
    return signal / noise if noise > 1e-12 else float("inf")


def _spans(length: int, factor: float, span_tokens: float) -> tuple[float, float]:
    """Return Σ_t s_t and Σ_t Var(A_t) of a response; with n tokens to come Var_n = 1 + g² Var_{n−1} + 2 Σ_j g^j ρ_j."""
    later = np.arange(length)
    terms = np.power(float(factor), later) * _correlation(later, span_tokens)  # g^j ρ_j; 0^0 = 1
    slopes = terms.cumsum()
    total = variance = 0.0
    for n in range(length):
        variance = 1.0 + factor**2 * variance + 2.0 * float(slopes[n] - 1.0)
        total += variance
    return float(slopes.sum()), total


def _number(length: int, span_tokens: float) -> tuple[float, float]:
    """Return Σ_t s_t and Σ_t Var(A_t) of a response: Σ_{j,k} ρ_|j−k| = T + 2 Σ_{j≥1} (T − j) ρ_j, once and T times."""
    lag = np.arange(1, length)
    whole = length + 2.0 * float(((length - lag) * _correlation(lag, span_tokens)).sum())
    return whole, length * whole


def _correlation(lag: NDArray[np.int64], span_tokens: float) -> NDArray[np.float64]:
    return np.clip(1.0 - lag / max(span_tokens, 1.0), 0.0, None)


def predicted_variance(lengths: Mapping[int, int], *, span_tokens: float) -> float:
    """Return the predicted variance of the number of a response; 1 if its tokens were independent.

    Example:
        >>> predicted_variance({2: 1}, span_tokens=2.0)  # (2 + 2 · 1 · 1/2) / 2
        1.5
    """
    tokens = sum(length * count for length, count in lengths.items())
    return sum(_number(length, span_tokens)[0] * count for length, count in lengths.items()) / max(tokens, 1)


def formula_line(*, factor: float, span_tokens: float, group: int, longest: int) -> list[tuple[int, float]]:
    """Return (T, predicted ratio) for lengths up to `longest` and at least 64, equally spaced on a log axis."""
    end = min(max(2 * longest, 64), LONGEST)
    lengths = sorted({round(x) for x in np.geomspace(SHORTEST, max(end, longest), 25)})
    return [
        (length, predicted_ratio({length: 1}, factor=factor, span_tokens=span_tokens, group=group))
        for length in lengths
    ]
