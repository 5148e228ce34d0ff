"""A reward model of steps: where steps end, what labels they get, and that it learns to give them."""

import copy
import json
import re
import shutil
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import AutoModelForTokenClassification

import small_run
from evidence.__main__ import main
from evidence.baselines import register
from evidence.baselines.process import (
    SETTINGS_FILE,
    ProcessReport,
    ProcessRewardModel,
    rows_of,
    train_process_reward_model,
)
from evidence.baselines.process_steps import Step, labelled_steps
from evidence.baselines.scalar import ScalarRewardModel
from text2grad.errors import ConfigError, DataError, ModelError
from text2grad.feedback.critic import ask
from text2grad.feedback.records import Annotation, write_annotations
from text2grad.feedback.words import split_steps
from text2grad.models import measured_training
from text2grad.models.fine_tuning import FineTuning
from text2grad.models.measured_training import last_saved
from text2grad.reward_models.load import LocalRewardModel, critic_from_recipe
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example, Span
from tiny_models import tiny

WORDS = {"red": "positive", "cat": "negative", "one": None}
HOW = FineTuning(steps=60, batch_size=16, learning_rate=0.01, max_tokens=40, seed=1)


def annotations(number: int, seed: int) -> list[Annotation]:
    """Responses of some lines, judged by their last words."""
    rng, found = Random(seed), []
    for row in range(number):
        response, spans = "", []
        for _ in range(rng.randint(1, 4)):
            last, start = rng.choice(list(WORDS)), len(response)
            response += " ".join([rng.choice(list(WORDS)) for _ in range(rng.randint(0, 3))] + [last])
            if label := WORDS[last]:
                spans.append(Span(max(start, len(response) - len(last)), len(response), label))  # type: ignore[arg-type]
            response += "\n"
        found.append(Annotation(f"a {row}\n", response, Critique("", tuple(spans))))
    return found


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return word_tokenizer(["a red cat one .", "red\ncat\none\na\n.", " ".join(map(str, range(200)))])


@pytest.fixture(scope="module")
def start(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("start")
    tiny_llama(tokenizer, seed=0, width=32, layers=1, context=40).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def taught(tokenizer: Any, start: Path) -> tuple[ProcessRewardModel, ProcessReport]:
    return train_process_reward_model(start, tokenizer, annotations(100, 0), HOW, held_out=annotations(30, 1))


# Steps.


@pytest.mark.parametrize(
    ("text", "rule", "steps"),
    [
        ("one\n\n  two three \n", "lines", ["one", "two three"]),
        ("It is 2.5 m. So yes!\nNo? (Or so.) End", "sentences", ["It is 2.5 m.", "So yes!", "No?", "(Or so.)", "End"]),
        ("a.b", "sentences", ["a.b"]),
        ("So… 'Yes!' No", "sentences", ["So…", "'Yes!'", "No"]),
        ("One.  Two.", "lines", ["One.  Two."]),
        (" \n ", "lines", []),
        ("", "sentences", []),
    ],
)
def test_a_response_in_steps(text: str, rule: Any, steps: list[str]) -> None:
    assert [text[start:end] for start, end in split_steps(text, rule)] == steps


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.text('a \t\n\r\u2028.,!…")', max_size=12))
def test_steps_are_those_of_the_pattern_that_looks_for_an_end_after_each_space(text: str) -> None:
    for rule, ends in (("sentences", ".!?…"), ("clauses", ".!?…,;:")):
        plain = rf"\S[^\n]*?(?:[{ends}][\"')\]]*(?=\s|\Z)|(?=\s*(?:\n|\Z)))"  # quadratic in a run of spaces
        assert split_steps(text, rule) == [found.span() for found in re.finditer(plain, text)]  # type: ignore[arg-type]


def test_the_label_of_a_step_is_what_the_spans_in_it_agree_on() -> None:
    #           0    5    10   15   20
    response = "good\nbad.\nboth\nnone\n"
    spans = (
        *(Span(0, 2, "positive"), Span(2, 4, "positive"), Span(5, 9, "negative")),
        *(Span(10, 11, "negative"), Span(12, 14, "positive"), Span(16, 16, "negative")),
        *(Span(4, 5, "negative"), Span(14, 15, "positive")),  # line breaks, which are in no step
    )
    one = Annotation("", response, Critique("", spans))
    steps = [Step(0, 4, "positive"), Step(5, 9, "negative"), Step(10, 14, "neutral"), Step(15, 19, "neutral")]
    assert labelled_steps(one, "lines") == steps
    assert labelled_steps(one, "spans") == [Step(s.start, s.end, s.label) for s in spans if s.end > s.start]
    with pytest.raises(ConfigError, match="rule has no value 'words'"):
        split_steps("a", "words")  # type: ignore[arg-type]


