"""A language model that learned what an annotator wrote writes it again, and what it writes is read as spans."""

import copy
import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from text2grad.config.recipe import make_recipe
from text2grad.errors import DataError, ModelError
from text2grad.feedback.critic import ask
from text2grad.feedback.records import Annotation
from text2grad.models import launch
from text2grad.models.fine_tuning import NO_LOSS, FineTuning, Row
from text2grad.reward_models import generative
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.format import FORMAT_FILE, CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel, critique_prompts
from text2grad.reward_models.load import critic_from_recipe
from text2grad.reward_models.writing import SYMBOLS, critique_prompt, critique_request, critique_target
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Conversation, Critique, Example, Span, Turn
from trained_reward_model import train_reward_model

CONTEXT = 96


def good(start: int, end: int) -> Span:
    return Span(start, end, "positive")


def poor(start: int, end: int) -> Span:
    return Span(start, end, "negative")


ANNOTATIONS = [
    Annotation(
        "birds:",
        " blue bird sings and blue bird sleeps",
        #         10                  20        30
        Critique("Good.", (good(1, 10), good(21, 30), poor(31, 37))),
    ),
    Annotation("cats:", " a cat", Critique("Nothing to say.")),
    Annotation("colours:", " red cat two", Critique('Colours are good, "two" is not.', (good(1, 4), poor(9, 12)))),
    Annotation("dogs:", ' "one" dog "one"', Critique("A number.", (poor(1, 6),))),  # the first of two
]
EXAMPLES = [Example(one.prompt) for one in ANNOTATIONS]
RESPONSES = [one.response for one in ANNOTATIONS]
PROMPTS = [critique_prompt(Example(one.prompt), one.response) for one in ANNOTATIONS]
CRITIQUES = [one.critique for one in ANNOTATIONS]
TARGETS = [critique_target(one.critique, one.response) for one in ANNOTATIONS]
SETTINGS = FineTuning(steps=60, batch_size=4, learning_rate=0.02, max_tokens=CONTEXT, seed=1)


def new_tokenizer() -> Any:
    return word_tokenizer([*PROMPTS, *TARGETS, " "], SYMBOLS)


def new_model(tokenizer: Any) -> Any:
    return tiny_llama(tokenizer, seed=0, width=32, layers=1, context=CONTEXT)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return new_tokenizer()


@pytest.fixture(scope="module")
def taught(tokenizer: Any) -> GenerativeRewardModel:
    """A model that was shown four critiques until it knew them."""
    model, left_out = train_reward_model(new_model(tokenizer), tokenizer, ANNOTATIONS, SETTINGS, max_new_tokens=60)
    assert left_out == 0
    return model


def like(taught: GenerativeRewardModel, **settings: Any) -> GenerativeRewardModel:
    rows_at_once = settings.pop("rows_at_once", 64)
    format = CritiqueFormat(**{"max_new_tokens": 60, **settings})
    return GenerativeRewardModel(taught.model, taught.tokenizer, format, rows_at_once=rows_at_once)


# What it writes.


def test_it_writes_what_it_was_taught_and_is_a_critic_like_any_other(taught: GenerativeRewardModel) -> None:
    assert taught.write(EXAMPLES, RESPONSES) == TARGETS
    assert ask(taught, EXAMPLES, RESPONSES, match="exact") == CRITIQUES


def test_a_quote_marks_one_place_for_each_time_it_is_listed(taught: GenerativeRewardModel) -> None:
    assert TARGETS[3] == '{"textual_feedback": "A number.", "good_spans": [], "poor_spans": ["\\"one\\""]}'
    assert RESPONSES[3].count('"one"') == 2
    (critique,) = taught(EXAMPLES[3:], RESPONSES[3:])
    assert critique.spans == (poor(1, 6),)


