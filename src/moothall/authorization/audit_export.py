"""Audit records for export to other systems."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from moothall.authorization.audit_chain import StreamChains, read_record

BATCH_RECORDS = 128
"""Records that are sent at once. A collector accepts 4 MiB, and a record may have several KB."""


def export_record(tenant: str, writer: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its tenant and writer, which name its chain."""
    return {**record, "tenant": tenant, "writer": writer}


def read_records(
    data_dir: Path, stream: StreamChains, since: datetime, tenant: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the records since `since` (UTC), by time, of all chains on this disk and of remote
    hosts in the AUDIT stream, of one `tenant` or of all. Torn and changed lines are left out.
    """
    paths = {(path.parent.name, path.stem): path for path in data_dir.glob("audit/*/*.jsonl")}
    chains: dict[tuple[str, str], Iterable[Mapping[str, Any]]] = {
        **stream.remote,
        **{chain: _read_file(path) for chain, path in paths.items()},
    }
    limit = since.isoformat(timespec="milliseconds")
    yield from heapq.merge(
        *(
            _since(limit, name, writer, records)
            for (name, writer), records in sorted(chains.items())
            if tenant in {None, name}
        ),
        key=lambda record: str(record["time"]),
    )


def _since(
    limit: str, tenant: str, writer: str, records: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    for record in records:
        if str(record["time"]) >= limit:
            yield export_record(tenant, writer, record)


def _read_file(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            if (record := read_record(line.removesuffix(b"\n"))) is not None:
                yield record
