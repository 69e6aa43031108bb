"""The tool service of a serving process: workspaces for callers from outside, and the door on the bus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from moothall.aio import beside
from moothall.config import Settings
from moothall.guard.audit import AuditLog
from moothall.guard.gate import Gate
from moothall.guard.rules import Rules
from moothall.ports import Bus
from moothall.visits.executions import Executions
from moothall.visits.requests import Requests
from moothall.visits.visits import Visits
from moothall.wiring.rules import audit_key
from moothall.wiring.trusted import Leaving, open_hands
from moothall.workflows.running import BUCKET, Workflows

_WRITER = "serve"


@asynccontextmanager
async def tool_service(settings: Settings, bus: Bus, rules: Rules) -> AsyncIterator[Visits]:
    """Answer requests on the bus, and yield what the other doors lead to. At the end every workspace is closed."""
    async with AsyncExitStack() as stack:
        audit = await stack.enter_async_context(
            AuditLog(settings.data_dir, _WRITER, sync_records=settings.guard.audit_sync_records, key=audit_key(settings))
        )
        hands = await stack.enter_async_context(open_hands(settings))
        gate = Gate(settings.guard, audit, bus.publish, rules, source="executor")
        visits = await stack.enter_async_context(
            Visits(
                gate, rules.tokens, Leaving(hands.workspaces, rules.left), hands.repositories, settings.guard, runner=hands.runner
            )
        )
        if rules.parking is not None:
            rules.parking.on_resolved(visits.resolved)
        await stack.enter_async_context(beside(Requests(bus, visits, audit).run(), "tools"))
        yield visits


def execution_service(settings: Settings, visits: Visits) -> Executions | None:
    """Return what runs the code of visitors; None where `runner.enabled` is off."""
    return Executions(visits, visits.runner, settings.runner) if visits.runner is not None else None


@asynccontextmanager
async def workflow_service(settings: Settings, bus: Bus, visits: Visits, *, resume: bool = True) -> AsyncIterator[Workflows]:
    """Run workflows in the workspaces of visitors. `resume`: those that a process left that is gone go on at once."""
    async with Workflows(visits, visits.gate, bus, bus.bucket(BUCKET), settings.guard) as workflows:
        if resume:
            await workflows.resume()
        yield workflows
