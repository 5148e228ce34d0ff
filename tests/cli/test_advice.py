"""Every line of advice is said in a situation in which it is right, and not in one beside it, in which it is wrong."""

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from places import ROOT
from text2grad.cli.reward import warn_of_no_gain
from text2grad.cli.train import warn_of_loss, warn_of_repetition
from text2grad.config import idle_settings, make_recipe
from text2grad.rl.importance import warning_of_gap
from text2grad.rl.metrics import warning_of_corners, warning_of_silence
from text2grad.rl.start import _warnings_of
from text2grad.runs.dry_run.signal import warnings_of

GOOD = {
    **{"failed_share": 0.0, "no_label_share": 0.6, "positive_label_share": 0.25, "unmatched_share": 0.01},
    **{"cohen_kappa": 0.8, "reliability": 0.9, "reward_length_correlation": 0.1, "outcome_share": 0.0},
    **{"reward_deviation": 1.0, "truncated_share": 0.1},
}
SILENT = {"no_label_share": 1.0, "positive_label_share": 0.0, "reward_deviation": 0.0}
NUMBERS = {**SILENT, "outcome_share": 1.0, "reward_deviation": 1.0}  # a critic that gives one number for a response
LEARNED = {"critic": {"model": "critic", "constrain": False}}
SERVED = {"critic": {"model": "critic", "kind": "server", "constrain": False}}
Said = Callable[[], object]


def signal(figures: dict[str, float], sections: dict[str, Any] | None = None) -> Said:
    return lambda: warnings_of({**GOOD, **figures}, make_recipe(sections or {}))


def start(dtype: torch.dtype, **sections: Any) -> Said:
    model = {"value": "none", **sections.pop("model", {})}
    policy = torch.nn.Linear(2, 2, dtype=dtype)
    return lambda: list(_warnings_of(policy, make_recipe({"model": model, **sections})))


def loss(*values: float, keep: str = "none") -> Said:
    evaluations = [{"step": n, "metrics": {"reward": value}} for n, value in enumerate(values)]
    return lambda: warn_of_loss(make_recipe({"run": {"keep_best": keep}}), evaluations, "reward")


def repeats(*values: float) -> Said:
    return lambda: warn_of_repetition([{"metrics": {"distinct_2": value}} for value in values])


def silence(labelled: float, rewarded: float) -> Said:
    return lambda: warning_of_silence([{"delta/labelled_share": labelled, "reward/nonzero_share": rewarded}])


def corners(share: float) -> Said:
    return lambda: warning_of_corners([{"delta/cornered_share": share}])


def idle(**sections: Any) -> Said:
    return lambda: idle_settings(make_recipe(sections))


def gap(nats: float, *, rounded: bool = False) -> Said:
    return lambda: warning_of_gap({"engine/logp_gap": nats}, rounded=rounded)


def gain(before: float, after: float) -> Said:
    return lambda: warn_of_no_gain(before, after, make_recipe({}))


