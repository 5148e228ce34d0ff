"""A repository server that speaks as much of the Hugging Face hub's API as uploading and downloading need."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

TOKEN = "hf_mine"


@dataclass
class Hub:
    """What the server holds.

    Attributes:
        url: its address.
        made: the requests that made repositories.
        files: by revision and path, of the one repository that there is.
        asked: method and path of each request.
    """

    url: str = ""
    made: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Serve an empty hub at a free port of this machine."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def reply(self, value: Any = b"", status: int = 200, **headers: str) -> None:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            for name, text in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name.replace("_", "-"), text)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            hub.asked.append(f"POST {self.path}")
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.reply({"error": "Invalid credentials"}, 401)
            elif self.path == "/api/repos/create":
                hub.made.append(json.loads(body))
                self.reply({"url": f"{hub.url}/me/mine"})
            elif self.path == "/api/validate-yaml":
                self.reply({"errors": [], "warnings": []})
            elif "/preupload/" in self.path:
                files = [{**own, "uploadMode": "regular", "shouldIgnore": False} for own in json.loads(body)["files"]]
                self.reply({"files": files})
            elif "/commit/" in self.path:
                lines = [json.loads(line)["value"] for line in body.splitlines()]
                revision = f"{len(hub.files) + 1:040x}"
                new = {own["path"]: base64.b64decode(own["content"]) for own in lines if "path" in own}
                hub.files[revision] = new
                self.reply({"commitUrl": f"{hub.url}/me/mine/commit/{revision}", "commitOid": revision})
            else:
                self.reply({"error": "unknown"}, 404)

        def do_GET(self) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            parts = self.path.split("?")[0].split("/")
            if self.path == "/api/whoami-v2":
                self.reply(
                    {"name": "me", "type": "user"} if known else {"error": "Invalid token"}, 200 if known else 401
                )
            elif "/tree/" in self.path and (files := hub.files.get(parts[-1])) is not None:
                self.reply([{"type": "file", "path": n, "size": len(d), "oid": "0" * 40} for n, d in files.items()])
            elif "/revision/" in self.path and (files := hub.files.get(parts[-1])) is not None:
                siblings = [{"rfilename": name} for name in files]
                self.reply({"id": "me/mine", "sha": parts[-1], "siblings": siblings, "private": True, "tags": []})
            elif (
                "/resolve/" in self.path and (data := hub.files.get(parts[4], {}).get("/".join(parts[5:]))) is not None
            ):
                self.reply(data, X_Repo_Commit=parts[4], ETag=f'"{len(data)}-{hash(data)}"')
            else:
                self.reply({"error": "Repository not found"}, 404, X_Error_Code="RevisionNotFound")

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
