"""A user's metric, `data.metric`: (example, response) → numbers by name, checked.

def metric(example: Example, response: str) -> dict[str, float]

metric.lower_is_better = True     # which way its first number should go; without this line nothing advises by it
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import SupportsFloat

from text2grad.errors import MetricError
from text2grad.feedback import described, kept_process
from text2grad.types import Example

Metric = Callable[[Example, str], Mapping[str, float]]

RESERVED = (  # the numbers that every evaluation has; a metric needs other names
    *("reward", "positive_share", "negative_share", "unlabelled_share", "failure_rate"),
    *("distinct_2", "kl_per_token", "reference_perplexity", "mean_tokens", "truncated_share"),
)

LOWER_IS_BETTER = ("invented_share", "unsupported_share")  # main metrics of built-in tasks for which lower is better

LARGEST = 1e300  # sums of larger numbers may be infinite

WAY_OUT = "Mend the metric; a run goes on with --resume"


def lower_is_better(metric: str) -> bool:
    """Return whether lower is better for a main metric; False for users' metrics and the reward."""
    return metric in LOWER_IS_BETTER


def measure(
    metric: Metric, examples: Sequence[Example], responses: Sequence[str], *, first: int = 0, total: int | None = None
) -> list[dict[str, float]]:
    """Return the numbers of each response.

    Args:
        metric: the metric.
        examples: the task instances.
        responses: one per example.
        first: number of responses before these, for errors.
        total: number of all responses, for errors; None if these are all.

    Raises:
        MetricError: if the metric raises an error, returns anything but finite numbers by name, or other names for
            one response than for another. The message names the metric's file and line, and the response's number.
    """
    rows: list[dict[str, float]] = []
    for number, (example, response) in enumerate(zip(examples, responses, strict=True), start=first + 1):
        where = f"held-out response {number} of {first + len(responses) if total is None else total}"
        try:
            with kept_process(f"metric {getattr(metric, '__name__', type(metric).__name__)}"):
                values = metric(example, response)
        except (Exception, SystemExit) as error:
            raise MetricError(f"the metric failed on {where}: {described(error)}. {WAY_OUT}") from error
        if fault := _fault(values, rows):
            raise MetricError(f"the metric {fault}, for {where} ({_defined_at(metric)}). {WAY_OUT}")
        rows.append({name: float(value) for name, value in values.items()})
    return rows


def _fault(values: object, earlier: Sequence[Mapping[str, float]]) -> str:
    """Return the fault of a metric's answer, or ""."""
    if not isinstance(values, Mapping) or not values:
        return f"returned {_short(values)} instead of a dict of numbers by name"
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            return f"returned the key {_short(name)}, which is not a name"
        if name in RESERVED:
            return f"returned the name {name!r}, which every evaluation has already; choose another name"
        if not isinstance(value, SupportsFloat) or getattr(value, "shape", ()) != ():
            return f"returned {_short(value)} for {name!r}, which is not a number"
        try:
            finite = abs(float(value)) <= LARGEST
        except OverflowError:  # a whole number beyond all floats
            finite = False
        if not finite:
            return f"returned {_short(value)} for {name!r}; leave no number undefined, for example return 0.0"
    if earlier and values.keys() != earlier[0].keys():
        return f"returned the names {sorted(values)} instead of {sorted(earlier[0])}, which it returned before"
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _defined_at(metric: Metric) -> str:
    """Return the metric's file and first line."""
    code = getattr(inspect.unwrap(metric), "__code__", None) or getattr(type(metric).__call__, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(metric)
