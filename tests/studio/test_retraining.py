"""Retraining: the reward model learns from marks and earlier annotations, then the policy from it; versions follow."""

import json
from pathlib import Path
from typing import Any

import pytest

import small_reward
from places import STORIES
from studio_world import append, record
from text2grad.config import Recipe, make_recipe, recipe_of_run
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import Annotation, annotation_to_json, read_annotations, write_annotations
from text2grad.models import FineTuning, base_named_by, load_policy, load_tokenizer, with_lora
from text2grad.reward_models import GenerativeRewardModel
from text2grad.reward_models.load import critic_from_recipe
from text2grad.runs import read_judged
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example, Span
from text2grad_studio.retraining import (
    Retraining,
    _earlier_annotations,
    _recipe,
    _reward_model_of,
    _split,
    corrected,
    retrain,
)
from text2grad_studio.worker import Worker

SAMPLING = {"max_new_tokens": 4, "temperature": 1.0, "eos_token_ids": [], "prompt_format": "plain"}
MARKS = [  # the rater disagrees with every annotation: the cat is negative, and the number is not
    Annotation(prompt, " cat one", Critique("Animals please.", (Span(1, 4, "negative"),)))
    for prompt in small_reward.PROMPTS
]


def request(kind: str, policy: dict[str, Any], directory: Path, marks: list[Annotation], **more: Any) -> dict[str, Any]:
    annotations = [annotation_to_json(annotation) for annotation in marks]
    known = {"kind": kind, "policy": policy, "versions": str(directory), "parent": 0, "annotations": annotations}
    return known | more


