"""Out of memory: a run in halved pieces equals a run in small pieces, by weights; what does not fit ends it well."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import small_run
from text2grad.errors import OutOfMemory, TrainingError, is_out_of_memory
from text2grad.rl.piece_sizes import PieceSizes
from text2grad.rl.trainer import Text2GradTrainer
from tiny_models import batch_of

NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
)
PLAIN = {"rollout": {"batch_size": 8, "max_new_tokens": 6, "eos_token_ids": [3]}}


def limited(trainer: Text2GradTrainer, *, tokens: float = float("inf"), rows: float = float("inf")) -> list[int]:
    """Let the trunk raise the error of torch above some tokens without a cache, or some rows with one."""
    seen: list[int] = []

    def before(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"]
        seen.append(ids.numel())
        if (ids.numel() > tokens) if not kwargs.get("use_cache") else (len(ids) > rows):
            raise RuntimeError(NO_MEMORY)

    trunk = trainer.model.policy.get_decoder()
    trunk.register_forward_pre_hook(before, with_kwargs=True)
    return seen


def test_halved_micro_batches_and_rows_give_the_weights_of_a_run_that_began_with_them(tmp_path: Path) -> None:
    # 8 rows of 2 + 6 tokens are 64: 64 > 20 → 32 > 20 → 16 tokens; 8 rows > 3 → 4 → 2 rows
    halved = small_run.trainer(tmp_path / "halved", **PLAIN)
    limited(halved, tokens=20, rows=3)
    halved.train()
    assert halved.sizes.state()["used"] == {"micro_batch_tokens": 16, "rows_at_once": 2}
    small = {**PLAIN, "ppo": {"micro_batch_tokens": 16}, "rollout": {**PLAIN["rollout"], "rows_at_once": 2}}
    small_run.trainer(tmp_path / "small", **small).train()
    small_run.assert_same_run(tmp_path / "halved", tmp_path / "small")
    whole = small_run.trainer(tmp_path / "whole", **PLAIN)
    whole.train()
    for name, weight in small_run.weights(tmp_path / "whole").items():
        torch.testing.assert_close(weight, small_run.weights(tmp_path / "halved")[name], rtol=1e-3, atol=1e-5)


def test_a_minibatch_that_runs_out_midway_begins_anew_without_its_first_gradients(tmp_path: Path) -> None:
    """Scoring fits; the second micro-batch of the first update does not, when the first has left its gradient."""
    settings = {**PLAIN, "ppo": {"micro_batch_tokens": 32, "minibatches": 1, "epochs": 1}, "run": {"steps": 1}}
    runs = [small_run.trainer(tmp_path / name, **settings) for name in ("redone", "smooth")]
    updates = 0

    def before(module: Any, *_: Any) -> None:
        nonlocal updates
        updates += torch.is_grad_enabled()
        if updates == 2 and torch.is_grad_enabled():
            assert any(p.grad is not None for p in runs[0].model.parameters())
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    runs[0].model.policy.get_decoder().register_forward_pre_hook(before)
    for run in runs:
        run.train()
    assert updates == 2 + 4  # two of 32 tokens, then four of 16
    assert runs[0].sizes.micro_batch_tokens == 16
    first, other = (small_run.weights(tmp_path / name) for name in ("redone", "smooth"))
    for name, weight in first.items():
        torch.testing.assert_close(weight, other[name], rtol=1e-4, atol=1e-6)


def test_the_halved_sizes_are_saved_at_once_and_taken_by_the_resumed_run(tmp_path: Path) -> None:
    settings = {**PLAIN, "run": {"steps": 4, "save_every": 4}}
    straight = small_run.trainer(tmp_path / "straight", **settings)
    limited(straight, tokens=20, rows=3)
    straight.train()

    def stop(trainer: Text2GradTrainer) -> None:
        if trainer.step == 2:
            raise KeyboardInterrupt

    killed = small_run.trainer(tmp_path / "killed", **settings)
    limited(killed, tokens=20, rows=3)
    with pytest.raises(KeyboardInterrupt):
        killed.train(stop)
    assert [p.name for p in (tmp_path / "killed/checkpoints").glob("step-*")] == ["step-000001"]
    resumed = small_run.trainer(tmp_path / "killed", resume=True, **settings)
    assert (resumed.sizes.micro_batch_tokens, resumed.sizes.rows_at_once) == (16, 2)
    resumed.train()
    small_run.assert_same_run(tmp_path / "straight", tmp_path / "killed")


def test_a_recipe_that_asks_for_another_size_is_obeyed_on_resume() -> None:
    sizes = PieceSizes(micro_batch_tokens=100, rows_at_once=10)
    sizes.restore(
        {"asked": {"micro_batch_tokens": 64, "rows_at_once": 10}, "used": dict.fromkeys(sizes.state()["used"], 5)}
    )
    assert (sizes.micro_batch_tokens, sizes.rows_at_once) == (100, 5)


@pytest.mark.parametrize(
    ("limits", "phase", "setting"),
    [
        ({"rows": 0}, "rollout", "rollout.rows_at_once (now 1)"),
        ({"tokens": 7}, "score", "ppo.micro_batch_tokens (now 8)"),
    ],
)
def test_a_row_that_does_not_fit_ends_the_run_with_the_last_step_saved(
    tmp_path: Path, limits: dict[str, int], phase: str, setting: str
) -> None:
    trainer = small_run.trainer(tmp_path / "run", **{**PLAIN, "run": {"save_every": 100}})

    def after_step(one: Text2GradTrainer) -> None:
        if one.step == 3:
            limited(one, **limits)

    with pytest.raises(OutOfMemory) as caught:
        trainer.train(after_step)
    assert f"out of memory in the {phase} of step 3." in str(caught.value)
    assert "step-000003 is kept: go on with --resume" in str(caught.value)
    assert setting in str(caught.value)
    resumed = small_run.trainer(tmp_path / "run", resume=True, **PLAIN)
    assert resumed.step == 3
    assert resumed.sizes.state()["used"] == trainer.sizes.state()["used"]


def test_weights_that_a_step_has_changed_are_not_saved_as_the_step_before(tmp_path: Path) -> None:
    trainer = small_run.trainer(tmp_path / "run", **PLAIN)
    step = trainer.optimizers.by_name["policy"].step

    def second_fails() -> None:
        if trainer.optimizers.stepped == 2:
            raise MemoryError
        step()

    trainer.optimizers.by_name["policy"].step = second_fails  # type: ignore[method-assign]
    with pytest.raises(OutOfMemory, match=r"in the update of step 0\. No step was finished\. .*gradient_checkpointing"):
        trainer.train()
    assert not list((tmp_path / "run/checkpoints").glob("step-*"))


def test_several_processes_do_not_halve(tmp_path: Path) -> None:
    sizes, calls = PieceSizes(micro_batch_tokens=16, may_halve=False), []

    def work() -> None:
        calls.append(1)
        raise RuntimeError(NO_MEMORY)

    with (
        pytest.raises(OutOfMemory, match="with several processes the sizes are not halved"),
        sizes.explained("update", 3, saved=lambda: ""),
    ):
        sizes.in_micro_batches(batch_of(), work)
    assert len(calls) == 1


def test_another_error_of_the_update_is_not_taken_for_a_lack_of_memory(tmp_path: Path) -> None:
    trainer = small_run.trainer(tmp_path / "run", **PLAIN)

    def broken(*_: Any) -> None:
        if torch.is_grad_enabled():
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    trainer.model.policy.get_decoder().register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        trainer.train()
    assert not isinstance(caught.value, TrainingError)
    assert trainer.sizes.state()["used"] == trainer.sizes.state()["asked"]


def test_errors_of_memory_are_known_by_type_or_words() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(RuntimeError(NO_MEMORY))
    assert not is_out_of_memory(RuntimeError("shapes"))
    assert not is_out_of_memory(ValueError("out of memory"))

    class Silent(RuntimeError):
        def __str__(self) -> str:
            raise ValueError

    assert not is_out_of_memory(Silent())


def test_the_command_line_ends_with_one_line_and_exit_code_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from text2grad.cli.__main__ import main

    tokenizer, model = small_run.tokenizer_and_model()
    model.save_pretrained(tmp_path / "policy")
    tokenizer.save_pretrained(tmp_path / "policy")
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": e.prompt}) + "\n" for e in small_run.EXAMPLES)
    )
    (tmp_path / "my.toml").write_text(
        "[data]\ntrain = 'prompts.jsonl'\n[rollout]\nmax_new_tokens = 6\n[run]\nout = 'run'\ntracker = 'none'\n"
    )
    (tmp_path / "greedy.py").write_text("def critic(examples, responses):\n    return []\n")
    monkeypatch.chdir(tmp_path)

    def sample(*_: Any, **__: Any) -> None:
        raise RuntimeError(NO_MEMORY)

    monkeypatch.setattr("text2grad.rl.conversations.sample", sample)
    assert main(["train", "my.toml", "--model", "policy", "--critic", "greedy:critic"]) == 1
    said = capsys.readouterr().err
    assert "OutOfMemory: out of memory in the rollout of step 0." in said
    assert "Traceback" not in said
