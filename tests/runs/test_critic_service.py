"""A critic behind HTTP: rewards as in training, joined calls, time limits, refusals; nothing is judged twice."""

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

import small_run
from asked_service import HeldCritic, asking, post, served, waits_for
from text2grad.errors import ConfigError
from text2grad.runs.critic_service import MOST_BYTES, CriticServer
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Critique
from verl_critics import critic as yes_or_later

TOKENIZER = word_tokenizer(["please yes or later no"])
IDS = TOKENIZER("please yes or later").input_ids


def test_an_answer_has_words_spans_and_the_reward_of_each_id(tmp_path: Path) -> None:
    settings = {"positive": 2.0, "negative": -3.0, "unlabelled": 0.125, "truncated": -1.0}
    with served(yes_or_later, tmp_path, tokenizer=TOKENIZER, **settings) as server:
        status, answer, headers = post(server, {"messages": [{"role": "user", "content": "Well?"}], "ids": IDS})
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert answer == {
            "feedback": "{}",
            "spans": [
                {"start": 7, "end": 13, "label": "positive", "text": "yes or"},
                {"start": 14, "end": 19, "label": "negative", "text": "later"},
            ],
            "outcome": 0.5,
            "status": "ok",
            "unmatched": [],
            "rewards": [0.125, 2.0, 2.0, -2.5],  # the outcome 0.5 is on the last id: -3 + 0.5
            "delta": [0.0, 1.0, 1.0, -1.0],
        }
        cut = {"prompt": "Well?", "ids": IDS, "truncated": True, "reference": "no", "meta": {"n": 1}, "tests": None}
        answer = post(server, cut)[1]
        assert (answer["feedback"], answer["rewards"]) == ("{'n': 1}", [0.125, 2.0, 2.0, -3.5])
        text = post(server, {"prompt": "Well?", "text": "yes or"})[1]
        assert (text["spans"][0]["text"], "rewards" in text, "delta" in text) == ("yes or", False, False)
        empty = post(server, {"prompt": "Well?", "ids": []})[1]
        assert (empty["feedback"], empty["rewards"], empty["delta"], empty["outcome"]) == ("", [], [], None)


def test_the_rewards_are_those_of_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = {"positive": 0.7, "negative": -1.3, "span_mass": "response", "truncated": -0.1}
    trainer = small_run.trainer(tmp_path / "run", reward=reward, run={"steps": 1})
    rewarded: list[Any] = []
    rewards = trainer.rewards
    monkeypatch.setattr(
        trainer, "rewards", lambda *given: rewarded.append((given[0], rewards(*given))) or rewarded[-1][1]
    )
    trainer.train()
    [(rollouts, of_trainer)] = rewarded
    with served(small_run.ColourCritic(), tmp_path, tokenizer=trainer.tokenizer, **reward) as server:
        for row, rollout in enumerate(rollouts):
            asked = {"prompt": rollout.example.prompt, "ids": rollout.response_ids, "truncated": rollout.truncated}
            answer = post(server, asked)[1]
            assert answer["rewards"] == of_trainer.rewards[row, : len(rollout.response_ids)].tolist()
            assert answer["delta"] == of_trainer.deltas[row]
    assert len(rollouts) == 8
    assert of_trainer.rewards.abs().sum() > 0


def test_what_waits_is_joined_to_one_call_in_order_and_each_gets_its_own(tmp_path: Path) -> None:
    critic = HeldCritic(held=True)
    with served(critic, tmp_path, at_once=3) as server, asking(server) as ask:
        answers = [ask("first")]
        assert critic.entered.acquire(timeout=60)
        for number in range(4):
            answers.append(ask(f"text {number}"))
            waits_for(lambda number=number: len(server.queue.waiting) == number + 1)
        critic.free.set()
        said = [answer.result()[1]["feedback"] for answer in answers]
    assert said == ["On first.", *(f"On text {number}." for number in range(4))]
    assert critic.calls == [["first"], ["text 0", "text 1", "text 2"], ["text 3"]]


