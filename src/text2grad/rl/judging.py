"""The critiques of one step, asked for part by part while other responses are sampled, and while all are scored.

A part is the responses that the policy samples at once. With as many parts at a time as there are parts, the last
critique arrives no later than the critic's own latency after the last response. The critiques are those of a critic
that is asked about the whole step afterwards, if each depends on its own response alone.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from text2grad.feedback import Critic, Match, ask
from text2grad.types import Critique, Rollout


class Judging:
    """Asks a critic in the threads of a pool."""

    def __init__(self, critic: Critic, match: Match, pool: ThreadPoolExecutor) -> None:
        """Take the critic; the threads of the pool are the most parts that are with it at a time."""
        self.critic, self.match = critic, match
        self._pool, self._parts = pool, list[Future[list[Critique]]]()

    def add(self, rollouts: Sequence[Rollout]) -> None:
        """Ask for the critiques of some responses."""
        examples, responses = [one.example for one in rollouts], [one.response for one in rollouts]
        self._parts.append(self._pool.submit(ask, self.critic, examples, responses, match=self.match))

    def restart(self) -> None:
        """Forget the parts so far: the step is sampled again, in smaller parts."""
        for part in self._parts:
            part.cancel()
        self._parts.clear()

    def critiques(self) -> list[Critique]:
        """Wait for all parts, and return their critiques in the order of the responses.

        Raises:
            CriticError: of the first part that failed.
        """
        return [critique for part in self._parts for critique in part.result()]


@contextmanager
def judging(critic: Critic, *, match: Match, parts: int) -> Iterator[Judging | None]:
    """Yield the judging of a step; None for `parts` = 0, where the critic is asked when all is sampled.

    At the end it waits for the parts under way, and begins no others.
    """
    if not parts:
        yield None
        return
    with ThreadPoolExecutor(parts, thread_name_prefix="text2grad-critic") as pool:
        try:
            yield Judging(critic, match, pool)
        finally:
            pool.shutdown(cancel_futures=True)
