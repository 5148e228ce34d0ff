"""The tracker of a run: metrics and settings for TensorBoard, wandb or trackio; no prompt, response or critique.

accelerate starts the tracker and sends the metrics. `tracker.json` in the run's directory names the tracker's run, and
a resumed run goes on with it. The files of the run hold everything that is sent, and all texts.
"""

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from text2grad.config import Recipe
from text2grad.errors import ConfigError
from text2grad.files import readable, to_json, write_atomically
from text2grad.progress import note

MARK, PROJECT = "tracker.json", "text2grad"
# gloo's thread needs the interpreter lock to drop its last work, and the destructor of the process group, which holds
# the lock, waits for that thread for ever (torch 2.13): the thread gets time before.
LAST_WORK_S = 0.5
OTHERWISE = "or choose another tracker with --set run.tracker=none (or tensorboard, wandb, trackio)"
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")


def check_tracker(name: str) -> None:
    """Check that a tracker is installed, and that wandb knows its user; called before a model loads.

    Raises:
        ConfigError: if not.
    """
    if name == "none":
        return
    if find_spec(name) is None:
        raise ConfigError(f'run.tracker = "{name}" needs a package: pip install {name}; {OTHERWISE}')
    is_main = os.environ.get("RANK", "0") == "0"
    if name == "wandb" and is_main and os.environ.get("WANDB_MODE", "online") == "online":
        import wandb

        try:
            wandb.login()
        except wandb.errors.Error as error:
            raise ConfigError(
                f'run.tracker = "wandb": {error} Run `wandb login`, set WANDB_API_KEY, or set WANDB_MODE=offline to '
                f"send the run later with `wandb sync`; {OTHERWISE}"
            ) from error


class RunTracker:
    """The tracker that `run.tracker` names. A failure while the run goes on is shown once, and does not end the run."""

    def __init__(self, accelerator: Accelerator, recipe: Recipe) -> None:
        """Take the accelerator, which was made with the tracker's name, and the recipe."""
        self.accelerator, self.recipe, self.name = accelerator, recipe, recipe.run.tracker
        self._started = self._failed = False

    def start(self, step: int) -> None:
        """Start the tracker's run, or go on with it; a second call does nothing.

        Args:
            step: the number of finished steps; TensorBoard drops what an earlier process logged after it.

        Raises:
            ConfigError: if the tracker cannot start.
        """
        if self._started or self.name == "none" or not self.accelerator.is_main_process:
            return
        directory, settings = Path(self.recipe.run.out), flat_settings(self.recipe)
        mark, name = directory / MARK, os.environ.get("WANDB_NAME", directory.resolve().name)
        with readable(mark, "Remove it: the tracker begins another run", ConfigError):
            earlier = json.loads(mark.read_bytes()) if mark.exists() else {}
            resumed = earlier.get("tracker") == self.name
        now = earlier if resumed else {"tracker": self.name, "name": name, "id": uuid.uuid4().hex[:8]}
        of_run = {"name": now["name"], "resume": "allow" if resumed else "never", "config": settings}
        # A command line with a password in a URL would be sent with wandb's metadata.
        quiet = {"x_disable_meta": _PASSWORD.search(str(self.recipe)) is not None}
        options: dict[str, dict[str, Any]] = {
            "tensorboard": {"purge_step": step},
            "wandb": {**of_run, "id": now["id"], "dir": str(directory), "settings": quiet},
            "trackio": {**of_run, "embed": False},
        }
        try:
            project = os.environ.get("WANDB_PROJECT", PROJECT)
            self.accelerator.init_trackers(project, init_kwargs={self.name: options[self.name]})
        except Exception as error:
            raise ConfigError(f'run.tracker = "{self.name}" cannot start: {error}; {OTHERWISE}') from error
        self._started = True
        write_atomically(mark, to_json(now))
        if self.name == "tensorboard" and not resumed:
            text = "\n".join(f"    {name} = {json.dumps(value)}" for name, value in settings.items())
            self._send(lambda: self._run.add_text("settings", text, global_step=0))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send metrics; `step` is the number of steps that were finished when they were measured."""
        # A resumed run repeats steps, and wandb refuses steps that it has.
        if self._started and not (self.name == "wandb" and step < self._run.starting_step):
            self._send(lambda: self.accelerator.log(dict(metrics), step=step))

    def finish(self) -> None:
        """End the tracker's run, and the group of processes."""
        for tracker in self.accelerator.trackers:
            self._send(tracker.finish)
        self.accelerator.trackers.clear()
        if self.accelerator.num_processes > 1:
            time.sleep(LAST_WORK_S)
        self.accelerator.end_training()

    @property
    def _run(self) -> Any:
        return self.accelerator.get_tracker(self.name, unwrap=True)

    def _send(self, call: Callable[[], Any]) -> None:
        if self._failed:
            return
        try:
            call()
        except Exception as error:  # noqa: BLE001  any error of another library: the run does not depend on it
            self._failed = True
            note(
                f"the tracker {self.name} failed ({type(error).__name__}: {error}); the run goes on without it, and "
                f"{self.recipe.run.out} holds all metrics and responses",
                warning=True,
            )


def flat_settings(recipe: Recipe) -> dict[str, str | int | float | bool]:
    """Return all settings as "section.key" → value: lists and tables as text, None as "", without passwords in URLs.

    Example:
        >>> flat_settings(Recipe())["ppo.beta"]
        0.05
    """
    settings = {}
    for section, values in recipe.model_dump(mode="json").items():
        for key, value in values.items():
            text = "" if value is None else json.dumps(value) if isinstance(value, list | dict) else value
            settings[f"{section}.{key}"] = _PASSWORD.sub("***@", text) if isinstance(text, str) else text
    return settings
