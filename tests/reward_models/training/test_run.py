"""`text2grad reward`: what it learns from, how it is measured, that it resumes bit for bit, and what it leaves."""

import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import small_reward
from small_reward import ANIMALS, ANNOTATIONS, prepare, recipe
from text2grad.cli.__main__ import main
from text2grad.costs import read_cost
from text2grad.errors import CheckpointError, ConfigError, DataError, Interrupted, ModelError, TrainingError
from text2grad.feedback.records import Annotation, read_annotations, write_annotations
from text2grad.feedback.splits import split_by_prompt
from text2grad.models import measured_training, pretrained
from text2grad.models.pretrained import load_policy, load_tokenizer
from text2grad.reward_models.agreement import Agreement
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel, critique_prompts
from text2grad.reward_models.training.held_out import HeldOutSet, read_split
from text2grad.reward_models.training.run import RewardRun
from text2grad.reward_models.writing import critique_prompt, critique_request, critique_target
from text2grad.types import Critique, Example, Span
from warm_commands import Warm


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with annotations and a model of random weights."""
    directory = tmp_path_factory.mktemp("home")
    prepare(directory)
    return directory


@pytest.fixture(scope="module")
def calm(home: Path) -> Path:
    """A run that nobody disturbed."""
    RewardRun(recipe(home, "calm")).run()
    return home / "calm"


def train(home: Path, out: str, *, resume: bool = False, **sections: dict[str, Any]) -> Path:
    RewardRun(recipe(home, out, **sections), resume=resume).run()
    return home / out


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]


def assert_same_run(one: Path, other: Path) -> None:
    for name in ("metrics.jsonl", "results.json", "model/model.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    last = "checkpoints/checkpoint-6/model.safetensors"
    assert (one / last).read_bytes() == (other / last).read_bytes()


# What is learned from, and what is measured on.


def test_held_out_prompts_are_learned_from_never_and_the_same_whatever_the_order() -> None:
    train, held_out = split_by_prompt(ANNOTATIONS, 0.34, seed=3)
    assert {one.prompt for one in train}.isdisjoint(one.prompt for one in held_out)
    assert len({one.prompt for one in held_out}) == 2  # 0.34 of 6, rounded
    assert sorted(train + held_out) == sorted(ANNOTATIONS)
    _, again = split_by_prompt(ANNOTATIONS[::-1], 0.34, seed=3)
    assert again[::-1] == held_out
    others = {one.prompt for seed in range(20) for one in split_by_prompt(ANNOTATIONS, 0.34, seed)[1]}
    assert len(others) == 6


def test_a_share_leaves_at_least_one_prompt_on_each_side_where_there_are_two() -> None:
    two = ANNOTATIONS[5:7]
    for share in (0.01, 0.99):
        assert [len(part) for part in split_by_prompt(two, share, seed=0)] == [1, 1]
    assert split_by_prompt(two[:1], 0.5, seed=0) == (two[:1], [])


def f1_of(agreement: Agreement) -> dict[str, float]:
    return {name: value for name, value in agreement.metrics().items() if name.startswith("f1")}


def test_a_critic_is_measured_in_tokens_beside_the_annotators_spans(home: Path) -> None:
    tokenizer = load_tokenizer(str(home / "base"))
    held_out = HeldOutSet(tokenizer, ANNOTATIONS)

    def animals_alone(examples: Any, responses: Any) -> list[Critique]:
        # Every response has two tokens; half of all words are animals, and "blamed" is never said.
        return [
            Critique("", tuple(span for span in one.critique.spans if span.label == "positive")) for one in ANNOTATIONS
        ]

    agreement = held_out.measure(animals_alone)
    assert f1_of(agreement) == {"f1": 2 * 36 / (36 + 72), "f1/positive": 1.0, "f1/negative": 0.0}
    assert (agreement.responses, agreement.failed) == (36, 0)


def test_responses_that_the_tokenizer_says_otherwise_are_measured_by_nobody(home: Path) -> None:
    tokenizer, one, silent = load_tokenizer(str(home / "base")), ANNOTATIONS[3], Annotation("a:", "", Critique(""))
    unknown = silent._replace(response=" zebra", critique=Critique("", (Span(1, 6, "negative"),)))
    held_out = HeldOutSet(tokenizer, [silent, unknown, one])
    assert (held_out.annotations, held_out.unaligned) == ([silent, one], 1)
    asked: list[Any] = []

    def critic(examples: Any, responses: Any) -> list[Any]:
        asked.extend(zip([example.prompt for example in examples], responses, strict=True))
        return [Critique(""), '{"good_spans": ["cat", "CAT"]}']  # as it stands there, or it is no quote

    agreement = held_out.measure(critic)
    assert asked == [("a:", ""), (one.prompt, one.response)]
    assert (one.response, agreement.unmatched) == (" cat one", 1)
    assert f1_of(agreement) == {"f1": 2 * 1 / (1 + 2), "f1/positive": 1.0, "f1/negative": 0.0}
    with pytest.raises(DataError) as caught:
        HeldOutSet(tokenizer, [silent, unknown])
    assert str(caught.value) == (
        "no span of 2 held-out responses can be placed on the tokenizer's tokens (decoding changes the text of 1), so "
        "no agreement can be measured. Hold out more (reward_model.held_out), measure on more of them "
        "(reward_model.eval_limit), or use a tokenizer that decodes every text unchanged."
    )
    with pytest.raises(DataError, match=r"^no span of 2 held-out responses .* changes the text of 0\)"):
        HeldOutSet(tokenizer, [silent, silent])


def test_the_seed_of_a_run_shares_its_annotations_out_and_a_limit_keeps_the_first_to_measure_on(home: Path) -> None:
    split, other = (read_split(recipe(home, run={**recipe(home).run.model_dump(), "seed": s})) for s in (3, 4))
    assert (split.train, split.held_out) == split_by_prompt(ANNOTATIONS, 0.34, seed=3)
    assert other.held_out != split.held_out
    assert len({split.digest(), other.digest(), split._replace(held_out=split.held_out[1:]).digest()}) == 3


def test_processes_share_the_held_out_responses(home: Path) -> None:
    tokenizer = load_tokenizer(str(home / "base"))
    held_out = HeldOutSet(tokenizer, ANNOTATIONS[:7])
    seen: list[str] = []

    def critic(examples: Any, responses: Any) -> list[Critique]:
        seen.extend(responses)
        return [Critique("", (Span(1, 4, "positive"),)) for _ in responses]

    whole = held_out.measure(critic)
    parts = [held_out.measure(critic, slice(rank, None, 3)) for rank in range(3)]
    assert parts[0].merged(parts[1]).merged(parts[2]) == whole
    assert sorted(seen[7:]) == sorted(seen[:7])


def test_the_loss_stands_on_the_critique_alone_and_what_is_too_long_is_left_out(home: Path) -> None:
    run = RewardRun(recipe(home, "unused"))
    tokenizer = run.tokenizer
    train, _ = split_by_prompt(ANNOTATIONS, 0.34, seed=3)
    assert len(run.rows) == run.counts["learned"] == len(train) == 24
    for row, one in zip(run.rows, train, strict=True):
        asked = tokenizer(critique_prompt(Example(one.prompt), one.response)).input_ids
        target = tokenizer(critique_target(one.critique, one.response)).input_ids
        assert row["input_ids"] == [*asked, *target, tokenizer.eos_token_id]
        assert row["labels"] == [*[-100] * len(asked), *target, tokenizer.eos_token_id]
    sizes = sorted(len(row["input_ids"]) for row in run.rows)
    assert sizes[0] < sizes[-1]
    short = RewardRun(recipe(home, "unused2", reward_model={"max_tokens": sizes[0]}))
    assert {len(row["input_ids"]) for row in short.rows} == {sizes[0]}
    assert short.counts["too_long"] == 24 - len(short.rows) > 0


def test_a_held_out_file_takes_its_prompts_out_of_what_is_learned(home: Path, tmp_path: Path) -> None:
    write_annotations(tmp_path / "held.jsonl", ANNOTATIONS[:2])
    run = RewardRun(recipe(home, "file", reward_model={"held_out": str(tmp_path / "held.jsonl")}))
    # Each of the two prompts has six annotations; those twelve go.
    assert (run.counts["held_out"], run.counts["shared_prompts"], run.counts["learned"]) == (2, 12, 24)


def test_critiques_that_could_not_be_read_teach_and_measure_nothing(home: Path, tmp_path: Path) -> None:
    failed = Annotation("a:", " cat", Critique("", status="unparsable"))
    write_annotations(tmp_path / "some.jsonl", [failed, *ANNOTATIONS, failed])
    run = RewardRun(recipe(home, "failed", reward_model={"annotations": (str(tmp_path / "some.jsonl"),)}))
    assert (run.counts["unreadable"], run.counts["learned"], run.counts["held_out"]) == (2, 24, 12)


CHAT = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[judge]{% endif %}"
)


def test_a_model_with_a_chat_template_is_asked_by_it_and_remembers_so(home: Path, tmp_path: Path) -> None:
    prepare(tmp_path)
    tokenizer = load_tokenizer(str(home / "base"))
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(tmp_path / "base")
    for wanted, got in (("auto", "chat"), ("plain", "plain")):
        model = {"path": str(tmp_path / "base"), "prompt_format": wanted}
        run = RewardRun(recipe(tmp_path, wanted, reward_model={"steps": 2}, model=model))
        shown = run.tokenizer.decode(run.rows[0]["input_ids"])
        assert ("[judge]" in shown) == (got == "chat")
        assert GenerativeRewardModel.load(run.run()).format.prompt_format == got
    one = ANNOTATIONS[0]
    asked = critique_prompts(tokenizer, [Example(one.prompt)], [one.response], "chat")
    request = critique_request(Example(one.prompt), one.response)
    assert asked == [tokenizer(f"[user]{request}[judge]", add_special_tokens=False).input_ids]
    assert request.index(one.prompt) < request.index(one.response)


# Training.


def test_every_step_and_every_measurement_is_written_down_and_the_best_is_kept(calm: Path) -> None:
    found = lines(calm)
    assert [line["step"] for line in found if "loss" in line] == [1, 2, 3, 4, 5, 6]
    measured = {line["step"]: line["eval/f1"] for line in found if "eval/f1" in line}
    assert list(measured) == [0, 2, 4, 6]
    del measured[0]  # before the training: no candidate for the best
    results = json.loads((calm / "results.json").read_bytes())
    best = max(measured, key=lambda step: measured[step])
    assert (results["best_step"], results["measured"]["f1"], results["steps"]) == (best, measured[best], 6)
    best_weights = load_file(calm / "checkpoints" / f"checkpoint-{best}" / "model.safetensors")
    weights = load_file(calm / "model" / "model.safetensors")
    assert weights.keys() == best_weights.keys()
    assert all(torch.equal(weights[name], best_weights[name]) for name in weights)
    cost = read_cost(calm)
    assert cost is not None
    assert (cost.phase, cost.runs) == ("reward model", 1)


def test_as_many_checkpoints_are_kept_as_the_run_says(home: Path, calm: Path) -> None:
    kept = train(home, "kept", run={"keep_checkpoints": 3})
    assert len(list((kept / "checkpoints").iterdir())) == 3  # after steps 2, 4 and 6
    assert len(list((calm / "checkpoints").iterdir())) == 2


def test_what_was_measured_is_what_the_saved_model_does(calm: Path) -> None:
    critic = GenerativeRewardModel.load(calm / "model")
    _, held_out = split_by_prompt(ANNOTATIONS, 0.34, seed=3)
    found = HeldOutSet(critic.tokenizer, held_out).measure(critic)
    results = json.loads((calm / "results.json").read_bytes())
    assert results["measured"] == found.metrics()
    assert critic.format == CritiqueFormat(max_new_tokens=40, outcomes=False)


def test_it_learns_to_write_what_the_annotators_wrote(home: Path) -> None:
    run = train(home, "long", reward_model={"steps": 150, "eval_every": 150, "lr": 0.01, "batch_size": 8})
    critic = GenerativeRewardModel.load(run / "model")
    learned, _ = split_by_prompt(ANNOTATIONS, 0.34, seed=3)
    found = critic([Example(one.prompt) for one in learned], [one.response for one in learned])
    assert sum(critique == one.critique for critique, one in zip(found, learned, strict=True)) >= 23  # of 24


def test_a_loss_that_is_not_finite_stops_the_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poison(*given: Any, **named: Any) -> Any:
        policy = load_policy(*given, **named)
        with torch.no_grad():
            policy.lm_head.weight[0, 0] = torch.nan
        return policy

    monkeypatch.setattr(pretrained, "load_policy", poison)
    with pytest.raises(TrainingError) as caught:
        train(home, "nan")
    assert str(caught.value) == (
        "the loss of step 1 is nan; lower reward_model.lr = 0.005 and start again in another directory"
    )


def test_without_words_it_learns_the_quotes_alone(home: Path) -> None:
    run = RewardRun(recipe(home, "wordless", reward_model={"write_feedback": False}))
    assert '{"textual_feedback": "", "good_spans"' in run.tokenizer.decode(run.rows[0]["input_ids"])
    assert not run.reward_model.format.write_feedback


# Resuming.


def interrupted(home: Path, out: str, monkeypatch: pytest.MonkeyPatch, where: str, step: int) -> None:
    """Train until an exception at some place and step, as a kill would leave it."""

    class Killed(BaseException):
        pass

    before = getattr(measured_training, where)

    def kill(*given: Any) -> Any:
        numbers = [one for one in given if isinstance(one, int)]
        if numbers == [step] or (where == "flush" and f"checkpoint-{step}" in str(given[0])):
            raise Killed
        return before(*given)

    with monkeypatch.context() as patch:
        patch.setattr(measured_training, where, kill)
        with pytest.raises(Killed):
            train(home, out)


@pytest.mark.parametrize(
    ("where", "step"),
    [("_append", 1), ("_append", 3), ("_append", 5), ("flush", 2), ("flush", 4), ("flush", 6)],
)
def test_a_run_that_was_killed_ends_with_the_same_bits(
    home: Path, calm: Path, monkeypatch: pytest.MonkeyPatch, where: str, step: int
) -> None:
    out = f"killed-{where}-{step}"
    interrupted(home, out, monkeypatch, where, step)
    assert not (home / out / "model").exists()
    train(home, out, resume=True)
    assert_same_run(home / out, calm)


def test_a_run_that_was_killed_before_it_published_only_publishes(
    home: Path, calm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RewardRun, "_publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(home, "unpublished")
    assert not (home / "unpublished" / "model").exists()
    train(home, "unpublished", resume=True)
    assert_same_run(home / "unpublished", calm)
    train(home, "unpublished", resume=True)  # nothing is left to do
    assert_same_run(home / "unpublished", calm)


def test_a_process_killed_at_some_moment_goes_on_to_the_same_bits(warm: Warm, home: Path, calm: Path) -> None:
    command = ["python", small_reward.__file__, home, f'run.out="{home / "sigkill"}"']
    warm.start(*command).kill_at(home / "sigkill" / "checkpoints" / "checkpoint-2" / "text2grad.json")
    warm.finish(*command)
    assert_same_run(home / "sigkill", calm)


def test_two_processes_learn_and_measure_what_one_does(warm: Warm, home: Path, calm: Path) -> None:
    program = ("python", small_reward.__file__, home, f'run.out="{home / "two"}"')
    warm.together(2, *program, ACCELERATE_USE_CPU="true")
    found, expected = lines(home / "two"), lines(calm)
    assert [line.keys() for line in found] == [line.keys() for line in expected]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
    assert json.loads((home / "two" / "results.json").read_bytes())["counts"]["held_out"] == 12


def test_a_signal_ends_the_training_after_the_step_under_way_and_a_resumed_one_is_the_same(
    home: Path, calm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(directory: Path, step: int, metrics: dict[str, float]) -> None:
        if step == 2 and "loss" in metrics:  # steps 2, 4 and 6 are measured and saved
            signal.raise_signal(signal.SIGTERM)
        written(directory, step, metrics)

    written = measured_training._append
    with monkeypatch.context() as patch:
        patch.setattr(measured_training, "_append", append)
        with pytest.raises(Interrupted) as caught:
            train(home, "signalled")
    assert caught.value.signal == signal.SIGTERM
    assert str(caught.value) == "stopped after step 3 of 6, which is saved"
    assert (home / "signalled" / "checkpoints" / "checkpoint-3" / "text2grad.json").exists()
    assert not (home / "signalled" / "model").exists()
    train(home, "signalled", resume=True)
    assert_same_run(home / "signalled", calm)


def test_a_run_is_not_resumed_on_other_annotations_or_settings(home: Path, calm: Path, tmp_path: Path) -> None:
    write_annotations(tmp_path / "other.jsonl", [*ANNOTATIONS[1:], ANNOTATIONS[0]])
    before = (home / "annotations.jsonl").read_bytes()
    write_annotations(home / "annotations.jsonl", [*ANNOTATIONS[1:], ANNOTATIONS[0]])
    try:
        with pytest.raises(CheckpointError, match=r"calm holds a run on other inputs; .* annotations \(SHA-256 "):
            train(home, "calm", resume=True)
    finally:
        (home / "annotations.jsonl").write_bytes(before)
    with pytest.raises(CheckpointError, match=r"these settings changed: reward_model.lr: 0.005 → 0.1"):
        train(home, "calm", resume=True, reward_model={"lr": 0.1})
    with pytest.raises(ConfigError, match=r"already holds a run\. Go on with it by --resume"):
        train(home, "calm")


# Adapters, cards and the hub.


@pytest.fixture(scope="module")
def adapted(home: Path) -> Path:
    lora = {"lora_r": 4, "lora_alpha": 8}
    return train(
        home,
        "adapted",
        model={**recipe(home).model.model_dump(), **lora},
        reward_model={"lora_dropout": 0.1},
    )


def test_an_adapter_is_saved_as_one_and_merged_it_is_an_ordinary_model(adapted: Path) -> None:
    assert not list((adapted / "model").glob("model*.safetensors"))
    assert (adapted / "model" / "adapter_model.safetensors").exists()
    assert json.loads((adapted / "model" / "adapter_config.json").read_bytes())["lora_dropout"] == 0.1
    assert not list((adapted / "merged").glob("adapter*"))
    one, other = (GenerativeRewardModel.load(adapted / name) for name in ("model", "merged"))
    examples, responses = [Example(a.prompt) for a in ANNOTATIONS], [a.response for a in ANNOTATIONS]
    assert one.write(examples, responses) == other.write(examples, responses)
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(one.model(ids).logits, other.model(ids).logits, rtol=1e-4, atol=1e-4)
    base = load_policy(str(adapted.parent / "base"))
    assert not torch.equal(base(ids).logits, other.model(ids).logits)


def test_an_adapter_in_pickled_form_is_refused(adapted: Path, tmp_path: Path) -> None:
    shutil.copytree(adapted / "model", tmp_path / "model")
    (tmp_path / "model" / "adapter_model.safetensors").rename(tmp_path / "model" / "adapter_model.bin")
    with pytest.raises(ModelError) as caught:
        GenerativeRewardModel.load(tmp_path / "model")
    assert str(caught.value) == (
        f"{tmp_path / 'model'} has no adapter_model.safetensors; save the adapter as safetensors, nothing else is "
        "loaded"
    )


def test_an_adapter_resumes_with_the_same_bits(home: Path, adapted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "model": {**recipe(home).model.model_dump(), "lora_r": 4, "lora_alpha": 8},
        "reward_model": {"lora_dropout": 0.1},
    }

    def stop(*given: Any) -> None:
        if "checkpoint-4" in str(given[0]):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(measured_training, "flush", stop)
        with pytest.raises(KeyboardInterrupt):
            train(home, "adapted-again", **settings)
    train(home, "adapted-again", resume=True, **settings)
    for name in ("metrics.jsonl", "model/adapter_model.safetensors", "merged/model.safetensors"):
        assert (home / "adapted-again" / name).read_bytes() == (adapted / name).read_bytes(), name


def test_the_card_says_what_it_is_and_nothing_about_this_machine(adapted: Path) -> None:
    card = (adapted / "merged" / "README.md").read_text()
    results = json.loads((adapted / "results.json").read_bytes())
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "library_name: peft" in (adapted / "model" / "README.md").read_text()
    assert f"| f1 | {results['measured']['f1']:.3f} |" in card
    assert "| trained on | 24 |" in card
    assert "`base`, with LoRA of rank 4 and α = 8" in card
    assert "{" not in card.replace("{'", ""), "every place is filled"
    assert str(adapted.parent) not in card


# What is refused before work starts.


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"model": {"path": ""}},
            ConfigError,
            "neither [reward_model] model nor [model] path is set: name it with --model PATH",
        ),
        (
            {"reward_model": {"annotations": ()}},
            DataError,
            "there are no annotations to train on; name files that `text2grad feedback import` or `text2grad annotate` "
            "wrote with --annotations FILE.jsonl, or in the recipe as reward_model.annotations",
        ),
        (
            {"model": {"prompt_format": "chat"}},
            ModelError,
            'model.prompt_format = "chat", but the tokenizer of {base!r} has no chat template; take a model that has '
            'one, or join messages as plain text with model.prompt_format = "plain"',
        ),
        (
            {"reward_model": {"max_new_tokens": 2}},
            ModelError,
            "max_new_tokens = 2 is too short for a critique: an empty critique has 4 tokens with this tokenizer. Raise "
            "it, or switch constrained decoding off with constrain = False.",
        ),
        (
            {"reward_model": {"batch_size": 4, "accumulate": 3}},
            ConfigError,
            "reward_model.batch_size = 4 is not divisible by 1 processes × reward_model.accumulate = 3; choose a "
            "multiple of 3",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_a_reason(
    home: Path, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        train(home, "refused", **settings)
    assert str(caught.value) == message.format(base=str(home / "base"))


def launched(kind: str, **state: Any) -> Any:
    """Return an accelerator as some launcher would make it."""
    return SimpleNamespace(
        distributed_type=kind,
        state=SimpleNamespace(**state),
        deepspeed_config={"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": state.get("whole")}},
    )


@pytest.mark.parametrize(
    ("accelerator", "message"),
    [
        (launched("MULTI_GPU"), None),
        (launched("FSDP", fsdp_plugin=SimpleNamespace(fsdp_version=2, state_dict_type="FULL_STATE_DICT")), None),
        (
            launched("FSDP", fsdp_plugin=SimpleNamespace(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")),
            "FSDP and",
        ),
        (launched("FSDP", fsdp_plugin=SimpleNamespace(fsdp_version=1, state_dict_type="FULL_STATE_DICT")), "FSDP and"),
        (launched("DEEPSPEED", deepspeed_plugin=SimpleNamespace(zero_stage=2), whole=False), None),
        (launched("DEEPSPEED", deepspeed_plugin=SimpleNamespace(zero_stage=3), whole=True), None),
        (launched("DEEPSPEED", deepspeed_plugin=SimpleNamespace(zero_stage=3), whole=False), "DEEPSPEED and"),
    ],
)
def test_launchers_that_leave_no_whole_weights_are_refused(accelerator: Any, message: str | None) -> None:
    if message is None:
        measured_training._refuse_shards(accelerator, "adamw", "reward_model")
        return
    with pytest.raises(ConfigError, match=f"accelerate was launched with {message}"):
        measured_training._refuse_shards(accelerator, "adamw", "reward_model")


def test_an_fsdp_configuration_that_accelerate_leaves_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match="accelerate made MULTI_CPU of it, which shards nothing"):
        measured_training._refuse_shards(launched("MULTI_CPU"), "adamw", "reward_model")


def test_muon_needs_whole_weights() -> None:
    sharded = launched("FSDP", fsdp_plugin=SimpleNamespace(fsdp_version=2, state_dict_type="FULL_STATE_DICT"))
    with pytest.raises(ConfigError, match="optimizer = muon needs whole matrices"):
        measured_training._refuse_shards(sharded, "muon", "reward_model")


def test_a_missing_model_or_file_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot load a tokenizer from"):
        train(home, "missing", model={"path": str(tmp_path / "nowhere")})
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        train(home, "missing", reward_model={"annotations": (str(tmp_path / "nowhere.jsonl"),)})
    assert not (home / "missing").exists()


def test_annotations_without_any_span_are_refused(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "words.jsonl"
    write_annotations(path, [Annotation(one.prompt, one.response, Critique("Fine.")) for one in ANNOTATIONS])
    with pytest.raises(DataError) as caught:
        train(home, "spanless", reward_model={"annotations": (str(path),)})
    assert str(caught.value) == (
        f"the 24 annotations to train on ({path}) have no span, so there is nothing to quote; ground their "
        "words with `text2grad annotate`, import feedback with spans with `text2grad feedback import`, or change "
        "reward_model.held_out"
    )


# The command.


def test_the_command_trains_from_files_and_says_what_it_did(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe_file = tmp_path / "my.toml"
    recipe_file.write_text(
        '[reward_model]\nsteps = 2\nbatch_size = 4\neval_every = 2\nmax_new_tokens = 40\n[run]\ntracker = "none"\n'
    )
    arguments = ["reward", str(recipe_file), "--model", str(home / "base"), "--out", str(tmp_path / "run")]
    assert main(arguments) == 2
    assert "there are no annotations to train on" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()
    assert main([*arguments, "--annotations", str(home / "annotations.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "30 annotations to train on and 6 held-out ones to measure on" in said
    assert "held out, step 2 of 2   f1 " in said
    assert "held-out F1 " in said
    assert GenerativeRewardModel.load(tmp_path / "run" / "model").format.prompt_format == "plain"
    assert read_annotations(home / "annotations.jsonl") == ANNOTATIONS
    assert ANIMALS[0] == "cat"
