"""A generative reward model behind a server: the prompts and critiques of `GenerativeRewardModel`, decoded by vLLM.

The prompt is the prompt of training, as a text to continue or as a chat message; decoding is greedy. Each request
carries the grammar of the critiques of its response (`critique_grammar`), so that the server's JSON is complete and its
quotes occur in the response.

The server's tokenizer is unknown here. It reads the text of a special token within a response as this token, so the
first response that seems to spell one is named in a warning.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from text2grad.config import Endpoint, make_recipe
from text2grad.critics.servers import (
    CachedClient,
    Item,
    Judged,
    Prompt,
    Request,
    ResponseFormat,
    ServerCritic,
    read_answer,
)
from text2grad.errors import ConfigError
from text2grad.progress import note
from text2grad.reward_models.decoding.grammar import critique_grammar
from text2grad.reward_models.format import CritiqueFormat, read_critique
from text2grad.reward_models.writing import FORMS, critique_prompt, critique_request
from text2grad.types import Critique, Example

SPECIAL = re.compile(r"<[|｜][^\s|｜<>]{1,40}[|｜]>|</s>|<(?:start|end)_of_turn>|<[be]os>|\[/?INST\]")
"""Texts that are special tokens of common models."""


class ServerRewardModel(ServerCritic):
    """A critic that is a trained reward model on an OpenAI-compatible server."""

    def __init__(
        self,
        model: str,
        *,
        store: str | Path = "runs/reward_server.sqlite",
        format: CritiqueFormat | None = None,
        **settings: Any,
    ) -> None:
        """Take the name of the model, the file of its critiques, and settings of the section [server] by name.

        Args:
            model: its name on the server; for an adapter in vLLM, the name of the adapter.
            store: the SQLite file, which is created if it does not exist. It identifies models by name, so use another
                file or another name when the weights change.
            format: of its critiques, as in training, with limits that a grammar can express. With `constrain` each
                request carries the grammar; a server without grammars rejects it, and each rejected critique is a
                failure. The length limit is that of `settings`.
            settings: `base_url`, `api_key_env`, `max_tokens`, `concurrency`, `timeout_s`.

        Raises:
            ConfigError: if a setting is wrong, or there is no key.
        """
        self.format = format or CritiqueFormat()
        limits, constrained = self.format.limits, self.format.constrain and FORMS[self.format.form].quotes
        if constrained and (limits.one_list or limits.quoted_in_feedback or limits.verbatim):
            raise ConfigError(
                "a grammar cannot express one_list, quoted_in_feedback or verbatim; remove them, in a recipe from "
                "critic.quote_limits"
            )
        server = make_recipe({"server": settings}, where="ServerRewardModel").server
        endpoint = Endpoint(**server.model_dump(), model=model, temperature=0.0).checked("server")
        self._warned = False
        super().__init__(endpoint, store)

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response, in order; a warning names the first special token that one spells."""
        texts = (getattr(response, "text", response) for response in responses)
        token = next((match[0] for text in texts if (match := SPECIAL.search(text))), None)
        if token and not self._warned:
            self._warned = True
            note(
                f"a response spells {token!r}. If this is a special token of {self.endpoint.model}, the server reads "
                "it as the token, so that a response can end itself and go on as a critique: look at samples with it. "
                'critic.kind = "generative" reads it as text',
                warning=True,
            )
        return super().__call__(examples, responses)

    async def annotate(self, client: CachedClient, item: Item) -> Judged:
        """Return the critique of one response.

        As for `GenerativeRewardModel`, a quote marks one place each time it is listed, and a list that the length limit
        cut is read up to the cut: greedy decoding may repeat a quote until the limit.
        """
        prompt: Prompt = critique_prompt(item.example, item.response)
        if self.format.prompt_format != "plain":
            question = critique_request(item.example, item.response, self.format.form)
            prompt = ({"role": "user", "content": question},)
        wanted = None
        if self.format.constrain:
            grammar = critique_grammar(item.response, self.format, max_tokens=self.endpoint.max_tokens)
            wanted = ResponseFormat("grammar", grammar)
        answer = await client.answer(Request(prompt, wanted))
        read = partial(read_critique, response=item.response, format=self.format)
        return read_answer(answer, read, complete=not FORMS[self.format.form].quotes), answer
