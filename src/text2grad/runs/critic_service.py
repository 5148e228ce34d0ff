"""A critic behind HTTP, for the trainers of others: `text2grad serve`.

    POST /v1/critique   a `CritiqueRequest` as JSON
    →  {"feedback", "spans", "outcome", "status", "unmatched"}, for ids also "rewards" and "delta", a number for each id
    →  {"error": {"what", "where", "way_out"}} and a status from 400 on

Requests that wait are joined to one call of the critic, in their order. A critique is on disk before it is answered: a
request that is sent again, after its time limit or to another process, finds it, and nothing is judged twice.
"""

import json
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from text2grad.config import Recipe
from text2grad.critics import CachedCritic
from text2grad.errors import ConfigError, DataError, Text2GradError
from text2grad.feedback import check_examples, critique_to_json, json_object, to_example
from text2grad.files import to_json
from text2grad.progress import note
from text2grad.rl import rewards_of
from text2grad.types import Critique, Example, Rollout

PATH = "/v1/critique"
LOOPBACK = ("127.0.0.1", "localhost")
MOST_BYTES = 4 * 2**20  # of a body
MOST_PER_PLACE = 16  # responses that may wait, for each that a call of the critic takes
IDLE_S = 60.0  # without a byte, after which a connection is closed
WAY_OUT = 'send strict JSON such as {"prompt": "...", "ids": [1, 2]}, or with "messages" and "text"'


class Refusal(Text2GradError):
    """A request without a critique: its status of HTTP, what is wrong and where, the way out, and further headers."""

    def __init__(self, status: int, what: str, where: str, way_out: str, **headers: str) -> None:
        """Take the parts of the answer; headers are written with _ for -."""
        super().__init__(what)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}
        self.answer = {"error": {"what": what, "where": where, "way_out": way_out}}


