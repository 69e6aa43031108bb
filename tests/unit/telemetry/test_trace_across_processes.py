"""One trace from the deliberation service over the bus to a host, to the host that takes the work
up again, and to
the collector.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from moothall import telemetry
from moothall.collector.collector import Collector
from moothall.config import LimitSettings, TraceSettings
from moothall.domain.event import Channel, Event, EventType, Recorded
from moothall.domain.ids import LOCAL
from moothall.domain.task import DeliberationRequest
from moothall.orchestrator.request_planning import Defaults
from moothall.orchestrator.service import DeliberationService
from moothall.telemetry.recording import recording
from moothall.testing.bus import MemoryBus
from moothall.workers.host import Host
from support.council import CouncilEnvironment, answer_with_approaches, finish, open_council
from support.story import Remembering

pytestmark = pytest.mark.e2e  # real processes over and over: run with the end-to-end tests

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"
TASK = DeliberationRequest(
    description="Write a haiku", role="dev", protocol="single", task_id="task-1"
)


async def logged_events(bus: MemoryBus) -> list[Event]:
    return [
        recorded.event
        async for recorded in bus.replay((Channel.RESULTS.all, Channel.RESPONSES.all))
    ]


async def until(condition: Callable[[list[Event]], bool], bus: MemoryBus) -> list[Event]:
    async with asyncio.timeout(60):
        while not condition(events := await logged_events(bus)):
            await asyncio.sleep(0.01)
    return events


def has(kind: EventType) -> Callable[[list[Event]], bool]:
    return lambda events: any(event.type is kind for event in events)


async def work(app: CouncilEnvironment, request: Event, deliveries: int) -> None:
    host = Host(f"host-{deliveries}", app.bus, Remembering(), app.parts, 4)
    await host._handle_work(Recorded(1, request, {"deliveries": str(deliveries)}))


async def test_a_deliberation_stays_in_its_trace(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()

    def haiku(_body: Any, _headers: Any) -> str:
        return finish("An old silent pond")

    async with (
        open_council(tmp_path, answer_with_approaches(haiku)) as app,
        recording(TraceSettings(), "test", exporter=exporter),
    ):
        with telemetry.span("call", parent=CALLER):
            await DeliberationService(app.bus, Remembering(), Defaults(LimitSettings())).submit(
                TASK, LOCAL
            )
        request = (await logged_events(app.bus))[0]
        await work(app, request, 1)
        calls = len(app.server.requests)
        await work(app, request, 2)  # its ack was lost, and another host resumes it
        assert len(app.server.requests) == calls
        collecting = asyncio.ensure_future(Collector(app.bus, Remembering()).run())
        events = await until(has(EventType.DELIBERATION_DECIDED), app.bus)
        collecting.cancel()
        await asyncio.wait({collecting})
    spans = exporter.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {
        CALLER.split("-")[1]
    }
    assert {event.traceparent.split("-")[1] for event in events} == {CALLER.split("-")[1]}
    named = Counter(span.name for span in spans)
    assert (named["deliberation"], named["chat"], named["decide"]) == (2, calls, 1)
    (submit,) = [span for span in spans if span.name == "submit"]
    for span in spans:
        if span.name in {"deliberation", "decide"}:
            assert span.parent is not None
            assert submit.context is not None
            assert span.parent.span_id == submit.context.span_id
    deliveries = [
        (span.attributes or {})["moothall.deliveries"]
        for span in spans
        if span.name == "deliberation"
    ]
    assert deliveries == [1, 2]
    ids = {event.id for event in events}
    assert all(
        event.causationid in ids
        for event in events
        if event.type is not EventType.DELIBERATION_REQUESTED
    )


async def test_the_same_request_with_another_trace_is_the_same_request() -> None:
    bus = MemoryBus()
    deliberations = DeliberationService(bus, Remembering(), Defaults(LimitSettings()))
    for caller in (CALLER, OTHER):
        with telemetry.span("call", parent=caller):
            await deliberations.submit(TASK, LOCAL)
    events = await logged_events(bus)
    assert len({event.id for event in events}) == 1
    assert {event.traceparent for event in events} == {CALLER}
    plain = MemoryBus()
    await DeliberationService(plain, Remembering(), Defaults(LimitSettings())).submit(TASK, LOCAL)
    (untraced,) = await logged_events(plain)
    assert untraced.id == events[0].id
    assert (
        replace(untraced, traceparent=CALLER).data["request_digest"]
        == events[0].data["request_digest"]
    )
