"""Single steps, each on the real part: a tool call, a workspace, an event on the disk."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Sequence
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
_WARM = 20


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one step, over and over."""

    seconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        """Milliseconds, the median."""
        return statistics.median(self.seconds) * 1000

    @property
    def p99(self) -> float:
        """Milliseconds that one in a hundred exceeds."""
        return self._exceeded_by(1)

    @property
    def p95(self) -> float:
        """Milliseconds that one in twenty exceeds."""
        return self._exceeded_by(5)

    def _exceeded_by(self, percent: int) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, len(ordered) * (100 - percent) // 100)] * 1000


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
    """About a kilobyte, as a turn of a seat."""
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


async def persisted(folder: Path, count: int) -> Times:
    """One event after the other, each awaited until the bus has it on its disk."""
    async with _bus(_settings(folder)) as bus:
        for number in range(50):
            await bus.publish(_event(-1 - number))
        seconds = []
        for number in range(count):
            event = _event(number)
            began = time.perf_counter()
            await bus.publish(event)
            seconds.append(time.perf_counter() - began)
    return Times(tuple(seconds))


async def prepared(settings: Settings, services: WorkspaceServices, path: Path) -> Prepared:
    """Register a repository and prepare its HEAD."""
    named = await register(settings, str(path), "HEAD")
    return await services.repositories.prepare(await services.repositories.resolve(named))


async def tool_round_trip(folder: Path, count: int) -> Times:
    """`files.read` through the tool gateway: schema, grant, limits, audit, sandboxed executor,
    event on the bus.
    """
    async with _workspace(folder, count) as (tool_gateway, seat, _):
        return await _reads(tool_gateway, seat, count, "src/utils.py")


async def python_round_trip(folder: Path, count: int) -> Times:
    """A block of Python that reads a file: to Monty in its sandbox, from there through the tool
    gateway, and back.
    """
    async with _workspace(folder, count) as (tool_gateway, seat, services):

        async def through(call: ToolCall) -> ToolResult:
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
            raise RuntimeError("runner.enabled is off")
        seconds = []
        for number in range(count + _WARM):
            calls = BlockCalls(through, f"bench/3.{number}", seat.deadline, BlockBudget(10))
            began = time.perf_counter()
            ran = await run_code(block, seat.workspace, calls)
            seconds.append(time.perf_counter() - began)
            if ran.value != 40:  # noqa: PLR2004 - the file's lines
                raise RuntimeError(f"python: {ran.status} {ran.error}")
    return Times(tuple(seconds[_WARM:]))


async def tool_rate(folder: Path, count: int) -> float:
    """Return tool calls a second through one workspace, as many at once as a seat may have: reads,
    writes, searches, edits.
    """
    async with _workspace(folder, count) as (tool_gateway, seat, _):
        calls = iter(range(count))

        async def caller() -> None:
            for number in calls:
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

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(GATEWAY_LIMITS.seat_in_flight):
                group.create_task(caller())
        return count / (time.perf_counter() - began)


@asynccontextmanager
async def _workspace(
    folder: Path, count: int
) -> AsyncIterator[tuple[ToolGateway, CallContext, WorkspaceServices]]:
    """A seat in a workspace behind a gate that lets it make so many calls."""
    settings = _settings(folder)
    make_repo(folder / "repo", {"src/utils.py": "x = 1\n" * 40, "Makefile": "test:\n\ttrue\n"})
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(_bus(settings))
        audit = await stack.enter_async_context(AuditLog(settings.data_dir, "bench"))
        services = await stack.enter_async_context(open_workspace_services(settings))
        base = await prepared(settings, services, folder / "repo")
        rules = await stack.enter_async_context(open_rules(settings, bus))
        tool_gateway = ToolGateway(
            audit, bus.publish, rules, limits=GatewayLimits(seat_calls=10 * count + 100)
        )
        workspace = await stack.enter_async_context(services.workspaces.open(base, "bench"))
        yield tool_gateway, tool_gateway.with_token(_seat(workspace)), services


async def guard(folder: Path, count: int) -> Times:
    """What the tool gateway itself costs a call: every step, Rego and the audit on the disk, round
    a tool that answers at once.
    """
    settings = _settings(folder)
    limits = GatewayLimits(seat_calls=10 * count + 100)
    async with (
        AuditLog(settings.data_dir, "bench") as audit,
        open_rules(settings, MemoryBus()) as rules,
    ):
        tool_gateway = ToolGateway(audit, Facts().publish, rules, limits=limits)
        return await _reads(
            tool_gateway, tool_gateway.with_token(_seat(FakeWorkspace())), count, "src/file{}.py"
        )


async def _reads(tool_gateway: ToolGateway, seat: CallContext, count: int, path: str) -> Times:
    """Time `count` reads, after a few that warm it up. `path` may hold the read's number."""
    seconds = []
    for number in range(count + _WARM):
        call = ToolCall(
            f"bench/1.{number}", "files.read", {"path": path.format(number)}, seat.deadline
        )
        began = time.perf_counter()
        result = await tool_gateway.call(seat, call)
        seconds.append(time.perf_counter() - began)
        if result.status != "success":
            raise RuntimeError(f"files.read: {result.status} {result.error}")
    return Times(tuple(seconds[_WARM:]))


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


async def workspace_ready(folder: Path, count: int) -> Times:
    """A fresh sandboxed workspace on a repository of 5,000 files that was prepared before, until
    its first tool can run.
    """
    settings = _settings(folder)
    files = {
        f"src/part{number // 100:02}/file{number:04}.py": f"VALUE = {number}\n" * 20
        for number in range(_FILES - 1)
    }
    make_repo(folder / "repo", {**files, "Makefile": "test:\n\ttrue\n"})
    seconds: list[float] = []
    async with open_workspace_services(settings) as services:
        base = await prepared(settings, services, folder / "repo")
        for number in range(count + 2):
            began = time.perf_counter()
            async with services.workspaces.open(base, f"bench-{number}"):
                seconds.append(time.perf_counter() - began)
    return Times(tuple(seconds[2:]))


def summary(times: Sequence[Times]) -> Times:
    """All of several runs."""
    return Times(tuple(second for run in times for second in run.seconds))
