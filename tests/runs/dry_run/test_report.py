"""`text2grad train --dry-run`: what it refuses, prints and ends with; nothing is trained, and nothing is written."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import zeros

import small_run
from planned import CONFIG
from text2grad.cli.__main__ import main
from text2grad.config.recipe import load_recipe
from text2grad.critics import LLMCritic
from text2grad.critics.servers import ANSWER_TOKENS
from text2grad.runs.dry_run.plan import Lengths
from text2grad.runs.dry_run.report import critic_expense, dry_run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy, prompts, a critic and a recipe, which is the working directory."""
    tokenizer, model = small_run.tokenizer_and_model()
    model.save_pretrained(tmp_path / "policy")
    tokenizer.save_pretrained(tmp_path / "policy")
    prompts = "".join(json.dumps({"prompt": example.prompt}) + "\n" for example in small_run.EXAMPLES)
    (tmp_path / "prompts.jsonl").write_text(prompts)
    (tmp_path / "my.toml").write_text(
        '[data]\ntrain = "prompts.jsonl"\n[model]\npath = "policy"\n'
        "[rollout]\nbatch_size = 8\nmax_new_tokens = 6\n"
        '[run]\nout = "run"\nsteps = 2\nthreads = 1\ntracker = "none"\n'
    )
    (tmp_path / "colours.py").write_text("from small_run import ColourCritic\n\ncritic = ColourCritic()\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


LOOK = ["train", "my.toml", "--critic", "colours:critic", "--dry-run"]


def files(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if "__pycache__" not in str(path))


def test_a_run_that_fits_is_shown_and_nothing_is_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(place)
    assert main([*LOOK, "--device", "h100", "--set", "annotate.prices=[1, 0]"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "fits into 80.0 GB" in said
    assert "144 of 2 tokens (longest 2)" in said
    assert "8 responses, at most 48 tokens per step" in said
    assert "tokens read" not in said  # the critic is a program: a price of [annotate] is not its own
    assert files(place) == before


def test_the_judged_look_shows_responses_and_figures(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(place)
    assert main([*LOOK, "--judge"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Colours are welcome, numbers are not." in said
    assert "responses 64" in said
    assert "reliability of advantages 1.00" in said
    assert "one number teaches nothing unknown with one response per prompt" in said
    assert "nothing to move to unknown with one response per prompt: set rollout.group_size = 4" in said
    assert files(place) == before
    assert main([*LOOK, "--judge", "--set", "rollout.group_size=4"]) == 0
    assert "nothing to move to for 0% of the prompts" in " ".join(capsys.readouterr().out.split())


def test_a_run_that_does_not_fit_gets_ways_out_and_no_question(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("text2grad.runs.dry_run.devices.OVERHEAD", {"cpu": 0, "cuda": 10**9 - 900_000})
    monkeypatch.setattr("text2grad.runs.dry_run.devices.LOST", {"cpu": 0.0, "cuda": 0.0})
    settings = ["--set", "rollout.batch_size=64", "--device", "1GB"]
    assert main([*LOOK, "--judge", *settings]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "does not fit into 1.00 GB" in said
    assert "reliability" not in said, "the critic is not asked"
    assert "(which changes no result), set model.gradient_checkpointing = true" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "abacus"], "--device abacus is not known; give one of h100"),
        (["--processes", "3"], "choose a multiple of 3"),
        (["--resume"], "leave --resume out"),
        (["--model", "missing"], "missing"),
        (["--critic", "colours:nobody"], "nobody"),
        (["--set", "data.train=missing.jsonl"], "missing.jsonl"),
        (["--set", "rollout.max_new_tokens=64"], "leaves no room for a prompt in the model's context of 64"),
    ],
)
def test_bad_input_is_refused(place: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LOOK, *options]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert any(part in error for part in said.split("|")), error


def test_a_directory_with_a_run_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "run").mkdir()
    (place / "run" / "run.json").write_text("{}")
    assert main(LOOK) == 2
    assert "run already holds a run" in capsys.readouterr().err


def test_options_of_a_dry_run_belong_to_one(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--judge"], ["--device", "h100"], ["--processes", "2"]):
        assert main(["train", "my.toml", "--critic", "colours:critic", *option]) == 2
        assert f"{option[0]} belongs to --dry-run" in capsys.readouterr().err


def test_a_trained_critic_is_counted_and_has_no_price(place: Path) -> None:
    (place / "critic").mkdir()
    (place / "critic" / "config.json").write_text(json.dumps(CONFIG))
    save_file({"weight": zeros(10)}, place / "critic" / "model.safetensors")
    report = dry_run(load_recipe(Path("my.toml"), ["critic.use=''", "critic.model=critic"]), device="h100")
    assert report.plan.phases["critic"]["KV cache"] > 0
    assert report.expense is None


def test_money_is_tokens_times_prices_of_the_critic_that_is_asked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    recipe = load_recipe(Path("my.toml"), ["annotate.prices=[2.0, 20.0]", "run.steps=5"])
    lengths = Lengths(5, 100.0, 120)
    critic = LLMCritic("model", store=place / "answers.sqlite", prices=(4.0, 10.0))
    assert critic_expense(recipe, small_run.ColourCritic(), lengths) is None  # a program
    expense = critic_expense(recipe, critic, lengths)
    assert expense is not None
    read, written, cost = expense
    assert written == 40 * ANSWER_TOKENS
    assert read % 40 == 0
    assert read > 40 * (100 + 6)
    assert cost == pytest.approx((4.0 * read + 10.0 * written) / 1e6)
