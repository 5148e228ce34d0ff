"""One request to an OpenAI-compatible server: a prompt in, `Answer` or `RequestError` out.

The `openai` client makes the request and does not retry: `cached_client` retries, because it knows the budget and the
pace. A request has one time limit from its start to its last byte, so that a slow body cannot block a run.

The key comes from the environment. It is removed from every text that the server returns.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from text2grad.config import Endpoint
from text2grad.critics.servers.store import Answer
from text2grad.errors import RequestError, require

Prompt = tuple[Mapping[str, str], ...] | str  # chat messages, or a text to continue
LONGEST_WAIT_S = 600.0  # a server that asks for a longer pause ends the run
REDACTED = "[key]"
_DETAIL_CHARS = 300
_SECRET_CHARS = 12  # a shorter key is a placeholder for a server without keys, and may be a part of a word
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_STATUS = re.compile(r'"(?:code|status|status_code)"\s*:\s*"?([45]\d\d)\b')
_TOLD = ((504, re.compile(r"time[sd]?[ -]?out|deadline|overloaded", re.I)), (429, re.compile(r"rate.?limit", re.I)))
_TRANSIENT_STATUSES = {408, 409, 425}
_FINISHES = dict.fromkeys(("length", "model_length", "max_tokens", "max_output_tokens"), "length")  # Mistral, Gemini
_FINISHES |= dict.fromkeys(("safety", "refusal"), "content_filter")  # Gemini, Anthropic
_FATAL_STATUSES = {401, 402, 403, 404}  # wrong key, empty account, no permission, unknown model or address


class ServerClient:
    """Makes requests to one server. It belongs to one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Open a client for an endpoint.

        Raises:
            ConfigError: if openai is not installed, or if the key, the model or the address is missing or wrong.
        """
        require("openai", "aiohttp", extra="annotate", purpose="a critic on a server")
        from http.cookiejar import CookieJar, DefaultCookiePolicy

        import openai

        self.endpoint, self._key = endpoint.checked(), endpoint.api_key
        self._client = openai.AsyncOpenAI(
            base_url=endpoint.base_url,
            api_key=self._key or "none",
            max_retries=0,
            timeout=endpoint.timeout_s,
            http_client=openai.DefaultAioHttpClient(  # half the processor time of the default
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=()))  # a broken cookie would break all requests
            ),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def complete(self, prompt: Prompt, parameters: Mapping[str, Any]) -> Answer:
        """Request one completion; the parameters have their names in the API.

        Raises:
            RequestError: if no answer came.
        """
        try:
            async with asyncio.timeout(self.endpoint.timeout_s):
                body = await self._post(prompt, parameters)
        except TimeoutError as error:
            told = f"no answer within {self.endpoint.timeout_s:g} s; raise timeout_s, or lower concurrency"
            raise RequestError("timeout", told) from error
        return self._read(body)

    async def _post(self, prompt: Prompt, parameters: Mapping[str, Any]) -> bytes:
        """Return the body of the reply; errors of the client become `RequestError`s."""
        import openai

        model = self.endpoint.model
        # The body goes in unchanged: the client would walk through each argument, which takes 1 ms for a schema.
        try:
            if isinstance(prompt, str):
                body = {"prompt": prompt, **parameters}
                texts = self._client.completions.with_raw_response
                return (await texts.create(model=model, prompt="", extra_body=body)).content
            body = {"messages": list(map(dict, prompt)), **parameters}
            chats = self._client.chat.completions.with_raw_response
            return (await chats.create(model=model, messages=[], extra_body=body)).content
        except openai.APIStatusError as error:
            detail = error.body.get("detail", "") if isinstance(error.body, Mapping) else ""  # FastAPI's key
            message = f"{error.message} {error.code or ''} {detail}"  # an empty account has its own code
            raise self._status_error(error.status_code, error.response.headers, message) from error
        except TimeoutError:
            raise
        except Exception as error:  # each layer has its own errors for replies that are no HTTP
            cause: BaseException = error
            while cause.__cause__ is not None:  # openai reports a closed connection as a timeout
                cause = cause.__cause__
            if isinstance(cause, TimeoutError):
                raise cause from error
            raise RequestError("connection", self._detail(f"{type(cause).__name__}: {cause}")) from error

    def _status_error(self, status: int, headers: Mapping[str, str], message: str) -> RequestError:
        """Return the error for a reply with a status other than success."""
        wait, limited = _retry_after(headers), status == 429
        busy = status >= 500 or status in _TRANSIENT_STATUSES
        useless = "insufficient_quota" in message or wait > LONGEST_WAIT_S
        return RequestError(
            "rate_limit" if limited else "server_error" if busy else "rejected",
            self._detail(f"status {status}: {message}") + (f" (to wait: {wait:g} s)" if limited and useless else ""),
            fatal=(limited and useless) or status in _FATAL_STATUSES,
            retry_after_s=wait,
            status=status,
        )

    def _read(self, body: bytes) -> Answer:
        """Return the answer in the body of a reply."""
        try:
            reply = json.loads(body)
            choice = reply["choices"][0]
            usage = reply.get("usage")
            usage = usage if isinstance(usage, dict) else {}  # a paid answer counts without it
            message = {"content": choice["text"]} if "text" in choice else choice["message"]
            text, refusal = _text_of(message.get("content")), message.get("refusal")
            finish = str(choice.get("finish_reason") or "stop")
            finish = _FINISHES.get(finish.lower(), finish)
            if finish == "error":  # OpenRouter's word for an answer that broke off
                raise ValueError
            read, written = (_count(usage.get(key)) for key in ("prompt_tokens", "completion_tokens"))
            top = first_logprobs(choice)
            fields = [(len(str(value)), key) for key, value in message.items() if value and key != "role"]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise self._error_in(body.decode("utf-8", "replace")) from error
        if refusal or finish == "content_filter":
            text, finish = str(refusal or text), "refused"
        elif top is not None:
            text = json.dumps({"text": text, "logprobs": top})
        elif fields and not text.strip():  # the longest field is where else a server put what was written
            finish += ", {:,} characters of {}".format(*max(fields))
        counted = read and (written or not text)  # 0 is a proxy's word for a count that it was not told
        return Answer(self._redacted(text), finish, *((read, written) if counted else (None, None)))

    def _error_in(self, body: str) -> RequestError:
        """Return the error that a reply of status 200 holds, as gateways send it, by its number or its words."""
        number, shown = _STATUS.search(body), body[:_DETAIL_CHARS]
        if told := int(number[1]) if number else next((status for status, words in _TOLD if words.search(body)), 0):
            return self._status_error(told, {}, shown)
        return RequestError("bad_reply", f"the reply is not a completion: {self._detail(shown)!r}")

    def _redacted(self, text: str, secret_chars: int = _SECRET_CHARS) -> str:
        """Return a text that UTF-8 can encode, without the key; a key as short as a word, such as `EMPTY`, may stay."""
        text = text.replace(self._key, REDACTED) if len(self._key) >= secret_chars else text
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _detail(self, text: str) -> str:
        """Return the detail of an error on one line, cut to 300 characters and without the key."""
        return " ".join(self._redacted(text, 1).split())[:_DETAIL_CHARS]


def _text_of(content: Any) -> str:
    """Return the text of a message; of a list of parts, as Mistral's reasoning models send it, the parts of text."""
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type", "text") == "text"]
        return "".join(text for part in parts if isinstance(text := part.get("text"), str))
    return content if isinstance(content, str) else json.dumps(content) if content else ""


def first_logprobs(choice: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the log-probabilities of the most likely first tokens of a completion; None if the reply has none.

    Raises:
        LookupError, TypeError, ValueError: if the field has another form than in OpenAI's API.
    """
    if not (tokens := (choice.get("logprobs") or {}).get("content")):
        return None
    top = [*tokens[0].get("top_logprobs", ()), tokens[0]]
    return {str(token["token"]): float(token["logprob"]) for token in top}


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds to wait that the headers give; 0 if they give no number."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if _NUMBER.fullmatch(headers.get(name, "")):
            return float(headers[name]) * unit_s
    return 0.0


def _count(value: Any) -> int | None:
    """Return a token count, or None if it is not an integer that SQLite can store."""
    return value if type(value) is int and 0 <= value < 2**63 else None
