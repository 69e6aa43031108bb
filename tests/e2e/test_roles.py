"""A server of many processes: every role twice on one bus, each with its own credentials, whichever
of them is asked, killed or started again.
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
from moothall.domain.event import EventType
from moothall.domain.topic import Channel
from moothall.errors import GraphUnavailable
from moothall.events.lease import BUCKET
from moothall.events.nats import accounts
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.graph.remote import BusGraphClient
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from moothall.testing.model import ScriptedModel
from support.accounts import served

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

WHO = (("authorization", f"Bearer {ALICE}"),)
_SERVICE = """{"loadBalancingConfig": [{"round_robin": {}}]}"""
WORKERS = "collector,planning,graph"
_ROLES = {"api,page": "api", WORKERS: "collector", "hosts": "hosts"}
"""And whose credentials they have."""
SCRAPER = "scraper-scraper"


@dataclass(slots=True)
class Part:
    """A process with some roles. It is on the same port again after a restart, as a Service's
    address is.
    """

    command: Command
    roles: str
    process: asyncio.subprocess.Process | None = None
    target: str = ""
    said: list[str] = field(default_factory=list)
    _reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        port = self.target.rpartition(":")[2] or "0"
        self.process = await self.command.start("serve", "--only", self.roles, "--port", port)
        err = self.process.stderr
        assert err is not None
        async with asyncio.timeout(400):
            while line := (await err.readline()).decode():
                self.said.append(line)
                if line.startswith("serving gRPC on"):
                    break
            else:
                raise AssertionError(f"{self.roles} ended: " + "".join(self.said))
        self.target = line.split()[3].rstrip(";")
        self._reading = asyncio.create_task(self._read(err))

    @property
    def figures(self) -> str:
        """Where it tells its figures, since its last start."""
        return next(
            line.split()[-1]
            for line in reversed(self.said)
            if line.startswith("figures for Prometheus:")
        )

    async def _read(self, err: asyncio.StreamReader) -> None:
        while line := await err.readline():
            self.said.append(line.decode())

    async def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is None:
            return
        if self.process.returncode is None:
            self.process.send_signal(how)
        async with asyncio.timeout(120):
            code = await self.process.wait()
        assert code == (130 if how is signal.SIGTERM else -how), f"{self.roles}: {code} " + "".join(
            self.said
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """The parts by role, two of each, on one bus."""

    bus: JetStreamBus
    parts: Mapping[str, Sequence[Part]]

    def door(self, number: int) -> str:
        return self.parts["api,page"][number].target


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(
    model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("roles")
    accounts.create_account_files(folder / "keys")
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(served(folder, folder / "keys"))
        base = make_command(folder, model.base_url)
        base.extra |= {
            "MOOTHALL_BUS__URL": app.url,
            "MOOTHALL_BUS__WAIT_SECONDS": "120",  # until who decides has made the streams
            "MOOTHALL_WEB__PORT": "0",
            "MOOTHALL_METRICS__PORT": "0",
            "MOOTHALL_METRICS__TOKEN": SCRAPER,
            "MOOTHALL_LOG__LEVEL": "warning",  # what the bus refuses is said
            "MOOTHALL_SERVE__LEASE_SECONDS": "4",
        }
        parts: dict[str, list[Part]] = {}
        for roles, user in _ROLES.items():
            extra = base.extra | {
                "MOOTHALL_BUS__CREDENTIALS_FILE": str(folder / f"keys/{user}.creds")
            }
            for number in range(2):
                # An embedded graph is a file of its own; all else shares one data directory.
                data = folder / f"graph-{number}" if "graph" in roles else base.data_dir
                part = Part(replace(base, data_dir=data, extra=extra), roles)
                parts.setdefault(roles, []).append(part)
                stack.push_async_callback(part.end)
        await asyncio.gather(*(part.start() for two in parts.values() for part in two))
        # A process that starts before the collector has made all streams and consumers asks for
        # those that are missing.
        early = refused(parts, folder)
        assert not [one for one in early if ".CREATE." not in one.upper()]
        bus = await stack.enter_async_context(open_bus(app.services, app.url))
        yield Cluster(bus, parts)
        assert refused(parts, folder) == early


def refused(parts: Mapping[str, Sequence[Part]], folder: Path) -> Counter[str]:
    """Count what the bus has refused to each part, by subject."""
    said = "".join(line for two in parts.values() for part in two for line in part.said)
    for path in folder.rglob("logs/*.log"):
        said += path.read_text(errors="replace")
    return Counter(re.findall(r"permissions violation for ([^\n]*)", said, re.IGNORECASE))


async def deliberate(
    target: str, task_id: str, words: str = "HAIKU about a hall"
) -> pb.DeliberateResponse:
    async with grpc.aio.insecure_channel(
        target, options=[("grpc.service_config", _SERVICE)]
    ) as channel:
        request = pb.DeliberateRequest(
            task_description=words, role="DEV", num_agents=1, task_id=task_id
        )
        stub: Any = OrchestratorServiceStub(channel)
        for last in (False, True):  # by the wire's rules UNAVAILABLE may be asked again once
            try:
                answer: pb.DeliberateResponse = await stub.Deliberate(
                    request, metadata=WHO, timeout=180, wait_for_ready=last
                )
            except grpc.aio.AioRpcError as error:
                if last or error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
            else:
                return answer
    raise AssertionError("not reached")


async def decided(bus: JetStreamBus, task_id: str) -> list[Any]:
    topic = (Channel.RESPONSES.of(f"team-a_{task_id}"),)
    return [
        one.event
        async for one in bus.replay(topic)
        if one.event.type is EventType.DELIBERATION_DECIDED
    ]


async def test_what_one_door_was_asked_the_other_answers(cluster: Cluster) -> None:
    answer = await deliberate(cluster.door(0), "one-1")
    assert answer.status == pb.DELIBERATION_STATUS_COMPLETED
    async with grpc.aio.insecure_channel(cluster.door(1)) as channel:
        stub: Any = OrchestratorServiceStub(channel)
        there = await stub.GetDeliberationResult(
            pb.GetDeliberationResultRequest(task_id="one-1"), metadata=WHO, timeout=60
        )
    assert there.status == answer.status
    assert [one.proposal.content for one in there.results] == [
        one.proposal.content for one in answer.results
    ]
    assert len(await decided(cluster.bus, "one-1")) == 1


async def test_the_writer_of_the_graph_is_killed_and_the_other_has_everything(
    cluster: Cluster,
) -> None:
    await deliberate(cluster.door(0), "graph-1")
    asked = BusGraphClient(cluster.bus, 30)
    await written(cluster, asked)
    writer = await holder(cluster, "graph")
    await writer.end(signal.SIGKILL)
    try:
        await deliberate(cluster.door(1), "graph-2")
        await written(cluster, asked)
        assert await holder(cluster, "graph") is not writer
        for task_id in ("graph-1", "graph-2"):
            (row,) = await asked.ask("deliberation", tenant="team-a", task_id=task_id)
            assert row["deliberation"]["status"] == "COMPLETED"
    finally:
        await writer.start()


async def test_both_collectors_and_both_planners_do_their_part(cluster: Cluster) -> None:
    before = [
        await figure(part, "moothall_deliberations_decided_total")
        for part in cluster.parts[WORKERS]
    ]
    asked = 0
    async with asyncio.timeout(300):
        while not all(await shares(cluster, "moothall_deliberations_decided_total", before)):
            await asyncio.gather(
                *(deliberate(cluster.door(n % 2), f"share-{asked}-{n}") for n in range(4))
            )
            asked += 4
        story = 0
        while not all(await shares(cluster, "moothall_story_steps_total", [0, 0])):
            tasks = await asyncio.gather(
                *(tell_story(cluster, f"share-{story}-{n}") for n in range(4))
            )
            await are_decided(cluster, [task for of in tasks for task in of])
            story += 4
    for task in (f"share-{round_}-{n}" for round_ in range(0, asked, 4) for n in range(4)):
        assert len(await decided(cluster.bus, task)) == 1


@pytest.mark.parametrize("killed", [0, 1])
async def test_one_that_decides_and_plans_is_killed_in_the_middle_and_nothing_is_lost_or_done_twice(
    cluster: Cluster, killed: int
) -> None:
    part = cluster.parts[WORKERS][killed]
    names = [f"kill-{killed}-{n}" for n in range(8)]
    async with asyncio.TaskGroup() as group:
        answers = [
            group.create_task(deliberate(cluster.door(n % 2), name)) for n, name in enumerate(names)
        ]
        tasks = [task for n in range(4) for task in await tell_story(cluster, f"kill-{killed}-{n}")]
        await part.end(signal.SIGKILL)
    try:
        assert {answer.result().status for answer in answers} == {pb.DELIBERATION_STATUS_COMPLETED}
        await are_decided(cluster, tasks)
        for task in (*names, *tasks):
            assert len(await decided(cluster.bus, task)) == 1
        ends: list[str] = []
        async with asyncio.timeout(120):
            while len(ends) < 4:
                ends = await finished(cluster.bus, f"kill-{killed}-")
        assert len(ends) == len(set(ends)) == 4
    finally:
        await part.start()


async def test_every_role_is_started_again_under_a_stream_of_deliberations_and_no_call_is_lost(
    cluster: Cluster,
) -> None:
    dependencies = "ipv4:" + ",".join(part.target for part in cluster.parts["api,page"])
    going, asked = True, list[str]()

    async def caller(name: str) -> None:
        while going:
            asked.append(task_id := f"roll-{name}-{len(asked)}")
            answer = await deliberate(dependencies, task_id)
            assert answer.task_id == task_id
            assert answer.status == pb.DELIBERATION_STATUS_COMPLETED, answer

    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(caller(name)) for name in ("a", "b")]
        for two in cluster.parts.values():
            for part in two:
                await part.end()
                await part.start()
        going = False
        await asyncio.gather(*callers)
    assert len(asked) > 2
    for task_id in asked:
        assert len(await decided(cluster.bus, task_id)) == 1


async def tell_story(cluster: Cluster, name: str) -> list[str]:
    """Have the tasks of a story derived, which are then handed out; return their ids."""
    told = pb.ProcessPlanningEventRequest(
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
    async with grpc.aio.insecure_channel(cluster.door(0)) as channel:
        stub: Any = OrchestratorServiceStub(channel)
        planned = await stub.ProcessPlanningEvent(told, metadata=WHO, timeout=60)
    assert len(planned.derived_task_ids) > 1
    return list(planned.derived_task_ids)


async def are_decided(cluster: Cluster, tasks: Sequence[str]) -> None:
    """Wait until all tasks have ended."""
    async with asyncio.timeout(180):
        while not all([await decided(cluster.bus, task) for task in tasks]):
            await asyncio.sleep(0.2)


async def finished(bus: JetStreamBus, name: str) -> list[str]:
    """Return the stories whose names begin so, as often as the end of a plan of theirs is
    recorded.
    """
    ends = [
        one.event
        async for one in bus.replay((Channel.STORIES.all,))
        if one.event.type is EventType.PLAN_FINISHED
    ]
    return [story for end in ends if (story := str(end.data["story_id"])).startswith(name)]


async def shares(cluster: Cluster, name: str, before: Sequence[float]) -> list[bool]:
    """Say of each that decides and plans whether it counted something since."""
    return [
        await figure(part, name) > known
        for part, known in zip(cluster.parts[WORKERS], before, strict=True)
    ]


async def figure(part: Part, name: str) -> float:
    """Return the sum of a figure of a process."""
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


async def written(cluster: Cluster, asked: BusGraphClient) -> None:
    """Wait until the graph has all that is recorded now, whoever writes it."""
    last = (await cluster.bus.state("EVENTS")).last_seq
    async with asyncio.timeout(120):
        while True:
            with suppress(GraphUnavailable):
                if await asked.position() >= last:
                    return
            await asyncio.sleep(0.2)


async def holder(cluster: Cluster, name: str) -> Part:
    """Return the part that has a lease."""
    document = await cluster.bus.bucket(BUCKET).get(name)
    assert document is not None
    (part,) = [
        part
        for two in cluster.parts.values()
        for part in two
        if part.process is not None
        and str(document["holder"]).split("-")[-2] == str(part.process.pid)
    ]
    return part
