"""`text2grad annotate` from its command line, and the same as a critic: what they write, say and return."""

import asyncio
import fcntl
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fault_server import MALFORMED, SECRET, Running, running
from text2grad import LLMCritic
from text2grad.cli.__main__ import main
from text2grad.cli.annotate import _write
from text2grad.config.recipe import Recipe
from text2grad.config.run_directory import digest_of
from text2grad.critics.servers import Answer, Item, cached_client
from text2grad.critics.servers.templates import Template
from text2grad.errors import ConfigError, CriticError, RequestError
from text2grad.feedback.critic import Critic, ask
from text2grad.feedback.records import read_annotations
from text2grad.rl.rollouts import EarlyCritiques
from text2grad.types import Critique, Example, Rollout, Span

SPANS = (Span(0, 2, "positive"), Span(8, 14, "negative"))


pytestmark = pytest.mark.usefixtures("short_waits")


def recipe(path: Path, server: Running, scripts: list[str], **settings: Any) -> Path:
    """Write data whose prompts say what happens to them, and a recipe."""
    records = [
        {
            "prompt": f"How are you, {path}? [[{script}]]",
            "response": "So glad today.",
            "id": f"{row}-{script.split()[0]}",
        }
        for row, script in enumerate(scripts)
    ]
    (path / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    values = {"model": "m", "base_url": server.url, "api_key_env": "SOME_KEY", "out": str(path / "out")}
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**values, **settings}.items()]
    (path / "recipe.toml").write_text("\n".join([f'[data]\ntrain = "{path}/data.jsonl"\n[annotate]', *lines]))
    return path / "recipe.toml"


def written(path: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "out" / f"{name}.jsonl").read_text().splitlines()]


