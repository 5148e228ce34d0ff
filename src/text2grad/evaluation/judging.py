"""Questions to a judge, a language model on a server: each reply is paid once, and on disk before it is used."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from text2grad.costs import metered
from text2grad.critics.servers import (
    CachedClient,
    Endpoint,
    Prompt,
    Reply,
    Request,
    ResponseFormat,
    Store,
    expected_expense,
    refuse_beyond_budget,
    run_session,
)
from text2grad.errors import ConfigError, DataError, RequestError
from text2grad.progress import note


@dataclass(frozen=True, slots=True)
class Judge:
    """A model that judges answers."""

    endpoint: Endpoint  # suites set temperature and length of its answers

    def ask(
        self, prompts: Sequence[Prompt], folder: Path, *, phase: str, response_format: ResponseFormat | None = None
    ) -> list[Reply]:
        """Return the reply to each prompt, also on disk in `folder`; the expected cost is printed first.

        Equal prompts are requested once. `phase` names the work in the progress.

        Raises:
            ConfigError: if the expected cost is beyond the budget; nothing is requested then.
            RequestError: if answers did not arrive; those that did are stored.
        """
        questions = [Request(prompt, response_format) for prompt in prompts]
        with Store(folder / "answers.sqlite") as store:
            expense = expected_expense(self.endpoint, store, questions)
            if expense.requests:
                note(f"{phase}: {expense}")
            refuse_beyond_budget([expense], self.endpoint.max_cost)
            with metered(folder, "judge") as tokens:
                replies, usage = run_session(self.endpoint, store, CachedClient.reply, questions, phase=phase)
                tokens.add(usage.prompt_tokens, usage.completion_tokens)
        failures = [answer.failure for answer in replies if answer.failure is not None]
        if failures:
            kinds = ", ".join(f"{kind} {count:,} times" for kind, count in Counter(f.kind for f in failures).items())
            raise RequestError(
                failures[0].kind,
                f"{len(failures):,} of {len(replies):,} judgements of {self.endpoint.model} did not arrive ({kinds}; "
                f"the first: {failures[0].detail}). Run the same command again: it requests the missing ones only",
            )
        return replies


def judge_of(suite: str, judge: Judge | None, *, temperature: float, max_tokens: int) -> Judge:
    """Return the judge of a suite, with the suite's sampling; a server without temperatures (None) keeps that."""
    if judge is None:
        raise ConfigError(
            f"suite {suite} needs a judge: give --judge FILE.toml, a recipe whose [annotate] names a model on an "
            "OpenAI-compatible server"
        )
    heat = None if judge.endpoint.temperature is None else temperature
    return Judge(replace(judge.endpoint, temperature=heat, max_tokens=max_tokens))


def fill(template: str, fields: Mapping[str, str], where: str) -> str:
    """Return a template with its {fields} filled; texts of models are never read as templates."""

    def text_of(match: re.Match[str]) -> str:
        if match[1] not in fields:
            raise DataError(f"{where}: the prompt has the unknown field {match[0]}; known: {', '.join(fields)}")
        return fields[match[1]]

    return re.sub(r"\{(\w+)\}", text_of, template)
