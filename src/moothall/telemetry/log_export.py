"""Export of audit records as OpenTelemetry log records, over OTLP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from moothall import __version__
from moothall.config import TraceSettings
from moothall.errors import ConfigurationError
from moothall.telemetry.recording import RedirectedLogs, otlp_options

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
                "service.name": settings.service,
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
