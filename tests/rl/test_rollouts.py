"""Critiques that are asked for while the policy still works: equal results, order, errors, nothing asked twice."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import small_run
from text2grad.errors import CriticError
from text2grad.feedback import ask
from text2grad.models import sampling
from text2grad.rl.rollouts import EarlyCritiques
from text2grad.types import Critique, Example, Rollout


class Counting(small_run.ColourCritic):
    """The colour critic, which counts its calls and those that are under way at a time; so many wait for each other."""

    def __init__(self, overlap: int = 0, together: int = 1) -> None:
        super().__init__()
        self.overlap, self.batches = overlap, list[list[str]]()
        self.together = threading.Barrier(together, timeout=120)
        self.under_way = self.most = 0
        self.threads: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Any]:
        with self._lock:
            self.batches.append(list(responses))
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.threads.add(threading.current_thread().name)
        self.together.wait()
        found = super().__call__(examples, responses)
        with self._lock:
            self.under_way -= 1
        return list(found)


PARTS = {"rollout": {"batch_size": 8, "max_new_tokens": 6, "rows_at_once": 2}}


def test_a_run_is_the_same_whether_the_critic_is_asked_meanwhile_or_afterwards(tmp_path: Path) -> None:
    for name, overlap in (("after", 0), ("meanwhile", 3)):
        critic = Counting(overlap=overlap)
        small_run.trainer(tmp_path / name, critic, **PARTS).train()
        assert len(critic.batches[0]) == (2 if overlap else 8)
        assert all(thread.startswith("text2grad-critic") is bool(overlap) for thread in critic.threads)
    small_run.assert_same_run(tmp_path / "after", tmp_path / "meanwhile")


def test_a_run_is_resumed_with_another_number_of_parts(tmp_path: Path) -> None:
    constant = {**PARTS, "optim": {"lr": 3e-3, "value_lr": 1e-2, "schedule": "constant"}}
    small_run.trainer(tmp_path / "calm", Counting(), **constant).train()
    small_run.trainer(tmp_path / "run", Counting(), run={"steps": 2}, **constant).train()
    small_run.trainer(tmp_path / "run", Counting(overlap=2), resume=True, **constant).train()
    small_run.assert_same_run(tmp_path / "run", tmp_path / "calm")


def test_no_more_parts_than_asked_are_with_the_critic_and_the_order_is_that_of_the_responses() -> None:
    rollouts = [Rollout(Example("x"), (1,), (2,), f"red {number}", False) for number in range(12)]
    critic = Counting(together=3)
    with EarlyCritiques(critic, {"match": "exact"}, 3) as asked:
        for start in range(0, 12, 2):
            asked.add(rollouts[start : start + 2])
        found = asked.critiques()
    assert critic.most == 3
    assert found == ask(
        Counting(), [one.example for one in rollouts], [one.response for one in rollouts], match="exact"
    )


def test_a_step_that_is_sampled_again_forgets_its_parts() -> None:
    critic = Counting()
    with EarlyCritiques(critic, {"match": "exact"}, 1) as asked:
        asked.add([Rollout(Example("x"), (1,), (2,), "old", False)])
        asked.restart()
        asked.add([Rollout(Example("x"), (1,), (2,), "new", False)])
        assert len(asked.critiques()) == 1
    assert critic.batches[-1] == ["new"]


def test_a_lack_of_memory_amid_the_parts_repeats_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_run.trainer(tmp_path / "calm", Counting(), **PARTS).train_step()
    run = small_run.trainer(tmp_path / "run", Counting(overlap=2), **PARTS)
    decode, calls = sampling.decode, list[int]()

    def out_of_memory(model: Any, prompts: Sequence[Any], *args: Any, **given: Any) -> Any:
        calls.append(len(prompts))
        if len(calls) == 3:
            raise MemoryError
        return decode(model, prompts, *args, **given)

    monkeypatch.setattr(sampling, "decode", out_of_memory)
    run.train_step()
    assert calls == [2, 2, 2] + [1] * 8
    logs = [next((tmp_path / name / "rollouts").glob("*.jsonl")).read_text() for name in ("calm", "run")]
    judged = [[line.split('"critique"')[1].split('"ids"')[0] for line in log.splitlines()] for log in logs]
    assert judged[0] == judged[1]


def test_an_error_of_one_part_is_told_as_that_of_a_critic_and_can_be_resumed(tmp_path: Path) -> None:
    class Breaks(Counting):
        def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
            if len(self.batches) == 6:
                raise ValueError("no more")
            return super().__call__(examples, responses)

    with pytest.raises(CriticError, match=r"no more.*Every finished step is saved"):
        small_run.trainer(tmp_path / "run", Breaks(overlap=1), **PARTS).train()
    small_run.trainer(tmp_path / "run", Counting(overlap=1), resume=True, **PARTS).train()
    small_run.trainer(tmp_path / "calm", Counting(), **PARTS).train()
    small_run.assert_same_run(tmp_path / "run", tmp_path / "calm")


def test_critiques_of_a_killed_step_are_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run.trainer(tmp_path / "run", Counting(overlap=1), **PARTS)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run.optimizers, "begin", killed)
        with pytest.raises(KeyboardInterrupt):
            run.train_step()
    again = Counting(overlap=1)
    small_run.trainer(tmp_path / "run", again, resume=True, **PARTS).train_step()
    assert again.batches == []
