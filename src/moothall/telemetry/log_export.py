"""Export of audit records as OpenTelemetry log records, over OTLP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from opentelemetry._logs import SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import (
    BatchLogRecordProcessor,
    LogRecordExporter,
    LogRecordExportResult,
)
from opentelemetry.sdk.resources import Resource

from moothall import __version__
from moothall.config import TraceSettings
from moothall.errors import ConfigurationError
from moothall.telemetry.logs import get_logger
from moothall.telemetry.recording import (
    EXPORT_INTERVAL_SECONDS,
    EXPORT_SECONDS,
    RedirectedLogs,
    close_provider,
    otlp_options,
)

log = get_logger(__name__)

EVENT = "moothall.audit.recorded"
_QUEUE_RECORDS = 8192
_BATCH_RECORDS = 512


class AuditExporter:
    """Sends audit records to `trace.endpoint`, in batches. `process` is the id of this instance.
    Raises `ConfigurationError` if the extra `otlp` is not installed.
    """

    def __init__(self, settings: TraceSettings, process: str) -> None:
        self._exporter = _CountingExporter(_otlp_exporter(settings))
        self._seconds = EXPORT_SECONDS
        self._provider = LoggerProvider(
            resource=Resource.create(
                {
                    "service.name": settings.service,
                    "service.version": __version__,
                    "service.instance.id": process,
                }
            ),
            shutdown_on_exit=False,
        )
        self._provider.add_log_record_processor(
            BatchLogRecordProcessor(
                self._exporter,
                schedule_delay_millis=EXPORT_INTERVAL_SECONDS * 1000,
                max_queue_size=_QUEUE_RECORDS,
                max_export_batch_size=_BATCH_RECORDS,
            )
        )
        self._logger = self._provider.get_logger("moothall.audit", __version__)

    @property
    def lost(self) -> int:
        """The number of records that the collector did not accept."""
        return self._exporter.lost

    def emit(self, record: Mapping[str, Any]) -> None:
        """Queue a record. Its body is the record in JSON, and each field is an attribute."""
        self._logger.emit(
            timestamp=int(datetime.fromisoformat(record["time"]).timestamp() * 1e9),
            severity_number=SeverityNumber.INFO,
            severity_text="INFO",
            body=json.dumps(record, separators=(",", ":")),
            attributes={f"moothall.audit.{name}": value for name, value in record.items()},
            event_name=EVENT,
        )

    def flush(self) -> None:
        """Send all queued records. This blocks."""
        self._provider.force_flush(int(self._seconds * 1000))

    async def close(self) -> None:
        """Send the queued records for at most `EXPORT_SECONDS`, and close."""
        await close_provider(self._provider, self._exporter, self._seconds, "audit records")


@asynccontextmanager
async def exporting(settings: TraceSettings, process: str) -> AsyncIterator[AuditExporter]:
    """Yield an exporter, and close it at the end. Raises `ConfigurationError`."""
    exporter = AuditExporter(settings, process)
    with RedirectedLogs():
        try:
            yield exporter
        finally:
            await exporter.close()


class _CountingExporter(LogRecordExporter):
    """An exporter that counts lost records, which the batch processor does not report."""

    def __init__(self, exporter: LogRecordExporter) -> None:
        self._exporter = exporter
        self.lost = 0

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        result = self._exporter.export(batch)
        if result is not LogRecordExportResult.SUCCESS:
            self.lost += len(batch)
            log.warning(
                "the collector did not accept audit records; `moothall audit export` can send them "
                "later",
                records=len(batch),
            )
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK's base class

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        del timeout_millis  # each export is complete when it returns
        return True


def _otlp_exporter(settings: TraceSettings) -> LogRecordExporter:
    try:
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
    except ImportError as error:
        raise ConfigurationError(
            "the export of the audit over OTLP needs a package that is not installed: pip install "
            "'moothall[otlp]'"
        ) from error
    return OTLPLogExporter(**otlp_options(settings))
