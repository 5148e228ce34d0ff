"""The compared methods: their settings beside the recipes', labels, and tables."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from evidence.plans.methods import METHODS, settings
from places import ROOT
from text2grad.config.recipe import load_recipe
from text2grad.runs.comparison import quickstart_tables
from text2grad.runs.reports.terminal import print_tables

RECIPE = ROOT / "recipes" / "quickstart.toml"
LABELS = {name: method.label for name, method in METHODS.items()}


def test_every_method_starts_at_the_same_weights_and_differs_in_what_it_is_told() -> None:
    each = {method: settings(method, "summarization", Path("x")) for method in METHODS}
    assert all("model.path='x/start'" in given for given in each.values())
    assert "reward.placement=last_token" not in each["text2grad"]
    assert {"reward.placement=last_token", "ppo.gamma=1.0", "critic.model='x/reward_model'"} <= set(each["scalar_ppo"])
    assert {"critic.kind=scalar", "critic.model='x/reward_head'"} <= set(each["scalar_reward_model"])
    refreshed = {"refresh.replay_from='x/annotations.jsonl'"}
    assert all(refreshed <= set(given) for name, given in each.items() if name != "verdicts_only")
    fixed = {name for name, given in each.items() if "refresh.steps=[]" in given}
    assert fixed == {"frozen", "annotator_spans"}
    program = load_recipe(RECIPE, each["annotator_spans"]).critic
    assert (program.use, program.model) == ("", "")


def test_an_ablation_is_text2grad_with_one_thing_changed() -> None:
    whole = set(settings("text2grad", "summarization", Path("x")))
    names = ("gamma_1", "frozen", "linear_decay", "no_words")
    changed = {name: set(settings(name, "summarization", Path("x"))) ^ whole for name in names}
    assert changed == {
        "gamma_1": {"ppo.gamma=1.0"},
        "frozen": {"refresh.steps=[]"},
        "linear_decay": {"reward.weighting=linear_decay"},
        "no_words": {
            "critic.model='x/reward_model'",
            "critic.model='x/reward_model_without_words'",
            'critic.quote_limits=["one_list"]',  # the others are about words, of which there are none
        },
    }
    for name in METHODS:  # every setting is one of a recipe
        load_recipe(RECIPE, settings(name, "summarization", Path("x")))


def test_the_quickstarts_methods_are_two_of_them() -> None:
    from text2grad.cli.quickstart import LABELS as NAMES, SETTINGS

    for name, own in ((name, SETTINGS[name]) for name in NAMES):
        assert NAMES[name] == METHODS[name].label
        assert set(own) <= {*METHODS[name].settings, "optim.lr=1e-3"}
        assert (
            load_recipe(RECIPE, own).optim.lr
            == load_recipe(RECIPE, settings(name, "summarization", Path("x"))).optim.lr
        )


def test_the_printed_tables_fit_a_terminal_of_80_columns() -> None:
    methods = {name: {"final": [0.5] * 3, "curve": [[]] * 3, "kl_per_token": [0.1] * 3} for name in ("sft", *METHODS)}
    result = {
        "metric": "fact_f1",
        "seeds": [0, 1, 2],
        "methods": methods,
        "reward_model": [{}] * 3,
        "reward_model_at_end": [{}] * 3,
    }
    console = Console(width=80, record=True, file=StringIO())
    print_tables(console, quickstart_tables("summarization", result, LABELS))
    lines = console.export_text().splitlines()
    for label in LABELS.values():
        assert any(label in line and line.rstrip().endswith("0.100") for line in lines), label
