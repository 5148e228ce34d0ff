"""Requests to a model on a server, to answer or to judge: each answer is paid once, and on disk before it is used."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from text2grad.config import Endpoint
from text2grad.costs import TokenCount, metered
from text2grad.critics.servers import (
    Answer,
    CachedClient,
    Prompt,
    Request,
    ResponseFormat,
    Store,
    expected_expense,
    refuse_beyond_budget,
    run_session,
    unusable,
)
from text2grad.errors import ConfigError, RequestError
from text2grad.progress import note


def all_answers(
    endpoint: Endpoint, store: Store, requests: Sequence[Request], tokens: TokenCount, what: str
) -> list[Answer]:
    """Return the answer to each request, also in the store; `what` names them in progress and errors.

    Raises:
        RequestError: if answers did not arrive; those that did are stored.
    """
    replies, usage = run_session(endpoint, store, CachedClient.answer, requests, phase=what)
    tokens.add(usage.prompt_tokens, usage.completion_tokens)
    if failures := [reply for reply in replies if isinstance(reply, RequestError)]:
        kinds = ", ".join(f"{kind} {count:,} times" for kind, count in Counter(f.kind for f in failures).items())
        raise RequestError(
            failures[0].kind,
            f"{len(failures):,} of {len(replies):,} {what} did not arrive ({kinds}); the first: {failures[0].detail}. "
            "Run the same command again: it requests the missing ones only",
        )
    answers = [reply for reply in replies if isinstance(reply, Answer)]
    if empty := [unusable(answer).detail for answer in answers if not answer.text.strip()]:
        note(f"{len(empty):,} of {len(answers):,} {what} are empty; the first: {empty[0]}", warning=True)
    return answers


def judge_of(suite: str, judge: Endpoint | None, *, temperature: float, max_tokens: int) -> Endpoint:
    """Return the judge of a suite, with the suite's sampling; a server without temperatures (None) keeps that."""
    if judge is None:
        raise ConfigError(
            f"suite {suite} needs a judge: give --judge FILE.toml, a recipe whose [annotate] names a model on an "
            "OpenAI-compatible server"
        )
    heat = None if judge.temperature is None else temperature
    return judge.model_copy(update={"temperature": heat, "max_tokens": max_tokens})


def judgements(
    judge: Endpoint, prompts: Sequence[Prompt], folder: Path, response_format: ResponseFormat | None = None
) -> list[Answer]:
    """Return the judge's reply to each prompt, also on disk in `folder`; the expected cost is printed first.

    Equal prompts are requested once.

    Raises:
        ConfigError: if the expected cost is beyond the budget; nothing is requested then.
        RequestError: if answers did not arrive; those that did are stored.
    """
    requests = [Request(prompt, response_format) for prompt in prompts]
    with Store(folder / "answers.sqlite") as store:
        expense = expected_expense(judge, store, requests)
        if expense.requests:
            note(f"judgements: {expense.text}")
        refuse_beyond_budget([expense], judge.max_cost)
        with metered(folder, "judge") as tokens:
            return all_answers(judge, store, requests, tokens, f"judgements of {judge.model}")
