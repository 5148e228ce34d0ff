"""Several critiques of a response come to one: by hand, by laws, drawn from a model, chosen on held-out ones."""

import json
import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from constrained_writing import begin, written
from small_reward import ANNOTATIONS, prepare, recipe
from text2grad import vote
from text2grad.errors import ConfigError
from text2grad.feedback.records import read_annotations
from text2grad.reward_models.decoding.constrained import free_choice, valid_choice
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.load import critic_from_recipe
from text2grad.reward_models.training.held_out import HeldOutSet
from text2grad.reward_models.training.run import RewardRun
from text2grad.types import LABELS, Critique, Example, Span
from tokenizers_made_here import made

RESPONSE = "in Lyon on Monday"
#           0  3    8  11
CITY, DAY, BOTH = Span(3, 7, "negative"), Span(11, 17, "negative"), Span(3, 17, "negative")
GOOD_CITY = Span(3, 7, "positive")


def said(feedback: str, *spans: Span, **more: Any) -> Critique:
    return Critique(feedback, spans, **more)


# By hand.


@pytest.mark.parametrize(
    ("vote_threshold", "spans", "feedback"),
    [
        (0.25, (BOTH,), "c"),  # "on" has one vote of four: its share is 0.25
        (0.26, (CITY, DAY), "b"),  # "Lyon" has three, "Monday" two; the second says just this
        (0.5, (CITY, DAY), "b"),
        (0.51, (CITY,), "a"),
        (0.75, (CITY,), "a"),
        (0.76, (), "d"),
    ],
)
def test_what_enough_critiques_mark_is_marked_in_the_words_of_the_most_like(
    vote_threshold: float, spans: tuple[Span, ...], feedback: str
) -> None:
    critiques = [said("a", CITY), said("b", CITY, DAY), said("c", BOTH), said("d")]
    found = vote(critiques, RESPONSE, threshold=vote_threshold)
    assert found == Critique(feedback, spans)


def test_a_character_has_the_label_of_more_votes_and_none_in_a_tie() -> None:
    critiques = [said("a", CITY), said("b", CITY), said("c", GOOD_CITY), said("d", GOOD_CITY, DAY)]
    assert vote(critiques, RESPONSE, threshold=0.25).spans == (DAY,)
    assert vote([*critiques, said("e", GOOD_CITY)], RESPONSE, threshold=0.25).spans == (GOOD_CITY,)
    assert vote([*critiques, said("e", CITY)], RESPONSE, threshold=0.25).spans == (CITY,)


def test_a_critique_that_contradicts_itself_has_no_vote_there() -> None:
    for twice in ((CITY, GOOD_CITY), (CITY, GOOD_CITY, Span(3, 8, "positive"))):
        assert Span(3, 7, "positive") not in vote([said("a", *twice), said("b")], RESPONSE).spans
        assert CITY not in vote([said("a", *twice), said("b")], RESPONSE).spans


def test_spans_of_one_critique_that_lie_upon_each_other_are_one_vote() -> None:
    inner = Span(4, 6, "negative")
    assert vote([said("a", CITY, inner), said("b"), said("c")], RESPONSE, threshold=0.5).spans == ()


def test_failed_critiques_have_no_vote_and_alone_they_fail() -> None:
    broken = Critique("", status="unparsable")
    assert vote([broken, broken, said("a", CITY)], RESPONSE, threshold=1.0).spans == (CITY,)
    assert vote([broken, Critique("late", status="timed_out")], RESPONSE) is broken


def test_spans_have_no_white_space_at_their_ends_and_white_space_alone_is_none() -> None:
    wide = Span(2, 8, "negative")  # " Lyon "
    assert vote([said("a", wide)], RESPONSE).spans == (CITY,)
    assert vote([said("a", Span(2, 3, "negative"))], RESPONSE).spans == ()


def test_the_outcome_is_the_mean_of_those_given_and_none_where_none_is() -> None:
    critiques = [said("a", outcome=1.0), said("b", outcome=-0.5), said("c")]
    assert vote(critiques, RESPONSE).outcome == 0.25  # (1 − 0.5) / 2
    assert vote([said("a")], RESPONSE).outcome is None


@pytest.mark.parametrize("vote_threshold", [0.0, -0.1, 1.01, math.nan])
def test_a_threshold_that_is_none_is_refused(vote_threshold: float) -> None:
    with pytest.raises(ConfigError, match="a threshold in \\("):
        vote([said("a")], RESPONSE, threshold=vote_threshold)


