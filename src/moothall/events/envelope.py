"""Encodes events and documents for the bus and decodes them: secrets are removed, and large values
are stored separately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from moothall.domain.event import Event
from moothall.domain.secrets import may_hold_secrets, scrub_all
from moothall.errors import InvalidRequest, NotFound, Permanent
from moothall.events import blobs, codec

_OFF_LOOP_BYTES = 64_000


@dataclass(frozen=True, slots=True)
class EnvelopeCodec:
    """Converts events and documents to wire bytes and back. `limit` is in bytes; `secrets` are the
    operator's secret values.
    """

    put: blobs.Put
    get: blobs.Get
    limit: int
    secrets: tuple[str, ...] = ()

    async def _clean(self, data: Mapping[str, Any]) -> bytes:
        """Return data as JSON without secrets and large values. Most data has neither, and is
        encoded only once.
        """
        try:
            raw = codec.dump_json(data)
        except InvalidRequest:
            raw = b""  # such as a mapping that is not a dict: scrubbing makes it one
        if not raw or may_hold_secrets(raw.decode(), self.secrets):
            try:
                if len(raw) > _OFF_LOOP_BYTES:
                    data = await asyncio.to_thread(scrub_all, data, self.secrets)
                else:
                    data = cast("Mapping[str, Any]", scrub_all(data, self.secrets))
            except RecursionError as error:
                raise InvalidRequest("the data is nested too deeply") from error
            raw = codec.dump_json(data)
        if len(raw) <= self.limit and b'"$' not in raw:
            return raw
        return codec.dump_json(await blobs.offload(self.put, data, self.limit))

    async def pack(self, event: Event) -> bytes:
        """Return the event's bytes; an event without a time gets the current time."""
        return codec.encode(_with_time(event), await self._clean(event.data))

    def write(self, event: Event) -> bytes:
        """Return an event's bytes unchanged; `is_plain` says whether they may be sent. Raises
        `InvalidRequest`.
        """
        return codec.encode(_with_time(event))

    def is_plain(self, written: bytes) -> bool:
        """Whether the output of `write`, or several of them together, may be sent unchanged: it has
        no secrets, large values or references.
        """
        return (
            len(written) <= self.limit
            and b'"$' not in written
            and not may_hold_secrets(written.decode(), self.secrets)
        )

    async def unpack(self, raw: bytes) -> Event:
        """Return the event in `raw`. Raises `InvalidRequest` if there is none, and `NotFound` if a
        large value is gone.
        """
        return await self._restore(codec.decode(raw), raw)

    async def unpack_all(self, raw: bytes) -> list[Event | Permanent]:
        """Return the events of a message, one or a batch, in order, with an error in place of each
        event that cannot be read.
        """
        results: list[Event | Permanent] = list(codec.decode_all(raw))
        if b'"$' in raw:
            for index, event in enumerate(results):
                if isinstance(event, Event):
                    try:
                        results[index] = await self._restore(event, raw)
                    except (InvalidRequest, NotFound) as error:
                        results[index] = error
        return results

    async def _restore(self, event: Event, raw: bytes) -> Event:
        if b'"$' not in raw:
            return event
        data = await blobs.restore(self.get, event.data)
        if not isinstance(data, Mapping):
            raise InvalidRequest(f"the data of {event.type.value} is a stored text, not an object")
        return replace(event, data=data)

    async def pack_document(self, document: Mapping[str, Any]) -> bytes:
        """Return a document's bytes."""
        return await self._clean(document)

    async def unpack_document(self, raw: bytes) -> Mapping[str, Any]:
        """Return the document in `raw`. Raises `InvalidRequest`, `NotFound`."""
        document = await blobs.restore(self.get, codec.load_json(raw))
        if not isinstance(document, Mapping):
            raise InvalidRequest("not a document: a JSON object was expected")
        return document


def _with_time(event: Event) -> Event:
    return (
        event
        if event.time
        else replace(event, time=datetime.now(UTC).isoformat(timespec="milliseconds"))
    )
