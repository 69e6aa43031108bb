"""What the tests in a cluster share: its API, and the namespaces of deploy/k8s."""

from __future__ import annotations

import pytest
from kubernetes import client, config

from support.kube.reached import make_namespaces


@pytest.fixture(scope="session")
def api() -> client.ApiClient:
    found: client.ApiClient = config.new_client_from_config()  # type: ignore[no-untyped-call]  # the client publishes none
    return found


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    """Those of deploy/k8s."""
    make_namespaces()