def test_a_request_over_its_time_is_told_so_and_its_critique_is_kept(tmp_path: Path) -> None:
    critic = HeldCritic(held=True)
    with served(critic, tmp_path) as server, asking(server) as ask:
        patient = ask("same")
        assert critic.entered.acquire(timeout=60)
        status, answer, _ = ask("same", timeout=0.01).result()
        assert status == 504
        assert answer["error"] == {
            "what": "there is no critique after 0.01 s",
            "where": "timeout",
            "way_out": "send it again: the critique is made meanwhile, and kept",
        }
        again = ask("same", timeout=60)
        critic.free.set()
        assert patient.result()[:2] == again.result()[:2] == ask("same", timeout=0.01).result()[:2]
        assert patient.result()[0] == 200
    assert critic.calls == [["same"]]
    with served(critic, tmp_path) as server:  # another process, say
        assert post(server, {"prompt": "Well?", "text": "same"})[1] == patient.result()[1]
    assert critic.calls == [["same"]]


def test_a_full_queue_is_told_with_the_time_to_wait_but_what_is_kept_is_answered(tmp_path: Path) -> None:
    critic = HeldCritic(held=True)
    with served(critic, tmp_path, at_once=1) as server, asking(server) as ask:
        critic.free.set()
        kept = ask("kept").result()
        critic.free.clear()
        waiting = [ask("under way")]
        assert [critic.entered.acquire(timeout=60) for _ in range(2)] == [True, True]
        waiting += [ask(f"text {number}") for number in range(16)]  # 16 calls of one response each
        waits_for(lambda: len(server.queue.waiting) == 16)
        status, answer, headers = ask("too many").result()
        assert (status, headers["Retry-After"]) == (429, "1")
        assert answer["error"]["what"] == "16 responses wait for the critic"
        assert ask("kept").result()[:2] == kept[:2]
        again = ask("text 3")  # waits with the other one
        critic.free.set()
        assert {future.result()[0] for future in [*waiting, again]} == {200}
    assert ["too many"] not in critic.calls
    assert len(critic.calls) == 18


def test_a_response_on_which_the_critic_fails_harms_no_other(tmp_path: Path) -> None:
    critic = HeldCritic(held=True)
    with served(critic, tmp_path) as server, asking(server) as ask:
        first = ask("first")
        assert critic.entered.acquire(timeout=60)
        answers = [ask(text) for text in ("good", "bad", "better")]
        waits_for(lambda: len(server.queue.waiting) == 3)
        critic.free.set()
        assert [future.result()[0] for future in (first, *answers)] == [200, 200, 502, 200]
        error = answers[1].result()[1]["error"]
        assert "critic HeldCritic failed on 1 responses: ValueError" in error["what"]
        assert (error["where"], error["way_out"]) == ("the critic", "mend the critic, or leave this response out")
        calls = len(critic.calls)
        assert ask("bad").result()[0] == 502
        assert len(critic.calls) == calls + 1  # an error is not kept
    assert sorted(critic.calls[1]) == ["bad", "better", "good"]


def test_a_critique_that_timed_out_is_asked_for_again(tmp_path: Path) -> None:
    calls = []

    def away(examples: Any, responses: Any) -> Any:
        calls.append(responses)
        return [Critique("No answer.", status="timed_out" if len(calls) == 1 else "ok")] * len(responses)

    with served(away, tmp_path) as server:
        said = [post(server, {"prompt": "Well?", "text": "so"})[1]["status"] for _ in range(3)]
    assert (said, len(calls)) == (["timed_out", "ok", "ok"], 2)


