"""How fast a server is asked, and for how much money.

As many requests as allowed are under way at once. When the server says that it is too many (status 429), nobody asks
until the time is over that it names, and half as many ask after that; each answer then raises the limit a little, by
one for each round of answers, up to what is allowed: additive increase, multiplicative decrease, as TCP does it.

A budget is never overspent: a request is only sent when all that are under way, and it too, may cost the most that
they can (an answer of `max_tokens`, a token for each byte of the prompt). Where that is too much, it waits for those to
come to less; where none is under way, the run stops.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from text2grad.errors import RequestError

LONGEST_PAUSE_S = 600.0


@dataclass(slots=True)
class Budget:
    """What may be spent, and what has been.

    Attributes:
        max_requests: most requests; None sets no limit.
        max_cost: most US dollars; None sets no limit.
        requests: sent so far.
        cost: US dollars so far.
        reserved: US dollars that the requests under way can cost at most.
    """

    max_requests: int | None = None
    max_cost: float | None = None
    requests: int = 0
    cost: float = 0.0
    reserved: float = 0.0

    def spent(self) -> str:
        """Return which limit leaves no room for a request at all; empty where none is set or reached."""
        if self.max_requests is not None and self.requests >= self.max_requests:
            return f"the budget of {self.max_requests:,} requests is used up"
        return ""

    def has_room(self, most: float) -> bool:
        """True where a request of at most so many US dollars fits in beside those under way."""
        return self.max_cost is None or self.cost + self.reserved + most <= self.max_cost


class Pace:
    """Lets requests through, one turn each. It belongs to one event loop."""

    def __init__(self, most: int, budget: Budget) -> None:
        """Take the most requests at once, and the budget.

        Attributes:
            limit: how many may be under way now.
            active: how many are.
            slowed: how often the server said that it was too many.
            stopped: why no request is let through any more; empty while they are.
        """
        self.most, self.budget = most, budget
        self.limit, self.active, self.slowed, self.stopped = float(most), 0, 0, ""
        self._resume_at = self._slowed_at = float("-inf")
        self._freed, self._end = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def turn(self, most: float = 0.0) -> AsyncIterator[float]:
        """Wait for a turn, then yield the time at which it came; what is asked within counts as under way.

        Args:
            most: US dollars that the request can cost at most.

        Raises:
            RequestError: of kind not_asked, if the run was stopped.
        """
        await self._wait(most)
        self.active += 1
        self.budget.requests += 1
        self.budget.reserved += most
        try:
            yield asyncio.get_running_loop().time()
        finally:
            self.active -= 1
            self.budget.reserved -= most
            self._freed.set()

    async def _wait(self, most: float) -> None:
        while True:
            reason = self.budget.spent()
            if reason or (not self.budget.has_room(most) and not self.active):
                self.stop(reason or f"the budget of {self.budget.max_cost:g} US dollars leaves no room for a request")
            if self.stopped:
                raise RequestError("not_asked", self.stopped)
            pause = self._resume_at - asyncio.get_running_loop().time()
            if pause > 0:
                await self.sleep(pause)
            elif self.active < int(self.limit) and self.budget.has_room(most):
                return
            else:
                self._freed.clear()
                await self._freed.wait()

    def slow_down(self, sent_at: float, pause_s: float) -> None:
        """Hear that a request was one too many.

        Args:
            sent_at: when it was sent; the limit is halved once for all that were sent before it was.
            pause_s: seconds for which nobody asks.
        """
        now = asyncio.get_running_loop().time()
        self._resume_at = max(self._resume_at, now + pause_s)
        if sent_at >= self._slowed_at:
            self.limit, self._slowed_at, self.slowed = max(1.0, self.limit / 2), now, self.slowed + 1

    def speed_up(self) -> None:
        """Hear that a request was answered."""
        self.limit = min(float(self.most), self.limit + 1 / self.limit)

    def stop(self, reason: str) -> None:
        """Let nothing more through; what is under way may end."""
        self.stopped = self.stopped or reason
        self._end.set()
        self._freed.set()

    async def sleep(self, seconds: float) -> None:
        """Sleep, unless the run is stopped meanwhile."""
        try:
            async with asyncio.timeout(min(seconds, LONGEST_PAUSE_S)):
                await self._end.wait()
        except TimeoutError:
            return