def test_a_vote_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="votes = 0, "):
        vote([], RESPONSE)


# Laws.

WORDS = [(0, 2), (3, 7), (8, 10), (11, 17)]
CRITIQUES = st.lists(
    st.dictionaries(st.sampled_from(WORDS), st.sampled_from(LABELS)).map(
        lambda marks: Critique("", tuple(sorted(Span(*place, label) for place, label in marks.items())))
    ),
    min_size=1,
    max_size=9,
)


@given(CRITIQUES, st.integers(1, 20))
def test_each_word_is_judged_alone_by_counting(critiques: list[Critique], twentieths: int) -> None:
    spans = vote(critiques, RESPONSE, threshold=twentieths / 20).spans
    for place in WORDS:
        good, poor = (sum(Span(*place, label) in critique.spans for critique in critiques) for label in LABELS)
        enough = 20 * max(good, poor) >= twentieths * len(critiques)
        elected = None if good == poor or not enough else LABELS[0] if good > poor else LABELS[1]
        assert [s.label for s in spans if s.start <= place[0] and place[1] <= s.end] == ([elected] if elected else [])


@given(CRITIQUES, st.randoms())
def test_the_order_of_the_critiques_does_not_change_the_spans(critiques: list[Critique], rng: random.Random) -> None:
    before = vote(critiques, RESPONSE, threshold=0.3).spans
    rng.shuffle(critiques)
    assert vote(critiques, RESPONSE, threshold=0.3).spans == before


# Drawn from a model.


def test_a_token_is_drawn_by_its_share_among_the_allowed_ones() -> None:
    tokenizer = made("gpt2")
    begun = begin(tokenizer, "so so", room=120)
    assert written(begun, '{"textual_feedback": "", "good_spans": ["')
    assert begun.state is not None
    scores = np.random.default_rng(0).normal(size=begun.skeleton.vocabulary.size).astype(np.float32)
    allowed = [i for i in range(len(scores)) if begun.step(begun.state, i, begun.room - 1) is not None]
    scores[allowed] += 3.0  # so that the first draw is accepted about as often as not
    mass = np.exp(scores.astype(np.float64))
    assert 0.2 < mass[allowed].sum() / mass.sum() < 0.8
    found: Counter[int] = Counter()
    state, room, draws = begun.state, begun.room, 4_000
    for seed in range(draws):
        begun.state, begun.room = state, room
        choose = valid_choice([begun], [random.Random(seed)])
        found[int(choose(torch.tensor(scores[None]), torch.tensor([0]), 0))] += 1
    assert set(found) <= set(allowed)
    for token in allowed:
        share = mass[token] / mass[allowed].sum()
        assert abs(found[token] / draws - share) < 4.5 * math.sqrt(share * (1 - share) / draws) + 1e-3, token


