"""Responses of one or several turns: the policy samples a turn, tools answer its calls, the policy goes on.

The responses of a process take their turns together. Sampled ids stay as they are, the results of a turn's calls come
as the template's continuation (`models.continuation`), and the next turn is sampled from all that the policy saw.
Without tools each response ends after its first turn. What is sampled follows from seed, step, row, turn and token
alone. What vLLM samples, and what tools and environments say, is on disk before it is used, and a killed run asks for
it no second time; but an environment whose response was not complete is made anew, and its calls are made again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from text2grad.errors import DataError
from text2grad.feedback import critique_from_json, critique_to_json, kept_process
from text2grad.models import (
    OnPart,
    context_of,
    continuation,
    draws_apart,
    encode_prompts,
    make_rollouts,
    messages_of,
    plain_text,
    prompt_text,
    step_uniforms,
)
from text2grad.progress import note
from text2grad.rl.run_log import Journal
from text2grad.rl.start import PreparedRun
from text2grad.rl.tool_calls import read_turn
from text2grad.rl.toolbox import Toolbox, told
from text2grad.types import Conversation, Example, Given, Message, Rollout, Turn

Answer = Callable[[], tuple[str, bool]]
"""Waits for the text of a tool's answer, and whether it is an error."""


class Talk:
    """A response under way.

    Attributes:
        ids: all that the policy saw and sampled, and `seen` the same as text.
        calls: the calls of the last turn, and `unreadable` why one that it began cannot be read.
        ended: whether the response is complete.
    """

    def __init__(self, tokenizer: Any, example: Example, prompt: Sequence[int], room: int) -> None:
        """Take a prompt, its ids, and the most ids before the end of the last turn."""
        self.tokenizer, self.example, self.prompt, self.room = tokenizer, example, tuple(prompt), room
        self.ids, self.seen = list(prompt), prompt_text(tokenizer, example)
        self.turns, self.messages = [*map(_turn_of, messages_of(example))], list[Message]()
        self.sampled, self.logps, self.given = list[int](), list[float](), list[Given]()
        self.calls, self.unreadable = tuple[Mapping[str, Any], ...](), ""
        self.ended = self.truncated = False

    def say(self, ids: Sequence[int], logps: Sequence[float], eos_ids: Sequence[int]) -> None:
        """Take the ids of a turn."""
        said = read_turn(self.tokenizer, ids, self.seen, self.example.meta.get("tools") or ())
        self.turns.append(Turn("assistant", said.text, True, said.thought, said.calls))
        self.messages.append(said.message)
        self.ids += ids
        self.sampled += ids
        self.logps += logps
        self.seen += self.tokenizer.decode(list(ids), skip_special_tokens=False)
        self.truncated = not ids or ids[-1] not in eos_ids
        self.calls, self.unreadable = said.calls, said.unreadable
        self.ended = self.truncated or not (said.calls or said.unreadable)

    def hear(self, results: Sequence[str], reserve: int) -> tuple[int, str | None]:
        """Take the results of the last turn's calls; end the response if fewer than `reserve` ids were left.

        Returns:
            The number of results that were cut, and the whole chat as the template would render it, "" where it would
            not; None for both if there was no room.
        """
        calls = self.calls or [{"name": "tool"}]
        answers: list[Message] = [
            {"role": "tool", "name": call["name"], "content": plain_text(self.tokenizer, result)}
            for call, result in zip(calls, results, strict=True)
        ]
        room = self.room - len(self.ids) - reserve
        follows = continuation(self.tokenizer, self.example, calls, answers, self.ids[-1], room=room)
        if follows is None:
            self.ended = self.truncated = True
            return 0, None
        kept, text, ids = follows
        self.given.append(Given(len(self.sampled), ids))
        self.turns += map(_turn_of, kept)
        self.messages += kept
        self.ids += ids
        self.seen += text
        try:
            chat = replace(self.example, prompt=[*messages_of(self.example), *self.messages])
            rendered = prompt_text(self.tokenizer, chat)
        except DataError:
            rendered = ""
        return sum(map(dict.__ne__, kept, answers)), rendered

    def rollout(self) -> Rollout:
        """Return the response."""
        ids, logps, said = tuple(self.sampled), tuple(self.logps), Conversation(self.turns)
        return Rollout(self.example, self.prompt, ids, said, self.truncated, logps, tuple(self.given))