def test_quotes_can_be_found_up_to_how_they_were_typed(
    taught: GenerativeRewardModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for match, spans, unmatched in (("exact", (), ("a  cat",)), ("normalized", (good(1, 6),), ())):
        model = like(taught, match=match, constrain=False)
        monkeypatch.setattr(model, "_drawn", lambda *asked: [['{"good_spans": ["a  cat"]}']])
        assert model(EXAMPLES[1:2], [" a cat a cat"]) == [Critique("", spans, unmatched=unmatched)]


def test_the_critiques_come_in_the_order_of_the_responses(taught: GenerativeRewardModel) -> None:
    # Inside they are sorted by length: 2, 0, 3, 1, 0 has them in neither order, and one twice.
    lengths = [len(ids) for ids in taught.tokenizer(PROMPTS).input_ids]
    assert lengths != sorted(lengths)
    rows = [2, 0, 3, 1, 0]
    some = [EXAMPLES[r] for r in rows], [RESPONSES[r] for r in rows]
    assert taught.write(*some) == [TARGETS[r] for r in rows]
    assert taught(*some) == [CRITIQUES[r] for r in rows]


@pytest.mark.parametrize("rows_at_once", [1, 2, 3, 64])
def test_how_many_are_written_at_once_does_not_change_them(taught: GenerativeRewardModel, rows_at_once: int) -> None:
    assert like(taught, rows_at_once=rows_at_once).write(EXAMPLES, RESPONSES) == TARGETS


def test_of_no_responses_it_writes_nothing(taught: GenerativeRewardModel) -> None:
    assert taught([], []) == taught.write([], []) == []


def test_each_response_needs_its_example(taught: GenerativeRewardModel) -> None:
    with pytest.raises(ValueError, match="zip"):
        taught(EXAMPLES, RESPONSES[:2])


def test_a_critique_that_was_cut_off_anywhere_is_read_as_far_as_it_goes(taught: GenerativeRewardModel) -> None:
    longest = max(len(ids) for ids in taught.tokenizer(TARGETS).input_ids)
    found = []
    for limit in range(1, longest + 1):
        cut = like(taught, max_new_tokens=limit, constrain=False)
        texts = cut.write(EXAMPLES, RESPONSES)
        assert all(whole.startswith(text) for text, whole in zip(texts, TARGETS, strict=True))
        assert all(len(taught.tokenizer(text).input_ids) <= limit for text in texts)
        for critique, text, one, whole in zip(
            ask(cut, EXAMPLES, RESPONSES, match="exact"), texts, ANNOTATIONS, TARGETS, strict=True
        ):
            assert (critique.status == "ok") == (text == whole)
            assert set(critique.spans) <= set(one.critique.spans)
            found.append((critique.status, len(critique.spans)))
    assert {("unparsable", 0), ("repaired", 1), ("repaired", 2), ("ok", 2), ("ok", 3)} <= set(found)


def test_its_generation_does_not_depend_on_the_models_own_generation_config(taught: GenerativeRewardModel) -> None:
    before = taught.model.generation_config
    taught.model.generation_config = type(before)(do_sample=True, min_new_tokens=50, repetition_penalty=9.0)
    try:
        assert taught.write(EXAMPLES, RESPONSES) == TARGETS
    finally:
        taught.model.generation_config = before


# Room.


def test_a_response_without_room_for_a_critique_gets_none_and_the_others_theirs(taught: GenerativeRewardModel) -> None:
    # "birds:" is 2 tokens, each " cat" 1 and the line break 1: 93 cats fill the context of 96.
    asked = [EXAMPLES[1], Example("birds:")]
    alone = copy.copy(taught)
    alone.rows_at_once = 1
    assert alone.write(asked, [" a cat", " cat" * 93]) == [*taught.write(asked[:1], [" a cat"]), ""]
    assert [critique.status for critique in alone(asked, [" a cat", " cat" * 93])] == ["ok", "unparsable"]


@pytest.mark.parametrize("constrain", [False, True])
def test_a_long_prompt_shortens_no_critique_but_its_own(taught: GenerativeRewardModel, constrain: bool) -> None:
    # 92 cats leave room for one token, 60 for 33.
    asked = [EXAMPLES[1], Example("birds:"), Example("birds:")], [" a cat", " cat" * 92, " cat" * 60]
    together, alone = like(taught, constrain=constrain), like(taught, constrain=constrain, rows_at_once=1)
    texts = together.write(*asked)
    assert texts == alone.write(*asked)
    assert texts[0] == TARGETS[1]
    assert len(taught.tokenizer(texts[1]).input_ids) <= 1


def test_a_model_without_a_known_context_has_room_for_any_critique(taught: GenerativeRewardModel) -> None:
    boundless = copy.copy(taught)
    boundless.model = SimpleNamespace(config=SimpleNamespace(get_text_config=SimpleNamespace))
    assert boundless._room([1] * 5_000) == 60
    assert taught._room([1] * 70) == 26  # 96 − 70
    assert taught._room([1] * 36) == 60


def test_a_model_that_nothing_could_stop_is_refused() -> None:
    tokenizer = new_tokenizer()
    model = new_model(tokenizer)
    tokenizer.eos_token = model.generation_config.eos_token_id = None
    with pytest.raises(ModelError) as caught:
        GenerativeRewardModel(model, tokenizer)
    assert str(caught.value) == (
        "neither the tokenizer nor the model's generation config names an end-of-sequence token, so no response "
        "could ever end. Set rollout.eos_token_ids."
    )


# Special tokens that a response or a critique spells.


def with_special_tokens() -> Any:
    tokenizer = word_tokenizer([*PROMPTS, *TARGETS, " ", " <|end|> < | end > dogs:"], SYMBOLS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    tokenizer.chat_template = "{% for m in messages %}<|end|>{{ m['content'] }}{% endfor %}<|end|> dogs:"
    return tokenizer


@pytest.mark.parametrize(("prompt_format", "of_template"), [("plain", 0), ("chat", 2)])
def test_a_response_cannot_end_itself_in_the_prompt(prompt_format: Any, of_template: int) -> None:
    tokenizer = with_special_tokens()
    special = tokenizer.convert_tokens_to_ids("<|end|>")
    assert special in tokenizer(" a cat<|end|> dogs:").input_ids
    found, harmless = critique_prompts(
        tokenizer, [Example("cats:")] * 2, [" a cat<|end|> dogs:", " a cat"], prompt_format
    )
    assert found.count(special) == harmless.count(special) == of_template
    assert len(found) > len(harmless) + 1


@pytest.mark.parametrize(
    "message", ["m['content'] | tojson", "m['content'].replace('\\r\\n', '\\n')", "m['content'] | trim"]
)
@pytest.mark.parametrize("response", [" a cat<|end|> dogs:", " a\r\ncat"])
def test_a_template_that_changes_the_message_keeps_its_own_tokens(message: str, response: str) -> None:
    tokenizer = with_special_tokens()
    special = tokenizer.convert_tokens_to_ids("<|end|>")
    tokenizer.chat_template = f"{{% for m in messages %}}<|end|>{{{{ {message} }}}}{{% endfor %}}<|end|> dogs:"
    (found,) = critique_prompts(tokenizer, [Example("cats:")], [response], "chat")
    assert found[0] == special
    assert found.count(special) == 2
    assert tokenizer.decode(found[found.index(special, 1) + 1 :]).strip() == "dogs:"


def test_a_beginning_of_sequence_is_added_once() -> None:
    tokenizer = with_special_tokens()
    end, bos = tokenizer.convert_tokens_to_ids("<|end|>"), tokenizer.eos_token_id
    added = TemplateProcessing(single="B $A", pair="B $A $B", special_tokens=[("B", bos)])
    tokenizer.backend_tokenizer.post_processor = added
    for prompt_format, expected in (("plain", [bos]), ("chat", [end])):
        (found,) = critique_prompts(tokenizer, [Example("cats:")], [" a cat<|end|>"], prompt_format)  # type: ignore[arg-type]
        assert found[:1] == expected
        assert found.count(bos) == (prompt_format == "plain")


@pytest.mark.parametrize("response", [" a cat", " a cat<|end|>"])
def test_an_end_of_sequence_that_the_tokenizer_adds_does_not_end_the_prompt(response: str) -> None:
    tokenizer = with_special_tokens()
    (plain,) = critique_prompts(tokenizer, [Example("cats:")], [response], "plain")
    added = TemplateProcessing(single="B $A B", pair="B $A $B B", special_tokens=[("B", tokenizer.eos_token_id)])
    tokenizer.backend_tokenizer.post_processor = added
    (found,) = critique_prompts(tokenizer, [Example("cats:")], [response], "plain")
    assert found == [tokenizer.eos_token_id, *plain]


def test_a_special_token_of_the_prompt_stays_one() -> None:
    tokenizer = with_special_tokens()
    special = tokenizer.convert_tokens_to_ids("<|end|>")
    (found,) = critique_prompts(tokenizer, [Example("<|end|>cats:")], [" a cat<|end|>"], "plain")
    assert found[0] == special
    assert found.count(special) == 1


def test_a_critique_that_names_the_end_teaches_no_end(trainings: list[Any]) -> None:
    tokenizer = with_special_tokens()
    annotation = Annotation("cats:", " a cat", Critique("It says <|end|>."))
    train_reward_model(new_model(tokenizer), tokenizer, [annotation], FineTuning(steps=1))
    ((rows, _, _),) = trainings
    assert tokenizer.convert_tokens_to_ids("<|end|>") not in rows[0]["labels"]
    assert rows[0]["labels"].count(tokenizer.eos_token_id) == 1


# On disk.


def test_a_saved_model_comes_back_bit_for_bit_with_its_settings(taught: GenerativeRewardModel, tmp_path: Path) -> None:
    limits = QuoteLimits(whole_words=True, one_list=True)
    settings = {
        "max_new_tokens": 33,
        "write_feedback": False,
        "form": "tagged_words",
        "match": "normalized",
        "constrain": False,
        "votes": 3,
        "vote_threshold": 0.25,
        "outcomes": False,
    }
    given = like(taught, **settings, limits=limits)
    given.save(tmp_path / "model")
    assert json.loads((tmp_path / "model" / FORMAT_FILE).read_bytes()) == {
        "max_new_tokens": 33,
        "write_feedback": False,
        "form": "tagged_words",
        "match": "normalized",
        "constrain": False,
        "limits": {
            "whole_words": True,
            "one_list": True,
            "quoted_in_feedback": False,
            "verbatim": False,
        },
        "prompt_format": "plain",
        "votes": 3,
        "vote_threshold": 0.25,
        "outcomes": False,
    }
    loaded = GenerativeRewardModel.load(tmp_path / "model")
    assert loaded.format == given.format
    assert loaded.format.limits == limits
    assert (loaded.eos_ids, loaded.pad_id) == (given.eos_ids, given.pad_id)
    before, after = given.model.state_dict(), loaded.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not loaded.model.training
    assert loaded.write(EXAMPLES, RESPONSES) == given.write(EXAMPLES, RESPONSES)


def test_a_recipe_replaces_the_saved_settings_that_it_names(taught: GenerativeRewardModel, tmp_path: Path) -> None:
    limits = QuoteLimits(one_list=True, whole_words=True)
    like(taught, limits=limits, votes=3).save(tmp_path)

    def loaded(**critic: Any) -> Any:
        return critic_from_recipe(make_recipe({"critic": {"model": str(tmp_path), **critic}}))

    found = loaded().format
    assert (found.limits, found.votes, found.match, found.constrain) == (limits, 3, "exact", True)
    found = loaded(quote_limits=["verbatim"]).format
    assert (found.limits, found.votes) == (QuoteLimits(verbatim=True), 3)
    assert loaded(quote_limits=[]).format.limits == QuoteLimits()
    found = loaded(match="normalized", constrain=False).format
    assert (found.limits, found.match, found.constrain) == (limits, "normalized", False)


def test_any_causal_model_can_be_loaded_and_has_the_usual_settings(
    taught: GenerativeRewardModel, tmp_path: Path
) -> None:
    taught.save(tmp_path)
    (tmp_path / FORMAT_FILE).unlink()
    loaded = GenerativeRewardModel.load(str(tmp_path))
    assert (loaded.format, loaded.rows_at_once) == (CritiqueFormat(), 64)
    assert GenerativeRewardModel.load(str(tmp_path), rows_at_once=3).rows_at_once == 3
    with pytest.raises(FrozenInstanceError):  # what was saved with a model is not changed under it
        loaded.format.votes = 3  # type: ignore[misc]
    assert loaded.write(EXAMPLES, RESPONSES) == TARGETS  # the context leaves less than 512


def test_settings_that_are_not_known_are_refused(taught: GenerativeRewardModel, tmp_path: Path) -> None:
    taught.save(tmp_path)
    (tmp_path / FORMAT_FILE).write_text('{"form": "spans", "learned": "choices"}')
    with pytest.raises(
        ModelError,
        match=r"^cannot read .*reward_model.json: .*'learned'\. Copy it again, or train the reward model ",
    ):
        GenerativeRewardModel.load(tmp_path)


def test_where_no_model_is_there_is_none_to_load(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        GenerativeRewardModel.load(tmp_path)
    assert str(caught.value) == f"cannot load a causal language model from {str(tmp_path)!r}: {caught.value.__cause__}"


# How it learns.


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Rows, settings and number of rows of each training, which does not take place."""
    found: list[Any] = []

    def train(model: Any, rows: list[Row], settings: FineTuning, *, on_step: Any, total: int) -> None:
        found.append((rows, settings, total))

    monkeypatch.setattr(generative, "train_on_rows", train)
    return found


def row_of(tokenizer: Any, prompt: str, target: str) -> Row:
    """Return the ids of prompt, target and end of sequence; the loss is on target and end."""
    prompt_ids = tokenizer(prompt).input_ids
    target_ids = [*tokenizer(target, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    return {"input_ids": [*prompt_ids, *target_ids], "labels": [*[NO_LOSS] * len(prompt_ids), *target_ids]}


def test_the_loss_stands_on_the_critique_and_its_end_alone(tokenizer: Any, trainings: list[Any]) -> None:
    train_reward_model(new_model(tokenizer), tokenizer, ANNOTATIONS, SETTINGS)
    ((rows, settings, total),) = trainings
    assert settings == SETTINGS
    assert rows == [row_of(tokenizer, *pair) for pair in zip(PROMPTS, TARGETS, strict=True)]
    assert total == len(rows)


def test_each_process_learns_its_part_of_the_critiques(
    tokenizer: Any, trainings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "place", lambda: (1, 2))
    train_reward_model(new_model(tokenizer), tokenizer, ANNOTATIONS, SETTINGS)
    ((rows, _, total),) = trainings
    assert rows == [row_of(tokenizer, *pair) for pair in zip(PROMPTS, TARGETS, strict=True)][1::2]
    assert total == len(ANNOTATIONS)  # the length of an epoch counts all


def test_by_a_chat_template_it_is_taught_what_it_will_be_asked(trainings: list[Any]) -> None:
    tokenizer = new_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %} dogs:"
    settings = FineTuning(steps=1, prompt_format="chat")
    model, _ = train_reward_model(new_model(tokenizer), tokenizer, ANNOTATIONS, settings)
    assert model.format.prompt_format == "chat"
    ((rows, _, _),) = trainings
    asked = critique_prompts(tokenizer, EXAMPLES, RESPONSES, "chat")
    for row, annotation, target, ids in zip(rows, ANNOTATIONS, TARGETS, asked, strict=True):
        request = critique_request(Example(annotation.prompt), annotation.response)
        assert row == row_of(tokenizer, f"{request} dogs:", target)
        assert row["input_ids"][: len(ids)] == ids
        assert row["labels"][: len(ids) + 1] == [*[NO_LOSS] * len(ids), tokenizer(target).input_ids[0]]


def test_without_words_it_is_taught_the_spans_alone(tokenizer: Any, trainings: list[Any]) -> None:
    model, _ = train_reward_model(
        new_model(tokenizer), tokenizer, ANNOTATIONS, SETTINGS, write_feedback=False, max_new_tokens=7
    )
    assert (model.format.write_feedback, model.format.max_new_tokens) == (False, 7)
    spans = [critique_target(Critique("", one.critique.spans), one.response) for one in ANNOTATIONS]
    assert trainings[0][0] == [row_of(tokenizer, *pair) for pair in zip(PROMPTS, spans, strict=True)]
    assert spans != TARGETS


def test_a_model_that_could_never_write_a_critique_is_refused_before_it_learns(
    tokenizer: Any, trainings: list[Any]
) -> None:
    with pytest.raises(ModelError, match="max_new_tokens = 2 is too short for a critique"):
        train_reward_model(new_model(tokenizer), tokenizer, ANNOTATIONS, SETTINGS, max_new_tokens=2)
    assert not trainings
    model, _ = train_reward_model(
        new_model(tokenizer), tokenizer, ANNOTATIONS, SETTINGS, max_new_tokens=2, constrain=False
    )
    assert len(trainings) == 1
    assert not model.format.constrain


@pytest.mark.parametrize("status", ["unparsable", "timed_out"])
def test_failed_critiques_teach_nothing_and_are_not_counted_as_left_out(
    tokenizer: Any, trainings: list[Any], status: Any
) -> None:
    failed = Annotation("dogs:", " a cat", Critique("cat " * 200, status=status))
    repaired = Annotation("dogs:", " a cat", Critique("Good.", status="repaired"))
    given = [failed, *ANNOTATIONS, failed, repaired]
    _, left_out = train_reward_model(new_model(tokenizer), tokenizer, given, SETTINGS)
    assert left_out == 0
    prompts, targets = (
        [*PROMPTS, critique_prompt(Example("dogs:"), " a cat")],
        [*TARGETS, critique_target(Critique("Good."), " a cat")],
    )
    assert trainings[0][0] == [row_of(tokenizer, *pair) for pair in zip(prompts, targets, strict=True)]


def lengths(tokenizer: Any) -> list[int]:
    return [
        len(tokenizer(prompt).input_ids) + len(tokenizer(target, add_special_tokens=False).input_ids) + 1
        for prompt, target in zip(PROMPTS, TARGETS, strict=True)
    ]


@pytest.mark.parametrize("beginning", [False, True])
def test_what_is_too_long_is_left_out_and_counted_and_what_just_fits_is_kept(
    trainings: list[Any], beginning: bool
) -> None:
    tokenizer = new_tokenizer()
    if beginning:  # before a prompt, but not before the critique that goes on from it
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<pad> $A", special_tokens=[("<pad>", tokenizer.pad_token_id)]
        )
    sizes = lengths(tokenizer)
    assert len(set(sizes)) >= 3
    for limit in sorted(sizes):
        settings = FineTuning(steps=1, max_tokens=limit)
        _, left_out = train_reward_model(new_model(tokenizer), tokenizer, ANNOTATIONS, settings)
        rows, _, _ = trainings.pop()
        kept = [row for row in range(4) if sizes[row] <= limit]
        assert rows == [row_of(tokenizer, PROMPTS[row], TARGETS[row]) for row in kept], "none was cut"
        assert left_out == 4 - len(kept)
        assert max(len(row["input_ids"]) for row in rows) == limit


def test_what_the_models_context_cannot_hold_is_left_out_and_counted(trainings: list[Any]) -> None:
    tokenizer = new_tokenizer()
    sizes = lengths(tokenizer)
    model = tiny_llama(tokenizer, seed=0, width=32, layers=1, context=max(sizes) - 1)
    _, left_out = train_reward_model(model, tokenizer, ANNOTATIONS, FineTuning(steps=1))
    assert left_out == sizes.count(max(sizes))


def test_where_nothing_is_left_to_learn_from_the_error_says_why(tokenizer: Any) -> None:
    failed = Annotation("dogs:", " a cat", Critique("", status="unparsable"))
    with pytest.raises(DataError) as caught:
        train_reward_model(
            new_model(tokenizer), tokenizer, [*ANNOTATIONS[:3], failed], FineTuning(steps=1, max_tokens=10)
        )
    assert str(caught.value) == (
        "no training example is left of 4 annotations: 1 have a critique that could not be parsed, 3 are longer than "
        "max_tokens = 10. Raise max_tokens, or check the annotations."
    )
    for given in ([], [failed, failed]):
        with pytest.raises(DataError) as caught:
            train_reward_model(new_model(tokenizer), tokenizer, given, SETTINGS)
        assert str(caught.value) == (
            f"no training example is left of {len(given)} annotations: {len(given)} have a critique that could not be "
            "parsed, 0 are longer than max_tokens = 96. Raise max_tokens, or check the annotations."
        )


def test_the_model_is_trained_in_place_with_a_callback_after_each_step(tokenizer: Any) -> None:
    model, steps = new_model(tokenizer), []
    before = [parameter.detach().clone() for parameter in model.parameters()]
    settings = FineTuning(steps=3, batch_size=2, learning_rate=0.01, max_tokens=CONTEXT)
    taught, _ = train_reward_model(model, tokenizer, ANNOTATIONS, settings, on_step=steps.append)
    assert taught.model is model
    assert not model.training
    assert steps == [1, 2, 3]
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_special_tokens_in_any_turn_of_a_conversation_are_text() -> None:
    tokenizer = with_special_tokens()
    special = tokenizer.convert_tokens_to_ids("<|end|>")
    spoken = Conversation([Turn("user", "<|end|> dogs:"), Turn("assistant", " a cat", True)])
    (found,) = critique_prompts(tokenizer, [Example("<|end|> dogs:" * 9)], [spoken], "plain")
    assert special not in found
