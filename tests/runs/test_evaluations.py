"""Evaluations of a run on its own data: the numbers by an independent count, and what a killed or failing one keeps."""

import importlib
import json
import logging
import math
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

import small_run
from small_run import WORDS, ColourCritic, finish, tokenizer_and_model
from text2grad.config.recipe import make_recipe
from text2grad.config.run_directory import best_checkpoint
from text2grad.errors import CheckpointError, CriticError, DataError, MetricError, OutOfMemory
from text2grad.evaluation.words import distinct
from text2grad.models import sampling
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.runs import evaluations as module
from text2grad.runs.evaluations import SHOWN, Evaluations
from text2grad.runs.recipe_run import run_recipe
from text2grad.types import Conversation, Critique, Example, Given, Rollout, Span, Turn

POSITIVE, NEGATIVE = set(WORDS[:3]), set(WORDS[3:6])
USER = """\
from small_run import ColourCritic

critic = ColourCritic()


def metric(example, response):
    words = response.split()
    return {"cats": float(words.count("cat")), "starts": float(response.startswith(example.meta["colour"]))}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, prompts, and a user's module with critic and metric."""
    path = tmp_path_factory.mktemp("own")
    tokenizer, model = tokenizer_and_model()
    model.save_pretrained(path / "model")
    tokenizer.save_pretrained(path / "model")
    rows = [{"prompt": f"{a} {b}", "colour": a} for a in WORDS for b in WORDS]
    (path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "module_of_a_user.py").write_text(USER)
    return path


def settings(place: Path, out: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    base: dict[str, dict[str, Any]] = {
        "model": {"path": str(place / "model")},
        "data": {"train": str(place / "prompts.jsonl"), "held_out": 0.2, "eval_every": 2, "eval_examples": 20},
        "critic": {"use": "module_of_a_user:critic"},
        "rollout": {"batch_size": 8, "max_new_tokens": 6},
        "ppo": {"epochs": 1, "gamma": 0.5, "beta": 5.0},
        "reward": {"positive": 0.5, "negative": -2.0, "truncated": -0.25},
        "optim": {"lr": 3e-3},
        "run": {"steps": 3, "save_every": 2, "out": str(out), "threads": 1, "tracker": "none"},
    }
    return {name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}}


def train(place: Path, out: Path, *, resume: bool = False, **sections: dict[str, Any]) -> Path:
    run_recipe(make_recipe(settings(place, out, **sections)), resume=resume)
    return out


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((out / "evaluations").glob("*.json"))]


def rollouts(out: Path) -> list[str]:
    return [line for path in sorted((out / "rollouts").glob("*")) for line in path.read_text().splitlines()]


