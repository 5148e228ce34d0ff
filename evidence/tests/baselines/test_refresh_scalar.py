"""A scalar reward model is trained again on Σ δ of annotations of what the policy says now, and exactly resumed."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import small_run
from evidence.baselines.scalar import ScalarRewardModel, train_scalar_reward_model
from evidence.baselines.span_reward import span_reward
from small_run import EXAMPLES, WORDS, ColourCritic
from text2grad.config import make_recipe
from text2grad.feedback.critic import annotate
from text2grad.feedback.records import Annotation, write_annotations
from text2grad.models.fine_tuning import FineTuning
from text2grad.reward_models.refresh import Refresher
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.tasks.tiny import tiny_llama

WINDOW = [f" {a} {b}" for a in WORDS[:8] for b in WORDS[:8]]


def annotations() -> list[Annotation]:
    rng = Random(0)
    examples = [rng.choice(EXAMPLES) for _ in range(200)]
    responses = ["".join(f" {rng.choice(WORDS)}" for _ in range(rng.randint(1, 4))) for _ in examples]
    return annotate(ColourCritic(), examples, responses)


@pytest.fixture(scope="module")
def scalar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a scalar reward model that learned Σ δ of annotations badly."""
    home, tokenizer = tmp_path_factory.mktemp("scalar"), small_run.critic_tokenizer()
    tiny_llama(tokenizer, seed=5, width=32, layers=1, context=64).save_pretrained(home / "start")
    rewards = [span_reward(tokenizer, one) for one in annotations()]
    how = FineTuning(steps=3, batch_size=16, learning_rate=1e-3)
    learned, _ = train_scalar_reward_model(home / "start", tokenizer, annotations(), rewards, how)
    learned.save(home / "model")
    return home / "model"


def refresher(out: Path, critic: Any, **settings: Any) -> Refresher:
    model = {"gradient_checkpointing": settings.pop("checkpointing", False)}
    run = {"out": str(out), "seed": 3}
    return Refresher(
        make_recipe({"model": model, "refresh": {"steps": (1,), **settings}, "run": run}), critic, ColourCritic()
    )


def weights_of(critic: ScalarRewardModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in critic.model.state_dict().items()}


def test_it_is_brought_nearer_to_the_annotator(tmp_path: Path, scalar: Path) -> None:
    critic = ScalarRewardModel.load(scalar)
    kept = (critic.mean, critic.deviation)
    examples = [EXAMPLES[0]] * 64
    truth = [span_reward(critic.tokenizer, one) for one in annotate(ColourCritic(), examples, WINDOW)]

    def error() -> float:
        given = [critique.outcome or 0.0 for critique in critic(examples, WINDOW)]
        return sum((a - b) ** 2 for a, b in zip(given, truth, strict=True)) / len(truth)

    before, one = error(), refresher(tmp_path, critic, window=64, train_steps=60, batch_size=16, lr=1e-2)
    one.observe(examples, WINDOW)
    assert one.refresh_if_due(1) == {"critic/refreshed": 1.0}
    assert error() < 0.2 * before
    assert (critic.mean, critic.deviation) == kept
    loaded = weights_of(ScalarRewardModel.load(tmp_path / "critic" / "step-000001"))
    assert all(torch.equal(weight, loaded[name]) for name, weight in weights_of(critic).items())


def test_less_memory_changes_no_result(tmp_path: Path, scalar: Path) -> None:
    found = []
    for name, less in {"plain": {}, "less": {"accumulate": 2, "checkpointing": True}}.items():
        critic = ScalarRewardModel.load(scalar)
        one = refresher(tmp_path / name, critic, train_steps=4, batch_size=4, lr=1e-2, **less)
        one.observe(EXAMPLES[:4], [" red", " red two", " blue", " red red"])
        assert one.refresh_if_due(1) == {"critic/refreshed": 1.0}
        found.append(weights_of(critic))
    for key, weight in found[0].items():
        torch.testing.assert_close(found[1][key], weight, rtol=0, atol=2e-5, msg=key)


def test_where_no_annotation_is_short_enough_it_stays(
    tmp_path: Path, scalar: Path, caplog: pytest.LogCaptureFixture
) -> None:
    critic = ScalarRewardModel.load(scalar)
    one = refresher(tmp_path, critic, window=2)
    one.observe(EXAMPLES[:2], [" red" * 80] * 2)  # the context is 64
    with caplog.at_level("WARNING", logger="text2grad"):
        assert one.refresh_if_due(1) == {"critic/refreshed": 0.0}
    assert caplog.messages[0].startswith("step 1: the critic stays as it is: ")


def test_a_run_is_resumed_exactly(tmp_path: Path, scalar: Path) -> None:
    write_annotations(tmp_path / "annotations.jsonl", annotations())
    again = {"steps": [2, 4], "window": 12, "train_steps": 2, "batch_size": 4, "lr": 1e-3}
    again["replay_from"] = str(tmp_path / "annotations.jsonl")

    class Killed(BaseException):
        pass

    def killed(run: Text2GradTrainer) -> None:
        if run.step == 3:
            raise Killed

    def trainer(name: str, *, resume: bool = False) -> Text2GradTrainer:
        tokenizer, model = small_run.tokenizer_and_model()
        critic = ScalarRewardModel.load(scalar)
        recipe = small_run.recipe(tmp_path / name, refresh=again, run={"steps": 5, "save_every": 2})
        retrained = Refresher(recipe, critic, ColourCritic())
        return Text2GradTrainer(
            model, critic, EXAMPLES, recipe, processing_class=tokenizer, refresher=retrained, resume=resume
        )

    trainer("a").train()
    with pytest.raises(Killed):
        trainer("b").train(killed)
    trainer("b", resume=True).train()
    one, other = (small_run.weights(tmp_path / name) for name in "ab")
    assert all(torch.equal(one[name], other[name]) for name in one)
