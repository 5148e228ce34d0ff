"""The signal before a run: figures by hand, and warnings of critics that are made to deserve them."""

import json
from pathlib import Path

import numpy as np
import pytest

import small_run
from text2grad.cli.__main__ import main
from text2grad.config.recipe import load_recipe, make_recipe
from text2grad.critics import CachedCritic, LLMCritic
from text2grad.runs.dry_run.signal import (
    Signal,
    asked_anew,
    group_line,
    label_figures,
    measure_signal,
    reliability,
    signal_figures,
    warnings_of,
)
from text2grad.types import Conversation, Critique, Example, Given, Rollout, Span, Turn

CRITIC = """
import json, pathlib
import small_run
from text2grad import Critique, Span

calls = pathlib.Path("calls.txt")
judge = small_run.ColourCritic()
turn = 0

def note(responses):
    with calls.open("a") as file:
        file.write(json.dumps(list(responses)) + "\\n")

def steady(examples, responses):
    note(responses)
    return judge(examples, responses)

def moody(examples, responses):
    global turn
    turn += 1
    note(responses)
    critiques = judge(examples, responses)
    if turn % 2:
        return critiques
    swap = {"positive": "negative", "negative": "positive"}
    return [Critique("", tuple(Span(s.start, s.end, swap[s.label]) for s in c.spans)) for c in critiques]

def once(examples, responses):
    global turn
    turn += 1
    note(responses)
    return judge(examples, responses) if turn % 2 else [Critique("hm") for _ in responses]

def silent(examples, responses):
    return [Critique("hm") for _ in responses]

def praises(examples, responses):
    return [Critique("", (Span(0, len(r), "positive"),)) for r in responses]

def fails(examples, responses):
    return [Critique("", status="unparsable") for _ in responses]

def two_numbers(examples, responses):
    note(responses)
    marks = [lambda text: (Span(0, 1, "positive"),), lambda text: (Span(len(text) - 1, len(text), "positive"),)]
    spans = [(*marks, lambda text: ())[at // 4](text) for at, text in enumerate(responses)]
    outcomes = [float(at == 11) for at in range(len(responses))]
    return [Critique("", *each) for each in zip(spans, outcomes)]

def quotes_elsewhere(examples, responses):
    return [Critique("", unmatched=("zebra",)) for _ in responses]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy, prompts, critics and a recipe, which is the working directory."""
    tokenizer, model = small_run.tokenizer_and_model()
    model.save_pretrained(tmp_path / "policy")
    tokenizer.save_pretrained(tmp_path / "policy")
    prompts = "".join(json.dumps({"prompt": example.prompt}) + "\n" for example in small_run.EXAMPLES)
    (tmp_path / "prompts.jsonl").write_text(prompts)
    (tmp_path / "moods.py").write_text(CRITIC)
    (tmp_path / "my.toml").write_text(
        '[data]\ntrain = "prompts.jsonl"\n[model]\npath = "policy"\n[rollout]\nbatch_size = 8\nmax_new_tokens = 6\n'
        '[run]\nout = "run"\nsteps = 2\nthreads = 1\ntracker = "none"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "moods", raising=False)
    return tmp_path


def measured(critic: str, *settings: str, responses: int = 8) -> Signal:
    recipe = load_recipe(Path("my.toml"), [f'critic.use="moods:{critic}"', *settings])
    return measure_signal(recipe, responses=responses)


def called(place: Path) -> list[list[str]]:
    """Return the responses of each call of the critic."""
    return [json.loads(line) for line in (place / "calls.txt").read_text().splitlines()]


def test_a_steady_critic_agrees_with_itself_and_train_begins_with_the_same_responses(place: Path) -> None:
    figures = measured("steady").figures
    assert (figures["label_agreement"], figures["cohen_kappa"], figures["reliability"]) == (1.0, 1.0, 1.0)
    assert figures["responses"] == 8
    first, second = called(place)
    assert first == second, "the second question is asked"
    assert main(["train", "my.toml", "--critic", "moods:steady"]) == 0
    assert called(place)[2] == first


def test_prompts_that_train_holds_out_are_not_judged(place: Path) -> None:
    held_out = ["data.held_out=0.4", "data.eval_examples=4"]
    measured("steady", *held_out)
    settings = [part for setting in (*held_out, "run.steps=1") for part in ("--set", setting)]
    assert main(["train", "my.toml", "--critic", "moods:steady", *settings]) == 0
    first, second, *others = called(place)
    assert first == second
    assert first in others  # beside the evaluations before and after


def test_groups_are_judged_whole_and_begin_as_those_of_train(place: Path) -> None:
    group = ["rollout.group_size=4", "ppo.baseline=group", "model.value=none", "ppo.gamma=0.5", "ppo.whiten=scale"]
    figures = measured("once", *group).figures
    settings = [part for setting in group for part in ("--set", setting)]
    assert main(["train", "my.toml", "--critic", "moods:steady", *settings]) == 0
    calls = called(place)
    assert calls[2] == calls[0] == calls[1]
    over_value = measured("once", "rollout.group_size=4", "ppo.gamma=0.5").figures
    assert figures["label_agreement"] == over_value["label_agreement"]
    # b = 0: MSW = Σ a² / 2n and MSB = Σ (a − mean)² / 2 (n − 1), which is larger without the means of the groups
    assert over_value["reliability"] < figures["reliability"]
    assert measured("steady", *group, responses=9).figures["responses"] == 12


def test_groups_that_one_number_cannot_teach_are_counted(place: Path) -> None:
    settings = ["rollout.group_size=4", "rollout.batch_size=12", "rollout.max_new_tokens=2", "run.seed=10", "ppo.lam=1"]
    figures = measured("two_numbers", *settings, responses=12).figures
    # Three groups of four. The numbers of the first and the second are 0, 0, 0, 0, and those of the third 0, 0, 0, 1.
    # Spans mark the first token of each response of the first group, whose returns are (1, 0) and differ; and the last
    # one of the second group: its returns are (1, 1) with γ = λ = 1, and (0, 1) with γ = 0.
    assert figures["frac_reward_zero_std"] == pytest.approx(2 / 3)
    assert figures["frac_zero_std_with_spans"] == pytest.approx(1 / 3)
    near = measured("two_numbers", *settings, "ppo.gamma=0", responses=12).figures
    assert near["frac_zero_std_with_spans"] == pytest.approx(2 / 3)
    assert group_line(figures) == (
        "in 67% of the groups; spans teach in 33%, nothing in 33%: raise rollout.temperature, or take harder prompts"
    )
    assert group_line({**figures, "frac_zero_std_with_spans": figures["frac_reward_zero_std"]}) == (
        "in 67% of the groups, and spans teach in all of these: learn from them"
    )
    assert group_line({"frac_reward_zero_std": 0.0, "frac_zero_std_with_spans": 0.0}) == "nowhere"
    assert "set rollout.group_size = 4" in group_line(measured("steady").figures)


@pytest.mark.parametrize(
    ("critic", "warning"),
    [
        ("moody", "contradicts itself"),
        ("silent", "says nothing"),
        ("praises", "the critic always says the same: 100%"),
        ("praises", "pays for length"),
        ("fails", "the critic fails: 100%"),
        ("quotes_elsewhere", "100% of the quotes are not in the response"),
        ("silent", "ask it for short quotes"),
    ],
)
def test_a_critic_that_gives_no_signal_is_warned_of(place: Path, critic: str, warning: str) -> None:
    signal = measured(critic, "ppo.lam=0", "rollout.eos_token_ids=[1,4,5,6]")
    assert any(warning in text for text in signal.warnings), signal.warnings


def test_truncated_responses_are_warned_of(place: Path) -> None:
    signal = measured("steady", "rollout.max_new_tokens=2")
    assert signal.figures["truncated_share"] > 0.5
    assert any("are cut by the length limit" in text for text in signal.warnings)


def test_nothing_is_trained(place: Path) -> None:
    before = {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}
    assert measured("praises").rollouts == measured("praises").rollouts
    after = {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}
    assert {path: text for path, text in after.items() if "__pycache__" not in str(path)} == before


def test_a_good_signal_gives_no_warning() -> None:
    good = {
        **{"failed_share": 0.0, "no_label_share": 0.6, "positive_label_share": 0.25, "unmatched_share": 0.01},
        **{"cohen_kappa": 0.8, "reliability": 0.9, "reward_length_correlation": 0.1, "outcome_share": 0.0},
        **{"reward_deviation": 1.0, "truncated_share": 0.1},
    }
    recipe = make_recipe({})
    assert warnings_of(good, recipe) == []
    assert "pays for brevity" in warnings_of({**good, "reward_length_correlation": -0.7}, recipe)[0]
    assert "small beside the KL term" in warnings_of({**good, "reward_deviation": 0.01}, recipe)[0]
    assert warnings_of({**good, "no_label_share": 1.0, "positive_label_share": 0.0, "outcome_share": 1.0}, recipe) == []


def test_labels_and_advantages_by_hand() -> None:
    first, second = np.array([1, 1, 0, 0, -1]), np.array([1, 0, 0, -1, -1])
    found = label_figures(first, second)
    # agreement 3/5; by chance (2 · 1 + 2 · 2 + 1 · 2) / 25 = 8/25; κ = (15/25 − 8/25) / (17/25) = 7/17
    assert found["cohen_kappa"] == pytest.approx(7 / 17)
    assert found["positive_label_share"] == pytest.approx(0.3)
    # a = (2, 0), b = (0, 0): MSW = 4/4 = 1; means (1, 0), m = 1/2: MSB = 2 (1/4 + 1/4) / 1 = 1 → no signal
    assert reliability(np.array([2.0, 0.0]), np.zeros(2)) == 0.0
    # a = (3, −1), b = (1, −3): MSW = 8/4 = 2; means (2, −2): MSB = 2 · 8 / 1 = 16 → 14/18
    assert reliability(np.array([3.0, -1.0]), np.array([1.0, -3.0])) == pytest.approx(7 / 9)
    assert reliability(np.zeros(3), np.zeros(3)) is None
    assert reliability(np.zeros(0), np.zeros(0)) is None


def test_reliability_recovers_the_variances_of_a_simulated_critic() -> None:
    random = np.random.default_rng(0)
    signal = random.normal(0, 2.0, 20_000)
    answers = (signal + random.normal(0, 1.0, 20_000) for _ in range(2))
    assert reliability(*answers) == pytest.approx(4 / (4 + 1), abs=0.01)


def test_the_second_question_passes_every_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    server = LLMCritic("model", store=tmp_path / "answers.sqlite")
    again = asked_anew(CachedCritic(server, tmp_path / "cache.jsonl"), tmp_path)
    assert isinstance(again, LLMCritic)
    assert again.path == tmp_path / "second-answers.sqlite"
    assert server.path == tmp_path / "answers.sqlite"


def test_the_discount_at_the_end_of_a_turn_decides_what_a_group_teaches() -> None:
    tokenizer, _ = small_run.tokenizer_and_model()
    red, one = tokenizer("red").input_ids[0], tokenizer(" one").input_ids[0]
    said = Conversation([Turn("assistant", " one", True), Turn("user", "?"), Turn("assistant", "red", True)])
    rollouts = [
        Rollout(Example("x"), (5,), (red,), "red", False),
        Rollout(Example("x"), (5,), (one, red), said, False, given=(Given(1, (5,)),)),
    ]
    critiques = [Critique("", (Span(0, 3, "positive"),)), Critique("", (Span(0, 3, "positive", turn=2),))]
    # Returns at γ = 0 and λ = 1: (1), and (0 + γ_turn · 1, 1). At γ_turn = 1 they are equal: nothing is taught.
    for gamma_turn, taught in ((1.0, 0.0), (0.5, 1.0)):
        ppo = {"gamma": 0.0, "gamma_turn": gamma_turn, "lam": 1.0, "baseline": "group"}
        recipe = make_recipe({"rollout": {"group_size": 2}, "model": {"value": "none"}, "ppo": ppo})
        figures = signal_figures(recipe, tokenizer, rollouts, critiques, critiques)
        assert (figures["frac_reward_zero_std"], figures["frac_zero_std_with_spans"]) == (1.0, taught)
