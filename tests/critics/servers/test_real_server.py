"""Annotation by a real server: `transformers serve` with a storyteller of 260k parameters, whose words are nonsense."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from transformers import AutoTokenizer

from places import SHARED, STORIES
from text2grad.cli.__main__ import main
from text2grad.config.server import Endpoint
from text2grad.critics.servers.annotation import Annotator, Item, Judged
from text2grad.critics.servers.pace import Usage
from text2grad.critics.servers.session import run_session
from text2grad.critics.servers.store import Store
from text2grad.critics.servers.templates import Template
from text2grad.errors import RequestError
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.served import ServerRewardModel
from text2grad.types import Example
from warm_commands import held_port

SERVE = Path(sys.executable).with_name("transformers")
START_S = 400
MT_BENCH = SHARED / "data" / "mt_bench"
ITEM = Item("story", Example("Once upon a time"), "there was a dog.")

pytestmark = [
    pytest.mark.skipif(not STORIES.exists(), reason=f"no model in {STORIES}"),
    pytest.mark.skipif(not SERVE.exists(), reason="no `transformers` command beside the interpreter"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storyteller with a chat template of a few words, and with a full stop as its end of sequence."""
    path = tmp_path_factory.mktemp("served") / "stories"
    shutil.copytree(STORIES, path, copy_function=shutil.copyfile)
    path.chmod(0o755)
    tokenizer = AutoTokenizer.from_pretrained(path)
    for name, changes in (
        ("tokenizer_config.json", {"chat_template": "{{ messages[0]['content'][-40:] }}"}),
        ("generation_config.json", {"eos_token_id": tokenizer.convert_tokens_to_ids(".")}),
    ):
        (path / name).write_text(json.dumps({**json.loads((path / name).read_text()), **changes}))
    return path


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[str]:
    with held_port() as port:
        yield from served(model, port)


def served(model: Path, port: int) -> Iterator[str]:
    log = model.parent / "log"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [SERVE, "serve", model, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, env=environment) as process:
        try:
            if not _answers(process, f"http://127.0.0.1:{port}/health"):
                pytest.skip(f"`transformers serve` does not run here: {log.read_text()[-300:]}")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        with suppress(URLError, ConnectionError), urlopen(url):
            return True
        time.sleep(0.2)
    return False


def judged(server: str, model: Path, path: Path, **settings: Any) -> tuple[Judged | RequestError, Usage]:
    values = {"model": str(model), "base_url": server, "api_key_env": "", "temperature": 0.0}
    with Store(path / "answers.sqlite") as store:
        endpoint = Endpoint(**{**values, **settings})
        verdicts, usage = run_session(endpoint, store, Annotator(Template("qa")).annotate, [ITEM])
    return verdicts[0], usage


def test_a_story_is_no_critique_and_is_paid_for_once(server: str, model: Path, tmp_path: Path) -> None:
    first, usage = judged(server, model, tmp_path, max_tokens=100)
    assert isinstance(first, RequestError)
    assert (first.kind, usage.requests) == ("unreadable", 1)
    assert first.detail.endswith(".")
    assert usage.prompt_tokens > 0 < usage.completion_tokens < 100
    again, usage = judged(server, model, tmp_path, max_tokens=100)
    assert (str(again), usage.requests) == (str(first), 0)


def test_a_story_that_the_limit_cut_is_truncated(server: str, model: Path, tmp_path: Path) -> None:
    verdict, usage = judged(server, model, tmp_path, max_tokens=2)
    assert isinstance(verdict, RequestError)
    assert (verdict.kind, usage.completion_tokens) == ("truncated", 2)


def test_another_model_than_the_served_one_is_rejected(server: str, tmp_path: Path) -> None:
    verdict, _ = judged(server, Path("other"), tmp_path)
    assert isinstance(verdict, RequestError)
    assert verdict.kind == "rejected"
    assert "status 400" in verdict.detail


def test_a_time_limit_and_a_server_that_is_gone_are_told_apart(server: str, model: Path, tmp_path: Path) -> None:
    slow, _ = judged(server, model, tmp_path, timeout_s=0.001)
    gone, _ = judged("http://127.0.0.1:9/v1", model, tmp_path)  # the port of "discard": nobody listens
    assert [isinstance(one, RequestError) and one.kind for one in (slow, gone)] == ["timeout", "connection"]


def test_a_served_reward_model_writes_what_the_model_itself_writes(server: str, model: Path, tmp_path: Path) -> None:
    here = GenerativeRewardModel.load(model, constrain=False, max_new_tokens=24)
    free = CritiqueFormat(constrain=False)
    served = ServerRewardModel(
        str(model), base_url=server, store=tmp_path / "a.sqlite", format=free, max_tokens=24, concurrency=2
    )
    asked, responses = [ITEM.example] * 3, [ITEM.response, " there was a girl", " a boy named Tim and his"]
    written = here.write(asked, responses)
    assert len(set(written)) == 3
    # A storyteller writes no critiques: what it wrote is in the words of the failure.
    found = [one.feedback.partition(": ") for one in served(asked, responses)]
    assert [kind for kind, _, _ in found] == ["unreadable" if text.endswith(".") else "truncated" for text in written]
    assert [text for _, _, text in found] == written


def test_a_server_that_knows_no_grammars_says_so(server: str, model: Path, tmp_path: Path) -> None:
    served = ServerRewardModel(str(model), base_url=server, store=tmp_path / "a.sqlite")
    critique = served([ITEM.example], [ITEM.response])[0]
    assert (critique.status, critique.feedback.partition(":")[0]) == ("timed_out", "rejected")
    assert "structured_outputs" in critique.feedback


@pytest.mark.skipif(not MT_BENCH.exists(), reason=f"no data in {MT_BENCH}")
def test_a_storyteller_that_judges_chat_suites_gives_no_rating_and_is_paid_once(
    server: str, model: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "judge.toml"
    settings = {"model": str(model), "base_url": server, "api_key_env": "", "temperature": 0.0}
    recipe.write_text("[annotate]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    data = tmp_path / "alpaca"
    data.mkdir()
    (data / "alpaca_eval.json").write_text(
        json.dumps([{"instruction": f"Tell {n}.", "output": "No."} for n in range(2)])
    )
    (data / "alpaca_eval_clf.txt").write_text("<|im_start|>user\n{instruction} {output_1} {output_2} m or M.<|im_end|>")
    command = [
        "evaluate",
        "policy",
        f"tales={server}",
        "--model-name",
        str(model),
    ]
    command += [
        "--suite",
        f"mt_bench={MT_BENCH}",
        "--suite",
        f"alpaca_eval={data}",
        "--judge",
        str(recipe),
        "--limit",
        "2",
    ]
    command += ["--max-new-tokens", "8", "--set", "server.concurrency=2", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    found = json.loads((tmp_path / "out" / "evaluation.json").read_bytes())["suites"]
    assert found["mt_bench"]["models"]["tales"]["unrated"]["value"] == 1.0
    assert "score" not in found["mt_bench"]["models"]["tales"]
    assert found["alpaca_eval"]["models"]["tales"]["unjudged"]["value"] == 1.0
    with Store(tmp_path / "out" / "judgements" / "answers.sqlite") as store:
        tokens = store.tokens()
    assert tokens[0] > 0 < tokens[1]
    for path in (tmp_path / "out" / "scores").iterdir():
        path.unlink()  # scored again, from the judgements on disk
    recipe.write_text(recipe.read_text().replace(server, "http://127.0.0.1:9/v1"))
    assert main(command) == 0
    assert json.loads((tmp_path / "out" / "evaluation.json").read_bytes())["suites"] == found
