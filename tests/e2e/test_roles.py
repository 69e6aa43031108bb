"""A deployment of many processes: every role twice on one bus with its own credentials. Either
instance may be called, killed or restarted.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import pytest_asyncio
from served import ALICE, make_command

from command import Command
from moothall.domain.event import Channel, EventType
from moothall.errors import GraphUnavailable
from moothall.events.lease import BUCKET
from moothall.events.nats import accounts
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.graph.store import BusGraphClient
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from moothall.testing.model import ScriptedModel
from support.accounts import run_accounts_server

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

WHO = (("authorization", f"Bearer {ALICE}"),)
_SERVICE = """{"loadBalancingConfig": [{"round_robin": {}}]}"""
WORKERS = "collector,planning,graph"
_ROLES = {"api,page": "api", WORKERS: "collector", "hosts": "hosts"}
"""The roles of each process, and the user of its credentials."""
SCRAPER = "scraper-scraper"


@dataclass(slots=True)
class Part:
    """A process with some roles. It keeps its port over a restart, like the address of a
    Service.
    """

    command: Command
    roles: str
    process: asyncio.subprocess.Process | None = None
    target: str = ""
    stderr_lines: list[str] = field(default_factory=list)
    _reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        port = self.target.rpartition(":")[2] or "0"
        self.process = await self.command.start("serve", "--only", self.roles, "--port", port)
        err = self.process.stderr
        assert err is not None
        async with asyncio.timeout(400):
            while line := (await err.readline()).decode():
                self.stderr_lines.append(line)
                if line.startswith("serving gRPC on"):
                    break
            else:
                raise AssertionError(f"{self.roles} ended: " + "".join(self.stderr_lines))
        self.target = line.split()[3].rstrip(";")
        self._reading = asyncio.create_task(self._read(err))

    @property
    def figures(self) -> str:
        """The URL of its metrics since its last start."""
        return next(
            line.split()[-1]
            for line in reversed(self.stderr_lines)
            if line.startswith("metrics for Prometheus:")
        )

    async def _read(self, err: asyncio.StreamReader) -> None:
        while line := await err.readline():
            self.stderr_lines.append(line.decode())

    async def end(self, signal_number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is None:
            return
        if self.process.returncode is None:
            self.process.send_signal(signal_number)
        async with asyncio.timeout(120):
            code = await self.process.wait()
        assert code == (130 if signal_number is signal.SIGTERM else -signal_number), (
            f"{self.roles}: {code} " + "".join(self.stderr_lines)
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """The parts by role, two of each, on one bus."""

    bus: JetStreamBus
    parts: Mapping[str, Sequence[Part]]

    def api_address(self, number: int) -> str:
        return self.parts["api,page"][number].target


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(
    model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("roles")
    accounts.create_account_files(folder / "keys")
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(run_accounts_server(folder, folder / "keys"))
        base = make_command(folder, model.base_url)
        base.extra |= {
            "MOOTHALL_BUS__URL": app.url,
            "MOOTHALL_BUS__WAIT_SECONDS": "120",  # until the collector has created the streams
            "MOOTHALL_WEB__PORT": "0",
            "MOOTHALL_METRICS__PORT": "0",
            "MOOTHALL_METRICS__TOKEN": SCRAPER,
            "MOOTHALL_LOG__LEVEL": "warning",  # logs what the bus refuses
        }
        parts: dict[str, list[Part]] = {}
        for roles, user in _ROLES.items():
            extra = base.extra | {
                "MOOTHALL_BUS__CREDENTIALS_FILE": str(folder / f"keys/{user}.creds")
            }
            for number in range(2):
                # An embedded graph is a separate file; everything else shares one data directory.
                data = folder / f"graph-{number}" if "graph" in roles else base.data_dir
                part = Part(replace(base, data_dir=data, extra=extra), roles)
                parts.setdefault(roles, []).append(part)
                stack.push_async_callback(part.end)
        await asyncio.gather(*(part.start() for replicas in parts.values() for part in replicas))
        # A process that starts before the collector has created all streams and consumers requests
        # the missing ones.
        early = refused_subjects(parts, folder)
        assert not [item for item in early if ".CREATE." not in item.upper()]
        bus = await stack.enter_async_context(open_bus(app.services, app.url))
        yield Cluster(bus, parts)
        assert refused_subjects(parts, folder) == early


def refused_subjects(parts: Mapping[str, Sequence[Part]], folder: Path) -> Counter[str]:
    """Count the subjects that the bus refused to each part."""
    logs = "".join(
        line for replicas in parts.values() for part in replicas for line in part.stderr_lines
    )
    for path in folder.rglob("logs/*.log"):
        logs += path.read_text(errors="replace")
    return Counter(re.findall(r"permissions violation for ([^\n]*)", logs, re.IGNORECASE))


async def deliberate(
    target: str, task_id: str, description: str = "HAIKU about a hall"
) -> pb.DeliberateResponse:
    async with grpc.aio.insecure_channel(
        target, options=[("grpc.service_config", _SERVICE)]
    ) as channel:
        request = pb.DeliberateRequest(
            task_description=description, role="DEV", num_agents=1, task_id=task_id
        )
        stub: Any = OrchestratorServiceStub(channel)
        for last in (False, True):  # the API allows one retry on UNAVAILABLE
            try:
                answer: pb.DeliberateResponse = await stub.Deliberate(
                    request, metadata=WHO, timeout=180, wait_for_ready=last
                )
            except grpc.aio.AioRpcError as error:
                if last or error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
            else:
                return answer
    raise AssertionError("API unreachable")


async def decisions_of(bus: JetStreamBus, task_id: str) -> list[Any]:
    topic = (Channel.RESPONSES.of(f"team-a_{task_id}"),)
    return [
        recorded.event
        async for recorded in bus.replay(topic)
        if recorded.event.type is EventType.DELIBERATION_DECIDED
    ]


async def test_a_deliberation_submitted_to_one_api_is_answered_by_the_other(
    cluster: Cluster,
) -> None:
    answer = await deliberate(cluster.api_address(0), "one-1")
    assert answer.status == pb.DELIBERATION_STATUS_COMPLETED
    async with grpc.aio.insecure_channel(cluster.api_address(1)) as channel:
        stub: Any = OrchestratorServiceStub(channel)
        other_answer = await stub.GetDeliberationResult(
            pb.GetDeliberationResultRequest(task_id="one-1"), metadata=WHO, timeout=60
        )
    assert other_answer.status == answer.status
    assert [result.proposal.content for result in other_answer.results] == [
        result.proposal.content for result in answer.results
    ]
    assert len(await decisions_of(cluster.bus, "one-1")) == 1


async def test_after_a_kill_of_the_graph_writer_the_other_has_all_data(
    cluster: Cluster,
) -> None:
    await deliberate(cluster.api_address(0), "graph-1")
    graph = BusGraphClient(cluster.bus, 30)
    await wait_for_graph(cluster, graph)
    writer = await lease_holder(cluster, "graph")
    await writer.end(signal.SIGKILL)
    try:
        await deliberate(cluster.api_address(1), "graph-2")
        await wait_for_graph(cluster, graph)
        assert await lease_holder(cluster, "graph") is not writer
        for task_id in ("graph-1", "graph-2"):
            (row,) = await graph.ask("deliberation", tenant="team-a", task_id=task_id)
            assert row["deliberation"]["status"] == "COMPLETED"
    finally:
        await writer.start()


async def test_both_collectors_and_both_planners_share_the_work(cluster: Cluster) -> None:
    counts_before = [
        await metric_sum(part, "moothall_deliberations_decided_total")
        for part in cluster.parts[WORKERS]
    ]
    submitted = 0
    async with asyncio.timeout(300):
        while not all(
            await have_counted(cluster, "moothall_deliberations_decided_total", counts_before)
        ):
            await asyncio.gather(
                *(
                    deliberate(cluster.api_address(n % 2), f"share-{submitted}-{n}")
                    for n in range(4)
                )
            )
            submitted += 4
        story = 0
        while not all(await have_counted(cluster, "moothall_story_steps_total", [0, 0])):
            tasks = await asyncio.gather(
                *(plan_story(cluster, f"share-{story}-{n}") for n in range(4))
            )
            await wait_until_decided(cluster, [task for of in tasks for task in of])
            story += 4
    for task in (f"share-{round_}-{n}" for round_ in range(0, submitted, 4) for n in range(4)):
        assert len(await decisions_of(cluster.bus, task)) == 1


@pytest.mark.parametrize("killed", [0, 1])
async def test_killing_a_collector_and_planner_neither_loses_nor_repeats_work(
    cluster: Cluster, killed: int
) -> None:
    part = cluster.parts[WORKERS][killed]
    names = [f"kill-{killed}-{n}" for n in range(8)]
    async with asyncio.TaskGroup() as group:
        answers = [
            group.create_task(deliberate(cluster.api_address(n % 2), name))
            for n, name in enumerate(names)
        ]
        tasks = [task for n in range(4) for task in await plan_story(cluster, f"kill-{killed}-{n}")]
        await part.end(signal.SIGKILL)
    try:
        assert {answer.result().status for answer in answers} == {pb.DELIBERATION_STATUS_COMPLETED}
        await wait_until_decided(cluster, tasks)
        for task in (*names, *tasks):
            assert len(await decisions_of(cluster.bus, task)) == 1
        ends: list[str] = []
        async with asyncio.timeout(120):
            while len(ends) < 4:
                ends = await finished_stories(cluster.bus, f"kill-{killed}-")
        assert len(ends) == len(set(ends)) == 4
    finally:
        await part.start()


async def test_restarting_every_role_under_load_loses_no_call(
    cluster: Cluster,
) -> None:
    dependencies = "ipv4:" + ",".join(part.target for part in cluster.parts["api,page"])
    going, task_ids = True, list[str]()

    async def caller(name: str) -> None:
        while going:
            task_ids.append(task_id := f"roll-{name}-{len(task_ids)}")
            answer = await deliberate(dependencies, task_id)
            assert answer.task_id == task_id
            assert answer.status == pb.DELIBERATION_STATUS_COMPLETED, answer

    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(caller(name)) for name in ("a", "b")]
        for replicas in cluster.parts.values():
            for part in replicas:
                await part.end()
                await part.start()
        going = False
        await asyncio.gather(*callers)
    assert len(task_ids) > 2
    for task_id in task_ids:
        assert len(await decisions_of(cluster.bus, task_id)) == 1


async def plan_story(cluster: Cluster, name: str) -> list[str]:
    """Derive the tasks of a story, which are then dispatched; return their ids."""
    request = pb.ProcessPlanningEventRequest(
        event_type="story.transitioned",
        case_id=name,
        to_state="PLANNING",
        metadata={
            "title": "HAIKU",
            "brief": "A HAIKU about a hall",
            "ac": "it is a HAIKU",
            "roles": "dev,qa",
        },
    )
    async with grpc.aio.insecure_channel(cluster.api_address(0)) as channel:
        stub: Any = OrchestratorServiceStub(channel)
        planned = await stub.ProcessPlanningEvent(request, metadata=WHO, timeout=60)
    assert len(planned.derived_task_ids) > 1
    return list(planned.derived_task_ids)


async def wait_until_decided(cluster: Cluster, tasks: Sequence[str]) -> None:
    """Wait until all tasks have ended."""
    async with asyncio.timeout(180):
        while not all([await decisions_of(cluster.bus, task) for task in tasks]):
            await asyncio.sleep(0.2)


async def finished_stories(bus: JetStreamBus, name: str) -> list[str]:
    """Return the stories whose names begin so, once for each recorded end of a plan."""
    ends = [
        recorded.event
        async for recorded in bus.replay((Channel.STORIES.all,))
        if recorded.event.type is EventType.PLAN_FINISHED
    ]
    return [story for end in ends if (story := str(end.data["story_id"])).startswith(name)]


async def have_counted(cluster: Cluster, name: str, counts_before: Sequence[float]) -> list[bool]:
    """For each process that decides or plans, return whether its counters have grown."""
    return [
        await metric_sum(part, name) > previous
        for part, previous in zip(cluster.parts[WORKERS], counts_before, strict=True)
    ]


async def metric_sum(part: Part, name: str) -> float:
    """Return the sum of a metric of a process."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(part.figures, headers={"Authorization": f"Bearer {SCRAPER}"}) as answer,
    ):
        assert answer.status == 200
        lines = (await answer.text()).splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith((f"{name}{{", f"{name} "))
    )


async def wait_for_graph(cluster: Cluster, graph: BusGraphClient) -> None:
    """Wait until the graph, whichever process writes it, holds everything recorded so far."""
    last = (await cluster.bus.state("EVENTS")).last_seq
    async with asyncio.timeout(120):
        while True:
            with suppress(GraphUnavailable):
                if await graph.position() >= last:
                    return
            await asyncio.sleep(0.2)


async def lease_holder(cluster: Cluster, name: str) -> Part:
    """Return the part that holds a lease."""
    document = await cluster.bus.bucket(BUCKET).get(name)
    assert document is not None
    (part,) = [
        part
        for replicas in cluster.parts.values()
        for part in replicas
        if part.process is not None
        and str(document["holder"]).split("-")[-2] == str(part.process.pid)
    ]
    return part
