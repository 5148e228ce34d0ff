"""A server of completions on loopback, of chats and of texts, that answers, and misbehaves as the prompt says.

A prompt that holds `[[429 500 ok]]` is met with 429 the first time it comes, 500 the second, and an answer the third
time and ever after. Prompts without such a script are answered. GET /v1/state tells how often each prompt came, and
what the last request was. What is judged stands between tags, or else is the last line.

    ok          a critique that quotes the first and the last word of the response; of two texts, for the longer
    429         rate limit; `429:0.2` with Retry-After: 0.2
    quota       rate limit, since the account is empty
    400 401 500 statuses of that number, with an error in JSON
    drop        the connection is closed without a word
    cut         half of the reply's JSON, then the connection is closed
    slow        headers, then a byte now and then, for ever
    stuck       3 MiB, then likewise
    garbage     status 200, and no JSON
    wrong       status 200, and JSON that is no chat completion
    in:NAME     status 200, and an error in its body: one of `INSIDE`
    badchunk    a chunked body whose second chunk has no size
    cutchunk    a chunked body that ends after its first chunk
    twolengths  two different Content-Length headers
    longhead    a header of 100 KB
    manyheads   2,000 headers
    nostatus    a body without status line and headers
    oddstatus   a status line without number
    badgzip     Content-Encoding: gzip, and no gzip
    badlength   a Content-Length that is no number
    charset     a completion whose charset is utf-16, in UTF-8
    latin       a completion in Latin-1, with bytes that are no UTF-8
    nulls       200 NUL bytes
    moved       status 302 to an address that nobody serves
    cookie      a cookie that no request can send back
    early       status 200 and a body that is longer than its Content-Length
    doubled     a critique that has the key good_spans twice
    huge        an answer of 10 MB
    parts       a list of parts in place of a text: a draft in thoughts, then a critique in two parts
    refused     the model refuses, in the field for it
    filtered    a filter ended the answer
    uncounted   a critique, and no number of the tokens that the answer has
    zeros       a critique, and 0 as the number of all tokens
    empty       an answer without text
    thoughts    likewise, with a critique in reasoning_content; `cutthoughts`: the length limit cut it there
    copied      a critique whose words are those that the prompt puts in their place
    length      a critique that the length limit cut
    prose       an answer that holds no critique
    answer      {"answer": ...} with the rest of the line that begins with SAY
    misquote    a critique that quotes what the response does not hold
    firstplace  a verdict for the text that stands first, whichever it is (of a judge of two texts)
    longer      a verdict for the longer of two texts
    undecided   a verdict for neither
    echo        a critique that repeats the request's Authorization header

Prompts of public judges are known by their own marks, and answered by what the texts say:

    [[rating]]  of MT-Bench: the number n of "RATE n" in the answer to judge, 5 without one, no rating for "RATE none"
    [[A]]       of MT-Bench: the longer answer, or the one that stands first if an answer has "PLACE"
    m or M.     of AlpacaEval: the longer output, or the one that stands first; with log-probabilities 3 : 1 if they are
                requested and the server has them (`--no-schemas` refuses them)
"""

import argparse
import asyncio
import hashlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.request import urlopen

