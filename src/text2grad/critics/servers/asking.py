"""Single questions to a model: a prompt and the format of its answer → the answer, or why there is none."""

from typing import NamedTuple

from text2grad.critics.servers.annotation import Failure
from text2grad.critics.servers.cached_client import CachedClient, ResponseFormat
from text2grad.critics.servers.store import Answer, Prompt
from text2grad.errors import RequestError


class Question(NamedTuple):
    """A prompt, and the format of its answer; None requests free text."""

    prompt: Prompt
    response_format: ResponseFormat | None = None


class Reply(NamedTuple):
    """The answer to a question, or why there is none."""

    answer: Answer | None
    failure: Failure | None = None


async def reply(client: CachedClient, question: Question) -> Reply:
    """Return the answer to a question: `AnnotationSession(endpoint, store, reply)`."""
    try:
        return Reply(await client.complete(question.prompt, question.response_format))
    except RequestError as error:
        return Reply(None, Failure(error.kind, error.detail))
