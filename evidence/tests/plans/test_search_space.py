"""The ranges of the searched settings, and the sampler's proposals."""

import tomllib
from math import log10
from typing import Any

import pytest

from evidence.plans.methods import METHODS
from evidence.plans.search_space import ROUND, SEARCH_SPACE, SearchSpace, Trial, as_overrides, in_words
from places import ROOT
from text2grad.config.recipe import Recipe, load_recipe, make_recipe
from text2grad.errors import ConfigError
from text2grad.runs.prompts import world_of

RECIPES = ("quickstart", "quickstart-qa", "quickstart-code", "stories")
SHIPPED = {
    path.relative_to(folder).with_suffix("").as_posix(): path
    for folder in (ROOT / "recipes", ROOT / "evidence" / "recipes")
    for path in sorted(folder.rglob("*.toml"))
    if "study" not in tomllib.loads(path.read_text("utf-8"))
}


def recipe_of(name: str, *overrides: str) -> Recipe:
    return load_recipe(SHIPPED[name], overrides)


def space_of(*names: str, **sections: Any) -> SearchSpace:
    recipe = make_recipe({"data": {"task": "qa"}, **sections})
    return SearchSpace.of(names, recipe, recipe)


@pytest.mark.parametrize("method", METHODS)
def test_every_end_of_every_range_is_a_recipe(method: str) -> None:
    for name in RECIPES:
        fixed = METHODS[method].settings
        space = SearchSpace.of(METHODS[method].searched, recipe_of(name), recipe_of(name, *fixed))
        assert len(space.searched) == len(METHODS[method].searched)
        for setting, one in space.searched.items():
            for value in one.values or (one.low, one.high):
                made = recipe_of(name, *fixed, *as_overrides({setting: value}))
                section, key = setting.split(".")
                assert getattr(getattr(made, section), key) == value


@pytest.mark.parametrize("name", SHIPPED)
def test_every_method_can_be_searched_on_every_shipped_recipe(name: str) -> None:
    base, methods = recipe_of(name), dict(METHODS)
    if not base.data.task:
        refused = methods.pop("verdicts_only")  # before any run
        with pytest.raises(ConfigError, match=r"^truths in \[world\]: only a built-in task has them"):
            world_of(recipe_of(name, *refused.settings))
    for place, method in enumerate(methods.values(), list(SHIPPED).index(name)):
        space = SearchSpace.of(method.searched, base, recipe_of(name, *method.settings))
        trials = [Trial(0, space.default, 0.5)]
        # The second round knows the default settings and those of the first; every third recipe of a method has one.
        for number in (1, ROUND)[: 1 + (place % 3 == 0)]:
            proposed = space.propose(trials, seed=0, first=number, count=ROUND - number % ROUND, minimise=False)
            trials += [Trial(n, settings, 0.4) for n, settings in enumerate(proposed, number)]
        for trial in trials:
            recipe_of(name, *method.settings, *as_overrides(trial.settings))  # it is not refused


def test_the_document_has_the_ranges() -> None:
    page = (ROOT / "evidence" / "docs" / "tune.md").read_text("utf-8")
    rows = [f"| `{name}` | `{one.setting}` | {in_words(one)} |" for name, one in SEARCH_SPACE.items()]
    assert "\n".join(["|---|---|---|", *rows, "", "- Numbers"]) in page


def test_an_ablation_is_not_searched_away() -> None:
    """γ = 1 is searched over other settings than γ; a rival may search what it sets, such as its group size."""
    assert SEARCH_SPACE["gamma"].setting == "ppo.gamma"
    assert set(METHODS["text2grad"].searched) - set(METHODS["gamma_1"].searched) == {"gamma"}
    assert set(METHODS["text2grad"].searched) - set(METHODS["negative_only"].searched) == {"positive"}
    assert METHODS["strict"].searched == METHODS["text2grad"].searched
    assert "group_size" in METHODS["grpo"].searched


def test_ranges_are_the_same_for_every_method_but_for_its_own_name_in_a_list() -> None:
    base = recipe_of("quickstart-qa")
    with_method = recipe_of("quickstart-qa", "optim.lr=0.5", "model.value=none")
    one = SearchSpace.of(["lr", "value"], base, base)
    other = SearchSpace.of(["lr", "value"], base, with_method)
    assert one.searched["optim.lr"] == other.searched["optim.lr"]
    assert one.searched["model.value"].values == ("trunk", "model")
    assert other.searched["model.value"].values == ("trunk", "model", "none")
    assert one.default == {"optim.lr": base.optim.lr, "model.value": "trunk"}
    assert other.default == {"optim.lr": 0.5, "model.value": "none"}


