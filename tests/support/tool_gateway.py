"""A real gateway around a workspace that answers from a function."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from moothall.authorization.audit import AuditLog
from moothall.authorization.checks import CallContext
from moothall.authorization.gateway import ToolGateway
from moothall.authorization.limits import GATEWAY_LIMITS, GatewayLimits
from moothall.authorization.rules import Rules, grant_for
from moothall.domain.budget import Ledger
from moothall.domain.event import Event
from moothall.domain.evidence import CheckRun, Verdict
from moothall.domain.ids import LOCAL, Principal, TaskKey
from moothall.domain.repository import Patch
from moothall.domain.tool import Ask, BlockRun, CodeBlock, Grant, ToolCall, ToolResult, ToolStatus
from moothall.errors import WorkspaceFailed
from moothall.ports import HandleLines


def in_seconds(seconds: float) -> datetime:
    """Return the UTC time in this many seconds."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


def tool_call(
    tool: str = "files.read", *, number: int = 1, seconds: float = 60, **arguments: Any
) -> ToolCall:
    """Return a call with the id `request-<number>`."""
    return ToolCall(f"request-{number}", tool, arguments, in_seconds(seconds))


def echo(call: ToolCall) -> ToolResult:
    """Answer with the arguments."""
    return ToolResult(call.request_id, call.tool, ToolStatus.SUCCESS, dict(call.arguments))


class FakeWorkspace:
    """A fake workspace that answers from a function. It waits while `open` is not set. `gone` means
    that its executor died.
    """

    def __init__(self, answer: Callable[[ToolCall], ToolResult] = echo) -> None:
        self.calls: list[ToolCall] = []
        self.answer = answer
        self.open = asyncio.Event()
        self.open.set()
        self.entered = asyncio.Event()
        self.gone = False

    @property
    def id(self) -> str:
        """The constant id ws-1."""
        return "ws-1"

    async def call(self, call: ToolCall) -> ToolResult:
        """Record the call and answer it."""
        self.calls.append(call)
        self.entered.set()
        await self.open.wait()
        if self.gone:
            raise WorkspaceFailed("the executor died")
        return self.answer(call)

    async def check(
        self,
        name: str,
        paths: Sequence[str] = (),
        deadline: datetime | None = None,
        cases: Sequence[str] = (),
        apart: Sequence[str] = (),
        *,
        alone: bool = False,
        seconds: float = 0.0,
    ) -> CheckRun:
        """Not supported."""
        del paths, deadline, cases, apart, alone, seconds
        return CheckRun(name, Verdict.MISSING)

    async def run_code(self, block: CodeBlock, ask: Ask) -> BlockRun:
        """Not supported."""
        del block, ask
        return BlockRun(ToolStatus.ERROR, error="no CPython is here")

    async def converse(
        self,
        argv: Sequence[str],
        handle_lines: HandleLines,
        *,
        seconds: float,
        max_bytes: int,
        keep_changes: bool,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Not supported."""
        del argv, handle_lines, seconds, max_bytes, keep_changes, variables
        return "no program is here"

    async def patch(self, message: str) -> Patch:
        """Return an empty patch."""
        del message
        return Patch("0" * 40, "", "")


class Facts:
    """A publisher that records events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def publish(self, event: Event) -> int:
        """Record the event."""
        self.events.append(event)
        return len(self.events)


class App:
    """A gateway, its audit log and its one workspace."""

    def __init__(
        self,
        data_dir: Path,
        audit: AuditLog,
        limits: GatewayLimits = GATEWAY_LIMITS,
        **rules: Any,
    ) -> None:
        self.workspace = FakeWorkspace()
        self.facts = Facts()
        self.audit = audit
        self.tool_gateway = ToolGateway(audit, self.facts.publish, Rules(**rules), limits=limits)
        self.data_dir = data_dir
        self.chain = data_dir / "audit" / "local" / "host-1.jsonl"

    def seat(
        self,
        *,
        role: str = "dev",
        grant: Grant | None = None,
        principal: Principal = LOCAL,
        tenant: str = "local",
        workspace_id: str = "ws-1",
        ledger: Ledger | None = None,
        seconds: float = 600,
    ) -> CallContext:
        """Return the call context of a seat in the workspace."""
        seat = CallContext(
            principal=replace(principal, tenant=tenant),
            task_id=TaskKey("task-1"),
            seat=f"agent-{role}-001",
            role=role,
            grant=grant or grant_for(role, ("tests/**",)),
            workspace=self.workspace,
            workspace_id=workspace_id,
            ledger=ledger,
            deadline=in_seconds(seconds),
        )
        return self.tool_gateway.with_token(seat)

    def records(self) -> list[Mapping[str, Any]]:
        """Return the records of the audit log."""
        return (
            [json.loads(line) for line in self.chain.read_text().splitlines()]
            if self.chain.exists()
            else []
        )


@asynccontextmanager
async def open_app(data_dir: Path, **options: Any) -> AsyncIterator[App]:
    """Open a gateway with these limits and rules, by their names."""
    limits = _pop(options, {field.name for field in fields(GatewayLimits)})
    async with AuditLog(data_dir, "host-1") as audit:
        yield App(data_dir, audit, GatewayLimits(**limits), **options)


def _pop(options: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Remove the values with these names, and return them."""
    return {name: options.pop(name) for name in names & set(options)}
