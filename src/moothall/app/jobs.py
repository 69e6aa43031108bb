"""Workspaces in a cluster: what makes them, who they belong to, and how they are tried."""

from __future__ import annotations

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from moothall.concurrency import beside
from moothall.config import Settings
from moothall.domain.ids import digest
from moothall.domain.status import Finding
from moothall.errors import ConfigurationError
from moothall.workspace.executor_client import ExecutorClient, ExecutorSetup
from moothall.workspace.kubernetes.multiplexer import Transport
from moothall.workspace.pool import MakeBox

_MISSING = "workspace.kind is kubernetes: pip install 'moothall[kubernetes]'"


def _bus_of_pods(settings: Settings) -> str:
    return settings.jobs.bus_url or settings.bus.url or ""


def _reach(settings: Settings, link: str) -> dict[str, str]:
    """Return the environment by which the link of that name reaches the bus. Raises
    `ConfigurationError`.
    """
    bus, jobs = settings.bus, settings.jobs
    said = {"MOOTHALL_BUS__URL": _bus_of_pods(settings)}
    if jobs.link_keys:
        from moothall.events.nats.accounts import mint

        return said | {
            "MOOTHALL_BUS__CREDENTIALS": mint(jobs.link_keys.get_secret_value(), link, jobs.seconds)
        }
    return said | {
        f"MOOTHALL_BUS__{name.upper()}": one.get_secret_value()
        for name, one in (("token", bus.token), ("credentials", bus.credentials))
        if one
    }


def house_of(settings: Settings) -> str:
    """Name those who hear each other: the bus as the pods of the namespace reach it, and its
    account. Raises `ConfigurationError`.
    """
    servers = sorted(
        urlsplit(one if "://" in one else f"//{one}").netloc.rpartition("@")[2]
        for one in _bus_of_pods(settings).split(",")
    )
    if settings.jobs.link_keys is None:
        return digest(*servers)[:16]
    from moothall.events.nats.accounts import account_of

    return digest(*servers, account_of(settings.jobs.link_keys.get_secret_value()))[:16]


@asynccontextmanager
async def open_jobs(settings: Settings) -> AsyncIterator[MakeBox]:
    """What makes workspaces in a cluster. Raises `ConfigurationError` where no Jobs can be made
    there.
    """
    from moothall.events.adapter import open_carrying

    app = house_of(settings)  # keys that are none are said at the start
    try:
        from moothall.workspace.kubernetes.box import CodeExecutor, JobExecutor, Pods
        from moothall.workspace.kubernetes.cluster import Cluster
        from moothall.workspace.kubernetes.orphans import Reconciler
    except ModuleNotFoundError as error:
        raise ConfigurationError(_MISSING) from error
    host = f"{socket.gethostname()[:40]}-{secrets.token_hex(4)}"
    async with (
        open_carrying(settings.bus, settings.bus.url or "") as carrying,
        Cluster(settings.jobs, host, app) as cluster,
    ):
        carrier = Transport(carrying.send, carrying.hear)
        pods = Pods(cluster, carrier, lambda name: _reach(settings, name))

        def make(
            place: ExecutorSetup, folder: Path, beside: ExecutorClient | None
        ) -> ExecutorClient:
            if isinstance(beside, JobExecutor):
                return CodeExecutor(place, folder, settings, beside)
            return JobExecutor(place, folder, settings, pods)

        async with beside(
            Reconciler(cluster, carrier, settings.jobs.orphan_seconds).run(), "jobs without a host"
        ):
            yield make


async def examine_jobs(settings: Settings) -> AsyncIterator[Finding]:
    """Yield what the cluster says of the Jobs of workspaces."""
    try:
        from moothall.workspace.kubernetes.preflight import examine

        reach = _reach(settings, "moothall-doctor")
    except ModuleNotFoundError:
        yield Finding(
            "cluster",
            ok=False,
            detail="the package kubernetes is missing",
            mend="pip install 'moothall[kubernetes]'",
        )
        return
    except ConfigurationError as error:
        yield Finding(
            "cluster",
            ok=False,
            detail=error.message,
            mend="set MOOTHALL_JOBS__LINK_KEYS_FILE to a links.json",
        )
        return
    async for finding in examine(settings, reach):
        yield finding