class Conversations:
    """The responses of one process to one batch.

    Attributes:
        turn: the number of the turn that is sampled.
        rows: the rows of the global batch that are to be sampled; likewise `prompts`, all that the policy saw, and
            `groups`, within which the beginnings of prompts are equal.
        rollouts: the responses that are complete, in order.
    """

    def __init__(
        self,
        run: PreparedRun,
        rows: range,
        examples: Sequence[Example],
        prompts: Sequence[tuple[int, ...]],
        *,
        seed: int,
        step: int = 0,
        journal: Journal | None = None,
    ) -> None:
        """Begin a response to each prompt.

        Raises:
            DataError: if an environment cannot begin.
        """
        self._run, self._tools, self._seed, self._step, self.turn = run, run.toolbox, seed, step, 0
        self._rows, self._journal, self.rollouts = rows, journal or Journal(), list[Rollout]()
        self._begun = dict(zip(rows, zip(examples, prompts, strict=True), strict=True))
        self._talks, self._environments = dict[int, Talk](), dict[int, Any]()
        run.said.clear()
        if self._tools is not None:
            self._tools.counts.clear()
            with kept_process("environments"):
                for row in rows:
                    self._begin(self._tools, row, *self._begun[row])
        self._next()

    def sample(
        self, sample_turn: Callable[[OnPart], None], tell: Callable[[Sequence[Rollout]], object] = len
    ) -> list[Rollout]:
        """Return the responses.

        Args:
            sample_turn: samples a turn for the `rows`; called again in smaller parts after a lack of memory.
            tell: called with responses, in their order, as soon as they are complete.
        """
        while self._goes_on():
            first = len(self.rollouts)

            def work(first: int = first) -> None:
                del self.rollouts[first:]
                self._drawn = dict(self._kept)
                sample_turn(lambda ids, logps: tell(self._take(ids, logps)))

            self._run.sizes.in_rows(len(self.rows), work)
            if self._tools is None:
                tell(self._complete())
                break
            with kept_process("tools and environments"):
                self._answer(self._tools)
            self.turn += 1
            tell(self._complete())
            self._next()
        return self.rollouts

    def uniforms(self, count: int) -> Tensor:
        """Return the uniform numbers of the turn for the `rows` of a global batch of `count`, [B, T]."""
        tokens = self._run.recipe.rollout.max_new_tokens
        numbers = step_uniforms(seed=self._seed, step=self._step, rows=count, tokens=tokens, turn=self.turn)
        return numbers[self.rows]

    def _next(self) -> None:
        """Find the responses that go on, and of these the ones whose next turn is not on disk."""
        self._going = [row for row in self._rows if not self._talks or not self._talks[row].ended]
        kept = {row: self._journal.kept.get(("sample", row, self.turn)) for row in self._going}
        self._kept: dict[int, Any] = {row: sample for row, sample in kept.items() if sample is not None}
        self.rows = [row for row in self._going if row not in self._kept]
        begun = [self._begun[row][1] for row in self.rows]
        talks = [self._talks[row] for row in self.rows] if self._talks else []
        self.prompts, self.groups = [tuple(talk.ids) for talk in talks] or begun, [talk.prompt for talk in talks]

    def _goes_on(self) -> bool:
        """Return whether a process has a response that goes on: all take their turns together."""
        accelerator, going = self._run.accelerator, float(bool(self._going))
        if self._tools is None or accelerator.num_processes == 1:
            return bool(going)
        return bool(accelerator.reduce(torch.tensor([going], device=accelerator.device), reduction="sum") > 0)

    def _take(self, responses: list[tuple[int, ...]], logps: list[tuple[float, ...]]) -> list[Rollout]:
        """Take what was sampled for the next rows; return the responses that are complete with it."""
        first = len(self._drawn) - len(self._kept)
        drawn = dict(zip(self.rows[first : first + len(responses)], zip(responses, logps, strict=True), strict=True))
        if self._tools is not None or self._run.vllm is not None:
            self._journal.keep({("sample", row, self.turn): sample for row, sample in drawn.items()})
        self._drawn |= drawn
        return [] if self._talks else self._complete()

    def _complete(self) -> list[Rollout]:
        """Return the responses that are complete since the last call, in their order."""
        waiting = self._rows[len(self.rollouts) :]
        if self._talks:
            part = [self._talks[row].rollout() for row in takewhile(lambda row: self._talks[row].ended, waiting)]
        else:
            rows = list(takewhile(self._drawn.__contains__, waiting))
            examples, prompts = zip(*(self._begun[row] for row in rows), strict=True) if rows else ((), ())
            ids, logps = zip(*(self._drawn[row] for row in rows), strict=True) if rows else ((), ())
            part = make_rollouts(self._run.tokenizer, examples, prompts, ids, self._run.eos_ids, logps) if rows else []
        self.rollouts += part
        return part

    def _begin(self, tools: Toolbox, row: int, example: Example, prompt: tuple[int, ...]) -> None:
        """Begin a response, with an environment unless it was complete when the run was killed."""
        run, settings = self._run, self._run.recipe.rollout
        room = min(len(prompt) + 2 * settings.max_turns * settings.max_new_tokens, context_of(run.model.policy))
        text = ""
        if tools.factory and ("said", row) not in self._journal.kept:
            with self._draws(row):
                self._environments[row], text = tools.begun(example)
        if text := plain_text(run.tokenizer, self._journal.once(("begun", row), lambda: text) if tools.factory else ""):
            messages = [dict(message) for message in messages_of(example)]
            last = next((each for each in reversed(messages) if each["role"] == "user"), messages[-1])
            last["content"] = f"{last.get('content') or ''}{text}"
            example = replace(example, prompt=messages)
            [prompt] = encode_prompts(run.tokenizer, [example], prompt_format=run.recipe.model.prompt_format)
            if len(prompt) + settings.max_new_tokens > room:
                raise DataError(
                    f"reset of the environment of row {row} returned {len(text)} characters, which leave no room for a "
                    "response: let it return less, or raise rollout.max_turns"
                )
        self._talks[row] = Talk(run.tokenizer, example, prompt, int(room))

    def _draws(self, row: int) -> Any:
        """Return the context in which tools and environments draw numbers for a response at this turn."""
        return draws_apart((((self._seed * 1_000_003 + self._step) * 1_000_003 + row) * 1_009 + self.turn) % 2**63)

    def _answer(self, tools: Toolbox) -> None:
        """Let tools answer the calls of the turn that was sampled, and environments judge what is complete."""
        run, counts, asked = self._run, tools.counts, dict[int, list[Answer]]()
        for row in self._going:
            talk = self._talks[row]
            talk.say(*self._drawn[row], run.eos_ids)
            counts.update(turns=1, calls=len(talk.calls), unreadable=int(bool(talk.unreadable)))
            if not talk.ended and self.turn + 1 >= run.recipe.rollout.max_turns:
                talk.ended = talk.truncated = True
            elif not talk.ended:
                with self._draws(row):
                    asked[row] = [self._asked(tools, row, number, call) for number, call in enumerate(talk.calls)]
        for row, answers in asked.items():
            talk, heard = self._talks[row], [answer() for answer in answers]
            results = [text for text, _ in heard] or [told(talk.unreadable)]
            cut, rendered = talk.hear(results, run.recipe.rollout.max_new_tokens)
            rewritten = rendered not in (None, talk.seen)
            counts.update(failed=sum(failed for _, failed in heard), cut=cut, no_room=int(rendered is None))
            counts.update(rewritten=int(rewritten))
            if rewritten and not tools.warned:
                tools.warned = True
                _warn(talk.seen, rendered or "")
        for row in self._going:
            if self._talks[row].ended and tools.factory:
                self._judge(tools, row)

    def _asked(self, tools: Toolbox, row: int, number: int, call: Mapping[str, Any]) -> Answer:
        """Call a tool, unless a killed run has its answer; return what waits for the answer, and keeps it."""
        key, environment = ("result", row, self.turn, number), self._environments.get(row)
        known = key in self._journal.kept and (environment is None or call["name"] in tools.tools)
        pending = None if known else tools.call(environment, call)

        def answer() -> tuple[str, bool]:
            text, failed = self._journal.once(key, pending.answer if pending else tuple)
            return text, failed

        if pending is not None and pending.future.done():
            answer()  # on disk before the next tool is called
        return answer

    def _judge(self, tools: Toolbox, row: int) -> None:
        """Ask the environment of a complete response for its reward and feedback."""
        talk, match = self._talks[row], self._run.recipe.critic.match
        response = Conversation(talk.turns)

        def said() -> Any:
            with self._draws(row):
                return critique_to_json(tools.judged(self._environments[row], talk.example, response, match))

        kept = self._journal.once(("said", row), said)
        self._run.said[row] = critique_from_json(kept, response, where="the journal of a step")


def _turn_of(message: Message) -> Turn:
    """Return a message that the policy did not write as a turn."""
    calls = tuple(call.get("function", call) for call in message.get("tool_calls") or ())
    thought, name = (str(message.get(key) or "") for key in ("reasoning_content", "name"))
    return Turn(str(message["role"]), str(message.get("content") or ""), False, thought, calls, name)


def _warn(seen: str, rendered: str) -> None:
    """Warn that a template rewrites what the policy saw, with the first place."""
    pairs = enumerate(zip(seen, rendered, strict=False))
    at = next((number for number, pair in pairs if len({*pair}) == 2), min(len(seen), len(rendered)))
    note(
        f"the chat template renders a conversation otherwise than the policy saw it: {seen[at:][:40]!r} became "
        f"{rendered[at:][:40]!r}. Training goes on with what was sampled; tools/rewritten counts such turns",
        warning=True,
    )
