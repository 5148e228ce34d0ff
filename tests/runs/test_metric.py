"""The contract of a user's metric, and what an error says."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from text2grad.errors import ConfigError, MetricError
from text2grad.feedback import load_callable
from text2grad.runs.metric import RESERVED, measure
from text2grad.types import Example

EXAMPLES = [Example("a"), Example("b"), Example("c")]
RESPONSES = ["x", "yy", "zzz"]

FILE = """\
def lengths(example, response):
    return {"length": len(response), "long": len(response) > 1}


def fails(example, response):
    return helper(response)


def helper(response):
    return {"share": 1 / (len(response) - 2)}


class Named:
    def __call__(self, example, response):
        return {"prompt": float(example.prompt == "a")}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "metric_of_a_user.py"
    path.write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return path


def test_numbers_of_every_kind_become_floats(module: Path) -> None:
    found = measure(load_callable("metric_of_a_user:lengths", "metric"), EXAMPLES, RESPONSES)
    assert found == [{"length": 1.0, "long": 0.0}, {"length": 2.0, "long": 1.0}, {"length": 3.0, "long": 1.0}]
    assert {type(value) for one in found for value in one.values()} == {float}
    assert measure(load_callable("metric_of_a_user:Named", "metric"), EXAMPLES, RESPONSES)[1] == {"prompt": 0.0}
    values: list[Any] = [np.float32(0.5), np.int64(2), torch.tensor(0.25)]
    assert [measure(lambda *_, v=v: {"v": v}, EXAMPLES[:1], [""]) for v in values] == [
        [{"v": 0.5}],
        [{"v": 2.0}],
        [{"v": 0.25}],
    ]


def test_an_error_names_file_line_and_response(module: Path) -> None:
    with pytest.raises(MetricError) as caught:
        measure(load_callable("metric_of_a_user:fails", "metric"), EXAMPLES, RESPONSES, first=10, total=20)
    assert str(caught.value) == (
        "the metric failed on held-out response 12 of 20: ZeroDivisionError at metric_of_a_user.py:10: "
        "division by zero. Mend the metric; a run goes on with --resume"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([None], "returned None instead of a dict of numbers by name, for held-out response 1 of 3"),
        ([0.5], "returned 0.5 instead of a dict"),
        ([{}], "returned {} instead of a dict"),
        ([{1: 2.0}], "returned the key 1, which is not a name"),
        ([{"": 2.0}], "returned the key '', which is not a name"),
        ([{"f1": "0.5"}], "returned '0.5' for 'f1', which is not a number"),
        ([{"f1": None}], "returned None for 'f1', which is not a number"),
        ([{"f1": 1j}], "returned 1j for 'f1', which is not a number"),
        ([{"f1": float("nan")}], "returned nan for 'f1'; leave no number undefined"),
        ([{"f1": 1.0}, {"f1": float("inf")}], "returned inf for .* for held-out response 2 of 3"),
        ([{"reward": 1.0}], "returned the name 'reward', which every evaluation has already"),
        (
            [{"f1": 1.0}, {"f1": 1.0, "em": 1.0}],
            r"returned the names \['em', 'f1'\] instead of \['f1'\], which it returned before, for held-out response 2",
        ),
        ([{"f1": 1.0}, {"f1": 1.0}, {"em": 1.0}], "for held-out response 3 of 3"),
    ],
)
def test_what_breaks_the_contract_is_refused(answers: list[Any], text: str) -> None:
    found = iter(answers)
    with pytest.raises(MetricError, match=text) as caught:
        measure(lambda example, response: next(found), EXAMPLES, RESPONSES)
    assert f"{__file__}:" in str(caught.value)


def test_the_reserved_names_are_those_of_an_evaluation() -> None:
    assert "reward" in RESERVED
    assert len(set(RESERVED)) == len(RESERVED) == 10


def test_a_metric_that_cannot_be_loaded_is_refused() -> None:
    for path, text in (
        ("nowhere:metric", "metric 'nowhere:metric' cannot be loaded: "),
        ("metric", 'a metric is given as "module:name"'),
        ("math:pi", "metric 'math:pi' is a float, which cannot be called"),
    ):
        with pytest.raises(ConfigError, match=text):
            load_callable(path, "metric")
