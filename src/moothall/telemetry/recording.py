"""Spans, recorded with OpenTelemetry and sent by a separate thread. Export of audit records as
OpenTelemetry log records, over OTLP.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import Token
from datetime import datetime
from types import TracebackType
from typing import IO, Any, Protocol, Self, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from moothall import __version__
from moothall.concurrency import run_in_daemon
from moothall.config import TraceSettings
from moothall.domain.text import scrub
from moothall.errors import ConfigurationError, MoothallError
from moothall.telemetry import metrics, tracing
from moothall.telemetry.tracing import Kind, Span, Stderr, Value, current_traceparent, get_logger

# Spans, recorded with OpenTelemetry and sent by a separate thread.
#
# An unavailable collector loses spans and delays nothing: the queue is bounded, and a process that
# ends waits at most `EXPORT_SECONDS`.


log = get_logger(__name__)

_KINDS = {kind.name.lower(): kind for kind in trace.SpanKind}
_SERVICE = "moothall"
_WARNING_INTERVAL_SECONDS = 60.0
_ATTRIBUTE_CHARS = 2000
_QUEUE_SPANS, _BATCH_SPANS = 8192, 512
EXPORT_INTERVAL_SECONDS = 2.0
EXPORT_SECONDS = 3.0
"""The maximum duration of one export, and of the last one at the end of a process."""


class _Recorded(Span):
    __slots__ = (
        "_attached",
        "_attributes",
        "_kind",
        "_links",
        "_name",
        "_parent",
        "_recorder",
        "_span",
        "_traceparent_token",
    )

    def __init__(
        self,
        recorder: OtelRecorder,
        name: str,
        attributes: Mapping[str, Value] | None,
        *,
        kind: Kind,
        parent: str | None,
        links: Sequence[str],
    ) -> None:
        self._recorder = recorder
        self._name = name
        self._attributes = attributes
        self._kind = kind
        self._parent = parent
        self._links = links
        self._span: trace.Span = trace.INVALID_SPAN
        self._attached: Token[otel_context.Context] | None = None
        self._traceparent_token: Token[str] | None = None

    def __enter__(self) -> Self:
        recorder = self._recorder
        self._span = recorder.tracer.start_span(
            self._name,
            context=_remote(self._parent) if self._parent is not None else None,
            kind=_KINDS[self._kind],
            attributes=recorder.clean(self._attributes) if self._attributes else None,
            links=[
                trace.Link(context)
                for link in self._links
                if (context := _context_of(link)) is not None
            ],
            # Messages and stacks may have secrets; `__exit__` sets the code.
            record_exception=False,
            set_status_on_exception=False,
        )
        self._attached = otel_context.attach(trace.set_span_in_context(self._span))
        context = self._span.get_span_context()
        self._traceparent_token = current_traceparent.set(
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        if self._traceparent_token is not None:
            current_traceparent.reset(self._traceparent_token)
        if self._attached is not None:
            otel_context.detach(self._attached)
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._span.set_attribute("moothall.cancelled", value=True)
        elif isinstance(error, MoothallError):
            self.fail(error.code, error.message)
        elif error is not None:
            self.fail(type(error).__qualname__)
        self._span.end()

    def set(self, attributes: Mapping[str, Value]) -> None:
        if self._span.is_recording():
            self._span.set_attributes(self._recorder.clean(attributes))

    def fail(self, code: str, message: str = "") -> None:
        if self._span.is_recording():
            self._span.set_attribute("error.type", code)
            self._span.set_status(
                trace.StatusCode.ERROR, self._recorder.clean_text(message) or None
            )


class OtelRecorder:
    """Creates OpenTelemetry spans without secrets."""

    def __init__(
        self, tracer: trace.Tracer, settings: TraceSettings, secrets: Sequence[str]
    ) -> None:
        self.tracer = tracer
        self._settings = settings
        self._secrets = tuple(secrets)

    def span(
        self,
        name: str,
        attributes: Mapping[str, Value] | None,
        kind: Kind,
        parent: str | None,
        links: Sequence[str],
    ) -> Span:
        """Return a span. See `spans.MakeSpan`."""
        return _Recorded(self, name, attributes, kind=kind, parent=parent, links=links)

    def clean(self, attributes: Mapping[str, Value]) -> dict[str, Value]:
        """Return the attributes without secrets, with long texts cut."""
        return {
            name: self._clean_value(value)
            for name, value in attributes.items()
            if value not in {"", ()}
        }

    def _clean_value(self, value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(self.clean_text, value))
        return self.clean_text(value) if isinstance(value, str) else value

    def clean_text(self, text: str) -> str:
        """Return a text without secrets, cut. Secrets go first, since half of one is not found."""
        return scrub(text, self._secrets)[:_ATTRIBUTE_CHARS]


def _context_of(traceparent: str) -> trace.SpanContext | None:
    valid = tracing.read_traceparent(traceparent)
    if not valid:
        return None
    _, trace_id, span_id, flags = valid.split("-")
    return trace.SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(flags, 16)),
    )


def _remote(traceparent: str) -> otel_context.Context:
    """Return the context of a span with this parent; an empty one, and so a new trace, if the
    traceparent is invalid.
    """
    parent, empty = _context_of(traceparent), otel_context.Context()
    return (
        empty
        if parent is None
        else trace.set_span_in_context(trace.NonRecordingSpan(parent), empty)
    )


@asynccontextmanager
async def recording(
    settings: TraceSettings,
    process: str,
    *,
    secrets: Sequence[str] = (),
    exporter: SpanExporter | None = None,
) -> AsyncIterator[None]:
    """Record this process's spans until the context ends. Then send the rest for at most
    `EXPORT_SECONDS`.

    process: its name in the spans. exporter: instead of the settings' exporter, for tests. Raises
    `ConfigurationError`.
    """
    span_exporter = exporter or _exporter(settings)
    provider = TracerProvider(
        resource=Resource.create(
            {
                "service.name": _SERVICE,
                "service.version": __version__,
                "service.instance.id": process,
            }
        ),
        sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
        span_limits=SpanLimits(
            max_attributes=64, max_links=16, max_attribute_length=_ATTRIBUTE_CHARS
        ),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(
        BatchSpanProcessor(
            span_exporter,
            max_queue_size=_QUEUE_SPANS,
            schedule_delay_millis=EXPORT_INTERVAL_SECONDS * 1000,
            max_export_batch_size=_BATCH_SPANS,
        )
    )
    with RedirectedLogs():
        recorder = OtelRecorder(provider.get_tracer("moothall", __version__), settings, secrets)
        tracing.record_with(recorder.span, content=settings.content)
        try:
            yield
        finally:
            tracing.record_with(None)
            await _close_provider(provider, span_exporter, EXPORT_SECONDS)


class _Closable(Protocol):
    def shutdown(self) -> object: ...


async def _close_provider(provider: _Closable, exporter: _Closable, seconds: float) -> None:
    """Send the queue, but do not let a collector that hangs delay the process."""
    if not await run_in_daemon(provider.shutdown, seconds, "spans: last export"):
        log.warning("the collector did not accept the rest of the spans in time", seconds=seconds)
        await asyncio.to_thread(exporter.shutdown)  # ends the thread's wait


def _exporter(settings: TraceSettings) -> SpanExporter:
    if settings.exporter == "console":
        return ConsoleSpanExporter(
            formatter=lambda span: span.to_json(indent=None) + "\n", out=cast("IO[str]", Stderr())
        )
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigurationError(
            "trace.exporter is otlp, and its package is not installed: pip install 'moothall[otlp]'"
        ) from error
    return OTLPSpanExporter(**otlp_options(settings))


def otlp_options(settings: TraceSettings) -> dict[str, Any]:
    """Return the arguments of an OTLP exporter. Raises `ConfigurationError`."""
    return {
        "endpoint": settings.endpoint,
        "insecure": settings.endpoint.startswith("http://"),
        "headers": _headers(settings),
        "timeout": EXPORT_SECONDS,
    }


def _headers(settings: TraceSettings) -> dict[str, str]:
    """Parse `name=value,name=value`. Raises `ConfigurationError`, without the contents."""
    if settings.headers is None:
        return {}
    headers = {}
    for pair in settings.headers.get_secret_value().split(","):
        name, equals, value = pair.strip().partition("=")
        if not name or not equals:
            raise ConfigurationError("trace.headers is not name=value[,name=value]")
        headers[name.strip().lower()] = value.strip()
    return headers


class _WarningHandler(logging.Handler):
    """Counts OpenTelemetry's warnings and logs one a minute. It would log each failed attempt."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last_warning = -_WARNING_INTERVAL_SECONDS

    def emit(self, record: logging.LogRecord) -> None:
        metrics.TRACE_COMPLAINTS.add()
        now = time.monotonic()
        if now - self._last_warning >= _WARNING_INTERVAL_SECONDS:
            self._last_warning = now
            log.warning(
                "telemetry cannot be sent; the work continues",
                reason=scrub(record.getMessage())[:300],
            )