WARMUP = {"model": {"value": "trunk"}, "optim": {"value_warmup_steps": 5}}
FAILS, ELSEWHERE = {"failed_share": 0.5}, {"unmatched_share": 0.5}
NORMALIZED = {"critic": {"match": "normalized"}}
ADVICE: list[tuple[str, Said, Said]] = [  # the words, where they are right, and where they must not be said
    ("server.max_tokens", signal(FAILS, LEARNED), signal(FAILS)),  # a function in Python has no such setting
    ("critic.constrain = true", signal(FAILS, LEARNED), signal(FAILS, {"critic": {"model": "critic"}})),  # it is
    ("whole JSON with quotes", signal(FAILS), signal(FAILS, LEARNED)),
    ("short quotes, right and wrong", signal(SILENT), signal(NUMBERS)),  # numbers need no quotes
    ("annotations with quotes", signal(SILENT, LEARNED), signal(SILENT)),
    ('critic.match = "normalized"', signal(ELSEWHERE), signal(ELSEWHERE, NORMALIZED)),  # it is already
    ("short quotes", signal(ELSEWHERE, NORMALIZED), signal(ELSEWHERE)),
    ("a lower temperature", signal({"cohen_kappa": 0.1}), signal({"cohen_kappa": 0.1}, LEARNED)),
    ("critic.votes = 5", signal({"cohen_kappa": 0.1}, LEARNED), signal({"cohen_kappa": 0.1}, SERVED)),  # idle there
    (
        "critic.votes",
        signal({"cohen_kappa": 0.1}, LEARNED),
        signal({"cohen_kappa": 0.1}, {"critic": {**LEARNED["critic"], "votes": 5}}),
    ),
    ("rollout.batch_size", signal({"reliability": 0.1}), signal({"reliability": 0.5})),
    ("ask it for both sides", signal({"positive_label_share": 0.4}), signal({"positive_label_share": 0.2})),
    ("annotations of both", signal({"positive_label_share": 0.4}, LEARNED), signal({"positive_label_share": 0.4})),
    ("rollout.temperature", signal({"reward_deviation": 0.0}), signal(SILENT)),  # the critic says nothing: no prompt's
    ("harder prompts", signal({"reward_deviation": 0.0}), signal({**FAILS, "reward_deviation": 0.0})),
    (
        "reward.span_mass",
        signal({"reward_length_correlation": 0.9}),
        signal({"reward_length_correlation": 0.9}, {"reward": {"span_mass": "response"}}),
    ),
    (
        "lower reward.positive",
        signal({"reward_length_correlation": 0.9}),
        signal({**NUMBERS, "reward_length_correlation": 0.9}),
    ),
    (
        "reward.truncated below 0",
        signal({"truncated_share": 0.9}),
        signal({"truncated_share": 0.9}, {"reward": {"truncated": -1.0}}),
    ),
    ("rollout.max_new_tokens", signal({"truncated_share": 0.9}), signal({"truncated_share": 0.4})),
    ("ower ppo.beta", signal({"reward_deviation": 0.01}), signal({"reward_deviation": 0.01}, {"ppo": {"beta": 0.0}})),
    (
        "raise reward.positive and reward.negative",
        signal({"reward_deviation": 0.01}),
        signal({**NUMBERS, "reward_deviation": 0.01}),  # which scale no number
    ),
    ('model.dtype = "float32"', start(torch.bfloat16), start(torch.float32)),
    (
        "raise run.steps",
        start(torch.float32, run={"steps": 5}, **WARMUP),
        start(torch.float32, run={"steps": 6}, **WARMUP),
    ),
    ('run.keep_best = "highest"', loss(0.0, 0.5, 0.1), loss(0.0, 0.5, 0.1, keep="highest")),
    ("a larger ppo.beta", loss(0.0, 0.5, 0.1), loss(0.0, 0.5, 0.4)),
    ("fewer positive spans", repeats(0.8, 0.3), repeats(0.8, 0.7)),
    ("Look at its critiques", silence(0.0, 0.0), silence(0.0, 0.5)),  # numbers move rewards without a label
    ("rollout.group_size", corners(0.6), corners(0.4)),
    ("critic.votes", idle(critic={**SERVED["critic"], "votes": 3}), idle(critic={**LEARNED["critic"], "votes": 3})),
    ("see engine/kl_per_token", gap(0.01), gap(0.01, rounded=True)),
    ("annotate more responses", gain(0.5, 0.4), gain(1.0, 1.0)),  # nothing is better than 1
]


@pytest.mark.parametrize(
    ("words", "right", "wrong"), ADVICE, ids=[f"{row}: {words}" for row, (words, _, _) in enumerate(ADVICE)]
)
def test_advice_is_given_where_it_is_right_alone(
    words: str, right: Said, wrong: Said, caplog: pytest.LogCaptureFixture
) -> None:
    def said(situation: Said) -> str:
        caplog.clear()
        return f"{situation()} {caplog.messages}"

    assert words in said(right)
    assert words not in said(wrong)


def warnings_in_the_code() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each warning that the product logs, values left out."""
    for path in sorted((ROOT / "src" / "text2grad").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "note" and node.keywords:
                parts = (part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant))
                yield f"{path.relative_to(ROOT)}:{node.lineno}", "|".join(str(part) for part in parts)


def test_every_warning_is_in_the_table_or_in_a_test_of_its_own() -> None:
    tests = " ".join(re.sub(r"[^\w ]", "", path.read_text("utf-8")) for path in sorted((ROOT / "tests").rglob("*.py")))

    untested = {}
    for place, text in warnings_in_the_code():
        words = [re.sub(r"[^\w ]", "", part).split() for part in text.split("|")]
        threes = [" ".join(part[at : at + 3]) for part in words for at in range(len(part) - 2)]
        if threes and not any(three in tests for three in threes):
            untested[place] = text
    assert untested == {}
