from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from moothall import telemetry
from moothall.concurrency import TimeLimit
from moothall.errors import WorkspaceFailed
from moothall.workspace.node_sandboxes import NodeSandboxes, Pace
from support.local import Local, on_nodes, python
from support.nodes import NearbyNodes, fetch

pytestmark = pytest.mark.e2e  # real sandboxes over and over: run with the end-to-end tests

PACE = Pace(beat=0.2, node_silent=1.5, host_silent=3.0)
SLEEP = {"sleep": python("import time; time.sleep(600)"), "quick": python("print('it ran')")}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Local]:
    tmp_path.chmod(0o755)
    async with on_nodes(tmp_path, pace=PACE, cores=1) as app:
        while len(await cluster_of(app).list_nodes()) < 2:
            await asyncio.sleep(0.05)
        yield app


def cluster_of(app: Local) -> NearbyNodes:
    assert app.cluster is not None
    return app.cluster


def open_on(app: Local) -> dict[str, int]:
    return {name: node.open_count for name, node in cluster_of(app).served.items()}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.05)


async def wait_for_nodes(app: Local) -> None:
    await until(lambda: cluster_of(app).calls["beat"] > 4)


async def test_seats_of_a_council_are_spread_and_a_folder_is_sent_once(app: Local) -> None:
    prepared = await app.prepared(SLEEP)
    await wait_for_nodes(app)
    with telemetry.bound(task_id="task-1"):
        async with app.workspaces.open(prepared, "one"), app.workspaces.open(prepared, "two"):
            assert open_on(app) == {"node-0": 1, "node-1": 1}
        async with app.workspaces.open(prepared, "three") as workspace:
            assert (await workspace.check("quick")).output.strip() == "it ran"
    assert set(cluster_of(app).packed.values()) == {2}, "one checkout, and one history"
    await until(lambda: open_on(app) == {"node-0": 0, "node-1": 0})


async def failure_of(app: Local, harm: Callable[[str], None]) -> str:
    """Return how a running check fails after harm to its node."""
    prepared = await app.prepared(SLEEP)
    await wait_for_nodes(app)
    async with app.workspaces.open(prepared, "one") as workspace:
        (name,) = (name for name, count in open_on(app).items() if count)
        check = asyncio.create_task(workspace.check("sleep"))
        await asyncio.sleep(1)
        harm(name)
        with pytest.raises(WorkspaceFailed) as failed:
            async with asyncio.timeout(10):
                await check
    return failed.value.message


async def test_a_lost_node_fails_its_workspaces_and_another_takes_new_ones(
    app: Local,
) -> None:
    lost_nodes = cluster_of(app).lost_nodes
    assert "is lost: it is gone" in await failure_of(app, lost_nodes.add)
    (name,) = lost_nodes
    prepared = await app.prepared(SLEEP)
    async with app.workspaces.open(prepared, "again") as workspace:
        assert open_on(app)["node-1" if name == "node-0" else "node-0"] == 1
        assert (await workspace.check("quick")).status == "success"


async def test_a_frozen_node_is_given_up_and_ends_its_sandboxes(
    app: Local,
) -> None:
    frozen = cluster_of(app).frozen
    assert "no answer for 1.5 s" in await failure_of(app, frozen.add)
    await until(lambda: open_on(app) == {"node-0": 0, "node-1": 0})


async def test_a_restarted_node_has_none_of_its_workspaces(app: Local, tmp_path: Path) -> None:
    restarted = NodeSandboxes(
        app.settings.model_copy(update={"data_dir": tmp_path / "again"}), fetch, PACE
    )
    serving = asyncio.create_task(restarted.serve())
    await restarted.beat("")

    def restart(name: str) -> None:
        cluster_of(app).served[name] = restarted

    assert "started again" in await failure_of(app, restart)
    serving.cancel()
    await asyncio.wait({serving})


async def test_time_spent_waiting_for_a_core_of_the_node_does_not_count(app: Local) -> None:
    prepared = await app.prepared({**SLEEP, "nap": python("import time; time.sleep(4)")})
    await wait_for_nodes(app)
    cluster_of(app).lost_nodes.add("node-1")
    async with (
        app.workspaces.open(prepared, "one") as first_workspace,
        app.workspaces.open(prepared, "two") as second_workspace,
    ):
        first = asyncio.create_task(first_workspace.check("nap"))
        await asyncio.sleep(1)
        async with TimeLimit(30, 60) as limit:
            assert (await second_workspace.check("quick")).status == "success"
        assert limit.waited > 1
        assert (await first).status == "success"
