"""The settings that `python -m evidence tune` searches, their ranges, and the proposals of the sampler.

The ranges are the same for every method; `Method.searched` names the settings of a method. Learning rates are searched
around the recipe's own, because a good rate depends on the model. A list of names gets the method's own name, and loses
the names that the recipe refuses together with the method's settings.

Trials are proposed in rounds of `ROUND`. The proposals of a round follow from the seed and the finished trials of the
rounds before it, so that neither the number of processes nor an interruption changes them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import log
from typing import Any

from text2grad.config import Recipe, make_recipe
from text2grad.config.recipe import OF_VALUE_FUNCTION
from text2grad.errors import ConfigError, check_known, require

ROUND = 4
"""Trials that are proposed together; all of the first round but the default settings are random."""

CONFIRMED = 3
"""Best trials that are run again on further seeds."""

EDGE = 0.05
"""Share of a range at each end, in which a value counts as at its edge."""

Settings = Mapping[str, Any]  # "section.key" → value


@dataclass(frozen=True, slots=True)
class Searched:
    """The range of one searched setting: numbers between two bounds, or listed values.

    Attributes:
        setting: "section.key".
        low: the smallest number, for a range.
        high: the largest number; numbers between are proposed evenly on a logarithmic scale.
        of_recipe: `low` and `high` are factors of the recipe's own value.
        values: the values of a list, in an order where neighbours act alike.
        named: `values` are names without order.
        ends: values at an end of the list, beyond which nothing lies; a best value there is not at an edge.
    """

    setting: str
    low: float = 0.0
    high: float = 0.0
    of_recipe: bool = False
    values: tuple[Any, ...] = ()
    named: bool = False
    ends: tuple[Any, ...] = ()

    @property
    def section_and_key(self) -> tuple[str, str]:
        """The section and the key of the setting."""
        section, key = self.setting.split(".")
        return section, key


SEARCH_SPACE: Mapping[str, Searched] = {
    "lr": Searched("optim.lr", 0.2, 5.0, of_recipe=True),
    "value_lr": Searched("optim.value_lr", 0.1, 5.0, of_recipe=True),
    "beta": Searched("ppo.beta", 0.01, 0.5),
    "gamma": Searched("ppo.gamma", values=(0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0), ends=(0.0, 1.0)),
    "lam": Searched("ppo.lam", values=(0.5, 0.8, 0.9, 0.95, 0.98, 1.0), ends=(1.0,)),
    "epochs": Searched("ppo.epochs", values=(1, 2, 3, 4, 6), ends=(1,)),
    "group_size": Searched("rollout.group_size", values=(2, 4, 8, 16), ends=(2,)),
    "span_mass": Searched("reward.span_mass", values=("token", "span", "response"), named=True),
    "positive": Searched("reward.positive", 0.02, 2.0),
    "whiten": Searched("ppo.whiten", values=("none", "scale", "full", "group"), named=True),
    "loss_mean": Searched("ppo.loss_mean", values=("token", "response", "constant"), named=True),
    "kl_in": Searched("ppo.kl_in", values=("reward", "loss"), named=True),
    "value": Searched("model.value", values=("trunk", "model"), named=True),
    "rounds": Searched("rival.rounds", values=(1, 3, 6, 12, 30, 60), ends=(1,)),
    "passes": Searched("rival.epochs", values=(1, 2, 4, 8), ends=(1,)),
    "dpo_beta": Searched("rival.dpo_beta", 0.01, 1.0),
    "keep": Searched("rival.keep", values=(0.125, 0.25, 0.5, 1.0), ends=(1.0,)),
    "value_clip_range": Searched("ppo.value_clip_range", values=(0.2, 1.0, 5.0, 0.0), ends=(0.0,)),
}
"""Name in `Method.searched` → the setting and its range; value_clip_range = 0 leaves the value loss unclipped."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial.

    Attributes:
        number: from 0, the default settings.
        settings: "section.key" → value of each searched setting.
        value: mean of the main metric over the held-out items at the final evaluation; None until it is known.
        error: the message of a run that failed; "" for none.
    """

    number: int
    settings: Settings
    value: float | None = None
    error: str = ""

    @property
    def finished(self) -> bool:
        """Whether the trial has ended, well or not."""
        return self.value is not None or bool(self.error)


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The ranges of one method's searched settings, for one recipe.

    Attributes:
        searched: the ranges by "section.key", without factors of the recipe.
        default: the settings of the first trial.
        usual: values that a default of 0 stands for.
    """

    searched: Mapping[str, Searched]
    default: Settings
    usual: Settings = field(default_factory=dict)

    @classmethod
    def of(cls, names: Sequence[str], base: Recipe, recipe: Recipe, usual: Settings | None = None) -> "SearchSpace":
        """Return the space of a method.

        Args:
            names: keys of `SEARCH_SPACE`; settings of [reward] are left out where the reward itself is the main metric,
                because trials with other rewards cannot be compared by it. Settings without effect are left out, too:
                lists of which the recipe accepts a single name, and those of a value function that no trial has.
            base: the recipe without the method's settings; ranges of numbers depend on it alone.
            recipe: the recipe with the method's settings, the first trial.
            usual: values that a default of 0 stands for, such as the usual rounds of a rival.

        Raises:
            ConfigError: if a name is unknown, or no listed value suits the recipe.
        """
        found = {}
        for name in names:
            check_known("searched", name, tuple(SEARCH_SPACE))
            one = SEARCH_SPACE[name]
            if one.section_and_key[0] != "reward" or base.data.task or base.data.metric:
                found[one.setting] = _for_recipe(one, base, recipe)
        found = {setting: one for setting, one in found.items() if not one.named or len(one.values) > 1}
        if recipe.model.value == "none" and "model.value" not in found:
            found = {setting: one for setting, one in found.items() if setting not in OF_VALUE_FUNCTION.split()}
        return cls(found, {setting: value_in(recipe, one) for setting, one in found.items()}, usual or {})

    def propose(self, trials: Sequence[Trial], *, seed: int, first: int, count: int, minimise: bool) -> list[Settings]:
        """Return the settings of the next trials, by Optuna's tree-structured Parzen estimator.

        Args:
            trials: finished trials of earlier rounds. A failed trial counts as the worst of them.
            seed: of the search.
            first: number of the first proposed trial.
            count: number of proposals.
            minimise: whether a small value is good.

        Raises:
            ConfigError: if Optuna is not installed.
        """
        if not self.searched:
            return [{} for _ in range(count)]
        require("optuna", extra="tune", purpose="python -m evidence tune")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        of_round = int.from_bytes(sha256(f"{seed} {first}".encode()).digest()[:4])
        sampler = optuna.samplers.TPESampler(
            seed=of_round, n_startup_trials=ROUND, multivariate=True, constant_liar=True
        )
        study = optuna.create_study(sampler=sampler, direction="minimize" if minimise else "maximize")
        ranges = {setting: self._distribution(one) for setting, one in self.searched.items()}
        for trial, value in zip(trials, _with_worst(trials, minimise=minimise), strict=True):
            told = {name: value or self.usual.get(name, value) for name, value in trial.settings.items()}
            known = {setting: self._encoded(one, told[setting]) for setting, one in self.searched.items()}
            study.add_trial(optuna.trial.create_trial(params=known, distributions=ranges, value=value))
        asked = [study.ask(ranges).params for _ in range(count)]
        return [
            {setting: self._decoded(self.searched[setting], value) for setting, value in one.items()} for one in asked
        ]

    def at_edge(self, settings: Settings) -> list[str]:
        """Return the settings whose values are at an edge of their range, each as "section.key = value (range)"."""
        return [
            f"{setting} = {settings[setting]:.3g} ({in_words(one)})"
            for setting, one in self.searched.items()
            if not one.named and _is_at_edge(one, settings[setting])
        ]

    @staticmethod
    def _distribution(one: Searched) -> Any:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if one.named:
            return CategoricalDistribution(one.values)
        return IntDistribution(0, len(one.values) - 1) if one.values else FloatDistribution(one.low, one.high, log=True)

    @staticmethod
    def _encoded(one: Searched, value: Any) -> Any:
        """Return a value as the sampler has it: a name, an index in the list, or the nearest number in the range."""
        if one.named:
            return value
        if one.values:
            return min(range(len(one.values)), key=lambda index: abs(one.values[index] - value))
        return min(max(value, one.low), one.high)

    @staticmethod
    def _decoded(one: Searched, value: Any) -> Any:
        return value if one.named else one.values[value] if one.values else float(f"{value:.4g}")


