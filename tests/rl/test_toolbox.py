"""Tools and environments: schemas, errors as answers, time limits, what an environment says."""

import asyncio
import threading
from typing import Any

import pytest

import said
from text2grad.errors import ConfigError, CriticError, DataError
from text2grad.rl.toolbox import Toolbox, as_text, merged
from text2grad.types import Conversation, Critique, Example, Span, Turn

RESPONSE = Conversation(
    [Turn("user", "Go."), Turn("assistant", "up up", True), Turn("tool", "3"), Turn("assistant", "3, up", True)]
)


def say(tools: Toolbox, name: str, environment: Any = None, **arguments: Any) -> tuple[str, bool]:
    return tools.call(environment, {"name": name, "arguments": arguments}).answer()


class World:
    """Counts."""

    reward: Any = 0.5
    feedback: Any = None

    def reset(self, **row: Any) -> str | None:
        self.row, self.at = row, int(row.get("start", 0))
        return row.get("observation")

    def step(self, by: int) -> list[dict[str, str]]:
        """Go on.

        Args:
            by: How far.
        """
        self.at += by
        return [{"type": "text", "text": f"at {self.at}"}]

    async def wait(self) -> int:
        """Wait."""
        return self.at

    def _hidden(self) -> None:
        raise AssertionError

    def get_reward(self) -> Any:
        return self.reward

    async def get_feedback(self) -> Any:
        return self.feedback


def test_the_schemas_are_those_of_transformers() -> None:
    tools = Toolbox([said.look], World)
    assert [schema["function"]["name"] for schema in tools.schemas] == ["look", "step", "wait"]
    assert tools.schemas[0]["function"]["parameters"]["required"] == ["place"]


def test_a_tool_answers_with_its_result_or_its_error() -> None:
    def fails(place: str) -> str:
        """Fail.

        Args:
            place: Where.
        """
        raise {"value": ValueError("no such place"), "exit": SystemExit(3), "empty": KeyError()}[place]

    tools = Toolbox([said.look, fails], None)
    assert say(tools, "look", place="Rome") == ("Rome: sunny, 1.", False)
    assert say(tools, "look", where="Rome")[0].startswith("{'error': \"look() got an unexpected keyword")
    assert say(tools, "fails", place="value") == ("{'error': 'no such place'}", True)
    assert say(tools, "fails", place="exit") == ("{'error': 'SystemExit(3)'}", True)
    assert say(tools, "fails", place="empty") == ("{'error': 'KeyError'}", True)
    assert say(tools, "see") == ("{'error': \"there is no tool 'see'; tools: look, fails\"}", True)
    assert as_text([{"text": "a"}, {"text": "b"}]) == "ab"
    assert (as_text({"a": 1}), as_text([]), as_text(None)) == ("{'a': 1}", "[]", "None")


def test_tools_that_hang_are_cut_at_their_time_limit() -> None:
    freed = threading.Event()

    def hangs() -> None:
        """Hang."""
        freed.wait()

    async def sleeps() -> None:
        """Sleep."""
        await asyncio.Event().wait()

    hangs.time_limit_s = sleeps.time_limit_s = 0.01  # type: ignore[attr-defined]
    tools = Toolbox([hangs, sleeps], None)
    for name in ("hangs", "sleeps"):
        assert say(tools, name) == ("{'error': 'no answer within 0.01 seconds'}", True)
    freed.set()


def test_async_tools_run_at_the_same_time_in_one_loop_and_others_one_after_another() -> None:
    together, running, loops = asyncio.Barrier(2), list[str](), set[Any]()

    async def meets() -> str:
        """Meet."""
        loops.add(asyncio.get_running_loop())
        await together.wait()
        return "met"

    def alone() -> str:
        """Run alone."""
        running.append("begun")
        assert len(running) == 1
        running.clear()
        return "alone"

    tools = Toolbox([meets, alone], None)
    for name, text in (("meets", "met"), ("alone", "alone")):
        calls = [tools.call(None, {"name": name, "arguments": {}}) for _ in range(2)]
        assert [call.answer() for call in calls] == [(text, False)] * 2
    assert len(loops) == 1
    assert say(tools, "meets", more=1)[1]  # wrong arguments


def test_an_environment_begins_with_a_row_and_has_tools_and_a_state_of_its_own() -> None:
    tools = Toolbox([], World)
    example = Example("Go.", reference="up", meta={"start": "2", "observation": " Now.", "tools": [], "answer": 3})
    one, text = tools.begun(example)
    other, _ = tools.begun(example)
    assert text == " Now."
    assert one.row == {"start": "2", "observation": " Now.", "answer": 3, "prompt": "Go.", "reference": "up"}
    assert say(tools, "step", one, by=2) == ("at 4", False)
    assert say(tools, "wait", other) == ("2", False)
    assert tools.begun(Example("Go."))[1] == ""
    for name in ("reset", "get_reward", "get_feedback", "_hidden"):
        assert say(tools, name, one)[1]


def judged(**said_: Any) -> Critique:
    world = type("World", (World,), said_)()
    return Toolbox([], World).judged(world, Example("Go."), RESPONSE, "exact")


def test_reward_and_feedback_of_an_environment_are_a_critique() -> None:
    assert judged() == Critique("", outcome=0.5)
    assert judged(reward=None, feedback="Too long.") == Critique("Too long.")
    whole = judged(feedback=(1.0, '{"textual_feedback": "No.", "poor_spans": ["3, up"]}'))
    assert whole == Critique("No.", (Span(0, 5, "negative", turn=3),), outcome=1.5)  # in the policy's second turn
    world = type("World", (World,), {"feedback": "Too long."})()
    assert Toolbox.judged(world, Example("Go."), RESPONSE, "exact", with_reward=False) == Critique("Too long.")


def test_feedback_by_turn_names_the_turns_of_the_policy() -> None:
    critique = judged(feedback=[None, {"feedback": "Right.", "good_spans": ["3"]}])
    assert critique == Critique("Right.", (Span(0, 1, "positive", turn=3),), outcome=0.5)
    with pytest.raises(CriticError, match=r"environment World.get_feedback returned 1 for 2 turns of the policy"):
        judged(feedback=["One."])


def test_environments_that_break_their_contract_are_refused() -> None:
    with pytest.raises(CriticError, match=r"a text2grad\.Critique, a dict"):
        judged(reward=object())
    with pytest.raises(ConfigError, match="environment list has no method reset"):
        Toolbox([], list)
    with pytest.raises(ConfigError, match=r"the tool f has no schema: .*no docstring.*Give it types"):
        Toolbox([_undocumented()], None)
    with pytest.raises(DataError, match=r"environment World: reset failed: ValueError"):
        Toolbox([], World).begun(Example("Go.", meta={"start": "x"}))


def _undocumented() -> Any:
    def f() -> None: ...

    return f


def test_merged_critiques_keep_all_and_an_unreadable_one_stays_so() -> None:
    one = Critique("a", (Span(3, 4, "positive"),), None, "unparsable", ("q",))
    other = Critique("b", (Span(0, 1, "negative"),), 2.0, "ok", ("r",))
    spans = (Span(0, 1, "negative"), Span(3, 4, "positive"))
    assert merged(one, other) == Critique("a\n\nb", spans, 2.0, "unparsable", ("q", "r"))
    assert merged(other, one).status == "unparsable"
    assert merged(Critique(""), Critique("")).outcome is None