def test_learning_rates_are_searched_around_the_recipes_own() -> None:
    space = space_of("lr", "value_lr", "beta", optim={"lr": 2e-6, "value_lr": 3e-5})
    lr, value_lr, beta = space.searched.values()
    assert (lr.low, lr.high) == pytest.approx((4e-7, 1e-5))
    assert (value_lr.low, value_lr.high) == pytest.approx((3e-6, 1.5e-4))
    assert (beta.low, beta.high) == (0.01, 0.5)


def test_lists_fit_the_recipe() -> None:
    lora = space_of("value", "group_size", model={"lora_r": 8}, rollout={"batch_size": 12})
    assert lora.searched["model.value"].values == ("trunk", "adapter")  # no second model of 8B
    assert lora.searched["rollout.group_size"].values == (2, 4)
    assert space_of("value", model={"value": "none"}).searched["model.value"].values == ("trunk", "model", "none")
    with pytest.raises(ConfigError) as caught:
        space_of("group_size", rollout={"batch_size": 9}, ppo={"minibatches": 1})
    assert str(caught.value) == (
        "rollout.batch_size = 9 is a multiple of none of the searched group sizes (2, 4, 8, 16); choose a multiple of 4"
    )
    with pytest.raises(ConfigError, match="searched has no value 'gama'"):
        space_of("gama")


def test_names_that_the_recipe_refuses_and_settings_without_effect_are_not_searched() -> None:
    lora = {"model": {"lora_r": 8}}
    recipe, own = make_recipe(lora), make_recipe({"model": {"lora_r": 8, "value": "model"}})
    assert SearchSpace.of(["value"], recipe, own).searched["model.value"].values == ("trunk", "adapter", "model")
    checkpointing = {"lora_r": 8, "gradient_checkpointing": True}
    assert list(space_of("value", "value_lr", model=checkpointing).searched) == [
        "optim.value_lr"
    ]  # trunk alone is left
    kept = space_of("value", "value_lr", model={**checkpointing, "value": "model"})
    assert kept.searched["model.value"].values == ("trunk", "model")
    assert "optim.value_lr" in kept.searched
    group = {"model": {"value": "none"}, "rollout": {"group_size": 4}, "ppo": {"baseline": "group"}}
    assert list(space_of("lr", "value_lr", "value", "value_clip_range", **group).searched) == ["optim.lr"]
    assert space_of("whiten", **group).searched["ppo.whiten"].values == ("none", "scale", "full", "group")
    assert space_of("whiten").searched["ppo.whiten"].values == ("none", "scale", "full")
    assert "optim.value_lr" in space_of("value_lr", "value", model={"value": "none"}).searched  # a trial may have V


def test_rewards_are_not_searched_where_the_reward_is_the_metric() -> None:
    names = ("lr", "positive", "span_mass")
    assert list(space_of(*names, data={"train": "prompts.jsonl", "held_out": 0.1}).searched) == ["optim.lr"]
    own = {"train": "prompts.jsonl", "held_out": 0.1, "metric": "mine:metric"}
    assert list(space_of(*names, data=own).searched) == ["optim.lr", "reward.positive", "reward.span_mass"]


def proposals(space: SearchSpace, trials: list[Trial], *, seed: int = 0, minimise: bool = False) -> list[Any]:
    return space.propose(trials, seed=seed, first=len(trials), count=ROUND, minimise=minimise)


def test_proposals_follow_from_the_seed_and_the_finished_trials() -> None:
    space = space_of(*SEARCH_SPACE)
    first = proposals(space, [])
    assert first == proposals(space, [])
    assert first != proposals(space, [], seed=1)
    assert len({str(one) for one in first}) == ROUND
    trials = [Trial(n, settings, float(n)) for n, settings in enumerate(first)]
    assert proposals(space, trials) == proposals(space, trials)
    turned = [Trial(n, settings, float(-n)) for n, settings in enumerate(first)]
    assert proposals(space, trials) != proposals(space, turned)
    assert proposals(space, trials) == proposals(space, turned, minimise=True)