def a_run(directory: Path, critic: dict[str, Any], **sections: dict[str, Any]) -> Recipe:
    """Write run.json of a run over the prompts of `small_reward`."""
    prompts = directory.parent / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in small_reward.PROMPTS))
    recipe = make_recipe(
        {
            "data": {"train": str(prompts)},
            "model": {"path": str(directory.parent / "base"), "value": "none"},
            "rollout": {"batch_size": 4, "max_new_tokens": 3},
            "critic": critic,
            "reward_model": {"batch_size": 8, "lr": 5e-3},
            "optim": {"lr": 1e-2, "schedule": "constant"},
            "run": {"threads": 1, "out": str(directory)},
            **sections,
        }
    )
    (directory / "checkpoints").mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps({"recipe": recipe.model_dump(mode="json")}))
    return recipe


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose reward model was made by `text2grad reward` from annotations."""
    small_reward.prepare(tmp_path, words=' Animals please. "cat" is wrong.')
    critic = GenerativeRewardModel.load(str(tmp_path / "base"), max_new_tokens=40)
    critic.train_further(small_reward.ANNOTATIONS, FineTuning(steps=60, batch_size=8, learning_rate=5e-3))
    (tmp_path / "rm").mkdir()
    critic.save(tmp_path / "rm" / "model")
    made_by = small_reward.recipe(tmp_path, "rm").model_dump(mode="json")
    (tmp_path / "rm" / "run.json").write_text(json.dumps({"recipe": made_by}))
    a_run(tmp_path / "run", {"model": str(tmp_path / "rm" / "model")})
    return tmp_path / "run"


def test_the_reward_model_takes_the_raters_side_and_trains_the_policy(run: Path, tmp_path: Path) -> None:
    policy = {"path": str(tmp_path / "base"), "sampling": SAMPLING, "run": str(run)}
    said: list[dict[str, Any]] = []
    critic = GenerativeRewardModel.load(str(tmp_path / "rm" / "model"))
    own = critic([Example(mark.prompt) for mark in MARKS], [mark.response for mark in MARKS])
    assert any(mark.spans for mark in own)
    worker, versions = Worker(), tmp_path / "versions"
    (versions / "unfinished-x").mkdir(parents=True)
    (versions / "unfinished-x" / "left").touch()  # by a retraining that was stopped
    settings = {"reward_steps": 100, "steps": 2, "share": 0.9}
    fine = Annotation("z:", " dog two", Critique(""))  # finished without a mark: the critic's own opinion stays
    first = worker.answer(
        request("retrain", policy, versions, [*MARKS, fine], retraining=settings),
        lambda **message: said.append(message),
    )
    assert (first["version"], first["kind"], first["responses"]) == (1, "retraining", 6)
    assert first["retraining"]["earlier"] == 36  # annotations of the recipe that made the reward model
    assert first["retraining"]["from"] == str(tmp_path / "rm" / "model")
    kept = read_annotations(next((versions / "0001").glob("**/annotations.jsonl")))[-6:]
    learned = [corrected(mark, critique) for mark, critique in zip(MARKS, own, strict=True)]
    for before, other in zip(kept, learned, strict=True):
        assert (before.prompt, before.critique.feedback) == (other.prompt, other.critique.feedback)
        assert set(before.critique.spans) == set(other.critique.spans)
    before, after = first["agreement"]["before"], first["agreement"]["after"]
    assert after["marks"] > before["marks"]
    assert after["marks"] > 0.9
    words = [message["progress"] for message in said]
    assert any("reward model: step 100 of 100" in line for line in words)
    assert any("train: step 2 of 2" in line for line in words)
    assert {message["share"] for message in said if "train: step 1 of 2" in message["progress"]} == {0.5}
    changes = json.loads((versions / "0001" / "version.json").read_text())["changes"]
    assert any(
        a != b for change in changes for a, b in zip(change["before"], change["after"], strict=True)
    )  # it learned
    assert base_named_by(versions / "0001") == str(tmp_path / "base")
    assert load_policy(str(versions / "0001")) is not None
    # the next one goes on from its policy and its reward model
    second = worker.answer(
        request("retrain", policy, versions, MARKS, parent=1, retraining={"reward_steps": 1, "steps": 1}),
        lambda **message: None,
    )
    assert second["retraining"]["from"] == str(versions / "0001" / "reward_model")
    assert second["retraining"]["earlier"] == 42  # the 36, and the marks of the first
    assert second["agreement"]["before"]["marks"] >= after["marks"]  # its own critiques of the same responses
    later = json.loads((versions / "0002" / "version.json").read_text())["changes"]
    assert later[0]["before"] == pytest.approx(changes[0]["after"], abs=1e-4)
    assert sorted(path.name for path in versions.iterdir()) == ["0001", "0002"]
    # and a lesson, and answers, as with any version
    answers = worker.answer(
        {**request("ask", policy, versions, MARKS), "prompt": "a:", "versions_asked": [0, 2], "seed": 0},
        lambda **message: None,
    )["answers"]
    assert [answer["version"] for answer in answers] == [0, 2]
    assert critic_from_recipe(Recipe.model_validate({"critic": {"model": str(versions / "0002" / "reward_model")}}))


def test_a_policy_may_answer_with_rows_of_its_embedding_that_no_token_has(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(["a: cat one"])
    model, tokens = tiny_llama(tokenizer, seed=0), len(tokenizer)
    model.resize_token_embeddings(tokens + 500)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    policy = {"path": str(tmp_path / "base"), "sampling": SAMPLING}
    asked = {**request("ask", policy, tmp_path, []), "prompt": "a:", "versions_asked": [0], "seed": 0}
    (answer,) = Worker().answer(asked, lambda **message: None)["answers"]
    ends = [end for _, end in answer["offsets"]]
    assert max(answer["ids"]) >= tokens
    assert (len(ends), ends[-1]) == (len(answer["ids"]), len(answer["response"]))


def test_where_the_critic_is_a_program_the_runs_critiques_are_the_earlier_annotations(tmp_path: Path) -> None:
    recipe = a_run(tmp_path / "run", {"use": "critics_by_name:Kind"})
    append_rollouts(tmp_path / "run", 30)
    assert _reward_model_of(recipe, str(tmp_path / "run"), None) is None
    annotations = _earlier_annotations(recipe, None, str(tmp_path / "run"))
    assert len(annotations) == 30
    assert {annotation.critique.feedback for annotation in annotations} == {"The cat is wrong."}
    assert _earlier_annotations(recipe, None, None) == []


def test_marks_correct_the_programs_critique_of_the_same_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_reward.prepare(tmp_path)
    a_run(tmp_path / "run", {"use": "critics_by_name:Kind"})
    own, mark, other = Span(1, 4, "negative"), Span(5, 8, "positive"), Span(1, 8, "negative")
    program = {
        "feedback": "The cat is wrong.",
        "spans": [{"start": 1, "end": 4, "label": "negative"}],
        "outcome": None,
        "status": "ok",
    }
    (tmp_path / "run" / "rollouts").mkdir()
    append(tmp_path / "run", [record(0, 0, prompt="Its.", response=" cat one", critique={**program, "unmatched": []})])
    marks = [
        Annotation("Its.", " cat one", Critique("", (mark,))),
        Annotation("Own.", " cat one", Critique("", (other,))),
    ]
    learned: list[Annotation] = []

    def train(critic: GenerativeRewardModel, annotations: list[Annotation], *_: Any, **__: Any) -> None:
        learned.extend(annotations)
        raise InterruptedError

    monkeypatch.setattr(GenerativeRewardModel, "train_further", train)
    base = str(tmp_path / "base")
    policy, tokenizer = with_lora(load_policy(base), r=2, alpha=4, targets="all-linear"), load_tokenizer(base)
    write_annotations(tmp_path / "marks.jsonl", marks)
    answers = read_judged(tmp_path / "marks.jsonl", policy, tokenizer, Recipe())
    run = str(tmp_path / "run")
    with pytest.raises(InterruptedError):
        retrain(policy, tokenizer, base, run, answers, Retraining(), earlier=None, scratch=tmp_path)
    pairs = {(annotation.prompt, annotation.critique) for annotation in learned}
    assert ("Its.", Critique('The cat is wrong. "one" is right.', (own, mark))) in pairs
    assert ("Own.", Critique('"cat one" is wrong.', (other,))) in pairs


def append_rollouts(run: Path, number: int) -> None:
    (run / "rollouts").mkdir()
    append(run, [record(0, row, prompt=f"Prompt {row}.") for row in range(number)])


def test_marks_are_repeated_until_they_are_the_share_and_held_out_prompts_are_not_learned() -> None:
    annotations = [Annotation(f"p{n}", "x y", Critique("", (Span(0, 1, "positive"),))) for n in range(50)]
    learned, held_out = _split(MARKS[:2], annotations, Retraining(share=0.5))
    assert len(held_out) == 10
    assert not {annotation.prompt for annotation in held_out} & {annotation.prompt for annotation in learned}
    assert len(learned) == 80  # 40 earlier ones, and 2 marked responses 20 times
    assert len(_split(MARKS[:2], annotations, Retraining(share=1))[0]) == 2
    assert _split(MARKS[:2], [], Retraining()) == (MARKS[:2], [])


def test_the_reward_model_is_the_runs_last_one_and_other_critics_are_refused(run: Path, tmp_path: Path) -> None:
    recipe = recipe_of_run(run)
    assert _reward_model_of(recipe, str(run), None) == tmp_path / "rm" / "model"
    (run / "critic").mkdir()
    checkpoint = run / "checkpoints" / "step-000004"
    checkpoint.mkdir()
    (checkpoint / "state.json").write_text(json.dumps({"critic": {"current": "step-000003"}}))
    assert _reward_model_of(recipe, str(run), None) == run / "critic" / "step-000003"
    (run / "critic" / "annotations.jsonl").write_text('{"key": "of a cache", "critique": {}}\n')
    write_annotations(tmp_path / "replay.jsonl", small_reward.ANNOTATIONS)
    replay = recipe.model_copy(
        update={"refresh": recipe.refresh.model_copy(update={"replay_from": str(tmp_path / "replay.jsonl")})}
    )
    annotations = _earlier_annotations(replay, run / "critic" / "step-000003", str(run))
    assert len(annotations) == len(small_reward.ANNOTATIONS)
    assert _reward_model_of(recipe, str(run), tmp_path / "no") == run / "critic" / "step-000003"
    a_run(tmp_path / "other", {"model": "judge", "kind": "server"})
    with pytest.raises(ConfigError, match=r"critic\.kind = 'server'; only a generative"):
        _reward_model_of(recipe_of_run(tmp_path / "other"), str(tmp_path / "other"), None)


def test_the_policys_phase_takes_the_runs_recipe_with_another_critic_and_a_short_warm_up(tmp_path: Path) -> None:
    sections = {
        "optim": {"warmup_steps": 20, "value_warmup_steps": 1, "lr": 0.5},
        "critic": {"use": "a:b"},
        "refresh": {"steps": [4]},
        "model": {"value": "adapter", "lora_r": 4},
    }
    retrained = _recipe(
        make_recipe(sections), "base", tmp_path / "rm", tmp_path / "run", MARKS, Retraining(steps=10, rank=2)
    )
    assert (retrained.optim.warmup_steps, retrained.optim.value_warmup_steps, retrained.optim.lr) == (2, 0, 0.5)
    assert (retrained.critic.use, retrained.critic.model, retrained.critic.kind) == (
        "",
        str(tmp_path / "rm"),
        "generative",
    )
    assert not retrained.refresh.active
    assert (retrained.model.path, retrained.model.lora_r, retrained.model.lora_alpha, retrained.model.value) == (
        "base",
        2,
        4,
        "none",
    )
    assert (retrained.ppo.baseline, retrained.rollout.group_size) == ("group", 4)
    assert (retrained.run.steps, retrained.run.out, retrained.data.eval_examples) == (10, str(tmp_path / "run"), 32)
    prompts = [json.loads(line)["prompt"] for line in Path(str(retrained.data.train)).read_text().splitlines()]
    assert prompts == small_reward.PROMPTS


@pytest.mark.parametrize(("batch", "minibatches", "rounded"), [(64, 2, 64), (6, 3, 12), (1, 1, 4)])
def test_the_policys_phase_has_groups_in_place_of_a_value_function(
    tmp_path: Path, batch: int, minibatches: int, rounded: int
) -> None:
    sections = {"optim": {"lr": 0.001}, "rollout": {"batch_size": batch}, "ppo": {"minibatches": minibatches}}
    retrained = _recipe(make_recipe(sections), "base", tmp_path / "rm", tmp_path / "run", MARKS, Retraining())
    assert (retrained.rollout.batch_size, retrained.rollout.group_size, retrained.model.value) == (rounded, 4, "none")
    assert retrained.optim.lr == 0.005  # an adapter's, where the run trained all weights
    grouped = {"ppo": {"baseline": "leave_one_out"}, "rollout": {"group_size": 2}, "model": {"value": "none"}}
    retrained = _recipe(make_recipe(grouped), "base", tmp_path / "rm", tmp_path / "run", MARKS, Retraining())
    assert (retrained.ppo.baseline, retrained.rollout.group_size) == ("leave_one_out", 2)


def test_marks_correct_the_critics_own_critique_and_each_is_quoted() -> None:
    cat, dog, fox = Span(0, 3, "positive"), Span(4, 7, "negative"), Span(8, 11, "positive")
    response = "cat dog fox"
    said = Annotation("p", response, Critique('"dog": a wolf', (cat, dog)))
    assert corrected(said, Critique("")).critique == Critique('"dog": a wolf "cat" is right.', (cat, dog))
    whole = Annotation("p", response, Critique("", (cat, dog)))
    assert corrected(whole, Critique("")).critique.feedback == '"cat" is right. "dog" is wrong.'
    assert corrected(Annotation("p", "cat", Critique("Well.")), Critique("")).critique.feedback == "Well."
    # the critic's word stays where the rater says nothing, and goes where the rater marks a part of its span
    own = Critique('Fine: "cat". Also "dog fox" is right! And no more.', (cat, Span(4, 11, "positive")))
    marked = Annotation("p", response, Critique("", (dog,)))
    assert corrected(marked, own).critique == Critique('Fine: "cat". And no more. "dog" is wrong.', (cat, dog))
    # neighbours do not overlap
    assert (
        corrected(Annotation("p", response, Critique("", (Span(3, 4, "negative"),))), own).critique.spans[:2]
        == own.spans
    )
    # a quote that the critic keeps in another place keeps its sentence
    twice = Critique('"cat" is right.', (cat, Span(4, 7, "positive")))
    critique = corrected(Annotation("p", "cat cat", Critique("", (Span(4, 7, "negative"),))), twice).critique
    assert critique == Critique('"cat" is right. "cat" is wrong.', (cat, Span(4, 7, "negative")))
    failed = Critique("?", (cat,), status="unparsable")
    assert corrected(marked, failed).critique == Critique('"dog" is wrong.', (dog,))
    assert corrected(Annotation("p", response, Critique("", (fox,), outcome=0.5)), own).critique.outcome == 0.5


def test_settings_of_a_retraining_are_checked() -> None:
    assert Retraining.from_page({"steps": 3, "reward_steps": 5.0}) == Retraining(reward_steps=5, steps=3)
    for wrong in ({"steps": 0}, {"reward_steps": 0}, {"share": 0}, {"share": 1.5}, {"speed": 1}, {"steps": "1"}):
        with pytest.raises(ConfigError, match=r"of a retraining|has no setting"):
            Retraining.from_page(wrong)


@pytest.mark.skipif(not STORIES.exists(), reason="models/stories260k is not in the shared folder")
def test_a_story_model_gets_a_reward_model_of_its_own(tmp_path: Path) -> None:
    story = "there was a little cliws. It was happy."
    marks = [Annotation("Once upon a time", story, Critique("No such word.", (Span(19, 24, "negative"),)))]
    policy = {"path": str(STORIES), "sampling": {**SAMPLING, "eos_token_ids": [1]}, "run": str(tmp_path / "run")}
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Once upon a time {n}"}) + "\n" for n in range(8)))
    sections = {"data": {"train": str(prompts)}, "critic": {"use": "critics_by_name:Strict"}}
    rollout = {"batch_size": 2, "max_new_tokens": 8, "eos_token_ids": [1]}
    a_run(tmp_path / "run", **{**sections, "rollout": rollout, "reward_model": {"max_new_tokens": 64, "batch_size": 2}})
    append_rollouts(tmp_path / "run", 6)
    settings = {"reward_steps": 1, "steps": 1}
    result = Worker().answer(
        request("retrain", policy, tmp_path / "versions", marks, retraining=settings), lambda **message: None
    )
    assert result["retraining"] == {"earlier": 6, "left_out": 0, "from": ""}
    assert result["kl"] >= 0
    with pytest.raises(DataError, match="no version 5"):
        Worker().answer(
            request("retrain", policy, tmp_path / "versions", marks, parent=5, retraining={}), lambda **message: None
        )
