"""`text2grad generate`: the answers of a trained policy and the critiques of its critic are printed unchanged."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from said import force, tokenizer as chat_tokenizer, trainer
from text2grad.cli.__main__ import main
from text2grad.config.recipe import make_recipe
from text2grad.feedback.critic import ask
from text2grad.feedback.records import Annotation
from text2grad.models.fine_tuning import FineTuning
from text2grad.models.pretrained import load_policy, load_tokenizer
from text2grad.models.randomness import step_uniforms
from text2grad.models.sampling import sample
from text2grad.progress import CONSOLE
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.refresh import Refresher
from text2grad.reward_models.writing import SYMBOLS
from text2grad.rl.trainer import Text2GradTrainer
from text2grad.runs.reports.terminal import plain
from text2grad.tasks.registry import built_in
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example, Span
from trained_reward_model import train_reward_model

WORDS = (" red", " two", "[bold]", "[/]", " :heart:", "\x1b[2J", "\n")  # markup, an emoji's code, a terminal's
RUN: dict[str, dict[str, Any]] = {
    "rollout": {"batch_size": 4, "max_new_tokens": 6},
    "critic": {"max_failure_rate": 1.0},
    "run": {"steps": 1, "threads": 1, "tracker": "none"},
}


def remark(response: str) -> Critique:
    """Mark the first " red" as positive and the first " two" as negative."""
    marks = [(response.find(word), word, label) for word, label in ((" red", "positive"), (" two", "negative"))]
    spans = tuple(Span(at, at + len(word), label) for at, word, label in marks if at >= 0)  # type: ignore[arg-type]
    return Critique("Too[bold] :heart: said.", spans)


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("phases")
    tokenizer = word_tokenizer(["Say red two .Too said.\n Say", " red two said"], [*SYMBOLS, *WORDS])
    rng = Random(0)
    responses = ["".join(rng.choice(WORDS[:5]) for _ in range(rng.randint(1, 6))) for _ in range(200)]
    annotations = [Annotation("Say", response, remark(response)) for response in responses]
    settings = FineTuning(steps=60, batch_size=16, learning_rate=1e-2)
    model = tiny_llama(tokenizer, seed=5, width=32, layers=1, context=96)
    train_reward_model(model, tokenizer, annotations, settings, max_new_tokens=40)[0].save(path / "reward_model")
    tiny_llama(tokenizer, seed=1, width=32, layers=1, context=512).save_pretrained(path / "start")
    tokenizer.save_pretrained(path / "start")
    return path


def make_run(phases: Path, out: Path, judge: Any, annotator: Any = None, **sections: dict[str, Any]) -> Path:
    recipe = make_recipe({**RUN, **sections, "run": {**RUN["run"], "out": str(out)}})
    policy, tokenizer = (load(str(phases / "start")) for load in (load_policy, load_tokenizer))
    refresher = Refresher(recipe, judge, annotator)
    Text2GradTrainer(policy, judge, [Example("Say")], recipe, processing_class=tokenizer, refresher=refresher).train()
    return out


def plain_critic(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
    return [remark(response) for response in responses]


@pytest.fixture(scope="module")
def judged(phases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose critic was learned, and which has no task."""
    model = phases / "reward_model"
    out = tmp_path_factory.mktemp("judged") / "run"
    return make_run(phases, out, GenerativeRewardModel.load(model), critic={**RUN["critic"], "model": str(model)})


