"""Rivals train on an accelerator, here a pretended one."""

from pathlib import Path

import pytest
import small_rival

from evidence import register
from pretended_device import pretended_device
from small_run import untimed

register()


@pytest.mark.parametrize("method", ["dpo", "sft_best", "ilf", "sdpo"])
def test_rivals_train(method: str, tmp_path: Path) -> None:
    with pretended_device():
        small_rival.trainer(tmp_path / "run", method, run={"steps": 2}, rival={"rounds": 1}).train()
    assert untimed(tmp_path / "run" / "metrics.jsonl")
