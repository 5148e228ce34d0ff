"""Pairs by hand, and TRL's loss on them against DPO's formula on logits of transformers."""

from copy import deepcopy
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from small_rival import judged, trainer

from evidence.rivals import dpo
from evidence.rivals.dpo import learn_preferences, pairs_of
from evidence.rivals.judged import Judged, groups
from evidence.rivals.trainer import RivalTrainer
from text2grad.models import FineTuning
from tiny_models import own_logp


def test_a_pair_is_the_best_and_the_worst_of_a_group_and_a_tie_has_none() -> None:
    rows = [(1, 5, 3, -2), (4, 4, 4, 4), (0, 2, 2, 1)]
    pairs, ties = pairs_of([judged(r) for row in rows for r in row], 4)
    assert [(pair.chosen.response, pair.rejected.response) for pair in pairs] == [
        ("reward 5", "reward -2"),
        ("reward 2", "reward 0"),
    ]
    assert ties == 1


def test_a_response_without_a_critique_is_in_no_pair() -> None:
    given = [judged(0, failed=True), judged(1), judged(2), judged(3, failed=True)]
    pairs, ties = pairs_of([*given, judged(1), *[judged(0, failed=True)] * 3], 4)
    assert [(pair.chosen.response, pair.rejected.response) for pair in pairs] == [("reward 2", "reward 1")]
    assert ties == 0


def sampled(run: RivalTrainer) -> list[Judged]:
    """Return judged responses of one batch whose groups have different rewards."""
    rollouts = run.sample()
    critiques = run.criticize(rollouts)
    return [Judged(one, c, float(n % 4)) for n, (one, c) in enumerate(zip(rollouts, critiques, strict=True))]


@pytest.mark.parametrize(
    ("batch", "least", "row", "expected"), [(16, 1, 1, 1), (16, 4, 1, 4), (6, 1, 300, 2), (6, 1, 9999, 6)]
)
def test_a_batch_is_divided_until_the_logits_of_a_part_fit(
    batch: int, least: int, row: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpo, "LOGITS_BYTES", 1000)  # 3 rows of 300 bytes
    assert dpo.parts(batch, least, row) == expected


def test_parts_of_a_batch_give_the_step_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, accumulated = [], []
    arguments_of = dpo.training_arguments

    def arguments(config: type, settings: FineTuning, directory: str, **more: Any) -> Any:
        accumulated.append(settings.accumulate)
        return arguments_of(config, settings, directory, **more)

    monkeypatch.setattr(dpo, "training_arguments", arguments)
    for part in (1, 2):
        optim = {"lr": 1e-2, "schedule": "constant"}
        run = trainer(tmp_path / str(part), "dpo", optim=optim, rival={"batch_size": 2, "rounds": 1})
        given = sampled(run)
        lengths = [len(one.rollout.prompt_ids) + len(one.rollout.response_ids) for one in given[::4] + given[3::4]]
        vocabulary = run.model.policy.config.vocab_size
        whole = 2 * 2 * max(lengths) * vocabulary * 4  # 2 pairs of 2 texts, 4 bytes a logit
        monkeypatch.setattr(dpo, "LOGITS_BYTES", whole if part == 1 else whole - 1)
        learn_preferences(run, given)
        trained.append(torch.cat([one.detach().flatten() for one in run.model.policy.parameters()]))
    assert accumulated == [1, 2]
    whole_step, in_parts = trained
    assert float((whole_step - in_parts).abs().mean()) < 1e-6  # a step is about 1e-2


def test_a_padding_token_that_the_embedding_has_not_changes_nothing(tmp_path: Path) -> None:
    losses = []
    for pad in ("", "<new pad>"):  # some directories have one more token than rows
        run = trainer(tmp_path / (pad or "own"), "dpo", rival={"batch_size": 8, "rounds": 1})
        if pad:
            run.tokenizer = deepcopy(run.tokenizer)
            run.tokenizer.add_special_tokens({"pad_token": pad})
            assert run.tokenizer.pad_token_id >= run.model.policy.config.vocab_size
        longer_is_better = [one._replace(reward=float(len(one.rollout.response_ids))) for one in sampled(run)]
        metrics = learn_preferences(run, longer_is_better)
        assert metrics["rival/pairs"] >= 1  # of different lengths, so that there is padding
        losses.append(metrics["update/policy_loss"])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("lora_r", [0, 4])
def test_the_loss_is_dpos_formula_and_the_margin_grows(tmp_path: Path, lora_r: int) -> None:
    model = {"lora_r": lora_r, "value": "none"}
    optim = {"lr": 1e-2, "schedule": "constant"}
    more = {"rollout": {"temperature": 0.7}, "rival": {"dpo_beta": 0.3, "batch_size": 8, "rounds": 1}}
    run = trainer(tmp_path / "run", "dpo", model=model, optim=optim, **more)
    given = sampled(run)
    torch.manual_seed(0)
    with torch.no_grad():  # so that policy and reference differ
        for parameter in run.optimizers.by_name["policy"].param_groups[0]["params"]:
            parameter += 0.3 * torch.randn_like(parameter)

    def margins() -> list[float]:
        found = []
        for group in groups(given, 4):
            ratio = []
            for one in (group[3], group[0]):  # rewards 3 and 0
                own = own_logp(run.model.policy, one.rollout).sum()
                with run.reference.active(run.model.policy) as reference:
                    ratio.append(float(own - own_logp(reference, one.rollout).sum()))
            found.append(0.3 * (ratio[0] - ratio[1]))
        return found

    names = [name for name, _ in run.model.named_parameters()]
    before = margins()
    metrics = learn_preferences(run, given)  # one optimizer step, so that the mean loss is the loss before it
    expected = fmean(-float(torch.nn.functional.logsigmoid(torch.tensor(margin))) for margin in before)
    assert metrics["update/policy_loss"] == pytest.approx(expected, abs=1e-4)
    assert metrics["rival/rewards_margins"] == pytest.approx(fmean(before), abs=1e-4)
    assert (metrics["rival/pairs"], metrics["rival/ties"], metrics["update/optimizer_steps"]) == (2, 0, 1)
    assert fmean(margins()) > fmean(before)
    assert [name for name, _ in run.model.named_parameters()] == names  # no adapter of TRL stays
    assert "forward" not in vars(run.model.policy)
    assert not run.model.policy.training


def test_a_round_of_ties_changes_nothing(tmp_path: Path) -> None:
    run = trainer(tmp_path / "run", "dpo")
    before = [parameter.clone() for parameter in run.model.parameters()]
    tied = [one._replace(reward=1.0) for one in sampled(run)]
    assert learn_preferences(run, tied) == {"rival/pairs": 0.0, "rival/ties": 2.0}
    assert all(map(torch.equal, run.model.parameters(), before))
