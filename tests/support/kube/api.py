"""A fake API server with the endpoints that workspaces use, over HTTP, so that tests use the real
client. It runs no pods.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SPACE = "moothall-workspaces"


class KubeApi:
    """The objects of the server, and the requests that it refuses."""

    def __init__(self, address: str, kubeconfig: Path) -> None:
        self.address, self.kubeconfig = address, kubeconfig
        self.jobs: dict[str, dict[str, Any]] = {}
        self.quotas: list[dict[str, Any]] = []
        self.denied: set[tuple[str, str]] = set()
        """Permissions that the service account lacks: verb and resource."""
        self.invalid = ""
        """The reason for refusing Jobs, if they are refused."""
        self.warning = ""
        self.dry: list[dict[str, Any]] = []
        """Names of refused Jobs."""
        self.stopped = threading.Event()

    def job(self, name: str, **labels: str) -> None:
        """Add a Job."""
        self.jobs[name] = {"metadata": {"name": name, "labels": labels}}

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """Answer a request with a status and a document."""
        if path == "/version":
            return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.1"}
        if path.endswith("/selfsubjectaccessreviews"):
            attributes = body["spec"]["resourceAttributes"]
            return 201, {
                **body,
                "status": {
                    "allowed": (attributes["verb"], attributes["resource"]) not in self.denied
                },
            }
        _, space, below_namespaces = path.partition("/namespaces/")
        place, _, rest = below_namespaces.partition("/")
        resource, _, name = rest.partition("/")
        verb = {"GET": "list", "POST": "create", "DELETE": "delete", "PATCH": "patch"}[method]
        if (verb, resource) in self.denied:
            return _failure(
                403, f"{resource} is forbidden: User cannot {verb} resource {resource!r}"
            )
        if not space or place != SPACE:
            return _failure(404, f"namespaces {place!r} not found")
        if resource == "jobs":
            return self._jobs(verb, name, query, body)
        return 200, {
            "items": self.quotas if resource == "resourcequotas" else [],
            "metadata": {"resourceVersion": "1"},
        }

    def _jobs(self, verb: str, name: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if verb == "list":
            labels = [
                tuple(item.split("=")) for item in query.get("labelSelector", "").split(",") if item
            ]
            jobs = [
                job
                for job in self.jobs.values()
                if all(job["metadata"]["labels"].get(key) == value for key, value in labels)
            ]
            return 200, {"items": jobs, "metadata": {"resourceVersion": "1"}}
        if verb == "create":
            if self.invalid:
                return _failure(422, self.invalid)
            if query.get("dryRun") == "All":
                self.dry.append(body)
            else:
                self.jobs[body["metadata"]["name"]] = body
            return 201, body
        if name not in self.jobs:
            return _failure(404, f"jobs.batch {name!r} not found")
        if verb == "patch":
            for item in body:
                *_, part, key = item["path"].split("/")
                self.jobs[name]["metadata"][part][key.replace("~1", "/")] = item["value"]
            return 200, self.jobs[name]
        return 200, self.jobs.pop(name)


def _failure(code: int, message: str) -> tuple[int, Any]:
    return code, {"kind": "Status", "status": "Failure", "code": code, "message": message}


@contextmanager
def kube_api(folder: Path) -> Iterator[KubeApi]:
    """Serve on loopback and write `kubeconfig`."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            at = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(at.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            if query.get("watch"):
                self.send_response(200)
                self.end_headers()
                api.stopped.wait()
                return
            status, document = api.answer(self.command, at.path.rstrip("/"), query, body)
            payload = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            if api.warning:
                self.send_header("Warning", f'299 - "{api.warning}"')
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_DELETE = do_PATCH = _serve  # noqa: N815 - names that the server's library looks for

        def log_message(self, *_args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    api = KubeApi(address, folder / "kubeconfig")
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "current-context": "here",
    }
    api.kubeconfig.write_text(json.dumps(document), encoding="utf-8")
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield api
    finally:
        api.stopped.set()
        server.shutdown()
        serving.join()
        server.server_close()
