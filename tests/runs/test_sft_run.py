"""`text2grad sft`: which tokens it learns, how it is measured, that it resumes bit for bit, and what it leaves."""

import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import small_run
import small_sft
from small_sft import CHAT, DEMONSTRATIONS, prepare, recipe, write_jsonl
from text2grad.cli.__main__ import main
from text2grad.errors import CheckpointError, ConfigError, DataError, Interrupted, ModelError
from text2grad.models import measured_training, pretrained
from text2grad.models.adapters import POLICY_ADAPTER, adapter_parameters, load_lora
from text2grad.models.fine_tuning import NO_LOSS
from text2grad.models.pretrained import load_policy, load_tokenizer
from text2grad.models.prompts import encode_prompts, fitting_prompts
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.runs.prompts import run_examples
from text2grad.runs.sft_run import SFTRun, read_demonstration_split
from text2grad.types import Example
from warm_commands import Warm


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with demonstrations and a model of random weights."""
    directory = tmp_path_factory.mktemp("home")
    prepare(directory)
    return directory


@pytest.fixture(scope="module")
def calm(home: Path) -> Path:
    """A run that nobody disturbed."""
    SFTRun(recipe(home, "calm")).run()
    return home / "calm"


def train(home: Path, out: str, *, resume: bool = False, **sections: dict[str, Any]) -> Path:
    SFTRun(recipe(home, out, **sections), resume=resume).run()
    return home / out


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]


def assert_same_run(one: Path, other: Path, weights: str = "model/model.safetensors") -> None:
    for name in ("metrics.jsonl", "results.json", weights):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@torch.no_grad()
def mean_loss(model: Any, rows: list[dict[str, list[int]]]) -> float:
    """Return the mean of −log p over the labelled tokens, row by row without padding, in 64 bits."""
    total, count = 0.0, 0
    for row in rows:
        logp = model(input_ids=torch.tensor([row["input_ids"]])).logits[0].double().log_softmax(-1)
        for place, label in enumerate(row["labels"]):
            if label != NO_LOSS:
                total, count = total - float(logp[place - 1, label]), count + 1
    return total / count


# What is learned from, and what is measured on.


def test_the_loss_stands_on_the_answers_and_prompts_are_those_of_rollouts(home: Path) -> None:
    run = SFTRun(recipe(home, "unused"))
    learned, held_out, _ = read_demonstration_split(run.recipe)
    model, tokenizer = load_policy(str(home / "base")), load_tokenizer(str(home / "base"))
    examples = [Example(one.turns[0].prompt) for one in learned]
    _, prompts = fitting_prompts(model, tokenizer, examples, prompt_format="auto", max_new_tokens=8, too_long="refuse")
    assert len(run.rows) == run.counts["learned"] == len(learned) == 29  # 7 of 36 prompts are held out
    assert len(run.held_out) == len(held_out) == 7
    assert {one.prompt for one in learned}.isdisjoint(one.prompt for one in held_out)
    for row, prompt, one in zip(run.rows, prompts, learned, strict=True):
        answer = [*tokenizer(one.turns[0].answer).input_ids, tokenizer.eos_token_id]
        assert row == {"input_ids": [*prompt, *answer], "labels": [*[NO_LOSS] * len(prompt), *answer]}
    longer = 3 * sum(one.turns[0].answer.endswith(" eats") for one in learned)
    assert run.counts["target_tokens"] == 29 * 3 + longer  # two or five words and the end


def chat(*contents: str, system: str = "") -> dict[str, Any]:
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    return {"messages": [{"role": "system", "content": system}, *messages] if system else messages}


@pytest.fixture(scope="module")
def chat_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("chats")
    prepare(directory, template=CHAT)
    chats = [chat(f"{one['prompt']}", one["reference"]) for one in DEMONSTRATIONS]
    write_jsonl(directory / "demonstrations.jsonl", chats)
    return directory


def rows_of(home: Path, out: str, *records: dict[str, Any]) -> tuple[SFTRun, list[str]]:
    """Return a run on demonstrations, and the text of each row with the learned tokens between « and »."""
    others = [chat(f"{a} eats", " bird") for a in ("red", "blue", "green")]
    files = {"data": (str(write_jsonl(home / "records.jsonl", records)),)}
    held_out = {"held_out": str(write_jsonl(home / "others.jsonl", others))}
    run = SFTRun(recipe(home, out, sft={**files, **held_out}))
    shown = []
    for row in run.rows:
        text, inside = "", False
        for token, label in zip(row["input_ids"], row["labels"], strict=True):
            if (label != NO_LOSS) != inside:
                text, inside = text + ("»" if inside else "«"), not inside
            assert label in (NO_LOSS, token)
            text += run.tokenizer.decode([token])
        shown.append(text + "»" * inside)
    return run, shown


def test_every_turn_of_an_assistant_is_learned_in_one_row(chat_home: Path) -> None:
    run, shown = rows_of(
        chat_home,
        "turns",
        chat("red cat", " cat red", "blue dog", " dog", "one", " two"),
        chat("red", " cat", "blue", system="one two"),
        {"prompt": "red bird", "reference": " bird"},
    )
    assert shown == [
        "[user]red cat[assistant]« cat red</s>»[user]blue dog[assistant]« dog</s>»[user]one[assistant]« two</s>»",
        "[system]one two[user]red[assistant]« cat</s>»",
        "[user]red bird[assistant]« bird</s>»",
    ]
    assert run.counts["learned"] == 3


def test_a_special_token_that_an_answer_spells_is_told_and_learned_as_text(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"data": (str(write_jsonl(home / "spelled.jsonl", [{"prompt": "red", "reference": " one</s>"}])),)}
    run = SFTRun(recipe(home, "spelled", sft={**given, "held_out": str(home / "demonstrations.jsonl")}))
    (row,) = run.rows
    assert row["labels"].count(run.tokenizer.eos_token_id) == 1
    (told,) = [one for one in caplog.messages if "spell" in one]
    assert told.startswith(
        f"1 of 1 demonstrations spell a special token in an answer, the first '</s>' in {home / 'spelled.jsonl'}"
    )


def test_a_template_that_changes_earlier_turns_gives_each_answer_a_row_as_rollouts_would(chat_home: Path) -> None:
    """A template without an end of a turn, and one that drops earlier answers, as others drop earlier reasoning."""
    dropped = "{{ m['content'] if loop.last or m['role'] == 'user' else ' one' }}"
    for template in (CHAT.replace("</s>", ""), CHAT.replace("{{ m['content'] }}", dropped)):
        tokenizer = load_tokenizer(str(chat_home / "base"))
        tokenizer.chat_template = template
        home = chat_home / f"changed{len(template)}"
        home.mkdir()
        prepare(home, template=template)
        conversation = chat("red cat", " cat red", "blue dog", " dog")
        run, shown = rows_of(home, "run", conversation)
        prompts = [conversation["messages"][:1], conversation["messages"][:3]]
        encoded = encode_prompts(tokenizer, [Example(prompt) for prompt in prompts])
        assert [tuple(row["input_ids"][: len(ids)]) for row, ids in zip(run.rows, encoded, strict=True)] == encoded
        assert [text.partition("«")[2] for text in shown] == [" cat red</s>»", " dog</s>»"]
        assert run.counts["learned"] == 1


def test_what_the_template_does_not_render_is_told_and_a_call_without_its_call_is_left_out(
    chat_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Learned without its call, an answer would teach to stop where it should call (slime#1114)."""
    call = {"type": "function", "function": {"name": "runs", "arguments": {"dog": "blue"}}}
    called, thought = chat("red", " cat"), chat("blue", " dog")
    called["messages"][1]["tool_calls"] = [call]
    thought["messages"][1]["reasoning_content"] = "one two"
    run, shown = rows_of(chat_home, "lost", called, thought, chat("green", " bird"))
    assert shown == ["[user]blue[assistant]« dog</s>»", "[user]green[assistant]« bird</s>»"]
    assert run.counts["learned"] == 2
    file, told = chat_home / "records.jsonl", [one for one in caplog.messages if "chat template renders" in one]
    assert [one.partition(";")[0] for one in told] == [
        f'1 of 3 demonstrations are left out, the first {file}:1: prompts of format "chat" do not show all of their '
        '"tool_calls"',
        f'1 of 3 demonstrations are learned in part, the first {file}:2: prompts of format "chat" do not show all of '
        'their "reasoning_content"',
    ]
    with pytest.raises(DataError, match=r'1 of 1 demonstrations are left out, .*"tool_calls"; take a model'):
        rows_of(chat_home, "none", called)


