"""The base of every section of a recipe, and the types of its settings."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]
Listed = Field(strict=False)  # TOML has lists, a frozen setting is a tuple


class Section(BaseModel):
    """A section of a recipe: frozen, its field docstrings are its help."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=True, allow_inf_nan=False
    )
