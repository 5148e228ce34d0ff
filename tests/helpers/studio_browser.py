"""The studio in a real browser: a server in a process of its own, and Debian's Chromium."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warm_commands import Warm, held_port

SHELL, WHOLE = Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium")
CHROMIUM = SHELL if SHELL.exists() else WHOLE  # a page opens in half of the processor time
SECONDS = 240  # of waiting: timing decides no test


class Served:
    """A server of the studio that can be killed and started again.

    Attributes:
        warm: starts the server's process; set by tests/studio/conftest.py.
    """

    warm: Warm

    def __init__(self, port: int, store: Path, *paths: Path, options: tuple[str, ...] = ()) -> None:
        self.store, self.paths, self.options = store, paths, options
        self.port = str(port)
        self.start()

    def start(self) -> None:
        command = ["-m", "text2grad.cli", "studio", *self.paths, "--out", self.store]
        command += ["--port", self.port, "--no-browser", *self.options]
        reading, writing = os.pipe()
        self.output = open(reading)  # noqa: SIM115  `end` closes it
        with open(writing, "w") as file:
            self.process = self.warm.start(*command, environment={"COLUMNS": "300"}, out=file, err=file)
        said: list[str] = []
        for line in self.output:  # the timeout of the test ends a server that says nothing
            said.append(line)
            if line.startswith("open"):
                break
        else:
            raise AssertionError(f"the server ended: {''.join(said)}")
        self.address = re.findall(r"http\S+", said[-1])[0]
        self.port = re.findall(r":(\d+)/", self.address)[0]

    def kill(self) -> None:
        """End the server as a crash would."""
        self.process.kill()
        self.end()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(SECONDS)
        self.output.close()


@contextmanager
def served(store: Path, *paths: Path, options: tuple[str, ...] = ()) -> Iterator[Served]:
    """Serve the studio for a test."""
    with held_port() as port:  # also while no server listens there
        server = Served(port, store, *paths, options=options)
        try:
            yield server
        finally:
            server.end()


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=SECONDS * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def close(context: Any) -> None:
    """Close the pages of a context; what a handler fetches when its page closes would fail the next test."""
    for page in context.pages:
        page.unroute_all(behavior="wait")
    context.close()


def context_of(browser: Any, **options: Any) -> Any:
    """Return a context for pages of a test.

    Interception is on from the first: Chromium rarely lets the first request behind a later `page.route` pass.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
    context.set_default_timeout(SECONDS * 1000)
    context.route("**/asked-by-nobody", lambda route: route.abort())
    return context


def wait_for_rows(context: Any, server: Served) -> None:
    """Wait until the server has read all responses: the first of a list is another one before."""
    answer = context.request.get(server.address)
    while True:  # the timeout of the test ends it
        runs = answer.json()["runs"] if "/api/" in answer.url else []
        if any(run["rollouts"] for run in runs) and all(run["bytes"][0] == run["bytes"][1] for run in runs):
            return
        answer = context.request.get(f"http://127.0.0.1:{server.port}/api/studio")


@contextmanager
def page_of(browser: Any, server: Served, rater: str, **options: Any) -> Iterator[Any]:
    """Open the studio for a rater, and its first response; an error of a script fails the test."""
    context = context_of(browser, **options)
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    wait_for_rows(context, server)
    page.goto(f"{server.address}&rater={rater}")
    page.wait_for_selector(".item .preview")
    page.locator(".item").first.click()
    page.wait_for_selector("#response .s")
    yield page
    close(context)
    lost = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")  # the test killed the server
    if others := [error for error in errors if not any(code in error for code in lost)]:
        raise AssertionError(f"errors of the page: {others}")