@pytest.fixture(scope="module")
def unjudged(phases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a task, with a critic that is a program and cannot be loaded."""
    return make_run(phases, tmp_path_factory.mktemp("unjudged") / "run", plain_critic, data={"task": "summarization"})


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CONSOLE, "_width", 2000)
    monkeypatch.setattr(CONSOLE, "_height", 100)  # rich asks the environment unless it knows both


def shown(capsys: pytest.CaptureFixture[str], run: Path, *more: str) -> str:
    """Return what is printed above the summary."""
    capsys.readouterr()
    assert main(["generate", str(run), *more]) == 0
    return re.split(r"^\d+ answers?: ", capsys.readouterr().out, flags=re.MULTILINE)[0]


def answers(run: Path, *prompts: str, seed: int = 0) -> list[str]:
    """Return what the run's policy says to some prompts."""
    path = str(run / "checkpoints" / "step-000001" / "policy")
    policy, tokenizer = load_policy(path).eval(), load_tokenizer(path)
    ids = [tuple(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    uniforms = step_uniforms(seed=seed, step=0, rows=len(ids), tokens=6)
    eos = tokenizer.eos_token_id
    said = sample(policy, ids, uniforms, eos_ids=(eos,), pad_id=tokenizer.pad_token_id)
    return [tokenizer.decode(list(one), skip_special_tokens=True) for one in said]


def test_a_prompt_gets_an_answer_a_critique_and_its_spans(
    phases: Path, judged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = ["Say"] * 8
    said = answers(judged, *prompts)
    critic = GenerativeRewardModel.load(phases / "reward_model")
    expected = ""
    for answer, one in zip(said, ask(critic, [Example("Say")] * 8, said, match="exact"), strict=True):
        feedback = one.feedback if one.status == "ok" else f"[{one.status}] {one.feedback}"
        signs = [{"positive": "+", "negative": "−"}[span.label] for span in one.spans]
        quotes = [(sign, answer[span.start : span.end]) for sign, span in zip(signs, one.spans, strict=True)]
        quotes += [("not found:", quote) for quote in one.unmatched]
        marks = "".join(f"  {sign} {' '.join(quote.split())}\n" for sign, quote in quotes)
        expected += f"Say\n{answer}\n{feedback}\n{marks}\n"
    found = shown(capsys, judged, *(part for prompt in prompts for part in ("--prompt", prompt)))
    assert found == expected.replace("\x1b", "␛")
    assert "\nToo[bold] :heart: said.\n  + red\n\n" in found


def test_the_spans_are_those_of_the_critic_in_the_run(
    phases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Sour:
        def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
            return [Critique("Say red.", (Span(0, len(one), "negative"),) if one else ()) for one in responses]

    model = phases / "reward_model"
    # Trained again after the only step: the run's critic is no longer the one that its recipe names.
    again = {"steps": [1], "window": 4, "train_steps": 40, "batch_size": 4, "lr": 0.02}
    settings = {"critic": {**RUN["critic"], "model": str(model)}, "refresh": again}
    run = make_run(phases, tmp_path / "run", GenerativeRewardModel.load(model), Sour(), **settings)
    found = shown(capsys, run, "--prompt", "Say", "--prompt", "Say")
    assert found.count("\nSay red.\n") == 2
    assert "Too[bold] :heart: said." not in found


def test_the_seed_decides_what_is_said(judged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (shown(capsys, judged, "--prompt", "Say", "--seed", seed) for seed in "558")
    assert first == again != other
    assert plain(answers(judged, "Say", seed=8)[0]).plain in other


def test_what_is_said_is_shown_as_it_is_and_moves_no_terminal(
    unjudged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = "Say [bold]:heart: \x1b[2J"
    said = answers(unjudged, *[prompt] * 60)
    assert all(any(odd in answer for answer in said) for odd in ("[bold]", ":heart:", "\x1b[2J", "[/]")), said
    found = shown(capsys, unjudged, *["--prompt", prompt] * 60)
    assert "\x1b" not in found
    expected = "".join(f"{prompt}\n{answer}\n" for answer in said).replace("\x1b", "␛")
    assert found == expected


def test_without_a_prompt_held_out_examples_of_the_task_are_answered(
    unjudged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shown(capsys, unjudged, "--examples", "2")
    prompts = [example.prompt_text for example in built_in("summarization").held_out(3, 0)]
    assert [found.count(prompt) for prompt in prompts] == [1, 1, 0]
    assert found.startswith(prompts[0])


@pytest.mark.parametrize(
    ("run", "arguments", "text"),
    [
        (
            "nowhere",
            ["--prompt", "Say"],
            "nowhere holds no run with a checkpoint; name the directory that `train` wrote",
        ),
        ("judged", [], "the run names no prompts; give prompts with --prompt TEXT or --examples FILE.jsonl"),
        ("unjudged", ["--examples", "0"], "--examples 0: at least one prompt is needed"),
        ("unjudged", ["--examples", "nowhere.jsonl"], "nowhere.jsonl"),
        ("judged", ["--prompt", ""], "prompt"),
        ("judged", ["--prompt", "Say " * 600], "1 of 1 prompts have more than 506 tokens"),
    ],
    ids=["no run", "no task", "no examples", "no file", "empty", "long"],
)
def test_what_cannot_be_answered_is_refused(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], run: str, arguments: list[str], text: str
) -> None:
    directory = Path(run) if run == "nowhere" else request.getfixturevalue(run)
    capsys.readouterr()
    assert main(["generate", str(directory), *arguments]) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.out == ""


def test_a_run_that_has_no_checkpoint_yet_is_no_run_to_talk_to(
    judged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_bytes((judged / "run.json").read_bytes())
    assert main(["generate", str(tmp_path), "--prompt", "Say"]) == 2
    assert "holds no run with a checkpoint" in capsys.readouterr().err


def test_a_chat_is_shown_turn_by_turn_with_the_thought_and_the_calls_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, run = chat_tokenizer("qwen3"), tmp_path / "run"
    call = '<tool_call>\n{"name": "look", "arguments": {"place": "Rome"}}\n</tool_call>'
    force(monkeypatch, made, lambda prompt: f"<think>\nI look.\n</think>\n\n{call}<|im_end|>")
    trainer(run, made, ["Weather?", "Sun?"], lambda examples, responses: [1.0] * len(responses), steps=1).train()

    def blame(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        at = responses[0].index("Rome")  # the critic sees no thought
        return [Critique("Wrong city.", (Span(at, at + 4, "negative"),))]

    monkeypatch.setattr("text2grad.runs.critic_of_run", lambda *_: blame)
    function = {"name": "look", "arguments": {"place": "Nice"}}
    asked = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    chat = [{"role": "user", "content": "Sun?"}, asked, {"role": "tool", "name": "look", "content": "[bold]Rain"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"prompt": chat}) + "\n")
    prompt = 'turn 0 · user\nSun?\nturn 1 · assistant\nlook({"place": "Nice"})\nturn 2 · tool · look\n[bold]Rain\n'
    answer = f'turn 3 · assistant\n<think>\nI look.\n</think>\n\n{call}\nlook({{"place": "Rome"}})\n'
    how = (capsys, run, "--examples", str(tmp_path / "chats.jsonl"))
    assert shown(*how) == f"{prompt}{answer}Wrong city.\n  − turn 3: Rome\n\n"
    assert shown(*how, "--no-critic") == prompt + answer
    alone = shown(capsys, run, "--prompt", "Sun?", "--no-critic")
    assert alone == f"turn 0 · user\nSun?\n{answer.replace('turn 3', 'turn 1')}"
    force(monkeypatch, made, lambda prompt: "Sunny.<|im_end|>")
    assert shown(capsys, run, "--prompt", "Sun?", "--no-critic") == "Sun?\nSunny.\n"
