from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from moothall import telemetry
from moothall.config import TraceSettings
from moothall.errors import NotFound
from moothall.telemetry.recording import recording

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans(InMemorySpanExporter):
    """An exporter that records spans."""

    def named(self, name: str) -> ReadableSpan:
        (span_named,) = [span for span in self.get_finished_spans() if span.name == name]
        return span_named


@pytest_asyncio.fixture
async def exporter() -> AsyncIterator[Spans]:
    yield Spans()


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def context_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


@pytest.mark.e2e  # a separate process
def test_with_the_exporter_off_nothing_is_imported_and_spans_do_nothing() -> None:
    program = (
        "import sys; from moothall import telemetry\n"
        "with telemetry.span('a', {'b': 1}) as span: span.set({'c': 2}); span.fail('NO'); "
        "print(repr(telemetry.traceparent()))\n"
        "telemetry.metrics.TOOL_CALLS.add('files.read', 'success')\n"
        "print([name for name in sys.modules if name.split('.')[0] in {'opentelemetry', "
        "'prometheus_client', 'psutil'}])"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert completed.stdout.split("\n")[:2] == ["''", "[]"]


def test_with_the_exporter_off_a_callers_trace_is_passed_on_unchanged() -> None:
    with telemetry.span("call", parent=CALLER), telemetry.span("inside"):
        assert telemetry.traceparent() == CALLER
        assert telemetry.headers() == {"traceparent": CALLER}
    assert telemetry.traceparent() == ""
    assert telemetry.headers() == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        CALLER.upper(),
        CALLER + "-more",
        "ff" + CALLER[2:],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        CALLER + "\r\nx: y",
        "x" * 10_000,
    ],
)
async def test_an_invalid_traceparent_is_ignored(text: str, exporter: Spans) -> None:
    assert telemetry.read_traceparent(text) == ""
    with telemetry.span("call", parent=text):
        assert telemetry.traceparent() == ""
    async with recording(TraceSettings(), "test", exporter=exporter):
        with telemetry.span("call", parent=text):
            pass
    assert exporter.named("call").parent is None


@given(st.text(max_size=140))
def test_any_traceparent_is_valid_or_ignored(text: str) -> None:
    parsed = telemetry.read_traceparent(text)
    assert parsed == "" or telemetry.read_traceparent(parsed) == parsed


async def test_the_known_part_of_a_later_version_is_read(exporter: Spans) -> None:
    assert telemetry.read_traceparent("01" + CALLER[2:] + "-future") == CALLER


async def test_spans_are_nested_and_continue_the_callers_trace(exporter: Spans) -> None:
    async with recording(TraceSettings(), "test", exporter=exporter):
        with telemetry.span("call", kind="server", parent=CALLER):
            across = telemetry.traceparent()
            with telemetry.span("inside", {"moothall.turn": 3, "empty": ""}) as span:
                span.set({"moothall.answer": "yes"})
        with telemetry.span("elsewhere", parent=across, links=[CALLER, "nonsense"]):
            pass
    call, inner_span, linked_span = (
        exporter.named(name) for name in ("call", "inside", "elsewhere")
    )
    trace_id = int(CALLER.split("-")[1], 16)
    assert {context_of(span)[0] for span in (call, inner_span, linked_span)} == {trace_id}
    assert parent_of(call) == int(CALLER.split("-")[2], 16)
    assert parent_of(inner_span) == parent_of(linked_span) == context_of(call)[1]
    assert call.kind is SpanKind.SERVER
    assert inner_span.attributes == {"moothall.turn": 3, "moothall.answer": "yes"}
    assert [link.context.trace_id for link in linked_span.links] == [trace_id]
    assert call.resource.attributes["service.name"] == "moothall"
    assert call.resource.attributes["service.instance.id"] == "test"


