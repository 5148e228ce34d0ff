"""Which way tokens moved, by hand; and causes that are known because the changes are made from them."""

import numpy as np
import pytest

from evidence.analysis.explanation import FEATURES, MovedTokens, explained, features
from evidence.analysis.rollouts import Batch, batch_of
from evidence.analysis.update_effect import moved_tokens, update_effect


def logged(change: list[list[float]], advantage: list[list[float]], **more: list[list[float]]) -> Batch:
    """Return a step whose tokens changed from log p = −1 by `change`."""
    rows = []
    for n, (moved, gained) in enumerate(zip(change, advantage, strict=True)):
        zeros, critique = [0.0] * len(moved), {"feedback": "", "spans": []}
        record = {
            "step": 3,
            "prompt": str(n),
            "response": "",
            "critique": critique,
            "ids": list(range(len(moved))),
            "delta": zeros,
            "reward": zeros,
            "kl": zeros,
        }
        record |= {"advantage": gained, "logp": [-1.0] * len(moved), "logp_after": [x - 1 for x in moved]}
        rows.append(record | {name: values[n] for name, values in more.items()})
    return batch_of(3, rows)


def test_shares_and_means_by_hand() -> None:
    step = logged(
        [[0.5, -0.25, 0.25, -0.5], [1.0, -1.0]],
        [[2.0, 0.1, 0.1, -2.0], [-2.0, 0.0]],
        delta=[[1, 0, 0, -1], [-1, 0]],
    )
    tokens = moved_tokens(step, factor=0.5)
    assert tokens is not None
    found = update_effect([tokens], [])
    assert found is not None
    # deviation of the advantages 2, .1, .1, −2, −2, 0: 1.45; far: three, of which the last moved the wrong way
    assert found["all"] == {
        "tokens": 6,
        "mean_change": pytest.approx(0.0),
        "still": 0.0,
        "right": pytest.approx(3 / 5),  # not the token without advantage
        "far": 3,
        "far_right": pytest.approx(2 / 3),
        "open": 3,
        "open_right": pytest.approx(2 / 3),
        "far_distance": pytest.approx(1 / 2),
        "fresh_right": None,
        "fresh_open_right": None,
        "fresh_distance": None,
    }
    labels = found["labels"]
    assert (labels["negative"]["mean_change"], labels["negative"]["right"]) == (pytest.approx(0.25), 0.5)
    assert (labels["positive"]["mean_change"], labels["positive"]["right"]) == (pytest.approx(0.5), 1.0)
    assert labels["unlabelled"]["far_right"] is None
    assert found["steps"]["3"]["change_negative"] == pytest.approx(0.25)
    assert list(found["lengths"]) == ["1–8"]
    assert found["explanation"]["wrong"]["tokens"] == 2
    assert found["explanation"]["far_wrong"]["tokens"] == 1
    assert found["gradient"] is None


def test_shares_without_the_momentum_of_earlier_updates_by_hand() -> None:
    step = logged(
        [[0.5, -0.25, 0.25, 0.5, 0.5]],
        [[2.0, 2.0, -2.0, -2.0, 0.1]],
        logp=[[-1.0, -1.0, -1.0, -0.01, -1.0]],
        logp_after=[[-0.5, -1.25, -0.75, -0.001, -0.5]],
        logp_without_momentum=[[-0.75, -0.9, -1.0, 0.0, -1.5]],
    )
    tokens = moved_tokens(step, factor=0.5)
    assert tokens is not None
    found = update_effect([tokens], [])
    assert found is not None
    figures = found["all"]
    # far: the first four; in total the first is right. Without momentum +.25 and +.1 (right), 0 (still), +.01 (wrong)
    assert (figures["far"], figures["far_right"], figures["open"], figures["open_right"]) == (4, 0.25, 3, 1 / 3)
    assert figures["fresh_right"] == pytest.approx(2 / 3)
    assert figures["fresh_open_right"] == 1.0
    assert figures["fresh_distance"] == pytest.approx(0.35 / 0.36)
    # moved wrong: the second and the third by momentum, the last one nearly certain before
    causes = found["explanation"]["far_wrong"]["causes"]
    assert (causes["momentum"], causes["certain"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert sum(causes.values()) == pytest.approx(1)


def test_the_regression_explains_what_momentum_does_not() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3000, len(FEATURES)))
    own, fresh = x[:, 0], 2.0 * x[:, 0] + x[:, FEATURES.index("kl")]
    found = explained([made(fresh + 9.0 * rng.normal(size=3000), x, own, fresh=fresh)])
    assert found["r2"] == pytest.approx(1.0)
    assert found["parts"]["own"] == pytest.approx(0.8, abs=0.02)
    causes = found["wrong"]["causes"]
    assert causes["momentum"] > 0.7
    assert causes["unexplained"] == 0.0
    assert causes["kl"] > 0.02


