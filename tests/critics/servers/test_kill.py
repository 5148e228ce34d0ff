"""2,000 requests, killed with SIGKILL at random moments: nothing is lost, and nothing is paid for twice."""

import hashlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from fault_server import Running, running
from text2grad.config.server import Endpoint
from text2grad.critics.servers.cached_client import Request, ResponseFormat
from text2grad.critics.servers.store import Store
from text2grad.critics.servers.templates import Template
from text2grad.types import Example
from warm_commands import Forked, Warm

REQUESTS, CONCURRENCY = 2_000, 16
FILES = ("annotations.jsonl", "failures.jsonl")
EXAMPLES = [(f"Where does number {row} live?", f"In house {row}, since spring.") for row in range(REQUESTS)]


@pytest.fixture
def server() -> Iterator[Running]:
    with running("--delay-s", "0.05") as found:  # so that requests are under way when the run is killed
        yield found


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": p, "response": r}) + "\n" for p, r in EXAMPLES))
    path = tmp_path / "recipe.toml"
    path.write_text(
        f'[data]\ntrain = "{data}"\n[annotate]\nmodel = "m"\napi_key_env = ""\nconcurrency = {CONCURRENCY}\n'
    )
    return path


def start(warm: Warm, recipe: Path, server: Running, out: Path) -> Forked:
    command = ["-m", "text2grad.cli", "annotate", recipe, "--out", out]
    return warm.start(*command, "--set", f"annotate.base_url={server.url}")


def questions() -> dict[str, str]:
    """Return the keys of the answers, by the server's names of the prompts."""
    template = Template("qa")
    schema, endpoint = ResponseFormat("schema", template.schema(grounding=False)), Endpoint(model="m")
    asked = [template.messages(Example(prompt), response) for prompt, response in EXAMPLES]
    return {hashlib.sha256(m[0]["content"].encode()).hexdigest(): Request(m, schema).key(endpoint) for m in asked}


def kill_when(process: Forked, server: Running, requests: int) -> None:
    """Kill a run as soon as the server has had so many requests in all; few more are answered until then."""
    server.hold(requests + CONCURRENCY)
    while server.requests() < requests and process.poll() is None:
        time.sleep(0.005)
    process.kill()


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_ends_like_one_that_never_was(
    kills: int, warm: Warm, server: Running, recipe: Path, tmp_path: Path
) -> None:
    out, rng, asked, paid = tmp_path / "killed", Random(0), questions(), dict[str, int]()
    ends = []
    for moment in sorted(rng.sample(range(1, REQUESTS * 9 // 10), kills)):
        process = start(warm, recipe, server, out)
        kill_when(process, server, moment)
        counts = server.state()["counts"]
        assert all(counts[name] == times for name, times in paid.items())  # what was stored was not asked for again
        with Store(out / "answers.sqlite") as store:
            paid = {name: counts[name] for name, question in asked.items() if store.get(question)}
        ends.append(process.returncode)
    assert ends == [-signal.SIGKILL] * kills
    server.hold(0)
    assert start(warm, recipe, server, out).wait() == 0
    counts = server.state()["counts"]
    assert all(counts[name] == times for name, times in paid.items())
    assert len(counts) == REQUESTS
    assert sum(counts.values()) - REQUESTS <= kills * CONCURRENCY  # those that were under way at a kill

    with running() as other:
        assert start(warm, recipe, other, tmp_path / "undisturbed").wait() == 0
        assert set(other.state()["counts"].values()) == {1}
    for name in FILES:
        assert (out / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    before = server.requests()
    assert start(warm, recipe, server, out).wait() == 0  # a finished run that is repeated
    assert server.requests() == before


def test_a_command_that_is_killed_at_once_does_not_end_by_itself(warm: Warm, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(600)\n")
    for _ in range(10):
        process = warm.start("python", script)
        process.kill()
        assert process.returncode == -signal.SIGKILL
