"""Pods that try to connect, and addresses with listeners."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from support.kube.ctl import ask
from support.kube.node import nodes
from support.kube.programs import Home

METADATA = "169.254.169.254"
_LISTEN = """
import select, socket, sys
servers = [socket.create_server((sys.argv[1], int(port))) for port in sys.argv[2:]]
while True:
    for one in select.select(servers, [], [])[0]: one.accept()
"""
_TRY = (
    "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 4); "
    "print('through')"
)


def probe(
    name: str, namespace: str, labels: Mapping[str, str] | None = None, *serves: int
) -> dict[str, Any]:
    """Return a pod that satisfies pod security `restricted` and answers on these ports."""
    program = (
        ["python", "-c", _LISTEN, "0.0.0.0", *map(str, serves)] if serves else ["sleep", "900"]  # noqa: S104 - in a pod
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsUser": 1000,
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
                "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "1"}],
            },
            "containers": [
                {
                    "name": "probe",
                    "image": "registry.local/moothall:dev",
                    "command": program,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "resources": {
                        "requests": {"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "10Mi"}
                    },
                }
            ],
        },
    }


@asynccontextmanager
async def running_pods(*pods: Mapping[str, Any]) -> AsyncIterator[None]:
    """Run pods until the context ends."""
    await ask(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
    )
    names = [(pod["metadata"]["name"], pod["metadata"]["namespace"]) for pod in pods]
    try:
        for name, namespace in names:
            await ask(
                "-n", namespace, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=90s"
            )
        yield
    finally:
        for name, namespace in names:
            await ask("-n", namespace, "delete", "pod", name, "--wait=false")


async def address(name: str, namespace: str) -> str:
    """Return a pod's address."""
    return (
        await ask("-n", namespace, "get", "pod", name, "-o", "jsonpath={.status.podIP}")
    ).strip()


async def reaches(name: str, namespace: str, host: str, port: int) -> bool:
    """Return whether a pod can connect."""
    output = await ask(
        "-n", namespace, "exec", name, "--", "python", "-c", _TRY, host, str(port), check=False
    )
    # A traceback may quote the program.
    return output.strip() == "through"


@asynccontextmanager
async def listening(external_address: str, *ports: int) -> AsyncIterator[None]:
    """Have each node answer at an external address until the context ends, like a cloud's metadata
    service or a public server.
    """
    async with AsyncExitStack() as stack:
        for node in nodes(Home.of_user()):
            await _run(
                *node.command_line("ip", "addr", "replace", f"{external_address}/32", "dev", "lo")
            )
            stack.push_async_callback(
                _run, *node.command_line("ip", "addr", "del", f"{external_address}/32", "dev", "lo")
            )
            program = (sys.executable, "-c", _LISTEN, external_address, *map(str, ports))
            server = await asyncio.create_subprocess_exec(
                "nsenter", "-t", str(node.anchor()), "-n", "--", *program
            )
            stack.push_async_callback(server.wait)
            stack.callback(server.terminate)
        yield


async def _run(*command: str) -> None:
    await (await asyncio.create_subprocess_exec(*command)).wait()
