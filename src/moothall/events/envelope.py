"""Encode events and documents for the bus and decode them. Secrets are removed, and large values
are stored beside the message. Events of other programs are checked against their subjects, and
story events are forwarded to the subjects that readers follow.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol, cast

from moothall.domain.event import Event
from moothall.domain.text import may_hold_secrets, scrub_all
from moothall.errors import InvalidRequest, NotFound, Permanent
from moothall.events import codec, registry
from moothall.events.codec import dump_json, load_json
from moothall.events.raw_store import NO_HEADERS

# Large values are stored beside the message, once by sha256, and referred to by `{"$blob": sha256,
# "bytes": n}`.
#
# Data that itself looks like a reference (a model can write anything) is wrapped as `{"$data": …}`,
# so that nobody can insert a reference to a value of somebody else.


_REFERENCE, _ESCAPED = "$blob", "$data"
_SHA256_CHARS = 64


Put = Callable[[str, bytes], Awaitable[None]]
"""Stores bytes under their sha256; repeating it changes nothing."""
Get = Callable[[str], Awaitable[bytes]]
"""Returns the bytes of a sha256. Raises `NotFound`."""


async def _store_blob(put: Put, content: bytes, *, kind: str) -> dict[str, Any]:
    sha256 = hashlib.sha256(content).hexdigest()
    await put(sha256, content)
    return {_REFERENCE: sha256, "bytes": len(content), **({"kind": kind} if kind != "text" else {})}


async def _offload_strings(put: Put, value: Any, limit: int) -> Any:
    if isinstance(value, str):
        # A character takes one to four bytes, so most strings need not be encoded to be measured.
        if len(value) * 4 <= limit:
            return value
        content = value.encode("utf-8", "replace")
        return value if len(content) <= limit else await _store_blob(put, content, kind="text")
    if isinstance(value, Mapping):
        copied = {key: await _offload_strings(put, item, limit) for key, item in value.items()}
        return {_ESCAPED: copied} if _REFERENCE in copied or _ESCAPED in copied else copied
    if isinstance(value, list | tuple):
        return [await _offload_strings(put, item, limit) for item in value]
    return value


async def offload(put: Put, data: Mapping[str, Any], limit: int) -> Mapping[str, Any]:
    """Return `data` with strings over `limit` bytes replaced by references, or one reference to all
    of it if it is still too large.
    """
    raw = dump_json(data)
    if len(raw) <= limit and b'"$' not in raw:
        return data
    shortened: Mapping[str, Any] = await _offload_strings(put, data, limit)
    encoded = dump_json(shortened)
    return shortened if len(encoded) <= limit else await _store_blob(put, encoded, kind="json")


async def _fetch(get: Get, reference: Mapping[str, Any]) -> Any:
    sha256 = reference[_REFERENCE]
    if not isinstance(sha256, str) or len(sha256) != _SHA256_CHARS or not sha256.isalnum():
        raise InvalidRequest(f"{str(sha256)[:80]!r} is not the sha256 of a stored value")
    content, is_json = await get(sha256), reference.get("kind", "text") == "json"
    # In a thread, because values are large.
    value = await asyncio.to_thread(_decode, sha256, content, is_json=is_json)
    return await restore(get, value) if is_json else value


def _decode(sha256: str, content: bytes, *, is_json: bool) -> Any:
    if hashlib.sha256(content).hexdigest() != sha256:
        raise Permanent(f"the stored value {sha256} is damaged: its content has another sha256")
    return load_json(content) if is_json else content.decode("utf-8", "replace")


async def restore(get: Get, data: Any) -> Any:
    """Return data with its references resolved. Raises `NotFound` if a stored value is gone."""
    if isinstance(data, Mapping):
        if _REFERENCE in data:
            return await _fetch(get, data)
        if set(data) == {_ESCAPED} and isinstance(data[_ESCAPED], Mapping):
            return {key: await restore(get, item) for key, item in data[_ESCAPED].items()}
        return {key: await restore(get, item) for key, item in data.items()}
    if isinstance(data, list):
        return [await restore(get, item) for item in data]
    return data


def references(data: Any) -> frozenset[str]:
    """Return the sha256 of every stored value to which data (as on the wire) refers directly."""
    if isinstance(data, Mapping):
        refs = {data[_REFERENCE]} if isinstance(data.get(_REFERENCE), str) else set()
        items = (
            data[_ESCAPED]
            if set(data) == {_ESCAPED} and isinstance(data[_ESCAPED], Mapping)
            else data
        )
        return frozenset(refs).union(*(references(item) for item in items.values()))
    if isinstance(data, list):
        return frozenset().union(*(references(item) for item in data))
    return frozenset()


# Encodes events and documents for the bus and decodes them: secrets are removed, and large values
# are stored separately.


_OFF_LOOP_BYTES = 64_000


@dataclass(frozen=True, slots=True)
class EnvelopeCodec:
    """Converts events and documents to wire bytes and back. `limit` is in bytes; `secrets` are the
    operator's secret values.
    """

    put: Put
    get: Get
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
        return codec.dump_json(await offload(self.put, data, self.limit))

    async def pack(self, event: Event) -> bytes:
        """Return the event's bytes; an event without a time gets the current time."""
        return codec.encode(_with_time(event), await self._clean(event.data))

    def write(self, event: Event) -> bytes:
        """Return an event's bytes unchanged; `is_plain` says whether they may be sent. Raises
        `InvalidRequest`.
        """
        return codec.encode(_with_time(event))

    def is_plain(self, written: bytes) -> bool:
        """Return whether the output of `write`, or several of them together, may be sent unchanged:
        it has no secrets, large values or references.
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
        data = await restore(self.get, event.data)
        if not isinstance(data, Mapping):
            raise InvalidRequest(f"the data of {event.type.value} is a stored text, not an object")
        return replace(event, data=data)

    async def pack_document(self, document: Mapping[str, Any]) -> bytes:
        """Return a document's bytes."""
        return await self._clean(document)

    async def unpack_document(self, raw: bytes) -> Mapping[str, Any]:
        """Return the document in `raw`. Raises `InvalidRequest`, `NotFound`."""
        document = codec.load_json(raw)
        if b'"$' in raw:
            document = await restore(self.get, document)
        if not isinstance(document, Mapping):
            raise InvalidRequest("not a document: a JSON object was expected")
        return document


