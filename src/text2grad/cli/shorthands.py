"""Options of a command that stand for settings of the recipe → overrides, as `--set SECTION.KEY=VALUE` gives them."""

import json
from collections.abc import Mapping


def shorthands(values: Mapping[str, object], numbers: Mapping[str, str | None] | None = None) -> list[str]:
    """Return the override of each option that is given.

    Args:
        values: texts, lists and switches by the name of their setting; JSON is also TOML for these types.
        numbers: numbers as written on the command line.

    Example:
        >>> shorthands({"run.out": "runs/a", "model.path": None}, {"annotate.max_cost": "5"})
        ['run.out="runs/a"', 'annotate.max_cost=5']
    """
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items() if value}
    return [f"{name}={text}" for name, text in {**texts, **(numbers or {})}.items() if text]
