"""Trackers: refused before work if they are missing, given settings without secrets, gone on with after --resume."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from small_run import recipe, trainer
from text2grad.config.recipe import make_recipe
from text2grad.errors import ConfigError
from text2grad.rl.trackers import MARK, RunTracker, check_tracker, flat_settings
from text2grad.runs.recipe_run import run_recipe


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_tracker_that_is_not_installed_is_refused_before_anything_loads(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    settings = {"run": {"tracker": name, "out": str(tmp_path / "run")}, "model": {"path": "no/such/model"}}
    with pytest.raises(ConfigError) as caught:
        run_recipe(make_recipe({**settings, "data": {"task": "summarization"}}))
    assert str(caught.value).startswith(f'run.tracker = "{name}" needs a package: pip install {name}; or choose')
    with pytest.raises(ConfigError, match=f"pip install {name}"):
        trainer(tmp_path / "run", run={"tracker": name})
    assert not (tmp_path / "run").exists()


def test_settings_are_flat_and_hold_no_password() -> None:
    found = flat_settings(
        make_recipe(
            {
                "server": {"base_url": "https://ann:secret@host:8000/v1"},
                "annotate": {"base_url": "https://host/v1?at=x@y"},
                "rollout": {"eos_token_ids": [1, 2]},
                "reward": {"severity": {"minor": 0.5}},
            }
        )
    )
    assert found["server.base_url"] == "https://***@host:8000/v1"
    assert found["annotate.base_url"] == "https://host/v1?at=x@y"
    assert found["rollout.eos_token_ids"] == "[1, 2]"
    assert found["reward.severity"] == '{"minor": 0.5}'
    assert found["ppo.target_kl"] == ""
    assert (found["ppo.beta"], found["model.lora_r"], found["ppo.whiten"]) == (0.05, 0, "full")
    assert {type(value) for value in found.values()} <= {str, int, float, bool}


# TensorBoard, which is installed.


def events(out: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(out / "text2grad"), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    return found


def texts(found: Any, name: str) -> dict[int, str]:
    return {event.step: event.tensor_proto.string_val[0].decode() for event in found.Tensors(f"{name}/text_summary")}


def test_tensorboard_gets_metrics_and_settings_and_no_text_of_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    trainer(out, run={"tracker": "tensorboard", "steps": 2}).train()
    logged = events(out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rewards = [(event.step, event.value) for event in logged.Scalars("reward/per_response")]
    assert rewards == [(line["step"], pytest.approx(line["reward/per_response"])) for line in lines]
    assert "    ppo.gamma = 0.5" in texts(logged, "settings")[0]
    assert logged.Tags()["tensors"] == ["settings/text_summary"]
    assert sorted(path.is_dir() for path in (out / "text2grad").iterdir()) == [False], "no further runs beside the run"


def test_a_resumed_run_goes_on_in_tensorboard_without_the_lost_steps(tmp_path: Path) -> None:
    """Killed after step 3, resumed from the checkpoint of step 2: each step is shown once."""
    out = tmp_path / "run"
    killed = trainer(out, run={"tracker": "tensorboard"})
    killed.tracker.start(0)
    for _ in range(3):
        killed.train_step()
        if killed.step == 2:
            killed.save()
    killed.tracker.finish()
    before = (out / "tracker.json").read_bytes()
    trainer(out, resume=True, run={"tracker": "tensorboard"}).train()
    assert [event.step for event in events(out).Scalars("reward/per_response")] == [0, 1, 2, 3]
    assert (out / "tracker.json").read_bytes() == before
    trainer(out, resume=True, run={"tracker": "tensorboard"}).train()
    assert len(list((out / "text2grad").iterdir())) == 2, "a finished run starts no tracker"


# wandb and trackio, which are not installed here: modules of the same names record the calls.


class FakeRun:
    def __init__(self, starting_step: int = 0) -> None:
        self.logged: list[tuple[int | None, dict[str, Any]]] = []
        self.starting_step, self.finished, self.broken = starting_step, 0, False

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        if self.broken:
            raise OSError("no route to host")
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1


class Table:
    def __init__(self, columns: list[str], data: list[list[Any]]) -> None:
        self.columns, self.data = columns, data


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """The module of a tracker: `inits` holds the arguments of init, `runs` what was logged."""
    import importlib.machinery

    from accelerate import tracking

    name: str = request.param
    found = ModuleType(name)
    found.__spec__ = importlib.machinery.ModuleSpec(name, None)
    state: Any = found
    state.inits, state.runs, state.Table, state.starts_at, state.logins = [], [], Table, 0, 0
    state.errors = SimpleNamespace(Error=type("Error", (Exception,), {}))

    def init(**options: Any) -> FakeRun:
        state.inits.append(options)
        state.runs.append(FakeRun(state.starts_at))
        return state.runs[-1]

    def login() -> None:
        state.logins += 1

    state.init, state.login = init, login
    monkeypatch.setitem(sys.modules, name, found)
    monkeypatch.setattr(tracking, "_available_trackers", [tracking.LoggerType(name)])
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return state


@pytest.mark.parametrize("fake", ["wandb", "trackio"], indirect=True)
def test_a_tracker_gets_project_name_settings_and_metrics(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fake.__name__
    out = tmp_path / "my-run"
    monkeypatch.setenv("WANDB_PROJECT", "ours")
    trainer(out, run={"tracker": name, "steps": 3}).train()
    (options,) = fake.inits
    assert (options["project"], options["name"], options["resume"]) == ("ours", "my-run", "never")
    assert options["config"] == flat_settings(recipe(out, run={"tracker": name, "steps": 3}))
    (run,) = fake.runs
    assert [step for step, values in run.logged if "reward/per_response" in values] == [0, 1, 2]
    assert not any("rollouts" in values for _, values in run.logged)  # no prompt and no response leaves the machine
    assert run.finished == 1
    assert fake.logins == (name == "wandb")


@pytest.mark.parametrize("fake", ["wandb", "trackio"], indirect=True)
def test_resume_goes_on_with_the_same_run_of_the_tracker(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, out = fake.__name__, tmp_path / "run"
    sections = {"run": {"tracker": name}}
    monkeypatch.setenv("WANDB_NAME", "called so")
    first = trainer(out, **sections)
    first.tracker.start(0)
    for _ in range(3):
        first.train_step()
        if first.step == 2:
            first.save()
    fake.starts_at = 3  # wandb has steps 0 to 2
    trainer(out, resume=True, **sections).train()
    one, other = fake.inits
    assert one["name"] == other["name"] == "called so"
    assert (one["resume"], other["resume"]) == ("never", "allow")
    assert one.get("id") == other.get("id")
    assert (name == "wandb") == ("id" in one)
    sent = [step for step, values in fake.runs[1].logged if "reward/per_response" in values]
    assert sent == ([3] if name == "wandb" else [2, 3])  # wandb refuses a step that it has
    (out / MARK).write_text("{cut")
    with pytest.raises(ConfigError, match=f"^cannot read {out / MARK}: .* Remove it: the tracker begins another run$"):
        trainer(out, resume=True, **sections).tracker.start(3)


@pytest.mark.parametrize("fake", ["wandb"], indirect=True)
def test_a_password_in_a_url_is_not_sent(fake: Any, tmp_path: Path) -> None:
    server = {"base_url": "https://ann:secret@host/v1"}
    trainer(tmp_path / "a", run={"tracker": "wandb", "steps": 1}, server=server).train()
    trainer(tmp_path / "b", run={"tracker": "wandb", "steps": 1}).train()
    assert "secret" not in str(fake.inits[0])
    assert [options["settings"] for options in fake.inits] == [{"x_disable_meta": True}, {"x_disable_meta": False}]


@pytest.mark.parametrize("fake", ["wandb"], indirect=True)
def test_wandb_without_a_login_is_refused_with_the_ways_out(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def login() -> None:
        raise fake.errors.Error("No API key configured.")

    fake.login = login
    with pytest.raises(
        ConfigError, match=r"No API key configured\. Run `wandb login`, set WANDB_API_KEY, or set WANDB"
    ):
        trainer(tmp_path / "run", run={"tracker": "wandb"})
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_tracker("wandb")


@pytest.mark.parametrize("fake", ["trackio"], indirect=True)
def test_a_tracker_that_fails_does_not_end_the_run(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = trainer(tmp_path / "run", run={"tracker": "trackio", "steps": 3})
    one.tracker.start(0)
    one.train_step()
    fake.runs[0].broken = True
    told: list[str] = []
    monkeypatch.setattr("text2grad.rl.trackers.note", lambda text, warning: told.append(text))
    one.train()
    assert told == [
        "the tracker trackio failed (OSError: no route to host); the run goes on without it, and "
        f"{tmp_path / 'run'} holds all metrics and responses"
    ]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("fake", ["trackio"], indirect=True)
def test_a_tracker_that_cannot_start_is_a_clear_error(fake: Any, tmp_path: Path) -> None:
    def init(**options: Any) -> None:
        raise ValueError("not a project name")

    fake.init = init
    with pytest.raises(ConfigError, match=r'run.tracker = "trackio" cannot start: not a project name; or choose'):
        trainer(tmp_path / "run", run={"tracker": "trackio"}).train()


def test_without_a_tracker_nothing_is_written(tmp_path: Path) -> None:
    trainer(tmp_path / "run", run={"steps": 1}).train()
    assert not (tmp_path / "run" / "tracker.json").exists()
    check_tracker("none")
    assert RunTracker.__doc__
