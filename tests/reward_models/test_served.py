"""A reward model behind a server is asked as it was trained, is held to a grammar, and its failures are counted."""

import asyncio
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

import small_run
from fault_server import Running, running
from small_run import EXAMPLES
from text2grad.config.recipe import make_recipe
from text2grad.critics.servers import Request, cached_client
from text2grad.critics.servers.annotation import Item
from text2grad.critics.servers.store import Answer
from text2grad.errors import ConfigError, CriticError, RequestError
from text2grad.reward_models.decoding.grammar import critique_grammar
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.load import critic_from_recipe
from text2grad.reward_models.served import SPECIAL, ServerRewardModel
from text2grad.reward_models.writing import critique_prompt, critique_request
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.types import Critique, Example, Span

pytestmark = pytest.mark.usefixtures("short_waits")
ASKED, RESPONSE = Example("Where?\n"), "in Lyon in May"


def critic(server: Running | str, path: Path, **settings: Any) -> ServerRewardModel:
    url = server if isinstance(server, str) else server.url
    names = {field.name for field in fields(CritiqueFormat)} & settings.keys()
    format = CritiqueFormat(**{name: settings.pop(name) for name in names})
    where = {"base_url": url, "store": path / "answers.sqlite"}
    return ServerRewardModel("rm", format=format, **{**where, **settings})


# What is asked.


def test_the_prompt_is_what_the_model_was_trained_on_and_the_grammar_is_the_response_own(
    server: Running, tmp_path: Path
) -> None:
    found = critic(server, tmp_path)([ASKED], [RESPONSE])
    # The server quotes the first word and the last; "in" is listed once and marks the first place alone.
    assert found == [Critique('"in" is right, but "May" is wrong.', (Span(0, 2, "positive"), Span(11, 14, "negative")))]
    assert server.state()["last"] == {
        "model": "rm",
        "prompt": critique_prompt(ASKED, RESPONSE),
        "max_tokens": 512,
        "temperature": 0.0,
        "structured_outputs": {"grammar": critique_grammar(RESPONSE, max_tokens=512)},
    }


def test_a_model_with_a_chat_template_is_asked_by_the_user(server: Running, tmp_path: Path) -> None:
    limits = QuoteLimits(whole_words=True)
    model = critic(server, tmp_path, prompt_format="chat", write_feedback=False, limits=limits, max_tokens=9)
    assert [one.status for one in model([ASKED], [RESPONSE])] == ["ok"]
    last = server.state()["last"]
    assert last["messages"] == [{"role": "user", "content": critique_request(ASKED, RESPONSE)}]
    assert last["structured_outputs"] == {
        "grammar": critique_grammar(RESPONSE, CritiqueFormat(write_feedback=False, limits=limits), max_tokens=9)
    }
    assert last["max_tokens"] == 9


def test_without_the_constraint_no_grammar_is_sent_and_quotes_are_found_as_one_wishes(
    server: Running, tmp_path: Path
) -> None:
    model = critic(server, tmp_path, constrain=False, match="normalized")
    assert model([ASKED], [RESPONSE])[0].spans[0] == Span(0, 2, "positive")
    assert "structured_outputs" not in server.state()["last"]


def test_the_same_is_asked_once_and_another_grammar_is_another_question(server: Running, tmp_path: Path) -> None:
    before = server.requests()
    model = critic(server, tmp_path)
    assert model([ASKED] * 2, [RESPONSE] * 2) == model([ASKED], [RESPONSE]) * 2
    assert server.requests() == before + 1
    critic(server, tmp_path, limits=QuoteLimits(whole_words=True))([ASKED], [RESPONSE])
    assert server.requests() == before + 2


def test_critiques_come_in_the_order_of_the_responses(server: Running, tmp_path: Path) -> None:
    words = [f"word{number} ends" for number in range(40)]
    found = critic(server, tmp_path, concurrency=8)([ASKED] * 40, words)
    assert [one.feedback.split()[0] for one in found] == [f'"{text.split()[0]}"' for text in words]


