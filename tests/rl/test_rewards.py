"""From critiques to the reward of each token: every number by hand."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Core, decoders, models
from transformers import PreTrainedTokenizerFast

from text2grad.align.delta import AlignSettings, pseudo_rewards
from text2grad.align.rollouts import policy_offsets, response_deltas, step_ends
from text2grad.config import RewardConfig
from text2grad.rl.rewards import rewards_of, token_rewards
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Critique, Example, Rollout, Span
from tokenizers_made_here import STORIES, stories260k

OK, BAD, LATE = Critique("said"), Critique("?", status="unparsable"), Critique("", status="timed_out")


def rewards(
    deltas: Sequence[Sequence[float]],
    critiques: Sequence[Critique],
    cut: Sequence[bool] | None = None,
    **config: Any,
) -> list[list[float]]:
    width = max(map(len, deltas)) + 1  # a last column that is padding everywhere
    mask = torch.tensor([[t < len(row) for t in range(width)] for row in deltas])
    truncated = torch.tensor(cut or [False] * len(deltas))
    batch: Any = SimpleNamespace(response_mask=mask, truncated=truncated)
    texts, offsets = config.pop("texts", []), config.pop("offsets", [])
    found = token_rewards(RewardConfig(**config), deltas, critiques, batch, responses=texts, offsets=offsets)
    assert found.dtype == torch.float32
    assert found.shape == mask.shape
    return found.tolist()


def test_by_default_a_reward_is_the_papers_delta() -> None:
    assert rewards([[1.0, -1.0, 0.0, 0.5], [-0.25]], [OK, OK]) == [[1.0, -1.0, 0.0, 0.5, 0.0], [-0.25, 0, 0, 0, 0]]


def test_labels_outcome_and_truncation_are_scaled_and_placed() -> None:
    # positive 2, negative −3, unlabelled ½, truncated −4
    #   δ = 1, −1, 0, ½  →  2, −3, ½, 1          outcome 2 → +2 on the last token: 1 + 2 = 3
    #   δ = 0, −¼        →  ½, −¾                 no outcome; cut: −¾ − 4 = −4¾
    #   no token         →  nothing, whatever the outcome
    #   δ = 0            →  ½                     outcome −½: ½ − ½ = 0; cut: −4
    found = rewards(
        [[1.0, -1.0, 0.0, 0.5], [0.0, -0.25], [], [0.0]],
        [Critique("", outcome=2.0), OK, Critique("", outcome=1.0), Critique("", outcome=-0.5)],
        [False, True, True, True],
        positive=2.0,
        negative=-3.0,
        unlabelled=0.5,
        truncated=-4.0,
    )
    assert found == [[2.0, -3.0, 0.5, 3.0, 0.0], [0.5, -4.75, 0, 0, 0], [0.0] * 5, [-4.0, 0, 0, 0, 0]]


def test_one_reward_on_the_last_token_is_the_sum_of_the_same_rewards() -> None:
    deltas = [[1.0, -1.0, 0.0, 0.5], [0.0, -0.25], [], [1.0]]
    critiques = [Critique("", outcome=2.0), OK, OK, BAD]
    settings = {"positive": 2.0, "negative": -3.0, "unlabelled": 0.5, "truncated": -4.0}
    spread = rewards(deltas, critiques, [False, True, False, False], **settings)
    placed = rewards(deltas, critiques, [False, True, False, False], placement="last_token", **settings)
    # 2 − 3 + ½ + 1 = ½, with the outcome 2½;   ½ − ¾ = −¼, cut −4¼
    assert placed == [[0.0, 0.0, 0.0, 2.5, 0.0], [0.0, -4.25, 0, 0, 0], [0.0] * 5, [0.0] * 5]
    assert [sum(row) for row in placed] == [sum(row) for row in spread]


def test_a_verdict_is_one_reward_that_the_worst_span_decides() -> None:
    deltas = [[1.0, -1.0, 1.0], [1.0, 0.5], [0.0, 0.0], [-1.0]]
    critiques = [Critique("", outcome=2.0), OK, OK, BAD]
    settings = {"positive": 2.0, "negative": -3.0, "unlabelled": 0.5, "truncated": -4.0}
    placed = rewards(deltas, critiques, [False, True, False, False], placement="verdict", **settings)
    # −3 and the outcome 2; right, but cut: 2 − 4; no span; an unreadable critique
    assert placed == [[0, 0, -1.0, 0], [0, -2.0, 0, 0], [0.0] * 4, [0.0] * 4]


@pytest.mark.parametrize("failed", [BAD, LATE], ids=["unparsable", "timed_out"])
@pytest.mark.parametrize("placement", ["spans", "last_token", "verdict"])
def test_a_failed_critique_gives_nothing_anywhere(failed: Critique, placement: str) -> None:
    judged = Critique(failed.feedback, outcome=5.0, status=failed.status)
    settings = {"unlabelled": 0.5, "placement": placement}
    found = rewards([[1.0, -1.0, 0.0], [0.5, 0.0]], [judged, OK], **settings)
    assert found[0] == [0.0] * 4
    assert sum(found[1]) == 1.0  # the other row still earns its two halves, or its verdict


def test_a_cut_response_is_a_cut_one_even_where_its_critique_failed() -> None:
    assert rewards([[1.0, 0.0]], [BAD], [True], truncated=-1.0, unlabelled=0.5) == [[0.0, -1.0, 0.0]]


def test_a_negative_span_may_be_paid_nothing_and_a_positive_one_punished() -> None:
    assert rewards([[1.0, -1.0]], [OK], positive=-0.5, negative=0.25) == [[-0.5, 0.25, 0.0]]


# δ of each response in its own tokens.


def rollout(ids: Sequence[int], text: str) -> Rollout:
    return Rollout(Example("x"), (1,), tuple(ids), text, False)


@pytest.fixture(scope="module")
def words() -> Any:
    return word_tokenizer(["red cat runs"])


def test_each_response_gets_its_own_deltas_and_a_failed_critique_zeros(words: Any) -> None:
    ids = words("red cat runs").input_ids
    end = words.eos_token_id
    rollouts = [rollout([*ids, end], "red cat runs"), rollout(ids[:2], "red cat"), rollout([], "")]
    critiques = [
        Critique("", (Span(4, 7, "negative"), Span(8, 12, "positive"))),
        Critique("", (Span(0, 3, "positive"),), status="unparsable"),
        OK,
    ]
    deltas, offsets = response_deltas(words, rollouts, critiques)
    assert deltas == [[0.0, -1.0, 1.0, 0.0], [0.0, 0.0], []]
    assert offsets == [[(0, 3), (3, 7), (7, 12), (12, 12)], [(0, 3), (3, 7)], []]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [  # tokens "red", " cat", " runs"; spans: "red cat" positive, " cat" negative, "uns" positive
        ({}, [1.0, 0.0, 1.0]),
        ({"overlap": "negative_wins"}, [1.0, -1.0, 1.0]),
        ({"overlap": "last_wins"}, [1.0, -1.0, 1.0]),
        ({"mode": "contract"}, [1.0, 0.0, 0.0]),
        ({"mode": "strict", "overlap": "negative_wins"}, [1.0, -1.0, 0.0]),
        ({"weighting": "linear_decay", "overlap": "negative_wins"}, [1.0, -1.0, 1.0]),
        ({"span_mass": "span", "overlap": "negative_wins"}, [0.5, -1.0, 1.0]),
        ({"span_mass": "response"}, [1 / 3, 0.0, 1 / 3]),
    ],
)
def test_every_setting_of_the_alignment_reaches_it(words: Any, settings: Any, expected: list[float]) -> None:
    spans = (Span(0, 7, "positive"), Span(3, 7, "negative"), Span(9, 12, "positive"))
    rollouts = [rollout(words("red cat runs").input_ids, "red cat runs")]
    deltas, _ = response_deltas(words, rollouts, [Critique("", spans)], AlignSettings(**settings))
    assert deltas == [expected]


def test_a_decay_over_a_span_reaches_the_deltas(words: Any) -> None:
    rollouts = [rollout(words("red cat runs").input_ids, "red cat runs")]
    config = AlignSettings(weighting="linear_decay")  # three tokens: 1, 1 − 0.45, 1 − 0.9
    deltas, _ = response_deltas(words, rollouts, [Critique("", (Span(0, 12, "positive"),))], config)
    assert deltas[0] == pytest.approx([1.0, 0.55, 0.1])


@pytest.mark.skipif(not STORIES.exists(), reason="the project's shared models are not here")
def test_a_real_tokenizer_marks_exactly_the_tokens_that_touch_the_span() -> None:
    tokenizer = stories260k()
    text = "Once upon a time, a nearck was happy. 😀 The nearck ran."
    ids = tokenizer(text, add_special_tokens=False).input_ids
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    start = decoded.index("nearck")
    span = Span(start, start + len("nearck"), "negative")
    (delta,), (offsets,) = response_deltas(tokenizer, [rollout(ids, decoded)], [Critique("", (span,))])
    assert len(delta) == len(ids)
    assert delta == [-1.0 if a < span.end and b > span.start else 0.0 for a, b in offsets]
    marked = "".join(decoded[a:b] for (a, b), d in zip(offsets, delta, strict=True) if d)
    assert marked.strip() == "nearck"
    assert delta == pseudo_rewards(tokenizer, ids, [span])


def test_rows_of_the_embedding_that_no_token_has_add_nothing_to_the_text() -> None:
    tokenizer = word_tokenizer(["in Lyon now"])
    a, b = tokenizer("in Lyon").input_ids
    padded = len(tokenizer) + 5
    assert policy_offsets(tokenizer, [padded, a, padded, b, padded]) == [(0, 0), (0, 2), (2, 2), (2, 7), (7, 7)]
    assert tokenizer.decode([padded, a, padded, b, padded]) == "in Lyon"
    rollout = Rollout(Example("?"), (0,), (a, padded, b), "in Lyon", False)
    critique = Critique("The town is wrong.", (Span(3, 7, "negative"),))
    assert response_deltas(tokenizer, [rollout], [critique])[0] == [[0, 0, -1]]


def test_ids_may_have_gaps_and_a_sampled_gap_adds_nothing_to_the_text() -> None:
    core = Core(models.WordLevel({"in": 0, "ĠLyon": 1, "Ġnow": 9}, unk_token="in"))
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    assert len(tokenizer) == 3
    assert tokenizer.decode([0, 9, 5, 1]) == "in now Lyon"  # 5 is a gap, 9 a token in spite of its number
    assert policy_offsets(tokenizer, [0, 9, 5, 1]) == [(0, 2), (2, 6), (6, 6), (6, 11)]


def test_one_reward_per_step_is_the_sum_on_its_last_token() -> None:
    # two steps of two and three tokens, and an end of sequence that belongs to the second; the outcome stays last
    said = [Critique("said", outcome=3.0)]
    text, offsets = "ab\ncd", [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 5)]
    given = rewards([[1.0, -0.5, 1.0, 0.0, 1.0, -1.0]], said, placement="lines", texts=[text], offsets=[offsets])
    assert given == [[0.0, 0.5, 0.0, 0.0, 0.0, 1.0 + 3.0, 0.0]]


def test_the_steps_of_sampled_tokens_follow_the_text() -> None:
    text = " red cat.\n two, one"
    offsets = [(0, 4), (4, 8), (8, 9), (9, 10), (10, 14), (14, 15), (15, 19), (19, 19)]
    assert step_ends(text, offsets, "lines") == [2, 2, 2, 7, 7, 7, 7, 7]
    assert step_ends(text, offsets, "clauses") == [2, 2, 2, 5, 5, 5, 7, 7]
    assert step_ends("", [(0, 0)], "lines") == [0]


def test_a_token_that_ends_in_the_next_step_belongs_to_the_step_in_which_it_begins() -> None:
    # Tokenizers of Llama 3 and Qwen have tokens such as "}\n" and ".\n\n"; the lines are "}", "Wrong." and "Right.".
    offsets = [(0, 2), (2, 7), (7, 10), (10, 15), (15, 16)]
    assert step_ends("}\nWrong.\n\nRight.", offsets, "lines") == [0, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("reward", "expected"),
    [  # "red" minor, " cat" by ann, " runs" of a category with a weight of its own: 2 · 0.5
        ({}, [-1.0, 1.0, -2.0]),
        ({"severity": {"Minor": 0.25}}, [-0.25, 1.0, -2.0]),
        ({"severity": {"minor": 0.25}, "raters": {"ann": 0.0}, "categories": {"STYLE": 0.5}}, [-0.25, 0.0, -1.0]),
    ],
)
def test_tables_of_weights_reach_the_rewards(words: Any, reward: dict[str, Any], expected: list[float]) -> None:
    spans = (
        Span(0, 3, "negative", severity="minor"),
        Span(3, 7, "positive", rater="Ann"),
        Span(7, 12, "negative", category="Style", weight=2.0),
    )
    rollouts = [rollout(words("red cat runs").input_ids, "red cat runs")]
    given = rewards_of(RewardConfig(**reward), words, rollouts, [Critique("", spans)])
    assert given.rewards.tolist() == [expected]


def test_names_that_no_span_has_are_told_once(words: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings = RewardConfig(severity={"majr": 2.0, "Minor": 0.5}, raters={"zoe": 0.5})
    rollouts = [rollout(words("red cat runs").input_ids, "red cat runs")]
    spans = (Span(0, 3, "negative", severity="major"), Span(3, 7, "negative", severity=" minor"))
    with caplog.at_level("WARNING", "text2grad"):
        rewards_of(settings, words, rollouts, [Critique("")])
        assert not caplog.messages  # nothing was marked yet
        for _ in range(2):
            rewards_of(settings, words, rollouts, [Critique("", spans)])
    assert caplog.messages == [
        "[reward] gives a weight to the severity majr, which none of the first 2 spans has; there are: major, minor",
        "[reward] gives a weight to the rater zoe, which none of the first 2 spans has; there are: none",
    ]
