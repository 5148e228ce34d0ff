"""A session over many items on the command line: its progress, and the signals that end it."""

import asyncio
import signal
from collections.abc import Sequence
from typing import Protocol, TypeVar

from text2grad.critics.servers.cached_client import AnnotationSession, Usage
from text2grad.critics.servers.pace import Budget, Pace
from text2grad.progress import Progress


class _MayFail(Protocol):
    @property
    def failure(self) -> object: ...


Input = TypeVar("Input")
Result = TypeVar("Result", bound=_MayFail)


def run_session(
    session: AnnotationSession[Input, Result], items: Sequence[Input], *, phase: str = "ask the server"
) -> tuple[list[Result], Usage, Budget]:
    """Run a session and show its progress; the first Ctrl-C lets requests under way end, the second aborts them."""

    async def work() -> tuple[list[Result], Usage, Budget]:
        loop = asyncio.get_running_loop()

        def on_start(pace: Pace) -> None:
            def stop(number: signal.Signals) -> None:
                pace.stop(f"stopped by {number.name}")
                loop.remove_signal_handler(number)

            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop, number)

        failed = 0
        with Progress(phase, len(items), unit="answer") as progress:

            def on_done(result: _MayFail, _: Usage, budget: Budget) -> None:
                nonlocal failed
                failed += result.failure is not None
                progress.advance(cost=budget.cost, failed=f"{failed:,}")

            return await session.run(items, on_done, on_start)

    return asyncio.run(work())