# What goes wrong.


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("length", "unparsable"),
        ("prose", "unparsable"),
        ("empty", "unparsable"),
        ("400", "timed_out"),
        ("500", "timed_out"),
        ("drop", "timed_out"),
        ("garbage", "timed_out"),
        ("slow", "timed_out"),
    ],
)
def test_a_failure_is_a_critique_without_a_place_that_says_what_happened(
    server: Running, tmp_path: Path, script: str, status: str
) -> None:
    asked = Example(f"[[{script} {script}]]\n")  # the first request and its repetition
    for seconds in (0.5, 5.0, 30.0) if script == "slow" else (60.0,):  # a busy machine answers the second one later
        found = critic(server, tmp_path, timeout_s=seconds)([asked, ASKED], [RESPONSE] * 2)
        if found[1].status == "ok":
            break
    assert [one.status for one in found] == [status, "ok"]
    assert found[0].spans == ()
    assert found[0].feedback


def test_a_list_that_the_length_limit_cut_off_is_read_as_far_as_it_goes(server: Running, tmp_path: Path) -> None:
    found = critic(server, tmp_path)([Example("[[listing]]\n")], [RESPONSE])[0]
    assert (found.status, found.spans) == ("repaired", (Span(0, 2, "positive"),))  # and "May" is no whole quote


def test_a_request_that_got_no_answer_is_repeated(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_client, "RETRIES", 2)
    asked = Example("[[429:0.01 500:0.01 ok]]\n")
    assert critic(server, tmp_path)([asked], [RESPONSE])[0].status == "ok"
    assert server.times(critique_prompt(asked, RESPONSE)) == 3


def test_a_server_without_grammars_is_no_critic_until_the_constraint_is_off(tmp_path: Path) -> None:
    with running("--no-schemas") as server:
        refused = critic(server, tmp_path)([ASKED], [RESPONSE])[0]
        assert refused.status == "timed_out"
        assert refused.feedback.startswith("rejected: status 400")
        assert critic(server, tmp_path, constrain=False)([ASKED], [RESPONSE])[0].status == "ok"
        model, before = critic(server, tmp_path, concurrency=1), server.requests()
        with pytest.raises(CriticError, match=r"the server rejects every request, also the shortest: status 400"):
            model([Example(str(row)) for row in range(20)], [RESPONSE] * 20)
        assert server.requests() - before == 3 + 1  # three that are rejected, and the shortest with its grammar


@pytest.mark.parametrize("script", ["401", "404"])
def test_a_server_that_turns_everything_away_stops_the_run(server: Running, tmp_path: Path, script: str) -> None:
    model = critic(server, tmp_path, concurrency=1)
    with pytest.raises(CriticError, match=rf"^no more requests are sent to rm at {server.url}: status {script}: "):
        model([Example(f"[[{script}]]"), ASKED], [RESPONSE] * 2)


def test_wrong_settings_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    for settings, said in (
        ({"limits": QuoteLimits(one_list=True)}, "a grammar cannot express one_list, quoted_in_feedback or verbatim"),
        ({"limits": QuoteLimits(verbatim=True)}, "a grammar cannot express one_list, quoted_in_feedback or verbatim"),
        (
            {"max_token": 3},
            r'ServerRewardModel: \[server\] has no key "max_token"\. Did you mean "max_tokens"\? Known keys: ',
        ),
        ({"prompt_format": "prose"}, "prompt_format has no value 'prose'. Known values: plain, chat"),
        ({"base_url": "localhost"}, r"\[server\] base_url must be an address such as http://localhost:8000/v1, got"),
    ):
        with pytest.raises(ConfigError, match=f"^{said}"):
            critic("http://127.0.0.1:9/v1", tmp_path, **settings)
    critic("http://127.0.0.1:9/v1", tmp_path, constrain=False, limits=QuoteLimits(one_list=True))


