"""A run that is killed and resumed ends as the run that was not, bit for bit, and pays its critic once."""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import small_run
from small_run import assert_same_run, untimed
from text2grad.config import run_directory
from text2grad.config.run_directory import READ_WHOLE_BYTES, digest_of
from text2grad.errors import CheckpointError, ConfigError, CriticError, DataError, Interrupted
from text2grad.files import lock_directory
from text2grad.rl import loop
from text2grad.rl.checkpoint import latest_checkpoint, save_checkpoint
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.types import Critique, Example
from warm_commands import Warm

SCRIPT = str(Path(small_run.__file__))


def test_a_run_killed_at_random_moments_ends_with_the_same_bits_and_asks_its_critic_once(
    warm: Warm, tmp_path: Path
) -> None:
    settings = ["run.steps=16", "run.save_every=3", 'model.value="trunk"']
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    warm.finish("python", SCRIPT, tmp_path / "calm" / "run", *settings)

    rng, kills, steps_at_kill = random.Random(7), 0, []
    killed = tmp_path / "killed" / "run"
    command = ["python", SCRIPT, killed, *settings]
    calls = tmp_path / "killed" / "calls.jsonl"
    hold = killed.with_name("hold")
    for _ in range(4):
        enough = _calls(calls) + rng.randint(1, 3)  # die somewhere in the step after some more critiques
        hold.write_text(str(enough + 1))  # it cannot end before the kill
        process = warm.start(*command)
        while process.poll() is None and _calls(calls) < enough:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.03)  # less than a step takes
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        steps_at_kill.append(_calls(calls))
    hold.unlink()
    warm.finish(*command)
    assert kills == 4, steps_at_kill
    assert_same_run(tmp_path / "calm" / "run", killed)
    assert not list((killed / "critiques").glob("*")), "critiques that a checkpoint covers are removed"
    asked = [line for line in calls.read_text().splitlines() if line]
    in_flight = len(asked) - len(set(asked))
    assert in_flight <= kills  # only what was being asked at the moment of a kill may be asked again
    assert set(asked) == set((tmp_path / "calm" / "calls.jsonl").read_text().splitlines())


