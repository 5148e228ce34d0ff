"""A model on a server that answers again after a critique: one request for each response, each answer stored."""

from collections.abc import Sequence
from pathlib import Path

from text2grad.config import Endpoint
from text2grad.critics.servers import CachedClient, Request, ResponseFormat, Store, run_session
from text2grad.errors import RequestError
from text2grad.feedback import read_objects

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORM = 'Reply in JSON: {"answer": "the new answer"}'


def complete_answers(endpoint: Endpoint, store: Path, prompts: Sequence[str]) -> list[str | None]:
    """Return the model's answer to each prompt; None where it gave none that can be read.

    Args:
        endpoint: the model, and how it is requested.
        store: the SQLite file of its answers, which is created if it does not exist.
        prompts: each becomes one user message, with the form of the answer at its end.

    Raises:
        ConfigError: if the endpoint is incomplete or its key is missing.
    """
    with Store(store) as opened:
        results, _ = run_session(endpoint, opened, _answer, prompts, phase="")
        return [None if isinstance(result, RequestError) else result for result in results]


async def _answer(client: CachedClient, prompt: str) -> str | None:
    chat = ({"role": "user", "content": f"{prompt}\n\n{FORM}"},)
    answer = await client.answer(Request(chat, ResponseFormat("schema", SCHEMA)))
    values = [reading.value.get("answer") for reading in read_objects(answer.text)]
    texts = [value for value in values if isinstance(value, str)]
    return texts[-1] if texts else None
