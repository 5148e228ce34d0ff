"""Annotation against a server that misbehaves: what each fault becomes, what is repeated, and what is written down."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fault_server import SECRET, Running, running
from text2grad.config.server import AnnotateConfig, Endpoint
from text2grad.critics.servers import cached_client
from text2grad.critics.servers.annotation import Annotator, Item, Judged
from text2grad.critics.servers.cached_client import CachedClient
from text2grad.critics.servers.pace import Pace, Usage
from text2grad.critics.servers.session import run_session
from text2grad.critics.servers.store import Answer, Store
from text2grad.critics.servers.templates import Template
from text2grad.errors import ConfigError, RequestError
from text2grad.types import Critique, Example, Span

pytestmark = pytest.mark.usefixtures("short_waits")


def item(script: str, name: str = "", *, response: str = "So glad today.", feedback: str | None = None) -> Item:
    return Item(name or script, Example(f"How are you? [[{script}]] {name}"), response, feedback)


def prompt(one: Item, **settings: Any) -> str:
    template = Template(settings.get("template", "qa"), settings.get("reasoning", True))
    return template.messages(one.example, one.response, feedback=one.feedback)[0]["content"]


class Verdict(NamedTuple):
    """What a session made of an item: a critique and the answer that holds it, or a failure."""

    critique: Critique | None = None
    answer: Answer | None = None
    failure: RequestError | None = None


def judged(
    server: Running,
    path: Path,
    *items: Item,
    retries: int = 6,
    schemas: bool | None = None,
    paces: list[Pace] | None = None,
    **settings: Any,
) -> tuple[list[Verdict], Usage]:
    """Annotate items; the client knows from the start whether the server takes schemas, unless that is None."""
    values = {"model": "m", "base_url": server.url, "api_key_env": "SOME_KEY", "concurrency": 8, "timeout_s": 10.0}
    config = AnnotateConfig(**{**values, **settings})
    annotator = Annotator(Template(config.template, config.reasoning))

    async def annotate(client: CachedClient, one: Item) -> Judged:
        client._takes_formats = client._takes_formats if schemas is None else schemas
        if paces is not None:
            paces.append(client.pace)
        return await annotator.annotate(client, one)

    with Store(path / "answers.sqlite") as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached_client, "RETRIES", retries)
        results, usage = run_session(config.checked(), store, annotate, items, phase="")
    return [Verdict(failure=each) if isinstance(each, RequestError) else Verdict(*each) for each in results], usage


def kinds(verdicts: list[Verdict]) -> list[str]:
    return [verdict.failure.kind if verdict.failure else "ok" for verdict in verdicts]


def test_an_answer_becomes_feedback_and_spans_of_the_response(server: Running, tmp_path: Path) -> None:
    (verdict,), usage = judged(server, tmp_path, item("ok", "plain"))
    assert verdict.failure is None
    assert verdict.critique is not None
    assert verdict.critique.feedback == '"So" is right, but "today." is wrong.'
    assert verdict.critique.spans == (Span(0, 2, "positive"), Span(8, 14, "negative"))
    assert verdict.answer is not None
    assert (verdict.answer.prompt_tokens, verdict.answer.completion_tokens) == (100, 20)
    assert usage == Usage(requests=1, prompt_tokens=100, completion_tokens=20)


def test_of_an_answer_in_parts_the_text_is_read_and_not_the_thoughts(server: Running, tmp_path: Path) -> None:
    (verdict,), _ = judged(server, tmp_path, item("parts", "parts"))
    (plain,), _ = judged(server, tmp_path, item("ok", "parts"))
    assert verdict == plain
    assert verdict.critique is not None
    assert verdict.critique.status == "ok"


@pytest.mark.parametrize(
    "fault", ["429", "429:0.01", "500", "503", "drop", "cut", "garbage", "wrong", "in:number", "in:broken", "in:text"]
)
def test_a_passing_fault_is_repeated_and_then_answered(server: Running, tmp_path: Path, fault: str) -> None:
    one = item(f"{fault} {fault} ok", "passing")
    verdicts, usage = judged(server, tmp_path, one, schemas=False)
    assert kinds(verdicts) == ["ok"]
    assert (usage.requests, usage.retried) == (3, 2)
    assert server.times(prompt(one)) == 3


@pytest.mark.parametrize(
    ("fault", "kind", "detail"),
    [
        ("429", "rate_limit", "status 429"),
        ("500", "server_error", "status 500"),
        ("drop", "connection", "ServerDisconnectedError"),
        ("cut", "connection", "ContentLengthError"),
        ("garbage", "bad_reply", "<html>Bad gateway</html>"),
        ("wrong", "bad_reply", '{"choices": "none"}'),
        ("in:number", "server_error", "Provider returned error"),
        ("in:broken", "server_error", "status 502"),
        ("in:ended", "bad_reply", '"finish_reason": "error"'),
        ("in:text", "server_error", "Request timed out."),
        ("in:page", "server_error", "504 Gateway Time-out"),
        ("in:busy", "rate_limit", "status 429"),
    ],
)
def test_a_lasting_fault_is_a_failure_of_its_kind_and_is_asked_again_by_the_next_run(
    server: Running, tmp_path: Path, fault: str, kind: str, detail: str
) -> None:
    one = item(f"{fault} {fault} ok", "lasting")
    (verdict,), usage = judged(server, tmp_path, one, retries=1, schemas=False)
    assert verdict.critique is None
    assert verdict.failure is not None
    assert (verdict.failure.kind, usage.requests) == (kind, 2)
    assert detail in verdict.failure.detail
    again, usage = judged(server, tmp_path, one, retries=1, schemas=False)
    assert (kinds(again), usage.requests) == (["ok"], 1)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("refused", "refused"),
        ("filtered", "refused"),
        ("empty", "empty"),
        ("length", "truncated"),
        ("prose", "unreadable"),
        ("copied", "unreadable"),  # of Qwen2.5-Coder-0.5B behind vLLM's CPU build 0.31
        ("thoughts", "empty"),
        ("cutthoughts", "truncated"),
    ],
)
def test_an_answer_without_a_critique_is_a_failure_that_is_paid_for_once(
    server: Running, tmp_path: Path, fault: str, kind: str
) -> None:
    one = item(fault, "once")
    for requests in (1, 0):
        verdicts, usage = judged(server, tmp_path, one)
        assert (kinds(verdicts), usage.requests, usage.reused) == ([kind], requests, 1 - requests)
    assert server.times(prompt(one)) == 1


@pytest.mark.parametrize("fault", ["thoughts", "cutthoughts"])
def test_an_answer_that_stands_in_another_field_than_its_text_is_told_as_such(
    server: Running, tmp_path: Path, fault: str
) -> None:
    """vLLM with a reasoning parser and a schema, SGLang and GLM put it there: ik_llama#778, llama.cpp#23463."""
    (verdict,), _ = judged(server, tmp_path, item(fault, "beside"))
    thought = 'I think: {"textual_feedback": "\\"So\\" is right, but \\"today.\\" is wrong.", "good_spans": ["So"], '
    thought += '"poor_spans": ["today."]}'
    ending = "stop" if fault == "thoughts" else "length"
    assert verdict.failure is not None
    assert verdict.failure.detail == (
        f"no content, {len(thought)} characters of reasoning_content (finish_reason {ending}); raise max_tokens "
        "(--max-new-tokens)"
    )


