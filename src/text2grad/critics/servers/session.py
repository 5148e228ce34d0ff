"""One run over many items: as many requests under way as the pace allows; on the command line with progress."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from text2grad.critics.servers.cached_client import CachedClient, Usage
from text2grad.critics.servers.endpoint import Endpoint, Spending
from text2grad.critics.servers.pace import Budget, Pace
from text2grad.critics.servers.store import Store
from text2grad.progress import Progress


class _MayFail(Protocol):
    @property
    def failure(self) -> object: ...


Input = TypeVar("Input")
Result = TypeVar("Result", bound=_MayFail)
NO_LIMITS = Spending()


@dataclass(frozen=True, slots=True)
class AnnotationSession(Generic[Input, Result]):
    """One run over many items.

    Attributes:
        endpoint: the model, and how it is requested.
        store: the file of its answers.
        annotate: annotates one item by completions of the model.
        spending: prices and budget.
        budget: of a run of several sessions, with the expense of those before; None begins one.
    """

    endpoint: Endpoint
    store: Store
    annotate: Callable[[CachedClient, Input], Awaitable[Result]]
    spending: Spending = NO_LIMITS
    budget: Budget | None = None

    async def run(
        self,
        items: Sequence[Input],
        on_done: Callable[[Result, Usage, Budget], None] | None = None,
        on_start: Callable[[Pace], None] | None = None,
    ) -> tuple[list[Result], Usage, Budget]:
        """Annotate the items, as many in parallel as the endpoint allows.

        Args:
            items: the items.
            on_done: called with each result when it is ready.
            on_start: called with the pace, which can stop the run: requests under way then end, and no other starts.

        Returns:
            The results in the order of the items, the counts, and the budget spent.

        Raises:
            ConfigError: if the endpoint is incomplete or its key is missing.
            DataError: if an answer cannot be stored.
        """
        client = CachedClient(self.endpoint, self.spending, self.store, self.budget)
        results: dict[int, Result] = {}
        rows = iter(range(len(items)))

        async def work() -> None:
            for row in rows:
                results[row] = await self.annotate(client, items[row])
                if on_done:
                    on_done(results[row], client.usage, client.pace.budget)

        if on_start:
            on_start(client.pace)
        tasks = [asyncio.create_task(work()) for _ in range(min(self.endpoint.concurrency, len(items)))]
        try:
            await asyncio.gather(*tasks)
        finally:  # an error in one task ends all tasks
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.server.close()
        return [results[row] for row in range(len(items))], client.usage, client.pace.budget


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
