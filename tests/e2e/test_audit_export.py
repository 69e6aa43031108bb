"""Export of the audit: OTLP log records to a real receiver while calls run, `moothall audit export`
afterwards, and retention.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc

from command import Command, answer_turns_with, by_task
from moothall.cli.demo import make_sample_repository
from moothall.testing.model import scripted_model

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

TASK = "Add hello_world() function to src/utils.py"


@dataclass(slots=True)
class Receiver(logs_service_pb2_grpc.LogsServiceServicer):
    """A collector of log records: audit records with the attributes of each."""

    records: list[dict[str, Any]] = field(default_factory=list)
    attributes: list[dict[str, Any]] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the RPC's name
        del context
        for resource in request.resource_logs:
            self.services |= {
                pair.value.string_value
                for pair in resource.resource.attributes
                if pair.key == "service.name"
            }
            for record in (record for scope in resource.scope_logs for record in scope.log_records):
                assert record.event_name == "moothall.audit.recorded"
                self.records.append(json.loads(record.body.string_value))
                self.attributes.append(
                    {
                        pair.key: getattr(pair.value, pair.value.WhichOneof("value"))
                        for pair in record.attributes
                    }
                )
        return logs_service_pb2.ExportLogsServiceResponse()


@asynccontextmanager
async def receiving() -> AsyncIterator[tuple[Receiver, str]]:
    receiver, server = Receiver(), grpc.aio.server()
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield receiver, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(0)


def ids(records: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return sorted((record["tenant"], record["writer"], record["seq"]) for record in records)


async def test_audit_records_are_exported_to_a_collector_and_a_file_and_old_ones_pruned(
    tmp_path: Path,
) -> None:
    await make_sample_repository(tmp_path / "repo")
    async with (
        scripted_model(answer_turns_with(by_task)) as model,
        receiving() as (receiver, endpoint),
    ):
        extra = {
            "MOOTHALL_GUARD__AUDIT_EXPORTER": "otlp",
            "MOOTHALL_TRACE__ENDPOINT": endpoint,
        }
        command = Command(tmp_path / "data", model.base_url, extra)
        started = datetime.now(UTC)
        unreachable = {
            "MOOTHALL_TRACE__ENDPOINT": "http://127.0.0.1:9",
        }
        without_collector = Command(tmp_path / "data", model.base_url, extra | unreachable)
        for run_command in (without_collector, command):
            deliberated = await run_command("deliberate", "--repo", str(tmp_path / "repo"), TASK)
            assert deliberated.code == 0, deliberated.out + deliberated.err

        exported = await command("audit", "export", "--since", started.isoformat())
        lines = [json.loads(line) for line in exported.out.splitlines()]
        assert len(lines) >= 4
        assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
        assert {line["phase"] for line in lines} == {"start", "finish"}
        assert ids(receiver.records) == ids(lines), "those of both, also without a collector"
        assert {name["moothall.audit.tool"] for name in receiver.attributes} == {
            line["tool"] for line in lines
        }
        assert receiver.services == {"moothall"}

        receiver.records.clear()
        export = await command("audit", "export", "--since", "2026-01-01", "--format", "otlp")
        assert (export.code, ids(receiver.records)) == (0, ids(lines)), export.err
        assert f"{len(lines)} of {len(lines)} records sent to {endpoint}" in export.err

        later_time = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        assert (await command("audit", "export", "--since", later_time)).out == ""
        export_of_other = await command(
            "audit", "export", "--since", "2026-01-01", "--tenant", "acme"
        )
        assert export_of_other.out == ""
        refused = await command("audit", "export", "--since", "yesterday")
        assert (refused.code, "'yesterday' is not an ISO 8601 time" in refused.err) == (2, True)

        failed_export = await without_collector(
            "audit", "export", "--since", "2026-01-01", "--format", "otlp"
        )
        assert failed_export.code == 1
        assert f"0 of {len(lines)} records sent" in failed_export.err

        keep = Command(tmp_path / "data", model.base_url, {"MOOTHALL_GUARD__AUDIT_DAYS": "1"})
        pruned = await keep("log", "prune", "--keep", "100000", "--yes")
        assert "0 messages of the AUDIT stream older than 1 days" in pruned.out, pruned.err
        verified = await keep("audit", "verify")
        assert verified.out.strip().endswith("whole")
