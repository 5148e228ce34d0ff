"""Recipes: TOML in, frozen and checked settings out. Everything wrong is refused before a model loads.

A recipe is a TOML file of sections; each section is a class of this package. `--set ppo.beta=0.1` overrides one value,
and `text2grad recipe` prints every setting with its documentation.

A contradiction of settings is refused. A setting that waits for another one is not: recipes keep it for methods that
use it, and `--set` changes one setting at a time. A warning names it (`idle_settings`).
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model, model_validator

from text2grad.config.critic import CriticConfig, RewardConfig
from text2grad.config.policy import ModelConfig, OptimConfig, PPOConfig, RolloutConfig
from text2grad.config.run import DataConfig, RunConfig
from text2grad.config.section import Section
from text2grad.config.server import AnnotateConfig, EngineConfig, ServerConfig
from text2grad.config.training import QuickstartConfig, RefreshConfig, RewardModelConfig, SFTConfig
from text2grad.errors import ConfigError, DataError, known_names
from text2grad.files import read_text


class Recipe(Section):
    """A whole run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    sft: SFTConfig = SFTConfig()
    annotate: AnnotateConfig = AnnotateConfig()
    reward_model: RewardModelConfig = RewardModelConfig()
    critic: CriticConfig = CriticConfig()
    server: ServerConfig = ServerConfig()
    refresh: RefreshConfig = RefreshConfig()
    reward: RewardConfig = RewardConfig()
    ppo: PPOConfig = PPOConfig()
    optim: OptimConfig = OptimConfig()
    run: RunConfig = RunConfig()
    quickstart: QuickstartConfig = QuickstartConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> "Recipe":
        for contradicts, reason in self._contradictions():
            if contradicts:
                raise ValueError(reason)
        return self

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        """Yield what must not hold, each with the reason."""
        model, rollout, ppo, critic = self.model, self.rollout, self.ppo, self.critic
        size, adapter, grouped = rollout.group_size, model.value == "adapter", ppo.baseline != "value"
        baseline, credit = f'ppo.baseline = "{ppo.baseline}"', f'ppo.credit = "{ppo.credit}"'
        taught, valued = ppo.credit != "spans", f'no value function, and model.value = "{model.value}" would train it'
        batch = f"rollout.batch_size = {rollout.batch_size} is not a multiple of"
        yield adapter and not model.lora_r, 'model.value = "adapter" needs model.lora_r > 0'
        yield (
            adapter and model.gradient_checkpointing,
            'model.value = "adapter" and model.gradient_checkpointing do not go together: the recomputation would '
            'run with the wrong adapter. Choose model.value = "trunk" or "model"',
        )
        yield rollout.batch_size % ppo.minibatches > 0, f"{batch} ppo.minibatches = {ppo.minibatches}"
        yield rollout.batch_size % size > 0, f"{batch} rollout.group_size = {size}"
        yield (
            not grouped and ppo.whiten == "group",
            'ppo.whiten = "group" divides by the deviation of a prompt\'s group, which ppo.baseline = "value" '
            'does not form: choose ppo.baseline = "group", or another ppo.whiten',
        )
        yield (
            grouped and size == 1,
            f"{baseline} compares the responses to one prompt: set rollout.group_size to 2 or more",
        )
        yield (
            (grouped or taught) and model.value != "none",
            f'{credit if taught else baseline} uses {valued}: set model.value = "none"',
        )
        yield (
            taught and ppo.whiten == "full",
            f'ppo.whiten = "full" would subtract a mean from the advantages of {credit}: set it to "scale" or "none"',
        )
        yield (
            ppo.credit == "gated" and self.reward.placement != "spans",
            f'{credit} weighs rewards in their spans: set reward.placement = "spans", now "{self.reward.placement}"',
        )
        yield (
            self.refresh.active and critic.learned and critic.kind == "server",
            '[refresh] trains the critic again, and one of critic.kind = "server" cannot be; choose '
            '"generative", or leave refresh.steps out',
        )


_kind: type[Recipe] = Recipe

NOT_THE_POLICY = (
    "top_p top_k min_p typical_p repetition_penalty no_repeat_ngram_size min_length min_new_tokens num_beams"
)
_NOT_THE_POLICY = (
    "would sample from something other than the policy, and PPO's ratios would compare the wrong distributions; only "
    "temperature is possible in rollouts"
)