def test_what_is_too_long_is_left_out_whole_and_counted(home: Path, chat_home: Path) -> None:
    records = [{"prompt": "red", "reference": " cat" * count} for count in (1, 5, 6)]
    file = str(write_jsonl(home / "long.jsonl", [*records, {"prompt": "blue", "reference": " dog"}]))
    others = str(write_jsonl(home / "held.jsonl", [{"prompt": "green", "reference": " dog" * n} for n in (1, 9)]))
    settings = {"data": (file,), "held_out": others, "max_tokens": 7}
    run = SFTRun(recipe(home, "long", sft=settings))
    assert [len(row["input_ids"]) for row in run.rows] == [3, 7, 3]
    assert (run.counts["too_long"], run.counts["held_out"], run.counts["held_out_too_long"]) == (1, 1, 1)
    with pytest.raises(DataError, match=r"all 4 demonstrations of a part have more than 2 tokens"):
        SFTRun(recipe(home, "short", sft={**settings, "max_tokens": 2}))
    far = str(write_jsonl(home / "far.jsonl", [*records, {"prompt": "blue", "reference": " dog" * 70}]))
    run = SFTRun(recipe(home, "far", sft={**settings, "data": (far,), "max_tokens": 1000}))
    assert run.counts["too_long"] == 1  # the model's context is 64