REPLY = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
MALFORMED = {
    "badchunk": _HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\nnot a size\r\n',
    "cutchunk": _HEAD + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n',
    "twolengths": _HEAD + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\n1234567",
    "longhead": _HEAD + b"X-Long: " + b"x" * 100_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    "manyheads": _HEAD + b"".join(b"X-%d: 1\r\n" % n for n in range(2_000)) + b"Content-Length: 2\r\n\r\n{}",
    "nostatus": b"BODY",
    "oddstatus": b"HTTP/1.1 OK fine\r\nContent-Length: 2\r\n\r\n{}",
    "badgzip": _HEAD + b"Content-Encoding: gzip\r\nContent-Length: 7\r\n\r\ngarbage",
    "badlength": _HEAD + b"Content-Length: many\r\n\r\n{}",
    "charset": b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-16\r\nConnection: close\r\n\r\nBODY",
    "latin": _HEAD + b'Connection: close\r\n\r\n{"choices": [{"message": {"content": "caf\xe9"}}]}',
    "nulls": _HEAD + b"Content-Length: 200\r\n\r\n" + b"\0" * 200,
    "moved": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/elsewhere\r\nContent-Length: 0\r\n\r\n",
    "cookie": _HEAD + b"Set-Cookie: \xff=1\r\nContent-Length: 2\r\n\r\n{}",
    "early": _HEAD + b"Content-Length: 2\r\n\r\n{}BODY",
}
INSIDE: dict[str, Any] = {
    "number": {"error": {"message": "Provider returned error", "code": 504}},  # OpenRouter
    "broken": {  # likewise, in the middle of an answer
        "choices": [{"error": {"code": 502, "message": "no"}, "finish_reason": "error", "message": {"content": "{"}}]
    },
    "ended": {"choices": [{"finish_reason": "error", "message": {"content": "{}"}}]},
    "text": {"error": {"message": "Request timed out.", "type": "timeout_error"}},  # LiteLLM
    "page": b"<html><head><title>504 Gateway Time-out</title></head></html>",  # nginx, behind a proxy
    "busy": {"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}},  # MiniMax
    "account": {"error": {"message": "Insufficient credits", "code": "402"}},
    "format": {"error": {"message": "response_format is not known here"}},
}
SCRIPT = re.compile(r"\[\[([\w.: ]+)\]\]")
RESPONSE = re.compile(r"<response(?:-\d+)?>\n(.*?)\n</response", re.DOTALL)
HUGE = 10_000_000
_BEST_OUTPUT = "## Best Model Identifier"
LOGPROBS = (-0.3, -0.3 - 1.0986122886681098, -9.0)
"""Log-probabilities of the better output, of the other one (a third of the first), and of another word."""
SECRET = "sk-never-to-be-seen"  # the key of whoever asks
_FINISHED = {"length": "length", "cutthoughts": "length", "listing": "length", "filtered": "content_filter"}


class Running(NamedTuple):
    """A server in a process of its own."""

    url: str

    def state(self) -> dict[str, Any]:
        """Return "counts" by the prompts' SHA-256, the "most_active" at once, "busy_s", seconds of all, and "last"."""
        with urlopen(f"{self.url}/state") as reply:
            return json.loads(reply.read())  # type: ignore[no-any-return]

    def requests(self) -> int:
        """Return how many requests came in all."""
        with urlopen(f"{self.url}/requests") as reply:
            return int(reply.read())

    def hold(self, after: int) -> None:
        """Let all requests after so many in all wait until the next call; 0 holds none."""
        with urlopen(f"{self.url}/hold/{after}") as reply:
            reply.read()

    def times(self, text: str) -> int:
        """Return how often a prompt came."""
        return int(self.state()["counts"].get(hashlib.sha256(text.encode()).hexdigest(), 0))


@contextmanager
def running(*flags: str) -> Iterator[Running]:
    """Start a server, and end it."""
    with subprocess.Popen([sys.executable, __file__, *flags], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Running(f"http://127.0.0.1:{int(process.stdout.readline())}/v1")
        finally:
            process.kill()


class Asked(NamedTuple):
    """What a request asks: the prompt, the Authorization header, and whether the prompt is a text to go on with."""

    text: str
    key: str
    plain: bool
    logprobs: bool = False


class FaultServer:
    """The server; all state is in memory, and counts only grow."""

    def __init__(self, *, delay_s: float = 0.0, at_once: int = 0, no_schemas: int = 0) -> None:
        """Take the seconds that an answer takes, how many requests are allowed at once, and what schemas meet."""
        self.delay_s, self.at_once, self.no_schemas = delay_s, at_once, no_schemas
        self.reject_all, self.turn = False, asyncio.Semaphore(10_000)
        self.counts: Counter[str] = Counter()
        self.active = self.most_active = 0
        self.first_at = self.last_at = 0.0
        self.last: dict[str, Any] = {}
        self.newer_names = False
        self.hold_after = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after another."""
        try:
            while await self._one(reader, writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client was killed, or has hung up
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        if head.startswith("GET"):
            if hold := re.match(r"GET \S+/hold/(\d+) ", head):
                self.hold_after = int(hold[1])
            busy_s = self.last_at - self.first_at
            whole = {"counts": self.counts, "most_active": self.most_active, "busy_s": busy_s, "last": self.last}
            _send(writer, 200, whole if "/state" in head else self.counts.total())
            return True
        key = re.search(r"(?im)^authorization: (.*?)\r?$", head)
        request = self.last = json.loads(body)
        text = request.get("prompt") or "\n".join(message["content"] for message in request["messages"])
        name = hashlib.sha256(text.encode()).hexdigest()
        self.counts[name] += 1
        count, number = self.counts[name], self.counts.total()
        if self.no_schemas and {"response_format", "structured_outputs", "logprobs"} & request.keys():
            what = "response_format" if self.no_schemas == 503 else "this format"
            _send(writer, self.no_schemas, {"error": {"message": f"{what} is not known here"}})
            return True
        if self.reject_all:
            _send(writer, 400, {"detail": "Server is pinned to 'judge'; requested 'm'."})
            return True
        if self.newer_names and "max_tokens" in request:
            _send(
                writer, 400, {"error": {"message": "Unsupported: 'max_tokens'. Use 'max_completion_tokens' instead."}}
            )
            return True
        self.active += 1
        self.first_at = self.first_at or time.monotonic()
        self.most_active = max(self.most_active, self.active)
        try:
            if self.at_once and self.active > self.at_once:
                _send(writer, 429, {"error": {"message": "too many at once"}})
                return True
            async with self.turn:
                await asyncio.sleep(self.delay_s)
            while 0 < self.hold_after < number:
                await asyncio.sleep(0.01)
            asked = Asked(text, key[1] if key else "", "prompt" in request, bool(request.get("logprobs")))
            return await self._act(_scripted(text, count), asked, writer)
        finally:
            self.active -= 1
            self.last_at = time.monotonic()

    async def _act(self, what: str, asked: Asked, writer: asyncio.StreamWriter) -> bool:
        status, _, after = what.partition(":")
        if status.isdigit():
            header = f"Retry-After: {after}\r\n".encode() if after else b""
            _send(writer, int(status), {"error": {"message": f"no ({asked.key})"}}, header)
            return True
        if what == "quota":
            _send(writer, 429, {"error": {"message": "no", "code": "insufficient_quota"}})
            return True
        if what == "drop":
            return False
        if what in ("slow", "stuck"):
            writer.write(REPLY % (200, HUGE, b"") + b"x" * (3 * 2**20 if what == "stuck" else 0))
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
            return False
        if what in MALFORMED:
            writer.write(MALFORMED[what].replace(b"BODY", json.dumps(_completion("ok", asked)).encode()))
            return False
        if what == "garbage":
            _send(writer, 200, b"<html>Bad gateway</html>")
        elif status == "in":
            _send(writer, 200, INSIDE[after])
        elif what == "wrong":
            _send(writer, 200, {"choices": "none"})
        elif what == "cut":
            whole = json.dumps(_completion(what, asked)).encode()
            writer.write(REPLY % (200, len(whole), b"") + whole[: len(whole) // 2])
            return False
        else:
            _send(writer, 200, _completion(what, asked))
        return True


def _scripted(text: str, count: int) -> str:
    """Return what happens to a prompt that comes for the nth time."""
    script = SCRIPT.search(text)
    steps = script[1].split() if script else ["ok"]
    return steps[min(count, len(steps)) - 1] if count <= len(steps) else (steps[-1] if _answers(steps[-1]) else "ok")


def _answers(step: str) -> bool:
    """True for what is an answer, and comes again when it is asked again."""
    return step in (
        "quota",
        "refused",
        "filtered",
        "uncounted",
        "zeros",
        "empty",
        "thoughts",
        "cutthoughts",
        "copied",
        "length",
        "listing",
        "prose",
        "answer",
        "huge",
        "misquote",
        "slow",
        "400",
        "401",
        "doubled",
        "echo",
        "rating",
        "A",
        "firstplace",
        "longer",
        "undecided",
    )


def _completion(what: str, asked: Asked) -> dict[str, Any]:
    """Return a completion that answers, or half answers."""
    text, key, plain = asked.text, asked.key, asked.plain
    responses = RESPONSE.findall(text)
    words = (responses[-1] if responses else text.strip("\n").rpartition("\n")[2]).split()
    critique = {
        "textual_feedback": f'"{words[0]}" is right, but "{words[-1]}" is wrong.',
        "good_spans": [words[0]],
        "poor_spans": [words[-1]],
    }
    if what == "misquote":
        critique["poor_spans"] = ["what nobody said"]
    if what == "echo":
        critique["textual_feedback"] += f" You sent {key}."
    content: Any = json.dumps(critique)
    if what in ("rating", "A"):
        content = _judged(what, text)
    if _BEST_OUTPUT in text:
        content = _best_output(text)
    if what == "doubled":
        content = json.dumps(critique)[:-1] + f', "good_spans": [{json.dumps(words[-1])}]}}'
    if what == "ok" and "<second>\n" in text:
        what = "longer"
    if what in ("firstplace", "longer", "undecided"):
        content = _verdict(what, text)
    if what == "huge":
        content = "x" * HUGE
    if what == "answer":
        content = json.dumps({"answer": re.findall(r"^SAY (.*)", text, re.MULTILINE)[-1]})
    if what == "prose":
        content = "Once upon a time there was a dog."
    if what == "copied":
        content = json.dumps(critique | {"textual_feedback": re.findall(r'"textual_feedback": "(.*)"', text)[0]})
    beside = {"reasoning_content": f"I think: {content}"} if what.endswith("thoughts") else {}
    if what.endswith("thoughts"):
        content = None
    if what in ("empty", "refused"):
        content = "" if what == "empty" else None
    if what == "length":
        content = json.dumps(critique)[:30]
    if what == "listing":  # cut within the last quote
        content = json.dumps(critique).removesuffix('"]}')
    if what == "parts":
        draft = {"type": "text", "text": json.dumps({"good_spans": [words[-1]], "poor_spans": []})}
        texts = [{"type": "text", "text": text} for text in (content[:9], content[9:])]
        content = [{"type": "thinking", "thinking": [draft]}, *texts]
    refusal = "I will not." if what == "refused" else None
    message = {"role": "assistant", "content": content, "refusal": refusal, **beside}
    said: dict[str, Any] = {"text": content} if plain else {"message": message}
    if asked.logprobs:
        tokens = [content, "m" if content == "M" else "M", "The"]
        top = [{"token": token, "logprob": value} for token, value in zip(tokens, LOGPROBS, strict=True)]
        said["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "served",
        "choices": [{"index": 0, **said, "finish_reason": _FINISHED.get(what, "stop")}],
        "usage": {
            "prompt_tokens": 100 * (what != "zeros"),
            **({} if what == "uncounted" else {"completion_tokens": 20 * (what != "zeros")}),
        },
    }


def _verdict(what: str, text: str) -> str:
    """Return which of two texts is better."""
    first, second = (
        len(re.findall(rf"<{name}>\n(.*?)\n</{name}>", text, re.DOTALL)[-1]) for name in ("first", "second")
    )
    better = {"firstplace": "first", "undecided": "tie"}.get(what, "first" if first > second else "second")
    return json.dumps({"reasoning": "Looked at both.", "better": better})


def _judged(what: str, text: str) -> str:
    """Return the judgement of MT-Bench on the last turn that the prompt shows."""
    if what == "rating":
        answers = re.findall(
            r"(?:Start of Assistant's Answer\]|### Assistant A:)\n(.*?)(?:\n\[The End|\n\n(?:###|<\|))", text, re.DOTALL
        )
        said = re.findall(r"RATE ([\w.]*\w)", answers[-1] if answers else "")
        number = said[-1] if said else "5"
        return "It is good." if number == "none" else f"It is good. Rating: [[{number}]]"
    first, second = (
        re.findall(
            rf"(?:Start of Assistant {side}'s Answer\]|### Assistant {side}:)\n(.*?)\n(?:\[The End|\n)", text, re.DOTALL
        )[-1]
        for side in "AB"
    )
    if "PLACE" in first + second:
        return "The first. [[A]]"
    return f"Looked at both. [[{'C' if len(first) == len(second) else 'A' if len(first) > len(second) else 'B'}]]"


def _best_output(text: str) -> str:
    """Return the identifier of the better of two outputs in AlpacaEval's prompt."""
    first, second = re.findall(r'"output": """(.*?)"""', text, re.DOTALL)
    return "m" if "PLACE" in first + second or len(first) > len(second) else "M"


def _send(writer: asyncio.StreamWriter, status: int, reply: Any, header: bytes = b"") -> None:
    body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    writer.write(REPLY % (status, len(body), header) + body)


async def main() -> None:
    """Serve until killed; the port is the first line of the output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--at-once", type=int, default=0)
    parser.add_argument("--in-turn", action="store_true", help="answer one request after another")
    parser.add_argument("--no-schemas", type=int, nargs="?", const=400, default=0, metavar="STATUS")
    parser.add_argument("--reject-all", action="store_true", help="know no model, as `transformers serve` says it")
    parser.add_argument("--newer-names", action="store_true", help="refuse max_tokens, as OpenAI's reasoning models do")
    args = parser.parse_args()
    answering = FaultServer(delay_s=args.delay_s, at_once=args.at_once, no_schemas=args.no_schemas)
    answering.newer_names, answering.reject_all = args.newer_names, args.reject_all
    answering.turn = asyncio.Semaphore(1) if args.in_turn else answering.turn
    server = await asyncio.start_server(answering.serve, "127.0.0.1", 0, limit=2**24)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - whoever started it reads this
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