class CritiqueRequest(BaseModel):
    """The body of a request: one prompt, and one response as sampled ids or as text; null is the same as no value."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    ids: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    text: str | None = None
    truncated: bool = False  # the length limit ended the response
    reference: str | None = None
    tests: str | None = None
    meta: dict[str, Any] | None = None
    timeout: Annotated[float, Field(gt=0.0, le=threading.TIMEOUT_MAX)] | None = None  # seconds


class CritiqueQueue:
    """Joins the requests of many threads to calls of one critic, which a thread of its own makes.

    Attributes:
        waiting: example and response of all that no call has taken yet, by key.
        calls: the thread; its `shutdown` ends it after its call of the critic, which is kept.
    """

    def __init__(self, critic: CachedCritic, *, at_once: int) -> None:
        """Take the critic, and the most responses of one call."""
        self.critic, self.at_once, self.most = critic, at_once, MOST_PER_PLACE * at_once
        self.waiting, self.calls = dict[str, tuple[Example, str]](), ThreadPoolExecutor(1)
        self._judged = dict[str, Future[Critique]]()  # of all that wait or are judged now
        self._lock = threading.Lock()

    def critique(self, example: Example, response: str, timeout_s: float | None) -> Critique:
        """Return the critique of a response, which is judged once, however many requests wait for it.

        Raises:
            Refusal: if too many wait, the critic fails, or the time is over.
        """
        key = self.critic.key(example, response)
        with self._lock:
            if key in self.critic.known:
                return self.critic([example], [response])[0]
            if key not in self._judged:
                if len(self.waiting) >= self.most:
                    what, way_out = f"{self.most:,} responses wait for the critic", "send it again a second later"
                    raise Refusal(429, what, "the queue", way_out, Retry_After="1")
                self._judged[key], self.waiting[key] = Future(), (example, response)
                self.calls.submit(self._judge_next)
            judged = self._judged[key]
        try:
            return judged.result(timeout_s)
        except TimeoutError as error:
            way_out = "send it again: the critique is made meanwhile, and kept"
            raise Refusal(504, f"there is no critique after {timeout_s:g} s", "timeout", way_out) from error

    def _judge_next(self) -> None:
        """Judge what waits, up to the most of one call; an earlier call may have taken all."""
        with self._lock:
            batch = {key: self.waiting.pop(key) for key in list(self.waiting)[: self.at_once]}
        outcomes = self._outcomes(list(batch.values()))
        with self._lock:
            judged = [self._judged.pop(key) for key in batch]
        for future, outcome in zip(judged, outcomes, strict=True):
            (future.set_exception if isinstance(outcome, Refusal) else future.set_result)(outcome)

    def _outcomes(self, asked: Sequence[tuple[Example, str]]) -> Sequence[Any]:
        """Return critiques or refusals; where a call for several fails, each is judged alone: one may be the cause."""
        try:
            return self.critic([example for example, _ in asked], [response for _, response in asked])
        except Exception as error:  # noqa: BLE001  whoever waits gets an answer
            if len(asked) > 1:
                return [outcome for each in asked for outcome in self._outcomes([each])]
            return [Refusal(502, str(error), "the critic", "mend the critic, or leave this response out")]


class CriticServer(ThreadingHTTPServer):
    """Answers with critiques and, by the policy's tokenizer, rewards of ids; each connection has a thread."""

    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], critic: CachedCritic, recipe: Recipe, tokenizer: Any, token: str = ""
    ) -> None:
        """Listen at host and port (0 is a free one).

        The recipe has the section [reward], and in rollout.rows_at_once the most responses of one call of the critic.
        The tokenizer is the policy's; None answers texts alone. Requests must bring the token, if there is one.

        Raises:
            ConfigError: if the address cannot be had, or lets other machines ask without a token.
        """
        self.queue = CritiqueQueue(critic, at_once=recipe.rollout.rows_at_once)
        self.reward, self.tokenizer, self.token, (host, port) = recipe.reward, tokenizer, token.encode(), address
        if host not in LOOPBACK and not token:
            raise ConfigError(
                f"--listen {host}:{port} lets other machines ask, and there is no token: set TEXT2GRAD_SERVE_TOKEN in "
                "the environment, which clients send as `Authorization: Bearer TOKEN`, or listen on 127.0.0.1"
            )
        try:
            super().__init__(address, _Connection)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --listen") from error

    def answer(self, body: bytes) -> dict[str, Any]:
        """Return the answer to the body of a request as JSON data; an empty list of ids is not judged.

        Raises:
            Refusal: if the request cannot be read, or gets no critique.
        """
        request, example = self._read(body)
        response, ids = request.text or "", tuple(request.ids or ())
        if request.ids == []:
            return critique_to_json(Critique("")) | {"rewards": [], "delta": []}
        if ids:
            response = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        critique = self.queue.critique(example, response, request.timeout)
        answer = critique_to_json(critique)
        for span in answer["spans"]:
            span["text"] = response[span["start"] : span["end"]]
        if ids:
            rollout = Rollout(example, (0,), ids, response, request.truncated)  # the prompt gets no reward
            rewarded = rewards_of(self.reward, self.tokenizer, [rollout], [critique])
            answer |= {"rewards": rewarded.rewards[0].tolist(), "delta": rewarded.deltas[0]}
        return answer

    def _read(self, body: bytes) -> tuple[CritiqueRequest, Example]:
        """Return the request of a body, and the example that its response answers."""
        try:
            data = json_object(body, "the body")
            json.dumps(data, ensure_ascii=False, allow_nan=False).encode()  # refuses halves of surrogate pairs, too
            request = CritiqueRequest.model_validate(data)
            pairs = (request.prompt, request.messages), (request.ids, request.text)
            if any((first is None) == (second is None) for first, second in pairs):
                raise DataError('a request has either "prompt" or "messages", and either "ids" or "text"')
            if request.ids is not None and self.tokenizer is None:
                raise DataError('"ids" need the policy\'s tokenizer: start text2grad serve with --tokenizer PATH')
            fields = request.model_dump(include={"reference", "tests", "meta"})
            example = to_example({**fields, "prompt": request.prompt or request.messages or ""}, "the body")
            check_examples(self.queue.critic.critic, [example])
        except (DataError, ValueError, RecursionError) as error:
            what, where = str(error), "the body"
            if isinstance(error, ValidationError):
                problem = error.errors()[0]
                what, where = f"{problem['msg']}, got {problem['input']!r:.60}", ".".join(map(str, problem["loc"]))
            raise Refusal(400, what, where, WAY_OUT) from error
        return request, example

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Name the error of a connection without its message, which may repeat a request; a lost client is none."""
        if not isinstance(error := sys.exception(), OSError):
            note(f"a request ended in {type(error).__name__}", warning=True)


class _Connection(BaseHTTPRequestHandler):
    """The requests of one connection; nothing of them is logged."""

    server: CriticServer
    protocol_version, timeout = "HTTP/1.1", IDLE_S

    def do_POST(self) -> None:
        """Answer a request, or refuse it."""
        try:
            body = self._body()
            self._refuse_strangers()
            self._send(200, self.server.answer(body))
        except Text2GradError as error:
            refusal = error if isinstance(error, Refusal) else Refusal(500, str(error), "the service", "mend it there")
            self._send(refusal.status, refusal.answer, refusal.headers)

    def _body(self) -> bytes:
        """Return the body; of one that is too long the first part is read, so that its sender can read the answer."""
        lengths, close = self.headers.get_all("Content-Length", []), {"Connection": "close"}
        if len(lengths) != 1 or not re.fullmatch("[0-9]{1,15}", lengths[0]) or "Transfer-Encoding" in self.headers:
            way_out = "send its length in bytes, and no chunks"
            raise Refusal(411, "the body has no length", "Content-Length", way_out, **close)
        if (length := int(lengths[0])) <= MOST_BYTES:
            return self.rfile.read(length)
        left = min(length, 16 * MOST_BYTES)
        while left > 0 and (part := self.rfile.read1(min(left, 2**16))):
            left -= len(part)
        raise Refusal(413, f"the body has {length:,} bytes", "Content-Length", f"send {MOST_BYTES:,} at most", **close)

    def _refuse_strangers(self) -> None:
        """Refuse a request by its head: without the token, of another site's page in a browser, to another path."""
        token, sent = self.server.token, self.headers.get("Authorization", "").encode("latin-1")
        host = re.sub(r":\d+$", "", self.headers.get("Host", ""))
        if token and not compare_digest(sent, b"Bearer " + token):
            way_out = "send `Authorization: Bearer SECRET`, with the secret of the service"
            raise Refusal(401, "the token is missing or wrong", "Authorization", way_out, WWW_Authenticate="Bearer")
        if not token and host not in LOOPBACK:  # a name of others may lead here
            raise Refusal(421, f"{host!r:.60} is not this machine", "Host", "ask 127.0.0.1 or localhost")
        if self.path != PATH:
            raise Refusal(404, "there is nothing at this path", "the path", f"ask {PATH}")
        if self.headers.get_content_type() != "application/json":  # a page could send others without asking
            raise Refusal(415, "the body is not declared as JSON", "Content-Type", "send application/json")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no HTTP, or has another method."""
        refusal = Refusal(code, message or self.responses[code][0], "the request", f"send POST {PATH}")
        self._send(code, refusal.answer, {"Connection": "close"})

    def _send(self, status: int, answer: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        data = to_json(answer)
        about = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        self.send_response(status)
        for name, value in about.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
