"""The server: who may ask, what it answers, and that texts and paths of a request reach nothing else."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from studio_world import append, record, session, write_run
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import item_of, mark_of
from text2grad_studio.app import _body, make_app
from text2grad_studio.columns import Filter
from text2grad_studio.exports import page_of_response
from text2grad_studio.process import WorkerProcess
from text2grad_studio.server import serve
from text2grad_studio.versions import Versions

PORT, TOKEN = 8321, "t" * 43
HUGE = "9" * 30


def client_of(tmp_path: Path, *, read_only: bool = False, known: bool = True, **more: Any) -> TestClient:
    run = tmp_path / "run"
    if not run.exists():
        write_run(run)
    made = session(tmp_path / "store", run, read_only=read_only, **more)
    client = TestClient(make_app(made, token=TOKEN, port=PORT), base_url=f"http://127.0.0.1:{PORT}")
    if known:
        client.get("/", params={"token": TOKEN})
    return client


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(tmp_path: Path) -> None:
    client = client_of(tmp_path, known=False)
    assert client.get("/").status_code == 403
    assert client.get("/api/studio").status_code == 403
    assert client.get("/", params={"token": "t" * 42 + "x"}).status_code == 403
    answer = client.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"[::1]:{PORT}"])
def test_a_foreign_host_is_refused(tmp_path: Path, host: str) -> None:
    assert client_of(tmp_path).get("/api/studio", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:1"])
def test_a_foreign_origin_is_refused(tmp_path: Path, origin: str) -> None:
    client = client_of(tmp_path)
    assert client.get("/api/studio", headers={"origin": origin}).status_code == 403
    assert client.get("/api/studio", headers={"origin": f"http://localhost:{PORT}"}).status_code == 200


def test_every_answer_has_the_policy_without_inline_scripts(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    for path in ("/", "/static/studio.js", "/api/studio", "/nothing", "/api/runs/9/rollouts"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_has_no_inline_script_or_style_and_no_foreign_address(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    page = client.get("/").text
    assert page.count("<script") == page.count('<script type="module" src="/static/')
    assert "style=" not in page
    assert "<style" not in page
    for name in ("studio.js", "detail.js", "response.js", "teach.js", "marks.js", "list.js", "curves.js", "tokens.js"):
        script = client.get(f"/static/{name}")
        assert script.headers["content-type"].startswith("text/javascript"), name
        assert "innerHTML" not in script.text
        assert "insertAdjacentHTML" not in script.text
        assert "https:" not in script.text


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/page.js", "/static/__init__.py", "/static/", "/marks"],
)
def test_only_listed_files_are_served(tmp_path: Path, path: str) -> None:
    assert client_of(tmp_path).get(path).status_code == 404


def test_a_page_of_responses_and_a_record(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    page = client.get("/api/runs/0/rollouts", params={"order": "oldest", "start": 2, "count": 3}).json()
    assert page["total"] == 12
    assert [(row["step"], row["row"]) for row in page["rows"]] == [(0, 2), (0, 3), (1, 0)]
    whole = client.get(f"/api/runs/0/rollouts/{page['rows'][0]['id']}").json()
    assert whole["delta"] == [0, -1, 0, 0, 0, 1, 0]
    assert client.get("/api/runs/0/places/2.3").json()["place"] == [2, 3]
    same = client.get(f"/api/runs/0/prompt/{whole['id']}").json()
    assert [row["step"] for row in same["groups"][0]["rows"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/api/runs/7/rollouts", "no source number 7"),
        ("/api/runs/0/rollouts/999", "has no response 999"),
        (
            "/api/runs/0/rollouts?step_from=x",
            'step_from is a whole number from -9223372036854775807 to 2^63 - 1, got "x"',
        ),
        ("/api/runs/0/rollouts?start=-1", 'start is a whole number from 0 to 2^63 - 1, got "-1"'),
        ("/api/runs/0/rollouts?count=1.5", 'count is a whole number from 0 to 2^63 - 1, got "1.5"'),
        ("/api/runs/0/rollouts?near=x", 'near is a whole number from -1 to 2^63 - 1, got "x"'),
        ("/api/runs/0/rollouts?operations=-1", 'operations is a whole number from 0 to 2^63 - 1, got "-1"'),
        ("/api/runs/0/rollouts?marked=all", 'marked is one of mine, done, open, or empty; got "all"'),
        (
            "/api/runs/0/rollouts?label=x",
            'label is one of positive, negative, both, none, unmatched, or empty; got "x"',
        ),
        (f"/api/runs/{HUGE}/curves", "the number of a source is a whole number from 0 to 2^63 - 1, got"),
        (f"/api/runs/0/rollouts/{HUGE}", "the number of a response is a whole number from 0 to 2^63 - 1, got"),
        (f"/api/runs/0/prompt/{HUGE}", "the number of a response is a whole number from 0 to 2^63 - 1, got"),
        (f"/api/runs/0/places/1.{HUGE}", "the row of a place is a whole number from 0 to 2^63 - 1, got"),
        (f"/api/runs/0/places/{HUGE}.1", "the step of a place is a whole number from"),
        ("/api/runs/0/places/7", 'a place is STEP.ROW, such as 3.0, or -.ROW for a file without steps; got "7"'),
        ("/api/runs/x/suggestions/a", 'the number of a source is a whole number from 0 to 2^63 - 1, got "x"'),
        ("/api/versions/x", 'the number of a version is a whole number from 0 to 2^63 - 1, got "x"'),
        ("/api/versions/9", "there is no version 9"),
        (f"/api/export/response.html?run=0&number={HUGE}", "number is a whole number from 0 to 2^63 - 1, got"),
        ("/api/export/response.html?run=0", "number is a whole number from 0 to 2^63 - 1, got null"),
        ("/api/runs/0/rollouts?order=id;DROP", "there is no order"),
        ("/api/runs/0/rollouts?reward_from=nan", "reward_from is a number"),
        ("/api/marks?rater=../x", "no name of a rater"),
        ("/api/export/passwd", "exports are annotations.jsonl"),
        ("/api/runs/0/places/1.99", "no response 99 of step 1"),
    ],
)
def test_a_request_that_cannot_be_answered_is_told_why(tmp_path: Path, path: str, message: str) -> None:
    answer = client_of(tmp_path).get(path)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def marked(client: TestClient, rater: str = "ann", *, done: bool = True) -> str:
    row = client.get("/api/runs/0/rollouts", params={"count": 1}).json()["rows"][0]
    whole = client.get(f"/api/runs/0/rollouts/{row['id']}").json()
    start = {"op": "open", "prompt": whole["prompt"], "response": whole["response"], "ids": whole["ids"]}
    span = {"op": "span", "item": whole["item"], "id": "a", "start": 4, "end": 7, "label": "negative", "note": "a dog"}
    end = [{"op": "state", "item": whole["item"], "value": "done"}] if done else []
    tab = client.post("/api/tab", json={}).json()["tab"]
    answer = client.post("/api/marks", json={"rater": rater, "tab": tab, "events": [start, span, *end]})
    assert answer.status_code == 200, answer.text
    return str(whole["item"])


def test_a_browser_that_leaves_in_the_middle_of_a_save_is_no_traceback() -> None:
    parts = iter([{"type": "http.request", "body": b'{"rater": ', "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(parts)

    request = Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, receive)
    with pytest.raises(DataError, match="the request broke off: its browser left"):
        asyncio.run(_body(request))


def test_marks_are_saved_listed_and_exported(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    item = marked(client)
    marks = client_of(tmp_path).get(f"/api/marks/{item}").json()  # another process
    assert [(span["start"], span["end"], span["note"]) for span in marks["spans"]] == [(4, 7, "a dog")]
    assert [[event["op"] for event in act] for act in marks["history"]] == [["span", "state"]]
    lines = client.get("/api/export/annotations.jsonl").text.splitlines()
    assert json.loads(lines[0])["critique"]["feedback"] == '"cat": a dog'
    assert json.loads(lines[0])["ids"] == [0, 1, 2, 3, 4, 5, 6]  # a lesson on the file has the sampled tokens
    assert json.loads(lines[0])["rater"] == "ann"
    page = client.get("/api/export/marks.html")
    assert 'title="δ -1\nnegative: ann: a dog">cat</span>' in page.text
    assert "attachment" in page.headers["content-disposition"]
    page = client.get("/api/export/response.html", params={"run": 0, "number": 12}).text
    assert "run, step 2, response 4" in page
    assert "Marked by ann" in page
    assert 'title="δ -1\nnegative: ann: a dog">cat</span>' in page
    rows = client.get("/api/runs/0/rollouts", params={"marked": "mine"}).json()
    assert rows["total"] == 3  # the same texts in each of three steps
    assert {row["marks"] for row in rows["rows"]} == {1}


def test_my_marks_come_in_pages_and_by_words(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    for number in range(5):
        opened = {"op": "open", "prompt": "p", "response": f"Text {number}."}
        item = client.post("/api/own", json=opened).json()["item"]
        events = [opened, {"op": "critique", "item": item, "text": "Good." if number % 2 else "Poor."}]
        answer = client.post("/api/marks", json={"tab": f"{number:012d}", "events": events})
        assert answer.json()["before"] == 0

    def listed(**query: Any) -> tuple[list[str], int, int]:
        listed = client.get("/api/marks", params=query).json()
        return [marks["response"][5] for marks in listed["items"]], listed["total"], listed["at"]

    assert listed() == (["4", "3", "2", "1", "0"], 5, -1)
    assert listed(start=1, count=2, item=item) == (["3", "2"], 5, 0)
    assert listed(text="good", count=1) == (["3"], 2, -1)
    undo = {**events[1], "text": "", "by": "undo"}
    answer = client.post("/api/marks", json={"tab": "9" * 12, "events": [undo], "seen": 0})
    assert answer.status_code == 409
    answer = client.post("/api/marks", json={"tab": "9" * 12, "events": [undo], "seen": 1})
    assert answer.json()["before"] == 1


def test_a_shared_response_without_tokens_has_the_critics_spans_in_colour(tmp_path: Path) -> None:
    span = {"start": 4, "end": 7, "label": "negative"}
    record = {"prompt": "Where?", "response": "The cat sat.", "critique": {"feedback": "A dog.", "spans": [span]}}
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps(record) + "\n")
    page = page_of_response(session(tmp_path / "store", file), "ann", 0, 1)
    assert 'title="δ -1">cat</span>' in page
    assert "3 parts" in page


def test_raters_see_each_other_only_when_they_are_done(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    item = marked(client, "ben")
    assert client.get(f"/api/marks/{item}", params={"rater": "ann"}).json()["others"] == []
    marked(client, "ann", done=False)
    assert client.get(f"/api/marks/{item}", params={"rater": "ann"}).json()["others"] == []
    marked(client, "ann")
    [other] = client.get(f"/api/marks/{item}", params={"rater": "ann"}).json()["others"]
    assert other["rater"] == "ben"


def test_a_copy_of_a_raters_folder_is_no_rater(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    item = marked(client)
    shutil.copytree(tmp_path / "store" / "marks" / "ann", tmp_path / "store" / "marks" / "ann (copy)")
    assert client.get(f"/api/marks/{item}").json()["others"] == []  # it is finished: others' marks are looked for
    assert client.get("/api/agreement").json() == {"pairs": []}


def test_two_runs_are_read_side_by_side_on_the_same_prompts(tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "one", steps=1), write_run(tmp_path / "two", steps=2)
    made = session(tmp_path / "store", first, second)
    number = made.find(0, Filter(text="Prompt 2"), marked="", rater="ann", start=0, count=1)["rows"][0]["id"]
    same = made.same_prompt(0, number)
    assert same["prompt"] == "Prompt 2."
    assert [(group["run"], [row["step"] for row in group["rows"]]) for group in same["groups"]] == [
        (0, [0]),
        (1, [0, 1]),
    ]


def test_the_queue_leaves_out_what_the_rater_has_finished(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    before = client.get("/api/runs/0/rollouts", params={"order": "uncertain", "marked": "open"}).json()
    assert [row["row"] for row in before["rows"]][:3] == [2, 2, 2]  # whose quotes were not found
    marked(client)  # prompt 3 of each of three steps
    after = client.get("/api/runs/0/rollouts", params={"order": "uncertain", "marked": "open"}).json()
    assert (before["total"], after["total"]) == (12, 9)
    assert {row["row"] for row in after["rows"]} == {0, 1, 2}
    later = {"order": "uncertain", "marked": "open", "start": 6, "operations": before["operations"]}
    assert client.get("/api/runs/0/rollouts", params=later).json()["rows"][0]["id"] == before["rows"][6]["id"]
    near = client.get("/api/runs/0/rollouts", params={"near": before["rows"][0]["id"]}).json()
    assert near["rows"][near["at"]]["id"] == before["rows"][0]["id"]


def test_a_second_studio_on_the_same_store_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    code = (
        "import sys, fcntl, os, pathlib\n"
        "from text2grad_studio.server import serve\n"
        f"store = pathlib.Path({str(tmp_path / 'store')!r})\n"
        "store.mkdir(); lock = os.open(store / '.lock', os.O_RDWR | os.O_CREAT); fcntl.flock(lock, fcntl.LOCK_EX)\n"
        f"serve([pathlib.Path({str(tmp_path / 'run')!r})], store, rater='ann', on_ready=print)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "another run is writing to" in process.stderr
    assert process.returncode == 1


@pytest.mark.parametrize("rater", ["../x", "", "-ann", "a" * 41, "\u0301ann"])
def test_a_rater_without_a_usable_name_is_refused_at_the_start(tmp_path: Path, rater: str) -> None:
    with pytest.raises(ConfigError, match="--rater"):
        serve([], tmp_path / "store", rater=rater, on_ready=print)
    assert not (tmp_path / "store").exists()


def test_prompts_without_responses_need_a_policy_and_whole_lines(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Say."}\n{"prompt": 3}\n')
    with pytest.raises(ConfigError, match=r"holds prompts without responses: name the policy .* --model PATH"):
        serve([prompts], tmp_path / "store", rater="ann", on_ready=print)
    with pytest.raises(DataError, match=r"prompts\.jsonl:2"):
        serve([prompts], tmp_path / "store", rater="ann", model="policy", on_ready=print)


def test_read_only_saves_nothing(tmp_path: Path) -> None:
    client = client_of(tmp_path, read_only=True)
    for path in ("tab", "marks", "own", "teach", "ask", "why", "withdraw", "stop"):
        answer = client.post(f"/api/{path}", json={})
        assert answer.status_code == 403  # a page that is open keeps its marks
        assert "--read-only" in answer.json()["error"]
    assert not (tmp_path / "store" / "marks").exists()


def test_marks_that_can_be_sent_again_are_not_called_malformed(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    store = client.get("/api/studio").json()["store"]
    opened = {"op": "open", "prompt": "p", "response": "a b"}
    request = {"rater": "ann", "tab": client.post("/api/tab", json={}).json()["tab"], "events": [opened]}
    answer = client.post("/api/marks", json={**request, "store": "another"})
    assert (answer.status_code, answer.json()["error"]) == (
        403,
        "this page is of another --out: open the address that `text2grad studio` printed",
    )
    folder = tmp_path / "store" / "marks" / "ann"
    folder.parent.mkdir()
    folder.touch()  # no directory can be made here
    answer = client.post("/api/marks", json={**request, "store": store})
    assert (answer.status_code, answer.json()["error"]) == (
        503,
        f"cannot save marks in {folder}/{request['tab']}.jsonl: File exists",
    )
    folder.unlink()
    assert client.post("/api/marks", json={**request, "events": [{"op": "drop"}]}).status_code == 400
    assert client.post("/api/marks", json={**request, "store": store}).status_code == 200


def test_a_response_with_numbers_that_are_null_is_shared(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    record = {"prompt": "p", "response": "a b c", "offsets": [[0, 1], [1, 3], [3, 5]], "advantage": [0.5, None, 0.5]}
    file.write_text(json.dumps(record) + "\n")
    made = session(tmp_path / "store", file)
    client = TestClient(make_app(made, token=TOKEN, port=PORT), base_url=f"http://127.0.0.1:{PORT}")
    client.get("/", params={"token": TOKEN})
    answer = client.get("/api/export/response.html", params={"run": 0, "number": 1})
    assert answer.status_code == 200
    assert 'title=""> b</span>' in answer.text


def test_bodies_are_json_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(tmp_path)
    assert (
        "is no JSON" in client.post("/api/tab", content=b"{}", headers={"content-type": "text/plain"}).json()["error"]
    )
    assert client.post("/api/tab", content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert client.post("/api/tab", json=[1]).status_code == 400
    monkeypatch.setattr("text2grad_studio.app.MOST_BYTES", 100)
    assert "MiB" in client.post("/api/tab", json={"x": "y" * 200}).json()["error"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("tab", "[" * 100_000, "the request's body is no JSON that can be read: maximum recursion depth exceeded"),
        ("tab", '{"a":' + "9" * 5000 + "}", "the request's body is no JSON that can be read: Exceeds the limit"),
        ("stop", '"x"', 'the request\'s body is a JSON object, got "x"'),
        ("stop", "{}", "number is a whole number from 0 to 2^63 - 1, got null"),
        ("marks", '{"events": {}}', "events is a list of operations, each an object; got {}"),
        ("marks", '{"events": []}', "'' is no name of a tab"),
        ("marks", '{"events": [], "tab": 1}', "tab is a text, got 1"),
        ("marks", '{"events": [], "rater": 1}', "rater is a text, got 1"),
        ("own", '{"prompt": "p", "response": ["r"]}', 'response is a text, got ["r"]'),
        ("suggest", '{"prompt": "p", "response": "r"}', "run is a whole number from 0 to 2^63 - 1, got null"),
        ("suggest", '{"run": {}}', "run is a whole number from 0 to 2^63 - 1, got {}"),
        ("suggest", '{"run": 1e999}', "run is a whole number from 0 to 2^63 - 1, got Infinity"),
        ("stop-critic", "{}", "run is a whole number from 0 to 2^63 - 1, got null"),
        ("ask", '{"prompt": 1}', "prompt is a text, got 1"),
        ("ask", '{"versions": 1}', "versions is a list of whole numbers, got 1"),
        ("ask", '{"versions": [0, null]}', "versions[1] is a whole number from 0 to 2^63 - 1, got null"),
        ("ask", '{"versions": [0, 7]}', "there is no version 7"),
        ("ask", '{"seed": [3]}', "seed is a whole number from 0 to 2^63 - 1, got [3]"),
        ("ask", '{"prompt": "a\\ud83d"}', 'prompt has half of a surrogate pair, which is no character: "a\\ud83d"'),
        ("why", '{"phrase": "a"}', "run is a whole number from 0 to 2^63 - 1, got null"),
        ("why", '{"run": 0, "phrase": 1}', "phrase is a text, got 1"),
        ("why", '{"run": 0, "phrase": "\\ud83d"}', "phrase has half of a surrogate pair"),
        ("teach", '{"items": 1}', "items is a list of texts, or null; got 1"),
        ("teach", '{"parent": null}', "parent is a whole number from 0 to 2^63 - 1, got null"),
        ("teach", '{"parent": true}', "parent is a whole number from 0 to 2^63 - 1, got true"),
        ("teach", '{"parent": 7}', "there is no version 7"),
        ("retrain", '{"retraining": [1]}', "retraining is an object of numbers, got [1]"),
        ("retrain", '{"retraining": {"lr": NaN}}', "retraining.lr is a number from -2^63 + 1 to 2^63 - 1, got NaN"),
        ("retrain", '{"items": [1]}', "items is a list of texts, or null; got [1]"),
        ("retrain", '{"retraining": {"steps": "x"}}', "retraining.steps is a number from"),
    ],
)
def test_a_body_with_a_wrong_field_is_told_which(tmp_path: Path, path: str, body: str, message: str) -> None:
    client = client_of(tmp_path, policy={"path": "p"}, critics={0: {"critic": "x"}})
    answer = client.post(f"/api/{path}", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert message in answer.json()["error"]
    assert client.get("/api/studio").json()["teaching"]["work"] == {"state": "idle"}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"reward": float("nan")}, id="one reward"),
        pytest.param({"reward": [float("inf")] * 7, "advantage": [float("-inf")] * 7}, id="rewards of tokens"),
        pytest.param({"kl": [1e308] * 7}, id="a sum beyond any float"),
        pytest.param({"logp": [float("nan"), *[0.0] * 6], "logp_after": [1.0] * 7}, id="a probability"),
    ],
)
def test_a_number_that_is_none_costs_neither_the_list_nor_the_response(tmp_path: Path, more: dict[str, Any]) -> None:
    append(write_run(tmp_path / "run", steps=1), [record(1, 0, **more)])  # as a program with Python's json writes it
    client = client_of(tmp_path)
    answer = client.get("/api/runs/0/rollouts")
    assert (answer.status_code, answer.json().get("total")) == (200, 5)
    row = answer.json()["rows"][0]
    assert client.get(f"/api/runs/0/rollouts/{row['id']}").json()["response"] == row["response"]
    if "logp" in more:
        changes = client.get(f"/api/runs/0/rollouts/{row['id']}").json()["change"]
        assert changes == [None, *[1.0] * 6]


def test_a_response_with_half_of_a_surrogate_pair_can_be_opened_and_marked(tmp_path: Path) -> None:
    """Models of bytes write them; only what a tokenizer reads has none."""
    body = '{"prompt": "p", "response": "a\\ud83d b"}'
    answer = client_of(tmp_path).post("/api/own", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["response"]) == (200, json.loads(body)["response"])


def test_a_wrong_operation_on_marks_is_told_by_its_field_and_value(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    item, tab = marked(client), client.post("/api/tab", json={}).json()["tab"]
    span = {"op": "span", "item": item, "id": "b", "start": 4, "end": 7, "label": "negative"}
    for event, message in (
        (
            {**span, "start": 7, "end": 4},
            "a span has 0 <= start < end <= 23, the characters of the response; got [7, 4]",
        ),
        ({**span, "start": -1}, "a span has 0 <= start < end <= 23, the characters of the response; got [-1, 7]"),
        ({**span, "label": 1}, '"label" of a span is positive or negative, got 1'),
        ({**span, "note": 5}, '"note" of an operation is a text of at most 1,000,000 characters, got 5'),
        (
            {**span, "op": None},
            '"op" of an operation is one of open, span, unspan, critique, state, suggestion; got null',
        ),
        ({**span, "op": "state", "value": "over"}, '"value" of state is one of "", "done", "skipped"; got "over"'),
        ({"op": "open", "ids": [-1]}, '"ids" are the token ids of the response, or null; got [-1]'),
        ({"op": "open", "place": 3}, '"place" is [step, row], or null; got 3'),
    ):
        answer = client.post("/api/marks", json={"tab": tab, "events": [event]})
        assert (answer.status_code, answer.json()["error"]) == (400, message)


def test_teaching_without_a_policy_or_marks_says_the_way_out(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    assert "mark a word" in client.post("/api/teach", json={}).json()["error"]
    marked(client)
    assert "--model PATH" in client.post("/api/teach", json={}).json()["error"]


def test_a_question_why_names_the_run_and_needs_no_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, sent = tmp_path / "run", list[Any]()
    monkeypatch.setattr(WorkerProcess, "send", lambda self, request: sent.append(request))
    file = tmp_path / "answers.jsonl"
    file.write_text('{"prompt": "p", "response": "r"}')
    write_run(run)
    made = session(tmp_path / "store", run, file)
    client = TestClient(make_app(made, token=TOKEN, port=PORT), base_url=f"http://127.0.0.1:{PORT}")
    client.get("/", params={"token": TOKEN})

    def refused(**given: Any) -> str:
        answer = client.post("/api/why", json=given)
        assert (answer.status_code, sent) == (400, [])
        return str(answer.json()["error"])

    def explained() -> list[bool]:
        return [own["explains"] for own in client.get("/api/studio").json()["runs"]]

    assert explained() == [False, False]
    assert "run is no run of `text2grad train` with a checkpoint" in refused(run=0, phrase="cat")
    (run / "checkpoints" / "step-000001").mkdir(parents=True)
    for name in ("run.json", "checkpoints/step-000001/state.json"):
        assert explained() == [False, False]
        (run / name).write_text("{}")
    assert explained() == [True, False]
    assert "answers is no run" in refused(run=1, phrase="cat")
    assert "there is no source number 2" in refused(run=2, phrase="cat")
    assert "the phrase is blank" in refused(run=0, phrase=" ")
    assert "the phrase is blank" in refused(run=0)
    work = client.post("/api/why", json={"run": 0, "phrase": "the mat"}).json()
    assert (work["state"], work["kind"]) == ("working", "why")
    [request] = sent
    assert {name: request[name] for name in ("kind", "run", "source", "phrase")} == {
        "kind": "why",
        "run": str(run),
        "source": "run",
        "phrase": "the mat",
    }
    assert "a question why is under way" in client.post("/api/why", json={"run": 0, "phrase": "cat"}).json()["error"]


def test_a_withdrawal_names_a_mark_as_it_was_at_any_time_or_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, made = list[Any](), session(tmp_path / "store")
    monkeypatch.setattr(WorkerProcess, "send", lambda self, request: sent.append(request))
    client = TestClient(make_app(made, token=TOKEN, port=PORT), base_url=f"http://127.0.0.1:{PORT}")
    client.get("/", params={"token": TOKEN})
    item, mark = item_of("p", "cat sat"), {"op": "span", "id": "a", "start": 0, "end": 3, "note": ""}
    events = [{"op": "open", "item": item, "prompt": "p", "response": "cat sat"}]
    events += [{**mark, "item": item, "label": label} for label in ("negative", "positive")]
    made.marks.append("ann", "0" * 12, [*events, {**events[-1], "id": "b"}])
    for given in ({"item": item}, {"id": "a"}):
        answer = client.post("/api/withdraw", json={"rater": "ann", **given})
        assert (answer.status_code, sent) == (400, [])
        assert "leave out both for all marks" in answer.json()["error"]
    work = client.post("/api/withdraw", json={"rater": "ann", "item": item, "id": "a", "sure": 1}).json()
    assert (work["state"], work["kind"]) == ("working", "withdraw")
    made.versions._work["state"] = "done"
    client.post("/api/withdraw", json={"sure": True})
    names = [mark_of(item, {**event, "rater": "ann"}) for event in events[1:]]
    assert [request["marks"] for request in sent] == [sorted(names), [""]]
    assert [request["sure"] for request in sent] == [False, True], "a number is no yes"
    assert [request["rater"] for request in sent] == ["ann", made.rater]


def test_a_lesson_has_the_marks_with_the_name_of_their_rater(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client, begun = client_of(tmp_path), list[Any]()
    marked(client)
    monkeypatch.setattr(Versions, "begin", lambda self, kind, request: begun.append((kind, request)))
    assert client.post("/api/teach", json={}).status_code == 200
    [(kind, request)] = begun
    assert kind == "teach"
    [annotation] = request["annotations"]
    assert annotation["ids"] == client.get("/api/marks").json()["items"][0]["ids"] != []
    assert {span["rater"] for span in annotation["critique"]["spans"]} == {"ann"}


def test_a_lesson_from_a_version_has_what_the_version_has_not_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, begun = client_of(tmp_path), list[Any]()
    marked(client)
    monkeypatch.setattr(Versions, "begin", lambda self, kind, request: begun.append((kind, request["annotations"])))
    client.post("/api/teach", json={})
    [(_, [first])] = begun
    version = tmp_path / "store" / "versions" / "0001"
    version.mkdir(parents=True)
    (version / "version.json").write_text('{"parent": 0, "responses": 1}')
    (version / "marks.jsonl").write_text(json.dumps(first))
    client.post("/api/teach", json={"parent": 1})  # nothing new: once more
    own = {"op": "open", "prompt": "p", "response": "a dog"}
    item = client.post("/api/own", json={"prompt": "p", "response": "a dog"}).json()["item"]
    span = {"op": "span", "item": item, "id": "a", "start": 2, "end": 5, "label": "negative", "note": ""}
    fine = {"op": "open", "prompt": "p", "response": "a cat"}
    seen = client.post("/api/own", json={"prompt": "p", "response": "a cat"}).json()["item"]
    done = {"op": "state", "item": seen, "value": "done"}  # and nothing to say: the lesson holds it as it is
    for events in ([own, span], [fine, done]):
        client.post("/api/marks", json={"rater": "ann", "tab": "0" * 12, "events": events})
    for kind, parent in (("teach", 0), ("teach", 1), ("retrain", 1)):
        client.post(f"/api/{kind}", json={"parent": parent})
    responses = [{annotation["response"] for annotation in annotations} for _, annotations in begun[1:]]
    new = {"a dog", "a cat"}
    assert responses == [{first["response"]}, {first["response"], *new}, new, {first["response"], *new}]


def test_marks_are_compared_with_the_lessons_that_made_a_version(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    marked(client)
    [annotation] = [json.loads(line) for line in client.get("/api/export/annotations.jsonl").text.splitlines()]
    [span] = annotation["critique"]["spans"]
    quote = annotation["response"][span["start"] : span["end"]]
    other = {"negative": "positive", "positive": "negative"}[span["label"]]
    annotation["critique"]["spans"] = [span | {"label": other, "rater": "bob"}]
    version = tmp_path / "store" / "versions" / "0001"
    version.mkdir(parents=True)
    (version / "version.json").write_text('{"parent": 0, "responses": 1, "made": "2026-03-12T10:00:00+00:00"}')
    (version / "marks.jsonl").write_text(json.dumps(annotation))
    assert client.get("/api/versions/1/against").json() == [
        f'"{quote}" is {span["label"]} here, {other} in version 1, the lesson of 2026-03-12 by bob: '
        "1×, 1× on the same prompt"
    ]
    assert client.get("/api/versions/0/against").json() == []
    assert "nothing to teach" in client.get("/api/versions/1/against", params={"rater": "eve"}).json()["error"]


def test_the_server_loads_no_model_library(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    recipe = {"recipe": {"model": {"path": "models/base"}, "rollout": {"temperature": 0.5}}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(recipe))
    for step, whole in ((2, True), (10, True), (12, False)):  # the last is under way
        checkpoint = tmp_path / "run" / "checkpoints" / f"step-{step:06d}"
        (checkpoint / "policy").mkdir(parents=True)
        if whole:
            (checkpoint / "state.json").write_text("{}")
    code = (
        "import sys, pathlib, text2grad_studio.app, text2grad_studio.server as server\n"
        f"sources = server.open_sources([pathlib.Path({str(tmp_path / 'run')!r})], pathlib.Path())\n"
        "found = server.policy_of(sources, None)\n"
        "server.Versions(pathlib.Path(), found)\n"
        "print(found['path'][-25:], found['sampling']['temperature'])\n"
        "print([m for m in ('torch', 'transformers', 'matplotlib', 'tokenizers') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines() == ["points/step-000010/policy 0.5", "[]"]


def test_a_run_that_grows_is_seen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    made = session(tmp_path / "store", run)
    client = TestClient(make_app(made, token=TOKEN, port=PORT), base_url=f"http://127.0.0.1:{PORT}")
    client.get("/", params={"token": TOKEN})
    before = client.get("/api/studio").json()["runs"][0]
    append(run, [record(9, 0)])
    made.indices[0].update()
    after = client.get("/api/studio").json()["runs"][0]
    assert (before["rollouts"], after["rollouts"], after["steps"]) == (12, 13, [0, 9])
    assert after["generation"] > before["generation"]


def test_a_file_that_is_deleted_stops_neither_the_page_nor_other_sources(tmp_path: Path) -> None:
    run, file = write_run(tmp_path / "run"), tmp_path / "own.jsonl"
    file.write_text(json.dumps({"prompt": "Say.", "response": "Text."}) + "\n")
    made = session(tmp_path / "store", file, run)
    client = TestClient(make_app(made, token=TOKEN, port=PORT), base_url=f"http://127.0.0.1:{PORT}")
    client.get("/", params={"token": TOKEN})
    file.unlink()
    (run / "rollouts" / "00000.jsonl").unlink()
    assert [run["name"] for run in client.get("/api/studio").json()["runs"]] == ["own", "run"]
    for number, message in ((0, f"cannot read {file}: No such file or directory"), (1, f"a file of {run} is gone")):
        for path in (f"runs/{number}/rollouts/1", f"runs/{number}/prompt/1"):
            answer = client.get(f"/api/{path}")
            assert answer.status_code == 400
            assert message in answer.json()["error"]


def test_the_number_of_a_response_gives_no_other_one_when_the_run_is_made_anew(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    row = client.get("/api/runs/0/rollouts", params={"order": "oldest"}).json()["rows"][1]
    known = {"item": row["item"]}
    assert client.get("/api/runs/0/rollouts/2", params=known).json()["place"] == [0, 1]
    (tmp_path / "run" / "rollouts" / "00000.jsonl").unlink()
    append(tmp_path / "run", [record(0, n, prompt=f"Query {n}.") for n in range(9)])  # of the same size
    assert "try once more" in client.get("/api/runs/0/rollouts/2").json()["error"]
    client = client_of(tmp_path)  # it is read
    for path in ("runs/0/rollouts/2?", "runs/0/prompt/2?", "export/response.html?run=0&number=2&"):
        answer = client.get(f"/api/{path}item={row['item']}")
        assert answer.status_code == 400
        assert "run was made anew: response 2 is another one now" in answer.json()["error"]
    assert client.get("/api/runs/0/rollouts", params={"near": 2, **known}).json()["at"] == -1
    assert client.get("/api/runs/0/rollouts", params={"near": 2}).json()["at"] >= 0