WRONG = {
    b'{"prompt": "Well?"}': ("the body", "either"),
    b'{"prompt": "Well?", "text": "a", "ids": [1]}': ("the body", "either"),
    b'{"prompt": "Well?", "messages": [], "text": "a"}': ("the body", "either"),
    b'{"text": "a"}': ("the body", "either"),
    b'{"prompt": " ", "text": "a"}': ("the body", "empty"),
    b'{"messages": [{"role": 1}], "text": "a"}': ("the body", "messages"),
    b'{"prompt": 1, "text": "a"}': ("prompt", "valid string, got 1"),
    b'{"prompt": "Well?", "ids": [1, -1]}': ("ids.1", "greater than or equal to 0, got -1"),
    b'{"prompt": "Well?", "ids": [2147483648]}': ("ids.0", "less than 2147483648"),
    b'{"prompt": "Well?", "ids": [true]}': ("ids.0", "got True"),
    b'{"prompt": "Well?", "ids": "1"}': ("ids", "valid list"),
    b'{"prompt": "Well?", "text": "a", "timeout": 0}': ("timeout", "greater than 0, got 0"),
    b'{"prompt": "Well?", "text": "a", "timeout": "5"}': ("timeout", "valid number"),
    b'{"prompt": "Well?", "text": "a", "timeout": 1e300}': ("timeout", "less than or equal"),
    b'{"prompt": "Well?", "text": "a", "truncated": 1}': ("truncated", "valid boolean"),
    b'{"prompt": "Well?", "text": "a", "colour": 1}': ("colour", "not permitted"),
    b'{"prompt": "Well?", "text": "a", "meta": {"x": NaN}}': ("the body", "not JSON compliant"),
    b'{"prompt": "Well?", "text": "a", "meta": {"x": "\\ud800"}}': ("the body", "surrogates not allowed"),
    b'{"prompt": "Well?", "text": "a", "text": "b"}': ("the body", "twice with two values"),
    b'["Well?"]': ("the body", "JSON object"),
    b"Well?": ("the body", "not JSON"),
    b"": ("the body", "not JSON"),
    b"\xff": ("the body", "not UTF-8"),
    b"[" * 100_000: ("the body", "nested too deeply"),
}


def test_wrong_requests_are_told_what_is_wrong_where_and_the_way_out(tmp_path: Path) -> None:
    critic = HeldCritic()
    with served(critic, tmp_path, tokenizer=TOKENIZER) as server:
        for body, (where, what) in WRONG.items():
            status, answer, _ = post(server, body)
            assert (status, answer["error"]["where"]) == (400, where), body
            assert what in answer["error"]["what"], body
            assert answer["error"]["way_out"].startswith("send strict JSON such as"), body
    assert critic.calls == []


def test_ids_need_a_tokenizer_and_a_critic_may_refuse_examples(tmp_path: Path) -> None:
    from text2grad.critics.programs.unit_tests import UnitTestCritic

    with served(UnitTestCritic(), tmp_path) as server:
        error = post(server, {"prompt": "Add.", "ids": [1], "tests": "assert True"})[1]["error"]
        assert error["what"] == '"ids" need the policy\'s tokenizer: start text2grad serve with --tokenizer PATH'
        status, answer, _ = post(server, {"prompt": "Add.", "text": "1 + 1"})
        assert (status, "tests" in answer["error"]["what"]) == (400, True)


def test_strangers_are_refused_before_their_request_is_read(tmp_path: Path) -> None:
    good = {"prompt": "Well?", "text": "so"}
    critic = HeldCritic()
    with served(critic, tmp_path, token="my secret") as server:
        for sent in ("Bearer my secre", "Bearer my secrets", "my secret", "ü", None):
            status, answer, headers = post(server, b"{", **({} if sent is None else {"Authorization": sent}))
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert answer["error"]["what"] == "the token is missing or wrong"
        assert critic.calls == []
        assert post(server, good, Authorization="Bearer my secret", Host="judge.example")[0] == 200
    with served(critic, tmp_path / "open") as server:
        assert [post(server, good, Host=host)[0] for host in ("evil.example", "", "evil.example:80")] == [421] * 3
        assert [post(server, good, Host=host)[0] for host in ("localhost", "127.0.0.1:1")] == [200] * 2
        for kind in ("text/plain", "application/x-www-form-urlencoded"):  # a page of another site can send these
            assert post(server, good, Content_Type=kind)[0] == 415
        assert post(server, good, Content_Type="application/json; charset=utf-8")[0] == 200
        assert post(server, good, path="/v1/critiques")[0] == 404