class RedirectedLogs:
    """Redirects OpenTelemetry's own log to ours."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("opentelemetry")
        self._handler = _WarningHandler()

    def __enter__(self) -> None:
        self._logger.addHandler(self._handler)
        self._propagated, self._logger.propagate = self._logger.propagate, False

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self._handler)
        self._logger.propagate = self._propagated


# Export of audit records as OpenTelemetry log records, over OTLP.


EVENT = "moothall.audit.recorded"


class AuditSender:
    """Sends audit records to `trace.endpoint`. `process` is the id of this instance. Raises
    `ConfigurationError` if the extra `otlp` is not installed.
    """

    def __init__(self, settings: TraceSettings, process: str) -> None:
        self._exporter, self._is_open = _otlp_exporter(settings), True
        self._scope = InstrumentationScope("moothall.audit", __version__)
        self._resource = Resource.create(
            {
                "service.name": _SERVICE,
                "service.version": __version__,
                "service.instance.id": process,
            }
        )

    def send(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Send a batch, and return whether the collector accepted it. This blocks for at most
        `EXPORT_SECONDS`.
        """
        batch = [self._log_record(record) for record in records]
        return self._exporter.export(batch) is LogRecordExportResult.SUCCESS

    def close(self) -> None:
        """End a `send` that is under way in another thread, and close the connection."""
        if self._is_open:
            self._is_open = False
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK's base class

    def _log_record(self, record: Mapping[str, Any]) -> ReadableLogRecord:
        """Return a log record. Its body is the record in JSON, and each field is an attribute."""
        return ReadableLogRecord(
            LogRecord(
                timestamp=int(datetime.fromisoformat(record["time"]).timestamp() * 1e9),
                observed_timestamp=time.time_ns(),
                severity_number=SeverityNumber.INFO,
                severity_text="INFO",
                body=json.dumps(record, separators=(",", ":")),
                attributes={f"moothall.audit.{name}": value for name, value in record.items()},
                event_name=EVENT,
            ),
            self._resource,
            self._scope,
        )


@contextmanager
def open_sender(settings: TraceSettings, process: str) -> Iterator[AuditSender]:
    """Yield a sender, and close it at the end. Raises `ConfigurationError`."""
    sender = AuditSender(settings, process)
    with RedirectedLogs():
        try:
            yield sender
        finally:
            sender.close()


def _otlp_exporter(settings: TraceSettings) -> LogRecordExporter:
    try:
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
    except ImportError as error:
        raise ConfigurationError(
            "the export of the audit over OTLP needs a package that is not installed: pip install "
            "'moothall[otlp]'"
        ) from error
    return OTLPLogExporter(**otlp_options(settings))
