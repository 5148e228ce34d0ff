"""`text2grad evaluate policy`: models side by side, differences, servers paid once, kills, and wrong inputs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fault_server import Running
from places import ROOT
from text2grad.cli.__main__ import main
from text2grad.costs import read_cost
from text2grad.models.adapters import retired_name
from text2grad.tasks.tiny import tiny_llama
from tokenizers_made_here import made

pytestmark = pytest.mark.usefixtures("short_waits")
RECORDS = [
    {"prompt": f"Summarize: the {place} opens at {hour}", "reference": f"opens at {hour}", "source": f"{place} " * 9}
    for place, hour in (("museum", "nine"), ("<b>bank</b>", "ten"), ("shop", "noon"), ("bar", "six"), ("zoo", "two"))
]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save two models of random weights, and an adapter on the first that changes nothing."""
    from peft import LoraConfig, get_peft_model

    folder, tokenizer = tmp_path_factory.mktemp("models"), made("llama3")
    for seed, name in enumerate(("one", "two")):
        tiny_llama(tokenizer, seed=seed, width=32, layers=1, context=512).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    base = tiny_llama(tokenizer, seed=0, width=32, layers=1, context=512)
    base.name_or_path = str(folder / "one")
    with retired_name():
        adapted = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"]))
    adapted.save_pretrained(folder / "adapter")
    tokenizer.save_pretrained(folder / "adapter")
    shutil.copytree(folder / "one", folder / "cut")
    weights = folder / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    (folder / "data.jsonl").write_text("".join(json.dumps(one) + "\n" for one in RECORDS), "utf-8")
    (folder / "text.txt").write_text("A dog ran.\n\nThe cat sat down.\n", "utf-8")
    return folder


def command(models: Path, out: Path, *more: str, named: tuple[str, ...] = ("one", "two")) -> list[str]:
    data = ["--suite", f"summarization={models / 'data.jsonl'}", "--max-new-tokens", "6"]
    return ["evaluate", "policy", *(str(models / name) for name in named), *data, "--out", str(out), *more]


def result(out: Path) -> Any:
    return json.loads((out / "evaluation.json").read_bytes())


