"""The critic on demand: in a process of its own, its errors are shown, and nothing waits for a slow one."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from conversations import FAIR
from studio_world import session, write_run
from text2grad.errors import ConfigError, CriticError
from text2grad.feedback import item_of
from text2grad_studio.run_critic import RunCritic
from text2grad_studio.server import critics_of
from text2grad_studio.sources import open_sources
from text2grad_studio.suggestions import Suggestions

CRITIC = """
import os, time

from text2grad import Critique, Span


def critic(examples, responses):
    if "broken" in responses[0]:
        raise ValueError("no such word")
    if "slow" in responses[0]:
        time.sleep(600)
    if "ended" in responses[0]:
        os._exit(7)
    turns = [number for number, turn in enumerate(getattr(responses[0], "turns", ())) if turn.sampled]
    span = Span(0, 3, "negative", turns[-1] if turns else None)
    return [Critique(f"About {examples[0].prompt_text}", (span,)) for _ in responses]
"""


@pytest.fixture
def critic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_studio_critic.py").write_text(CRITIC)
    monkeypatch.chdir(tmp_path)
    return "my_studio_critic:critic"


def answered(suggestions: Suggestions, item: str) -> dict[str, Any]:
    while (state := suggestions.state(0, item))["state"] == "working":
        time.sleep(0.05)  # the timeout of the test ends a process that hangs
    return state


@pytest.mark.usefixtures("warm_workers")
def test_a_critic_answers_fails_hangs_and_ends_without_harm(tmp_path: Path, critic: str) -> None:
    made = session(tmp_path / "store", critics={0: {"critic": critic}})
    suggestions = made.suggestions
    try:
        item = made.own_text("Say.", "The cat")["item"]
        assert made.suggest(0, "Say.", "The cat")["state"] == "working"
        state = answered(suggestions, item)
        assert state["state"] == "done", state
        assert state["critique"]["feedback"] == "About Say."
        assert state["critique"]["spans"] == [{"start": 0, "end": 3, "label": "negative"}]
        assert made.suggest(0, "Say.", "The cat") == state  # kept
        made.suggest(0, "When?", FAIR)
        spans = answered(suggestions, item_of("When?", FAIR))["critique"]["spans"]
        assert spans == [{"start": 0, "end": 3, "label": "negative", "turn": 3}]
        suggestions.ask(0, "broken", "Say.", "a broken text")
        failed = answered(suggestions, "broken")
        assert failed["state"] == "failed"
        assert "no such word" in failed["error"]
        assert "my_studio_critic.py" in failed["error"]
        suggestions.ask(0, "ended", "Say.", "it ended")
        assert "the process ended with 7" in answered(suggestions, "ended")["error"]
        suggestions.ask(0, "behind", "Say.", "The dog")  # by a new process
        assert answered(suggestions, "behind")["state"] == "done"
        suggestions.ask(0, "slow", "Say.", "a slow text")
        suggestions.ask(0, "waits", "Say.", "A bird")
        while suggestions.state(0, "slow").get("progress") != "the critic reads":
            time.sleep(0.05)
        suggestions.stop(0, "slow")
        assert suggestions.state(0, "slow") == {"state": "none"}
        assert answered(suggestions, "waits")["state"] == "done"  # another tab's
        suggestions.ask(0, "slow", "Say.", "a slow text")
        suggestions.ask(0, "last", "Say.", "A bird again")
        suggestions.stop()
        assert suggestions.state(0, "slow") == suggestions.state(0, "last") == {"state": "none"}
    finally:
        suggestions.stop()


class PretendedProcess:
    """Takes requests; each is answered by the test."""

    def __init__(self) -> None:
        self.requests: list[int] = []

    def send(self, request: dict[str, Any]) -> None:
        self.requests.append(request["number"])

    def stop(self) -> None:
        self.requests.append(0)


def test_the_end_of_a_question_ends_no_question_of_another_tab() -> None:
    suggestions = Suggestions({0: {"critic": "x"}})
    process = suggestions._process = PretendedProcess()  # type: ignore[assignment]
    for item in ("first", "second", "third", "fourth"):
        assert suggestions.ask(0, item, "Say.", item)["state"] == "working"
    assert process.requests == [1]  # the others wait in the server
    suggestions.stop(0, "third")
    suggestions.stop(0, "nobody asked")
    assert process.requests == [1]  # and the critic reads on
    suggestions.stop(0, "first")
    assert process.requests == [1, 0, 2]
    suggestions._hear({"number": 1, "state": "done", "result": {}})  # nobody waits for it
    suggestions._ended("the process ended with 7: ")
    assert suggestions.state(0, "second") == {"state": "failed", "error": "the process ended with 7: "}
    assert process.requests == [1, 0, 2, 4]
    suggestions._hear({"number": 4, "state": "done", "result": {"spans": []}})
    states = [suggestions.state(0, item)["state"] for item in ("first", "second", "third", "fourth")]
    assert states == ["none", "failed", "none", "done"]
    suggestions.ask(0, "third", "Say.", "third")
    assert process.requests == [1, 0, 2, 4, 5]


def test_sources_without_a_critic_say_the_way_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (tmp_path / "a.jsonl").write_text('{"prompt": "x", "response": "y"}\n')
    (run / "run.json").write_text(json.dumps({"recipe": {}}))
    sources = open_sources([tmp_path / "a.jsonl", run], tmp_path / "store")
    assert critics_of(sources, None, tmp_path) == {1: {"run": str(run), "store": str(tmp_path)}}
    assert critics_of(sources, "a:b", tmp_path) == {0: {"critic": "a:b"}, 1: {"critic": "a:b"}}
    assert critics_of([], "a:b", tmp_path) == {0: {"critic": "a:b"}}
    with pytest.raises(ConfigError, match="--critic MODULE:NAME or --critic DIRECTORY"):
        Suggestions({}).ask(0, "i", "x", "y")
    with pytest.raises(ConfigError, match="names no critic"):
        RunCritic({"run": str(run), "store": str(tmp_path)})


def test_the_critic_of_a_task_knows_the_items_of_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    recipe = {"data": {"task": "summarization", "eval_examples": 5}, "quickstart": {"examples": 20}}
    (run / "run.json").write_text(json.dumps({"recipe": recipe}))
    critic = RunCritic({"run": str(run), "store": str(tmp_path)})
    assert len(critic.items) >= 20
    prompt, example = next(iter(critic.items.items()))
    assert example.meta
    assert critic.judge(prompt, " It is in Lyon .")["feedback"]
    with pytest.raises(CriticError, match="judges prompts of the task alone, and this prompt is none of the run's"):
        critic.judge("Where is the fair?", "In Lyon.")
