"""Lessons: the gradient is the NL-Gradient, marked tokens move in their direction, tokens are the sampled ones."""

from typing import Any

import pytest
import torch

from places import STORIES
from text2grad.errors import ConfigError, DataError
from text2grad.models import collate, load_policy, load_tokenizer, response_logprobs, with_lora
from text2grad.rl import nl_gradient_loss
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Span
from text2grad_studio.teaching import Correction, Lesson, MarkedTokens, _Rounds, rollouts_of, settings_from, teach
from tokenizers_made_here import made

TEXT = "the cat sat on the mat"


@pytest.fixture
def tiny() -> tuple[Any, Any]:
    torch.manual_seed(0)
    tokenizer = word_tokenizer([TEXT, "say where ."])
    return with_lora(tiny_llama(tokenizer, seed=0), r=4, alpha=8, targets="all-linear"), tokenizer


def correction(*spans: Span, ids: list[int] | None = None) -> Correction:
    return Correction("item", "say where .", TEXT, ids, spans)


def test_marked_words_move_in_their_direction_and_others_less(tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    seen: list[tuple[int, float]] = []
    marks = (Span(4, 7, "negative"), Span(19, 22, "positive"))
    taught = teach(
        model,
        tokenizer,
        [correction(*marks)],
        Lesson(lr=1e-2, target=0.5),
        prompt_format="plain",
        on_round=lambda number, moved: seen.append((number, moved)),
    )
    [change] = taught.changes
    moved = [after - before for before, after in zip(change.before, change.after, strict=True)]
    assert change.delta == [0, -1, 0, 0, 0, 1]
    assert moved[1] < -0.2
    assert moved[5] > 0.2
    assert taught.negative == pytest.approx(moved[1], abs=1e-4)
    assert taught.positive == pytest.approx(moved[5], abs=1e-4)
    assert taught.unmarked == pytest.approx(sum(moved[n] for n in (0, 2, 3, 4)) / 4, abs=1e-4)
    assert seen[-1][1] >= 0.5
    assert all(before < 0.5 for _, before in seen[:-1])
    assert taught.kl > 0


def test_the_first_gradient_of_a_lesson_is_the_nl_gradient(tiny: tuple[Any, Any]) -> None:
    """Definition 1, but for the mean over marked tokens: 2 of 6 tokens are marked, so the factor is 1/2."""
    model, tokenizer = tiny
    [rollout] = rollouts_of(model, tokenizer, [correction()], prompt_format="plain")
    batch = collate([rollout], pad_id=0)
    delta = torch.tensor([[0.0, -1, 0, 0, 0, 1]])
    marks = (Span(4, 7, "negative"), Span(19, 22, "positive"))
    marked = MarkedTokens(model, tokenizer, [correction(*marks)], prompt_format="plain")
    assert torch.equal(marked.delta, delta)
    loop = _Rounds(model, marked, Lesson(kl=0.0))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    logp = response_logprobs(model, batch)[0]
    expected = torch.autograd.grad(nl_gradient_loss(logp, delta, batch.response_mask) / 2, trained)
    grads: list[Any] = []

    def step() -> dict[str, float]:
        grads.extend(parameter.grad.clone() for parameter in trained)
        loop.optimizers.zero_grad()
        return {}

    loop.optimizers.step = step  # type: ignore[method-assign]
    loop.round(1, marked.scores())
    for gradient, wanted in zip(grads[: len(trained)], expected, strict=True):
        assert torch.allclose(gradient, wanted, atol=1e-7)
    assert any(bool(grad.abs().sum() > 0) for grad in expected)


def test_a_lesson_ends_when_the_goals_are_reached(tiny: tuple[Any, Any]) -> None:
    """The goal of "cat" is the target; that of "mat" is half of the way to certainty, at most the target."""
    model, tokenizer = tiny
    seen: list[float] = []
    marks = (Span(4, 7, "negative"), Span(19, 22, "positive"))
    lesson = Lesson(lr=1e-2, target=4.0, kl=0.0)
    given, on_round = [correction(*marks)], lambda _, moved: seen.append(moved)
    taught = teach(model, tokenizer, given, lesson, prompt_format="plain", on_round=on_round)
    before = taught.changes[0].before[5]
    assert taught.positive is not None
    assert taught.negative is not None
    reached = (taught.positive - taught.negative) / (4 + min(4, -before / 2))  # both marks have one token
    assert seen[-1] == pytest.approx(4 * reached, abs=1e-3)
    assert seen[-1] >= 4.0 > seen[-2]


def test_the_sampled_ids_are_taken_where_they_are_the_policys_own(tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    ids = tokenizer(TEXT).input_ids
    [own] = rollouts_of(model, tokenizer, [correction(ids=[*ids, tokenizer.eos_token_id])], prompt_format="plain")
    [foreign] = rollouts_of(model, tokenizer, [correction(ids=[1, 2, 10**6])], prompt_format="plain")
    [typed] = rollouts_of(model, tokenizer, [correction()], prompt_format="plain")
    assert own.response_ids == (*ids, tokenizer.eos_token_id)
    assert foreign.response_ids == typed.response_ids == tuple(ids)


def test_texts_that_the_tokenizer_changes_and_marks_on_nothing_are_refused(tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    strange = Correction("item", "say where .", "a word that is unknown", None, [Span(0, 1, "negative")])
    with pytest.raises(DataError, match="tokenizer changes the response"):
        teach(model, tokenizer, [strange], Lesson(), prompt_format="plain")
    with pytest.raises(DataError, match="no token is marked"):
        teach(model, tokenizer, [correction()], Lesson(), prompt_format="plain")


def test_a_special_token_that_a_response_spells_is_text() -> None:
    tokenizer = made("gpt2")
    model = with_lora(tiny_llama(tokenizer, seed=0), r=4, alpha=8, targets="all-linear")
    text = "the dog <end> the park"
    typed = Correction("item", "Say.", text, None, [Span(8, 13, "negative")])
    [rollout] = rollouts_of(model, tokenizer, [typed], prompt_format="plain")
    assert rollout.response == text
    assert tokenizer.eos_token_id not in rollout.response_ids
    [change] = teach(model, tokenizer, [typed], Lesson(rounds=1), prompt_format="plain").changes
    marked = [text[slice(*place)] for place, delta in zip(change.offsets, change.delta, strict=True) if delta]
    assert "".join(marked).strip() == "<end>"


def test_settings_of_a_lesson_are_checked() -> None:
    assert settings_from(Lesson(), {"target": 2, "rounds": 3.0}, name="a lesson") == Lesson(target=2.0, rounds=3)
    for wrong in ({"rounds": 0}, {"lr": -1}, {"kl": -0.1}, {"target": float("nan")}, {"speed": 1}, {"lr": "1"}):
        with pytest.raises(ConfigError, match=r"of a lesson|has no setting"):
            settings_from(Lesson(), wrong, name="a lesson")


@pytest.mark.skipif(not STORIES.exists(), reason="models/stories260k is not in the shared folder")
def test_a_story_model_unlearns_a_marked_word() -> None:
    model = with_lora(load_policy(str(STORIES)), r=8, alpha=16, targets="all-linear")
    story = "Once upon a time, there was a little cliws. It was very happy."
    start = story.index("cliws")
    given = Correction("item", "Tell me a story.", story, None, [Span(start, start + 5, "negative")])
    taught = teach(model, load_tokenizer(str(STORIES)), [given], Lesson(), prompt_format="plain")
    assert taught.negative is not None
    assert taught.unmarked is not None
    assert taught.negative < -1.0
    assert abs(taught.unmarked) < 0.3
