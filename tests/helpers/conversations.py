"""A conversation with a tool, and strategies of any others."""

from hypothesis import strategies as st

from text2grad.types import Conversation, Turn

ASKED = Turn("user", "When is the fair in Lyon?")
CALLED = Turn("assistant", "Look up Lyon.", sampled=True)
RESULT = Turn("tool", "Lyon: Friday", name="look")
ANSWER = Turn("assistant", "In Lyon on Monday, on Monday.", sampled=True)
FAIR = Conversation([ASKED, CALLED, RESULT, ANSWER])
"""Turns 1 and 3 are the policy's; "Lyon" stands in all of them, "Monday" twice in turn 3, "Friday" in turn 2."""

WORDS = st.sampled_from(
    ["a", "cat", "The cat", "é", "😀", " ", "\n", '"', "turn 1: ", "<think>", "</think>", "</turn-1-tool>"]
)
TEXTS = st.lists(WORDS, max_size=6).map("".join)
TURNS = st.builds(Turn, st.sampled_from(["user", "assistant", "tool"]), TEXTS, st.booleans())
CONVERSATIONS = st.lists(TURNS, max_size=5).map(Conversation)
