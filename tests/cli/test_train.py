"""`text2grad train` and `text2grad generate` on a user's own data, from the recipe to the last line that is printed."""

import json
import re
import shutil
import sys
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from small_run import WORDS, tokenizer_and_model
from text2grad.cli.__main__ import main
from text2grad.cli.train import best_policy, print_account, warn_of_loss, warn_of_repetition
from text2grad.config import make_recipe
from text2grad.runs.reports.run_report import Run

MODULE = """\
from small_run import ColourCritic

critic = ColourCritic()


def interrupted(examples, responses):
    raise KeyboardInterrupt


def metric(example, response):
    return {"cats": float(response.split().count("cat"))}


def broken(examples, responses):
    raise ValueError("out of money")
"""
RECIPE = """\
[model]
path = "model"
[data]
train = "prompts.jsonl"
held_out = 0.1
metric = "module_of_train:metric"
[critic]
use = "module_of_train:critic"
[rollout]
batch_size = 8
max_new_tokens = 6
[optim]
lr = 0.003
[run]
steps = 4
threads = 1
tracker = "none"
out = "run"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("train")
    tokenizer, model = tokenizer_and_model()
    model.save_pretrained(path / "model")
    tokenizer.save_pretrained(path / "model")
    prompts = [{"prompt": f"{a} {b}"} for a in WORDS for b in WORDS]
    (path / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    (path / "module_of_train.py").write_text(MODULE)
    (path / "mine.toml").write_text(RECIPE)
    return path


@pytest.fixture(autouse=True)
def in_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")


def call(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(arguments) == code
    found = capsys.readouterr()
    return found.out, found.err


def cells(text: str) -> dict[str, list[str]]:
    """Return the rows of the printed table by their first cell."""
    rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    return {row[0]: row[1:] for row in (["", *row] if row[-1:] == ["change"] else row for row in rows) if len(row) == 4}


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "path", list(sys.path))
        assert main(["train", "mine.toml", "-q"]) == 0
    return place / "run"


def test_a_setting_without_effect_is_told(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "mine.toml: optim.value_lr has no effect here: model.value = "
    given = ("--set", "model.value=none", "--set", "optim.value_lr=0.1")
    assert told in "".join(call(capsys, "train", "mine.toml", "--out", "with_idle", "--set", "run.steps=1", *given))
    assert "has no effect" not in "".join(call(capsys, "train", "mine.toml", "--resume"))


def test_the_end_of_a_run_shows_before_and_after_files_and_what_is_next(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same at the end of a finished run that is resumed."""
    judged: list[tuple[list[int], str]] = []
    monkeypatch.setattr(
        "text2grad.cli.train.warn_of_loss",
        lambda recipe, evaluations, metric: judged.append(([one["step"] for one in evaluations], metric)),
    )
    out, _ = call(capsys, "train", "mine.toml", "--resume", "-q")
    first, last = (json.loads((trained / "evaluations" / f"00000{step}.json").read_bytes()) for step in (0, 4))
    assert out.startswith("14 held-out responses")
    assert judged == [([0, 4], "cats")]
    rows = cells(out)
    assert rows[""] == ["step 0", "step 4", "change"]
    assert list(rows)[1] == "cats"
    for name, value in last["metrics"].items():
        before, after, change = rows[name.replace("_", " ")]
        assert float(before) == pytest.approx(first["metrics"][name], rel=0.01, abs=1e-4)
        assert float(after) == pytest.approx(value, rel=0.01, abs=1e-4)
        assert float(change) == pytest.approx(value - first["metrics"][name], abs=1e-3)
    assert "4 steps of training, " in out
    files = dict(line.split(maxsplit=1) for line in out.splitlines()[-6:])
    assert files.pop("answers") == "text2grad generate run --examples 3"
    assert files.pop("compare") == "text2grad compare run OTHER_RUN"
    assert list(files) == ["policy", "report", "curves", "numbers"]
    assert all(Path(path).exists() for path in files.values())
    assert json.loads((trained / "results.json").read_bytes())["runs"]["run"]["after"] == last["metrics"]


def test_without_held_out_prompts_the_first_steps_stand_beside_the_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = [part for name in ("data.held_out=0.0", "data.metric=''") for part in ("--set", name)]
    out, _ = call(capsys, "train", "mine.toml", "-q", "--out", "plain run", *more)
    lines = [json.loads(line) for line in Path("plain run/metrics.jsonl").read_text().splitlines()]
    rows = cells(out)
    assert rows[""] == ["first 2 steps", "last 2 steps", "change"]
    rewards = [line["reward/per_response"] for line in lines]
    assert [float(cell) for cell in rows["reward"]] == pytest.approx(
        [fmean(rewards[:2]), fmean(rewards[2:]), fmean(rewards[2:]) - fmean(rewards[:2])], abs=0.006
    )
    assert "answers   text2grad generate 'plain run' --examples 3" in out
    assert "--set data.held_out=0.1" in out
    out, _ = call(capsys, "generate", "plain run", "--examples", "2")
    assert "the run held out no prompts: these are answers to prompts of its training" in out
    assert "\n2 answers: " in out


