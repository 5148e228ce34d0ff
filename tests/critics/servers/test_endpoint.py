"""Endpoints and budgets are validated; requests have the hashes of earlier versions, so that paid answers are found."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from conversations import FAIR
from text2grad.config.server import AnnotateConfig, Endpoint, ServerConfig
from text2grad.critics.servers.annotation import Annotator, Item, read_answer
from text2grad.critics.servers.client import ServerClient
from text2grad.critics.servers.llm_critic import LLMCritic
from text2grad.critics.servers.preference import Comparison, prefer
from text2grad.critics.servers.session import run_session
from text2grad.critics.servers.store import Answer, Store
from text2grad.critics.servers.templates import Template
from text2grad.errors import ConfigError, RequestError
from text2grad.feedback import critique_from_text
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.served import ServerRewardModel
from text2grad.types import Critique, Example, Span

URL = "http://127.0.0.1:9/v1"  # nothing listens there
ITEM = Item("1", Example("Where?\n", reference="Here."), "in Lyon in May")
HASHES = {  # answers that were paid for are found again as long as these stay
    "annotation": "94302c5b819c9070a901cc81e412b277c7adb9b32bf2d03e90e32ad4708bdae2",
    "human feedback": "48eeec81f52ffd14c0cc8e97a430a105e7c06480cea4113d6dfefcc6170f48ce",
    "preference": "cf205fec948a36b85f4f45d817aaecfa61a643cc8d1062338cabd4de0aa50b4a",
    "reward model": "3e229ff7b3214364e0aef7d1298288667fa2ba35034b097ed067ed4ea63318c4",
    "unconstrained": "1d0f76ec4c9d565413c4b14d966b5b63b0c6172b66da8f5b8bd5300247e3e5d0",
    "chat": "92db88538bb27618168aaa659236cfb065a567c1baa255448891ea2cd773703e",
}


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answer every request from the store, and return the hashes that were looked up."""
    found: list[str] = []

    def get(store: Store, key: str) -> Answer:
        found.append(key)
        return Answer("{}", "stop")

    monkeypatch.setattr(Store, "get", get)
    return found


def test_requests_of_the_annotator_have_the_hashes_of_earlier_versions(keys: list[str], tmp_path: Path) -> None:
    endpoint = AnnotateConfig(model="m", base_url=URL, api_key_env="")
    annotate = Annotator(Template("qa")).annotate
    with Store(tmp_path / "a.sqlite") as store:
        run_session(endpoint, store, annotate, [ITEM])
        grounded = ITEM._replace(example=Example("Where?\n"), feedback="fine")
        run_session(endpoint, store, annotate, [grounded])
        run_session(endpoint, store, prefer, [Comparison("Why?", "So.", "A", "B")])
    assert keys == [HASHES["annotation"], HASHES["human feedback"], HASHES["preference"]]


def test_requests_of_critics_have_the_hashes_of_earlier_versions(keys: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    LLMCritic("m", base_url=URL, api_key_env="", store=path)([ITEM.example], [ITEM.response])
    for settings in ({}, {"constrain": False}, {"prompt_format": "chat"}):
        ServerRewardModel("rm", store=path, format=CritiqueFormat(**settings))([Example("Where?\n")], [ITEM.response])  # type: ignore[arg-type]
    assert keys == [HASHES[name] for name in ("annotation", "reward model", "unconstrained", "chat")]


def test_critics_made_in_python_have_the_defaults_of_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    config = AnnotateConfig(model="m")
    critic = LLMCritic("m")
    assert critic.endpoint == config
    template = critic.template
    assert (config.template, config.reasoning) == (template.name, template.reasoning)
    model = ServerRewardModel("m")
    for name, value in ServerConfig().model_dump().items():
        assert getattr(model.endpoint if hasattr(model.endpoint, name) else model.format, name) == value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"tempreature": 0.5},
            'LLMCritic: [annotate] has no key "tempreature". Did you mean "temperature"? Known keys: api_key_env, '
            "base_url, concurrency, criteria, max_cost, max_tokens, model, out, prices, reasoning, temperature, "
            "template, timeout_s",
        ),
        ({"concurrency": 0}, "LLMCritic: [annotate] concurrency = 0: Input should be greater than or equal to 1"),
        ({"max_tokens": "9"}, "LLMCritic: [annotate] max_tokens = '9': Input should be a valid integer"),
        ({"temperature": float("nan")}, "LLMCritic: [annotate] temperature = nan: Input should be a finite number"),
        ({"max_cost": 1.0}, "[annotate] max_cost needs prices: without them nothing costs anything"),
    ],
)
def test_wrong_values_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LLMCritic("m", **settings)
    assert str(caught.value) == message


def test_an_annotator_with_an_unknown_template_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        LLMCritic("m", api_key_env="", template="prose")  # type: ignore[arg-type]
    assert str(caught.value) == "template has no value 'prose'. Known values: summarization, code, qa, grounded"


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("length", "truncated"),
        ("model_length", "truncated"),  # Mistral's API
        ("MAX_TOKENS", "truncated"),  # Gemini
        ("max_tokens", "truncated"),  # Anthropic, through proxies
        ("SAFETY", "refused"),
        ("content_filter", "refused"),
    ],
)
def test_the_end_of_an_answer_is_known_under_the_words_of_other_servers(word: str, kind: str) -> None:
    """A critique that the length limit cut behind its first quote is none, whatever the server calls the limit."""
    message = {"role": "assistant", "content": '{"textual_feedback": "No.", "poor_spans": ["Lyon", "M'}

    async def read() -> Answer:
        client = ServerClient(Endpoint(model="m", base_url=URL, api_key_env=""))
        try:
            return client._read(json.dumps({"choices": [{"message": message, "finish_reason": word}]}).encode())
        finally:
            await client.close()

    with pytest.raises(RequestError) as caught:
        read_answer(asyncio.run(read()), lambda text: critique_from_text(text, ITEM.response))
    assert caught.value.kind == kind


def annotated(item: Item, answer: str, asked: list[Any], **settings: Any) -> Critique:
    """Return the critique of an item by a server that always answers the same."""

    class Client:
        async def answer(self, request: Any) -> Answer:
            asked.append(request)
            return Answer(answer, "stop")

    client: Any = Client()
    return asyncio.run(Annotator(Template("qa"), **settings).annotate(client, item))[0]


def test_of_a_conversation_the_quotes_of_turns_are_asked_for_and_found() -> None:
    asked: list[Any] = []
    said = {"textual_feedback": "No.", "good_spans": [], "poor_spans": [{"turn": 3, "quote": "Monday,"}]}
    found = annotated(ITEM._replace(response=FAIR), json.dumps(said), asked)
    assert found.spans == (Span(11, 18, "negative", 3),)
    assert "<turn-2-tool>" in asked[0].prompt[0]["content"]
    quotes = asked[0].response_format.content["properties"]["poor_spans"]
    assert quotes["items"]["required"] == ["turn", "quote"]


def test_thoughts_are_hidden_from_an_annotator_that_is_told_so_and_spans_count_with_them() -> None:
    item, answer = ITEM._replace(response="<think>Rome</think>Lyon"), '{"poor_spans": ["Lyon"]}'
    for prompt_end, hidden in (("", True), (None, False)):
        asked: list[Any] = []
        found = annotated(item, answer, asked, prompt_end=prompt_end)
        assert found.spans == (Span(19, 23, "negative"),)
        assert ("Rome" not in asked[0].prompt[0]["content"]) == hidden