def test_a_step_ends_at_its_last_token(tokenizer: Any) -> None:
    # a | \n | red |  cat | . | \n | one | \n
    # 0    1    2     3     4    5     6    7
    rows = rows_of(
        tokenizer,
        [Example("a\n")],
        ["red cat.\none"],
        [[Step(*place) for place in split_steps("red cat.\none", "lines")]],
    )
    assert rows == [(tokenizer("a\nred cat.\none\n").input_ids, [4, 6])]
    assert rows_of(tokenizer, [], [], []) == []


def test_special_tokens_in_a_response_are_text_and_steps_end_behind_them() -> None:
    #  <s> | a | < | s | > | cat | \n
    tokenizer = word_tokenizer(["a cat one < s >\n"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<s>"]})
    special = tokenizer.convert_tokens_to_ids("<s>")
    (row,) = rows_of(tokenizer, [Example("<s>a")], ["<s> cat"], [[Step(0, 3), Step(4, 7)]])
    ids = [special, *tokenizer("a").input_ids, *tokenizer("<s>", split_special_tokens=True).input_ids]
    assert row == ([*ids, *tokenizer(" cat\n").input_ids], [len(ids) - 1, len(ids)])


# What it learns, and says.


def test_it_finds_the_labels_of_steps_it_has_not_seen(taught: tuple[ProcessRewardModel, ProcessReport]) -> None:
    model, report = taught
    assert (report.learned_from, report.without_steps, report.too_long) == (100, 0, 0)
    assert report.right == report.held_out
    assert min(report.held_out.values()) > 5
    critique = ask(model, [Example("a 1\n")], ["one red\none\nred cat"], match="exact")[0]
    assert critique.spans == (Span(0, 7, "positive"), Span(12, 19, "negative"))
    assert [part.split(" (")[0] for part in critique.feedback.split("; ")] == [
        *("step 1: positive", "step 2: neutral", "step 3: negative"),
    ]
    assert model([Example("a")], [""]) == [Critique("")]
    assert model([], []) == []


def test_the_numbers_are_those_of_the_classifier_at_the_ends_of_steps(
    taught: tuple[ProcessRewardModel, ProcessReport],
) -> None:
    model, _ = taught
    texts = ["one red\ncat", "red", "cat cat cat\none\nred"]
    for side in ("right", "left"):
        tokenizer = copy.deepcopy(model.tokenizer)
        tokenizer.padding_side = side
        together = ProcessRewardModel(model.model, tokenizer, rows_at_once=2)([Example("a\n")] * 3, texts)
        assert together == [model([Example("a\n")], [text])[0] for text in texts]
    ids = torch.tensor([model.tokenizer("a\none red\ncat\n").input_ids])
    with torch.no_grad():
        share = model.model(ids).logits[0].softmax(-1)[[3, 5]].max(-1).values.tolist()
    assert model([Example("a\n")], texts[:1])[0].feedback == (
        f"step 1: positive ({share[0]:.2f}); step 2: negative ({share[1]:.2f})"
    )


def test_spans_may_be_the_steps_it_learns_from(tokenizer: Any, start: Path) -> None:
    how = FineTuning(steps=1, batch_size=4)
    spans = (Span(0, 3, "positive"), Span(4, 7, "negative"))
    one = Annotation("a", "red cat one", Critique("", spans))
    _, report = train_process_reward_model(start, tokenizer, [one] * 2, how, spans_are_steps=True, held_out=[one])
    assert report.steps == {"positive": 2, "negative": 2}
    assert sum(report.held_out.values()) == 2


def test_what_is_too_long_or_has_no_step_is_left_out_and_counted(tokenizer: Any, start: Path) -> None:
    def judged(response: str, critique: Critique) -> Annotation:
        return Annotation("a", response, critique)

    good, poor = (Critique("", (Span(0, 3, label),)) for label in ("positive", "negative"))  # type: ignore[arg-type]
    given = [
        *(judged("red", good), judged("cat", poor), judged(" red" * 9, good)),
        *(judged("", Critique("")), judged("red", Critique("", status="unparsable"))),
    ]
    _, report = train_process_reward_model(start, tokenizer, given, FineTuning(steps=1, max_tokens=10))
    assert report == ProcessReport(2, {"positive": 1, "negative": 1}, 2, 1, {}, {})
    with pytest.raises(DataError) as caught:
        train_process_reward_model(start, tokenizer, given[1:], FineTuning(steps=1, max_tokens=10))
    assert str(caught.value) == (
        "1 of 4 annotations have steps to train on, with the labels {'negative': 1}; at least two different labels are "
        "needed"
    )


def test_a_response_beyond_the_context_is_judged_by_nobody(taught: tuple[ProcessRewardModel, ProcessReport]) -> None:
    found = taught[0]([Example("a")] * 2, [" red" * 39, " red"])  # 41 tokens, for a context of 40
    assert [one.status for one in found] == ["unparsable", "ok"]
    assert found[0].feedback == "prompt and response have 41 tokens, more than the reward model's context of 40"


# On disk.


def test_it_comes_back_as_it_was_and_by_a_recipe(
    taught: tuple[ProcessRewardModel, ProcessReport], tmp_path: Path
) -> None:
    given = ProcessRewardModel(taught[0].model, taught[0].tokenizer, rule="sentences", rows_at_once=3)
    given.save(tmp_path / "model")
    assert json.loads((tmp_path / "model" / SETTINGS_FILE).read_bytes()) == {"rule": "sentences", "rows_at_once": 3}
    register()
    named = {"model": str(tmp_path / "model"), "kind": "process"}
    loaded = critic_from_recipe(small_run.recipe(tmp_path, critic=named))
    assert isinstance(loaded, ProcessRewardModel)
    assert isinstance(loaded, LocalRewardModel)
    assert (loaded.rule, loaded.rows_at_once) == ("sentences", 3)
    fewer = critic_from_recipe(small_run.recipe(tmp_path, critic=named, rollout={"rows_at_once": 2}))
    assert isinstance(fewer, ProcessRewardModel)
    assert fewer.rows_at_once == 2
    asked, texts = [Example("a")] * 2, [" red. one cat.", " one"]
    assert loaded(asked, texts) == given(asked, texts)


def test_a_family_without_token_classifiers_is_refused_in_one_sentence(tokenizer: Any, tmp_path: Path) -> None:
    tiny("opt", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    with pytest.raises(ModelError) as refused:
        train_process_reward_model(tmp_path, tokenizer, annotations(4, 0), HOW)
    assert str(refused.value) == (
        f"cannot load the start of a reward model of steps from {str(tmp_path)!r}: transformers has no class of this "
        "purpose for models of its type; name a model of another family, such as Llama, Qwen2 or Gemma"
    )


def test_other_labels_and_other_models_are_refused(tokenizer: Any, start: Path, tmp_path: Path) -> None:
    two = AutoModelForTokenClassification.from_pretrained(str(start), num_labels=2)
    with pytest.raises(ModelError) as caught:
        ProcessRewardModel(two, tokenizer)
    assert str(caught.value) == (
        "a process reward model needs the labels negative, neutral, positive, and this model has label_0, label_1; "
        "name the labels in id2label of its config.json"
    )
    with pytest.raises(ModelError, match=r"^cannot load a process reward model from "):
        ProcessRewardModel.load(tmp_path)


# The command.


def test_the_command_trains_both_kinds_and_reports(
    tokenizer: Any, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_annotations(tmp_path / "annotations.jsonl", annotations(20, 0))
    pairs = [{"prompt": f"a {row}", "chosen": " red", "rejected": " cat"} for row in range(20)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    flags = ["--model", str(start), "--steps", "2", "--batch-size", "4"]
    for kind, file in (("scalar", "pairs"), ("process", "annotations")):
        out = tmp_path / kind
        assert main(["reward-baseline", kind, str(tmp_path / f"{file}.jsonl"), "--out", str(out), *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "trained on 18 pairs; 0 left out as too long, 0 with two equal responses" in said
    assert "trained on 18 responses with steps " in said
    assert "scalar reward model: step 1 of 2 loss " in said
    assert "held out, step 2 of 2 accuracy " in said
    assert re.search(r"held-out pairs [\d.]+% → [\d.]+% of 2 in the right order", said)
    assert re.search(r"held-out steps [\d.]+% → [\d.]+% of \d+ with the right label", said)
    assert f"--set critic.model={tmp_path / 'scalar'} --set critic.kind=scalar" in said
    assert not (tmp_path / "scalar.training").exists()
    assert json.loads((tmp_path / "scalar" / "report.json").read_bytes())["held_out"] == 2
    ScalarRewardModel.load(tmp_path / "scalar")
    ProcessRewardModel.load(tmp_path / "process")
    again = ["reward-baseline", "scalar", str(tmp_path / "pairs.jsonl"), "--out", str(tmp_path / "scalar"), *flags]
    assert main(again) == 2
    assert "exists; choose another --out, or remove the directory" in " ".join(capsys.readouterr().err.split())


def test_an_interrupted_training_goes_on_to_the_same_bits(
    tokenizer: Any, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_annotations(tmp_path / "annotations.jsonl", annotations(20, 0))
    pairs = [{"prompt": f"a {row}", "chosen": " red", "rejected": " cat"} for row in range(20)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    written = measured_training._append

    def append(directory: Path, step: int, metrics: dict[str, float]) -> None:
        if step == 3 and "loss" in metrics and directory.name.startswith("stopped"):
            signal.raise_signal(signal.SIGTERM)
        written(directory, step, metrics)

    monkeypatch.setattr(measured_training, "_append", append)
    flags = ["--model", str(start), "--steps", "6", "--batch-size", "4", "--save-every", "2"]
    for kind, file in (("scalar", "pairs"), ("process", "annotations")):

        def run(out: str, *more: str, kind: str = kind, file: str = file) -> int:
            return main(
                ["reward-baseline", kind, str(tmp_path / f"{file}.jsonl"), "--out", str(tmp_path / out), *flags, *more]
            )

        assert run(f"calm-{kind}") == 0
        assert run(f"stopped-{kind}") == 143
        assert "stopped after step 4 of 6, which is saved. Continue with: " in capsys.readouterr().err
        assert not (tmp_path / f"stopped-{kind}").exists()
        assert run(f"stopped-{kind}") == 2
        assert run(f"stopped-{kind}", "--resume", "--lr", "0.5") == 2
        assert "on other settings or data (lr: 1e-05 → 0.5)" in capsys.readouterr().err
        assert run(f"stopped-{kind}", "--resume") == 0
        for name in ("model.safetensors", "report.json"):
            one, other = (tmp_path / f"{run}-{kind}" / name for run in ("calm", "stopped"))
            assert one.read_bytes() == other.read_bytes(), (kind, name)
        assert run(f"never-{kind}", "--resume") == 2


def test_a_resume_whose_model_cannot_be_loaded_keeps_the_checkpoints(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [{"prompt": f"a {row}", "chosen": " red", "rejected": " cat"} for row in range(20)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    shutil.copytree(start, tmp_path / "start")
    command = ["reward-baseline", "scalar", str(tmp_path / "pairs.jsonl"), "--model", str(tmp_path / "start")]
    command += ["--steps", "4", "--batch-size", "4", "--save-every", "2", "--out", str(tmp_path / "out")]
    written = measured_training._append

    def append(directory: Path, step: int, metrics: dict[str, float]) -> None:
        if step == 1 and "loss" in metrics:
            signal.raise_signal(signal.SIGTERM)
        written(directory, step, metrics)

    with monkeypatch.context() as patched:
        patched.setattr(measured_training, "_append", append)
        assert main(command) == 143
    checkpoint = last_saved(tmp_path / "out.training")
    assert checkpoint is not None
    (tmp_path / "start" / "config.json").rename(tmp_path / "config.json")
    assert main([*command, "--resume"]) == 2
    assert last_saved(tmp_path / "out.training") == checkpoint
    (tmp_path / "config.json").rename(tmp_path / "start" / "config.json")
    assert main([*command, "--resume"]) == 0
    assert not (tmp_path / "out.training").exists()


def test_a_training_that_could_not_begin_leaves_nothing(start: Path, tmp_path: Path) -> None:
    pair = {"prompt": "a", "chosen": " red", "rejected": " red"}
    (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(pair)}\n" * 2)
    arguments = ["reward-baseline", "scalar", str(tmp_path / "pairs.jsonl"), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--model", str(tmp_path / "nowhere")]) == 2
    assert main([*arguments, "--model", str(start)]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.jsonl"]
