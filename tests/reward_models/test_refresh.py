"""A learned critic is trained again on what the policy says now, exactly when it should be, and exactly resumed."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

import small_run
from small_run import EXAMPLES, WORDS, ColourCritic, assert_same_run, untimed
from text2grad import files
from text2grad.align import AlignSettings
from text2grad.config import make_recipe
from text2grad.errors import CheckpointError, ConfigError, CriticError, DataError
from text2grad.feedback.critic import annotate
from text2grad.feedback.records import Annotation, write_annotations
from text2grad.feedback.spans import Match
from text2grad.models import FineTuning, check_batch_size, with_lora
from text2grad.models.randomness import random_states
from text2grad.reward_models import generative, refresh
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.refresh import Refresher, rebalanced
from text2grad.reward_models.writing import critique_prompt
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.tasks.tiny import tiny_llama
from text2grad.types import Critique, Example, Label, Rollout, Span
from trained_reward_model import train_reward_model

Asked = list[tuple[str, str]]
learn = GenerativeRewardModel.train_further


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Phases 1 and 2: 400 annotations, and a reward model that learned from them to quote some colours."""
    path = tmp_path_factory.mktemp("phases")
    tokenizer = small_run.critic_tokenizer()
    rng = Random(0)
    examples = [rng.choice(EXAMPLES) for _ in range(400)]
    responses = ["".join(f" {rng.choice(WORDS)}" for _ in range(rng.randint(1, 4))) for _ in examples]
    annotations = annotate(ColourCritic(), examples, responses)
    write_annotations(path / "annotations.jsonl", annotations)
    how = FineTuning(steps=60, batch_size=16, learning_rate=1e-2)
    model = tiny_llama(tokenizer, seed=5, width=32, layers=1, context=64)
    learned, _ = train_reward_model(model, tokenizer, annotations, how, max_new_tokens=24)
    learned.save(path / "reward_model")
    return path


