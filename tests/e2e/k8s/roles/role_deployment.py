"""Operations on a deployment by role: councils in which something is killed, and their outcomes."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc.aio
from kubernetes import client

from moothall.config import BusSettings
from moothall.domain.codec import load
from moothall.domain.event import EventType, deliberation_topics
from moothall.domain.ids import TaskKey
from moothall.domain.outcome import Outcome
from moothall.errors import GraphUnavailable
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.events.registry import EVENTS, WORK
from moothall.graph.store import BusGraphClient
from moothall.pb.moothall.v1 import common_pb2
from moothall.pb.orchestrator.v1 import orchestrator_pb2 as pb
from moothall.pb.orchestrator.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from support.kube.ctl import ask
from support.kube.deployment import SPACE, TOKEN, WORKSPACES, Folders
from support.kube.killing import kill
from support.recovery.scene import End

TASK = "Add hello_world() function to src/utils.py"
WHO = (("authorization", f"Bearer {TOKEN}"),)
_UNREACHED = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNKNOWN,
}
_RUN_SECONDS, _CALL_SECONDS, _GONE_SECONDS = 300.0, 10.0, 120.0
_TRIES = 50

Blow = Callable[[], Coroutine[Any, Any, int]]
"""A function that kills processes and returns their number."""


SAME = ("status", "final_state", "winner", "proven", "delivered")
"""The fields of an outcome that must be the same. The amount of other evidence, and the seats
still needed, depend on the load of the machine.
"""


@dataclass(slots=True)
class CouncilResult:
    """The outcome of a council. `hit` counts the killed processes; `repeated` holds calls that were
    made again though they were recorded.
    """

    end: End
    hit: int = 0
    repeated: list[str] = field(default_factory=list)
    decisions: int = 0

    def difference(self, other: CouncilResult) -> str:
        """Describe the difference to another outcome; '' if they are equal."""
        ends = [(name, getattr(self.end, name), getattr(other.end, name)) for name in SAME]
        return "; ".join(
            f"{name}: {mine!r} became {theirs!r}" for name, mine, theirs in ends if mine != theirs
        )


@dataclass(slots=True)
class RoleDeployment:
    """The deployment in the cluster. `arrived` holds call id and time of each model call, as the
    model server received it.
    """

    api: client.ApiClient
    folders: Folders
    credentials: Path
    authority: bytes
    arrived: list[tuple[str, float]]
    repository: str
    dependencies: dict[str, str] = field(default_factory=dict)
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)
    _bus: JetStreamBus | None = None

    async def connect(self) -> None:
        """Look up its endpoints and its bus; a new installation has new ones."""
        for name in ("moothall", "moothall-tools"):
            self.dependencies[name] = (
                await ask("-n", SPACE, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
            ).strip()
        servers = ",".join(
            f"nats://{pod.status.pod_ip}:4222"
            for pod in await self.pods("app.kubernetes.io/name=nats")
        )
        self._bus = await self._open.enter_async_context(
            open_bus(
                BusSettings.model_validate({"replicas": 3, "credentials_file": self.credentials}),
                servers,
            )
        )

    async def disconnect(self) -> None:
        """Close the connection to its bus."""
        await self._open.aclose()
        self._bus = None

    @property
    def bus(self) -> JetStreamBus:
        """Its bus."""
        assert self._bus is not None, "call connect() first"
        return self._bus

    @asynccontextmanager
    async def channel(
        self, service: str = "moothall", port: int = 50055
    ) -> AsyncIterator[grpc.aio.Channel]:
        """Yield a new TLS connection to some pod behind a Service."""
        options = [("grpc.ssl_target_name_override", f"{service}.{SPACE}")]
        address = f"{self.dependencies[service]}:{port}"
        async with grpc.aio.secure_channel(
            address, grpc.ssl_channel_credentials(self.authority), options=options
        ) as channel:
            yield channel

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[Any]:
        """Yield a stub on a new connection to some pod that serves calls."""
        async with self.channel() as channel:
            yield OrchestratorServiceStub(channel)

    async def pods(self, selector: str, space: str = SPACE) -> list[Any]:
        """Return the pods that match a label selector."""
        pod_list: Any = await asyncio.to_thread(
            client.CoreV1Api(self.api).list_namespaced_pod, space, label_selector=selector
        )
        return list(pod_list.items)

    def killing(
        self, selector: str, container: str = "", space: str = SPACE, limit: int | None = None
    ) -> Blow:
        """Return a function that waits for pods that match a selector and kills all their
        processes, or those of one container, with SIGKILL.

        `limit` limits how many of the pods are hit.
        """

        async def blow() -> int:
            for _ in range(_TRIES):
                if hit := sum(
                    [
                        await asyncio.to_thread(kill, pod, container)
                        for pod in (await self.pods(selector, space))[:limit]
                    ]
                ):
                    return hit
                await asyncio.sleep(0.2)
            return 0

        return blow

    async def council(
        self, task_id: str, blow: Blow | None = None, at: EventType = EventType.MODEL_CALLED
    ) -> CouncilResult:
        """Deliberate, with a blow at the first event of a type, and retry as a caller does; return
        the outcome.
        """
        recorded: dict[str, float] = {}
        counts = Counter[EventType]()
        hits: list[asyncio.Task[int]] = []
        last_seq, began = (await self.bus.state(EVENTS.name)).last_seq, len(self.arrived)

        async def wait_for_outcome() -> Outcome:
            async with aclosing(
                self.bus.follow(deliberation_topics(TaskKey(task_id)), last_seq)
            ) as log:
                async for item in log:
                    event = item.event
                    counts[event.type] += 1
                    if event.type is EventType.MODEL_CALLED:
                        stored = datetime.fromisoformat(item.extra["time"]).timestamp()
                        recorded.setdefault(str(event.data["call_id"]), stored)
                    if blow is not None and event.type is at and not hits:
                        hits.append(group.create_task(blow()))
                    if event.type is EventType.DELIBERATION_DECIDED:
                        return load(Outcome, event.data)
            raise AssertionError("the log ended")

        async with asyncio.timeout(_RUN_SECONDS), asyncio.TaskGroup() as group:
            following = group.create_task(wait_for_outcome())
            await self._insist(
                "SubmitDeliberation",
                pb.DeliberateRequest(
                    task_id=task_id,
                    task_description=TASK,
                    role="DEV",
                    num_agents=3,
                    protocol="vote",
                    constraints=pb.TaskConstraints(max_iterations=1),
                    repository=common_pb2.Repository(id=self.repository),
                ),
            )
            outcome = await following
            answered = await self._reported_result(task_id)
        assert answered.winner_id == outcome.winner_id, "the API reports what is recorded"
        repeated = [
            name
            for name, received_at in self.arrived[began:]
            if received_at > recorded.get(name, received_at)
        ]
        end = End.of(outcome, self._delivered(task_id))
        return CouncilResult(
            end,
            sum(task.result() for task in hits),
            repeated,
            counts[EventType.DELIBERATION_DECIDED],
        )

    async def _reported_result(self, task_id: str) -> Any:
        running = {pb.DELIBERATION_STATUS_PENDING, pb.DELIBERATION_STATUS_IN_PROGRESS}
        request = pb.GetDeliberationResultRequest(task_id=task_id)
        while (answer := await self._insist("GetDeliberationResult", request)).status in running:
            await asyncio.sleep(0.2)
        return answer

    async def _insist(self, name: str, request: object) -> Any:
        """Retry until a server answers, on a new connection each time. The same id with the same
        request is the same deliberation.
        """
        while True:
            try:
                async with self.stub() as stub:
                    return await getattr(stub, name)(request, metadata=WHO, timeout=_CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _UNREACHED:
                    raise
            await asyncio.sleep(0.2)

    def _delivered(self, task_id: str) -> str:
        command = (
            "git",
            "-c",
            "safe.directory=*",
            "-C",
            str(self.folders.shared / "sample"),
            "show",
            "--format=",
        )
        return subprocess.run(
            (*command, f"moothall/{task_id}"), capture_output=True, text=True, check=True
        ).stdout

    async def leftovers(self, seconds: float = _GONE_SECONDS) -> list[str]:
        """Return the Jobs, pods and work items that remain after a while."""
        until = asyncio.get_running_loop().time() + seconds
        while True:
            jobs: Any = await asyncio.to_thread(
                client.BatchV1Api(self.api).list_namespaced_job, WORKSPACES
            )
            remaining = [
                str(item.metadata.name) for item in (*jobs.items, *await self.pods("", WORKSPACES))
            ]
            remaining += ["a work item"] * (await self.bus.state(WORK.name)).messages
            if not remaining or asyncio.get_running_loop().time() > until:
                return remaining
            await asyncio.sleep(0.5)

    async def wait_for_graph(self, seconds: float = _GONE_SECONDS) -> None:
        """Wait until the graph holds everything recorded so far. Raises `TimeoutError`."""
        graph, last = BusGraphClient(self.bus, 10), (await self.bus.state(EVENTS.name)).last_seq
        async with asyncio.timeout(seconds):
            while await _position(graph) < last:
                await asyncio.sleep(0.5)


async def _position(graph: BusGraphClient) -> int:
    try:
        return await graph.position()
    except GraphUnavailable:
        return -1
