"""Tools and environments in TRL's form: what a policy may call, and what an environment says of a response.

A tool is a function with types and a docstring. An environment is an object for each response: `reset(**row)` begins,
and may return a text that is added to the last message; its other public methods are tools; `get_reward()` returns a
number; `get_feedback()` what a critic may return, or a list of it, one for each turn of the policy. All may be async,
and then run at the same time; other functions run one after another. A tool that fails, is unknown or does not answer
in time answers with its error. An attribute `time_limit_s` of a function replaces `TIME_LIMIT_S`.
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
NO_TOOLS = ("reset", "get_reward", "get_feedback")
_Tool = Callable[..., Any]


class Toolbox:
    """The tools and environments of a training.

    Attributes:
        schemas: the JSON schemas of the tools.
        counts: how often what happened in the step under way, by name.
        warned: whether a warning has told that the template rewrites what the policy saw.
    """

    def __init__(self, tools: Sequence[_Tool], environment_factory: Callable[[], Any] | None) -> None:
        """Take functions, and what makes an environment.

        Raises:
            ConfigError: if a tool has no schema, or an environment no `reset`.
        """
        self.tools, self.factory = {tool.__name__: tool for tool in tools}, environment_factory
        first = environment_factory() if environment_factory else None
        if first is not None and not callable(getattr(first, "reset", None)):
            raise ConfigError(f"environment {type(first).__name__} has no method reset, which begins with a row")
        self.schemas = [_schema(*tool) for tool in self.tools_of(first).items()]
        self.counts, self.warned = Counter[str](), False

    def tools_of(self, environment: Any) -> dict[str, _Tool]:
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
        fields = {name: getattr(example, name) for name in ("prompt", "reference", "tests")}
        row |= {name: value for name, value in fields.items() if value is not None}
        environment: Any = self.factory and self.factory()
        try:
            return environment, as_text(started(environment.reset, row).result() or "")
        except Exception as error:
            raise DataError(f"environment {type(environment).__name__}: reset failed: {described(error)}") from error

    def call(self, environment: Any, call: Mapping[str, Any]) -> "Pending":
        """Call a tool."""
        tools = self.tools_of(environment)
        if call["name"] not in tools:
            return Pending.failed(LookupError(f"there is no tool {call['name']!r}; tools: {', '.join(tools)}"))
        return started(tools[call["name"]], call["arguments"])

    def judged(self, environment: Any, example: Example, response: Conversation, match: Match) -> Critique:
        """Return what an environment says of a response: its reward as the outcome, with its feedback.

        Raises:
            CriticError: if it fails, or returns something else.
        """
        name, turns = f"environment {type(environment).__name__}", [None, *response.starts()]
        methods = [getattr(environment, method, None) for method in NO_TOOLS[1:]]
        try:
            reward, said = (started(method, {}).result() if method else None for method in methods)
        except Exception as error:
            raise CriticError(f"{name} failed: {described(error)}") from error
        parts = [reward, *said] if isinstance(said, list) else [reward, said]
        if isinstance(said, list) and len(parts) != len(turns):
            raise CriticError(f"{name}.get_feedback returned {len(said)} for {len(turns) - 1} turns of the policy")
        places = turns if isinstance(said, list) else [None, None]
        critique = Critique("")
        for turn, words in ((turn, words) for turn, words in zip(places, parts, strict=True) if words is not None):
            text = response if turn is None else response.turns[turn].text
            [own] = ask(_saying(name, words), [example], [text], match=match)
            critique = merged(critique, replace(own, spans=tuple(replace(span, turn=turn) for span in own.spans)))
        return critique


class Pending:
    """A call that may have no result yet."""

    def __init__(self, future: Future[Any], limit_s: float = 0.0) -> None:
        """Take what will have the result, and the seconds from now on after which it is too late."""
        self.future, self.limit_s, self._deadline = future, limit_s, monotonic() + limit_s

    @classmethod
    def failed(cls, error: Exception) -> "Pending":
        """Return a call that ended in an error."""
        future = Future[Any]()
        future.set_exception(error)
        return cls(future)

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
            with suppress(Exception):
                return told(str(error) or type(error).__name__), True
            return told(type(error).__name__), True


def started(function: _Tool, arguments: Mapping[str, Any]) -> Pending:
    """Begin a coroutine; or call a function in a thread, and wait for it, since others may not run beside it."""
    limit = float(getattr(function, "time_limit_s", TIME_LIMIT_S))
    if inspect.iscoroutinefunction(function):
        try:
            return Pending(asyncio.run_coroutine_threadsafe(function(**arguments), _loop()), limit)
        except TypeError as error:  # of its arguments
            return Pending.failed(error)
    pending = Pending(Future(), limit)
    Thread(target=_fill, args=(pending.future, function, arguments), daemon=True).start()
    wait([pending.future], limit)
    return pending


def _fill(future: Future[Any], function: _Tool, arguments: Mapping[str, Any]) -> None:
    with suppress(Exception):  # it was cancelled: nobody waits any more
        try:
            future.set_result(function(**arguments))
        except Exception as error:  # noqa: BLE001  for the thread that waits
            future.set_exception(error)
        except BaseException as error:  # noqa: BLE001  such as SystemExit, which ends no training
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))


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


def told(error: str) -> str:
    """Return an error as the answer of a tool, in TRL's form."""
    return str({"error": error})


def merged(first: Critique, second: Critique) -> Critique:
    r"""Return two critiques of one response as one: outcomes are added; one that cannot be read stays unreadable.

    Example:
        >>> merged(Critique("Good.", outcome=0.5), Critique("Too long.", outcome=1.0))
        Critique(feedback='Good.\n\nToo long.', spans=(), outcome=1.5, status='ok', unmatched=())
    """
    outcomes = [critique.outcome for critique in (first, second) if critique.outcome is not None]
    return Critique(
        "\n\n".join(filter(None, (first.feedback, second.feedback))),
        tuple(sorted({*first.spans, *second.spans})),
        sum(outcomes) if outcomes else None,
        second.status if first.status == "ok" else first.status,
        (*first.unmatched, *second.unmatched),
    )


def _saying(name: str, words: Any) -> Callable[..., list[Any]]:
    """Return a critic that says words."""

    def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Any]:
        return [words]

    critic.__name__ = name
    return critic


def _schema(name: str, tool: _Tool) -> dict[str, Any]:
    from transformers.utils import get_json_schema

    try:
        return dict(get_json_schema(tool))
    except Exception as error:
        raise ConfigError(
            f"the tool {name} has no schema: {error}. Give it types, and a docstring in Google's style with a line for "
            "each argument"
        ) from error