def register_section(name: str, section: type[Section]) -> None:
    """Add a section to the recipes that this process reads; all its settings need defaults."""
    global _kind
    if name not in _kind.model_fields:
        _kind = create_model("Recipe", __base__=_kind, **{name: (section, section())})  # type: ignore[call-overload]


def load_recipe(path: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a TOML file (None: the defaults) and apply overrides.

    An override reads "section.key=value"; the value is read as TOML, else as a string.

    Raises:
        ConfigError: if the file cannot be read, a key is unknown or a value is refused.
    """
    try:
        data = {} if path is None else tomllib.loads(read_text(Path(path)))
    except (DataError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is no recipe: {error}") from error
    for override in overrides:
        _apply(data, override)
    return make_recipe(data, where=str(path or "--set"))


def make_recipe(data: Mapping[str, Any], *, where: str = "recipe", strict: bool = True) -> Recipe:
    """Return a recipe from sections of settings, as TOML gives them; `where` is named in errors.

    Without `strict`, as for recipes of runs, sections and empty settings that this process does not know are left out.

    Raises:
        ConfigError: if a key is unknown or a value is refused.
    """
    if not strict:
        known = _keys()
        data = {
            name: {key: value for key, value in values.items() if value or key in known[name]}
            for name, values in data.items()
            if name in known
        }
    _refuse_unknown(data, where)
    try:
        return _kind.model_validate(data)
    except ValidationError as error:
        reasons: dict[tuple[int | str, ...], str] = {}
        for item in error.errors():  # a setting with several types has several errors: the first is kept
            reasons.setdefault(item["loc"][:2], _explain(dict(item)))
        raise ConfigError("\n".join(f"{where}: {reason}" for reason in reasons.values())) from error


def _explain(item: dict[str, Any]) -> str:
    section, *rest = item["loc"] or ("",)
    message = item["msg"].removeprefix("Value error, ")
    if not rest:
        return f"[{section}] {message}" if section else message
    key = [str(part) for part in rest[:1] + [part for part in rest[1:] if isinstance(part, int)]]  # no names of types
    return f"[{section}] {'.'.join(key)} = {item['input']!r}: {message}"


def _keys() -> dict[str, Any]:
    """Return the settings that each section has."""
    return {name: type(field.default).model_fields for name, field in _kind.model_fields.items()}


def _refuse_unknown(data: Mapping[str, Any], where: str) -> None:
    sections = _keys()
    for section, values in data.items():
        if section not in sections:
            raise ConfigError(f"{where}: {_no_section(section)}")
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: [{section}] is a section of settings, got {values!r}")
        for key in values:
            if section == "rollout" and key in NOT_THE_POLICY.split():
                raise ConfigError(f"{where}: [rollout] {key} {_NOT_THE_POLICY}")
            if key not in sections[section]:
                homes = ", ".join(f"[{name}]" for name, keys in sections.items() if key in keys)
                there = f". It is a key of {homes}" if homes else ""
                known = known_names("key", key, sorted(sections[section]))
                raise ConfigError(f'{where}: [{section}] has no key "{key}".{known}{there}')


def _no_section(name: str) -> str:
    return f'no section "{name}".{known_names("section", name, sorted(_kind.model_fields))}'


def _apply(data: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not key:
        raise ConfigError(f'an override reads "section.key=value", got {override!r}')
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    settings = data.setdefault(section, {})
    if isinstance(settings, dict):  # anything else is refused with the rest of the recipe
        settings[key.strip()] = value


def describe(section: str | None = None) -> str:
    """Return a recipe with documentation (of one section): every key, its default, its meaning, its values in brackets.

    Settings without default are comments. The text is valid TOML.

    Raises:
        ConfigError: if there is no such section.
    """
    if section is not None and section not in _kind.model_fields:
        raise ConfigError(_no_section(section))
    lines = []
    for name in _kind.model_fields if section is None else [section]:
        kind = type(_kind.model_fields[name].default)
        lines += ["", f"[{name}]  # {kind.__doc__}"]
        for key, schema in kind.model_json_schema()["properties"].items():
            line = f"# {key} =" if schema["default"] is None else f"{key} = {json.dumps(schema['default'])}"
            lines.append(f"{line}  # {str(kind.model_fields[key].description).strip()} [{_values(schema)}]")
    return "\n".join(lines[1:]) + "\n"


def _values(schema: Mapping[str, Any]) -> str:
    """Return the values that the JSON schema of a setting allows, in words.

    Example:
        >>> schemas = PPOConfig.model_json_schema()["properties"]
        >>> [_values(schemas[name]) for name in ("kl", "gamma", "epochs", "target_kl")]
        ['"k1" | "full"', 'number, 0.0 to 1.0', 'integer ≥ 1', 'number > 0.0']
    """
    kind = schema.get("type")
    if "anyOf" in schema:
        return " | ".join(_values(option) for option in schema["anyOf"] if option["type"] != "null")
    if kind == "boolean" or "enum" in schema:
        return " | ".join(map(json.dumps, schema.get("enum", (True, False))))
    if kind == "array":
        element = schema["items"] if "items" in schema else schema["prefixItems"][0]
        return f"list of {_NAMES[element['type']]}s{_range(element)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return "table of numbers from 0 up"
    return f"{_NAMES[str(kind)]}{_range(schema)}"


_NAMES = {"integer": "integer", "number": "number", "string": "text", "object": "table"}


def _range(schema: Mapping[str, Any]) -> str:
    """Return the limits of a number, such as " ≥ 1"."""
    if {"minimum", "maximum"} <= schema.keys():
        return f", {schema['minimum']} to {schema['maximum']}"
    signs = {"minimum": " ≥", "exclusiveMinimum": " >", "maximum": ", ≤", "exclusiveMaximum": ", <"}
    return "".join(f"{sign} {schema[name]}" for name, sign in signs.items() if name in schema)


OF_VALUE_FUNCTION = "optim.value_lr optim.value_warmup_steps ppo.value_clip_range ppo.vf_coef"
"""Settings without effect where there is no value function."""

_LORA = "model.lora_alpha model.lora_targets sft.lora_dropout reward_model.lora_dropout"
_OF_SPANS = "reward.weighting reward.span_mass reward.unlabelled"

# The setting that decides, when it does, and what has no effect then: settings, or all of a section.
_RULES: tuple[tuple[str, Callable[[Recipe], object], str], ...] = (
    ("model.lora_r", lambda recipe: not recipe.model.lora_r, _LORA),
    ("model.value", lambda recipe: recipe.model.value == "none", OF_VALUE_FUNCTION),
    ("rollout.engine", lambda recipe: recipe.rollout.engine == "hf", "engine"),
    ("critic.use", lambda recipe: recipe.critic.use, "critic.model critic.kind"),
    ("critic.model", lambda recipe: not recipe.critic.use and not recipe.critic.model, "critic.kind"),
    ("critic.kind", lambda recipe: recipe.critic.kind != "generative", "critic.votes"),
    ("critic.constrain", lambda recipe: recipe.critic.constrain is False, "critic.quote_limits"),
    ("refresh.steps", lambda recipe: not recipe.refresh.asks, "refresh"),
    ("reward.placement", lambda recipe: recipe.reward.placement == "verdict", _OF_SPANS),
    ("ppo.beta", lambda recipe: not recipe.ppo.beta, "ppo.target_kl"),
    ("ppo.credit", lambda recipe: recipe.ppo.credit == "spans", "ppo.teacher_update_rate"),
    ("ppo.credit", lambda recipe: recipe.ppo.credit == "gated", "reward.unlabelled"),
    ("data.held_out", lambda recipe: not recipe.data.holds_out, "data.eval_every run.keep_best"),
    ("data.eval_every", lambda recipe: not recipe.data.eval_every, "run.keep_best"),
)


def idle_settings(recipe: Recipe) -> dict[str, str]:
    """Return the settings that differ from their defaults and have no effect on `text2grad train`.

    Returns:
        "section.key" → the setting that takes away its effect, and its value.

    Example:
        >>> from text2grad.config import make_recipe
        >>> idle_settings(make_recipe({"model": {"value": "none"}, "optim": {"value_lr": 0.01}}))
        {'optim.value_lr': "model.value = 'none'"}
    """
    idle: dict[str, str] = {}
    for decider, decides, settings in _RULES:
        if decides(recipe):
            reason = f"{decider} = {attrgetter(decider)(recipe)!r}"
            for setting in settings.split():
                section, _, key = setting.partition(".")
                values = getattr(recipe, section)
                names = values.changed([key] if key else type(values).model_fields)
                idle |= {f"{section}.{name}": reason for name in names}
    return idle
