"""A completion of TRL with tools or environments → the trajectory that critics see, as `Text2GradTrainer` has it.

TRL joins all ids behind the prompt, with a mask that is 1 on the policy's and 0 on those of tools, environments and the
chat template's marks around them. Here the former are the response, turn by turn, and the latter are `Given`.
"""

from collections.abc import Container, Sequence
from inspect import ismethod
from itertools import groupby
from operator import itemgetter
from typing import Any

from text2grad.models import messages_of
from text2grad.rl import read_turn, turn_of
from text2grad.types import Conversation, Example, Given, Rollout, Turn


def trajectory(
    tokenizer: Any,
    example: Example,
    prompt_ids: Sequence[int],
    ids: Sequence[int],
    own: Sequence[int],
    completion: Any,
    *,
    ends: Container[int],
) -> Rollout:
    """Return a completion as a rollout, whose response is a `Conversation`.

    Args:
        tokenizer: the policy's tokenizer.
        example: the row; its prompt has what an environment added, and "tools" of its meta the schemas of the tools.
        prompt_ids: ids of the prompt, without padding.
        ids: all ids behind the prompt, without padding.
        own: 1 on those that the policy sampled, else 0.
        completion: what TRL makes of them: messages, of which the results of tools are turns, or a text.
        ends: the ids that end a turn. A response is truncated if none of them ends it, or its last call has no answer.
    """
    turns, seen = [*map(turn_of, messages_of(example))], tokenizer.decode(list(prompt_ids))
    sampled, given, messages = list[int](), list[Given](), completion if isinstance(completion, list) else []
    answers = [list(run) for role, run in groupby(messages, key=itemgetter("role")) if role == "tool"]
    for written, run in groupby(zip(own, ids, strict=True), key=itemgetter(0)):
        part = [token for _, token in run]
        if written:
            turns.append(read_turn(tokenizer, part, seen, example.meta["tools"])[0])
            sampled += part
        else:
            given.append(Given(len(sampled), tuple(part)))
            text = tokenizer.decode(part, skip_special_tokens=True)  # of what a `rollout_func` of TRL writes
            turns += [turn_of(told) for told in answers.pop(0)] if answers else [Turn("environment", text)]
        seen += tokenizer.decode(part)
    waits = bool(messages and messages[-1].get("tool_calls"))
    truncated = waits or not own[-1] or ids[-1] not in ends
    prompt, response = tuple(prompt_ids), Conversation(turns)
    return Rollout(example, prompt, tuple(sampled), response, truncated, given=tuple(given))


def is_feedback(tool: Any) -> bool:
    """Return whether what TRL takes for a tool is the method of an environment that judges a response."""
    return ismethod(tool) and tool.__name__ == "get_feedback"
