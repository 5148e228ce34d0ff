"""A language model on a server as the critic of a training run: the prompts and the store of `text2grad annotate`.

trainer = Text2GradTrainer(model, LLMCritic("gpt-4o", template="qa"), "prompts.jsonl", steps=100)
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from text2grad.config import Endpoint, make_recipe
from text2grad.costs import TokenCount
from text2grad.critics.servers.annotation import ANSWERED, Annotator, Item, Judged, add_test_outcomes
from text2grad.critics.servers.cached_client import CachedClient
from text2grad.critics.servers.pace import Usage
from text2grad.critics.servers.session import run_session
from text2grad.critics.servers.store import Store
from text2grad.critics.servers.templates import Template
from text2grad.errors import CriticError, RequestError
from text2grad.feedback import Match
from text2grad.types import Critique, Example


class ServerCritic:
    """A critic that asks a model on a server; every answer is stored, so an equal request is made once.

    An answer without a critique becomes a critique of status `unparsable`; without an answer the status is `timed_out`.
    Both give δ = 0, and the run stops above `critic.max_failure_rate`.

    Attributes:
        annotate: makes the critique of an item from the server's answers; of the subclass.
        endpoint: the model, and how it is requested.
        tokens: tokens of the server's answers in this run.
        overlap: parts of a step that it judges at a time while the policy samples others (`critic.overlap`); 0 with a
            budget, which one call after the other spends.
    """

    annotate: Callable[[CachedClient, Item], Awaitable[Judged]]

    def __init__(self, endpoint: Endpoint, store: str | Path) -> None:
        """Take the model, and the file of its answers."""
        self.endpoint, self.path = endpoint, Path(store)
        self.tokens, self.overlap = TokenCount(), 4 if endpoint.max_cost is None else 0
        self._spent = 0.0

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response.

        Raises:
            CriticError: if the server rejects every request (a wrong key, an unknown model) or does not respond.
        """
        items = [Item(str(row), *pair) for row, pair in enumerate(zip(examples, responses, strict=True))]
        with Store(self.path) as store:
            return [self._critique(result) for result in self._results(items, store)]

    def _results(self, items: list[Item], store: Store) -> list[Judged | RequestError]:
        """Run a session, in a thread of its own since an event loop may already run in this thread."""
        cost = self.endpoint.cost(*store.tokens())
        usage = Usage(max(cost, self._spent))  # requests without an answer may have cost something, too
        with ThreadPoolExecutor(1) as thread:
            session = thread.submit(run_session, self.endpoint, store, self.annotate, items, usage=usage, phase="")
            results, _ = session.result()
        self._spent = usage.cost
        self.tokens.add(usage.prompt_tokens, usage.completion_tokens)
        return results

    def _critique(self, result: Judged | RequestError) -> Critique:
        if not isinstance(result, RequestError):
            return result[0]
        if result.kind == "not_asked":
            model, address = self.endpoint.model, self.endpoint.base_url
            raise CriticError(f"no more requests are sent to {model} at {address}: {result.detail}")
        return Critique(str(result), status="unparsable" if result.kind in ANSWERED else "timed_out")


class LLMCritic(ServerCritic):
    """Prompts a model on an OpenAI-compatible server for critiques."""

    def __init__(
        self,
        model: str,
        *,
        store: str | Path = "runs/llm_critic.sqlite",
        match: Match = "exact",
        template: str = "qa",
        criteria: Sequence[str | Mapping[str, Any]] = (),
        examples: Sequence[Mapping[str, Any]] = (),
        reasoning: bool = True,
        **settings: Any,
    ) -> None:
        """Take the name of the model, the file of its answers, and settings of the section [annotate] by name.

        Args:
            model: its name on the server.
            store: the SQLite file, which is created if it does not exist.
            match: how quotes are found in responses.
            template: the task that the prompt describes, or the path of a prompt of your own.
            criteria: what is judged in place of the task's own questions: texts, or {"name": ..., "ask": ...,
                "weight": ...}; each span has the name of its criterion as its category.
            examples: judgements to show: each {"prompt": ..., "response": ..., "answer": what is to be answered}.
            reasoning: reason and criticise before quoting; False requests quotes alone.
            settings: `base_url`, `temperature`, `max_cost`, ...

        Raises:
            ConfigError: if a setting is wrong, or there is no key.
        """
        settings = {"model": model, "template": template, "criteria": criteria, "reasoning": reasoning, **settings}
        endpoint = make_recipe({"annotate": settings}, where="LLMCritic").annotate.checked()
        self.template = Template.of(endpoint, examples)
        self.annotate = Annotator(self.template, match).annotate
        super().__init__(endpoint, store)

    def _results(self, items: list[Item], store: Store) -> list[Judged | RequestError]:
        """Add the outcome of unit tests to the items of a programming task."""
        return super()._results(add_test_outcomes(items, store) if self.template.shows_tests else items, store)
