"""The server of the studio: routes, and the checks that every request passes.

It answers requests from this machine only, for a page that it served itself:

- Host must name the loopback address and the port, so that a foreign name that points to 127.0.0.1 is refused;
- Origin, where a browser sends it, must be the server's own;
- the address in the terminal holds a random token, which becomes a cookie that scripts and other sites cannot use;
- the content security policy allows the studio's own files, no inline script or style, and no other host;
- files are served from a list, never by a path of the request; records come from the sources that were named.
"""

import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from text2grad.errors import ConfigError, DataError, Text2GradError
from text2grad.feedback import response_of
from text2grad.files import json_lines, to_json
from text2grad_studio.exports import page_of_marks, page_of_response, preferred_name
from text2grad_studio.fields import MOST, choice, integer, integers, numbers, shown, text, texts, to_encode
from text2grad_studio.marks import OvertakenError, StoreError
from text2grad_studio.session import Session, filter_from

Scope = MutableMapping[str, Any]
MOST_BYTES = 8 * 2**20  # largest body of a request
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
CLOSED = "This page belongs to another person or session. Open the address that `text2grad studio` printed.\n"


class ForbiddenError(ConfigError):
    """This server does not take the request, though another may: the page keeps its marks and tries again."""


def make_app(session: Session, *, token: str, port: int) -> Any:
    """Return the ASGI application.

    Args:
        session: what it shows.
        token: the secret of the address.
        port: where it listens.
    """
    static = _static_files()
    store = sha256(token.encode()).hexdigest()[:12]  # the token lies in the store and moves with it

    async def page(request: Request) -> Response:
        content, kind = static["index.html"]
        return Response(content, media_type=kind)

    async def file(request: Request) -> Response:
        content, kind = static.get(request.path_params["name"], (None, ""))
        return PlainTextResponse("no such file\n", 404) if content is None else Response(content, media_type=kind)

    def get(path: str, answer: Callable[[Request], Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            return _json(await run_in_threadpool(answer, request))

        return Route(f"/api/{path}", endpoint)

    def post(path: str, answer: Callable[[Any], Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            if session.read_only:
                raise ForbiddenError("the studio was started with --read-only: nothing is saved or taught")
            given = _object(await _body(request))
            return _json(await run_in_threadpool(answer, given))

        return Route(f"/api/{path}", endpoint, methods=["POST"])

    routes = [
        Route("/", page),
        Route("/static/{name}", file),
        *_reading(session, get, store),
        *_writing(session, post, store),
        *_teaching(session, post),
        Route("/api/export/{form}", _export(session)),
    ]
    handlers: Any = {
        Text2GradError: _refusal(400),
        ValueError: _refusal(400),
        ForbiddenError: _refusal(403),
        OvertakenError: _refusal(409),
        StoreError: _refusal(503),
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token=token, port=port)


def _reading(session: Session, get: Callable[..., Route], store: str) -> list[Route]:
    """Return the routes that change nothing; `store` is the name by which pages know the directory of the studio."""

    def run(request: Request) -> int:
        return integer(request.path_params["run"], "the number of a source")

    def number(request: Request, name: str = "the number of a response") -> int:
        return integer(request.path_params["number"], name)

    def rater(request: Request) -> str:
        return request.query_params.get("rater") or session.rater

    def item(request: Request) -> str:
        return request.query_params.get("item", "")

    def find(request: Request) -> Any:
        query = request.query_params
        operations = query.get("operations")
        return session.find(
            run(request),
            filter_from(query),
            marked=choice(query.get("marked", ""), "marked", ("mine", "done", "open")),
            rater=rater(request),
            start=integer(query.get("start", 0), "start"),
            count=integer(query.get("count", 50), "count"),
            near=integer(query.get("near", -1), "near", least=-1),
            item=query.get("item", ""),
            operations=integer(operations, "operations") if operations else None,
        )

    def marked(request: Request) -> Any:
        query = request.query_params
        count = query.get("count")
        return session.marked(
            rater(request),
            query.get("text", "").strip(),
            start=integer(query.get("start", 0), "start"),
            count=integer(count, "count") if count else None,
            item=item(request),
        )

    def at_place(request: Request) -> Any:
        place = request.path_params["place"]
        step, dot, row = place.partition(".")
        if not dot:
            raise DataError(f"a place is STEP.ROW, such as 3.0, or -.ROW for a file without steps; got {shown(place)}")
        at = None if step == "-" else integer(step, "the step of a place", least=-MOST)
        return session.at_place(run(request), at, integer(row, "the row of a place"))

    return [
        get("studio", lambda request: {**session.overview(), "store": store}),
        get("runs/{run}/rollouts", find),
        get("runs/{run}/rollouts/{number}", lambda r: session.rollout(run(r), number(r), item(r))),
        get("runs/{run}/places/{place}", at_place),
        get("runs/{run}/prompt/{number}", lambda r: session.same_prompt(run(r), number(r), item(r))),
        get("runs/{run}/curves", lambda r: session.curves(run(r))),
        get("marks", marked),
        get("agreement", lambda r: session.agreement()),
        get("marks/{item}", lambda r: session.item(rater(r), r.path_params["item"])),
        get("runs/{run}/suggestions/{item}", lambda r: session.suggestions.state(run(r), r.path_params["item"])),
        get("versions/{number}", lambda r: session.versions.version(number(r, "the number of a version"))),
        get("versions/{number}/against", lambda r: session.contradictions(rater(r), number(r))),
    ]


def _writing(session: Session, post: Callable[..., Route], store: str) -> list[Route]:
    """Return the routes that save, and that ask the critic; marks of a page of another store are refused."""

    def save(given: Any) -> Any:
        if given.get("store", store) != store:  # another server may have served the page on the same port
            raise ForbiddenError("this page is of another --out: open the address that `text2grad studio` printed")
        events = given.get("events")
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise DataError(f"events is a list of operations, each an object; got {shown(events)}")
        tab, act, seen = text(given.get("tab"), "tab"), text(given.get("act"), "act"), given.get("seen")
        return session.save(_rater(session, given), tab, events, act, None if seen is None else integer(seen, "seen"))

    def suggest(given: Any) -> Any:
        return session.suggest(integer(given.get("run"), "run"), *_texts_of(given))

    def stop_critic(given: Any) -> Any:
        session.suggestions.stop(integer(given.get("run"), "run"), text(given.get("item"), "item"))
        return {}

    return [
        post("tab", lambda given: {"tab": session.marks.new_tab()}),
        post("marks", save),
        post("own", lambda given: session.own_text(*_texts_of(given))),
        post("suggest", suggest),
        post("stop-critic", stop_critic),
    ]


def _teaching(session: Session, post: Callable[..., Route]) -> list[Route]:
    """Return the routes that make versions of the policy, and let them answer."""

    def teach(given: Any) -> Any:
        who, items, parent = _rater(session, given), texts(given.get("items"), "items"), version_of(given)
        annotations = session.not_taught(who, items, parent)
        return session.versions.begin("teach", {"parent": parent, "annotations": annotations})

    def retrain(given: Any) -> Any:
        request = {"parent": version_of(given), "retraining": numbers(given.get("retraining", {}), "retraining")}
        annotations = session.to_teach(_rater(session, given), texts(given.get("items"), "items"))
        return session.versions.begin("retrain", {**request, "annotations": annotations})

    def version_of(given: Any) -> int:
        return _version(session, given.get("parent", 0), "parent")

    def ask(given: Any) -> Any:
        prompt, seed = to_encode(given.get("prompt"), "prompt"), integer(given.get("seed", 0), "seed")
        versions = integers(given.get("versions", [0]), "versions")
        asked = [_version(session, version, "a number of versions") for version in versions]
        return session.versions.begin("ask", {"prompt": prompt, "versions_asked": asked, "seed": seed})

    def why(given: Any) -> Any:
        return session.why(integer(given.get("run"), "run"), to_encode(given.get("phrase"), "phrase"))

    def stop(given: Any) -> Any:
        session.versions.stop(integer(given.get("number"), "number"))
        return session.versions.state()

    def withdraw(given: Any) -> Any:
        item, span = text(given.get("item"), "item"), text(given.get("id"), "id")
        return session.withdraw(_rater(session, given), item, span, sure=given.get("sure") is True)

    return [post(act.__name__, act) for act in (teach, retrain, ask, why, withdraw, stop)]


def _rater(session: Session, given: Any) -> str:
    return text(given.get("rater"), "rater") or session.rater


def _texts_of(given: Any) -> list[str]:
    """Return the prompt and the response of a request, which may be a conversation."""
    response = {"response": text(given.get("response"), "response"), "turns": given.get("turns")}
    return [text(given.get("prompt"), "prompt"), response_of(response, "the request")]


def _version(session: Session, value: Any, name: str) -> int:
    number = integer(value, name)
    if number:
        session.versions.version(number)  # raises an error if the version does not exist
    return number


def _export(session: Session) -> Callable[[Request], Awaitable[Response]]:
    """Return the route that hands out marks as a file."""

    def export(request: Request) -> Response:
        rater = request.query_params.get("rater") or session.rater
        form = request.path_params["form"]
        if form == "annotations.jsonl":
            data, kind = json_lines(session.marks.annotations(rater)), "application/jsonl"
        elif form == "marks.html":
            data, kind = page_of_marks(session, rater).encode(), "text/html"
        elif form == "response.html":
            run, number = (integer(request.query_params.get(name), name) for name in ("run", "number"))
            item = request.query_params.get("item", "")
            data, kind = page_of_response(session, rater, run, number, item).encode(), "text/html"
        elif form == "lesson.html":
            version = integer(request.query_params.get("version"), "version")
            data, kind = session.versions.answers(version), "text/html"
        else:
            raise DataError(f"exports are annotations.jsonl, marks.html, response.html and lesson.html, not {form!r}")
        name = preferred_name(rater, form)
        return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})

    async def endpoint(request: Request) -> Response:
        return await run_in_threadpool(export, request)  # thousands of marks take seconds, in which others are saved

    return endpoint


async def _body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        DataError: if it is no JSON, or too large, or the browser left before its end.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise DataError("the request is no JSON (content-type: application/json)")
    data = b""
    try:
        async for part in request.stream():
            data += part
            if len(data) > MOST_BYTES:
                raise DataError(f"the request has more than {MOST_BYTES / 2**20:.0f} MiB")
    except ClientDisconnect as error:  # nobody is there who could read a traceback
        raise DataError("the request broke off: its browser left") from error
    return data


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        DataError: if the body is no JSON object.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the request's body is no JSON that can be read: {error}") from error
    if not isinstance(given, dict):
        raise DataError(f"the request's body is a JSON object, got {shown(given)}")
    return given


def _json(value: Any) -> Response:
    return Response(to_json(value), media_type="application/json")


def _refusal(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return a handler of exceptions: 400 if the request stays wrong; after 403, 409 and 503 it may be sent again."""

    async def refused(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status)

    return refused


def _static_files() -> dict[str, tuple[bytes, str]]:
    """Return the files of the page by name, and the style that it shares with the reports."""
    paths = [*(files("text2grad_studio") / "static").iterdir(), files("text2grad.runs.reports") / "page.css"]
    kinds = {path: KINDS.get(f".{path.name.rpartition('.')[2]}") for path in paths}
    return {path.name: (path.read_bytes(), kind) for path, kind in kinds.items() if kind}


class Guard:
    """The checks of every request, before any route sees it."""

    def __init__(self, app: Any, *, token: str, port: int) -> None:
        """Take the application and what its requests must know."""
        self.app, self.token, self.cookie = app, token, f"text2grad_studio_{port}"
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets
        refusal = self._refusal(Request(scope))
        await (refusal or self.app)(scope, receive, _with_headers(send))

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that may not pass, or that brings the token."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self.hosts:
            return PlainTextResponse("the studio answers to 127.0.0.1 and localhost only\n", 421)
        if origin is not None and origin not in {f"http://{name}" for name in self.hosts}:
            return PlainTextResponse("the studio answers to its own page only\n", 403)
        given = request.query_params.get("token")
        if (
            given is not None
            and request.url.path == "/"
            and secrets.compare_digest(given.encode(), self.token.encode())
        ):
            rater = request.query_params.get("rater")
            answer = RedirectResponse(f"/?rater={quote(rater)}" if rater else "/", 303)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict", path="/")
            return answer
        known = request.cookies.get(self.cookie, "")
        if not secrets.compare_digest(known.encode(), self.token.encode()):
            return PlainTextResponse(CLOSED, 403)
        return None


def _with_headers(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            names = {name for name, _ in message["headers"]}
            more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in names]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending
