"""A model on a server: its address, how it is requested, the prices of its tokens and the budget of a run."""

import os
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from text2grad.errors import ConfigError, known_names

_Count = Annotated[int, Field(ge=1)]
_Dollars = Annotated[float, Field(ge=0.0)]


@dataclass(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False))
class Endpoint:
    """A model on an OpenAI-compatible server.

    Attributes:
        model: its name on the server.
        base_url: address of the server, up to /v1.
        api_key_env: environment variable that holds the key; empty for a server without keys.
        temperature: sampling temperature; None leaves the parameter out of the request.
        max_tokens: length limit of a completion.
        concurrency: largest number of requests under way.
        timeout_s: time limit of a request, from its start to its last byte.
        prices: US dollars per million prompt tokens, and per million completion tokens.
        max_cost: US dollars that all answers in the store may cost; None sets no limit.
    """

    model: str
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = "OPENAI_API_KEY"
    temperature: Annotated[float, Field(ge=0.0)] | None = 0.3
    max_tokens: _Count = 1200
    concurrency: _Count = 32
    timeout_s: Annotated[float, Field(gt=0.0)] = 120.0
    prices: tuple[_Dollars, _Dollars] = (0.0, 0.0)
    max_cost: _Dollars | None = None

    @classmethod
    def of(cls, owner: str, settings: Mapping[str, Any]) -> "Endpoint":
        """Return an endpoint made from the keyword arguments of a critic, the `owner`.

        Raises:
            ConfigError: if there is no setting of a name, or a value is invalid.
        """
        known = list(cls.__dataclass_fields__)
        for name in settings:
            if name not in known:
                raise ConfigError(f'{owner} has no setting "{name}".{known_names("setting", name, known)}')
        try:
            return cls(**settings)
        except ValidationError as error:
            reasons = (": ".join([*map(str, wrong["loc"]), wrong["msg"]]) for wrong in error.errors())
            raise ConfigError(f"{owner}: {'; '.join(reasons).replace('Value error, ', '')}") from error

    def __post_init__(self) -> None:
        """Check that a limit on costs comes with prices."""
        if self.max_cost is not None and not any(self.prices):
            raise ValueError("max_cost needs prices: without them nothing costs anything")

    def check(self, section: str = "annotate") -> None:
        """Check that the model and the address are set, hold no secret, and that the key exists.

        Raises:
            ConfigError: if not; an address that holds a password is not repeated in the message.
        """
        if not self.model:
            raise ConfigError(f"[{section}] model is not set; name a model that the server has, such as gpt-4o")
        parts = urlsplit(self.base_url)
        if parts.username or parts.password or parts.query:
            raise ConfigError(
                f"[{section}] base_url contains a user, a password or a query, but a recipe must not contain secrets. "
                "Put the key into the environment variable that api_key_env names"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"[{section}] base_url must be an address such as http://localhost:8000/v1, got {self.base_url!r}"
            )
        if self.api_key_env and not self.api_key:
            raise ConfigError(
                f"the environment variable {self.api_key_env} holds no key for {self.base_url}. Set it, or set "
                f'[{section}] api_key_env = "" for a server without keys'
            )
        if not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ConfigError(
                f"the environment variable {self.api_key_env} holds a line break or a letter outside ASCII, which no "
                "header of HTTP can carry. Set it to the key alone"
            )

    @property
    def api_key(self) -> str:
        """The key, read from the environment and stored nowhere, without white space around it; empty without one."""
        return os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of some tokens in US dollars.

        Example:
            >>> Endpoint("gpt-4o", prices=(2.5, 10.0)).cost(1_000, 500)
            0.0075
        """
        return (prompt_tokens * self.prices[0] + completion_tokens * self.prices[1]) / 1e6
