"""A generative reward model behind a server: the prompts and critiques of `GenerativeRewardModel`, decoded by vLLM.

The prompt is the prompt of training, as a text to continue or as a chat message; decoding is greedy. Each request
carries the grammar of the critiques of its response (`critique_grammar`), so that the server's JSON is complete and its
quotes occur in the response.

The server's tokenizer is unknown here. It reads the text of a special token within a response as this token, so the
first response that seems to spell one is named in a warning.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from text2grad.costs import TokenCount
from text2grad.critics.servers import (
    AnnotationResult,
    AnnotationSession,
    CachedClient,
    Endpoint,
    Failure,
    Item,
    Prompt,
    ResponseFormat,
    Store,
    collect_critiques,
    make_values,
    numbered_items,
    read_answer,
    read_answer_by,
)
from text2grad.errors import RequestError, check_known
from text2grad.feedback import Match
from text2grad.progress import note
from text2grad.reward_models.decoding.grammar import check_expressible, critique_grammar
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.writing import (
    LABEL_FORMS,
    QUOTING,
    check_shown,
    critique_from_labels,
    critique_prompt,
    critique_request,
)
from text2grad.types import Critique, CritiqueForm, Evidence, Example, PromptFormat

DEFAULTS = {"base_url": "http://localhost:8000/v1", "api_key_env": "", "max_tokens": 512, "concurrency": 64}
"""Defaults of the endpoint that differ from an annotator's."""

SPECIAL = re.compile(r"<[|｜][^\s|｜<>]{1,40}[|｜]>|</s>|<(?:start|end)_of_turn>|<[be]os>|\[/?INST\]")
"""Texts that are special tokens of common models."""


class ServerRewardModel:
    """A critic that is a trained reward model on an OpenAI-compatible server.

    An answer without a critique becomes a critique of status `unparsable`; without an answer the status is `timed_out`.
    Both give δ = 0, and the run stops above `critic.max_failure_rate`.

    Attributes:
        overlap: parts of a step that it judges at a time while the policy samples others (`critic.overlap`).
    """

    overlap = 4

    def __init__(
        self,
        model: str,
        *,
        store: str | Path = "runs/reward_server.sqlite",
        prompt_format: PromptFormat = "plain",
        write_feedback: bool = True,
        form: CritiqueForm = "spans",
        evidence: Evidence = "none",
        prompt_words: int | None = None,
        constrain: bool = True,
        limits: QuoteLimits | None = None,
        match: Match = "exact",
        **settings: Any,
    ) -> None:
        """Take the name of the model, the file of its critiques, and settings of the section [server] by name.

        Args:
            model: its name on the server; for an adapter in vLLM, the name of the adapter.
            store: the SQLite file, which is created if it does not exist. It identifies models by name, so use another
                file or another name when the weights change.
            prompt_format: as in training: "plain" continues prompt and response, "chat" uses the chat template.
            write_feedback: False for a model that was trained to write spans only.
            form: of its critiques, as in training (`reward_model.form`).
            evidence: that it reads, as in training (`reward_model.evidence`).
            prompt_words: first words of a longer prompt that it reads, as in training; None for all.
            constrain: send the grammar. A server without grammars rejects it, and each rejected critique is a failure.
            limits: limits on constrained quotes that a grammar can express.
            match: how quotes are found in responses; always "exact" for constrained decoding.
            settings: attributes of `Endpoint`: `base_url`, `api_key_env`, `max_tokens`, `concurrency`, `timeout_s`,
                `retries`, ...

        Raises:
            ConfigError: if a setting is wrong, or there is no key.
        """
        check_known("prompt_format", prompt_format, get_args(PromptFormat))
        check_known("form", form, get_args(CritiqueForm))
        check_shown(evidence, prompt_words)
        write_feedback = settings.pop("words", write_feedback)  # its name in version 0.1
        limits = limits or QuoteLimits()
        if constrain:
            check_expressible(limits)
        fixed = {"model": model, "temperature": 0.0, "structured": "json_schema" if constrain else "off"}
        (self.endpoint,) = make_values("ServerRewardModel", {**DEFAULTS, **settings, **fixed}, Endpoint)
        self.endpoint.check("server")
        self.path, self.prompt_format, self.write_feedback = Path(store), prompt_format, write_feedback
        self.form: CritiqueForm = form
        self.evidence: Evidence = evidence
        self.prompt_words = prompt_words
        self.constrain, self.limits, self.tokens = constrain, limits, TokenCount()
        self.match: Match = "exact" if constrain else match
        self._warned = False

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response, in order.

        Raises:
            CriticError: if the server rejects every request (a wrong key, an unknown model) or does not respond.
        """
        self._warn_of_special_tokens(responses)
        with Store(self.path) as store:
            session = AnnotationSession(self.endpoint, store, self.annotate)
            return collect_critiques(session, numbered_items(examples, responses), self.tokens)

    def _warn_of_special_tokens(self, responses: Sequence[str]) -> None:
        found = next((match[0] for one in responses if (match := SPECIAL.search(one))), None)
        if found and not self._warned:
            self._warned = True
            note(
                f"a response spells {found!r}. If this is a special token of {self.endpoint.model}, the server reads "
                "it as the token, so that a response can end itself and go on as a critique: look at samples with it. "
                'critic.kind = "vllm" or "generative" reads it as text',
                warning=True,
            )

    def prompt(self, item: Item) -> Prompt:
        """Return the prompt for the critique of a response."""
        if self.prompt_format == "plain":
            return critique_prompt(item.example, item.response, self.evidence, self.prompt_words)
        request = critique_request(item.example, item.response, self.form, self.evidence, self.prompt_words)
        return ({"role": "user", "content": request},)

    async def annotate(self, client: CachedClient, item: Item) -> AnnotationResult:
        """Return the critique of one response.

        As for `GenerativeRewardModel`, a quote marks one place each time it is listed, and a list that the length limit
        cut is read up to the cut: greedy decoding may repeat a quote until the limit.
        """
        grammar = ""
        if self.constrain:
            grammar = critique_grammar(
                item.response,
                write_feedback=self.write_feedback,
                form=self.form,
                limits=self.limits,
                max_tokens=self.endpoint.max_tokens,
            )
        try:
            answer = await client.complete(self.prompt(item), ResponseFormat("grammar", grammar))
        except RequestError as error:
            return AnnotationResult(failure=Failure(error.kind, error.detail))
        if self.form not in QUOTING:
            return read_answer_by(
                lambda text: critique_from_labels(text, item.response, LABEL_FORMS[self.form]), answer
            )
        return read_answer(answer, item.response, match=self.match, occurrences="first", complete=False)
