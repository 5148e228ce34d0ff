"""The loop of Algorithm 4 on a model made on the spot: it learns, it counts, and it refuses bad input before work."""

import copy
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

import small_run
from text2grad import Critique, Example, Span
from text2grad.config import ModelConfig, make_recipe
from text2grad.config.run_directory import check_world_size
from text2grad.errors import ConfigError, CriticError, DataError, ModelError, TrainingError
from text2grad.models import decoding
from text2grad.models.adapters import with_lora
from text2grad.rl.start import prepare_policy
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from warm_commands import Warm

LEARNING = {"rollout": {"batch_size": 32, "max_new_tokens": 6}, "run": {"steps": 12, "save_every": 100}}


def records(out: Path) -> list[dict]:
    return [json.loads(line) for file in sorted((out / "rollouts").glob("*")) for line in file.read_text().splitlines()]


def metrics(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_the_critic_praises_becomes_likelier_and_what_it_faults_rarer(tmp_path: Path, seed: int) -> None:
    more = {**LEARNING, "run": {**LEARNING["run"], "seed": seed}}
    small_run.trainer(tmp_path / "run", **more).train()
    found = metrics(tmp_path / "run")
    early, late = found[:3], found[-3:]
    for key, sign in (("delta/positive_share", 1), ("delta/negative_share", -1), ("reward/per_response", 1)):
        change = sum(m[key] for m in late) - sum(m[key] for m in early)
        assert sign * change > 0, (key, [m[key] for m in found])


def test_the_reversed_critic_teaches_the_reverse(tmp_path: Path) -> None:
    class Reversed(small_run.ColourCritic):
        def judge(self, response: str) -> Critique:
            spans = super().judge(response).spans
            swapped = {"positive": "negative", "negative": "positive"}
            return Critique("Numbers please.", tuple(Span(s.start, s.end, swapped[s.label]) for s in spans))

    small_run.trainer(tmp_path / "run", Reversed(), **LEARNING).train()
    text = [
        " ".join(r["response"] for r in records(tmp_path / "run") if r["step"] in steps) for steps in ((0, 1), (10, 11))
    ]
    numbers = [sum(t.split().count(word) for word in ("one", "two", "three")) for t in text]
    assert numbers[1] > 1.5 * numbers[0]


def test_the_loop_does_not_know_which_kind_of_critic_it_has(tmp_path: Path) -> None:
    def in_words(examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        found = [small_run.ColourCritic().judge(r) for r in responses]
        return [
            json.dumps(
                {
                    "textual_feedback": c.feedback,
                    "good_spans": [r[s.start : s.end] for s in c.spans if s.label == "positive"],
                    "poor_spans": [r[s.start : s.end] for s in c.spans if s.label == "negative"],
                }
            )
            for c, r in zip(found, responses, strict=True)
        ]

    small_run.trainer(tmp_path / "words", in_words).train()
    small_run.trainer(tmp_path / "spans").train()
    first, second = small_run.weights(tmp_path / "words"), small_run.weights(tmp_path / "spans")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_every_rollout_is_written_with_critique_and_numbers_per_token(tmp_path: Path) -> None:
    small_run.trainer(tmp_path / "run", run={"steps": 1}).train()
    found = records(tmp_path / "run")
    assert len(found) == 8
    for record in found:
        tokens = len(record["ids"])
        for key in ("delta", "reward", "kl", "value", "advantage", "offsets"):
            assert len(record[key]) == tokens, key
        for start, end, label in map(dict.values, record["critique"]["spans"]):
            marked = {d for d, (a, b) in zip(record["delta"], record["offsets"], strict=True) if a < end and b > start}
            assert marked == {1.0 if label == "positive" else -1.0}
        assert record["critique"]["feedback"] == "Colours are welcome, numbers are not."


def test_the_trained_policy_is_an_ordinary_hugging_face_directory(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = small_run.trainer(tmp_path / "run")
    path = run.train()
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    ids = tokenizer("red cat", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, run.model.policy(ids).logits)


def test_a_lora_policy_is_saved_as_an_adapter(tmp_path: Path) -> None:
    path = small_run.trainer(tmp_path / "run", model={"lora_r": 2}).train()
    assert (path / "adapter_model.safetensors").exists()


@pytest.mark.parametrize("sharpness", [1.0, 1.2, 9.0])
def test_every_step_compares_the_log_probs_of_sampling_and_scoring(
    sharpness: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, read_tokens = small_run.trainer(tmp_path, run={"steps": 1}, rollout={"temperature": 0.7}), decoding.read_tokens

    def sharper(*read: Any) -> Any:  # a cache that goes wrong after the trial at the start
        output = read_tokens(*read)
        output.logits *= sharpness
        return output

    monkeypatch.setattr(decoding, "read_tokens", sharper)
    if sharpness > 2:
        with pytest.raises(TrainingError, match=r"KL\(engine ‖ policy\) is .* nats per token \(limit 0\.1\)"):
            run.train()
        return
    run.train()
    [step] = metrics(tmp_path)
    assert (step["engine/logp_gap"] < 1e-5) == (sharpness == 1.0)
    assert (step["engine/kl_per_token"] < 1e-5) == (sharpness == 1.0)
    assert ("step 1: the log-probs of sampled tokens differ by" in caplog.text) == (sharpness > 1.0)


def test_the_first_step_starts_at_ratio_one_and_kl_zero(tmp_path: Path) -> None:
    for name, lora in (("full", 0), ("lora", 4)):
        small_run.trainer(tmp_path / name, model={"lora_r": lora}, run={"steps": 1}).train()
        assert abs(metrics(tmp_path / name)[0]["kl/per_token"]) < 1e-6


def test_unreadable_critiques_give_no_reward_and_keep_the_sample(tmp_path: Path) -> None:
    def mute(examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        return ['{"textual_feedback": "I would'] * len(responses)  # cut off

    small_run.trainer(tmp_path / "run", mute, run={"steps": 2}, critic={"max_failure_rate": 1.0}).train()
    found = records(tmp_path / "run")
    assert len(found) == 16
    assert {x for r in found for x in r["delta"] + r["reward"]} == {0.0}
    assert {m["critic/failure_rate"] for m in metrics(tmp_path / "run")} == {1.0}


@pytest.mark.parametrize(
    ("readable", "shown", "steps"),
    [
        (0, "100% of the last 8", 1),
        (2, "76% of the last 100", 13),
    ],  # ⌈100 / 8⌉ batches; the last 100 of 104 lack 2 of 26 that can be read
)
def test_a_critic_that_fails_too_often_stops_the_run(readable: int, shown: str, steps: int, tmp_path: Path) -> None:
    def mumble(examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        good = '{"textual_feedback": "Yes.", "good_spans": [], "poor_spans": []}'
        return [good] * readable + ['{"textual_feedback": "No'] * (len(responses) - readable)

    run = small_run.trainer(tmp_path / "run", mumble, run={"steps": 50, "save_every": 100})
    with pytest.raises(CriticError) as caught:
        run.train()
    assert str(caught.value) == (
        f"{shown} critiques could not be read (max_failure_rate is 25%). Their responses were kept with δ = 0: "
        f"look at critique.status in {tmp_path / 'run' / 'rollouts'}, mend the critic, and go on with --resume."
    )
    assert (tmp_path / "run" / "checkpoints" / f"step-{steps:06d}").exists()


def test_a_run_that_its_critic_stopped_goes_on_with_a_mended_one(tmp_path: Path) -> None:
    def mute(examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        return ['{"textual_feedback": "No'] * len(responses)

    settings = {"run": {"steps": 16, "save_every": 100}}
    with pytest.raises(CriticError):
        small_run.trainer(tmp_path / "run", mute, **settings).train()
    small_run.trainer(tmp_path / "run", resume=True, **settings).train()
    assert [m["step"] for m in metrics(tmp_path / "run")] == list(range(16))


def test_spans_beyond_the_response_count_as_unreadable(tmp_path: Path) -> None:
    def wild(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        return [Critique("Off the page.", (Span(0, 10_000, "negative"),)) for _ in responses]

    with pytest.raises(CriticError, match="could not be read"):
        small_run.trainer(tmp_path / "run", wild, run={"steps": 1}).train()
    assert {r["critique"]["status"] for r in records(tmp_path / "run")} == {"unparsable"}


def test_too_few_critiques_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(CriticError) as caught:
        small_run.trainer(tmp_path / "run", lambda examples, responses: []).train()
    told = str(caught.value)
    assert told.startswith("critic <lambda> returned 0 critiques for 8 responses; one each is needed. ")
    assert told.endswith("; mend the critic and go on with --resume.")


def test_weights_that_are_not_numbers_stop_the_run_with_the_way_out(tmp_path: Path) -> None:
    run = small_run.trainer(tmp_path / "run")
    run.train_step()
    run.save()
    with torch.no_grad():
        run.model.value_head.weight.fill_(torch.nan)
    with pytest.raises(TrainingError, match=r"the loss is not finite .* Resume from the last checkpoint"):
        run.train_step()
    assert (tmp_path / "run" / "checkpoints" / "step-000001").exists()


@pytest.mark.usefixtures("no_hub")
def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    critic, recipe = small_run.ColourCritic(), small_run.recipe(tmp_path / "run")
    with pytest.raises(DataError) as caught:
        Text2GradTrainer(model, critic, [], recipe, processing_class=tokenizer)
    assert str(caught.value) == "train_dataset holds no examples"
    long = [Example("red " * 80)]
    with pytest.raises(DataError, match=r"1 of 1 prompts have more than 58 tokens"):
        Text2GradTrainer(model, critic, long, recipe, processing_class=tokenizer)
    with pytest.raises(ModelError, match="cannot load a causal language model from 'nowhere'"):
        Text2GradTrainer("nowhere", critic, small_run.EXAMPLES, recipe, processing_class=tokenizer)
    tokenizer.eos_token, model.generation_config.eos_token_id = None, None
    with pytest.raises(ModelError) as caught_model:
        Text2GradTrainer(model, critic, small_run.EXAMPLES, recipe, processing_class=tokenizer)
    assert str(caught_model.value) == (
        "neither the tokenizer nor the model's generation config names an end-of-sequence token, so no response could "
        "ever end. Set rollout.eos_token_ids."
    )
    assert not (tmp_path / "run").exists()


def test_a_critic_may_refuse_examples_before_work_starts(tmp_path: Path) -> None:
    class Particular(small_run.ColourCritic):
        def check_examples(self, examples: Sequence[Example]) -> None:
            asked.extend(examples)
            if any(example.reference == "none" for example in examples):
                raise DataError("an example without tests")

    tokenizer, model = small_run.tokenizer_and_model()
    recipe, asked = small_run.recipe(tmp_path / "run"), list[Example]()
    train, held_out, odd = [Example("red cat")], [Example("one dog")], [Example("two", "none")]
    for some, others in ((odd, held_out), (train, odd)):
        with pytest.raises(DataError, match=r"^an example without tests$"):
            Text2GradTrainer(model, Particular(), some, recipe, eval_dataset=others, processing_class=tokenizer)
    assert not (tmp_path / "run").exists()
    asked.clear()
    Text2GradTrainer(model, Particular(), train, recipe, eval_dataset=held_out, processing_class=tokenizer)
    assert asked == [*train, *held_out]


# peft asks transformers for a property that has a newer name
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_policy_without_a_weight_to_train_is_refused(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    with_lora(model, r=2, alpha=4, targets="all-linear", value_adapter=False).save_pretrained(tmp_path / "adapter")
    frozen = PeftModel.from_pretrained(small_run.tokenizer_and_model()[1], str(tmp_path / "adapter"))
    recipe = small_run.recipe(tmp_path / "run")
    with pytest.raises(ModelError) as caught:
        Text2GradTrainer(frozen, small_run.ColourCritic(), small_run.EXAMPLES, recipe, processing_class=tokenizer)
    assert str(caught.value) == (
        f"no weight of the policy ({type(frozen).__name__}) can be trained: requires_grad is False for all of them. "
        "Load a peft adapter with PeftModel.from_pretrained(..., is_trainable=True)"
    )


def test_a_tokenizer_without_padding_token_is_fine(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    tokenizer.pad_token = None
    Text2GradTrainer(
        model,
        small_run.ColourCritic(),
        small_run.EXAMPLES,
        small_run.recipe(tmp_path / "a"),
        processing_class=tokenizer,
    ).train()
    small_run.trainer(tmp_path / "b").train()
    first, second = small_run.weights(tmp_path / "a"), small_run.weights(tmp_path / "b")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def seen_alone() -> None:
    """Let accelerate look at its processes before a test pretends others: it looks once, and keeps what it saw."""
    from accelerate import PartialState

    PartialState(cpu=True)


@pytest.mark.usefixtures("seen_alone")
def test_batches_that_processes_cannot_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate import Accelerator

    from text2grad.rl.start import make_accelerator

    monkeypatch.setattr(Accelerator, "num_processes", 3)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError) as caught:
        make_accelerator(make_recipe({"run": {"tracker": "none"}, "rollout": {"batch_size": 8, "group_size": 2}}))
    assert str(caught.value) == (
        "rollout.batch_size = 8 cannot be shared evenly by 3 processes, in whole groups of rollout.group_size = 2 and "
        "by ppo.minibatches = 1; choose a multiple of 6"
    )
    settings = {"run": {"tracker": "none"}, "rollout": {"batch_size": 12}, "ppo": {"minibatches": 6}}
    with pytest.raises(ConfigError, match=r"ppo\.minibatches = 6; choose a multiple of 18$"):
        make_accelerator(make_recipe(settings))


def test_the_responses_to_a_prompt_are_neighbours_and_differ(tmp_path: Path) -> None:
    changed = {"rollout": {"group_size": 2}, "ppo": {"baseline": "group", "whiten": "none"}, "model": {"value": "none"}}
    trainer = small_run.trainer(tmp_path, **changed)
    trainer.train_step()
    records = [json.loads(line) for file in (tmp_path / "rollouts").glob("*") for line in file.read_text().splitlines()]
    pairs = list(zip(records[::2], records[1::2], strict=True))
    assert all(one["prompt"] == other["prompt"] for one, other in pairs)
    assert any(one["ids"] != other["ids"] for one, other in pairs)
    assert len({one["prompt"] for one, _ in pairs}) == len(pairs)
    for one, other in pairs:  # over their group, the means of the two are opposite
        mean = [sum(record["advantage"]) / len(record["ids"]) for record in (one, other)]
        assert sum(mean) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.usefixtures("seen_alone")
def test_processes_that_do_not_see_each_other_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError) as caught:
        check_world_size(1)
    assert str(caught.value) == (
        "the launcher started 2 processes (WORLD_SIZE), but accelerate sees 1; start one process, or launch with "
        "torchrun or `accelerate launch --multi_gpu`"
    )
    check_world_size(2)
    with pytest.raises(ConfigError, match="accelerate sees 1"):
        small_run.trainer(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_python_and_numpy_draw_the_same_numbers_in_every_run_of_a_seed(tmp_path: Path) -> None:
    drawn = []
    for name in ("a", "b"):
        small_run.trainer(tmp_path / name)
        drawn.append((random.random(), np.random.random()))
    assert drawn[0] == drawn[1]


def test_a_full_kl_run_and_a_value_warm_up_run_through(tmp_path: Path) -> None:
    run = small_run.trainer(
        tmp_path / "run",
        ppo={"kl": "full", "entropy_coef": 0.01, "target_kl": 1.0},
        optim={"lr": 3e-3, "value_lr": 1e-2, "value_warmup_steps": 1, "warmup_steps": 1},
        rollout={"temperature": 0.7, "batch_size": 8, "max_new_tokens": 6},
    )
    start = {name: p.detach().clone() for name, p in run.model.policy.named_parameters()}
    run.train_step()
    assert all(torch.equal(start[name], p) for name, p in run.model.policy.named_parameters())
    run.train_step()
    assert not all(torch.equal(start[name], p) for name, p in run.model.policy.named_parameters())


def test_two_processes_make_the_same_run_as_one(warm: Warm, tmp_path: Path) -> None:
    small_run.trainer(tmp_path / "one" / "run", run={"steps": 2}).train()
    (tmp_path / "two").mkdir()
    warm.together(2, "python", small_run.__file__, tmp_path / "two" / "run", "run.steps=2")
    first, second = small_run.weights(tmp_path / "one" / "run"), small_run.weights(tmp_path / "two" / "run")
    for name in first:  # sums are taken in another order, so the last bits may differ
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=2e-5)
    responses = [[r["response"] for r in records(tmp_path / who / "run") if r["step"] == 0] for who in ("one", "two")]
    assert responses[0] == responses[1]


def test_a_model_whose_own_logits_differ_is_refused(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()

    class Sharpened(type(model)):  # type: ignore[misc]
        def forward(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 3
            return output

    model.__class__ = Sharpened
    with pytest.raises(ModelError, match="Sharpened: log-probs from its hidden states differ from its own by"):
        Text2GradTrainer(
            model,
            small_run.ColourCritic(),
            small_run.EXAMPLES,
            small_run.recipe(tmp_path / "r"),
            processing_class=tokenizer,
        )


def test_the_same_seed_makes_the_same_tiny_model() -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    again = tiny_llama(tokenizer, seed=1, width=32, context=64)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_an_unknown_weighting_is_refused_before_work_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"weighting has no value 'importance'\. Known values: uniform, linear_decay"):
        small_run.trainer(tmp_path / "run", reward={"weighting": "importance"})
    assert not (tmp_path / "run").exists()


def test_responses_to_one_prompt_share_it_and_the_run_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = [Example(" ".join([*small_run.WORDS, one.prompt_text])) for one in small_run.EXAMPLES]
    monkeypatch.setattr(small_run, "EXAMPLES", examples)
    settings = {
        "rollout": {"batch_size": 16, "group_size": 4},
        "ppo": {"baseline": "group", "minibatches": 1},
        "model": {"value": "none"},
        "run": {"steps": 2},
    }
    shared = small_run.trainer(tmp_path / "shared", **settings)
    alone = small_run.trainer(tmp_path / "alone", **settings)
    assert shared.share_prompts
    alone.share_prompts = False
    costs = []
    for one in (shared, alone):
        batch = one.collate(one.sample())
        costs.append(sum(batch.rows(group).cost().tokens for group in batch.groups(16_384)))
        one.train()
    # 4 prompts of 14 words and 16 responses of at most 6, against 16 rows of at most 20
    assert costs[0] <= 4 * 14 + 16 * 6 < 16 * 14 < costs[1]
    ours, theirs = (small_run.weights(tmp_path / name) for name in ("shared", "alone"))
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-4, msg=name)
    for mine, other in zip(metrics(tmp_path / "shared"), metrics(tmp_path / "alone"), strict=True):
        for key in ("reward/per_response", "kl/per_token", "update/policy_loss"):
            assert mine[key] == pytest.approx(other[key], abs=1e-5), key


@pytest.mark.parametrize(
    ("dtype", "lora_r", "found"),
    [
        ("auto", 0, torch.float32),
        ("auto", 2, torch.bfloat16),
        ("bfloat16", 0, torch.bfloat16),
        ("float32", 2, torch.float32),
    ],
)
def test_weights_that_are_trained_have_32_bits_unless_the_recipe_says_otherwise(
    tmp_path: Path, dtype: str, lora_r: int, found: torch.dtype
) -> None:
    _, model = small_run.tokenizer_and_model()
    model.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    settings = ModelConfig(path=str(tmp_path / "model"), dtype=dtype, lora_r=lora_r)  # type: ignore[arg-type]
    policy = prepare_policy(settings.path, settings)
    assert policy.get_input_embeddings().weight.dtype == found


def test_training_all_weights_in_16_bits_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    for number, lora_r in enumerate((0, 2)):
        settings = small_run.recipe(tmp_path / str(number), model={"lora_r": lora_r})
        half = copy.deepcopy(model).to(torch.bfloat16)
        Text2GradTrainer(half, small_run.ColourCritic(), small_run.EXAMPLES, settings, processing_class=tokenizer)
        assert ("all weights are trained in 16 bits" in caplog.text) == (lora_r == 0)
        caplog.clear()


def test_a_warm_up_that_leaves_no_step_to_the_policy_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for steps, warned in ((3, True), (4, False)):
        run = {"steps": steps, "out": str(tmp_path / str(steps))}
        small_run.trainer(tmp_path / str(steps), optim={"value_warmup_steps": 3}, run=run)
        assert ("leaves none of the 3 steps to the policy" in caplog.text) == warned
        caplog.clear()


def test_a_value_function_of_its_own_is_checkpointed_and_has_32_bits(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    settings = small_run.recipe(tmp_path, model={"value": "model", "gradient_checkpointing": True})
    half = model.to(torch.bfloat16)
    made = Text2GradTrainer(half, small_run.ColourCritic(), small_run.EXAMPLES, settings, processing_class=tokenizer)
    trunk = made.model.value_trunk
    assert trunk is not None
    assert {layer.gradient_checkpointing for layer in trunk.layers} == {True}
    assert {parameter.dtype for parameter in trunk.parameters()} == {torch.float32}
    made.train_step()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", ["fresh", "trained already", "pissa"])
def test_the_kl_of_the_first_step_is_zero_with_every_adapter(tmp_path: Path, kind: str) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    init = "pissa" if kind == "pissa" else True
    policy = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=init))
    for name, weight in policy.named_parameters():
        if kind == "trained already" and ".lora_B." in name:
            torch.nn.init.ones_(weight)
    settings = small_run.recipe(tmp_path, run={"steps": 2})
    made = Text2GradTrainer(policy, small_run.ColourCritic(), small_run.EXAMPLES, settings, processing_class=tokenizer)
    made.train()
    first, second = (line["kl/per_token"] for line in metrics(tmp_path))
    assert abs(first) < 1e-6 < 1e-4 < abs(second)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapter_of_another_name_is_refused() -> None:
    _, model = small_run.tokenizer_and_model()
    policy = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"), adapter_name="mine")
    with pytest.raises(ConfigError, match="adapters are named 'mine', but text2grad trains and saves the one"):
        prepare_policy(policy, ModelConfig())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapter_that_loading_would_not_repeat_is_refused() -> None:
    _, model = small_run.tokenizer_and_model()  # peft 0.21.0 draws the start of a fast PiSSA again when it loads it
    policy = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights="pissa_niter_4"))
    with pytest.raises(
        ModelError, match=r"^the policy's adapter has init_lora_weights = 'pissa_niter_4': its start changed the "
    ):
        prepare_policy(policy, ModelConfig())


def test_a_policy_whose_weights_are_no_numbers_is_refused_for_them(tmp_path: Path) -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    torch.nn.init.constant_(model.model.norm.weight, float("nan"))
    with pytest.raises(
        ModelError, match=r"^1 of its weights hold NaN or infinity, the first 'model\.norm\.weight': its"
    ):
        Text2GradTrainer(
            model, small_run.ColourCritic(), small_run.EXAMPLES, small_run.recipe(tmp_path), processing_class=tokenizer
        )


@pytest.mark.parametrize("thoughts", ["hide", "show"])
def test_the_critic_sees_no_thought_that_the_prompts_open_unless_it_is_shown(tmp_path: Path, thoughts: str) -> None:
    tokenizer = word_tokenizer([" ".join(small_run.WORDS)], ["<think>", "</think>"])
    policy, seen = tiny_llama(tokenizer, seed=1, width=32), list[str]()

    def critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Any]:
        seen.extend(responses)
        return [Critique("", (Span(0, len(response), "negative"),)) for response in responses]

    prompts = [Example(f"{word} <think>") for word in small_run.WORDS]
    settings = small_run.recipe(tmp_path, run={"steps": 1}, critic={"thoughts": thoughts})
    trained = Text2GradTrainer(policy, critic, prompts, settings, processing_class=tokenizer)
    trained.train()
    responses = [record["response"] for record in records(tmp_path)]
    closed = [response.rpartition("</think>")[2] if "</think>" in response else "" for response in responses]
    assert any(closed)
    assert not all(closed)
    assert seen == (closed if thoughts == "hide" else responses)
    assert trained.as_seen(records(tmp_path)) == seen
    spans = [record["critique"]["spans"] for record in records(tmp_path)]
    ends = [[(one["start"], one["end"]) for one in own] for own in spans]
    assert ends == [[(len(a) - len(b), len(a))] if b or not a else [] for a, b in zip(responses, seen, strict=True)]