def test_a_body_that_trickles_in_is_cut_off_by_the_time_limit(server: Running, tmp_path: Path) -> None:
    verdicts, _ = judged(server, tmp_path, item("slow"), timeout_s=0.3, retries=0)
    assert kinds(verdicts) == ["timeout"]
    assert verdicts[0].failure is not None
    assert verdicts[0].failure.detail == "no answer within 0.3 s; raise timeout_s, or lower concurrency"


def test_an_answer_of_ten_megabytes_is_unreadable_and_not_asked_for_again(server: Running, tmp_path: Path) -> None:
    for requests in (1, 0):
        verdicts, usage = judged(server, tmp_path, item("huge"))
        assert (kinds(verdicts), usage.requests) == (["unreadable"], requests)


def test_a_critique_with_a_key_that_comes_twice_with_two_values_is_unreadable(server: Running, tmp_path: Path) -> None:
    (verdict,), _ = judged(server, tmp_path, item("doubled"))
    assert kinds([verdict]) == [
        "unreadable"
    ]  # JSON readers would keep the last, of which nobody knows that it is meant


def test_a_request_that_is_no_good_is_not_repeated(server: Running, tmp_path: Path) -> None:
    verdicts, usage = judged(server, tmp_path, item("400"), schemas=False)
    assert (kinds(verdicts), usage.requests, usage.retried) == (["rejected"], 1, 0)