class Annotator(ColourCritic):
    """Knows better, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Asked = []

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        self.asked += zip([example.prompt_text for example in examples], responses, strict=True)
        return super().__call__(examples, responses)


def sections(out: Path, phases: Path, **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    again = {"steps": [3, 5], "window": 12, "train_steps": 2, "batch_size": 4, "lr": 1e-3, "audit": 2}
    again["replay_from"] = str(phases / "annotations.jsonl")
    base = {"run": {"steps": 6, "save_every": 2}, "critic": {"max_failure_rate": 1.0}, "refresh": again}
    return {name: {**base.get(name, {}), **more.get(name, {})} for name in {*base, *more}}


def trainer(
    out: Path, phases: Path, annotator: Any = None, *, critic: Any = None, resume: bool = False, **more: dict[str, Any]
) -> Text2GradTrainer:
    tokenizer, model = small_run.tokenizer_and_model()
    critic = critic or GenerativeRewardModel.load(phases / "reward_model")
    recipe = small_run.recipe(out, **sections(out, phases, **more))
    retrained = Refresher(recipe, critic, annotator or Annotator())
    return Text2GradTrainer(
        model, critic, EXAMPLES, recipe, processing_class=tokenizer, refresher=retrained, resume=resume
    )


def weights_of(critic: GenerativeRewardModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in critic.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def said(out: Path) -> list[list[tuple[str, str]]]:
    """Return the prompts and responses of each step."""
    files = sorted((out / "rollouts").glob("*.jsonl"))
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    steps = range(records[-1]["step"] + 1)
    return [[(r["prompt"], r["response"]) for r in records if r["step"] == step] for step in steps]


def saved(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "critic").iterdir() if path.is_dir())


class Killed(BaseException):
    """As sudden as SIGKILL: nothing catches it."""


def killed_after(step: int) -> Callable[[Text2GradTrainer], None]:
    def hook(run: Text2GradTrainer) -> None:
        if run.step == step:
            raise Killed

    return hook


# In the loop.


def test_the_critic_changes_at_the_chosen_steps_alone_and_learns_from_the_window(tmp_path: Path, phases: Path) -> None:
    annotator, seen, asked = Annotator(), [], []
    run = trainer(tmp_path / "run", phases, annotator, refresh={"steps": [3, 4], "audit": 0}, run={"steps": 5})
    before = weights_of(run.critic)
    run.train(lambda run: (seen.append(weights_of(run.critic)), asked.append(list(annotator.asked))))
    changed = [not same(a, b) for a, b in zip([before, *seen], seen, strict=False)]
    assert changed == [False, False, True, True, False]
    # Eight responses a step and a window of twelve: after step 3 four of the second and all of the third; after step 4
    # four of the third, which it has answered already, and all of the fourth.
    steps = said(tmp_path / "run")
    assert asked[:2] == [[], []]
    assert set(asked[2]) == {*steps[1][4:], *steps[2]}
    assert set(asked[3]) == {*steps[1][4:], *steps[2], *steps[3]}
    assert asked[4] == asked[3]
    assert len(annotator.asked) == len(set(annotator.asked)), "never asked twice"


def test_the_critic_of_a_step_is_on_disk_and_goes_with_the_last_checkpoint_that_needs_it(
    tmp_path: Path, phases: Path
) -> None:
    seen: list[list[str]] = []
    more = {"refresh": {"steps": [1, 2, 3, 5]}, "run": {"steps": 6, "save_every": 2, "keep_checkpoints": 1}}
    run = trainer(tmp_path / "run", phases, **more)
    run.train(lambda _: seen.append(saved(tmp_path / "run")))
    # Checkpoints after 2, 4 and 6 go on with the critics of 2, 3 and 5; between them the one in use is kept, too.
    assert seen == [[f"step-{step:06d}" for step in steps] for steps in ((1,), (2,), (2, 3), (3,), (3, 5), (5,))]
    on_disk = GenerativeRewardModel.load(tmp_path / "run" / "critic" / "step-000005")
    assert same(weights_of(on_disk), weights_of(run.critic))
    assert on_disk.format.max_new_tokens == 24


def test_a_refreshed_run_goes_on_logging_to_its_tracker(tmp_path: Path, phases: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    more = {"refresh": {"steps": [1]}, "run": {"steps": 2, "tracker": "tensorboard"}}
    trainer(tmp_path / "run", phases, **more).train()
    events = EventAccumulator(str(tmp_path / "run" / "text2grad")).Reload()
    assert [event.step for event in events.Scalars("kl/per_token")] == [0, 1]


# Exact resume.


@pytest.fixture(scope="module")
def calm(phases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody kills; it is trained again after steps 3 and 5, and saved after 2, 4 and 6."""
    out = tmp_path_factory.mktemp("calm") / "run"
    trainer(out, phases).train()
    return out


def assert_same_critics(one: Path, other: Path) -> None:
    """Compare every byte of the critics that are left, and every answer of the annotator."""
    files = [{p.relative_to(r / "critic"): p for p in (r / "critic").rglob("*") if p.is_file()} for r in (one, other)]
    assert files[0].keys() == files[1].keys()
    assert [name for name, path in files[0].items() if path.read_bytes() != files[1][name].read_bytes()] == []


def test_every_critic_that_a_checkpoint_needs_is_kept(calm: Path) -> None:
    # The checkpoint after 4 goes on with the critic of 3, the one after 6 with that of 5.
    assert [path.name for path in sorted((calm / "checkpoints").iterdir())] == ["step-000004", "step-000006"]
    assert saved(calm) == ["step-000003", "step-000005"]


def test_a_run_that_refreshes_never_keeps_its_critic_and_asks_nobody(tmp_path: Path, phases: Path, calm: Path) -> None:
    annotator = Annotator()
    run = trainer(tmp_path / "run", phases, annotator, refresh={"steps": [], "audit": 0})
    before = weights_of(run.critic)
    run.train()
    assert same(before, weights_of(run.critic))
    assert annotator.asked == []
    assert not (tmp_path / "run" / "critic").exists()
    found = untimed(tmp_path / "run" / "metrics.jsonl")
    assert not any(name.startswith("audit/") for line in found for name in line)
    first, second = small_run.weights(calm), small_run.weights(tmp_path / "run")
    assert not same(first, second), "a policy depends on what its critic has learned; else the next tests show little"


