"""Baselines with a reward model that writes no words: one number per response, a label per step, or a probe.

`register` adds their kinds to `critic.kind`, and the forms of critiques of ablations to `reward_model.form`; the
modules of the kinds are imported when a recipe names one.
"""

from importlib import import_module
from typing import Any

from evidence import forms
from text2grad.align import WEIGHTINGS
from text2grad.reward_models import KINDS


def register() -> None:
    """Let recipes name the kinds "scalar", "process" and "probe" of reward models, and the form "dense"."""
    forms.register()
    WEIGHTINGS["token_importance"] = _importance
    KINDS["scalar"] = _load("scalar", "ScalarRewardModel")
    KINDS["process"] = _load("process", "ProcessRewardModel")
    KINDS["probe"] = _load("probe", "ProbeRewardModel")


def _importance() -> Any:
    return import_module("evidence.baselines.weightings").token_importance()


def _load(module: str, name: str) -> Any:
    """Return the function that loads a saved reward model of a class of this package."""

    def load(directory: str, **settings: Any) -> Any:
        return getattr(import_module(f"evidence.baselines.{module}"), name).load(directory, **settings)

    return load
