"""What the tests in a cluster share: its API, and what deploy/k8s says of namespaces."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from kubernetes import client, config

DEPLOY = Path(__file__).parents[3] / "deploy/k8s"


def kubectl(*arguments: str, given: str | None = None, check: bool = True) -> str:
    """Run kubectl in the cluster that KUBECONFIG names; return what it printed, errors too."""
    done = subprocess.run(
        ["kubectl", *arguments], input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stdout}"
    return done.stdout


@pytest.fixture(scope="session")
def api() -> client.ApiClient:
    found: client.ApiClient = config.new_client_from_config()  # type: ignore[no-untyped-call]  # the client publishes none
    return found


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    """The namespaces of deploy/k8s, with its quota and roles, but none of its pods."""
    for name in ("namespaces", "rbac", "quota"):
        kubectl("apply", "-f", str(DEPLOY / f"base/{name}.yaml"))


async def ask(*arguments: str, given: str | None = None, check: bool = True) -> str:
    """`kubectl`, beside others."""
    return await asyncio.to_thread(kubectl, *arguments, given=given, check=check)