def test_models_stand_side_by_side_with_paired_differences(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--suite", f"reading_suite:reading={models / 'text.txt'}", "--baseline", "one"]
    assert main(command(models, tmp_path, *more, named=("one", "two", "adapter"))) == 0
    found = result(tmp_path)
    assert list(found["suites"]) == ["summarization", "reading"]
    texts, book = found["suites"]["summarization"], found["suites"]["reading"]
    assert texts["questions"] == 5
    assert texts["models"]["adapter"] == texts["models"]["one"]  # a fresh adapter changes nothing
    assert set(texts["differences"]) == {"two", "adapter"}
    assert all(one == {"value": 0, "low": 0, "high": 0} for one in book["differences"]["adapter"].values())
    difference = book["differences"]["two"]["perplexity"]
    assert difference["value"] == pytest.approx(
        book["models"]["two"]["perplexity"]["value"] - book["models"]["one"]["perplexity"]["value"]
    )
    assert difference["low"] <= difference["value"] <= difference["high"]
    page = (tmp_path / "evaluation.html").read_text("utf-8")
    assert "&lt;b&gt;bank" in page
    assert "<b>bank" not in page
    printed = capsys.readouterr().out
    assert "summarization: difference from one, paired by question" in printed
    lines = (tmp_path / "scores" / "summarization.two.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["1", "2", "3", "4", "5"]


def test_a_repeated_evaluation_gives_the_same_files(models: Path, tmp_path: Path) -> None:
    sampled = ["--temperature", "1", "--samples", "2", "--seed", "3"]
    assert main(command(models, tmp_path / "a", *sampled)) == 0
    assert main(command(models, tmp_path / "b", *sampled)) == 0
    assert main(command(models, tmp_path / "a", *sampled)) == 0
    for path in sorted({*(tmp_path / "a").rglob("*.json*")} - {*(tmp_path / "a").glob("costs.json*")}):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path.name
    assert main(command(models, tmp_path / "c", *sampled[:-1], "4")) == 0
    name = "answers/summarization.one.jsonl"
    assert (tmp_path / "a" / name).read_bytes() != (tmp_path / "c" / name).read_bytes()


def test_a_run_is_evaluated_by_its_newest_policy(models: Path, tmp_path: Path) -> None:
    run, policy = tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-000002" / "policy"
    policy.parent.mkdir(parents=True)
    (policy.parent / "state.json").write_text("{}")
    policy.symlink_to(models / "two")
    recipe = {"model": {"prompt_format": "plain"}}
    (run / "run.json").write_text(json.dumps({"recipe": recipe}))
    assert main([*command(models, tmp_path / "out", named=()), f"ours={run}", f"base={models / 'two'}"]) == 0
    found = result(tmp_path / "out")
    assert found["models"]["ours"]["path"] == str(policy)
    assert found["suites"]["summarization"]["models"]["ours"] == found["suites"]["summarization"]["models"]["base"]


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_a_server_is_asked_once_also_after_kills(kills: int, server: Running, tmp_path: Path) -> None:
    """Each kill ends the process after some requests; every request is counted by the server."""
    data, count = tmp_path / "many.jsonl", 20 * kills + 20
    data.write_text("".join(json.dumps({"prompt": f"{tmp_path} {n}", "reference": "x"}) + "\n" for n in range(count)))
    arguments = [
        *("evaluate", "policy", f"served={server.url}", "--model-name", "m"),
        *(
            "--suite",
            f"summarization={data}",
            "--out",
            str(tmp_path / "out"),
            "--set",
            "server.concurrency=2",
            "--quiet",
        ),
    ]
    before, environment = server.requests(), {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for number in range(1, kills + 1):
        process = subprocess.Popen(
            [sys.executable, "-m", "text2grad.cli", *arguments],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        server.hold(before + 18 * number)  # it cannot end before the signal
        while server.requests() - before < 18 * number and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT if number % 3 == 0 else signal.SIGKILL)
        server.hold(0)
        process.wait(240)
    assert main(arguments) == 0
    under_way = 2 * kills  # answers on their way to a killed process are lost
    assert count <= server.requests() - before <= count + under_way
    asked, cost = server.requests(), read_cost(tmp_path / "out")
    assert cost is not None
    assert 0 < cost.generated_tokens <= 20 * count  # 20 for each answer that came to a process that was not killed
    assert main(arguments) == 0
    assert server.requests() == asked
    again = read_cost(tmp_path / "out")
    assert again is not None
    assert again.generated_tokens == cost.generated_tokens
    assert result(tmp_path / "out")["suites"]["summarization"]["questions"] == count


def test_answers_that_do_not_arrive_are_told(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{tmp_path} {n} [[{n}]]"}) + "\n" for n in (400, "ok")))
    arguments = ["evaluate", "policy", server.url, "--model-name", "m", "--suite", f"summarization={data}"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert (
        "RequestError: rejected: 1 of 2 answers of m to suite summarization did not arrive (rejected 1 times); " in told
    )
    assert "Run the same command again: it requests the missing ones only" in told


def test_empty_and_equal_answers_of_a_server_are_told(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang and vLLM with a reasoning parser leave the text empty; `transformers serve` 5.23 ignores temperature."""
    data = tmp_path / "data.jsonl"
    records = ({"prompt": f"{tmp_path} {n} [[{n}]]", "reference": "x"} for n in ("thoughts", "ok"))
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    arguments = ["evaluate", "policy", server.url, "--model-name", "m", "--suite", f"summarization={data}"]
    assert main([*arguments, "--temperature", "1", "--samples", "3", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    told = "3 of 6 answers of m to suite summarization are empty; the first: no content, "
    assert told in " ".join(said.err.split())
    assert "characters of reasoning_content (finish_reason stop); raise max_tokens" in said.err
    assert result(tmp_path / "out")["suites"]["summarization"]["endings"] == {"m": {"empty": 3, "stop": 3}}
    page = (tmp_path / "out" / "evaluation.html").read_text("utf-8")
    row = re.search(r"<tr><td[^>]*>m</td>(.*?)</tr>", page[page.index("equal to the first answer") :], re.DOTALL)
    assert row is not None
    # cut by the limit, empty, without room; both further answers to both questions are the first one
    assert re.findall(r"\d+ of \d+", row[1]) == ["0 of 6", "3 of 6", "0 of 6", "4 of 4"]


def test_all_models_are_checked_before_the_first_answers(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], no_hub: None
) -> None:
    for second in (tmp_path / "nowhere", models / "cut"):
        assert main(command(models, tmp_path / "out", named=("one", str(second)))) == 2
    assert f"{models}/cut/model.safetensors is damaged or incomplete" in capsys.readouterr().err.replace("\n", "")
    assert not list((tmp_path / "out" / "answers").glob("*.jsonl"))


WRONG = [
    (
        ["s=http://localhost:9/v1", "--model-name", "m", "--set", "server.api_key_env=NO_KEY_HERE"],
        "the environment variable NO_KEY_HERE holds no key for http://localhost:9/v1. Set it, or set [server] api_key",
    ),
    (["{one}", "--set", "model.prompt_format=chat"], 'ModelError: model.prompt_format = "chat", but the tokenizer of '),
    (["{one}", "{one}"], "are both called 'one'; give them names: NAME="),
    (
        ["{one}", "--baseline", "none"],
        "ConfigError: --baseline has no value 'none'. Did you mean \"one\"? Known values: one",
    ),
    (["{one}", "--suite", "sumarization"], "--suite has no value 'sumarization'. Did you mean \"summarization\"?"),
    (["{one}", "--suite", "mbpp"], "DataError: suite mbpp: "),
    (["{one}", "--suite", "no_such_module:mine"], "--suite no_such_module:mine: cannot import no_such_module: "),
    (["{one}", "--model-name", "m"], "--model-name m: no server among the models has this name"),
    (["http://localhost:9/v1"], "http://localhost:9/v1: name the model on this server with --model-name MODEL"),
    (
        [
            "s=http://localhost:9/v1",
            "--model-name",
            "m",
            "--suite",
            "reading_suite:reading={text}",
        ],
        "suite reading reads the model itself, and s is on a server; name the directory of its weights",
    ),
    (["{one}", "--samples", "4"], "--samples 4 at --temperature 0 would give the same answer 4 times"),
    (["{one}", "--suite", "summarization"], "--suite summarization: the suite summarization is named twice"),
    (["{nowhere}"], "ModelError: cannot load a tokenizer from"),
    (["{run}"], "is a run without a checkpoint; wait for its first (run.save_every)"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_wrong_inputs_are_told(
    arguments: list[str], message: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], no_hub: None
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"recipe": {}}')
    places = {"one": models / "one", "text": models / "text.txt", "nowhere": tmp_path / "nowhere", "run": run}
    given = [one.format(**places) for one in arguments]
    assert main([*command(models, tmp_path / "out", named=()), *given]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
