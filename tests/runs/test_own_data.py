"""Five commands on one recipe: sft, annotate, reward, evaluate critic, train; each finds what the one before wrote."""

import json
import tomllib
from pathlib import Path

import pytest

from fault_server import Running
from places import ROOT
from small_run import WORDS
from small_sft import write_jsonl
from text2grad.cli.__main__ import main
from text2grad.config.recipe import load_recipe
from text2grad.feedback.records import read_annotations
from text2grad.reward_models.writing import SYMBOLS, critique_prompt, critique_target
from text2grad.runs.sft_run import read_demonstration_split
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example, Span

PROMPTS = [f"{a} {b} {c}:" for a in WORDS[:6] for b in WORDS[6:9] for c in WORDS[9:]]
ANSWERS = [f" {prompt.split()[1]} {prompt.split()[0]}" for prompt in PROMPTS]
SMALL = {
    "sft": "model='base' epochs=40.0 lr=1e-2 eval_every=50 held_out=0.2",
    "rollout": "batch_size=8 max_new_tokens=6",
    "reward_model": "epochs=20.0 lr=1e-2 eval_every=30 max_new_tokens=40 held_out=0.2",
    "data": "held_out=0.1 eval_examples=4",
    "run": "steps=2 threads=1",
}


def prepare() -> None:
    """Write the data, a model of random weights that can say critiques, and the settings of a small run."""
    Path("data").mkdir()
    records = [{"prompt": prompt, "reference": answer} for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
    write_jsonl(Path("data/own.jsonl"), records)
    spans = (Span(1, 2, "positive"), Span(2, 3, "negative"))
    asked = [critique_prompt(Example(prompt), answer) for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
    written = [critique_target(Critique('"red" is right, but "cat" is wrong.', spans), answer) for answer in ANSWERS]
    everything = [*asked, *written, *ANSWERS, *WORDS, *(f" {word}" for word in WORDS)]
    tokenizer = word_tokenizer(everything, SYMBOLS)
    tiny_llama(tokenizer, seed=1, width=32, layers=1, context=160).save_pretrained("base")
    tokenizer.save_pretrained("base")


def changed(server: Running) -> list[str]:
    settings = [f"{section}.{item}" for section, items in SMALL.items() for item in items.split()]
    settings += [f"annotate.base_url='{server.url}'", "annotate.api_key_env=''", "model.dtype='float32'"]
    return [part for setting in settings for part in ("--set", setting)]


def test_five_commands_on_one_recipe(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(ROOT / "recipes" / "own-data.toml")
    monkeypatch.chdir(tmp_path)
    prepare()
    settings = changed(server)

    def said(*command: str) -> str:
        assert main([*command, recipe, *settings]) == 0, capsys.readouterr().err
        return " ".join(capsys.readouterr().out.split())

    sft = said("sft")
    assert f"next text2grad annotate {recipe}" in sft

    said("annotate")
    annotations = read_annotations("runs/own-data/annotations/annotations.jsonl")
    assert [one.prompt for one in annotations] == PROMPTS
    learned = sum(one.response == answer for one, answer in zip(annotations, ANSWERS, strict=True))
    assert learned > len(PROMPTS) / 2  # the responses are those of the fine-tuned policy

    assert main(["evaluate", "critic", recipe, *settings]) == 2
    assert "train the reward model with `text2grad reward` first" in capsys.readouterr().err
    assert main(["evaluate", "critic", "data/own.jsonl", *settings]) == 2
    assert "name a critic with --model, --critic or --predictions" in capsys.readouterr().err

    reward = said("reward")
    assert f"next text2grad evaluate critic {recipe}" in reward
    assert "held-out F1 " in reward
    reward_config = json.loads(Path("runs/own-data/critic/run.json").read_bytes())["recipe"]
    assert reward_config["model"]["path"] == tomllib.loads(Path(recipe).read_text())["model"]["path"]

    evaluated = said("evaluate", "critic")
    assert "written: runs/own-data/critic/evaluation/" in evaluated
    held_out = read_annotations("runs/own-data/critic/held_out.jsonl")
    counts = json.loads(Path("runs/own-data/critic/results.json").read_bytes())["counts"]
    assert len(held_out) == counts["held_out"] == len(PROMPTS) - counts["learned"]
    assert {one.prompt for one in held_out} < set(PROMPTS)

    trained = said("train")
    assert "policy" in trained
    evaluated = json.loads(next(Path("runs/own-data/policy/evaluations").glob("*.json")).read_bytes())["records"]
    sft_data = {one.prompt for one in read_demonstration_split(load_recipe(recipe, settings[1::2]))[0]}
    assert sft_data.isdisjoint(record["prompt"] for record in evaluated)
    metrics = [json.loads(line) for line in Path("runs/own-data/policy/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [0, 1]
