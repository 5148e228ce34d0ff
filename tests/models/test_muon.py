"""Muon for matrices and AdamW for the rest: who gets which, schedules, saved states, and that models learn."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from text2grad.models.fine_tuning import FineTuning, fine_tune
from text2grad.models.muon import Muon, MuonAdamW
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Example

TEXTS = ["up", "down", "left", "right", "which? yes", "which? no"]


@pytest.fixture
def tokenizer() -> Any:
    return word_tokenizer(TEXTS)


def llama(tokenizer: Any, seed: int = 0) -> Any:
    return tiny_llama(tokenizer, seed=seed, width=16, layers=1, context=32)


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 1) -> None:
    """Make steps on a gradient that is the same each time."""
    for _ in range(count):
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def test_hidden_matrices_go_to_muon_and_the_rest_to_adamw(tokenizer: Any) -> None:
    model = llama(tokenizer)
    matrices, rest = (group["params"] for group in MuonAdamW(model, 1e-2).param_groups)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert sorted(names[id(p)] for p in rest) == [
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.norm.weight",
    ]
    assert len(matrices) == 7  # q, k, v, o; gate, up, down
    assert len(matrices) + len(rest) == len(names)


def test_a_head_with_one_row_has_no_directions_to_balance_and_frozen_weights_stay_out() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False), nn.Linear(4, 4, bias=False))
    model[2].weight.requires_grad_(False)
    groups = MuonAdamW(model, 1e-2).param_groups
    assert [[p.shape for p in group["params"]] for group in groups] == [[(4, 4)], [(1, 4)]]


def test_every_direction_of_a_matrix_moves_at_about_the_same_pace() -> None:
    model = nn.Linear(8, 8, bias=False)
    before = model.weight.detach().clone()
    gradient = torch.diag(torch.logspace(0, -2, 8))  # one direction is a hundred times another
    model.weight.grad = gradient.clone()
    MuonAdamW(model, 0.1).step()
    moved = (before - model.weight.detach()).diagonal()
    # the step is 0.1 · 0.2 · √8 ≈ 0.057 in each direction, as near as five iterations come to it; AdamW's root mean
    # square would be 0.1 · 0.2, and so is Muon's: √(8 · 0.057² / 64) = 0.02
    assert moved.min() > 0.02
    assert moved.max() < 0.075


def test_steps_are_those_of_torchs_own_muon() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(12, 20), (20, 12), (12, 20), (16, 16)]  # two of one shape, which are made orthogonal together
    ours = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    theirs = [nn.Parameter(one.detach().clone()) for one in ours]
    start = [one.detach().clone() for one in ours]
    optimizers = [
        Muon(ours, 0.1),
        torch.optim.Muon(theirs, lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
    ]
    for _ in range(3):  # the momentum of a step reaches the next ones
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for mine, other, before in zip(ours, theirs, start, strict=True):
        moved = (mine - before).detach()
        assert (moved - (other - before).detach()).norm() < 0.02 * moved.norm()  # torch rounds to bf16


def test_a_matrix_without_gradient_stays_and_has_no_momentum() -> None:
    used, unused = (nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    used.grad = torch.eye(4)
    optimizer = Muon([used, unused], 0.1)
    optimizer.step()
    assert torch.equal(unused, torch.ones(4, 4))
    assert list(optimizer.state) == [used]


def test_a_schedule_moves_both_rates(tokenizer: Any) -> None:
    model = llama(tokenizer)
    optimizer = MuonAdamW(model, 1e-2)
    before = copy.deepcopy(model.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    take_steps(model, optimizer)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    take_steps(model, optimizer)
    assert all(not torch.equal(before[name], value) for name, value in model.named_parameters())


def test_a_saved_state_goes_on_with_the_same_bits(tokenizer: Any) -> None:
    whole, first, second = (llama(tokenizer) for _ in range(3))
    take_steps(whole, MuonAdamW(whole, 1e-2), 4)
    optimizer = MuonAdamW(first, 1e-2)
    take_steps(first, optimizer, 2)
    again = MuonAdamW(second, 1e-2)
    second.load_state_dict(first.state_dict())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_steps(second, again, 2)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


def test_a_model_learns_by_it_and_the_same_seed_makes_the_same_weights(tokenizer: Any) -> None:
    examples = [Example(word) for word in ("up", "down", "left", "right")] * 40
    answers = [" no", " yes", " yes", " no"] * 40
    how = FineTuning(steps=40, batch_size=8, learning_rate=1e-2, max_tokens=8, optimizer="muon")
    models = [fine_tune(llama(tokenizer), tokenizer, examples, answers, how) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
    for example, answer in zip(examples[:4], answers[:4], strict=True):
        logits = models[0](torch.tensor([tokenizer(example.prompt).input_ids])).logits[0, -1]
        assert tokenizer.decode(logits.argmax()) == answer
