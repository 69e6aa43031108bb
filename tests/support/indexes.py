"""Package indexes on loopback over TLS that require a password or a token: a simple Python index
and an npm registry.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import ssl
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from moothall.network.proxy import Credentials

PASSWORD, TOKEN = "pass-of-the-operator-71", "npm-token-of-the-operator-93"


@dataclass(slots=True)
class Index:
    """A server at https://localhost:`port` whose CA is the file `trust`."""

    port: int
    trust: Path
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and Authorization of each request."""


def wheel() -> bytes:
    """Return a wheel of private_tool 1.0."""
    data, info = io.BytesIO(), "private_tool-1.0.dist-info"
    files = {
        "private_tool.py": "ANSWER = 42\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: private-tool\nVersion: 1.0\n",
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in {
            **files,
            f"{info}/RECORD": "".join(f"{name},,\n" for name in files),
        }.items():
            archive.writestr(name, text)
    return data.getvalue()


def tarball() -> bytes:
    """Return the npm package @acme/tool 1.0.0."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in {
            "package.json": '{"name":"@acme/tool","version":"1.0.0"}',
            "index.js": "module.exports = 42\n",
        }.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


@contextmanager
def serving(folder: Path) -> Iterator[Index]:
    """Serve both until the context ends."""
    authority = Credentials((), ())
    trust = folder / "authority.pem"
    trust.write_text(authority.bundle, encoding="utf-8")
    index = Index(0, trust)
    basic = f"Basic {base64.b64encode(f'operator:{PASSWORD}'.encode()).decode()}"
    packed = tarball()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            authorization = self.headers.get("Authorization", "")
            index.requests.append((self.command, self.path, authorization))
            shasum = hashlib.sha1(packed, usedforsecurity=False).hexdigest()
            dist = {
                "tarball": f"https://localhost:{index.port}/npm/@acme/tool/-/tool-1.0.0.tgz",
                "shasum": shasum,
            }
            version = {"name": "@acme/tool", "version": "1.0.0", "dist": dist}
            package = {
                "name": "@acme/tool",
                "dist-tags": {"latest": "1.0.0"},
                "versions": {"1.0.0": version},
            }
            pages = {
                "/simple/private-tool/": (
                    basic,
                    b'<a href="../../files/private_tool-1.0-py3-none-any.whl">x</a>',
                    "text/html",
                ),
                "/files/private_tool-1.0-py3-none-any.whl": (basic, wheel(), "application/zip"),
                "/npm/@acme%2ftool": (
                    f"Bearer {TOKEN}",
                    json.dumps(package).encode(),
                    "application/json",
                ),
                "/npm/@acme/tool/-/tool-1.0.0.tgz": (
                    f"Bearer {TOKEN}",
                    packed,
                    "application/octet-stream",
                ),
            }
            required, body, kind = pages.get(self.path, ("", b"", "text/plain"))
            status = 404 if not required else 200 if authorization == required else 401
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body) if status == 200 else 0))
            self.end_headers()
            if status == 200:
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - names that the library asks for

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as above
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that does not trust the certificate closes the connection

    server = Server(("127.0.0.1", 0), Handler)
    context: ssl.SSLContext = authority.server_context("localhost")
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    index.port = server.server_address[1]
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
