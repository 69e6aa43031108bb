from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from moothall.app.workspaces import deployment_id, open_jobs
from moothall.concurrency import run_in_background
from moothall.config import BusSettings, JobSettings, Settings
from moothall.errors import SandboxUnavailable
from moothall.events.nats.accounts import create_account_files
from moothall.events.nats.server import embedded_server
from moothall.workspace.kubernetes.cluster import Cluster
from moothall.workspace.kubernetes.link import Transport
from moothall.workspace.kubernetes.manifest import APP_LABEL, HOST, LABEL, NAME
from moothall.workspace.kubernetes.preflight import PRESENCE, Reconciler
from support.council import until
from support.kube.api import KubeApi, kube_api
from support.pods import Queues

GRACE = 60.0


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    with kube_api(tmp_path) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
        yield api


def add(api: KubeApi, name: str, host: str, app: str = "ours") -> None:
    api.job(name, **{LABEL: NAME, HOST: host, APP_LABEL: app})


@pytest_asyncio.fixture
async def cluster(api: KubeApi) -> AsyncIterator[Cluster]:
    async with Cluster(JobSettings(), "me", "ours") as cluster:
        yield cluster


class Time:
    """A clock that a test advances."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def reconciler(cluster: Cluster, time: Time) -> Reconciler:
    queues = Queues()
    return Reconciler(cluster, Transport(queues.send, queues.listen), GRACE, clock=time)


def go_on(reconciler: Reconciler, time: Time, seconds: int, *hosts: str) -> None:
    """Let time pass while heartbeats of these hosts arrive."""
    for _ in range(seconds):
        time.now += 1
        for host in hosts:
            reconciler.record_beat(host)


async def test_only_jobs_of_a_silent_host_are_deleted_after_the_grace_period(
    api: KubeApi, reconciler: Reconciler, time: Time
) -> None:
    add(api, "lost", "gone")
    add(api, "kept", "living")
    add(api, "foreign", "gone", app="theirs")
    go_on(reconciler, time, 59, "me", "living")
    await reconciler.delete_orphans()
    assert set(api.jobs) == {"lost", "kept", "foreign"}, (
        "a new listener has not received any heartbeat yet"
    )
    go_on(reconciler, time, 2, "me", "living")
    await reconciler.delete_orphans()
    assert set(api.jobs) == {"kept", "foreign"}
    go_on(reconciler, time, 61, "me")
    await reconciler.delete_orphans()
    assert set(api.jobs) == {"foreign"}


async def test_a_host_that_misses_its_own_messages_judges_nobody_until_it_receives_them(
    api: KubeApi, reconciler: Reconciler, time: Time
) -> None:
    add(api, "kept", "living")
    go_on(reconciler, time, 100, "me", "living")
    go_on(reconciler, time, 300)
    await reconciler.delete_orphans()
    go_on(reconciler, time, 59, "me")
    await reconciler.delete_orphans()
    assert set(api.jobs) == {"kept"}, "the bus was away, and the others may not be back yet"
    go_on(reconciler, time, 3, "me")
    await reconciler.delete_orphans()
    assert not api.jobs


async def test_a_deleted_job_that_remains_is_deleted_again_and_one_in_use_is_not(
    api: KubeApi, cluster: Cluster, reconciler: Reconciler
) -> None:
    labels = cluster.labels
    await cluster.create({"metadata": {"name": "used", "labels": labels}})
    api.job("left", **labels)
    await reconciler.delete_orphans()
    assert set(api.jobs) == {"used"}


async def test_an_unavailable_cluster_does_not_end_the_reconciler(
    api: KubeApi, reconciler: Reconciler
) -> None:
    api.denied.add(("list", "jobs"))
    with pytest.raises(SandboxUnavailable, match=r"Jobs cannot be listed: jobs is forbidden"):
        await reconciler.delete_orphans()
    async with run_in_background(reconciler.run(), "reconciler"):
        await asyncio.sleep(0.1)


class Stuck(Cluster):
    """A cluster whose API server never answers."""

    async def hosts(self) -> dict[str, str]:
        await asyncio.Event().wait()
        return {}


async def test_the_heartbeat_continues_while_the_cluster_does_not_answer(api: KubeApi) -> None:
    queues = Queues()
    heartbeats = 0
    reconciler = Reconciler(
        Stuck(JobSettings(), "me", "ours"), Transport(queues.send, queues.listen), 0.3
    )
    async with run_in_background(reconciler.run(), "reconciler"), asyncio.timeout(20):
        async for _ in queues.listen(PRESENCE):
            heartbeats += 1
            if heartbeats == 5:
                break


@pytest.mark.e2e
async def test_hosts_receive_each_others_messages_over_the_bus(api: KubeApi) -> None:
    queues = Queues()
    carrier = Transport(queues.send, queues.listen)
    async with AsyncExitStack() as stack:
        for host in ("first", "second"):
            cluster = await stack.enter_async_context(Cluster(JobSettings(), host, "ours"))
            document: dict[str, Any] = {
                "metadata": {"name": f"of-{host}", "labels": cluster.labels}
            }
            await cluster.create(document)
            await stack.enter_async_context(
                run_in_background(Reconciler(cluster, carrier, 1.0).run(), host)
            )
        add(api, "lost", "gone")
        await until(lambda: "lost" not in api.jobs)
        assert set(api.jobs) == {"of-first", "of-second"}


@pytest.mark.e2e
async def test_every_host_with_jobs_deletes_the_jobs_of_lost_hosts(
    api: KubeApi, tmp_path: Path
) -> None:
    async with embedded_server(BusSettings(), tmp_path / "bus") as url:
        settings = Settings(bus=BusSettings(url=url), jobs=JobSettings())
        add(api, "lost", "gone", deployment_id(settings))
        add(api, "foreign", "gone", "theirs")
        async with open_jobs(settings, orphan_seconds=2.0):
            await until(lambda: "lost" not in api.jobs)
    assert set(api.jobs) == {"foreign"}


async def test_labels_are_added_to_a_job_if_permitted(api: KubeApi, cluster: Cluster) -> None:
    api.job("one", **cluster.labels)
    await cluster.label("one", {"moothall/task": "t1"})
    assert api.jobs["one"]["metadata"]["labels"] == {**cluster.labels, "moothall/task": "t1"}
    api.denied.add(("patch", "jobs"))
    await cluster.label("one", {"moothall/task": "t2"})
    assert api.jobs["one"]["metadata"]["labels"]["moothall/task"] == "t1"


async def test_nothing_is_remembered_of_a_removed_pod(cluster: Cluster) -> None:
    await cluster.create({"metadata": {"name": "one", "labels": cluster.labels}})
    await cluster.remove("one")
    for kind in ("MODIFIED", "DELETED"):  # later events of the watch
        cluster._handle_pod(kind, {"metadata": {"labels": {"job-name": "one"}}})
    assert not cluster._waiting_reasons


def test_a_deployment_is_identified_by_the_bus_its_pods_reach(tmp_path: Path) -> None:
    def deployment_name(**options: Any) -> str:
        return deployment_id(
            Settings(
                bus=BusSettings(url=options.pop("url", "nats://127.0.0.1:4222")),
                jobs=JobSettings(**options),
            )
        )

    url = "nats://bus.moothall:4222"
    assert (
        deployment_name(bus_url=url)
        == deployment_name(url="nats://me:secret@bus.moothall:4222")
        == deployment_name(url=url)
    )
    assert (
        deployment_name(url="bus.moothall:4222")
        == deployment_name(url=f"{url}/")
        == deployment_name(url=url)
    )
    assert deployment_name() != deployment_name(bus_url=url)
    first, second = (
        create_account_files(tmp_path / name)["links.json"].read_text()
        for name in ("first", "second")
    )
    assert deployment_name(link_keys=first) == deployment_name(link_keys=first)
    assert (
        len(
            {deployment_name(), deployment_name(link_keys=first), deployment_name(link_keys=second)}
        )
        == 3
    ), "an account receives only its own messages"
