"""What a researcher hands to a trainer → recipe, examples, tokenizer."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from text2grad.config import ModelConfig, Recipe, load_recipe, make_recipe
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import read_examples, to_example
from text2grad.models import load_tokenizer
from text2grad.types import Example

SHORT = ("model", "data", "rollout", "reward", "ppo", "optim", "run")
"""The sections whose settings may be given without the section's name, as `lr=1e-5`."""


def settings_of(args: Recipe | Mapping[str, Any] | str | Path | None, keywords: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a trainer's arguments.

    Args:
        args: a recipe, the path of a TOML file, or settings by name; None takes the defaults.
        keywords: further settings by name. A name is a section with a dict (`run={"steps": 10}`), "section.key", or
            the key alone where one section of a training has it (`steps=10`, `lr=1e-5`).

    Raises:
        ConfigError: if a name or a value is wrong.
    """
    if isinstance(args, str | Path):
        args = load_recipe(Path(args))
    if args is not None and not isinstance(args, Recipe | Mapping):
        raise ConfigError(
            f"args is a {type(args).__name__}; give a text2grad.Recipe, a dict of settings such as "
            '{"steps": 100, "lr": 1e-5}, or the path of a recipe'
        )
    sections: dict[str, Any] = args.model_dump() if isinstance(args, Recipe) else {}
    names = {**(args if isinstance(args, Mapping) else {}), **keywords}
    if not names and isinstance(args, Recipe):
        return args
    for name, value in names.items():
        if name in Recipe.model_fields and isinstance(value, Mapping):
            sections[name] = {**sections.get(name, {}), **value}
        else:
            section, key = _section_and_key(name)
            sections[section] = {**sections.get(section, {}), key: value}
    return make_recipe(sections)


def _section_and_key(name: str) -> tuple[str, str]:
    """Return the section and the key of a setting's name."""
    section, _, key = name.rpartition(".")
    if section:
        return section, key
    known = {section: type(Recipe.model_fields[section].default).model_fields for section in SHORT}
    having = [section for section, keys in known.items() if name in keys]
    if len(having) == 1:
        return having[0], name
    if having:
        names = ", ".join(f'"{section}.{name}"' for section in having)
        raise ConfigError(f"{name!r} is a setting of several sections: write one of {names}")
    near = get_close_matches(name, [key for keys in known.values() for key in keys], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "; `text2grad recipe` lists all settings"
    raise ConfigError(f"there is no setting {name!r}{hint}")


def examples_of(data: Any, role: str) -> list[Example]:
    """Return the examples of a dataset.

    Args:
        data: the path of a JSONL file; or rows, each an `Example`, a prompt or a dict with "prompt" (a list,
            or a `datasets.Dataset`).
        role: the name of the argument, for errors.

    Raises:
        DataError: if there is no row, or a row is no example.
    """
    if isinstance(data, str | Path):
        return read_examples(data)
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        splits = f" with the splits {', '.join(map(str, data))}; name one" if isinstance(data, Mapping) else ""
        raise DataError(
            f"{role} is a {type(data).__name__}{splits}: give a JSONL file, a list of examples, prompts or dicts with "
            '"prompt", or a datasets.Dataset'
        )
    examples = [
        row
        if isinstance(row, Example)
        else to_example({"prompt": row} if isinstance(row, str) else row, f"{role}[{n}]")
        for n, row in enumerate(data)
    ]
    if not examples:
        raise DataError(f"{role} holds no examples")
    return examples


def tokenizer_of(model: Any, settings: ModelConfig) -> Any:
    """Return the tokenizer of a model by its path, or by the path that a loaded model remembers.

    Raises:
        ConfigError: if a loaded model remembers none.
    """
    path = model if isinstance(model, str | Path) else getattr(model, "name_or_path", "")
    if not path:
        raise ConfigError(
            f"the tokenizer of this {type(model).__name__} is not known: give it as processing_class, or the model by "
            "its name or directory"
        )
    return load_tokenizer(str(path), trust_remote_code=settings.trust_remote_code)
