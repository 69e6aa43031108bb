"""What the tests in a cluster share: its API, and what deploy/k8s says of namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes import client, config

from support.kube.ctl import kubectl

DEPLOY = Path(__file__).parents[3] / "deploy/k8s"


@pytest.fixture(scope="session")
def api() -> client.ApiClient:
    found: client.ApiClient = config.new_client_from_config()  # type: ignore[no-untyped-call]  # the client publishes none
    return found


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    """The namespaces of deploy/k8s, with its quota and roles, but none of its pods."""
    for name in ("namespaces", "rbac", "quota"):
        kubectl("apply", "-f", str(DEPLOY / f"base/{name}.yaml"))
