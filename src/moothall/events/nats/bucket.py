"""Key-value buckets: the newest document under each key, read by many processes as it changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from nats.js.errors import NotFoundError

from moothall.errors import AlreadyExists, InvalidRequest, NotFound
from moothall.events.buckets import BucketSpec
from moothall.events.envelope import EnvelopeCodec
from moothall.events.nats.connection import log
from moothall.events.nats.layout import FIRST, LAST_SEQ, bucket_prefix, bucket_stream, key_subject
from moothall.events.nats.stream_store import Stored
from moothall.events.raw_store import Raw


@dataclass(frozen=True, slots=True)
class KvBucket:
    """One bucket of the registry. Implements `ports.Bucket`."""

    stored: Stored
    packer: EnvelopeCodec
    spec: BucketSpec

    async def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Store a document, replacing an older one. Raises `BusUnavailable`, `InvalidRequest`."""
        await self.stored.put_raw(
            key_subject(self.spec, key), await self.packer.pack_document(document)
        )

    async def create(self, key: str, document: Mapping[str, Any]) -> None:
        """Store the first document under a key. Raises `AlreadyExists` and what `put` raises."""
        try:
            await self.stored.put_raw(
                key_subject(self.spec, key), await self.packer.pack_document(document), FIRST
            )
        except AlreadyExists as error:
            raise AlreadyExists(f"the bucket {self.spec.name} already has the key {key}") from error

    async def replace(self, key: str, document: Mapping[str, Any], revision: int) -> None:
        """Replace a revision, 0 for none. Raises `AlreadyExists` if another write was faster, and
        what `put` raises.
        """
        headers = {LAST_SEQ: str(revision)}
        await self.stored.put_raw(
            key_subject(self.spec, key), await self.packer.pack_document(document), headers
        )

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the document or None."""
        return (await self.get_with_revision(key))[0]

    async def get_with_revision(self, key: str) -> tuple[Mapping[str, Any] | None, int]:
        """Return the document and its revision; None and 0 where there is none."""
        subject = key_subject(self.spec, key)
        try:
            message = await self.stored.retry(
                f"return {self.spec.name} {key}",
                lambda: self.stored.js.get_msg(bucket_stream(self.spec), subject=subject),
            )
        except NotFoundError:
            return None, 0
        return await self.packer.unpack_document(message.data or b""), message.seq or 0

    async def remove(self, key: str) -> None:
        """Remove the document under a key, if there is one."""
        await self.stored.drop(bucket_stream(self.spec), key_subject(self.spec, key))

    async def keys(self) -> Sequence[str]:
        """Return all keys, sorted."""
        subjects = await self.stored.subjects(
            bucket_stream(self.spec), f"{bucket_prefix(self.spec)}>"
        )
        return [subject.removeprefix(bucket_prefix(self.spec)) for subject in subjects]

    async def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """Return all documents by key."""
        documents: dict[str, Mapping[str, Any]] = {}
        async with aclosing(self.stored.raw(bucket_stream(self.spec))) as records:
            async for raw in records:
                await self._add(documents, raw)
        return documents

    async def follow(self) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        """Yield (key, document) for all documents, then for each change, until closed."""
        async with aclosing(self.stored.read(bucket_stream(self.spec), (), 0, None)) as records:
            async for raw in records:
                documents: dict[str, Mapping[str, Any]] = {}
                await self._add(documents, raw)
                for entry in documents.items():
                    yield entry

    async def _add(self, documents: dict[str, Mapping[str, Any]], raw: Raw) -> None:
        key = raw.subject.removeprefix(bucket_prefix(self.spec))
        try:
            documents[key] = await self.packer.unpack_document(raw.data)
        except (InvalidRequest, NotFound) as error:
            log.warning("document skipped", bucket=self.spec.name, key=key, reason=error.message)
