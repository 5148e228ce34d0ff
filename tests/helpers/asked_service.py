"""A critic behind HTTP in this process, and requests to it."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from text2grad.config.recipe import make_recipe
from text2grad.critics.cached import CachedCritic
from text2grad.runs.critic_service import CriticServer
from text2grad.types import Example

SECONDS = 60.0  # after which a test fails that waits for nothing


class HeldCritic:
    """Quotes each response in its words; notes its calls, and holds them until `free` is set."""

    def __init__(self, *, held: bool = False) -> None:
        self.calls: list[list[str]] = []
        self.entered, self.free = threading.Semaphore(0), threading.Event()
        if not held:
            self.free.set()

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[dict[str, Any]]:
        self.calls.append(list(responses))
        self.entered.release()
        assert self.free.wait(SECONDS)
        if "bad" in responses:
            raise ValueError("a bad response")
        return [{"feedback": f"On {text}.", "positive": [text]} for text in responses]


@contextmanager
def served(
    critic: Any, out: Path, *, tokenizer: Any = None, token: str = "", at_once: int = 64, **reward: Any
) -> Iterator[CriticServer]:
    """Yield the server of a critic on a free port, whose critiques are kept in `out`."""
    recipe = make_recipe({"reward": reward, "rollout": {"rows_at_once": at_once}})
    with CriticServer(("127.0.0.1", 0), CachedCritic(critic, out / "kept.jsonl"), recipe, tokenizer, token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            server.queue.calls.shutdown()


def post(
    server: CriticServer | int, body: Mapping[str, Any] | bytes, *, path: str = "/v1/critique", **headers: str
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """Return status, JSON and headers of the answer; the server may also be its port."""
    port = server if isinstance(server, int) else server.server_port
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    try:
        connection.request("POST", path, data, sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), dict(answer.getheaders())
    finally:
        connection.close()


@contextmanager
def asking(server: CriticServer) -> Iterator[Callable[..., Future[tuple[int, dict[str, Any], Mapping[str, str]]]]]:
    """Yield a function that posts in the background, a text to the prompt "Well?", and returns the future answer."""
    with ThreadPoolExecutor(64) as pool:
        try:
            yield lambda text, **more: pool.submit(post, server, {"prompt": "Well?", "text": text, **more})
        finally:
            server.queue.critic.critic.free.set()  # a test that fails does not wait for its held critic


def waits_for(condition: Callable[[], object]) -> None:
    """Return as soon as something is so."""
    tick = threading.Event()
    for _ in range(int(SECONDS / 0.002)):
        if condition():
            return
        tick.wait(0.002)
    raise AssertionError("it never was so")
