"""In-memory buckets and blobs of the in-memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from moothall.errors import AlreadyExists, NotFound
from moothall.events.envelope import EnvelopeCodec
from moothall.events.registry import bucket_of


class MemoryBlobs:
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    async def put(self, sha256: str, content: bytes) -> None:
        """Store a blob."""
        self.stored[sha256] = content

    async def get(self, sha256: str) -> bytes:
        """Return the bytes. Raises `NotFound`."""
        try:
            return self.stored[sha256]
        except KeyError as error:
            raise NotFound(f"the stored value {sha256} is gone: it was pruned") from error


class MemoryBucket:
    """A bucket in a dictionary."""

    def __init__(self, name: str, packer: EnvelopeCodec) -> None:
        self._name = name
        self._packer = packer
        self._stored: dict[str, bytes] = {}
        self._revisions: dict[str, int] = {}
        self._changed_keys: list[str] = []
        self._changed = asyncio.Event()

    async def put(self, key: str, document: Mapping[str, Any]) -> None:
        """Store a document, replacing an earlier one."""
        bucket_of(self._name).check(key)
        self._stored[key] = await self._packer.pack_document(document)
        self._changed_keys.append(key)
        self._revisions[key] = len(self._changed_keys)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def remove(self, key: str) -> None:
        """Remove a document and its revisions."""
        self._stored.pop(key, None)
        self._revisions.pop(key, None)

    async def create(self, key: str, document: Mapping[str, Any]) -> None:
        """Store a new document. Raises `AlreadyExists`."""
        if key in self._stored:
            raise AlreadyExists(f"{self._name} has a {key} already")
        await self.put(key, document)

    async def replace(self, key: str, document: Mapping[str, Any], revision: int) -> None:
        """Replace a document of a certain revision. Raises `AlreadyExists`."""
        if self._revisions.get(key, 0) != revision:
            raise AlreadyExists(f"{self._name} has another {key}")
        await self.put(key, document)

    async def get_with_revision(self, key: str) -> tuple[Mapping[str, Any] | None, int]:
        """Return the document and its revision."""
        return await self.get(key), self._revisions.get(key, 0)

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the document or None."""
        bucket_of(self._name).check(key)
        stored = self._stored.get(key)
        return None if stored is None else await self._packer.unpack_document(stored)

    async def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """Return all documents, by key."""
        return {
            key: await self._packer.unpack_document(content)
            for key, content in self._stored.items()
        }

    async def follow(self) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        """Yield the documents, then changes."""
        yielded = len(self._changed_keys)
        for key, document in (await self.entries()).items():
            yield key, document
        while True:
            changed = self._changed
            for key in dict.fromkeys(self._changed_keys[yielded:]):
                yielded = len(self._changed_keys)
                yield key, await self._packer.unpack_document(self._stored[key])
            await changed.wait()