def test_a_held_out_file_takes_its_prompts_out_of_what_is_learned(home: Path) -> None:
    file = str(write_jsonl(home / "held_out.jsonl", DEMONSTRATIONS[:2]))
    run = SFTRun(recipe(home, "file", sft={"held_out": file}))
    assert (run.counts["learned"], run.counts["held_out"], run.counts["shared_prompts"]) == (34, 2, 2)


def test_prompts_that_train_evaluates_on_are_never_learned(home: Path) -> None:
    for data in ({"held_out": 0.5}, {"held_out": str(write_jsonl(home / "few.jsonl", DEMONSTRATIONS[3:5]))}):
        evaluated = {one.prompt_text for one in run_examples(recipe(home, data=data)).held_out}
        learned, held_out, shared = read_demonstration_split(recipe(home, data=data))
        assert {one.prompt for one in held_out} == evaluated
        assert len(learned) + len(held_out) == len(DEMONSTRATIONS)
        assert shared == 0
        file = str(write_jsonl(home / "held_out.jsonl", DEMONSTRATIONS[:2]))
        learned, held_out, shared = read_demonstration_split(recipe(home, data=data, sft={"held_out": file}))
        assert {one.prompt for one in held_out} == {one["prompt"] for one in DEMONSTRATIONS[:2]}
        assert not {one.prompt for one in learned} & ({one.prompt for one in held_out} | evaluated)
        assert shared == len(DEMONSTRATIONS) - len(learned)


# Training.


