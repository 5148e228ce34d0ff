"""The base of every section of a recipe, and the types of its settings."""

import json
from collections.abc import Iterable
from os.path import expanduser
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]
Listed = Field(strict=False)  # TOML has lists, a frozen setting is a tuple


class HashedTable(dict[str, Any]):
    """A table of values, of which a frozen setting needs a hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        """Return that of the values as JSON."""
        return hash(json.dumps(self, sort_keys=True))


Table = Annotated[dict[str, Any], AfterValidator(HashedTable)]


def refuse_weight(name: str, weight: Any) -> None:
    """Refuse what is no weight of spans."""
    if type(weight) not in (int, float) or not 0 <= weight < float("inf"):
        raise ValueError(
            f'"{name}" has the weight {weight!r}, and a weight is a finite number from 0 up: the label of a span '
            "says the sign, and 0 takes the mark away"
        )


def _weights(given: Any) -> Any:
    """Return a table of weights with its names in lower case; other values are refused by their type."""
    if not isinstance(given, dict):
        return given
    for name, weight in given.items():
        refuse_weight(name, weight)
    if len(table := {name.strip().casefold(): weight for name, weight in given.items()}) < len(given):
        raise ValueError("two names are the same but for upper and lower case; keep one of them")
    return table


Weights = Annotated[dict[str, float], BeforeValidator(_weights), AfterValidator(HashedTable)]


class Section(BaseModel):
    """A section of a recipe: frozen, its field docstrings are its help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _expand_home(cls, value: Any) -> Any:
        """Let ~/ be the home directory, as in a shell; refuse NUL, which no path can hold."""
        if isinstance(value, list | tuple):
            return [cls._expand_home(element) for element in value]
        if isinstance(value, str) and "\0" in value:
            raise ValueError("a text of a recipe cannot hold the character NUL")
        return expanduser(value) if isinstance(value, str) and value.startswith("~/") else value

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Take the help of a setting from the block that declares it, where a section changes the default alone."""
        for name, field in cls.model_fields.items():
            blocks = (base.model_fields.get(name) for base in cls.__mro__[1:] if issubclass(base, Section))
            field.description = field.description or next((f.description for f in blocks if f and f.description), None)

    def changed(self, names: Iterable[str]) -> dict[str, Any]:
        """Return name → value of the named settings that differ from their defaults."""
        fields = type(self).model_fields
        return {name: value for name in names if (value := getattr(self, name)) != fields[name].default}