def test_free_draws_follow_the_softmax_of_the_scores_row_by_row() -> None:
    scores = torch.tensor([[0.0, math.log(3.0)], [-torch.inf, 0.0]])  # shares ¼ and ¾; 0 and 1
    drawn = [
        free_choice([random.Random(s), random.Random(s)])(scores, torch.arange(2), 0).tolist() for s in range(2_000)
    ]
    assert abs(sum(first for first, _ in drawn) / 2_000 - 0.75) < 0.04  # four standard deviations
    assert all(second == 1 for _, second in drawn)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with annotations, a base and a reward model that was trained to vote."""
    directory = tmp_path_factory.mktemp("votes")
    prepare(directory)
    RewardRun(recipe(directory, "voting", critic={"votes": 5})).run()
    return directory


EXAMPLES = [Example(one.prompt) for one in ANNOTATIONS[:4]]
RESPONSES = [one.response for one in ANNOTATIONS[:4]]


@pytest.mark.parametrize("constrain", [True, False])
def test_draws_follow_from_what_is_asked_alone(home: Path, constrain: bool) -> None:
    def load(**settings: Any) -> GenerativeRewardModel:
        return GenerativeRewardModel.load(home / "voting" / "model", constrain=constrain, **settings)

    critiques = load().draw(EXAMPLES, RESPONSES)
    assert [len(own) for own in critiques] == [5] * 4
    assert len({critique.feedback + str(critique.spans) for own in critiques for critique in own}) > 4
    backwards = load(rows_at_once=3).draw(EXAMPLES[::-1], RESPONSES[::-1])
    assert backwards[::-1] == critiques


def test_it_votes_as_vote_says(home: Path) -> None:
    model = GenerativeRewardModel.load(home / "voting" / "model", vote_threshold=0.4)
    drawn = model.draw(EXAMPLES, RESPONSES)
    assert model(EXAMPLES, RESPONSES) == [
        vote(own, response, threshold=0.4) for own, response in zip(drawn, RESPONSES, strict=True)
    ]


@pytest.mark.parametrize(("votes", "vote_threshold"), [(0, 0.5), (3, 0.0), (3, 1.5)])
def test_settings_that_are_none_are_refused(home: Path, votes: int, vote_threshold: float) -> None:
    with pytest.raises(ConfigError, match=f"votes = {votes}, vote_threshold = {vote_threshold}"):
        GenerativeRewardModel.load(home / "voting" / "model", votes=votes, vote_threshold=vote_threshold)


# Chosen on held-out annotations.


def test_the_threshold_is_the_best_on_held_out_annotations_and_is_saved(home: Path) -> None:
    run = RewardRun(recipe(home, "voting", critic={"votes": 5}), resume=True)
    model = GenerativeRewardModel.load(home / "voting" / "model")
    assert model.format.votes == 5
    by_threshold = {}
    held_out = HeldOutSet(run.tokenizer, read_annotations(home / "voting" / "held_out.jsonl"))
    for number in range(1, 6):  # an oracle: each vote_threshold measured as a critic of its own
        model.format = replace(model.format, vote_threshold=number / 5)
        by_threshold[number / 5] = held_out.measure(model)
    f1s = {vote_threshold: quality.metrics()["f1"] for vote_threshold, quality in by_threshold.items()}
    assert len(set(f1s.values())) > 1
    measured = json.loads((home / "voting" / "results.json").read_bytes())["measured"]
    assert measured["vote_threshold"] == max(f1s, key=f1s.__getitem__)
    assert measured["f1"] == max(f1s.values())
    assert GenerativeRewardModel.load(home / "voting" / "model").format.vote_threshold == measured["vote_threshold"]


def test_the_card_says_that_it_was_a_vote_and_what_was_unseen(home: Path) -> None:
    card = (home / "voting" / "model" / "README.md").read_text()
    assert "Critiques sampled, 5 each, and combined by vote, and constrained" in card
    assert "the model was not\ntrained on their prompts." in card
    assert "| vote_threshold | 0." in card


def test_votes_can_be_counted_in_shares_of_the_held_out_annotations(home: Path) -> None:
    model = GenerativeRewardModel.load(home / "voting" / "model")
    held_out = HeldOutSet(model.tokenizer, ANNOTATIONS[:7])
    whole = held_out.measure_votes(model, [0.2, 0.8])
    parts = [held_out.measure_votes(model, [0.2, 0.8], slice(rank, None, 2)) for rank in range(2)]
    assert [one.merged(other) for one, other in zip(*parts, strict=True)] == whole


def test_in_the_loop_the_recipe_goes_before_what_was_saved(home: Path) -> None:
    path = str(home / "voting" / "model")
    saved = GenerativeRewardModel.load(path)
    as_saved = critic_from_recipe(recipe(home, critic={"model": path}))
    assert as_saved.format == saved.format
    named = critic_from_recipe(recipe(home, critic={"model": path, "votes": 1}))
    assert named.format.votes == 1


# What is said about the spans.


def test_a_span_says_what_the_most_similar_critique_that_marks_it_says() -> None:
    city, wide = replace(CITY, reason="It is Nice.", rater="ann"), replace(CITY, start=0, reason="No.", rater="bob")
    day = replace(DAY, reason="It was Friday.", rater="cid", weight=0.5)
    # threshold 0.3: "Lyon" has 3 votes of 3, "in " and "Monday" 1. Of 17 characters bob's marks are like the result in
    # 17 − 6 = 11, ann's in 17 − 3 − 6 = 8, cid's in 17 − 3 = 14
    critiques = [said("a", city), said("b", wide), said("c", CITY, day)]
    voted = vote(critiques, RESPONSE, threshold=0.3)
    assert [(span.start, span.end, span.reason, span.rater, span.weight) for span in voted.spans] == [
        (0, 7, None, None, None),  # of c, which says nothing about it
        (11, 17, "It was Friday.", "cid", 0.5),
    ]
    assert voted.feedback == "c"
    ours = vote([said("a", city), said("b", wide), said("c", DAY, GOOD_CITY)], RESPONSE)
    assert ours.spans[0].stated == {"start": 3, "end": 7, "label": "negative", "reason": "It is Nice.", "rater": "ann"}