def test_proposals_lie_in_their_ranges() -> None:
    space = space_of(*SEARCH_SPACE)
    for settings in space.propose([], seed=3, first=0, count=40, minimise=False):
        for setting, one in space.searched.items():
            value = settings[setting]
            assert value in one.values if one.values else one.low <= value <= one.high
        make_recipe({})  # a recipe without settings exists; each end is checked above


def test_a_failed_trial_counts_as_the_worst() -> None:
    space = space_of("lr", "gamma")
    first = proposals(space, [])
    values = [0.5, 0.2, 0.9, 0.4]
    failed = [Trial(n, s, None if n == 1 else values[n], "loss" if n == 1 else "") for n, s in enumerate(first)]
    worst = [Trial(n, s, 0.4 if n == 1 else values[n]) for n, s in enumerate(first)]  # 0.4: the smallest of the others
    best = [Trial(n, s, 0.9 if n == 1 else values[n]) for n, s in enumerate(first)]
    assert proposals(space, failed) == proposals(space, worst)
    assert proposals(space, failed) != proposals(space, best)
    assert proposals(space, failed, minimise=True) == proposals(space, best, minimise=True)


def test_a_default_of_0_stands_for_the_usual_rounds() -> None:
    base = make_recipe({})
    space = SearchSpace.of(["rounds"], base, base, {"rival.rounds": 12})
    named = SearchSpace.of(["rounds"], base, base)
    assert space.default == {"rival.rounds": 0}

    def next_ones(one: SearchSpace, rounds: int) -> list[Any]:
        made = [
            Trial(n, {"rival.rounds": r}, v) for n, (r, v) in enumerate([(rounds, 0.9), (1, 0.1), (30, 0.2), (60, 0.1)])
        ]
        return one.propose(made, seed=0, first=4, count=8, minimise=False)

    assert next_ones(space, 0) == next_ones(named, 12) != next_ones(named, 1)
    assert next_ones(space, 3) == next_ones(named, 3)


@pytest.mark.parametrize("minimise", [False, True])
def test_the_search_comes_nearer_to_the_optimum(minimise: bool) -> None:
    """The value is best at a learning rate of 3e-6; the first round is random in 1e-7 to 1e-5."""
    space, sign = space_of("lr", "beta", "gamma", "lam", "epochs"), 1 if minimise else -1

    def miss(settings: Any) -> float:
        return abs(log10(settings["optim.lr"]) - log10(3e-6))

    early, late = [], []
    for seed in range(5):
        trials: list[Trial] = []
        while len(trials) < 6 * ROUND:
            new = proposals(space, trials, seed=seed, minimise=minimise)
            trials += [Trial(len(trials) + n, one, sign * miss(one)) for n, one in enumerate(new)]
        early += [miss(trial.settings) for trial in trials[:ROUND]]
        late += [miss(trial.settings) for trial in trials[-ROUND:]]
    assert sum(late) < 0.7 * sum(early)


def test_a_value_at_an_edge_is_told_unless_nothing_lies_beyond() -> None:
    space = space_of("lr", "beta", "gamma", "epochs", "kl_in", "value_clip_range", optim={"lr": 1e-3})
    inner = {"optim.lr": 1e-3, "ppo.beta": 0.04, "ppo.gamma": 0.5, "ppo.epochs": 2, "ppo.kl_in": "loss"}
    inner["ppo.value_clip_range"] = 1.0
    assert space.at_edge(inner) == []
    assert space.at_edge({**inner, "ppo.gamma": 0.0, "ppo.epochs": 1, "ppo.value_clip_range": 0.0}) == []
    assert space.at_edge({**inner, "ppo.epochs": 6}) == ["ppo.epochs = 6 (1, 2, 3, 4, 6)"]
    # 5 % of the log10(25) = 1.4 decades from 2e-4 to 5e-3 are 0.07: up to 2e-4 · 10^0.07 = 2.35e-4
    assert space.at_edge({**inner, "optim.lr": 2.3e-4}) == ["optim.lr = 0.00023 (0.0002 to 0.005)"]
    assert space.at_edge({**inner, "optim.lr": 2.4e-4}) == []
    assert space.at_edge({**inner, "optim.lr": 4.3e-3}) == ["optim.lr = 0.0043 (0.0002 to 0.005)"]
    assert space.at_edge({**inner, "ppo.beta": 0.0}) == ["ppo.beta = 0 (0.01 to 0.5)"]