def test_the_time_of_a_run_is_told_by_phase(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"seconds/rollout": 30.0, "seconds/critic": 10.0}, {"seconds/rollout": 60.0, "seconds/audit": 0.1}]
    print_account(Run(Path("run"), lines, []))
    assert capsys.readouterr().out == "2 steps of training, 1 min 40 s: rollout 90%, critic 10%\n"


def test_a_policy_that_repeats_itself_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("text2grad.cli.train.note", lambda text, warning: told.append(text))
    warn_of_repetition(evaluations(0.8, 0.41, metric="distinct_2"))
    assert told == []
    warn_of_repetition(evaluations(0.8, 0.9, 0.39, metric="distinct_2"))
    assert told[0].startswith("distinct 2-grams fell from 0.80 to 0.39: ")


def evaluations(*values: float, metric: str = "cats") -> list[dict[str, Any]]:
    return [{"step": 5 * n, "metrics": {metric: value}} for n, value in enumerate(values)]


@pytest.mark.parametrize(
    ("keep", "metric", "values", "way"),
    [
        ("none", "cats", (0.5, 0.75, 0.6), ' run.keep_best = "highest" keeps that policy;'),
        ("highest", "cats", (0.5, 0.75, 0.6), ""),
        ("lowest", "cats", (0.5, 0.25, 0.4), ""),
        ("highest", "invented_share", (0.5, 0.75, 0.6), ""),
        ("none", "invented_share", (0.5, 0.25, 0.4), ' run.keep_best = "lowest" keeps that policy;'),
    ],
)
def test_a_policy_that_lost_most_of_its_gain_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, keep: str, metric: str, values: tuple[float, ...], way: str
) -> None:
    said: list[str] = []
    monkeypatch.setattr("text2grad.cli.train.note", lambda text, warning: said.append(text))
    recipe = make_recipe({"run": {"keep_best": keep}})
    warn_of_loss(recipe, evaluations(*values, metric=metric), metric)  # 0.1 of 0.25 is left
    assert said == [
        f"held-out {metric.replace('_', ' ')} was {values[1]:.3f} at step 5, and is {values[2]:.3f} at the end:{way} a "
        "larger ppo.beta or a smaller optim.lr keeps the policy closer to its start."
    ]
    said.clear()
    half = values[0] + 0.5 * (values[1] - values[0])
    warn_of_loss(recipe, evaluations(values[0], values[1], half, metric=metric), metric)
    warn_of_loss(recipe, evaluations(0.5, 0.5, 0.5, metric=metric), metric)
    assert said == []


@pytest.mark.parametrize(
    ("lower_is_better", "numbers", "rewards", "said"),
    [
        (True, (2.18, 0.59, 1.9), (0.0, 0.5, 0.4), 'wer was 0.590 at step 5, .* run.keep_best = "lowest" keeps'),
        (True, (2.18, 1.0, 0.59), (0.0, 0.5, 0.4), ""),
        (False, (0.59, 2.18, 0.7), (0.0, 0.5, 0.4), 'wer was 2.180 at step 5, .* run.keep_best = "highest" keeps'),
        (None, (2.18, 3.0, 0.59), (0.0, 0.5, 0.4), ""),  # nobody said which way it should go
        (None, (2.18, 3.0, 0.59), (0.0, 0.5, 0.1), "reward was 0.500 at step 5, .* the end: a larger ppo.beta"),
    ],
)
def test_a_metric_states_which_way_it_should_go(
    monkeypatch: pytest.MonkeyPatch,
    lower_is_better: bool | None,
    numbers: tuple[float, ...],
    rewards: tuple[float, ...],
    said: str,
) -> None:
    told: list[str] = []
    monkeypatch.setattr("text2grad.cli.train.note", lambda text, warning: told.append(text))
    metric = SimpleNamespace() if lower_is_better is None else SimpleNamespace(lower_is_better=lower_is_better)
    monkeypatch.setattr("text2grad.cli.train.load_callable", lambda path, kind: metric)
    both = [
        {"step": 5 * n, "metrics": {"wer": number, "reward": reward}}
        for n, (number, reward) in enumerate(zip(numbers, rewards, strict=True))
    ]
    warn_of_loss(make_recipe({"data": {"metric": "m:metric", "held_out": 0.1}}), both, "wer")
    assert len(told) == bool(said)
    assert re.search(said, "".join(told))