def test_the_held_out_loss_is_the_mean_over_tokens_and_falls(home: Path, calm: Path) -> None:
    run = SFTRun(recipe(home, "calm"), resume=True)
    results = json.loads((calm / "results.json").read_bytes())
    before, after = (load_policy(str(path)).eval() for path in (home / "base", calm / "model"))
    for model, name in ((before, "before"), (after, "measured")):
        expected = mean_loss(model, run.held_out)
        assert results[name]["loss"] == pytest.approx(expected, rel=1e-5)
        assert results[name]["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
    assert results["measured"]["loss"] < results["before"]["loss"]
    assert [line["step"] for line in lines(calm) if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines(calm) if "eval/loss" in line] == [0, 2, 4, 6]
    assert results["steps"] == 6
    assert results["epochs"] == pytest.approx(6 * 4 / 29, rel=0.2)


def test_the_best_checkpoint_is_kept(home: Path) -> None:
    run = train(home, "worse", sft={"lr": 3.0, "steps": 12})  # far too much: the first measurement is the best
    results = json.loads((run / "results.json").read_bytes())
    measured = {line["step"]: line["eval/loss"] for line in lines(run) if line["step"] and "eval/loss" in line}
    best = min(measured, key=lambda step: measured[step])
    assert results["best_step"] == best
    assert (best, results["steps"]) == (2, 12)
    assert results["measured"]["loss"] == measured[best]
    weights = load_file(run / "checkpoints" / f"checkpoint-{best}" / "model.safetensors")
    assert all(torch.equal(weights[name], one) for name, one in load_file(run / "model" / "model.safetensors").items())


def test_it_learns_the_answers_and_where_they_end(home: Path) -> None:
    run = train(home, "learned", sft={"steps": 300, "lr": 0.01, "batch_size": 16, "eval_every": 100})
    model, tokenizer = load_policy(str(run / "model")).eval(), load_tokenizer(str(run / "model"))
    learned, _, _ = read_demonstration_split(recipe(home))
    right = 0
    for one in learned:
        ids = tokenizer(one.prompt, return_tensors="pt").input_ids
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
        right += tokenizer.decode(out[0, ids.shape[1] :]) == f"{one.turns[0].answer}</s>"
    assert right >= 27  # of 29


def test_micro_batches_train(home: Path) -> None:
    run = train(home, "micro", sft={"accumulate": 2, "epochs": 1.0})
    results = json.loads((run / "results.json").read_bytes())
    assert results["measured"]["loss"] < results["before"]["loss"]
    assert results["epochs"] == 1.0
    assert results["steps"] == 8  # 29 demonstrations, 4 a step


# Resuming.


def test_a_process_killed_at_some_moment_goes_on_to_the_same_bits(warm: Warm, home: Path, calm: Path) -> None:
    process = warm.start("python", small_sft.__file__, home, f'sft.out="{home / "sigkill"}"')
    process.kill_at(home / "sigkill" / "checkpoints" / "checkpoint-2" / "text2grad.json")
    train(home, "sigkill", resume=True)
    assert_same_run(home / "sigkill", calm)


def test_a_signal_ends_the_training_after_the_step_under_way_and_a_resumed_one_is_the_same(
    home: Path, calm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(directory: Path, step: int, metrics: dict[str, float]) -> None:
        if step == 2 and "loss" in metrics:
            signal.raise_signal(signal.SIGINT)
        written(directory, step, metrics)

    written = measured_training._append
    with monkeypatch.context() as patch:
        patch.setattr(measured_training, "_append", append)
        with pytest.raises(Interrupted, match="stopped after step 3 of 6, which is saved") as caught:
            train(home, "signalled")
    assert caught.value.signal == signal.SIGINT
    assert not (home / "signalled" / "model").exists()
    weights = home / "signalled" / "checkpoints" / "checkpoint-3" / "model.safetensors"
    data = weights.read_bytes()
    half = len(data) // 2
    weights.write_bytes(data[:half] + bytes(len(data) - half))  # which would go on from other weights
    with pytest.raises(CheckpointError) as damaged:
        train(home, "signalled", resume=True)
    assert str(damaged.value) == (
        f"cannot read checkpoint {weights.parent}: model.safetensors is not what was written (its SHA-256 is another). "
        f"Restore it from a copy, or remove {weights.parent}, and --resume goes on from the checkpoint before it"
    )
    weights.write_bytes(data)
    train(home, "signalled", resume=True)
    assert_same_run(home / "signalled", calm)


@pytest.mark.parametrize("name", ["text2grad.json", "trainer_state.json"])
def test_a_checkpoint_whose_state_is_damaged_is_named(tmp_path: Path, name: str) -> None:
    place = tmp_path / "checkpoints" / "checkpoint-3"
    place.mkdir(parents=True)
    whole = {"metrics_bytes": 0, "seconds": 1.0, "tokens": 2, "peak_memory_bytes": 3}
    state = {"global_step": 3, "max_steps": 6, "best_global_step": None, "epoch": 0.5}
    for file, contents in (("text2grad.json", whole), ("trainer_state.json", state)):
        (place / file).write_text(json.dumps(contents))
    saved = measured_training.last_saved(tmp_path)
    assert saved is not None
    assert (saved.step, saved.tokens) == (3, 2)
    for text in ("{cut", "[]", "{}"):
        (place / name).write_text(text)
        with pytest.raises(CheckpointError) as damaged:
            measured_training.last_saved(tmp_path)
        assert str(damaged.value).startswith(f"cannot read {place / name}: ")
        assert str(damaged.value).endswith(
            f". Restore it from a copy, or remove {place}, and --resume goes on from the checkpoint before it"
        )


LORA = {"lora_r": 4, "lora_alpha": 8}


@pytest.fixture(scope="module")
def adapted(home: Path) -> Path:
    return train(home, "adapted", model=LORA, sft={"lora_dropout": 0.3, "lr": 0.05})


def test_an_adapter_with_dropout_resumes_with_the_same_bits(
    home: Path, adapted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: Any) -> None:
        if "checkpoint-4" in str(given[0]):
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"model": LORA, "sft": {"lora_dropout": 0.3, "lr": 0.05}}
    with monkeypatch.context() as patch:
        patch.setattr(measured_training, "flush", stop)
        with pytest.raises(KeyboardInterrupt):
            train(home, "adapted-again", **settings)
    train(home, "adapted-again", resume=True, **settings)
    assert_same_run(home / "adapted-again", adapted, "model/adapter_model.safetensors")
    assert_same_run(home / "adapted-again", adapted, "merged/model.safetensors")


def test_dropout_acts_in_training_and_not_in_measurements(home: Path, adapted: Path, calm: Path) -> None:
    plain = train(home, "dropless", model=LORA, sft={"lr": 0.05})
    first, second = lines(adapted), lines(plain)
    assert first[0] == second[0]  # before the training
    assert first[1]["loss"] == pytest.approx(second[1]["loss"], rel=1e-6)  # a new adapter adds zero
    assert first[-1] != second[-1]
    results, run = json.loads((adapted / "results.json").read_bytes()), SFTRun(recipe(home, "calm"), resume=True)
    merged = load_policy(str(adapted / "merged")).eval()
    assert results["measured"]["loss"] == pytest.approx(mean_loss(merged, run.held_out), rel=1e-4)
    assert json.loads((adapted / "model" / "adapter_config.json").read_bytes())["lora_dropout"] == 0.3


def test_an_adapter_as_the_policy_is_merged_and_all_its_weights_learn(home: Path, adapted: Path) -> None:
    loaded, merged = load_policy(str(adapted / "model")), load_policy(str(adapted / "merged"))
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    for (name, one), (other_name, other) in zip(loaded.named_parameters(), merged.named_parameters(), strict=True):
        assert name == other_name
        assert torch.equal(one, other)
    tokenizer = load_tokenizer(str(adapted / "model"))
    settings = {"model": {"value": "none"}, "rollout": {"batch_size": 4, "max_new_tokens": 4}}
    trainer = Text2GradTrainer(
        str(adapted / "model"),
        small_run.ColourCritic(),
        small_run.EXAMPLES,
        small_run.recipe(home / "full", run={"steps": 1, "out": str(home / "full"), "tracker": "none"}, **settings),
        processing_class=tokenizer,
    )
    assert len(trainer.trainable) == len(list(loaded.parameters()))
    with pytest.raises(
        ConfigError, match=r"adapted/model is a LoRA adapter, and model.lora_r = 4 would train a second"
    ):
        Text2GradTrainer(
            str(adapted / "model"),
            small_run.ColourCritic(),
            small_run.EXAMPLES,
            small_run.recipe(home / "twice", model=LORA),
            processing_class=tokenizer,
        )
    with pytest.raises(ConfigError, match="would train a second one on it"):
        train(home, "twice", model=LORA, sft={"model": str(adapted / "model")})


def test_ppo_runs_without_the_dropout_of_an_adapter(home: Path, adapted: Path) -> None:
    policy = load_lora(load_policy(str(home / "base")), str(adapted / "model"))
    for parameter in adapter_parameters(policy, POLICY_ADAPTER).values():
        parameter.requires_grad_(True)
    dropout = [module for module in policy.modules() if isinstance(module, torch.nn.Dropout)]
    assert {module.p for module in dropout} == {0.3}
    settings = {
        "model": {"gradient_checkpointing": True},  # which needs the training mode
        "run": {"steps": 1, "out": str(home / "dry"), "tracker": "none"},
        "rollout": {"batch_size": 8, "max_new_tokens": 6},
    }
    tokenizer = load_tokenizer(str(home / "base"))
    trainer = Text2GradTrainer(
        policy,
        small_run.ColourCritic(),
        small_run.EXAMPLES,
        small_run.recipe(home / "dry", **settings),
        processing_class=tokenizer,
    )
    assert {module.p for module in dropout} == {0.0}
    trainer.train()  # the first ratio of a step must be 1


def test_a_run_is_not_resumed_on_other_demonstrations_or_settings(home: Path, calm: Path) -> None:
    file = str(write_jsonl(home / "other.jsonl", DEMONSTRATIONS[::-1]))
    with pytest.raises(CheckpointError, match=r"calm holds a run on other inputs; .* demonstrations \(SHA-256 "):
        train(home, "calm", resume=True, data={"train": file})
    with pytest.raises(CheckpointError, match=r"these settings changed: sft.lr: 0.005 → 0.1"):
        train(home, "calm", resume=True, sft={"lr": 0.1})
    with pytest.raises(ConfigError, match=r"already holds a run\. Go on with it by --resume"):
        train(home, "calm")
    with pytest.raises(ConfigError, match="holds no run to resume"):
        train(home, "never", resume=True)
    before = (calm / "results.json").read_bytes()
    train(home, "calm", resume=True, ppo={"beta": 0.9}, reward_model={"lr": 0.1})  # sections that sft does not use
    assert (calm / "results.json").read_bytes() == before


# What is refused before a model loads.


GOOD = {"prompt": "red", "reference": " cat"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "red", "reference": "  "}, 'an empty "reference", so there is no answer to learn; add one'),
        ({"prompt": "red"}, 'no "reference", so there is no answer to learn; add one, or remove the line'),
        ({"text": "red"}, 'an example is an object with a "prompt"'),
        ({"messages": [{"role": "user", "content": "red"}]}, "no message has the role \"assistant\" (roles: 'user')"),
        ({"messages": []}, '"messages" is a list of {"role", "content"} messages with texts, got []'),
        (chat("red", " "), "an assistant message is empty, and would teach to say nothing; remove the chat"),
        ({"messages": [{"role": "assistant", "content": " cat"}]}, "the chat begins with an assistant message"),
        ({"messages": [{"role": "user", "content": None}]}, '"messages" is a list of {"role", "content"} messages'),
        ({"prompt": "red \ud800", "reference": " cat"}, "half of a surrogate pair"),
        ({"prompt": "", "reference": " cat"}, '"prompt" is empty, so there is nothing to answer'),
    ],
)
def test_a_line_that_is_no_demonstration_is_refused_with_its_place(
    home: Path, line: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "load_policy", None)  # nothing is loaded
    file = write_jsonl(home / "bad.jsonl", [GOOD, {"prompt": "blue", "reference": " dog"}, line])
    with pytest.raises((DataError, ModelError)) as caught:
        SFTRun(recipe(home, "bad", data={"train": str(file)}))
    assert str(caught.value).startswith(f"{file}:3: ")
    assert message in str(caught.value)
    assert not (home / "bad").exists()


