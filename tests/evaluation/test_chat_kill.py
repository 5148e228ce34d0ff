"""AlpacaEval and MT-Bench by a model and a judge on a server, killed with SIGKILL at 20 random moments."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from fault_server import Running, running
from judged_chats import alpaca
from places import SHARED
from text2grad.config.server import Endpoint
from text2grad.critics.servers import Request, Store
from text2grad.evaluation.suite import Answer, AnsweredSuite, SuiteOptions
from text2grad.evaluation.suites.alpaca_eval import _FORMAT, AlpacaEvalSuite
from text2grad.evaluation.suites.mt_bench import MTBenchSuite

MT_BENCH = SHARED / "data" / "mt_bench"
KILLS, CONCURRENCY, OUTPUTS = 20, 4, 80


def start(server: Running, data: Path, recipe: Path, out: Path) -> "subprocess.Popen[bytes]":
    """Start an evaluation of a model by a judge, both on one server."""
    command = [
        sys.executable,
        "-m",
        "text2grad.cli",
        "evaluate",
        "policy",
        f"tiny={server.url}",
        "--model-name",
        "tiny=policy",
    ]
    command += ["--suite", f"mt_bench={MT_BENCH}"]
    command += ["--suite", f"alpaca_eval={data}"]
    command += ["--judge", str(recipe), "--set", f"server.concurrency={CONCURRENCY}", "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def answered(suite: AnsweredSuite, out: Path) -> list[Answer]:
    """Return the answers of a finished evaluation."""
    lines = [json.loads(line) for line in (out / "answers" / f"{suite.name}.tiny.jsonl").read_text().splitlines()]
    found = []
    for question in suite.questions:
        own = sorted((one for one in lines if one["id"] == question.id), key=lambda one: one["turn"])
        texts = tuple(one["text"] for one in own)
        found.append(Answer(question, 0, texts, (1,) * len(texts), ("stop",) * len(texts)))
    return found


def judged(data: Path, out: Path, url: str) -> dict[str, str]:
    """Return the server's name of each judge's prompt, by the key of its answer."""
    judge = Endpoint(model="judge", base_url=url, api_key_env="")
    ratings = MTBenchSuite(SuiteOptions(data=str(MT_BENCH), judge=judge))
    pairs = AlpacaEvalSuite(SuiteOptions(data=str(data), judge=judge))
    asked = [
        (ratings.judge, Request(ratings._prompt(one, turn)))
        for one in answered(ratings, out)
        for turn in range(one.question.turns)
    ]
    asked += [
        (pairs.judge, Request(pairs._prompt(one, swapped=swapped), _FORMAT))
        for one in answered(pairs, out)
        for swapped in (False, True)
    ]
    found = {}
    for of, question in asked:
        text = "\n".join(message["content"] for message in question.prompt)  # type: ignore[index]
        found[question.key(of)] = hashlib.sha256(text.encode()).hexdigest()
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not MT_BENCH.exists(), reason=f"no data in {MT_BENCH}")
def test_an_evaluation_that_is_killed_twenty_times_pays_for_each_judgement_once(tmp_path: Path) -> None:
    data = alpaca(tmp_path / "data", [f"The answer to {n} is {'long ' * (n % 7)}." for n in range(OUTPUTS)])
    recipe, out, rng = tmp_path / "judge.toml", tmp_path / "killed", Random(0)
    asked = 80 * 2 + OUTPUTS + 80 * 2 + OUTPUTS * 2  # answers of two turns and of one, ratings, both orders
    with running("--delay-s", "0.02") as server:
        settings = f'model = "judge"\nbase_url = "{server.url}"\napi_key_env = ""\nconcurrency = {CONCURRENCY}\n'
        recipe.write_text(f"[annotate]\n{settings}")
        snapshots: list[tuple[dict[str, int], set[str]]] = []
        ends = []
        for moment in sorted(rng.sample(range(5, asked * 9 // 10), KILLS)):
            process = start(server, data, recipe, out)
            server.hold(moment + CONCURRENCY)  # it cannot end before the kill
            while server.requests() < moment and process.poll() is None:
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
            ends.append(process.wait())
            stored: set[str] = set()
            if (out / "judgements" / "answers.sqlite").exists():
                with Store(out / "judgements" / "answers.sqlite") as store:
                    stored = {row[0] for row in store._reader.execute("SELECT key FROM answers")}
            snapshots.append((server.state()["counts"], stored))
        assert ends == [-signal.SIGKILL] * KILLS
        server.hold(0)
        assert start(server, data, recipe, out).wait() == 0
        counts = server.state()["counts"]
        names = judged(data, out, server.url)
        assert set(snapshots[-1][1]) <= set(names)
        for before, stored in snapshots:
            assert all(counts[names[key]] == before[names[key]] for key in stored)
        assert sum(counts.values()) - len(counts) <= KILLS * CONCURRENCY  # those that were under way at a kill
        total = server.requests()
        assert start(server, data, recipe, out).wait() == 0
        assert server.requests() == total
    with running() as other:
        recipe.write_text(recipe.read_text().replace(server.url, other.url))
        assert start(other, data, recipe, tmp_path / "undisturbed").wait() == 0
        assert set(other.state()["counts"].values()) == {1}
    first, second = (
        json.loads((place / "evaluation.json").read_bytes())["suites"] for place in (out, tmp_path / "undisturbed")
    )
    assert first == second
