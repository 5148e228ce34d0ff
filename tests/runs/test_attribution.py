"""The shares of critiques in what a phrase became, beside the measured change and beside runs without them."""

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from critics_by_name import Praise
from rated_runs import rated_run
from task_texts import untrained_policy
from text2grad.cli.__main__ import main
from text2grad.errors import DataError
from text2grad.rl.run_log import RunLog
from text2grad.rl.update import MinibatchGradient
from text2grad.runs import attribution
from text2grad.runs.attribution import explain
from text2grad.types import Example

SETTINGS = (
    "data.eval_examples=0",
    "run.steps=5",
    "ppo.beta=0.0",
    "ppo.epochs=2",
    "ppo.minibatches=2",
    "optim.value_warmup_steps=1",
)


def run(path: Path) -> Path:
    """Train a policy of which one response alone is praised."""
    untrained_policy(path / "start")
    Praise.asked, Praise.after = 0, 19  # the critique of row 3 of step 2 praises, and no other says anything
    return rated_run(path / "start", path / "run", "Praise", *SETTINGS)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("runs"))


def test_the_critique_that_praised_a_phrase_is_named_first_and_explains_its_change(parent: Path) -> None:
    explained = explain(parent, Praise.phrase)
    first, second = explained.shares[:2]
    assert (first.step, first.row, explained.places) == (2, 3, 1)
    assert first.nats > 10 * abs(second.nats)
    nats = [share.nats for share in explained.shares]
    assert nats == sorted(nats, reverse=True), "what raised it stands first, what lowered it last"
    assert explained.after > explained.before
    assert 0.8 < explained.explained < 1.2
    assert math.isclose(sum(explained.by_step.values()), explained.after - explained.before, rel_tol=1e-4)
    assert min(explained.by_step) == 1, "the policy rests while the value function warms up"


def test_of_a_phrase_that_became_rarer_what_lowered_it_stands_first(parent: Path) -> None:
    responses = [record["response"] for _, records in RunLog(parent).rollouts(since=0) for record in records]
    words = dict.fromkeys(word for response in responses for word in response.split() if word not in Praise.phrase)
    fell = next(each for each in (explain(parent, word) for word in words) if each.after < each.before)
    nats = [share.nats for share in fell.shares]
    assert nats[0] < 0
    assert nats == sorted(nats)


def test_shares_are_what_the_gradients_of_single_responses_do(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last optimizer step, by autograd: (1 − β₁) · s ⟨−∇ loss of a row, lr / (1 − β₁^k) ∇ log p / (√v̂ + ε)⟩."""
    checked = list[bool]()

    def by_hand(trainer: Any, update: Any, weights: Any, along: Any) -> Tensor:
        ours = shares_of(trainer, update, weights, along)
        if not checked:  # the last update comes first, where S is that of one step
            trainer.put(weights)
            for row, own in enumerate(ours.sum(dim=1).tolist()):
                part, size = (
                    update.minibatch.rows(torch.tensor([row])),
                    float(update.minibatch.batch.response_mask.sum()),
                )
                ratio = (trainer.log_probs(part.batch) - part.scores.logp).exp()
                gain = torch.minimum(ratio * part.advantages, ratio.clamp(0.8, 1.2) * part.advantages).sum() / size
                parameters = list(trainer.of_policy.values())
                gradients = torch.autograd.grad(gain, parameters, allow_unused=True)
                products = [
                    float((gradient * along[name]).sum())
                    for name, gradient in zip(trainer.of_policy, gradients, strict=True)
                    if gradient is not None
                ]
                expected = 0.1 * update.scale * sum(products)
                assert own == pytest.approx(expected, rel=0.02, abs=1e-7)
                checked.append(abs(expected) > 1e-6)
        return ours

    shares_of = attribution._token_shares
    monkeypatch.setattr(attribution, "_token_shares", by_hand)
    explain(parent, Praise.phrase)
    assert sum(checked) > 2


def test_a_minibatch_whose_step_is_not_made_gives_its_rows_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, seen = MinibatchGradient.__call__, dict[int, int]()

    def skipped(gradient: MinibatchGradient, *inputs: Any, **how: Any) -> dict[str, float]:
        seen[id(gradient)] = seen.get(id(gradient), 0) + 1
        far = {"update/ratio_mean": 99.0} if seen[id(gradient)] % 4 == 1 else {}  # the first of each step
        return whole(gradient, *inputs, **how) | far

    monkeypatch.setattr(MinibatchGradient, "__call__", skipped)
    explained = explain(run(tmp_path), Praise.phrase)
    assert [(share.step, share.row) for share in explained.shares[:1]] == [(2, 3)]
    assert 0.8 < explained.explained < 1.2


def test_a_share_is_about_what_the_run_without_the_critique_lacks(parent: Path, tmp_path: Path) -> None:
    explained = explain(parent, Praise.phrase)
    assert main(["without", str(parent), "--critique", "2:3", "--same-responses", "--out", str(tmp_path / "out")]) == 0
    lacking = explain(tmp_path / "out", Praise.phrase)
    assert explained.after - lacking.after == pytest.approx(explained.shares[0].nats, rel=0.3)


def test_a_phrase_that_no_response_has_begins_the_answer_to_a_prompt(
    parent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["why", str(parent), " "]) == 2
    assert "the phrase is blank; give words of an answer" in capsys.readouterr().err
    assert main(["why", str(parent), "no such words"]) == 2
    assert "no response of the run contains 'no such words'; give the prompt" in capsys.readouterr().err
    assert main(["why", str(parent), "The fair", "--prompt", "Who came?", "--most", "2"]) == 0
    told = capsys.readouterr().out
    assert "log p of the phrase, 1 place:" in told
    assert len(re.findall(r"^ *2:3 ", told, re.MULTILINE)) == 1
    assert "I like that." in told


def test_a_place_of_a_phrase_is_its_own_tokens_after_all_that_stands_before() -> None:
    """Characters 3 to 10 of "in Lyon on Friday" are in the tokens " Lyon" and " on"."""
    record = {"prompt": "Where?", "response": "in Lyon on Friday", "ids": [5, 6, 7, 8]}
    record["offsets"] = [[0, 2], [2, 7], [7, 10], [10, 17]]
    trainer: Any = SimpleNamespace(examples=[Example("Where?")], prompt_ids=[(1, 2)])
    (place,) = attribution._contexts(trainer, {0: [record, record]}, "Lyon on", None)
    assert (place.prompt_ids, place.response_ids) == ((1, 2, 5), (6, 7))
    with pytest.raises(DataError, match="no response of the run contains 'Lyon on'"):
        attribution._contexts(trainer, {0: []}, "Lyon on", None)
