"""Fixtures of the tests in a cluster: its API, the namespaces of deploy/k8s, and an installed
overlay `dev`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import AsyncIterator, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kubernetes import client, config
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from command import answer_turns_with, by_task
from moothall.events.nats.accounts import create_account_files
from moothall.testing.model import Fault, ScriptedModel, scripted_model
from support.kube.ctl import ask
from support.kube.programs import Home
from support.kube.reached import DEPLOY, make_namespaces

OVERLAY = """apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{dev}]
patches:
  - target: {{kind: ConfigMap, name: moothall}}
    patch: |
      - {{op: add, path: /data/MOOTHALL_LLM__BASE_URL, value: "{model}"}}
      - {{op: add, path: /data/MOOTHALL_WORKSPACE__WARM, value: "0"}}
"""
_SCOPES = {"/with_operators/": "operators", "/roles/": "roles", "/test_node.py": "roles"}
_SCOPES |= dict.fromkeys(("/test_jobs.py", "/test_hosts.py", "/test_limits.py"), "jobs")
ODD, NEWLINE = 'it\'s $(touch pwned) `id` "d";&|.txt', "a\nb.txt"
"""Names of files."""


class SharedCluster(LoadScopeScheduling):  # type: ignore[misc]  # untyped
    """A scheduler for workers that share a cluster: tests of the same server, overlay or namespace
    run on one worker. xdist's own groups have no effect with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return next((scope for part, scope in _SCOPES.items() if part in nodeid), "overlays")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedCluster:
    return SharedCluster(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep tests apart from tests that take nodes away. A test that arrives later waits behind a
    test that waits for the nodes.
    """
    exclusive, locks = item.get_closest_marker("alone"), Home.of_user().root
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / "queue.lock").open("w") as queue, (locks / "nodes.lock").open("w") as nodes_lock:
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(nodes_lock, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        return (yield)


@pytest.fixture(scope="session")
def api() -> client.ApiClient:
    api_client: client.ApiClient = config.new_client_from_config()  # type: ignore[no-untyped-call]  # the client publishes no types
    return api_client


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    """The namespaces of deploy/k8s."""
    make_namespaces()


def odd_or_by_task(body: dict[str, Any], headers: Mapping[str, str]) -> str | Fault:
    """Reply by task; a seat whose task contains ODD also writes files with odd names."""
    reply = by_task(body, headers)
    if "ODD" not in str(body) or not isinstance(reply, str):
        return reply
    turn = json.loads(reply)
    first, last = (
        {"tool": "files.append", "args": {"path": name, "content": "$(id)\n'\"\n"}}
        for name in (ODD, NEWLINE)
    )
    turn["actions"] = [first, *turn["actions"], last]  # a refused action ends a turn
    return json.dumps(turn)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reachable() -> AsyncIterator[ScriptedModel]:
    """A model server that pods can reach."""
    async with scripted_model(
        answer_turns_with(odd_or_by_task), host=os.environ["CLUSTER_ADDRESS"]
    ) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def installed(
    reachable: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, Path]]:
    """The overlay `dev`, installed as in docs/operating.md with generated keys; yields the keys by
    name.
    """
    folder = tmp_path_factory.mktemp("overlay")
    keys = create_account_files(folder / "keys")
    secrets = {"nats-accounts": ("accounts.conf",), "moothall-bus": tuple(keys)}
    for name, files in secrets.items():
        from_files = [f"--from-file={keys[file]}" for file in files]
        manifest = await ask(
            "-n",
            "moothall",
            "create",
            "secret",
            "generic",
            name,
            *from_files,
            "--dry-run=client",
            "-o",
            "yaml",
        )
        await ask("apply", "-f", "-", stdin=manifest)
    dev = os.path.relpath(DEPLOY / "overlays/dev", folder)
    (folder / "kustomization.yaml").write_text(
        OVERLAY.format(dev=dev, model=reachable.base_url), encoding="utf-8"
    )
    try:
        await ask("apply", "-k", str(folder))
        for workload in ("statefulset/nats", "deployment/moothall"):
            try:
                await ask("-n", "moothall", "rollout", "status", workload, "--timeout=180s")
            except AssertionError as error:
                description = await ask("-n", "moothall", "describe", "pods") + await ask(
                    "-n", "moothall", "logs", workload, check=False
                )
                pytest.fail(f"{error}\n{description[-6000:]}")
        yield keys
    finally:
        await ask("delete", "namespace", "moothall", "--wait=false")
