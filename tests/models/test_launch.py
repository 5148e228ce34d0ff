"""Work that several processes share."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch

from text2grad.models import gathered, in_processes, place, shared
from text2grad.models.fine_tuning import FineTuning, row_of_ids, train_on_rows
from text2grad.tasks.tiny import tiny_llama, word_tokenizer

# Rows of one length: whichever process has them, a batch of four rows holds the same labels.
ROWS = [row_of_ids([first, second], [second, first]) for first in (3, 4, 5) for second in (3, 4, 5, 6)]


def trained() -> list[float]:
    """Return some weights after two steps, each of all twelve rows."""
    tokenizer = word_tokenizer(["red green blue cat"])
    model = tiny_llama(tokenizer, seed=0, width=16, layers=1, context=8)
    train_on_rows(model, shared(ROWS), FineTuning(steps=2, batch_size=12, learning_rate=0.01))
    return [float(number) for number in model.lm_head.weight.detach().flatten()]


def write(directory: Path) -> None:
    torch.manual_seed(place()[0])  # the order of the rows does not come from here
    everyone = gathered([os.getpid()])
    (directory / f"{place()[0]}.json").write_text(json.dumps([place()[1], everyone, trained()]))


def test_a_process_alone_shares_with_nobody(tmp_path: Path) -> None:
    in_processes(1, partial(write, tmp_path))
    assert json.loads((tmp_path / "0.json").read_text())[:2] == [1, [os.getpid()]]
    assert place() == (0, 1)


@pytest.mark.thorough
def test_two_processes_train_as_a_process_alone(tmp_path: Path) -> None:
    in_processes(2, partial(write, tmp_path))
    (count, first, ours), (_, second, theirs) = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (count, len(set(first)), first[0]) == (2, 2, os.getpid())
    assert first == second
    assert ours == theirs
    assert ours == pytest.approx(trained(), abs=1e-6)
    assert place() == (0, 1)