async def test_concurrent_tasks_keep_their_own_spans(exporter: Spans) -> None:
    async def work(name: str) -> None:
        with telemetry.span(name):
            await asyncio.sleep(0)
            with telemetry.span(f"{name} inside"):
                await asyncio.sleep(0)

    async with recording(TraceSettings(), "test", exporter=exporter):
        with telemetry.span("root"):
            async with asyncio.TaskGroup() as group:
                for name in ("a", "b", "c"):
                    group.create_task(work(name))
    for name in ("a", "b", "c"):
        assert parent_of(exporter.named(name)) == context_of(exporter.named("root"))[1]
        assert parent_of(exporter.named(f"{name} inside")) == context_of(exporter.named(name))[1]


async def test_failures_have_codes_and_a_cancel_is_none(exporter: Spans) -> None:
    async with recording(TraceSettings(), "test", exporter=exporter):
        with pytest.raises(NotFound), telemetry.span("ours"):
            raise NotFound("no deliberation")
        with pytest.raises(KeyError), telemetry.span("bug"):
            raise KeyError("sk-" + "a" * 40)
        with pytest.raises(asyncio.CancelledError), telemetry.span("cancelled"):
            raise asyncio.CancelledError
    ours, bug, cancelled = (exporter.named(name) for name in ("ours", "bug", "cancelled"))
    assert (ours.status.status_code, ours.status.description) == (
        StatusCode.ERROR,
        "no deliberation",
    )
    assert ours.attributes == {"error.type": "NOT_FOUND"}
    assert bug.attributes == {"error.type": "KeyError"}
    assert bug.status.description is None
    assert not bug.events
    assert cancelled.status.status_code is StatusCode.UNSET
    assert cancelled.attributes == {"moothall.cancelled": True}


async def test_no_span_contains_a_secret(exporter: Spans) -> None:
    configured_secret, shaped = "hunter2-hunter2", "ghp_" + "a" * 36
    async with recording(TraceSettings(), "test", secrets=(configured_secret,), exporter=exporter):
        with telemetry.span("call", {"a": f"x {configured_secret} y"}) as span:
            span.set({"b": f"x {shaped} y", "cut": "z" * 1990 + configured_secret})
            span.fail("NO", f"said {configured_secret}")
    exported = exporter.named("call").to_json()
    assert configured_secret not in exported
    assert configured_secret[:9] not in exported
    assert shaped not in exported
    assert exported.count("[redacted]") >= 3


async def test_traces_are_sampled_as_a_whole_and_the_callers_decision_counts(
    exporter: Spans,
) -> None:
    async with recording(TraceSettings(sample_ratio=0.0), "test", exporter=exporter):
        with telemetry.span("not chosen"), telemetry.span("nor this"):
            assert not int(telemetry.traceparent()[-2:], 16) & 1
        with telemetry.span("the caller chose", parent=CALLER), telemetry.span("and so this"):
            pass
    assert {span.name for span in exporter.get_finished_spans()} == {
        "the caller chose",
        "and so this",
    }


@pytest.mark.e2e
async def test_an_unreachable_collector_slows_nothing_and_fails_nothing() -> None:
    settings = TraceSettings(
        exporter="otlp",
        endpoint="http://127.0.0.1:9",
    )
    complaints = telemetry.metrics.TRACE_COMPLAINTS.values.get((), 0)
    async with asyncio.timeout(30), recording(settings, "test"):
        for _ in range(100):
            with telemetry.span("call"):
                await asyncio.sleep(0)
        while telemetry.metrics.TRACE_COMPLAINTS.values.get((), 0) == complaints:
            await asyncio.sleep(0.05)
    assert telemetry.traceparent() == ""


async def test_prompts_are_recorded_only_if_the_operator_enables_it(exporter: Spans) -> None:
    assert not telemetry.wants_content()
    async with recording(TraceSettings(), "test", exporter=exporter):
        assert not telemetry.wants_content()
    async with recording(TraceSettings(content=True), "test", exporter=exporter):
        assert telemetry.wants_content()
