"""Responses of one or several turns: the policy samples a turn, tools answer its calls, the policy goes on.

The responses of a process take their turns together. Sampled ids stay as they are, results of calls come as the
template's continuation, and the next turn is sampled from all that the policy saw. It reads what is new alone: keys and
values of the rest stay from turn to turn, for at most `rollout.rows_at_once` responses. Without tools each response
ends after its first turn. What is sampled follows from seed, step, row, turn and token alone. What cannot be computed
again, by vLLM, tools and environments, is on disk before it is used; but an environment whose response was not complete
in a killed run is made anew, and its calls are made again.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

import torch

from text2grad.errors import DataError
from text2grad.feedback import critique_from_json, critique_to_json, kept_process
from text2grad.models import (
    CUT,
    Caches,
    context_of,
    continue_chat,
    draws_apart,
    encode_prompts,
    make_rollouts,
    messages_of,
    prompt_text,
    sample,
    step_uniforms,
    told_more,
)
from text2grad.progress import note
from text2grad.rl.run_log import Journal
from text2grad.rl.start import PreparedRun
from text2grad.rl.tool_calls import read_turn
from text2grad.rl.toolbox import Toolbox, as_text, told
from text2grad.types import Conversation, Example, Given, Message, Rollout, Turn

Prompt = tuple[Example, tuple[int, ...]]
Tell = Callable[[Sequence[Rollout]], object]


class Conversations:
    """The responses of one process to one batch."""

    def __init__(self, run: PreparedRun, rows: range, prompts: Sequence[Prompt], *, of: int, seed: int, step: int = -1):
        """Begin a response to each prompt.

        Args:
            run: the policy, its settings, tools and files.
            rows: of this process in the batch, whose random numbers they decide.
            prompts: an example and the ids of its prompt for each row.
            of: rows of the batch in all processes.
            seed: of the random numbers.
            step: of a training; without it the policy itself samples, and nothing is kept.
        """
        rank, training = run.accelerator.process_index, step >= 0
        self._run, self._rows, self._of, self._turn = run, rows, of, 0
        self._prompts, self._rollouts = dict(zip(rows, prompts, strict=True)), list[Rollout]()
        self._seeds, self._vllm = {"seed": seed, "step": max(step, 0)}, run.vllm if training else None
        self._journal = run.log.journal(step, rank) if training else Journal()
        self._done, self._going = dict[int, Rollout](), {row: ids for row, (_, ids) in self._prompts.items()}
        self._caches = None if run.toolbox is None else Caches()
        run.said.clear()
        if run.toolbox is not None:
            run.toolbox.counts.clear()
            drawn = (seed * 1_000_003 + max(step, 0)) * 1_000_003
            talks = {row: _Talk(run, run.toolbox, self._journal, row, drawn + row) for row in rows}
            with kept_process("environments"):
                self._talks = {row: talk.go(*self._prompts[row]) for row, talk in talks.items()}
                self._going = {row: next(talk) for row, talk in self._talks.items()}

    def sample(self, tell: Tell = len, restart: Callable[[], object] = int) -> list[Rollout]:
        """Return the responses; `tell` gets them, in order, as soon as they are complete.

        `restart` is called before the first turn is sampled, and sampled again after a lack of memory.
        """
        run, self._tell = self._run, tell
        while self._goes_on():
            keys = {row: ("sample", row, self._turn) for row in self._going}
            kept = {row: self._journal.kept[key] for row, key in keys.items() if key in self._journal.kept}
            run.sizes.in_rows(len(keys) - len(kept), partial(self._sample_turn, kept, restart))
            if run.toolbox is None:
                break
            with kept_process("tools and environments"):
                asked = {row: self._send(row, self._drawn[row]) for row in keys}
                for row in [*self._going]:
                    self._going[row] = self._send(row, [answer() for answer in asked[row]])
            self._going = {row: ids for row, ids in self._going.items() if row not in self._done}
            self._turn += 1
            self._complete()
        return self._rollouts

    def _goes_on(self) -> bool:
        """Return whether a process has a response that goes on: all take their turns together."""
        accelerator, going = self._run.accelerator, float(bool(self._going))
        if self._run.toolbox is None or accelerator.num_processes == 1:
            return bool(going)
        return bool(accelerator.reduce(torch.tensor([going], device=accelerator.device), reduction="sum") > 0)

    def _sample_turn(self, kept: Mapping[int, Any], restart: Callable[[], object]) -> None:
        """Sample a turn of all responses that go on, but for those that are kept."""
        run, self._drawn = self._run, dict(kept)
        if not self._turn:
            restart()
            self._done.clear()
            self._rollouts.clear()
        rows = [row for row in self._going if row not in kept]
        ids = [self._going[row] for row in rows]

        def on_part(responses: list[tuple[int, ...]], logps: list[tuple[float, ...]]) -> None:
            first = len(self._drawn) - len(kept)
            part = dict(zip(rows[first : first + len(responses)], zip(responses, logps, strict=True), strict=True))
            if self._vllm is not None:
                self._journal.keep({("sample", row, self._turn): sample for row, sample in part.items()})
            self._drawn |= part
            self._complete()

        if self._vllm is not None:
            self._vllm.sample(ids, step=self._seeds["step"], turn=self._turn, on_part=on_part)
        else:
            tokens = run.recipe.rollout.max_new_tokens
            uniforms = step_uniforms(**self._seeds, rows=self._of, tokens=tokens, turn=self._turn)
            how: dict[str, Any] = {"eos_ids": run.eos_ids, "pad_id": run.pad_id, "on_part": on_part}
            how |= {"temperature": run.recipe.rollout.temperature, "rows_at_once": run.sizes.rows_at_once}
            if self._caches is not None:
                self._caches.groups = [self._prompts[row][1] for row in rows]
            with run.whole_policy() as policy:
                sample(policy, ids, uniforms[rows], **how, caches=self._caches)
        self._complete()  # the last ones may be kept

    def _complete(self) -> None:
        """Tell of the responses that are complete since the last time, in their order."""
        run, waiting = self._run, self._rows[len(self._rollouts) :]
        if run.toolbox is None and (rows := list(takewhile(self._drawn.__contains__, waiting))):
            examples, prompts = zip(*(self._prompts[row] for row in rows), strict=True)
            ids, logps = zip(*(self._drawn[row] for row in rows), strict=True)
            made = make_rollouts(run.tokenizer, examples, prompts, ids, run.eos_ids, logps)
            self._done |= dict(zip(rows, made, strict=True))
        if part := [self._done[row] for row in takewhile(self._done.__contains__, waiting)]:
            self._rollouts += part
            self._tell(part)

    def _send(self, row: int, value: Any) -> Any:
        """Let a response go on; return what it waits for, nothing if it is complete.

        Args:
            row: of the response.
            value: what it waited for: a sampled turn with its log-probabilities, or the answers to its calls.
        """
        if not isinstance(went := self._talks[row].send(value), Rollout):
            return went
        self._done[row] = went
        del self._going[row]
        return ()


class _Talk:
    """A response under way, with tools: what the policy saw and sampled so far, as ids, as text and as messages.

    Attributes:
        sampled: the ids that the policy sampled, and `logps` their log-probabilities in nats.
        given: the ids between them, with their places.
        ids: all ids of prompt and response, which the next turn goes on from, and `seen` the same as text.
        chat: the messages, as the template takes them, and `turns` the same as critics see them.
        room: the most ids before a turn.
        truncated: whether a limit ended the response.
        environment: the object whose methods are tools, or None.
    """

    def __init__(self, run: PreparedRun, tools: Toolbox, journal: Journal, row: int, seed: int) -> None:
        """Take the row in the batch, and the seed of what tools and environments draw."""
        self.run, self.tools, self.journal, self.row, self.seed = run, tools, journal, row, seed
        self.sampled, self.logps, self.given = list[int](), list[float](), list[Given]()
        self.truncated, self.environment = True, None

    def go(self, example: Example, prompt: tuple[int, ...]) -> Generator[Any, Any, None]:
        """Yield ids to sample a turn from, which is sent; what waits for its answers, which are sent; the response."""
        self._begin(example, prompt)
        for number in range(self.run.recipe.rollout.max_turns):
            said, logps = yield tuple(self.ids)
            calls, unreadable = self._say(said, logps)
            self.truncated = not said or said[-1] not in self.run.eos_ids
            if self.truncated or not (calls or unreadable):
                break
            self.truncated = True  # unless the policy reads the answers
            if number + 1 < self.run.recipe.rollout.max_turns:
                with draws_apart((self.seed * 1_009 + number + 1) % 2**63):
                    asked = [self._ask(("result", self.row, number, place), call) for place, call in enumerate(calls)]
                answers = (yield asked) or [(told(unreadable), True)]
                if not self._hear(calls or [{"name": "tool"}], answers):
                    self.tools.counts["no_room"] += 1
                    break
        response = Conversation(self.turns)
        if self.tools.factory:
            self._judge(response)
        ids, logps = tuple(self.sampled), tuple(self.logps)
        yield Rollout(self.example, self.prompt, ids, response, self.truncated, logps, tuple(self.given))

    def _begin(self, example: Example, prompt: tuple[int, ...]) -> None:
        """Begin with a prompt, to which an environment may add.

        Raises:
            DataError: if the environment fails, or leaves no room for a response.
        """
        run, tools, settings, text = self.run, self.tools, self.run.recipe.rollout, ""
        room = len(prompt) + 2 * settings.max_turns * settings.max_new_tokens
        self.room = min(room, context_of(run.model.policy)) - settings.max_new_tokens
        if tools.factory and ("said", self.row) not in self.journal.kept:
            with draws_apart(self.seed % 2**63):
                self.environment, text = tools.begun(example)
        if tools.factory and (text := self.journal.once(("begun", self.row), lambda: text)):
            example = told_more(run.tokenizer, example, text)
            [prompt] = encode_prompts(run.tokenizer, [example], prompt_format=run.recipe.model.prompt_format)
        if len(prompt) > self.room:
            raise DataError(f"reset of the environment of row {self.row} leaves no room for a response: {text[:60]!r}")
        self.example, self.prompt, self.ids, self.chat = example, prompt, list(prompt), [*messages_of(example)]
        self.turns, self.seen = [*map(turn_of, self.chat)], prompt_text(run.tokenizer, example)

    def _say(self, said: Sequence[int], logps: Sequence[float]) -> tuple[Sequence[Mapping[str, Any]], str]:
        """Take a turn; return its calls, and why one that it began cannot be read."""
        tokenizer, counts = self.run.tokenizer, self.tools.counts
        turn, message, unreadable = read_turn(tokenizer, said, self.seen, self.tools.schemas)
        counts.update(turns=1, calls=len(turn.tool_calls), unreadable=int(bool(unreadable)))
        self.sampled += said
        self.logps += logps
        self._add([turn], [message], said, tokenizer.decode(list(said), skip_special_tokens=False))
        return turn.tool_calls, unreadable

    def _add(self, turns: Sequence[Turn], chat: Sequence[Message], ids: Sequence[int], seen: str) -> None:
        """Take what comes next, sampled or given."""
        self.turns += turns
        self.chat += chat
        self.ids += ids
        self.seen += seen

    def _ask(self, key: tuple[Any, ...], call: Mapping[str, Any]) -> Callable[[], tuple[str, bool]]:
        """Call a tool, unless a killed run has its answer; return what waits for the answer, and keeps it.

        The answer is a text, and whether it is an error.
        """
        known = key in self.journal.kept and (self.environment is None or call["name"] in self.tools.tools)
        pending = None if known else self.tools.call(self.environment, call)

        def answer() -> tuple[str, bool]:
            heard = pending.answer() if pending is not None else None
            text, failed = self.journal.once(key, lambda: heard)
            return text, failed

        if pending is not None and pending.future.done():
            answer()  # on disk before the next tool is called
        return answer

    def _hear(self, calls: Sequence[Mapping[str, Any]], answers: Sequence[tuple[str, bool]]) -> bool:
        """Take the answers to calls with the template's marks; return whether there was room."""
        tokenizer, tools, room = self.run.tokenizer, self.tools, self.room - len(self.ids)
        pairs = zip(calls, answers, strict=True)
        results = [{"role": "tool", "name": call["name"], "content": text} for call, (text, _) in pairs]
        follows = continue_chat(tokenizer, self.example, calls, results, self.ids[-1], room=room)
        if follows is None:
            return False
        kept, text, ids = follows
        self.given.append(Given(len(self.sampled), ids))
        self._add([*map(turn_of, kept)], kept, ids, text)
        rendered = ""
        with suppress(DataError):
            rendered = prompt_text(tokenizer, replace(self.example, prompt=self.chat))
        tools.counts.update(failed=sum(failed for _, failed in answers), rewritten=int(rendered != self.seen))
        tools.counts["cut"] += sum(result["content"].endswith(CUT) for result in kept)
        if rendered != self.seen and not tools.warned:
            tools.warned = True
            why = "the chat template renders chats otherwise than the policy saw and learns them"
            note(f"{why}: tools/rewritten counts such turns", warning=True)
        return True

    def _judge(self, response: Conversation) -> None:
        """Ask the environment for its reward and feedback, unless a killed run has them."""
        said, key = self.run.said, ("said", self.row)
        if key in self.journal.kept:
            said[self.row] = critique_from_json(self.journal.kept[key], response, where="the journal of a step")
            return
        with draws_apart(self.seed * 1_009 % 2**63):
            said[self.row] = self.tools.judged(self.environment, self.example, response, self.run.recipe.critic.match)
        self.journal.keep({key: critique_to_json(said[self.row])})


def turn_of(message: Message) -> Turn:
    """Return a message that the policy did not write as a turn."""
    calls = tuple(call.get("function", call) for call in message.get("tool_calls") or ())
    thought, name = (str(message.get(key) or "") for key in ("reasoning_content", "name"))
    return Turn(str(message["role"]), as_text(message.get("content") or ""), False, thought, calls, name)