@pytest.mark.parametrize(
    ("status", "kind", "requests", "stops"),
    [
        *((status, "server_error", 2, False) for status in ("408", "409", "425", "503")),
        ("422", "rejected", 1, False),
        *((status, "rejected", 1, True) for status in ("401", "402", "403", "404")),
        ("429", "rate_limit", 2, False),
        ("429:601", "rate_limit", 1, True),  # longer than anybody is waited for
        ("quota", "rate_limit", 1, True),
    ],
)
def test_a_status_is_asked_again_or_stops_the_run_or_neither(
    server: Running, tmp_path: Path, status: str, kind: str, requests: int, stops: bool
) -> None:
    items = [item(f"{status} {status}", "status"), item("ok", f"after {status}")]
    verdicts, usage = judged(server, tmp_path, *items, concurrency=1, retries=1, schemas=False)
    assert kinds(verdicts) == [kind, "not_asked" if stops else "ok"]
    assert usage.requests == requests + (not stops)


def test_a_key_that_is_turned_away_stops_the_run(server: Running, tmp_path: Path) -> None:
    items = [item("401", "wrong key"), *(item("ok", f"after {row}") for row in range(20))]
    verdicts, usage = judged(server, tmp_path, *items, concurrency=1)
    assert kinds(verdicts) == ["rejected"] + ["not_asked"] * 20
    assert usage.requests == 1
    assert verdicts[1].failure is not None
    assert "status 401" in verdicts[1].failure.detail


def test_a_server_that_never_answers_is_given_up(server: Running, tmp_path: Path) -> None:
    items = [item("500 500 500", f"down {row}") for row in range(40)]
    verdicts, usage = judged(server, tmp_path, *items, concurrency=1, retries=0, schemas=False)
    assert kinds(verdicts) == ["server_error"] * cached_client.GIVE_UP_AFTER + ["not_asked"] * 20
    assert usage.requests == cached_client.GIVE_UP_AFTER


def test_one_answer_among_them_shows_that_the_server_is_there(server: Running, tmp_path: Path) -> None:
    items = [
        item(script, f"flaky {row}") for row in range(cached_client.GIVE_UP_AFTER + 1) for script in ("500 500", "ok")
    ]
    verdicts, _ = judged(server, tmp_path, *items, concurrency=1, retries=0, schemas=False)
    assert kinds(verdicts) == ["server_error", "ok"] * (cached_client.GIVE_UP_AFTER + 1)


@pytest.mark.parametrize("status", ["400", "404", "422", "500", "501", "503"])  # 503 names the format
def test_a_server_without_schemas_is_asked_without_after_its_first_refusal(tmp_path: Path, status: str) -> None:
    """llama-cpp-python and ik_llama.cpp answer 500: ik_llama#778."""
    items = [item("ok", f"{row}") for row in range(10)]
    with running("--no-schemas", status) as server:
        verdicts, usage = judged(server, tmp_path, *items, concurrency=1)
        assert (kinds(verdicts), usage.requests, server.requests()) == (["ok"] * 10, 11, 11)
        assert usage.retried == 0
        verdicts, usage = judged(server, tmp_path, *items)  # nor does the next run find out again
        assert (kinds(verdicts), usage.requests) == (["ok"] * 10, 0)
        verdicts, _ = judged(server, tmp_path, item("ok", "forced"), schemas=True, retries=0)
        assert kinds(verdicts) == ["server_error" if status[0] == "5" else "rejected"]


def test_an_error_that_every_request_meets_ends_the_run_with_the_words_of_the_server(tmp_path: Path) -> None:
    """`transformers serve` 5.23 and LiteLLM's proxy 1.108.7 answer 400 to a wrong name of the model."""
    items = [item("ok", f"{row}") for row in range(40)]
    with running("--reject-all") as server:
        verdicts, usage = judged(server, tmp_path, *items, concurrency=32)
    # 3 rejections with a schema and 3 without, and the shortest prompt; some more may be under way
    assert 7 <= usage.requests <= 16
    assert set(kinds(verdicts)) == {"rejected", "not_asked"}
    assert verdicts[-1].failure is not None
    assert verdicts[-1].failure.detail == (
        "the server rejects every request, also the shortest: status 400: Error code: 400 Server is pinned to 'judge'; "
        "requested 'm'."
    )


