"""Tools and environments in TRL's form: what a policy may call, and what an environment says of a response.

A tool is a function with types and a docstring. An environment is an object for each response: `reset(**row)` begins,
and may return a text for the last message; its other public methods are tools; `get_reward()` returns a number;
`get_feedback()` what a critic may return, or a list of it by turn. Async functions run at the same time, others one
after another. A tool that fails, is unknown or late (`time_limit_s` of a function, or `TIME_LIMIT_S`) answers so.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import cache
from threading import Thread
from time import monotonic
from typing import Any

from text2grad.errors import ConfigError, CriticError, DataError
from text2grad.feedback import Match, ask, described
from text2grad.types import Conversation, Critique, Example

TIME_LIMIT_S = 60.0
FIELDS = ("prompt", "reference", "tests")
NO_TOOLS = ("reset", "get_reward", "get_feedback")


class Toolbox:
    """The tools and environments of a training, and `counts` of what happened in the step under way, by name."""

    def __init__(self, tools: Sequence[Callable[..., Any]], factory: Callable[[], Any] | None) -> None:
        """Take functions, and what makes an environment; refuse those without schema or `reset`."""
        from transformers.utils.chat_template_utils import get_json_schema

        self.tools, self.factory = {tool.__name__: tool for tool in tools}, factory
        self.schemas, self.counts, self.warned = list[dict[str, Any]](), Counter[str](), False
        first = factory() if factory else None
        if factory and not hasattr(first, "reset"):
            raise ConfigError(f"environment {type(first).__name__} has no method reset, which begins with a row")
        for name, tool in self.tools_of(first).items():
            try:
                self.schemas.append(get_json_schema(tool))
            except Exception as error:
                way = "Give it types, and a docstring in Google's style with a line for each argument"
                raise ConfigError(f"the tool {name} has no schema: {error}. {way}") from error

    def tools_of(self, environment: Any) -> dict[str, Callable[..., Any]]:
        """Return the tools of a response by name: functions, and the public methods of its environment."""
        names = [name for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)]
        own = [name for name in names if name not in NO_TOOLS and not name.startswith("_")]
        return {**self.tools, **{name: getattr(environment, name) for name in own}}

    def begun(self, example: Example) -> tuple[Any, str]:
        """Return an environment that begins with a row, and the text that it adds to the last message.

        Raises:
            DataError: if it fails.
        """
        row = {name: value for name, value in example.meta.items() if name not in ("tools", "chat_template_kwargs")}
        row |= {name: value for name in FIELDS if (value := getattr(example, name)) is not None}
        environment: Any = self.factory and self.factory()
        try:
            return environment, as_text(Pending(environment.reset, row).result() or "")
        except Exception as error:
            raise DataError(f"environment {type(environment).__name__}: reset failed: {described(error)}") from error

    def call(self, environment: Any, call: Mapping[str, Any]) -> "Pending":
        """Call a tool."""
        tools = self.tools_of(environment)

        def unknown(**_: Any) -> None:
            raise LookupError(f"there is no tool {call['name']!r}; tools: {', '.join(tools)}")

        return Pending(tools.get(call["name"], unknown), call["arguments"])

    @staticmethod
    def judged(
        environment: Any, example: Example, response: Conversation, match: Match, *, with_reward: bool = True
    ) -> Critique:
        """Return what an environment says of a response: its reward as the outcome, if asked for, with its feedback.

        Raises:
            CriticError: if it fails, or returns something else.
        """
        name, turns = f"environment {type(environment).__name__}", list(response.starts())
        methods = [getattr(environment, method, None) for method in NO_TOOLS[1:]]
        methods[0] = methods[0] if with_reward else None
        try:
            reward, said = (Pending(method, {}).result() if method else None for method in methods)
        except Exception as error:
            raise CriticError(f"{name} failed: {described(error)}") from error
        parts = [(None, reward), *(zip(turns, said, strict=False) if isinstance(said, list) else [(None, said)])]
        if isinstance(said, list) and len(said) != len(turns):
            raise CriticError(f"{name}.get_feedback returned {len(said)} for {len(turns)} turns of the policy")
        critique = Critique("")
        for turn, words in ((turn, words) for turn, words in parts if words is not None):
            text = response if turn is None else response.turns[turn].text
            [own] = ask(lambda examples, responses, words=words: [words], [example], [text], match=match)
            spans = own.spans if turn is None else (replace(span, turn=turn) for span in own.spans)
            critique = merged(critique, replace(own, spans=tuple(spans)))
        return critique


class Pending:
    """A call that may have no result yet: of a coroutine; any other function is waited for, and runs in a thread."""

    def __init__(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """Call it."""
        self.limit_s = float(getattr(function, "time_limit_s", TIME_LIMIT_S))
        self._deadline, self.future = monotonic() + self.limit_s, Future[Any]()
        if inspect.iscoroutinefunction(function):
            with suppress(TypeError):  # of its arguments, which the thread below finds again
                self.future = asyncio.run_coroutine_threadsafe(function(**arguments), _loop())
                return
        Thread(target=self._call, args=(function, arguments), daemon=True).start()
        wait([self.future], self.limit_s)

    def _call(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        with suppress(Exception):  # it was cancelled: nobody waits any more
            try:
                self.future.set_result(function(**arguments))
            except BaseException as error:  # noqa: BLE001  SystemExit ends no training
                self.future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def result(self) -> Any:
        """Wait for the result; raise the error of the call, or TimeoutError if there is none in time."""
        if not wait([self.future], max(0.0, self._deadline - monotonic())).done:
            self.future.cancel()
            raise TimeoutError(f"no answer within {self.limit_s:g} seconds")
        return self.future.result()

    def answer(self) -> tuple[str, bool]:
        """Wait for the result as a text, and whether it is an error."""
        try:
            return as_text(self.result()), False
        except Exception as error:  # noqa: BLE001  any error of others' code
            return told(error), True


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop of all coroutines, which runs in a thread."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, daemon=True, name="text2grad-tools").start()
    return loop


def as_text(result: Any) -> str:
    """Return the result of a tool as TRL shows it: a text, parts of text joined, another value as Python prints it."""
    if isinstance(result, list) and result and all(isinstance(part, dict) and "text" in part for part in result):
        return "".join(str(part["text"]) for part in result)
    return str(result)


def told(error: Exception | str) -> str:
    """Return an error as the answer of a tool, in TRL's form."""
    return str({"error": str(error) or type(error).__name__})


def merged(first: Critique, second: Critique) -> Critique:
    r"""Return two critiques of one response as one: outcomes are added; one that cannot be read stays unreadable.

    Example:
        >>> merged(Critique("Good.", outcome=0.5), Critique("Too long.", outcome=1.0))
        Critique(feedback='Good.\n\nToo long.', spans=(), outcome=1.5, status='ok', unmatched=())
    """
    outcomes = [critique.outcome for critique in (first, second) if critique.outcome is not None]
    feedback = "\n\n".join(filter(None, (first.feedback, second.feedback)))
    spans, status = {*first.spans, *second.spans}, second.status if first.status == "ok" else first.status
    outcome, unmatched = sum(outcomes) if outcomes else None, (*first.unmatched, *second.unmatched)
    return Critique(feedback, tuple(sorted(spans)), outcome, status, unmatched)
