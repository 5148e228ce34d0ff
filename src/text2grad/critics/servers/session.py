"""One run over many items: as many requests under way as the pace allows; on the command line with progress."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from text2grad.config import Endpoint
from text2grad.critics.servers.cached_client import CachedClient
from text2grad.critics.servers.pace import Pace, Usage
from text2grad.critics.servers.store import Store
from text2grad.errors import RequestError
from text2grad.progress import Progress

Input = TypeVar("Input")
Result = TypeVar("Result")


def run_session(
    endpoint: Endpoint,
    store: Store,
    task: Callable[[CachedClient, Input], Awaitable[Result]],
    items: Sequence[Input],
    *,
    usage: Usage | None = None,
    phase: str = "ask the server",
) -> tuple[list[Result | RequestError], Usage]:
    """Do a task for each item; the first Ctrl-C lets requests under way end, the second aborts them.

    Args:
        endpoint: the model, and how it is requested.
        store: the file of its answers.
        task: makes the result of one item from answers of the client; a `RequestError` that it raises is the result.
        items: each is the input of the task once.
        usage: the counts to go on with; None begins with the cost of the stored answers.
        phase: name of the work in the progress; empty shows none.

    Returns:
        The results in the order of the items, and the counts with the cost.

    Raises:
        ConfigError: if the endpoint is incomplete or its key is missing.
        DataError: if an answer cannot be stored.
    """
    usage = usage or Usage(endpoint.cost(*store.tokens()))
    results: dict[int, Result | RequestError] = {}
    rows, failed = iter(range(len(items))), 0
    with Progress(phase, len(items), unit="answer", enabled=bool(phase)) as progress:

        async def work(client: CachedClient) -> None:
            nonlocal failed
            for row in rows:
                try:
                    results[row] = await task(client, items[row])
                except RequestError as error:
                    results[row] = error
                    failed += 1
                progress.advance(cost=usage.cost, failed=f"{failed:,}")

        async def run() -> None:
            client = CachedClient(endpoint, store, usage)
            _stop_on_signals(client.pace)
            workers = [asyncio.create_task(work(client)) for _ in range(min(endpoint.concurrency, len(items)))]
            try:
                await asyncio.gather(*workers)
            finally:  # an error in one ends all
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
                await client.server.close()

        asyncio.run(run())
    return [results[row] for row in range(len(items))], usage


def _stop_on_signals(pace: Pace) -> None:
    """Let the first Ctrl-C or SIGTERM stop the pace; the second acts as ever."""
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        pace.stop(f"stopped by {number.name}")
        loop.remove_signal_handler(number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
