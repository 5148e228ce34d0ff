"""The rehearsal: figures by hand, warnings on critics made to deserve them, answers that are paid for once."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small_run
from text2grad.cli.__main__ import main
from text2grad.config.recipe import make_recipe
from text2grad.critics import CachedCritic, LLMCritic
from text2grad.experiments.rehearsal import (
    advantage_figures,
    asked_anew,
    first_advantages,
    label_figures,
    warnings_of,
)

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
    return ["no JSON"] * len(responses)

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


def rehearsed(place: Path, critic: str, *more: str) -> tuple[int, dict[str, Any]]:
    code = main(["rehearse", "my.toml", "--critic", f"moods:{critic}", "--responses", "8", *more])
    return code, json.loads((place / "run-rehearsal" / "rehearsal.json").read_text())


def test_a_steady_critic_agrees_with_itself_and_train_begins_with_the_same_responses(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = rehearsed(place, "steady")
    assert code == 0
    assert (found["label_agreement"], found["cohen_kappa"], found["reliability"]) == (1.0, 1.0, 1.0)
    assert found["signal_to_noise"] is None
    assert found["run_responses"] == 16
    assert found["responses"] == 8
    assert not (place / "run").exists()
    calls = [json.loads(line) for line in (place / "calls.txt").read_text().splitlines()]
    assert calls[0] == calls[1], "the second question is asked"
    assert len(calls) == 2
    page = (place / "run-rehearsal" / "rehearsal.html").read_text()
    assert page.count("<article>") == 8
    assert "second answer" in page
    assert "no noise" in capsys.readouterr().out
    assert main(["train", "my.toml", "--critic", "moods:steady"]) == 0
    calls = [json.loads(line) for line in (place / "calls.txt").read_text().splitlines()]
    assert calls[2] == calls[0]


def test_prompts_that_train_holds_out_are_not_rehearsed(place: Path) -> None:
    held_out = ["--set", "data.held_out=0.4", "--set", "data.eval_examples=4"]
    rehearsed(place, "steady", *held_out)
    assert main(["train", "my.toml", "--critic", "moods:steady", *held_out, "--set", "run.steps=1"]) == 0
    calls = [json.loads(line) for line in (place / "calls.txt").read_text().splitlines()]
    assert calls[0] == calls[1]
    assert calls[0] in calls[2:]  # beside the evaluations before and after


def test_groups_are_rehearsed_whole_and_begin_as_those_of_train(place: Path) -> None:
    group = ["rollout.group_size=4", "ppo.baseline=group", "model.value=none", "ppo.gamma=0.5", "ppo.whiten=scale"]
    settings = [part for setting in group for part in ("--set", setting)]
    _, found = rehearsed(place, "once", *settings)
    assert main(["train", "my.toml", "--critic", "moods:steady", *settings]) == 0
    calls = [json.loads(line) for line in (place / "calls.txt").read_text().splitlines()]
    assert calls[2] == calls[0] == calls[1]
    _, over_value = rehearsed(place, "once", "--set", "rollout.group_size=4", "--set", "ppo.gamma=0.5")
    assert found["label_agreement"] == over_value["label_agreement"]
    # b = 0: MSW = Σ a² / 2n and MSB = Σ (a − mean)² / 2 (n − 1), which is larger without the means of the groups
    assert over_value["reliability"] < found["reliability"]
    assert rehearsed(place, "steady", *settings, "--responses", "9")[1]["responses"] == 12


def test_the_first_advantages_are_those_of_the_recipes_baseline(tmp_path: Path) -> None:
    rewards, mask = torch.tensor([[0.0, 4.0], [0.0, 2.0]]), torch.ones(2, 2, dtype=torch.bool)
    sections: dict[str, dict[str, Any]] = {"rollout": {"group_size": 2}, "model": {"value": "none"}}

    def advantages(**ppo: Any) -> Any:
        recipe = small_run.recipe(tmp_path, **sections, ppo={"gamma": 0.5, "lam": 1.0, "minibatches": 2, **ppo})
        return first_advantages(recipe, rewards, mask)

    # G = (2, 4) and (1, 2), with means 3 and 1.5: the group's is 2.25
    assert advantages().tolist() == [[2.0, 4.0], [1.0, 2.0]]
    assert advantages(baseline="group").tolist() == [[-0.25, 1.75], [-1.25, -0.25]]
    assert advantages(baseline="leave_one_out").tolist() == [[0.5, 2.5], [-2.0, -1.0]]  # the other's mean
    # deviation of the group: mean squares (1/16 + 49/16) / 2 and (25/16 + 1/16) / 2, summed, over 2 − 1: 76/32
    scaled = advantages(baseline="group", whiten="group") * ((76 / 32) ** 0.5 + 1e-4)
    torch.testing.assert_close(scaled, torch.tensor([[-0.25, 1.75], [-1.25, -0.25]]))


def test_answers_are_paid_for_once_until_they_are_asked_for_again(place: Path) -> None:
    for more, calls in (((), 2), ((), 2), (("--again",), 4), (("--set", "run.seed=5"), 6)):
        rehearsed(place, "steady", *more)
        assert len((place / "calls.txt").read_text().splitlines()) == calls


def test_answers_before_a_failure_are_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("text2grad.experiments.rehearsal.BATCH", 3)
    (place / "moods.py").write_text(
        CRITIC + "\ndef late(examples, responses):\n"
        "    steady(examples, responses)\n"
        "    if len(calls.read_text().splitlines()) == 2 and not pathlib.Path('mended').exists():\n"
        "        raise OSError('no network')\n"
        "    return judge(examples, responses)\n"
    )
    assert main(["rehearse", "my.toml", "--critic", "moods:late", "--responses", "8"]) == 2
    (place / "mended").touch()
    assert rehearsed(place, "late")[0] == 0
    sizes = [len(json.loads(line)) for line in (place / "calls.txt").read_text().splitlines()]
    assert sizes == [3, 3, 3, 2, 3, 3, 2]  # the second batch failed and was asked for again, the first was kept


@pytest.mark.parametrize(
    ("critic", "warning"),
    [
        ("moody", "contradicts itself"),
        ("silent", "says nothing"),
        ("praises", "the critic always says the same: 100%"),
        ("praises", "pays for length"),
        ("fails", "the critic fails: 100%"),
        ("quotes_elsewhere", "100% of the quotes are not in the response"),
        ("silent", "every response gets the same reward"),
    ],
)
def test_a_critic_that_gives_no_signal_is_warned_of(place: Path, critic: str, warning: str) -> None:
    code, found = rehearsed(place, critic, "--strict", "--set", "ppo.lam=0", "--set", "rollout.eos_token_ids=[1,4,5,6]")
    assert code == 1
    assert any(warning in text for text in found["warnings"]), found["warnings"]


def test_truncated_responses_are_warned_of(place: Path) -> None:
    _, found = rehearsed(place, "steady", "--set", "rollout.max_new_tokens=2")
    assert found["truncated_share"] > 0.5
    assert any("are cut by the length limit" in text for text in found["warnings"])


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
    assert advantage_figures(np.array([2.0, 0.0]), np.zeros(2)) == {"signal_to_noise": 0.0, "reliability": 0.0}
    # a = (3, −1), b = (1, −3): MSW = 8/4 = 2; means (2, −2): MSB = 2 · 8 / 1 = 16 → 14/4 and 14/18
    found = advantage_figures(np.array([3.0, -1.0]), np.array([1.0, -3.0]))
    assert found == {"signal_to_noise": 3.5, "reliability": pytest.approx(7 / 9)}
    assert advantage_figures(np.zeros(3), np.zeros(3)) == {"signal_to_noise": None, "reliability": None}


def test_the_ratio_recovers_the_variances_of_a_simulated_critic() -> None:
    random = np.random.default_rng(0)
    signal = random.normal(0, 2.0, 20_000)
    found = advantage_figures(signal + random.normal(0, 1.0, 20_000), signal + random.normal(0, 1.0, 20_000))
    assert found["signal_to_noise"] == pytest.approx(4.0, rel=0.05)
    assert found["reliability"] == pytest.approx(0.8, abs=0.01)


def test_the_second_question_passes_every_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    server = LLMCritic("model", store=tmp_path / "answers.sqlite")
    again = asked_anew(CachedCritic(server, tmp_path / "cache.jsonl"), tmp_path)
    assert isinstance(again, LLMCritic)
    assert again.path == tmp_path / "second-answers.sqlite"
    assert server.path == tmp_path / "answers.sqlite"


def test_the_runs_own_directory_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", "my.toml", "--critic", "moods:steady", "--out", "run"]) == 2
    assert "is run.out" in capsys.readouterr().err
    assert main(["rehearse", "my.toml", "--critic", "moods:steady", "--responses", "1"]) == 2
    assert "--responses must be at least 2 and at most 100000, got 1" in capsys.readouterr().err