def test_the_policy_of_the_best_evaluation_is_named_unless_it_is_the_last(tmp_path: Path) -> None:
    recipe = make_recipe({"run": {"out": str(tmp_path)}})
    assert best_policy(recipe) == []
    for step in (2, 4):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
        (tmp_path / "checkpoints" / f"step-{step:06d}" / "state.json").write_text("{}")
    best = tmp_path / "checkpoints" / "best.json"
    best.write_text(json.dumps({"step": 2, "value": 0.75}))
    policy = tmp_path / "checkpoints" / "step-000002" / "policy"
    assert best_policy(recipe) == [("best", f"{policy} (held-out 0.750 at step 2)")]
    for step in (4, 3):  # the last one, and a removed one
        best.write_text(json.dumps({"step": step, "value": 0.75}))
        assert best_policy(recipe) == []


def test_an_interrupted_first_evaluation_names_the_command_that_goes_on(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "mine.toml", "--out", "stopped", "--set", "critic.use=module_of_train:interrupted"]
    _, err = call(capsys, *command, code=130)
    assert err.splitlines()[-1] == f"interrupted. Continue with: text2grad {' '.join(command)} --resume"


# generate


def test_held_out_prompts_get_answers_critiques_and_numbers(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = call(capsys, "generate", "run", "--examples", "3")
    rows = json.loads((trained / "evaluations" / "000004.json").read_bytes())["responses"]
    lines = out.splitlines()
    assert [prompt for prompt in (row["prompt"] for row in rows) if prompt in lines] == [r["prompt"] for r in rows[:3]]
    assert lines.count("Colours are welcome, numbers are not.") == 3
    (summary,) = [line for line in lines if line.startswith("3 answers: ")]
    answers = [lines[lines.index(row["prompt"]) + 1].split() for row in rows[:3]]
    good, poor = (sum(word in part for one in answers for word in one) for part in (WORDS[:3], WORDS[3:6]))
    assert f"cats {sum(one.count('cat') for one in answers) / 3:.3g}, reward {(good - poor) / 3:.3g}, " in summary
    assert lines[-4:] == [
        "policy   run/checkpoints/step-000004/policy (step 4)",
        "critic   module_of_train:critic",
        "report   run/report.html",
        "more     text2grad generate run --seed 1",
    ]


def test_prompts_of_a_file_are_answered(trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"prompt": "cat dog"}\n{"prompt": "dog cat"}\n')
    out, _ = call(capsys, "generate", "run", "--examples", str(tmp_path / "other.jsonl"))
    assert {"cat dog", "dog cat"} <= set(out.splitlines())
    assert "\n2 answers: cats " in out
    alone, _ = call(capsys, "generate", "run", "--examples", str(tmp_path / "other.jsonl"), "--no-critic")
    assert "Colours" not in alone
    assert "reward" not in alone
    assert "critic  " not in alone


def test_answers_are_printed_although_the_critic_fails(
    trained: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    text = (run / "run.json").read_text().replace("module_of_train:critic", "module_of_train:broken")
    (run / "run.json").write_text(text)
    out, err = call(capsys, "generate", str(run), "--prompt", "red cat", code=2)
    assert out.splitlines()[0] == "red cat"
    assert len(out.splitlines()) == 2
    assert "out of money" in err
    (run / "run.json").write_text(text.replace("module_of_train:broken", "module_that_moved:critic"))
    out, err = call(capsys, "generate", str(run), "--prompt", "red cat", code=2)
    assert "--no-critic" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--prompt", "a", "--examples", "2"], "not allowed with"),
        (["--examples", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--examples", "-1"], "--examples -1: at least one prompt is needed"),
    ],
)
def test_wrong_options_are_refused(
    trained: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    if text == "not allowed with":  # by argparse
        with pytest.raises(SystemExit, match="2"):
            main(["generate", "run", *arguments])
    else:
        assert main(["generate", "run", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_a_built_in_task_shows_its_critic_on_its_own_prompts_only(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    found = json.loads((run / "run.json").read_text())
    found["recipe"]["data"] = {"task": "summarization"}
    found["recipe"]["critic"]["use"] = ""
    (run / "run.json").write_text(json.dumps(found))
    out, err = call(capsys, "generate", str(run), "--prompt", "red cat")
    assert out.startswith("red cat\n")
    assert "judges answers to the task's own prompts only" in err