@pytest.fixture(autouse=True)
def in_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(scope="module")
def run(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return train(
            place, tmp_path_factory.mktemp("run") / "run", data={"metric": "module_of_a_user:metric", "eval_every": 2}
        )


def test_it_is_evaluated_before_between_and_after(run: Path) -> None:
    assert [one["step"] for one in read(run)] == [0, 2, 3]
    assert {one["metric"] for one in read(run)} == {"cats"}
    assert sorted(path.name for path in (run / "evaluations").iterdir()) == [
        "000000.json",
        "000002.json",
        "000003.json",
    ]


def test_the_same_held_out_prompts_are_answered_and_never_trained_on(run: Path) -> None:
    prompts = [[row["prompt"] for row in one["responses"]] for one in read(run)]
    assert prompts[0] == prompts[1] == prompts[2]
    assert len(set(prompts[0])) == 20
    trained = {json.loads(line)["prompt"] for line in rollouts(run)}
    assert trained
    assert not trained & set(prompts[0])


def test_the_numbers_follow_from_the_responses(run: Path) -> None:
    """A word is a token here: rewards and shares are counted without spans, offsets and tensors."""
    for one in read(run):
        rows, metrics = one["responses"], one["metrics"]
        for row in rows:
            words = row["response"].split()
            positive, negative = (sum(word in known for word in words) for known in (POSITIVE, NEGATIVE))
            assert (row["positive_tokens"], row["negative_tokens"]) == (positive, negative)
            assert row["reward"] == pytest.approx(0.5 * positive - 2.0 * negative - 0.25 * row["truncated"])
            assert row["metrics"]["cats"] == words.count("cat")
            assert row["tokens"] >= len(words) + (not row["truncated"])  # the end is a token without a word
            assert (row["status"], row["failed"]) == ("ok", False)
        tokens = sum(row["tokens"] for row in rows)
        assert metrics["reward"] == pytest.approx(fmean(row["reward"] for row in rows))
        assert metrics["positive_share"] == pytest.approx(sum(row["positive_tokens"] for row in rows) / tokens)
        assert metrics["negative_share"] == pytest.approx(sum(row["negative_tokens"] for row in rows) / tokens)
        shares = [metrics[f"{label}_share"] for label in ("positive", "negative", "unlabelled")]
        assert sum(shares) == pytest.approx(1.0)
        assert metrics["cats"] == pytest.approx(fmean(row["metrics"]["cats"] for row in rows))
        assert metrics["mean_tokens"] == pytest.approx(tokens / 20)
        assert metrics["truncated_share"] == pytest.approx(fmean(row["truncated"] for row in rows))
        assert metrics["kl_per_token"] == pytest.approx(sum(row["kl"] for row in rows) / tokens)
        assert metrics["distinct_2"] == distinct((row["response"] for row in rows), 2)
        assert metrics["failure_rate"] == 0.0
    assert abs(read(run)[0]["metrics"]["kl_per_token"]) < 1e-6
    assert abs(read(run)[-1]["metrics"]["kl_per_token"]) > 1e-4


def test_a_policy_that_did_not_move_says_the_same_again(place: Path, tmp_path: Path) -> None:
    out = train(place, tmp_path / "run", data={"eval_every": 1}, optim={"value_warmup_steps": 2}, run={"steps": 2})
    said = [[row["response"] for row in one["responses"]] for one in read(out)]
    assert said[0] == said[1] == said[2]


def test_records_have_all_numbers_per_token(run: Path) -> None:
    for one in read(run):
        assert len(one["records"]) == SHOWN
        for record, row in zip(one["records"], one["responses"], strict=False):
            assert record["response"] == row["response"]
            assert sum(record["reward"]) == pytest.approx(row["reward"])
            assert sum(record["kl"]) == pytest.approx(row["kl"], abs=1e-3)
            for name in ("ids", "offsets", "delta", "reward", "kl", "value", "advantage"):
                assert len(record[name]) == row["tokens"], name
            assert record["critique"]["feedback"] == "Colours are welcome, numbers are not."
    # GAE by hand (γ = 0.5, λ = 0.95, β = 5) where the response ended; whitening is one line through all points.
    raw, white = [], []
    for record in read(run)[-1]["records"]:
        after, value = 0.0, 0.0
        if record["truncated"]:
            continue
        for t in reversed(range(len(record["ids"]))):
            now = record["value"][t]
            after = record["reward"][t] - 5.0 * record["kl"][t] + 0.5 * value - now + 0.5 * 0.95 * after
            value = now
            raw.append(after)
            white.append(record["advantage"][t])
    assert len(raw) > 3
    low, high = raw.index(min(raw)), raw.index(max(raw))
    slope = (white[high] - white[low]) / (raw[high] - raw[low])
    assert white == pytest.approx([white[low] + slope * (x - raw[low]) for x in raw], abs=1e-3)


def test_the_advantages_of_a_held_out_conversation_are_discounted_at_its_turns(tmp_path: Path) -> None:
    ppo = {"gamma": 0.0, "gamma_turn": 0.5, "lam": 1.0, "whiten": "none", "beta": 0.0}
    run = small_run.trainer(tmp_path / "run", model={"value": "none"}, ppo=ppo)
    red, one = (run.tokenizer(word).input_ids[0] for word in ("red", " one"))
    said = Conversation([Turn("assistant", " one", True), Turn("user", "?"), Turn("assistant", "red", True)])
    rollout = Rollout(Example("x"), (5,), (one, red), said, False, given=(Given(1, (5, 6)),))
    critique = Critique("", (Span(1, 4, "negative", turn=0), Span(0, 3, "positive", turn=2)))
    _, _, numbers = Evaluations(run)._numbers([rollout], [critique])
    assert numbers["reward"].tolist() == [[-1.0, 1.0]]
    assert numbers["advantage"].tolist() == [[-1.0 + 0.5 * 1.0, 1.0]]


def test_distinct_pairs_by_hand() -> None:
    assert distinct(["a b a b", "a b"], 2) == 2 / 4
    assert distinct(["One, two. One two"], 2) == 2 / 3  # one two, two One, One two
    assert distinct(["一二三", "二三"], 2) == 2 / 3  # characters are words: 一二, 二三; 二三
    assert distinct(["word", ""], 2) == 0.0


class Counting(ColourCritic):
    """Fails at the n-th response of an evaluation, once."""

    asked: list[str]

    def __init__(self, fail_at: int) -> None:
        super().__init__()
        self.asked, self.fail_at = [], fail_at

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        if self.fail_at and len(self.asked) >= self.fail_at:
            self.fail_at = 0
            raise ValueError("out of money")
        self.asked += responses
        return super().__call__(examples, responses)


@pytest.mark.parametrize(("fail_at", "finished"), [(16, 0), (20 + 24 + 8, 3)], ids=["before", "after"])
def test_a_failed_evaluation_asks_only_for_the_rest_and_keeps_the_steps(
    place: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int, finished: int
) -> None:
    critic = Counting(fail_at)
    monkeypatch.setattr("text2grad.runs.recipe_run.critic_from_recipe", lambda *_, **__: critic)
    data = {"metric": "module_of_a_user:metric", "eval_every": 0}
    with pytest.raises(CriticError, match="out of money"):
        train(place, tmp_path / "run", data=data)
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*"))
    assert saved == (["step-000002", "step-000003"] if finished else [])
    train(place, tmp_path / "run", data=data, resume=True)
    assert len(critic.asked) == 20 + 3 * 8 + 20, "no response was judged twice"
    names = ("step", "metric", "metrics", "responses", "records", "critic")
    for one, other in zip(read(tmp_path / "run"), [read(run)[0], read(run)[-1]], strict=True):
        assert {name: one[name] for name in names} == {name: other[name] for name in names}
    assert not list((tmp_path / "run" / "evaluations").glob("*.jsonl"))


class Moody(ColourCritic):
    """Overlooks about half of the responses, by each of the generators that a critic may draw from."""

    def __init__(self, calls: float) -> None:
        super().__init__()
        self.left, self.first_draws = calls, list[tuple[float, float, float]]()

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        draws = [(random.random(), np.random.random(), float(torch.rand(()))) for _ in responses]
        self.first_draws.append(draws[0])
        return [
            self.judge(one) if sum(draw) < 1.5 else Critique("-") for one, draw in zip(responses, draws, strict=True)
        ]

    def metric(self, example: Example, response: str) -> dict[str, float]:
        return {"mood": random.random()}


@pytest.mark.parametrize("calls", [1, 3, 6, 10])  # 3 in each evaluation, of parts of 8, 8 and 4 prompts; 1 in a step
def test_a_critic_that_draws_says_the_same_after_a_kill_in_an_evaluation(
    place: Path, tmp_path: Path, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(place)
    module_of_a_user = importlib.import_module("module_of_a_user")

    def run(out: Path, critic: Moody, *, resume: bool = False) -> Path:
        monkeypatch.setattr(module_of_a_user, "critic", critic)
        monkeypatch.setattr(module_of_a_user, "metric", critic.metric)
        return train(place, out, resume=resume, run={"save_every": 3}, data={"metric": "module_of_a_user:metric"})

    calm = run(tmp_path / "calm", critic := Moody(math.inf))
    for each in zip(*critic.first_draws, strict=True):  # no call repeats the draws of another one
        assert len(set(each)) == len(each) == 12
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", Moody(calls))
    killed = run(tmp_path / "killed", Moody(math.inf), resume=True)
    assert [one["responses"] for one in read(killed)] == [one["responses"] for one in read(calm)]
    assert rollouts(killed) == rollouts(calm)


def test_a_failing_metric_keeps_the_steps_and_costs_no_critique(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    critic = Counting(0)
    monkeypatch.setattr("text2grad.runs.recipe_run.critic_from_recipe", lambda *_, **__: critic)
    calls: list[str] = []

    def metric(example: Example, response: str) -> dict[str, float]:
        calls.append(response)
        return {"x": 1 / (len(calls) - 21)}  # the second evaluation's first response

    monkeypatch.setattr("text2grad.runs.recipe_run.load_callable", lambda path, kind: metric)
    with pytest.raises(MetricError, match=r"held-out response 1 of 20: ZeroDivisionError at .*: division by zero"):
        train(place, tmp_path / "run", data={"metric": "m:f", "eval_every": 1})
    assert len(critic.asked) == 20 + 8
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == ["step-000001"]


def no_memory(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


def test_an_evaluation_in_halved_batches_equals_one_that_began_with_them(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 rows > 4 → 10 → 5 → 2; the steps after the evaluation sample 2 rows at once, too."""
    small = train(place, tmp_path / "small", rollout={"rows_at_once": 2})
    own, rows = sampling.decode, []

    def limited(model: Any, prompts: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        rows.append(len(prompts))
        return own(model, prompts, *args, **kwargs) if len(prompts) <= 4 else no_memory()

    monkeypatch.setattr(sampling, "decode", limited)
    halved = train(place, tmp_path / "halved", rollout={"rows_at_once": 64})
    assert [size for size in rows if size > 2] == [20, 10, 5]
    assert read(halved) == read(small)
    small_run.assert_same_run(halved, small)


def evaluated(out: Path, *, resume: bool = False) -> tuple[Text2GradTrainer, module.Evaluations]:
    tokenizer, model = tokenizer_and_model()
    settings = small_run.recipe(out, data={"eval_every": 2}, run={"save_every": 100})
    held_out = small_run.EXAMPLES[:5]
    trainer = Text2GradTrainer(
        model,
        ColourCritic(),
        small_run.EXAMPLES,
        settings,
        eval_dataset=held_out,
        processing_class=tokenizer,
        resume=resume,
    )
    return trainer, module.Evaluations(trainer)


@pytest.mark.parametrize(
    ("place_of_error", "phase", "setting"),
    [
        ("text2grad.models.sampling.decode", "rollout", "rollout.rows_at_once (now 1)"),
        ("small_run.ColourCritic.judge", "critic", "rollout.rows_at_once (now 64)"),
        ("text2grad.rl.start.score_batch", "score", "ppo.micro_batch_tokens (now "),
    ],
)
def test_an_evaluation_that_does_not_fit_ends_the_run_with_the_last_step_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place_of_error: str, phase: str, setting: str
) -> None:
    trainer, evaluate = evaluated(tmp_path / "run")

    def after_step(one: Text2GradTrainer) -> None:
        if one.step == 2:
            monkeypatch.setattr(place_of_error, no_memory)
        evaluate(one)

    with pytest.raises(OutOfMemory) as caught:
        trainer.train(after_step)
    assert f"out of memory in the {phase} of step 2." in str(caught.value)
    assert "step-000002 is kept: go on with --resume" in str(caught.value)
    assert setting in str(caught.value)
    monkeypatch.undo()
    resumed, evaluate = evaluated(tmp_path / "run", resume=True)
    assert resumed.step == 2
    evaluate(resumed)
    assert [one["step"] for one in read(tmp_path / "run")] == [2]
    (path := tmp_path / "run" / "evaluations" / "000002.json").write_text("{cut")
    with pytest.raises(DataError, match=f"^cannot read {path}: .* Remove it, and the same command evaluates that step"):
        evaluate(resumed)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_reference_perplexity_is_of_the_model_before_training_at_temperature_1(
    place: Path, tmp_path: Path, temperature: float
) -> None:
    """Counted from the logits of the untouched model, on the answers of the trained policy."""
    out = train(place, tmp_path / "run", rollout={"temperature": temperature}, run={"steps": 1}, optim={"lr": 3e-2})
    found = read(out)[-1]
    tokenizer, model = tokenizer_and_model()
    nats, tokens = 0.0, 0
    for record in found["records"]:
        prompt = tokenizer(record["prompt"]).input_ids
        ids = torch.tensor([[*prompt, *record["ids"]]])
        with torch.no_grad():
            logp = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[len(prompt) - 1 :]
        nats -= float(logp.sum())
        tokens += len(logp)
    shown = found["responses"][:SHOWN]
    assert tokens == sum(row["tokens"] for row in shown)
    assert -sum(row["logp_ref"] for row in shown) == pytest.approx(nats, rel=1e-4)
    assert found["metrics"]["reference_perplexity"] == pytest.approx(
        math.exp(-sum(row["logp_ref"] for row in found["responses"]) / sum(row["tokens"] for row in found["responses"]))
    )


def test_answers_that_the_reference_would_never_give_have_a_finite_perplexity(tmp_path: Path) -> None:
    _, evaluate = evaluated(tmp_path / "run")
    row = {"tokens": 1, "kl": 0.0, "logp_ref": -1e6, "response": "red", "truncated": False, "metrics": {}}
    rows = [{**row, "reward": 0.0, "positive_tokens": 0, "negative_tokens": 0, "failed": False}]
    assert evaluate._summary(rows)["metrics"]["reference_perplexity"] == math.exp(700.0)


def test_the_log_counts_each_held_out_response_once_per_phase(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="text2grad"):
        train(place, tmp_path / "run", data={"eval_every": 0}, run={"steps": 1})
    lines = [message for message in caplog.messages if message.startswith("evaluate")]
    assert [line for line in lines if line.endswith("responses")] == [
        "evaluate: sample: 20 responses",
        "evaluate: judge: 20 responses",
    ] * 2
    assert sum(line.startswith("evaluate: judge: response 20 of 20") for line in lines) == 2


def test_a_finished_run_is_not_evaluated_again(run: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in (run / "evaluations").iterdir()}
    monkeypatch.setattr(module.Evaluations, "_evaluate", None)
    train(place, run, data={"metric": "module_of_a_user:metric", "eval_every": 2}, resume=True)
    assert {path.name: path.read_bytes() for path in (run / "evaluations").iterdir()} == before


class Scripted:
    """A metric whose value in each evaluation is given."""

    def __init__(self, *values: float) -> None:
        self.values, self.responses = values, 0

    def __call__(self, example: Example, response: str) -> dict[str, float]:
        value = self.values[self.responses // 20]
        if math.isnan(value):
            raise KeyboardInterrupt
        self.responses += 1
        return {"score": value}


def kept(out: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (out / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    ("best", "values"),
    [("highest", (5.0, 0.25, 0.75, 0.5, 0.75, 0.5)), ("lowest", (-5.0, 0.75, 0.25, 0.5, 0.25, 0.5))],
)
def test_the_checkpoint_of_the_best_evaluation_is_kept_beside_the_last(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: str, values: tuple[float, ...]
) -> None:
    data = {"metric": "m:f", "eval_every": 1}
    more = {"steps": 5, "save_every": 3, "keep_checkpoints": 1}

    def run(name: str, *values: float, resume: bool = False, **settings: Any) -> Path:
        monkeypatch.setattr("text2grad.runs.recipe_run.load_callable", lambda path, kind: Scripted(*values))
        return train(place, tmp_path / name, data=data, run={**more, **settings}, resume=resume)

    whole = run("whole", *values, keep_best=best)
    assert kept(whole) == [2, 5]  # the start has no checkpoint; of equal values the first is kept
    assert json.loads((whole / "checkpoints" / "best.json").read_bytes()) == {"step": 2, "value": values[2]}
    every = run("every", *values, save_every=1, keep_checkpoints=5)
    assert kept(every) == [1, 2, 3, 4, 5]
    weights = [out / "checkpoints" / "step-000002" / "policy" / "model.safetensors" for out in (whole, every)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    without = run("without", *values)
    assert kept(without) == [5]
    assert best_checkpoint(without / "checkpoints") is None
    run("without", keep_best=best, resume=True)  # a run may keep its best checkpoint from any time on
    assert best_checkpoint(without / "checkpoints") == without / "checkpoints" / "step-000005"
    with pytest.raises(KeyboardInterrupt):
        run("killed", *values[:4], math.nan, keep_best=best)
    assert kept(tmp_path / "killed") == [2, 3]
    killed = run("killed", *values[4:], keep_best=best, resume=True)
    assert kept(killed) == [2, 5]
    assert rollouts(killed) == rollouts(whole)


def test_a_later_better_evaluation_takes_the_place_of_the_best_checkpoint(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("text2grad.runs.recipe_run.load_callable", lambda path, kind: Scripted(0, 1, 2, 1, 3))
    more = {"steps": 4, "save_every": 3, "keep_checkpoints": 1, "keep_best": "highest"}
    out = train(place, tmp_path / "run", data={"metric": "m:f", "eval_every": 1}, run=more)
    assert kept(out) == [4]  # it is the last one, too, and the older ones are gone
    (out / "checkpoints" / "best.json").write_text("{")
    with pytest.raises(CheckpointError, match="Remove it: the next evaluation names the best checkpoint again"):
        best_checkpoint(out / "checkpoints")


def test_without_a_metric_the_reward_is_the_main_number(place: Path, tmp_path: Path) -> None:
    (first, *_) = read(train(place, tmp_path / "run", data={"eval_every": 0}, run={"steps": 1}))
    assert first["metric"] == "reward"
    assert next(iter(first["metrics"])) == "reward"
    assert {row["metrics"] == {} for row in first["responses"]} == {True}


def test_runs_without_held_out_prompts_have_no_evaluations(place: Path, tmp_path: Path) -> None:
    for name, value in (("held_out", 0.0), ("eval_examples", 0)):
        out = train(place, tmp_path / name, data={name: value}, run={"steps": 1})
        assert not (out / "evaluations").exists()


@pytest.mark.slow
def test_several_processes_share_an_evaluation(place: Path, run: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.json"
    data = {"metric": "module_of_a_user:metric", "eval_every": 0, "eval_examples": 20}
    recipe.write_text(json.dumps(settings(place, tmp_path / "run", data=data, run={"steps": 1})))
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys, pathlib\n"
        "from text2grad.config.recipe import make_recipe\n"
        "from text2grad.runs import run_recipe\n"
        "run_recipe(make_recipe(json.loads(pathlib.Path(sys.argv[1]).read_text())))\n"
    )
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([*sys.path, str(place), os.environ.get("PYTHONPATH", "")]),
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    finish([*launcher, str(script), str(recipe)], environment)
    alone, shared = read(run)[0], read(tmp_path / "run")[0]
    assert [row["response"] for row in shared["responses"]] == [row["response"] for row in alone["responses"]]
    assert shared["metrics"] == pytest.approx(alone["metrics"], abs=1e-6)
    assert [r["response"] for r in shared["records"]] == [r["response"] for r in alone["records"]]