def test_a_byte_order_mark_blank_lines_and_equal_ids_are_read(home: Path) -> None:
    records = [{**GOOD, "id": 1}, {"prompt": "blue", "reference": " dog", "id": 1}]
    text = "\ufeff" + "\n\n".join(map(json.dumps, records)) + "\n"
    (home / "bom.jsonl").write_text(text, "utf-8")
    run = SFTRun(recipe(home, "bom", data={"train": str(home / "bom.jsonl")}))
    assert (run.counts["learned"], run.counts["held_out"]) == (1, 1)


def test_a_chat_needs_a_template(home: Path) -> None:
    file = write_jsonl(home / "chats.jsonl", [chat("red", " cat"), chat("blue", " dog")])
    with pytest.raises(ModelError, match=r"chats.jsonl:\d is a chat, but the tokenizer of '.*base'"):
        SFTRun(recipe(home, "chats", data={"train": str(file)}))
    run = SFTRun(recipe(home, "chats", data={"train": str(file)}, model={"prompt_format": "plain"}))
    assert run.tokenizer.decode(run.rows[0]["input_ids"]) in ("red cat</s>", "blue dog</s>")
    with pytest.raises(ModelError, match='prompt_format = "chat", but the tokenizer'):
        SFTRun(recipe(home, "no-chats", model={"prompt_format": "chat"}))