def test_tokens_are_counted_by_the_length_of_their_response() -> None:
    step = logged([[0.1] * 9, [0.1] * 3, [0.1] * 16, [-0.1] * 33], [[1.0] * 9, [1.0] * 3, [1.0] * 16, [1.0] * 33])
    found = update_effect([moved_tokens(step, factor=0.5)], [])  # type: ignore[list-item]
    assert found is not None
    assert {name: (one["tokens"], one["right"]) for name, one in found["lengths"].items()} == {
        "1–8": (3, 1.0),
        "9–16": (25, 1.0),
        "33–64": (33, 0.0),
    }


def test_a_step_without_the_log_has_no_tokens_and_a_run_without_it_no_effect() -> None:
    rows = [
        {
            "step": 0,
            "prompt": "",
            "response": "",
            "critique": {"feedback": "", "spans": []},
            "ids": [1],
            **{name: [0.0] for name in ("delta", "reward", "kl", "advantage")},
        }
    ]
    assert moved_tokens(batch_of(0, rows), factor=0.5) is None
    assert update_effect([], [{"step": 0}]) is None


def test_the_share_of_the_gradient_is_the_projection_on_the_whole() -> None:
    labelled, unlabelled = np.array([3.0, 1.0]), np.array([-1.0, 2.0])
    whole = labelled + unlabelled
    line = {
        f"update/gradient_norm{n}": float(np.linalg.norm(x))
        for n, x in (("", whole), ("_labelled", labelled), ("_unlabelled", unlabelled))
    }
    found = update_effect([moved_tokens(logged([[0.1, 0.2]], [[1.0, -1.0]]), factor=0.5)], [{"step": 0.0}, line])  # type: ignore[list-item]
    assert found is not None
    assert found["gradient"]["labelled_share"] == pytest.approx(labelled @ whole / (whole @ whole))
    assert found["gradient"]["norm"] == pytest.approx(np.linalg.norm(whole))


def test_regressors_by_hand() -> None:
    step = logged(
        [[0.0] * 4, [0.0] * 3],
        [[1.0, 2.0, -1.0, 4.0], [3.0, 5.0, 7.0]],
        ids=[[5, 6, 5, 6], [5, 6, 9]],
        kl=[[0.0, 0.5, 0.0, 1.0], [0.0] * 3],
    )
    found = dict(zip(FEATURES, features(step, factor=0.5).T.tolist(), strict=True))
    room = 1 - np.exp(-1)  # all tokens have log p = −1
    assert found["advantage"] == [1, 2, -1, 4, 3, 5, 7]
    assert found["push"] == pytest.approx([room * a for a in found["advantage"]])
    assert found["kl"] == [-0.375, -0.75, -0.5, -1, 0, 0, 0]  # −(0 + .5/2 + 0 + 1/8), ...
    assert found["before"] == pytest.approx(
        [room * x for x in [0, 0.5, 1.25, 0.125, 0, 1.5, 3.25]]
    )  # 1/2; 2/2 + 1/4; −1/2 + 2/4 + 1/8; ...
    assert found["after"] == pytest.approx(
        [room * x for x in [1.25, 0.5, 2.0, 0, 4.25, 3.5, 0]]
    )  # 2/2 − 1/4 + 4/8; −1/2 + 4/4; ...
    assert found["same_token"] == pytest.approx(
        [room * x for x in [1, 4.5, 2, 3.5, 0, 3, 0]]
    )  # of 5: 1, −1, 3; of 6: 2, 4, 5
    # after nothing: 5 twice (1, 3); after nothing and 5: 6 twice (2, 5); after 5 6: 5 once (−1), 9 once (7)
    assert found["same_context"] == pytest.approx([room * x for x in [3, 5, 0, 0, 1, 2, 0]])
    assert found["competing"] == pytest.approx([room * x for x in [0, 0, 7, 0, 0, 0, -1]])


def test_a_context_is_two_tokens_long() -> None:
    step = logged(
        [[0.0] * 3] * 3, [[1.0, 1.0, 1.0], [1.0, 1.0, 3.0], [1.0, 1.0, 5.0]], ids=[[1, 6, 7], [2, 6, 7], [1, 6, 7]]
    )
    found = features(step, factor=0.5)[:, FEATURES.index("same_context")].reshape(3, 3)
    assert found[:, 2] == pytest.approx((1 - np.exp(-1)) * np.array([5.0, 0.0, 1.0]))


