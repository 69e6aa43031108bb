"""How the client of the cluster verifies the API server's certificate, against a real TLS server.

The authority of these certificates sets no key identifiers, like those of many clusters. Python
3.13 and newer refuse them by default, so this shows the fault only there.
"""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client
from urllib3.exceptions import HTTPError

from moothall.workspace.kubernetes.cluster import connect
from support.kube.keys import authority, certificate, kubeconfig


class ApiServer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        names = (
            "buildDate compiler gitCommit gitTreeState gitVersion goVersion platform major minor"
        )
        body = json.dumps(dict.fromkeys(names.split(), "34")).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Write nothing."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Certificates, and a kubeconfig for a server that uses them."""
    authority(tmp_path)
    certificate(tmp_path, "server", "kubernetes", alternative_names=("127.0.0.1",))
    certificate(tmp_path, "admin", "admin", "system:masters")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        kubeconfig(tmp_path, "admin", f"https://127.0.0.1:{server.server_port}")
        yield tmp_path
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _kubeconfig(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(folder / "admin.kubeconfig"))


def version(host: str | None = None) -> str:
    with connect() as api:
        if host:
            api.configuration.host = api.configuration.host.replace("127.0.0.1", host)
        return str(client.VersionApi(api).get_code().minor)


def test_a_certificate_without_key_identifiers_is_accepted(folder: Path) -> None:
    api = connect()
    context = api.rest_client.pool_manager.connection_pool_kw["ssl_context"]
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert version() == "34"


def test_a_certificate_of_another_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    other_authority = tmp_path / "other"
    authority(other_authority)
    (folder / "ca.crt").write_bytes((other_authority / "ca.crt").read_bytes())
    with pytest.raises(HTTPError, match="certificate verify failed"):
        version()


def test_a_certificate_of_another_host_is_refused(folder: Path) -> None:
    with pytest.raises(HTTPError, match="localhost"):
        version("localhost")
