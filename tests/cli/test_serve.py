"""`text2grad serve`: which critic a name is, the address and its token, and a service that is killed."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asked_service import post, waits_for
from text2grad.cli.__main__ import main
from text2grad.files import to_json
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.writing import SYMBOLS
from text2grad.runs.critic_service import CriticServer
from text2grad.tasks.registry import built_in
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from warm_commands import Warm, held_port

TOKENIZER = word_tokenizer(["please yes or later no"])
IDS = TOKENIZER("please yes or later").input_ids


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function from words of the command line and a request to the answer, and the server's token."""
    monkeypatch.chdir(tmp_path)
    TOKENIZER.save_pretrained(tmp_path / "policy")

    def run(*words: str, body: dict[str, Any] | None = None) -> Any:
        answers: list[Any] = []

        def once(server: CriticServer) -> None:
            answers.append((server.answer(to_json(body or {"prompt": "Well?", "ids": IDS})), server.token))

        monkeypatch.setattr(CriticServer, "serve_forever", once)
        assert main(["serve", *words, *([] if "--listen" in words else ["--listen", "127.0.0.1:0"])]) == 0
        return answers[0]

    return run


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["serve", *words]) == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["critic:verl_critics:critic", "verl_critics:critic"])
def test_a_critic_in_python_with_the_settings_of_rewards(
    serve: Callable[..., Any], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, token = serve(name, "--tokenizer", "policy", "--set", "reward.positive=2.0", "--out", "kept")
    assert (answer["rewards"], token) == ([0.0, 2.0, 2.0, -0.5], b"")
    assert len((tmp_path / "kept" / "critiques.jsonl").read_text().splitlines()) == 2  # each line begins with its end
    assert (tmp_path / "kept" / ".lock").read_text() == str(os.getpid())
    shown = capsys.readouterr().out
    assert "kept/critiques.jsonl, 0 critiques" in shown
    assert re.search(r"ask +POST http://127\.0\.0\.1:[1-9]\d*/v1/critique   \(Ctrl-C ends\)", shown)


def test_a_recipe_names_critic_rewards_and_tokenizer(serve: Callable[..., Any], tmp_path: Path) -> None:
    critic = '[critic]\nuse = "verl_critics:quoting"\nmatch = "normalized"\n'
    (tmp_path / "my.toml").write_text(f'[model]\npath = "policy"\n{critic}[reward]\npositive = 0.5\n')
    answer, _ = serve("critic:my.toml", "--set", "rollout.rows_at_once=4")
    assert (answer["rewards"], answer["spans"][0]["text"]) == ([0.0, 0.5, 0.5, 0.0], "yes or")


def test_a_built_in_task_has_its_critic(serve: Callable[..., Any]) -> None:
    task = built_in("summarization")
    [example] = task.train(1, 0)
    body = json.loads(to_json({"prompt": example.prompt, "text": "A post.", "meta": dict(example.meta)}))
    answer, _ = serve("critic:summarization", body=body)
    [critique] = task.critic()([example], ["A post."])
    assert answer["feedback"] == critique.feedback
    assert "rewards" not in answer


def test_a_directory_is_a_reward_model(serve: Callable[..., Any], tmp_path: Path) -> None:
    words = word_tokenizer(["Well?", "please yes or later no", "right wrong"], SYMBOLS)
    model = tiny_llama(words, seed=0, width=16)
    GenerativeRewardModel(model, words, CritiqueFormat(max_new_tokens=24)).save(tmp_path / "model")
    answer, _ = serve("critic:model", "--tokenizer", "policy")
    assert answer["status"] == "ok"
    assert len(answer["rewards"]) == len(IDS)
    identity = json.loads((tmp_path / "runs" / "serve" / "critic.json").read_bytes())
    assert (identity["critic"], identity["format"]["max_new_tokens"]) == ("model", 24)


@pytest.mark.usefixtures("serve")
def test_a_reward_model_on_a_server_keeps_its_answers_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    critics: list[Any] = []
    monkeypatch.setattr(CriticServer, "serve_forever", lambda server: critics.append(server.queue.critic.critic))
    words = ["critic:org/model", "--set", "critic.kind=server", "--out", "kept", "--listen", "127.0.0.1:0"]
    assert main(["serve", *words]) == 0
    assert critics[0].path == Path("kept/critic/server.sqlite")


def test_kept_critiques_are_of_one_critic(serve: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    serve("critic:verl_critics:critic", "--tokenizer", "policy")
    said = refused(capsys, "critic:verl_critics:quoting", "--listen", "127.0.0.1:0")
    assert 'runs/serve holds critiques of another critic: {"critic": "verl_critics:critic"}, now' in said
    again, _ = serve("critic:verl_critics:critic", "--tokenizer", "policy", "--set", "reward.positive=0.25")
    assert again["rewards"] == [0.0, 0.25, 0.25, -0.5]  # the kept critique, with other rewards


@pytest.mark.usefixtures("serve")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("critic:nobody", "data.task has no value 'nobody'"),
        ("critic:nobody:critic", "there is no module 'nobody'"),
        ("critic:runs/nothing", "runs/nothing"),
        ("critic:none.toml", "none.toml"),
        ("critic:verl_critics:critic --listen 8322", "lets other machines ask, and there is no token"),
        ("critic:verl_critics:critic --listen 0.0.0.0:0", "lets other machines ask, and there is no token"),
        ("critic:verl_critics:critic --listen 127.0.0.1:http", "an address is HOST:PORT, such as 127.0.0.1:8322"),
        ("critic:verl_critics:critic --listen 127.0.0.1:65536", "an address is HOST:PORT"),
        ("critic:verl_critics:critic --tokenizer nowhere/at/all", "nowhere/at/all"),
    ],
)
@pytest.mark.usefixtures("no_hub")
def test_what_cannot_be_served_is_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, *words.split())


