"""Snapshots of streams, which the server takes without interrupting writes, and their restoration.
A restored stream has the same messages, sequence numbers and durable consumers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from moothall.config import BusSettings
from moothall.errors import BusUnavailable, ConfigurationError
from moothall.events.buckets import BUCKETS, DOCUMENTS
from moothall.events.lease import BUCKET
from moothall.events.nats.connection import connection, translate_errors
from moothall.events.nats.fast_client import FastClient
from moothall.events.nats.layout import BLOBS_STREAM, bucket_stream
from moothall.events.nats.requests import subscribed
from moothall.events.registry import STREAMS, WORK

_CHUNK_BYTES = 128 * 1024
_REFERRED = ("hidden", "bundles", "spent", "revoked")
"""Buckets whose documents are written before the events that refer to them."""
_SECONDS = 30.0
"""The maximum time between two chunks of a snapshot."""


def ordered_streams() -> tuple[str, ...]:
    """Return the streams of a backup, in the order in which they are saved: positions in the log
    before the log, and the documents and blobs that it refers to after it.

    Work and status documents follow from the log; leases belong to running processes.
    """
    buckets = {name: bucket_stream(spec) for name, spec in BUCKETS.items()}
    late = [buckets[name] for name in _REFERRED]
    early = [
        stream
        for name, stream in buckets.items()
        if name not in {*_REFERRED, BUCKET, DOCUMENTS.name}
    ]
    streams = [spec.name for spec in STREAMS if spec is not WORK]
    return (*early, *streams, *late, BLOBS_STREAM)


class Snapshots:
    """Snapshots on one connection. Methods raise `BusUnavailable` if the server does not answer,
    and `ConfigurationError` if it refuses.
    """

    def __init__(self, client: FastClient) -> None:
        self._client = client

    async def save(self, stream: str, write: Callable[[bytes], object]) -> Mapping[str, Any]:
        """Write a snapshot of a stream, and return its description: configuration and state."""
        chunks: asyncio.Queue[Msg] = asyncio.Queue()
        inbox = self._client.new_inbox()
        async with subscribed(self._client, inbox, chunks.put_nowait):
            about = await self._ask(
                f"$JS.API.STREAM.SNAPSHOT.{stream}",
                {"deliver_subject": inbox, "chunk_size": _CHUNK_BYTES},
            )
            while True:
                try:
                    async with asyncio.timeout(_SECONDS):
                        chunk = await chunks.get()
                except TimeoutError as error:
                    raise BusUnavailable(
                        f"the bus sent no more of the snapshot of {stream} for {_SECONDS:.0f} s"
                    ) from error
                if not chunk.data:
                    status = (chunk.headers or {}).get("Status", "204")
                    if status != "204":
                        raise BusUnavailable(f"the bus ended the snapshot of {stream}: {status}")
                    return {"config": about["config"], "state": about["state"]}
                write(chunk.data)
                if chunk.reply:  # the server waits for this ack before it sends more
                    self._client.publish_nowait(chunk.reply)

    async def restore(self, stream: str, about: Mapping[str, Any], chunks: Iterable[bytes]) -> None:
        """Create a stream from a snapshot and its description. Raises `ConfigurationError` if it
        exists already.
        """
        answer = await self._ask(f"$JS.API.STREAM.RESTORE.{stream}", about)
        with translate_errors(f"restore {stream}"):
            for chunk in chunks:
                await self._client.request(answer["deliver_subject"], chunk, _SECONDS)
            done = await self._client.request(answer["deliver_subject"], b"", _SECONDS)
        _check(json.loads(done.data), f"restore {stream}")

    async def _ask(self, subject: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            answer = await self._client.request(subject, json.dumps(request).encode(), _SECONDS)
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(
                f"the bus did not answer on {subject}: {error}. Older credentials of your own bus "
                "lack permission for backups; issue new ones with `moothall bus keys --renew`"
            ) from error
        return _check(json.loads(answer.data), subject)


def _check(answer: Mapping[str, Any], action: str) -> Mapping[str, Any]:
    if (error := answer.get("error")) is None:
        return answer
    raise ConfigurationError(f"the bus refused {action}: {error.get('description')}")


@asynccontextmanager
async def open_snapshots(settings: BusSettings, url: str) -> AsyncIterator[Snapshots]:
    """Connect to a bus without setting up its streams."""
    async with connection(settings, url, on_lost=lambda: None) as client:
        yield Snapshots(client)