def as_overrides(settings: Settings) -> list[str]:
    """Return settings as "section.key=value", as `--set` takes them.

    Example:
        >>> as_overrides({"ppo.beta": 0.03, "ppo.kl_in": "loss"})
        ['ppo.beta=0.03', 'ppo.kl_in="loss"']
    """
    return [f"{name}={json.dumps(value)}" for name, value in settings.items()]


def value_in(recipe: Recipe, one: Searched) -> Any:
    """Return a recipe's value of a searched setting."""
    section, key = one.section_and_key
    return getattr(getattr(recipe, section), key)


def in_words(one: Searched) -> str:
    """Return a range as text.

    Example:
        >>> in_words(SEARCH_SPACE["beta"]), in_words(SEARCH_SPACE["kl_in"]), in_words(SEARCH_SPACE["lr"])
        ('0.01 to 0.5', 'reward, loss', "0.2 to 5 times the recipe's")
    """
    if one.values:
        return ", ".join(str(value) for value in one.values)
    return f"{one.low:.3g} to {one.high:.3g}{' times the recipe' + chr(39) + 's' if one.of_recipe else ''}"


def _for_recipe(one: Searched, base: Recipe, recipe: Recipe) -> Searched:
    """Return a range without factors, with group sizes that fit and names that the recipe accepts, its own included."""
    own = value_in(base, one)
    values = one.values
    if one.of_recipe:
        return Searched(one.setting, one.low * own, one.high * own)
    if one.setting == "model.value" and base.model.lora_r:
        values = tuple("adapter" if value == "model" else value for value in values)  # not a second whole model
    if one.setting == "rollout.group_size":
        values = tuple(size for size in values if base.rollout.batch_size % size == 0)
        if not values:
            raise ConfigError(
                f"rollout.batch_size = {base.rollout.batch_size} is a multiple of none of the searched group sizes "
                f"({in_words(one)}); choose a multiple of 4"
            )
    if one.setting == "rival.rounds":
        values = tuple(rounds for rounds in values if rounds <= base.run.steps)
    if one.named:
        default = value_in(recipe, one)
        names = dict.fromkeys((*values, own, default))
        values = tuple(name for name in names if name == default or _accepts(recipe, one, name))
    return Searched(one.setting, one.low, one.high, values=values, named=one.named, ends=one.ends)


def _accepts(recipe: Recipe, one: Searched, value: Any) -> bool:
    """Return whether the recipe can be loaded with another value of a searched setting."""
    section, key = one.section_and_key
    sections = recipe.model_dump(mode="json")
    sections[section][key] = value
    try:
        make_recipe(sections)
    except ConfigError:
        return False
    return True


def _with_worst(trials: Sequence[Trial], *, minimise: bool) -> list[float]:
    """Return the value of each trial; a failed trial has the worst value of the others, or 0 where none has one."""
    known = [trial.value for trial in trials if trial.value is not None]
    worst = (max if minimise else min)(known, default=0.0)
    return [worst if trial.value is None else trial.value for trial in trials]


def _is_at_edge(one: Searched, value: Any) -> bool:
    if one.values:
        return value in (one.values[0], one.values[-1]) and value not in one.ends
    place = (log(value) - log(one.low)) / (log(one.high) - log(one.low)) if value > 0 else 0.0
    return not EDGE <= place <= 1.0 - EDGE