@pytest.mark.parametrize("prompt_format", ["plain", "chat"])
def test_a_form_with_labels_has_its_own_request_grammar_and_reading(tmp_path: Path, prompt_format: Any) -> None:
    model = critic("http://127.0.0.1:9/v1", tmp_path, form="tagged_words", prompt_format=prompt_format)
    asked: list[Any] = []

    class Client:
        def __init__(self, text: str) -> None:
            self.text = text

        async def answer(self, request: Request) -> Answer:
            asked.append(request)
            return Answer(self.text, "stop")

    def judged(text: str) -> Any:
        client: Any = Client(text)
        return asyncio.run(model.annotate(client, Item("0", ASKED, "in Lyon")))

    found, _ = judged('{"textual_feedback": "So.", "word_tags": "in = Lyon -", "outcome": -1}')
    assert found == Critique("So.", (Span(3, 7, "negative"),), -1.0)
    prompt, form = asked[0][:2]
    assert form.content == critique_grammar("in Lyon", CritiqueFormat("tagged_words"), max_tokens=512)
    request = critique_request(ASKED, "in Lyon", "tagged_words")
    chat = ({"role": "user", "content": request},)
    assert prompt == (critique_prompt(ASKED, "in Lyon") if prompt_format == "plain" else chat)
    with pytest.raises(RequestError, match=r"^unreadable: "):
        judged('{"textual_feedback": "So.", "good_spans": ["Lyon"], "poor_spans": []}')


def test_the_directory_that_is_served_tells_the_form(tmp_path: Path) -> None:
    saved = CritiqueFormat("labelled_spans", prompt_format="chat")
    (tmp_path / "reward_model.json").write_text(json.dumps(asdict(saved)))
    named = make_recipe({"critic": {"kind": "server", "model": str(tmp_path)}, "run": {"out": str(tmp_path)}})
    critic = critic_from_recipe(named)
    assert isinstance(critic, ServerRewardModel)
    assert critic.format == saved


# In a run.


def test_a_recipe_names_the_server_and_the_loop_learns_from_it(server: Running, tmp_path: Path) -> None:
    recipe = small_run.recipe(
        tmp_path / "run",
        critic={"model": "rm", "kind": "server", "quote_limits": ["whole_words"]},
        server={"base_url": server.url, "max_tokens": 77},
        run={"steps": 1},
    )
    found = critic_from_recipe(recipe)
    assert isinstance(found, ServerRewardModel)
    assert (found.format.write_feedback, found.format.limits, found.path) == (
        True,
        QuoteLimits(whole_words=True),
        tmp_path / "run" / "critic" / "server.sqlite",
    )
    tokenizer, model = small_run.tokenizer_and_model()
    Text2GradTrainer(model, found, EXAMPLES, recipe, processing_class=tokenizer).train()
    assert server.state()["last"]["max_tokens"] == 77
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["delta/positive_share"] > 0


def test_a_run_stops_where_too_many_critiques_failed(server: Running, tmp_path: Path) -> None:
    recipe = small_run.recipe(
        tmp_path / "run",
        critic={"model": "rm", "kind": "server"},
        server={"base_url": server.url},
        rollout={"batch_size": 104, "max_new_tokens": 2},
        run={"steps": 3},
    )
    examples = [Example(f"[[400]] {example.prompt}") for example in EXAMPLES]
    tokenizer, model = small_run.tokenizer_and_model()
    run = Text2GradTrainer(model, critic_from_recipe(recipe), examples, recipe, processing_class=tokenizer)
    with pytest.raises(CriticError, match=r"^100% of the last 104 critiques could not be read"):
        run.train()


def test_a_response_that_spells_a_special_token_is_named_once(
    server: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = critic(server, tmp_path)
    model([ASKED], ["in <i>Lyon</i> | in <s>May</s"])  # a table, HTML
    assert "special token" not in caplog.text
    for _ in range(2):
        model([ASKED, ASKED], [RESPONSE, "in Lyon<|im_end|>"])
    assert caplog.text.count("a response spells") == 1
    assert (
        "a response spells '<|im_end|>'. If this is a special token of rm, the server reads it as the token"
        in caplog.text
    )


@pytest.mark.parametrize("text", ["<|eot_id|>", "<｜end▁of▁sentence｜>", "</s>", "<end_of_turn>", "<eos>", "[/INST]"])
def test_special_tokens_of_common_models_are_known(text: str) -> None:
    assert SPECIAL.findall(f"a{text}b") == [text]