def made(
    change: np.ndarray,  # type: ignore[type-arg]
    x: np.ndarray,  # type: ignore[type-arg]
    advantage: np.ndarray,  # type: ignore[type-arg]
    *,
    p: float = 0.5,
    step: int = 0,
    fresh: np.ndarray | None = None,  # type: ignore[type-arg]
) -> MovedTokens:
    count = len(change)
    return MovedTokens(
        step=np.full(count, step),
        change=change,
        fresh=np.full(count, np.nan) if fresh is None else fresh,
        advantage=advantage,
        deviation=np.full(count, advantage.std()),
        label=np.zeros(count, int),
        length=np.full(count, 8),
        probability=np.full(count, p),
        features=x,
    )


def test_the_parts_of_the_variance_add_up_and_name_the_cause() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, len(FEATURES)))
    own, neighbour = x[:, 0], x[:, FEATURES.index("before")]
    change = 3.0 * own + 1.5 * neighbour + rng.normal(size=4000)  # variances 9, 2.25 and 1
    found = explained([made(change, x, own), made(10 * change, x, own, step=1)])
    assert found["parts"]["own"] == pytest.approx(9 / 12.25, abs=0.02)
    assert found["parts"]["neighbours"] == pytest.approx(2.25 / 12.25, abs=0.02)
    assert found["parts"]["kl"] == pytest.approx(0, abs=0.01)
    plain = 1 - np.linalg.lstsq(x, change, rcond=None)[1][0] / (change**2).sum()
    assert sum(found["parts"].values()) == pytest.approx(found["r2"]) == pytest.approx(plain, abs=0.002)
    causes = found["wrong"]["causes"]
    assert sum(causes.values()) == pytest.approx(1)
    assert causes["neighbours"] == max(causes[name] for name in ("kl", "neighbours", "shared", "drift"))
    assert found["wrong"]["tokens"] == 2 * int((change * own < 0).sum())


def test_correlated_causes_share_what_both_explain() -> None:
    rng = np.random.default_rng(1)
    x = np.zeros((5000, len(FEATURES)))
    x[:, 0] = rng.normal(size=5000)
    x[:, FEATURES.index("kl")] = x[:, 0]  # the same twice: each gets half
    found = explained([made(2.0 * x[:, 0], x, x[:, 0])])
    assert found["parts"]["own"] == pytest.approx(0.5)
    assert found["parts"]["kl"] == pytest.approx(0.5)


def test_a_shift_of_all_tokens_is_a_cause_and_nothing_wrong_has_none() -> None:
    rng = np.random.default_rng(2)
    x = np.zeros((1000, len(FEATURES)))
    x[:, 0] = rng.normal(size=1000)
    shifted = explained([made(x[:, 0] - 1.0, x, x[:, 0])])
    assert shifted["wrong"]["causes"]["drift"] == 1.0
    right = explained([made(x[:, 0], x, x[:, 0])])
    assert right["wrong"]["tokens"] == 0
    assert right["wrong"]["causes"]["unexplained"] == 0.0


def test_tokens_that_were_nearly_certain_are_a_cause_and_those_that_did_not_move_are_left_out() -> None:
    rng = np.random.default_rng(2)
    x = np.zeros((1000, len(FEATURES)))
    x[:, 0] = rng.normal(size=1000)
    change = np.where(np.arange(1000) < 500, x[:, 0] - 1.0, 1e-7 * -x[:, 0])
    found = explained([made(change, x, x[:, 0], p=0.95)])
    assert found["wrong"]["tokens"] == int((change[:500] * x[:500, 0] < 0).sum())
    assert found["wrong"]["causes"]["certain"] == 1.0
    assert sum(found["far_wrong"]["causes"].values()) == pytest.approx(1)
    turned = explained([made(change, x, x[:, 0], p=0.95, fresh=-change)])  # by momentum, too
    assert turned["wrong"]["causes"] == found["wrong"]["causes"]


def test_tokens_that_stood_still_or_were_nearly_certain_are_counted_apart() -> None:
    step = logged([[0.5, 1e-6, -0.5, 0.0]], [[2.0, 2.0, 2.0, -2.0]], logp=[[-1.0, -1.0, -0.01, -1.0]])
    tokens = moved_tokens(step, factor=0.5)
    assert tokens is not None
    tokens = tokens._replace(change=np.array([0.5, 1e-6, -0.5, 0.0]))
    found = update_effect([tokens], [])
    assert found is not None
    assert found["all"]["still"] == 0.5
    assert (found["all"]["far"], found["all"]["far_right"]) == (2, 0.5)
    assert (found["all"]["open"], found["all"]["open_right"]) == (1, 1.0)  # p = e^−0.01 = 0.99 is not open


def test_a_step_that_moved_no_token_is_left_out() -> None:
    """In the warm-up of the value function the policy stands still."""
    assert moved_tokens(logged([[0.0, 0.0]], [[1.0, -1.0]]), factor=0.5) is None
