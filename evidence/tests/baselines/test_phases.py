"""The reward models of baselines and ablations, made as further phases of the quickstart's pipeline."""

import json
from pathlib import Path

import torch

from evidence.baselines import register
from evidence.baselines.phases import PHASES
from evidence.baselines.scalar import ScalarRewardModel
from evidence.tasks.lengths import LengthPipeline
from small_pipeline import SHORT, recipe_of
from text2grad.feedback.records import read_annotations
from text2grad.models.pretrained import load_policy, load_tokenizer
from text2grad.reward_models.load import critic_from_recipe
from text2grad.reward_models.writing import critique_target


def pipeline_of(out: Path, *overrides: str) -> LengthPipeline:
    return LengthPipeline(recipe_of(*overrides), out, PHASES)


def test_a_scalar_reward_model_learns_from_the_annotations_and_is_a_critic(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, *SHORT)
    pipeline.run_phases(("sft", "annotations", "reward_head"))
    register()
    named = [f"critic.model={tmp_path / 'reward_head'}", "critic.kind=scalar", "rollout.rows_at_once=2"]
    critic = critic_from_recipe(recipe_of(*named))
    assert isinstance(critic, ScalarRewardModel)
    assert critic.rows_at_once == 2
    assert "reward_head_left_out" in json.loads((tmp_path / "phases.json").read_bytes())


def test_a_reward_model_of_verdicts_learns_from_the_same_responses_without_their_truths(tmp_path: Path) -> None:
    pipeline_of(tmp_path, *SHORT).run_phases(("sft", "annotations", "reward_model_of_verdicts"))
    whole, verdicts = (read_annotations(tmp_path / name) for name in ("annotations.jsonl", "verdicts.jsonl"))
    assert [(one.prompt, one.response) for one in verdicts] == [(one.prompt, one.response) for one in whole]
    for one, without in zip(whole, verdicts, strict=True):
        assert without.critique.spans == one.critique.spans
        assert len(without.critique.feedback) <= len(one.critique.feedback)
    assert [one.critique.feedback for one in verdicts] != [one.critique.feedback for one in whole]
    assert (tmp_path / "reward_model_of_verdicts" / "reward_model.json").exists()


def test_a_dense_reward_model_knows_the_labels_and_starts_at_the_fine_tuned_weights(tmp_path: Path) -> None:
    pipeline_of(tmp_path, *SHORT, "reward_model.lr=1e-9").run_phases(("sft", "annotations", "reward_model_dense"))
    settings = json.loads((tmp_path / "reward_model_dense" / "reward_model.json").read_text())
    assert settings["form"] == "dense"
    own, known = (load_tokenizer(str(tmp_path / name)) for name in ("reward_model_dense", "sft"))
    for one in read_annotations(tmp_path / "annotations.jsonl"):
        target = critique_target(one.critique, one.response, form="dense")
        labels = target[target.index('", "word_labels": ') :]
        assert own.decode(own(labels).input_ids) == labels
        assert known.unk_token_id in known(labels).input_ids
    layers = [load_policy(str(tmp_path / name)).model.layers.state_dict() for name in ("reward_model_dense", "sft")]
    for name, weight in layers[0].items():
        torch.testing.assert_close(weight, layers[1][name], atol=1e-5, rtol=0)
    assert len(own) > len(known)