def test_an_error_of_the_account_in_a_body_ends_the_run(server: Running, tmp_path: Path) -> None:
    items = [item("in:account", "account"), *(item("ok", f"{row}") for row in range(3))]
    verdicts, usage = judged(server, tmp_path, *items, concurrency=1, schemas=False)
    assert (kinds(verdicts), usage.requests) == (["rejected", *["not_asked"] * 3], 1)
    assert verdicts[1].failure is not None
    assert "Insufficient credits" in verdicts[1].failure.detail


def test_a_format_that_is_refused_in_a_body_is_left_out(server: Running, tmp_path: Path) -> None:
    verdicts, usage = judged(server, tmp_path, item("in:format ok", "format"))
    assert (kinds(verdicts), usage.requests, usage.retried) == (["ok"], 2, 0)


@pytest.mark.parametrize(
    ("script", "limit"), [("in:number", 4.25), ("in:text", 4.25), ("in:page", 4.25), ("wrong", 8.0)]
)
def test_a_timeout_that_comes_as_an_answer_slows_the_run_down(
    server: Running, tmp_path: Path, script: str, limit: float
) -> None:
    """The limit of 8 is halved, and the answer raises it by 1 / 4."""
    paces: list[Pace] = []
    verdicts, _ = judged(server, tmp_path, item(f"{script} ok", f"pace {script}"), schemas=False, paces=paces)
    assert (kinds(verdicts), paces[0].limit) == (["ok"], limit)


def test_rejections_that_are_of_the_prompts_end_no_run(server: Running, tmp_path: Path) -> None:
    items = [*(item("400 400", f"long {row}") for row in range(13)), item("ok", "short")]
    verdicts, usage = judged(server, tmp_path, *items, concurrency=1, schemas=False)
    assert kinds(verdicts) == ["rejected"] * 13 + ["ok"]
    assert usage.requests == 14 + 3  # the shortest prompt is tried after 3, 6 and 12 rejections


def test_timeouts_slow_a_run_down_until_the_server_keeps_up(tmp_path: Path) -> None:
    items = [item("ok", f"{row}") for row in range(12)]
    with running("--in-turn", "--delay-s", "0.1") as server:
        paces: list[Pace] = []
        settings: dict[str, Any] = {"concurrency": 32, "timeout_s": 0.35, "schemas": False, "retries": 20}
        verdicts, usage = judged(server, tmp_path, *items, paces=paces, **settings)
    assert kinds(verdicts) == ["ok"] * 12
    assert usage.retried > 0
    assert paces[0].limit < 16


def test_a_server_with_the_newer_name_of_the_length_limit_is_asked_by_that_name(tmp_path: Path) -> None:
    items = [item("ok", f"{row}") for row in range(10)]
    with running("--newer-names") as server:
        verdicts, usage = judged(server, tmp_path, *items, concurrency=1)
        assert (kinds(verdicts), usage.retried) == (["ok"] * 10, 0)
        assert usage.requests == server.requests() == 11  # the first is refused by its name, and no other
        assert (server.state()["last"].get("max_tokens"), server.state()["last"]["max_completion_tokens"]) == (
            None,
            1200,
        )
        _, usage = judged(server, tmp_path, *items)
        assert usage.reused == 10  # the name is no part of the question


def test_what_stands_twice_in_the_data_is_asked_once(server: Running, tmp_path: Path) -> None:
    one = item("ok", "twice")
    verdicts, usage = judged(server, tmp_path, one, one, one, concurrency=3)
    assert (kinds(verdicts), usage.requests, server.times(prompt(one))) == (["ok"] * 3, 1, 1)