def test_a_tokenizer_without_padding_trains_and_one_without_an_end_is_refused(home: Path, tmp_path: Path) -> None:
    prepare(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path / "base"))
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "base")
    train(tmp_path, "padless", sft={"steps": 2})
    assert load_tokenizer(str(tmp_path / "padless" / "model")).pad_token is None
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "base")
    with pytest.raises(ModelError, match="the tokenizer has no end-of-sequence token"):
        train(tmp_path, "endless")


def test_tokens_that_the_model_lacks_are_refused(tmp_path: Path) -> None:
    prepare(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path / "base"))
    tokenizer.add_tokens(["extra"])
    tokenizer.save_pretrained(tmp_path / "base")
    write_jsonl(tmp_path / "demonstrations.jsonl", [*DEMONSTRATIONS, {"prompt": "red extra", "reference": " cat"}])
    with pytest.raises(ModelError, match=r"row \d+ has the id (\d+), and the model's embedding has \1 rows"):
        train(tmp_path, "extra")


@pytest.mark.parametrize(
    ("sections", "error", "message"),
    [
        (
            {"sft": {"model": ""}},
            ConfigError,
            "neither [sft] model nor [model] path is set: name it with --model",
        ),
        ({"data": {"train": None}}, ConfigError, "neither [sft] data nor [data] train is set: name a JSONL file"),
        ({"sft": {"lora_dropout": 0.1}}, ConfigError, "lora_dropout = 0.1 is the dropout of a LoRA adapter"),
        ({"sft": {"held_out": 0.0}}, ConfigError, "held_out = 0.0: Input should be greater than 0"),
        (
            {"sft": {"batch_size": 4, "accumulate": 3}},
            ConfigError,
            "sft.batch_size = 4 is not divisible by 1 processes × sft.accumulate = 3",
        ),
        ({"sft": {"data": ("nowhere.jsonl",)}}, DataError, "cannot read nowhere.jsonl: No such file or directory"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    home: Path, sections: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        train(home, "refused", **sections)
    assert message in str(caught.value)
    assert not (home / "refused").exists()


# The command.


def test_the_command_says_what_it_did_and_what_comes_next(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[sft]\nsteps = 2\nbatch_size = 4\nheld_out = 0.2\n[run]\ntracker = "none"\n')
    arguments = ["sft", str(file), "--model", str(home / "base"), "--out", str(tmp_path / "run")]
    assert main(arguments) == 2
    assert "neither [sft] data nor [data] train is set" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*arguments, "--data", str(home / "demonstrations.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "29 demonstrations to train on and 7 held-out ones to measure on; 0 left out as too long" in said
    assert "sft: step 1 of 2  loss " in said
    assert f"next               text2grad train {file} --set model.path={tmp_path / 'run' / 'model'}\n" in said
    results = json.loads((tmp_path / "run" / "results.json").read_bytes())
    before, after = results["before"]["loss"], results["measured"]["loss"]
    assert f"held-out loss      {before:.4f} → {after:.4f} nats per token\n" in said
    assert main([*arguments, "--data", str(home / "demonstrations.jsonl"), "--resume"]) == 0  # nothing is left to do
    assert json.loads((tmp_path / "run" / "results.json").read_bytes()) == results
