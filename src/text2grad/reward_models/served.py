"""A generative reward model behind a server: what `GenerativeRewardModel` writes here, written by vLLM, say.

The prompt is the one that it was trained on, to a chat or as a text to go on with, and decoding is greedy. With each
request goes the grammar of the critiques that can be written about that response (`critique_grammar`), so that the
server's JSON is whole and its quotes stand in the response.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from text2grad.config import ServerConfig
from text2grad.critics.servers import (
    Asked,
    Asker,
    Failure,
    Form,
    Item,
    Session,
    Store,
    Verdict,
    check_server,
    critiques_of,
    read_answer,
    settings_of,
)
from text2grad.errors import RequestError, check_known
from text2grad.feedback import Match
from text2grad.reward_models.decoding.grammar import check_countable, critique_grammar
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.writing import critique_prompt, critique_request
from text2grad.types import Critique, Example, PromptFormat


class ServerRewardModel:
    """A critic that is a trained reward model on an OpenAI-compatible server.

    A critique that cannot be read is of status `unparsable`; where none came it is `timed_out`. Both give δ = 0, and
    the run stops above `critic.max_failure_rate`.
    """

    def __init__(
        self,
        model: str,
        *,
        store: str | Path = "runs/reward_server.sqlite",
        prompt_format: PromptFormat = "plain",
        write_feedback: bool = True,
        constrain: bool = True,
        limits: QuoteLimits | None = None,
        match: Match = "exact",
        **settings: Any,
    ) -> None:
        """Take the model's name, the file of its critiques, and settings of the section [server] by name.

        Args:
            model: its name on the server; of vLLM's adapters, the adapter's.
            store: the SQLite file, which need not exist. It knows models by name, so weights that change take another
                file, or another name.
            prompt_format: as it was trained: "plain" goes on with prompt and response, "chat" by its chat template.
            write_feedback: False where it was trained to write spans alone.
            constrain: send the grammar. A server that knows none refuses it, and each such critique is a failure.
            limits: on constrained quotes, those that a grammar can say.
            match: how quotes are found in responses; those of constrained decoding are always exact.
            settings: `base_url`, `api_key_env`, `max_tokens`, `concurrency`, `timeout_s`, `retries`, ...

        Raises:
            ConfigError: if a setting is wrong, or there is no key.
        """
        check_known("prompt_format", prompt_format, get_args(PromptFormat))
        limits = limits or QuoteLimits()
        if constrain:
            check_countable(limits)
        defaults = ServerConfig().model_dump(exclude={"prompt_format", "words"})
        fixed = {"model": model, "temperature": 0.0, "structured": "json_schema" if constrain else "off"}
        self.settings = settings_of("ServerRewardModel", **{**defaults, **settings, **fixed})
        check_server(self.settings, "server")
        self.path, self.prompt_format, self.write_feedback = Path(store), prompt_format, write_feedback
        self.constrain, self.limits = constrain, limits
        self.match: Match = "exact" if constrain else match

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response, in order.

        Raises:
            CriticError: if the server turns everything away: a wrong key, an unknown model; or is not there.
        """
        items = [
            Item(str(row), example, response)
            for row, (example, response) in enumerate(zip(examples, responses, strict=True))
        ]
        with Store(self.path) as store:
            return critiques_of(Session(self.settings, store, self.match, lambda asker: _Writer(asker, self)), items)

    def asked(self, item: Item) -> Asked:
        """Return what the server is asked about a response."""
        if self.prompt_format == "plain":
            return critique_prompt(item.example, item.response)
        return ({"role": "user", "content": critique_request(item.example, item.response)},)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Has the model write the critique of each item."""

    asker: Asker
    reward_model: ServerRewardModel

    async def judge(self, item: Item) -> Verdict:
        """Return what becomes of one item.

        As with the model itself, a quote marks one place each time it is listed, and a list that the length limit cut
        off is read as far as it goes: greedy decoding may list the same quote again and again.
        """
        model = self.reward_model
        grammar = ""
        if model.constrain:
            grammar = critique_grammar(
                item.response,
                write_feedback=model.write_feedback,
                limits=model.limits,
                max_tokens=model.settings.max_tokens,
            )
        try:
            answer = await self.asker.ask(model.asked(item), Form("grammar", grammar))
        except RequestError as error:
            return Verdict(failure=Failure(error.kind, error.detail))
        return read_answer(answer, item.response, match=model.match, occurrences="first", whole=False)