def _calls(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(
    "model",
    [
        {"value": "none"},
        {"value": "model"},
        {"value": "adapter", "lora_r": 4},
        {"value": "trunk", "lora_r": 4, "gradient_checkpointing": True},
    ],
    ids=lambda m: "-".join(map(str, m.values())),
)
def test_two_and_two_steps_equal_four(tmp_path: Path, model: dict[str, object]) -> None:
    more = {"ppo": {"target_kl": 0.5, "epochs": 2, "minibatches": 2, "gamma": 0.5}}
    small_run.trainer(tmp_path / "whole", model=model, **more).train()
    first = small_run.trainer(tmp_path / "halves", model=model, **more)
    first.train_step(), first.train_step()
    first.save()
    small_run.trainer(tmp_path / "halves", model=model, resume=True, **more).train()
    assert_same_run(tmp_path / "whole", tmp_path / "halves")


def test_critiques_given_after_the_last_checkpoint_are_used_again(tmp_path: Path) -> None:
    calls = tmp_path / "calls.jsonl"
    first = small_run.trainer(tmp_path / "run", small_run.ColourCritic(calls), run={"save_every": 100})
    for _ in range(3):
        first.train_step()
    small_run.trainer(tmp_path / "run", small_run.ColourCritic(calls), resume=True).train()
    assert _calls(calls) == 4  # steps 0, 1, 2 were asked by the first process, step 3 by the second


def test_a_critic_that_raises_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    seen: list[object] = []

    class Failing(small_run.ColourCritic):
        def __call__(self, examples, responses):  # type: ignore[no-untyped-def]
            if len(seen) == 3:
                raise TimeoutError("no answer in 60 s")
            seen.append(responses)
            return super().__call__(examples, responses)

    with pytest.raises(CriticError) as caught:
        small_run.trainer(tmp_path / "run", Failing(), run={"save_every": 100}).train()
    log, here = tmp_path / "run" / "critic-errors.log", os.path.relpath(__file__)
    line = Failing.__call__.__code__.co_firstlineno + 2
    assert str(caught.value) == (
        f"critic Failing failed on 8 responses: TimeoutError at {here}:{line}: no answer in 60 s. The "
        f"traceback is in {log}. Every finished step is saved; mend the critic and go on with --resume."
    )
    text = log.read_text()
    assert " step 3\nTraceback (most recent call last):" in text
    assert f'File "{__file__}", line {line}' in text
    assert latest_checkpoint(tmp_path / "run" / "checkpoints") == tmp_path / "run" / "checkpoints" / "step-000003"
    small_run.trainer(tmp_path / "run", resume=True).train()
    small_run.trainer(tmp_path / "calm").train()
    assert_same_run(tmp_path / "calm", tmp_path / "run")


def test_a_critic_of_which_no_first_critique_can_be_read_stops_after_the_first_step_which_is_saved(
    tmp_path: Path,
) -> None:
    def unreadable(examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        return ['{"textual_feedback": "I would'] * len(responses)  # cut off

    with pytest.raises(CriticError, match=r"^100% of the last 8 critiques could not be read"):
        small_run.trainer(tmp_path / "run", unreadable).train()
    assert latest_checkpoint(tmp_path / "run" / "checkpoints") == tmp_path / "run" / "checkpoints" / "step-000001"


def test_a_critic_that_labels_nothing_is_warned_of_at_once_also_after_a_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def silent(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        return [Critique("Fine.")] * len(responses)

    with caplog.at_level("WARNING", logger="text2grad"):
        first = small_run.trainer(tmp_path / "run", silent, run={"save_every": 1})
        first.train_step(), first.train_step()
        first.save()
        assert [one[:46] for one in caplog.messages] == ["step 1: the critic labelled no token in the fi"]
        small_run.trainer(tmp_path / "run", silent, run={"save_every": 1}, resume=True).train_step()
    assert "step 3: the critic labelled no token in the first 3 steps" in caplog.messages[-1]


def test_a_full_disk_while_saving_is_explained_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    run = small_run.trainer(tmp_path / "run")
    run.train_step()
    run.save()
    run.train_step()
    before = {p: p.read_bytes() for p in (tmp_path / "run" / "checkpoints").rglob("*") if p.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # a write beyond it fails as on a full disk
    try:
        with pytest.raises(
            CheckpointError, match=r"cannot write checkpoint .*step-000002: .* Free some space and go on"
        ):
            run.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {p: p.read_bytes() for p in (tmp_path / "run" / "checkpoints").rglob("*") if p.is_file()} == before
    run.train()
    small_run.trainer(tmp_path / "calm").train()
    assert_same_run(tmp_path / "calm", tmp_path / "run")


def written(directory: Path) -> dict[Path, tuple[int, int]]:
    """Return the files of all checkpoints, each with what changes if it is written again."""
    files = [path for path in (directory / "checkpoints").rglob("*") if path.is_file()]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def test_a_critic_that_raises_after_a_resume_leaves_the_checkpoint_as_it_is(tmp_path: Path) -> None:
    def failing(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        random.random()  # a checkpoint that is written again would hold another state of it
        raise TimeoutError

    run = small_run.trainer(tmp_path / "run")
    run.train_step()
    run.save()
    before = written(tmp_path / "run")
    with pytest.raises(CriticError, match="Every finished step is saved"):
        small_run.trainer(tmp_path / "run", failing, resume=True).train()
    assert len(before) > 3
    assert written(tmp_path / "run") == before


def test_a_step_is_saved_again_only_where_the_sizes_of_its_pieces_changed(tmp_path: Path) -> None:
    run = small_run.trainer(tmp_path / "run")
    run.train_step()
    run.save()
    before = written(tmp_path / "run")
    run.save()
    assert written(tmp_path / "run") == before
    run.sizes.rows_at_once, run.sizes.changed = 3, True
    run.save()
    after = written(tmp_path / "run")
    assert after.keys() == before.keys()
    assert all(after[path] != before[path] for path in before)
    assert small_run.trainer(tmp_path / "run", resume=True).sizes.rows_at_once == 3
    run.save()
    assert written(tmp_path / "run") == after


def test_a_half_written_checkpoint_is_not_a_checkpoint(tmp_path: Path) -> None:
    small_run.trainer(tmp_path / "run").train()
    half = tmp_path / "run" / "checkpoints" / ".step-000009.tmp"
    half.mkdir()
    (half / "state.json").write_text("{")
    found = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert found.name == "step-000004"


def test_older_checkpoints_are_removed(tmp_path: Path) -> None:
    small_run.trainer(tmp_path / "run", run={"steps": 4, "save_every": 1, "keep_checkpoints": 2}).train()
    names = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-000003", "step-000004"]


def test_a_directory_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    small_run.trainer(tmp_path / "run").train()
    with pytest.raises(ConfigError) as caught:
        small_run.trainer(tmp_path / "run")
    assert str(caught.value) == (
        f"{tmp_path / 'run'} already holds a run. Go on with it by --resume, or choose another directory with "
        "--out DIR."
    )


def test_a_run_is_not_resumed_with_other_settings(tmp_path: Path) -> None:
    small_run.trainer(tmp_path / "run").train()
    with pytest.raises(CheckpointError) as caught:
        small_run.trainer(tmp_path / "run", resume=True, optim={"lr": 3e-3, "value_lr": 0.5})
    assert str(caught.value) == (
        f"{tmp_path / 'run'} holds a run of another recipe; these settings changed: optim.value_lr: 0.01 → 0.5. Resume "
        "with the settings it was started with, or choose another directory with --out DIR."
    )


def test_a_run_is_resumed_after_a_change_in_the_sections_of_earlier_commands(tmp_path: Path) -> None:
    small_run.trainer(tmp_path / "run").train()
    others = {"sft": {"lr": 0.5}, "annotate": {"model": "m"}, "reward_model": {"epochs": 2.0}}
    assert small_run.trainer(tmp_path / "run", resume=True, **others).step == 4


def test_a_run_is_resumed_on_another_server_of_its_critic_and_with_another_limit_of_failures(
    tmp_path: Path,
) -> None:
    small_run.trainer(tmp_path / "run").train()
    for section, key, value in (
        ("server", "base_url", "http://elsewhere:8000/v1"),
        ("server", "timeout_s", 5.0),
        ("critic", "max_failure_rate", 0.5),
    ):
        assert small_run.trainer(tmp_path / "run", resume=True, **{section: {key: value}}).step == 4
    with pytest.raises(CheckpointError, match=r"these settings changed: server\.max_tokens: 512 → 5\. Resume"):
        small_run.trainer(tmp_path / "run", resume=True, server={"max_tokens": 5})  # which decides critiques


def test_a_longer_run_goes_on_from_a_finished_one(tmp_path: Path) -> None:
    constant = {"optim": {"lr": 3e-3, "value_lr": 1e-2, "schedule": "constant"}}
    small_run.trainer(tmp_path / "run", run={"steps": 2}, **constant).train()
    small_run.trainer(tmp_path / "run", run={"steps": 4}, resume=True, **constant).train()
    small_run.trainer(tmp_path / "whole", run={"steps": 4}, **constant).train()
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_logs_written_after_the_checkpoint_are_cut_off_on_resume(tmp_path: Path) -> None:
    first = small_run.trainer(tmp_path / "run")
    first.log.rollout_file_bytes = 4_000  # several files, so that whole ones must go too
    for _ in range(3):
        first.train_step()
        if first.step == 1:
            first.save()
    assert len(list((tmp_path / "run" / "rollouts").glob("*"))) >= 3
    again = small_run.trainer(tmp_path / "run", resume=True)
    files = sorted((tmp_path / "run" / "rollouts").glob("*"))
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert (again.step, [r["step"] for r in records]) == (1, [0] * 8)
    assert [m["step"] for m in untimed(tmp_path / "run" / "metrics.jsonl")] == [0]


def test_a_run_killed_while_it_writes_its_only_checkpoint_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    calls, settings = tmp_path / "calls", {"run": {"steps": 3, "save_every": 3}}
    small_run.trainer(tmp_path / "calm", **settings).train()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", dies)
        with pytest.raises(KeyboardInterrupt):
            small_run.trainer(tmp_path / "killed", small_run.ColourCritic(calls), **settings).train()
    small_run.trainer(tmp_path / "killed", small_run.ColourCritic(calls), resume=True, **settings).train()
    assert "holds no checkpoint: its 3 steps are made again, with the critiques on disk" in caplog.text
    assert_same_run(tmp_path / "calm", tmp_path / "killed")
    assert len(calls.read_text().splitlines()) == 3
    shutil.rmtree(tmp_path / "killed" / "checkpoints")  # lost by something else
    with pytest.raises(CheckpointError, match=r"3 finished steps in metrics\.jsonl, and their checkpoints are gone"):
        small_run.trainer(tmp_path / "killed", resume=True, **settings)


def test_a_run_without_a_checkpoint_is_resumed_though_its_last_line_of_metrics_was_cut(tmp_path: Path) -> None:
    first = small_run.trainer(tmp_path / "run", run={"save_every": 100})
    for _ in range(3):
        first.train_step()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "reward/per_resp')  # as a kill leaves it; four whole lines would be a finished run
    again = small_run.trainer(tmp_path / "run", resume=True)
    assert again.step == 0
    again.train()
    small_run.trainer(tmp_path / "calm").train()
    assert_same_run(tmp_path / "calm", tmp_path / "run")


@pytest.mark.parametrize("name", ["trainable.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, name: str) -> None:
    small_run.trainer(tmp_path / "run").train()
    path = tmp_path / "run" / "checkpoints" / "step-000004"
    (path / name).write_bytes(b"{damaged")
    with pytest.raises(CheckpointError, match=f"cannot read checkpoint {path}: ") as caught:
        small_run.trainer(tmp_path / "run", resume=True)
    before = tmp_path / "run" / "checkpoints" / "step-000002"
    assert f". Remove it, and --resume goes on from checkpoint {before}; " in str(caught.value)
    shutil.rmtree(path)
    small_run.trainer(tmp_path / "run", resume=True).train()
    small_run.trainer(tmp_path / "calm").train()
    assert_same_run(tmp_path / "calm", tmp_path / "run")


@pytest.mark.parametrize("name", ["trainable.safetensors", "optimizer.safetensors"])
def test_a_checkpoint_whose_numbers_changed_is_not_resumed_and_one_without_digests_is(
    tmp_path: Path, name: str
) -> None:
    small_run.trainer(tmp_path / "run").train()
    path = tmp_path / "run" / "checkpoints" / "step-000004"
    state, data = json.loads((path / "state.json").read_bytes()), (path / name).read_bytes()
    half = len(data) // 2
    (path / name).write_bytes(data[:half] + bytes(len(data) - half))  # as a disk does that lost its cache
    with pytest.raises(CheckpointError) as caught:
        small_run.trainer(tmp_path / "run", resume=True)
    assert str(caught.value).startswith(
        f"cannot read checkpoint {path}: {name} is not what was written (its SHA-256 is another). Remove it, and "
    )
    (path / name).write_bytes(data)
    del state["sha256"]  # as a checkpoint of an earlier release
    (path / "state.json").write_text(json.dumps(state))
    assert small_run.trainer(tmp_path / "run", resume=True).step == 4


def test_a_state_without_a_part_is_a_damaged_checkpoint(tmp_path: Path) -> None:
    small_run.trainer(tmp_path / "run").train()
    path = tmp_path / "run" / "checkpoints" / "step-000004" / "state.json"
    path.write_text(json.dumps({"step": 4}))
    with pytest.raises(CheckpointError, match=f"cannot read checkpoint {path.parent}: state.json holds no 'beta'"):
        small_run.trainer(tmp_path / "run", resume=True)


@pytest.mark.parametrize("text", ["{damaged", "[]", "{}"])
def test_a_damaged_run_file_is_named(tmp_path: Path, text: str) -> None:
    small_run.trainer(tmp_path / "run").train_step()
    path = tmp_path / "run" / "run.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=f"^cannot read {path}: .* Restore it from a backup, or begin again in"):
        small_run.trainer(tmp_path / "run", resume=True)


@pytest.mark.parametrize("text", ["{damaged", "[1]", '[{"feedback": ""}]'])
def test_damaged_critiques_of_a_step_are_named(tmp_path: Path, text: str) -> None:
    small_run.trainer(tmp_path / "run").train_step()
    path = tmp_path / "run" / "critiques" / "000000-0.json"
    path.write_text(text)
    with pytest.raises(DataError, match=f"^cannot read {path}: .* Remove the file to ask the critic again$"):
        small_run.trainer(tmp_path / "run", resume=True).train_step()


# What decides a run must not change.


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_run_whose_schedule_needs_its_length_is_not_made_longer(tmp_path: Path, schedule: str) -> None:
    settings = {"lr": 3e-3, "value_lr": 1e-2, "schedule": schedule}
    small_run.trainer(tmp_path / "run", optim=settings).train_step()
    with pytest.raises(CheckpointError) as caught:
        small_run.trainer(tmp_path / "run", resume=True, optim=settings, run={"steps": 6})
    assert str(caught.value).startswith(
        f'{tmp_path / "run"} holds a run of run.steps = 4, now 6, and optim.schedule = "{schedule}" spreads the '
    )
    assert "Resume with --set run.steps=4; " in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda examples: examples[::-1],
        lambda examples: [*examples[:-1], Example("red bird", reference="no")],
        lambda examples: examples[:-1],
    ],
    ids=["order", "content", "number"],
)
def test_a_run_is_not_resumed_on_other_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[Example]], list[Example]]
) -> None:
    small_run.trainer(tmp_path / "run").train_step()
    monkeypatch.setattr(small_run, "EXAMPLES", change(small_run.EXAMPLES))
    with pytest.raises(CheckpointError, match=r"their contents changed: prompts \(SHA-256 \w{8}… → \w{8}…\)\. Restore"):
        small_run.trainer(tmp_path / "run", resume=True)


def test_files_and_models_that_settings_name_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.jsonl").write_text("one")
    policy = tmp_path / "policy"
    small_run.tokenizer_and_model()[1].save_pretrained(policy)
    named = {"model": {"path": str(policy)}, "refresh": {"replay_from": str(tmp_path / "old.jsonl")}}
    small_run.trainer(tmp_path / "run", **named).train_step()
    small_run.trainer(tmp_path / "run", resume=True, **named)
    (policy / "README.md").write_text("pages about a model do not change it")
    small_run.trainer(tmp_path / "run", resume=True, **named)

    weights = policy / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (tmp_path / "old.jsonl").unlink()
    with pytest.raises(CheckpointError) as caught:
        small_run.trainer(tmp_path / "run", resume=True, **named)
    assert re.search(r"changed: refresh\.replay_from \(.* → not found\); model\.path \(.*…\)\.", str(caught.value))


def test_large_files_are_compared_by_blocks_that_cover_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.truncate(READ_WHOLE_BYTES + 1)
    digest = digest_of(path)
    for place in (0, READ_WHOLE_BYTES):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        changed = digest_of(path)
        assert changed != digest
        digest = changed


def test_other_versions_are_told_in_one_line_and_a_run_of_an_older_version_has_nothing_to_compare(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small_run.trainer(tmp_path / "run").train_step()
    path = tmp_path / "run" / "run.json"
    written = json.loads(path.read_bytes())
    assert {"inputs", "python", "torch", "transformers", "text2grad"} <= written.keys()
    path.write_text(json.dumps({**written, "torch": "2.0.0", "threads": 99}))
    with caplog.at_level("WARNING", logger="text2grad"):
        small_run.trainer(tmp_path / "run", resume=True)
    (line,) = caplog.messages
    assert f"resumed with other versions (torch 2.0.0 → {torch.__version__}, threads 99 → 1)" in line
    caplog.clear()
    path.write_text(json.dumps({key: written[key] for key in ("recipe", "text2grad", "torch", "threads")}))
    with caplog.at_level("WARNING", logger="text2grad"):
        small_run.trainer(tmp_path / "run", resume=True)
    assert caplog.messages == []


# One run per directory.


def test_a_directory_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        small_run.trainer(tmp_path / "run", resume=True)
    assert str(caught.value) == (
        f"{tmp_path / 'run'} holds no run to resume; start it without --resume, or name its directory"
    )
    assert not (tmp_path / "run").exists()


def test_a_directory_in_which_a_kill_left_nothing_but_empty_folders_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_directory, "write_atomically", dies)
        with pytest.raises(KeyboardInterrupt):
            small_run.trainer(tmp_path / "run")
    small_run.trainer(tmp_path / "run")
    (tmp_path / "older" / "checkpoints").mkdir(parents=True)  # which versions before made first
    run_directory.check_directory(tmp_path / "older", resume=False)
    (tmp_path / "older" / "checkpoints" / "step-000002").mkdir()
    with pytest.raises(ConfigError, match=r"holds checkpoints, which a run would overwrite, but no run\.json"):
        run_directory.check_directory(tmp_path / "older", resume=False)


def test_a_second_process_cannot_run_in_the_same_directory_until_the_first_is_dead(warm: Warm, tmp_path: Path) -> None:
    small_run.trainer(tmp_path / "run").train_step()
    log = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with (tmp_path / "said").open("w") as file:
        assert warm.start("python", SCRIPT, tmp_path / "run", err=file).wait() == 1
    said = f"ConfigError: another run is writing to {tmp_path / 'run'} (process {os.getpid()}); wait until it ends"
    assert said in (tmp_path / "said").read_text()
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == log, "nothing was cut off"

    holder = (
        "import sys, time; from pathlib import Path; from text2grad.files import lock_directory; "
        "lock_directory(Path(sys.argv[1])); print(1, flush=True); time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", holder, str(tmp_path / "other")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(ConfigError, match=f"is writing to .* \\(process {process.pid}\\); wait"):
            lock_directory(tmp_path / "other")
        process.kill()
    (tmp_path / "other" / ".lock").write_text("1234567890123")
    lock_directory(tmp_path / "other")  # the lock ended with the process
    assert (tmp_path / "other" / ".lock").read_text() == str(os.getpid())


def test_a_directory_that_was_deleted_or_moved_is_locked_again(tmp_path: Path) -> None:
    lock_directory(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "kept")
    for name in ("kept", "run"):
        lock_directory(tmp_path / name)
        assert (tmp_path / name / ".lock").read_text() == str(os.getpid())
    shutil.rmtree(tmp_path / "run")
    lock_directory(tmp_path / "run")
    assert (tmp_path / "run" / ".lock").read_text() == str(os.getpid())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_step_under_way_which_is_saved(tmp_path: Path, number: signal.Signals) -> None:
    def interrupting(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        if run.step == 1:
            os.kill(os.getpid(), number)
        return small_run.ColourCritic()(examples, responses)

    before = signal.getsignal(number)
    run = small_run.trainer(tmp_path / "run", interrupting, run={"save_every": 3})
    with pytest.raises(Interrupted, match="stopped after step 2 of 4, which is saved") as caught:
        run.train()
    assert caught.value.signal == number
    assert signal.getsignal(number) == before
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000002"]
    small_run.trainer(tmp_path / "run", resume=True).train()
    small_run.trainer(tmp_path / "calm").train()
    assert_same_run(tmp_path / "run", tmp_path / "calm")


def test_a_signal_in_a_step_that_is_saved_anyway_writes_no_second_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupting(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        signal.raise_signal(signal.SIGTERM)
        return small_run.ColourCritic()(examples, responses)

    saved: list[int] = []

    def counted(run: Text2GradTrainer, step: int) -> None:
        saved.append(step)
        save_checkpoint(run, step)

    monkeypatch.setattr(loop, "save_checkpoint", counted)
    with pytest.raises(Interrupted, match="stopped after step 1 of 4, which is saved"):
        small_run.trainer(tmp_path / "run", interrupting, run={"save_every": 1}).train()
    assert saved == [1]


def test_a_second_ctrl_c_ends_the_run_at_once_and_its_finished_steps_are_not_lost(tmp_path: Path) -> None:
    def impatient(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        if run.step == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return small_run.ColourCritic()(examples, responses)

    run = small_run.trainer(tmp_path / "run", impatient)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    again = small_run.trainer(tmp_path / "run", resume=True)
    assert again.step == 2
    again.train()
    small_run.trainer(tmp_path / "calm").train()
    assert_same_run(tmp_path / "run", tmp_path / "calm")


def test_a_signal_between_the_last_step_and_the_end_ends_nothing(tmp_path: Path) -> None:
    def late(run: Text2GradTrainer) -> None:
        if run.step == 4:
            signal.raise_signal(signal.SIGTERM)

    small_run.trainer(tmp_path / "run").train(after_step=late)
    assert latest_checkpoint(tmp_path / "run" / "checkpoints") is not None


class Forgetful(small_run.ColourCritic):
    """Overlooks half of the responses at random, as a sampled judge does."""

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        return [self.judge(one) if random.random() < 0.5 else Critique("-") for one in responses]


@pytest.mark.parametrize("save_every", [1, 100])
def test_a_critic_that_draws_goes_on_with_its_draws_after_a_kill(tmp_path: Path, save_every: int) -> None:
    class Killed(BaseException):
        pass

    settings: dict[str, Any] = {"run": {"steps": 5, "save_every": save_every}}
    small_run.trainer(tmp_path / "calm", Forgetful(), **settings).train()
    begun = small_run.trainer(tmp_path / "killed", Forgetful(), **settings)
    begin = begun.optimizers.begin

    def dies(step: int) -> Any:
        if step == 2:  # its critiques are on disk
            raise Killed
        return begin(step)

    begun.optimizers.begin = dies  # type: ignore[method-assign]
    with pytest.raises(Killed):
        begun.train()
    assert len(list((tmp_path / "killed" / "critiques").glob("*"))) == (1 if save_every == 1 else 3)
    small_run.trainer(tmp_path / "killed", Forgetful(), resume=True, **settings).train()
    assert_same_run(tmp_path / "calm", tmp_path / "killed")


def test_all_go_on_with_the_first_random_states_of_another_number_of_processes(tmp_path: Path) -> None:
    small_run.trainer(tmp_path, Forgetful(), run={"steps": 2}).train()
    after = random.getstate()
    found = tmp_path / "checkpoints" / "step-000002"
    state = json.loads((found / "state.json").read_bytes())
    assert state.pop("random_of_others") == []
    other = {**state["random"], "python": list(random.Random(1).getstate())}
    (found / "state.json").write_text(json.dumps({**state, "random_of_others": [other, other]}))
    small_run.trainer(tmp_path, resume=True, run={"steps": 2})
    assert random.getstate() == after