def test_responses_become_annotations_and_a_repeated_run_makes_no_request(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(tmp_path, server, ["ok", "429 ok", "misquote"], prices=[2.5, 10.0])
    assert main(["annotate", str(path)]) == 0
    said = capsys.readouterr().out
    for line in ("critiques 3 of 3", "requests 4, of which 1 repeated", "tokens 300 read, 60 written"):
        assert line in " ".join(said.split())
    assert "quotes not found 1 of 6" in " ".join(said.split())
    assert "cost of all answers $0.0014" in " ".join(said.split())  # 3 (100 * 2.5 + 20 * 10) / 1e6 = 0.00135
    first = written(tmp_path, "annotations")[0]
    assert first["annotator"] == {
        **{"model": "m", "template": "qa", "reasoning": True, "prompt_tokens": 100, "completion_tokens": 20},
    }
    found = read_annotations(tmp_path / "out" / "annotations.jsonl")
    assert [one.critique.spans for one in found] == [SPANS, SPANS, SPANS[:1]]
    assert found[2].critique.unmatched == ("what nobody said",)
    assert written(tmp_path, "failures") == []

    before, requests = (tmp_path / "out" / "annotations.jsonl").read_bytes(), server.requests()
    assert main(["annotate", str(path)]) == 0
    assert "answers from before 3" in " ".join(capsys.readouterr().out.split())
    assert server.requests() == requests
    assert (tmp_path / "out" / "annotations.jsonl").read_bytes() == before


def test_replies_that_are_no_http_are_repeated_then_listed_and_nothing_paid_for_is_lost(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_client, "RETRIES", 6)
    names = [*sorted(set(MALFORMED) - {"charset"}), "cut", "drop", "garbage"]
    path = recipe(tmp_path, server, ["ok", *(f"{name} ok" for name in names)])
    assert main(["annotate", str(path)]) == 0
    assert len(written(tmp_path, "annotations")) == len(names) + 1

    monkeypatch.setattr(cached_client, "RETRIES", 1)
    (tmp_path / "twice").mkdir()
    path = recipe(tmp_path / "twice", server, ["ok", *(f"{name} {name} ok" for name in names), "charset"])
    assert main(["annotate", str(path)]) == 3
    failures = written(tmp_path / "twice", "failures")
    # A connection that the server has just closed may cost any other request an attempt, too.
    assert set(names) <= {one["id"].partition("-")[2] for one in failures}
    assert {one["kind"] for one in failures} == {"connection", "bad_reply"}
    assert all(one["detail"] and SECRET not in one["detail"] for one in failures)
    kept = len(names) + 2 - len(failures)
    assert len(written(tmp_path / "twice", "annotations")) == kept, "the file holds what could be read"
    said = " ".join(capsys.readouterr().out.split())
    assert f"critiques {kept} of {len(names) + 2}" in said
    monkeypatch.setattr(cached_client, "RETRIES", 6)
    assert main(["annotate", str(path)]) == 0
    assert f"answers from before {kept}" in " ".join(capsys.readouterr().out.split()), "only the rest is requested"


def test_annotations_that_a_smaller_run_overwrote_come_back_without_a_request(server: Running, tmp_path: Path) -> None:
    path = recipe(tmp_path, server, ["ok", "ok ok"])
    assert main(["annotate", str(path)]) == 0
    before, requests = (tmp_path / "out" / "annotations.jsonl").read_bytes(), server.requests()
    assert main(["annotate", str(path), "--limit", "1"]) == 0
    assert len(written(tmp_path, "annotations")) == 1
    assert main(["annotate", str(path)]) == 0
    assert (tmp_path / "out" / "annotations.jsonl").read_bytes() == before
    assert server.requests() == requests


def test_files_of_others_are_not_overwritten(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(tmp_path, server, ["ok"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "annotations.jsonl").write_text("by hand")
    assert main(["annotate", str(path), "--out", str(tmp_path / "mine")]) == 2
    assert "holds other files (annotations.jsonl); choose another --out" in " ".join(capsys.readouterr().err.split())
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["annotations.jsonl"]


def test_failures_are_listed_by_kind_with_the_first_ids_and_the_exit_status_says_that_some_remain(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = ["ok", *["prose"] * 7, "refused", "500 500 ok", "400"]
    path = recipe(tmp_path, server, scripts)
    assert main(["annotate", str(path)]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "unreadable: 7 (1-prose, 2-prose, 3-prose, 4-prose, 5-prose, …): Once upon a time" in said
    assert "refused: 1 (8-refused): I will not." in said
    assert "server_error: 1 (9-500): status 500" in said
    assert "it requests the 2 missing answers only" in said
    failures = written(tmp_path, "failures")
    assert [one["kind"] for one in failures] == ["unreadable"] * 7 + ["refused", "server_error", "rejected"]
    assert failures[8] == {**failures[8], "id": "9-500", "response": "So glad today."}
    assert len(written(tmp_path, "annotations")) == 1
    assert main(["annotate", str(path)]) == 3  # the server error is over
    assert [one["kind"] for one in written(tmp_path, "failures")] == ["unreadable"] * 7 + ["refused", "rejected"]


def test_a_limit_of_money_needs_prices(server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["annotate", str(recipe(tmp_path, server, ["ok"])), "--max-cost", "5"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "max_cost needs prices: without them nothing costs anything" in said


def test_the_key_is_in_no_output_and_no_file(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(tmp_path, server, ["echo", "400", "500 500"])
    assert main(["annotate", str(path)]) == 3
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    assert "[key]" in (tmp_path / "out" / "annotations.jsonl").read_text()
    for file in (tmp_path / "out").iterdir():
        assert SECRET.encode() not in file.read_bytes()


def test_a_second_run_on_the_same_directory_is_refused(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(tmp_path, server, ["ok"])
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["annotate", str(path)]) == 2
    assert "another run is writing to" in capsys.readouterr().err
    assert main(["annotate", str(path)]) == 0


def test_to_interrupt_a_run_lets_what_is_under_way_end_and_loses_nothing(tmp_path: Path) -> None:
    with running("--delay-s", "0.05") as server:
        path = recipe(tmp_path, server, [f"ok {'ok ' * row}" for row in range(150)], concurrency=2)
        command = [sys.executable, "-m", "text2grad.cli", "annotate", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            server.hold(5)  # it cannot end before the signal
            while server.requests() < 5 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            server.hold(0)
            said, _ = process.communicate(timeout=120)
        assert process.returncode == 3
        assert "stopped by SIGINT" in said
        done = written(tmp_path, "annotations")
        assert 3 <= len(done) == server.requests() < 150
        assert main(["annotate", str(path), "--set", "annotate.concurrency=64"]) == 0
        assert set(server.state()["counts"].values()) == {1}


def test_a_language_model_on_a_server_is_a_critic_that_is_asked_once(server: Running, tmp_path: Path) -> None:
    settings = {"base_url": server.url, "api_key_env": "SOME_KEY", "store": tmp_path / "deep" / "critic.sqlite"}
    critic = LLMCritic("m", template="summarization", **settings)
    assert isinstance(critic, Critic)
    examples = [Example("[[ok]] of a critic"), Example("[[prose]] of a critic"), Example("[[400]] of a critic")]
    for _ in range(2):
        found = ask(critic, examples, ["So glad today."] * 3, match="exact")
        assert [one.status for one in found] == ["ok", "unparsable", "timed_out"]
        assert (found[0].spans, found[1].spans) == (SPANS, ())
    requests = server.requests()
    assert ask(critic, examples[:2], ["So glad today."] * 2, match="exact") == found[:2]
    assert server.requests() == requests


def test_a_critic_on_a_server_works_where_an_event_loop_runs(server: Running, tmp_path: Path) -> None:
    critic = LLMCritic("m", base_url=server.url, api_key_env="", store=tmp_path / "critic.sqlite")

    async def in_a_notebook() -> tuple[Span, ...]:
        return critic([Example("[[ok]] in a loop")], ["So glad today."])[0].spans

    assert asyncio.run(in_a_notebook()) == SPANS


def test_a_critic_on_a_server_judges_parts_of_a_step_in_several_threads(server: Running, tmp_path: Path) -> None:
    critic = LLMCritic("m", base_url=server.url, api_key_env="", store=tmp_path / "critic.sqlite")
    rollouts = [
        Rollout(Example(f"How are you? [[ok]] {number}"), (1,), (2,), "So glad today.", False) for number in range(12)
    ]
    texts = [one.response for one in rollouts]
    with EarlyCritiques(critic, {"match": "exact"}, critic.overlap) as parts:
        for start in range(0, 12, 2):
            parts.add(rollouts[start : start + 2])
        found = parts.critiques()
    assert critic.overlap == 4
    assert [one.status for one in found] == ["ok"] * 12
    read, written = critic.tokens.prompt, critic.tokens.generated
    assert found == critic([one.example for one in rollouts], texts)  # from the store
    assert (critic.tokens.prompt, critic.tokens.generated) == (read, written)
    assert read > 0
    # The calls of a critic with a budget follow each other: each spends from what those before it left.
    limited = LLMCritic("m", base_url=server.url, api_key_env="", max_cost=1.0, prices=(1.0, 0.0))
    assert limited.overlap == 0


def test_the_budget_of_a_critic_is_that_of_all_its_calls(server: Running, tmp_path: Path) -> None:
    def judged(critic: LLMCritic, *numbers: int) -> None:
        for number in numbers:
            assert critic([Example(f"[[ok]] {tmp_path} {number}")], ["So glad today."])[0].spans == SPANS

    where = {"base_url": server.url, "api_key_env": ""}
    before = server.requests()
    # 20 tokens of answer at $50,000 per million are $1, also at most; the third answer would be the third dollar
    dollars = {"max_cost": 2.5, "prices": (0.0, 50_000.0), "max_tokens": 20}
    dear = LLMCritic("m", store=tmp_path / "dollars.sqlite", **dollars, **where)
    judged(dear, 4, 5)
    with pytest.raises(CriticError, match=r"the budget of 2\.5 US dollars leaves no room for a request"):
        judged(dear, 6)
    again = LLMCritic("m", store=tmp_path / "dollars.sqlite", **(dollars | {"max_cost": 3.5}), **where)
    judged(again, 6)  # the two dollars of the critic before it count
    with pytest.raises(CriticError, match=r"the budget of 3\.5 US dollars leaves no room for a request"):
        judged(again, 7)
    assert server.requests() - before == 2 + 1


def test_a_critic_whose_key_is_turned_away_is_an_error(server: Running, tmp_path: Path) -> None:
    critic = LLMCritic("m", base_url=server.url, api_key_env="", store=tmp_path / "critic.sqlite", concurrency=1)
    with pytest.raises(CriticError, match=r"no more requests are sent to m at http://127\.0\.0\.1:\d+/v1: status 401"):
        critic([Example("[[401]] critic"), Example("[[ok]] never asked")], ["So.", "So."])


def test_a_critic_of_programs_shows_what_their_tests_said(server: Running, tmp_path: Path) -> None:
    critic = LLMCritic("m", template="code", base_url=server.url, api_key_env="", store=tmp_path / "critic.sqlite")
    example, program = Example("Twice. [[ok]]", tests="assert twice(2) == 4"), "def twice(x): return 2 * x"
    critic([example], [program])
    shown = Template("code").messages(example, program, tests="All tests passed.")[0]["content"]
    assert server.times(shown) == 1


def test_a_critic_without_a_key_or_with_settings_that_do_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="the environment variable NO_SUCH_KEY holds no key"):
        LLMCritic("m", api_key_env="NO_SUCH_KEY")
    with pytest.raises(
        ConfigError,
        match=r'^LLMCritic: \[annotate\] has no key "tempreature"\. Did you mean "temperature"\? Known keys: ',
    ):
        LLMCritic("m", tempreature=0.5)


def test_tokens_that_a_server_did_not_count_are_none_and_a_failure_is_its_kind_and_detail(tmp_path: Path) -> None:
    answers = [(Critique("No."), Answer("{}", "stop", *counts)) for counts in ((7, 2), (-700, -512), (None, None))]
    item = Item("a", Example("Where?"), "In Lyon.")
    _write(tmp_path, Recipe(), [item] * 4, [*answers, RequestError("empty", "no content")])
    (tmp_path / "out").symlink_to(tmp_path)
    tokens = [line["annotator"] for line in written(tmp_path, "annotations")]
    assert [(each["prompt_tokens"], each["completion_tokens"]) for each in tokens] == [(7, 2), (0, 0), (0, 0)]
    failure = {"id": "a", "prompt": "Where?", "response": "In Lyon.", "kind": "empty", "detail": "no content"}
    assert written(tmp_path, "failures") == [failure]


# A critic in Python.

JUDGES = """
def good(examples, responses):
    return ['{"feedback": "Good.", "good_spans": ["glad"]}'] * len(responses)

def poor(examples, responses):
    return ['{"feedback": "Poor.", "poor_spans": ["glad"]}'] * len(responses)

def unclear(examples, responses):
    return ['{"feedback": "Good.", "good_spans": ["glad"]}', *['{"feedback": "no'] * (len(responses) - 1)]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write a module of critics, two responses, and a recipe; return the command, whose critic is to be named."""
    module = f"judges_{abs(hash(tmp_path))}"
    (tmp_path / f"{module}.py").write_text(JUDGES)
    monkeypatch.syspath_prepend(tmp_path)
    records = [{"prompt": f"How are you, {name}?", "response": "So glad today."} for name in ("Ana", "Bo")]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "my.toml").write_text(f'[data]\ntrain = "{tmp_path}/data.jsonl"\n[annotate]\nout = "{tmp_path}/out"\n')
    return ["annotate", str(tmp_path / "my.toml"), "--own-critic", "--set", f"critic.use={module}:"]


def by(own: list[str], name: str) -> int:
    return main([*own[:-1], own[-1] + name])


def test_critiques_of_two_critics_are_not_mixed_in_a_directory(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert by(own, "good") == 0
    before = (tmp_path / "out" / "annotations.jsonl").read_bytes()
    module = own[-1].partition("=")[2].strip(":")
    assert by(own, "poor") == 2
    assert (
        f'{tmp_path}/out holds critiques of another critic: {{"critic": "{module}:good"}}, now {{"critic": '
        f'"{module}:poor"}}. Choose another --out, or remove {tmp_path}/out/critic.json and the critiques beside it'
    ) in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "out" / "annotations.jsonl").read_bytes() == before
    for name in ("critiques.jsonl", "critic.json"):
        (tmp_path / "out" / name).unlink()
    assert by(["annotate", "--force", *own[1:]], "poor") == 0  # only annotations are left, which it cannot know
    labels = [one.critique.spans[0].label for one in read_annotations(tmp_path / "out" / "annotations.jsonl")]
    assert labels == ["negative", "negative"]


def test_critiques_of_a_critic_whose_source_has_changed_are_not_taken_for_its_own(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert by(own, "good") == 0
    assert by(own, "good") == 0
    source = next(tmp_path.glob("judges_*.py"))
    source.write_text(JUDGES + "# changed\n")
    capsys.readouterr()
    assert by(own, "good") == 2
    now = digest_of(source)
    source.write_text(JUDGES)
    said = " ".join(capsys.readouterr().err.split())
    assert f'another critic: {{"files": "{digest_of(source)}"}}, now {{"files": "{now}"}}. Choose another --out' in said
    assert by(own, "good") == 0


def test_a_failed_critique_of_an_own_critic_is_told_by_the_exit_status(
    own: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert by(own, "unclear") == 3
    assert "failed critiques 1" in " ".join(capsys.readouterr().out.split())


def test_what_people_said_of_a_response_stays_beside_the_spans_of_an_own_critic(own: list[str], tmp_path: Path) -> None:
    rows = [
        {"prompt": "A?", "response": "So glad today.", "outcome": -0.5, "feedback": "Too short."},
        {"prompt": "B?", "response": "So glad today.", "critique": {"feedback": "", "outcome": 1, "spans": []}},
        {"prompt": "C?", "response": "So glad today."},
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert by(own, "good") == 0
    people, number, none = (one.critique for one in read_annotations(tmp_path / "out" / "annotations.jsonl"))
    assert (people.outcome, people.feedback) == (-0.5, "Too short.")
    assert (number.outcome, number.feedback) == (1.0, none.feedback)
    assert none.outcome is None
    assert people.spans == number.spans == none.spans != ()