def test_other_machines_may_ask_with_the_token_of_the_environment(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEXT2GRAD_SERVE_TOKEN", " my secret\n")
    answer, token = serve("critic:verl_critics:critic", "--tokenizer", "policy", "--listen", "0.0.0.0:0")
    assert (token, answer["status"]) == (b"my secret", "ok")
    assert "my secret" not in "".join(capsys.readouterr())


COUNTED = """
import time
from pathlib import Path

def critic(examples, responses):
    with Path("calls").open("a") as file:
        file.write("".join(f"{response}\\n" for response in responses))
    while Path("hold").exists():
        time.sleep(0.005)
    return [f"On {response}." for response in responses]
"""


def test_a_killed_service_goes_on_and_asks_the_critic_once(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "counted.py").write_text(COUNTED)
    calls, request = tmp_path / "calls", {"prompt": "Well?", "text": "so"}
    with held_port() as port:
        command = ["-m", "text2grad.cli", "serve", "critic:counted:critic", "--listen", f"127.0.0.1:{port}"]
        answers = []
        for run in range(2):
            with (tmp_path / f"out{run}").open("w+") as out, (tmp_path / "err").open("w") as err:
                process = warm.start(*command, cwd=tmp_path, out=out, err=err)
                waits_for(lambda run=run: "\nask " in (tmp_path / f"out{run}").read_text())
                answers.append(post(port, request)[1])
                (tmp_path / "hold").touch()
                if run == 0:  # killed in a call of the critic
                    assert post(port, {**request, "text": "late", "timeout": 0.01})[0] == 504
                    waits_for(lambda: calls.read_text() == "so\nlate\n")
                    process.kill()
                (tmp_path / "hold").unlink()
        assert answers[0] == answers[1]
        assert answers[0]["feedback"] == "On so."
        assert post(port, {**request, "text": "late"})[1]["feedback"] == "On late."
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert calls.read_text() == "so\nlate\nlate\n"  # what was never answered is judged again, nothing else
    assert (
        f"Continue with: text2grad serve critic:counted:critic --listen 127.0.0.1:{port}"
        in (tmp_path / "err").read_text()
    )