def test_a_run_whose_responses_are_gone_is_refused_while_its_critic_still_learns_from_them(
    tmp_path: Path, phases: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Killed):
        trainer(tmp_path / "run", phases, refresh={"steps": [3]}).train(killed_after(2))
    shutil.rmtree(tmp_path / "run" / "rollouts")
    with pytest.raises(
        CheckpointError, match="rollouts has no responses of step 0, from which the critic is refreshed"
    ):
        trainer(tmp_path / "run", phases, refresh={"steps": [3]}, resume=True)
    assert "rollouts/00000.jsonl lost lines since the checkpoint of step 2: curves and pages have a gap" in caplog.text


# The critic of step 3 or 5 is found where the kill came between its training and the next checkpoint.
KILLS = {"before": ((2,), [3, 5]), "between": ((3,), [5]), "after": ((4,), [5]), "twice": ((3, 5), [])}


@pytest.mark.parametrize(("kills", "trained_again"), KILLS.values(), ids=KILLS)
def test_a_run_that_is_killed_ends_as_the_calm_one(
    tmp_path: Path,
    phases: Path,
    calm: Path,
    monkeypatch: pytest.MonkeyPatch,
    kills: tuple[int, ...],
    trained_again: list[int],
) -> None:
    annotator, trained = Annotator(), []
    for step in kills:
        begun = (tmp_path / "run").exists()
        with pytest.raises(Killed):
            trainer(tmp_path / "run", phases, annotator, resume=begun).train(killed_after(step))
    last = trainer(tmp_path / "run", phases, annotator, resume=True)
    start = 2 * (kills[-1] // 2)  # the last checkpoint
    assert last.step == start
    # Two steps hold sixteen responses, and the window is the last twelve.
    window = [pair for pairs in said(calm)[start - 2 : start] for pair in pairs][-12:]
    assert [(example.prompt_text, response) for example, response in last.refresher.window] == window

    def counted(*args: Any, **kwargs: Any) -> Any:
        trained.append(last.step)
        return learn(*args, **kwargs)

    monkeypatch.setattr(GenerativeRewardModel, "train_further", counted)
    last.train()
    assert [step + 1 for step in trained] == trained_again  # the step that trains it is not finished yet
    assert_same_run(calm, tmp_path / "run")
    assert_same_critics(calm, tmp_path / "run")
    assert same(weights_of(last.critic), weights_of(GenerativeRewardModel.load(calm / "critic" / "step-000005")))
    assert len(annotator.asked) == len(set(annotator.asked))


def test_a_critic_that_was_half_saved_is_trained_again(
    tmp_path: Path, phases: Path, calm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(critic: GenerativeRewardModel, directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(b"half")
        raise Killed

    run = trainer(tmp_path / "run", phases)
    with monkeypatch.context() as patch:
        patch.setattr(GenerativeRewardModel, "save", half)
        with pytest.raises(Killed):
            run.train()
    assert saved(tmp_path / "run") == [".step-000003.tmp"]
    trainer(tmp_path / "run", phases, resume=True).train()
    assert_same_run(calm, tmp_path / "run")
    assert_same_critics(calm, tmp_path / "run")


def test_an_annotator_that_raises_stops_the_run_and_spoils_nothing(tmp_path: Path, phases: Path, calm: Path) -> None:
    class Failing(Annotator):
        def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
            if len(responses) > 2:  # more than an audit
                raise TimeoutError("no answer in 60 s")
            return super().__call__(examples, responses)

    with pytest.raises(CriticError, match=r"critic Failing failed on .*: TimeoutError at .*: no answer in 60 s"):
        trainer(tmp_path / "run", phases, Failing()).train()
    trainer(tmp_path / "run", phases, resume=True).train()
    assert_same_run(calm, tmp_path / "run")
    assert_same_critics(calm, tmp_path / "run")


# When.


def refresher(
    out: Path, critic: Any, annotator: Any, *, match: Match = "exact", checkpointing: bool = False, **settings: Any
) -> Refresher:
    recipe = make_recipe(
        {
            "critic": {"match": match},
            "model": {"gradient_checkpointing": checkpointing},
            "refresh": settings,
            "run": {"out": str(out), "seed": 3},
        }
    )
    return Refresher(recipe, critic, annotator)


def test_the_random_numbers_of_others_go_on_as_if_there_had_been_no_refresh(tmp_path: Path, phases: Path) -> None:
    class Moody(Annotator):
        def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
            random.random(), np.random.random(), torch.rand(3)
            return super().__call__(examples, responses)

    critics, states, trained = [GenerativeRewardModel.load(phases / "reward_model") for _ in "ab"], [], []
    for critic in critics:  # the first trains, the second finds what the first has left
        random.seed(1), np.random.seed(2), torch.manual_seed(3)
        moody = Moody()
        one = refresher(tmp_path, critic, moody, steps=(1,), window=2, train_steps=2, batch_size=2)
        one.observe(EXAMPLES[:2], [" red", " one"])
        before = random_states()
        one.refresh_if_due(1)
        states += [before, random_states()]
        trained.append(bool(moody.asked))
    assert trained == [True, False]
    assert all(state == states[0] for state in states)
    assert same(weights_of(critics[0]), weights_of(critics[1]))
    assert not same(weights_of(critics[0]), weights_of(GenerativeRewardModel.load(phases / "reward_model")))


def test_a_critic_is_on_the_disk_before_its_name_is(
    tmp_path: Path, phases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    critic, flushed = GenerativeRewardModel.load(phases / "reward_model"), []
    monkeypatch.setattr(Refresher, "_train", lambda self, step: True)
    final = tmp_path / "critic" / "step-000001"
    monkeypatch.setattr(files.os, "fsync", lambda number: flushed.append((number, final.exists())))
    refresher(tmp_path, critic, Annotator(), steps=(1,)).refresh_if_due(1)
    count = sum(path.is_file() for path in final.iterdir())
    named = [exists for _, exists in flushed]
    # The settings by themselves, every file, the directory; then the name, and the directory it stands in.
    assert named == [False] * (1 + count + 1) + [True]


# What it learns from.


def mixture(
    phases: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh: int,
    step: int = 1,
    responses: Sequence[str] = (),
    **settings: Any,
) -> tuple[list[Annotation], FineTuning]:
    """Return what a critic would be trained on, and how."""
    found: list[Any] = []
    monkeypatch.setattr(GenerativeRewardModel, "train_further", lambda critic, *given: found.append(given))
    critic = GenerativeRewardModel.load(phases / "reward_model")
    one = refresher(out, critic, Annotator(), steps=(step,), **settings)
    one.observe(EXAMPLES[:fresh], responses or [" red"] * fresh)
    one.refresh_if_due(step)
    return found[0]


@pytest.mark.parametrize(
    ("settings", "positive", "negative"),
    [
        ({}, 2, 6),
        ({"positive_share": 0.5}, 2, 2),
        ({"positive_share": 0.4}, 2, 3),  # 2 · 0.6 / 0.4
        ({"negative_share": 0.9}, 1, 6),  # 6 · 0.1 / 0.9, rounded
        ({"negative_share": 0.9, "positive_share": 0.5}, 1, 1),  # the negative share first
    ],
)
def test_a_refresh_learns_from_as_much_praise_and_blame_as_is_set(
    tmp_path: Path,
    phases: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, float],
    positive: int,
    negative: int,
) -> None:
    said = [" one", " red", *[" one"] * 5, " red"]
    mixed, _ = mixture(phases, tmp_path, monkeypatch, len(said), responses=said, **settings)
    labels = [one.critique.spans[0].label for one in mixed]
    assert (labels.count("positive"), labels.count("negative")) == (positive, negative)


@pytest.mark.parametrize(
    ("share", "old"),
    [
        (0.5, 4),  # 4 of 8
        (0.75, 12),  # 12 of 16
        (0.2, 1),  # 1 of 5
        (0.0, 0),
        (0.875, 20),  # 28 of 32, but there are 20
    ],
)
def test_older_annotations_are_mixed_in_by_their_share(
    tmp_path: Path, phases: Path, monkeypatch: pytest.MonkeyPatch, share: float, old: int
) -> None:
    before = [Annotation(f"p{row}", " blue", Critique("Old.")) for row in range(20)]
    write_annotations(tmp_path / "old.jsonl", before)
    path = str(tmp_path / "old.jsonl")
    mixed, _ = mixture(phases, tmp_path, monkeypatch, fresh=4, replay=share, replay_from=path)
    assert [one.prompt for one in mixed[:4]] == [example.prompt_text for example in EXAMPLES[:4]]
    assert mixed[0].critique == Critique("Colours are welcome, numbers are not.", (Span(1, 4, "positive"),))
    assert len(mixed[4:]) == old
    assert len({one.prompt for one in mixed[4:]}) == old, "each at most once"
    assert set(mixed[4:]) <= set(before)


def test_other_steps_replay_other_annotations(tmp_path: Path, phases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(phases / "annotations.jsonl")
    found = [
        mixture(phases, tmp_path / str(row), monkeypatch, 4, step, replay_from=path)[0]
        for row, step in enumerate((1, 1, 2))
    ]
    assert found[0] == found[1]
    assert found[0][4:] != found[2][4:]


def test_without_a_file_nothing_is_replayed(tmp_path: Path, phases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more: dict[str, Any] = {"accumulate": 2, "checkpointing": True}
    mixed, how = mixture(phases, tmp_path, monkeypatch, fresh=4, step=7, train_steps=9, batch_size=5, lr=0.25, **more)
    assert len(mixed) == 4
    assert (how.accumulate, how.gradient_checkpointing) == (2, True)
    assert (how.steps, how.batch_size, how.learning_rate, how.seed) == (9, 5, 0.25, 10)  # the run's seed is 3


@pytest.mark.parametrize("kind", ["all weights", "an adapter"])
def test_less_memory_in_a_refresh_changes_no_result(tmp_path: Path, phases: Path, kind: str) -> None:
    found, ways = [], {"plain": {}, "less": {"accumulate": 2, "checkpointing": True}}
    for name, less in ways.items():
        torch.manual_seed(4)
        critic: Any = GenerativeRewardModel.load(phases / "reward_model")
        if kind == "an adapter":
            adapted = with_lora(critic.model, r=2, alpha=4, targets=["q_proj", "v_proj"])
            critic = GenerativeRewardModel(adapted, critic.tokenizer)
        one = refresher(tmp_path / name, critic, Annotator(), steps=(1,), train_steps=4, batch_size=4, lr=1e-2, **less)
        before = weights_of(critic)
        one.observe(EXAMPLES[:4], [" red", " red two", " blue", " red red"])
        one._train(1)
        found.append(weights_of(critic))
        assert not same(found[-1], before)
        assert not critic.model.training
    for key, weight in found[0].items():
        torch.testing.assert_close(found[1][key], weight, rtol=0, atol=2e-5, msg=key)


def test_a_window_without_a_readable_critique_changes_nothing(tmp_path: Path, phases: Path) -> None:
    critic = GenerativeRewardModel.load(phases / "reward_model")
    before = weights_of(critic)
    one = refresher(tmp_path, critic, lambda examples, responses: [Critique("", status="unparsable")] * 4, steps=(1,))
    one.observe(EXAMPLES[:4], [" red"] * 4)
    assert one.refresh_if_due(1) == {"critic/refreshed": 0.0}
    assert same(before, weights_of(critic))
    assert saved(tmp_path) == []


def test_failed_annotations_are_not_replayed(tmp_path: Path, phases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = [Annotation(f"p{row}", " blue", Critique("", status=("ok", "unparsable")[row % 2])) for row in range(8)]
    write_annotations(tmp_path / "old.jsonl", old)
    path = str(tmp_path / "old.jsonl")
    mixed, _ = mixture(phases, tmp_path, monkeypatch, fresh=8, replay=0.5, replay_from=path)
    # 8 of 16 would be old ones, and 4 can be read
    assert sorted(one.prompt for one in mixed[8:]) == ["p0", "p2", "p4", "p6"]


@pytest.mark.parametrize("context", [64, 4_096])
def test_annotations_are_learned_up_to_the_context_of_the_critic(
    tmp_path: Path, phases: Path, monkeypatch: pytest.MonkeyPatch, context: int
) -> None:
    critic, found = GenerativeRewardModel.load(phases / "reward_model"), []
    critic.model.config.max_position_embeddings = context
    monkeypatch.setattr(GenerativeRewardModel, "train_further", lambda critic, mixed, how: found.append(how))
    one = refresher(tmp_path, critic, Annotator(), steps=(1,))
    one.observe(EXAMPLES[:1], [" red"])
    one.refresh_if_due(1)
    assert [how.max_tokens for how in found] == [context]


def test_where_no_annotation_is_short_enough_the_critic_stays_and_the_run_goes_on(
    tmp_path: Path, phases: Path, caplog: pytest.LogCaptureFixture
) -> None:
    critic = GenerativeRewardModel.load(phases / "reward_model")
    before = weights_of(critic)
    one = refresher(tmp_path, critic, Annotator(), steps=(1,), window=2)
    one.observe(EXAMPLES[:2], [" red" * 80] * 2)  # the context is 64
    with caplog.at_level("WARNING", logger="text2grad"):
        assert one.refresh_if_due(1) == {"critic/refreshed": 0.0}
    (warning,) = caplog.messages
    assert warning.startswith("step 1: the critic stays as it is: ")
    assert "longer than" in warning
    assert same(before, weights_of(critic))
    assert saved(tmp_path) == []
    assert one.state() == {"current": ""}


def test_the_window_holds_the_last_responses(tmp_path: Path, phases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed, _ = mixture(phases, tmp_path, monkeypatch, fresh=5, window=3)
    assert [one.prompt for one in mixed] == [example.prompt_text for example in EXAMPLES[2:5]]


def test_a_critic_learns_again_to_write_as_it_writes(
    tmp_path: Path, phases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    critic, found = GenerativeRewardModel.load(phases / "reward_model", write_feedback=False), []
    monkeypatch.setattr(generative, "train_on_rows", lambda model, rows, how, **_: found.extend(rows))
    one = refresher(tmp_path, critic, Annotator(), steps=(1,))
    one.observe(EXAMPLES[:1], [" red"])
    one.refresh_if_due(1)
    (row,) = found
    text = critic.tokenizer.decode(row["input_ids"])
    assert text.startswith(critique_prompt(EXAMPLES[0], " red"))
    assert '{"textual_feedback": "", "good_spans": ["red"], "poor_spans": []}' in text


def test_a_critic_that_learns_outcomes_in_a_refresh_writes_them_after_a_resume_too(
    tmp_path: Path, phases: Path
) -> None:
    def annotator(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        return [Critique("Fine.", (), outcome=2.0)] * len(responses)

    critic = GenerativeRewardModel.load(phases / "reward_model")
    critic.format = replace(critic.format, outcomes=False)
    one = refresher(tmp_path, critic, annotator, steps=(1,), train_steps=1)
    one.observe(EXAMPLES[:1], [" red"])
    assert one.refresh_if_due(1) == {"critic/refreshed": 1.0}
    assert critic.format.outcomes
    before = GenerativeRewardModel.load(phases / "reward_model")
    before.format = replace(before.format, outcomes=False)
    again = refresher(tmp_path, before, annotator, steps=(1,), train_steps=1)
    again.restore(one.state())
    assert before.format.outcomes


def test_a_critic_that_learns_none_in_a_refresh_still_writes_none(tmp_path: Path, phases: Path) -> None:
    critic = GenerativeRewardModel.load(phases / "reward_model")
    critic.format = replace(critic.format, outcomes=False)
    one = refresher(tmp_path, critic, Annotator(), steps=(1,), train_steps=1)
    one.observe(EXAMPLES[:1], [" red"])
    one.refresh_if_due(1)
    assert not critic.format.outcomes


# The audit.


def rollouts(tokenizer: Any, *texts: str) -> list[Rollout]:
    ids = [tuple(tokenizer(text)["input_ids"]) for text in texts]
    return [Rollout(EXAMPLES[0], (1,), ids[row], text, False) for row, text in enumerate(texts)]


def test_an_audit_by_hand(tmp_path: Path) -> None:
    tokenizer, _ = small_run.tokenizer_and_model()
    annotator = Annotator()
    one = refresher(tmp_path, lambda examples, responses: [], annotator, audit=2)
    texts = rollouts(tokenizer, " red one cat", " two dog", " green")
    critiques = [Critique("", (Span(1, 8, "positive"),), unmatched=("Lyon",)), Critique("", (Span(5, 8, "negative"),))]
    deltas = [[1.0, 1.0, 0.0], [0.0, -1.0], [1.0]]
    # red one cat: praised red, one; the annotator praises red and blames one.   Σ δ = 2, true 0
    # two dog:     blamed dog;       the annotator blames two.                   Σ δ = −1, true −1
    assert one.audit(tokenizer, texts, deltas, [*critiques, Critique("")]) == {
        "audit/f1": 2 * 1 / (3 + 3),
        "audit/f1/positive": 2 * 1 / (2 + 1),
        "audit/f1/negative": 0.0,
        "audit/precision/positive": 1 / 2,
        "audit/recall/positive": 1 / 1,
        "audit/precision/negative": 0 / 1,
        "audit/recall/negative": 0 / 2,
        "audit/failure_rate": 0 / 2,
        "audit/unmatched_rate": 1 / 3,
        "audit/gap": (2 + 0) / 2,
    }
    assert [response for _, response in annotator.asked] == [" red one cat", " two dog"], "the third is not audited"
    one.audit(tokenizer, texts, deltas, critiques)
    assert len(annotator.asked) == 2, "never asked twice"


def test_a_critique_that_could_not_be_read_counts_in_the_audit(tmp_path: Path) -> None:
    tokenizer, _ = small_run.tokenizer_and_model()
    one = refresher(tmp_path, lambda examples, responses: [], Annotator(), audit=1)
    found = one.audit(tokenizer, rollouts(tokenizer, "red"), [[0.0]], [Critique("", status="unparsable")])
    none = {"audit/f1": 0.0, "audit/f1/positive": 0.0, "audit/recall/positive": 0.0}
    assert found == {**none, "audit/failure_rate": 1.0, "audit/gap": -1.0}  # 0 − 1


def test_an_annotator_may_answer_in_text_whose_quotes_are_found_as_the_recipe_says(tmp_path: Path) -> None:
    def in_words(examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        return ['{"textual_feedback": "Good.", "good_spans": ["red  one"], "poor_spans": []}'] * len(responses)

    tokenizer, _ = small_run.tokenizer_and_model()
    found: dict[Match, float] = {}
    for match in get_args(Match):
        one = refresher(tmp_path / match, in_words, in_words, match=match, audit=1)
        found[match] = one.audit(tokenizer, rollouts(tokenizer, "red one"), [[1.0, 1.0]], [Critique("")])["audit/gap"]
    assert found == {"exact": 2.0, "normalized": 0.0}
    texts = rollouts(tokenizer, "red one")
    quality = refresh.judge(
        in_words, tokenizer, texts, [[1.0, 1.0]], [Critique("")], AlignSettings(), match="normalized"
    )
    assert quality.metrics()["precision/positive"] == 1.0


def test_no_audit_asks_nobody(tmp_path: Path) -> None:
    tokenizer, _ = small_run.tokenizer_and_model()
    annotator = Annotator()
    one = refresher(tmp_path, lambda examples, responses: [], annotator)
    assert one.audit(tokenizer, rollouts(tokenizer, "red"), [[1.0]], [Critique("")]) == {}
    assert annotator.asked == []


def test_any_critic_can_be_audited_in_a_run_and_each_step_says_how_good_it_is(tmp_path: Path, phases: Path) -> None:
    class Hasty(ColourCritic):
        def judge(self, response: str) -> Critique:
            return Critique("All is well.", (Span(0, len(response), "positive"),) if response else ())

    annotator = Annotator()
    more = {"refresh": {"steps": [], "audit": 8}, "run": {"steps": 2}}
    trainer(tmp_path / "run", phases, annotator, critic=Hasty(), **more).train()
    steps = said(tmp_path / "run")
    assert set(annotator.asked) == {*steps[0], *steps[1]}
    for line in untimed(tmp_path / "run" / "metrics.jsonl"):
        assert line["delta/positive_share"] > 0.5
        assert line["audit/recall/positive"] == 1.0, "who praises everything misses nothing"
        assert 0.0 < line["audit/precision/positive"] < 1.0
        assert line["audit/recall/negative"] == line["audit/failure_rate"] == 0.0
        assert "audit/precision/negative" not in line, "it blames nothing"
        assert line["audit/gap"] > 0


# Refusals.


def refusal(out: Path, critic: Any, annotator: Any, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        refresher(out, critic, annotator, **settings)
    assert not (out / "critic").exists()
    return str(caught.value)


def test_a_critic_that_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, ColourCritic(), Annotator(), steps=(1,)) == (
        "[refresh] trains the critic further, and a ColourCritic cannot be trained. Set critic.model to a generative "
        "reward model, or remove refresh.steps."
    )


@pytest.mark.parametrize("need", [{"steps": (1,)}, {"audit": 1}], ids=["steps", "audit"])
def test_somebody_must_know_better(tmp_path: Path, phases: Path, need: dict[str, Any]) -> None:
    critic = GenerativeRewardModel.load(phases / "reward_model")
    assert refusal(tmp_path, critic, None, **need) == (
        '[refresh] needs an annotator; set refresh.annotator = "module:name"'
    )
    refresher(tmp_path, critic, None)  # nobody is needed where nothing is asked


def test_several_processes_must_share_the_batches_of_a_refresh_evenly() -> None:
    with pytest.raises(ConfigError) as caught:
        check_batch_size("refresh", 6, 1, processes=4)
    assert str(caught.value) == (
        "refresh.batch_size = 6 is not divisible by 4 processes × refresh.accumulate = 1; choose a multiple of 4"
    )
    with pytest.raises(ConfigError, match=r"refresh.accumulate = 3; choose a multiple of 12"):
        check_batch_size("refresh", 8, 3, processes=4)
    check_batch_size("refresh", 8, 1, processes=4)
    check_batch_size("refresh", 8, 2, processes=4)


def test_an_error_of_the_first_process_is_raised_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[Any]] = []

    def raises() -> None:
        raise CriticError("the annotator is away")

    def as_process(number: int, received: list[Any] | None = None) -> None:
        state = SimpleNamespace(num_processes=2, is_main_process=number == 0)
        monkeypatch.setattr(refresh, "PartialState", lambda: state)
        monkeypatch.setattr(refresh, "broadcast_object_list", lambda made: sent.append(made) or received or made)

    as_process(1, [None, CriticError("the annotator is away")])
    with pytest.raises(CriticError, match="the annotator is away"):
        refresh.of_first_process(raises)  # which is not called here
    as_process(1, [3, None])
    assert refresh.of_first_process(raises) == 3  # type: ignore[func-returns-value]
    as_process(0)
    assert refresh.of_first_process(lambda: 4) == 4
    assert sent[-1] == [4, None]
    with pytest.raises(CriticError, match="the annotator is away"):
        refresh.of_first_process(raises)
    assert str(sent[-1][1]) == "the annotator is away"


def test_annotations_that_are_not_there_are_missed_before_anything_is_written(tmp_path: Path, phases: Path) -> None:
    with pytest.raises(DataError) as caught:
        trainer(tmp_path / "run", phases, refresh={"replay_from": "nowhere.jsonl"})
    assert str(caught.value) == "cannot read nowhere.jsonl: No such file or directory"
    with pytest.raises(ConfigError, match="and a ColourCritic cannot be trained"):
        trainer(tmp_path / "run", phases, critic=ColourCritic())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("label", ["negative", "positive"])
@pytest.mark.parametrize(
    ("share", "others"),
    [
        (0.0, 8),  # all of them
        (0.5, 2),  # as many as the negative ones: 2 · (1 − 0.5) / 0.5
        (0.25, 6),  # 2 · 0.75 / 0.25
        (0.1, 8),  # there are no 18
        (1.0, 0),
    ],
)
def test_annotations_without_a_span_of_a_label_are_left_out_until_the_others_have_their_share(
    share: float, others: int, label: Label
) -> None:
    other: Label = "positive" if label == "negative" else "negative"
    spans = {True: (Span(0, 1, other), Span(1, 2, label)), False: (Span(0, 1, other),)}
    some = [Annotation(str(row), "ab", Critique("", spans[row in (3, 7)])) for row in range(10)]
    kept = rebalanced(some, label, share, Random(0))
    assert [one.prompt for one in kept if len(one.critique.spans) == 2] == ["3", "7"]
    assert len(kept) == 2 + others
    assert [one.prompt for one in kept] == sorted(one.prompt for one in kept)
    assert rebalanced(some[:3], label, share, Random(0)) == some[:3]  # without a span of the label all stays
