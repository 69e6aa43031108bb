"""Microbenchmarks of single steps on real components: a tool call, a workspace, an event."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from moothall.app.command_repository import register
from moothall.app.gateway_rules import open_rules
from moothall.app.workspaces import WorkspaceServices, open_workspace_services
from moothall.authorization.audit import AuditLog
from moothall.authorization.checks import BlockBudget, BlockCalls, CallContext
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.limits import GATEWAY_LIMITS, GatewayLimits
from moothall.authorization.rules import grant_for
from moothall.config import Settings
from moothall.domain.event import Event, EventType, new_event
from moothall.domain.ids import LOCAL, TaskKey
from moothall.domain.repository import Prepared
from moothall.domain.tool import CodeBlock, ToolCall, ToolResult
from moothall.events.nats.jetstream import JetStreamBus, open_bus
from moothall.events.nats.server import embedded_server
from moothall.ports import Workspace
from moothall.settings import load_settings
from moothall.testing.bus import MemoryBus
from support.repos import make_repo
from support.tool_gateway import Facts, FakeWorkspace

_FILES = 5000
_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Times:
    """The seconds of each repetition of a step."""

    seconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        """The median in milliseconds."""
        return statistics.median(self.seconds) * 1000

    @property
    def p99(self) -> float:
        """The 99th percentile in milliseconds."""
        return self._percentile(99)

    @property
    def p95(self) -> float:
        """The 95th percentile in milliseconds."""
        return self._percentile(95)

    def _percentile(self, percent: int) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1000


@asynccontextmanager
async def _bus(settings: Settings) -> AsyncIterator[JetStreamBus]:
    async with (
        embedded_server(settings.bus, settings.data_dir / "bus") as url,
        open_bus(settings.bus, url) as bus,
    ):
        yield bus


def _settings(folder: Path) -> Settings:
    return load_settings(data_dir=folder / "data")


def _event(number: int) -> Event:
    """Return an event of about a kilobyte, like that of a turn."""
    data = {
        "task_id": "bench",
        "seat": "agent-dev-001",
        "turn": number,
        "thought": "x" * 700,
        "operations": [],
        "checks": {},
    }
    return new_event(
        EventType.SEAT_TURN, "bench", data, ordinal=str(number), time=datetime.now(UTC).isoformat()
    )


async def measure_publish(folder: Path, count: int) -> Times:
    """Publish events one after the other, each until the bus has stored it."""
    async with _bus(_settings(folder)) as bus:
        for number in range(50):
            await bus.publish(_event(-1 - number))
        seconds = []
        for number in range(count):
            event = _event(number)
            start = time.perf_counter()
            await bus.publish(event)
            seconds.append(time.perf_counter() - start)
    return Times(tuple(seconds))


async def prepare_repository(
    settings: Settings, services: WorkspaceServices, path: Path
) -> Prepared:
    """Register a repository and prepare its HEAD."""
    reference = await register(settings, str(path), "HEAD")
    return await services.repositories.prepare(await services.repositories.resolve(reference))


async def measure_tool_call(folder: Path, count: int) -> Times:
    """Measure `files.read` through the tool gateway: schema, grant, limits, audit, sandboxed
    executor, and event on the bus.
    """
    async with _workspace(folder, count) as (tool_gateway, seat, _):
        return await _time_reads(tool_gateway, seat, count, "src/utils.py")


async def measure_python_block(folder: Path, count: int) -> Times:
    """Measure a block of Python that reads a file: it runs on Monty in its sandbox, and calls the
    tool through the gateway.
    """
    async with _workspace(folder, count) as (tool_gateway, seat, services):

        async def call_tool(call: ToolCall) -> ToolResult:
            return await tool_gateway.call(seat, call)

        tools = {
            spec.name: tuple(spec.arguments.model_fields)
            for spec in tool_gateway.list_tools(seat.tenant, seat.grant)
        }
        block = CodeBlock(
            "len(ws.read('src/utils.py').splitlines())", tools, seat.deadline, seat.tenant
        )
        run_code = services.run_code
        if run_code is None:
            raise RuntimeError("no runner of Python blocks: runner.enabled is off")
        seconds = []
        for number in range(count + _WARM_UP):
            calls = BlockCalls(call_tool, f"bench/3.{number}", seat.deadline, BlockBudget(10))
            start = time.perf_counter()
            result = await run_code(block, seat.workspace, calls)
            seconds.append(time.perf_counter() - start)
            if result.value != 40:  # noqa: PLR2004 - the lines of the file
                raise RuntimeError(f"python: {result.status} {result.error}")
    return Times(tuple(seconds[_WARM_UP:]))


async def measure_tool_rate(folder: Path, count: int) -> float:
    """Return the tool calls a second in one workspace, with the maximum of concurrent calls of a
    seat: reads, writes, lists and appends.
    """
    async with _workspace(folder, count) as (tool_gateway, seat, _):
        numbers = iter(range(count))

        async def caller() -> None:
            for number in numbers:
                name = f"src/new{number // 4}.py"
                tool, arguments = (
                    ("files.read", {"path": "src/utils.py"}),
                    ("files.write", {"path": name, "content": "x = 1\n" * 40}),
                    ("files.list", {"path": "src"}),
                    ("files.append", {"path": name, "content": "y = 2\n"}),
                )[number % 4]
                result = await tool_gateway.call(
                    seat, ToolCall(f"bench/2.{number}", tool, arguments, seat.deadline)
                )
                if result.status != "success":
                    raise RuntimeError(f"{tool}: {result.status} {result.error}")

        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(GATEWAY_LIMITS.seat_in_flight):
                group.create_task(caller())
        return count / (time.perf_counter() - start)


@asynccontextmanager
async def _workspace(
    folder: Path, count: int
) -> AsyncIterator[tuple[ToolGateway, CallContext, WorkspaceServices]]:
    """Yield a tool gateway whose limits allow `count` calls, a seat, and its workspace services."""
    settings = _settings(folder)
    make_repo(folder / "repo", {"src/utils.py": "x = 1\n" * 40, "Makefile": "test:\n\ttrue\n"})
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(_bus(settings))
        audit = await stack.enter_async_context(AuditLog(settings.data_dir, "bench"))
        services = await stack.enter_async_context(open_workspace_services(settings))
        base = await prepare_repository(settings, services, folder / "repo")
        rules = await stack.enter_async_context(open_rules(settings, bus))
        tool_gateway = ToolGateway(
            audit, bus.publish, rules, limits=GatewayLimits(seat_calls=10 * count + 100)
        )
        workspace = await stack.enter_async_context(services.workspaces.open(base, "bench"))
        yield tool_gateway, tool_gateway.with_token(_seat(workspace)), services


async def measure_gateway(folder: Path, count: int) -> Times:
    """Measure the overhead of the tool gateway: all its steps, including Rego and the audit log on
    the disk, around a tool that returns immediately.
    """
    settings = _settings(folder)
    limits = GatewayLimits(seat_calls=10 * count + 100)
    async with (
        AuditLog(settings.data_dir, "bench") as audit,
        open_rules(settings, MemoryBus()) as rules,
    ):
        tool_gateway = ToolGateway(audit, Facts().publish, rules, limits=limits)
        return await _time_reads(
            tool_gateway, tool_gateway.with_token(_seat(FakeWorkspace())), count, "src/file{}.py"
        )


async def _time_reads(tool_gateway: ToolGateway, seat: CallContext, count: int, path: str) -> Times:
    """Time `count` reads after a warm-up. `path` may have a placeholder for their number."""
    seconds = []
    for number in range(count + _WARM_UP):
        call = ToolCall(
            f"bench/1.{number}", "files.read", {"path": path.format(number)}, seat.deadline
        )
        start = time.perf_counter()
        result = await tool_gateway.call(seat, call)
        seconds.append(time.perf_counter() - start)
        if result.status != "success":
            raise RuntimeError(f"files.read: {result.status} {result.error}")
    return Times(tuple(seconds[_WARM_UP:]))


def _seat(workspace: Workspace) -> CallContext:
    return CallContext(
        principal=LOCAL,
        task_id=TaskKey("bench"),
        seat="agent-dev-001",
        role="dev",
        grant=grant_for("dev", ()),
        workspace=workspace,
        workspace_id=workspace.id,
        deadline=datetime.now(UTC) + timedelta(hours=1),
        ledger=None,
    )


async def measure_workspace(folder: Path, count: int) -> Times:
    """Measure the start of a sandboxed workspace, until its first tool can run, on a prepared
    repository of 5,000 files.
    """
    settings = _settings(folder)
    files = {
        f"src/part{number // 100:02}/file{number:04}.py": f"VALUE = {number}\n" * 20
        for number in range(_FILES - 1)
    }
    make_repo(folder / "repo", {**files, "Makefile": "test:\n\ttrue\n"})
    seconds: list[float] = []
    async with open_workspace_services(settings) as services:
        base = await prepare_repository(settings, services, folder / "repo")
        for number in range(count + 2):
            start = time.perf_counter()
            async with services.workspaces.open(base, f"bench-{number}"):
                seconds.append(time.perf_counter() - start)
    return Times(tuple(seconds[2:]))
