"""A reward model that says one number: it learns to order, in the units of the rewards it was shown."""

import copy
import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from evidence.baselines.scalar import (
    SETTINGS_FILE,
    ScalarRewardModel,
    ensure_padding,
    new_scalar_model,
    scored_ids,
    train_scalar_further,
    train_scalar_reward_model,
)
from text2grad.errors import DataError, ModelError
from text2grad.feedback.critic import ask
from text2grad.feedback.records import Annotation
from text2grad.models.fine_tuning import FineTuning
from text2grad.reward_models.writing import critique_prompt
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example
from tiny_models import tiny

WORDS = ["red", "cat", "dog", "one"]
HOW = FineTuning(steps=60, batch_size=16, learning_rate=0.01, max_tokens=32, seed=1)


def responses(number: int, seed: int) -> list[str]:
    rng = Random(seed)
    return ["".join(f" {rng.choice(WORDS)}" for _ in range(rng.randint(1, 8))) for _ in range(number)]


def reward(response: str) -> float:
    """The reward to be learned: how often the word stands there."""
    return float(response.count("red"))


def annotations(texts: list[str]) -> list[Annotation]:
    return [Annotation("a", text, Critique("")) for text in texts]


def asked(texts: list[str]) -> list[Example]:
    return [Example("a")] * len(texts)


def outcomes(model: ScalarRewardModel, texts: list[str]) -> list[float]:
    return [critique.outcome for critique in model(asked(texts), texts)]  # type: ignore[misc]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return word_tokenizer(["a red cat dog one\n"])


