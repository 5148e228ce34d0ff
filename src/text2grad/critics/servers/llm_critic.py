"""A language model on a server as the critic of the training loop: the same prompts, the same store.

trainer = Text2GradTrainer(model, LLMCritic("gpt-4o", template="qa"), tokenizer, examples, recipe)
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from text2grad.config import AnnotateConfig
from text2grad.critics.servers.client import check_server
from text2grad.critics.servers.judging import ANSWERED, Item, Session, Verdict
from text2grad.critics.servers.store import Store
from text2grad.critics.servers.tested import tested
from text2grad.errors import ConfigError, CriticError
from text2grad.feedback import Match
from text2grad.types import Critique, Example


class LLMCritic:
    """Asks a model on an OpenAI-compatible server; every answer is kept, so the same is never asked twice.

    An answer that cannot be used is a critique of status `unparsable`; where no answer came it is `timed_out`. Both
    give δ = 0, and the run stops above `critic.max_failure_rate`.
    """

    def __init__(
        self, model: str, *, store: str | Path = "runs/llm_critic.sqlite", match: Match = "exact", **settings: Any
    ) -> None:
        """Take the model's name, the file of its answers, and settings of the section [annotate] by name.

        Args:
            model: its name on the server.
            store: the SQLite file, which need not exist.
            match: how quotes are found in responses.
            settings: `base_url`, `template`, `reasoning`, `temperature`, ...

        Raises:
            ConfigError: if a setting is wrong, or there is no key.
        """
        self.settings = settings_of("LLMCritic", model=model, **settings)
        check_server(self.settings)
        self.path, self.match = Path(store), match

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response.

        Raises:
            CriticError: if the server turns everything away: a wrong key, an unknown model, an empty account.
        """
        items = [
            Item(str(row), example, response)
            for row, (example, response) in enumerate(zip(examples, responses, strict=True))
        ]
        with Store(self.path) as store:
            if self.settings.template == "code":
                items = tested(items, store)
            return critiques_of(Session(self.settings, store, self.match), items)


def settings_of(name: str, **settings: Any) -> AnnotateConfig:
    """Return settings of the section [annotate] by name, for a critic of this name.

    Raises:
        ConfigError: if one is wrong.
    """
    try:
        return AnnotateConfig(**settings)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"{name} cannot be made: {said}") from error


def critiques_of(session: Session, items: Sequence[Item]) -> list[Critique]:
    """Return what a session comes to as the loop knows it, one critique per item.

    Raises:
        CriticError: if the server turns everything away, or is not there.
    """
    with ThreadPoolExecutor(1) as thread:  # a loop may run here
        verdicts, _, _ = thread.submit(lambda: asyncio.run(session.run(items))).result()
    stopped = next((one.failure for one in verdicts if one.failure and one.failure.kind == "not_asked"), None)
    if stopped:
        settings = session.settings
        raise CriticError(f"{settings.model} at {settings.base_url} is asked no more: {stopped.detail}")
    return [_critique(verdict) for verdict in verdicts]


def _critique(verdict: Verdict) -> Critique:
    """Return a verdict as the loop knows it."""
    if verdict.critique is not None:
        return verdict.critique
    kind, detail = verdict.failure or ("unreadable", "")
    return Critique(f"{kind}: {detail}", status="unparsable" if kind in ANSWERED else "timed_out")