def _with_time(event: Event) -> Event:
    return (
        event
        if event.time
        else replace(event, time=datetime.now(UTC).isoformat(timespec="milliseconds"))
    )


# Story events that other programs publish are forwarded to the subjects that readers follow.


class PutRaw(Protocol):
    """`RawStore.put_raw`."""

    async def __call__(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        message_id: str = "",
    ) -> int:
        """Store and return the seq; a repeated `message_id` returns the seq of the first."""
        ...


def check_subjects(items: Sequence[Event | Permanent], subject: str) -> list[Event | Permanent]:
    """Return the events of a log message, with an `InvalidRequest` in place of each event that is
    not on its own subject.
    """
    return [
        _wrong_subject_error(item, subject)
        if isinstance(item, Event) and not _is_well_placed(item, subject, len(items))
        else item
        for item in items
    ]


async def forward(
    items: Sequence[Event | Permanent],
    subject: str,
    seq: int,
    packer: EnvelopeCodec,
    put_raw: PutRaw,
) -> list[Event | Permanent]:
    """Return the events of the log message `seq` for a consumer.

    A story event on `agile.events`, on the subject of its bare story id, or together with others in
    one message is stored on its own subject as a separate message and left out here: the consumer
    gets it from there. Any other event that is not on its own subject becomes an `InvalidRequest`.
    """
    accepted: list[Event | Permanent] = []
    for index, item in enumerate(items):
        if not isinstance(item, Event) or _is_well_placed(item, subject, len(items)):
            accepted.append(item)
        elif registry.is_accepted(item, subject):
            # A separate message id: the bus may know the event's id from the original message.
            await put_raw(
                registry.subject_of(item),
                await packer.pack(item),
                message_id=f"forwarded:{seq}:{index}",
            )
        else:
            accepted.append(_wrong_subject_error(item, subject))
    return accepted


def _is_well_placed(event: Event, subject: str, count: int) -> bool:
    """Return whether readers find an event in such a message: see `registry.fits`.

    An event of a story needs its own message, since watchers of stories resume after a seq.
    """
    return registry.fits(event, subject) and (count == 1 or not registry.is_of_story(event))


def _wrong_subject_error(event: Event, subject: str) -> InvalidRequest:
    try:
        return InvalidRequest(
            f"{event.type} does not travel on {subject}; its subject is "
            f"{registry.subject_of(event)}"
        )
    except InvalidRequest as error:
        return error