def test_another_setting_that_an_answer_depends_on_is_another_question(server: Running, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = [{}, {"temperature": 0.5}, {"max_tokens": 77}, {"concurrency": 3}]
    requests = [judged(server, tmp_path, item("ok", "settings"), **settings)[1].requests for settings in told]
    assert requests == [1, 1, 1, 0]


def test_quotes_that_are_not_there_are_dropped_and_listed(server: Running, tmp_path: Path) -> None:
    one = item("misquote", "not there")
    (verdict,), usage = judged(server, tmp_path, one)
    assert verdict.critique is not None
    assert verdict.critique.spans == (Span(0, 2, "positive"),)
    assert (verdict.critique.unmatched, usage.requests) == (("what nobody said",), 1)


def test_people_are_quoted_and_only_their_places_are_asked_for(server: Running, tmp_path: Path) -> None:
    (verdict,), _ = judged(server, tmp_path, item("ok", "people", feedback="So is fine, today is not."))
    assert verdict.critique is not None
    assert verdict.critique.feedback == "So is fine, today is not."
    assert verdict.critique.spans == (Span(0, 2, "positive"), Span(8, 14, "negative"))


@pytest.mark.parametrize("feedback", [None, "So is fine."])
def test_the_outcome_of_people_stays(server: Running, tmp_path: Path, feedback: str | None) -> None:
    (verdict,), _ = judged(server, tmp_path, item("ok", "outcome", feedback=feedback)._replace(outcome=-1.0))
    assert verdict.critique is not None
    assert (verdict.critique.outcome, len(verdict.critique.spans)) == (-1.0, 2)


def test_a_burst_of_refusals_slows_everyone_down_and_all_are_answered(tmp_path: Path) -> None:
    items = [item("ok", f"{row}") for row in range(60)]
    with running("--at-once", "4", "--delay-s", "0.01") as server:
        verdicts, usage = judged(server, tmp_path, *items, concurrency=32, schemas=False, retries=20)
        assert kinds(verdicts) == ["ok"] * 60
        assert usage.requests == 60 + usage.retried == server.requests()
        assert usage.retried > 0  # 32 at once are too many for 4


def test_a_refusal_halves_the_pace_and_an_answer_raises_it(server: Running, tmp_path: Path) -> None:
    paces: list[Pace] = []
    judged(server, tmp_path, item("429 ok", "pace"), schemas=False, paces=paces)
    assert paces[0].limit == 4.25  # 8 / 2, and 1/4 more


def test_a_request_is_repeated_after_what_the_server_asks_for_and_some_more(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(_: Pace, seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(Pace, "sleep", sleep)
    monkeypatch.setattr(cached_client, "FIRST_WAIT_S", 1.0)
    judged(server, tmp_path, item("503:7 503:7 503:7 503:7 ok", "waits"), schemas=False)
    assert all(7.0 < wait <= 7.0 + 2**number for number, wait in enumerate(waits))  # all would come back at once else
    assert len(waits) == 4


@pytest.mark.parametrize("works", [True, False])
def test_a_format_that_the_server_refuses_is_left_out_by_requests_under_way(tmp_path: Path, works: bool) -> None:
    items = [item("ok" if works else "400 400", f"{row}") for row in range(8)]
    with running("--no-schemas") as server:
        verdicts, usage = judged(server, tmp_path, *items, concurrency=8)
    assert kinds(verdicts) == ["ok" if works else "rejected"] * 8
    assert usage.retried == 0


def test_a_budget_of_money_is_never_overspent_and_counts_earlier_runs(server: Running, tmp_path: Path) -> None:
    # An answer costs 100 + 20 tokens at $1 = $0.00012; at most it could cost a token per byte and 50 more.
    items = [item("ok", f"money {row}") for row in range(20)]
    prices = {"prices": (1.0, 1.0), "max_tokens": 50}
    most = (len(prompt(items[0]).encode()) + cached_client._TEMPLATE_BYTES + 50) / 1e6
    limit = 5 * 0.00012 + most * 1.01
    verdicts, usage = judged(server, tmp_path, *items, max_cost=limit, **prices)
    assert usage.requests == 6  # the sixth could still cost the most; with it $0.00072 are spent, and a seventh cannot
    assert usage.cost == pytest.approx(6 * 0.00012)
    assert kinds(verdicts).count("not_asked") == 14
    _, usage = judged(server, tmp_path, *items, max_cost=limit, **prices)
    assert (usage.reused, usage.requests) == (6, 0)


@pytest.mark.parametrize(
    ("fault", "charged"),
    [
        *((fault, True) for fault in ("drop", "cut", "garbage", "slow", "uncounted", "zeros")),
        *((fault, False) for fault in ("400", "429", "500")),
    ],
)
def test_what_may_have_been_paid_for_counts_as_the_most_that_it_can_cost(
    server: Running, tmp_path: Path, fault: str, charged: bool
) -> None:
    one = item(fault, "é", response="très bien")
    settings: dict[str, Any] = {"max_tokens": 50, "prices": (1.0, 3.0), "schemas": False}
    _, usage = judged(server, tmp_path, one, retries=0, timeout_s=0.3 if fault == "slow" else 10.0, **settings)
    most = (len(prompt(one).encode()) + cached_client._TEMPLATE_BYTES + 3 * 50) / 1e6  # a token for each byte
    assert usage.cost == pytest.approx(most if charged else 0.0)
    with Store(tmp_path / "answers.sqlite") as store:  # an answer that nobody counted costs the next run as much
        later = Endpoint(model="m", prices=(1.0, 3.0)).cost(*store.tokens())
    assert later == pytest.approx(most if fault in ("uncounted", "zeros") else 0.0)


def test_a_placeholder_for_a_key_is_cut_out_of_no_answer(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "x")  # a letter of textual_feedback
    verdicts, _ = judged(server, tmp_path, item("ok"), retries=0)
    assert kinds(verdicts) == ["ok"]
    assert "[key]" not in repr(verdicts)
    assert verdicts[0].critique is not None
    assert verdicts[0].critique.feedback


@pytest.mark.parametrize("around", ["\n", "\r\n", " "])
def test_a_key_is_sent_without_the_white_space_around_it(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, around: str
) -> None:
    monkeypatch.setenv("SOME_KEY", f"{around}{SECRET}{around}")
    verdicts, _ = judged(server, tmp_path, item("echo", f"space{around!r}"), retries=0)
    assert kinds(verdicts) == ["ok"]
    assert verdicts[0].critique is not None
    assert verdicts[0].critique.feedback.endswith(" You sent Bearer [key].")


@pytest.mark.parametrize("key", [f"{SECRET}\n{SECRET}", f"{SECRET}é"])
def test_a_key_that_no_header_carries_is_refused_and_not_shown(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SOME_KEY", key)
    with pytest.raises(ConfigError) as caught:
        judged(server, tmp_path, item("ok"))
    assert str(caught.value) == (
        "the environment variable SOME_KEY holds a line break or a letter outside ASCII, which no header of HTTP can "
        "carry. Set it to the key alone"
    )


def test_the_key_is_in_no_answer_failure_or_file(server: Running, tmp_path: Path) -> None:
    verdicts, _ = judged(server, tmp_path, item("echo"), item("400", "key"), item("500 500", "key"), retries=0)
    assert kinds(verdicts) == ["ok", "rejected", "server_error"]
    assert "[key]" in repr(verdicts[0])
    assert "[key]" in repr(verdicts[1])
    assert SECRET not in repr(verdicts)
    for path in tmp_path.iterdir():
        assert SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": ""}, "[annotate] model is not set; name a model that the server has, such as gpt-4o"),
        (
            {"api_key_env": "NO_SUCH_KEY", "base_url": "http://localhost:1/v1"},
            "the environment variable NO_SUCH_KEY holds no key for http://localhost:1/v1. Set it, or set [annotate] "
            'api_key_env = "" for a server without keys',
        ),
        *(
            (
                {"base_url": f"http://{address}"},
                "[annotate] base_url contains a user, a password or a query, but a recipe must not contain secrets. "
                "Put the key into the environment variable that api_key_env names",
            )
            for address in (f"me:{SECRET}@localhost/v1", f"{SECRET}@localhost/v1", f"localhost/v1?key={SECRET}")
        ),
        (
            {"base_url": "localhost:8000"},
            "[annotate] base_url must be an address such as http://localhost:8000/v1, got 'localhost:8000'",
        ),
    ],
)
def test_settings_that_name_no_server_are_refused(
    server: Running, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        judged(server, tmp_path, item("ok"), **settings)
    assert str(caught.value) == message
