"""The base of every section of a recipe, and the types of its settings."""

from collections.abc import Iterable
from os.path import expanduser
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]
OF_A_RUN = "of a run"
Listed = Field(strict=False)  # TOML has lists, a frozen setting is a tuple


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
            return [cls._expand_home(one) for one in value]
        if isinstance(value, str) and "\0" in value:
            raise ValueError("a text of a recipe cannot hold the character NUL")
        return expanduser(value) if isinstance(value, str) and value.startswith("~/") else value

    def changed(self, names: Iterable[str]) -> dict[str, Any]:
        """Return those of some settings that differ from their defaults, by name."""
        fields = type(self).model_fields
        return {name: value for name in names if (value := getattr(self, name)) != fields[name].default}


def is_of_a_run(info: ValidationInfo) -> bool:
    """Return whether a recipe was written by a run: later rules about settings without effect do not refuse it."""
    return bool((info.context or {}).get(OF_A_RUN))


def refuse_no_measure(held_out: float, held_out_file: str) -> None:
    """Refuse a share of held-out data that leaves nothing to measure on or nothing to learn from."""
    if not held_out_file and not 0.0 < held_out < 1.0:
        raise ValueError(
            f"held_out = {held_out} leaves nothing to measure on or to learn from; choose a share between 0 and 1, or "
            "name a held_out_file"
        )