def raw(server: CriticServer, request: bytes) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of the answer to bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    return (int(head.split()[1]), json.loads(body)) if body else (0, json.loads(head))


def test_bodies_have_a_length_and_a_limit_and_other_methods_are_answered_in_json(tmp_path: Path) -> None:
    head = b"POST /v1/critique HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with served(HeldCritic(), tmp_path) as server:
        assert raw(server, head + b"\r\n")[0] == 411
        assert raw(server, head + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}")[0] == 411
        assert raw(server, head + b"Content-Length: -1\r\n\r\n")[0] == 411
        chunked = b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        assert raw(server, head + chunked)[0] == 411
        assert post(server, b" " * MOST_BYTES)[0] == 400
        status, answer, headers = post(server, b" " * (MOST_BYTES + 1))
        assert (status, answer["error"]["way_out"], headers["Connection"]) == (413, "send 4,194,304 at most", "close")
        status, answer = raw(server, b"GET /v1/critique HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (status, answer["error"]["way_out"]) == (501, "send POST /v1/critique")
        assert "Invalid HTTP version" in raw(server, b"POST / HTTP/9.9\r\n\r\n")[1]["error"]["what"]


def test_nothing_of_a_request_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with served(HeldCritic(), tmp_path, token="my secret") as server:
        post(server, {"prompt": "private", "text": "words"}, Authorization="Bearer my secret", path="/v1/critique")
        post(server, {"prompt": "private", "text": "words"}, Authorization="Bearer wrong", path="/v1/private")

        def answer(body: bytes) -> Any:
            raise KeyError("private")

        server.answer = answer  # type: ignore[method-assign]
        with pytest.raises(ConnectionError):
            post(server, {}, Authorization="Bearer my secret")
    assert [record.getMessage() for record in caplog.records] == ["a request ended in KeyError"]
    lines = "".join(capfd.readouterr()).splitlines()  # of the log, where a command has set it up before
    assert [line for line in lines if not line.endswith("  a request ended in KeyError")] == []


def test_a_kept_critique_that_is_damaged_and_a_full_disk_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(HeldCritic(), tmp_path) as server:
        assert post(server, {"prompt": "Well?", "text": "so"})[0] == 200
        server.queue.critic.known = dict.fromkeys(server.queue.critic.known, 7)
        status, answer, _ = post(server, {"prompt": "Well?", "text": "so"})
        assert (status, "kept.jsonl" in answer["error"]["what"]) == (500, True)

        def full(path: Path, records: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("text2grad.critics.cached.append_records", full)
        status, answer, _ = post(server, {"prompt": "Well?", "text": "more"})
        assert (status, "No space left on device" in answer["error"]["what"]) == (502, True)


def test_an_address_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    with served(HeldCritic(), tmp_path) as server:
        with pytest.raises(ConfigError, match=r"cannot listen on 127.0.0.1:\d+: .*; choose another --listen"):
            CriticServer(("127.0.0.1", server.server_port), server.queue.critic, small_run.recipe(tmp_path), None)
        for host in ("0.0.0.0", ""):
            with pytest.raises(
                ConfigError, match="lets other machines ask, and there is no token: set TEXT2GRAD_SERVE"
            ):
                CriticServer((host, 0), server.queue.critic, small_run.recipe(tmp_path), None)
        CriticServer(("0.0.0.0", 0), server.queue.critic, small_run.recipe(tmp_path), None, "secret").server_close()


def test_equal_prompts_with_other_references_are_other_requests(tmp_path: Path) -> None:
    def reader(examples: Any, responses: Any) -> list[str]:
        return [f'{{"feedback": "{example.reference}"}}' for example in examples]

    with served(reader, tmp_path) as server:
        said = [post(server, {"prompt": "Well?", "text": "so", "reference": each})[1]["feedback"] for each in "ab"]
    assert said == ["a", "b"]