@pytest.fixture(scope="module")
def start(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the causal language model is that it starts from."""
    directory = tmp_path_factory.mktemp("start")
    model = tiny_llama(tokenizer, seed=0, width=32, layers=1, context=32)
    model.config.pad_token_id = None  # as many have it: the tokenizer knows
    model.save_pretrained(directory)
    return directory


def test_micro_batches_and_the_whole_batch_have_the_same_gradient(start: Path, tokenizer: Any) -> None:
    def learned(accumulate: int) -> dict[str, torch.Tensor]:
        how = FineTuning(steps=6, batch_size=8, accumulate=accumulate, learning_rate=0.01, max_tokens=32, seed=1)
        critic = ScalarRewardModel(new_scalar_model(start, tokenizer, seed=0), tokenizer)
        # Norms of gradients on both sides of 1, where they are clipped: AdamW forgives any other factor.
        train_scalar_further(critic, annotations(SHOWN[:8]), [reward(text) / 2 for text in SHOWN[:8]], how)
        return critic.model.state_dict()  # type: ignore[no-any-return]

    whole, parts = learned(1), learned(4)
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=0, atol=5e-5, msg=name)


SHOWN, NEW = responses(64, seed=0), responses(40, seed=1)
STEPS: list[int] = []


@pytest.fixture(scope="module")
def taught(tokenizer: Any, start: Path) -> ScalarRewardModel:
    STEPS.clear()
    model, left_out = train_scalar_reward_model(
        start, tokenizer, annotations(SHOWN), list(map(reward, SHOWN)), HOW, on_step=STEPS.append
    )
    assert left_out == 0
    return model


class Stub(torch.nn.Module):
    """A classifier that gives the logits it was told, and remembers what it was asked."""

    def __init__(self, logits: list[float], outputs: int = 1) -> None:
        super().__init__()
        self.config, self.device = SimpleNamespace(num_labels=outputs), torch.device("cpu")
        self.config.get_text_config = lambda: SimpleNamespace(max_position_embeddings=12)
        self.given, self.batches = logits, []
        self.embedding = torch.nn.Embedding(100, 1)

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embedding

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        self.batches.append((input_ids, attention_mask))
        first = sum(len(ids) for ids, _ in self.batches[:-1])
        return SimpleNamespace(logits=torch.tensor(self.given[first : first + len(input_ids)])[:, None])


# What it says.


def test_the_number_is_in_the_units_of_the_rewards(tokenizer: Any) -> None:
    # 2 + 3 · 0.5 = 3.5,  2 + 3 · −1 = −1
    model = ScalarRewardModel(Stub([0.5, -1.0]), tokenizer, mean=2.0, deviation=3.0)
    assert model(asked(["", ""]), [" red", " cat"]) == [Critique("", outcome=3.5), Critique("", outcome=-1.0)]
    assert outcomes(ScalarRewardModel(Stub([0.5, -1.0]), tokenizer), [" red", " cat"]) == [0.5, -1.0]


def test_it_reads_prompt_and_response_so_many_at_once_in_order(tokenizer: Any) -> None:
    stub = Stub([1.0, 2.0, 3.0, 4.0, 5.0])
    texts = [" red", " cat dog", " one", "", " red red red"]
    assert outcomes(ScalarRewardModel(stub, tokenizer, rows_at_once=2), texts) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [len(ids) for ids, _ in stub.batches] == [2, 2, 1]
    read = [
        tokenizer.decode(ids[mask.bool()])
        for batch in stub.batches
        for ids, mask in zip(*batch, strict=True)
    ]  # fmt: skip
    assert read == [critique_prompt(Example("a"), text) for text in texts]


def test_it_is_a_critic_of_outcomes_without_words_or_spans(taught: ScalarRewardModel) -> None:
    critiques = ask(taught, asked(NEW), NEW, match="exact")
    assert critiques == [Critique("", outcome=outcome) for outcome in outcomes(taught, NEW)]
    assert taught([], []) == []


def test_each_response_needs_its_example(taught: ScalarRewardModel) -> None:
    with pytest.raises(ValueError, match="zip"):
        taught(asked(NEW), NEW[:2])


def test_a_model_with_more_outputs_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ModelError) as caught:
        ScalarRewardModel(Stub([], outputs=2), tokenizer)
    assert str(caught.value) == (
        "a scalar reward model needs exactly one output, and this model has 2; train one with "
        "`python -m evidence reward-baseline scalar`"
    )


# What it learns.


def test_it_learns_to_order_responses_it_has_not_seen(taught: ScalarRewardModel) -> None:
    found, true = outcomes(taught, NEW), list(map(reward, NEW))
    assert len(set(true)) >= 4
    pairs = [(a, b) for a in range(len(NEW)) for b in range(len(NEW)) if true[a] > true[b]]
    assert all(found[a] > found[b] for a, b in pairs)
    assert found == pytest.approx(true, abs=0.49)  # and in their own units: half the way to the next number is 0.5


def test_mean_and_deviation_are_those_of_the_rewards(tokenizer: Any, start: Path) -> None:
    # (1 + 1 + 4) / 3 = 2,  √((1 + 1 + 4) / 3) = √2
    model, _ = train_scalar_reward_model(start, tokenizer, annotations(NEW[:3]), [1.0, 1.0, 4.0], FineTuning(steps=1))
    assert (model.mean, model.deviation) == (2.0, pytest.approx(2**0.5))


def test_each_step_is_told(taught: ScalarRewardModel) -> None:
    assert list(range(1, 61)) == STEPS


def test_the_scale_of_the_rewards_changes_the_answers_and_not_the_weights(tokenizer: Any, start: Path) -> None:
    # 10 · r − 3 is standardized to what r is: (10r − 3 − (10m − 3)) / 10d.
    how, rewards = FineTuning(steps=3, batch_size=4, learning_rate=0.01), [0.0, 1.0, 3.0, 1.0]
    one, _ = train_scalar_reward_model(start, tokenizer, annotations(NEW[:4]), rewards, how)
    ten, _ = train_scalar_reward_model(start, tokenizer, annotations(NEW[:4]), [10 * r - 3 for r in rewards], how)
    assert outcomes(ten, NEW) == pytest.approx([10 * outcome - 3 for outcome in outcomes(one, NEW)], abs=1e-4)


def test_the_same_seed_makes_the_same_model(tokenizer: Any, start: Path) -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        how = FineTuning(steps=2, batch_size=4, learning_rate=0.01, seed=seed)
        found, _ = train_scalar_reward_model(start, tokenizer, annotations(SHOWN), list(map(reward, SHOWN)), how)
        return dict(found.model.state_dict())

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["score.weight"], other["score.weight"])


# Padding.


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_does_not_change_a_score(taught: ScalarRewardModel, side: str) -> None:
    tokenizer = copy.deepcopy(taught.tokenizer)
    tokenizer.padding_side = side
    assert len({len(ids) for ids in tokenizer(NEW).input_ids}) > 4
    together = ScalarRewardModel(taught.model, tokenizer, mean=taught.mean, deviation=taught.deviation)
    alone = [outcome for text in NEW for outcome in outcomes(taught, [text])]
    assert outcomes(together, NEW) == pytest.approx(alone, abs=1e-5)
    together.rows_at_once = 7
    assert outcomes(together, NEW) == pytest.approx(alone, abs=1e-5)


def test_the_model_knows_the_token_that_its_tokenizer_pads_with(tokenizer: Any, start: Path) -> None:
    # transformers finds the last token of a row by config.pad_token_id, and reads the reward there
    model = AutoModelForSequenceClassification.from_pretrained(str(start), num_labels=1)
    assert model.config.pad_token_id is None
    ensure_padding(model, tokenizer)
    assert model.config.pad_token_id == tokenizer.pad_token_id is not None
    model.config.pad_token_id = None
    without = copy.deepcopy(tokenizer)
    without.pad_token = None
    ensure_padding(model, without)
    assert model.config.pad_token_id == without.pad_token_id == tokenizer.eos_token_id != tokenizer.pad_token_id


# The model itself.


def test_the_model_comes_back_as_a_model_of_its_own(taught: ScalarRewardModel, start: Path) -> None:
    fresh = AutoModelForSequenceClassification.from_pretrained(str(start), num_labels=1)
    assert set(vars(taught.model)) == set(vars(fresh))
    assert not taught.model.training
    assert all(parameter.grad is None for parameter in taught.model.parameters())
    copied = copy.deepcopy(taught.model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
        ids = torch.tensor([[3, 4]])
        assert float(copied(ids).logits.abs().max()) == 0.0
        assert float(taught.model(ids).logits.abs().max()) > 0.0


def test_a_saved_model_comes_back_bit_for_bit_with_its_scale(taught: ScalarRewardModel, tmp_path: Path) -> None:
    given = ScalarRewardModel(taught.model, taught.tokenizer, mean=1.5, deviation=0.1, rows_at_once=7)
    given.save(tmp_path / "model")
    assert json.loads((tmp_path / "model" / SETTINGS_FILE).read_bytes()) == {
        "mean": 1.5,
        "deviation": 0.1,
        "rows_at_once": 7,
        "prompt_format": "plain",
    }
    loaded = ScalarRewardModel.load(tmp_path / "model")
    assert (loaded.mean, loaded.deviation, loaded.rows_at_once) == (1.5, 0.1, 7)
    before, after = given.model.state_dict(), loaded.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert outcomes(loaded, NEW) == outcomes(given, NEW)


def test_any_classifier_with_one_output_can_be_loaded_and_has_no_scale(
    taught: ScalarRewardModel, tmp_path: Path
) -> None:
    taught.save(tmp_path)
    (tmp_path / SETTINGS_FILE).unlink()
    loaded = ScalarRewardModel.load(str(tmp_path))
    assert (loaded.mean, loaded.deviation, loaded.rows_at_once) == (0.0, 1.0, 64)
    scaled = [taught.mean + taught.deviation * outcome for outcome in outcomes(loaded, NEW)]
    assert scaled == pytest.approx(outcomes(taught, NEW), abs=1e-6)


def test_where_no_scalar_reward_model_is_there_is_none_to_load(tokenizer: Any, start: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        ScalarRewardModel.load(tmp_path)
    assert str(caught.value) == f"cannot load a scalar reward model from {str(tmp_path)!r}: {caught.value.__cause__}"
    tokenizer.save_pretrained(start)
    with pytest.raises(ModelError, match=r"the files lack 1 of its weights: score\.weight"):
        ScalarRewardModel.load(start)  # a language model, whose head would be made anew
    AutoModelForSequenceClassification.from_pretrained(str(start), num_labels=2).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError) as caught:
        ScalarRewardModel.load(tmp_path)
    assert str(caught.value) == (
        f"cannot load a scalar reward model from {str(tmp_path)!r}: a scalar reward model needs exactly one output, "
        "and this model has 2; train one with `python -m evidence reward-baseline scalar`"
    )


# What is too long.


def test_what_is_longer_than_the_limit_is_left_out_and_counted(
    tokenizer: Any, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Trainer

    rows: list[Any] = []
    monkeypatch.setattr(Trainer, "train", lambda self, **_: rows.extend(self.train_dataset))
    how = FineTuning(steps=1, max_tokens=4)
    # "a", the response and the line break: 3, 4, 5 and 4 tokens. The mean of 1, 4 and 4 is 3, their deviation √2.
    texts = [" red", " red cat", " red cat dog", " cat dog"]
    model, left_out = train_scalar_reward_model(start, tokenizer, annotations(texts), [1.0, 4.0, 100.0, 4.0], how)
    assert left_out == 1
    assert (model.mean, model.deviation) == (3.0, pytest.approx(2**0.5))
    kept = [texts[0], texts[1], texts[3]]
    assert [row["input_ids"] for row in rows] == [tokenizer(f"a{text}\n").input_ids for text in kept]
    with pytest.raises(DataError) as caught:
        train_scalar_reward_model(start, tokenizer, annotations(texts[2:3] * 2), [1.0, 2.0], how)
    assert str(caught.value) == (
        "all 2 annotations are longer than 4 tokens; raise max_tokens, at most to the model's context"
    )


def test_what_is_longer_than_the_context_is_not_learned_from(tokenizer: Any, start: Path) -> None:
    texts = [" red" * 30, " cat" * 30, " red" * 31]  # 32, 32 and 33 tokens, for a context of 32
    _, left_out = train_scalar_reward_model(start, tokenizer, annotations(texts), [1.0, 0.0, 5.0], FineTuning(steps=1))
    assert left_out == 1


def test_a_response_beyond_the_context_is_scored_by_nobody_and_the_others_as_before(taught: ScalarRewardModel) -> None:
    fits, long = " red" * 30, " red" * 31  # with "a" and the line break 32 and 33 tokens, for a context of 32
    found = taught(asked([long, fits, long]), [long, fits, long])
    assert [one.status for one in found] == ["unparsable", "ok", "unparsable"]
    assert found[1].outcome == outcomes(taught, [fits])[0]
    assert found[0].outcome is None
    assert found[0].feedback == "prompt and response have 33 tokens, more than the reward model's context of 32"


# A chat template.


def test_a_published_model_with_a_chat_template_reads_chats(
    taught: ScalarRewardModel, tokenizer: Any, tmp_path: Path
) -> None:
    taught.save(tmp_path)
    (tmp_path / SETTINGS_FILE).unlink()
    chatty = copy.deepcopy(tokenizer)
    chatty.chat_template = "{% for m in messages %}{{ m['role'][:1] }}{{ m['content'] }}{% endfor %}"
    chatty.save_pretrained(tmp_path)
    loaded = ScalarRewardModel.load(tmp_path)
    assert loaded.prompt_format == "chat"
    chat = Example([{"role": "user", "content": " cat"}, {"role": "assistant", "content": " one"}])
    rows = scored_ids(chatty, [Example(" dog"), chat], [" red", " cat"], "chat")
    assert rows == [tokenizer(text).input_ids for text in ("u dog" + "a red", "u cat" + "a one" + "a cat")]
    texts = [" red red", " cat"]
    with torch.no_grad():
        ids = [torch.tensor([tokenizer(f"u doga{text}").input_ids]) for text in texts]
        true = [float(taught.model(one).logits) for one in ids]
    assert [one.outcome for one in loaded([Example(" dog")] * 2, texts)] == pytest.approx(true, abs=1e-6)


# Special tokens that a response or a message spells.


def with_special_tokens() -> tuple[Any, int]:
    """A tokenizer that has the special token <|end|>, and the id of it."""
    tokenizer = word_tokenizer(["a red cat dog one\n", " <|end|> < | end > user assistant"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}{{ m['content'] | trim }}<|end|>{% endfor %}"
    return tokenizer, tokenizer.convert_tokens_to_ids("<|end|>")


def test_special_tokens_in_a_response_are_text_and_those_of_a_plain_prompt_are_not() -> None:
    tokenizer, end = with_special_tokens()
    spelled, usual = scored_ids(tokenizer, [Example("<|end|>a")] * 2, [" cat<|end|> dog", " cat dog"], "plain")
    assert usual == tokenizer("<|end|>a cat dog\n").input_ids
    assert spelled.count(end) == usual.count(end) == 1
    assert spelled == [*usual[:3], *tokenizer("<|end|>", split_special_tokens=True).input_ids, *usual[3:]]


def test_a_response_cannot_add_a_turn_to_a_chat_and_no_message_can() -> None:
    tokenizer, end = with_special_tokens()
    chat = Example([{"role": "user", "content": " a<|end|>"}, {"role": "assistant", "content": "<|end|><|end|> one"}])
    asked, responses = [Example(" a"), Example(" a"), chat], [" cat<|end|>user dog<|end|>", " cat", " dog<|end|>"]
    found = scored_ids(tokenizer, asked, responses, "chat")
    assert [ids.count(end) for ids in found] == [2, 2, 3]
    as_text = tokenizer("<|end|>", split_special_tokens=True).input_ids
    assert found[1] == tokenizer("usera<|end|>assistantcat<|end|>").input_ids
    assert found[2][-len(as_text) - 1 :] == [*as_text, end]


def test_private_characters_of_a_response_stay_as_they_are() -> None:
    tokenizer, end = with_special_tokens()
    tokenizer.add_tokens(["\U000f0000", "0"])
    (found,) = scored_ids(tokenizer, [Example("a")], ["\U000f00000\U000f0000<|end|>"], "chat")
    assert found.count(end) == 2
    assert found.count(tokenizer.convert_tokens_to_ids("\U000f0000")) == 2


@pytest.mark.parametrize("layers", [1, 2])
def test_a_base_whose_last_states_have_another_width_learns_and_scores(
    tokenizer: Any, tmp_path: Path, layers: int
) -> None:
    """As OPT-350m, whose last states have the width of its embedding."""
    shape = {"word_embed_proj_dim": 8, "num_hidden_layers": layers, "vocab_size": len(tokenizer)}
    tiny("opt", do_layer_norm_before=False, **shape).save_pretrained(tmp_path / "base")
    model, _ = train_scalar_reward_model(
        tmp_path / "base", tokenizer, annotations(NEW), list(map(reward, NEW)), FineTuning(steps=2, max_tokens=32)
    )
    tokenizer.save_pretrained(tmp_path / "model")
    model.save(tmp_path / "model")
    assert outcomes(ScalarRewardModel.load(tmp_path / "model"), NEW) == outcomes(model, NEW)


def test_a_tokenizer_of_more_ids_than_the_model_has_is_refused(tokenizer: Any, start: Path) -> None:
    more = copy.deepcopy(tokenizer)
    more.add_tokens(["violet"])
    with pytest.raises(ModelError) as refused:
        train_scalar_reward_model(start, more, annotations(NEW), list(map(reward, NEW)), HOW)
    assert str(refused.value) == (
        f"row 0 has the id {len(tokenizer)}, and the model's embedding has {len(tokenizer)} rows; call "
        "model.resize_token_embeddings(len(tokenizer)) and save the model, or take the tokenizer that belongs to it"
    )


# What cannot be learned from.


@pytest.mark.parametrize(("given", "rewards"), [(0, 0), (2, 1), (1, 2), (0, 1)])
def test_each_annotation_needs_one_reward(tokenizer: Any, start: Path, given: int, rewards: int) -> None:
    with pytest.raises(DataError) as caught:
        train_scalar_reward_model(start, tokenizer, annotations(NEW[:given]), [1.0] * rewards, HOW)
    assert str(caught.value) == f"got {given} annotations and {rewards} rewards; one reward each is needed"


def test_rewards_that_are_all_the_same_teach_nothing(tokenizer: Any, start: Path) -> None:
    with pytest.raises(DataError) as caught:
        train_scalar_reward_model(start, tokenizer, annotations(NEW[:3]), [0.5] * 3, HOW)
    assert str(caught.value) == "all 3 rewards are 0.5; at least two different rewards are needed"


def test_a_chat_that_the_template_refuses_is_one_clear_message(tokenizer: Any) -> None:
    """As a reward model on Gemma, whose template has no system turn, for a policy whose prompts have one."""
    chatty = copy.deepcopy(tokenizer)
    chatty.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    )
    chat = Example(({"role": "system", "content": "a"}, {"role": "user", "content": " dog"}))
    with pytest.raises(DataError) as refused:
        scored_ids(chatty, [Example(" cat"), chat], [" red", " red"], "chat")
    assert str(refused.value) == (
        "the chat template of the scalar reward model refuses a prompt with its response (roles 'system', 'user', "
        "'assistant'): System role not supported. Change the messages, or take a reward model that has such roles, or "
        "was trained on plain text"
    )
