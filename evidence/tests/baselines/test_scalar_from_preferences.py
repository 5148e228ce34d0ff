"""A scalar reward model from preferences: trained by TRL, on a scale of its own, measured on held-out pairs."""

from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch

from evidence.baselines.preference_files import Preference
from evidence.baselines.scalar import ScalarRewardModel
from evidence.baselines.scalar_from_preferences import (
    PreferenceReport,
    pair_accuracy,
    train_scalar_from_preferences,
)
from text2grad.errors import DataError
from text2grad.models.fine_tuning import FineTuning
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example

WORDS = ["red", "cat", "dog", "one"]
HOW = FineTuning(steps=80, batch_size=16, learning_rate=0.01, max_tokens=32, seed=1)


def pairs(number: int, seed: int) -> list[Preference]:
    """Pairs of which the one with more "red" was chosen."""
    rng, found = Random(seed), []
    while len(found) < number:
        one, other = ("".join(f" {rng.choice(WORDS)}" for _ in range(rng.randint(1, 8))) for _ in range(2))
        if one.count("red") > other.count("red"):
            found.append(Preference(f"a {rng.choice(WORDS)}", one, other))
    return found


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return word_tokenizer(["a red cat dog one\n"])


@pytest.fixture(scope="module")
def start(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("start")
    tiny_llama(tokenizer, seed=0, width=32, layers=1, context=32).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def taught(tokenizer: Any, start: Path) -> tuple[ScalarRewardModel, PreferenceReport]:
    steps: list[int] = []
    found = train_scalar_from_preferences(
        start, tokenizer, pairs(120, seed=0), HOW, held_out=pairs(60, seed=1), on_step=steps.append
    )
    assert steps == list(range(1, 81))
    return found


def test_it_orders_pairs_that_it_has_not_seen(taught: tuple[ScalarRewardModel, PreferenceReport]) -> None:
    _, report = taught
    assert report[:4] == (120, 0, 0, 60)
    assert report.accuracy is not None
    assert report.accuracy > 0.95


def test_its_numbers_have_mean_0_and_deviation_1_on_what_it_learned_from(
    taught: tuple[ScalarRewardModel, PreferenceReport],
) -> None:
    model, shown = taught[0], pairs(120, seed=0)
    found = [
        critique.outcome
        for name in ("chosen", "rejected")
        for critique in model([Example(one.prompt) for one in shown], [getattr(one, name) for one in shown])
    ]
    assert fmean(found) == pytest.approx(0, abs=1e-4)  # type: ignore[type-var]
    assert pstdev(found) == pytest.approx(1, abs=1e-4)  # type: ignore[type-var]


def test_it_is_saved_as_any_scalar_reward_model(
    taught: tuple[ScalarRewardModel, PreferenceReport], tmp_path: Path
) -> None:
    model = taught[0]
    model.save(tmp_path / "model")
    again = ScalarRewardModel.load(tmp_path / "model")
    asked, texts = [Example("a red")] * 2, [" red red", " cat"]
    assert again(asked, texts) == model(asked, texts)
    assert not any(path.suffix in (".bin", ".pt") for path in (tmp_path / "model").iterdir())


def test_the_same_seed_makes_the_same_model(tokenizer: Any, start: Path) -> None:
    how = FineTuning(steps=2, batch_size=4, learning_rate=0.01, seed=3)
    found = [train_scalar_from_preferences(start, tokenizer, pairs(12, seed=0), how)[0] for _ in range(2)]
    states = [one.model.state_dict() for one in found]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert "forward" not in vars(found[0].model), "nothing of the trainer hangs on it"


def test_what_is_too_long_or_says_nothing_is_left_out_and_counted(tokenizer: Any, start: Path) -> None:
    how = FineTuning(steps=1, batch_size=4, max_tokens=6)
    # "a", the response and the line break.
    given = [
        Preference("a", " red red red red", " cat"),  # 6 tokens and 3
        Preference("a", " red red red red red", " cat"),  # 7
        Preference("a", " red", " cat" * 5),  # 7
        Preference("a", " cat", " cat"),
    ]
    beyond = Preference("a", " red", " red" * 31)  # 33 tokens, for a context of 32
    _, report = train_scalar_from_preferences(start, tokenizer, given, how, held_out=[*given[1:3], beyond])
    assert report[:4] == (1, 1, 2, 2)
    with pytest.raises(DataError) as caught:
        train_scalar_from_preferences(start, tokenizer, given[1:], how)
    assert str(caught.value) == (
        "no training pair is left of 3 preferences: 1 have two equal responses, 2 are longer than max_tokens = 6"
    )
    assert train_scalar_from_preferences(start, tokenizer, given[:1], how)[1].accuracy is None


def test_accuracy_by_hand() -> None:
    def judge(examples: Any, responses: list[str]) -> list[Critique]:
        return [Critique("", outcome=float(len(text))) for text in responses]

    # Longer is better here: right, wrong, equal, right → (1 + 0 + 0.5 + 1) / 4.
    given = [Preference("a", *pair) for pair in (("xx", "x"), ("x", "xx"), ("x", "y"), ("xxx", "x"))]
    assert pair_accuracy(judge, given) == 2.5 / 4  # type: ignore[arg-type]
    assert pair_accuracy(judge, []) is None  # type: ignore[arg-type]
