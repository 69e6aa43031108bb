"""A git server over HTTP on loopback, for tests: git's own http-backend behind a small server."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass(slots=True)
class GitServer:
    """A server of the repositories below `root`. `authorizations` holds the received headers, empty
    if a request had none.
    """

    root: Path
    url: str = ""
    required: str = ""
    authorizations: list[str] = field(default_factory=list)


Answer = tuple[int, Mapping[str, str], bytes]
Api = Callable[[str, str, Mapping[str, str], bytes], Answer | None]
"""A handler of requests (method, target, headers, body) that are not git's; returns None for
git's.
"""


@contextmanager
def git_server(root: Path, required: str = "", api: Api = lambda *_: None) -> Iterator[GitServer]:  # noqa: C901 - a class within
    """Serve until the context ends. With `required`, requests with another Authorization header are
    refused.
    """
    state = GitServer(root, required=required)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PATCH(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self._body()
            if response := api(self.command, self.path, dict(self.headers), body):
                self._respond(*response)
                return
            authorization = self.headers.get("Authorization", "")
            state.authorizations.append(authorization)
            if state.required and authorization != state.required:
                self._respond(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"")
                return
            path, _, query = self.path.partition("?")
            env = {
                "PATH": os.defpath,
                "GIT_PROJECT_ROOT": str(root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REMOTE_USER": "tester",
                "GIT_CONFIG_NOSYSTEM": "1",
            }
            completed = subprocess.run(
                ["git", "http-backend"], env=env, input=body, capture_output=True, check=True
            )
            head, _, content = completed.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self._respond(int(headers.pop("Status", "200 OK").split()[0]), headers, content)

        def _respond(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
