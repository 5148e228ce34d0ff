"""One request to an OpenAI-compatible server: messages, or a text to go on with, in; `Answer` or `RequestError` out.

The `openai` client speaks to the server; it does not retry, since only `asking` knows what was paid and how fast to
ask. A request has one time limit from its start to its last byte, so that a body that trickles in cannot hold it up,
and a reply of more than 2 MiB is not read to its end: no critique is that long (`critique_text.MAX_CHARS`).

The key comes from the environment. Wherever it turns up in what a server says, it is struck out.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from text2grad.config import AnnotateConfig
from text2grad.critics.servers.store import Answer, Asked
from text2grad.errors import ConfigError, RequestError
from text2grad.feedback import MAX_CHARS

MAX_REPLY_BYTES = 2 * 2**20
LONGEST_WAIT_S = 600.0  # who asks to be left alone for longer is not waited for
STRUCK_OUT = "[key]"
_DETAIL_CHARS = 300
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_TRANSIENT_STATUSES = {408, 409, 425}
_FATAL_STATUSES = {401, 402, 403, 404}  # the key, the account, the right to use it, the model or the address


class ServerClient:
    """Speaks to one server. It belongs to one event loop."""

    def __init__(self, settings: AnnotateConfig) -> None:
        """Take the settings, and the key from the environment.

        Raises:
            ConfigError: if openai is not installed, or the key, the model or the address is missing or wrong.
        """
        try:
            import openai
        except ImportError as error:
            raise ConfigError('annotation needs the openai client: pip install "text2grad[annotate]"') from error
        check_server(settings)
        self.settings, self._key = settings, _key(settings)
        self._client = openai.AsyncOpenAI(
            base_url=settings.base_url,
            api_key=self._key or "none",
            max_retries=0,
            timeout=settings.timeout_s,
            http_client=openai.DefaultAioHttpClient(),  # half the processor time of the default
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def complete(self, messages: Asked, parameters: Mapping[str, Any]) -> Answer:
        """Ask for one answer.

        Args:
            messages: the conversation, or a text that the model is to go on with.
            parameters: of the request, by their names in the API.

        Raises:
            RequestError: if no answer came.
        """
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                body = await self._post(messages, parameters)
        except TimeoutError as error:
            limit = f"no answer within {self.settings.timeout_s:g} s"
            raise RequestError("timeout", limit, transient=True, may_cost=True) from error
        if len(body) > MAX_REPLY_BYTES:
            return Answer(self._struck_out(body.decode("utf-8", "replace")[:MAX_CHARS]), "too_long")
        return self._read(body)

    def _create(self, messages: Asked, parameters: Mapping[str, Any]) -> Any:
        """Return the request, to chat or to go on with a text, as a context whose value is the reply."""
        # The values go as they are: of arguments, the client would walk through each, a schema takes it a millisecond.
        if isinstance(messages, str):
            texts = self._client.completions.with_streaming_response
            return texts.create(model=self.settings.model, prompt="", extra_body={"prompt": messages, **parameters})
        chats = self._client.chat.completions.with_streaming_response
        body = {"messages": [dict(one) for one in messages], **parameters}
        return chats.create(model=self.settings.model, messages=[], extra_body=body)

    async def _post(self, messages: Asked, parameters: Mapping[str, Any]) -> bytes:
        """Return the body of the reply, cut where it is too long; errors of the client become `RequestError`s."""
        import httpx2
        import openai

        try:
            async with self._create(messages, parameters) as reply:
                body = bytearray()
                async for piece in reply.iter_bytes():
                    body += piece
                    if len(body) > MAX_REPLY_BYTES:
                        break
                return bytes(body)
        except openai.APIStatusError as error:
            detail = error.body.get("detail", "") if isinstance(error.body, Mapping) else ""  # FastAPI's word for it
            said = f"{error.message} {error.code or ''} {detail}"  # an empty account has its own code
            raise self._refusal(error.status_code, error.response.headers, said) from error
        except (openai.APIConnectionError, httpx2.HTTPError) as error:
            cause = _first_cause(error)  # to the layers above it, a connection that was closed is a timeout
            if isinstance(cause, TimeoutError):
                raise cause from error
            said = self._detail(f"{type(cause).__name__}: {cause}")
            raise RequestError("connection", said, transient=True, may_cost=True) from error

    def _refusal(self, status: int, headers: Mapping[str, str], message: str) -> RequestError:
        """Return the error of a reply that is no success."""
        said = self._detail(f"status {status}: {message}")
        wait = _retry_after(headers)
        if status == 429:
            if "insufficient_quota" in message or wait > LONGEST_WAIT_S:
                return RequestError("rate_limit", f"{said} (to wait: {wait:g} s)", fatal=True)
            return RequestError("rate_limit", said, transient=True, retry_after_s=wait)
        if status >= 500 or status in _TRANSIENT_STATUSES:
            return RequestError("server_error", said, transient=True, retry_after_s=wait)
        return RequestError("rejected", said, fatal=status in _FATAL_STATUSES)

    def _read(self, body: bytes) -> Answer:
        """Return the answer that a reply holds."""
        try:
            reply = json.loads(body)
            choice = reply["choices"][0]
            usage = reply.get("usage") or {}
            message = {"content": choice["text"]} if "text" in choice else choice["message"]
            text, refusal = message.get("content") or "", message.get("refusal")
            finish = str(choice.get("finish_reason") or "stop")
            tokens = [_count(usage.get(key)) for key in ("prompt_tokens", "completion_tokens")]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            shown = self._detail(body[:100].decode("utf-8", "replace"))
            raise RequestError(
                "bad_reply", f"the reply is no completion: {shown!r}", transient=True, may_cost=True
            ) from error
        if refusal or finish == "content_filter":
            text, finish = str(refusal or text), "refused"
        return Answer(self._struck_out(text if isinstance(text, str) else json.dumps(text)), finish, *tokens)

    def _struck_out(self, text: str) -> str:
        """Return a text without the key."""
        return _valid(text.replace(self._key, STRUCK_OUT) if self._key else text)

    def _detail(self, text: str) -> str:
        """Return what happened, on one line, cut where it is long."""
        return " ".join(self._struck_out(text).split())[:_DETAIL_CHARS]


def check_server(settings: AnnotateConfig, section: str = "annotate") -> None:
    """Refuse settings that name no server, or hold a secret.

    Args:
        settings: of a server, in the form of the section [annotate].
        section: the recipe's section that they come from.

    Raises:
        ConfigError: if they do; the address is not repeated where it holds a password.
    """
    if not settings.model:
        raise ConfigError(f"[{section}] model is not set; name a model that the server has, such as gpt-4o")
    parts = urlsplit(settings.base_url)
    if parts.username or parts.password or parts.query:
        raise ConfigError(
            f"[{section}] base_url holds a user, a password or a query; a recipe holds no secrets. Put the key into "
            "the environment variable that api_key_env names"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"[{section}] base_url is an address such as http://localhost:8000/v1, got {settings.base_url!r}"
        )
    _key(settings, section)


def _key(settings: AnnotateConfig, section: str = "annotate") -> str:
    """Return the key, from the environment alone."""
    name = settings.api_key_env
    if name and not os.environ.get(name):
        raise ConfigError(
            f"the environment variable {name} holds no key for {settings.base_url}. Set it, or set "
            f'[{section}] api_key_env = "" for a server that wants none'
        )
    return os.environ[name] if name else ""


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds that a reply asks to wait: a number, or until a date; 0 where it does not say."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if _NUMBER.fullmatch(headers.get(name, "")):
            return float(headers[name]) * unit_s
    try:
        until = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    return max(0.0, (until.astimezone(UTC) - datetime.now(UTC)).total_seconds())


def _first_cause(error: BaseException) -> BaseException:
    """Return what an error came from."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _count(value: Any) -> int | None:
    """Return a number of tokens, where it is one, and one that the store can hold."""
    return value if type(value) is int and 0 <= value < 2**63 else None


def _valid(text: str) -> str:
    """Return a text that UTF-8 can hold: halves of a pair that stand alone are replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
