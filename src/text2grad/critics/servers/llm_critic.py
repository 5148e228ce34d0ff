"""A language model on a server as the critic of a training run: the prompts and the store of `text2grad annotate`.

trainer = Text2GradTrainer(model, LLMCritic("gpt-4o", template="qa"), "prompts.jsonl", steps=100)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from text2grad.costs import TokenCount
from text2grad.critics.servers.annotation import Annotator, collect_critiques, numbered_items
from text2grad.critics.servers.endpoint import Endpoint, Spending, make_values
from text2grad.critics.servers.pace import Budget
from text2grad.critics.servers.session import AnnotationSession
from text2grad.critics.servers.store import Store
from text2grad.critics.servers.templates import Template, TemplateName
from text2grad.critics.servers.unit_test_outcomes import add_test_outcomes
from text2grad.errors import check_known
from text2grad.feedback import Match
from text2grad.types import Critique, Example


class LLMCritic:
    """Prompts a model on an OpenAI-compatible server; every answer is stored, so an equal request is made once.

    An answer without a critique becomes a critique of status `unparsable`; without an answer the status is `timed_out`.
    Both give δ = 0, and the run stops above `critic.max_failure_rate`.

    Attributes:
        overlap: parts of a step that it judges at a time while the policy samples others (`critic.overlap`); 0 with a
            budget, which one call after the other spends.
    """

    def __init__(
        self,
        model: str,
        *,
        store: str | Path = "runs/llm_critic.sqlite",
        match: Match = "exact",
        template: TemplateName = "qa",
        reasoning: bool = True,
        **settings: Any,
    ) -> None:
        """Take the name of the model, the file of its answers, and settings of the section [annotate] by name.

        Args:
            model: its name on the server.
            store: the SQLite file, which is created if it does not exist.
            match: how quotes are found in responses.
            template: the task that the prompt describes.
            reasoning: reason and criticise before quoting; False requests quotes alone.
            settings: attributes of `Endpoint` and `Spending`: `base_url`, `temperature`, `max_cost`, ...

        Raises:
            ConfigError: if a setting is wrong, or there is no key.
        """
        check_known("template", template, get_args(TemplateName))
        settings = {"model": model, **settings}
        self.endpoint, self.spending = make_values("LLMCritic", settings, Endpoint, Spending)
        self.endpoint.check()
        self.annotator = Annotator(Template(template, reasoning), match)
        self.path, self.tokens = Path(store), TokenCount()
        self.overlap = 4 if self.spending.max_cost is None else 0
        self._budget: Budget | None = None  # budget of the run; the store is read at the first call

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response.

        Raises:
            CriticError: if the server rejects every request: a wrong key, an unknown model, an empty account.
        """
        items = numbered_items(examples, responses)
        with Store(self.path) as store:
            if self.annotator.template.name == "code":
                items = add_test_outcomes(items, store)
            if self.overlap == 0 and self._budget is None:
                self._budget = Budget.of(self.spending, store)
            session = AnnotationSession(self.endpoint, store, self.annotator.annotate, self.spending, self._budget)
            return collect_critiques(session, items, self.tokens)
