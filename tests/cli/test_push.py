"""`--push`: what a command made goes to the hub at its end, and what would be refused there is refused at its start."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from text2grad.cli.__main__ import main
from text2grad.errors import RequestError
from text2grad.feedback import Annotation, write_annotations
from text2grad.types import Critique, Span

RECIPE = '[model]\npath = "org/base"\nlora_r = 4\n[data]\ntask = "summarization"\n[run]\nout = "mine"\n'


@pytest.fixture
def acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was done, in order, in a directory with a recipe and annotations."""
    done = list[Any]()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(RECIPE)
    write_annotations(
        tmp_path / "marks.jsonl", [Annotation("p", "one cat", Critique("No.", (Span(0, 3, "negative"),)))]
    )
    pushed: Any = lambda path, name: (done.append(("pushed", str(path), name)), f"{name}@1")[1]  # noqa: E731
    monkeypatch.setattr("text2grad.runs.push_to_hub", pushed, raising=False)
    monkeypatch.setattr("text2grad.runs.check_push", lambda *given: done.append(("checked", *given)), raising=False)
    return done


def test_a_trained_policy_is_pushed(
    acts: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("text2grad.runs.run_recipe", lambda *_, **__: acts.append("trained"), raising=False)
    monkeypatch.setattr("text2grad.cli.train.finish", lambda *_: 3)
    assert main(["train", "my.toml", "--push", "me/mine"]) == 3, "the status of the run"
    assert acts == [("checked", "me/mine", "org/base"), "trained", ("pushed", "mine", "me/mine")]
    assert "me/mine@1" in capsys.readouterr().out
    acts.clear()
    assert main(["train", "my.toml"]) == 3
    assert acts == ["trained"]


def test_a_trained_reward_model_is_pushed(acts: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counter(learned=1, held_out=1)
    results = {"measured": {"f1": 0.5}, "best_step": 1, "steps": 1, "seconds": 1.0}
    made = SimpleNamespace(directory=Path("critic"), counts=counts, is_main=True, results=lambda: results)
    made.run = lambda: acts.append("trained") or Path("critic/model")
    monkeypatch.setattr("text2grad.reward_models.training.RewardRun", lambda *_, **__: made, raising=False)
    assert main(["reward", "my.toml", "--annotations", "marks.jsonl", "--push", "me/critic"]) == 0
    assert acts == [("checked", "me/critic", "org/base"), "trained", ("pushed", "critic", "me/critic")]


def test_annotations_are_pushed_with_their_card(acts: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["feedback", "export", "marks.jsonl", "--out", "data", "--push", "me/marks"]) == 0
    assert acts == [("pushed", "data", "me/marks")]
    assert "hf upload" not in capsys.readouterr().out


def test_a_push_that_would_be_refused_ends_the_command_before_its_work(
    acts: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: Any) -> None:
        raise RequestError("rejected", "cannot push to me/mine: no token")

    monkeypatch.setattr("text2grad.runs.check_push", refused, raising=False)
    monkeypatch.setattr("text2grad.runs.run_recipe", lambda *_, **__: acts.append("trained"), raising=False)
    assert main(["train", "my.toml", "--push", "me/mine"]) == 2
    assert "cannot push to me/mine: no token" in capsys.readouterr().err
    assert acts == []
