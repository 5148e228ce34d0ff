"""Plain data parallelism within a run that accelerate was asked to shard, as on GPUs, where its state is FSDP."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from transformers import TrainingArguments

from evidence.baselines.trainers import plain_data_parallelism


@pytest.fixture
def sharded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Accelerator]:
    """A run's view of the processes where accelerate's configuration asks for FSDP on GPUs."""
    run = Accelerator(cpu=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    run.state.distributed_type, run.state.fsdp_plugin = DistributedType.FSDP, "plugin"  # type: ignore[assignment]
    yield run
    AcceleratorState._reset_state(reset_partial_state=True)


def test_a_trainer_of_a_sharded_run_holds_whole_weights(sharded: Accelerator, tmp_path: Path) -> None:
    before = dict(AcceleratorState._shared_state)
    with plain_data_parallelism():
        TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")  # resets accelerate's state
        inner = Accelerator(cpu=True)
        assert inner.distributed_type == DistributedType.NO
        assert inner.mixed_precision == "no"
        assert getattr(inner.state, "fsdp_plugin", None) is None
    assert dict(AcceleratorState._shared_state) == before
    assert sharded.distributed_type == DistributedType.FSDP
    assert sharded.state.fsdp_plugin == "plugin"
    assert (os.environ["ACCELERATE_USE_FSDP"], os.environ["ACCELERATE_MIXED_PRECISION"]) == ("true", "bf16")


def test_the_state_of_a_sharded_run_is_back_after_an_error(sharded: Accelerator) -> None:
    with pytest.raises(ValueError, match="refused"), plain_data_parallelism():
        raise ValueError("refused")
    assert sharded.distributed_type == DistributedType.FSDP
    assert os.environ["ACCELERATE_USE_FSDP"] == "true"


def test_a_run_without_shards_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with plain_data_parallelism():
        assert os.environ["ACCELERATE_MIXED_PRECISION"] == "bf16"
